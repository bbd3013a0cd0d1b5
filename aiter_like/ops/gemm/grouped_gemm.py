# SPDX-License-Identifier: MIT
"""Products of groups of rows, each with a matrix of its own: the sizes of the groups are known on the device alone.

Kernels: csrc/gemm/grouped_gemm.hip, ops/gemm/triton/grouped_gemm.py and, for Hopper, problems_hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Facts, Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, marks, tune_shapes
from aiter_like.ops.gemm import hopper, parts, problems, tiles
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight

__all__ = ["grouped_gemm"]

_OP = "grouped_gemm"


class GroupedGemmCall(NamedTuple):
    """One call of grouped_gemm: its arguments in the order of the function that grouped_gemm.hip exports.

    Attributes:
        out: written where a group has the row and `row_index` does not leave it out.
        group_offsets: [groups + 1]: group i has the rows from element i to element i + 1 of it.
        a_scale, b_scale: given with fp8 and int8 alone.
        row_index: the row of `a` that each row of `out` is made of, outside of `a`: none; None: the same row.
        is_shuffled: whether each matrix of `b` is in the order of `shuffle_weight`, layout (16, 16).
    """

    out: Annotated[Tensor, "_ _", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "tokens k", problems.DTYPES, STRIDED]
    b: Annotated[Tensor, "groups n k", "a", STRIDED]
    group_offsets: Annotated[Tensor, "_", torch.int32]
    bias: Annotated[Tensor | None, "groups n", elements.FLOATS] = None
    a_scale: Annotated[Tensor | None, "tokens", torch.float32] = None
    b_scale: Annotated[Tensor | None, "groups n", torch.float32] = None
    row_index: Annotated[Tensor | None, "rows", torch.int32] = None
    is_shuffled: bool = False


def grouped_gemm_ref(call: GroupedGemmCall) -> None:
    """The formula in torch, in fp32, of int8 in fp64, where sums are exact; writes `out`. Looks at the offsets."""
    wide = torch.float64 if call.a.dtype == torch.int8 else torch.float32
    weights = unshuffle_weight(call.b) if call.is_shuffled else call.b
    rows = call.out.shape[0]
    offsets = [min(max(offset, 0), rows) for offset in call.group_offsets.tolist()]
    for group, (first, end) in enumerate(zip(offsets, offsets[1:])):
        of_out = torch.arange(first, max(first, end), device=call.a.device)
        if call.row_index is not None:
            found = call.row_index[of_out]
            of_out = of_out[(found >= 0) & (found < call.a.shape[0])]
        of_a = of_out if call.row_index is None else call.row_index[of_out].long()
        product = (call.a[of_a].to(wide) @ weights[group].to(wide).t()).float()
        if call.a_scale is not None:
            product = product * call.a_scale[of_a, None]
        if call.b_scale is not None:
            product = product * call.b_scale[group]
        if call.bias is not None:
            product = product + call.bias[group].float()
        call.out[of_out] = product.to(call.out.dtype)


def _instance(call: GroupedGemmCall, *, tile: str | None = None) -> Instance:
    """The tile is the one that the counts of tiles.py find cheapest for groups of equal size, unless a tuned row names
    it."""
    if tile is None:
        tile, _ = tiles.cheapest(**_sizes(call), splits=1)
    is_gathered = call.row_index is not None
    names = [*(["gathered"] if is_gathered else []), *(["shuffled"] if call.is_shuffled else [])]
    return problems.products_instance(_OP, call, tile, name="_".join(names), names=_tiles(call),
                                      IS_GATHERED=int(is_gathered), IS_SHUFFLED=int(call.is_shuffled))


@compile_ops("gemm/grouped_gemm.hip", gen_func=_instance, platforms=("hip",))
def _grouped_gemm_ck(call: GroupedGemmCall) -> None: ...


def _sizes(call: GroupedGemmCall) -> dict[str, Any]:
    """Sizes in the form that tiles.py counts with: groups of equal size."""
    groups, n, k = call.b.shape
    return {"m": -(-call.out.shape[0] // groups), "n": n, "k": k, "element_bytes": call.a.element_size(),
            "batch": groups, "names": _tiles(call)}


def _tiles(call: GroupedGemmCall) -> tuple[str, ...]:
    """Chosen rows go through the plain loop."""
    return tiles.PIPELINED if call.row_index is None else tiles.TILES


def _check(call: GroupedGemmCall) -> object:
    problems.check_scales(_OP, call)
    (tokens, _), (groups, n, _) = call.a.shape, call.b.shape
    if call.is_shuffled:
        parts.check_shuffled(_OP, call.b, n)
    check.tensor(_OP, "group_offsets", call.group_offsets, shape=(groups + 1,))
    rows = tokens if call.row_index is None else call.row_index.shape[0]
    if max(rows, tokens) >= 2**31:
        raise ValueError(f"{_OP}: a must have less than 2^31 rows, got {max(rows, tokens)}")
    check.tensor(_OP, "out", call.out, shape=(rows, n), last_contiguous=False)
    return SKIP if call.out.numel() == 0 or groups == 0 or tokens == 0 else None


def _ck_refusal(target: Target, call: GroupedGemmCall) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    groups, n, _ = call.b.shape
    reason = (parts.mfma_refusal(target) or parts.sum_refusal(target, call) or parts.depth_refusal(call.a, n)
              or parts.rows_refusal(a=call.a, b=call.b, out=call.out))
    if reason is not None:
        return reason
    if call.row_index is not None and call.a.stride(0) * call.a.element_size() * call.a.shape[0] >= 2**31:
        return f"the rows that row_index chooses from must lie within 2^31 bytes, got shape {tuple(call.a.shape)}"
    if problems.most_tiles(call.out.shape[0], groups, n, tiles.SMALLEST) >= 2**22:
        return f"out must have less than 2^22 tiles, got {call.out.shape[0]} × {n}, {groups} groups"
    return None


def _ck_space(target: Target, call: GroupedGemmCall) -> Iterator[dict[str, Any]]:
    sizes = _sizes(call)
    return ({"tile": tile} for tile in _tiles(call) if tiles.is_useful(sizes["m"], sizes["n"], sizes["k"], tile, 1))


def _ck_cost(call: GroupedGemmCall, facts: Facts, *, tile: str | None = None) -> float:
    sizes = _sizes(call)
    if tile is None:
        tile, _ = tiles.cheapest(**sizes, splits=1)
    return tiles.clocks(facts, **sizes, tile=tiles.parse(tile, _tiles(call)), splits=1)


def _is_for_hopper(target: Target, call: GroupedGemmCall) -> bool:
    moved = (call.b,) if call.row_index is not None else (call.a, call.b)
    return target.arch == "sm_90" and not call.is_shuffled and hopper.serves(*moved)


def _triton_space(target: Target, call: GroupedGemmCall) -> Iterator[dict[str, int]]:
    sizes = _sizes(call)
    return problems.triton_space(sizes["m"], sizes["n"], sizes["k"], call.a, target, _is_for_hopper(target, call))


class GroupedGemmKey(NamedTuple):
    """The fields that a tuned row of grouped_gemm is chosen by."""

    rows: int
    groups: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    is_gathered: bool = False
    is_shuffled: bool = False

    @classmethod
    def of(cls, call: GroupedGemmCall) -> GroupedGemmKey:
        return cls(call.out.shape[0], *call.b.shape, dtypes.name(call.a.dtype), dtypes.name(call.out.dtype),
                   call.row_index is not None, call.is_shuffled)

    def make(self, device: torch.device, seed: int, sizes: tuple[int, ...] = (), bias: str = "",
             is_transposed: bool = False) -> GroupedGemmCall:
        """Groups of random sizes, as an even router fills them; of chosen rows each is taken by as many groups as
        experts take a token in the model families that the tuner knows: 8. With `sizes`, some rows are made of none."""
        random, generator = tune_shapes.normal(device, seed, "bf16"), torch.Generator().manual_seed(seed)
        rows, groups, n, k = self[:4]
        taken = torch.randint(groups, (rows,), generator=generator)
        counts = torch.tensor(sizes) if sizes else torch.zeros(groups, dtype=torch.int64).index_add_(
            0, taken, torch.ones_like(taken))
        offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0))).to(device, torch.int32)
        tokens = -(-rows // 8) if self.is_gathered else rows
        beside = 1 if sizes else 0
        index = torch.randint(-beside, tokens + beside, (rows,), generator=generator).to(device, torch.int32)
        a, b = problems.operands(random, dtypes.DTYPES[self.dtype], (tokens, k), (groups, n, k))
        if is_transposed:
            b = b.mT.contiguous().mT
        call = GroupedGemmCall(
            torch.zeros(rows, n, dtype=dtypes.DTYPES[self.out_dtype], device=device), a,
            shuffle_weight(b) if self.is_shuffled else b, offsets,
            random(groups, n).to(dtypes.DTYPES[bias]) if bias else None,
            row_index=index if self.is_gathered else None, is_shuffled=bool(self.is_shuffled))
        if a.dtype in problems.SIXTEEN_BITS:
            return call
        a_scale, b_scale = (random(*shape).float().abs() + 0.1 for shape in ((tokens,), (groups, n)))
        return call._replace(a_scale=a_scale, b_scale=b_scale)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GroupedGemmKey]:
        """The keys of models with experts: up and gate of chosen tokens, then down."""
        return (cls(tokens * model.experts_per_token, matrices, n, k, model.dtype, model.dtype, k == model.hidden_size)
                for matrices, n, k in tune_shapes.linear_weights(model, tp) if matrices > 1)

    def smaller(self) -> Iterator[GroupedGemmKey]:
        """Fewer groups of as many rows each."""
        while self.groups > 1:
            self = self._replace(groups=-(-self.groups // 2), rows=-(-self.rows // 2))
            yield self


_PLAIN = GroupedGemmKey(70, 4, 68, 72)
_SIZES = {"sizes": (35, 0, 1, 34)}  # several tiles, no row, a part of a tile

_grouped_gemm = Op(
    _OP, call=GroupedGemmCall, reference=grouped_gemm_ref, check=_check, key=GroupedGemmKey, round_field="rows",
    cases={"plain": (_PLAIN, _SIZES),
           "gathered, bias": (_PLAIN._replace(is_gathered=True), {"bias": "bf16"} | _SIZES),
           "shuffled": (GroupedGemmKey(70, 4, 80, 96, is_shuffled=True), _SIZES),
           "shuffled, gathered": (GroupedGemmKey(70, 4, 80, 96, is_gathered=True, is_shuffled=True), _SIZES),
           "fp16, fp32 out": (_PLAIN._replace(dtype="fp16", out_dtype="fp32"), _SIZES),
           "transposed b": (_PLAIN, {"is_transposed": True} | _SIZES),
           "fp8": (_PLAIN._replace(k=144, dtype="fp8"), _SIZES),
           "int8, gathered": (_PLAIN._replace(k=144, dtype="i8", is_gathered=True), _SIZES)},
    traffic=parts.traffic, sums_in_fp32=True,
    backends=(Backend("ck", _grouped_gemm_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.grouped_gemm:grouped_gemm", refusal=parts.sum_refusal,
                      kernels=hopper.kernels_of(_OP, _is_for_hopper), space=_triton_space),
              Backend("torch", grouped_gemm_ref, differentiable=True)))


def grouped_gemm(a: Tensor, b: Tensor, group_offsets: Tensor, a_scale: Tensor | None = None,
                 b_scale: Tensor | None = None, bias: Tensor | None = None, *, row_index: Tensor | None = None,
                 dtype: torch.dtype | None = None, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The products of groups of rows with a matrix per group: `out[r] = a_scale · (a[r] · b[g]ᵀ) · b_scale[g] +
    bias[g]` for the rows r of group g.

    Args:
        a: [rows, k] bf16|fp16, int8 or the hardware's fp8 (FNUZ on gfx942), of any strides, sorted by group; with
            `row_index` any rows.
        b: [groups, n, k], dtype of `a`, of any strides; or with the mark of `shuffle_weight`, layout (16, 16).
        group_offsets: [groups + 1] int32 on the device, ascending from 0 on: group g has the rows group_offsets[g] to
            group_offsets[g + 1] of `out`. The host looks at those of the simulated device alone.
        a_scale: [rows of a] or [rows of a, 1] fp32: a factor per row, given with fp8 and int8 alone.
        b_scale: [groups, n], [groups, n, 1] or [groups, 1, n] fp32: a factor per column, likewise.
        bias: [groups, n] bf16|fp16|fp32.
        row_index: [rows] int32: row r of `out` is made of row row_index[r] of `a`; of none, and not written, where that
            is negative or not a row of `a`. As a router sorts tokens by expert.
        dtype: of the result, bf16|fp16|fp32; default: that of `a`, bf16 where that has 8 bits.
        out: tensor to write, [rows, n], of any strides; default: a new contiguous one.

    Returns: `out`. Rows that no group has, or that `row_index` leaves out, are as they were; undefined in a new tensor.

    Notes:
        Sums in fp32, of int8 exact in int32; rounded to nearest even once. Equal calls give equal results. Can be
        captured in a graph, and replayed with other offsets and indices, of which no value makes a kernel read or write
        outside of the tensors. Backend ck takes contiguous rows with k a multiple of 16 bytes and n of 4, triton
        everything. No derivative.

    Source: `torch._grouped_mm` and AITER's `deepgemm` compute the same without `row_index`.
    """
    check.tensor(_OP, "a", a, last_contiguous=False)
    marks.refuse(_OP, "a", a)
    check.tensor(_OP, "b", b, rank=3, last_contiguous=False)
    is_shuffled = marks.is_shuffled(_OP, "b", b)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{_OP}: dtype must be a dtype, got {type(dtype).__name__}")
    if isinstance(out, Tensor) and dtype is not None and out.dtype != dtype:
        raise TypeError(f"{_OP}: out must have dtype {dtype}, the argument dtype, got {out.dtype}")
    if isinstance(a_scale, Tensor) and a_scale.ndim == 2 and a_scale.shape[1] == 1:
        a_scale = a_scale[:, 0]
    if isinstance(b_scale, Tensor) and b_scale.ndim == 3:
        b_scale = b_scale[:, 0] if b_scale.shape[1] == 1 else b_scale.squeeze(2)
    if out is None:
        rows = row_index if isinstance(row_index, Tensor) else a
        dtype = dtype or (a.dtype if a.dtype in problems.SIXTEEN_BITS else torch.bfloat16)
        out = torch.empty(*rows.shape[:1], b.shape[1], dtype=dtype, device=a.device)
    if isinstance(out, Tensor) and out.ndim == a.ndim == 2:  # the operator's check tells of the other cases
        _check_offsets(group_offsets, out.shape[0])
    _grouped_gemm.run(out, a, b, group_offsets, bias, a_scale, b_scale, row_index, is_shuffled=is_shuffled,
                      backend=backend)
    return out


def _check_offsets(offsets: Tensor, rows: int) -> None:
    """Those that lie where they can be looked at without waiting."""
    check.sequence_starts(_OP, "group_offsets", offsets)
    if not check.is_on_host(offsets) or offsets.dtype != torch.int32 or offsets.ndim != 1 or len(offsets) == 0:
        return
    if offsets[0] < 0 or offsets[-1] > rows or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{_OP}: group_offsets must ascend from 0 on to at most {rows}, the rows of out")


torch_ops.register(_grouped_gemm, grouped_gemm)
