# SPDX-License-Identifier: MIT
"""tile/fence.h: each is its one instruction, and leaving one out is a fault that the checkers see."""

import pytest
import torch
from tile_program import Program

from aiter_like.errors import SimulatorError

program = Program("tile/fence.h", """
#include "aiter_like/tile/dma.h"
template <bool IS_WAITED, bool IS_MET>
__device__ void exchange(const bf16* data, bf16* out) {
  __shared__ LdsTile<bf16, 64, 32, Linear> lds;
  dma<2>(lds, TileWindow<const bf16, 64, 32>({data, {64, 32}, {32, 1}}, 0), wave_index());
  if (IS_WAITED) wait_vector_memory();
  if (IS_MET) meet();
  for (int i = thread_index(); i < 64 * 32; i += 128) out[i] = lds.at<bf16>(63 - i / 32, i % 32 * 2);
}
extern "C" __global__ void right(const bf16* data, bf16* out) { exchange<true, true>(data, out); }
extern "C" __global__ void early(const bf16* data, bf16* out) { exchange<false, true>(data, out); }
extern "C" __global__ void apart(const bf16* data, bf16* out) { exchange<true, false>(data, out); }
""")
each = Program("tile/fence.h", """
extern "C" __global__ void each() {
  wait_vector_memory<3>();
  wait_lds<2>();
  meet();
  keep_order();
  set_priority<1>();
}
""")


def test_one_instruction_each():
    assert each.instructions()[:5] == ["s_waitcnt vmcnt(3)", "s_waitcnt lgkmcnt(2)", "s_barrier", "s_setprio 1",
                                       "s_endpgm"]


def test_what_is_not_fenced_is_seen():
    data, out = torch.randn(64, 32).bfloat16(), torch.zeros(64, 32, dtype=torch.bfloat16)
    program("right", data, out, waves=2)
    assert torch.equal(out, data.flip(0))
    for kernel, check in (("early", "wait"), ("apart", "lds_race")):
        with pytest.raises(SimulatorError, match=rf"\[sim:{check}\]"):
            program(kernel, data, out, waves=2)
