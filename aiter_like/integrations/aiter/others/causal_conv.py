# SPDX-License-Identifier: MIT
"""AITER's causal convolutions. That of prefill is ops/conv/causal_conv1d.py; that of decoding is made of torch's
functions, for there is no kernel of it here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import check_distinct

_NAME, _PREFILL, _METADATA = "causal_conv1d_update", "causal_conv1d", "build_causal_conv_prefill_metadata"
_INT32 = (torch.int32,)


@aiter("aiter aiter.ops.causal_conv1d_update")
def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor, out: Tensor, use_silu: bool,
                         cache_seqlens: Tensor, conv_state_indices: Tensor, pad_slot_id: int) -> None:
    """`out[b, c, t] = bias[c] + Σ weight[c, j] · (state ‖ x)[b, c, t + j]`, in fp32, rounded once; the state then ends
    with the new tokens.

    Args:
        x: [batch, dim, seqlen] bf16|fp16|fp32, of any strides.
        conv_state: [slots, dim, state_len], dtype of `x`, state_len ≥ width − 1; written.
        weight: [dim, width], dtype of `x`.
        bias: [dim], dtype of `x`; without elements: there is none.
        out: as `x`; written, but for the rows of `pad_slot_id`.
        use_silu: the results become out · sigmoid(out).
        cache_seqlens: [batch] int32: a state is a ring in which this token of it comes next; without elements: a state
            has its newest tokens last.
        conv_state_indices: [batch] int32: the slot of each sequence, different ones as `cache_indices` of
            causal_conv1d_split_qkv; without elements: its number.
        pad_slot_id: a sequence with this slot, or with one that is not there, changes nothing.
    """
    check.tensor(_NAME, "x", x, rank=3, dtypes=elements.FLOATS, last_contiguous=False)
    batch, dim, length = x.shape
    check.tensor(_NAME, "weight", weight, dtypes=(x.dtype,), shape=(dim, None), device=x.device, last_contiguous=False)
    check.tensor(_NAME, "conv_state", conv_state, dtypes=(x.dtype,), shape=(None, dim, None), device=x.device,
                 last_contiguous=False)
    kept, state_len = weight.shape[1] - 1, conv_state.shape[2]
    if kept < 0 or state_len < kept:
        raise ValueError(f"{_NAME}: conv_state must have at least {kept} tokens, one less than weight has columns, got "
                         f"shape {tuple(conv_state.shape)}")
    check.tensor(_NAME, "out", out, dtypes=(x.dtype,), shape=x.shape, device=x.device, last_contiguous=False)
    check.flag(_NAME, "use_silu", use_silu)
    check.integer(_NAME, "pad_slot_id", pad_slot_id)
    for name, tensor, kinds, size in (("bias", bias, (x.dtype,), dim), ("cache_seqlens", cache_seqlens, _INT32, batch),
                                      ("conv_state_indices", conv_state_indices, _INT32, batch)):
        check.tensor(_NAME, name, tensor, rank=1, device=x.device)
        if tensor.numel():
            check.tensor(_NAME, name, tensor, dtypes=kinds, shape=(size,))
    check_distinct(_NAME, "conv_state_indices", conv_state_indices, len(conv_state), "slot", pad_slot_id)
    if not x.numel():
        return
    slots = torch.arange(batch, device=x.device) if not conv_state_indices.numel() else conv_state_indices.long()
    is_there = (slots >= 0) & (slots < len(conv_state)) & (slots != pad_slot_id)
    before = conv_state[slots.where(is_there, 0)] if len(conv_state) else x.new_zeros(batch, dim, state_len)
    if cache_seqlens.numel():
        first = cache_seqlens.long()[:, None, None]
        window = before.gather(2, ((first + torch.arange(-kept, 0, device=x.device)) % max(state_len, 1)).expand(
            -1, dim, -1))
        newest = torch.arange(max(length - state_len, 0), length, device=x.device)
        after = before.scatter(2, ((first + newest) % max(state_len, 1)).expand(-1, dim, -1), x[:, :, newest])
    else:
        window = before[:, :, state_len - kept:]
        after = torch.cat((before, x), 2)[:, :, length:]
    whole = torch.cat((window, x), 2).float()
    found = sum(whole[:, :, j:j + length] * weight[:, j, None].float() for j in range(kept + 1))
    found = found + bias.float()[:, None] if bias.numel() else found
    found = torch.nn.functional.silu(found) if use_silu else found
    out.copy_(torch.where(is_there[:, None, None], found.to(x.dtype), out))
    _write(conv_state, slots, after, is_there)


def _write(conv_state: Tensor, slots: Tensor, after: Tensor, is_there: Tensor) -> None:
    """The states of sequences that are there; the others repeat one of them, or slot 0 as it is, so that the host need
    not look.
    """
    if not len(conv_state):
        return
    some = is_there.int().argmax()
    source = torch.where(is_there, torch.arange(len(slots), device=slots.device), some)
    value = torch.where(is_there.any(), after[source], conv_state[:1])
    conv_state.index_put_((torch.where(is_there.any(), slots[source], 0),), value)
