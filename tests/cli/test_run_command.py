# SPDX-License-Identifier: MIT
"""`aiter-like sim run`: a code object launched from a description; mistakes in the description; the checkers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import talking
import torch
from asm import assemble
from negate import ARGUMENTS as NEGATE_ARGUMENTS
from negate import BUFFERS as NEGATE_BUFFERS
from negate import NEGATE

from aiter_like import cli, sim
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.modules.build import load_or_build
from aiter_like.ops.norm.rms_norm import _rms_norm_asm
from aiter_like.testing import check_rms_norm

KERNEL = "rms_norm_bf16_h4096"
BUFFERS = {"out": {"dtype": "bf16", "shape": [4, 4096], "fill": "zeros", "output": True},
           "input": {"dtype": "bf16", "shape": [4, 4096], "fill": "random", "seed": 1},
           "weight": {"file": "weight.npy"}}
ARGUMENTS = [{"buffer": "out"}, {"buffer": "input"}, {"buffer": "weight"}, {"buffer": None}, {"buffer": None},
             {"type": "u32", "value": 8192}, {"type": "u32", "value": 8192}, {"type": "fp32", "value": 1e-6}]
NEGATING = {"buffers": NEGATE_BUFFERS, "arguments": NEGATE_ARGUMENTS}


@pytest.fixture(scope="module")
def code_object() -> Path:
    """The code object of an operator's assembly kernel."""
    function = _rms_norm_asm
    return load_or_build(function.instance_spec(function.instances()[0], "hip", "gfx942"))


@pytest.fixture
def run(code_object, tmp_path, capsys):
    """Writes SPEC.json and runs the command; (exit status, stdout, stderr)."""

    def call(spec, *options, file=code_object, kernel=KERNEL, grid="4", block="256"):
        (tmp_path / "empty.npy").touch()
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000,), }".ljust(118) + "\n"
        (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode())
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


def test_modelled_cycles_are_labelled_and_repeat(run, tmp_path):
    """Where a session places its memory decides nothing; checkers and counts go along; one figure for all seeds."""
    spec, figures = {"buffers": BUFFERS, "arguments": ARGUMENTS}, []
    for options in ((), (), ("--check",), ("--counts",), ("--seeds", "2")):
        status, out, err = run(spec, "--model", *options)
        assert status == 0, err
        (line,) = [line for line in out.splitlines() if "modelled" in line and " clk" in line]
        figures.append(line)
    assert len(set(figures)) == 1 and re.fullmatch(r"  modelled \(version \d+\): [1-9]\d* clk, .* us at 2100 MHz", line)
    result = torch.from_numpy(np.load(tmp_path / "outputs" / "out.npy")).view(torch.bfloat16)
    x = torch.randn(4, 4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    check_rms_norm(result, x, torch.full((4096,), 3.0).bfloat16(), 1e-6)
    assert "  modelled (" not in run(spec)[1]


def test_counts(run, tmp_path):
    file = tmp_path / "counts.json"
    status, out, err = run({"buffers": BUFFERS, "arguments": ARGUMENTS}, f"--counts={file}", "--check")
    assert status == 0, err
    assert "  occupancy: " in out and "limited by" in out
    (launch,) = json.loads(file.read_text())
    assert launch["kernel"] == KERNEL and launch["workgroups"] == 4 and launch["schema"] == 1
    status, bare, err = run({"buffers": BUFFERS, "arguments": ARGUMENTS}, "--counts")
    assert status == 0 and "  occupancy: " in bare, err


def test_structs_offsets_and_hidden_arguments(run, tmp_path):
    (tmp_path / "negate.co").write_bytes(assemble(NEGATE))
    status, out, err = run(NEGATING, "--check", file=tmp_path / "negate.co", kernel="negate", grid="2,1,1",
                           block="64,1,1")
    assert status == 0, err
    more = np.load(tmp_path / "outputs" / "more.npy")
    assert len(set(more)) > 60
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "data.npy"), -more[1:] - np.int32(7 - 2))


ONE_STRUCT = NEGATE.replace("""
      - {.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 16, .size: 8, .value_kind: by_value}""", "").replace(
    "{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}",
    "{.offset: 0, .size: 24, .value_kind: by_value}")


def test_addresses_within_a_struct(run, tmp_path):
    (tmp_path / "negate.co").write_bytes(assemble(ONE_STRUCT))
    struct = {"hex": "ff" * 16 + "0700000000000000", "pointers": {"0": "data", "8": "more"}}
    launch = {"file": tmp_path / "negate.co", "kernel": "negate", "grid": "2", "block": "64"}
    status, out, err = run({"buffers": NEGATE_BUFFERS, "arguments": [struct]}, "--check", **launch)
    assert status == 0, out + err
    more = np.load(tmp_path / "outputs" / "more.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "data.npy"), -more[:-1] - np.int32(7 - 2))
    for pointers, message in (({"17": "data"}, "arguments[0].pointers: 17 is no place of 8 bytes in 24"),
                              ({"0": "other"}, "arguments[0].pointers.0: no buffer 'other'; there are: data, more"),
                              (["data"], "arguments[0].pointers must be an object")):
        status, _, err = run({"buffers": NEGATE_BUFFERS, "arguments": [struct | {"pointers": pointers}]}, **launch)
        assert status == 1 and message in err


def test_buffers_begin_on_a_page(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(7, dtype=np.int16))
    entries = {"a": {"dtype": "bf16", "shape": [3, 5], "fill": "random"}, "b": {"dtype": "u8", "shape": [9], "fill": 4},
               "c": {"file": "x.npy"}}
    spec = sim_spec.spec_of({"buffers": entries, "arguments": []}, tmp_path / "spec.json", "here")
    assert [buffer.data.data_ptr() % 4096 for buffer in spec.buffers.values()] == [0, 0, 0]
    assert spec.buffers["b"].data.tolist() == [4] * 9 and spec.buffers["c"].data.tolist() == list(range(7))


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
    (changed(arguments={}), f"spec.json: arguments.out is missing; {KERNEL} takes: out (8 bytes, global_buffer), "),
    (changed(arguments=3), "spec.json: arguments must be a list, or an object by their names, got 3"),
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
    (changed({"file": 3}), "buffers.input.file must be a path, got 3"),
    (changed({"file": "."}), "buffers.input.file: "),
    (changed({"file": "/dev/zero"}), "no regular file"),
    (changed({"file": "x" * 300}), "File name too long"),
    (changed({"file": "empty.npy"}), "buffers.input.file: "),
    (changed({"file": "huge.npy"}), "huge.npy: "),
    ("[" * 100_000, "nested too deeply"),
    ('{"arguments": ' + "7" * 5000 + "}", "spec.json: no JSON: "),
    ('{"arguments": [], "arguments": []}', "spec.json: no JSON: key 'arguments' is there twice"),
    (changed({"dtype": ["bf16"], "shape": [1]}), "buffers.input.dtype must be one of bf16, "),
    (changed({"dtype": "fp32", "shape": [10**12], "fill": "zeros"}), "bytes are too many for "),
    (changed({"dtype": "fp32", "shape": [2**62, 2**62], "fill": 1}), "bytes are too many for "),
    (changed({"dtype": "fp32", "shape": [1] * 40, "fill": 1}), "input.shape must have at most 32 sizes, got 40"),
    (changed({"dtype": "u8", "shape": [4], "fill": 256}), "input.fill must be an integer from 0 to 255 (u8), got 256"),
    (changed({"dtype": "i32", "shape": [4], "fill": 0.5}), "input.fill must be an integer from -2147483648 to"),
    (changed({"dtype": "fp16", "shape": [4], "fill": 1e9}), "input.fill: 1000000000.0 is beyond fp16"),
    (changed({"dtype": "fp8_e4m3fnuz", "shape": [4], "fill": 500}), "input.fill: 500 is beyond fp8_e4m3fnuz"),
    (changed({"dtype": "fp64", "shape": [4], "fill": 10**400}), "is beyond fp64"),
    (changed({"dtype": "fp32", "shape": [4], "fill": True}), 'input.fill must be "zeros", "random" or a number, got T'),
    (changed(buffers={"../out": BUFFERS["out"]}), "an output's name becomes a file's, and '../out' cannot"),
    ({"buffers": {"a\nb": 1}, "arguments": []}, r"buffers.'a\nb' must be an object, got 1"),
    (changed(buffers={"o" * 300: BUFFERS["out"]}), "arguments[0]: no buffer 'out'; there are: 'ooo"),
    (changed(argument={"buffer": ["out"]}), "arguments[7]: no buffer ['out']; there are: out, "),
    (changed(argument={"type": ["u32"], "value": 1}), "arguments[7].type must be one of bool, i8, "),
    (changed(argument={"type": "u32", "value": True}), "arguments[7]: True is no u32: it is of type bool"),
    (changed(argument={"type": "bool", "value": "no"}), "arguments[7]: 'no' is no bool: it is of type str"),
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
    for option in ({"grid": "0"}, {"grid": "1,1,1,1"}, {"block": "x"}, {"grid": f"1,{2**32}"}):
        with pytest.raises(SystemExit):
            run(spec, **option)
        assert "argument --" in capsys.readouterr().err
    for options, message in (("--shared -1", "a count of bytes below 2**32, got '-1'"),
                             ("--checks waits", "unknown check 'waits'; there are: all, wait, "),
                             ("--check=waits", "unknown check 'waits'; there are: all, wait, ")):
        with pytest.raises(SystemExit):
            run(spec, *options.split())
        assert message in capsys.readouterr().err
    status, _, err = run(spec, "--seeds", "0")
    assert status == 1 and "--seeds must be at least 1, --fuzz at least 0" in err


@pytest.mark.parametrize("place", ["a file", "a file/folder", "o" * 300, "/proc/nothing", "outputs with a folder"])
def test_an_output_that_cannot_be_written_is_found_before_anything_runs(run, tmp_path, monkeypatch, place):
    (tmp_path / "a file").touch()
    (tmp_path / "outputs with a folder" / "out.npy").mkdir(parents=True)
    monkeypatch.setattr(sim, "load", lambda: pytest.fail("it ran"))
    status, out, err = run({"buffers": BUFFERS, "arguments": ARGUMENTS}, "--output", str(tmp_path / place))
    assert status == 1 and out == "" and err.startswith("aiter-like sim: --output: ") and err.count("\n") == 1


def test_a_long_name_of_an_output(run):
    buffers = {name if name != "out" else "o" * 300: buffer for name, buffer in BUFFERS.items()}
    status, _, err = run({"buffers": buffers, "arguments": [{"buffer": "o" * 300}, *ARGUMENTS[1:]]})
    assert status == 1 and "--output: cannot write" in err and "File name too long" in err and err.count("\n") == 1


def test_a_run_that_fails_leaves_the_old_output(run, tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "out.npy").write_text("old")
    assert run({"buffers": BUFFERS, "arguments": ARGUMENTS}, block="512")[0] == 1
    assert (tmp_path / "outputs" / "out.npy").read_text() == "old"


# The first of two workgroups writes what the second reads: only global_race, which is not on by default, can tell.
RACE = NEGATE.replace("global_store_dword v0, v1, s[4:5]", "global_store_dword v0, v1, s[6:7]")


@pytest.mark.parametrize(("options", "checks"), [
    (("--check",), sim.DEFAULT_CHECKS), (("--check=all",), tuple(sim.CHECKS)), (("--checks", "all"), tuple(sim.CHECKS)),
    (("--checks", "global_race,wait"), ("wait", "global_race")), (("--check=bounds",), ("bounds",)),
])
def test_which_checkers_are_on(run, tmp_path, options, checks):
    (tmp_path / "race.co").write_bytes(assemble(RACE))
    status, out, err = run(NEGATING, *options, file=tmp_path / "race.co", kernel="negate", grid="2", block="64")
    assert ("[sim:global_race]" in out) == bool(status) == ("global_race" in checks), out + err
    assert f"seed 0, checks {','.join(checks)}\n" in out


def test_a_bare_check_does_not_take_the_file(code_object, run, tmp_path, capsys):
    run({"buffers": BUFFERS, "arguments": ARGUMENTS})  # writes the files
    words = ["sim", "run", "--check", str(code_object), "--kernel", KERNEL, "--grid", "4", "--block", "256", "--args",
             str(tmp_path / "spec.json"), "--output", str(tmp_path / "outputs")]
    capsys.readouterr()
    assert cli.main(words) == 0 and "0 distinct report(s)" in capsys.readouterr().out


def test_counters(run, tmp_path):
    (tmp_path / "negate.co").write_bytes(assemble(NEGATE))
    status, out, err = run(NEGATING, file=tmp_path / "negate.co", kernel="negate", grid="2", block="64")
    assert status == 0, err
    assert out.startswith("negate: 2 workgroups, 2 waves, 24 wave instructions\n  by class: ")
    assert "  memory accesses: global_load_dword 2, global_store_dword 2\n" in out


def test_seeds(run, tmp_path):
    """Each run gets fresh buffers; where the order decides the result, that is said, with the seed."""
    (tmp_path / "race.co").write_bytes(assemble(RACE))
    launch = {"file": tmp_path / "race.co", "kernel": "negate", "grid": "2", "block": "64"}
    status, out, err = run(NEGATING, "--fuzz", "3", "--seeds", "4", "--checks", "global_race", **launch)
    assert status == 1 and "negate: 4 launches, 8 workgroups" in out and " times) (seed 3)" in out, out + err
    assert "; seeds 3 to 6, checks global_race" in out
    # The last of the workgroups leaves its number.
    (tmp_path / "race.co").write_bytes(assemble(NEGATE.replace("v_add_u32_e32 v1, s10, v1", "v_mov_b32_e32 v1, s2")))
    status, out, err = run(NEGATING, "--seeds", "8", **(launch | {"grid": "8"}))
    assert status == 0 and "data: seed 1 gives other values than seed 0\n" in out and "more: " not in out, out + err
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "data.npy"), np.full(64, 7, np.int32))


def test_reports_before_a_failing_launch_are_printed(run, tmp_path):
    (tmp_path / "bad.co").write_bytes(assemble(NEGATE.replace("  s_waitcnt vmcnt(0)\n", "").replace(
        "  s_endpgm", "  s_trap 2\n  s_endpgm")))
    status, out, err = run(NEGATING, "--check", file=tmp_path / "bad.co", kernel="negate", grid="2", block="64")
    assert status == 1 and "[sim:wait] negate" in out and "s_trap 2: the kernel stopped itself" in err, out + err


def test_what_a_kernel_prints_is_shown(run, tmp_path):
    source = 'extern "C" __global__ void talk(int n) { printf("the number is %d\\n", n); }'
    (tmp_path / "talk.co").write_bytes(talking.compiled(source))
    status, out, err = run({"buffers": {}, "arguments": [{"type": "i32", "value": 7}]}, "--check",
                           file=tmp_path / "talk.co", kernel="talk", grid="1", block="3")
    assert status == 0 and out.startswith("the number is 7\n" * 3) and "talk: 1 workgroups, 1 waves" in out, out + err
