# SPDX-License-Identifier: MIT
"""Attention over a contiguous KV cache: flash_attn_with_kvcache. The operators behind it: ops/attention_fwd.py, and
ops/kv_cache.py where keys are appended.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.attention_call import read_window
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention_fwd import flash_attn_fwd
from aiter_like.ops.kv_cache import reshape_and_cache_flash

__all__ = ["flash_attn_with_kvcache"]

_OP = "flash_attn_with_kvcache"
_ROTATE = "rotate q and k before the call, as with rope_cached_positions_2c_fwd_inplace"
_INSTEAD = {
    "page_table": "unified_attention takes pages",
    "cache_batch_idx": "unified_attention takes the caches as pages of seqlen_k keys, the indices as block_table",
    "rotary_cos": _ROTATE, "rotary_sin": _ROTATE, "rotary_seqlens": _ROTATE, "qv": "it belongs to latent attention",
    "cache_leftpad": "begin each sequence at the cache's first key",
    "cu_seqlens_q": "unified_attention takes packed queries", "cu_seqlens_k_new": "append with reshape_and_cache_flash",
}


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        qv: Tensor | None = None, cache_seqlens: Tensor | int | None = None, softmax_scale: float | None = None,
        causal: bool = True, window_size: Sequence[int] | None = (-1, -1), attention_chunk: int = 0,
        softcap: float = 0.0, num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        max_seqlen_q: int | None = None, return_softmax_lse: bool = False, page_table: Tensor | None = None,
        cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None, rotary_seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k_new: Tensor | None = None, *, workspace: Tensor | None = None, out: Tensor | None = None,
        backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new queries over the keys of a cache, to which new keys may be appended first.

    `out = softmax(softmax_scale · q kᵀ + mask) v` over the first cache_seqlens + seqlen_new keys of each sequence; the
    last query stands at the last of them.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim] bf16|fp16, or the device's e4m3 with such caches.
        k_cache: [batch, seqlen_k, num_kv_heads, head_dim], dtype of `q`, last dimension contiguous.
        v_cache: [batch, seqlen_k, num_kv_heads, head_dim_v], likewise.
        k: [batch, seqlen_new, num_kv_heads, head_dim], written to the cache behind its keys; None: nothing is. A key
            for which there is no room is left out.
        v: [batch, seqlen_new, num_kv_heads, head_dim_v], given together with `k`.
        cache_seqlens: keys in the cache before the call, int32 [batch] or one number for all; None: all seqlen_k.
        softmax_scale: finite, ≥ 1e-8; default 1 / sqrt(head_dim).
        causal, window_size: as in `flash_attn_func`, the diagonal ends at each sequence's last key.
        softcap: scores become softcap · tanh(score / softcap); 0: they do not.
        num_splits: at most so many workgroups share the keys of a row; 0: as the kernel likes.
        q_descale, k_descale, v_descale: fp32 [1], with fp8 tensors: what the elements are multiplied by.
        return_softmax_lse: also return the log-sum-exp of the scores.
        pack_gqa, sm_margin, max_seqlen_q: hints without effect.
        attention_chunk: 0.
        qv, page_table, cache_batch_idx, cache_leftpad, rotary_cos, rotary_sin, rotary_seqlens, cu_seqlens_q,
            cu_seqlens_k_new: None; the error says what to use instead.
        workspace: as in `flash_attn_func`.
        out: tensor to write, [batch, seqlen_q, num_heads, head_dim_v]; default: a new one, bf16 for fp8.
        backend: "hip", "ck", "triton" or "torch" instead of the automatic choice, of the attention.

    Returns:
        `out`, or with `return_softmax_lse` the pair `out`, lse: [batch, num_heads, seqlen_q] fp32, natural logarithm.
        With `k` and `v` the caches are written too.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: an option or a backend that cannot serve the call, with the alternative.

    Notes:
        As `flash_attn_func`. Lengths on the device stay there: the call can be captured in a graph.

    Source: Dao, FlashAttention; AITER's `flash_attn_with_kvcache`.
    """
    _refuse(attention_chunk, page_table=page_table, cache_batch_idx=cache_batch_idx, rotary_cos=rotary_cos,
            rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens, qv=qv, cache_leftpad=cache_leftpad,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new)
    check.tensor(_OP, "q", q, rank=4)
    check.tensor(_OP, "k_cache", k_cache, rank=4)
    check.tensor(_OP, "v_cache", v_cache, rank=4)
    check.flag(_OP, "return_softmax_lse", return_softmax_lse)
    (batch, seqlen_q, num_heads, head_dim), seqlen_k = q.shape, k_cache.shape[1]
    left, right, sink_size = read_window(_OP, window_size, causal)
    if seqlen_q <= right + 1:  # the limit is behind the last key: decoding needs no causal mask
        right = -1
    lengths = _read_lengths(cache_seqlens, batch, seqlen_k, q.device)
    if k is not None or v is not None:
        lengths = _append(k, v, k_cache, v_cache, lengths, (k_descale, v_descale))
    if isinstance(lengths, int):
        k_cache, v_cache, lengths = k_cache[:, :lengths], v_cache[:, :lengths], None
    if out is None:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = torch.empty(batch, seqlen_q, num_heads, v_cache.shape[3], dtype=dtype, device=q.device)
    lse = torch.empty(batch, num_heads, seqlen_q, device=q.device) if return_softmax_lse else None
    scale = max(head_dim, 1) ** -0.5 if softmax_scale is None else softmax_scale
    flash_attn_fwd(out, lse, q, k_cache, v_cache, None, None, lengths, None, None, None, q_descale, k_descale,
                   v_descale, None, workspace, seqlen_q, k_cache.shape[1], scale, left, right, sink_size, softcap, 0.0,
                   num_splits, 0, backend=backend)
    return out if lse is None else (out, lse)


flash_attn_fwd.public.append(flash_attn_with_kvcache)


def _refuse(attention_chunk: int, **tensors: Tensor | None) -> None:
    reasons = {name: _INSTEAD[name] for name, value in tensors.items() if value is not None}
    if attention_chunk:
        reasons["attention_chunk"] = "a window limits the keys"
    if reasons:
        raise UnsupportedError(f"{_OP}: no backend supports "
                               + "; ".join(f"{name} ({instead})" for name, instead in reasons.items()), _OP, reasons)


def _read_lengths(cache_seqlens: Tensor | int | None, batch: int, seqlen_k: int, device: torch.device) -> Tensor | int:
    """Keys in the cache: int32 [batch], or a number for all."""
    if isinstance(cache_seqlens, Tensor):
        check.tensor(_OP, "cache_seqlens", cache_seqlens, dtypes=(torch.int32,), shape=(batch,), device=device)
        return cache_seqlens
    if cache_seqlens is None:
        return seqlen_k
    check.integer(_OP, "cache_seqlens", cache_seqlens, 0, seqlen_k)
    return cache_seqlens


def _append(k: Tensor | None, v: Tensor | None, k_cache: Tensor, v_cache: Tensor, lengths: Tensor | int,
            descales: tuple[Tensor | None, Tensor | None]) -> Tensor | int:
    """Writes `k` and `v` behind the cache's keys; the lengths afterwards. Nothing waits for the device.

    Raises:
        TypeError, ValueError: they do not fit the caches.
    """
    batch, seqlen_k = k_cache.shape[:2]
    check.tensor(_OP, "k", k, shape=(batch, None, *k_cache.shape[2:]), device=k_cache.device)
    check.tensor(_OP, "v", v, dtypes=(k.dtype,), shape=(*k.shape[:2], *v_cache.shape[2:]), device=k_cache.device)
    new = torch.arange(k.shape[1], device=k.device)
    if isinstance(lengths, int):
        check.integer(_OP, "cache_seqlens and the length of k together", lengths + k.shape[1], 0, seqlen_k)
        places = (lengths + new).expand(batch, -1)
    else:
        places = lengths.clamp(0, seqlen_k)[:, None] + new
    first = torch.arange(0, batch * seqlen_k, max(seqlen_k, 1), device=k.device)[:batch, None]
    slots = torch.where(places < seqlen_k, first + places, -1)  # [batch, seqlen_new]; −1: no room
    is_quantised = k.dtype != k_cache.dtype
    reshape_and_cache_flash(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten(),
                            "fp8" if is_quantised else "auto", *(descales if is_quantised else (None, None)))
    grown = lengths + k.shape[1]
    return grown if isinstance(grown, int) else grown.clamp(max=seqlen_k)
