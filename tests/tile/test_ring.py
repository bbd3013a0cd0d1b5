# SPDX-License-Identifier: MIT
"""tile/ring.h: every item arrives in order, in time and only once its stage is free, for any number of stages."""

import functools
import re
from collections import Counter

import pytest
import torch
from tile_program import Program

from aiter_like.errors import SimulatorError

STAGES = (2, 3, 4)
ROWS, COLUMNS = 32, 64
_KERNELS = """
#include "aiter_like/tile/dma.h"
#include "aiter_like/tile/staging.h"
struct Items {
  int first, end, step;
  __device__ int begin() const { return first; }
  __device__ int next(int item) const { return item + step; }
};
using Tile = LdsTile<bf16, 32, 64, SwizzledByRow>;
using Window = TileWindow<const bf16, 32, 64>;
constexpr int kElements = 32 * 64, kAccesses = kDmaAccesses<Tile, 2>;

__device__ Items items_of(int64_t first, int64_t end, int64_t step) {
  return {static_cast<int>(first), static_cast<int>(end), static_cast<int>(step)};
}
__device__ void copy_flipped(const Tile& tile, bf16* out) {
  for (int i = thread_index(); i < kElements; i += 128) out[i] = tile.at<bf16>(31 - i / 64, i % 64 * 2);
}
/// BEHIND: how many stages before the right one are read.
template <int STAGES, int ACCESSES, int BEHIND>
__device__ void by_dma(const bf16* data, int64_t first, int64_t end, int64_t step, bf16* out) {
  __shared__ Tile tiles[STAGES];
  const MatrixView<const bf16> matrix{data, {end * 32, 64}, {64, 1}};
  const auto start = [&](int item, int stage) { dma<2>(tiles[stage], Window(matrix, item * 32), wave_index()); };
  for (Ring<STAGES, ACCESSES, Items> ring(items_of(first, end, step), start); ring.has_next();) {
    const RingSlot slot = ring.next(start);
    copy_flipped(tiles[(slot.stage + STAGES - BEHIND) % STAGES], out + slot.item * kElements);
  }
}
"""
_BY_DMA = """
extern "C" __global__ void {name}(const bf16* data, int64_t first, int64_t end, int64_t step, bf16* out) {{
  by_dma<{stages}, {accesses}, {behind}>(data, first, end, step, out);
}}
"""
staged = Program("tile/ring.h", _KERNELS + """
extern "C" __global__ void ring(const bf16* data, int64_t first, int64_t end, int64_t step, bf16* out) {
  __shared__ Tile tiles[2];
  const MatrixView<const bf16> matrix{data, {end * 32, 64}, {64, 1}};
  Staged<Tile, 128> staged;
  const auto load = [&](int item) { staged.load(Window(matrix, item * 32)); };
  const auto store = [&](int stage) { staged.store(tiles[stage]); };
  for (StagedRing<Items> ring(items_of(first, end, step), load, store); ring.has_next();) {
    const RingSlot slot = ring.next(load);
    copy_flipped(tiles[slot.stage], out + slot.item * kElements);
    ring.finish(store);
  }
}
""")


@functools.cache
def by_dma(stages: int) -> Program:
    return Program("tile/ring.h", _KERNELS + _BY_DMA.format(name="ring", stages=stages, accesses="kAccesses", behind=0))


def check(program: Program) -> None:
    for first, end, step in ((0, 0, 1), (3, 3, 1), (0, 1, 1), (0, 2, 1), (1, 8, 1), (1, 8, 3)):
        data = torch.randn(max(end, 1), ROWS, COLUMNS).bfloat16()
        out = torch.zeros_like(data)
        program("ring", data, first, end, step, out, waves=2)
        expected = torch.zeros_like(data)
        expected[first:end:step] = data[first:end:step].flip(1)
        assert torch.equal(out, expected), (first, end, step)


@pytest.mark.parametrize("stages", STAGES)
def test_each_item_arrives_by_dma(stages):
    check(by_dma(stages))


def test_each_item_arrives_through_registers():
    check(staged)


@pytest.mark.parametrize("stages", STAGES)
def test_one_barrier_and_a_counted_wait_per_stage(stages):
    """A tile takes 8 accesses of each of two waves. Towards the end fewer are under way: a wait for each number."""
    used = Counter(text for text in by_dma(stages).instructions() if re.match(r"s_barrier|s_waitcnt vmcnt", text))
    assert used == {"s_barrier": 1, **{f"s_waitcnt vmcnt({8 * later})": 1 for later in range(stages - 1)}}


def test_one_barrier_per_stage_through_registers():
    """And one before the first."""
    assert staged.instructions().count("s_barrier") == 2


@pytest.mark.parametrize(("name", "accesses", "behind", "report"), [
    ("early", "kAccesses + 1", 0, r"\[sim:wait\]"), ("late", "kAccesses", 1, r"\[sim:(lds_race|wait)\]")])
def test_what_is_not_there_is_seen(name, accesses, behind, report):
    """A wait for too few accesses, and a stage that is already being filled again."""
    program = Program("tile/ring.h",
                      _KERNELS + _BY_DMA.format(name=name, stages=3, accesses=accesses, behind=behind))
    data = torch.randn(5, ROWS, COLUMNS).bfloat16()
    with pytest.raises(SimulatorError, match=report):
        program(name, data, 0, 5, 1, torch.zeros_like(data), waves=2)
