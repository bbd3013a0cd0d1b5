# SPDX-License-Identifier: MIT
"""AITER's names of sparse attention against the formula in float64: what they write, and what they leave."""

import math

import pytest
import torch
from seeded import wide_numbers as numbers

import aiter_like as aiter
from aiter_like.integrations.aiter.attention import sparse as aiter_sparse

FP8 = torch.float8_e4m3fnuz
HEADS, DIM, PAGE, LEFT = 32, 128, 16, 7.0


def expect(q, k, scale, weights):
    products = torch.einsum("rhd,kd->rhk", q.double(), k.double()).relu()
    return (products * weights.double()[..., None]).sum(1) * scale.double()


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("clean", (True, False))
def test_fp8_mqa_logits(simulated, clean):
    """Rows of the result begin at multiples of 256 elements, as AITER's do."""
    q, k = numbers(5, HEADS, DIM, seed=0).to(FP8), numbers(113, DIM, seed=1).to(FP8)
    scale, weights = numbers(113, seed=2).abs(), numbers(5, HEADS, seed=3)
    starts, ends = torch.tensor([0, 3, 60, 9, 0]).int(), torch.tensor([109, 50, 113, 9, 113]).int()
    logits = aiter_sparse.fp8_mqa_logits(q, k, scale, weights, starts, ends, clean)
    assert logits.shape == (5, 113) and logits.stride() == (256, 1)
    column = torch.arange(113)
    is_seen = (column >= starts[:, None]) & (column < ends[:, None])
    close(logits[is_seen], expect(q, k, scale, weights)[is_seen])
    assert not clean or (logits[~is_seen] == -math.inf).all()
    one = aiter_sparse.fp8_mqa_logits(q, k[:1], scale[0], weights, starts * 0, ends * 0 + 1, clean)
    close(one, expect(q, k[:1], scale[:1], weights))


@pytest.mark.parametrize("preshuffle", (False, True))
def test_paged(simulated, preshuffle):
    """The cache that indexer_k_quant_and_cache writes; columns behind a sequence's keys and max_model_len stay."""
    lengths, next_n = [40, 17], 2
    table = torch.tensor([[4, 0, 2], [1, 3, -1]]).int()
    cache = torch.zeros(5, PAGE, 1, DIM + 4).to(FP8)
    keys, scales = [], []
    for length, pages in zip(lengths, table.long()):
        k = numbers(length, DIM, seed=length).bfloat16()
        slots = pages[torch.arange(length) // PAGE] * PAGE + torch.arange(length) % PAGE
        aiter.indexer_k_quant_and_cache(k, cache.squeeze(2), slots, DIM, "ue8m0", preshuffle)
        largest = k.float().abs().amax(1)
        scales.append(torch.exp2(torch.ceil(torch.log2(largest / 240))))
        keys.append((k.float() / scales[-1][:, None]).to(FP8))
    q, weights = numbers(2, next_n, HEADS, DIM, seed=7).to(FP8), numbers(2 * next_n, HEADS, seed=8)
    logits = torch.full((2 * next_n, 64), LEFT)
    aiter_sparse.deepgemm_fp8_paged_mqa_logits(
        q, cache, weights, logits, torch.tensor(lengths).int(), table, 60, preshuffle, PAGE, ChunkK=64, WavePerEU=5)
    for b, length in enumerate(lengths):
        own = slice(b * next_n, (b + 1) * next_n)
        expected = expect(q[b], keys[b], scales[b], weights[own])
        expected[0, -1] = -math.inf
        close(logits[own, :length], expected)
        assert (logits[own, length:] == LEFT).all()


def test_bad_input_is_named(simulated):
    q, cache = torch.zeros(1, 1, HEADS, DIM).to(FP8), torch.zeros(2, PAGE, 1, DIM + 4).to(FP8)
    rest = torch.zeros(1, HEADS), torch.zeros(1, 20), torch.ones(1).int(), torch.zeros(1, 2).int()
    with pytest.raises(ValueError, match="KVBlockSize must be the 16 tokens of a page of kv_cache, got 1"):
        aiter_sparse.deepgemm_fp8_paged_mqa_logits(q, cache, *rest, 20)
    with pytest.raises(ValueError, match="kv_cache must have 4 dimensions"):
        aiter_sparse.deepgemm_fp8_paged_mqa_logits(q, cache[:, :, 0], *rest, 20, KVBlockSize=PAGE)
    with pytest.raises(ValueError, match="max_model_len must be between"):
        aiter_sparse.deepgemm_fp8_paged_mqa_logits(q, cache, *rest, -1, KVBlockSize=PAGE)
