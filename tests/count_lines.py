# SPDX-License-Identifier: MIT
"""How many lines surround the operators, to compare one commit with another: `python tests/count_lines.py`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = (".py", ".h", ".hip", ".cpp")


def files(*endings: str, under: str = "") -> Iterator[str]:
    """The text of each file that git knows."""
    names = subprocess.run(["git", "ls-files", "-z", "--", under or "."], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split("\0")
    yield from ((ROOT / name).read_text(encoding="utf-8") for name in names if name.endswith(endings))


def length(text: str) -> int:
    return len(text.splitlines())


def host_lines(text: str) -> int:
    """Those of a .hip file between `#if AITER_LIKE_HOST_PASS` and its end."""
    depth, count = 0, 0
    for line in text.splitlines():
        if line.startswith(("#if", "# if")):
            depth += bool(depth) or "AITER_LIKE_HOST_PASS" in line
        elif line.startswith(("#endif", "# endif")):
            depth -= bool(depth)
        else:
            count += bool(depth) and bool(line.strip())
    return count


def docstring_lines() -> int:
    """Of the public functions of operators, as their files write them: `help` shows more (dispatch/docs.py)."""
    count = 0
    for text in files(".py", under="aiter_like/ops"):
        body = ast.parse(text).body
        public = {name for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
                  for name in re.findall(r"\w+", ast.unparse(node.value))}
        count += sum(length(ast.get_docstring(node, clean=False) or "") for node in body
                     if isinstance(node, ast.FunctionDef) and node.name in public)
    return count


def declares(text: str) -> bool:
    """Whether a module declares an operator."""
    return any(isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Op"
               for node in ast.walk(ast.parse(text)))


def counts() -> dict[str, int]:
    """What is counted → how many."""
    package = [*files(".py", under="aiter_like")]
    return {"files in which text that is executed is made": sum("handing_on(" in text for text in package),
            "lines of files that declare an operator": sum(map(length, filter(declares, package))),
            "lines of public docstrings": docstring_lines(),
            "lines of the host's half in .hip files": sum(map(host_lines, files(".hip", under="csrc"))),
            "lines in all": sum(map(length, files(*LANGUAGES)))}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for name, value in counts().items():
        print(f"{value:8,}  {name}")
