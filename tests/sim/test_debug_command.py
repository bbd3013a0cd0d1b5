# SPDX-License-Identifier: MIT
"""`aiter-like sim debug`: its commands on kernels of a code object and of a script, and each error in clear words."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from debugged import FILE, LANES, SOURCE, line_of
from hip_program import PRELUDE

from aiter_like import paths, sim
from aiter_like.cli import main
from aiter_like.modules import toolchain

SPEC = {"buffers": {"x": {"dtype": "fp32", "shape": [8], "fill": 1}, "out": {"dtype": "fp32", "shape": [256],
                                                                            "fill": "zeros", "output": True}},
        "arguments": [{"buffer": "x"}, {"buffer": "out"}, {"type": "i32", "value": 8}]}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """Beside its source, which the debugger shows."""
    folder = tmp_path_factory.mktemp("weigh")
    (folder / FILE).write_text(PRELUDE + SOURCE)
    command = [toolchain.find("hip").host_compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++17", "-nogpuinc",
               "-nogpulib", f"-I{paths.csrc() / 'include'}", "--offload-device-only", "-c", "--no-gpu-bundle-output",
               "-g", "-O0", "-o", str(folder / "weigh.co"), str(folder / FILE)]
    subprocess.run(command, check=True)
    return folder / "weigh.co"


@pytest.fixture
def target(compiled, tmp_path) -> list[str]:
    file, spec = compiled, tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    return [str(file), "--kernel", "weigh", "--grid", "2", "--block", str(LANES), "--args", str(spec)]


def debug(commands: str, target: list[str], capsys, monkeypatch, *options: str) -> str:
    """What it prints for commands from its standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(commands))
    assert main(["sim", "debug", *options, *target]) == 0
    return capsys.readouterr().out


def test_a_session(target, capsys, monkeypatch):
    product = line_of("// a product")
    text = debug(f"""
        break {FILE}:{product} workgroup 1 wave 1 if sum > 66 and $lane != 3
        info breakpoints
        run
        print sum[5] k n $s33
        bt
        step 2
        p h[0] $v0[1]:f32
        finish
        info waves
        info registers s33 exec v1
        info locals
        list
        disassemble 6
        delete 1
        awatch lds+12 4 log
        watch lds+8
        continue
        who 3
        info watches
        wave 1.0
        lane 63
        x/f $arg0 4
        x/x lds+0 8
        set lds+0 = 2.5
        x lds 1
        set $v40[3] = 7
        print $v40[3] $workgroup.x $arg2 out
        info functions
        info launch
        quit
        """, target, capsys, monkeypatch)
    assert f"1: {FILE}:{product}, workgroup 1, wave 1, when sum > 66 and $lane != 3, 0 hits, not placed" in text
    assert "launch of weigh: 2 x 1 x 1 workgroups of 128 x 1 x 1 work-items" in text
    assert "breakpoint 1: weigh workgroup 1,0,0 wave 1, all lanes active, after" in text
    assert "sum[5] = 69\n" in text and "k (int):\n  lane 0-63: 2\n" in text and f"{product}      sum += half_of" in text
    assert "#0 weigh at" in text and "h[0] = 0.5\n" in text and "step: weigh workgroup 1,0,0 wave 1" in text
    assert "* 1.1  workgroup 1,0,0 wave 1  running" in text and "  1.0  workgroup 1,0,0 wave 0" in text
    assert "$exec = 0xffffffffffffffff" in text and "… print p has all" in text
    assert f"=>{product:6} *" in text and "  => " in text
    assert "watch 3: weigh workgroup 1,0,0 wave 0, all lanes active" in text and "→ 0x41180000 (9.5f)\n" in text
    assert "workgroup 1 wave 0 lane 2 wrote by pc" in text and "watch 2: LDS bytes 12 to 15, accesses, 1 so far" in text
    assert "   ran  0x" in text and ": 1 1 1 1\n" in text and "lds+0x0: 2.5\n" in text
    assert "$v40[3] = 7\n" in text and "$workgroup.x = 1\n" in text and "$arg2 = 8  (as the kernel was" in text
    assert "half_of\n" in text and "kernel: weigh\n" in text and "error" not in text


def test_errors_are_told_and_the_session_goes_on(target, capsys, monkeypatch):
    commands = ["print x", "brake 3", "break other.hip:3", "break weigh if x", "break weigh wave 0 workgroup 0", "run",
                "print nothing", "x 0x8", "x/q 1", "wave 9", "wave 7.0", "lane 64", "info", "who 8", "step x", "set 3",
                "list zzz:3", "break zzz:3", "delete 77", "watch lds+70000", "print $v0[64]", "finish",
                "advance nowhere", "run", "help watch", "help nothing", "continue"]
    text = debug("\n".join(commands), target, capsys, monkeypatch)
    for part in ["error: nothing has stopped: set breakpoints, then `run`",
                 "no command brake (did you mean break or tbreak?)",
                 "'x' is no comparison", "breakpoint 1 has no place in it: no code of a file other.hip",
                 "no variable nothing here", "memory at 0x8 cannot be read", "error: help x",
                 "workgroup 0 has waves 0 to 1, got 9", "workgroup 7 does not run; running: 0", "a lane from 0 to 63",
                 "one of these is wanted", "no watch 8; there are: none", "a count of 1 or more is wanted, got 'x'",
                 "zzz is not to be had here", "error: help set", "no code of a file zzz",
                 "no breakpoint or watch 77; there are: 1, 2", "can be watched there", "lanes 0 to 63, got 64",
                 "outermost function", "no kernel or function nowhere", "the program runs: `continue` goes on",
                 "WHAT is an address", "no command nothing", "the program has ended",
                 "breakpoint 1: other.hip:3, 0 hits, not placed: no code of a file other.hip"]:
        assert part in text, part


def test_reports_stop(target, capsys, monkeypatch, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC).replace("256", "130"))
    text = debug("print i[3]\nquit\n", target, capsys, monkeypatch, "--checks", "bounds", "-c", "run")
    assert "a checker reports: weigh workgroup 1,0,0" in text and "[sim:bounds] weigh wg(1,0,0)" in text
    assert f"program.hip:{line_of('// the store')} in weigh" in text and "\n   ran  0x" in text and "i[3] = " in text


def test_options_that_name_nothing(target, capsys):
    for words, message in ((["-x", "nothing.txt", *target], "nothing.txt: No such file"),
                           ([*target, "--kernel", "wiegh"], "has no kernel wiegh; it has: weigh"),
                           (target[:-2], f"aiter-like sim run --init {target[0]} writes one")):
        assert main(["sim", "debug", *words]) == 1
        assert message in capsys.readouterr().err


TRITON = """
import sys
sys.path.insert(0, {folder!r})
import torch
from line_kernels import double

out = torch.zeros(128)
double[(1,)](torch.arange(128.0), out, BLOCK=128)
print("sum", out.sum().item(), sys.argv[1:])
"""


def test_a_script_with_a_triton_kernel(tmp_path, capsys, monkeypatch):
    pytest.importorskip("triton")
    folder = Path(__file__).parent
    script, commands = tmp_path / "script.py", tmp_path / "commands.txt"
    script.write_text(TRITON.format(folder=str(folder)))
    line = next(number for number, text in enumerate((folder / "line_kernels.py").read_text().splitlines(), 1)
                if "tl.store" in text)
    commands.write_text(f"# a comment\ntbreak line_kernels.py:{line}\nrun\nbt\nwatch $arg1+28 4\ncontinue\n")
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        text = debug("c\nq\n", [str(script), "--own"], capsys, monkeypatch, "-x", str(commands))
    finally:
        sim.disable_triton()
    assert "breakpoint 1: double workgroup 0,0,0 wave 0" in text
    assert f"line_kernels.py:{line} in double" in text and "tl.store(out + offsets" in text
    assert "#0 double at" in text and "watch 2: double workgroup 0,0,0" in text and "(14f)" in text
    assert "sum 16256.0 ['--own']\nthe program has ended\n" in text
