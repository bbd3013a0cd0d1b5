# SPDX-License-Identifier: MIT
"""`aiter-like sim run`: a code object launched from a description; mistakes in the description; the checkers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from asm import assemble

from aiter_like import cli
from aiter_like.build.build import load_or_build
from aiter_like.ops.norm.rms_norm import _rms_norm_asm
from aiter_like.testing import check_rms_norm

KERNEL = "rms_norm_bf16_h4096"
BUFFERS = {"out": {"dtype": "bf16", "shape": [4, 4096], "fill": "zeros", "output": True},
           "input": {"dtype": "bf16", "shape": [4, 4096], "fill": "random", "seed": 1},
           "weight": {"file": "weight.npy"}}
ARGUMENTS = [{"buffer": "out"}, {"buffer": "input"}, {"buffer": "weight"}, {"buffer": None}, {"buffer": None},
             {"type": "u32", "value": 8192}, {"type": "u32", "value": 8192}, {"type": "fp32", "value": 1e-6}]

# out[i] = -in[i] - one: a struct by value, a hidden argument of the runtime.
NEGATE = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.globl negate
.p2align 8
.type negate,@function
negate:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10                  // {one, two} by value; then the hidden block count
  s_load_dword s10, s[0:1], 0x18
  v_lshlrev_b32_e32 v0, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v1, v0, s[6:7]
  s_waitcnt vmcnt(0)
  v_sub_u32_e32 v1, 0, v1
  v_subrev_u32_e32 v1, s8, v1
  v_add_u32_e32 v1, s10, v1
  global_store_dword v0, v1, s[4:5]
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel negate
  .amdhsa_kernarg_size 28
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: negate
    .symbol: negate.kd
    .kernarg_segment_size: 28
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 16, .size: 8, .value_kind: by_value}
      - {.offset: 24, .size: 4, .value_kind: hidden_block_count_x}
...
.end_amdgpu_metadata
"""


@pytest.fixture(scope="module")
def code_object() -> Path:
    """The code object of an operator's assembly kernel."""
    function = _rms_norm_asm
    return load_or_build(function.instance_spec(function.instances()[0], "hip", "gfx942"))


@pytest.fixture
def run(code_object, tmp_path, capsys):
    """Writes SPEC.json and runs the command; (exit status, stdout, stderr)."""

    def call(spec, *options, file=code_object, kernel=KERNEL, grid="4", block="256"):
        np.save(tmp_path / "weight.npy", torch.full((4096,), 3.0).bfloat16().view(torch.uint16).numpy())
        path = tmp_path / "spec.json"
        path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
        words = ["sim", "run", str(file), "--kernel", kernel, "--grid", grid, "--block", block, "--args", str(path),
                 "--output", str(tmp_path / "outputs"), *options]
        return cli.main(words), *capsys.readouterr()

    return call


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["", "check"])
def test_a_kernel_of_ours(run, tmp_path, options):
    status, out, err = run({"buffers": BUFFERS, "arguments": ARGUMENTS}, *options)
    assert status == 0, err
    assert "4 workgroups, 16 waves, " in out and "out.npy: bf16 [4, 4096]" in out
    result = torch.from_numpy(np.load(tmp_path / "outputs" / "out.npy")).view(torch.bfloat16)
    x = torch.randn(4, 4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    check_rms_norm(result, x, torch.full((4096,), 3.0).bfloat16(), 1e-6)
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["out.npy"]


def test_structs_offsets_and_hidden_arguments(run, tmp_path):
    (tmp_path / "negate.co").write_bytes(assemble(NEGATE))
    buffers = {"data": {"dtype": "i32", "shape": [64], "fill": 5, "output": True},
               "more": {"dtype": "i32", "shape": [65], "fill": "random", "seed": 3, "output": True}}
    arguments = [{"buffer": "data"}, {"buffer": "more", "offset": 4}, {"hex": "0700000000000000"}]
    status, out, err = run({"buffers": buffers, "arguments": arguments}, "--check", file=tmp_path / "negate.co",
                           kernel="negate", grid="2,1,1", block="64,1,1")
    assert status == 0, err
    more = np.load(tmp_path / "outputs" / "more.npy")
    assert len(set(more)) > 60
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "data.npy"), -more[1:] - np.int32(7 - 2))


def test_reports_make_it_fail(run):
    spec = {"buffers": BUFFERS, "arguments": ARGUMENTS}
    assert run(spec, grid="1")[0] == 0
    status, out, _ = run(spec, "--check", grid="5")
    assert status == 1
    assert f"[sim:bounds] {KERNEL} wg(4,0,0)" in out and "rms_norm.s:" in out and "global_load_dwordx4" in out
    assert "past the end of `rms_norm_bf16_h4096 argument 1 (4, 4096)`" in out and "out.npy" in out
    status, out, _ = run(spec | {"buffers": BUFFERS | {"out": BUFFERS["out"] | {"output": False}}}, "--check")
    assert status == 1 and "[sim:bounds]" in out and "global_store_dwordx4" in out, "neither an output nor scratch"
    scratch = BUFFERS["out"] | {"output": False, "scratch": True}
    assert run(spec | {"buffers": BUFFERS | {"out": scratch}}, "--check")[0] == 0


def changed(buffer=None, argument=None, **fields):
    """The specification with one buffer's entry replaced or the last argument replaced."""
    arguments = ARGUMENTS if argument is None else [*ARGUMENTS[:-1], argument]
    return {"buffers": BUFFERS | ({"input": buffer} if buffer is not None else {}), "arguments": arguments} | fields


@pytest.mark.parametrize(("spec", "message"), [
    ("{", "spec.json: no JSON: "),
    ("[]", "spec.json must be an object, got []"),
    ({"buffers": {}}, "spec.json: arguments is missing"),
    (changed(extra=1), "spec.json has no key extra; there are: arguments, buffers"),
    (changed(arguments={}), "buffers must be an object and arguments a list"),
    (changed({"dtype": "float", "shape": [1]}), "buffers.input.dtype must be one of bf16, "),
    (changed({"dtype": "bf16", "shape": 4}), "buffers.input.shape must be a list of sizes, got 4"),
    (changed({"dtype": "bf16", "shape": [4, -1]}), "buffers.input.shape must be a list of sizes"),
    (changed({"dtype": "bf16", "shape": [0], "fill": "zeros"}), "buffers.input: a buffer must have at least one"),
    (changed({"dtype": "bf16", "shape": [4], "fill": "ones"}), 'input.fill must be "zeros", "random" or a number, got'),
    (changed({"dtype": "bf16", "shape": [4]}), "buffers.input.fill must be"),
    (changed({"dtype": "bf16", "shape": [4], "fill": "random", "seed": -1}), "buffers.input.seed must be an integer"),
    (changed({"dtype": "bf16", "shape": [4], "fil": 0}), "buffers.input has no key fil; there are: dtype, "),
    (changed({"file": "none.npy"}), "buffers.input.file: "),
    (changed({"file": "spec.json"}), "buffers.input.file: "),
    (changed({"file": "weight.npy", "shape": [1]}), "buffers.input: a file brings its own shape"),
    (changed({"file": "weight.npy", "output": 1}), "buffers.input: output and scratch must be true or false"),
    (changed(arguments=ARGUMENTS[:-1]), f"{KERNEL} takes 8 arguments, got 7; it takes: out (8 bytes, global_buffer), "),
    (changed(argument={"buffer": "x"}), "arguments[7]: no buffer 'x'; there are: out, input, weight"),
    (changed(argument={"buffer": "out"}), "takes epsilon of 4 bytes (by_value) here, got 8 bytes (a buffer)"),
    (changed(argument={"buffer": "out", "offset": 32768}), "arguments[7].offset must be an integer from 0 to 32767"),
    (changed(argument={"type": "f32", "value": 1}), "arguments[7].type must be one of bool, i8, "),
    (changed(argument={"type": "fp32", "value": "1"}), "arguments[7]: '1' is no fp32: "),
    (changed(argument={"type": "fp32", "value": 1e39}), "arguments[7]: 1e+39 is no fp32: "),
    (changed(argument={"type": "u8", "value": 1}), "takes epsilon of 4 bytes (by_value) here, got 1 bytes"),
    (changed(argument={"type": "u32", "value": -1}), "arguments[7]: -1 is no u32: "),
    (changed(argument={"type": "u32"}), 'arguments[7] must be {"buffer"}, {"buffer", "offset"}, {"type", "value"}'),
    (changed(argument={"hex": "0g"}), "arguments[7].hex must be hexadecimal digits, got '0g'"),
    (changed(argument=3), "arguments[7] must be an object, got 3"),
    (changed(arguments=[{"type": "u64", "value": 16}, *ARGUMENTS[1:]]), "takes out of 8 bytes (global_buffer) here"),
])
def test_a_mistake_in_the_description_is_named(run, spec, message):
    status, out, err = run(spec)
    assert status == 1 and out == "" and err.startswith("aiter-like sim: "), err
    assert message in err and err.count("\n") == 1


def test_mistakes_on_the_command_line(run, tmp_path, capsys):
    spec = {"buffers": BUFFERS, "arguments": ARGUMENTS}
    for message, options in (
            ("has no kernel rms_norm; it has: rms_norm_bf16_h4096, rms_norm_bf16_h8192", {"kernel": "rms_norm"}),
            ("none.co: No such file or directory", {"file": tmp_path / "none.co"}),
            ("not an AMD code object", {"file": tmp_path / "spec.json"}),
            ("block 512x1x1 has more work-items than the kernel was compiled for (256)", {"block": "512"})):
        status, _, err = run(spec, **options)
        assert status == 1 and message in err
    for option in ({"grid": "0"}, {"grid": "1,1,1,1"}, {"block": "x"}):
        with pytest.raises(SystemExit):
            run(spec, **option)
        assert "argument --" in capsys.readouterr().err
