# SPDX-License-Identifier: MIT
"""The k largest elements of each row. Kernels: csrc/sampling/topk.hip."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.sampling import parts

__all__ = ["top_k_per_row_decode", "top_k_per_row_prefill", "topk", "topk_plain"]

_OP = "topk"
_MOST = 4096  # k: what a workgroup's LDS sorts


class TopkCall(NamedTuple):
    """One call of topk. Rows of `input` are evenly spaced.

    Attributes:
        indices: columns; -1 where a row has fewer than k.
        values: the elements; 0 where a row has fewer than k.
        is_largest: or the smallest.
        is_by_column: results are in the order of their columns; else the largest comes first.
        row_starts, row_ends: the columns of each row that count.
        lengths: row r ends at lengths[r / next_n] - next_n + r mod next_n + 1.
        next_n: rows of one length.
    """

    indices: Annotated[Tensor, "rows k", (torch.int32, torch.int64)]
    values: Annotated[Tensor | None, "rows k", "input"]
    input: Annotated[Tensor, "rows columns", elements.FLOATS]
    is_largest: bool = True
    is_by_column: bool = False
    row_starts: Annotated[Tensor | None, "rows", torch.int32] = None
    row_ends: Annotated[Tensor | None, "rows", torch.int32] = None
    lengths: Annotated[Tensor | None, "_", torch.int32] = None
    next_n: int = 1


def topk_ref(call: TopkCall) -> None:
    """A stable sort in torch; writes `indices` and `values`."""
    x, columns, k = call.input, call.input.shape[1], call.indices.shape[1]
    rows, column = torch.arange(x.shape[0], device=x.device), torch.arange(columns, device=x.device)
    starts = torch.zeros_like(rows) if call.row_starts is None else call.row_starts.clamp(min=0)
    ends = torch.full_like(rows, columns) if call.row_ends is None else call.row_ends
    if call.lengths is not None:
        ends = call.lengths.clamp(min=0)[rows // call.next_n] - call.next_n + rows % call.next_n + 1
    is_there = (column >= starts[:, None]) & (column < ends[:, None])
    # Numbers first, then NaNs, then what does not count, each with the lower columns first.
    bits = x.float().contiguous().view(torch.int32)
    key = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).masked_fill(x.isnan(), 0)  # ordered like floats, -0 below 0
    order = key.argsort(dim=-1, descending=call.is_largest, stable=True)
    kind = (x.isnan() * 1 + ~is_there * 2).gather(1, order).argsort(dim=-1, stable=True)
    order = order.gather(1, kind)[:, :k]
    is_found = is_there.gather(1, order)
    if call.is_by_column:
        order = torch.where(is_found, order, columns).sort(-1).values
        is_found = order < columns
    found = torch.where(is_found, order, -1)
    call.indices.fill_(-1)
    call.indices[:, :found.shape[1]] = found
    if call.values is not None:
        call.values.zero_()
        call.values[:, :found.shape[1]] = torch.where(is_found, x.gather(1, found.clamp(min=0)), 0)


@compile_ops("sampling/topk.hip", gen_func=parts.instance)
def _topk_hip(call: TopkCall) -> None: ...


def _check(call: TopkCall) -> object:
    rows = call.input.shape[0]
    parts.check_columns(_OP, "input", call.input)
    check.integer(_OP, "next_n", call.next_n, low=1)
    if rows % call.next_n:
        raise ValueError(f"{_OP}: next_n must divide the {rows} rows, got {call.next_n}")
    parts.check_per_row(_OP, rows // call.next_n, lengths=call.lengths)
    return SKIP if call.indices.numel() == 0 else None


def _refusal(target: Target, call: TopkCall) -> str | None:
    if call.indices.shape[1] > _MOST:
        return f"k of at most {_MOST}, got {call.indices.shape[1]}"
    return parts.refusal(target, call)


class TopkKey(NamedTuple):
    """The fields that a tuned row of topk is chosen by."""

    rows: int
    columns: int
    k: int
    dtype: str

    @classmethod
    def of(cls, call: TopkCall) -> TopkKey:
        return cls(*call.input.shape, call.indices.shape[1], dtypes.name(call.input.dtype))

    def make(self, device: torch.device, seed: int, has_ties: bool = False, is_by_column: bool = False) -> TopkCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        indices = torch.empty(self.rows, self.k, dtype=torch.int32, device=device)
        return TopkCall(indices, torch.empty_like(indices, dtype=x.dtype), x.round() if has_ties else x,
                        is_largest=not is_by_column, is_by_column=is_by_column)


_topk = Op(
    _OP, call=TopkCall, reference=topk_ref, check=_check, key=TopkKey, round_field="rows", writes=("indices", "values"),
    # Whole rows, and rows that are cut into slices; the smallest by column.
    cases={"whole": (TopkKey(3, 6001, 100, "fp32"), {"has_ties": True}),
           "whole, by column": (TopkKey(3, 6001, 100, "fp32"), {"has_ties": True, "is_by_column": True}),
           "slices": TopkKey(2, 20001, 20, "fp32"),
           "slices, by column": (TopkKey(2, 20001, 20, "fp32"), {"is_by_column": True})},
    backends=(Backend("hip", _topk_hip, refusal=_refusal, space=parts.group_space), Backend("torch", topk_ref)))


def topk(x: Tensor, k: int, *, dim: int = -1, largest: bool = True, sorted: bool = True, tiny_row_thresh: int = 1024,
         backend: str | None = None) -> tuple[Tensor, Tensor]:
    """The k largest elements of each row, with their columns.

    `values[r, i] = x[r, indices[r, i]]`, the largest first, of equal ones the lowest column first.

    Args:
        x: [..., columns] bf16|fp16|fp32, rows contiguous and evenly spaced.
        k: how many, 0 ≤ k ≤ columns; the kernel sorts up to 4096.
        dim: the last dimension; another one is served by torch.
        largest: or the smallest.
        sorted: results are sorted in either case.
        tiny_row_thresh: chooses among AITER's own kernels; no meaning here.

    Returns: `values` [..., k] of the dtype of `x`, and `indices` [..., k] int64.

    Notes:
        A NaN comes after all numbers, whether the largest or the smallest are asked for; -0 is less than 0.
        Deterministic.

    Source: torch.topk; AITER's Triton `topk`.
    """
    check.tensor(_OP, "x", x, dtypes=elements.FLOATS, last_contiguous=False)
    check.integer(_OP, "dim", dim, low=-x.ndim, high=x.ndim - 1)
    check.flag(_OP, "sorted", sorted)
    moved = x.movedim(dim, -1)
    check.integer(_OP, "k", k, low=0, high=moved.shape[-1])
    rows = moved.reshape(-1, moved.shape[-1])
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    values = torch.empty(rows.shape[0], k, dtype=x.dtype, device=x.device)
    indices = torch.empty(rows.shape[0], k, dtype=torch.int64, device=x.device)
    _topk.run(indices, values, rows, is_largest=largest, backend=backend)
    shape = (*moved.shape[:-1], k)
    return values.view(shape).movedim(-1, dim), indices.view(shape).movedim(-1, dim)


def topk_plain(x: Tensor, topk_ids: Tensor, topk_out: Tensor, topk: int, largest: bool = True,
               rowStarts: Tensor | None = None, rowEnds: Tensor | None = None, stride0: int = -1, stride1: int = 1, *,
               backend: str | None = None) -> None:
    """The largest of each row's columns that count: `topk_out[r, i] = x[r, topk_ids[r, i]]`. Like `topk` otherwise.

    Args:
        x: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance.
        topk_ids: [rows, topk] int32, written; -1 where a row has fewer.
        topk_out: [rows, topk], dtype of `x`, written; 0 where a row has fewer.
        topk: k, the columns of both; the kernel sorts up to 4096.
        rowStarts, rowEnds: [rows] int32, the first column of each row that counts, and the one after the last; cut to
            the row. None or empty: all.
        stride0: elements from row to row of `x`, or -1: as `x` has them.
        stride1: elements from column to column of `x`; 1 beside a `stride0` of -1: as `x` has them.
    """
    check.tensor(_OP, "x", x, rank=2, last_contiguous=False)
    check.tensor(_OP, "topk_ids", topk_ids, dtypes=(torch.int32,), shape=(x.shape[0], topk), device=x.device)
    starts, ends = (None if bound is None or bound.numel() == 0 else bound for bound in (rowStarts, rowEnds))
    if (stride0, stride1) == (-1, 1):
        stride0, stride1 = x.stride(0), max(x.stride(1), 1)
    rows = _strided(x, x.shape[0], x.stride(0) if stride0 == -1 else stride0, stride1)
    _topk.run(topk_ids, topk_out, rows, is_largest=largest, row_starts=starts, row_ends=ends, backend=backend)


def top_k_per_row_prefill(logits: Tensor, rowStarts: Tensor, rowEnds: Tensor, indices: Tensor, values: Tensor | None,
                          numRows: int, stride0: int, stride1: int, k: int = 2048, stable: bool = False, *,
                          backend: str | None = None) -> None:
    """The columns of the k largest logits of each row, among those from its start to its end.

    `indices[r] = topk(logits[r, rowStarts[r]:rowEnds[r]], k) + rowStarts[r]`.

    Args:
        logits: [rows, columns] fp32|bf16|fp16, rows contiguous, at any distance.
        rowStarts, rowEnds: [rows] int32; cut to the row.
        indices: [rows, k] int32, written; -1 where a row has fewer.
        values: [rows, k], dtype of `logits`, written; 0 where a row has fewer. None: not wanted.
        numRows: rows that are taken.
        stride0, stride1: elements from row to row, and from column to column, of `logits`.
        k: columns of `indices`; the kernel sorts up to 4096.
        stable: results are in the order of their columns; else the largest comes first.

    Notes:
        Deterministic in both orders: of equal logits the lowest columns are taken. A NaN counts as less than all
        numbers.

    Source: AITER's `top_k_per_row_prefill`, the indexer of DeepSeek-V3.2's sparse attention.
    """
    _per_row(logits, indices, values, numRows, stride0, stride1, k, stable, backend,
             {"row_starts": ("rowStarts", rowStarts), "row_ends": ("rowEnds", rowEnds)})


def top_k_per_row_decode(logits: Tensor, next_n: int, seqLens: Tensor, indices: Tensor, numRows: int, stride0: int,
                         stride1: int, k: int = 2048, stable: bool = False, *, backend: str | None = None) -> None:
    """The columns of the k largest logits of each row, by its own length. Like `top_k_per_row_prefill` otherwise.

    `indices[r] = topk(logits[r, :seqLens[r / next_n] - next_n + r mod next_n + 1], k)`.

    Args:
        next_n: rows, of consecutive query tokens, of each sequence.
        seqLens: [rows / next_n] int32.
    """
    check.integer(_OP, "next_n", next_n, low=1)
    _per_row(logits, indices, None, numRows, stride0, stride1, k, stable, backend, {"lengths": ("seqLens", seqLens)},
             next_n)


def _per_row(logits: Tensor, indices: Tensor, values: Tensor | None, rows: int, stride0: int, stride1: int, k: int,
             is_by_column: bool, backend: str | None, bounds: dict[str, tuple[str, Tensor]], next_n: int = 1) -> None:
    """bounds: field → (argument, what it was given), with an element for each `next_n` rows that are taken."""
    check.tensor(_OP, "logits", logits, rank=2, last_contiguous=False)
    check.integer(_OP, "numRows", rows, low=0, high=logits.shape[0])
    check.tensor(_OP, "indices", indices, rank=2)
    if values is not None:
        check.tensor(_OP, "values", values, rank=2)
    if indices.shape[0] < rows or indices.shape[1] != k:
        raise ValueError(f"{_OP}: indices must have shape ({rows}, {k}), got {tuple(indices.shape)}")
    count, taken = -(-rows // next_n), {}
    for field, (name, given) in bounds.items():
        check.tensor(_OP, name, given, rank=1, device=logits.device)
        if given.shape[0] < count:
            raise ValueError(f"{_OP}: {name} must have at least {count} elements, got {given.shape[0]}")
        taken[field] = given[:count]
    _topk.run(indices[:rows], values if values is None else values[:rows], _strided(logits, rows, stride0, stride1),
              is_by_column=is_by_column, next_n=next_n, backend=backend, **taken)


def _strided(x: Tensor, rows: int, stride0: int, stride1: int) -> Tensor:
    """`x` with the strides that a caller says it has, as AITER's kernels read it; rows contiguous."""
    check.integer(_OP, "stride0", stride0, low=0)
    check.integer(_OP, "stride1", stride1, low=1)
    if (stride0, stride1) != x.stride() and rows > 1:
        last = (rows - 1) * stride0 + (x.shape[1] - 1) * stride1
        if last >= (x.shape[0] - 1) * x.stride(0) + (x.shape[1] - 1) * x.stride(1) + 1:
            raise ValueError(f"{_OP}: stride0 and stride1 must stay inside of the tensor, got {stride0} and {stride1}")
        x = x.as_strided((rows, x.shape[1]), (stride0, stride1))
    return x[:rows] if stride1 == 1 else x[:rows].contiguous()


_topk.public += [topk, topk_plain, top_k_per_row_prefill, top_k_per_row_decode]
