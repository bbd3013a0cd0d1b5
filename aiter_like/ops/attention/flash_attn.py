# SPDX-License-Identifier: MIT
"""Attention of dense and of packed sequences: flash_attn_func, flash_attn_varlen_func. The operator behind them:
ops/attention/flash_attn_fwd.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.dispatch import torch_ops
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.checks import AITER_ROUNDING, read_rounding, read_window
from aiter_like.ops.attention.dropout_randval import dropout_randval
from aiter_like.ops.attention.flash_attn_bwd import attend
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.mha_batch_prefill import mha_batch_prefill_func
from aiter_like.ops.attention.padding import for_padding_too, with_padding
from aiter_like.ops.common.contents import check_lengths

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]

_is_grad_enabled = torch.is_grad_enabled


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0), bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, deterministic: bool = True, return_lse: bool = False,
        return_attn_probs: bool = False, how_v3_bf16_cvt: int = AITER_ROUNDING, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None, num_splits: int = 0, *,
        logits_soft_cap: float = 0.0, layout: str = "bshd", round_mode: str | None = None,
        workspace: Tensor | None = None, out: Tensor | None = None,
        backend: str | None = None) -> Tensor | tuple[Tensor, ...]:
    """Attention of dense, equally long sequences.

    `out = softmax(softmax_scale · q kᵀ + bias + mask) v`; query head h reads KV head h // (num_heads / num_kv_heads).

    Args:
        q: [batch, seqlen_q, num_heads, head_dim] bf16|fp16, last dimension contiguous, other strides free.
        k, v: [batch, seqlen_k, num_kv_heads, head_dim or head_dim_v], likewise; num_kv_heads divides num_heads.
        dropout_p: probabilities are dropped with this probability, the others divided by 1 − dropout_p; what is
            dropped follows from torch's generator of the device.
        softmax_scale: finite, ≥ 1e-8; default 1 / sqrt(head_dim). Scaled scores may be up to 1e30, but beyond 1e5
            gradients without bias and slopes, which follow from the fp32 log-sum-exp, are coarse, and beyond 1.4e9
            Triton on Hopper gives NaN where the scale is ≤ 1.
        causal: query i sees key j iff j ≤ i + seqlen_k − seqlen_q (bottom-right alignment).
        window_size: (left, right[, sink tokens]): query i sees keys from i + seqlen_k − seqlen_q − left to
            … + right; −1: no limit; so many leading keys stay visible under a left limit. None: no limits.
        bias: [seqlen_q, seqlen_k] or [1|batch, 1|num_heads, seqlen_q, seqlen_k], dtype of `q` or fp32, any strides;
            only −inf hides a key: equal finite ones of a row cancel out, however large.
        alibi_slopes: fp32 [num_heads] or [batch, num_heads]: slope · |i + seqlen_k − seqlen_q − j| is subtracted;
            slopes beyond ±2^90 count as those.
        deterministic: results always repeat bit for bit.
        return_lse: also return the log-sum-exp of the scores.
        return_attn_probs: also return AITER's S_dmask: what dropout drew for each score, of which those up to
            floor(255 · (1 − dropout_p)) are kept; without dropout it has no elements.
        how_v3_bf16_cvt: rounding of P and `out` to bf16: 0 to nearest even, 1 to nearest with ties away from zero, 2
            towards zero, perhaps of fp16 too; "torch" rounds only `out`, to nearest even.
        cu_seqlens_q: int32 [batch + 1]: sequence b has the first cu_seqlens_q[b + 1] − cu_seqlens_q[b] of its seqlen_q
            places, the others are padding; not with `bias`. What is not [batch · length, heads, dim] in memory is
            copied so.
        cu_seqlens_kv: int32 [batch + 1], the same for `k` and `v`; the diagonal ends at a sequence's last key.
        sink_ptr: fp32 [num_heads]: one more score per row in the softmax's denominator, with no value.
        num_splits: at most so many workgroups share the keys of a row; 0: as the kernel likes.
        logits_soft_cap: scores become cap · tanh(score / cap), before bias and slopes; 0: they do not.
        layout: "bshd" as above, or "bhsd": q, k, v and out [batch, heads, length, dim]; nothing is copied.
        round_mode: "rtne", "rtna" (bf16 only) or "rtz" instead of how_v3_bf16_cvt 0, 1, 2.
        workspace: uint8 memory of `attention_workspace_bytes` for kernels that split keys; default: torch's allocator.
        out: tensor to write, of q's shape with head_dim_v; default: a new one, in memory as `layout` says. Not where an
            input requires grad.

    Returns:
        `out`, or a tuple: `out`, with `return_lse` lse: [batch, num_heads, seqlen_q] fp32, natural logarithm, with
        `return_attn_probs` S_dmask: [batch, num_heads, seqlen_q, seqlen_k] uint8. A row that sees no key, also where
        seqlen_k is 0, gives 0 and −inf (with a sink: the sink).

    Notes:
        Scores, softmax and sums in fp32. A NaN in q, k or v reaches every row that sees it. Deterministic. `explain`
        shows which backends serve a call, and why the others do not. Differentiable in q, k, v, bias and sink_ptr,
        `out` and lse; in alibi_slopes by "torch" alone, which then serves the call.

    Source: Dao et al., FlashAttention (2022); AITER's `flash_attn_func`.
    """
    op = "flash_attn_func"
    if return_lse is not False or return_attn_probs is not False:
        _check_results(op, return_lse, return_attn_probs)
    if cu_seqlens_q is not None:
        return _padded_queries(
            op, layout, q, k, v, out, cu_seqlens_q, cu_seqlens_kv, bias, dropout_p=dropout_p,
            softmax_scale=softmax_scale, logits_soft_cap=logits_soft_cap, causal=causal, window_size=window_size,
            alibi_slopes=alibi_slopes, return_lse=return_lse, return_attn_probs=return_attn_probs,
            how_v3_bf16_cvt=how_v3_bf16_cvt, sink_ptr=sink_ptr, round_mode=round_mode, workspace=workspace,
            backend=backend)
    left, right, sink_size, options, given = -1, 0 if causal else -1, 0, {}, out
    if layout != "bshd":
        check.choice(op, "layout", layout, ("bshd", "bhsd"))
        q, k, v, out = (_swapped(op, name, x) for name, x in (("q", q), ("k", k), ("v", v), ("out", out)))
    if causal is not True and causal is not False or type(window_size) is not tuple or window_size != (-1, -1, 0):
        left, right, sink_size = read_window(op, window_size, causal)
    if bias is not None or type(dropout_p) is not float or dropout_p or cu_seqlens_kv is not None:
        options = {"bias": _with_four_dimensions(op, bias), "rng_state": _new_rng_state(op, dropout_p, q),
                   "dropout_p": dropout_p, "seqlens_k": _key_lengths(op, cu_seqlens_kv, k)}
    if alibi_slopes is not None or sink_ptr is not None or workspace is not None:
        options |= {"alibi_slopes": alibi_slopes, "sink": sink_ptr, "workspace": workspace}
    if round_mode is not None:
        how_v3_bf16_cvt = read_rounding(op, round_mode, how_v3_bf16_cvt, q)
    try:
        batch, seqlen_q, num_heads, head_dim = q.shape
        _, seqlen_k, _, head_dim_v = v.shape
        needs_grad = _is_grad_enabled() and _requires_grad(q, k, v, sink_ptr, bias)
    except (AttributeError, ValueError):
        _name_wrong_tensor(op, 4, bias, q=q, k=k, v=v, sink_ptr=sink_ptr)
        raise
    if seqlen_q <= right + 1:  # the limit is behind the last key: decoding needs no causal mask
        right = -1
    if softmax_scale is None:
        softmax_scale = head_dim ** -0.5 if head_dim else 1.0
    lse = None
    if not needs_grad:
        if out is None:
            if layout == "bshd":
                out = q.new_empty(batch, seqlen_q, num_heads, head_dim_v)
            else:
                given = q.new_empty(batch, num_heads, seqlen_q, head_dim_v)
                out = given.transpose(1, 2)
        if return_lse:
            lse = q.new_empty(batch, num_heads, seqlen_q, dtype=torch.float32)
    if not options and not needs_grad:  # `**` alone would cost each such call a microsecond
        flash_attn_fwd.run(
            out, lse, q=q, k=k, v=v, max_seqlen_q=seqlen_q, max_seqlen_k=seqlen_k, softmax_scale=softmax_scale,
            window_left=left, window_right=right, sink_size=sink_size, softcap=logits_soft_cap, num_splits=num_splits,
            how_v3_bf16_cvt=how_v3_bf16_cvt, backend=backend)
    else:
        call = AttentionCall(
            out, lse, q=q, k=k, v=v, max_seqlen_q=seqlen_q, max_seqlen_k=seqlen_k, softmax_scale=softmax_scale,
            window_left=left, window_right=right, sink_size=sink_size, softcap=logits_soft_cap, num_splits=num_splits,
            how_v3_bf16_cvt=how_v3_bf16_cvt, **options)
        out, lse = _served(op, call, needs_grad, backend)
    out = given if given is not None else out if layout == "bshd" else out.transpose(1, 2)
    if return_lse is False and return_attn_probs is False:
        return out
    return _results(op, out, lse, return_lse, return_attn_probs, options, backend, batch, num_heads, seqlen_q, seqlen_k)


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, min_seqlen_q: int = 0, dropout_p: float = 0.0, softmax_scale: float | None = None,
        logits_soft_cap: float = 0.0, causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0),
        bias: Tensor | None = None, alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_lse: bool = False, return_attn_probs: bool = False, how_v3_bf16_cvt: int = AITER_ROUNDING,
        block_table: Tensor | None = None, out: Tensor | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None, sink_ptr: Tensor | None = None, *, round_mode: str | None = None,
        workspace: Tensor | None = None, backend: str | None = None) -> Tensor | tuple[Tensor, ...]:
    """Attention of sequences of any lengths, packed one after the other. Like `flash_attn_func`, for each sequence b:
    queries cu_seqlens_q[b] … cu_seqlens_q[b + 1] − 1, keys alike. Padding counts as sequences of its own, which attend
    to the padding of the keys.

    Args:
        q: [total_q, num_heads, head_dim] bf16|fp16, last dimension contiguous, other strides free.
        k, v: [total_k, num_kv_heads, head_dim or head_dim_v], likewise; num_kv_heads divides num_heads.
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], from 0 on, never falling, within `q` or `k`. Checked on the CPU
            only: on a GPU kernels stay within the tensors, and results for wrong starts are unspecified.
        max_seqlen_q, max_seqlen_k: at least the longest sequence; rows after that many are not computed.
        min_seqlen_q: a hint without effect: every row of every sequence is computed.
        bias: [total_q, max_seqlen_k].
        block_table: int32 [batch, pages]: `k` and `v` are pages [num_pages, page_size, num_kv_heads, dim], and
            `unified_attention`'s kernel serves the call, without bias and dropout; it rounds to nearest even.
        out: tensor to write, [total_q, num_heads, head_dim_v]; default: a new contiguous one.
        cu_seqlens_q_padded, cu_seqlens_k_padded: int32 [batch + 1]: where the sequences begin in `q` and `out`, or `k`
            and `v`, which then have padding between them; cu_seqlens_q and cu_seqlens_k still tell their lengths.

    Returns:
        `out`, or a tuple: `out`, with `return_lse` lse: [num_heads, total_q] fp32, natural logarithm, with
        `return_attn_probs` S_dmask: [num_heads, total_q, max_seqlen_k] uint8, 0 in rows of no sequence. A row that sees
        no key gives 0 and −inf (with a sink: the sink). Rows of no sequence are not written, but those of padding
        between sequences may be: what they hold has no meaning.
    """
    op = "flash_attn_varlen_func"
    if return_lse is not False or return_attn_probs is not False:
        _check_results(op, return_lse, return_attn_probs)
    left, right, sink_size, options = -1, 0 if causal else -1, 0, {}
    if block_table is not None:
        _refuse_beside(op, "block_table", bias=bias is not None, round_mode=round_mode not in (None, "rtne"),
                       cu_seqlens_q_padded=cu_seqlens_q_padded is not None,
                       cu_seqlens_k_padded=cu_seqlens_k_padded is not None)
        check.tensor(op, "cu_seqlens_k", cu_seqlens_k, rank=1, dtypes=(torch.int32,))
        return mha_batch_prefill_func(
            q, k, v, cu_seqlens_q, None, None, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, logits_soft_cap,
            causal, window_size, alibi_slopes, deterministic, return_lse, return_attn_probs, out,
            block_table=block_table, seqlen_k=cu_seqlens_k.diff(), sink_ptr=sink_ptr, backend=backend)
    if causal is not True and causal is not False or type(window_size) is not tuple or window_size != (-1, -1, 0):
        left, right, sink_size = read_window(op, window_size, causal)
    if type(dropout_p) is not float or dropout_p:
        options = {"rng_state": _new_rng_state(op, dropout_p, q), "dropout_p": dropout_p}
    if round_mode is not None:
        how_v3_bf16_cvt = read_rounding(op, round_mode, how_v3_bf16_cvt, q)
    try:
        total_q, num_heads, head_dim = q.shape
        total_k, _, head_dim_v = v.shape
        needs_grad = _is_grad_enabled() and _requires_grad(q, k, v, sink_ptr, bias)
    except (AttributeError, ValueError):
        _name_wrong_tensor(op, 3, bias, q=q, k=k, v=v, sink_ptr=sink_ptr)
        raise
    check_lengths(op, "cu_seqlens_q", cu_seqlens_q, total_q, max_seqlen_q)
    check_lengths(op, "cu_seqlens_k", cu_seqlens_k, total_k, max_seqlen_k)
    if (cu_seqlens_q_padded is not None and cu_seqlens_q_padded is not cu_seqlens_q
            or cu_seqlens_k_padded is not None and cu_seqlens_k_padded is not cu_seqlens_k):
        cu_seqlens_q = with_padding(op, "cu_seqlens_q", cu_seqlens_q, cu_seqlens_q_padded, total_q)
        cu_seqlens_k = with_padding(op, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_k_padded, total_k)
        alibi_slopes = for_padding_too(alibi_slopes)
    if softmax_scale is None:
        softmax_scale = head_dim ** -0.5 if head_dim else 1.0
    lse = None
    if not needs_grad:
        if out is None:
            out = q.new_empty(total_q, num_heads, head_dim_v)
        if return_lse:
            lse = q.new_empty(num_heads, total_q, dtype=torch.float32)
    if bias is not None or alibi_slopes is not None or sink_ptr is not None or workspace is not None:
        options |= {"bias": bias, "alibi_slopes": alibi_slopes, "sink": sink_ptr, "workspace": workspace}
    if not options and not needs_grad:
        flash_attn_fwd.run(
            out, lse, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, window_left=left, window_right=right,
            sink_size=sink_size, softcap=logits_soft_cap, how_v3_bf16_cvt=how_v3_bf16_cvt, backend=backend)
    else:
        call = AttentionCall(
            out, lse, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, window_left=left, window_right=right,
            sink_size=sink_size, softcap=logits_soft_cap, how_v3_bf16_cvt=how_v3_bf16_cvt, **options)
        out, lse = _served(op, call, needs_grad, backend)
    if return_lse is False and return_attn_probs is False:
        return out
    return _results(op, out, lse, return_lse, return_attn_probs, options, backend, num_heads, total_q, max_seqlen_k,
                    starts=cu_seqlens_q)


# Not in torch.library, as the operator is: what they return depends on return_lse.
flash_attn_fwd.public += [flash_attn_func, flash_attn_varlen_func]


def _requires_grad(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, bias: Tensor | None) -> bool:
    return (q.requires_grad or k.requires_grad or v.requires_grad or sink is not None and sink.requires_grad
            or bias is not None and bias.requires_grad)


def _name_wrong_tensor(op: str, rank: int, bias: Any, **tensors: Any) -> None:
    """Raises for the first that is no tensor, or q, k, v without `rank` dimensions; None is a sink."""
    for name, tensor in tensors.items():
        if name != "sink_ptr" or tensor is not None:
            check.tensor(op, name, tensor, rank=1 if name == "sink_ptr" else rank)
    if bias is not None:
        check.tensor(op, "bias", bias, last_contiguous=False)


def _served(op: str, call: AttentionCall, needs_grad: bool, backend: str | None) -> tuple[Tensor, Tensor | None]:
    """Out and lse of a call with options, or with derivatives."""
    if needs_grad:
        return _differentiable(op, call, backend)
    flash_attn_fwd(call, backend=backend)
    return call.out, call.lse


def _differentiable(op: str, call: AttentionCall, backend: str | None) -> tuple[Tensor, Tensor]:
    """New out and lse with derivatives: by flash_attn_bwd, or through torch's own operators where that has none.

    Raises:
        ValueError: there is an `out` to write.
    """
    if call.out is not None:
        raise ValueError(f"{op}: out must be None where an input requires grad, as in torch")
    learned = call.alibi_slopes is not None and call.alibi_slopes.requires_grad
    if backend == "torch" or learned or call.seqlens_k is not None or torch_ops.is_transformed():
        shape = call.q.shape[:-1]
        out = call.q.new_empty(*shape, call.head_dim_v)
        lse = call.q.new_empty(shape[::-1] if call.is_varlen else (shape[0], shape[2], shape[1]), dtype=torch.float32)
        flash_attn_fwd(call._replace(out=out, lse=lse), backend=backend)
        return out, lse
    return attend(call, backend)


def _swapped(op: str, name: str, tensor: Any) -> Any:
    """[batch, heads, length, dim] as [batch, length, heads, dim], or None; what is no such tensor is named later."""
    if tensor is None and name == "out":
        return None
    check.tensor(op, name, tensor, rank=4)
    return tensor.transpose(1, 2)


def _with_four_dimensions(op: str, bias: Tensor | None) -> Tensor | None:
    if bias is None:
        return None
    check.tensor(op, "bias", bias, last_contiguous=False)
    return bias[None, None] if bias.ndim == 2 else bias


def _new_rng_state(op: str, dropout_p: float, q: Tensor) -> Tensor | None:
    """Seed and offset for one call, from torch's generator of the device."""
    check.real(op, "dropout_p", dropout_p, low=0.0)
    if not dropout_p:
        return None
    check.tensor(op, "q", q)
    return torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=q.device)


def _key_lengths(op: str, cu_seqlens_kv: Tensor | None, k: Tensor) -> Tensor | None:
    """[batch] int32."""
    if cu_seqlens_kv is None:
        return None
    check.tensor(op, "cu_seqlens_kv", cu_seqlens_kv, rank=1, dtypes=(torch.int32,))
    check.tensor(op, "k", k, rank=4)
    check_lengths(op, "cu_seqlens_kv", cu_seqlens_kv, k.shape[0] * k.shape[1], None)
    return cu_seqlens_kv.diff()


def _padded_queries(op: str, layout: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, cu_seqlens_q: Tensor,
                    cu_seqlens_kv: Tensor | None, bias: Tensor | None, **options: Any) -> Tensor | tuple[Tensor, ...]:
    """Dense tensors whose sequences are shorter than their places: packed ones, with the rest as padding.

    Raises:
        UnsupportedError: there is a bias.
        ValueError: no such layout; `out` is no tensor of rows.
    """
    check.choice(op, "layout", layout, ("bshd", "bhsd"))
    _refuse_beside(op, "cu_seqlens_q", bias=bias is not None)
    rows, places, axes = [], [], (1, 2) if layout == "bhsd" else (1, 1)
    for name, x in (("q", q), ("k", k), ("v", v), *([] if out is None else [("out", out)])):
        check.tensor(op, name, x, rank=4)
        x = x.transpose(*axes)
        if name == "out" and len(x) > 1 and x.stride(0) != x.shape[1] * x.stride(1):
            raise ValueError(f"{op}: out must have its sequences one behind the other beside cu_seqlens_q, got strides "
                             f"{x.stride()}")
        rows.append(x.flatten(0, 1))
        places.append(torch.arange(len(x) + 1, dtype=torch.int32, device=x.device) * x.shape[1])
    check_lengths(op, "cu_seqlens_kv", places[1] if cu_seqlens_kv is None else cu_seqlens_kv, len(rows[1]), None)
    shape, longest = (len(q), q.shape[axes[1]]), (q.shape[axes[1]], k.shape[axes[1]])
    found = flash_attn_varlen_func(
        *rows[:3], cu_seqlens_q, places[1] if cu_seqlens_kv is None else cu_seqlens_kv, *longest,
        out=None if out is None else rows[3], cu_seqlens_q_padded=places[0], cu_seqlens_k_padded=places[1], **options)
    parts = list(found) if isinstance(found, tuple) else [found]
    parts[0] = parts[0].unflatten(0, shape).transpose(*axes) if out is None else out
    for index in range(1, len(parts)):
        if parts[index].ndim > 1:  # S_dmask has no elements without dropout
            parts[index] = parts[index].unflatten(1, shape).transpose(0, 1)
    return tuple(parts) if isinstance(found, tuple) else parts[0]


def _refuse_beside(op: str, other: str, **asked: bool) -> None:
    reasons = {name: f"not with {other}" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)} beside {other}", op, reasons)


def _check_results(op: str, return_lse: bool, return_attn_probs: bool) -> None:
    check.flag(op, "return_lse", return_lse)
    check.flag(op, "return_attn_probs", return_attn_probs)


def _results(op: str, out: Tensor, lse: Tensor | None, return_lse: bool, return_attn_probs: bool,
             options: dict[str, Any], backend: str | None, *shape: int, starts: Tensor | None = None
             ) -> tuple[Tensor, ...]:
    """AITER's tuple. `options` of the call, dropout's among them; `shape` of S_dmask, `starts` of packed sequences."""
    found = [out, lse] if return_lse else [out]
    if return_attn_probs and options.get("dropout_p"):
        found.append(dropout_randval(options["rng_state"], options["dropout_p"], shape, starts, backend=backend))
    elif return_attn_probs:
        found.append(torch.empty(0, dtype=torch.uint8, device=out.device))
    return tuple(found)
