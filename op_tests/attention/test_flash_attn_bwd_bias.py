# SPDX-License-Identifier: MIT
"""A bias of −inf in attention's derivatives: rows of which it hides all keys, or some."""

import math

import pytest
import torch
from attention_bwd_cases import BF16, FEATURES, make

import aiter_like
from aiter_like.ops.attention.call import dbias_call
from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.ops.attention.flash_attn_dbias import flash_attn_dbias
from aiter_like.testing.attention_bwd import check_attention_gradients, fill_forward

HIDDEN = (3, 5)  # rows that see nothing


def hide(bias: torch.Tensor) -> None:
    """All keys of two rows, some of two others, in the first head."""
    bias[..., 0, HIDDEN, :] = bias[..., 0, 2, :7] = bias[..., 0, 6, 4:] = -math.inf


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_bias_of_a_call(device, run, backend):
    call = make(device, **FEATURES["softcap, bias, ALiBi"])
    hide(call.bias)
    run(backend, flash_attn_bwd, fill_forward(call))
    check_attention_gradients(call)
    assert (call.dq[0, HIDDEN, 0] == 0).all() and (call.dq[0, HIDDEN, 1] != 0).any()
    of_bias = dbias_call(call, torch.full_like(call.bias, math.nan))
    run(backend, flash_attn_dbias, of_bias)
    check_attention_gradients(of_bias)
    assert (of_bias.dbias[call.bias == -math.inf] == 0).all()


def gradients_float64(leaves, dout, softcap, causal):
    """Of Σ out · dout + Σ lse over the rows that see a key."""
    q, k, v, bias = leaves = [tensor.detach().cpu().double().requires_grad_() for tensor in leaves]
    scores = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) / math.sqrt(q.shape[-1])
    scores = (softcap * torch.tanh(scores / softcap) if softcap else scores) + bias
    rows, keys = scores.shape[-2:]
    if causal:
        hidden = torch.arange(keys) > torch.arange(rows)[:, None] + keys - rows
        scores = scores.masked_fill(hidden, -math.inf)
    sees = (scores > -math.inf).any(-1, keepdim=True)
    scores = torch.where(sees, scores, 0.0)
    out = torch.einsum("bhqk,bkd->bqhd", torch.where(sees, scores.softmax(-1), 0.0), v[:, :, 0])
    lse = torch.where(sees[..., 0], scores.logsumexp(-1), 0.0)
    return torch.autograd.grad((out, lse), leaves, (dout.cpu().double(), torch.ones_like(lse)))


@pytest.mark.parametrize("packed", (False, True), ids=("dense", "packed"))
@pytest.mark.parametrize("softcap, causal", ((0.0, False), (2.0, False), (0.0, True)))
def test_trainable_bias(device, run, softcap, causal, packed):
    call = make(device, lengths=(9, 12), heads=(1 if packed else 2, 1), bias="heads")
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (call.q, call.k, call.v, call.bias.float())]
    hide(leaves[3].data)
    options = {"logits_soft_cap": softcap, "causal": causal, "return_lse": True}
    if packed:
        starts = [torch.tensor([0, length], dtype=torch.int32, device=device) for length in (9, 12)]
        out, lse = run("torch", aiter_like.flash_attn_varlen_func, *(leaf[0] for leaf in leaves[:3]), *starts, 9, 12,
                       bias=leaves[3][0, 0], **options)
        out, lse = out[None], lse[None]
    else:
        out, lse = run("torch", aiter_like.flash_attn_func, *leaves[:3], bias=leaves[3], **options)
    assert (out[0, HIDDEN, 0] == 0).all() and (lse[0, 0, HIDDEN] == -math.inf).all()
    got = torch.autograd.grad((out, lse), leaves, (call.dout, torch.ones_like(lse)))
    assert (got[0][0, HIDDEN, 0] == 0).all() and (got[3][0, 0, HIDDEN] == 0).all()
    for one, other in zip(got, gradients_float64(leaves, call.dout, softcap, causal), strict=True):
        bound = 2**-7 if one.dtype == BF16 else 2**-16
        torch.testing.assert_close(one.cpu().double(), other, rtol=bound, atol=bound * other.abs().max().item())
