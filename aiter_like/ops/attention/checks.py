# SPDX-License-Identifier: MIT
"""Checks and refusals of all forms of attention, dense, packed, paged or fp8: tensors, lengths, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP
from aiter_like.dtypes import ROUNDINGS
from aiter_like.ops.attention.call import (
    FLOATS,
    FP8,
    AttentionBackwardCall,
    AttentionCall,
    AttentionDbiasCall,
    PagedCall,
)

_PAGED = "unified_attention"
MAX_ROWS = 2**30 - 1
"""Rows and keys that the kernels count: sums of positions stay within 32 bits."""

ALIGNMENT = 16
"""Bytes of which addresses and strides must be multiples for wide loads and for tensor descriptors."""

AITER_ROUNDING = 1
"""how_v3_bf16_cvt where nobody says otherwise."""

MIN_SCALE = 1e-8  # Below it a masked score is not below every real one in csrc/attention/flash_attn_softmax.h.
_MAX_SCALE = 1e30  # Kernels refuse it and what is larger.
_MAX_ROW_STRIDE = 2**24 - 1  # 128 rows within a signed 32-bit offset
_MAX_GRID = 65535  # HIP and CUDA alike take so many workgroups in a launch's second and third dimension.


def read_window(op: str, window_size: Sequence[int] | None, causal: bool) -> tuple[int, int, int]:
    """(left, right, sink tokens) of the operator.

    Raises:
        TypeError: not two or three integers; `causal` is no flag.
        ValueError: another count, or a size below -1.
    """
    check.flag(op, "causal", causal)
    if window_size is None:
        return -1, 0 if causal else -1, 0
    if not isinstance(window_size, (tuple, list)) or {*map(type, window_size)} - {int}:
        raise TypeError(f"{op}: window_size must be 2 or 3 integers or None, got {window_size!r}")
    left, right, sink_size = (*window_size, 0) if len(window_size) == 2 else (*window_size, -1, -1, -1)[:3]
    if len(window_size) > 3 or left < -1 or right < -1 or sink_size < 0:
        raise ValueError(f"{op}: window_size must be (left, right[, sink tokens]), -1 = no limit, got {window_size}")
    # Without a left limit sink tokens are visible anyway.
    return left, 0 if causal else right, sink_size if left >= 0 else 0


def read_rounding(op: str, round_mode: str, how_v3_bf16_cvt: int, q: Tensor) -> int:
    """how_v3_bf16_cvt of a round_mode.

    Raises:
        ValueError: no such mode, not for this dtype, or another one than how_v3_bf16_cvt asks for.
    """
    check.choice(op, "round_mode", round_mode, ROUNDINGS)
    found = ROUNDINGS.index(round_mode)
    if how_v3_bf16_cvt not in (AITER_ROUNDING, found):
        raise ValueError(f"{op}: round_mode and how_v3_bf16_cvt must agree, got {round_mode!r} and {how_v3_bf16_cvt}")
    if round_mode == "rtna" and q.dtype != torch.bfloat16:
        raise ValueError(f"{op}: round_mode 'rtna' is for bfloat16, got {q.dtype}")
    return found


def check_call(op: str, call: AttentionCall) -> None:
    """Checks a call of `op` by metadata, beyond annotations. Lengths may be on a GPU: kernels keep within tensors
    whatever they are.
    """
    q, k, v = call.q, call.k, call.v
    check.tensor(op, "q", q, rank=3 if call.is_varlen else 4)
    if call.is_fp8 and q.dtype != dtypes.fp8_of(target_of(q.device).arch):
        raise TypeError(f"{op}: q must have dtype {dtypes.fp8_of(target_of(q.device).arch)}, which this device "
                        f"computes with, got {q.dtype}")
    check.tensor(op, "k", k, shape=(*q.shape[:-3], None, None, q.shape[-1]))
    if not q.shape[-1] or not v.shape[-1]:
        raise ValueError(f"{op}: q and v must have a head dimension of at least 1, got shapes {tuple(q.shape)} and "
                         f"{tuple(v.shape)}")
    check_heads(op, call, call.num_heads, k.shape[-2], "k and v")
    check.tensor(op, "out", call.out, dtypes=FLOATS if call.is_fp8 else (q.dtype,), shape=(*q.shape[:-1], v.shape[-1]))
    if call.lse is not None:
        check.tensor(op, "lse", call.lse, shape=(*q.shape[:-3], call.num_heads, q.shape[-3]))
    for name in ("q_descale", "k_descale", "v_descale"):
        if getattr(call, name) is not None and not call.is_fp8:
            raise ValueError(f"{op}: {name} is for fp8 tensors, got it with {q.dtype}")
    if call.is_varlen:
        _check_varlen(op, call)
    else:
        _check_dense(op, call)
    _check_bias(op, call)
    check.real(op, "dropout_p", call.dropout_p, low=0.0)
    if call.dropout_p >= 1:
        raise ValueError(f"{op}: dropout_p must be below 1, got {call.dropout_p}")
    if call.dropout_p:
        check.tensor(op, "rng_state", call.rng_state)
    _check_numbers(op, call)
    for name in ("max_seqlen_q", "max_seqlen_k", "num_splits"):
        check.integer(op, name, getattr(call, name), low=0)
    check.choice(op, "how_v3_bf16_cvt", call.how_v3_bf16_cvt, (0, 1, 2))


def check_derivative(op: str, call: AttentionBackwardCall | AttentionDbiasCall, **written: Tensor) -> None:
    """Checks a call of `op` by metadata, beyond annotations; each result is of the shape and dtype of one of `written`.
    """
    check_call(op, call.forward)
    for name, like in (*written.items(), ("dout", call.out)):
        check.tensor(op, name, getattr(call, name), dtypes=(like.dtype,), shape=like.shape,
                     last_contiguous=name != "dbias")
    for name, tensor in (("lse", call.lse), ("dlse", call.dlse)):
        if tensor is not None:
            check.tensor(op, name, tensor, shape=call.lse.shape)
            if not tensor.is_contiguous():
                raise ValueError(f"{op}: {name} must be contiguous, got strides {tensor.stride()}")


def check_heads(op: str, call: Any, num_heads: int, num_kv_heads: int, names: str) -> None:
    """Each head of `names` has equally many heads of q, and each of these its slope and sink."""
    if num_heads % num_kv_heads if num_kv_heads else num_heads:
        raise ValueError(f"{op}: the heads of q must be a multiple of the heads of {names}, got {num_heads} and "
                         f"{num_kv_heads}")
    for name, tensor in (("alibi_slopes", call.alibi_slopes), ("sink", call.sink)):
        if tensor is not None:
            check.tensor(op, name, tensor, shape=(num_heads,) if tensor.ndim == 1 else (call.batch, num_heads))


def _check_numbers(op: str, call: AttentionCall | PagedCall) -> None:
    check.real(op, "softmax_scale", call.softmax_scale, low=MIN_SCALE)
    check.real(op, "softcap", call.softcap, low=0.0)
    for name in ("window_left", "window_right"):
        check.integer(op, name, getattr(call, name), low=-1)
    check.integer(op, "sink_size", call.sink_size, low=0)


def _check_dense(op: str, call: AttentionCall) -> None:
    if call.cu_seqlens_k is not None:
        raise ValueError(f"{op}: cu_seqlens_q and cu_seqlens_k must be given together")
    if call.seqlens_k is not None:
        check.tensor(op, "seqlens_k", call.seqlens_k, shape=(call.batch,))
    for name, length, given in (("q", call.q.shape[1], call.max_seqlen_q), ("k", call.k.shape[1], call.max_seqlen_k)):
        if given != length:
            raise ValueError(f"{op}: max_seqlen_{name} must be the length {length} of {name}, got {given}")


def _check_varlen(op: str, call: AttentionCall) -> None:
    if call.cu_seqlens_q.shape[0] == 0:
        raise ValueError(f"{op}: cu_seqlens_q must have one element more than there are sequences, got none")
    check.tensor(op, "cu_seqlens_k", call.cu_seqlens_k)
    if call.seqlens_k is not None:
        raise ValueError(f"{op}: seqlens_k is for dense tensors; cu_seqlens_k gives the lengths")


def _check_bias(op: str, call: AttentionCall) -> None:
    bias = call.bias
    if bias is None:
        return
    check.tensor(op, "bias", bias, rank=2 if call.is_varlen else 4, last_contiguous=False)
    shape = (call.q.shape[0] if call.is_varlen else call.max_seqlen_q, call.max_seqlen_k)
    sizes = zip(bias.shape[:-2], (call.batch, call.num_heads))
    if tuple(bias.shape[-2:]) != shape or any(got not in (1, size) for got, size in sizes):
        wanted = shape if call.is_varlen else (f"1 or {call.batch}", f"1 or {call.num_heads}", *shape)
        raise ValueError(f"{op}: bias must have shape ({', '.join(map(str, wanted))}), got {tuple(bias.shape)}")


def check_paged_call(call: PagedCall) -> object:
    """Checks a call by metadata, beyond annotations. Lengths and numbers of pages may be on a GPU: kernels keep within
    the tensors.
    """
    q, k, head_dim = call.q, call.k, call.q.shape[2]
    shape_k, shape_v = (None, None, None, head_dim), (*k.shape[:3], None)
    if call.is_shuffled:
        x = 16 // k.element_size()
        shape_k = (None, None, None, head_dim // x, x)
        shape_v = (k.shape[0], call.page_size // x, k.shape[2], None, x)
        if head_dim % x or call.page_size % x:
            raise ValueError(f"{_PAGED}: head dimension and page size of shuffled pages must be multiples of {x}, got "
                             f"{head_dim} and {call.page_size}")
    check.tensor(_PAGED, "k", k, shape=shape_k)
    check.tensor(_PAGED, "v", call.v, shape=shape_v)
    if k.dtype != q.dtype and k.dtype not in FP8:
        raise TypeError(f"{_PAGED}: k must have dtype {q.dtype} or fp8, got {k.dtype}")
    if 0 in (head_dim, call.v.shape[3], call.page_size):
        raise ValueError(f"{_PAGED}: pages and heads must not be empty, got k {tuple(k.shape)}, v "
                         f"{tuple(call.v.shape)}")
    check_heads(_PAGED, call, q.shape[1], k.shape[2], "k")
    out_dtypes = FP8 if call.output_scale is not None else FLOATS if q.dtype in FP8 else (q.dtype,)
    check.tensor(_PAGED, "out", call.out, dtypes=out_dtypes, shape=(None, None, call.v.shape[3]))
    if call.page_starts is None:
        check.tensor(_PAGED, "seqused_k", call.seqlens_k, shape=(call.batch,))
        check.tensor(_PAGED, "block_table", call.block_table, shape=(call.batch, None))
    else:
        check.tensor(_PAGED, "kv_page_indices", call.block_table, rank=1)
        if call.seqlens_k is not None:
            check.tensor(_PAGED, "kv_last_page_lens", call.seqlens_k, shape=(call.batch,))
    _check_paged_options(call)
    return SKIP if q.numel() == 0 or call.batch == 0 else None


def _check_paged_options(call: PagedCall) -> None:
    for name, scale in (("q_descale", call.q_descale), ("output_scale", call.output_scale)):
        if scale is not None and scale.numel() != 1:
            raise ValueError(f"{_PAGED}: {name} must have 1 element, got shape {tuple(scale.shape)}")
    for name, scale in (("k_descale", call.k_descale), ("v_descale", call.v_descale)):
        if scale is not None and scale.numel() != 1:
            check.tensor(_PAGED, name, scale, shape=(call.batch, call.k.shape[2]), last_contiguous=False)
    if call.qq_bias is not None:
        check.tensor(_PAGED, "qq_bias", call.qq_bias, shape=(call.qq_bias.shape[-1],) * 2)
    _check_numbers(_PAGED, call)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        check.integer(_PAGED, name, getattr(call, name), low=0)


def launch_refusal(call: AttentionCall, rows: int, keys: int) -> str | None:
    """Why a kernel whose grid has a dimension of heads and one of sequences cannot be launched; None: it can."""
    for name, size, limit in (("batch", call.batch, _MAX_GRID), ("number of heads", call.num_heads, _MAX_GRID),
                              ("length of q", rows, MAX_ROWS), ("length of k", keys, MAX_ROWS)):
        if size > limit:
            return f"{name} at most {limit}, got {size}"
    return None


def derivative_refusal(target: Target, call: AttentionBackwardCall | AttentionDbiasCall) -> str | None:
    """Says what no Triton kernel of a derivative takes; None: it takes the call."""
    forward = call.forward
    if max(forward.head_dim, forward.head_dim_v) > 256:
        return f"head dimension at most 256, got {max(forward.head_dim, forward.head_dim_v)}"
    if reason := launch_refusal(forward, forward.max_seqlen_q, forward.max_seqlen_k):
        return reason
    for name in ("q", "k", "v", "dout", "out"):
        if (stride := getattr(call, name).stride(-3)) > _MAX_ROW_STRIDE:
            return f"row stride of {name} at most {_MAX_ROW_STRIDE}, got {stride}"
    return None


def mfma_refusal(target: Target) -> str | None:
    """Why no kernel of MFMA can run on a GPU; None: each can."""
    if target.platform == "hip" and target.arch == "gfx942":
        return None
    return f"an MFMA kernel for gfx942, not for {target.arch}"


def fp8_refusal(target: Target, **tensors: Tensor) -> str | None:
    """Names a tensor with fp8 that the GPU does not compute with; None: there is none."""
    wanted = dtypes.fp8_of(target.arch)
    for name, tensor in tensors.items():
        if tensor.dtype in FP8 and tensor.dtype != wanted:
            return f"fp8 of {target.arch} is {wanted}, {name} has {tensor.dtype}"
    return None


def paged_refusal(target: Target, call: Any, *lengths: int) -> str | None:
    """Says what no Triton kernel takes of a call over pages.

    Args:
        lengths: of sequences, beside the room in the table.
    """
    if max(call.q.shape[2], call.v.shape[3]) > 256:
        return f"head dimensions at most 256, got {call.q.shape[2]} and {call.v.shape[3]}"
    if any(size > MAX_ROWS for size in (*lengths, call.block_table.shape[-1] * call.page_size)):
        return f"sequences of at most {MAX_ROWS}, got max_seqlen_q {call.max_seqlen_q}, block_table of " \
               f"{call.block_table.shape[-1]} pages of {call.page_size}"
    return scale_refusal(call.softmax_scale) or fp8_refusal(target, q=call.q, k=call.k, out=call.out)


def scale_refusal(softmax_scale: float) -> str | None:
    """Why no kernel can have a scale; None: each can."""
    return f"softmax_scale beyond fp32 after scaling: {softmax_scale}" if softmax_scale >= _MAX_SCALE else None


def has_aligned_strides(tensor: Tensor) -> bool:
    """Whether every row, head and sequence lies a multiple of 16 bytes behind the one before it."""
    return not any(stride * tensor.element_size() % ALIGNMENT for stride in tensor.stride()[:-1])


def is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor descriptor can describe it."""
    return 0 not in tensor.shape and tensor.data_ptr() % ALIGNMENT == 0 and has_aligned_strides(tensor)
