# SPDX-License-Identifier: MIT
"""unified_attention, mha_batch_prefill_func and paged flash_attn_with_kvcache by backend "hip", which serves sequences
of a few queries each: against float64, over what changes a score, layouts and scales; what it leaves to others.
"""

import dataclasses

import pytest
import torch
from paged_cases import (
    BF16,
    check,
    check_batch_prefill,
    check_packed_storage,
    check_whatever_lengths_and_pages_hold,
    compare,
    expect,
    make,
    refusal,
    shuffled,
)
from test_flash_attn_with_kvcache import KINDS, WITH_CACHE, Stored

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.testing.attention import check_attention

FEW = ((1, 70), (8, 33), (1, 1), (0, 9), (3, 0), (5, 3), (1, 700))


def test_sequences_of_a_few_queries(device, run):
    """No query, no key, fewer keys than queries; one sequence whose keys are split; repeatable."""
    case = make(device, FEW)
    out = check(run, "hip", case)
    assert (out[case.cu_seqlens_q[4]:case.cu_seqlens_q[5]] == 0).all()  # three queries, no key
    assert torch.equal(check(run, "hip", case), out)
    for options in ({"window_size": (30, 0)}, {"sinks": torch.randn(4, device=device)},
                    {"sinks": torch.randn(4, device=device).to(BF16)}, {"softmax_scale": 0.3}):
        check(run, "hip", case, **options)


@pytest.mark.parametrize("slopes", ("heads", "sequences"))
def test_terms_of_scores(device, run, slopes):
    """Slopes of each sequence are a view: every second column of storage twice as wide."""
    case = make(device, FEW)
    if slopes == "heads":
        check(run, "hip", case, softcap=3.0, alibi_slopes=torch.rand(4, device=device), window_size=(300, 0),
              sinks=torch.randn(4, device=device).half())
        return
    many = torch.rand(len(FEW), 8, device=device)[:, :4]
    out = case.call(run, "hip", alibi_slopes=many)
    for index, rows, one in single_sequences(case):
        compare(one, out[rows], alibi_slopes=many[index])


def single_sequences(case):
    """Number, rows and a case of its own of each sequence with queries."""
    starts = case.cu_seqlens_q.tolist()
    for index, length in enumerate(case.lengths):
        rows = slice(starts[index], starts[index + 1])
        if length[0]:
            yield index, rows, dataclasses.replace(
                case, q=case.q[rows], lengths=(length,), seqused_k=case.seqused_k[index:index + 1],
                cu_seqlens_q=case.cu_seqlens_q[index:index + 2] - starts[index],
                block_table=case.block_table[index:index + 1])


@pytest.mark.parametrize("queries", (1, 2))
def test_without_causal_mask(device, run, queries):
    """One query is the last token and sees all keys; what several see, this kernel does not take."""
    case = make(device, ((queries, 70), (1, 9)))
    if queries == 1:
        check(run, "hip", case, causal=False, window_size=(20, -1))
        check(run, "hip", case, causal=False, window_size=(-1, 3))
        return
    assert "causal" in refusal("hip", case, causal=False)


def test_what_it_leaves_to_others(device):
    if target_of(device).platform != "hip":
        pytest.skip("an MFMA kernel")
    case = make(device, ((2, 40),))
    assert "at most 8 queries" in refusal("hip", make(device, ((9, 40),)))
    assert "qq_bias" in refusal("hip", case, qq_bias=torch.zeros(2, 2, device=device))
    assert "sink tokens" in refusal("hip", case, window_size=(5, 0, 3))
    assert "at most 256" in refusal("hip", make(device, ((2, 40),), head_dim=288))


@pytest.mark.parametrize("form", ("one", "of sequences and heads", "expanded"))
def test_fp8_cache(device, run, form):
    case = make(device, ((1, 600), (2, 40)), kv_dtype=dtypes.fp8_of(target_of(device).arch))
    scales = [torch.rand(2, 2, device=device) + 0.5 for _ in range(2)]
    if form != "of sequences and heads":
        scales = [scale[:1, :1].expand(2, 2) if form == "expanded" else scale[0, :1] for scale in scales]
    out = case.call(run, "hip", k_descale=scales[0], v_descale=scales[1])
    scales = [scale.expand(2, 2) for scale in scales]
    for index, rows, one in single_sequences(case):
        k_factor, v_factor = (scale[index].double().cpu().repeat_interleave(2)[:, None] for scale in scales)
        compare(one, out[rows], k_descale=k_factor, v_descale=v_factor)


@pytest.mark.parametrize("dtype", ("bf16", "fp8"))
def test_shuffled_pages(device, run, dtype):
    """Of fp8, with queries of 16 bits and of fp8."""
    fp8 = dtypes.fp8_of(target_of(device).arch)
    case = make(device, ((1, 600), (2, 40), (3, 17)), kv_dtype=fp8, dtype=fp8 if dtype == "fp8" else BF16)
    moved = dataclasses.replace(case, **dict(zip("kv", shuffled(case), strict=True)))
    scales = dict(zip(("q_descale", "k_descale", "v_descale"), torch.tensor((0.7, 1.5, 3.0), device=device)[:, None]))
    out = torch.empty(case.q.shape, dtype=BF16, device=device)
    moved.call(run, "hip", out=out, shuffled_kv_cache=True, window_size=(500, 0), **scales)
    scaled = dataclasses.replace(case, q=case.q.double() * 0.7) if dtype == "fp8" else case
    compare(scaled, out, window_size=(500, 0), k_descale=1.5, v_descale=3.0)


def test_descales_of_a_16_bit_cache_are_ignored(device, run):
    two = torch.full((1,), 2.0, device=device)
    check(run, "hip", make(device, ((2, 40),)), k_descale=two, v_descale=two)


def test_fp8_out(device, run):
    fp8 = dtypes.fp8_of(target_of(device).arch)
    case = make(device, ((2, 40), (1, 1200)))
    expected, weighted, _ = expect(case)
    scale = expected.abs().max().item() / torch.finfo(fp8).max / 2  # the largest saturate
    out = torch.empty_like(case.q, dtype=fp8)
    case.call(run, "hip", out=out, output_scale=torch.tensor([scale], device=device))
    limit = scale * torch.finfo(fp8).max
    error = (out.cpu().double() * scale - expected.clamp(-limit, limit)).abs()
    assert (error <= expected.abs() * 2**-4 + weighted * 2**-7 + scale * 2**-10).all()
    assert (out.cpu().double().abs() == torch.finfo(fp8).max).any()


def test_packed_storage(device, run):
    check_packed_storage(run, "hip", make(device, ((1, 70), (8, 40))))


def test_whatever_lengths_and_pages_hold(device):
    if device.type != "cpu":
        pytest.skip("an MFMA kernel")
    check_whatever_lengths_and_pages_hold("hip", device, 8)


@pytest.mark.parametrize("form", ("ragged", "full pages", "table"))
def test_batch_prefill(device, run, form):
    """The same pages listed one after the other; with and without the length of the last."""
    case = make(device, ((1, 64), (6, 48), (3, 16)) if form == "full pages" else ((1, 70), (6, 41), (3, 3)))
    check_batch_prefill(run, "hip", case, form, torch.randn(4, device=device))


@pytest.mark.parametrize("kind", KINDS)
def test_where_keys_of_a_cache_are(device, run, kind):
    """Pages, rows named by an index, keys behind padding (pages of one key), packed queries."""
    lengths, queries = (37, 48, 20), (4, 1, 0) if "packed" in kind else (2, 2, 2)
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(sum(queries), 4, 64, generator=generator).to(device, BF16)
    k, v = (torch.randn(sum(lengths), 2, 64, generator=generator).to(device, BF16) for _ in range(2))
    starts_q, starts_k = (torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=device)
                          for counts in (queries, lengths))
    stored = Stored(device, kind, k, v, lengths)
    given = {"cu_seqlens_q": starts_q, "max_seqlen_q": 4} if "packed" in kind else {}
    called = q if given else q.unflatten(0, (3, 2))
    for options in ({}, {"window_size": (9, 0)}):
        out, lse = run("hip", WITH_CACHE, called, *stored.caches, return_softmax_lse=True, **stored.options, **given,
                       **options)
        if not given:
            out, lse = out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
        check_attention(out, lse, q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, causal=True, **options)
