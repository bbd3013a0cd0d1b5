# SPDX-License-Identifier: MIT
"""Rows of a matrix as csrc/include/aiter_like/rows/rows.h takes them. Read by the families that work row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aiter_like.device import Target
from aiter_like.jit import Instance

_MIN_LANES, _MAX_LANES = 8, 1024  # fewer would only make more builds; work-items of a workgroup
_MAX_ELEMENTS = 32  # that a lane keeps by default
_MAX_BYTES = 128  # the most where a tuned row gives the lanes: fewer lanes with more registers and more loads in flight
_ACCESSES_OF_32 = 4  # accesses of a lane by default, where a wave has 32
_WIDE = 16  # elements of an access for 8-bit results that are then stored 16 bytes at a time
MAX_ROWS = 2**24 - 1  # a launch has fewer than 2^32 work-items, and a long row takes up to 256 of them
LONGEST = _MAX_LANES * _MAX_ELEMENTS  # elements of a row that `whole_row_layout` keeps, aligned or not


@dataclass(frozen=True)
class RowLayout:
    """How lanes share a row: the macros LANES, VECTORS, VEC and IS_WHOLE.

    Attributes:
        lanes: of a row, a power of two.
        vectors: accesses of a lane.
        vec: elements of an access: 16 bytes of the widest type, or 1 where rows are not aligned to that.
        is_whole: lanes · vectors · vec elements cover the row; otherwise it is taken in pieces.
    """

    lanes: int
    vectors: int
    vec: int
    is_whole: bool

    @property
    def name(self) -> str:
        """Its part of an instance's name."""
        return f"l{self.lanes}_v{self.vectors}x{self.vec}" + ("" if self.is_whole else "_pieces")

    @property
    def defines(self) -> dict[str, int]:
        """The macros."""
        return {"LANES": self.lanes, "VECTORS": self.vectors, "VEC": self.vec, "IS_WHOLE": int(self.is_whole)}

    def instance(self, name: str, defines: dict[str, str | int]) -> Instance:
        """An instance of a kernel with this layout."""
        return Instance(f"{name}_{self.name}", {**defines, **self.defines})


def row_layout(target: Target, *tensors: Tensor, lanes: int | None = None, vec: int | None = None,
               takes_unaligned: bool = False, tiles: int = 1) -> RowLayout:
    """How `tensors`, of one shape and even rows, are shared out.

    Two accesses per lane keep a wide row's loads in flight with registers to spare; where there are fewer rows than
    CUs can hold, one access on twice the lanes is faster. Waves of 32 want four in both cases, of all tiles together:
    rms_norm of 64 rows of 8192 bf16 takes 2.3 us on 256 lanes of an H200, 2.5 on 512, 3.0 on 1024.

    Args:
        lanes: of a row, from a tuned row; default: by the rule above.
        vec: elements of an access, from a tuned row; default: 16 bytes of the widest type.
        takes_unaligned: the kernel has a form for unaligned rows with the same columns per lane.
        tiles: rows, of gate and of up, that a lane reads and keeps side by side.

    Raises:
        ValueError: `lanes` is no power of two up to 1024, or `vec` none up to 16.
    """
    size, element_size = tensors[0].shape[-1], max(tensor.element_size() for tensor in tensors)
    if vec is None:
        vec = 16 // element_size
    elif vec not in (1, 2, 4, 8, _WIDE):
        raise ValueError(f"vec must be a power of two up to {_WIDE}, got {vec}")
    if not takes_unaligned and math.gcd(size, *map(stride, tensors)) % vec:
        vec = 1
    total = -(-size // vec)  # accesses that cover the row
    most = _MAX_ELEMENTS if lanes is None or vec == 1 else _MAX_BYTES // element_size
    if lanes is None:
        is_short = tensors[0].numel() < 2 * target.cu_num * size
        loads = max(vec * element_size // 16, 1) * tiles  # loads of an access
        accesses = min(max(_ACCESSES_OF_32 // loads, 1) if target.wave_size == 32 else 1 if is_short else 2,
                       -(-total // target.wave_size))
        lanes = max(_MIN_LANES, min(_power_of_two(-(-total // max(accesses, 1))), _MAX_LANES))
        if target.wave_size == 32 and lanes == _MAX_LANES and lanes // 2 * (most // vec) >= total:
            lanes //= 2  # a workgroup of half an SM: 137 us instead of 175, silu of 8192 × 2·14336 with groups, H200
    elif lanes & (lanes - 1) or not 0 < lanes <= _MAX_LANES:
        raise ValueError(f"lanes must be a power of two up to {_MAX_LANES}, got {lanes}")
    kept = -(-total // lanes)
    kept = min(kept if vec > 1 else _power_of_two(kept), most // vec)  # single elements: few builds, not few idle
    return RowLayout(lanes, kept, vec, lanes * kept >= total)


def whole_row_layout(op: str, target: Target, row: Tensor, lanes: int | None) -> RowLayout:
    """`row_layout` for a kernel that has no form for rows in pieces, and one for unaligned rows.

    Raises:
        ValueError: `lanes` cannot keep a row.
    """
    found = row_layout(target, row, lanes=lanes, takes_unaligned=True)
    if not found.is_whole:
        raise ValueError(f"{op}: {found.lanes} lanes cannot keep a row of {row.shape[-1]} elements")
    return found


def lane_space(target: Target, *tensors: Tensor, group_size: int = 0, is_8bit: bool = False,
               takes_pieces: bool = True) -> list[dict[str, int]]:
    """The values of `lanes`, and of `vec` beyond its default, that a tuner should try.

    They keep the whole row; one that takes half of the largest workgroup for that, or more, is tried in pieces too.
    More lanes than the row has accesses would only idle.

    Args:
        group_size: columns with a scale of their own, whose lanes belong to one row.
        is_8bit: the result is, so that it can be stored 16 bytes at a time with twice the elements of an access.
        takes_pieces: the kernel has a form for rows in pieces.
    """
    default = row_layout(target, *tensors)
    size, element_size = tensors[0].shape[-1], max(tensor.element_size() for tensor in tensors)
    is_wide = is_8bit and default.vec * 2 == _WIDE and not math.gcd(size, *map(stride, tensors)) % _WIDE
    found = []
    for vec in (default.vec, *([_WIDE] if is_wide else [])):
        vectors, kept = -(-size // vec), (_MAX_ELEMENTS if vec == 1 else _MAX_BYTES // element_size) // vec
        most = max(_MIN_LANES, min(_power_of_two(vectors), _MAX_LANES))
        least = min(max(_MIN_LANES, _power_of_two(-(-vectors // kept))), most)
        if takes_pieces and least >= _MAX_LANES // 2:
            least = _MAX_LANES // 4
        exponents = range(max(least, group_size // vec).bit_length() - 1, most.bit_length())
        found += [{"lanes": 1 << exponent} | ({"vec": vec} if vec != default.vec else {}) for exponent in exponents]
    return found


def lanes_of(*names: str, **others: bool) -> Callable[[Target, Any], list[dict[str, int]]]:
    """A HIP backend's `space` where lanes share the rows of these tensors of a call: `lane_space`, whose arguments
    `others` are.
    """
    def space(target: Target, call: Any) -> list[dict[str, int]]:
        tensors = (getattr(call, name) for name in names)
        return lane_space(target, *tensors, group_size=getattr(call, "group_size", 0), **others)

    return space


def vec_of_groups(target: Target, tensor: Tensor) -> int | None:
    """The default `vec` where groups of columns have scales: on waves of 32 twice as many 16-bit elements.

    A lane then makes half as many scales: rms_norm_quant of 8192 rows of 4096 bf16 by 128 takes 25.4 us on an H200, not
    28.7.
    """
    is_wide = target.wave_size == 32 and tensor.element_size() == 2 and tensor.shape[-1] % _WIDE == 0
    return _WIDE if is_wide else None


def refusal(**tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take one of these tensors: strided or uneven rows, or too many."""
    for name, tensor in tensors.items():
        if tensor is None or tensor.numel() == 0:
            continue
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            return f"{name} must be contiguous in its last dimension, got stride {tensor.stride(-1)} there"
        if not is_even(tensor):
            return f"the rows of {name} are not evenly spaced (shape {tuple(tensor.shape)}, strides {tensor.stride()})"
        if tensor.numel() // tensor.shape[-1] > MAX_ROWS:
            return f"at most {MAX_ROWS} rows fit one launch, got {tensor.numel() // tensor.shape[-1]}"
        if tensor.shape[-1] >= 2**31:
            return f"rows of at most {2**31 - 1} elements, got {tensor.shape[-1]}"
    return None


def stride(tensor: Tensor) -> int:
    """Elements from row to row of a tensor with even rows; 0 where there is one row."""
    return next((step for size, step in zip(tensor.shape[-2::-1], tensor.stride()[-2::-1]) if size > 1), 0)


def is_even(tensor: Tensor) -> bool:
    """The dimensions before the last collapse into one, so that one stride leads from row to row."""
    outer = [(size, step) for size, step in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    return all(outer[i][1] == outer[i + 1][0] * outer[i + 1][1] for i in range(len(outer) - 1))


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
