# SPDX-License-Identifier: MIT
"""rope_rounded: each backend against float64 with rounded products, and bit for bit against 16-bit tensors of torch;
odd sizes, strides, in place, NaN; bad input.
"""

import itertools

import benching
import pytest
import torch

import aiter_like
from aiter_like.testing import assert_within, strided_like

BACKENDS = ("hip", "triton", "torch")
DTYPES = (torch.bfloat16, torch.float16)
FLAGS = tuple(itertools.product((0, 1), (True, False), (False, True)))  # style, reuse_freqs_front_part, nope_first


def exact(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: int = 0, is_shared: bool = True,
          nope_first: bool = False, is_backward: bool = False) -> torch.Tensor:
    """In float64 with every product rounded to the dtype of `x`; cos and sin have a row per token. On the CPU."""
    def rounded(product: torch.Tensor) -> torch.Tensor:
        return product.to(x.dtype).double()

    cos, sin, out = cos.cpu().double(), sin.cpu().double(), x.cpu().double()
    rotary = cos.shape[-1] * (2 if is_shared else 1)
    begin = x.shape[-1] - rotary if nope_first else 0
    part = out[..., begin:begin + rotary].clone()
    for element in range(rotary):
        is_first = element < rotary // 2 if style == 0 else element % 2 == 0
        partner = (element + rotary // 2) % rotary if style == 0 else element ^ 1
        pair = element % (rotary // 2) if style == 0 else element // 2
        angle, crossed_angle = (pair, pair) if is_shared else (element, partner if is_backward else element)
        sign = -1.0 if is_first != is_backward else 1.0
        crossed = rounded(part[..., partner] * sin[:, None, crossed_angle])
        out[..., begin + element] = rounded(part[..., element] * cos[:, None, angle]) + sign * crossed
    return out


def compare(out: torch.Tensor, x: torch.Tensor, *args) -> None:
    """Half a unit in the last place, and what a sum in fp32 adds to it."""
    facts, expected = torch.finfo(out.dtype), exact(x, *args)
    limit = facts.eps / 2 * (1 + 2**-8) * expected.abs() + facts.smallest_normal * facts.eps
    assert_within("rope_rounded", out, expected, limit)


def plain(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As models write it for whole heads of halves: tensors of 16 bits, on the CPU."""
    x, cos, sin = x.cpu(), cos.cpu()[:, None], sin.cpu()[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def make(device: torch.device, dtype: torch.dtype, head_dim: int, width: int, tokens: int = 7,
         heads: tuple[int, int] = (6, 2)) -> list[torch.Tensor]:
    """x, y, cos and sin of 11 rows, positions."""
    x, y = (torch.randn(tokens, count, head_dim).to(device, dtype) for count in heads)
    angles = torch.rand(11, width) * 50
    return [x, y, angles.cos().to(device, dtype), angles.sin().to(device, dtype),
            torch.randint(0, 11, (tokens,)).to(device)]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, dtype, flags):
    head_dim, rotary = (64, 32) if flags[0] else (80, 80)  # with and without a part that is copied
    x, y, cos, sin, positions = make(device, dtype, head_dim, rotary // 2 if flags[1] else rotary)
    for is_backward in (False, True):
        outs = run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions, None, *flags, is_backward)
        for out, source in zip(outs, (x, y), strict=True):
            assert out.is_contiguous() and out.dtype == dtype
            compare(out, source, cos[positions], sin[positions], *flags, is_backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_of_16_bit_tensors(device, run, backend, dtype):
    """Which one rounding of the whole sum would not give."""
    x, y, cos, sin, positions = make(device, dtype, 128, 64, 16)
    outs = run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions)
    for out, source in zip(outs, (x, y), strict=True):
        assert torch.equal(out.cpu(), plain(source, cos[positions], sin[positions]))
    once, _ = aiter_like.rope_cached_positions_2c_fwd(x[:, None], y[:, None], cos, sin, positions[:, None], 0, True,
                                                      False)
    assert not torch.equal(once[:, 0], outs[0])


@pytest.mark.parametrize("head_dim, width", ((2, 1), (10, 3), (72, 36), (96, 40), (200, 100), (512, 256), (6, 0)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes(device, run, backend, head_dim, width):
    x, y, cos, sin, positions = make(device, torch.bfloat16, head_dim, width, 3, (3, 1))
    outs = run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions)
    for out, source in zip(outs, (x, y), strict=True):
        compare(out, source, cos[positions], sin[positions])


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_views_and_offsets(device, run, backend):
    """Padded heads, an odd address, a slice of packed heads; every second position; offsets of 32 bits."""
    x, y, cos, sin, _ = make(device, torch.bfloat16, 64, 32)
    positions = torch.randint(0, 6, (14,), device=device)[::2]
    offsets = torch.randint(0, 6, (7,), dtype=torch.int32, device=device)
    rows = (positions + offsets).cpu()
    packed = torch.cat((x, y, y), 1)
    for first, second in ((strided_like(x, (0, 0, 8)), strided_like(y, (1, 0, 2), offset=1)),
                          (packed[:, :6], packed[:, 6:8])):
        outs = run(backend, aiter_like.rope_rounded, first, second, cos, sin, positions, offsets)
        for out, source in zip(outs, (x, y), strict=True):
            compare(out, source, cos.cpu()[rows], sin.cpu()[rows])


@pytest.mark.parametrize("flags", ((0, True, False), (1, False, True)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_and_into_wider_heads(device, run, backend, flags):
    """Both tensors, or one of them; the other elements of the wider heads stay."""
    x, y, cos, sin, positions = make(device, torch.bfloat16, 48, 16)
    expected = run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions, None, *flags)
    wide = torch.randn(7, 6, 64, device=device).bfloat16()
    before = wide.clone()
    for out in ((x.clone(), y.clone()), (wide[..., 8:56], y.clone())):
        first = out[0] if out[0].shape[-1] != 48 or out[0].is_contiguous() else x
        found = run(backend, aiter_like.rope_rounded, first, out[1], cos, sin, positions, None, *flags, out=out)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert torch.equal(wide[..., :8], before[..., :8]) and torch.equal(wide[..., 56:], before[..., 56:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """NaN and infinities go where the formula takes them; a row that the tables do not have gives NaN."""
    x, y, cos, sin, positions = make(device, torch.bfloat16, 16, 8)
    x[0, 0, 3], x[1, 1, 2], x[2, 0, 4] = float("nan"), float("inf"), -float("inf")
    outs = run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions)
    torch.testing.assert_close(outs[0].cpu(), plain(x, cos[positions], sin[positions]), rtol=0, atol=0, equal_nan=True)
    if device.type != "cpu":
        positions[3] = 11
        assert run(backend, aiter_like.rope_rounded, x, y, cos, sin, positions)[1][3].isnan().all()


def test_bad_input_is_named(device):
    x, y, cos, sin, positions = make(device, torch.bfloat16, 16, 8)
    for message, error, args in (
            ("cos must turn an even number of elements, at most 16, got 32", ValueError,
             (x, y, cos.repeat(1, 2), sin.repeat(1, 2), positions)),
            ("sin must have shape", ValueError, (x, y, cos, sin[:5], positions)),
            ("rotate_style must be", ValueError, (x, y, cos, sin, positions, None, 2))):
        with pytest.raises(error, match=f"rope_rounded: {message}"):
            aiter_like.rope_rounded(*args)
    with pytest.raises(TypeError, match="rope_rounded: out must be two tensors, got Tensor"):
        aiter_like.rope_rounded(x, y, cos, sin, positions, out=x)
    if device.type == "cpu":
        with pytest.raises(ValueError, match="positions must be rows of the table, from 0 to 10, got 11"):
            aiter_like.rope_rounded(x, y, cos, sin, positions * 0 + 11)
    assert [out.shape for out in aiter_like.rope_rounded(x[:0], y[:0], cos, sin, positions[:0])] == [(0, 6, 16),
                                                                                                     (0, 2, 16)]


def bench() -> None:
    benching.of("rope_rounded", "tokens heads kv_heads", ((16384, 16, 2), (4096, 32, 8), (64, 64, 8)), head_dim=128,
                rotary_dim=128, dtype="bf16", rotate_style=0)
