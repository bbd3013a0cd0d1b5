# SPDX-License-Identifier: MIT
"""tile/split_merge.h against torch: four waves' softmax of the same rows over different keys, one of them over none."""

import math

import torch
from tile_program import Program

WAVES, KEYS, ROWS, WIDTH = 4, 32, 16, 8
program = Program("tile/split_merge.h", f"""
extern "C" __global__ void merged(const float* scores, const float* values, float* maximum, float* sum, float* out) {{
  using Scores = RegTile<float, {KEYS}, {ROWS}, Product<>>;
  __shared__ SplitMerge<{WAVES}, {ROWS}, {WIDTH}> lds;
  const int wave = wave_index();
  OnlineSoftmax<Scores> state;
  Scores tile = from_memory<Scores>(scores + wave * {KEYS * ROWS});
  state.raise(tile, 1.f, [](int, float) {{}});
  state.exponentiate(tile, 1.f);
  lds.tell(state, wave);
  for (int i = lane_index(); i < {ROWS * WIDTH}; i += kWaveSize)
    lds.values[wave][i / {WIDTH}][i % {WIDTH}] = values[wave * {ROWS * WIDTH} + i];
  workgroup_barrier();
  const int thread = thread_index();
  if (thread >= {ROWS * WIDTH}) return;
  const int row = thread / {WIDTH}, column = thread % {WIDTH};
  const auto found = lds.row(row);
  maximum[row] = found.maximum;
  sum[row] = found.sum;
  out[thread] = lds.value(found, row, column);
}}
""")


def test_against_torch():
    """Values are sums that the waves have; what a wave without keys has counts for nothing."""
    generator, lowest = torch.Generator().manual_seed(0), torch.finfo(torch.float32).min
    scores = 4 * torch.randn(WAVES, KEYS, ROWS, generator=generator)
    values = torch.randn(WAVES, ROWS, WIDTH, generator=generator)
    scores[2] = -math.inf
    scores[:, :, 3] = -math.inf
    maximum, total, out = torch.zeros(ROWS), torch.zeros(ROWS), torch.zeros(ROWS, WIDTH)
    program("merged", scores, values, maximum, total, out, waves=WAVES)
    each = scores.double().amax(1).clamp(min=lowest)
    highest = each.amax(0)
    seen = highest > lowest
    torch.testing.assert_close(maximum.double(), highest, rtol=1e-6, atol=0.0)
    expected = torch.exp2(scores.double() - highest).sum((0, 1))
    torch.testing.assert_close(total.double()[seen], expected[seen], rtol=4e-6, atol=0.0)
    weighed = (torch.exp2(each - highest)[..., None] * values.double()).sum(0)
    torch.testing.assert_close(out.double()[seen], weighed[seen], rtol=4e-6, atol=4e-6)
    assert not seen[3] and total[3] == 0
