# SPDX-License-Identifier: MIT
"""The sum of partial results of latent attention. Kernels: csrc/mla/mla_reduce.hip, ops/mla/triton/mla_reduce.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.common.contents import are_on_host, check_starts

__all__ = ["mla_reduce_v1"]

_OP = "mla_reduce"


class MlaReduceCall(NamedTuple):
    """One call of mla_reduce: its arguments in the order of the function that mla_reduce.hip exports.

    Attributes:
        out, lse: written where a tile has parts.
        partial_out: [rows, heads, columns], normalised; `partial_lse` [rows, heads].
        reduce_indptr: where the entries of a tile begin in `reduce_partial_map`.
        reduce_final_map: first row of `out` and the one behind its last; None: `max_seqlen_q` each.
        reduce_partial_map: first row of each part in the partial results.
        max_seqlen_q: rows of a tile, at most.
    """

    out: Annotated[Tensor, "total_q heads columns", elements.FLOATS]
    lse: Annotated[Tensor | None, "total_q heads", torch.float32, STRIDED]
    partial_out: Annotated[Tensor, "rows _ _", torch.float32]
    partial_lse: Annotated[Tensor, "rows _", torch.float32, STRIDED]
    reduce_indptr: Annotated[Tensor, "tiles+1", torch.int32]
    reduce_final_map: Annotated[Tensor | None, "tiles 2", torch.int32]
    reduce_partial_map: Annotated[Tensor, "entries", torch.int32]
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
    check.tensor(_OP, "partial_out", call.partial_out, shape=(None, *call.out.shape[1:]))
    check.tensor(_OP, "partial_lse", call.partial_lse, shape=(None, call.out.shape[1]), last_contiguous=False)
    tiles, final_map = call.reduce_indptr.shape[0] - 1, call.reduce_final_map
    if tiles < 0:
        raise ValueError(f"{_OP}: reduce_indptr must have at least 1 element, got 0")
    if final_map is not None:
        check.tensor(_OP, "reduce_final_map", final_map, shape=(tiles, 2))
        if not final_map.is_contiguous():
            raise ValueError(f"{_OP}: reduce_final_map must be contiguous, got strides {final_map.stride()}")
    check.integer(_OP, "max_seqlen_q", call.max_seqlen_q, low=0)
    return SKIP if 0 in (call.out.numel(), tiles, call.max_seqlen_q, call.partial_out.shape[0]) else None


def _refusal(target: Target, call: MlaReduceCall) -> str | None:
    programs = (call.reduce_indptr.shape[0] - 1) * call.max_seqlen_q * call.out.shape[1]
    return f"less than 2^31 rows of heads, got {programs}" if programs >= 2**31 else None


class MlaReduceKey(NamedTuple):
    """The fields that a tuned row of mla_reduce is chosen by."""

    tiles: int
    seqlen_q: int
    num_heads: int
    head_dim_v: int
    parts: int
    dtype: str

    @classmethod
    def of(cls, call: MlaReduceCall) -> MlaReduceKey:
        return cls(call.reduce_indptr.shape[0] - 1, call.max_seqlen_q, *call.out.shape[1:],
                   call.reduce_partial_map.shape[0], dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int, has_map: bool = True) -> MlaReduceCall:
        """Tiles with equally many parts."""
        random = tune_shapes.normal(device, seed, "fp32")
        each, rows = self.parts // max(self.tiles, 1), self.tiles * self.seqlen_q
        starts = torch.arange(self.tiles + 1, dtype=torch.int32, device=device)
        return MlaReduceCall(
            torch.empty(rows, self.num_heads, self.head_dim_v, dtype=dtypes.DTYPES[self.dtype], device=device),
            torch.empty(rows, self.num_heads, device=device), random(rows * each, self.num_heads, self.head_dim_v),
            random(rows * each, self.num_heads), starts * each,
            torch.stack((starts[:-1], starts[1:]), 1).contiguous() * self.seqlen_q if has_map else None,
            torch.arange(self.parts, dtype=torch.int32, device=device) * self.seqlen_q, self.seqlen_q)


def _traffic(call: MlaReduceCall) -> tuple[int, int]:
    rows = call.reduce_partial_map.shape[0] * call.max_seqlen_q * call.out.shape[1]
    moved = rows * (call.out.shape[2] + 1) * 4 + call.out.numel() * call.out.element_size()
    return moved, 2 * rows * call.out.shape[2]


def _triton_space(target: Target, call: MlaReduceCall) -> Iterator[dict[str, int]]:
    for warps, heads, together in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (2, 4, 8, 16, 32)):
        if heads * together <= 8 * warps:  # rows of the parts in flight, which registers must hold
            yield {"num_warps": warps, "HEADS": heads, "TOGETHER": together}


mla_reduce_op = Op(
    _OP, call=MlaReduceCall, reference=mla_reduce_ref, check=_check, key=MlaReduceKey, round_field="parts",
    writes=("out", "lse"), traffic=_traffic, sums_in_fp32=True,
    cases={"few parts": MlaReduceKey(3, 2, 5, 96, 6, "bf16"),
           "many parts": MlaReduceKey(1, 2, 5, 512, 19, "fp32"),  # than are loaded at once
           "no map": (MlaReduceKey(3, 2, 5, 96, 6, "fp16"), {"has_map": False})},
    backends=(Backend("hip", _mla_reduce_hip, refusal=_refusal),
              Backend("triton", "ops.mla.triton.mla_reduce:mla_reduce", refusal=_refusal, space=_triton_space),
              Backend("torch", mla_reduce_ref)))


def _check_contents(out: Tensor, starts: Any, tiles: Any, parts: Any, longest: Any) -> None:
    """Tiles with parts, which can be looked at without waiting, are rows of `out`, and not more than `longest`."""
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
