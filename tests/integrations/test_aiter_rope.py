# SPDX-License-Identifier: MIT
"""The forms of AITER's Triton functions of rotary position embedding against the formula in float64."""

from __future__ import annotations

import inspect

import pytest
import torch

from aiter_like.integrations.aiter.rope import rope as aiter_rope

TOKENS, BATCH, HEADS, DIM = 6, 2, 3, 16


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(x, angles, is_neighbours=False, is_backward=False):
    """`x` [..., heads, dim] by `angles` [..., dim / 2]; the gradient turns the other way."""
    x, angles = x.double(), angles.double()[..., None, :] * (-1 if is_backward else 1)
    first, second = (x[..., 0::2], x[..., 1::2]) if is_neighbours else x.chunk(2, -1)
    both = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
    return torch.stack(both, -1).flatten(-2) if is_neighbours else torch.cat(both, -1)


def plain(x, cos, sin, is_backward=False):
    """Whole heads of halves in arithmetic of the dtype of `x`, whose products are rounded."""
    (first, second), cos, sin = x.chunk(2, -1), cos[:, None], sin[:, None] * (-1 if is_backward else 1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def check_form(name, tensors, tables, expected, is_two=False):
    """In place the result is the tensor itself; transposition is refused where the result lies as the input does."""
    function = getattr(aiter_rope, name)
    assert list(inspect.signature(function).parameters)[-4:] == [
        "rotate_style", "reuse_freqs_front_part", "nope_first", "transpose_output"]
    found = function(*tensors, *tables, 0, True, nope_first=False, transpose_output=False)
    for got, one, own in zip(found if is_two else (found,), expected, tensors, strict=True):
        close(got, one)
        assert (got is own) == name.endswith("_inplace")
    if "thd" in name or "2d" in name or name.endswith("_inplace"):
        with pytest.raises(ValueError, match=f"{name}: transpose_output must be False, got True"):
            function(*tensors, *tables, 0, True, False, True)
    else:
        transposed = function(*tensors, *tables, 0, True, False, True)
        close(transposed, expected[0])
        assert transposed.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("kind", ("fwd", "fwd_inplace", "bwd"))
@pytest.mark.parametrize("form", ("rope", "rope_cached", "rope_cached_positions", "rope_cached_positions_offsets",
                                  "rope_thd"))
def test_one_tensor(simulated, form, kind):
    x, angles = numbers(TOKENS, BATCH, HEADS, DIM), numbers(TOKENS, 1, 1, DIM // 2, seed=1)
    rows, tables = torch.arange(TOKENS)[:, None].expand(-1, BATCH), [angles]
    if "cached" in form:
        tables = [angles.cos(), angles.sin()]
    if "positions" in form:
        rows = torch.tensor([[3, 0], [1, 1], [2, 5], [0, 4], [4, 2], [3, 3]])
        tables.append(rows - 1 if "offsets" in form else rows)
    if "offsets" in form:
        tables.append(torch.ones_like(rows))
    if form == "rope_thd":
        x, rows, tables = x[:, 0].contiguous(), torch.tensor([0, 1, 0, 1, 2, 3]), [torch.tensor([0, 2, 6]), angles]
    expected = turned(x, angles[:, 0, 0][rows], is_backward=kind == "bwd")
    check_form(f"{form}_{kind}", [x], tables, [expected])


@pytest.mark.parametrize("kind", ("fwd", "bwd"))
@pytest.mark.parametrize("form", ("rope_cached_thd_positions_2c", "rope_cached_thd_positions_offsets_2c"))
def test_two_tensors_of_tokens(simulated, form, kind):
    x, y, angles = numbers(TOKENS, HEADS, DIM), numbers(TOKENS, 1, DIM, seed=1), numbers(9, DIM // 2, seed=2)
    rows = torch.tensor([8, 0, 3, 3, 7, 1])
    indices = [rows, torch.zeros_like(rows)] if "offsets" in form else [rows]
    tables = [angles.cos(), angles.sin(), *indices]
    expected = [turned(each, angles[rows], is_backward=kind == "bwd") for each in (x, y)]
    short = [each.bfloat16() for each in (x, y, *tables[:2])]
    check_form(f"{form}_{kind}", [x, y], tables, expected, is_two=True)
    function = getattr(aiter_rope, f"{form}_{kind}")
    with pytest.raises(ValueError, match=f"{form}_{kind}: positions must have shape"):
        function(x, y, *tables[:2], rows[1:], *indices[1:], 0, True, False)
    with pytest.raises(ValueError, match=f"{form}_{kind}: x must have 3 dimensions"):
        function(x[None], y, *tables, 0, True, False)
    rounded = [plain(each, *(table[rows] for table in short[2:]), kind == "bwd") for each in short[:2]]
    assert all(map(torch.equal, function(*short, *indices, 0, True, False), rounded))


@pytest.mark.parametrize("form", ("rope_cached_thd_positions_2c", "rope_cached_thd_positions_offsets_2c"))
def test_two_tensors_of_tokens_in_place(simulated, form):
    """In fp32 by the formula, in 16 bits to the bit; what is returned is what was given."""
    angles, rows = numbers(9, DIM // 2, seed=2), torch.tensor([8, 0, 3, 3, 7, 1])
    indices = [rows - 1, torch.ones_like(rows)] if "offsets" in form else [rows]
    indices[0] = indices[0].where(rows > 0, -1 if "offsets" in form else 0)
    function = getattr(aiter_rope, f"{form}_fwd_inplace")
    x, y = numbers(TOKENS, HEADS, DIM), numbers(TOKENS, 1, DIM, seed=1)
    given, short = [x.clone(), y.clone()], [x.bfloat16(), y.bfloat16()]
    found = function(*given, angles.cos(), angles.sin(), *indices, 0, True, False)
    for got, own, one in zip(found, given, (x, y), strict=True):
        assert got is own
        close(own, turned(one, angles[rows]))
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    expected = [plain(each, cos[rows], sin[rows]) for each in short]
    found = function(*short, cos, sin, *indices, 0, True, False, transpose_output=False)
    assert all(got is own and torch.equal(own, one) for got, own, one in zip(found, short, expected, strict=True))
    with pytest.raises(ValueError, match=f"{form}_fwd_inplace: transpose_output must be False"):
        function(*short, cos, sin, *indices, 0, True, False, True)


@pytest.mark.parametrize("is_neox", (True, False))
def test_packed_projection(simulated, is_neox):
    """In fp32 by the formula, in 16 bits to the bit."""
    qkv, angles = numbers(TOKENS, (HEADS + 2) * DIM), numbers(9, DIM // 2, seed=2)
    rows, offsets = torch.tensor([7, 0, 3, 3, 6, 1]), torch.tensor([1, 0, 2, 0, 1, 5])
    heads, tables = qkv.view(TOKENS, HEADS + 2, DIM), (angles.cos(), angles.sin())
    for offset in (None, offsets):
        at = rows if offset is None else rows + offset
        found = aiter_rope.fused_qkv_split_qk_rope(qkv, *tables, rows, HEADS, 1, DIM, is_neox, offset)
        for got, one in zip(found[:2], heads.split((HEADS, 1, 1), 1), strict=False):
            close(got, turned(one, angles[at], not is_neox))
        assert torch.equal(found[2], heads[:, -1:]) and all(each.is_contiguous() for each in found)
        short = [each.bfloat16() for each in (qkv, *tables)]
        found = aiter_rope.fused_qkv_split_qk_rope(*short, rows, HEADS, 1, DIM, is_neox, offset)
        if is_neox:
            assert torch.equal(torch.cat(found[:2], 1), plain(heads[:, :-1].bfloat16(), short[1][at], short[2][at]))
        assert torch.equal(found[2], heads[:, -1:].bfloat16())
    with pytest.raises(ValueError, match="fused_qkv_split_qk_rope: qkv must have shape"):
        aiter_rope.fused_qkv_split_qk_rope(qkv, *tables, rows, HEADS, 2, DIM)


@pytest.mark.parametrize("name", ("rope_fwd_2d", "rope_fwd_2d_inplace"))
def test_images(simulated, name):
    height, width = 2, 3
    x, rows, columns = numbers(1, height * width, HEADS, DIM), *(numbers(size, DIM // 4, seed=size) for size in (2, 3))
    tables = [one for each in (rows, columns) for one in (each.cos()[None, :, None], each.sin()[None, :, None])]
    at = torch.arange(height * width)
    halves = x.chunk(2, -1)
    expected = torch.cat((turned(halves[0][0], rows[at // width]), turned(halves[1][0], columns[at % width])), -1)[None]
    check_form(name, [x], [*tables, height, width], [expected])


@pytest.mark.parametrize("rank", (0, 1))
def test_videos(simulated, rank):
    """Each video with a grid of its own, whose tokens go on in the next rank; what is behind it stays."""
    grids, tokens, pairs = torch.tensor([[2, 2, 3], [1, 3, 2]]), 7, DIM // 2
    angles, x = numbers(4, pairs, seed=3), numbers(2, tokens, HEADS, DIM)
    freqs = torch.polar(torch.ones_like(angles), angles)
    third = pairs // 3
    parts = angles.split((pairs - 2 * third, third, third), 1)
    expected = x.double()
    for video, (frames, rows, columns) in enumerate(grids.tolist()):
        for at in range(tokens):
            token = rank * tokens + at
            if token < frames * rows * columns:
                place = token // (rows * columns), token // columns % rows, token % columns
                own = torch.cat([part[row] for part, row in zip(parts, place, strict=True)])
                expected[video, at] = turned(x[video, at], own, is_neighbours=True)
    found = aiter_rope.rope_fwd_3d(x, grids, freqs, 2, rank)
    close(found, expected)
    assert found.dtype == aiter_rope.rope_fwd_3d(x.bfloat16(), grids, freqs, 2, rank).dtype == torch.float32
    with pytest.raises(ValueError, match="rope_fwd_3d: sp_rank must be"):
        aiter_rope.rope_fwd_3d(x, grids, freqs, 2, 2)
    with pytest.raises(ValueError, match="rope_fwd_3d: grid_sizes must have shape"):
        aiter_rope.rope_fwd_3d(x, grids[:1], freqs, 2, 0)


@pytest.mark.parametrize("kind", ("fwd", "fwd_inplace", "bwd"))
@pytest.mark.parametrize("form", ("rope_cached_positions", "rope_cached_positions_offsets"))
def test_indices_that_are_none(simulated, form, kind):
    """Offsets are then zeros and positions the numbers of the tokens, as AITER's functions have it."""
    angles, has_offsets = numbers(9, 1, 1, DIM // 2, seed=2), "offsets" in form
    rows = torch.arange(TOKENS)[:, None].expand(-1, BATCH).contiguous()

    def call(*indices):
        x = numbers(TOKENS, BATCH, HEADS, DIM)
        return getattr(aiter_rope, f"{form}_{kind}")(x, angles.cos(), angles.sin(), *indices, 0, True, False)

    zeros = [torch.zeros_like(rows)] * has_offsets
    assert torch.equal(call(*[None] * (1 + has_offsets)), call(rows, *zeros))
    assert not has_offsets or torch.equal(call(rows.flip(0), None), call(rows.flip(0), *zeros))
    if has_offsets:
        with pytest.raises(TypeError, match="positions must be a tensor, got NoneType"):
            call(None, *zeros)


@pytest.mark.parametrize("kind", ("fwd", "fwd_inplace", "bwd"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_offsets_of_tokens_that_are_none(simulated, dtype, kind):
    """As vLLM calls it; in 16 bits products are rounded."""
    angles, rows = numbers(9, DIM // 2, seed=2), torch.tensor([8, 0, 3, 3, 7, 1])
    tables = angles.cos().to(dtype), angles.sin().to(dtype)
    found = []
    for name, indices in (("positions_offsets", (rows, None)), ("positions", (rows,))):
        x, y = numbers(TOKENS, HEADS, DIM).to(dtype), numbers(TOKENS, 1, DIM, seed=1).to(dtype)
        found.append(getattr(aiter_rope, f"rope_cached_thd_{name}_2c_{kind}")(x, y, *tables, *indices, 0, True, False))
    assert all(map(torch.equal, *found))
