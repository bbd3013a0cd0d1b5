# SPDX-License-Identifier: MIT
"""The bench command of aiter_like/ops/README.md, typed in: the operator's file finds what it imports."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from aiter_like import paths

PAGE = paths.data_root() / "aiter_like/ops/README.md"


def test_the_command_as_the_page_has_it():
    (line,) = re.findall(r"^python (op_tests/.*?) *#", PAGE.read_text(), re.MULTILINE)
    assert "my_op" in line
    words = shlex.split(line.replace("my_op", "relu_squared"))
    done = subprocess.run([sys.executable, *words, "--help"], cwd=paths.data_root(), capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0 and "print a table of times" in done.stdout, done.stderr
