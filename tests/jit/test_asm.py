# SPDX-License-Identifier: MIT
"""Assembly kernels: manifests, the build, the comparison of arguments, what a launch accepts."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
import torch
from jit_project import counting_clang

from aiter_like import paths
from aiter_like.cli import build
from aiter_like.device import Target
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.jit import JitFunction, Launch, asm, asm_kernel
from aiter_like.modules import code_object, manifest
from aiter_like.modules.build import load_or_build
from aiter_like.modules.cache import META, read_json

SIM = Target("hip", "gfx942", 304, 64, simulated=True)
ARGUMENTS = {"out": "pointer", "x": "pointer", "count": "u32", "factor": "fp32"}
HEADER = ",".join(manifest.COLUMNS)
ROW = "scale_bf16,scale.s,scale_bf16,scale,bf16,hidden=64"

# A kernel of two pointers, a count and a float, which does nothing.
SOURCE = """// SPDX-License-Identifier: MIT
#include "value.h"
.globl scale_bf16
.p2align 8
.type scale_bf16, @function
scale_bf16:
  v_mov_b32_e32 v0, VALUE
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel scale_bf16
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: scale_bf16
    .symbol: scale_bf16.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 8
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: x, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: count, .offset: 16, .size: 4, .value_kind: by_value}
      - {.name: factor, .offset: 20, .size: 4, .value_kind: by_value}
      - {.name: rest, .offset: 24, .size: 4, .value_kind: hidden_block_count_x}
...
.end_amdgpu_metadata
"""


@pytest.fixture
def hsa(tmp_path, monkeypatch) -> Path:
    """An hsa/ with one family of one kernel, in place of the real one."""
    folder = tmp_path / "hsa" / "gfx942" / "toy"
    folder.mkdir(parents=True)
    (folder / "scale.s").write_text(SOURCE)
    (folder / "value.h").write_text("#define VALUE 1\n")
    (folder / manifest.FILE).write_text(f"{HEADER}\n{ROW}\n")
    monkeypatch.setattr(paths, "hsa", lambda: tmp_path / "hsa")
    monkeypatch.setattr(sys.modules[JitFunction.__module__], "_registry", {})
    return folder


@pytest.fixture
def launched(monkeypatch) -> list[tuple]:
    """(grid, block, argument segment) of each launch; no HIP runtime is involved."""
    found: list[tuple] = []

    class Runtime:
        def __init__(self, target):
            pass

        def function(self, image, symbol):
            return symbol

        def launch(self, function, grid, block, kernargs):
            found.append((grid, block, kernargs))

    monkeypatch.setattr(asm, "ModuleRuntime", Runtime)
    return found


def make(arguments=ARGUMENTS, **values) -> asm.AsmFunction:
    @asm_kernel("gfx942/toy/scale.s", op="scale", arguments=arguments)
    def _scale_asm(out, x, factor):
        return Launch({"dtype": "bf16", "hidden": x.shape[-1]}, (x.shape[0], 1, 1), (64, 1, 1), {"count": 3} | values)

    return _scale_asm


def tensors(hidden: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(2, hidden, dtype=torch.bfloat16), torch.ones(2, hidden, dtype=torch.bfloat16)


# ---- manifests


@pytest.mark.parametrize(("text", "message"), [
    ("", "csv:1: columns must be kernel,source,symbol,op,dtype,constraints"),
    ("kernel,op\n", "csv:1: columns must be"),
    (f"{HEADER}\na,scale.s,a,scale,bf16\n", "csv:2: 6 cells expected, got 5"),
    (f"{HEADER}\n{ROW}\n\n", "csv:3: 6 cells expected, got 0"),
    (f"{HEADER}\n{ROW}\n{ROW}\n", "csv:3: kernel scale_bf16 is already in .*csv:2"),
    (f"{HEADER}\n,scale.s,a,scale,bf16,\n", "csv:2: kernel must be an identifier, got ''"),
    (f"{HEADER}\na,scale.s,a b,scale,bf16,\n", "csv:2: symbol must be an identifier, got 'a b'"),
    (f"{HEADER}\na,scale.s,a,sc-ale,bf16,\n", "csv:2: op must be an identifier"),
    (f"{HEADER}\na,other.s,a,scale,bf16,\n", "csv:2: source must be a .s file in toy/, got 'other.s'"),
    (f"{HEADER}\na,../toy/scale.s,a,scale,bf16,\n", "csv:2: source must be a .s file in toy/"),
    (f"{HEADER}\na,value.h,a,scale,bf16,\n", "csv:2: source must be a .s file"),
    (f"{HEADER}\na,scale.s,a,scale,bfloat16,\n", "csv:2: dtype must be one of bf16, .*got 'bfloat16'"),
    (f"{HEADER}\na,scale.s,a,scale,bf16,hidden\n", "csv:2: constraints must be name=integer;…"),
    (f"{HEADER}\na,scale.s,a,scale,bf16,hidden=-1\n", "csv:2: constraints must be"),
    (f"{HEADER}\na,scale.s,a,scale,bf16,hidden=1;hidden=2\n", "with each name once, got 'hidden=2'"),
])
def test_a_wrong_manifest_is_named_by_file_and_line(hsa, text, message):
    (hsa / manifest.FILE).write_text(text)
    with pytest.raises(BuildError, match=message):
        manifest.read(hsa)
    assert "csv:" in make().refusal(SIM, {"dtype": "bf16", "hidden": 64}), "a backend refuses, it does not raise"


def test_no_manifest(hsa):
    (hsa / manifest.FILE).unlink()
    with pytest.raises(BuildError, match="manifest.csv: .*No such file"):
        manifest.read(hsa)


def test_every_source_of_the_package_is_in_a_manifest():
    folders = {path.parent for path in paths.hsa().rglob("*.s")}
    assert folders
    for folder in folders:
        assert {row.source for row in manifest.read(folder)} == {path.name for path in folder.glob("*.s")}
        assert {path.name for path in folder.iterdir()} == {manifest.FILE, *(p.name for p in folder.glob("*.s"))}


def test_the_row_is_chosen_by_dtype_and_constraints(hsa):
    function = make()
    assert function.kernel_name((*tensors(), 2.0)) == "scale_bf16"
    assert function.refusal(SIM, {"dtype": "bf16", "hidden": 64}) is None
    reason = "no assembly kernel for dtype=fp16 hidden=64; there are: bf16 hidden=64"
    assert function.refusal(SIM, {"dtype": "fp16", "hidden": 64}) == reason
    assert "no assembly kernel" in function.refusal(SIM, {"dtype": "bf16", "hidden": 65})
    assert function.refusal(Target("cuda", "sm_90", 132, 32), {}) == "assembly for gfx942, this is sm_90"
    assert function.refusal(Target("hip", "gfx950", 256, 64), {}) == "assembly for gfx942, this is gfx950"
    with pytest.raises(UnsupportedError, match="scale: no assembly kernel for dtype=bf16 hidden=65"):
        function.bind(SIM, (*tensors(65), 2.0))


# ---- build


def test_build_is_cached_by_content(hsa, launched, tmp_path, monkeypatch):
    compiler = counting_clang(tmp_path / "bin")
    compiler.path.write_text(compiler.path.read_text().replace('*" -c "*)', "*assembler*)"))
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    function, args = make(), (*tensors(), 2.0)
    keys = [function.module_key(SIM, args)]
    assert make().module_key(SIM, args) == keys[0] and compiler.runs() == 1
    for path, old, new in ((hsa / "scale.s", "s_endpgm", "s_nop 0\n  s_endpgm"), (hsa / "value.h", "1", "2")):
        path.write_text(path.read_text().replace(old, new))
        keys.append(make().module_key(SIM, args))
    assert len(set(keys)) == 3 and compiler.runs() == 3, "an included file is in the key too"
    path = load_or_build(function.spec(SIM))
    assert path.name == "scale.co" and path.parent.name == keys[-1] and path.read_bytes().startswith(b"\x7fELF")
    assert [header[0] for header in read_json(path.parent / META)["headers"]] == ["gfx942/toy/value.h"]


def test_assembler_errors_are_shown_and_kept(hsa, launched):
    (hsa / "scale.s").write_text(SOURCE.replace("s_endpgm", "s_end"))
    function = make()
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            function.bind(SIM, (*tensors(), 2.0))
    assert "scale.s:8:3: error: invalid instruction" in caught.value.output
    assert "-mcpu=gfx942" in caught.value.command


def test_prebuilt_by_the_build_command(hsa, launched, tmp_path, monkeypatch, capsys):
    make()
    specs = [spec for name in ("scale", "gfx942/toy/scale", "gfx942/toy/scale.s")
             for spec in build.selected([name], "gfx942")]
    assert [spec.name for spec in specs] == ["hsa/gfx942/toy/scale"] * 3
    with pytest.raises(ValueError, match="no module scale"):
        build.selected(["scale"], "gfx950")
    assert [error for _, _, error in build.build_all(specs[:1], 1, root=tmp_path / "prebuilt")] == [None]
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "prebuilt"))
    assert tmp_path / "prebuilt" in load_or_build(specs[0]).parents


# ---- arguments


@pytest.mark.parametrize("arguments", [
    {"out": "pointer", "x": "pointer", "count": "u32"},
    {"x": "pointer", "out": "pointer", "count": "u32", "factor": "fp32"},
    {"out": "pointer", "x": "pointer", "count": "u64", "factor": "fp32"},
    {"out": "pointer", "x": "u64", "count": "u32", "factor": "fp32"}])
def test_declared_and_built_arguments_must_agree(hsa, launched, arguments):
    with pytest.raises(BuildError, match=r"_scale_asm declares the arguments \(.*but the built scale_bf16 has "
                                         r"\(out@0:pointer, x@8:pointer, count@16:4, factor@20:4\)"):
        make(arguments).bind(SIM, (*tensors(), 2.0))


def test_a_symbol_that_is_not_there(hsa, launched):
    (hsa / manifest.FILE).write_text(f"{HEADER}\n{ROW.replace('scale.s,scale_bf16', 'scale.s,scale_fp8')}\n")
    with pytest.raises(BuildError, match="csv:2: scale.s has no kernel scale_fp8; it has: scale_bf16"):
        make().bind(SIM, (*tensors(), 2.0))


def test_launch_packs_the_call_and_the_constants(hsa, launched):
    first, second = tensors(), tensors()
    bound = make().bind(SIM, (*first, 2.0))
    bound(*first, 2.0)
    bound(*second, 2)
    bound(None, second[1], 2.5)
    expected = [(first[0].data_ptr(), first[1].data_ptr(), 3, 2.0),
                (second[0].data_ptr(), second[1].data_ptr(), 3, 2.0), (0, second[1].data_ptr(), 3, 2.5)]
    assert launched == [((2, 1, 1), (64, 1, 1), struct.pack("<QQIf", *values)) for values in expected]


@pytest.mark.parametrize(("change", "kind", "message"), [
    ({0: 5}, TypeError, "out must be a tensor or None, got int"),
    ({0: torch.empty(2, 64, device="meta")}, ValueError, "out must be on the device of the launch, got meta"),
    ({1: torch.empty(200, dtype=torch.bfloat16)[1:]}, ValueError, "x must start at a multiple of 16 bytes, got 0x"),
    ({2: True}, TypeError, "factor must be fp32, got bool"),
    ({2: "2"}, TypeError, "factor must be fp32, got str"),
    ({2: 1e39}, ValueError, r"factor must fit fp32, got 1e\+39")])
def test_arguments_are_checked_at_each_call(hsa, launched, change, kind, message):
    args = [*tensors(), 2.0]
    bound = make().bind(SIM, args)
    for position, value in change.items():
        args[position] = value
    with pytest.raises(kind, match=rf"scale \(scale_bf16\): {message}"):
        bound(*args)
    with pytest.raises(TypeError, match="takes 3 arguments, got 2"):
        bound(*args[:2])
    assert launched == []


@pytest.mark.parametrize(("count", "message"), [(2**32, "count must fit u32, got 4294967296"), (-1, "must fit u32"),
                                                (1.0, "count must be u32, got float")])
def test_constants_are_checked(hsa, launched, count, message):
    args = (*tensors(), 2.0)
    with pytest.raises((ValueError, TypeError), match=message):
        make(count=count).bind(SIM, args)(*args)


def test_a_missing_constant(hsa, launched):
    arguments = {"out": "pointer", "x": "pointer", "number": "u32", "factor": "fp32"}
    (hsa / "scale.s").write_text(SOURCE.replace(".name: count", ".name: number"))
    with pytest.raises(TypeError, match="number is neither an argument of the call nor in Launch.values"):
        make(arguments).bind(SIM, (*tensors(), 2.0))


def test_an_unknown_type():
    with pytest.raises(ValueError, match="asm_kernel: 'int' is none of pointer, i32"):
        asm_kernel("gfx942/toy/scale.s", op="scale", arguments={"count": "int"})


# ---- code objects


def test_kernels_of_a_code_object(hsa):
    image = load_or_build(make().spec(SIM)).read_bytes()
    kernel = code_object.kernels(image)["scale_bf16"]
    assert (kernel.kernarg_bytes, kernel.max_work_items) == (24, 64)
    assert [argument.name for argument in kernel.arguments] == list(ARGUMENTS), "hidden arguments are left out"
    header, target = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1), b"hipv4-amdgcn-amd-amdhsa--gfx942"
    bundle = header + struct.pack("<3Q", 4096, len(image), len(target)) + target
    assert code_object.kernels(bundle.ljust(4096, b"\0") + image)["scale_bf16"] == kernel
    with pytest.raises(ValueError, match="without code for gfx950; it has: hipv4-amdgcn-amd-amdhsa--gfx942"):
        code_object.kernels(bundle.ljust(4096, b"\0") + image, "gfx950")


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01".ljust(64, b"\0"), b"CCOB\0\0",
                                  b"__CLANG_OFFLOAD_BUNDLE__\1"])
def test_what_is_no_code_object(data):
    with pytest.raises(ValueError, match="code object|ELF|bundle"):
        code_object.kernels(data)


def test_damaged_code_objects_are_value_errors(hsa):
    """Every byte of the note, one at a time."""
    image = load_or_build(make().spec(SIM)).read_bytes()
    start = image.index(b"AMDGPU\0")
    for at in range(start - 12, start + 600):
        damaged = bytearray(image)
        damaged[at] ^= 0xff
        try:
            code_object.kernels(bytes(damaged))
        except ValueError:
            pass


@pytest.mark.parametrize("sizes", [((2**32 + 1, 1, 1), (64, 1, 1)), ((1, 1, 1), (2**40, 1, 1))])
def test_a_launch_cuts_no_size_off(sizes):
    """ctypes would take them modulo 2³²."""
    runtime = object.__new__(asm.ModuleRuntime)  # without a library: nothing is launched
    with pytest.raises(ValueError, match=r"a launch must have a grid and block of at most 32 bits each, got \(1|429"):
        runtime.launch(None, *sizes, b"")
