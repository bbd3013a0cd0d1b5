# SPDX-License-Identifier: MIT
"""What the cache loads runs in this process: nothing that others could have put there. Nothing is chmodded."""

import json
import os
import random
import stat
from pathlib import Path

import pytest
from jit_project import forget

from aiter_like.errors import BuildError
from aiter_like.modules import cache, trust
from aiter_like.modules.build import load_or_build

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def _load(spec) -> Path:
    """As a new process would."""
    forget()
    return load_or_build(spec)


def _places(path: Path) -> dict[str, Path]:
    """What lies on the way to a library, by name."""
    return {"parent": path.parents[3], "root": path.parents[2], "module": path.parents[1], "entry": path.parent,
            "meta": path.parent / cache.META, "library": path}


@pytest.fixture
def parent(tmp_path, monkeypatch) -> Path:
    """A folder for the cache's that the test may open to others."""
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(tmp_path / "parent" / "cache"))
    return tmp_path / "parent"


@pytest.mark.parametrize("how", ["stranger's", "world", "group"])
@pytest.mark.parametrize("place", ["parent", "root", "module", "entry", "meta", "library"])
def test_what_others_may_write_is_not_loaded(fake, project, parent, caplog, monkeypatch, place, how):
    path = _load(project.spec())
    target = _places(path)[place]
    if how == "stranger's":
        if os.geteuid():
            pytest.skip("only root can give files away")
        os.chown(target, STRANGER, -1)
    else:
        monkeypatch.setattr(trust, "_is_own_group", lambda group, user: False)
        target.chmod(stat.S_IMODE(target.stat().st_mode) | (0o002 if how == "world" else 0o020))
    before = target.stat()
    runs = fake.runs()
    again = _load(project.spec())
    assert fake.runs() == runs + 2
    reason = f"{target} {'belongs to user 12345' if how[0] == 's' else 'may be written by others'}"
    assert reason in caplog.text
    if place in ("parent", "root"):  # nothing there can be made safe: the process has a place of its own
        assert parent not in again.parents
        assert target.stat().st_mode == before.st_mode
    else:
        assert again == path and trust.fault(path) == ""
        assert _load(project.spec()) == path and fake.runs() == runs + 2


@as_root
def test_prebuilt_of_a_stranger_is_not_loaded(fake, project, tmp_path, monkeypatch, caplog):
    forget()
    prebuilt = load_or_build(project.spec(), root=tmp_path / "prebuilt")
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "prebuilt"))
    assert _load(project.spec()) == prebuilt
    os.chown(prebuilt, STRANGER, -1)
    assert tmp_path / "cache" in _load(project.spec()).parents
    assert f"{prebuilt} belongs to user 12345" in caplog.text


@pytest.mark.parametrize("kind", ["library", "entry", "module", "root"])
def test_links(fake, project, tmp_path, parent, kind):
    """A link below the cache's root is not followed; one to the root is, and the folders that it leads to count."""
    path = _load(project.spec())
    target = _places(path)[kind]
    elsewhere = tmp_path / "elsewhere"
    target.rename(elsewhere)
    target.symlink_to(elsewhere)
    again = _load(project.spec())
    if kind == "root":
        assert again == elsewhere / path.relative_to(target) and fake.runs() == 2
        elsewhere.chmod(0o777)
        assert not {elsewhere, parent} & set(_load(project.spec()).parents)
    else:
        assert again == path and fake.runs() == 4 and not target.is_symlink() and elsewhere.exists()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o700, 0o1777])
def test_modes_of_existing_directories_are_left(fake, project, tmp_path, mode):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    assert tmp_path / "cache" in _load(project.spec()).parents
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == mode


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_nothing_made_here_is_open_to_others(fake, project, parent, umask):
    before = os.umask(umask)
    try:
        path = _load(project.spec())
        assert trust.fault(path) == "" and stat.S_IMODE(path.parents[2].stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert _load(project.spec()) == path and fake.runs() == 2


def test_temporary_directory_that_others_may_write(fake, project, tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(tmp_path / "open" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "open"))
    with pytest.raises(BuildError, match="open may be written by others .*Set AITER_LIKE_CACHE_DIR to one that only"):
        _load(project.spec())


def test_groups_of_ordinary_users(monkeypatch):
    """A private group, as most distributions give each user, adds nobody; root's own folders are open to no group."""
    import grp
    import pwd

    monkeypatch.setattr(pwd, "getpwuid", lambda user: type("Account", (), {"pw_name": {5: "a", 6: "b"}[user]}))
    monkeypatch.setattr(grp, "getgrgid", lambda group: type("Group", (), {
        "gr_name": {5: "a", 6: "b", 7: "users"}[group], "gr_mem": {5: [], 6: ["b", "a"], 7: ["a"]}[group]}))
    own = trust._is_own_group.__wrapped__
    assert own(5, 5) and not own(6, 6) and not own(7, 5) and own(0, 5) and not own(0, 0) and not own(9, 5)


# ---- files of another kind, damaged ones


OBSTACLES = {"file": lambda path: path.write_bytes(b"\0"), "folder": lambda path: (path / "x").mkdir(parents=True),
             "dangling link": lambda path: path.symlink_to("nowhere"), "pipe": os.mkfifo}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("place", ["module", "entry", "meta", "library", "lock", "holder", "compilers", "logs", "log"])
def test_things_of_another_kind_are_out_of_the_way(fake, project, tmp_path, obstacle, place):
    path = _load(project.spec())
    root, module, request = path.parents[2], path.parents[1], path.parent.name[:cache.REQUEST_DIGITS]
    places = _places(path) | {"lock": module / f"{request}.lock", "holder": module / f"{request}.holder",
                              "compilers": root / "compilers.json", "logs": root / "logs",
                              "log": root / "logs" / f"{module.name}.log"}
    target = places[place]
    if os.path.lexists(target):
        target.rename(tmp_path / "moved")
    target.parent.mkdir(exist_ok=True)
    OBSTACLES[obstacle](target)
    if place not in ("module", "entry", "meta", "library", "compilers"):  # those that only a build looks at
        project.source.write_text("#error\n" if place.startswith("log") else "int other;\n")
        places["lock"], places["holder"] = (module / f"{request}.lock" for _ in range(2))
    if place.startswith("log"):
        with pytest.raises(BuildError, match="full log: .*op.tiny.log"):
            _load(project.spec())
    else:
        good = _load(project.spec())
        runs = fake.runs()
        assert _load(project.spec()) == good and fake.runs() == runs
        assert place == "compilers" or runs == 4


def test_a_users_own_file_is_set_aside_and_kept(fake, project, tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "op.tiny").write_text("precious")
    assert _load(project.spec()).is_file()
    (kept,) = (tmp_path / "cache").glob("op.tiny.set-aside-*/op.tiny")
    assert kept.read_text() == "precious" and f"op.tiny is no directory: it is now in {kept.parent}" in caplog.text


def test_prune_removes_only_what_the_cache_made(fake, project, tmp_path):
    precious = tmp_path / "cache" / "letters" / "2011"
    precious.mkdir(parents=True)
    os.utime(precious, (0, 0))
    path = _load(project.spec())
    assert cache.prune(tmp_path / "cache", 0)[0] == 1
    assert precious.is_dir() and not path.exists()


STRANGE = [b"", b"{}", b"null", b"[]", b"3", b"\0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000,
           b'{"sha256": null}', b'{"sha256": {}}', b'{"output": {"name": "../../x"}}', b'{"output": [], "headers": {}}',
           b'{"headers": [["/dev/zero", 1, 1, ""]]}', b"NaN"]


@pytest.mark.parametrize("name", [cache.META, "compilers.json"])
def test_strange_metadata_is_a_miss(fake, project, name):
    path = _load(project.spec())
    file = path.parent / name if name == cache.META else path.parents[2] / name
    text = file.read_bytes()
    draw = random.Random(0)
    damaged = [*STRANGE, text[:-1], text + b"}"]
    for _ in range(12):  # a bit, anywhere: also in a number or a word that would still parse
        at = draw.randrange(len(text))
        damaged.append(text[:at] + bytes([text[at] ^ 1 << draw.randrange(7)]) + text[at + 1:])
    for variant in damaged:
        file.write_bytes(variant)
        assert _load(project.spec()) == path, variant[:80]
        assert json.loads(file.read_text())[cache._SEAL]
        cache.prune(path.parents[2], 10)
        assert [entry.path for entry in cache.entries(path.parents[2])] == [path]


# ---- content, not time


@pytest.mark.parametrize("when", [0, 2**33], ids=["1970", "2242"])
def test_dates_of_sources_decide_nothing(fake, project, when):
    for file in project.root.rglob("*.*"):
        os.utime(file, (when, when))
    path = _load(project.spec())
    assert _load(project.spec()) == path and fake.runs() == 2


def test_content_decides_for_system_headers_too(fake, project, tmp_path):
    """As where a package manager gives every file one date: same size, same time, another text."""
    header = tmp_path / "system.h"
    header.write_text("#define VALUE 1\n")
    os.utime(header, (1, 1))
    project.header.unlink()
    project.header.symlink_to(header)
    first = _load(project.spec())
    header.write_text("#define VALUE 2\n")
    os.utime(header, (1, 1))
    assert _load(project.spec()) != first and fake.runs() == 4
