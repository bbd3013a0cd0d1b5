# SPDX-License-Identifier: MIT
"""AITER's attention that rounds to fp8 by itself, against the formula in float64 over rounded tensors."""

from __future__ import annotations

import pytest
import torch

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import mha_fp8

FP8, HEADS, KV, DIM = torch.float8_e4m3fnuz, 4, 2, 64


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(x, share=1):
    """Of one sequence [tokens, heads, dim], in float64."""
    groups = x.float().unflatten(1, (-1, share))
    own = groups.abs().amax((0, 2, 3), keepdim=True)
    return ((groups * (240 / own)).to(FP8).double() * (own / 240)).view(x.shape)


def expect(q, k, v, causal=False):
    k, v = (each.repeat_interleave(HEADS // KV, 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    if causal:
        ahead = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
        scores = scores.masked_fill(ahead > 0, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def of_rounded(q, k, v, causal=False):
    return expect(rounded(q, HEADS // KV), rounded(k), rounded(v), causal)


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_dense(simulated, dtype):
    q, k, v = (numbers(2, length, heads, DIM, seed=seed, dtype=dtype)
               for seed, (length, heads) in enumerate(((20, HEADS), (28, KV), (28, KV))))
    k[1] *= 2
    found = mha_fp8.flash_attn_fp8_func(q, k, v, causal=True)
    assert found.dtype == torch.float32
    for b in range(2):
        close(found[b], of_rounded(q[b], k[b], v[b], True))


def test_packed(simulated):
    q, k, v = numbers(21, HEADS, DIM), numbers(30, KV, DIM, seed=1), numbers(30, KV, DIM, seed=2)
    q[8:] *= 4
    starts = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 8, 21], [0, 14, 30])]
    found = mha_fp8.flash_attn_varlen_fp8_func(q, k, v, *starts, 13, 16)
    for i, j in zip(*(zip(each[:-1].tolist(), each[1:].tolist(), strict=True) for each in starts), strict=True):
        close(found[slice(*i)], of_rounded(q[slice(*i)], k[slice(*j)], v[slice(*j)]))


@pytest.mark.parametrize("is_packed", (False, True))
def test_gradients(simulated, is_packed):
    """Those of the attention over what was rounded, in the dtype of the tensors."""
    wide = [numbers(20, heads, DIM, seed=seed).requires_grad_() for seed, heads in enumerate((HEADS, KV, KV))]
    weights = numbers(20, HEADS, DIM, seed=5)
    if is_packed:
        starts = torch.tensor([0, 20], dtype=torch.int32)
        found = mha_fp8.flash_attn_varlen_fp8_func(*wide, starts, starts, 20, 20)
    else:
        found = mha_fp8.flash_attn_fp8_func(*(each[None] for each in wide))[0]
    grads = torch.autograd.grad(found, wide, weights.float())
    narrow = [rounded(each.detach(), share).requires_grad_()
              for each, share in zip(wide, (HEADS // KV, 1, 1), strict=True)]
    expected = torch.autograd.grad(expect(*narrow), narrow, weights.double())
    for got, one in zip(grads, expected, strict=True):
        assert got.dtype == torch.bfloat16
        close(got, one)


def test_bad_arguments():
    q, k = numbers(2, 20, HEADS, DIM), numbers(2, 20, KV, DIM)
    with pytest.raises(UnsupportedError, match="flash_attn_fp8_func: no backend supports qv, softcap"):
        mha_fp8.flash_attn_fp8_func(q, k, k, qv=q, softcap=3.0)
    with pytest.raises(TypeError, match="flash_attn_fp8_func: q must have dtype"):
        mha_fp8.flash_attn_fp8_func(q.to(FP8), k, k)
    with pytest.raises(ValueError, match="flash_attn_fp8_func: q must have a multiple of the 2 heads of k, got 3"):
        mha_fp8.flash_attn_fp8_func(q[:, :, :3], k, k)
    with pytest.raises(UnsupportedError, match="flash_attn_varlen_fp8_func: no backend supports sm_margin"):
        mha_fp8.flash_attn_varlen_fp8_func(q[0], k[0], k[0], None, None, 20, 20, sm_margin=1)
    with pytest.raises(TypeError, match="flash_attn_varlen_fp8_func: cu_seqlens_q must be a tensor"):
        mha_fp8.flash_attn_varlen_fp8_func(q[0], k[0], k[0], None, None, 20, 20)
