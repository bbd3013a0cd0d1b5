# SPDX-License-Identifier: MIT
"""The README and the page of the integrations are true: their Python runs, their tables are those of the code; the
README is short. test_pages.py asks every page for its links, files and commands.

aiter_like/sim/README.md has what is run in as_gpu() and in sessions.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import env
from aiter_like.integrations import versions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ENGINES = (ROOT / "aiter_like/integrations/README.md").read_text()
LINES = 150


def test_it_fits_a_screen_or_two():
    assert len(README.splitlines()) <= LINES
    assert max(len(line) for line in README.splitlines() if not line.startswith("|")) <= 120


@pytest.mark.parametrize("page, printed", (
    ("README.md", r"flash_attn_fwd on gfx942"), ("aiter_like/sim/README.md", r"^\S*rms_norm\S* 1 [1-9]\d*$"),
    ("aiter_like/integrations/README.md", r"aiter\.gemm_a8w8_mxfp8 is not served by aiter_like; use ")))
def test_python_blocks_run(tmp_path, page, printed):
    """One after the other in one process, as a reader would type them, on the simulated MI300X."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"AITER_LIKE_SIM": "threads=2"},
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(printed, run.stdout, re.MULTILINE), run.stdout


def test_table_of_environment_variables_is_the_registry():
    rows = [f"| `{variable.name}` | {variable.help} | {variable.read} |" for variable in env.VARIABLES.values()]
    page = (ROOT / "aiter_like/ENVIRONMENT.md").read_text()
    written = [line for line in page.splitlines() if line.startswith("| `AITER_LIKE")]
    assert written == rows, "the table should read:\n" + "\n".join(rows)


@pytest.mark.parametrize("engine", sorted(versions.SUPPORTED))
def test_versions_are_those_of_the_table(engine):
    table = versions.SUPPORTED[engine]
    row = f"| {table.first} to before {table.end} | {', '.join(table.seen)} |"
    assert any(line.lower().startswith(f"| {engine} {row}") for line in ENGINES.splitlines()), f"| {engine} {row}"
