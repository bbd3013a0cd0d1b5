# SPDX-License-Identifier: MIT
"""unified_attention, mha_batch_prefill_func and paged flash_attn_with_kvcache by backend "ck", which serves prefill and
extension over pages, in tiles: against float64, over lengths, pages, masks and strides; what it leaves to others.
test_unified_attention_ping_pong.py has the other pipeline, which takes whatever it can.
"""

import pytest
import torch
from paged_cases import (
    BF16,
    check,
    check_batch_prefill,
    check_packed_storage,
    check_pages_behind_the_window,
    check_registers,
    check_whatever_lengths_and_pages_hold,
    compare,
    make,
    refusal,
)
from test_unified_attention_hip import single_sequences

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.attention import unified_attention_ck as tiles
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.unified_attention import unified_attention_op, unified_attention_ref
from aiter_like.testing import assert_within
from aiter_like.testing.attention import check_attention

MIXED = ((1, 70), (133, 33), (1, 1), (20, 50), (0, 9), (3, 0), (130, 300))
"""Queries and keys of sequences: more blocks of rows than one, more queries than keys, no query, no key."""


@pytest.fixture(autouse=True)
def in_tiles(monkeypatch):
    """Calls that the other pipeline could serve, too."""
    monkeypatch.setattr(tiles, "takes_turns", lambda call: False)
    unified_attention_op.forget_plans()
    yield
    unified_attention_op.forget_plans()


@pytest.mark.parametrize("page_size", (16, 1, 13, 128))
def test_prefill_and_extension_in_one_call(device, run, page_size):
    """Pages narrower and wider than a block of keys, and such as no block is a multiple of; repeatable."""
    case = make(device, MIXED, page_size=page_size)
    out = check(run, "ck", case)
    assert (out[case.cu_seqlens_q[5]:case.cu_seqlens_q[6]] == 0).all()  # three queries, no key
    assert torch.equal(check(run, "ck", case), out)
    check(run, "ck", case, window_size=(30, 0), sinks=torch.randn(4, device=device), softmax_scale=0.3)


@pytest.mark.parametrize("heads, kv_heads, head_dim, dtype, options", (
    (7, 1, 128, torch.float16, {}),
    (4, 4, 64, BF16, {"softcap": 3.0, "alibi_slopes": True, "window_size": (90, -1), "causal": False}),
    pytest.param(2, 1, 256, BF16, {}, marks=pytest.mark.exhaustive),
    pytest.param(4, 2, 128, BF16, {"causal": False}, marks=pytest.mark.exhaustive)), ids=str)
def test_heads_and_terms(device, run, heads, kv_heads, head_dim, dtype, options):
    case = make(device, ((70, 150), (40, 40), (2, 9)), heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    if "alibi_slopes" not in options:
        check(run, "ck", case, **options)
        return
    many = torch.rand(3, 8, device=device)[:, :4]  # of each sequence, a view of wider storage
    out = case.call(run, "ck", **{**options, "alibi_slopes": many})
    for index, rows, one in single_sequences(case):
        compare(one, out[rows], **{**options, "alibi_slopes": many[index]})


def test_pages_behind_the_window(device, run):
    check_pages_behind_the_window(run, make(device, ((40, 400), (33, 300))))


def test_sink_tokens(device, run):
    """Leading keys that a window never hides, against the reference; the kernel's own form of a mask."""
    case = make(device, ((40, 200), (60, 60)))
    out = case.call(run, "ck", window_size=(20, 0, 3))
    call = PagedCall(torch.empty_like(out), None, case.q, case.k.nan_to_num(), case.v.nan_to_num(),
                     cu_seqlens_q=case.cu_seqlens_q, seqlens_k=case.seqused_k, block_table=case.block_table,
                     max_seqlen_q=60, max_seqlen_k=200, softmax_scale=0.125, window_left=20, window_right=0,
                     sink_size=3)
    unified_attention_ref(call)
    assert_within("unified_attention", out, call.out.double().cpu(), torch.full_like(call.out.double().cpu(), 0.04))
    without = case.call(run, "ck", window_size=(20, 0))
    assert (out - without).abs().max() > 0.1


def test_packed_storage(device, run):
    check_packed_storage(run, "ck", make(device, ((33, 70), (40, 40))))


def test_whatever_lengths_and_pages_hold(device):
    if device.type != "cpu":
        pytest.skip("an MFMA kernel")
    check_whatever_lengths_and_pages_hold("ck", device, 33)


@pytest.mark.parametrize("form", ("ragged", "full pages", "table"))
def test_batch_prefill(device, run, form):
    """The same pages listed one after the other; with and without the length of the last."""
    case = make(device, ((40, 64), (60, 48), (3, 16)) if form == "full pages" else ((40, 70), (60, 41), (3, 3)))
    check_batch_prefill(run, "ck", case, form)


def test_pages_of_a_cache(device, run):
    case = make(device, ((40, 70), (40, 50)))
    out, lse = run("ck", aiter_like.flash_attn_with_kvcache, case.q.unflatten(0, (2, 40)), case.k, case.v,
                   cache_seqlens=case.seqused_k, page_table=case.block_table, return_softmax_lse=True, causal=True)
    k, v = (torch.cat([pages[table[:-(-keys // 16)].long()].flatten(0, 1)[:keys] for table, (_, keys) in
                       zip(case.block_table, case.lengths)]) for pages in (case.k, case.v))
    starts = torch.tensor((0, 70, 120), dtype=torch.int32, device=device)
    check_attention(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), case.q, k, v, cu_seqlens_q=case.cu_seqlens_q,
                    cu_seqlens_k=starts, causal=True)


@pytest.mark.parametrize("head_dim", (64, pytest.param(128, marks=pytest.mark.exhaustive),
                                      pytest.param(256, marks=pytest.mark.exhaustive)))
def test_registers(device, head_dim):
    """Nothing goes to local memory, and two waves share a SIMD."""
    if device.type == "cuda":
        pytest.skip("static: the code for gfx942 is the same wherever the tests run")
    call = unified_attention_op.tuning.case(
        {"mask": "causal", "batch": 1, "seqlen_q": 64, "seqlen_k": 64, "num_heads": 4, "num_kv_heads": 2,
         "head_dim": head_dim, "page_size": 16, "features": "none", "dtype": "bf16", "kv_dtype": "bf16"},
        torch.device("cpu"), 0)
    spec = tiles.unified_attention_ck.instance_spec(tiles._instance(call), "hip", "gfx942")
    check_registers(spec)


def test_what_it_leaves_to_others(device):
    if target_of(device).platform != "hip":
        pytest.skip("an MFMA kernel")
    case = make(device, ((40, 40),))
    assert "qq_bias" in refusal("ck", case, qq_bias=torch.zeros(2, 2, device=device))
    assert "sinks of float32" in refusal("ck", case, sinks=torch.zeros(4, dtype=BF16, device=device))
    assert "head dimension" in refusal("ck", make(device, ((40, 40),), head_dim=96))
    assert "head dimension" in refusal("ck", make(device, ((40, 40),), head_dim_v=128))
    assert "bf16 or fp16" in refusal("ck", make(device, ((40, 40),), kv_dtype=dtypes.fp8_of(target_of(device).arch)))
