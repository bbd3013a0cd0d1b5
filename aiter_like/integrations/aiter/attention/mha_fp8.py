# SPDX-License-Identifier: MIT
"""AITER's Triton attention that rounds wide tensors to fp8 by itself and has a gradient. Named by names.txt.

Here what was rounded is attended to in 16 bits, so that P keeps its bits and the gradient is that of `flash_attn_func`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements

_SMALLEST = 1e-9  # largest magnitude that a scale covers at least


def flash_attn_fp8_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                        qv: Tensor | None = None, window_size: Sequence[int] | None = (-1, -1),
                        attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                        pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0) -> Tensor:
    """`flash_attn_func` of `q`, `k` and `v` rounded to the device's fp8 with a scale for each sequence and KV head, of
    queries for the heads that share one; gradients pass the rounding as if it were not there.

    Args:
        q, k, v: [batch, seqlen, heads, dim] bf16|fp16|fp32.
        softmax_scale, causal, window_size, deterministic: as of `aiter_like.flash_attn_func`.
        qv, attention_chunk, softcap, num_splits, pack_gqa, sm_margin: None, 0 or 1, 0, 1, None and 0, as with AITER's.

    Returns:
        fp32 [batch, seqlen, heads, dim], of 16 bits' precision.

    Raises:
        UnsupportedError: another value of the last ones.
    """
    op = "flash_attn_fp8_func"
    _refuse(op, qv=qv is not None, attention_chunk=attention_chunk not in (0, 1), softcap=softcap != 0,
            num_splits=num_splits != 1, pack_gqa=pack_gqa is not None, sm_margin=sm_margin != 0)
    _check_tensors(op, 4, q, k, v)
    narrow = []
    for x in (q, k, v):
        batch, length = x.shape[:2]
        sequence = torch.arange(batch, device=x.device).repeat_interleave(length)
        share = x.shape[2] // k.shape[2] if x is q else 1
        narrow.append(_Rounded.apply(x.flatten(0, 1), sequence, batch, share, _half(q)).view(x.shape))
    return aiter_like.flash_attn_func(*narrow, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                                      deterministic=deterministic).float()


def flash_attn_varlen_fp8_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, softmax_scale: float | None = None, causal: bool = False,
        window_size: Sequence[int] | None = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
        deterministic: bool = False, sm_margin: int = 0) -> Tensor:
    """`flash_attn_fp8_func` of packed sequences, as `flash_attn_varlen_func` has them.

    Args:
        q, k, v: [tokens, heads, dim] bf16|fp16|fp32.
        cu_seqlens_q, cu_seqlens_k: [batch + 1] int32.
        max_seqlen_q, max_seqlen_k: not less than the longest.
        softmax_scale, causal, window_size, attention_chunk, softcap, deterministic, sm_margin: as there.

    Returns:
        fp32 [tokens, heads, dim].
    """
    op = "flash_attn_varlen_fp8_func"
    _refuse(op, attention_chunk=attention_chunk not in (0, 1), softcap=softcap != 0, sm_margin=sm_margin != 0)
    _check_tensors(op, 3, q, k, v)
    narrow = []
    for name, x, starts in (("cu_seqlens_q", q, cu_seqlens_q), ("cu_seqlens_k", k, cu_seqlens_k),
                            ("cu_seqlens_k", v, cu_seqlens_k)):
        check.tensor(op, name, starts, rank=1, dtypes=(torch.int32,), device=x.device)
        batch = max(len(starts) - 1, 1)
        place = torch.arange(len(x), device=x.device, dtype=torch.int32)
        sequence = torch.searchsorted(starts[1:].contiguous(), place, right=True).clamp(max=batch - 1)
        share = x.shape[1] // k.shape[1] if x is q else 1
        narrow.append(_Rounded.apply(x, sequence, batch, share, _half(q)))
    return aiter_like.flash_attn_varlen_func(
        *narrow, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, deterministic=deterministic).float()


class _Rounded(torch.autograd.Function):
    """[tokens, heads, dim] rounded to fp8 with a scale for each sequence and `share` heads, in 16 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sequence: Tensor, batch: int, share: int, dtype: torch.dtype) -> Tensor:
        """See the class."""
        ctx.dtype, fp8 = x.dtype, dtypes.fp8_of(target_of(x.device).arch)
        top, groups = torch.finfo(fp8).max, x.unflatten(1, (-1, share)).float()
        amax = groups.abs().amax((2, 3)) if x.numel() else groups.new_zeros(groups.shape[:2])  # [tokens, groups]
        whole = torch.full((batch, groups.shape[1]), _SMALLEST, device=x.device, dtype=torch.float32)
        whole.scatter_reduce_(0, sequence[:, None].expand_as(amax), amax, "amax")
        own = whole[sequence][..., None, None]
        narrow = (groups * (top / own)).clamp(-top, top).to(fp8).float() * (own / top)
        return narrow.view(x.shape).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient as it is."""
        return grad.to(ctx.dtype), None, None, None, None


def _half(q: Tensor) -> torch.dtype:
    return torch.float16 if q.dtype == torch.float16 else torch.bfloat16


def _check_tensors(op: str, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    check.tensor(op, "q", q, rank=rank, dtypes=elements.FLOATS)
    check.tensor(op, "k", k, rank=rank, dtypes=(q.dtype,), device=q.device)
    check.tensor(op, "v", v, dtypes=(q.dtype,), shape=(*k.shape[:-1], None), device=q.device)
    if not k.shape[-2] or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"{op}: q must have a multiple of the {k.shape[-2]} heads of k, got {q.shape[-2]}")


def _refuse(op: str, **asked: bool) -> None:
    reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}", op, reasons)
