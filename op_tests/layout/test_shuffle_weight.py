# SPDX-License-Identifier: MIT
"""Shuffled weights and scales against the formula of each element's place; inverses; bad input."""

import itertools

import pytest
import torch

import aiter_like

DTYPES = (torch.int8, torch.float8_e4m3fnuz, torch.bfloat16, torch.float32)


def numbered(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Different bits in neighbouring elements."""
    size = torch.empty((), dtype=dtype).element_size()
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape) * 2654435 % 251
    return whole.to({1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]).view(dtype)


@pytest.mark.parametrize("layout", ((16, 16), (32, 16), (16, 32)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_element_is_where_the_formula_says(dtype, layout):
    experts, n, k = 3, 64, 128
    x = numbered(experts, n, k, dtype=dtype)
    shuffled = aiter_like.shuffle_weight(x, layout)
    assert shuffled.shape == x.shape and shuffled.dtype == dtype and shuffled.is_shuffled and shuffled.is_contiguous()
    assert shuffled.shuffle_layout == layout
    flat, source = shuffled.view(torch.uint8).view(-1, x.element_size()), x.view(torch.uint8).view(*x.shape, -1)
    (rows, _), pack = layout, 16 // x.element_size()
    for e, i, j in itertools.product(range(experts), range(0, n, 5), range(0, k, 3)):
        place = e * n * k + i // rows * rows * k + j // pack * rows * pack + i % rows * pack + j % pack
        assert torch.equal(flat[place], source[e, i, j]), (e, i, j)
    assert torch.equal(aiter_like.unshuffle_weight(shuffled, layout).view(torch.uint8), x.view(torch.uint8))


def test_four_bit_numbers_take_32_per_pack():
    x = numbered(32, 128, dtype=torch.int8)
    flat = aiter_like.shuffle_weight(x, use_int4=True).view(-1)
    for i, j in itertools.product(range(32), range(128)):
        assert flat[i // 16 * 16 * 128 + j // 32 * 16 * 32 + i % 16 * 32 + j % 32] == x[i, j]
    assert torch.equal(aiter_like.unshuffle_weight(flat.view(32, 128), use_int4=True), x)


@pytest.mark.parametrize("gate_up", (False, True))
@pytest.mark.parametrize("rows", (16, 32))
def test_gate_and_up_interleaved(rows, gate_up):
    experts, n, k, columns = 2, 128, 256, 16
    x = numbered(experts, n, k, dtype=torch.uint8)
    shuffled = aiter_like.shuffle_weight(x, (rows, columns), is_guinterleave=True, gate_up=gate_up)
    lanes, half = 64 // rows, n // 2 if gate_up else n
    flat = shuffled.view(-1)
    for e, i, j in itertools.product(range(experts), range(0, n, 3), range(0, k, 7)):
        part, row = divmod(i, half)  # gate or up
        band = (row // rows) * (2 if gate_up else 1) + part
        place = e * n * k + band * rows * k + j // (lanes * columns) * lanes * columns * rows
        place += j // columns % lanes * rows * columns + row % rows * columns + j % columns
        assert flat[place] == x[e, i, j], (e, i, j)
    assert torch.equal(aiter_like.unshuffle_weight(shuffled, (rows, columns), is_guinterleave=True, gate_up=gate_up), x)


def test_padding():
    x = numbered(16, 96, dtype=torch.int8)
    shuffled = aiter_like.shuffle_weight(x, pad_k_to=128)
    assert shuffled.shape == (16, 128) and (shuffled.aiter_original_k, shuffled.aiter_padded_k) == (96, 128)
    assert torch.equal(aiter_like.unshuffle_weight(shuffled), torch.nn.functional.pad(x, (0, 32)))
    assert aiter_like.shuffle_weight(x, pad_k_to=32).aiter_padded_k == 96
    assert not hasattr(aiter_like.shuffle_weight(x), "aiter_padded_k")


def test_strided_and_empty():
    x = numbered(2, 64, 32, dtype=torch.int8)
    assert torch.equal(aiter_like.shuffle_weight(x.transpose(1, 2).contiguous().transpose(1, 2)),
                       aiter_like.shuffle_weight(x))
    assert aiter_like.shuffle_weight(x[:0]).shape == (0, 64, 32)


def test_scales_in_tiles():
    x = numbered(300, 11, dtype=torch.uint8)
    shuffled = aiter_like.shuffle_scale(x)
    assert shuffled.shape == (512, 16) and shuffled.dtype == torch.uint8
    flat = shuffled.view(-1)
    for m, g in itertools.product(range(512), range(16)):
        place = m // 32 * 32 * 16 + g // 8 * 256 + g % 4 * 64 + m % 16 * 4 + g % 8 // 4 * 2 + m % 32 // 16
        assert flat[place] == (x[m, g] if m < 300 and g < 11 else 0x7F), (m, g)
    block = torch.rand(3, 4)
    assert aiter_like.shuffle_scale(block) is block and aiter_like.shuffle_scale(None) is None


@pytest.mark.parametrize("gate_up", (False, True))
def test_scales_of_experts_in_interleaved_tiles(gate_up):
    """Two experts of 64 rows: the two sixteens of a tile follow each other, or come from an expert's halves."""
    x = numbered(128, 11, dtype=torch.uint8)
    flat = aiter_like.shuffle_scale(x, 2, True, gate_up).view(-1)
    assert flat.numel() == 128 * 16
    for m, g in itertools.product(range(128), range(16)):
        expert, row = divmod(m, 64)
        tile, half = (row % 32 // 16, row // 32) if gate_up else (row // 32, row % 32 // 16)
        place = (expert * 2 + tile) * 512 + g // 8 * 256 + g % 4 * 64 + m % 16 * 4 + g % 8 // 4 * 2 + half
        assert flat[place] == (x[m, g] if g < 11 else 0x7F), (m, g)


def test_bad_input_is_named():
    x = numbered(32, 64, dtype=torch.int8)
    shuffle, packed = aiter_like.shuffle_weight, torch.zeros(3, dtype=torch.int8)
    for message, kind, function, args in (
            ("x must be a tensor", TypeError, shuffle, ([1],)),
            (r"x must be \[..., N, K\] of 1, 2 or 4 bytes", ValueError, shuffle, (x.long(),)),
            (r"x must be \[..., N, K\]", ValueError, shuffle, (x[0],)),
            ("N must be a multiple of 16 and K of 32", ValueError, shuffle, (x[:20],)),
            ("N must be a multiple of 16 and K of 32", ValueError, shuffle, (x[:, :40],)),
            ("layout must be an integer", TypeError, shuffle, (x, (16, 16.0))),
            ("layout must have two numbers", ValueError, shuffle, (x, (16,))),
            ("use_int4 must be True or False", TypeError, shuffle, (x, (16, 16), 1)),
            ("gate_up must be False unless", ValueError, shuffle, (x, (16, 16), False, False, True)),
            (r"with is_guinterleave x must be \[E, N, K\]", ValueError, shuffle, (x, (16, 16), False, True)),
            ("layout must have a divisor of 64 rows", ValueError, shuffle, (x[None], (48, 16), False, True)),
            ("pad_k_to must be between 0", ValueError, shuffle, (x, (16, 16), False, False, False, -1)),
            ("src must have 2 dimensions", ValueError, aiter_like.shuffle_scale, (packed,)),
            ("src must have 1 byte", TypeError, aiter_like.shuffle_scale, (x.half(),)),
            ("gate_up and experts_cnt must not be given unless", ValueError, aiter_like.shuffle_scale, (x, 4)),
            ("experts_cnt must be an integer", TypeError, aiter_like.shuffle_scale, (x, None, True)),
            ("a multiple of 32 rows for each of 2 experts", ValueError, aiter_like.shuffle_scale, (x, 2, True))):
        with pytest.raises(kind, match=message):
            function(*args)
