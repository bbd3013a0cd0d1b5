# SPDX-License-Identifier: MIT
"""Program of test_interrupt.py: `aiter-like build` of modules of a small project.

    python interrupted_build.py FOLDER NAME…
"""

import sys
from pathlib import Path

from jit_project import Project

from aiter_like.cli import build, main


def specs(root: Path, names: list[str]) -> list:
    """A module of two sources for each name, of which the second is never finished before a file `go` is there."""
    project = Project(root)
    (root / "op" / "slow.cpp").write_text("\n")
    return [project.spec(name=name, sources=("op/tiny.cpp", "op/slow.cpp")) for name in names]


if __name__ == "__main__":
    found = specs(Path(sys.argv[1]), sys.argv[2:])
    build.selected = lambda *_: found
    sys.exit(main(["build", "--jobs", "2"]))
