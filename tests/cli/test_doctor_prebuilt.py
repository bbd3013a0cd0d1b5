# SPDX-License-Identifier: MIT
"""`aiter-like doctor` about prebuilt folders and rows of other devices; `--version`."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiter_like import __version__, paths
from aiter_like.cli import doctor, main
from aiter_like.modules import build

pytestmark = pytest.mark.usefixtures("jit_folders")


def prebuilt():
    """(what is said of the folder, problems)."""
    problems = []
    return doctor._prebuilt(problems).partition(" in ")[0], problems


def test_doctor_counts_the_prebuilt_modules_that_fit(fake, project, tmp_path, monkeypatch):
    folder = tmp_path / "prebuilt"
    build.ensure(project.spec(), root=folder)
    monkeypatch.setattr(paths, "csrc", lambda: project.root)
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(folder))
    assert prebuilt() == ("1 of 1 modules", [])
    source = project.source.read_text()
    project.source.write_text(source + "\n")
    assert "of other sources" in prebuilt()[1][0]
    project.source.write_text(source)
    next(folder.glob("*/*/module.so")).write_bytes(b"x")
    found, problems = prebuilt()
    assert found == "0 of 1 modules" and "1 modules" in problems[0]
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "none"))
    assert prebuilt() == ("", [f"AITER_LIKE_PREBUILT_DIR: {tmp_path / 'none'} is no directory"])


def test_folders_that_cannot_be_had_are_named_with_the_reason(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    assert [*doctor._unusable_folders()] == []
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(file / "cache"))
    monkeypatch.setenv("AITER_LIKE_RECORD", str(file / "a" / "b"))
    cache, record = doctor._unusable_folders()
    assert "no usable cache directory" in cache and f"Not a directory: '{file / 'cache'}'" in cache
    assert record == f"AITER_LIKE_RECORD: no shapes are recorded in {file / 'a' / 'b'}: {file} is no directory"
    notes: list[str] = []
    doctor._software([], notes)
    assert notes == [cache, record]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(tmp_path / "open"))
    assert f"{tmp_path / 'open'}" in next(doctor._unusable_folders())


def test_only_rows_of_this_device_are_stale():
    row = SimpleNamespace(key=("sm_90", 132, 1), is_modelled=False, backend="hip", source="x.csv:2")
    op = SimpleNamespace(name="x", staleness=lambda row: "another revision", table=SimpleNamespace(rows=lambda: [row]))
    assert doctor._stale(op, {("gfx942", 304)}) == [] and len(doctor._stale(op, {("sm_90", 132)})) == 1


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"aiter-like {__version__}\n"


def test_json_has_what_the_text_has_and_nothing_of_its_user(tmp_path, monkeypatch, capsys):
    """Paths with spaces, relative ones, those of problems, values of unknown variables, names of user and machine."""
    folder = tmp_path / "a private folder"
    monkeypatch.setattr("getpass.getuser", lambda: "zebedee")
    monkeypatch.setattr("platform.node", lambda: "roundabout")
    monkeypatch.setenv("HOME", str(tmp_path / "zebedee"))
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(folder))
    monkeypatch.setenv("AITER_LIKE_RECORD", "privately")
    monkeypatch.setenv("AITER_LIKE_TUNED", f"{folder}/own.csv:mine.csv")
    monkeypatch.setenv("AITER_LIKE_SECRET", "swordfish")
    monkeypatch.setenv("AITER_LIKE_JOBS", "roundabout")
    assert main(["doctor", "--json"]) == 1
    text = capsys.readouterr().out
    report = json.loads(text)
    for word in ("mine.csv", "private", "zebedee", "roundabout", "swordfish", "own.csv", str(tmp_path),
                 str(Path.cwd())):
        assert word not in text, word
    assert list(report) == ["environment", "software", "devices", "tuned_tables", "problems", "notes"]
    assert report["environment"]["AITER_LIKE_RECORD"] == {"value": "<path>", "is_set": True}
    assert report["software"]["aiter_like"] == __version__ and "gfx942" in report["devices"]["cpu"]
    assert "AITER_LIKE_PREBUILT_DIR: <path> is no directory" in report["problems"]
    assert report["tuned_tables"]["rms_norm"]["packaged, measured"]["rows"] > 0
