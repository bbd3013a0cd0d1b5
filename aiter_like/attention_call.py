# SPDX-License-Identifier: MIT
"""The arguments of flash_attn_fwd and flash_attn_bwd, in order, and what they say about the call.

Read by ops/attention*.py and the Triton launchers.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionCall(NamedTuple):
    """One call of flash_attn_fwd: `AttentionCall(*args)`.

    Dense: q [batch, seqlen_q, num_heads, head_dim], k [batch, seqlen_k, num_kv_heads, head_dim], v and out with
    head_dim_v instead, lse [batch, num_heads, seqlen_q]. Varlen (cu_seqlens_q given): [total, heads, dim], lse
    [num_heads, total_q]. Sequence i of k is seqlens_k[i] long where that is given, and delta = keys − queries.

    Attributes:
        bias: added to the scores, [1 or batch, 1 or num_heads, seqlen_q, seqlen_k]; varlen [total_q, max_seqlen_k].
        alibi_slopes: fp32 [num_heads] or [batch, num_heads]: slope · |i + delta − j| is subtracted from the scores.
        sink: fp32 [num_heads]: one more score in the denominator, with no value.
        q_descale, k_descale, v_descale: fp32 [1], what fp8 elements are multiplied by.
        rng_state: int64 [2], seed and offset of dropout's Philox.
        workspace: uint8, or None: a kernel that needs one allocates it.
        window_left, window_right: query i sees keys i + delta − window_left … i + delta + window_right; −1: no limit.
        sink_size: leading keys that a left window never hides.
        softcap: 0, or scores become softcap · tanh(score / softcap), before bias and ALiBi.
        num_splits: 0: automatic; n: at most n parts of the keys.
        how_v3_bf16_cvt: rounding of P and out to bf16, 0 to nearest even, 1 to nearest away, 2 towards zero.
    """

    out: Tensor
    lse: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqlens_k: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    q_descale: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    rng_state: Tensor | None
    workspace: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    sink_size: int
    softcap: float
    dropout_p: float
    num_splits: int
    how_v3_bf16_cvt: int

    @property
    def is_varlen(self) -> bool:
        return self.cu_seqlens_q is not None

    @property
    def batch(self) -> int:
        return self.cu_seqlens_q.shape[0] - 1 if self.is_varlen else self.q.shape[0]

    @property
    def num_heads(self) -> int:
        return self.q.shape[-2]

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[-2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def head_dim_v(self) -> int:
        return self.v.shape[-1]

    @property
    def layout(self) -> str:
        return "varlen" if self.is_varlen else "dense"

    @property
    def mask(self) -> str:
        """ "none", "causal" or "window". """
        if self.window_left == -1:
            return {-1: "none", 0: "causal"}.get(self.window_right, "window")
        return "window"

    @property
    def features(self) -> tuple[str, ...]:
        """What a kernel must have besides masks, lengths and lse, by short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "bias": self.bias is not None, "dropout": self.dropout_p > 0,
                 "seqlens": self.seqlens_k is not None, "sink": self.sink is not None, "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)


class AttentionBackwardCall(NamedTuple):
    """One call of flash_attn_bwd: `AttentionBackwardCall(*args)`. The forward's arguments are as there.

    Attributes:
        dq, dk, dv: written; shape and dtype of q, k and v.
        dsink: fp32 [num_heads], written; None: not wanted.
        dout: shape and dtype of out.
        dlse: fp32, shape of lse, contiguous; None: the LSE was not used.
        out, lse: the forward's results, lse contiguous.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None
    dout: Tensor
    dlse: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    rng_state: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    sink_size: int
    softcap: float
    dropout_p: float

    @property
    def forward(self) -> AttentionCall:
        """The call of flash_attn_fwd that this is the derivative of."""
        return AttentionCall(
            self.out, self.lse, self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k, None, self.bias,
            self.alibi_slopes, self.sink, None, None, None, self.rng_state, None, self.max_seqlen_q, self.max_seqlen_k,
            self.softmax_scale, self.window_left, self.window_right, self.sink_size, self.softcap, self.dropout_p, 0, 0)
