# SPDX-License-Identifier: MIT
"""Shared by the operators of many products, those of a batch and those of groups of rows: checks of arguments, random
operands, parameters of Triton's kernels. Read by batched_gemm.py and grouped_gemm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Target, target_of
from aiter_like.jit import Instance
from aiter_like.ops.common import elements, quant_rule
from aiter_like.ops.gemm import hopper, tiles
from aiter_like.ops.gemm.parts import is_rough

SIXTEEN_BITS = (torch.bfloat16, torch.float16)
DTYPES = (*SIXTEEN_BITS, *quant_rule.DTYPES)
"""dtypes of operands: those of 8 bits come with scales."""


def products_instance(op: str, call: Any, tile: str, splits: int = 1, name: str = "",
                      names: tuple[str, ...] = tiles.TILES, **macros: int | str) -> Instance:
    """The build of a kernel of many products for the elements of a call, in a tile of `names`; `name` and `macros` for
    what only this operator has.

    Raises:
        ValueError: there is no such tile, or not that many splits.
    """
    sizes = tiles.parse(tile, names)
    if splits < 1:
        raise ValueError(f"{op}: splits must be at least 1, got {splits}")
    bias_dtype = call.out.dtype if call.bias is None else call.bias.dtype
    parts = [dtypes.name(call.a.dtype), tile, f"s{splits}", f"o{dtypes.name(call.out.dtype)}",
             *([] if call.bias is None else [f"bias_{dtypes.name(bias_dtype)}"]), *([name] if name else [])]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[call.a.dtype], "SUM": "int32_t" if call.a.dtype == torch.int8 else "float",
        "OUT_ELEMENT": elements.CPP[call.out.dtype], "BIAS_ELEMENT": elements.CPP[bias_dtype],
        **sizes.macros(), "SPLITS": splits, "HAS_BIAS": int(call.bias is not None),
        "HAS_SCALES": int(call.a_scale is not None), **macros})


def check_fp8(op: str, a: Tensor, name: str = "a") -> None:
    """`a` is not the fp8 of another device."""
    target = target_of(a.device)
    if target.platform != "cpu" and (reason := quant_rule.refusal(target, a.dtype)) is not None:
        raise TypeError(f"{op}: {name} must have the fp8 of this device, {reason}")


def check_scales(op: str, call: Any) -> None:
    """Operands of 8 bits, and no others, come with scales, and are not the fp8 of another device."""
    check_fp8(op, call.a)
    for name, scale in (("a_scale", call.a_scale), ("b_scale", call.b_scale)):
        if (scale is None) != (call.a.dtype in SIXTEEN_BITS):
            wanted = "None with 16-bit operands" if scale is not None else f"given with operands of {call.a.dtype}"
            raise ValueError(f"{op}: {name} must be {wanted}, got {type(scale).__name__}")


def operands(random: Callable[..., Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Random matrices of a dtype, from a source of normal numbers."""
    factor = 40 if dtype == torch.int8 else 1
    return tuple((random(*shape) * factor).to(dtype) for shape in shapes)


def triton_space(m: int, n: int, k: int, a: Tensor, target: Target, is_for_hopper: bool) -> Iterator[dict[str, int]]:
    """Blocks for products with about m rows each: of the kernel for Hopper alone where it serves, which splits no
    depth."""
    size = a.element_size()
    if not is_for_hopper:
        return hopper.plain_space(m, [(*block, depth * 2 // size, num_warps) for *block, depth, num_warps in _BLOCKS])
    found = hopper.space(m, n, k, size, target, is_rough(a, target))
    return (one for one in found if one.pop("splits") == 1)


_BLOCKS = ((16, 64, 128, 4), (32, 64, 128, 4), (64, 64, 64, 4), (64, 128, 64, 4), (128, 128, 64, 4), (128, 128, 64, 8),
           (128, 256, 64, 8))


def most_tiles(rows: int, groups: int, n: int, tile: tiles.Tile) -> int:
    """Workgroups for groups of rows whose sizes are not known: a group begins a tile of its own."""
    return (rows // tile.block_m + groups) * -(-n // tile.block_n)
