# SPDX-License-Identifier: MIT
"""Dense attention: flash_attn_func. The operator behind it: ops/attention_fwd.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.ops import attention_bwd  # noqa: F401 (declares its operator)
from aiter_like.ops.attention_fwd import flash_attn_fwd

__all__ = ["flash_attn_func"]

_OP = "flash_attn_func"


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0), bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, deterministic: bool = True, return_lse: bool = False,
        return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None, num_splits: int = 0, *,
        out: Tensor | None = None, backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of dense, equally long sequences.

    `out = softmax(softmax_scale · q kᵀ + mask) v`; query head h reads KV head h // (num_heads / num_kv_heads).

    Args:
        q: [batch, seqlen_q, num_heads, head_dim] bf16|fp16, last dimension contiguous, other strides free.
        k: [batch, seqlen_k, num_kv_heads, head_dim], likewise; num_heads is a multiple of num_kv_heads.
        v: shape and dtype of `k`.
        dropout_p: 0.
        softmax_scale: finite, ≥ 1e-8; default 1 / sqrt(head_dim).
        causal: query i sees key j iff j ≤ i + seqlen_k − seqlen_q (bottom-right alignment).
        window_size: (left, right[, sink tokens]): unlimited, (-1, -1[, 0]) or None; (-1, 0[, 0]) is `causal`.
        bias: None.
        alibi_slopes: None.
        deterministic: results always repeat bit for bit.
        return_lse: also return the log-sum-exp of the scaled scores.
        return_attn_probs: False.
        how_v3_bf16_cvt: rounding of P and `out` to bf16: 0 to nearest even, 1 to nearest with ties away from zero, 2
            towards zero. fp16 always rounds to nearest even; backend "torch" rounds only `out`, to nearest even.
        cu_seqlens_q: None.
        cu_seqlens_kv: None.
        sink_ptr: None.
        num_splits: at most so many workgroups share the keys of a row; 0: as the kernel likes.
        out: tensor to write, shape and dtype of `q`; default: a new contiguous one.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`, or with `return_lse` the pair `out`, lse: [batch, num_heads, seqlen_q] fp32, natural logarithm. A row
        that sees no key, also where seqlen_k is 0, gives 0 and −inf. An empty q gives empty results.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or scale do not fit.
        UnsupportedError: an option that is not supported yet, by name, or a backend that cannot serve the call.

    Notes:
        Scores, softmax and sums in fp32. A NaN in q, k or v reaches every row that sees it. Deterministic; can be
        captured in a graph. "hip" serves head dimensions 32, 64 and 128 on gfx942, "triton" up to 256. Only "torch" has
        a derivative: an input that requires grad selects it.

    Source: Dao et al., FlashAttention (2022); AITER's `flash_attn_func`.
    """
    right = 0 if causal else -1
    if (causal is not True and causal is not False or type(dropout_p) is not float or dropout_p
            or type(window_size) is not tuple or window_size != (-1, -1, 0) or bias is not None
            or alibi_slopes is not None or return_attn_probs is not False or cu_seqlens_q is not None
            or cu_seqlens_kv is not None or sink_ptr is not None):
        check.flag(_OP, "causal", causal)
        _refuse(dropout_p=dropout_p, bias=bias, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, sink_ptr=sink_ptr)
        right = _right_limit(window_size, causal)
    try:
        batch, seqlen_q, num_heads, head_dim = q.shape
        _, seqlen_k, _, _ = k.shape
    except (AttributeError, ValueError):
        check.tensor(_OP, "q", q, rank=4)
        check.tensor(_OP, "k", k, rank=4)
        raise
    if softmax_scale is None:
        softmax_scale = head_dim ** -0.5 if head_dim else 1.0
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = None
    if return_lse is not False:
        check.flag(_OP, "return_lse", return_lse)
        lse = torch.empty(batch, num_heads, seqlen_q, dtype=torch.float32, device=q.device)
    flash_attn_fwd(out, lse, q, k, v, None, None, None, None, None, None, None, None, None, None, None, seqlen_q,
                   seqlen_k, softmax_scale, -1, right, 0, 0.0, 0.0, num_splits, how_v3_bf16_cvt, backend=backend)
    return out if lse is None else (out, lse)


flash_attn_fwd.public.append(flash_attn_func)  # not registered in torch.library: what it returns depends on return_lse


def _refuse(*, dropout_p: float, return_attn_probs: bool, **tensors: Tensor | None) -> None:
    """Names every option that asks for something that no backend does yet.

    Raises:
        TypeError: an option is of another kind.
        ValueError: dropout_p is out of range.
        UnsupportedError: the list.
    """
    check.real(_OP, "dropout_p", dropout_p, low=0.0)
    check.flag(_OP, "return_attn_probs", return_attn_probs)
    reasons = {}
    for name, value in tensors.items():
        if value is not None:
            check.tensor(_OP, name, value, last_contiguous=False)
            reasons[name] = f"not supported yet, got a tensor of shape {tuple(value.shape)}"
    for name, value in (("dropout_p", dropout_p), ("return_attn_probs", return_attn_probs)):
        if value:
            reasons[name] = f"not supported yet, got {value}"
    if reasons:
        raise UnsupportedError(f"{_OP}: no backend supports {', '.join(reasons)}", _OP, reasons)


def _right_limit(window_size: Sequence[int] | None, causal: bool) -> int:
    """0 where the diagonal is the limit, −1 where there is none.

    Raises:
        TypeError: not two or three integers.
        ValueError: another count, or a size below -1.
        UnsupportedError: a window that limits anything else.
    """
    if window_size is None:
        return 0 if causal else -1
    if not isinstance(window_size, (tuple, list)) or not all(type(size) is int for size in window_size):
        raise TypeError(f"{_OP}: window_size must be 2 or 3 integers or None, got {window_size!r}")
    if len(window_size) not in (2, 3) or min(window_size) < -1:
        raise ValueError(f"{_OP}: window_size must be (left, right[, sink tokens]), -1 = no limit, got {window_size}")
    left, right, *_ = window_size  # without a left limit sink tokens are visible anyway
    if left != -1 or right > 0:
        raise UnsupportedError(f"{_OP}: no backend supports window_size {window_size}, only (-1, -1) and (-1, 0)",
                               _OP, {"window_size": "not supported yet"})
    return 0 if right == 0 or causal else -1
