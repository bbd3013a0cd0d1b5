# SPDX-License-Identifier: MIT
"""The arguments of unified_attention, in order. Read by ops/attention/unified_attention.py and
ops/attention/triton/flash_attn_fwd_parts.py.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from aiter_like.ops.attention.call import AttentionCall


class PagedCall(NamedTuple):
    """One call of the operator: `PagedCall(*args)`. q and out [total_q, num_heads, head_dim], lse [num_heads, total_q].

    Attributes:
        k, v: pages [num_pages, page_size, num_kv_heads, head_dim or head_dim_v]. Shuffled, with x elements of 16 bytes
            together: k [num_pages, page_size, num_kv_heads, head_dim / x, x], v [num_pages, page_size / x,
            num_kv_heads, head_dim_v, x].
        block_table: [batch, pages]: the pages of each sequence; with `page_starts` [pages] of all.
        page_starts: [batch + 1]: where the pages of a sequence begin in `block_table`.
        seqlens_k: [batch]: keys of each sequence; with `page_starts` those in its last page, or None: all.
        k_descale, v_descale: fp32, one number or [batch, num_kv_heads]; of fp8 pages only.
        output_scale: fp32 [1]: what an fp8 out is divided by.
        qq_bias: [n, n], added to the scores between the queries of a sequence and the keys of the same tokens.
        alibi_slopes, sinks, window_left, window_right, sink_size, softcap: as of AttentionCall.
    """

    out: Tensor
    lse: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    seqlens_k: Tensor | None
    block_table: Tensor
    page_starts: Tensor | None
    q_descale: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    alibi_slopes: Tensor | None
    output_scale: Tensor | None
    qq_bias: Tensor | None
    sinks: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    sink_size: int
    softcap: float

    @property
    def attention(self) -> AttentionCall:
        """The call without pages: k and v, cu_seqlens_k and seqlens_k keep the meaning that they have here."""
        return AttentionCall(
            self.out, self.lse, self.q, self.k, self.v, self.cu_seqlens_q, self.page_starts, self.seqlens_k,
            self.qq_bias, self.alibi_slopes, self.sinks, self.q_descale, self.k_descale, self.v_descale, None, None,
            self.max_seqlen_q, self.max_seqlen_k, self.softmax_scale, self.window_left, self.window_right,
            self.sink_size, self.softcap, 0.0, 0, 0)

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def is_shuffled(self) -> bool:
        return self.k.ndim == 5

    @property
    def features(self) -> tuple[str, ...]:
        """What a kernel must have besides masks and lse, by short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "output_scale": self.output_scale is not None,
                 "qq_bias": self.qq_bias is not None, "shuffled": self.is_shuffled, "sinks": self.sinks is not None,
                 "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)


def unshuffled_axes(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views with PagedCall's axes of k [num_pages, num_kv_heads, head_dim / x, page_size, x] and v [num_pages,
    num_kv_heads, page_size / x, head_dim_v, x].
    """
    return k.permute(0, 3, 1, 2, 4), v.permute(0, 2, 1, 3, 4)
