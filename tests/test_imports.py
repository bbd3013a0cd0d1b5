# SPDX-License-Identifier: MIT
"""Who may import whom: the contracts of pyproject.toml, held by import-linter."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_contracts():
    run = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0 and " 0 broken" in run.stdout, run.stdout + run.stderr


def test_the_debugger_is_imported_when_it_is_asked_for():
    code = ("import sys, torch, aiter_like, aiter_like.cli.sim.commands\n"
            "from aiter_like import sim\n"
            "def debugger(): return [name for name in sys.modules if name.startswith('aiter_like.sim.debugging')]\n"
            "rows, weight = torch.randn(2, 64).bfloat16(), torch.ones(64).bfloat16()\n"
            "with sim.enabled(): aiter_like.rms_norm(rows, weight, 1e-6)\n"
            "assert not debugger(), debugger()\n"
            "assert callable(sim.debug) and debugger()\n")
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
