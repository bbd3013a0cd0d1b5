# SPDX-License-Identifier: MIT
"""unified_attention in Triton: the launcher. Decoding goes to the kernel of paged_attention.py, the rest to that of
flash_attn_fwd_parts.py with a block table.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from aiter_like.device import target_of
from aiter_like.ops.attention.call import FP8, PagedCall
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall
from aiter_like.ops.attention.triton.flash_attn_fwd_parts import attend, width
from aiter_like.ops.attention.triton.paged_attention import paged_attention
from aiter_like.ops.common.triton.launch import config

MOST_DECODED = 8
"""Rows of a sequence that the kernel for decoding takes: those of speculative decoding."""

_MOST_OFFSET = 2**31 - 1  # elements within a page


def unified_attention(call: PagedCall, kernel: str = "", **params: int) -> Callable[..., None] | None:
    """Writes `out` and `lse`. What it returns: see Backend.returns_relaunch.

    kernel: "paged_attention" or "unified_attention"; default: what decoded_by says. params: a tuned row's values
    instead of those of configs/triton/<kernel>.toml.
    """
    decode = decode_call(call) if kernel != "unified_attention" else None
    if decode is not None and (kernel or decoded_by(call) == "paged_attention"):
        again = paged_attention(decode, **params)
        return lambda *fields: again(*decode_call(PagedCall(*fields)))
    attention = call.attention
    kind = "short" if call.max_seqlen_q * (attention.num_heads // attention.num_kv_heads) <= 32 else "long"
    settings = config("unified_attention", target_of(call.q.device).arch, f"{kind}_{width(attention)}")
    launches = attend(attention, {**settings, **params}, call.block_table, call.output_scale)

    def relaunch(*fields: Tensor | float | None) -> None:
        call = PagedCall(*fields)
        launches(call.attention, call.block_table, call.output_scale)

    return None if launches is None else relaunch


def decoded_by(call: PagedCall) -> str:
    """The kernel for a call that both can serve."""
    return "paged_attention" if target_of(call.q.device).platform == "cuda" else "unified_attention"


def decode_call(call: PagedCall) -> PagedAttentionCall | None:
    """The same call of paged_attention; None where that has something else in mind: no causal mask among several rows,
    leading keys that a window does not hide, a bias between queries, a scale for each head or pages too wide.
    """
    is_causal = call.window_right == 0 or call.max_seqlen_q <= 1 and call.window_right < 0
    if not is_causal or not 0 < call.max_seqlen_q <= MOST_DECODED or call.qq_bias is not None:
        return None
    k_scale, v_scale, q_scale = None, None, call.q_descale if call.q.dtype in FP8 else None
    if call.k.dtype in FP8:
        k_scale, v_scale = _one_number(call.k_descale), _one_number(call.v_descale)
        if any(given is not None and found is None for given, found in ((call.k_descale, k_scale),
                                                                        (call.v_descale, v_scale))):
            return None
    if call.sink_size and call.window_left >= 0 or any(_span(cache) > _MOST_OFFSET for cache in (call.k, call.v)):
        return None
    return PagedAttentionCall(
        call.out, call.lse, call.q, call.k, call.v, call.block_table, call.seqlens_k, call.page_starts,
        call.cu_seqlens_q, q_scale, k_scale, v_scale, call.output_scale, call.alibi_slopes, call.sink,
        max_seqlen_q=call.max_seqlen_q, max_seqlen_k=call.max_seqlen_k, softmax_scale=call.softmax_scale,
        window_left=call.window_left, softcap=call.softcap)


def _one_number(scale: Tensor | None) -> Tensor | None:
    """[1], also of a number that was expanded; None: there are several."""
    if scale is None or scale.numel() == 1:
        return scale if scale is None else scale.reshape(1)
    return scale[0, :1] if scale.numel() and not any(scale.stride()) else None


def _span(cache: Tensor) -> int:
    """Elements that a page reaches over."""
    return sum(size * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:]))
