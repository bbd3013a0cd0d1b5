# SPDX-License-Identifier: MIT
"""AITER's sum of the parts of a decode against the formula in float64, token by token."""

from __future__ import annotations

import pytest
import torch

from aiter_like.integrations.aiter.mla import merge
from aiter_like.integrations.aiter.mla.merge import stage_two

SPLITS, HEADS, WIDTH, MGC = 4, 3, 32, 16


def starts(*counts):
    return torch.tensor([0, *counts]).cumsum(0).int()


def call(**changed):
    """Sequences of one, two and one tokens with 3, 4 and 0 parts; the last token belongs to none."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(5, SPLITS, HEADS, WIDTH, generator=generator)
    sums = torch.randn(5, SPLITS, HEADS, 1, generator=generator)
    parts[0, 3:], sums[0, 3:] = torch.nan, torch.nan  # memory that nobody wrote
    parts[3], sums[3] = torch.nan, torch.nan
    return {"parts": parts, "sums": sums, "out": torch.full((5, HEADS, WIDTH), 7.0, dtype=torch.bfloat16),
            "lse": torch.full((5, HEADS), 7.0), "qo": starts(1, 2, 1), "kv": starts(3 * MGC - 5, 99, 0),
            "last": torch.ones(3, dtype=torch.int32), "splits": starts(4, 4, 4), "valid": None, "page_size": 1,
            "is_page_level": False, "maybe_final": False} | changed


def run(case, grid=(3, HEADS), strides=None, has_lse=True):
    sums, out = case["sums"], case["out"]
    given = strides or (sums.stride(0), sums.stride(2), sums.stride(1), out.stride(0), out.stride(1), HEADS)
    stage_two[grid](case["parts"], sums, out, case["lse"], case["qo"], case["kv"], case["last"], case["splits"],
                    case["valid"], *given, page_size=case["page_size"], KV_INDPTR_IS_PAGE_LEVEL=case["is_page_level"],
                    MAYBE_FINAL_OUT=case["maybe_final"], HAS_FINAL_LSE=has_lse,
                    USE_VALID_SPLIT_COUNT_REDUCE=case["valid"] is not None, BATCH_NUM=3, BLOCK_DV=32, Lv=WIDTH, mgc=MGC,
                    num_warps=1, waves_per_eu=4)


def verify(case, counts):
    run(case)
    for token, count in enumerate(counts):
        if count == 0:
            assert not case["out"][token].any() and (case["lse"][token] == -torch.inf).all()
            continue
        sums = case["sums"][token, :count].double()
        weights = (sums - sums.logsumexp(0)).exp()
        expected = (weights * case["parts"][token, :count].double()).sum(0)
        torch.testing.assert_close(case["out"][token].double(), expected, rtol=2**-8, atol=1e-6)
        torch.testing.assert_close(case["lse"][token].double(), sums.logsumexp(0)[:, 0], rtol=1e-5, atol=1e-5)
    assert (case["out"][len(counts):] == 7).all() and (case["lse"][len(counts):] == 7).all()


def test_parts_by_keys(simulated):
    verify(call(), (3, 4, 4, 0))


def test_parts_by_pages_and_counts(simulated):
    """Two pages of 32 keys, the last one with 7 of them, are three parts of 16."""
    verify(call(kv=starts(2, 9, 0), is_page_level=True, page_size=32, last=torch.tensor([7, 1, 32]).int()),
           (3, 4, 4, 0))
    verify(call(valid=torch.tensor([2, 1, 4]).int()), (2, 1, 1, 0))


def test_results_that_are_there(simulated):
    """Where each sequence has one split, the parts' memory has results."""
    case = call(splits=starts(1, 1, 1), maybe_final=True)
    results = torch.randn(5, HEADS, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    case["parts"].view(torch.bfloat16).flatten()[:results.numel()] = results.flatten()
    run(case, has_lse=False)
    assert torch.equal(case["out"][:4], results[:4]) and (case["out"][4] == 7).all()
    verify(call(maybe_final=True), (3, 4, 4, 0))


@pytest.mark.parametrize(("changed", "message"), [
    ({"out": torch.empty(4, HEADS, WIDTH)}, "O must have shape"), ({"qo": starts(1, 2)}, "qo_indptr must have shape"),
    ({"valid": torch.ones(2, dtype=torch.int32)}, "valid_split_count must have shape"),
    ({"lse": torch.empty(5)}, "Final_lse must have shape")])
def test_bad_arguments(simulated, changed, message):
    with pytest.raises(ValueError, match=f"_fwd_kernel_stage2_asm: {message}"):
        run(call(**changed))


def test_bad_launches(simulated):
    with pytest.raises(ValueError, match="the grid must be"):
        run(call(), grid=(3, 4))
    with pytest.raises(ValueError, match="strides must be"):
        run(call(), strides=(1, 2, 3, 4, 5, 6))


def test_choice_of_a_kernel():
    assert merge.use_persistent_mla_decode(10**6, 16, 1, torch.bfloat16, torch.bfloat16)
    assert merge.persistent_mla_decode_max_batch() == 0
