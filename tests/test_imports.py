# SPDX-License-Identifier: MIT
"""Who may import whom: the contracts of pyproject.toml, held by import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_contracts():
    run = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0 and " 0 broken" in run.stdout, run.stdout + run.stderr
