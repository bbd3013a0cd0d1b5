# SPDX-License-Identifier: MIT
"""mla_prefill_fwd and mla_prefill_ps_asm_fwd: prompts over paged latents and over expanded keys, against float64."""

import math

import pytest
import torch
from mla_cases import BF16, compare, make, starts_of

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.testing import assert_within

pytestmark = pytest.mark.rotating


@pytest.mark.parametrize("page_size", (1, 16))
@pytest.mark.parametrize("backend", ("ck", "triton", "torch"))
def test_paged_latents(device, run, backend, page_size):
    """Whole prompts and continued ones, more rows than the longest tile has."""
    case = make(device, ((40, 40), (1, 1), (33, 90), (0, 5)), 4, page_size, torch.float16)
    out = case.new_out()
    returned, lse = run(backend, aiter_like.mla_prefill_fwd, case.q, case.kv, out, *case.tables, case.max_seqlen_q)
    assert returned is out and lse.shape == (len(case.q), 1, 4, 1)
    compare(case, out, lse.view(len(case.q), 4))


@pytest.mark.parametrize("kind", ("bf16", "fp8"))
@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_expanded_keys(device, run, backend, kind, causal):
    """Keys of 192 and values of 128 columns, listed one by one; the plan's sum leaves the result as it is."""
    generator = torch.Generator().manual_seed(0)
    dtype = dtypes.fp8_of(target_of(device).arch) if kind == "fp8" else BF16
    lengths = ((20, 20), (3, 50))
    total, keys = (sum(each) for each in zip(*lengths))
    q, k, v = (torch.randn(count, 2, width, generator=generator).to(dtype).to(device)
               for count, width in ((total, 192), (keys, 192), (keys, 128)))
    order = torch.randperm(keys, generator=generator).to(torch.int32).to(device)
    starts = [starts_of([each[index] for each in lengths]).to(device) for index in (0, 1)]
    scales = [torch.tensor([value], device=device) for value in (0.5, 0.25, 2.0)] if kind == "fp8" else [None] * 3
    plan = [torch.empty(shape, dtype=one, device=device)
            for shape, one in aiter_like.get_ps_metadata_info_v1(2, 2, 20)]
    aiter_like.get_ps_metadata_v1(*starts, torch.tensor([20, 50]), 1, 2, *plan)
    out = torch.full((total, 2, 128), math.nan, dtype=BF16, device=device)
    partial, sums = torch.zeros(256, 2, 128, device=device), torch.zeros(256, 2, device=device)
    run(backend, aiter_like.mla_prefill_ps_asm_fwd, q, k, v, *starts, order, plan[1], plan[2], 20, 0.1, causal, partial,
        sums, out, *scales)
    aiter_like.mla_reduce_v1(partial, sums, *plan[3:], 256, 0, out, None)
    factors = [1.0 if scale is None else scale.item() for scale in scales]
    for index, (rows, count) in enumerate(lengths):
        one = slice(*starts[0][index:index + 2].tolist())
        pages = order[slice(*starts[1][index:index + 2].tolist())].long()
        keys_of, values = (tensor[pages].cpu().double() * factor for tensor, factor in zip((k, v), factors[1:]))
        scores = torch.einsum("qhd,khd->hqk", q[one].cpu().double() * factors[0], keys_of) * 0.1
        if causal:
            hidden = torch.arange(count) > torch.arange(rows)[:, None] + count - rows
            scores = scores.masked_fill(hidden, -math.inf)
        p = scores.softmax(-1)
        expected, weighted = (torch.einsum("hqk,khd->qhd", p, x) for x in (values, values.abs()))
        assert_within("out", out[one], expected, 2**-7 * weighted + 2**-8 * expected.abs() + 1e-6)
    returned, _ = aiter_like.mla_prefill_ps_fwd(q, k, v, torch.empty_like(out), *starts, order, plan[1], plan[2], 20,
                                                causal, *plan[3:], 0.1, *scales)
    assert_within("mla_prefill_ps_fwd", returned, out.double().cpu(), 2**-7 + 2**-7 * out.double().cpu().abs())


@pytest.mark.parametrize("backend", ("ck", "triton", "torch"))
def test_rows_of_no_sequence(device, run, backend):
    """They stay as they were, and those of a sequence without keys are 0."""
    case = make(device, ((2, 9), (1, 0), (3, 5)), 4, 16)
    out = torch.full_like(case.new_out(), 7.0)
    starts = case.qo_indptr[:3], case.kv_indptr[:3], case.kv_indices, case.tables[3][:2]
    _, lse = run(backend, aiter_like.mla_prefill_fwd, case.q, case.kv, out, *starts, 2)
    assert lse[:2].isfinite().all() and out[:2].isfinite().all() and not (out[:2] == 7).all(1).any()
    assert (out[2] == 0).all() and (lse[2] == -math.inf).all() and (out[3:] == 7).all()
    if backend == "ck":
        return
    q, k = (torch.ones(6, 2, 192, dtype=BF16, device=device) for _ in "qk")
    starts = starts_of([2, 1]).to(device), starts_of([5, 0]).to(device), torch.arange(5, device=device).int(), \
        None, None
    for function in (aiter_like.mla_prefill_ps_asm_fwd, aiter_like.mla_prefill_ps_fwd):
        out = torch.full((6, 2, 128), 7.0, dtype=BF16, device=device)
        given = (q, k, k[..., :128]) + ((out,) if function is aiter_like.mla_prefill_ps_fwd else ())
        rest = (True,) if function is aiter_like.mla_prefill_ps_fwd else (0.1, True, None, None, out)
        run(backend, function, *given, *starts, 2, *rest)
        assert (out[:2] == 1).all() and (out[2] == 0).all() and (out[3:] == 7).all()


def test_bad_input(device):
    case = make(device, ((4, 9),), 4)
    with pytest.raises(ValueError, match="kv_buffer must have 4 dimensions"):
        aiter_like.mla_prefill_fwd(case.q, case.kv[0], case.new_out(), *case.tables, 4)
    with pytest.raises(ValueError, match="K must have 4 dimensions"):
        aiter_like.mla_prefill_ps_asm_fwd(case.q, case.q[0], case.q, case.qo_indptr, case.kv_indptr, case.kv_indices,
                                          None, None, 4, 0.1, True, None, None, case.new_out())
    with pytest.raises(TypeError, match="is_causal must be True or False"):
        aiter_like.mla_prefill_ps_asm_fwd(case.q, case.q, case.q, case.qo_indptr, case.kv_indptr, case.kv_indices,
                                          None, None, 4, 0.1, 1, None, None, case.new_out())
