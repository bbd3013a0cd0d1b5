# SPDX-License-Identifier: MIT
"""AITER's gather_kv_b_proj against float64."""

import pytest
import torch
from seeded import wide_numbers as numbers

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention.gather import gather_kv_b_proj

FP8, BF16 = torch.float8_e4m3fnuz, torch.bfloat16
LATENT, PE, HEADS, NOPE, V_DIM, PAGE = 128, 16, 2, 48, 16, 4
ROWS = HEADS * (NOPE + V_DIM)
LENGTHS = (6, 1, 9)


def cache_of(dtype):
    """The cache, pages and starts, and the rows of its tokens."""
    counts = [-(-length // PAGE) for length in LENGTHS]
    pages = torch.randperm(9, generator=torch.Generator().manual_seed(1))[:sum(counts)].int()
    starts = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    rows = [int(pages[indptr[one] + at // PAGE]) * PAGE + at % PAGE
            for one, length in enumerate(LENGTHS) for at in range(length)]
    cache = numbers(9, PAGE, LATENT + PE).to(dtype)
    return cache, indptr, pages, starts, cache.flatten(0, 1)[rows].double()


@pytest.mark.parametrize("is_shuffled", (False, True))
@pytest.mark.parametrize("kind", ("none", "rows", "column", "blocks"))
@pytest.mark.parametrize("dtype", (BF16, FP8))
@pytest.mark.parametrize("cache_dtype", (BF16, FP8))
def test_keys_and_values(simulated, cache_dtype, dtype, kind, is_shuffled):
    cache, indptr, pages, starts, found = cache_of(cache_dtype)
    weights, k_scale = (numbers(ROWS, LATENT, seed=2) / 8).to(dtype), torch.tensor([0.75])
    scale = {"none": None, "rows": torch.rand(ROWS) + 0.5, "column": (torch.rand(ROWS, 1) + 0.5).bfloat16(),
             "blocks": torch.rand(1, 1) + 0.5}[kind]
    found = found * (0.75 if cache_dtype == FP8 else 1)
    product = found[:, :LATENT] @ weights.double().t() * (1 if scale is None else scale.double().reshape(1, -1))
    tokens = len(found)
    keys, values = product.view(tokens, HEADS, -1).split((NOPE, V_DIM), 2)
    k_prefix, v_prefix = torch.zeros(tokens, HEADS, NOPE + PE).bfloat16(), torch.zeros(tokens, HEADS, V_DIM).bfloat16()
    gather_kv_b_proj(cache, k_scale, indptr, pages, starts, aiter_like.shuffle_weight(weights) if is_shuffled
                     else weights, scale, k_prefix, v_prefix, is_shuffled)
    for got, expected in ((k_prefix[..., :NOPE], keys), (v_prefix, values)):
        torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.03)
    torch.testing.assert_close(k_prefix[..., NOPE:].double(), found[:, None, LATENT:].expand(-1, HEADS, -1), rtol=2**-8,
                               atol=0)


def test_names_what_does_not_fit():
    cache, indptr, pages, starts, found = cache_of(BF16)
    weights, tokens = numbers(ROWS, LATENT).bfloat16(), len(found)
    k_prefix, v_prefix = torch.zeros(tokens, HEADS, NOPE + PE), torch.zeros(tokens, HEADS, V_DIM)
    for message, error, args in (
            ("kv_proj_weight must have 2 · 64 rows", ValueError, (starts, weights[2:], None, k_prefix, v_prefix)),
            ("kv_proj_scale must have shape", ValueError, (starts, weights, torch.ones(3), k_prefix, v_prefix)),
            ("v_prefix must have shape", ValueError, (starts, weights, None, k_prefix, v_prefix[1:])),
            ("kv_prefix_sum_context_lens must have as many elements", ValueError,
             (starts[1:], weights, None, k_prefix, v_prefix)),
            ("kv_proj_weight must have dtype", TypeError, (starts, weights.float(), None, k_prefix, v_prefix))):
        with pytest.raises(error, match=f"gather_kv_b_proj: {message}"):
            gather_kv_b_proj(cache, None, indptr, pages, *args)
    few = indptr.clone()
    few[1] = 1
    for message, lists in (("kv_indices must name pages from 0 to 8", (indptr, pages.where(pages != pages[-1], 9))),
                           ("kv_indices must name pages", (indptr, pages.where(pages != pages[0], -1))),
                           ("kv_indptr must rise from 0", (indptr + 1, pages)),
                           ("kv_indptr must give each sequence the pages of its tokens", (few, pages))):
        with pytest.raises(ValueError, match=f"gather_kv_b_proj: {message}"):
            gather_kv_b_proj(cache, None, *lists, starts, weights, None, k_prefix, v_prefix)
    with pytest.raises(ValueError, match="gather_kv_b_proj: kv_prefix_sum_context_lens must start at 0, never fall"):
        gather_kv_b_proj(cache, None, indptr, pages, starts + 1, weights, None, k_prefix, v_prefix)
    with pytest.raises(UnsupportedError, match="no backend supports shuffled_kv_cache"):
        gather_kv_b_proj(cache, None, indptr, pages, starts, weights, None, k_prefix, v_prefix, False, True)
