# SPDX-License-Identifier: MIT
"""Biases and slopes of any finite size, with float64: torch.finfo's limits hide nothing for good, as −inf does."""

import itertools
import math

import pytest
import torch
from attention_bwd_cases import make as make_backward
from attention_cases import BF16, packed, random
from paged_cases import make

import aiter_like
from aiter_like.ops.attention.call import dense_call
from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.testing.attention_bwd import attention_gradients_float64, fill_forward
from aiter_like.testing.compare import assert_within

ROWS, KEYS = 13, 70
OPTIONS = {"plain": {}, "softcap": {"logits_soft_cap": 2.0}, "slopes": {"alibi_slopes": (0.5, 2.0)},
           "huge slopes": {"alibi_slopes": (3e38, -3e38)}, "sink": {"sink_ptr": (-1.0, torch.finfo(torch.float32).min)}}


def far_bias(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[ROWS, KEYS], and which rows have no other scores: float64 tells apart what fp32 rounds off beside −1e9."""
    lowest, highest = torch.finfo(dtype).min, torch.finfo(dtype).max
    bias = torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(0))
    bias[0] = lowest
    bias[1], bias[1, :9] = -math.inf, lowest
    bias[2, 3:] = lowest  # beside ordinary ones
    bias[3, ::3], bias[3, 1::3], bias[3, 2::3] = -1e38, -2e38, lowest
    bias[4] = highest
    bias[5], bias[5, 40] = lowest, highest
    bias[6] = -1e9
    bias[7] = -math.inf
    bias[8], bias[8, 30:] = -2e30, -1e30
    bias[9] = 0.7 * lowest
    bias[10, :], bias[10, 64:] = -math.inf, lowest
    bias[11, ::2] = 1e20
    return bias.to(dtype), torch.tensor([6])


def attention_float64(q, k, v, bias, alibi_slopes=None, logits_soft_cap=0.0, sink_ptr=None):
    """out [rows, heads, dim] and lse [heads, rows] of [rows, heads, dim]."""
    q, k, v = (x.cpu().double().transpose(0, 1) for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if logits_soft_cap:
        scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
    if bias is not None:
        scores = scores + bias.cpu().double()
    if alibi_slopes is not None:
        rows, keys = scores.shape[1:]
        distance = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
        scores = scores - alibi_slopes.cpu().double()[:, None, None] * distance.abs()
    every = scores
    if sink_ptr is not None:
        every = torch.cat((scores, sink_ptr.cpu().double()[:, None, None].expand(-1, scores.shape[1], 1)), -1)
    blind = (every == -math.inf).all(-1, keepdim=True)
    p = every.masked_fill(blind, 0.0).softmax(-1)[..., :scores.shape[-1]].masked_fill(blind, 0.0)
    return (p @ v).transpose(0, 1), every.logsumexp(-1)


def check(out, lse, *inputs, **options):
    expected, expected_lse = attention_float64(*inputs, **options)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=2**-7, atol=2**-6)
    if lse is not None:
        torch.testing.assert_close(lse.cpu(), expected_lse.float(), rtol=1e-6, atol=2**-9)


def options_of(name, device):
    return {key: torch.tensor(value, device=device) if isinstance(value, tuple) else value
            for key, value in OPTIONS[name].items()}


@pytest.mark.parametrize("backend, name, dtype", (
    *itertools.product(("triton", "torch"), ("plain", "softcap"), (BF16,)),
    *itertools.product(("triton", "torch"), ("sink", "slopes"), (torch.float32,)),
    ("ck", "plain", BF16), ("ck", "sink", torch.float32),
    pytest.param("ck", "softcap", BF16, marks=pytest.mark.exhaustive),
    pytest.param("ck", "slopes", torch.float32, marks=pytest.mark.exhaustive)))
def test_bias(device, run, backend, name, dtype):
    bias, alone = far_bias(dtype)
    q, k, v = (random(device, (length, 2, 64), BF16, seed) for seed, length in enumerate((ROWS, KEYS, KEYS)))
    q[alone] = 0
    if "slopes" in name:
        bias[alone] = 0.0
    bias, options = bias.to(device), options_of(name, device)
    out, lse = run(backend, aiter_like.flash_attn_func, q[None], k[None], v[None], bias=bias, return_lse=True,
                   how_v3_bf16_cvt=0, **options)
    check(out[0], lse[0], q, k, v, bias, **options)


@pytest.mark.parametrize("backend", ("ck", "triton", "torch"))
def test_slopes(device, run, backend):
    """Times the distance 0 an infinite slope is NaN: the nearest key is left, or for negative ones the farthest."""
    q, k, v = (random(device, (length, 2, 64), BF16, seed) for seed, length in enumerate((ROWS, KEYS, KEYS)))
    options = options_of("huge slopes", device)
    out = run(backend, aiter_like.flash_attn_func, q[None], k[None], v[None], how_v3_bf16_cvt=0, **options)
    check(out[0], None, q, k, v, None, **options)


@pytest.mark.parametrize("backend", ("hip", "ck", "triton", "torch"))
def test_slopes_over_pages(device, run, backend):
    case, options = make(device, [(2, KEYS)], heads=2, kv_heads=2), options_of("huge slopes", device)
    out = case.call(run, backend, **options, causal=True)
    k, v = (pages[case.block_table[0, :-(-KEYS // 16)].long()].flatten(0, 1)[:KEYS] for pages in (case.k, case.v))
    bias = torch.zeros(2, KEYS)
    bias[0, -1] = -math.inf
    check(out, None, case.q, k, v, bias, **options)


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_bias_over_pages(device, run, backend):
    bias, alone = far_bias(torch.float32)
    case = make(device, [(ROWS, ROWS)], heads=2, kv_heads=2)
    case.q[alone] = 0
    bias = bias[:, :ROWS].contiguous().to(device)
    k, v = (pages[case.block_table[0, :1].long()][0, :ROWS] for pages in (case.k, case.v))
    check(case.call(run, backend, qq_bias=bias, causal=False), None, case.q, k, v, bias)


@pytest.mark.parametrize("backend", ("ck", "triton", "torch"))
def test_packed(device, run, backend):
    bias, alone = far_bias(torch.float32)
    q, k, v, *starts = packed(device, (ROWS, 2), (KEYS, 40), 2, 2, 64, BF16)
    q[alone] = 0
    bias = torch.cat((bias, bias[:2])).to(device)
    out, lse = run(backend, aiter_like.flash_attn_varlen_func, q, k, v, *starts, bias=bias, return_lse=True,
                   how_v3_bf16_cvt=0)
    check(out[:ROWS], lse[:, :ROWS], q[:ROWS], k[:KEYS], v[:KEYS], bias[:ROWS])
    check(out[ROWS:], lse[:, ROWS:], q[ROWS:], k[KEYS:], v[KEYS:], bias[ROWS:, :40])


def test_parts(device, run):
    """Each part of the keys has a maximum of its own; 200 keys: the same bias three times."""
    bias, alone = far_bias(torch.float32)
    bias = bias.repeat(1, 3)[:, :200].to(device)
    q, k, v = (random(device, (1, length, 2, 64), BF16, seed) for seed, length in enumerate((ROWS, 200, 200)))
    q[0, alone] = 0
    sink = torch.tensor(OPTIONS["sink"]["sink_ptr"], device=device)
    out, lse = torch.empty_like(q), torch.empty(1, 2, ROWS, device=device)
    run("triton", flash_attn_fwd, dense_call(out, lse, q, k, v, bias=bias[None, None], sink=sink, num_splits=3))
    check(out[0], lse[0], q[0], k[0], v[0], bias, sink_ptr=sink)


@pytest.mark.parametrize("features", (
    {"bias": "heads"}, {"bias": "shared", "alibi": 1, "softcap": 2.0, "dtype": torch.float16, "heads": (4, 2)},
    {"bias": "heads", "sink": True, "dlse": True, "window": (-1, 0), "dropout_p": 0.3},
    {"bias": "shared", "packed": ((ROWS, 0, 2), (KEYS, 3, 40)), "sink": True}), ids=lambda features: " ".join(features))
@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_derivatives(device, run, backend, features):
    """P of a row sums up to 1 wherever its log-sum-exp lies, also where fp32 has no 1 beside that."""
    call = make_backward(device, **{"lengths": (ROWS, KEYS), **features})
    bias, alone = far_bias(torch.float32)
    call.q.flatten(0, -3)[alone] = 0
    if call.alibi_slopes is not None:
        bias[alone] = 0
    biases = call.bias.float()
    biases[..., :ROWS, :] = bias.to(device)
    call = call._replace(bias=biases)
    if call.sink is not None:
        call.sink[-1] = torch.finfo(torch.float32).min
    run(backend, flash_attn_bwd, fill_forward(call))
    for name, gradient in attention_gradients_float64(call).items():
        expected = gradient.expected
        limit = 2**-6 * expected.abs() + 2**-7 * expected.abs().max()
        assert_within(name, getattr(call, name), expected, limit)


def test_trainable_bias(device, run):
    """Of out and lse, by torch's autograd."""
    bias, alone = far_bias(torch.float32)
    leaves = [random(device, (1, length, 2, 64), torch.float32, seed) for seed, length in enumerate((ROWS, KEYS, KEYS))]
    leaves[0][0, alone] = 0
    leaves = [leaf.to(BF16).requires_grad_() for leaf in leaves] + [bias.to(device).requires_grad_()]
    out, lse = run("torch", aiter_like.flash_attn_func, *leaves[:3], bias=leaves[3], return_lse=True)
    seen = lse[..., [row for row in range(ROWS) if row != 7]]
    got = torch.autograd.grad((out, seen), leaves, (torch.ones_like(out), torch.ones_like(seen)))
    q, k, v = (leaf.detach().cpu().double()[0].transpose(0, 1) for leaf in leaves[:3])
    scores = q @ k.mT / 8 + bias.double()
    p = scores.masked_fill((bias == -math.inf).all(-1, keepdim=True), 0.0).softmax(-1)
    p[:, 7] = 0.0
    dp = torch.ones(2, ROWS, 64, dtype=torch.float64) @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True) + 1)
    for name, one, expected in zip("q k v bias".split(), got, (
            (ds @ k / 8).transpose(0, 1)[None], (ds.mT @ q / 8).transpose(0, 1)[None],
            p.sum(1)[..., None].expand_as(v).transpose(0, 1)[None], ds.sum(0)), strict=True):
        assert_within(name, one, expected, 2**-6 * expected.abs() + 2**-7 * expected.abs().max())
