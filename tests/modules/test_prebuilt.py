# SPDX-License-Identifier: MIT
"""Modules that others built: for a lower level of the processor, in a wheel; and headers that are precompiled."""

import ctypes
from pathlib import Path

import pytest
from jit_project import Project, counting_clang, forget
from toys import FakeJit, make_op

from aiter_like import paths
from aiter_like.dispatch import Backend
from aiter_like.dispatch.table import Row
from aiter_like.errors import BuildError
from aiter_like.modules import build, cache, recipe, toolchain


@pytest.fixture
def prebuilt(fake, tmp_path) -> Path:
    return tmp_path / "prebuilt"


def test_a_module_for_a_lower_level_serves(fake, project: Project, prebuilt, monkeypatch):
    build.ensure(project.spec(arch="x86-64-v3"), root=prebuilt)
    runs = fake.runs()
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(prebuilt))
    for arch in ("x86-64-v3", "x86-64-v4"):
        assert prebuilt in build.ensure(project.spec(arch=arch)).path.parents
    assert fake.runs() == runs
    assert prebuilt not in build.ensure(project.spec(arch="x86-64-v2")).path.parents
    assert fake.runs() > runs


def test_the_wheels_folder_is_searched_after_the_users(project: Project, prebuilt, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "prebuilt", lambda: prebuilt)
    build.ensure(project.spec(), root=prebuilt)
    assert prebuilt in build.ensure(project.spec()).path.parents
    build.ensure(project.spec(), root=tmp_path / "own")
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "own"))
    assert tmp_path / "own" in build.ensure(project.spec()).path.parents
    project.header.write_text("#define VALUE 2\n")
    assert tmp_path / "cache" in build.ensure(project.spec()).path.parents


def test_what_others_can_write_in_the_wheels_folder_is_built_again(project: Project, prebuilt, monkeypatch, caplog):
    monkeypatch.setattr(paths, "prebuilt", lambda: prebuilt)
    build.ensure(project.spec(), root=prebuilt).path.parent.chmod(0o777)
    assert prebuilt not in build.ensure(project.spec()).path.parents
    assert "may be written by others" in caplog.text


def test_sources_have_flags_of_their_own_and_share_a_precompiled_header(project: Project):
    for name in ("op/other.cpp", "cold/slow.cpp"):
        (project.root / name).parent.mkdir(exist_ok=True)
        (project.root / name).write_text("\n")
    spec = project.spec(sources=("op/tiny.cpp", "op/other.cpp", "cold/slow.cpp"), precompiled="include/used.h",
                        own_flags={"cold": ("-O1",), "op/other.cpp": ("-O3",)})
    steps = recipe.steps(spec, toolchain.Toolchain("clang", "clang++", (22,), "", "clang++"))
    pch = "precompiled.pch"
    assert [(step.output, step.needs) for step in steps] == [
        (pch, ()), ("0.o", (pch,)), ("1.o", (pch,)), ("2.o", (pch,)), ("module.so", ("0.o", "1.o", "2.o"))]
    assert [step.output for step in steps if "-O1" in step.command] == ["2.o"]
    assert spec.inputs() != project.spec(sources=spec.sources, precompiled="include/used.h").inputs()


def test_an_edit_of_a_precompiled_header_rebuilds(project: Project, tmp_path, monkeypatch):
    compiler = counting_clang(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    forget()
    project.source.write_text('extern "C" int tiny() { return VALUE; }\n')  # it includes nothing
    spec = project.spec(precompiled="include/used.h")
    first = build.load_or_build(spec)
    assert build.load_or_build(spec) == first and ctypes.CDLL(str(first)).tiny() == 1
    assert sorted(file.name for file in first.parent.iterdir() if file.suffix in (".pch", ".o", ".d")) == []
    project.header.write_text("#define VALUE 2\n")
    assert ctypes.CDLL(str(build.load_or_build(spec))).tiny() == 2


def test_what_the_cache_has_is_copied_into_another_directory(fake, project: Project, prebuilt):
    own = build.ensure(project.spec())
    runs = fake.runs()
    copied = build.ensure(project.spec(), root=prebuilt)
    assert prebuilt in copied.path.parents and copied.key == own.key
    assert copied.path.read_bytes() == own.path.read_bytes()
    assert fake.runs() == runs
    build.ensure(project.spec(), root=prebuilt, rebuild=True)
    assert fake.runs() > runs


def test_without_a_compiler_rows_are_those_of_what_made_the_prebuilt_modules(machine, fake, project, prebuilt, tmp_path,
                                                                             monkeypatch):
    """The modules were chosen so: a row of another compiler would ask for one that is not there."""
    backend = make_op(Backend("hip", FakeJit())).backends[0]
    own = backend.toolchain("hip")
    row = Row(("gfx942", 304), "hip", "scale", {}, 1.0, 0.0, "hipcc 7.0", "", "measured:me", "x.csv:2")
    why = f"it timed what hipcc 7.0 made, here is {own}"
    assert own.startswith("clang ") and backend.staleness(row) == why
    meta = build.ensure(project.spec(), root=prebuilt).path.with_name("meta.json")
    found = cache.read_json(meta)
    cache.write_json(meta, found | {"inputs": found["inputs"] | {"kind": "hip"}})
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(tmp_path / "none"))
    forget()
    assert backend.toolchain("hip") == "" and backend.staleness(row) is None
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(prebuilt))
    assert backend.toolchain("hip") == own and backend.staleness(row) == why
    assert backend.toolchain("cuda") == ""


def test_a_missing_module_names_the_command_and_no_compiler(project: Project, prebuilt, tmp_path, monkeypatch):
    build.ensure(project.spec(), root=prebuilt)
    project.source.write_text("// another\n")
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(prebuilt))
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(tmp_path / "none"))
    forget()
    with pytest.raises(BuildError) as caught:
        build.ensure(project.spec())
    assert "is of other sources, and it cannot be built here (aiter-like doctor)" in str(caught.value)
    assert f"aiter-like build op/tiny --output {prebuilt}" in str(caught.value) and "clang" not in str(caught.value)
    match = f"op/d64 is not in it.* aiter-like build op/tiny --recorded DIR --output {prebuilt}"
    with pytest.raises(BuildError, match=match):
        build.ensure(project.spec(name="op/d64", kind="hip", arch="gfx942"))
