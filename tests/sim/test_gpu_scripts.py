# SPDX-License-Identifier: MIT
"""Scripts and tests written for a GPU, unmodified: `aiter-like sim script`, `sim check --gpu`, `pytest --sim-gpu`."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import CompletedProcess

import children
import pytest

pytest.importorskip("triton")  # here: pytester forgets what a test imports, and Triton cannot be loaded twice
pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parent.parent.parent
KERNEL = """
import sys
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)

def doubled(x, n):
    out = torch.empty_like(x)
    assert x.device == DEVICE and out.is_cuda
    double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=128)
    return out
"""
SCRIPT = KERNEL + """
print(sys.argv[1:], __name__, torch.cuda.get_device_name())
x = torch.rand(200, device=DEVICE)
torch.testing.assert_close(doubled(x, 200 + ("past" in sys.argv)), 2 * x)
print(triton.testing.do_bench(lambda: doubled(x, 200)) > 0)
sys.exit(5 * ("exit" in sys.argv))
"""
TESTS = KERNEL + """
import pytest

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

@pytest.fixture
def x():
    return torch.rand(200, device="cuda")

def test_right(x):
    torch.testing.assert_close(doubled(x, 200), 2 * x)

def test_past_the_end(x):
    doubled(x, 201)
"""


def run(folder: Path, *arguments: str) -> CompletedProcess:
    """The command `sim` on SCRIPT, whose own arguments stand behind "--"."""
    (folder / "script.py").write_text(SCRIPT)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return children.run("-m", "aiter_like", "sim", *arguments[:at], folder / "script.py", *arguments[at + 1:],
                        env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_script(tmp_path):
    done = run(tmp_path, "script", "--model", "whole", "--", "one", "exit")
    assert done.returncode == 5, done.stderr
    assert done.stdout == "['one', 'exit'] __main__ AMD Instinct MI300X (simulated)\nTrue\n"
    assert "times between events are modelled" in done.stderr


def test_a_script_under_the_checkers(tmp_path):
    done = run(tmp_path, "check", "--gpu", "--", "past")
    assert done.returncode == 1 and "[sim:bounds] double" in done.stderr and "Traceback" not in done.stderr


def test_tests(pytester, caches):
    path = pytester.makepyfile(test_gpu=TESTS)
    arguments = ("-p", "pytest_aiter_like", "-p", "no:cacheprovider", str(path))
    pytester.runpytest_subprocess("--sim-gpu", *arguments).assert_outcomes(passed=2)
    pytester.runpytest_subprocess("--sim-gpu", "--sim-check", *arguments).assert_outcomes(passed=1, failed=1)
