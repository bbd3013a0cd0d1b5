# SPDX-License-Identifier: MIT
"""tile/spread.h: every access has one place, in order, and no place has two."""

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


_STREAM = """
#include "aiter_like/mfma.h"
#include "aiter_like/tile/fence.h"
extern "C" __global__ void stream(const Fragment* operands, Accumulator* out) {
  __shared__ Fragment lds[8][64];
  const int lane = thread_index();
  Fragment now[8], next[8];
  Accumulator sums[8] = {};
  for (int i = 0; i < 8; ++i) lds[i][lane] = now[i] = operands[64 * i + lane];
  workgroup_barrier();
  keep_order();
#pragma unroll
  for (int i = 0; i < 8; ++i) next[i] = lds[i][63 - lane];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = mfma_16x16x16<bf16>(now[i], now[i], sums[i]);
  ORDER
  keep_order();
#pragma unroll
  for (int i = 0; i < 8; ++i) out[64 * i + lane] = mfma_16x16x16<bf16>(next[i], next[i], sums[i]);
}
"""


def runs_of_reads(order: str) -> list[int]:
    """How many LDS reads stand before, between and behind the first eight matrix instructions."""
    names = [text.split()[0] for text in Program("tile/spread.h", _STREAM.replace("ORDER", order)).instructions()]
    names = names[names.index("s_barrier"):]
    runs = [0]
    for name in names:
        runs[-1] += name.startswith("ds_read")
        if name.startswith("v_mfma"):
            if len(runs) == 9:
                break
            runs.append(0)
    return runs


def test_the_compiler_spreads():
    """Left to itself, it has the reads together."""
    spread, together = runs_of_reads("spread_between_products<8, Pipe::lds_read>();"), runs_of_reads("")
    assert len(spread) == 9 and spread[0] == 0 and max(spread) == 1
    assert sum(spread) == sum(together) and max(together) > 1
