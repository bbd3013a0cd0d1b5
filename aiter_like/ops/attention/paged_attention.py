# SPDX-License-Identifier: MIT
"""Attention of the last tokens of sequences over keys in pages: paged_attention. Kernels: csrc/attention/
paged_attention.hip, ops/attention/triton/paged_attention.py. AITER's entries: paged_attention_entries.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import Backend, Op
from aiter_like.ops.attention.call import FLOATS, FP8
from aiter_like.ops.attention.checks import paged_refusal
from aiter_like.ops.attention.paged_attention_call import (
    OP,
    PagedAttentionCall,
    check_paged_attention,
    decoding_space,
    workspace_bytes,
)
from aiter_like.ops.attention.paged_attention_hip import hip_refusal, paged_attention_hip
from aiter_like.ops.attention.reference import pages_of, product_with, rows_in, softmax_of
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.common.contents import check_lengths, check_pages

__all__ = ["paged_attention", "paged_attention_workspace_bytes"]

_LAYOUTS = ("NHD", "HND", "packed", "shuffled")
_CACHE_DTYPES = (*FLOATS, *FP8, torch.int8, torch.uint8)
_MOST_SPLITS = 1024
_MAX_OFFSET = 2**31 - 1  # elements within a page


def paged_attention_ref(call: PagedAttentionCall) -> None:
    """The formula in torch, in fp32, sequence by sequence; writes `out` and `lse`. Reads the lengths on the host."""
    for index in range(call.batch):
        rows = _rows_of(call, index)
        if rows.start < rows.stop:
            _sequence_ref(call, index, rows, *_keys_of(call, index))


def _rows_of(call: PagedAttentionCall, index: int) -> slice:
    most, total = call.max_seqlen_q, call.q.shape[0]
    if call.cu_seqlens_q is None:
        return slice(index * most, (index + 1) * most)
    start = min(max(int(call.cu_seqlens_q[index]), 0), total)
    if index + 1 < len(call.cu_seqlens_q):
        return slice(start, min(max(int(call.cu_seqlens_q[index + 1]), start), total))
    return slice(start, min(start + most, total))


def _keys_of(call: PagedAttentionCall, index: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence in fp32, scaled, [keys, num_kv_heads, dim]."""
    (entries, count), found = pages_of(call, index), []
    for is_value, pages, scale in ((False, call.k, call.k_scale), (True, call.v, call.v_scale)):
        rows = rows_in(pages, entries, is_value)
        if scale is not None:
            rows = rows * (scale.view(1) if scale.numel() == 1 else scale[entries][..., None])
        found.append(rows.flatten(0, 1)[:count])
    return found[0], found[1]


def _sequence_ref(call: PagedAttentionCall, index: int, rows: slice, keys: Tensor, values: Tensor) -> None:
    """Writes the rows of one sequence, its first max_seqlen_q at most."""
    q, length, count, device = call.q[rows].float(), rows.stop - rows.start, keys.shape[0], call.q.device
    if call.q_scale is not None:
        q = q * (call.q_scale.view(1) if call.q_scale.numel() == 1 else call.q_scale[rows][..., None])
    q, keys, values = (x.transpose(0, 1) for x in (q, keys.repeat_interleave(call.group, 1),
                                                   values.repeat_interleave(call.group, 1)))  # [heads, rows, dim]
    scores = q @ keys.transpose(-2, -1) * call.softmax_scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    place = torch.arange(length, device=device)[:, None] + count - length
    distance = place - torch.arange(count, device=device)
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes if call.alibi_slopes.ndim == 1 else call.alibi_slopes[index]
        scores = scores - slopes[:, None, None] * distance.abs()
    visible = distance >= 0
    if call.tree_mask is not None:
        tree = call.tree_mask if call.tree_mask.ndim == 2 else call.tree_mask[index]
        own = min(length, count)
        visible[:, count - own:] = tree[:length, length - own:length]
    if call.window_left >= 0:
        visible &= distance <= call.window_left
    p, lse = softmax_of(scores, visible, call.sink)
    result = product_with(p, values, visible).transpose(0, 1)
    if call.out_scale is not None:
        limit = torch.finfo(call.out.dtype).max
        result = (result / call.out_scale).clamp(-limit, limit)
    computed = slice(rows.start, min(rows.stop, rows.start + call.max_seqlen_q))
    call.out[computed] = result[:call.max_seqlen_q].to(call.out.dtype)
    if call.lse is not None:
        call.lse[:, computed] = lse[:, :call.max_seqlen_q]


def _triton_refusal(target: Target, call: PagedAttentionCall) -> str | None:
    if call.num_splits > _MOST_SPLITS:
        return f"at most {_MOST_SPLITS} parts, got num_splits {call.num_splits}"
    for name, cache in (("k", call.k), ("v", call.v)):
        if sum(size * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:])) > _MAX_OFFSET:
            return f"pages of {name} that span at most {_MAX_OFFSET} elements, got strides {cache.stride()}"
    return paged_refusal(target, call, call.max_seqlen_q)


class PagedAttentionKey(NamedTuple):
    """The fields that a tuned row of paged_attention is chosen by."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    layout: str
    features: str
    scale_layout: str
    dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, call: PagedAttentionCall) -> PagedAttentionKey:
        return cls(call.batch, call.max_seqlen_q, call.max_seqlen_k, call.num_heads, call.num_kv_heads, call.head_dim,
                   call.page_size, call.layout, "+".join(call.features) or "none", call.scales,
                   dtypes.name(call.q.dtype), dtypes.name(call.k.dtype))

    def make(self, device: torch.device, seed: int) -> PagedAttentionCall:
        """Sequences of equal lengths on pages in random order."""
        batch, size, heads, dim = self.batch, self.page_size, self.num_kv_heads, self.head_dim
        pages, x = -(-self.seqlen_k // size), 16 // dtypes.DTYPES[self.kv_dtype].itemsize
        q = tune_shapes.normal(device, seed, self.dtype)(batch * self.seqlen_q, self.num_heads, dim)
        random, is_packed = tune_shapes.normal(device, seed + 1, self.kv_dtype), self.layout != "rows"
        shape_k, shape_v = ((heads, dim // x, size, x), (heads, dim, size)) if is_packed else ((size, heads, dim),) * 2
        if self.layout == "shuffled":
            shape_v = (heads, size // x, dim, x)
        k, v = views_of(random(batch * pages, *shape_k), random(batch * pages, *shape_v),
                        "packed" if is_packed else "NHD")
        scales = {}
        if self.scale_layout != "none":
            random = tune_shapes.normal(device, seed, "fp32")
            shape = k.shape[:3] if self.scale_layout == "token" else (1,)
            scales = {name: random(*shape).sigmoid() * 0.02 + 0.01 for name in ("k_scale", "v_scale")}
        out = torch.empty_like(q, dtype=q.dtype if q.dtype.itemsize == 2 else torch.bfloat16)
        return PagedAttentionCall(
            out, None, q, k, v, tune_shapes.page_table(device, seed, batch, pages),
            torch.full((batch,), self.seqlen_k, device=device, dtype=torch.int32), **scales,
            max_seqlen_q=self.seqlen_q, max_seqlen_k=self.seqlen_k, softmax_scale=dim ** -0.5)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[PagedAttentionKey]:
        """Decoding `tokens` sequences of 4096 keys."""
        if not model.kv_lora_rank and tokens <= 256:
            yield cls(tokens, 1, 4096, model.num_heads // tp, max(model.num_kv_heads // tp, 1), model.head_dim, 16,
                      "rows", "none", "none", model.dtype, model.dtype)


def _cases(device: torch.device) -> dict[str, PagedAttentionCall]:
    """One part and several; rows and shuffled pages; bytes with scales; all that changes or hides a score."""
    key = PagedAttentionKey(2, 1, 70, 4, 2, 64, 16, "rows", "none", "none", "bf16", "bf16")
    fp8 = dtypes.name(dtypes.fp8_of(target_of(device).arch))
    random, case = tune_shapes.normal(device, 1, "fp32"), key._replace(seqlen_q=3, seqlen_k=300).make(device, 0)
    tree = torch.eye(3, dtype=torch.bool, device=device)
    tree[:, 0] = True
    return {
        "one part": key.make(device, 0),
        "several parts": case._replace(
            sink=random(4), softcap=2.0, window_left=290, tree_mask=tree, alibi_slopes=random(4).abs(), num_splits=3,
            lse=torch.empty(4, len(case.q), device=device)),
        "shuffled pages of fp8": key._replace(layout="shuffled", kv_dtype=fp8, scale_layout="token").make(device, 0),
        "int8": key._replace(dtype="fp16", kv_dtype="i8", scale_layout="tensor").make(device, 0)}


def _traffic(call: PagedAttentionCall) -> tuple[int, int]:
    """Queries, and the keys and values in use, once; two products per pair."""
    widths, longest = call.head_dim + call.head_dim_v, call.max_seqlen_k
    if call.window_left >= 0:
        longest = min(longest, call.window_left + call.max_seqlen_q)
    moved = call.batch * longest * call.num_kv_heads * widths * call.k.element_size()
    moved += call.q.nbytes + call.out.nbytes
    return moved, 2 * call.num_heads * call.q.shape[0] * longest * widths


paged_attention_op = Op(
    OP, call=PagedAttentionCall, reference=paged_attention_ref, check=check_paged_attention, key=PagedAttentionKey,
    writes=("out", "lse", "workspace"), cases=_cases, traffic=_traffic, scratch=("workspace",),
    backends=(Backend("hip", paged_attention_hip, refusal=hip_refusal),
              Backend("triton", "ops.attention.triton.paged_attention:paged_attention", refusal=_triton_refusal,
                      space=lambda *_: decoding_space()),
              Backend("torch", paged_attention_ref)))


def views_of(k: Tensor, v: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """K and V with the axes of PagedAttentionCall. "packed" tells V of columns from shuffled V by its dimensions."""
    if layout == "NHD":
        return k, v
    if layout == "HND":
        return k.transpose(1, 2), v.transpose(1, 2)
    return k.permute(0, 3, 1, 2, 4), v.permute(0, 3, 1, 2) if v.ndim == 4 else v.permute(0, 2, 1, 3, 4)


def checked_views(op: str, q: Any, k: Any, v: Any, layout: str,
                  names: tuple[str, str, str] = ("q", "k_cache", "v_cache")) -> tuple[Tensor, Tensor]:
    """views_of caches that fit `q` and each other; what is wrong is said in the caller's names and axes.

    Raises:
        TypeError, ValueError: no such layout or tensors.
    """
    check.choice(op, "layout", layout, _LAYOUTS)
    ranks = {"packed": (5, 4), "shuffled": (5, 5)}.get(layout, (4, 4))
    check.tensor(op, names[0], q, rank=3)
    check.tensor(op, names[1], k, rank=ranks[0], dtypes=_CACHE_DTYPES, device=q.device)
    check.tensor(op, names[2], v, rank=ranks[1], dtypes=(k.dtype,), device=q.device)
    pages, second, third, fourth = k.shape[:4]
    head_dim = q.shape[2]
    if ranks[0] == 4:
        check.tensor(op, names[1], k, shape=(None, None, None, head_dim))
        check.tensor(op, names[2], v, shape=(pages, second, third, None))
    else:
        check.tensor(op, names[1], k, shape=(None, None, head_dim // max(k.shape[4], 1), None, None))
        keys = (None, fourth) if ranks[1] == 4 else (fourth // max(v.shape[-1], 1), None, None)
        check.tensor(op, names[2], v, shape=(pages, second, *keys))
    return views_of(k, v, layout)


def paged_attention(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, max_seqlen_k: int,
        softmax_scale: float | None = None, *, layout: str = "NHD", max_seqlen_q: int = 1,
        cu_seqlens_q: Tensor | None = None, tree_mask: Tensor | None = None, window_left: int = -1,
        softcap: float = 0.0, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
        q_scale: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
        out_scale: Tensor | None = None, num_splits: int = 0, return_lse: bool = False,
        workspace: Tensor | None = None, out: Tensor | None = None,
        backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the last tokens of sequences, one or a few each, over keys that lie in pages: decoding.

    `out = softmax(softmax_scale · q kᵀ + mask) v`; query head h reads KV head h // (num_heads / num_kv_heads).

    Args:
        q: [total_q, num_heads, head_dim] bf16|fp16|fp8|int8, last dimension contiguous, other strides free.
        k_cache, v_cache: [num_pages, page_size, num_kv_heads, head_dim or head_dim_v] ("NHD"), [num_pages,
            num_kv_heads, page_size, …] ("HND"), or k_cache [num_pages, num_kv_heads, head_dim / x, page_size, x] with
            v_cache [num_pages, num_kv_heads, head_dim_v, page_size] ("packed") or [num_pages, num_kv_heads,
            page_size / y, head_dim_v, y] ("shuffled"); dtype of `q` where that has 16 bits, or fp8 of the device, or
            int8; last dimension of k_cache contiguous, other strides free.
        block_table: [batch, pages] int32, page of each page_size keys; entries beyond a sequence's keys are not read.
        seq_lens: [batch] int32: keys of each sequence, its queries' own included; 0 makes its rows zeros.
        max_seqlen_k: not less than the longest; the fewer it says, the smaller the workspace.
        softmax_scale: finite, at least 1e-8; default 1 / sqrt(head_dim).
        layout: "NHD", "HND", "packed" or "shuffled".
        max_seqlen_q: rows of each sequence, the most where `cu_seqlens_q` is given.
        cu_seqlens_q: [batch + 1] int32: where the rows of each sequence begin; or [batch], of max_seqlen_q rows each.
        tree_mask: [n, n] or [batch, n, n] bool, of any strides: whether query i sees the key of query j of its own
            sequence; default: j ≤ i. All sequences' earlier keys are visible to all their queries.
        window_left: a query sees that many keys before its own; -1: all.
        softcap: 0, or scores become softcap · tanh(score / softcap).
        alibi_slopes: [num_heads] or [batch, num_heads] fp32: slope · distance is subtracted from scores.
        sinks: [num_heads] fp32: one more score in the denominator.
        q_scale: fp32, one number or [total_q, num_heads], what elements are multiplied by.
        k_scale, v_scale: fp32, one number or [num_pages, page_size, num_kv_heads] of any strides, also expanded.
        out_scale: fp32, one number: an fp8 `out` is divided by it and saturates.
        num_splits: 0: keys are split between workgroups as lengths ask for; n: into at most n parts; 1: not.
        return_lse: also return the log-sum-exp of the scores.
        workspace: uint8, paged_attention_workspace_bytes many; default: allocated.
        out: [total_q, num_heads, head_dim_v] to write; default: a new one, of the dtype of `q`, bf16 for bytes.

    Returns:
        `out`, or with `return_lse` the pair `out`, lse [num_heads, total_q] fp32. Rows of no sequence are not written.

    Notes:
        Scores, softmax and sums in fp32; P is rounded to the dtype of 16-bit caches, with bytes to fp16 or bf16. Splits
        are planned on the device from the lengths, parts added up in a fixed order: deterministic; can be captured in a
        graph and replayed with other lengths. What points outside its tensor is clamped: memory outside is not touched.

    Source: Kwon et al., PagedAttention (2023); Dao et al., Flash-Decoding (2023).
    """
    k, v = checked_views(OP, q, k_cache, v_cache, layout)
    check.flag(OP, "return_lse", return_lse)
    check.tensor(OP, "seq_lens", seq_lens, rank=1)
    check_pages(OP, block_table, seq_lens, k, max_seqlen_k)
    check.tensor(OP, "block_table", block_table, rank=2)
    if cu_seqlens_q is not None:
        check.tensor(OP, "cu_seqlens_q", cu_seqlens_q, rank=1)
        if len(cu_seqlens_q) == len(block_table) + 1:
            check_lengths(OP, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    if out is None:
        dtype = q.dtype if q.dtype.itemsize > 1 else torch.bfloat16
        out = torch.empty(*q.shape[:2], v.shape[3], dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device) if return_lse else None
    paged_attention_op.run(
        out, lse, q=q, k=k, v=v, block_table=block_table, seqlens_k=seq_lens, cu_seqlens_q=cu_seqlens_q,
        q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, out_scale=out_scale, alibi_slopes=alibi_slopes, sink=sinks,
        tree_mask=tree_mask, workspace=workspace, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale if softmax_scale is not None else max(q.shape[2], 1) ** -0.5,
        window_left=window_left, softcap=softcap, num_splits=num_splits, backend=backend)
    return out if lse is None else (out, lse)


def paged_attention_workspace_bytes(q: Tensor, num_kv_heads: int, head_dim_v: int, batch: int, max_seqlen_k: int, *,
                                    max_seqlen_q: int = 1, num_splits: int = 0) -> int:
    """The size of `workspace` for `paged_attention`. Like `attention_workspace_bytes`:

    `slots · num_heads · max_seqlen_q · (head_dim_v + 2) · 4 + 8 · batch`, 0 without slots: fp32 sums of the rows of
    sequences whose keys are split, with their weights and maxima, and where those of a sequence are. slots: 32 · CUs /
    num_kv_heads at most, twice the batch where that is more.

    Args:
        q: as for `paged_attention`; only shape and device count.
        num_kv_heads, head_dim_v, batch: heads and columns of the values, sequences.
        max_seqlen_k, max_seqlen_q, num_splits: as for `paged_attention`.

    Source: this project.
    """
    op = "paged_attention_workspace_bytes"
    check.tensor(op, "q", q, rank=3, last_contiguous=False)
    for name, value, low in (("num_kv_heads", num_kv_heads, 1), ("head_dim_v", head_dim_v, 0), ("batch", batch, 0),
                             ("max_seqlen_k", max_seqlen_k, 0), ("max_seqlen_q", max_seqlen_q, 0),
                             ("num_splits", num_splits, 0)):
        check.integer(op, name, value, low=low)
    pages = torch.empty(0, 1, num_kv_heads, head_dim_v, device="meta")
    table = torch.empty(batch, 0, device="meta")
    return workspace_bytes(PagedAttentionCall(q, None, q, pages, pages, table, None, max_seqlen_q=max_seqlen_q,
                                              max_seqlen_k=max_seqlen_k, num_splits=num_splits))


paged_attention_op.public.append(paged_attention)
