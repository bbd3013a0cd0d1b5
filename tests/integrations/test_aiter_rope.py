# SPDX-License-Identifier: MIT
"""AITER's rotary position embedding in Triton that vLLM calls, against the formula in float64."""

import pytest
import torch
from seeded import wide_numbers as numbers

from aiter_like.integrations.aiter.rope.rope import rope_cached_thd_positions_offsets_2c_fwd_inplace as turn

TOKENS, HEADS, DIM = 6, 3, 16
ROWS = torch.tensor([8, 0, 3, 3, 7, 1])
ONES, FLAGS = torch.ones_like(ROWS), (0, True, False)


def tensors(dtype=torch.float32):
    """Two tensors of tokens and both tables."""
    angles = numbers(9, DIM // 2, seed=2)
    return [each.to(dtype) for each in (numbers(TOKENS, HEADS, DIM), numbers(TOKENS, 1, DIM, seed=1), angles.cos(),
                                        angles.sin())]


def turned(x, cos, sin):
    """Whole heads in arithmetic of the dtype of `x`, whose products are rounded to it."""
    (first, second), cos, sin = x.chunk(2, -1), cos[ROWS][:, None], sin[ROWS][:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@pytest.mark.parametrize("indices", ((ROWS, None), (ROWS - 1, ONES)), ids=("positions", "offsets"))
def test_tokens_in_place(simulated, indices):
    """In fp32 by the formula, in 16 bits to the bit; what is returned is what was given."""
    x, y, *tables = tensors()
    expected = [turned(each.double(), *(table.double() for table in tables)) for each in (x, y)]
    for got, own, one in zip(turn(x, y, *tables, *indices, *FLAGS), (x, y), expected, strict=True):
        assert got is own
        torch.testing.assert_close(own.double(), one, rtol=1e-5, atol=1e-5)
    x, y, *tables = tensors(torch.bfloat16)
    expected = [turned(each, *tables) for each in (x, y)]
    found = turn(x, y, *tables, *indices, *FLAGS, transpose_output=False)
    assert all(got is own and torch.equal(own, one) for got, own, one in zip(found, (x, y), expected, strict=True))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_bad_arguments(simulated, dtype):
    x, y, *tables = tensors(dtype)
    for message, call in (("positions must have shape", (x, y, *tables, ROWS[1:], ONES, *FLAGS)),
                          ("offsets must have shape", (x, y, *tables, ROWS, ONES[1:], *FLAGS)),
                          ("x must have 3 dimensions", (x[None], y, *tables, ROWS, None, *FLAGS)),
                          ("y must have shape", (x, y[1:], *tables, ROWS, None, *FLAGS)),
                          ("transpose_output must be False, got True", (x, y, *tables, ROWS, None, *FLAGS, True))):
        with pytest.raises(ValueError, match=f"rope_cached_thd_positions_offsets_2c_fwd_inplace: {message}"):
            turn(*call)
