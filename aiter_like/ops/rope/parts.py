# SPDX-License-Identifier: MIT
"""Shared by the operators of rotary position embedding: the formula on a head, kernel instances, checks, refusals and
what the tuner tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.jit import Instance
from aiter_like.ops.common import elements, quant_rule

MAX_HEAD_DIM = 512
"""The largest head that the kernels of rope and rope_2d take, and the Triton kernel of fused_qk_rope_cache."""

_HEADS = (1, 2, 4)  # that a lane of the HIP kernel has in flight
_LAYOUTS = {(4, 4): "rows", (5, 4): "columns", (5, 5): "shuffled"}  # ranks of K and V → layout of a cache
_SHARES = (1, 2, 4, 8, 16)  # heads that the lane takes in all, with one row of the table


def rotated(x: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, is_shared: bool, nope_first: bool,
             is_backward: bool) -> Tensor:
    """`x` with its rotary part turned; the tables' rows broadcast over the heads."""
    rotary_dim = cos.shape[-1] * (2 if is_shared else 1)
    begin = x.shape[-1] - rotary_dim if nope_first else 0

    def pairs(tensor: Tensor) -> tuple[Tensor, Tensor]:
        return tensor.chunk(2, -1) if rotate_style == 0 else (tensor[..., 0::2], tensor[..., 1::2])

    first, second = pairs(x[..., begin:begin + rotary_dim])
    (cos_1, cos_2), (sin_1, sin_2) = ((table, table) if is_shared else pairs(table) for table in (cos, sin))
    if is_backward:
        sin_1, sin_2 = -sin_2, -sin_1
    turned = (first * cos_1 - second * sin_1, second * cos_2 + first * sin_2)
    turned = torch.cat(turned, -1) if rotate_style == 0 else torch.stack(turned, -1).flatten(-2)
    return torch.cat((x[..., :begin], turned, x[..., begin + rotary_dim:]), -1)


def table_rows(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[*rows.shape, width]: rows of a table in `dtype`; NaN for those that it does not have."""
    flat = table.flatten(0, -2).to(dtype)
    is_row = (rows >= 0) & (rows < len(flat))
    found = flat[rows.where(is_row, 0)] if len(flat) else flat.new_empty(*rows.shape, flat.shape[1])
    return found.where(is_row[..., None], torch.nan)


def stored(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`x` as a cache of this dtype holds it, whose elements count `scale`; fp8 saturates."""
    x = x if scale is None else x * (1 / scale)
    return quant_rule.rounded(x, dtype) if dtype.itemsize == 1 else x.to(dtype)


def steps(*tensors: Tensor | None) -> list[int]:
    """Strides of every dimension but the last that has more than one element."""
    return [step for tensor in tensors if tensor is not None
            for size, step in zip(tensor.shape[:-1], tensor.stride()) if size > 1]


def check_positions(op: str, argument: str, positions: Any, offsets: Any, table: Any,
                    added: str = "offsets") -> None:
    """Positions on the CPU are rows of the table. Those on a GPU would have to be waited for: there a kernel gives NaN
    for heads whose row is not in the table. `added` is the argument that `offsets` are.
    """
    if not isinstance(positions, Tensor) or positions.is_cuda or not check.is_on_host(positions) or (
            not check.is_on_host(table) or positions.dtype not in elements.INTEGERS or not positions.numel()):
        return
    rows = positions
    if offsets is not None:
        if not check.is_on_host(offsets) or offsets.shape != positions.shape or offsets.dtype not in elements.INTEGERS:
            return  # the operator says what does not fit
        rows = positions.long() + offsets  # in 64 bits, since a sum in 32 may wrap into the table
        if ((positions ^ rows) & (offsets ^ rows) < 0).any():
            raise ValueError(f"{op}: {argument} plus {added} must be rows of the table, got a sum beyond 64 bits")
    low, high = rows.min().item(), rows.max().item()
    count = table.numel() // max(table.shape[-1], 1) if table.ndim else 0
    if count and not 0 <= low <= high < count:
        what = argument if offsets is None else f"{argument} plus {added}"
        raise ValueError(f"{op}: {what} must be rows of the table, from 0 to {count - 1}, got "
                         f"{low if low < 0 else high}")


def instance_of(dtype: torch.dtype, table_dtype: torch.dtype, *, is_angle: bool = False, heads: int | None = None,
                share: int | None = None) -> Instance:
    """The instance of csrc/rope/rope.hip or rope_2d.hip for these dtypes; a tuned row sets `heads` and `share`."""
    heads, share = 2 if heads is None else heads, 4 if share is None else share
    if heads not in _HEADS or share not in _SHARES:
        raise ValueError(f"heads must be one of {_HEADS} and share one of {_SHARES}, got {heads} and {share}")
    kind = "freqs" if is_angle else "table"
    return Instance(f"{dtypes.name(dtype)}_{kind}_{dtypes.name(table_dtype)}_h{heads}_s{share}", {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table_dtype], "IS_ANGLE": int(is_angle), "HEADS": heads,
        "SHARE": share})


def check_table(op: str, name: str, table: Tensor, sin: Tensor | None, head_dim: int, count: int,
                is_shared: bool) -> None:
    """`table` has at least `count` rows, each of which turns whole pairs of a head, and sines of that shape beside it.

    At most one dimension before the last is longer than 1.
    """
    shape, outer = tuple(table.shape), [size for size in table.shape[:-1] if size != 1]
    if table.ndim < 2 or len(outer) > 1:
        raise ValueError(f"{op}: {name} must be a table of rows, as [s, 1, 1, width], got shape {shape}")
    width = shape[-1] * (2 if is_shared else 1)
    if width > head_dim or width % 2:
        raise ValueError(f"{op}: {name} must turn an even number of elements, at most {head_dim}, got {width} "
                         f"(shape {shape}, reuse_freqs_front_part={is_shared})")
    if (outer[0] if outer else 1) < count:
        raise ValueError(f"{op}: {name} must have at least {count} rows, got shape {shape}")
    if sin is not None:
        check.tensor(op, name.replace("cos", "sin"), sin, shape=shape)


def has_rank(op: str, name: str, value: Any, *ranks: int) -> None:
    """`value` is a tensor of so many dimensions; the operator checks the rest, which dynamo cannot trace."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")
    if value.ndim not in ranks:
        raise ValueError(f"{op}: {name} must have {' or '.join(map(str, ranks))} dimensions, got shape "
                         f"{tuple(value.shape)}")


def kernel_refusal(target: Target, call: Any) -> str | None:
    """Says why the kernels of rope and rope_2d do not take a call."""
    shape = call.out.shape
    if shape[-1] > MAX_HEAD_DIM:
        return f"head dimension at most {MAX_HEAD_DIM}, got {shape[-1]}"
    tokens = shape[:-2].numel()
    return f"less than {2**30} tokens, got {tokens}" if tokens >= 2**30 else None


def hip_space(target: Target, call: Any) -> list[dict[str, int]]:
    """The heads and shares beyond the default that a tuner should try with the HIP kernels."""
    return [{"heads": heads, "share": share} for heads in _HEADS for share in _SHARES
            if share >= heads and (heads, share) != (2, 4)]


def triton_space(target: Target, call: Any) -> list[dict[str, int]]:
    """Tiles and waves that leave each lane 4 to 32 elements."""
    return [{"elements": elements, "num_warps": warps} for elements in (512, 1024, 2048, 4096, 8192)
            for warps in (1, 2, 4, 8) if 4 <= elements // (target.wave_size * warps) <= 32]


def prefill_slots(tokens: int, page_size: int, device: torch.device, seed: int) -> tuple[int, Tensor]:
    """How many pages `tokens` fill, one after the other, and their slots where pages lie in random order."""
    blocks, index = -(-tokens // page_size), torch.arange(tokens, device=device)
    pages = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).to(device)
    return blocks, pages[index // page_size] * page_size + index % page_size


def layout_of(name: str, caches: Mapping[str, Tensor]) -> str:
    """The layout that caches of these ranks have; `name` is the public function's, the keys are its parameters'."""
    ranks = tuple(cache.ndim for cache in caches.values())
    if ranks not in _LAYOUTS:
        shapes = " and ".join(str(tuple(cache.shape)) for cache in caches.values())
        raise ValueError(f"{name}: {' and '.join(caches)} must have 4 and 4, 5 and 4, or 5 and 5 dimensions, got "
                         f"shapes {shapes}")
    return _LAYOUTS[ranks]


def traffic(call: Any, written: int, *caches: str) -> tuple[int, int]:
    """Each tensor once, but of the caches only the bytes that the tokens write."""
    return written + sum(tensor.nbytes for name, tensor in call._asdict().items()
                         if isinstance(tensor, Tensor) and name not in caches), 0
