# SPDX-License-Identifier: MIT
"""The sum of partial results of latent attention. Kernels: csrc/mla/mla_reduce.hip, ops/mla/triton/mla_reduce.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import are_on_host, check_starts

__all__ = ["mla_reduce_v1"]

_OP = "mla_reduce"


class MlaReduceCall(NamedTuple):
    """One call of mla_reduce: its arguments in the order of the function that mla_reduce.hip exports.

    Attributes:
        out: [total_q, num_heads, v_dim] bf16|fp16|fp32, written where a tile has parts.
        lse: [total_q, num_heads] fp32, written likewise; None: not wanted.
        partial_out: [rows, num_heads, v_dim] fp32, normalised; `partial_lse` [rows, num_heads].
        reduce_indptr: [tiles + 1] int32, where the entries of a tile begin in `reduce_partial_map`.
        reduce_final_map: [tiles, 2] int32, first row of `out` and the one behind its last; None: `max_seqlen_q` each.
        reduce_partial_map: int32, first row of each part in the partial results.
        max_seqlen_q: rows of a tile, at most.
    """

    out: Tensor
    lse: Tensor | None
    partial_out: Tensor
    partial_lse: Tensor
    reduce_indptr: Tensor
    reduce_final_map: Tensor | None
    reduce_partial_map: Tensor
    max_seqlen_q: int = 1


def _instance(call: MlaReduceCall) -> Instance:
    return Instance(dtypes.name(call.out.dtype), {"OUT_ELEMENT": elements.CPP[call.out.dtype]})


@compile_ops("mla/mla_reduce.hip", gen_func=_instance)
def _mla_reduce_hip(call: MlaReduceCall) -> None: ...


def mla_reduce_ref(call: MlaReduceCall) -> None:
    """The formula in torch, tile by tile; reads the maps on the host."""
    bounds = call.reduce_indptr.long().clamp(0, len(call.reduce_partial_map)).tolist()
    maps = None if call.reduce_final_map is None else call.reduce_final_map.tolist()
    for tile, (first, last) in enumerate(zip(bounds, bounds[1:])):
        if last <= first:
            continue
        start, end = (tile * call.max_seqlen_q, (tile + 1) * call.max_seqlen_q) if maps is None else maps[tile]
        end = min(end, start + call.max_seqlen_q, call.out.shape[0])
        if start < 0 or end <= start:
            continue
        rows = call.reduce_partial_map[first:last].long()[:, None] + torch.arange(end - start, device=call.out.device)
        inside = (rows >= 0) & (rows < len(call.partial_out)) & (call.reduce_partial_map[first:last, None] >= 0)
        rows = rows.clamp(0, max(len(call.partial_out) - 1, 0))
        sums = call.partial_lse[rows].masked_fill(~inside[..., None], -torch.inf)  # [parts, rows, heads]
        parts = torch.where((sums != -torch.inf)[..., None], call.partial_out[rows], 0.0)
        lse = sums.logsumexp(0)
        weights = sums.masked_fill(lse == -torch.inf, 0.0).softmax(0)
        call.out[start:end] = (parts * weights[..., None]).sum(0).to(call.out.dtype)
        if call.lse is not None:
            call.lse[start:end] = lse


def _check(call: MlaReduceCall) -> object:
    out, device = call.out, call.out.device
    check.tensor(_OP, "out", out, rank=3, dtypes=elements.FLOATS)
    total_q, num_heads, v_dim = out.shape
    if call.lse is not None:
        check.tensor(_OP, "lse", call.lse, dtypes=(torch.float32,), shape=(total_q, num_heads), device=device,
                     last_contiguous=False)
    check.tensor(_OP, "partial_out", call.partial_out, dtypes=(torch.float32,), shape=(None, num_heads, v_dim),
                 device=device)
    check.tensor(_OP, "partial_lse", call.partial_lse, dtypes=(torch.float32,),
                 shape=(call.partial_out.shape[0], num_heads), device=device, last_contiguous=False)
    check.tensor(_OP, "reduce_indptr", call.reduce_indptr, rank=1, dtypes=(torch.int32,), device=device)
    check.tensor(_OP, "reduce_partial_map", call.reduce_partial_map, rank=1, dtypes=(torch.int32,), device=device)
    tiles = call.reduce_indptr.shape[0] - 1
    if tiles < 0:
        raise ValueError(f"{_OP}: reduce_indptr must have at least 1 element, got 0")
    if call.reduce_final_map is not None:
        check.tensor(_OP, "reduce_final_map", call.reduce_final_map, dtypes=(torch.int32,), shape=(tiles, 2),
                     device=device)
        if not call.reduce_final_map.is_contiguous():
            raise ValueError(f"{_OP}: reduce_final_map must be contiguous, got strides "
                             f"{call.reduce_final_map.stride()}")
    check.integer(_OP, "max_seqlen_q", call.max_seqlen_q, low=0)
    return SKIP if 0 in (out.numel(), tiles, call.max_seqlen_q, call.partial_out.shape[0]) else None


def _refusal(target: Target, call: MlaReduceCall) -> str | None:
    programs = (call.reduce_indptr.shape[0] - 1) * call.max_seqlen_q * call.out.shape[1]
    return f"less than 2^31 rows of heads, got {programs}" if programs >= 2**31 else None


def _tune_key(call: MlaReduceCall) -> dict[str, int | str]:
    return {"tiles": call.reduce_indptr.shape[0] - 1, "seqlen_q": call.max_seqlen_q, "num_heads": call.out.shape[1],
            "head_dim_v": call.out.shape[2], "parts": call.reduce_partial_map.shape[0],
            "dtype": dtypes.name(call.out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> MlaReduceCall:
    """Tiles with equally many parts."""
    generator = torch.Generator(device).manual_seed(seed)
    tiles, rows, heads, width = key["tiles"], key["seqlen_q"], key["num_heads"], key["head_dim_v"]
    each = key["parts"] // max(tiles, 1)
    count = tiles * each * rows
    integers = {"dtype": torch.int32, "device": device}
    starts = torch.arange(tiles + 1, **integers)
    return MlaReduceCall(
        torch.empty(tiles * rows, heads, width, dtype=dtypes.DTYPES[key["dtype"]], device=device),
        torch.empty(tiles * rows, heads, device=device),
        torch.randn(count, heads, width, generator=generator, device=device),
        torch.randn(count, heads, generator=generator, device=device), starts * each,
        torch.stack((starts[:-1], starts[1:]), 1).contiguous() * rows,
        torch.arange(key["parts"], **integers) * rows, rows)


def _cases(device: torch.device) -> dict[str, MlaReduceCall]:
    """Tiles of several rows with a few parts, and with more than are loaded at once; without a map of rows."""
    key = {"tiles": 3, "seqlen_q": 2, "num_heads": 5, "head_dim_v": 96, "parts": 6, "dtype": "bf16"}
    many = _tune_case({**key, "tiles": 1, "parts": 19, "head_dim_v": 512, "dtype": "fp32"}, device, 1)
    return {"few parts": _tune_case(key, device, 0), "many parts": many,
            "no map": _tune_case({**key, "dtype": "fp16"}, device, 2)._replace(reduce_final_map=None)}


def _traffic(call: MlaReduceCall) -> tuple[int, int]:
    rows = call.reduce_partial_map.shape[0] * call.max_seqlen_q * call.out.shape[1]
    moved = rows * (call.out.shape[2] + 1) * 4 + call.out.numel() * call.out.element_size()
    return moved, 2 * rows * call.out.shape[2]


def _triton_space(target: Target, call: MlaReduceCall) -> Iterator[dict[str, int]]:
    for warps, heads, together in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (2, 4, 8, 16, 32)):
        if heads * together <= 8 * warps:  # rows of the parts in flight, which registers must hold
            yield {"num_warps": warps, "HEADS": heads, "TOGETHER": together}


mla_reduce_op = Op(
    _OP, call=MlaReduceCall, reference=mla_reduce_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tiles", "seqlen_q", "num_heads", "head_dim_v", "parts", "dtype"), round_field="parts",
    writes=("out", "lse"), cases=_cases, tuning=Tuning(_tune_case, _traffic), sums_in_fp32=True,
    backends=(Backend("hip", _mla_reduce_hip, refusal=_refusal),
              Backend("triton", "ops.mla.triton.mla_reduce:mla_reduce", refusal=_refusal, space=_triton_space),
              Backend("torch", mla_reduce_ref)))


def _check_contents(out: Tensor, starts: Any, tiles: Any, parts: Any, longest: Any) -> None:
    """Tiles with parts, which can be looked at without waiting, are rows of `out`, and not more than `longest`.

    Raises:
        ValueError: they are not.
    """
    op = "mla_reduce_v1"
    if not are_on_host(starts, parts) or not len(starts) or out.ndim != 3:
        return
    check_starts(op, "reduce_indptr", starts, len(parts), "entries of reduce_partial_map")
    if tiles is None or not are_on_host(tiles, rank=2) or tiles.shape != (len(starts) - 1, 2):
        return  # the operator says what does not fit
    first, last = tiles[starts.diff() > 0].long().unbind(1)
    if ((first < 0) | (last < first) | (last > len(out))).any():
        raise ValueError(f"{op}: reduce_final_map must name rows of final_output, from 0 to {len(out)}, got "
                         f"{tiles.tolist()[:12]}")
    is_some = last > first
    first, order = first[is_some].sort()
    last = last[is_some][order]
    if (twice := first[1:][first[1:] < last[:-1]]).numel():
        raise ValueError(f"{op}: reduce_final_map must name each row of final_output once at most, got "
                         f"{twice[0].item()} more than once")
    most = int((last - first).max()) if len(first) else 0
    if isinstance(longest, int) and 0 <= longest < most:
        raise ValueError(f"{op}: max_seqlen_q must be at least {most}, the rows of a tile in reduce_final_map, got "
                         f"{longest}")


def mla_reduce_v1(partial_output: Tensor, partial_lse: Tensor, reduce_indptr: Tensor, reduce_final_map: Tensor | None,
                  reduce_partial_map: Tensor, max_seqlen_q: int, num_kv_splits: int, final_output: Tensor,
                  final_lse: Tensor | None = None, *, backend: str | None = None) -> None:
    """Adds up partial results of attention: `out = Σ w·part / Σ w` with `w = exp(lse − max lse)`.

    Args:
        partial_output: [rows, num_heads, v_dim] or [rows, 1, num_heads, v_dim] fp32, normalised, last dimension
            contiguous.
        partial_lse: [rows, num_heads], [rows, num_heads, 1] or [rows, 1, num_heads, 1] fp32, natural logarithm.
        reduce_indptr: [tiles + 1] int32: the parts of tile i are reduce_partial_map[reduce_indptr[i] …
            reduce_indptr[i + 1] − 1].
        reduce_final_map: [tiles, 2] int32: first row of `final_output` and the one behind its last. A row of
            several tiles is of any of them on a GPU, where nobody looks. None: each tile has `max_seqlen_q` rows, one
            tile behind the other.
        reduce_partial_map: [entries] int32: the first row of each part.
        max_seqlen_q: rows of a tile, at most; rows beyond are not written.
        num_kv_splits: AITER's hint for its own kernel; of no meaning here.
        final_output: [total_q, num_heads, v_dim] bf16|fp16|fp32, written where a tile has parts.
        final_lse: [total_q, num_heads] fp32, written likewise; None: not wanted.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `final_output` and `final_lse` are written, in rows whose tile has a part and in no others.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32, in the order of the map: equal calls give equal bits. A part whose log-sum-exp is −inf is not
        read; where all are, the row is 0 and its log-sum-exp −inf. Numbers of rows outside the tensors are no parts,
        so memory outside is never touched.

    Source: AITER's `mla_reduce_v1`; Milakov and Gimelshein, online normalizer calculation (2018).
    """
    for name, tensor in (("partial_output", partial_output), ("partial_lse", partial_lse),
                         ("final_output", final_output)):
        check.dense("mla_reduce_v1", name, tensor)
    if partial_output.ndim == 4 and partial_output.shape[1] == 1:
        partial_output = partial_output.squeeze(1)
    if partial_lse.ndim > 2 and partial_lse.shape[-1] == 1:
        partial_lse = partial_lse.squeeze(-1)
        partial_lse = partial_lse.squeeze(1) if partial_lse.ndim == 3 else partial_lse
    _check_contents(final_output, reduce_indptr, reduce_final_map, reduce_partial_map, max_seqlen_q)
    mla_reduce_op.run(final_output, final_lse, partial_output, partial_lse, reduce_indptr=reduce_indptr,
                      reduce_final_map=reduce_final_map, reduce_partial_map=reduce_partial_map,
                      max_seqlen_q=max_seqlen_q, backend=backend)


mla_reduce_op.public.append(mla_reduce_v1)
