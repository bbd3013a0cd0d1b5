# SPDX-License-Identifier: MIT
"""The README and the page of the integrations are true: their Python runs, their files and commands exist; the README
is short.

aiter_like/sim/README.md has what is run in as_gpu() and in sessions.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import cli, env
from aiter_like.integrations import versions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
INTEGRATIONS = Path(versions.__file__).parent
ENGINES = (INTEGRATIONS / "README.md").read_text()
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


def test_named_files_exist():
    named = set(re.findall(r"\b((?:aiter_like|csrc|hsa|configs|tests|op_tests)/[\w./]+)(?=[\s`),;])", README))
    assert len(named) > 5
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_make_targets_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+)", README)) - {"for"} <= set(targets)


@pytest.mark.parametrize("command", sorted({*re.findall(r"`aiter-like ([a-z-]+)", README),
                                            *re.findall(r"aiter-like ([a-z-]+)", ENGINES)}))
def test_commands_exist(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and command in capsys.readouterr().out


@pytest.mark.parametrize("engine", sorted(versions.SUPPORTED))
def test_versions_are_those_of_the_table(engine):
    table = versions.SUPPORTED[engine]
    row = f"| {table.first} to before {table.end} | {', '.join(table.seen)} |"
    assert any(line.lower().startswith(f"| {engine} {row}") for line in ENGINES.splitlines()), f"| {engine} {row}"


def test_links_point_at_pages_of_engines_that_are_there():
    linked = re.findall(r"\]\(([^)]+)\)", ENGINES)
    assert {"aiter/AITER.md", "vllm/README.md", "sglang/README.md", "TRANSFORMERS.md"} <= set(linked)
    missing = [link for link in linked if not (INTEGRATIONS / link).exists()]
    assert not missing
