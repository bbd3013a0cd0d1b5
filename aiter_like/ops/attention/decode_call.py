# SPDX-License-Identifier: MIT
"""Routes those calls of unified_attention that are decoding to the operator that serves them."""

from __future__ import annotations

from torch import Tensor

from aiter_like.device import Target
from aiter_like.ops.attention.call import FP8, PagedCall
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall

MOST_QUERIES = 8
"""The most queries of a sequence that the kernels for decoding take, for speculative decoding. More are a prefill,
which reads keys once for many rows."""

_MOST_OFFSET = 2**31 - 1  # elements within a page


def triton_kernels(target: Target, call: PagedCall, **params: int) -> list[str]:
    """Decoding is best done by the kernel of paged_attention on NVIDIA; only the other one has the parameter BLOCK_M.

    That one took 1.0 to 1.4 times as long on an H100 (`op_tests/bench/run.py paged_attention` has today's
    figures), and splits keys by what the host knows of lengths. On gfx942 nobody has compared the two.
    """
    if params:
        return ["unified_attention"] if "BLOCK_M" in params or decode_call(call) is None else ["paged_attention"]
    if target.platform != "cuda" or decode_call(call) is None:
        return ["unified_attention"]
    return ["paged_attention", "unified_attention"]


def decode_call(call: PagedCall) -> PagedAttentionCall | None:
    """The same call of paged_attention; None where that has something else in mind: no causal mask among several rows,
    leading keys that a window does not hide, a bias between queries, a scale for each head or pages too wide.
    """
    is_causal = call.window_right == 0 or call.max_seqlen_q <= 1 and call.window_right < 0
    if not is_causal or not 0 < call.max_seqlen_q <= MOST_QUERIES or call.qq_bias is not None:
        return None
    k_scale, v_scale = None, None
    if call.k.dtype in FP8:
        k_scale, v_scale = _one_number(call.k_descale), _one_number(call.v_descale)
        if any(given is not None and found is None for given, found in ((call.k_descale, k_scale),
                                                                        (call.v_descale, v_scale))):
            return None
    if call.sink_size and call.window_left >= 0 or any(_span(cache) > _MOST_OFFSET for cache in (call.k, call.v)):
        return None
    return with_scales(call, k_scale, v_scale)


def with_scales(call: PagedCall, k_scale: Tensor | None, v_scale: Tensor | None) -> PagedAttentionCall:
    """The fields of a call of paged_attention, without a look at what that makes of them; scales as it has them."""
    return PagedAttentionCall(
        call.out, call.lse, call.q, call.k, call.v, call.block_table, call.seqlens_k, call.page_starts,
        call.cu_seqlens_q, call.q_descale if call.q.dtype in FP8 else None, k_scale, v_scale, call.output_scale,
        call.alibi_slopes, call.sink, max_seqlen_q=call.max_seqlen_q, max_seqlen_k=call.max_seqlen_k,
        softmax_scale=call.softmax_scale, window_left=call.window_left, softcap=call.softcap)


def _one_number(scale: Tensor | None) -> Tensor | None:
    """[1], also of a number that was expanded; None: there are several."""
    if scale is None or scale.numel() == 1:
        return scale if scale is None else scale.reshape(1)
    return scale[0, :1] if scale.numel() and not any(scale.stride()) else None


def _span(cache: Tensor) -> int:
    """Elements that a page reaches over."""
    return sum(size * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:]))
