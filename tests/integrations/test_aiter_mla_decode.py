# SPDX-License-Identifier: MIT
"""decode_attention_fwd against float64, and the plan of a next step against one made anew."""

from __future__ import annotations

import pytest
import torch

import aiter_like as aiter
from aiter_like.integrations.aiter.mla import mla

FP8 = torch.float8_e4m3fnuz
BATCH, PAGE, PAGES = 3, 16, 9
KEYS = torch.tensor([37, 0, 5])
TABLE = torch.tensor([[4, 0, 2], [1, -1, -1], [8, 3, 99]], dtype=torch.int32)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def expect(q, keys, values, scale, cap=0.0):
    """Out and log-sum-exp in float64 of [pages, page, heads, elements]."""
    group = q.shape[1] // keys.shape[2]
    out, sums = [], []
    for row, table, length in zip(q.double(), TABLE.clamp(0, PAGES - 1).long(), KEYS):
        k, v = (x.double()[table].flatten(0, 1)[:length].repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("hd,khd->hk", row, k) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        sums.append(scores.logsumexp(-1))
        out.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v))
    return torch.stack(out), torch.stack(sums)


def decode(q, keys, values, **options):
    out, lse = torch.empty(*q.shape[:2], values.shape[-1]).bfloat16(), torch.empty(*q.shape[:2])
    table, lengths = options.pop("table", TABLE), options.pop("lengths", KEYS)
    assert mla.decode_attention_fwd(q, keys, values, out, lse, table, lengths, None, 4, q.shape[-1]**-0.5,
                                          PAGE, **options) is None
    return out, lse


@pytest.mark.parametrize("dtype", (torch.bfloat16, FP8), ids=str)
def test_latents(simulated, dtype):
    q, cache = numbers(BATCH, 16, 576), numbers(PAGES, PAGE, 1, 576, seed=1).to(dtype)
    scale = torch.tensor([0.5]) if dtype == FP8 else None
    wide = cache.float() * (0.5 if dtype == FP8 else 1)
    expected, sums = expect(q, wide, wide[..., :512], 576**-0.5)
    for keys in (cache, cache.flatten(0, 1)):  # both forms of a cache
        out, lse = decode(q, keys, keys[..., :512], k_scale=scale, v_scale=scale)
        torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.03)
        torch.testing.assert_close(lse.double(), sums, rtol=1e-2, atol=1e-2)
        assert not out[1].any()


@pytest.mark.parametrize("heads", (2, 4))
def test_heads(simulated, heads):
    """Of keys and values in memory of their own; the tokens of the keys lie apart."""
    q, wide = numbers(BATCH, 4, 64), numbers(PAGES, PAGE, heads, 128, seed=1)
    keys, values = wide[..., :64], numbers(PAGES, PAGE, heads, 64, seed=2)
    expected, sums = expect(q, keys, values, 64**-0.5, 30.0)
    out, lse = decode(q, keys, values, logit_cap=30.0)
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.01)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-3, atol=1e-3)


def test_bad_input_is_named(simulated):
    q, cache = numbers(BATCH, 16, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    for message, keys, values, options in (
            ("q must have 3 dimensions", cache, cache[..., :512], {"q": q[0]}),
            ("k_buffer must have 4 dimensions", cache[0, 0], cache[..., :512], {}),
            ("v_scale must be k_scale", cache, cache[..., :512], {"k_scale": torch.ones(1)}),
            ("req_to_token must have shape", cache, cache[..., :512], {"table": TABLE[:2]}),
            *[("req_to_token must name pages", cache, cache[..., :size], {"table": TABLE.clone().fill_(page)})
              for page in (-1, PAGES) for size in (512, 576)],
            ("k_buffer must have evenly spaced tokens", cache[:, :8], cache[:, :8, :, :512], {})):
        with pytest.raises(ValueError, match=f"^decode_attention_fwd: {message}"):
            decode(options.pop("q", q), keys, values, **options)
    with pytest.raises(TypeError, match="^decode_attention_fwd: v_buffer must have dtype torch.bfloat16"):
        decode(q[..., :64], cache[..., :64], cache[..., 64:128].to(FP8))


def test_lists_as_a_table():
    listed, starts = torch.tensor([7, 8, 9, 3, 4]), torch.tensor([0, 3, 3, 5])
    table = torch.full((4, 4), -1, dtype=torch.int32)
    mla.csr_to_dense_block_table(listed, starts, table, 2, 3)
    assert table.tolist() == [[7, 8, -1, -1], [-1] * 4, [3, 4, -1, -1], [-1] * 4]
    mla.csr_to_dense_block_table(listed[:4], starts, table, 9, 3)  # a list that ends before its starts do
    assert table.tolist() == [[7, 8, 9, -1], [-1] * 4, [3, 4, -1, -1], [-1] * 4]
    with pytest.raises(ValueError, match="csr_to_dense_block_table: bs must be"):
        mla.csr_to_dense_block_table(listed, starts, table, 2, 4)


@pytest.mark.parametrize("step", (1, 3))
def test_plan_of_the_next_step(simulated, step):
    """Of the new lengths; sequences that had several query tokens have one."""
    info = aiter.get_mla_metadata_info_v1(BATCH, step, 16, torch.bfloat16, torch.bfloat16, False)
    plans = [[torch.zeros(size, dtype=dtype) for size, dtype in info] for _ in range(2)]
    starts = torch.arange(BATCH + 1, dtype=torch.int32)
    pages = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 900, 950, 4000], [0, 901, 951, 4001])]
    last = torch.ones(BATCH, dtype=torch.int32)
    order = (0, 2, 1, 3, 4, 5)  # work_metadata_ptrs, work_info_set, work_indptr, ...
    moved, fresh = ([plan[place] for place in order] for plan in plans)
    aiter.get_mla_metadata_v1(starts * step, pages[0], last, 16, 1, True, *moved, max_seqlen_qo=step)
    aiter.decode_update_mla_metadata_v1(starts * step, pages[1], last, 16, 1, True, *moved, max_seqlen_qo=step)
    aiter.get_mla_metadata_v1(starts, pages[1], last, 16, 1, True, *fresh, max_seqlen_qo=1)
    items = int(fresh[2][-1])
    assert torch.equal(moved[2], fresh[2]) and torch.equal(moved[1][:items], fresh[1][:items])
    assert torch.equal(moved[3], fresh[3]) and torch.equal(moved[4], fresh[4])
    slots = int(fresh[3][-1])
    assert torch.equal(moved[5][:slots], fresh[5][:slots])
    assert fresh[1][:items, 3].max() == BATCH and (fresh[1][:items, 3] - fresh[1][:items, 2] == 1).all()
    with pytest.raises(ValueError, match="^decode_update_mla_metadata_v1: seqlens_qo_indptr must have at least 1"):
        aiter.decode_update_mla_metadata_v1(starts[:0], pages[1], last, 16, 1, True, *moved)
