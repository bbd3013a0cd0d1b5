# SPDX-License-Identifier: MIT
"""The build cache: what makes a new module, what damages one, where it lives, who may build."""

import json
import logging
import multiprocessing
import os
import re
import stat
import threading
import time
from pathlib import Path

import pytest
from jit_project import forget

from aiter_like.errors import BuildError
from aiter_like.modules import build, cache
from aiter_like.modules.build import load_or_build


def _load(spec, **options) -> Path:
    """As a new process would."""
    forget()
    return load_or_build(spec, **options)


def test_second_load_runs_no_compiler(fake, project):
    first = _load(project.spec())
    runs = fake.runs()
    assert _load(project.spec()) == first
    assert fake.runs() == runs == 2  # one object, one link


@pytest.mark.parametrize("change", ["source", "header", "flag", "macro", "arch", "compiler", "output"])
def test_change_of_an_input_builds_again(fake, project, change):
    first = _load(project.spec())
    fields = {}
    if change == "source":
        project.source.write_text(project.source.read_text() + "// more\n")
    elif change == "header":
        project.header.write_text("#define VALUE 2\n")
    elif change == "compiler":
        fake.path.write_text(fake.path.read_text().replace("22.0.0", "22.0.1"))
    else:
        fields = {"flag": {"flags": ("-g",)}, "macro": {"defines": {"N": 2}}, "arch": {"arch": "x86-64-v2"},
                  "output": {"output": "other.so"}}[change]
    second = _load(project.spec(**fields))
    assert second != first and fake.runs() == 4
    assert _load(project.spec(**fields)) == second and fake.runs() == 4


@pytest.mark.parametrize("change", ["unused header", "new file", "times"])
def test_unrelated_change_builds_nothing(fake, project, change):
    first = _load(project.spec())
    if change == "unused header":
        (project.root / "include" / "unused.h").write_text("#define OTHER\n")
    elif change == "new file":
        (project.root / "op" / "other.cpp").write_text("int other;\n")
    else:
        os.utime(project.header)
        os.utime(project.source)
    assert _load(project.spec()) == first and fake.runs() == 2


def test_older_state_is_found_again(fake, project):
    first = _load(project.spec())
    project.header.write_text("#define VALUE 2\n")
    assert _load(project.spec()) != first
    project.header.write_text("#define VALUE 1\n")
    assert _load(project.spec()) == first and fake.runs() == 4


def test_rebuild_is_forced(fake, project):
    assert _load(project.spec()) == _load(project.spec(), rebuild=True)
    assert fake.runs() == 4


@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "missing", "meta", "no meta"])
def test_damaged_entry_is_built_again(fake, project, caplog, damage):
    path = _load(project.spec())
    good = path.read_bytes()
    meta = path.parent / cache.META
    if damage == "flipped bit":
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    elif damage == "truncated":
        path.write_bytes(good[:-1])
    elif damage == "missing":
        path.unlink()
    elif damage == "meta":
        meta.write_text(meta.read_text()[:40])
    else:
        meta.unlink()
    assert _load(project.spec()) == path
    assert path.read_bytes() == good and fake.runs() == 4
    assert "built again" in caplog.text
    assert not list(path.parent.parent.glob(".tmp-*"))


@pytest.mark.parametrize("edited", ["source", "header"])
def test_file_saved_during_the_build(fake, project, caplog, monkeypatch, edited):
    """The compiler saw the file before it was saved: what it made must not be found under the new content."""
    compile_once = build._compile
    file = project.source if edited == "source" else project.header

    def compile_while_editing(*args):
        seconds = compile_once(*args)
        if fake.runs() <= 2:
            file.write_text(file.read_text() + "// saved\n")
        return seconds

    monkeypatch.setattr(build, "_compile", compile_while_editing)
    path = _load(project.spec())
    assert fake.runs() == 4 and "changed during its build" in caplog.text
    meta = json.loads((path.parent / cache.META).read_text())
    recorded = meta["inputs"]["sources"] | {header[0]: header[3] for header in meta["headers"]}
    assert recorded[str(file.relative_to(project.root))] == cache.sha256_of(file)
    assert edited == "header" or b"// saved" in path.read_bytes()


def test_file_that_never_rests(fake, project, monkeypatch):
    compile_once = build._compile

    def compile_while_editing(*args):
        seconds = compile_once(*args)
        project.source.write_text(f"// {fake.runs()}\n")
        return seconds

    monkeypatch.setattr(build, "_compile", compile_while_editing)
    with pytest.raises(BuildError, match="op/tiny: its sources changed during each of 3 builds"):
        _load(project.spec())


def test_meta_records_every_input(fake, project):
    path = _load(project.spec(defines={"N": 3, "FAST": True}))
    meta = json.loads((path.parent / cache.META).read_text())
    assert meta["inputs"]["defines"] == {"N": "3", "FAST": "1"}
    assert meta["inputs"]["sources"] == {"op/tiny.cpp": cache.sha256_of(project.source)}
    assert [header[0] for header in meta["headers"]] == ["include/used.h"]
    assert "fake clang version 22.0.0" in meta["build"]["compiler"]
    assert "-DN=3" in meta["build"]["commands"][0] and str(project.root) not in meta["build"]["commands"][0]
    assert meta["output"] == {"name": "module.so", "sha256": cache.sha256_of(path)}
    assert re.fullmatch(r"[0-9a-f]{64}", path.parent.name)


# ---- places


def test_cache_directory_is_private(fake, project, tmp_path):
    _load(project.spec())
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_xdg_then_home(tmp_path, monkeypatch):
    monkeypatch.delenv("AITER_LIKE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "aiter_like"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "aiter_like"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_root() == tmp_path / ".cache" / "aiter_like"


@pytest.mark.parametrize("obstacle", ["a file in the way", "open to others", "no home"])
def test_unusable_home_falls_back_with_a_warning(fake, project, tmp_path, monkeypatch, caplog, obstacle):
    monkeypatch.delenv("AITER_LIKE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if obstacle == "a file in the way":  # root may write anywhere, so a mode of 0500 would prove nothing
        (tmp_path / "home").write_text("")
    elif obstacle == "open to others":
        (tmp_path / "home").mkdir()
        (tmp_path / "home").chmod(0o777)
    else:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a user that has no home
    path = _load(project.spec())
    assert path.is_file() and tmp_path not in path.parents
    root = path.parents[2]
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert f"go to {root}" in caplog.text and "AITER_LIKE_CACHE_DIR" in caplog.text


def test_prebuilt_directory_needs_no_compiler(fake, project, tmp_path, monkeypatch):
    prebuilt = tmp_path / "prebuilt"
    built = _load(project.spec(), root=prebuilt)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in built.parent.iterdir()), "for other users to read"
    for path in [*prebuilt.rglob("*"), prebuilt]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(prebuilt.rglob("*"))
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(prebuilt))
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(tmp_path / "no compiler"))
    try:
        assert _load(project.spec()) == built
        assert sorted(prebuilt.rglob("*")) == before
    finally:
        for path in [prebuilt, *prebuilt.rglob("*")]:
            path.chmod(0o755)


def test_prebuilt_of_other_sources_is_not_used(fake, project, tmp_path, monkeypatch):
    prebuilt = _load(project.spec(), root=tmp_path / "prebuilt")
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "prebuilt"))
    project.header.write_text("#define VALUE 2\n")
    assert tmp_path / "cache" in _load(project.spec()).parents
    project.header.write_text("#define VALUE 1\n")
    assert _load(project.spec()) == prebuilt
    prebuilt.write_bytes(b"damaged")
    assert tmp_path / "cache" in _load(project.spec()).parents


def test_prebuilt_directory_that_is_not_there(fake, project, tmp_path, monkeypatch):
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(BuildError, match="AITER_LIKE_PREBUILT_DIR='.*nowhere' is no directory"):
        _load(project.spec())


# ---- failures and locks


def test_a_compiler_that_prints_any_bytes(fake, project, monkeypatch):
    project.source.write_bytes(b"#error on \xff\xfe purpose\n")
    monkeypatch.setenv("LC_ALL", "C")
    with pytest.raises(BuildError) as caught:
        _load(project.spec())
    assert "#error on \ufffd\ufffd purpose" in caught.value.output
    assert "\ufffd purpose" in caught.value.log_path.read_text(encoding="utf-8")


def test_build_error_tells_all(fake, project, tmp_path):
    project.source.write_text("#error on purpose\n")
    with pytest.raises(BuildError) as caught:
        _load(project.spec())
    error = caught.value
    assert error.module == "op/tiny"
    assert error.command.startswith(f"{fake.path} -std=c++20") and str(project.source) in error.command
    assert "1:#error on purpose" in error.output and "ninja" not in error.output
    assert error.log_path.parent == tmp_path / "cache" / "logs" and "#error on purpose" in error.log_path.read_text()
    assert str(error.log_path) in str(error) and error.command in str(error)
    assert not list((tmp_path / "cache").glob("op.tiny/.tmp-*"))
    project.source.write_text("int fine;\n")
    assert _load(project.spec()).is_file()


def test_missing_source(fake, project):
    project.source.unlink()
    with pytest.raises(BuildError, match="op/tiny: .*No such file"):
        _load(project.spec())


def test_full_disk_is_a_build_error(fake, project, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "publish", no_space)
    with pytest.raises(BuildError, match="op/tiny: .*No space left"):
        _load(project.spec())


def _hold(module_dir: Path, request: str, ready) -> None:
    with cache.locked(module_dir, request, 1):
        ready.set()
        threading.Event().wait()  # until it is ended


def test_lock_timeout_names_the_holder(fake, project, tmp_path):
    spec = project.spec()
    module_dir, request = tmp_path / "cache" / spec.folder, build._request(spec.inputs())
    module_dir.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(module_dir, request, ready), daemon=True)
    holder.start()
    try:
        ready.wait()
        with pytest.raises(BuildError) as caught:
            _load(spec, lock_timeout=0.2)
        assert f"pid {holder.pid} on {os.uname().nodename}, since 20" in str(caught.value)
        assert f"{request}.lock" in str(caught.value) and "more than 0.2 s" in str(caught.value)
        assert fake.runs() == 0
    finally:
        holder.kill()
        holder.join()
    assert _load(spec, lock_timeout=5).is_file()  # the kernel freed the lock


def test_prune(fake, project, tmp_path):
    root = tmp_path / "cache"
    old, new = _load(project.spec()), _load(project.spec(name="op/new"))
    month = 31 * 86400
    os.utime(old.parent, (time.time() - month, time.time() - month))
    request = old.parent.name[:cache.REQUEST_DIGITS]
    stale = old.parents[1] / f".tmp-{request}-abc"
    stale.mkdir()
    (stale / "half.o").write_bytes(b"x" * 1000)
    with cache.locked(old.parents[1], request, 1):
        assert cache.prune(root, 30) == (0, 0)  # somebody builds it
    removed, freed = cache.prune(root, 30)
    assert removed == 2 and freed > 1000
    assert not old.exists() and not stale.exists() and new.is_file()


def test_prune_removes_files_that_have_lost_their_writer(tmp_path):
    (tmp_path / "op.tiny").mkdir()
    for folder in (tmp_path, tmp_path / "op.tiny"):
        old, young, of_others = (folder / name for name in (".tmp-abcdefgh", ".tmp-bcdefghi", "notes"))
        for path in (old, young, of_others):
            path.write_text("{")
        for path in (old, of_others):
            os.utime(path, (0, 0))
    assert cache.prune(tmp_path, 0) == (0, 0)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".tmp-bcdefghi", "notes", "op.tiny/.tmp-bcdefghi", "op.tiny/notes"]


def test_next_builder_sweeps_up_after_a_killed_one(fake, project, tmp_path):
    spec = project.spec()
    stale = tmp_path / "cache" / spec.folder / f".tmp-{build._request(spec.inputs())}-abc"
    stale.mkdir(parents=True)
    (stale / "half.o").write_bytes(b"x")
    _load(spec)
    assert not stale.exists()


def test_use_keeps_an_entry(fake, project, tmp_path):
    path = _load(project.spec())
    os.utime(path.parent, (0, 0))
    _load(project.spec())
    assert cache.prune(tmp_path / "cache", 30) == (0, 0)


def test_failed_module_does_not_look_like_an_entry(fake, project, tmp_path, caplog):
    project.source.write_text("#error\n")
    with pytest.raises(BuildError):
        _load(project.spec())
    with caplog.at_level(logging.WARNING):
        assert list(cache.entries(tmp_path / "cache")) == []
    assert caplog.text == ""
