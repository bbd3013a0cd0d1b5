# SPDX-License-Identifier: MIT
"""AITER's rotations of activations against a product with a Hadamard matrix in float64."""

import pytest
import torch
from seeded import numbers

from aiter_like import dtypes
from aiter_like.integrations.aiter.quant import formats, rotate

TOKENS, HEADS, COLUMNS, ROPE, POSITIONS = 3, 16, 128, 64, 40


def rotated(x):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return x.double() @ matrix / len(matrix) ** 0.5


def tables():
    angles = numbers(POSITIONS, ROPE // 2, seed=1, dtype=torch.float32)
    return angles.cos().bfloat16(), angles.sin().bfloat16(), torch.tensor([7, 0, 39])


def with_rope(x, cos, sin, positions):
    """GPT-J's pairs as complex numbers."""
    x, turn = x.double().clone(), torch.complex(cos.double(), sin.double())[positions][:, None]
    tail = torch.view_as_complex(x[..., -ROPE:].unflatten(-1, (-1, 2)).contiguous())
    x[..., -ROPE:] = torch.view_as_real(tail * turn).flatten(-2)
    return x


def fp4(x):
    """(codes as numbers, powers of two), each group by a search in float64."""
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    groups = x.double().unflatten(-1, (-1, 32))
    power = 2.0 ** (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    scaled = groups / power
    nearest = values[(scaled.abs()[..., None] - values).abs().argmin(-1)]
    return (nearest * scaled.sign()).flatten(-2), power[..., 0]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_rotation(simulated, dtype):
    x = numbers(TOKENS, HEADS, COLUMNS, dtype=dtype)
    out = torch.empty_like(x)
    rotate.rotate_activation(out, x)
    torch.testing.assert_close(out.double(), rotated(x), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("is_shuffled", (False, True))
@pytest.mark.parametrize("has_rope", (False, True))
def test_fp4(simulated, has_rope, is_shuffled):
    x, groups = numbers(TOKENS, HEADS, COLUMNS), COLUMNS // 32
    out = torch.empty(TOKENS, HEADS, COLUMNS // 2, dtype=torch.uint8).view(dtypes.fp4x2)
    shape = (TOKENS, groups // 4, 4, 16, 4) if is_shuffled else (TOKENS, HEADS, groups)
    scale = torch.full(shape, 99, dtype=torch.uint8).view(dtypes.fp8_e8m0)
    if has_rope:
        rotate.rope_rotate_activation(out, x, *tables(), ROPE, scale, shuffle_scale=is_shuffled)
    else:
        rotate.rotate_activation(out, x, scale, 32, is_shuffled)
    codes, powers = fp4(rotated(with_rope(x, *tables()) if has_rope else x))
    found = formats.e8m0_to_f32(scale).double()
    if is_shuffled:  # [tokens, groups / 4, 4, 16 heads, tiles of them and padding]
        assert not scale.view(torch.uint8)[..., 1:].any()
        found = found[..., 0].permute(0, 3, 1, 2).flatten(2)
    assert torch.equal(found, powers)
    got = formats.mxfp4_to_f32(out).double()
    apart = got != codes  # fp32 may lie on the other side of the middle between two codes
    assert apart.float().mean() < 1e-3 and (got - codes).abs().max() <= 2


@pytest.mark.parametrize("is_rotated", (True, False))
def test_rope_before(simulated, is_rotated):
    x, out = numbers(TOKENS, HEADS, COLUMNS), torch.empty(TOKENS, HEADS, COLUMNS, dtype=torch.bfloat16)
    rotate.rope_rotate_activation(out, x, *tables(), ROPE, do_rotate_act=is_rotated)
    expected = with_rope(x, *tables())
    expected = rotated(expected) if is_rotated else expected
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-6)


def test_rope_before_fp8(simulated):
    x, out = numbers(TOKENS, HEADS, COLUMNS), torch.empty(TOKENS, HEADS, COLUMNS, dtype=torch.float8_e4m3fnuz)
    scale = torch.empty(TOKENS * HEADS, 2)
    rotate.rope_rotate_activation(out, x, *tables(), ROPE, scale, 64)
    expected = rotated(with_rope(x, *tables())).unflatten(-1, (2, 64))
    torch.testing.assert_close(scale.view(TOKENS, HEADS, 2).double(), expected.abs().amax(-1) / 240, rtol=1e-5, atol=0)
    got = out.double().unflatten(-1, (2, 64)) * scale.view(TOKENS, HEADS, 2, 1).double()
    torch.testing.assert_close(got, expected, rtol=2**-4, atol=1e-4)


def test_bad_arguments(simulated):
    x, out = numbers(TOKENS, HEADS, COLUMNS), torch.empty(TOKENS, HEADS, COLUMNS, dtype=torch.bfloat16)
    codes = torch.empty(TOKENS, HEADS, COLUMNS // 2, dtype=torch.uint8).view(dtypes.fp4x2)
    with pytest.raises(TypeError, match="rotate_activation: scale must be a tensor, got NoneType"):
        rotate.rotate_activation(codes, x)
    with pytest.raises(ValueError, match="rotate_activation: scale must be contiguous with at least 192 elements"):
        rotate.rotate_activation(codes, x, torch.empty(TOKENS, HEADS, 3, dtype=torch.uint8), 32, False)
    with pytest.raises(ValueError, match="rotate_activation: shuffle_scale is for multiples of 16 heads"):
        rotate.rotate_activation(codes[:, :8], x[:, :8], torch.empty(999, dtype=torch.uint8))
    with pytest.raises(ValueError, match="rope_rotate_activation: cos must have shape"):
        rotate.rope_rotate_activation(out, x, *tables(), 32)
    with pytest.raises(ValueError, match="rope_rotate_activation: positions must have shape"):
        rotate.rope_rotate_activation(out, x, *tables()[:2], torch.zeros(2, dtype=torch.int64), ROPE)
    with pytest.raises(ValueError, match="rope_rotate_activation: out_scale must be contiguous with 48 elements"):
        rotate.rope_rotate_activation(out.to(torch.float8_e4m3fnuz), x, *tables(), ROPE, torch.empty(47))
