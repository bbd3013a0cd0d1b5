# SPDX-License-Identifier: MIT
"""Products of groups of rows, each with a matrix of its own: the sizes of the groups are known on the device alone.

Kernels: csrc/gemm/grouped_gemm.hip, ops/gemm/triton/grouped_gemm.py and, for Hopper, problems_hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.gemm import problems, tiles
from aiter_like.ops.gemm.hopper import serves
from aiter_like.ops.gemm.parts import depth_refusal, mfma_refusal, rows_refusal, sum_refusal
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight

__all__ = ["grouped_gemm"]

_OP = "grouped_gemm"
_LAYOUT, _MIN_SHUFFLED = (16, 16), 32  # shuffle_weight has this layout and takes so many columns at a time


class GroupedGemmCall(NamedTuple):
    """One call of grouped_gemm: its arguments in the order of the function that grouped_gemm.hip exports.

    Attributes:
        out: [rows, n], written where a group has the row and `row_index` does not leave it out; bf16|fp16|fp32.
        a: [rows, k], or with `row_index` [any, k]; bf16|fp16|fp8|int8, of any strides.
        b: [groups, n, k], dtype of `a`, of any strides; or shuffled.
        group_offsets: [groups + 1] int32, contiguous: group i has the rows from element i to element i + 1 of it.
        bias: [groups, n], added to each row of a group; bf16|fp16|fp32, last dimension contiguous.
        a_scale: [rows of a] fp32, contiguous; given with fp8 and int8 alone.
        b_scale: [groups, n] fp32, last dimension contiguous; likewise.
        row_index: [rows] int32, contiguous: the row of `a` that each row of `out` is made of; outside of `a`: none.
        is_shuffled: whether each matrix of `b` is in the order of `shuffle_weight`, layout (16, 16).
    """

    out: Tensor
    a: Tensor
    b: Tensor
    group_offsets: Tensor
    bias: Tensor | None = None
    a_scale: Tensor | None = None
    b_scale: Tensor | None = None
    row_index: Tensor | None = None
    is_shuffled: bool = False


def grouped_gemm_ref(call: GroupedGemmCall) -> None:
    """The formula in torch, in fp32, of int8 in fp64, where sums are exact; writes `out`. Looks at the offsets."""
    wide = torch.float64 if call.a.dtype == torch.int8 else torch.float32
    weights = unshuffle_weight(call.b, _LAYOUT) if call.is_shuffled else call.b
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
    """What tiles.py counts with: groups of equal size."""
    groups, n, k = call.b.shape
    return {"m": -(-call.out.shape[0] // groups), "n": n, "k": k, "element_bytes": call.a.element_size(),
            "batch": groups, "names": _tiles(call)}


def _tiles(call: GroupedGemmCall) -> tuple[str, ...]:
    """Chosen rows go through the plain loop."""
    return tiles.PIPELINED if call.row_index is None else tiles.TILES


def _check(call: GroupedGemmCall) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, out = call.a, call.out
    check.tensor(_OP, "a", a, rank=2, dtypes=(*problems.SIXTEEN_BITS, *quant_rule.DTYPES), last_contiguous=False)
    problems.check_fp8(_OP, a)
    check.tensor(_OP, "b", call.b, dtypes=(a.dtype,), shape=(None, None, a.shape[1]), device=a.device,
                 last_contiguous=False)
    groups, n, k = call.b.shape
    if call.is_shuffled and (n % _LAYOUT[0] or k % _MIN_SHUFFLED or not call.b.is_contiguous()):
        raise ValueError(f"{_OP}: shuffled, b must be contiguous with n % {_LAYOUT[0]} == 0 and k % {_MIN_SHUFFLED} == "
                         f"0, got shape {tuple(call.b.shape)}, strides {call.b.stride()}")
    check.tensor(_OP, "group_offsets", call.group_offsets, dtypes=(torch.int32,), shape=(groups + 1,), device=a.device)
    rows = a.shape[0]
    if call.row_index is not None:
        check.tensor(_OP, "row_index", call.row_index, rank=1, dtypes=(torch.int32,), device=a.device)
        rows = call.row_index.shape[0]
    if any(size >= 2**31 for size in (rows, a.shape[0])):
        raise ValueError(f"{_OP}: a must have less than 2^31 rows, got {max(rows, a.shape[0])}")
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, shape=(rows, n), device=a.device, last_contiguous=False)
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=elements.FLOATS, shape=(groups, n), device=a.device)
    for name, scale, shape in (("a_scale", call.a_scale, a.shape[:1]), ("b_scale", call.b_scale, (groups, n))):
        if (scale is None) != (a.dtype in problems.SIXTEEN_BITS):
            wanted = "None with 16-bit operands" if scale is not None else f"given with operands of {a.dtype}"
            raise ValueError(f"{_OP}: {name} must be {wanted}, got {type(scale).__name__}")
        if scale is not None:
            check.tensor(_OP, name, scale, dtypes=(torch.float32,), shape=shape, device=a.device)
    return SKIP if out.numel() == 0 or groups == 0 or a.shape[0] == 0 else None


def _triton_refusal(target: Target, call: GroupedGemmCall) -> str | None:
    """What no kernel takes."""
    return sum_refusal(call.a)


def _ck_refusal(target: Target, call: GroupedGemmCall) -> str | None:
    """What the kernel for gfx942 does not take."""
    groups, n, _ = call.b.shape
    reason = (mfma_refusal(target) or _triton_refusal(target, call) or depth_refusal(call.a, n)
              or rows_refusal(a=call.a, b=call.b, out=call.out))
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


def _ck_cost(target: Target, call: GroupedGemmCall, *, tile: str | None = None) -> float:
    sizes = _sizes(call)
    if tile is None:
        tile, _ = tiles.cheapest(**sizes, splits=1)
    return tiles.clocks(**sizes, tile=tiles.parse(tile, _tiles(call)), splits=1)


def _tune_key(call: GroupedGemmCall) -> dict[str, int | str]:
    groups, n, k = call.b.shape
    return {"rows": call.out.shape[0], "groups": groups, "n": n, "k": k, "dtype": dtypes.name(call.a.dtype),
            "out_dtype": dtypes.name(call.out.dtype), "is_gathered": int(call.row_index is not None),
            "is_shuffled": int(call.is_shuffled)}


def _cases(device: torch.device) -> dict[str, GroupedGemmCall]:
    """Groups of several tiles, of a part of one, and without rows; rows that are chosen, with padding; 8 bits with
    scales; an operand that Triton alone takes."""
    random = tune_shapes.normal(device, 0, "bf16")
    offsets = torch.tensor([0, 35, 35, 36, 70], dtype=torch.int32, device=device)
    index = torch.arange(69, -1, -1, dtype=torch.int32, device=device) % 24 - 1
    plain = GroupedGemmCall(random(70, 68), random(70, 72), random(4, 68, 72), offsets)
    gathered = {"a": random(21, 72), "row_index": index}
    fp8, int8 = (plain._replace(**dict(zip("ab", problems.operands(random, dtype, (70, 144), (4, 68, 144)))),
                                a_scale=random(70).float().abs() + 0.1, b_scale=random(4, 68).float().abs() + 0.1)
                 for dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8))
    shuffled = plain._replace(out=random(70, 80), a=random(70, 96), b=shuffle_weight(random(4, 80, 96)),
                              is_shuffled=True)
    return {"plain": plain, "gathered, bias": plain._replace(**gathered, bias=random(4, 68)), "shuffled": shuffled,
            "shuffled, gathered": shuffled._replace(a=random(21, 96), row_index=index),
            "fp16, fp32 out": GroupedGemmCall(random(70, 68).float(), random(70, 72).half(), plain.b.half(), offsets),
            "transposed b": plain._replace(b=random(4, 72, 68).mT),
            "fp8": fp8, "int8, gathered": int8._replace(a=int8.a[:21], a_scale=int8.a_scale[:21], row_index=index)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GroupedGemmCall:
    """Groups of random sizes, as an even router fills them; of chosen rows each is taken by as many groups as experts
    take a token in the model families that the tuner knows: 8."""
    random, generator = tune_shapes.normal(device, seed, "bf16"), torch.Generator().manual_seed(seed)
    rows, groups, n, k = (key[name] for name in ("rows", "groups", "n", "k"))
    taken = torch.randint(groups, (rows,), generator=generator)
    counts = torch.zeros(groups, dtype=torch.int64).index_add_(0, taken, torch.ones_like(taken))
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).to(device, torch.int32)
    tokens = -(-rows // 8) if key["is_gathered"] else rows
    index = torch.randint(tokens, (rows,), generator=generator).to(device, torch.int32) if key["is_gathered"] else None
    dtype = dtypes.DTYPES[key["dtype"]]
    a, b = problems.operands(random, dtype, (tokens, k), (groups, n, k))
    scales = (None, None) if dtype in problems.SIXTEEN_BITS else (torch.rand(tokens, device=device),
                                                                  torch.rand(groups, n, device=device))
    out = torch.empty(rows, n, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    is_shuffled = bool(key["is_shuffled"])
    return GroupedGemmCall(out, a, shuffle_weight(b) if is_shuffled else b, offsets, None, *scales, index, is_shuffled)


def _traffic(call: GroupedGemmCall) -> tuple[int, int]:
    tensors = [one for one in call if isinstance(one, Tensor)]
    flops = 2 * call.out.numel() * call.a.shape[1]
    return sum(one.numel() * one.element_size() for one in tensors), flops


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Of models with experts: up and gate of chosen tokens, then down."""
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        if matrices > 1:
            yield {"rows": tokens * model.experts_per_token, "groups": matrices, "n": n, "k": k, "dtype": model.dtype,
                   "out_dtype": model.dtype, "is_gathered": int(k == model.hidden_size), "is_shuffled": 0}


def _smaller(key: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Fewer groups of as many rows each."""
    while key["groups"] > 1:
        key = {**key, "groups": -(-key["groups"] // 2), "rows": -(-key["rows"] // 2)}
        yield key


def _triton_kernels(target: Target, call: GroupedGemmCall, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter swap."""
    moved = (call.b,) if call.row_index is not None else (call.a, call.b)
    hopper = ["grouped_gemm_hopper"] if target.arch == "sm_90" and not call.is_shuffled and serves(*moved) else []
    if params:
        return hopper if "swap" in params else ["grouped_gemm"]
    return [*hopper, "grouped_gemm"]


def _triton_space(target: Target, call: GroupedGemmCall) -> Iterator[dict[str, int]]:
    """On Hopper the kernel for it is alone where it serves."""
    sizes = _sizes(call)
    if "grouped_gemm_hopper" in _triton_kernels(target, call):
        return problems.hopper_space(sizes["m"], sizes["n"], sizes["k"], call.a, target)
    return problems.plain_space(sizes["m"], call.a.element_size())


_grouped_gemm = Op(
    _OP, call=GroupedGemmCall, reference=grouped_gemm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "groups", "n", "k", "dtype", "out_dtype", "is_gathered", "is_shuffled"), round_field="rows",
    cases=_cases,
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes, smaller=_smaller), sums_in_fp32=True,
    backends=(Backend("ck", _grouped_gemm_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.grouped_gemm:grouped_gemm", refusal=_triton_refusal,
                      kernels=_triton_kernels, space=_triton_space),
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
            group_offsets[g + 1] of `out`. The host does not look at it.
        a_scale: [rows of a] or [rows of a, 1] fp32: a factor per row, given with fp8 and int8 alone.
        b_scale: [groups, n], [groups, n, 1] or [groups, 1, n] fp32: a factor per column, likewise.
        bias: [groups, n] bf16|fp16|fp32.
        row_index: [rows] int32: row r of `out` is made of row row_index[r] of `a`; of none, and not written, where that
            is negative or not a row of `a`. As a router sorts tokens by expert.
        dtype: of the result, bf16|fp16|fp32; default: that of `a`, bf16 where that has 8 bits.
        out: tensor to write, [rows, n]; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. Rows that no group has, or that `row_index` leaves out, are as they were; undefined in a new tensor.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit, `a` is marked as shuffled or `b` in another layout, or (tensors of the
            simulated device) the offsets do not ascend from 0 on within the rows.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32, of int8 exact in int32; rounded to nearest even once. Equal calls give equal results; can be
        captured in a graph, and replayed with other offsets and indices: on a GPU these are never checked, but no value
        of theirs makes a kernel read or write outside of the tensors. Backend ck takes contiguous rows with k a
        multiple of 16 bytes and n of 4, triton everything. No derivative.

    Source: `torch._grouped_mm` and AITER's `deepgemm` compute the same without `row_index`.
    """
    problems.check_matrices(_OP, a=a)
    if not isinstance(b, Tensor):
        raise TypeError(f"{_OP}: b must be a tensor, got {type(b).__name__}")
    is_shuffled = bool(getattr(b, "is_shuffled", False))
    if is_shuffled and (layout := getattr(b, "shuffle_layout", _LAYOUT)) != _LAYOUT:
        raise ValueError(f"{_OP}: b must be shuffled by layout {_LAYOUT}, got {layout}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{_OP}: dtype must be a dtype, got {type(dtype).__name__}")
    if isinstance(out, Tensor) and dtype is not None and out.dtype != dtype:
        raise TypeError(f"{_OP}: out must have dtype {dtype}, the argument dtype, got {out.dtype}")
    if b.ndim != 3:
        raise ValueError(f"{_OP}: b must have 3 dimensions, got shape {tuple(b.shape)}")
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
