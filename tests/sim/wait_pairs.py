# SPDX-License-Identifier: MIT
"""Pairs of instructions that need wait states, at least one per row of csrc/sim/checks/waitstate_table.cpp.

Read by test_check_waitstate.py (the simulator's checker) and test_waitstate_llvm.py (LLVM's hazard recogniser).
"""

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """Two instructions, names of INSTRUCTIONS, and how many wait states must be between them; `row` of the table.

    LLVM knows of it since version `llvm`.
    """

    row: str
    earlier: str
    later: str
    states: int
    llvm: int = 0


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a table beside this file, without its head."""
    with Path(__file__).with_name(name).open(newline="") as file:
        yield from itertools.islice(csv.reader(file), 1, None)


# name → assembly, LLVM's machine instruction. Sources of MFMA: A v[2:3] (v2), B v[4:5] (v3).
INSTRUCTIONS = {name: (assembly, machine) for name, assembly, machine in _rows("wait_instructions.csv")}
PAIRS = tuple(Pair(row, earlier, later, int(states), int(llvm))
              for row, earlier, later, states, llvm in _rows("wait_pairs.csv"))

# Pairs that look like those above and need nothing.
FREE = (
    ("xdl4", "xdl4 onto itself"), ("f32 8", "xdl C v10"), ("f64 large", "f64 large onto itself"),
    ("f32 8", "write v12"), ("xdl4", "write v2"), ("write v2", "read v2"), ("first lane to s20", "add v2"),
    ("dot", "dot C v2"), ("store v8", "write v9"), ("xdl4", "read v2"),
)
