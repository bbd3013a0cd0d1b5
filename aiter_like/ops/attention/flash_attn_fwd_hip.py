# SPDX-License-Identifier: MIT
"""Backend "hip" of flash_attn_fwd: which build of csrc/attention/flash_attn_fwd.hip serves a call."""

from __future__ import annotations

import torch

from aiter_like import dtypes
from aiter_like.device import Target
from aiter_like.dtypes import ROUNDINGS
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import FLOATS, AttentionCall, rounding_of
from aiter_like.ops.attention.checks import ALIGNMENT, MAX_ROWS, mfma_refusal, scale_refusal

HEAD_DIMS = (64, 128)
MASKS = ("none", "right", "both")  # sides on which keys may be hidden; the index is the kernel's MASK
VARIANTS = ((torch.bfloat16, 0), (torch.bfloat16, 1), (torch.bfloat16, 2), (torch.float16, 0), (torch.float16, 2))
_MAX_ROW_STRIDE = 2**24 - 1  # elements: 64 rows within a signed 32-bit offset


def variant(dtype: torch.dtype, head_dim: int, how_v3_bf16_cvt: int, mask: str) -> Instance:
    """One build of the kernel. Varlen, strides, lengths, grouped heads, LSE and split keys are arguments of each."""
    rounding = rounding_of(dtype, how_v3_bf16_cvt)
    return Instance(f"{dtypes.name(dtype)}_d{head_dim}_{mask}_{ROUNDINGS[rounding]}",
                    {"ELEMENT": "bf16" if dtype == torch.bfloat16 else "f16", "HEAD_DIM": head_dim,
                     "ROUNDING": rounding, "MASK": MASKS.index(mask)})


def _instance(call: AttentionCall) -> Instance:
    mask = "both" if call.window_left >= 0 else "right" if call.window_right >= 0 else "none"
    return variant(call.q.dtype, call.head_dim, call.how_v3_bf16_cvt, mask)


@compile_ops("attention/flash_attn_fwd.hip", gen_func=_instance, platforms=("hip",), prebuild=[
    variant(dtype, head_dim, rounding, mask)
    for head_dim in HEAD_DIMS for dtype, rounding in VARIANTS for mask in MASKS])
def flash_attn_fwd_hip(call: AttentionCall) -> None: ...


def hip_refusal(target: Target, call: AttentionCall) -> str | None:
    """Why the kernel cannot serve a call; None: it can."""
    if reason := mfma_refusal(target):
        return reason
    if call.q.dtype not in FLOATS:
        return f"bf16 or fp16, got {call.q.dtype}"
    if call.head_dim not in HEAD_DIMS or call.head_dim_v != call.head_dim:
        return f"head dimension must be one of {HEAD_DIMS}, got {call.head_dim} and {call.head_dim_v}"
    refused = [name for name in call.features if name != "seqlens"]
    if call.sink_size and call.window_left >= 0:
        refused.append("sink tokens")
    if refused:
        return f"no {', '.join(refused)}"
    return scale_refusal(call.softmax_scale) or _stride_refusal(call)


def _stride_refusal(call: AttentionCall) -> str | None:
    """Rows are read in 16 bytes; K and V through descriptors of 64 rows."""
    row = 0 if call.is_varlen else 1  # dimension of rows
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v), ("out", call.out)):
        if tensor.shape[row] > MAX_ROWS:
            return f"length of {name} at most {MAX_ROWS}, got {tensor.shape[row]}"
        strides = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
        if any(2 * stride % ALIGNMENT for stride in strides):
            return f"strides of {name} must be multiples of 8 elements, got {tensor.stride()}"
        stride = tensor.stride(row)
        if name in ("k", "v") and tensor.shape[row] > 1 and not call.head_dim <= stride <= _MAX_ROW_STRIDE:
            return f"row stride of {name} at least {call.head_dim} and at most {_MAX_ROW_STRIDE} elements, got {stride}"
    return None
