# SPDX-License-Identifier: MIT
"""The addresses of a call: where elements may lie, and whether tensors share memory. Metadata tells it of one tensor,
of two the distance of their addresses does.
"""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from aiter_like.call import handing_on

_STEPS = 20_000  # of a search; strides that step over all smaller dimensions, as nearly all do, take a few
_REMEMBERED = 64


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two indices lead to one element; also true where a long search does not tell."""
    if tensor.numel() == 0:
        return False
    dims = _merged(tensor)[::-1]
    if dims and dims[-1][0] == 0:
        return True
    # Two different indices differ first in some dimension, there by at least 1, in later ones by any number.
    return any(_has_sum([(dims[first][0], 1, dims[first][1] - 1),
                         *((step, 1 - size, size - 1) for step, size in dims[first + 1:])], 0, 0) is not False
               for first in range(len(dims)))


def meet(one: Tensor, other: Tensor, distance: int) -> bool:
    """Whether an element of one tensor shares a byte with one of the other, which begins `distance` bytes behind it;
    false where a long search does not tell. What torch refuses as a partial overlap, and strided tensors too.
    """
    if not one.numel() or not other.numel():
        return False
    ranges: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # bytes of a step → the least and the largest factor
    for tensor, side in ((one, 1), (other, 0)):
        for step, size in _merged(tensor):
            if step:
                ranges[step * tensor.element_size()][side] += size - 1 if side else 1 - size
    dims = [(step, *ranges[step]) for step in sorted(ranges, reverse=True)]
    return _has_sum(dims, distance - one.element_size() + 1, distance + other.element_size() - 1) is True


def _merged(tensor: Tensor) -> list[tuple[int, int]]:
    """(step, size) of the dimensions, steps rising; those that step just over smaller ones are one with them."""
    found: list[tuple[int, int]] = []
    for step, size in sorted((step, size) for size, step in zip(tensor.shape, tensor.stride()) if size > 1):
        if found and found[-1][0] * found[-1][1] == step > 0:
            step, size = found[-1][0], found.pop()[1] * size
        found.append((step, size))
    return found


def _has_sum(dims: Sequence[tuple[int, int, int]], low: int, high: int) -> bool | None:
    """Whether Σ step · factor, with a factor from `least` to `most` of each (step, least, most), can lie in
    [low, high]; steps fall. None: not found within _STEPS.
    """
    rest = [(0, 0)]  # the least and the largest sum of the dimensions behind
    for step, least, most in reversed(dims):
        rest.append((rest[-1][0] + step * least, rest[-1][1] + step * most))
    rest.reverse()
    steps = itertools.count()
    open_sums = [(0, 0)]  # (dimensions taken, their sum)
    while open_sums:
        taken, total = open_sums.pop()
        if not (rest[taken][0] + total <= high and low <= rest[taken][1] + total):
            continue
        if taken == len(dims):
            return True
        if next(steps) > _STEPS:
            return None
        step, least, most = dims[taken]
        least = max(least, -((total + rest[taken + 1][1] - low) // step))
        most = min(most, (high - total - rest[taken + 1][0]) // step)
        open_sums += ((taken + 1, total + step * factor) for factor in range(least, min(most, least + _STEPS) + 1))
    return False


def guarded(op: str, fields: Sequence[str], args: tuple, writes: Iterable[int],
            function: Callable[..., None]) -> Callable[..., None]:
    """`function` of arguments with the metadata of `args`, behind a check of their addresses: an element lies at a
    multiple of its size, and what is written shares no memory with another argument. An input that is an output, with
    its shape and strides, is one in place.

    Its attribute `refuse_addresses` is the check alone. As addresses are in no plan, it comes with every call: their
    distances are compared with what the metadata allow, which costs the host about 0.1 µs per tensor. Tensors in lists
    are not looked at.

    Raises:
        ValueError: of what is returned.
    """
    writes = [index for index in writes if isinstance(args[index], Tensor) and args[index].numel()]
    others = [index for index, arg in enumerate(args) if isinstance(arg, Tensor) and arg.numel()]
    pairs = [(one, other) for one in writes for other in others if other not in writes or one < other]
    if not others:
        return function
    sizes = {index: args[index].element_size() for index in others}  # the plan keeps no tensor alive
    known: dict[tuple[int, int, int], bool] = {}

    def look(one: int, other: int, distance: int, *found: Tensor) -> None:
        key = one, other, distance
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = meet(*found, distance)
        if known[key]:
            raise ValueError(f"{op}: {fields[one]} must not overlap {fields[other]}, got two that begin {distance} "
                             "bytes from one another")

    def refuse(*addresses: int) -> None:
        for (index, size), address in zip(sizes.items(), addresses, strict=True):
            if address % size:
                raise ValueError(f"{op}: {fields[index]} must lie at a multiple of its elements' size, {size} bytes, "
                                 f"got address {address:#x}")

    names = [f"arg{index}" for index in range(len(args))]
    lines = [f"at{index} = arg{index}.data_ptr()" for index in others]
    for size in {*sizes.values()} - {1}:
        alike = [f"at{index}" for index in others if sizes[index] == size]
        lines.append(f"if ({' | '.join(alike)}) & {size - 1}: refuse({', '.join(f'at{index}' for index in others)})")
    for one, other in pairs:
        unless_one = f"at{one} != at{other} and " * (other not in writes and _is_alike(args[one], args[other]))
        distance = f"at{other} - at{one}"
        lines.append(f"if {unless_one}{-_extent(args[other])} < {distance} < {_extent(args[one])}: "
                     f"look({one}, {other}, {distance}, arg{one}, arg{other})")
    positional = dict.fromkeys(names, inspect.Parameter.empty)
    used = {"function": function, "look": look, "refuse": refuse}
    made = handing_on("plan", positional, {}, [*lines, f"function({', '.join(names)})"], **used)
    made.refuse_addresses = handing_on("refuse_addresses", positional, {}, lines, **used)
    return made


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return tensor.element_size() * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())))
