# SPDX-License-Identifier: MIT
"""Backends "hip" and "ck" of flash_attn_bwd: which build of csrc/attention/flash_attn_bwd.hip serves a call.

One source serves both: "hip" has the head dimensions whose schedule was made by hand, and plain scores; "ck" composes
every other form out of the same tiles.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from aiter_like import dtypes
from aiter_like.device import Target, model_of
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import FLOATS, AttentionBackwardCall
from aiter_like.ops.attention.checks import ALIGNMENT, launch_refusal, mfma_refusal, scale_refusal

HEAD_DIMS = ((64, 64), (128, 128), (192, 128))  # of q and k, of v; those of backend hip
_CK_HEAD_DIMS = (64, 96, 128, 192, 256)
_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "float"}
_MAX_ROW_STRIDE = 2**23 - 1  # elements: 32 rows within 31 bits of bytes


class PlanCosts(NamedTuple):
    """Numbers of configs/gfx942/attention.toml: how the host divides the work."""

    least_steps: int
    turn_steps: int
    step_bytes: int


def variant(dtype: torch.dtype, head_dims: tuple[int, int], *, is_masked: bool, features: frozenset[str] = frozenset(),
            bias: torch.dtype | None = None, is_atomic: bool = False) -> Instance:
    """One build of the kernels. Packed or dense, strides, lengths, grouped heads, a learned sink are arguments of each.

    Args:
        head_dims: as computed with, of q and k, and of v; a call's are padded with zeros to them.
        is_masked: causal or window.
        features: of softcap, alibi, dropout and sink_tokens.
        bias: the elements of an added bias.
        is_atomic: dq is added up in any order.
    """
    name = "_".join((dtypes.name(dtype), f"d{head_dims[0]}x{head_dims[1]}", "mask" if is_masked else "nmask",
                     *sorted(features), *([f"bias{dtypes.name(bias)}"] if bias else []),
                     *(["atomic"] if is_atomic else [])))
    flags = {f"HAS_{feature.upper()}": feature in features
             for feature in ("softcap", "alibi", "dropout", "sink_tokens")}
    costs = model_of("gfx942", "attention.flash_attn_bwd_plan", PlanCosts)._asdict()
    return Instance(name, {"ELEMENT": _ELEMENTS[dtype], "HEAD_DIM": head_dims[0], "HEAD_DIM_V": head_dims[1],
                           "HAS_MASK": is_masked, "BIAS": _ELEMENTS[bias] if bias else "void",
                           "IS_ATOMIC": is_atomic, **flags, **{name.upper(): cost for name, cost in costs.items()}})


def _features(call: AttentionBackwardCall) -> frozenset[str]:
    found = {"softcap": call.softcap > 0, "alibi": call.alibi_slopes is not None, "dropout": call.dropout_p > 0,
             "sink_tokens": call.sink_size > 0 and call.window_left >= 0}
    return frozenset(name for name, is_on in found.items() if is_on)


def _instance(call: AttentionBackwardCall) -> Instance:
    dim, dim_v = (next(size for size in _CK_HEAD_DIMS if size >= tensor.shape[-1]) for tensor in (call.q, call.v))
    if (dim, dim_v) != (192, 128):
        dim = dim_v = max(dim, dim_v)
    return variant(call.q.dtype, (dim, dim_v), is_masked=call.window_left >= 0 or call.window_right >= 0,
                   features=_features(call), bias=None if call.bias is None else call.bias.dtype,
                   is_atomic=not call.deterministic)


def _prebuild() -> list[Instance]:
    return [variant(dtype, dims, is_masked=is_masked)
            for dims, dtype, is_masked in itertools.product(HEAD_DIMS, FLOATS, (False, True))]


@compile_ops("attention/flash_attn_bwd.hip", gen_func=_instance, platforms=("hip",), prebuild=_prebuild)
def flash_attn_bwd_hip(call: AttentionBackwardCall) -> None: ...


def hip_refusal(target: Target, call: AttentionBackwardCall) -> str | None:
    """Why backend hip cannot serve a call; None: it can."""
    if reason := ck_refusal(target, call):
        return reason
    head_dims = (call.q.shape[-1], call.v.shape[-1])
    if head_dims not in HEAD_DIMS:
        return f"head dimensions must be one of {HEAD_DIMS}, got {head_dims}"
    refused = sorted(_features(call)) + (["bias"] if call.bias is not None else [])
    return f"no {', '.join(refused)}" if refused else None


def ck_refusal(target: Target, call: AttentionBackwardCall) -> str | None:
    """Why neither backend can serve a call; None: ck can."""
    if reason := mfma_refusal(target):
        return reason
    if call.q.dtype not in FLOATS:
        return f"bf16 or fp16, got {call.q.dtype}"
    for dim in (call.q.shape[-1], call.v.shape[-1]):
        if dim % 8 or dim > _CK_HEAD_DIMS[-1]:
            return f"head dimensions must be multiples of 8, at most {_CK_HEAD_DIMS[-1]}, got {dim}"
    if call.bias is not None and call.bias.dtype not in _ELEMENTS:
        return f"bias of bf16, fp16 or fp32, got {call.bias.dtype}"
    row = 0 if call.forward.is_varlen else 1
    reason = scale_refusal(call.softmax_scale) or launch_refusal(call.forward, call.q.shape[row], call.k.shape[row])
    return reason or _stride_refusal(call, row)


def _stride_refusal(call: AttentionBackwardCall, row: int) -> str | None:
    """Rows are read and written in 16 bytes; blocks of them through descriptors."""
    for name in ("dq", "dk", "dv", "dout", "q", "k", "v", "out"):
        tensor = getattr(call, name)
        strides = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
        if any(2 * stride % ALIGNMENT for stride in strides):
            return f"strides of {name} must be multiples of 8 elements, got {tensor.stride()}"
        if tensor.shape[row] > 1 and tensor.stride(row) > _MAX_ROW_STRIDE:
            return f"row stride of {name} at most {_MAX_ROW_STRIDE} elements, got {tensor.stride(row)}"
    return None
