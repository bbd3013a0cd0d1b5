# SPDX-License-Identifier: MIT
"""unified_attention by backend "ck" in the pipeline whose groups of waves take turns: which calls it gets, and against
float64 over lengths, pages, masks, strides, split keys and heads that share a workgroup.
"""

import dataclasses
import math

import pytest
import torch
from paged_cases import (
    BF16,
    Case,
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

from aiter_like import explain
from aiter_like.device import target_of
from aiter_like.jit import Instance
from aiter_like.ops.attention import unified_attention_ck
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.flash_attn_fwd_hip import MASKS
from aiter_like.ops.attention.unified_attention import unified_attention_op

SHORT = ((70, 70), (133, 300), (1, 1), (20, 50), (0, 9), (3, 0))
"""Queries and keys of sequences that leave most of a workgroup's rows empty: no query, no key, one of each."""


@pytest.fixture
def turns(run, device):
    """Like `run`, and the kernel must be that of the pipeline."""
    if target_of(device).platform != "hip":
        pytest.skip("an MFMA kernel")

    def checked(backend, function, *args, **kwargs):
        assert "turns" in explain(function, *args, backend=backend, **kwargs).kernel
        return run(backend, function, *args, **kwargs)

    return checked


@pytest.mark.parametrize("head_dim, dtype, page_size, options", (
    (64, BF16, 16, {}), (128, BF16, 16, {}), (128, torch.float16, 48, {"causal": False}),
    (64, BF16, 128, {"window_size": (30, 0)}), (128, BF16, 32, {"window_size": (25, -1), "causal": False}),
    (128, BF16, 32, {"window_size": (40, 20), "causal": False}),
    (64, torch.float16, 80, {"causal": False, "window_size": (-1, 5)})), ids=str)
def test_short_sequences(device, turns, head_dim, dtype, page_size, options):
    """Repeatable; rows without a key are zeros."""
    case = make(device, SHORT, head_dim=head_dim, page_size=page_size, dtype=dtype)
    out = check(turns, "ck", case, **options)
    assert (out[case.cu_seqlens_q[5]:case.cu_seqlens_q[6]] == 0).all()  # three queries, no key
    assert torch.equal(check(turns, "ck", case, **options), out)


@pytest.mark.parametrize("head_dim, heads, window_size", (
    (64, 8, (-1, -1)), (128, 8, (-1, -1)), (128, 6, (100, 0))), ids=str)
def test_decoding_beside_prefill(device, turns, head_dim, heads, window_size):
    """Sequences whose rows fill one tile, of some waves; two tiles of each; and whole workgroups: a query per sequence
    as engines decode, and chunks of prompts.
    """
    lengths = ((1, 700), (1, 65), (1, 1), (410, 900), (33, 500), (60, 60), (2, 129))
    case = make(device, lengths, heads=heads, kv_heads=2, head_dim=head_dim)
    out = check(turns, "ck", case, window_size=window_size)
    assert torch.equal(check(turns, "ck", case, window_size=window_size), out)


@pytest.mark.parametrize("head_dim", (64, 128))
@pytest.mark.parametrize("queries, keys, heads, kv_heads", ((40, 1100, 4, 2), (700, 1500, 3, 1)), ids=str)
def test_split_keys(device, turns, head_dim, queries, keys, heads, kv_heads):
    """One long sequence, whose keys workgroups share."""
    case = make(device, ((queries, keys),), heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    if queries == 40:
        check(turns, "ck", case, causal=False)
    out = check(turns, "ck", case)
    longer = make_longer(case)
    assert torch.equal(longer.call(turns, "ck")[:queries], out)


@pytest.mark.parametrize("head_dim", (64, 128))
def test_split_keys_of_several_sequences(device, turns, head_dim):
    """All query blocks are split, also those whose parts have no key, or no row."""
    case = make(device, ((40, 1100), (1, 1200), (3, 70), (0, 9), (3, 0), (1, 1), (150, 200)), heads=4, kv_heads=2,
                head_dim=head_dim)
    out = check(turns, "ck", case)
    assert (out[case.cu_seqlens_q[4]:case.cu_seqlens_q[5]] == 0).all()  # three queries, no key
    assert torch.equal(check(turns, "ck", case), out)
    check(turns, "ck", case, causal=False)


def make_longer(case: Case) -> Case:
    """With rows of q that no sequence has, as engines pad batches to replay a graph."""
    padding = torch.full((9, *case.q.shape[1:]), math.nan, dtype=case.q.dtype, device=case.q.device)
    return dataclasses.replace(case, q=torch.cat((case.q, padding)))


@pytest.mark.parametrize("lengths, heads, kv_heads, head_dim", (
    ((300,) * 4, 32, 4, 128), ((200,) * 6, 32, 8, 128), pytest.param((1030,) * 2, 24, 3, 64,
                                                                      marks=pytest.mark.exhaustive)), ids=str)
def test_many_workgroups(device, turns, lengths, heads, kv_heads, head_dim):
    """Rows for all units; heads of a group share workgroups."""
    check(turns, "ck", make(device, [(n, n + 50) for n in lengths], heads=heads, kv_heads=kv_heads, head_dim=head_dim))


def test_small_pages_go_to_the_other_pipeline(device, run):
    def tiles(backend, function, *args, **kwargs):
        assert "turns" not in explain(function, *args, backend=backend, **kwargs).kernel
        return run(backend, function, *args, **kwargs)

    check(tiles, "ck", make(device, ((150, 210), (1, 9)), page_size=8))


def engines_call(queries: int, batch: int, longest: int, keys: int, *, page_size: int = 16, **options) -> PagedCall:
    """A call as the host sees it: so many queries, of which the longest sequence has so many."""
    with torch.device("meta"):
        q = torch.empty(queries, 32, 128, dtype=BF16)
        k = torch.empty(batch * keys // page_size, page_size, 8, 128, dtype=BF16)
        return PagedCall(q, None, q, k, k, torch.empty(batch + 1, dtype=torch.int32),
                         seqlens_k=torch.empty(batch, dtype=torch.int32),
                         block_table=torch.empty(batch, keys // page_size, dtype=torch.int32), max_seqlen_q=longest,
                         max_seqlen_k=keys, softmax_scale=0.1, window_right=0, **options)


@pytest.mark.parametrize("first, call", (
    ("triton", engines_call(256, 1, 256, 256)), ("triton", engines_call(4096, 8, 512, 512)),
    ("ck", engines_call(2048, 1, 2048, 2048)), ("ck", engines_call(128, 1, 128, 4096)),
    ("ck", engines_call(512, 4, 128, 2048)), ("ck", engines_call(515, 4, 512, 4096)),
    ("ck", engines_call(2064, 18, 1024, 2048)), ("hip", engines_call(64, 64, 1, 4096)),
    ("triton", engines_call(4096, 1, 4096, 4096, page_size=8)),
    ("ck", engines_call(4096, 1, 4096, 4096, page_size=8, softcap=50.0)),
    ("triton", engines_call(1055, 64, 992, 2048, page_size=8, softcap=50.0))),
    ids=lambda x: x if isinstance(x, str) else f"{len(x.q)}_{x.batch}_{x.max_seqlen_k}")
def test_first_choice_on_gfx942(device, first, call):
    """The backend that the cycle model gives the least time: of prompts, of their chunks behind keys that are cached,
    and of such chunks beside sequences that are decoded.
    """
    target = dataclasses.replace(target_of(device), platform="hip", arch="gfx942")
    candidates = [backend.name for backend in unified_attention_op.backends
                  if backend.refusal is None or backend.refusal(target, *call) is None]
    assert (unified_attention_op.prefers(target, *call) or candidates[0]) == first


def test_pages_outside_the_window(device, turns):
    """Also within a page, and within a block."""
    check_pages_behind_the_window(turns, make(device, ((40, 400), (133, 300))))


def test_packed_storage(device, turns):
    check_packed_storage(turns, "ck", make(device, ((33, 70), (40, 40))))


def test_whatever_lengths_and_pages_hold(device):
    check_whatever_lengths_and_pages_hold("ck", device, 33)


@pytest.mark.parametrize("form", ("ragged", "full pages", "table"))
def test_batch_prefill(device, turns, form):
    """The same pages listed one after the other; with and without the length of the last; LSE."""
    case = make(device, ((40, 64), (60, 48), (3, 16)) if form == "full pages" else ((40, 70), (60, 41), (3, 3)))
    check_batch_prefill(turns, "ck", case, form)


def test_rows_beyond_max_seqlen_q(device):
    """They are not computed, and count for the mask."""
    case = make(device, ((50, 90), (20, 30)))
    whole, out = torch.full_like(case.q, 3.0), torch.full_like(case.q, 3.0)
    for target, longest in ((whole, 50), (out, 30)):
        unified_attention_op(PagedCall(
            target, None, case.q, case.k, case.v, cu_seqlens_q=case.cu_seqlens_q, seqlens_k=case.seqused_k,
            block_table=case.block_table, max_seqlen_q=longest, max_seqlen_k=90, softmax_scale=0.125, window_right=0),
            backend="ck")
    compare(case, whole)
    assert torch.equal(out[:30], whole[:30]) and torch.equal(out[50:], whole[50:]) and (out[30:50] == 3).all()


def test_addresses(device):
    """16 bytes are read at once: elsewhere another backend serves the call."""
    case = make(device, ((40, 70),))
    q = torch.cat((case.q.flatten(), case.q.new_zeros(4)))[4:].view(case.q.shape)
    assert "q does not begin at a multiple of 16 bytes" in refusal("ck", dataclasses.replace(case, q=q))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("head_dim", (64, 128))
def test_registers(device, head_dim, mask):
    """Nothing goes to local memory, and two waves share a SIMD."""
    if device.type == "cuda":
        pytest.skip("static: the code for gfx942 is the same wherever the tests run")
    instance = Instance(f"bf16_d{head_dim}_turns_{mask}", {"ELEMENT": "bf16", "HEAD_DIM": head_dim,
                                                           "MASK": MASKS.index(mask)})
    spec = unified_attention_ck.unified_attention_ck.instance_spec(instance, "hip", "gfx942")
    check_registers(spec)
