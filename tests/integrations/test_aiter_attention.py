# SPDX-License-Identifier: MIT
"""AITER's Triton functions of attention that have other parameters here, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import flash3, mha_common

FP8 = torch.float8_e4m3fnuz
SCALES = [torch.tensor([one]) for one in (0.5, 2.0, 0.25)]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def expect(q, k, v, causal=False, window=(-1, -1), softcap=0.0, scale=None):
    """Of one sequence [tokens, heads, dim]."""
    k, v = (each.double().repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * (scale or q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(k.shape[0]) - torch.arange(q.shape[0])[:, None] - (k.shape[0] - q.shape[0])
    hidden = (ahead > 0) & causal
    for limit, distance in zip(window, (-ahead, ahead), strict=True):
        hidden |= (distance > limit) & (limit >= 0)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def close(got, expected, tolerance=0.02):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_dense(simulated):
    q, k, v = numbers(2, 20, 4, 64), numbers(2, 28, 2, 64, seed=1), numbers(2, 28, 2, 64, seed=2)
    found = flash3.flash_attn_func(q, k, v, 0.2, causal=True, window_size=(7, 0), softcap=5.0, num_splits=2,
                                            pack_gqa=True, sm_margin=4)
    for b in range(2):
        close(found[b], expect(q[b], k[b], v[b], True, (7, 0), 5.0, 0.2))
    narrow = [each.to(FP8) for each in (q, k, v)]
    found = flash3.flash_attn_func(*narrow, None, True, None, *SCALES)
    wide = [each.float() * scale for each, scale in zip(narrow, SCALES, strict=True)]
    close(found[0], expect(*(each[0] for each in wide), True), 0.06)
    with pytest.raises(UnsupportedError, match="flash_attn_func: no backend supports qv, attention_chunk"):
        flash3.flash_attn_func(q, k, v, qv=q, attention_chunk=64)
    with pytest.raises(UnsupportedError, match="flash_attn_func: no backend supports softcap"):
        flash3.flash_attn_func(*narrow, softcap=5.0)
    with pytest.raises(ValueError, match="flash_attn_func: k_descale is for fp8 tensors"):
        flash3.flash_attn_func(q, k, v, k_descale=SCALES[0])


@pytest.mark.parametrize("is_fp8", (False, True))
def test_packed(simulated, is_fp8):
    q, k, v = numbers(21, 4, 64), numbers(30, 4, 64, seed=1), numbers(30, 4, 64, seed=2)
    starts = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 8, 21], [0, 14, 30])]
    scales = SCALES if is_fp8 else [None] * 3
    given = [each.to(FP8) for each in (q, k, v)] if is_fp8 else [q, k, v]
    found = flash3.flash_attn_varlen_func(*given, *starts, 13, 16, None, True, *scales, (5, 0), 0, 30.0)
    wide = [each.float() * (1 if scale is None else scale) for each, scale in zip(given, scales, strict=True)]
    for rows, keys in zip(*([slice(*ends) for ends in each.unfold(0, 2, 1).tolist()] for each in starts), strict=True):
        close(found[rows], expect(wide[0][rows], wide[1][keys], wide[2][keys], True, (5, 0), 30.0),
              0.06 if is_fp8 else 0.02)
    with pytest.raises(UnsupportedError, match="flash_attn_varlen_func: no backend supports attention_chunk"):
        flash3.flash_attn_varlen_func(*given, *starts, 13, 16, attention_chunk=64)
    with pytest.raises(ValueError, match="flash_attn_varlen_func: q_descale is for fp8 tensors"):
        flash3.flash_attn_varlen_func(q, k, v, *starts, 13, 16, q_descale=SCALES[0])


@pytest.mark.parametrize("is_causal", (False, True))
def test_first_tokens(simulated, is_causal):
    q, k, v = numbers(21, 4, 64), numbers(21, 2, 64, seed=1), numbers(21, 2, 64, seed=2)
    starts, lengths, out = torch.tensor([0, 8]), torch.tensor([8, 13]), torch.empty_like(q)
    assert flash3.context_attention_fwd(q, k, v, out, starts, lengths, 13, is_causal) is None
    for rows in (slice(8), slice(8, 21)):
        close(out[rows], expect(q[rows], k[rows], v[rows], is_causal))
    with pytest.raises(ValueError, match="context_attention_fwd: b_start_loc must be the sums of b_seq_len, from 0"):
        flash3.context_attention_fwd(q, k, v, out, starts, lengths - 1, 13)
    with pytest.raises(ValueError, match="context_attention_fwd: b_seq_len must have shape"):
        flash3.context_attention_fwd(q, k, v, out, starts, lengths[:1], 13)
    flash3.context_attention_fwd(q[:0], k[:0], v[:0], out[:0], starts[:0], lengths[:0], 0)


@pytest.mark.parametrize("has_prefix", (False, True))
@pytest.mark.parametrize("is_causal", (False, True))
def test_new_tokens_behind_a_prefix(simulated, is_causal, has_prefix):
    q, k, v = numbers(21, 4, 64), numbers(21, 2, 64, seed=1), numbers(21, 2, 32, seed=2)
    cache_k, cache_v = numbers(40, 2, 64, seed=3), numbers(40, 2, 32, seed=4)
    starts, out = torch.tensor([0, 8, 21], dtype=torch.int32), torch.empty(21, 4, 32).bfloat16()
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(5))[:17] if has_prefix else torch.empty(0).long()
    prefix = torch.tensor([0, 17, 17] if has_prefix else [0, 0, 0], dtype=torch.int32)
    call = q, k, v, out, cache_k, cache_v, starts, prefix, slots
    assert flash3.extend_attention_fwd(*call, None, is_causal, None, 13, 0.2, 20.0) is None
    for own, old in ((slice(8), slots), (slice(8, 21), slots[:0])):
        keys, values = (torch.cat((cache[old], new[own])) for cache, new in ((cache_k, k), (cache_v, v)))
        scores = torch.einsum("qhd,khd->hqk", q[own].double(), keys.double().repeat_interleave(2, 1)) * 0.2
        scores = 20 * torch.tanh(scores / 20)
        ahead = torch.arange(len(keys)) - len(old) - torch.arange(len(q[own]))[:, None]
        scores = scores.masked_fill((ahead > 0) & is_causal, -torch.inf)
        close(out[own], torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.double().repeat_interleave(2, 1)), 0.03)
    with pytest.raises(UnsupportedError, match="extend_attention_fwd: no backend supports custom_mask"):
        flash3.extend_attention_fwd(*call, q, is_causal, starts, 13)


@pytest.mark.parametrize(("kind", "floors"), [("plain", (1e-2, 1.5e-2, 1e-5)), ("dropout", (0.1, 2.0, 0.1)),
                                              ("fp8", (0.5, 1.0, 0.1))])
def test_tolerances(kind, floors):
    """Of numbers so small that their rounding does not matter, the floors; of large ones, more than those."""
    options = {"dropout_p": 0.5, "dropout_mask": torch.ones(1, 2, 6, 6, dtype=torch.bool)} if kind == "dropout" else {}
    q, k, v, ahead = (numbers(1, 6, 2, 16, seed=seed) for seed in range(4))
    out, gradients, forward, backward = mha_common.attention_ref_with_tol(
        q / 64, k / 64, v / 64, ahead / 64, is_fp8=kind == "fp8", **options)
    assert forward == (floors[0], floors[2]) and backward == [(floors[1], floors[2])] * 3
    leaves = [(each / 64).double().requires_grad_() for each in (q, k, v)]
    exact = expect(*(each[0] for each in leaves)) * (2 if options else 1)
    exact.backward(ahead[0].double() / 64)
    for got, one in zip((out[0], *(each[0] for each in gradients)), (exact, *(each.grad[0] for each in leaves)),
                        strict=True):
        close(got.detach(), one.detach())
    _, _, forward, backward = mha_common.attention_ref_with_tol(q * 9, k, v * 999, ahead * 999,
                                                                      is_fp8=kind == "fp8", **options)
    assert forward[0] > floors[0] and all(atol > floors[1] and rtol == floors[2] for atol, rtol in backward)
