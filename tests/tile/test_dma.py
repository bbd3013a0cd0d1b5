# SPDX-License-Identifier: MIT
"""tile/dma.h: a copy that can only write linearly fills swizzled tiles, with zeros beyond the edge of the window."""

import pytest
import torch
from tile_program import Program

CASES = [(swizzle, columns, waves) for swizzle in ("Linear", "SwizzledByRow", "SwizzledByColumn")
         for columns, waves in ((32, 2), (96, 4), (128, 4))]
program = Program("tile/dma.h", """
#include "aiter_like/tile/fence.h"
template <class SWIZZLE, int COLUMNS, int WAVES>
__device__ void copy(const bf16* data, int64_t rows, int64_t columns, bf16* out) {
  __shared__ LdsTile<bf16, 64, COLUMNS, SWIZZLE> lds;
  dma<WAVES>(lds, TileWindow<const bf16, 64, COLUMNS>({data, {rows, columns}, {columns, 1}}, 0), wave_index());
  wait_vector_memory();
  meet();
  for (int i = thread_index(); i < 64 * COLUMNS; i += 64 * WAVES)
    out[i] = lds.template at<bf16>(i / COLUMNS, i % COLUMNS * 2);
}
""" + "".join(f"""
extern "C" __global__ void copy_{swizzle}_{columns}(const bf16* data, int64_t rows, int64_t columns, bf16* out) {{
  copy<{swizzle}, {columns}, {waves}>(data, rows, columns, out);
}}""" for swizzle, columns, waves in CASES))


@pytest.mark.parametrize("swizzle, columns, waves", CASES)
def test_the_window_arrives(swizzle, columns, waves):
    for rows, used in ((64, columns), (50, columns - 8)):
        x = torch.randn(rows, used).bfloat16()
        out = torch.ones(64, columns, dtype=torch.bfloat16)
        program(f"copy_{swizzle}_{columns}", x, rows, used, out, waves=waves)
        expected = torch.zeros(64, columns, dtype=torch.bfloat16)
        expected[:rows, :used] = x
        assert torch.equal(out, expected)
