# SPDX-License-Identifier: MIT
"""The call objects of flash_attn_fwd, _bwd and _dbias and of unified_attention, and what they say about a call."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.dispatch import STRIDED

FLOATS = (torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)


def mask_of(window_left: int, window_right: int) -> str:
    """ "none", "causal" or "window". """
    if window_left != -1:
        return "window"
    return "none" if window_right == -1 else "causal" if window_right == 0 else "window"


def rounding_of(dtype: torch.dtype, how_v3_bf16_cvt: int) -> int:
    """The rounding to `dtype` that how_v3_bf16_cvt asks for: only bf16 has ties away, others round to nearest even."""
    return how_v3_bf16_cvt if dtype == torch.bfloat16 or how_v3_bf16_cvt == 2 else 0


class AttentionCall(NamedTuple):
    """One call of flash_attn_fwd. `dense_call` makes one of dense tensors.

    Dense tensors are [batch, length, heads, dim], those of packed sequences, which cu_seqlens_q begin, [total, heads,
    dim]. Sequence i of k is seqlens_k[i] long where that is given, and delta = keys − queries.

    Attributes:
        bias: added to the scores, [1 or batch, 1 or num_heads, seqlen_q, seqlen_k]; varlen [total_q, max_seqlen_k].
        alibi_slopes: [num_heads] or [batch, num_heads]: slope · |i + delta − j| is subtracted from the scores.
        sink: one more score in the denominator, with no value.
        q_descale, k_descale, v_descale: what fp8 elements are multiplied by.
        rng_state: seed and offset of dropout's Philox.
        workspace: None: a kernel that needs one allocates it.
        window_left, window_right: query i sees keys i + delta − window_left … i + delta + window_right; −1: no limit.
        sink_size: leading keys that a left window never hides.
        softcap: 0, or scores become softcap · tanh(score / softcap), before bias and ALiBi.
        num_splits: 0: automatic; n: at most n parts of the keys.
        how_v3_bf16_cvt: rounding of P and out to bf16, 0 to nearest even, 1 to nearest away, 2 towards zero.
    """

    out: Annotated[Tensor, "*out _"]
    lse: Annotated[Tensor | None, "*lse _", torch.float32]
    q: Annotated[Tensor, "*q _ dim", (*FLOATS, *FP8)]
    k: Annotated[Tensor, "*k keys kv_heads dim", "q"]
    v: Annotated[Tensor, "*k keys kv_heads _", "q"]
    cu_seqlens_q: Annotated[Tensor | None, "batch+1", torch.int32] = None
    cu_seqlens_k: Annotated[Tensor | None, "batch+1", torch.int32] = None
    seqlens_k: Annotated[Tensor | None, "_", torch.int32] = None
    bias: Annotated[Tensor | None, "*bias _ _", ("q", torch.float32), STRIDED] = None
    alibi_slopes: Annotated[Tensor | None, "*slopes _", torch.float32] = None
    sink: Annotated[Tensor | None, "_", torch.float32] = None
    q_descale: Annotated[Tensor | None, "1", torch.float32] = None
    k_descale: Annotated[Tensor | None, "1", torch.float32] = None
    v_descale: Annotated[Tensor | None, "1", torch.float32] = None
    rng_state: Annotated[Tensor | None, "2", torch.int64] = None
    workspace: Annotated[Tensor | None, "bytes", torch.uint8] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    softmax_scale: float = 1.0
    window_left: int = -1
    window_right: int = -1
    sink_size: int = 0
    softcap: float = 0.0
    dropout_p: float = 0.0
    num_splits: int = 0
    how_v3_bf16_cvt: int = 0

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
        return self.k.shape[min(self.k.ndim, 4) - 2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def head_dim_v(self) -> int:
        return self.v.shape[min(self.v.ndim, 4) - 1]

    @property
    def is_fp8(self) -> bool:
        return self.q.dtype in FP8

    @property
    def mask(self) -> str:
        return mask_of(self.window_left, self.window_right)

    @property
    def rounding(self) -> int:
        return rounding_of(self.out.dtype, self.how_v3_bf16_cvt)

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a kernel must have besides masks, lengths and lse: short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "bias": self.bias is not None, "dropout": self.dropout_p > 0,
                 "seqlens": self.seqlens_k is not None, "sink": self.sink is not None, "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)


def dense_call(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> AttentionCall:
    """A call of flash_attn_fwd with dense tensors: the lengths are theirs, the scale is 1 / sqrt(head_dim).

    Args:
        options: further fields; a `softmax_scale` among them counts.
    """
    options.setdefault("softmax_scale", max(q.shape[3], 1) ** -0.5)
    return AttentionCall(out, lse, q, k, v, max_seqlen_q=q.shape[1], max_seqlen_k=k.shape[1], **options)


class AttentionBackwardCall(NamedTuple):
    """One call of flash_attn_bwd. `backward_call` makes one of a forward call, whose fields it shares.

    Attributes:
        dsink: None: not wanted.
        deterministic: False: dq may be added up in any order, where that is faster.
        dout, dlse: of the shapes of out and lse, dlse contiguous; None: the LSE was not used.
        out, lse: the forward's results, lse contiguous.
    """

    dq: Annotated[Tensor, "*dq _", "q"]
    dk: Annotated[Tensor, "*dk _", "q"]
    dv: Annotated[Tensor, "*dv _", "q"]
    dsink: Annotated[Tensor | None, "_", torch.float32]
    dout: Annotated[Tensor, "*dout _", FLOATS]
    dlse: Annotated[Tensor | None, "*dlse _", torch.float32]
    q: Annotated[Tensor, "*q _ dim", FLOATS]
    k: Annotated[Tensor, "*k keys kv_heads dim", "q"]
    v: Annotated[Tensor, "*k keys kv_heads _", "q"]
    out: Annotated[Tensor, "*out _", "q"]
    lse: Annotated[Tensor, "*lse _", torch.float32]
    cu_seqlens_q: Annotated[Tensor | None, "batch+1", torch.int32] = None
    cu_seqlens_k: Annotated[Tensor | None, "batch+1", torch.int32] = None
    bias: Annotated[Tensor | None, "*bias _ _", ("q", torch.float32), STRIDED] = None
    alibi_slopes: Annotated[Tensor | None, "*slopes _", torch.float32] = None
    sink: Annotated[Tensor | None, "_", torch.float32] = None
    rng_state: Annotated[Tensor | None, "2", torch.int64] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    softmax_scale: float = 1.0
    window_left: int = -1
    window_right: int = -1
    sink_size: int = 0
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = True

    @property
    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dq, self.dk, self.dv

    @property
    def results(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The tensors that the operator writes."""
        return self.dq, self.dk, self.dv, self.dsink

    @property
    def forward(self) -> AttentionCall:
        """The call of flash_attn_fwd that this is the derivative of."""
        return AttentionCall(**{name: getattr(self, name) for name in _SHARED})


class AttentionDbiasCall(NamedTuple):
    """One call of flash_attn_dbias. `dbias_call` makes one of a call of flash_attn_bwd, whose fields it shares.

    Attributes:
        dbias: of the shape and dtype of bias.
    """

    dbias: Annotated[Tensor, "*dbias _ _", "bias", STRIDED]
    dout: Annotated[Tensor, "*dout _", FLOATS]
    dlse: Annotated[Tensor | None, "*dlse _", torch.float32]
    q: Annotated[Tensor, "*q _ dim", FLOATS]
    k: Annotated[Tensor, "*k keys kv_heads dim", "q"]
    v: Annotated[Tensor, "*k keys kv_heads _", "q"]
    out: Annotated[Tensor, "*out _", "q"]
    lse: Annotated[Tensor, "*lse _", torch.float32]
    bias: Annotated[Tensor, "*bias _ _", ("q", torch.float32), STRIDED]
    cu_seqlens_q: Annotated[Tensor | None, "batch+1", torch.int32] = None
    cu_seqlens_k: Annotated[Tensor | None, "batch+1", torch.int32] = None
    alibi_slopes: Annotated[Tensor | None, "*slopes _", torch.float32] = None
    sink: Annotated[Tensor | None, "_", torch.float32] = None
    rng_state: Annotated[Tensor | None, "2", torch.int64] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    softmax_scale: float = 1.0
    window_left: int = -1
    window_right: int = -1
    sink_size: int = 0
    softcap: float = 0.0
    dropout_p: float = 0.0

    forward = AttentionBackwardCall.forward


_SHARED = tuple(name for name in AttentionCall._fields if name in AttentionBackwardCall._fields)


def dbias_call(call: AttentionBackwardCall, dbias: Tensor) -> AttentionDbiasCall:
    """The derivative by the bias beside those by q, k and v."""
    shared = {name: getattr(call, name) for name in AttentionDbiasCall._fields if name != "dbias"}
    return AttentionDbiasCall(dbias, **shared)


def backward_call(forward: AttentionCall, dout: Tensor, **gradients: Tensor | None) -> AttentionBackwardCall:
    """The derivative of a finished call of flash_attn_fwd, with new dq, dk and dv where `gradients` has none.

    Args:
        gradients: dq, dk, dv, dsink, dlse.
    """
    new = {name: torch.empty_like(tensor) for name, tensor in (("dq", forward.q), ("dk", forward.k), ("dv", forward.v))
           if name not in gradients}
    shared = {name: getattr(forward, name) for name in _SHARED}
    return AttentionBackwardCall(**{"dsink": None, "dlse": None, **new, **gradients}, dout=dout, **shared)


class PagedCall(NamedTuple):
    """One call of unified_attention.

    Attributes:
        k, v: pages [num_pages, page_size, num_kv_heads, head_dim or head_dim_v]. Shuffled, with x elements of 16 bytes
            together: k [num_pages, page_size, num_kv_heads, head_dim / x, x], v [num_pages, page_size / x,
            num_kv_heads, head_dim_v, x].
        block_table: [batch, pages]: the pages of each sequence; with `page_starts` [pages] of all.
        page_starts: [batch + 1]: where the pages of a sequence begin in `block_table`.
        seqlens_k: [batch]: keys of each sequence; with `page_starts` those in its last page, or None: all.
        k_descale, v_descale: one number or [batch, num_kv_heads]; of fp8 pages only.
        output_scale: one number: what an fp8 out is divided by.
        qq_bias: [n, n], added to the scores between the queries of a sequence and the keys of the same tokens.
        alibi_slopes, sink, window_left, window_right, sink_size, softcap: as of AttentionCall.
    """

    out: Annotated[Tensor, "total_q heads _"]
    lse: Annotated[Tensor | None, "heads total_q", torch.float32]
    q: Annotated[Tensor, "total_q heads dim", (*FLOATS, *FP8)]
    k: Annotated[Tensor, "*k _", (*FLOATS, *FP8)]
    v: Annotated[Tensor, "*v _", "k"]
    cu_seqlens_q: Annotated[Tensor, "batch+1", torch.int32]
    seqlens_k: Annotated[Tensor | None, "_", torch.int32]
    block_table: Annotated[Tensor, "*table _", torch.int32]
    page_starts: Annotated[Tensor | None, "batch+1", torch.int32] = None
    q_descale: Annotated[Tensor | None, "*q_descale", torch.float32] = None
    k_descale: Annotated[Tensor | None, "*k_descale", torch.float32, STRIDED] = None
    v_descale: Annotated[Tensor | None, "*v_descale", torch.float32, STRIDED] = None
    alibi_slopes: Annotated[Tensor | None, "*slopes _", torch.float32] = None
    output_scale: Annotated[Tensor | None, "*output_scale", torch.float32] = None
    qq_bias: Annotated[Tensor | None, "*qq_bias _", (torch.float32, *FLOATS)] = None
    sink: Annotated[Tensor | None, "_", (torch.float32, *FLOATS)] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    softmax_scale: float = 1.0
    window_left: int = -1
    window_right: int = -1
    sink_size: int = 0
    softcap: float = 0.0

    @property
    def attention(self) -> AttentionCall:
        """The call without pages: k and v, cu_seqlens_k and seqlens_k keep the meaning that they have here."""
        return AttentionCall(
            self.out, self.lse, self.q, self.k, self.v, cu_seqlens_q=self.cu_seqlens_q, cu_seqlens_k=self.page_starts,
            seqlens_k=self.seqlens_k, bias=self.qq_bias, alibi_slopes=self.alibi_slopes, sink=self.sink,
            q_descale=self.q_descale, k_descale=self.k_descale, v_descale=self.v_descale,
            max_seqlen_q=self.max_seqlen_q, max_seqlen_k=self.max_seqlen_k, softmax_scale=self.softmax_scale,
            window_left=self.window_left, window_right=self.window_right, sink_size=self.sink_size,
            softcap=self.softcap)

    @property
    def mask(self) -> str:
        return mask_of(self.window_left, self.window_right)

    @property
    def batch(self) -> int:
        return max(self.cu_seqlens_q.shape[0] - 1, 0)

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def is_shuffled(self) -> bool:
        return self.k.ndim == 5

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a kernel must have besides masks and lse: short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "output_scale": self.output_scale is not None,
                 "qq_bias": self.qq_bias is not None, "shuffled": self.is_shuffled, "sink": self.sink is not None,
                 "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)


def unshuffled_axes(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views with PagedCall's axes of k [num_pages, num_kv_heads, head_dim / x, page_size, x] and v [num_pages,
    num_kv_heads, page_size / x, head_dim_v, x].
    """
    return k.permute(0, 3, 1, 2, 4), v.permute(0, 2, 1, 3, 4)
