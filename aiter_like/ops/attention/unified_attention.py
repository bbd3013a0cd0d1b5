# SPDX-License-Identifier: MIT
"""Attention over paged keys: unified_attention. Kernels: ops/attention/triton/unified_attention.py, csrc/attention/
unified_attention.hip for prefill; for decoding those of paged_attention (decode_call.py, paged_attention_hip.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import FP8, PagedCall, unshuffled_axes
from aiter_like.ops.attention.checks import check_paged_call, paged_refusal, read_window
from aiter_like.ops.attention.decode_call import triton_kernels
from aiter_like.ops.attention.paged_attention_call import decoding_space
from aiter_like.ops.attention.paged_attention_hip import unified_attention_hip, unified_hip_refusal
from aiter_like.ops.attention.reference import pages_of, product_with, rows_in, scores_of, softmax_of
from aiter_like.ops.attention.unified_attention_choice import prefers
from aiter_like.ops.attention.unified_attention_ck import takes_turns, unified_attention_ck, unified_ck_refusal
from aiter_like.ops.common import tune_shapes, vectors
from aiter_like.ops.common.contents import as_int32, check_lengths, check_pages

__all__ = ["unified_attention"]

_OP = "unified_attention"
_MAX_COLUMN_STRIDE = 2**22  # in shuffled pages: a head of 256 columns within a signed 32-bit offset


def unified_attention_ref(call: PagedCall) -> None:
    """The formula in torch, in fp32, sequence by sequence; writes `out` and `lse`. Reads the lengths on the host."""
    bounds = call.cu_seqlens_q.clamp(0, call.q.shape[0]).tolist()
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        if start < end:
            _sequence_ref(call, index, slice(start, end), *_keys_of(call, index))


def _keys_of(call: PagedCall, index: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence in fp32, [keys, num_kv_heads, dim]."""
    (entries, count), found = pages_of(call, index), []
    for is_value, pages, descale in ((False, call.k, call.k_descale), (True, call.v, call.v_descale)):
        rows = rows_in(pages, entries, is_value).flatten(0, 1)[:count]
        if descale is not None and call.k.dtype in FP8:
            rows *= descale.view(1) if descale.numel() == 1 else descale[index][:, None]
        found.append(rows)
    return found[0], found[1]


def _sequence_ref(call: PagedCall, index: int, rows: slice, keys: Tensor, values: Tensor) -> None:
    """Writes the rows of one sequence."""
    q = call.q[rows].float()
    if call.q_descale is not None and call.q.dtype in FP8:
        q *= call.q_descale
    group_size, length, count = q.shape[1] // keys.shape[1], q.shape[0], keys.shape[0]
    q, keys, values = (x.transpose(0, 1) for x in (q, keys.repeat_interleave(group_size, 1),
                                                   values.repeat_interleave(group_size, 1)))  # [heads, rows, dim]
    bias, slopes = None, call.alibi_slopes
    if call.qq_bias is not None and count >= length:
        seen, first = min(length, call.qq_bias.shape[0]), count - length
        bias = q.new_zeros(length, count)
        bias[:seen, first:first + seen] = call.qq_bias[:seen, :seen]
    if slopes is not None and slopes.ndim == 2:
        slopes = slopes[index]
    scores, visible, _ = scores_of(call, q, keys, bias, slopes)
    p, lse = softmax_of(scores, visible, call.sink)
    result = product_with(p, values, visible).transpose(0, 1)
    if call.output_scale is not None:
        limit = torch.finfo(call.out.dtype).max
        result = (result / call.output_scale).clamp(-limit, limit)
    call.out[rows] = result.to(call.out.dtype)
    if call.lse is not None:
        call.lse[:, rows] = lse


def _triton_refusal(target: Target, call: PagedCall) -> str | None:
    if call.is_shuffled and max(call.k.stride(3), call.v.stride(3)) > _MAX_COLUMN_STRIDE:
        return f"columns of shuffled pages at most {_MAX_COLUMN_STRIDE} elements apart, got {call.k.stride(3)} and " \
               f"{call.v.stride(3)}"
    return paged_refusal(target, call, call.max_seqlen_q, call.max_seqlen_k)


class UnifiedAttentionKey(NamedTuple):
    """The fields that a tuned row of unified_attention is chosen by."""

    mask: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    features: str
    dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, call: PagedCall) -> UnifiedAttentionKey:
        return cls(call.mask, call.batch, call.max_seqlen_q, call.max_seqlen_k, call.q.shape[1], call.k.shape[2],
                   call.q.shape[2], call.page_size, "+".join(call.features) or "none", dtypes.name(call.q.dtype),
                   dtypes.name(call.k.dtype))

    def make(self, device: torch.device, seed: int) -> PagedCall:
        """Sequences of equal lengths on pages in random order."""
        batch, pages = self.batch, -(-self.seqlen_k // self.page_size)
        q = tune_shapes.normal(device, seed, self.dtype)(batch * self.seqlen_q, self.num_heads, self.head_dim)
        random = tune_shapes.normal(device, seed + 1, self.kv_dtype)
        k, v = (random(batch * pages, self.page_size, self.num_kv_heads, self.head_dim) for _ in range(2))
        return PagedCall(
            torch.empty_like(q), None, q, k, v,
            cu_seqlens_q=torch.arange(batch + 1, device=device, dtype=torch.int32) * self.seqlen_q,
            seqlens_k=torch.full((batch,), self.seqlen_k, device=device, dtype=torch.int32),
            block_table=tune_shapes.page_table(device, seed, batch, pages), max_seqlen_q=self.seqlen_q,
            max_seqlen_k=self.seqlen_k, softmax_scale=self.head_dim ** -0.5,
            window_right=-1 if self.mask == "none" else 0)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[UnifiedAttentionKey]:
        """Decoding `tokens` sequences of 4096 keys; from 128 tokens on also a prefill of one sequence."""
        if model.kv_lora_rank:
            return
        prefill = cls("causal", 1, tokens, tokens, model.num_heads // tp, max(model.num_kv_heads // tp, 1),
                      model.head_dim, 16, "none", model.dtype, model.dtype)
        if tokens <= 256:
            yield prefill._replace(batch=tokens, seqlen_q=1, seqlen_k=4096)
        if tokens >= 128:
            yield prefill


def _cases(device: torch.device) -> dict[str, PagedCall]:
    """Decoding, whose keys are split; prefill; and shuffled pages of fp8 with all that changes a score."""
    decode = UnifiedAttentionKey("causal", 2, 1, 700, 4, 2, 64, 16, "none", "bf16", "bf16")
    fp8 = dtypes.name(dtypes.fp8_of(target_of(device).arch))
    case = decode._replace(seqlen_q=5, seqlen_k=70, kv_dtype=fp8).make(device, 0)
    k, v = unshuffled_axes(case.k.unflatten(3, (-1, 16)).permute(0, 2, 3, 1, 4).contiguous(),
                           case.v.unflatten(1, (-1, 16)).permute(0, 3, 1, 4, 2).contiguous())
    return {"decode": decode.make(device, 0),
            "prefill": decode._replace(batch=1, seqlen_q=40, seqlen_k=70).make(device, 0),
            "shuffled pages of fp8": case._replace(
                k=k, v=v, sink=tune_shapes.normal(device, 1, "fp32")(4), softcap=2.0, window_left=30,
                k_descale=torch.full((1,), 0.5, device=device), v_descale=torch.full((1,), 2.0, device=device),
                lse=torch.empty(4, len(case.q), device=device))}


def _traffic(call: PagedCall) -> tuple[int, int]:
    """Queries, and the keys and values in use, once; two products per pair, about half of them where causal."""
    batch, heads = call.batch, call.q.shape[1]
    widths = call.q.shape[2] + call.v.shape[3]
    moved = batch * call.max_seqlen_k * call.k.shape[2] * widths * call.k.element_size()
    moved += call.q.nbytes + call.out.nbytes
    flops = 2 * heads * call.q.shape[0] * call.max_seqlen_k * widths
    return moved, flops // 2 if call.window_right == 0 and call.max_seqlen_q == call.max_seqlen_k else flops


def _triton_space(target: Target, call: PagedCall) -> Iterator[dict[str, int]]:
    """Settings of both kernels where both serve a call, that for decoding first (triton_kernels)."""
    if "paged_attention" in triton_kernels(target, call):
        yield from decoding_space()
    rows = (16, 32, 64) if call.max_seqlen_q * call.q.shape[1] // call.k.shape[2] <= 32 else (64, 128)
    for block_m, block_n, num_warps, num_stages in itertools.product(rows, (32, 64, 128), (4, 8), (1, 2, 3)):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


unified_attention_op = Op(
    _OP, call=PagedCall, reference=unified_attention_ref, check=check_paged_call, key=UnifiedAttentionKey,
    writes=("out", "lse"), cases=_cases, prefers=prefers, traffic=_traffic,
    backends=(Backend("hip", unified_attention_hip, refusal=unified_hip_refusal),
              Backend("ck", unified_attention_ck, refusal=unified_ck_refusal,
                      address_refusal=vectors.begin_at(
                          lambda call: dict.fromkeys(("q", "k", "v", "out"), 8) if takes_turns(call) else {})),
              Backend("triton", "ops.attention.triton.unified_attention:unified_attention",
                      refusal=_triton_refusal, kernels=triton_kernels, space=_triton_space),
              Backend("torch", unified_attention_ref)))


def unified_attention(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, seqused_k: Tensor,
        max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: Sequence[int] | None, block_table: Tensor,
        softcap: float, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
        q_scales: None = None, alibi_slopes: Tensor | None = None, output_scale: Tensor | None = None,
        qq_bias: Tensor | None = None, sinks: Tensor | None = None, shuffled_kv_cache: bool = False,
        skip_reduce: bool = False, *, backend: str | None = None) -> Tensor:
    """Attention of sequences whose keys lie in pages, prefill and decoding in one call.

    `out = softmax(softmax_scale · q kᵀ + mask) v`; the queries of a sequence are its last tokens; query head h reads KV
    head h // (num_heads / num_kv_heads).

    Args:
        q: [total_q, num_heads, head_dim] bf16|fp16|fp8, last dimension contiguous, other strides free.
        k, v: [num_pages, page_size, num_kv_heads, head_dim or head_dim_v], both of the dtype of `q` or fp8 (e4m3 of the
            target), strides free but for the last, so views into packed storage serve; any page_size.
        out: [total_q, num_heads, head_dim_v], dtype of `q` (bf16|fp16 for fp8 q), or fp8 with `output_scale`; written.
        cu_seqlens_q: [batch + 1] int32: sequence i has the rows cu_seqlens_q[i] … cu_seqlens_q[i + 1] − 1 of `q`.
        max_seqlen_q: not less than the longest of them; rows beyond are not computed.
        seqused_k: [batch] int32|int64: keys of each sequence, its queries' own included.
        max_seqlen_k: not less than the largest of them.
        softmax_scale: finite, ≥ 1e-8.
        causal: query i sees key j iff j ≤ i + seqlen_k − seqlen_q.
        window_size: (left, right): query i also sees only j ≥ i + seqlen_k − seqlen_q − left; −1 or None: no limit.
        block_table: [batch, pages] int32: page of each page_size keys; entries beyond seqused_k are never read.
        softcap: 0, or scores become softcap · tanh(score / softcap).
        q_descale: fp32 [1], for fp8 `q`; ignored for others.
        k_descale, v_descale: fp32, one number or [batch, num_kv_heads], for fp8 `k` and `v`; ignored for others.
        q_scales, skip_reduce: None and False.
        alibi_slopes: [num_heads] or [batch, num_heads] fp32: slope · |i + seqlen_k − seqlen_q − j| is subtracted.
        output_scale: fp32 [1]: `out` is divided by it and saturates as fp8.
        qq_bias: [n, n] fp32|bf16|fp16: added to the score of query i and the key of query j of the same sequence.
        sinks: [num_heads] fp32|bf16|fp16: one more score in the denominator.
        shuffled_kv_cache: `k` is [num_pages, num_kv_heads, head_dim / x, page_size, x] and `v` [num_pages,
            num_kv_heads, page_size / x, head_dim_v, x], x elements of 16 bytes, as `reshape_and_cache` writes them.

    Notes:
        Scores, softmax and sums in fp32, P rounded to the dtype of `q` (fp8: fp16). Where few rows meet many keys, the
        keys are split between workgroups and added up in a fixed order: deterministic, no synchronisation. What points
        outside its tensor is clamped. A row that sees no key gives 0; rows of no sequence are not written.

    Source: vLLM's `unified_attention`; Kwon et al., PagedAttention (2023).
    """
    asked = {"q_scales": q_scales is not None, "skip_reduce": skip_reduce is not False}
    if any(asked.values()):
        reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
        raise UnsupportedError(f"{_OP}: no backend supports {', '.join(reasons)}", _OP, reasons)
    check.flag(_OP, "shuffled_kv_cache", shuffled_kv_cache)
    rank = 5 if shuffled_kv_cache else 4
    for name, tensor, dims in (("q", q, 3), ("k", k, rank), ("v", v, rank)):
        check.tensor(_OP, name, tensor, rank=dims)
    if shuffled_kv_cache:
        k, v = unshuffled_axes(k, v)
    check_lengths(_OP, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    check_pages(_OP, block_table, seqused_k, k, max_seqlen_k)
    if isinstance(seqused_k, Tensor) and seqused_k.dtype == torch.int64:  # SGLang has int64
        seqused_k = as_int32(seqused_k)
    left, right, sink_size = read_window(_OP, window_size, causal)
    unified_attention_op.run(
        out, None, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, seqlens_k=seqused_k, block_table=block_table,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, alibi_slopes=alibi_slopes,
        output_scale=output_scale, qq_bias=qq_bias, sink=sinks, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale, window_left=left, window_right=right, sink_size=sink_size, softcap=softcap,
        backend=backend)
    return out


unified_attention_op.public.append(unified_attention)
