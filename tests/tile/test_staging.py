# SPDX-License-Identifier: MIT
"""tile/staging.h: the share of each work-item puts the whole window into LDS, whatever the shape and the waves."""

import pytest
import torch
from tile_program import Program

CASES = [(columns, waves) for columns in (32, 96, 128, 192) for waves in (2, 4)] + [(128, 3)]
program = Program("tile/staging.h", """
template <int COLUMNS, int WAVES>
__device__ void stage(const bf16* data, int64_t rows, int64_t columns, bf16* out) {
  __shared__ LdsTile<bf16, 64, COLUMNS, SwizzledByRow> lds;
  Staged<LdsTile<bf16, 64, COLUMNS, SwizzledByRow>, 64 * WAVES> share;
  share.load(TileWindow<const bf16, 64, COLUMNS>({data, {rows, columns}, {columns, 1}}, 0));
  share.store(lds);
  workgroup_barrier();
  for (int i = thread_index(); i < 64 * COLUMNS; i += 64 * WAVES)
    out[i] = lds.template at<bf16>(i / COLUMNS, i % COLUMNS * 2);
}
""" + "".join(f"""
extern "C" __global__ void stage_{columns}_{waves}(const bf16* data, int64_t rows, int64_t columns, bf16* out) {{
  stage<{columns}, {waves}>(data, rows, columns, out);
}}""" for columns, waves in CASES))


@pytest.mark.parametrize("columns, waves", CASES)
def test_the_window_arrives(columns, waves):
    for rows, used in ((64, columns), (50, columns - 8)):
        x = torch.randn(rows, used).bfloat16()
        out = torch.ones(64, columns, dtype=torch.bfloat16)
        program(f"stage_{columns}_{waves}", x, rows, used, out, waves=waves)
        expected = torch.zeros(64, columns, dtype=torch.bfloat16)
        expected[:rows, :used] = x
        assert torch.equal(out, expected)
