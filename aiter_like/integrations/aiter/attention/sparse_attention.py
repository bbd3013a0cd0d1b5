# SPDX-License-Identifier: MIT
"""AITER's attention of tokens that each chose rows of a pool, where a row is key and value at once: on the operator
mla_decode, over copies of the chosen rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter

_DECODE, _PREFILL = "pa_decode_sparse", "pa_prefill_sparse"
_HALVES = (torch.bfloat16, torch.float16)
_GROUP = 64  # columns with a scale of their own
_MORE = 64  # columns of zeros that mla_decode wants behind a value's


@aiter("aiter.ops.triton.attention.pa_decode_sparse", callers="S")
def pa_decode_sparse(
        q: Tensor, unified_kv: Tensor, kv_indices: Tensor, kv_indptr: Tensor, attn_sink: Tensor, softmax_scale: float,
        kv_scales: Tensor | None = None, block_h: int | None = None, kv_splits: int | None = None,
        has_invalid: bool | None = True, skip_reduce: bool | None = False, USE_EXP2: bool | None = None, *,
        extra_cache: Tensor | None = None, extra_indices: Tensor | None = None,
        extra_indptr: Tensor | None = None) -> Tensor:
    """`softmax(softmax_scale · q kᵀ, with the sink in its sum) k` of the rows k that each token chose.

    Args:
        q: [tokens, num_heads, dim] bf16|fp16, dim at most 512.
        unified_kv: [rows, dim], dtype of `q`, or the device's fp8 with `kv_scales`.
        kv_indices: [entries] int32: rows of the pool; any other number, as −1, is none.
        kv_indptr: [tokens + 1] int32: token t chose the entries kv_indptr[t] … kv_indptr[t + 1] − 1.
        attn_sink: [num_heads] fp32: one more score in the denominator.
        softmax_scale: of the scores.
        kv_scales: [rows, dim / 64] fp32: what an element of 64 columns counts.
        block_h, kv_splits, has_invalid, USE_EXP2, skip_reduce: how AITER's kernels share their work out; of no meaning,
            so that the whole result is returned also with skip_reduce, as by AITER's with one split.
        extra_cache, extra_indices, extra_indptr: None; a second pool is read by kernels of gfx950 alone.

    Returns:
        [tokens, num_heads, dim], dtype of `q`; of a token that chose nothing 0.

    Raises:
        UnsupportedError: a second pool, or a pool of packed bytes [blocks, size, bytes].
    """
    reasons = {name: "not supported" for name, value in (("extra_cache", extra_cache), ("extra_indices", extra_indices),
                                                         ("extra_indptr", extra_indptr)) if value is not None}
    if isinstance(unified_kv, Tensor) and unified_kv.ndim == 3:
        reasons["unified_kv"] = "packed blocks belong to gfx950"
    if reasons:
        raise UnsupportedError(f"{_DECODE}: no backend supports {', '.join(reasons)}", _DECODE, reasons)
    _check_queries(_DECODE, q, attn_sink)
    pool = "unified_kv", unified_kv, kv_scales, "kv_indices", kv_indices, "kv_indptr", kv_indptr
    return _attend(_DECODE, q, [pool], attn_sink, softmax_scale)


@aiter("aiter.ops.pa_sparse_prefill_opus", callers="V S")
def pa_sparse_prefill_opus(
        q: Tensor, unified_kv: Tensor, kv_indices_prefix: Tensor, kv_indptr_prefix: Tensor, kv: Tensor,
        kv_indices_extend: Tensor, kv_indptr_extend: Tensor, attn_sink: Tensor, softmax_scale: float,
        out: Tensor | None = None) -> Tensor:
    """`pa_prefill_sparse`, into `out` where that is given."""
    found = _of_two("pa_sparse_prefill_opus", q, unified_kv, kv_indices_prefix, kv_indptr_prefix, kv,
                    kv_indices_extend, kv_indptr_extend, attn_sink, softmax_scale)
    if out is None:
        return found
    check.tensor("pa_sparse_prefill_opus", "out", out, dtypes=(q.dtype,), shape=q.shape, device=q.device)
    return out.copy_(found)


def _of_two(op: str, q: Tensor, unified_kv: Tensor, prefix: Tensor, prefix_starts: Tensor, kv: Tensor | None,
            extend: Tensor | None, extend_starts: Tensor | None, sink: Tensor | None, scale: float) -> Tensor:
    _check_queries(op, q, sink)
    pools = [("unified_kv", unified_kv, None, "kv_indices_prefix", prefix, "kv_indptr_prefix", prefix_starts)]
    second = {"kv": kv, "kv_indices_extend": extend, "kv_indptr_extend": extend_starts}
    if any(value is not None for value in second.values()):
        missing = [name for name, value in second.items() if value is None]
        if missing:
            raise ValueError(f"{op}: {missing[0]} must be given with the others of kv, kv_indices_extend and "
                             "kv_indptr_extend, got None")
        pools.append(("kv", kv, None, "kv_indices_extend", extend, "kv_indptr_extend", extend_starts))
    return _attend(op, q, pools, sink, scale)


def _check_queries(op: str, q: Tensor, sink: Tensor | None) -> None:
    check.tensor(op, "q", q, rank=3, dtypes=_HALVES)
    if sink is not None:
        check.tensor(op, "attn_sink", sink, dtypes=(torch.float32,), shape=(q.shape[1],), device=q.device)


def _attend(op: str, q: Tensor, pools: list[tuple], sink: Tensor | None, scale: float) -> Tensor:
    """Over each pool, then both together and the sink, which is a key whose value is 0."""
    wide = torch.nn.functional.pad(q, (0, _MORE))
    rows = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    parts = []
    for name, pool, scales, indices_name, indices, starts_name, starts in pools:
        _check_pool(op, q, (name, pool), scales)
        check.tensor(op, indices_name, indices, rank=1, dtypes=(torch.int32,), device=q.device)
        check.tensor(op, starts_name, starts, dtypes=(torch.int32,), shape=(len(q) + 1,), device=q.device)
        keys, chosen = _chosen(q, pool, scales, indices)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        _, lse = aiter_like.mla_decode_fwd(wide, keys[:, None, None], out, rows, starts, chosen, None, 1, 1, 1, scale,
                                           return_lse=True, causal=False)
        parts.append((out, lse))
    out, lse = parts[0]
    if len(parts) > 1:
        out, lse = aiter_like.merge_state(*parts[0], *parts[1])
    if sink is None:
        return out
    share = torch.sigmoid(lse - sink)[..., None].to(torch.float32)  # A token without keys has 0, as its out.
    return (out.float() * share).to(q.dtype)


def _check_pool(op: str, q: Tensor, named: tuple[str, Tensor], scales: Tensor | None) -> None:
    name, pool = named
    fp8 = dtypes.fp8_of(target_of(q.device).arch)
    check.tensor(op, name, pool, dtypes=(q.dtype,) if scales is None else (fp8,), shape=(None, q.shape[2]),
                 device=q.device)
    if scales is not None:
        if q.shape[2] % _GROUP:
            raise ValueError(f"{op}: q must have heads of a multiple of {_GROUP} elements with kv_scales, got "
                             f"{q.shape[2]}")
        check.tensor(op, "kv_scales", scales, dtypes=(torch.float32,), shape=(len(pool), q.shape[2] // _GROUP),
                     device=q.device)


def _chosen(q: Tensor, pool: Tensor, scales: Tensor | None, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen rows, with zeros behind, and which of them each entry is: itself, or −1."""
    is_row = (indices >= 0) & (indices < len(pool))
    places = torch.arange(len(indices), dtype=torch.int32, device=q.device).where(is_row, -1)
    if not len(pool) or not len(indices):
        return q.new_zeros(max(len(indices), 1), q.shape[2] + _MORE), places
    where = indices.long().where(is_row, 0)
    if scales is None:
        return torch.nn.functional.pad(pool[where], (0, _MORE)), places
    wide = pool.view(torch.uint8)[where].view(pool.dtype).float().unflatten(1, (-1, _GROUP)) * scales[where][..., None]
    return torch.nn.functional.pad(wide.flatten(1).to(q.dtype), (0, _MORE)), places
