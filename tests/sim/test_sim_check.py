# SPDX-License-Identifier: MIT
"""`aiter-like sim check SCRIPT`: reports of the script's kernels, its exit status and exceptions, seeds, JSON."""

import json
import os
import subprocess
from pathlib import Path

import children
import pytest

from aiter_like import sim

ROOT = Path(__file__).resolve().parent.parent.parent
# The kernels have no error of their own: the script gives them too few elements, or too few arguments.
SCRIPT = """
import sys
import torch
import aiter_like
from aiter_like import sim

print("arguments", sys.argv[1:], __name__, sim.checking())
x = torch.randn(4, 256, dtype=torch.bfloat16)
aiter_like.rms_norm(x, torch.ones(256, dtype=torch.bfloat16), 1e-6)
if "triton" in sys.argv:
    from line_kernels import double
    for _ in range(2):
        double[(1,)](torch.ones(128), torch.zeros(256)[:100], BLOCK=128)
if "raise" in sys.argv:
    raise KeyError("a message")
if "exit" in sys.argv:
    sys.exit(7)
if "words" in sys.argv:
    sys.exit("some words")
"""


@pytest.fixture
def check(tmp_path):
    """check(*arguments): runs the command on SCRIPT in a process; arguments of the script come after "--"."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def call(*arguments: str) -> subprocess.CompletedProcess:
        at = arguments.index("--") if "--" in arguments else len(arguments)
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        return children.run("-m", "aiter_like", "sim", "check", *arguments[:at], tmp_path / "script.py",
                            *arguments[at + 1:], env={**os.environ, "PYTHONPATH": path})

    return call


def test_a_clean_script(check):
    done = check("--", "one", "--two")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "arguments ['one', '--two'] __main__ True\n"
    line = "script.py: 0 distinct report(s), 0 in all; seed 0, checks "
    assert f"{line}{','.join(sim.DEFAULT_CHECKS)}\n" in done.stderr
    assert f"{line}{','.join(sim.CHECKS)}\n" in check("--checks", "all").stderr


def test_reports_name_the_line_and_fail_the_run(check):
    pytest.importorskip("triton")
    done = check("--", "triton", "exit")
    assert done.returncode == 1
    kernels = Path(__file__).with_name("line_kernels.py")
    line = next(k for k, text in enumerate(kernels.read_text().splitlines(), 1) if "tl.store" in text)
    assert done.stderr.count(f"({kernels}:{line}): ") == done.stderr.count("[sim:bounds] double") >= 1
    assert "past the end of `double argument 1 (100,)`" in done.stderr
    assert done.stderr.count(" times)") == done.stderr.count("[sim:bounds]")       # two launches
    assert "[sim:" in check("--checks", "bounds", "--", "triton").stderr
    assert check("--checks", "wait,lds_race", "--", "triton").returncode == 0


def test_the_scripts_own_status_and_exceptions(check):
    done = check("--", "exit")
    assert done.returncode == 7
    done = check("--", "words")
    assert done.returncode == 1 and "some words\n" in done.stderr
    done = check("--", "raise")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n  File ")
    assert "KeyError: 'a message'\n" in done.stderr and "runpy" not in done.stderr and "sim_check" not in done.stderr


def test_seeds_and_json(check, tmp_path):
    pytest.importorskip("triton")
    done = check("--seeds", "2", "--fuzz", "5", "--json", str(tmp_path / "found.json"), "--", "triton")
    assert done.returncode == 1 and done.stdout.count("arguments ['triton']") == 2
    assert "; seed 5, " in done.stderr and "; seed 6, " in done.stderr and "; seeds 5 to 6, " in done.stderr
    assert "[sim:bounds]" not in done.stderr
    reports = json.loads((tmp_path / "found.json").read_text())
    assert reports and all(report["count"] >= 4 and report["seed"] == 5 for report in reports)
    assert {report["kernel"] for report in reports} == {"double"}
    done = check("--seeds", "2", "--", "exit")
    assert done.returncode == 7
    done = check("--json", str(tmp_path), "--", "exit")
    assert done.returncode == 1 and "--json: " in done.stderr and "arguments" not in done.stdout, "before it runs"


@pytest.mark.parametrize("arguments, message", [
    (("--checks", "waits"), "unknown check 'waits'; there are: all, wait, lds_race"),
    (("--seeds", "0"), "--seeds must be at least 1"),
])
def test_mistakes_are_named(check, arguments, message):
    done = check(*arguments)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr
