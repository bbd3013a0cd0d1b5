# SPDX-License-Identifier: MIT
"""tile/spread.h: every access has one place, in order, and no place has two."""

from __future__ import annotations

import torch
from tile_program import Program

program = Program("tile/spread.h", """
extern "C" __global__ void places(int64_t from, int64_t end, int64_t count, int* at) {
  const Spread spread{static_cast<int>(from), static_cast<int>(end), static_cast<int>(count)};
  at[thread_index()] = spread.fits() ? spread.at(thread_index()) : -2;
}
extern "C" __global__ void place_of(int64_t from, int64_t end, int64_t count, int* places) {
  const Spread spread{static_cast<int>(from), static_cast<int>(end), static_cast<int>(count)};
  if (thread_index() < count) places[thread_index()] = spread.place(thread_index());
}
""")


def test_each_access_has_a_place():
    for first, end, count in ((0, 64, 0), (0, 64, 1), (1, 52, 4), (3, 64, 61), (0, 64, 64), (16, 64, 7), (5, 6, 1)):
        at, places = torch.full((64,), -3, dtype=torch.int32), torch.full((64,), -3, dtype=torch.int32)
        program("places", first, end, count, at)
        program("place_of", first, end, count, places)
        used = [t for t in range(64) if at[t] >= 0]
        assert [int(at[t]) for t in used] == list(range(count))
        assert used == places[:count].tolist() and all(first <= t < end for t in used)
        assert count == 0 or used[0] == first
        gaps = [after - before for before, after in zip(used, used[1:])]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_what_does_not_fit():
    for first, end, count in ((0, 4, 5), (60, 60, 1), (-1, 4, 2)):
        at = torch.zeros(64, dtype=torch.int32)
        program("places", first, end, count, at)
        assert (at == -2).all()
