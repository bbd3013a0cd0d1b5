# SPDX-License-Identifier: MIT
"""AITER's Triton prefill over packed pages that do not have the new keys yet, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import prefill as aiter_prefill

FP8 = torch.float8_e4m3fnuz
HEADS, KV, DIM, PAGE, BLOCKS = 4, 2, 64, 16, 12
NEW, OLD = (5, 1, 9), (20, 33, 0)
SCALES = torch.tensor(0.5), torch.tensor([2.0])


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(is_fp8=False, dtype=torch.bfloat16, has_single=False):
    """Arguments by AITER's names, and the keys and values of each sequence in float64."""
    tokens = sum(NEW)
    q, k, v = (numbers(tokens, heads, DIM, seed=seed, dtype=dtype) for seed, heads in enumerate((HEADS, KV, KV)))
    pages = numbers(2, BLOCKS, PAGE, KV, DIM, seed=3).to(FP8 if is_fp8 else dtype)
    table = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(4)).view(3, 4)
    starts = torch.tensor((0, *NEW)).cumsum(0)
    x = 8
    call = {"q": q, "k": k, "v": v, "o": torch.full_like(q, 7.0), "kv_cache_dtype": "fp8" if is_fp8 else "auto",
            "k_cache": pages[0].unflatten(3, (-1, x)).permute(0, 2, 3, 1, 4).contiguous(),
            "v_cache": pages[1].permute(0, 2, 3, 1).contiguous(), "b_loc": table, "b_start_loc": starts,
            "b_seq_len": torch.tensor(NEW) + torch.tensor(OLD), "max_input_len": max(NEW), "k_scale": SCALES[0],
            "v_scale": SCALES[1]}
    rows = []
    for index, (new, old) in enumerate(zip(NEW, OLD, strict=True)):
        both = []
        stored = old + new if has_single and new == 1 else old
        for cache, fresh, scale in zip(pages, (k, v), SCALES, strict=True):
            kept = cache[table[index]].flatten(0, 1)[:stored].double() * (scale.double() if is_fp8 else 1)
            both.append(torch.cat((kept, fresh[starts[index]:starts[index + 1]].double()))[:old + new])
        rows.append(both)
    return call, rows


def expect(q, keys, values, window=0, slopes=None, scale=None):
    """Of one sequence whose queries are its last tokens."""
    keys, values = (each.repeat_interleave(HEADS // KV, 1) for each in (keys, values))
    behind = torch.arange(len(q))[:, None] + len(keys) - len(q) - torch.arange(len(keys))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * (scale or DIM**-0.5)
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * behind
    hidden = (behind < 0) | (behind >= (window or len(keys)))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def check_rows(call, rows, is_written=(True, True, True), **options):
    for index, (keys, values) in enumerate(rows):
        rows_of = slice(*call["b_start_loc"][index:index + 2].tolist())
        expected = expect(call["q"][rows_of], keys, values, **options) if is_written[index] else 7.0
        torch.testing.assert_close(call["o"][rows_of].double(), torch.as_tensor(expected).double().expand(
            call["o"][rows_of].shape), rtol=0.03, atol=0.03)


@pytest.mark.parametrize(("is_fp8", "dtype"), [(False, torch.float16), (True, torch.bfloat16)])
def test_prefill(simulated, is_fp8, dtype):
    call, rows = case(is_fp8, dtype)
    aiter_prefill.context_attention_fwd(**call)
    check_rows(call, rows)


def test_window_slopes_and_rows_that_are_skipped(simulated):
    call, rows = case()
    aiter_prefill.context_attention_fwd(**call, sliding_window=4, sm_scale=0.3, skip_decode=True)
    check_rows(call, rows, (True, False, True), window=4, scale=0.3)
    call, rows = case()
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.02])
    aiter_prefill.context_attention_fwd(**call, alibi_slopes=slopes, sliding_window=0)
    check_rows(call, rows, slopes=slopes)
    with pytest.raises(UnsupportedError, match="context_attention_fwd: no backend supports alibi_slopes with sliding"):
        aiter_prefill.context_attention_fwd(**call, alibi_slopes=slopes, sliding_window=4)


def chunked(call):
    names = ("query", "key", "value", "output", "kv_cache_dtype", "key_cache", "value_cache", "block_table",
             "query_start_loc", "seq_lens", "max_query_len", "k_scale", "v_scale")
    return dict(zip(names, call.values(), strict=True))


@pytest.mark.parametrize("is_fp8", (False, True))
def test_chunks(simulated, is_fp8):
    call, rows = case(is_fp8, has_single=True)
    aiter_prefill.chunked_prefill_paged_decode(**chunked(call), sliding_window=25)
    check_rows(call, rows, window=25)


@pytest.mark.parametrize("is_fp8", (False, True))
def test_chunks_of_single_tokens(simulated, is_fp8, monkeypatch):
    monkeypatch.setattr(f"{__name__}.NEW", (1, 1, 1))
    call, rows = case(is_fp8, has_single=True)
    aiter_prefill.chunked_prefill_paged_decode(**chunked(call), sliding_window=25)
    check_rows(call, rows, window=25)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("kv_cache_dtype", "fp8", "k_cache must have dtype torch.float8_e4m3fnuz or torch.uint8, got torch.bfloat16"),
    ("kv_cache_dtype", "int8", "kv_cache_dtype must be 'auto', 'fp8'"),
    ("b_start_loc", torch.tensor([0, 5, 6, 16]), "b_start_loc must rise from 0 to 15"),
    ("b_seq_len", torch.tensor([4, 34, 9]), "b_start_loc must rise from 0 to 15, by no more than b_seq_len"),
    ("b_seq_len", torch.tensor([25, 66, 9]), "the keys of a sequence must be between 0 and 64, as the pages in b_loc"),
    ("b_loc", torch.full((3, 4), BLOCKS), "b_loc must name pages from 0 to 11, got 12"),
    ("b_loc", torch.full((3, 4), -1), "b_loc must name pages from 0 to 11, got -1"),
    ("b_loc", torch.full((3, 4), 2**32), "b_loc must name pages from 0 to 11, got 4294967296"),
    ("v_cache", numbers(BLOCKS, KV, DIM, 8), "v_cache must have shape"),
    ("k", numbers(sum(NEW), 1, DIM), "v must have shape"),
    ("b_loc", torch.zeros(2, 4, dtype=torch.int32), "b_loc must have shape"),
])
def test_bad_arguments(name, value, message):
    call, _ = case()
    with pytest.raises((TypeError, ValueError), match=f"context_attention_fwd: {message}"):
        aiter_prefill.context_attention_fwd(**call | {name: value})
    assert (call["o"] == 7).all()


def test_nothing_to_do():
    call, _ = case()
    empty = {name: call[name][:0] for name in ("q", "k", "v", "o", "b_loc", "b_seq_len")}
    aiter_prefill.context_attention_fwd(**call | empty | {"b_start_loc": torch.zeros(1, dtype=torch.int64)})
