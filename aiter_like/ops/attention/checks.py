# SPDX-License-Identifier: MIT
"""What every form of attention checks and refuses, be it dense, packed, paged or fp8: tensors, lengths, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.dtypes import ROUNDINGS
from aiter_like.ops.attention.call import FLOATS, FP8, AttentionCall, PagedCall

_PAGED = "unified_attention"
MAX_ROWS = 2**30 - 1
"""Rows and keys that the kernels count: sums of positions stay within 32 bits."""

ALIGNMENT = 16
"""Bytes of which addresses and strides must be multiples for wide loads and for tensor descriptors."""

AITER_ROUNDING = 1
"""how_v3_bf16_cvt where nobody says otherwise."""

_MIN_SCALE = 1e-8  # Below it a masked score is not below every real one in csrc/attention/flash_attn_softmax.h.
_MAX_SCALE = 1e30  # Kernels refuse it and what is larger.
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
    """What metadata can tell of a call of `op`. Lengths may be on a GPU: kernels keep within tensors whatever they are.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layouts or values do not fit.
    """
    _check_tensors(op, call)
    if call.is_varlen:
        _check_varlen(op, call)
    else:
        _check_dense(op, call)
    _check_options(op, call)
    for name, value in (("max_seqlen_q", call.max_seqlen_q), ("max_seqlen_k", call.max_seqlen_k),
                        ("sink_size", call.sink_size), ("num_splits", call.num_splits)):
        check.integer(op, name, value, low=0)
    for name, value in (("window_left", call.window_left), ("window_right", call.window_right)):
        check.integer(op, name, value, low=-1)
    check.real(op, "softmax_scale", call.softmax_scale, low=_MIN_SCALE)
    check.real(op, "softcap", call.softcap, low=0.0)
    check.choice(op, "how_v3_bf16_cvt", call.how_v3_bf16_cvt, (0, 1, 2))


def _check_tensors(op: str, call: AttentionCall) -> None:
    """q, k, v, out and lse, and the scales of fp8."""
    q, k, v = call.q, call.k, call.v
    rank = 3 if call.is_varlen else 4
    check.tensor(op, "q", q, rank=rank, dtypes=(*FLOATS, *FP8))
    if call.is_fp8 and q.dtype != dtypes.fp8_of(target_of(q.device).arch):
        raise TypeError(f"{op}: q must have dtype {dtypes.fp8_of(target_of(q.device).arch)}, which this device "
                        f"computes with, got {q.dtype}")
    num_heads, head_dim = q.shape[-2:]
    batch = () if call.is_varlen else (q.shape[0],)
    check.tensor(op, "k", k, dtypes=(q.dtype,), shape=(*batch, None, None, head_dim), device=q.device)
    check.tensor(op, "v", v, dtypes=(q.dtype,), shape=(*k.shape[:-1], None), device=q.device)
    if not head_dim or not v.shape[-1]:
        raise ValueError(f"{op}: q and v must have a head dimension of at least 1, got shapes {tuple(q.shape)} and "
                         f"{tuple(v.shape)}")
    if (num_heads % k.shape[-2] if k.shape[-2] else num_heads) != 0:
        raise ValueError(f"{op}: the heads of q must be a multiple of the heads of k and v, got {num_heads} and "
                         f"{k.shape[-2]}")
    check.tensor(op, "out", call.out, dtypes=FLOATS if call.is_fp8 else (q.dtype,), shape=(*q.shape[:-1], v.shape[-1]),
                 device=q.device)
    if call.lse is not None:
        shape = (num_heads, q.shape[0]) if call.is_varlen else (q.shape[0], num_heads, q.shape[1])
        check.tensor(op, "lse", call.lse, dtypes=(torch.float32,), shape=shape, device=q.device)
    for name, scale in (("q_descale", call.q_descale), ("k_descale", call.k_descale), ("v_descale", call.v_descale)):
        if scale is not None:
            _check_vector(op, call, name, scale, torch.float32, 1)
            if not call.is_fp8:
                raise ValueError(f"{op}: {name} is for fp8 tensors, got it with {q.dtype}")


def _check_dense(op: str, call: AttentionCall) -> None:
    if call.cu_seqlens_k is not None:
        raise ValueError(f"{op}: cu_seqlens_q and cu_seqlens_k must be given together")
    if call.seqlens_k is not None:
        _check_vector(op, call, "seqlens_k", call.seqlens_k, torch.int32, call.batch)
    for name, length, given in (("q", call.q.shape[1], call.max_seqlen_q), ("k", call.k.shape[1], call.max_seqlen_k)):
        if given != length:
            raise ValueError(f"{op}: max_seqlen_{name} must be the length {length} of {name}, got {given}")


def _check_varlen(op: str, call: AttentionCall) -> None:
    check.tensor(op, "cu_seqlens_q", call.cu_seqlens_q, rank=1, dtypes=(torch.int32,), device=call.q.device)
    if call.cu_seqlens_q.shape[0] == 0:
        raise ValueError(f"{op}: cu_seqlens_q must have one element more than there are sequences, got none")
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        _check_vector(op, call, name, getattr(call, name), torch.int32, call.batch + 1)
    if call.seqlens_k is not None:
        raise ValueError(f"{op}: seqlens_k is for dense tensors; cu_seqlens_k gives the lengths")


def _check_options(op: str, call: AttentionCall) -> None:
    """Bias, slopes, sink, dropout, workspace."""
    q, num_heads = call.q, call.num_heads
    if call.bias is not None:
        bias = call.bias
        rank = 2 if call.is_varlen else 4
        check.tensor(op, "bias", bias, rank=rank, dtypes={q.dtype, torch.float32}, device=q.device,
                     last_contiguous=False)
        shape = (q.shape[0] if call.is_varlen else call.max_seqlen_q, call.max_seqlen_k)
        shared = tuple(bias.shape[:-2])
        if tuple(bias.shape[-2:]) != shape or any(got not in (1, size)
                                                  for got, size in zip(shared, (call.batch, num_heads))):
            wanted = shape if call.is_varlen else (f"1 or {call.batch}", f"1 or {num_heads}", *shape)
            raise ValueError(f"{op}: bias must have shape ({', '.join(map(str, wanted))}), got {tuple(bias.shape)}")
    _check_slopes(op, call, num_heads)
    if call.sink is not None:
        _check_vector(op, call, "sink", call.sink, torch.float32, num_heads)
    check.real(op, "dropout_p", call.dropout_p, low=0.0)
    if call.dropout_p >= 1:
        raise ValueError(f"{op}: dropout_p must be below 1, got {call.dropout_p}")
    if call.dropout_p:
        _check_vector(op, call, "rng_state", call.rng_state, torch.int64, 2)
    if call.workspace is not None:
        check.tensor(op, "workspace", call.workspace, rank=1, dtypes=(torch.uint8,), device=q.device)


def _check_vector(op: str, call: AttentionCall, name: str, value: Any, dtype: torch.dtype, size: int) -> None:
    check.tensor(op, name, value, dtypes=(dtype,), shape=(size,), device=call.q.device)


def _check_slopes(op: str, call: AttentionCall | PagedCall, num_heads: int) -> None:
    if call.alibi_slopes is not None:
        shape = (num_heads,) if call.alibi_slopes.ndim == 1 else (call.batch, num_heads)
        check.tensor(op, "alibi_slopes", call.alibi_slopes, dtypes=(torch.float32,), shape=shape, device=call.q.device)


def check_paged_call(call: PagedCall) -> None:
    """What metadata can tell. Lengths and numbers of pages may be on a GPU: kernels keep within the tensors.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layouts or values do not fit.
    """
    q, k = call.q, call.k
    check.tensor(_PAGED, "q", q, rank=3, dtypes=(*FLOATS, *FP8))
    total_q, num_heads, head_dim = q.shape
    check.tensor(_PAGED, "k", k, dtypes=(*FLOATS, *FP8), device=q.device)
    shape_k, shape_v = (None, None, None, head_dim), (*k.shape[:3], None)
    if call.is_shuffled:
        x = 16 // k.element_size()
        shape_k = (None, None, None, head_dim // x, x)
        shape_v = (k.shape[0], call.page_size // x, k.shape[2], None, x)
        if head_dim % x or call.page_size % x:
            raise ValueError(f"{_PAGED}: head dimension and page size of shuffled pages must be multiples of {x}, got "
                             f"{head_dim} and {call.page_size}")
    check.tensor(_PAGED, "k", k, shape=shape_k)
    check.tensor(_PAGED, "v", call.v, dtypes=(k.dtype,), shape=shape_v, device=q.device)
    if k.dtype != q.dtype and k.dtype not in FP8:
        raise TypeError(f"{_PAGED}: k must have dtype {q.dtype} or fp8, got {k.dtype}")
    if 0 in (head_dim, call.v.shape[3], call.page_size):
        raise ValueError(f"{_PAGED}: pages and heads must not be empty, got k {tuple(k.shape)}, v "
                         f"{tuple(call.v.shape)}")
    if k.shape[2] == 0 or num_heads % k.shape[2]:
        raise ValueError(f"{_PAGED}: the heads of q must be a multiple of the heads of k, got {num_heads} and "
                         f"{k.shape[2]}")
    out_dtypes = FP8 if call.output_scale is not None else FLOATS if q.dtype in FP8 else (q.dtype,)
    check.tensor(_PAGED, "out", call.out, dtypes=out_dtypes, shape=(total_q, num_heads, call.v.shape[3]),
                 device=q.device)
    if call.lse is not None:
        check.tensor(_PAGED, "lse", call.lse, dtypes=(torch.float32,), shape=(num_heads, total_q), device=q.device)
    _check_paged_lengths(call)
    _check_paged_options(call)


def _check_paged_lengths(call: PagedCall) -> None:
    integers = {"dtypes": (torch.int32,), "device": call.q.device}
    check.tensor(_PAGED, "cu_seqlens_q", call.cu_seqlens_q, rank=1, **integers)
    batch = call.batch
    if call.page_starts is None:
        check.tensor(_PAGED, "seqused_k", call.seqlens_k, shape=(batch,), **integers)
        check.tensor(_PAGED, "block_table", call.block_table, shape=(batch, None), **integers)
    else:
        check.tensor(_PAGED, "kv_indptr", call.page_starts, shape=(batch + 1,), **integers)
        check.tensor(_PAGED, "kv_page_indices", call.block_table, rank=1, **integers)
        if call.seqlens_k is not None:
            check.tensor(_PAGED, "kv_last_page_lens", call.seqlens_k, shape=(batch,), **integers)
    check.integer(_PAGED, "max_seqlen_q", call.max_seqlen_q, low=0)
    check.integer(_PAGED, "max_seqlen_k", call.max_seqlen_k, low=0)


def _check_paged_options(call: PagedCall) -> None:
    device, num_heads, batch = call.q.device, call.q.shape[1], call.batch
    for name, scale in (("q_descale", call.q_descale), ("output_scale", call.output_scale)):
        if scale is not None:
            check.tensor(_PAGED, name, scale, dtypes=(torch.float32,), device=device)
            if scale.numel() != 1:
                raise ValueError(f"{_PAGED}: {name} must have 1 element, got shape {tuple(scale.shape)}")
    for name, scale in (("k_descale", call.k_descale), ("v_descale", call.v_descale)):
        if scale is not None and scale.numel() != 1:
            check.tensor(_PAGED, name, scale, shape=(batch, call.k.shape[2]), last_contiguous=False)
        if scale is not None:
            check.tensor(_PAGED, name, scale, dtypes=(torch.float32,), device=device, last_contiguous=False)
    _check_slopes(_PAGED, call, num_heads)
    if call.sink is not None:
        check.tensor(_PAGED, "sink", call.sink, dtypes=(torch.float32, *FLOATS), shape=(num_heads,), device=device)
    if call.qq_bias is not None:
        size = call.qq_bias.shape[-1] if isinstance(call.qq_bias, Tensor) and call.qq_bias.ndim else 0
        check.tensor(_PAGED, "qq_bias", call.qq_bias, dtypes=(torch.float32, *FLOATS), shape=(size, size),
                     device=device)
    check.real(_PAGED, "softmax_scale", call.softmax_scale, low=_MIN_SCALE)
    check.real(_PAGED, "softcap", call.softcap, low=0.0)
    for name in ("window_left", "window_right"):
        check.integer(_PAGED, name, getattr(call, name), low=-1)
    check.integer(_PAGED, "sink_size", call.sink_size, low=0)


def launch_refusal(call: AttentionCall, rows: int, keys: int) -> str | None:
    """Why a kernel whose grid has a dimension of heads and one of sequences cannot be launched; None: it can."""
    for name, size, limit in (("batch", call.batch, _MAX_GRID), ("number of heads", call.num_heads, _MAX_GRID),
                              ("length of q", rows, MAX_ROWS), ("length of k", keys, MAX_ROWS)):
        if size > limit:
            return f"{name} at most {limit}, got {size}"
    return None


def scale_refusal(softmax_scale: float) -> str | None:
    """Why no kernel can have a scale; None: each can."""
    return f"softmax_scale beyond fp32 after scaling: {softmax_scale}" if softmax_scale >= _MAX_SCALE else None


def has_aligned_strides(tensor: Tensor) -> bool:
    """Whether every row, head and sequence lies a multiple of 16 bytes behind the one before it."""
    return not any(stride * tensor.element_size() % ALIGNMENT for stride in tensor.stride()[:-1])


def is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor descriptor can describe it."""
    return 0 not in tensor.shape and tensor.data_ptr() % ALIGNMENT == 0 and has_aligned_strides(tensor)
