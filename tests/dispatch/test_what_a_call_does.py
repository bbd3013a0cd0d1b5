# SPDX-License-Identifier: MIT
"""dispatch/README.md: the files that a call goes through are those of a trace of one."""

import re
import sys
from pathlib import Path

import torch

import aiter_like
from aiter_like import paths, sim
from aiter_like.dispatch import OPS

ROOT = Path(aiter_like.__file__).parents[1]


def _entered(call) -> list[str]:
    """Files whose functions a call enters, in the order in which they are entered first."""
    files: dict[str, None] = {}
    sys.setprofile(lambda frame, event, arg: files.setdefault(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [file.removeprefix(f"{ROOT}/") for file in files]


def test_the_table_is_a_trace_of_a_call(monkeypatch):
    page = (ROOT / "aiter_like/dispatch/README.md").read_text()
    table = re.findall(r"^\| \d+ \| `([^`]+)`", page, re.MULTILINE)
    named = [file for file in table if file.endswith(".py")]
    assert len(table) == 7 and table[-1] == "csrc/norm/rms_norm.hip" and (paths.csrc() / "norm/rms_norm.hip").is_file()
    x, weight = torch.randn(3, 256).bfloat16(), torch.randn(256).bfloat16()
    op = OPS["rms_norm"]
    op.reset()
    monkeypatch.setattr(op.backends[0].function, "_bound", {})
    with sim.enabled(checks=False):
        cold = _entered(lambda: aiter_like.rms_norm(x, weight, 1e-6))
        assert [file for file in cold if file in named] == named
        aiter_like.rms_norm(x, weight, 1e-6)
        warm = _entered(lambda: aiter_like.rms_norm(x.clone(), weight, 1e-6))
    assert next(file for file in warm if "rms_norm.py" in file) == named[0]
    assert not set(warm).intersection(named[1:]), "nothing is decided"
    assert any(file.startswith("<aiter_like serves") for file in warm)
