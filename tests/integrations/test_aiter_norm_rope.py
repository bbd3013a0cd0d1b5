# SPDX-License-Identifier: MIT
"""AITER's fusions of norm, rotation, quantisation and cache writes against the formulas in float64."""

import itertools

import pytest
import torch
from seeded import numbers
from torch import Tensor

import aiter_like as aiter
from aiter_like import dtypes
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.quant import quant
from aiter_like.integrations.aiter.rope import norm as aiter_norm_rope

BF16, F32, FP8, EPSILON = torch.bfloat16, torch.float32, torch.float8_e4m3fnuz, 1e-6
pytestmark = pytest.mark.usefixtures("in_torch")


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight.double()


def turned(x: Tensor, cos_sin: Tensor, is_neox: bool) -> Tensor:
    """[…, tokens, heads, head_dim] by a row of `cos_sin` [tokens, rotary_dim] for each token."""
    width = cos_sin.shape[-1]
    cos, sin = cos_sin.double()[:, None].chunk(2, -1)
    x, rest = x.double().split((width, x.shape[-1] - width), -1)
    one, two = x.chunk(2, -1) if is_neox else (x[..., ::2], x[..., 1::2])
    pairs = one * cos - two * sin, two * cos + one * sin
    turned = torch.cat(pairs, -1) if is_neox else torch.stack(pairs, -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def close(got: Tensor, expected: Tensor, rtol: float = 2**-8) -> None:
    torch.testing.assert_close(got.double(), expected.double(), rtol=rtol, atol=rtol / 4)


def dequantised(q: Tensor, scale: Tensor) -> Tensor:
    return q.double() * scale.double()[:, None, :, None]


@pytest.mark.parametrize("is_interleaved", (False, True))
def test_one_stream(is_interleaved):
    q, k, weights, table = numbers(2, 5, 4, 64), numbers(2, 5, 2, 64, seed=1), numbers(2, 64), numbers(5, 64, dtype=F32)
    sizes = 2, 5, 4, 2, 64
    outs = torch.empty_like(q), torch.empty_like(k)
    aiter.fused_qk_norm_rope_1way(q, k, *weights, table, *sizes, is_interleaved, EPSILON, *outs)
    expected = [turned(normed(x, weight), table, not is_interleaved) for x, weight in zip((q, k), weights)]
    for out, wanted in zip(outs, expected):
        close(out, wanted)
    q8, k8, q_scale, k_scale, q_kept, k_kept = aiter.fused_qk_norm_rope_1way_fp8_perhead_quant(
        q, k, *weights, table, *sizes, is_interleaved, EPSILON, out_q=outs[0])
    assert q_kept.data_ptr() == outs[0].data_ptr() and torch.equal(k_kept, outs[1])
    for q_of, scale, out in ((q8, q_scale, outs[0]), (k8, k_scale, outs[1])):
        torch.testing.assert_close(scale, out.float().abs().amax((1, 3)) / 240)
        close(dequantised(q_of, scale), out, rtol=2**-4)
    assert aiter.fused_qk_norm_rope_1way_fp8_perhead_quant(q, k, *weights, table, *sizes, is_interleaved,
                                                           EPSILON)[4].shape == (0,)
    with pytest.raises(ValueError, match=r"1way: cos_sin must be a view of \(5, 64\), got shape \(4, 64\)"):
        aiter.fused_qk_norm_rope_1way(q, k, *weights, table[1:], *sizes, is_interleaved, EPSILON, *outs)


def test_two_streams_follow_one_another():
    counts, total = (3, 4), 7
    q, k = ([numbers(2, count, heads, 64, seed=seed) for count in counts] for seed, heads in ((0, 4), (1, 2)))
    weights, tables = numbers(4, 64), [numbers(count, 64, dtype=F32) for count in counts]
    call = (q[0], k[0], q[1], k[1], *weights, *tables, 2, *counts, 4, 2, 64, False, EPSILON)
    outs = numbers(2, total, 4, 64), numbers(2, total, 2, 64)
    aiter.fused_qk_norm_rope_2way(*call, *outs)
    for x, own, out in ((q, weights[::2], outs[0]), (k, weights[1::2], outs[1])):
        close(out, torch.cat([turned(normed(x[i], own[i]), tables[i], True) for i in (0, 1)], 1))
    quantised = aiter.fused_qk_norm_rope_2way_fp8_perhead_quant(*call)
    close(dequantised(quantised[0], quantised[2]), outs[0], rtol=2**-4)
    close(dequantised(quantised[1], quantised[3]), outs[1], rtol=2**-4)


@pytest.mark.parametrize("head_dim", (64, 48))
def test_scales_of_heads(head_dim):
    """Heads that are blocks of block_quant, and others."""
    v = numbers(2, 5, 3, head_dim)
    for q, scale in (aiter.v_1way_per_head_fp8_quant(v), aiter.v_2way_per_head_fp8_quant(v[:, :2], v[:, 2:])):
        assert q.shape == v.shape and q.dtype == FP8
        torch.testing.assert_close(scale, v.float().abs().amax((1, 3)) / 240)
        close(dequantised(q, scale), v, rtol=2**-4)


def caches(is_fp8: bool, blocks: int = 4, page: int = 16) -> tuple[Tensor, Tensor]:
    """Shuffled ones of 2 heads of 64."""
    x, dtype = (16, FP8) if is_fp8 else (8, BF16)
    shapes = (blocks, 2, 64 // x, page, x), (blocks, 2, page // x, 64, x)
    return tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


def rows_of(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """[slots, heads, head_dim] of K and of V."""
    keys, values = keys.float().permute(0, 3, 1, 2, 4).flatten(3), values.float().permute(0, 2, 4, 1, 3)
    return keys.flatten(0, 1), values.flatten(0, 2)


@pytest.mark.parametrize("form", ("auto block", "fp8 block", "auto token", "fp8 token", "fp8 token columns"))
def test_norm_rotation_and_cache(form):
    is_fp8, tokens, slots = "fp8" in form, 6, torch.tensor([3, 4, 5, 33, 34, 35])
    qkv, weights, table = numbers(tokens, 8, 64), numbers(2, 64), numbers(9, 64)
    positions = torch.tensor([0, 8, 2, 1, 7, 3])
    expected = [turned(normed(x, weight), table[positions], True)
                for x, weight in zip(qkv.split((4, 2, 2), 1)[:2], weights)]
    v = qkv[:, 6:].clone()
    keys, values = caches(is_fp8)
    kind = "fp8_e4m3" if is_fp8 else "auto"
    shared = EPSILON, *weights, table, True, positions
    if "block" in form:
        made = torch.zeros(2, 4, 2)
        aiter.fused_qk_norm_rope_cache_block_quant_shuffle(qkv.view(tokens, -1), 4, 2, 2, 64, *shared, keys, values,
                                                           slots, torch.tensor([0, 3, 6]), kind, *made)
        scales = made[:, :, None].expand(2, 4, 16, 2).flatten(1, 2)[..., None]  # [K and V, slots, heads, 1]
    else:
        made = torch.zeros(2, 4, 2, 16)
        given = values.transpose(2, 3).flatten(3).contiguous() if "columns" in form else values
        aiter.fused_qk_norm_rope_cache_quant_shuffle(*qkv.split((4, 2, 2), 1), 4, 2, 2, 64, *shared, keys, given, slots,
                                                     kind, *made)
        values = given.unflatten(3, (-1, values.shape[4])).transpose(2, 3) if "columns" in form else given
        scales = made.transpose(2, 3).flatten(1, 2)[..., None]
    close(qkv[:, :4], expected[0])
    close(qkv[:, 4:6], expected[1])
    for rows, scale, wanted in zip(rows_of(keys, values), scales, (expected[1], v)):
        close(rows[slots] * (scale[slots] if is_fp8 else 1), wanted, rtol=2**-4 if is_fp8 else 2**-8)
        assert rows.count_nonzero() <= tokens * 128


@pytest.mark.parametrize("is_interleaved, is_fp8", tuple(itertools.product((False, True), repeat=2)))
def test_three_positions(is_interleaved, is_fp8):
    """A token's pairs turn by its time, height and width; results may be what the cache holds."""
    tokens, section, rotary_dim, slots = 5, [6, 5, 5], 32, torch.tensor([40, 1, 2, 17, 5])
    qkv, weights, table = numbers(tokens, 8, 64), numbers(2, 64), numbers(9, rotary_dim)
    positions = torch.randint(0, 9, (3, tokens), generator=torch.Generator().manual_seed(0))
    axes = [0] * 6 + [1] * 5 + [2] * 5 if not is_interleaved else [0, 1, 2] * 5 + [0]
    own = torch.stack([table[positions[axis], [pair]] for pair, axis in enumerate(axes)] +
                      [table[positions[axis], [16 + pair]] for pair, axis in enumerate(axes)], -1)
    q, k = (turned(normed(x, weight + 1), own, True) for x, weight in zip(qkv.split((4, 2, 2), 1)[:2], weights))
    keys, values = caches(is_fp8)
    q_out = torch.empty(tokens, 4, 64, dtype=BF16)
    k_out, v_out = torch.empty(2, tokens, 2, 64, dtype=keys.dtype)
    call = (qkv, *weights, table, positions, tokens, 4, 2, 2, 64, True, section, is_interleaved, EPSILON, q_out, keys,
            values, slots, torch.tensor(0.5), torch.tensor(2.0), k_out, v_out, True, True, 16, keys.shape[-1],
            rotary_dim)
    aiter.fused_qk_norm_mrope_3d_cache_pts_quant_shuffle(*call, gemma_norm=True)
    close(q_out, q)
    scales = (0.5, 2.0) if is_fp8 else (1.0, 1.0)
    for rows, out, scale, wanted in zip(rows_of(keys, values), (k_out, v_out), scales, (k, qkv[:, 6:])):
        assert torch.equal(rows[slots], out.float())
        close(out.double() * scale, wanted, rtol=2**-4)
    with pytest.raises(ValueError, match="mrope_section_ must be three numbers whose sum is 16"):
        aiter.fused_qk_norm_mrope_3d_cache_pts_quant_shuffle(*call[:11], [6, 5, 4], *call[12:])


def test_norms_over_all_heads():
    qkv, weights, table = numbers(5, 8 * 64), [numbers(4 * 64, dtype=F32), numbers(2 * 64, dtype=F32)], numbers(9, 32)
    positions = torch.tensor([8, 0, 1, 5, 5])
    outs = aiter.minimax_qk_norm_rope(qkv, *weights, table, positions, num_heads_q=4, num_heads_k=2, head_dim=64,
                                      rotary_dim=32, eps=EPSILON, is_neox_style=False)
    q, k, v = qkv.split((256, 128, 128), 1)
    for x, weight, out in ((q, weights[0], outs[0]), (k, weights[1], outs[1])):
        close(out.view(5, -1, 64), turned(normed(x, weight).view(5, -1, 64), table[positions], False), rtol=2**-5)
    assert torch.equal(outs[2], v)


@pytest.mark.parametrize("transpose_scale", (False, True))
def test_gated_norms(transpose_scale):
    x, z, weight = numbers(5, 3, 128), numbers(5, 3, 128, seed=1), numbers(128)
    expected = normed(x, weight) * torch.nn.functional.silu(z.double())
    out, scale = torch.empty(5, 3 * 128, dtype=FP8), torch.empty(5, 3)
    quant.gated_rmsnorm_fp8_group_quant(out, scale, x, z, weight, EPSILON, 128, transpose_scale)
    own = scale.view(3, 5).T if transpose_scale else scale
    close(out.view(5, 3, 128).double() * own[..., None], expected, rtol=2**-4)
    torch.testing.assert_close(own, (expected.abs().amax(-1) / 240).float())
    if not transpose_scale:
        quant.gated_rmsnorm_fp8_per_token_quant(out, scale[:, :1].contiguous(), x, z, weight, EPSILON)
        close(out.view(5, 3, 128).double() * expected.abs().amax((1, 2), keepdim=True) / 240, expected, rtol=2**-3)
    with pytest.raises(UnsupportedError, match="group_size must be 128, got 64"):
        quant.gated_rmsnorm_fp8_group_quant(out, scale, x, z, weight, EPSILON, 64)


def close_rows(q: Tensor, scale: Tensor, expected: Tensor) -> None:
    """int8, cut off towards zero: less than a step of its row below, in magnitude."""
    off = expected.abs() - (q.double() * scale).abs()
    assert ((off >= -1e-3 * scale) & (off <= 1.001 * scale)).all()


def smoothed(x: Tensor, factors: Tensor) -> Tensor:
    return x.double() * factors.double()


@pytest.mark.parametrize("order", ("rows", "first rows", "tokens", "slots", "slots of one row", "names"))
def test_smoothed_rows(order):
    """With and without a map of experts; scales lie in the order of the results' rows."""
    name, topk = aiter.smooth_per_token_scaled_quant, 3
    factors = numbers(6, 64, dtype=F32)
    if "rows" in order:
        x, out, scales = numbers(5, 64), torch.empty(5, 64, dtype=torch.int8), torch.empty(5, 1)
        count = torch.tensor([2], dtype=torch.int32) if order == "first rows" else None
        name(out, x, scales, factors[:1], num_rows=count, num_rows_factor=2)
        used = 4 if count is not None else 5
        close_rows(out[:used], scales[:used], smoothed(x, factors[0])[:used])
        return
    experts = torch.tensor([[0, 5, 2], [1, 1, 4], [3, 0, 5], [2, 4, 0]], dtype=torch.int32)
    x = numbers(4, 1, 64).expand(4, topk, 64) if "one row" in order else numbers(4, topk, 64)
    out, scales = torch.empty(4, topk, 64, dtype=torch.int8), torch.empty(4, topk, 1)
    if "slots" in order:
        out = torch.empty(topk, 4, 64, dtype=torch.int8).transpose(0, 1)
    names = torch.tensor([5, -1, 3, 0, 1, 2], dtype=torch.int32) if order == "names" else None
    name(out, x, scales, factors, experts, smooth_scale_map_hash=names)
    own = experts if names is None else names[experts]
    expected = torch.where((own >= 0)[..., None], smoothed(x, factors[own]), 0.0)
    found = scales.view(topk, 4, 1).transpose(0, 1) if "slots" in order else scales
    close_rows(out, found, expected)


def test_what_does_not_fit_says_so():
    x, scales, factors = numbers(4, 64), torch.empty(4, 1), numbers(1, 64, dtype=F32)
    with pytest.raises(UnsupportedError, match="fp8 and int8 are served, got torch.uint8"):
        aiter.smooth_per_token_scaled_quant(torch.empty(4, 32, dtype=torch.uint8), x, scales, factors)
    with pytest.raises(ValueError, match="scales must be dense, with an element for each of 4 rows"):
        aiter.smooth_per_token_scaled_quant(torch.empty(4, 64, dtype=torch.int8), x, scales[:3], factors)
    with pytest.raises(ValueError, match=r"smooth_scale_map must have shape \(4, 1\)"):
        aiter.smooth_per_token_scaled_quant(torch.empty(4, 64, dtype=torch.int8), x, scales, factors,
                                            torch.zeros(3, dtype=torch.int32))


def test_experts_rows_of_three_dimensions():
    """As AITER's callers have them; `aiter_like.moe_smoothquant_fwd` takes two."""
    x, factors, ids = numbers(5, 1, 64), numbers(4, 64, dtype=F32), torch.tensor([[0, 3]] * 5, dtype=torch.int32)
    out, scale = torch.empty(5, 2, 64, dtype=dtypes.fp8_of("gfx942")), torch.empty(5, 2, 1)
    quant.moe_smoothquant_fwd(out, x, factors, ids, scale)
    rows = smoothed(x[:, 0], factors[ids.T])  # [slot, token, K]
    close(out.view(2, 5, 64).double() * scale.view(2, 5, 1), rows, rtol=2**-4)
    assert aiter_norm_rope.minimax_qk_norm_rope is aiter.minimax_qk_norm_rope
