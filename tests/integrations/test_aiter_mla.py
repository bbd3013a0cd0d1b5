# SPDX-License-Identifier: MIT
"""AITER's Triton functions of latent attention over a table of pages, against float64."""

import pytest
import torch
from seeded import numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.mla import mla

FP8 = torch.float8_e4m3fnuz
HEADS, RANK, PE, PAGE, PAGES = 16, 512, 64, 16, 9
SCALE = (RANK + PE) ** -0.5


def expect(q, cache, queries, keys, table, causal=True):
    found, first = [], 0
    for own, (count, length) in enumerate(zip(queries, keys, strict=True)):
        k = cache.double()[table[own].long()].flatten(0, 2)[:length]
        scores = torch.einsum("qhd,kd->hqk", q[first:first + count].double(), k) * SCALE
        ahead = torch.arange(length) - torch.arange(count)[:, None] - (length - count)
        hidden = (ahead > 0) & causal
        found.append(torch.einsum("hqk,kd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), k[:, :RANK]))
        first += count
    return torch.cat(found)


@pytest.fixture
def call():
    queries, keys = [3, 0, 1], [37, 16, 5]
    starts = torch.tensor([0, 3, 3, 4], dtype=torch.int32)
    table = torch.tensor([[4, 0, 2], [1, -1, -1], [8, 3, 99]], dtype=torch.int32)
    return queries, keys, starts, table


def test_pages(simulated, call):
    queries, keys, starts, table = call
    q, cache = numbers(4, HEADS, RANK + PE), numbers(PAGES, PAGE, 1, RANK + PE, seed=1)
    out = torch.empty(4, HEADS, RANK).bfloat16()
    lengths = torch.tensor(keys, dtype=torch.int32)
    function = mla.mla_decode_fwd
    assert function(q, cache, out, starts, lengths, 37, table, SCALE, RANK, PE, True, None, None) is None
    expected = expect(q, cache, queries, keys, table.clamp(0, PAGES - 1))
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02)
    function(q, cache, out, starts, lengths.long(), 37, table, SCALE, RANK, PE, True, None, None,
             out_scale=torch.tensor([0.5]))
    torch.testing.assert_close(out.double(), expected * 2, rtol=0.02, atol=0.04)


@pytest.mark.parametrize("dtype", (torch.bfloat16, FP8))
def test_fp8(simulated, call, dtype):
    """A cache of fp8, and queries and a result of fp8, too."""
    queries, keys, starts, table = call
    q, cache = numbers(4, HEADS, RANK + PE).to(dtype), numbers(PAGES, PAGE, 1, RANK + PE, seed=1).to(FP8)
    out = torch.empty(4, HEADS, RANK).to(dtype)
    q_scale, kv_scale, out_scale = torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])
    mla.mla_decode_fwd(q, cache, out, starts, torch.tensor(keys), 37, table, SCALE, RANK, PE, True,
                             q_scale, kv_scale, None, out_scale if dtype == FP8 else None)
    wide = q.float() * (2 if dtype == FP8 else 1)
    expected = expect(wide, cache.float() * 0.5, queries, keys, table.clamp(0, PAGES - 1))
    torch.testing.assert_close(out.double() * (0.25 if dtype == FP8 else 1), expected, rtol=0.1, atol=0.06)


def test_bad_input_is_named(simulated, call):
    queries, keys, starts, table = call
    q, cache, out = numbers(4, HEADS, RANK + PE), numbers(PAGES, PAGE, 1, RANK + PE), numbers(4, HEADS, RANK)
    rest = starts, torch.tensor(keys), 37, table, SCALE, RANK, PE, True, None, None
    with pytest.raises(UnsupportedError, match="mla_decode_fwd: no backend supports shuffled_kv_cache, skip_reduce"):
        mla.mla_decode_fwd(q, cache, out, *rest, shuffled_kv_cache=True, skip_reduce=True)
    with pytest.raises(ValueError, match="mla_decode_fwd: q must have heads of kv_lora_rank"):
        mla.mla_decode_fwd(q[..., 1:], cache, out, *rest)
    with pytest.raises(ValueError, match="mla_decode_fwd: out_scale must be given with out of"):
        mla.mla_decode_fwd(q, cache, out.to(FP8), *rest)
    with pytest.raises(ValueError, match="mla_decode_fwd: block_tables must have shape"):
        mla.mla_decode_fwd(q, cache, out, *rest[:3], table[1:], *rest[4:])
