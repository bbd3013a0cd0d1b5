# SPDX-License-Identifier: MIT
"""AITER's Triton functions that turn queries and keys and put them together or into caches, against float64."""

import pytest
import torch
from seeded import numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.rope import cache as aiter_rope_cache

FP8 = torch.float8_e4m3fnuz
TOKENS, HEADS, KV_HEADS, RANK, PE, SLOTS = 5, 4, 2, 32, 16, 11


@pytest.fixture
def parts():
    return (numbers(TOKENS, HEADS, RANK), numbers(TOKENS, HEADS, PE, seed=1), numbers(TOKENS, KV_HEADS, RANK, seed=2),
            numbers(TOKENS, KV_HEADS, PE, seed=3))


def turned(x, angles, is_neox):
    """`x` [tokens, heads, pe] by `angles` [tokens, pe / 2], or [tokens, pe] of each element."""
    x, angles = x.double(), angles.double()[:, None]
    if angles.shape[-1] != x.shape[-1]:
        angles = torch.cat((angles, angles), -1) if is_neox else angles.repeat_interleave(2, -1)
    if is_neox:
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()
    both = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * angles.cos() + both * angles.sin()


def close(got, expected, rtol=1e-2):
    torch.testing.assert_close(got.double(), expected, rtol=rtol, atol=1e-6)


def tables(is_half, seed=4):
    angles = numbers(9, PE // 2 if is_half else PE, seed=seed).float()
    return angles, angles.cos()[:, None, None], angles.sin()[:, None, None]


@pytest.mark.parametrize("is_half", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, FP8))
def test_with_the_cache(simulated, parts, dtype, is_half):
    """Two tokens of the keys have no queries: they are turned already. A token has no slot."""
    q_nope, q_pe, k_nope, k_pe = parts
    q_nope, q_pe, count = q_nope[:3], q_pe[:3], 3
    angles, cos, sin = tables(is_half)
    pos, slots = torch.tensor([8, 0, 3]), torch.tensor([10, -1, 0, 4, 7])
    cache = torch.zeros(SLOTS, KV_HEADS, RANK + PE).to(dtype)
    scale = torch.tensor(0.25)
    q_out, decode, k_out, zeros = aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(
        q_nope, q_pe, k_nope, k_pe, cache, slots, pos, cos, sin, scale, True, num_decode_toks_for_zeros=2)
    q, k = turned(q_pe, angles[pos], True), k_pe.double()
    k = torch.cat((turned(k_pe[:count], angles[pos], True), k[count:]))
    assert torch.equal(q_out[..., :RANK], q_nope)
    close(q_out[..., RANK:], q)
    close(decode, q[:2])
    close(k_out, k)
    assert zeros.shape == (2, HEADS, RANK) and not zeros.any()
    is_narrow = dtype == FP8
    expected = torch.zeros(cache.shape, dtype=torch.float64)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot] = torch.cat((k_nope[token].double(), k[token]), -1)
    torch.testing.assert_close(cache.double() * (0.25 if is_narrow else 1), expected, rtol=0.07 if is_narrow else 0.01,
                               atol=0.01)


def test_given_tensors(simulated, parts):
    angles, cos, sin = tables(True)
    pos, slots, cache = torch.arange(TOKENS), torch.arange(TOKENS), torch.zeros(SLOTS, KV_HEADS, RANK + PE).to(FP8)
    q_out, decode = torch.zeros(TOKENS, HEADS, RANK + PE).to(FP8), torch.zeros(1, HEADS, PE).bfloat16()
    k_out = torch.zeros(TOKENS, KV_HEADS, PE).bfloat16()
    found = aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(
        *parts, cache, slots, pos, cos, sin, 4.0, False, 1, False, q_out, decode, k_out)
    assert all(got is given for got, given in zip(found, (q_out, decode, k_out)))
    torch.testing.assert_close(q_out[..., RANK:].double(), turned(parts[1], angles[pos], False), rtol=0.07, atol=0.01)
    torch.testing.assert_close(cache[:TOKENS, :, :RANK].double(), parts[2].double(), rtol=0.07, atol=0.01)
    call = (*parts, cache, slots, pos, cos, sin, None, False)
    with pytest.raises(UnsupportedError, match="fused_qk_rope_cat_and_cache_mla: no backend supports shuffled_kv"):
        aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(*call, shuffled_kv_cache=True)
    with pytest.raises(ValueError, match="slot_mapping must have 5 elements, one for each query, to 5, got 4"):
        aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(*call[:5], slots[1:], *call[6:])
    with pytest.raises(ValueError, match="num_decode_toks_for_zeros must be"):
        aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(*call, num_decode_toks_for_zeros=6)
    with pytest.raises(ValueError, match="q_out must have shape"):
        aiter_rope_cache.fused_qk_rope_cat_and_cache_mla(*call, q_out=k_out)


def test_with_a_product(simulated, parts):
    """Of one group of columns: the product's rows are quantised to fp8."""
    _, q_pe, k_nope, k_pe = parts
    angles, cos, sin = tables(True)
    pos, slots, cache = torch.arange(TOKENS), torch.arange(TOKENS), torch.zeros(SLOTS, KV_HEADS, RANK + PE).bfloat16()
    q, weights, scale = numbers(HEADS, TOKENS, 64), numbers(HEADS, RANK, 64, seed=6).to(FP8), torch.tensor([0.5])
    q_out, decode, k_out, zeros = aiter_rope_cache.fused_fp8_bmm_rope_cat_and_cache_mla(
        q, weights, scale, q_pe, k_nope, k_pe, cache, slots, pos, cos, sin, num_decode_toks_for_zeros=1)
    latent = torch.einsum("htk,hnk->thn", q.double(), weights.double()) * 0.5
    assert ((q_out[..., :RANK].double() - latent).abs() <= 0.03 * latent.abs().max()).all()
    close(q_out[..., RANK:], turned(q_pe, angles[pos], False))
    close(cache[:TOKENS], torch.cat((k_nope.double(), turned(k_pe, angles[pos], False)), -1))
    close(k_out, turned(k_pe, angles[pos], False))
    assert decode.shape == (1, HEADS, PE) and zeros.shape == (1, HEADS, RANK)
