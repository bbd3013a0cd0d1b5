# SPDX-License-Identifier: MIT
"""Scales of fp8 of any size and sign, in every operator that masks scores and multiplies them by one: which keys a row
sees does not depend on them.
"""

import itertools
import math

import pytest
import torch
from attention_cases import BF16
from paged_attention_cases import fp8_of

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.ops.attention.call import AttentionCall, PagedCall
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.paged_attention import paged_attention_op
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.ops.mla.mla_decode import mla_decode_fwd
from aiter_like.testing.attention import check_attention

# Rows that see some keys of a sequence, none of one (its first two), and none at all.
QUERIES, KEYS, PAGE = (5, 3, 2), (3, 70, 0), 16
SCALES = ((1e-4, 1e-4), (1e-9, 1.0), (1e-30, 1e-30), (0.0, 1.0), (-0.5, 1.0), (1e-4, -1e-5), (-1e30, 1.0))
FACTORS = (1.0, 0.3, 20.0, 1e-4, 3e-9, 1e-12, 1e-30, 1e-38, 1e-45, 0.0, 1e4, 1e9, 1e30)
V_SCALE, SOFTMAX_SCALE = 3.0, 0.125


def starts_of(lengths, device) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def integers(values, device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


class Case:
    """Packed queries, keys and values, and the same on pages with `padding` wherever no key is."""

    def __init__(self, device, q_dtype, dims, heads, padding: float = math.nan, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.device, fp8 = device, fp8_of(device)

        def random(*shape):
            return torch.randn(*shape, generator=generator)

        q = random(sum(QUERIES), heads[0], dims[0])
        q[..., ::7] = 0.0  # which has no sign in gfx942's fp8
        self.q = q.to(fp8 if q_dtype == "fp8" else BF16).to(device)
        k, v = (random(sum(KEYS), heads[1], dim) for dim in dims)
        k, v = (x.where(x.abs() > 0.1, 0.1).to(fp8) for x in (k, v))  # beside 0 the smallest weight would count
        self.starts_q, self.starts_k = starts_of(QUERIES, device), starts_of(KEYS, device)
        counts = [-(-keys // PAGE) for keys in KEYS]
        self.table = torch.full((len(KEYS), max(counts)), -1, dtype=torch.int32)
        pages = [torch.full((sum(counts), PAGE, *x.shape[1:]), padding).to(fp8).view(torch.uint8) for x in (k, v)]
        for index, (count, keys) in enumerate(zip(counts, KEYS)):
            first, start = sum(counts[:index]), sum(KEYS[:index])
            self.table[index, :count] = torch.arange(first, first + count)
            for page, x in zip(pages, (k, v)):
                page[first:first + count].flatten(0, 1)[:keys] = x[start:start + keys].view(torch.uint8)
        self.k_pages, self.v_pages = (page.view(fp8).to(device) for page in pages)
        self.k, self.v, self.table = k.to(device), v.to(device), self.table.to(device)
        self.counts = counts
        self.out = torch.full((len(self.q), heads[0], dims[1]), math.nan, dtype=BF16, device=device)
        self.lse = torch.full((heads[0], len(self.q)), math.nan, device=device)

    def scales(self, *values):
        return [torch.tensor([value], device=self.device) for value in values]


def varlen(run, backend, case, scales) -> None:
    run(backend, flash_attn_fwd, AttentionCall(
        case.out, case.lse, case.q, case.k, case.v, cu_seqlens_q=case.starts_q, cu_seqlens_k=case.starts_k,
        max_seqlen_q=max(QUERIES), max_seqlen_k=max(KEYS), softmax_scale=SOFTMAX_SCALE, window_right=0,
        **dict(zip(("q_descale", "k_descale", "v_descale"), case.scales(*scales)))))


def unified(run, backend, case, scales) -> None:
    q_scale = {"q_descale": case.scales(scales[0])[0]} if case.q.element_size() == 1 else {}
    run(backend, unified_attention_op, PagedCall(
        case.out, case.lse, case.q, case.k_pages, case.v_pages, cu_seqlens_q=case.starts_q,
        seqlens_k=integers(KEYS, case.device), block_table=case.table, max_seqlen_q=max(QUERIES),
        max_seqlen_k=max(KEYS), softmax_scale=SOFTMAX_SCALE, window_right=0,
        k_descale=case.scales(scales[1])[0], v_descale=case.scales(scales[2])[0], **q_scale))


def paged(run, backend, case, scales) -> None:
    q_scale = {"q_scale": case.scales(scales[0])[0]} if case.q.element_size() == 1 else {}
    run(backend, paged_attention_op, PagedAttentionCall(
        case.out, case.lse, case.q, case.k_pages, case.v_pages, block_table=case.table,
        seqlens_k=integers(KEYS, case.device), cu_seqlens_q=case.starts_q, max_seqlen_q=max(QUERIES),
        max_seqlen_k=max(KEYS), softmax_scale=SOFTMAX_SCALE, k_scale=case.scales(scales[1])[0],
        v_scale=case.scales(scales[2])[0], **q_scale))


def latent(run, backend, case, scales) -> None:
    q_scale = case.scales(scales[0])[0] if case.q.element_size() == 1 else None
    last = integers([(keys - 1) % PAGE + 1 if keys else 0 for keys in KEYS], case.device)
    indices = torch.arange(sum(case.counts), dtype=torch.int32, device=case.device)
    _, lse = run(backend, mla_decode_fwd, case.q, case.k_pages, case.out, case.starts_q,
                 starts_of(case.counts, case.device), indices, last, max(QUERIES), PAGE, return_lse=True,
                 sm_scale=SOFTMAX_SCALE, q_scale=q_scale, kv_scale=case.scales(scales[1])[0])
    case.lse.copy_(lse.t())


# Operator → what calls it, its backends, dtypes of queries, head dimensions, heads.
OPERATORS = {
    "flash_attn_fwd": (varlen, ("ck", "triton", "torch"), ("fp8",), (64, 64), (4, 2)),
    "unified_attention": (unified, ("hip", "triton", "torch"), ("bf16", "fp8"), (64, 64), (4, 2)),
    "paged_attention": (paged, ("hip", "triton", "torch"), ("bf16", "fp8"), (64, 64), (4, 2)),
    "mla_decode": (latent, ("ck", "triton", "torch"), ("bf16", "fp8"), (160, 128), (16, 1)),
}
CALLS = [(name, backend, q_dtype) for name, (_, backends, q_dtypes, *_) in OPERATORS.items()
         for backend in backends for q_dtype in q_dtypes]


def check(run, device, name, backend, q_dtype, scales, seed=0, padding=math.nan) -> Case:
    """Runs one call, and compares where the scales are numbers."""
    call, _, _, dims, heads = OPERATORS[name]
    case = Case(device, q_dtype, dims, heads, padding, seed)
    if name == "mla_decode":
        case.v = case.k[..., :dims[1]]
    scales = (scales[0] if q_dtype == "fp8" else 1.0, scales[1] if q_dtype == "fp8" else scales[0] * scales[1])
    scales = torch.tensor((*scales, scales[1] if name == "mla_decode" else V_SCALE)).tolist()  # as fp32 has them
    call(run, backend, case, scales)
    if not any(map(math.isnan, scales)):
        check_attention(case.out, case.lse, case.q, case.k, case.v, SOFTMAX_SCALE, True, cu_seqlens_q=case.starts_q,
                        cu_seqlens_k=case.starts_k, descales=scales)
    return case


@pytest.mark.parametrize("name, backend, q_dtype", CALLS)
def test_any_scale(device, run, name, backend, q_dtype):
    for scales in SCALES:
        check(run, device, name, backend, q_dtype, scales)
    check(run, device, name, backend, q_dtype, (0.0, 1.0), padding=-200.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, backend, q_dtype", CALLS)
def test_all_scales(device, run, seed, name, backend, q_dtype):
    generator = torch.Generator().manual_seed(seed)
    for number, (one, other) in enumerate(itertools.product(FACTORS, FACTORS)):
        # Scores above are infinite in fp32; below, values of mla_decode, which have the scale, are no normal numbers.
        is_low = any(0 < factor < 1e-31 for factor in (other, one * other))
        if one * other < 1e31 and not (is_low and name == "mla_decode"):
            signs = (1 - 2 * torch.randint(2, (2,), generator=generator)).tolist()
            check(run, device, name, backend, q_dtype, (one * signs[0], other * signs[1]), seed=seed + number)


@pytest.mark.parametrize("name, backend, q_dtype", CALLS)
def test_a_scale_that_is_nan(device, run, name, backend, q_dtype):
    """It reaches the rows that see a key, and no others."""
    case = check(run, device, name, backend, q_dtype, (math.nan, 1.0))
    seen = torch.tensor([False] * 2 + [True] * 6 + [False] * 2)
    assert case.out.cpu().isnan().all((1, 2)).equal(seen) and (case.out[~seen] == 0).all()
    assert case.lse.cpu().isnan().all(0).equal(seen) and (case.lse[:, ~seen] == -math.inf).all()


@pytest.mark.parametrize("backend", ("ck", "triton", "torch"))
def test_logits_of_an_index(device, run, backend):
    """mqa_logits has a scale for each key; what a row does not see is −inf beside any of them."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(*shape, generator=generator).to(device, fp8_of(device)) for shape in ((3, 16, 64), (20, 64)))
    scales = torch.tensor([1e-30, 0.0, -1.0, 1e30, 1e-9, -1e-9, math.nan, 2.0]).repeat(3)[:20].to(device)
    weights = torch.rand(3, 16, generator=generator).to(device)
    starts, ends = integers((0, 5, 4), device), integers((20, 12, 4), device)
    logits = run(backend, aiter_like.mqa_logits, q, k, scales, weights, starts, ends).cpu()
    products = torch.einsum("rhd,kd->rhk", q.cpu().double(), k.cpu().double()).relu()
    expected = (products * weights.cpu().double()[..., None]).sum(1) * scales.cpu().double()
    key = torch.arange(20)
    hidden = (key < starts.cpu()[:, None]) | (key >= ends.cpu()[:, None])
    torch.testing.assert_close(logits.double(), expected.masked_fill(hidden, -math.inf), rtol=1e-3, atol=0.0,
                               equal_nan=True)


def test_every_operator_with_scales_of_scores_is_here():
    names = {"q_descale", "k_descale", "q_scale", "k_scale", "kv_scale"}
    found = {name for name, op in OPS.items() if names & set(op.call._fields)
             and op.call.__module__.startswith(("aiter_like.ops.attention.", "aiter_like.ops.mla."))}
    assert found == {*OPERATORS, "mqa_logits"}
