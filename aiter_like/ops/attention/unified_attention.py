# SPDX-License-Identifier: MIT
"""Attention over paged keys: unified_attention. Kernel: ops/attention/triton/flash_attn_fwd_parts.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import MAX_ROWS, check_lengths, is_on_host, read_window, takes
from aiter_like.ops.attention.paged_call import PagedCall, unshuffled_axes
from aiter_like.ops.attention.reference import scores_of, softmax_of

__all__ = ["unified_attention"]

_OP = "unified_attention"
_FLOATS = (torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_MIN_SCALE = 1e-8  # below it a masked score is no longer below every real one in the kernel's fp32
_MAX_COLUMN_STRIDE = 2**22  # of shuffled pages: a head of 256 columns within a signed 32-bit offset


@takes(PagedCall)
def unified_attention_ref(call: PagedCall) -> None:
    """The formula in torch, in fp32, sequence by sequence; writes `out` and `lse`. Reads the lengths on the host."""
    bounds = call.cu_seqlens_q.clamp(0, call.q.shape[0]).tolist()
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        if start < end:
            _sequence_ref(call, index, slice(start, end), *_keys_of(call, index))


def _keys_of(call: PagedCall, index: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence in fp32, [keys, num_kv_heads, dim]."""
    if call.page_starts is None:
        count = min(max(int(call.seqlens_k[index]), 0), call.block_table.shape[1] * call.page_size)
        entries = call.block_table[index, :-(-count // call.page_size)]
    else:
        first, last = call.page_starts[index:index + 2].clamp(0, call.block_table.shape[0]).tolist()
        entries = call.block_table[first:last]
        tail = call.page_size if call.seqlens_k is None else min(max(int(call.seqlens_k[index]), 0), call.page_size)
        count = max((len(entries) - 1) * call.page_size + tail, 0) if len(entries) else 0
    rows = []
    k, v = (pages[entries.long().clamp(0, pages.shape[0] - 1)] for pages in (call.k, call.v))
    if call.is_shuffled:
        k, v = k.flatten(3), v.permute(0, 1, 4, 2, 3).flatten(1, 2)
    for gathered, descale in ((k, call.k_descale), (v, call.v_descale)):
        gathered = gathered.flatten(0, 1)[:count].float()
        if descale is not None and call.k.dtype in FP8:
            gathered *= descale.view(1) if descale.numel() == 1 else descale[index][:, None]
        rows.append(gathered)
    return rows[0], rows[1]


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
    p, lse = softmax_of(*scores_of(call, q, keys, bias, slopes)[:2], call.sinks)
    result = (p @ values).transpose(0, 1)
    if call.output_scale is not None:
        limit = torch.finfo(call.out.dtype).max
        result = (result / call.output_scale).clamp(-limit, limit)
    call.out[rows] = result.to(call.out.dtype)
    if call.lse is not None:
        call.lse[:, rows] = lse


def _check(*args: Any) -> object:
    call = PagedCall(*args)
    q, k = call.q, call.k
    check.tensor(_OP, "q", q, rank=3, dtypes=(*_FLOATS, *FP8))
    total_q, num_heads, head_dim = q.shape
    check.tensor(_OP, "k", k, dtypes=(*_FLOATS, *FP8), device=q.device)
    shape_k, shape_v = (None, None, None, head_dim), (*k.shape[:3], None)
    if call.is_shuffled:
        x = 16 // k.element_size()
        shape_k = (None, None, None, head_dim // x, x)
        shape_v = (k.shape[0], call.page_size // x, k.shape[2], None, x)
        if head_dim % x or call.page_size % x:
            raise ValueError(f"{_OP}: head dimension and page size of shuffled pages must be multiples of {x}, got "
                             f"{head_dim} and {call.page_size}")
    check.tensor(_OP, "k", k, shape=shape_k)
    check.tensor(_OP, "v", call.v, dtypes=(k.dtype,), shape=shape_v, device=q.device)
    if k.dtype != q.dtype and k.dtype not in FP8:
        raise TypeError(f"{_OP}: k must have dtype {q.dtype} or fp8, got {k.dtype}")
    if 0 in (head_dim, call.v.shape[3], call.page_size):
        raise ValueError(f"{_OP}: pages and heads must not be empty, got k {tuple(k.shape)}, v {tuple(call.v.shape)}")
    if k.shape[2] == 0 or num_heads % k.shape[2]:
        raise ValueError(f"{_OP}: the heads of q must be a multiple of the heads of k, got {num_heads} and "
                         f"{k.shape[2]}")
    out_dtypes = FP8 if call.output_scale is not None else _FLOATS if q.dtype in FP8 else (q.dtype,)
    check.tensor(_OP, "out", call.out, dtypes=out_dtypes, shape=(total_q, num_heads, call.v.shape[3]), device=q.device)
    if call.lse is not None:
        check.tensor(_OP, "lse", call.lse, dtypes=(torch.float32,), shape=(num_heads, total_q), device=q.device)
    _check_lengths(call)
    _check_options(call)
    return SKIP if q.numel() == 0 or call.cu_seqlens_q.shape[0] < 2 else None


def _check_lengths(call: PagedCall) -> None:
    integers = {"dtypes": (torch.int32,), "device": call.q.device}
    check.tensor(_OP, "cu_seqlens_q", call.cu_seqlens_q, rank=1, **integers)
    batch = max(call.cu_seqlens_q.shape[0] - 1, 0)
    if call.page_starts is None:
        check.tensor(_OP, "seqused_k", call.seqlens_k, shape=(batch,), **integers)
        check.tensor(_OP, "block_table", call.block_table, shape=(batch, None), **integers)
    else:
        check.tensor(_OP, "kv_indptr", call.page_starts, shape=(batch + 1,), **integers)
        check.tensor(_OP, "kv_page_indices", call.block_table, rank=1, **integers)
        if call.seqlens_k is not None:
            check.tensor(_OP, "kv_last_page_lens", call.seqlens_k, shape=(batch,), **integers)
    check.integer(_OP, "max_seqlen_q", call.max_seqlen_q, low=0)
    check.integer(_OP, "max_seqlen_k", call.max_seqlen_k, low=0)


def check_pages(op: str, table: Tensor, lengths: Tensor, k: Tensor, longest: int) -> None:
    """Numbers of pages and lengths on the CPU are within the cache; those on a GPU would have to be waited for.

    Raises:
        ValueError: they are not.
    """
    if not (is_on_host(table) and is_on_host(lengths) and table.ndim == 2 and lengths.shape == table.shape[:1]
            and k.shape[1] and isinstance(longest, int)):
        return  # the operator says what else does not fit
    most = min(table.shape[1] * k.shape[1], longest)
    if ((lengths < 0) | (lengths > most)).any():
        raise ValueError(f"{op}: the keys of a sequence must be between 0 and {most}, as max_seqlen_k and the pages in "
                         f"block_table have it, got {lengths.tolist()}")
    used = table[torch.arange(table.shape[1]) * k.shape[1] < lengths[:, None]]
    if ((used < 0) | (used >= k.shape[0])).any():
        raise ValueError(f"{op}: block_table must name pages from 0 to {k.shape[0] - 1}, got "
                         f"{used[(used < 0) | (used >= k.shape[0])][0].item()}")


def _check_options(call: PagedCall) -> None:
    device, num_heads = call.q.device, call.q.shape[1]
    batch = call.cu_seqlens_q.shape[0] - 1
    for name, scale in (("q_descale", call.q_descale), ("output_scale", call.output_scale)):
        if scale is not None:
            check.tensor(_OP, name, scale, dtypes=(torch.float32,), device=device)
            if scale.numel() != 1:
                raise ValueError(f"{_OP}: {name} must have 1 element, got shape {tuple(scale.shape)}")
    for name, scale in (("k_descale", call.k_descale), ("v_descale", call.v_descale)):
        if scale is not None and scale.numel() != 1:
            check.tensor(_OP, name, scale, shape=(batch, call.k.shape[2]), last_contiguous=False)
        if scale is not None:
            check.tensor(_OP, name, scale, dtypes=(torch.float32,), device=device, last_contiguous=False)
    if call.alibi_slopes is not None:
        rank = (num_heads,) if call.alibi_slopes.ndim == 1 else (batch, num_heads)
        check.tensor(_OP, "alibi_slopes", call.alibi_slopes, dtypes=(torch.float32,), shape=rank, device=device)
    if call.sinks is not None:
        check.tensor(_OP, "sinks", call.sinks, dtypes=(torch.float32, *_FLOATS), shape=(num_heads,), device=device)
    if call.qq_bias is not None:
        size = call.qq_bias.shape[-1] if isinstance(call.qq_bias, Tensor) and call.qq_bias.ndim else 0
        check.tensor(_OP, "qq_bias", call.qq_bias, dtypes=(torch.float32, *_FLOATS), shape=(size, size), device=device)
    check.real(_OP, "softmax_scale", call.softmax_scale, low=_MIN_SCALE)
    check.real(_OP, "softcap", call.softcap, low=0.0)
    for name in ("window_left", "window_right"):
        check.integer(_OP, name, getattr(call, name), low=-1)
    check.integer(_OP, "sink_size", call.sink_size, low=0)


def _triton_refusal(target: Target, *args: Any) -> str | None:
    call = PagedCall(*args)
    if max(call.q.shape[2], call.v.shape[3]) > 256:
        return f"head dimensions at most 256, got {call.q.shape[2]} and {call.v.shape[3]}"
    if call.softmax_scale > 1e30:
        return f"softmax_scale beyond fp32 after scaling: {call.softmax_scale}"
    for name, tensor in (("q", call.q), ("k and v", call.k), ("out", call.out)):
        if tensor.dtype in FP8 and tensor.dtype != dtypes.fp8_of(target.arch):
            return f"fp8 of {target.arch} is {dtypes.fp8_of(target.arch)}, {name} has {tensor.dtype}"
    if max(call.max_seqlen_q, call.max_seqlen_k, call.block_table.shape[-1] * call.page_size) > MAX_ROWS:
        return f"sequences of at most {MAX_ROWS}, got max_seqlen_q {call.max_seqlen_q}, block_table of " \
               f"{call.block_table.shape[-1]} pages of {call.page_size}"
    if call.is_shuffled and max(call.k.stride(3), call.v.stride(3)) > _MAX_COLUMN_STRIDE:
        return f"columns of shuffled pages at most {_MAX_COLUMN_STRIDE} elements apart, got {call.k.stride(3)} and " \
               f"{call.v.stride(3)}"
    return None


def _tune_key(*args: Any) -> dict[str, int | str]:
    call = PagedCall(*args)
    mask = {(-1, -1): "none", (-1, 0): "causal"}.get((call.window_left, call.window_right), "window")
    return {"mask": mask, "batch": call.cu_seqlens_q.shape[0] - 1, "seqlen_q": call.max_seqlen_q,
            "seqlen_k": call.max_seqlen_k, "num_heads": call.q.shape[1], "num_kv_heads": call.k.shape[2],
            "head_dim": call.q.shape[2], "page_size": call.page_size, "features": "+".join(call.features) or "none",
            "dtype": dtypes.name(call.q.dtype), "kv_dtype": dtypes.name(call.k.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """Sequences of equal lengths on pages in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    batch, page_size, head_dim = key["batch"], key["page_size"], key["head_dim"]
    pages = -(-key["seqlen_k"] // page_size)

    def random(*shape: int, dtype: str) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtypes.DTYPES[dtype])

    q = random(batch * key["seqlen_q"], key["num_heads"], head_dim, dtype=key["dtype"])
    k, v = (random(batch * pages, page_size, key["num_kv_heads"], head_dim, dtype=key["kv_dtype"]) for _ in range(2))
    table = torch.randperm(batch * pages, generator=generator, device=device, dtype=torch.int32).view(batch, pages)
    starts = torch.arange(batch + 1, device=device, dtype=torch.int32) * key["seqlen_q"]
    used = torch.full((batch,), key["seqlen_k"], device=device, dtype=torch.int32)
    return PagedCall(torch.empty_like(q), None, q, k, v, starts, used, table, *[None] * 8, key["seqlen_q"],
                     key["seqlen_k"], head_dim ** -0.5, -1, -1 if key["mask"] == "none" else 0, 0, 0.0)


def _traffic(*args: Any) -> tuple[int, int]:
    """Queries, and the keys and values in use, once; two products per pair, about half of them where causal."""
    call = PagedCall(*args)
    batch, heads = call.cu_seqlens_q.shape[0] - 1, call.q.shape[1]
    widths = call.q.shape[2] + call.v.shape[3]
    moved = batch * call.max_seqlen_k * call.k.shape[2] * widths * call.k.element_size()
    moved += sum(tensor.numel() * tensor.element_size() for tensor in (call.q, call.out))
    flops = 2 * heads * call.q.shape[0] * call.max_seqlen_k * widths
    return moved, flops // 2 if call.window_right == 0 and call.max_seqlen_q == call.max_seqlen_k else flops


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Decoding `tokens` sequences of 4096 keys; from 128 tokens on also a prefill of one sequence."""
    if model.kv_lora_rank:
        return
    key = {"mask": "causal", "num_heads": model.num_heads // tp, "num_kv_heads": max(model.num_kv_heads // tp, 1),
           "head_dim": model.head_dim, "page_size": 16, "features": "none", "dtype": model.dtype,
           "kv_dtype": model.dtype}
    if tokens <= 256:
        yield {**key, "batch": tokens, "seqlen_q": 1, "seqlen_k": 4096}
    if tokens >= 128:
        yield {**key, "batch": 1, "seqlen_q": tokens, "seqlen_k": tokens}


def _triton_space(target: Target, *args: Any) -> Iterator[dict[str, int]]:
    call = PagedCall(*args)
    rows = (16, 32, 64) if call.max_seqlen_q * call.q.shape[1] // call.k.shape[2] <= 32 else (64, 128)
    for block_m, block_n, num_warps, num_stages in itertools.product(rows, (32, 64, 128), (4, 8), (1, 2, 3)):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


unified_attention_op = Op(
    _OP, reference=unified_attention_ref, check=_check, tune_key=_tune_key,
    tune_fields=("mask", "batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim", "page_size",
                 "features", "dtype", "kv_dtype"),
    writes=("out", "lse"), tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("triton", "ops.attention.triton.flash_attn_fwd_parts:unified_attention",
                      refusal=_triton_refusal, space=_triton_space,
                      returns_relaunch=True),
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
        k: [num_pages, page_size, num_kv_heads, head_dim], dtype of `q` or fp8 (e4m3 of the target), strides free but
            for the last, so views into packed storage serve; any page_size.
        v: [num_pages, page_size, num_kv_heads, head_dim_v], dtype of `k`, strides of its own.
        out: [total_q, num_heads, head_dim_v], dtype of `q` (bf16|fp16 for fp8 q), or fp8 with `output_scale`; written.
        cu_seqlens_q: [batch + 1] int32: sequence i has the rows cu_seqlens_q[i] … cu_seqlens_q[i + 1] − 1 of `q`.
        max_seqlen_q: not less than the longest of them; rows beyond are not computed.
        seqused_k: [batch] int32: keys of each sequence, its queries' own included.
        max_seqlen_k: not less than the largest of them.
        softmax_scale: finite, ≥ 1e-8.
        causal: query i sees key j iff j ≤ i + seqlen_k − seqlen_q.
        window_size: (left, right): query i also sees only j ≥ i + seqlen_k − seqlen_q − left; −1 or None: no limit.
        block_table: [batch, pages] int32: page of each page_size keys; entries beyond seqused_k are never read.
        softcap: 0, or scores become softcap · tanh(score / softcap).
        q_descale: fp32 [1], for fp8 `q`; ignored for others.
        k_descale: fp32, one number or [batch, num_kv_heads], for fp8 `k`; ignored for others.
        v_descale: likewise for `v`.
        q_scales: None.
        alibi_slopes: [num_heads] or [batch, num_heads] fp32: slope · |i + seqlen_k − seqlen_q − j| is subtracted.
        output_scale: fp32 [1]: `out` is divided by it and saturates as fp8.
        qq_bias: [n, n] fp32|bf16|fp16: added to the score of query i and the key of query j of the same sequence.
        sinks: [num_heads] fp32|bf16|fp16: one more score in the denominator.
        shuffled_kv_cache: `k` is [num_pages, num_kv_heads, head_dim / x, page_size, x] and `v` [num_pages,
            num_kv_heads, page_size / x, head_dim_v, x], x elements of 16 bytes, as `reshape_and_cache` writes them.
        skip_reduce: False.
        backend: "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: q_scales or skip_reduce, or a backend that cannot serve the call.

    Notes:
        Scores, softmax and sums in fp32, P rounded to the dtype of `q` (fp8: fp16). Where few rows meet many keys, the
        keys are split between workgroups and added up in a fixed order: deterministic, no synchronisation, can be
        captured in a graph. Lengths and pages outside their tensors are clamped, so memory outside is never touched.
        A row that sees no key gives 0.

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
    left, right, sink_size = read_window(_OP, window_size, causal)
    unified_attention_op(out, None, q, k, v, cu_seqlens_q, seqused_k, block_table, None, q_descale, k_descale,
                         v_descale, alibi_slopes, output_scale, qq_bias, sinks, max_seqlen_q, max_seqlen_k,
                         softmax_scale, left, right, sink_size, softcap, backend=backend)
    return out


unified_attention_op.public.append(unified_attention)
