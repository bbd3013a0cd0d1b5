# SPDX-License-Identifier: MIT
"""The page of the integrations is true: its Python runs, its versions are the table's, its files and commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.integrations import versions

FOLDER = Path(versions.__file__).parent
README = (FOLDER / "README.md").read_text()


def test_python_blocks_run(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"AITER_LIKE_SIM": "threads=2"},
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "aiter.gemm_a8w8_mxfp8 is not served by aiter_like; use " in run.stdout


@pytest.mark.parametrize("engine", sorted(versions.SUPPORTED))
def test_versions_are_those_of_the_table(engine):
    table = versions.SUPPORTED[engine]
    row = f"| {table.first} to before {table.end} | {', '.join(table.seen)} |"
    assert any(line.lower().startswith(f"| {engine} {row}") for line in README.splitlines()), f"| {engine} {row}"


@pytest.mark.parametrize("command", sorted(set(re.findall(r"aiter-like ([a-z-]+)", README))))
def test_commands_exist(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and command in capsys.readouterr().out


def test_links_point_at_pages_of_engines_that_are_there():
    linked = re.findall(r"\]\(([^)]+)\)", README)
    assert {"aiter/AITER.md", "vllm/README.md", "sglang/README.md", "TRANSFORMERS.md"} <= set(linked)
    missing = [link for link in linked if not (FOLDER / link).exists()]
    assert not missing
