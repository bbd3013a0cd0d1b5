# SPDX-License-Identifier: MIT
"""`aiter-like doctor` about prebuilt folders and rows of other devices; `--version`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aiter_like import __version__, paths
from aiter_like.build import build
from aiter_like.cli import doctor, main

pytestmark = pytest.mark.usefixtures("jit_folders")


def test_doctor_counts_the_prebuilt_modules_that_fit(fake, project, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "prebuilt"
    build.ensure(project.spec(), root=folder)
    monkeypatch.setattr(paths, "csrc", lambda: project.root)
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(folder))
    assert doctor._print_prebuilt() == [] and "1 of 1 modules" in capsys.readouterr().out
    source = project.source.read_text()
    project.source.write_text(source + "\n")
    assert "of other sources" in doctor._print_prebuilt()[0]
    project.source.write_text(source)
    capsys.readouterr()
    next(folder.glob("*/*/module.so")).write_bytes(b"x")
    assert "1 modules" in doctor._print_prebuilt()[0] and "0 of 1 modules" in capsys.readouterr().out
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "none"))
    assert doctor._print_prebuilt() == [f"AITER_LIKE_PREBUILT_DIR: {tmp_path / 'none'} is no directory"]


def test_only_rows_of_this_device_are_stale():
    row = SimpleNamespace(key=("sm_90", 132, 1), is_modelled=False, backend="hip", source="x.csv:2")
    backend = SimpleNamespace(name="hip", staleness=lambda row: "another revision")
    op = SimpleNamespace(name="x", backends=[backend], table=SimpleNamespace(rows=lambda: [row]))
    assert doctor._stale(op, {("gfx942", 304)}) == [] and len(doctor._stale(op, {("sm_90", 132)})) == 1


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"aiter-like {__version__}\n"
