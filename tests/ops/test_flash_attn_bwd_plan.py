# SPDX-License-Identifier: MIT
"""The arithmetic of flash_attn_bwd_plan.h: the blocks of rows that a task takes, turns, and what a workgroup does."""

import ctypes
import functools
import itertools
import random

import hip_program
import numpy as np
import pytest

from aiter_like import paths

ROWS, KEYS = 4, 6  # of a block

PLAN = """
#include "{plan}"
using namespace aiter_like::attn_bwd;
using Sequence = Blocks<{rows}, {keys}>;
extern "C" void blocks(const Window* window, int* first, int* end, int* sees) {{
  const Sequence sequence{{*window}};
  for (int j = 0; j < sequence.key_blocks(); ++j) first[j] = sequence.first_block(j), end[j] = sequence.end_block(j);
  for (int key = 0; key < sequence.keys + {keys}; ++key) sees[key] = sequence.sees_key(key);
}}
extern "C" int turn(const Window* window, int i, int j, int chains) {{ return Sequence{{*window}}.turn(i, j, chains); }}
extern "C" int has_turns(const Window* window, int i, int chain, int chains) {{
  return Sequence{{*window}}.has_turns(i, chain, chains);
}}
extern "C" void place(const Plan* plan, int number, const int* steps, int* result) {{
  const Place place = Place::of(*plan, number, [&](int j) {{ return steps[j]; }});
  const int values[] = {{place.j, place.column, place.part, place.parts, place.slot}};
  for (int n = 0; n < 5; ++n) result[n] = values[n];
}}
"""


@functools.cache
def plan() -> ctypes.CDLL:
    return hip_program.library(PLAN.format(plan=paths.csrc() / "attention/flash_attn_bwd_plan.h", rows=ROWS, keys=KEYS))


def ints(*values: int) -> ctypes.Array:
    return (ctypes.c_int * len(values))(*values)


def visible(rows: int, keys: int, left: int, right: int, sink: int) -> np.ndarray:
    """[rows, keys]: whether a row sees a key."""
    key = np.arange(keys)
    distance = key - np.arange(rows)[:, None] - (keys - rows)
    seen = np.ones((rows, keys), bool)
    if right >= 0:
        seen &= distance <= right
    if left >= 0:
        seen &= (distance >= -left) | (key < sink)
    return seen


def windows() -> list[tuple[int, ...]]:
    """Rows, keys, left, right, sink."""
    draw = random.Random(0)
    lengths = ((1, 1), (4, 6), (5, 7), (30, 13), (13, 30), (9, 0), (0, 9))
    limits = ((-1, -1, 0), (-1, 0, 0), (0, 0, 0), (3, 0, 2), (7, 2, 6), (2, -1, 13), (-1, 0, 3))
    edges = [(*pair, *limit) for pair, limit in itertools.product(lengths, limits)]
    return edges + [(draw.randint(0, 40), draw.randint(0, 60), draw.choice((-1, draw.randint(0, 50))),
                     draw.choice((-1, 0, draw.randint(0, 50))), draw.choice((0, 0, draw.randint(0, 30))))
                    for _ in range(400)]


def test_tasks_and_turns():
    """A task takes every block of rows that sees one of its keys. Its turn at one is how many tasks of its chain with
    lower keys take it, too, and a chain has a sum to add where any takes it."""
    for window in windows():
        rows, keys, *_, sink = window
        row_blocks, key_blocks = -(-rows // ROWS), -(-keys // KEYS)
        first, end, sees = (ctypes.c_int * max(count, 1) for count in (key_blocks, key_blocks, keys + KEYS))
        first, end, sees = first(), end(), sees()
        plan().blocks(ints(*window), first, end, sees)
        seen = visible(*window)
        assert [bool(one) for one in sees][:keys] == [*seen.any(0)] and not any(sees[keys:]), window
        taken = np.zeros((row_blocks, key_blocks), bool)
        for j in range(key_blocks):
            taken[first[j]:end[j], j] = True
            needed = [seen[i * ROWS:(i + 1) * ROWS, j * KEYS:(j + 1) * KEYS].any() for i in range(row_blocks)]
            assert not (np.array(needed, bool) & ~taken[:, j]).any(), (window, j)
        for chains in {1, 2, 3, max(key_blocks, 1)}:
            check_turns(window, taken, chains)


def check_turns(window: tuple[int, ...], taken: np.ndarray, chains: int) -> None:
    for i, chain in itertools.product(range(taken.shape[0]), range(chains)):
        members = [j for j in range(chain, taken.shape[1], chains) if taken[i, j]]
        turns = [plan().turn(ints(*window), i, j, chains) for j in members]
        assert turns == [*range(len(members))], (window, i, chains)
        assert plan().has_turns(ints(*window), i, chain, chains) == bool(members), (window, i, chain, chains)


@pytest.mark.parametrize("columns", (1, 3))
@pytest.mark.parametrize("most, tail_from, tail", ((1 << 30, 5, 1 << 30), (8, 5, 8), (1 << 30, 2, 10), (16, 0, 9)))
def test_workgroups(columns, most, tail_from, tail):
    """Each part of each task is one workgroup's, by ascending key blocks. The partial sums of a task lie `columns`
    places apart, and no two workgroups have one place."""
    steps = (3, 8, 9, 40, 0, 16, 1000)
    limits = [most if j < tail_from else tail for j in range(len(steps))]
    parts = [min(max(-(-count // limit), 1), 64) for count, limit in zip(steps, limits)]
    expected, slots = [], 0
    for j, count in enumerate(parts):
        for part, column in itertools.product(range(count), range(columns)):
            slot = slots + part * columns + column if count > 1 else -1
            expected.append((j, column, part, count, slot))
        slots += count * columns if count > 1 else 0
    found, given = [], ints(columns, len(steps), 1, most, tail_from, tail)
    for number in range(len(expected) + 1):
        result = (ctypes.c_int * 5)()
        plan().place(given, number, ints(*steps), result)
        found.append(tuple(result))
    assert found == [*expected, (len(steps), 0, 0, 1, -1)]
