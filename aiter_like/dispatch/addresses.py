# SPDX-License-Identifier: MIT
"""The addresses of a call: where elements may lie, and whether tensors share memory. Metadata tells it of one tensor,
of two the distance of their addresses does.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence

from torch import Tensor

from aiter_like.dispatch import torch_ops
from aiter_like.traced import Trace, Traced, Untraceable, text_in

_STEPS = 20_000  # steps of a search; strides that step over all smaller dimensions, as nearly all do, take a few
_REMEMBERED = 1024
_LEAST = 1 << 36  # no memory lies below that, as a rule; what does is asked for its storage


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two indices lead to one element; also true where a long search does not tell."""
    if tensor.numel() == 0 or tensor.is_contiguous():
        return False
    span, dims = 0, _merged(tensor)[::-1]
    for step, size in dims[::-1]:
        if step <= span:
            break
        span = span + step * (size - 1)
    else:  # each dimension steps over all smaller ones
        return False
    if type(tensor) is Traced:
        raise Untraceable("whether a tensor of such strides overlaps itself")
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


def statement(trace: Trace, writes: frozenset[int], in_place: Container[tuple[int, int]]) -> str:
    """The statement that checks the addresses of a call of the trace's class, which metadata do not tell: an element
    lies at a multiple of its size, and what is written shares no memory with another argument, unless it is an input of
    which the operator says so (`in_place`), with the same shape, strides and dtype. Tensors in lists are not looked at,
    nor those of the device "meta", which have no address. Where something may be wrong it calls `refuse`, of the
    arguments.
    """
    tensors = {index: one for index in trace.ranks if not (one := trace.fields[index]).is_meta and one.numel() != 0}
    asked = [f"a{index} < {trace.constant(_LEAST)}" for index in tensors]
    sizes = sorted({one.itemsize for one in tensors.values()} - {1})
    for size in sizes:
        unknown = [f"a{index}" for index, one in tensors.items()
                   if one.itemsize == size and not trace.is_equal(f"(a{index} % 16)", 0)]
        asked += [f"({' | '.join(unknown)}) & {size - 1}"] * bool(unknown)
    ends = {}
    for index, one in tensors.items():
        extent = one.extent()
        text = text_in(trace, extent)
        ends[index] = f"a{index} + {trace.named(text, extent.leaves) if text[0] == '(' else text}"
    places = defaultdict(list)  # A tensor that comes twice has both.
    for place, each in enumerate(trace.fields):
        places[id(each)].append(place)
    positions = {index: places[id(one)] for index, one in tensors.items()}
    written = [index for index in tensors if not writes.isdisjoint(positions[index])]
    for one in written:
        for other in tensors:
            if other != one and (other not in written or one < other):
                may_be = any(pair in in_place for pair in itertools.product(positions[one], positions[other]))
                is_alike = may_be and _is_alike(tensors[one], tensors[other])
                apart = f"a{one} != a{other} and " * is_alike
                asked.append(f"{apart}a{one} < {ends[other]} and a{other} < {ends[one]}")
    given = "".join(f"arg{index}, " for index in range(len(trace.fields)))
    return f"if {' or '.join(asked)}: refuse(({given}))" if asked else ""


class AddressCheck:
    """Called by `statement`: raises where something is wrong with the addresses. It remembers arguments that have
    passed, since parts of one matrix that lie between one another come here at every call.
    """

    def __init__(self, op: str, fields: Sequence[str], writes: Iterable[int],
                 in_place: Container[tuple[int, int]] = ()):
        self._op, self._fields, self._writes, self._in_place = op, fields, tuple(writes), in_place
        self._cleared: set[tuple] = set()

    def __call__(self, args: tuple) -> None:
        """Checks the tensors of a call.

        Raises:
            ValueError: an address is wrong.
        """
        key = tuple([(arg.data_ptr(), arg.shape, arg.stride(), arg.dtype)
                     if isinstance(arg, Tensor) and not arg.is_meta else None for arg in args])
        if key in self._cleared:
            return
        tensors = {index: args[index] for index, facts in enumerate(key) if facts is not None and args[index].numel()}
        places = {index: key[index][0] for index in tensors}
        for index, one in tensors.items():
            size = one.element_size()
            refuse_missing(self._op, self._fields[index], one, places[index])
            if places[index] % size:
                raise ValueError(f"{self._op}: {self._fields[index]} must lie at a multiple of its elements' size, "
                                 f"{size} bytes, got address {places[index]:#x}")
        written = [index for index in self._writes if index in tensors]
        for one in written:
            for other in tensors:
                if other != one and (other not in written or one < other):
                    self._refuse_overlap(one, other, tensors, places[other] - places[one])
        if len(self._cleared) >= _REMEMBERED:
            self._cleared.clear()
        self._cleared.add(key)

    def _refuse_overlap(self, one: int, other: int, tensors: Mapping[int, Tensor], distance: int) -> None:
        first, second = tensors[one], tensors[other]
        if not -_extent(second) < distance < _extent(first):
            return
        if not distance and (one, other) in self._in_place and _is_alike(first, second):
            return
        if meet(first, second, distance):
            got = f"two that begin {distance} bytes from one another" if distance else "the same memory for both"
            raise ValueError(f"{self._op}: {self._fields[one]} must not overlap {self._fields[other]}, got {got}")


def refuse_missing(op: str, name: str, tensor: Tensor, address: int) -> None:
    """Refuses a tensor with elements whose memory was given back, as parameters of FSDP's are between their layers, or
    never there, as that of torch's zeros of tangents: its address is null, or an offset from there.
    """
    if not address or address < _LEAST and not tensor.untyped_storage().data_ptr():
        raise ValueError(f"{op}: {name} must have memory, got a tensor whose storage is empty")


def refuse_overlap(op: str, name: str, written: Tensor, **others: Tensor | None) -> None:
    """Refuses what a public function writes itself, beside its operators, where it shares memory with `others`."""
    for other, tensor in others.items():
        if (tensor is not None and not torch_ops.intercepted((written, tensor))
                and not written.is_meta and meet(written, tensor, tensor.data_ptr() - written.data_ptr())):
            raise ValueError(f"{op}: {name} must not overlap {other}")


_apart: set[tuple] = set()


def refuse_overlaps(op: str, names: str, groups: Mapping[Hashable, Sequence[Tensor]], **others: Tensor) -> None:
    """Refuses written tensors in lists, which no AddressCheck sees, where one shares memory with `others` or in part
    with one of the same lists; the same tensor may be there twice. Addresses that have passed are remembered.

    Args:
        names: of the lists.
        groups: the tensors, by shape, strides, dtype and device.
    """
    tensors = [(kind, tensor) for kind, group in groups.items() for tensor in group]
    if torch_ops.intercepted((*(tensor for _, tensor in tensors), *others.values())) or any(
            each.is_meta for each in (*others.values(), *(tensor for _, tensor in tensors))):
        return
    at = (tuple(groups), *((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in others.values()),
          *(tensor.data_ptr() for _, tensor in tensors))
    if at in _apart:
        return
    for name, tensor in others.items():
        for _, each in tensors:
            refuse_overlap(op, names, each, **{name: tensor})
    for name, tensor in (*others.items(), *((names, each) for _, each in tensors)):
        if tensor.numel():
            refuse_missing(op, name, tensor, tensor.data_ptr())
    order = sorted(tensors, key=lambda each: each[1].data_ptr())
    known: dict[tuple, bool] = {}  # layers of one tensor lie at the same few distances
    for index, (kind, one) in enumerate(order):
        for other_kind, other in itertools.islice(order, index + 1, None):
            distance = other.data_ptr() - one.data_ptr()
            if distance >= _extent(one):
                break
            if (key := (kind, other_kind, distance)) not in known:
                known[key] = (distance or kind != other_kind) and meet(one, other, distance)
            if known[key]:
                raise ValueError(f"{op}: {names} must not overlap one another in part, got two that begin {distance} "
                                 f"bytes from one another")
    if len(_apart) >= _REMEMBERED:
        _apart.clear()
    _apart.add(at)


def _is_alike(one: Tensor | Traced, other: Tensor | Traced) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return tensor.element_size() * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())))
