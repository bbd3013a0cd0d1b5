# SPDX-License-Identifier: MIT
"""math.h, what the policies of scores take from it: fast_tanh against float64 over its whole range."""

import torch
from tile_program import Program

program = Program("math.h", """
extern "C" __global__ void tanh_of(const float* x, float* y, int64_t count) {
  for (int i = lane_index(); i < count; i += 64) y[i] = fast_tanh(x[i]);
}
""")


def test_tanh():
    magnitudes = torch.cat((torch.logspace(-30, 2, 4000), torch.linspace(0.5, 0.63, 2000), torch.tensor([0.5625, 1e9])))
    x = torch.cat((magnitudes, -magnitudes, torch.tensor([0.0, torch.inf, -torch.inf, torch.nan])))
    y = torch.zeros_like(x)
    program("tanh_of", x, y, len(x))
    expected = x.double().tanh()
    assert torch.equal(y.isnan(), x.isnan())
    error = ((y.double() - expected).abs() / expected.abs().clamp(min=1e-30)).nan_to_num(0.0)
    assert error.max() <= 10 * 2**-24
