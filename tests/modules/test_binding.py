# SPDX-License-Identifier: MIT
"""The binding's header, parsed once for the host halves of all modules."""

import pytest
from jit_project import counting_clang, make_hip_project, stand_in_hipcc

from aiter_like.modules import build, recipe, toolchain
from aiter_like.modules.recipe import ModuleSpec


@pytest.fixture
def clang(tmp_path, monkeypatch, jit_folders):
    compiler = counting_clang(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    return compiler


def _spec(root, **fields) -> ModuleSpec:
    return ModuleSpec(**{"name": "op/scale", "sources": ("op/scale.hip",), "arch": "gfx942", "root": root} | fields)


def test_once_for_all_modules_and_anew_when_it_changes(clang, hip_project, tmp_path):
    first = build.ensure(_spec(hip_project))
    build.ensure(_spec(hip_project, name="op/scale-other", defines={"OTHER": 1}))
    assert (clang.runs(), clang.runs(of_binding=True)) == (2, 1)

    names = {name for name, *_ in first.meta["headers"]}
    assert "include/aiter_like/ffi.h" in names
    assert any(name.endswith("tvm/ffi/function.h") for name in names), "what the binding includes is in the key, too"
    assert not any(name.endswith(recipe.BINDING_PCH) for name in names)
    assert not (first.directory / recipe.BINDING_PCH).is_symlink()

    header = hip_project / "include" / "aiter_like" / "ffi.h"
    header.write_text(header.read_text() + "// changed\n")
    assert build.ensure(_spec(hip_project)).path != first.path
    assert (clang.runs(), clang.runs(of_binding=True)) == (3, 2)

    build.ensure(_spec(hip_project), root=tmp_path / "elsewhere")  # `aiter-like build --output`
    assert clang.runs(of_binding=True) == 2
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["op.scale"]


def test_two_checkouts_share_modules_but_not_the_parsed_header(clang, hip_project, tmp_path):
    """It knows the headers in it by their paths: #pragma once would not recognise another checkout's."""
    first = build.ensure(_spec(hip_project))
    other = make_hip_project(tmp_path / "other")
    assert build.ensure(_spec(other)).path == first.path
    build.ensure(_spec(other, name="op/scale-other"))
    assert (clang.runs(), clang.runs(of_binding=True)) == (2, 2)


def test_damaged_it_is_made_again(clang, hip_project):
    build.ensure(_spec(hip_project))
    spec = recipe.binding(_spec(hip_project), toolchain.find("hip"))
    parsed = build.ensure(spec)
    parsed.path.write_bytes(b"damaged")
    build.ensure(_spec(hip_project), rebuild=True)
    assert clang.runs(of_binding=True) == 2


def test_who_reads_it(clang, hip_project, tmp_path, monkeypatch):
    """Flags of a module's own may change what the header means; ROCm's compiler has headers of its own before it."""
    spec, own = _spec(hip_project), toolchain.find("hip")
    assert recipe.binding(spec, own) is not None
    assert recipe.binding(_spec(hip_project, flags=("-ffast-math",)), own) is None
    assert recipe.binding(_spec(hip_project, kind="cuda", arch="sm_90"), own) is None
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(stand_in_hipcc(tmp_path / "rocm").path))
    assert recipe.binding(spec, toolchain.find("hip")) is None
    for step in recipe.steps(spec, toolchain.find("hip")):
        assert recipe.BINDING_PCH not in step.command
