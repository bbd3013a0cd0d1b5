# SPDX-License-Identifier: MIT
"""What the command line answers without torch, whose import takes seconds: help, mistakes, and commands about files."""

import os
import subprocess
import sys

from aiter_like import cli

_SCRIPT = """
import contextlib, io, sys
from aiter_like import cli

for words in {words!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = end.code
    print(status, *words)
    heavy = sorted({{"torch", "triton", "numpy", "tvm_ffi", "transformers"}} & set(sys.modules))
    assert not heavy, f"aiter-like {{' '.join(words)}} imported {{heavy}}"
"""


def test_help_mistakes_and_commands_about_files_import_no_torch(tmp_path):
    helps = [[], ["--help"], *([command, "--help"] for command in cli._COMMANDS),
             ["sim", "run", "--help"], ["sim", "check", "--help"], ["cache", "prune", "--help"]]
    mistakes = [["explian"], ["cache"], ["cache", "lits"], ["sim", "rnu"], ["sim", "check", "no_such.py"],
                ["demo", "--devise", "sim"], ["build", "--jobs", "many"], ["new-op", "x"], ["tune", "--gpus", "x"]]
    answers = [["cache", "list"], ["cache", "verify"], ["cache", "prune"], ["shim"]]
    run = subprocess.run([sys.executable, "-c", _SCRIPT.format(words=helps + mistakes + answers)], check=False,
                         capture_output=True, text=True, cwd=tmp_path,
                         env=os.environ | {"AITER_LIKE_CACHE_DIR": str(tmp_path / "cache")})
    assert run.returncode == 0, run.stdout + run.stderr
    statuses = dict(line.split(" ", 1)[::-1] if " " in line else ("", line) for line in run.stdout.splitlines())
    assert {statuses[" ".join(words)] for words in helps[1:] + answers} == {"0"}
    assert {statuses[" ".join(words)] for words in mistakes} <= {"1", "2"}
