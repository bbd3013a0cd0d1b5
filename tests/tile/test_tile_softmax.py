# SPDX-License-Identifier: MIT
"""tile/softmax.h against torch: several tiles one after the other, masked columns, a NaN."""

import math

import torch
from tile_program import Program

TILES, KEYS, QUERIES = 3, 32, 32
LOWEST = torch.finfo(torch.float32).min
program = Program("tile/softmax.h", f"""
extern "C" __global__ void softmax(const float* scores, float* p, float* maximum, float* total, float* rescales) {{
  using Scores = RegTile<float, {KEYS}, {QUERIES}, Product<>>;
  OnlineSoftmax<Scores, 2> state;
  Scores tiles[{TILES}];
  float factors[{TILES}][2];
  for (int i = 0; i < {TILES}; ++i) {{
    tiles[i] = from_memory<Scores>(scores + i * {KEYS * QUERIES});
    factors[i][0] = factors[i][1] = 1.f;
    state.raise(tiles[i], 0.5f, [&](int strip, float factor) {{ factors[i][strip] = factor; }});
    state.exponentiate(tiles[i], 0.5f);
    to_memory(p + i * {KEYS * QUERIES}, tiles[i]);
  }}
  for (int s = 0; s < 2; ++s) {{
    const float sum = state.total(s);
    const int query = Scores::column(s, 0);
    maximum[query] = state.maximum[s];
    total[query] = sum;
    for (int i = 0; i < {TILES}; ++i) rescales[i * {QUERIES} + query] = factors[i][s];
  }}
}}
""")


def test_against_torch():
    """p of tile i is relative to the maximum so far; the rescales bring it to the last one; 2 bits are added."""
    scores = 4 * torch.randn(TILES, KEYS, QUERIES)
    scores[:, :, 5] = -math.inf  # nothing visible
    scores[:2, :, 6] = -math.inf  # visible late
    scores[1, 3, 7] = math.nan
    p, rescales = torch.zeros_like(scores), torch.zeros(TILES, QUERIES)
    maximum, total = torch.zeros(2, QUERIES)
    program("softmax", scores, p, maximum, total, rescales)
    assert maximum[5] == LOWEST and total[5] == 0 and not p[:, :, 5].any() and not p[:2, :, 6].any()
    assert total[7].isnan() and p[1, 3, 7].isnan()
    fine = torch.tensor([query not in (5, 7) for query in range(QUERIES)])
    scaled = (scores.double() * 0.5)[..., fine]
    running = scaled.amax(1).clamp(min=LOWEST).cummax(0).values
    torch.testing.assert_close(maximum[fine].double(), running[-1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(p[..., fine].double(), torch.exp2(scaled - running[:, None] + 2), rtol=2e-6, atol=1e-30)
    expected = torch.exp2(scaled - running[-1] + 2).sum((0, 1))
    torch.testing.assert_close(total[fine].double(), expected, rtol=4e-6, atol=0.0)
    moved = torch.exp2(running[:-1] - running[1:])
    torch.testing.assert_close(rescales[1:, fine].double(), moved, rtol=4e-6, atol=0.0)
    seen_at_once = torch.tensor([query not in (5, 6) for query in range(QUERIES)])
    assert (rescales[0, seen_at_once] == 0).all() and (rescales[0, 5:7] == 1).all()  # from the start value on


def test_far_from_zero():
    """Scores of 2^23 to 2^40, exact in fp32: 2^2 for the highest of a column, wherever they come, else almost 0."""
    for scale in (2.0**24, 3.0 * 2.0**30, 2.0**40):
        scores = torch.randint(-9, 10, (TILES, KEYS, QUERIES)) * scale
        p, rescales = torch.zeros_like(scores), torch.zeros(TILES, QUERIES)
        maximum, total = torch.zeros(2, QUERIES)
        program("softmax", scores, p, maximum, total, rescales)
        assert torch.equal(maximum, scores.amax((0, 1)) / 2)
        running = scores.amax(1).cummax(0).values
        assert torch.equal(p, torch.where(scores == running[:, None], 4.0, 0.0))
        assert torch.equal(total, 4.0 * (scores == running[-1]).sum((0, 1)))
