# SPDX-License-Identifier: MIT
"""Stand-ins for tensors of a call, views of them, and memory that a call allocates. Read by the files beside it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like.traced.number import NONE, Number, Shape, Untraceable, known, text_in

_SHUT = frozenset((
    "_base", "device", "dim", "dtype", "element_size", "get_device", "is_complex", "is_conj", "is_cpu", "is_cuda",
    "is_floating_point", "is_leaf", "is_meta", "is_neg", "is_nested", "is_quantized", "is_sparse", "itemsize", "layout",
    "ndim", "requires_grad"))
"""Attributes that no class leaves open; the real tensor has them."""


class Traced:
    """Stands in for a tensor of a call, a view of one, or memory that the call allocates.

    Attributes:
        real: the tensor in the call that is traced; whoever looks there without asking takes it for granted.
        root: the text of the address of the memory that it is in: "a0" of the first field, "m0" of an allocation.
        offset: bytes from there.
        shape, strides: of numbers.
    """

    __slots__ = ("_index", "_is_contiguous", "offset", "real", "root", "shape", "strides", "trace")

    __class__ = property(lambda self: Tensor)  # type: ignore[assignment]  # isinstance asks this

    def __init__(self, trace: Any, real: Tensor, root: str, offset: Any, shape: Sequence, strides: Sequence):
        self.trace, self.real, self.root, self.offset = trace, real, root, offset
        self.shape, self.strides = Shape(shape), tuple(strides)
        self._is_contiguous: bool | None = None
        self._index: int | None = None
        if known(self.shape) != tuple(real.shape):
            raise Untraceable(f"a view of shape {tuple(real.shape)} was traced as {known(self.shape)}")

    @staticmethod
    def field(trace: Any, index: int, real: Tensor) -> Traced:
        """The stand-in for the field `index`."""
        numbers = [[trace.leaf(f"{letter}{index}_{dim}", value) for dim, value in enumerate(values)]
                   for letter, values in (("s", real.shape), ("t", real.stride()))]
        made = Traced(trace, real, f"a{index}", 0, *numbers)
        made._index = index
        return made

    @staticmethod
    def memory(trace: Any, real: Tensor, shape: Sequence) -> Traced:
        """The stand-in for memory that a call allocates, contiguous as `real` is."""
        trace.allocated.append(made := Traced(trace, real, f"m{len(trace.allocated)}", 0, shape, _dense(shape)))
        made._is_contiguous = True
        return made

    # ---- numbers

    def size(self, dim: int | None = None) -> Any:
        """Like Tensor.size."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """Like Tensor.stride."""
        return self.strides if dim is None else self.strides[dim]

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    def numel(self) -> Any:
        """Like Tensor.numel."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """Like Tensor.nbytes."""
        return self.numel() * self.itemsize

    def extent(self) -> Any:
        """Bytes from the first element to the end of the last, of a tensor that has some."""
        if self.is_contiguous():
            return self.nbytes
        return self.itemsize * (1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides)))

    def data_ptr(self) -> Any:
        """Like Tensor.data_ptr; memory that each call has of its own answers questions of alignment only."""
        return _Aligned(self.offset) if self.root[0] == "m" else self.address()

    def storage_offset(self) -> Any:
        """Like Tensor.storage_offset."""
        if self._index is None:
            raise Untraceable("where a view begins in its memory")
        return Number(self.trace, self.real.storage_offset(), f"arg{self._index}.storage_offset()",
                      frozenset((f"c{self._index}",)))

    def address(self) -> Number:
        """The address at which it begins; in memory that a call allocates, with the text of its place."""
        offset = self.offset
        text = self.root if type(offset) is int and offset == 0 else f"({self.root} + {text_in(self.trace, offset)})"
        return Number(self.trace, self.real.data_ptr(), text, getattr(offset, "leaves", NONE) | {self.root})

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """Like Tensor.is_contiguous."""
        if memory_format is not torch.contiguous_format:
            is_last = self.ndim > 2 and self.permute(0, *range(2, self.ndim), 1).is_contiguous()
            if is_last != self.real.is_contiguous(memory_format=memory_format):
                raise Untraceable(f"whether a tensor is in {memory_format}")
            return is_last
        if self._is_contiguous is None:
            self._is_contiguous = self._asks_contiguity(self.real.is_contiguous())
        return self._is_contiguous

    def _asks_contiguity(self, is_so: bool) -> bool:
        """Asks for strides, which are exact as a rule and then cost nothing: also in dimensions of size 1, of which
        only the call that is traced may have others. A tensor without elements is contiguous, whatever they are.
        """
        for size in self.shape:
            if is_so and known(size) == 0:
                return size == 0
        expected: Any = 1
        for size, step in zip(self.shape[::-1], self.strides[::-1]):
            if is_so and known(step) != known(expected):
                bool(size == 1)
            elif step != expected and size != 1:
                return not all(size != 0 for size in self.shape)
            expected = expected * size
        return True

    # ---- views

    def _viewed(self, real: Tensor, shape: Sequence, strides: Sequence, offset: Any = 0) -> Traced:
        return Traced(self.trace, real, self.root, self.offset + offset, shape, strides)

    def _dense(self, real: Tensor, shape: Sequence) -> Traced:
        """A view of a contiguous tensor that is contiguous too."""
        made = self._viewed(real, shape, _dense(shape))
        made._is_contiguous = True
        return made

    def view(self, *shape: Any) -> Traced:
        """Like Tensor.view; nothing is copied."""
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            return self._in_dtype(shape[0])
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        real = self.real.view(known(shape))
        rest = math.prod(each for each in shape if known(each) != -1)
        if -1 in known(shape):
            bool(rest != 0)
        if len(shape) == self.ndim and all(one is other or known(one) == -1 for one, other in zip(shape, self.shape)):
            return self
        if self.ndim and len(shape) == 2 and known(shape[0]) == -1 and shape[1] == self.shape[-1]:
            return self.flatten(0, -2) if self.ndim > 1 else self._viewed(real, (1, *self.shape), (0, *self.strides))
        if len(shape) == 1:
            return self.flatten()
        shape = [self.numel() // rest if known(each) == -1 else each for each in shape]
        return self._dense(real, shape) if self.is_contiguous() else self._viewed(real, shape, self._strides_of(shape))

    reshape = view

    def _in_dtype(self, dtype: torch.dtype) -> Traced:
        real, own, other = self.real.view(dtype), self.itemsize, dtype.itemsize
        sizes, strides = self.shape, self.strides
        if own == other:
            return self._viewed(real, sizes, strides)
        if strides[-1] != 1 or any(step * own % other != 0 for step in strides[:-1]) or sizes[-1] * own % other != 0:
            raise Untraceable("elements of another size do not fill a view")
        return self._viewed(real, [*sizes[:-1], sizes[-1] * own // other],
                            [*(step * own // other for step in strides[:-1]), 1])

    def _strides_of(self, shape: Sequence) -> list:
        """Strides of a view, as torch finds them: dimensions of the view are within groups of ours that lie together.
        """
        strides: list = [0] * len(shape)
        place, base = len(shape) - 1, self.strides[-1] if self.ndim else 1
        ours: Any = 1
        theirs: Any = 1
        for dim in reversed(range(self.ndim)):
            ours = ours * self.shape[dim]
            if dim and (self.shape[dim - 1] == 1 or self.strides[dim - 1] == ours * base):
                continue
            while place >= 0 and (theirs < ours or shape[place] == 1):
                strides[place] = theirs * base
                theirs = theirs * shape[place]
                place -= 1
            if theirs != ours:
                raise Untraceable("a view that no strides describe")
            if dim:
                base, ours, theirs = self.strides[dim - 1], 1, 1
        return strides

    def flatten(self, start: int = 0, end: int = -1) -> Traced:
        """Like Tensor.flatten; nothing is copied."""
        start, end = start % max(self.ndim, 1), end % max(self.ndim, 1)
        if start >= end:
            return self if self.ndim else self._viewed(self.real.view(1), (1,), (1,))
        if self.is_contiguous():
            merged = math.prod(self.shape[start:end + 1])
            return self._dense(self.real.flatten(start, end), (*self.shape[:start], merged, *self.shape[end + 1:]))
        size, step = self.shape[end], self.strides[end]
        for dim in reversed(range(start, end)):
            if size == 1:
                step = self.strides[dim]
            elif self.shape[dim] != 1 and self.strides[dim] != step * size:
                raise Untraceable("dimensions that do not lie together are flattened")
            size = self.shape[dim] * size
        return self._viewed(self.real.flatten(start, end), (*self.shape[:start], size, *self.shape[end + 1:]),
                            (*self.strides[:start], step, *self.strides[end + 1:]))

    def unflatten(self, dim: int, sizes: Sequence) -> Traced:
        """Like Tensor.unflatten."""
        dim %= self.ndim
        rest = math.prod(each for each in sizes if known(each) != -1)
        sizes = [self.shape[dim] // rest if known(each) == -1 else each for each in sizes]
        steps = [self.strides[dim] * math.prod(sizes[index + 1:]) for index in range(len(sizes))]
        return self._viewed(self.real.unflatten(dim, known(sizes)), (*self.shape[:dim], *sizes, *self.shape[dim + 1:]),
                            (*self.strides[:dim], *steps, *self.strides[dim + 1:]))

    def unsqueeze(self, dim: int) -> Traced:
        """Like Tensor.unsqueeze."""
        place = dim % (self.ndim + 1)
        step = self.shape[place] * self.strides[place] if place < self.ndim else 1
        return self._viewed(self.real.unsqueeze(dim), (*self.shape[:place], 1, *self.shape[place:]),
                            (*self.strides[:place], step, *self.strides[place:]))

    def squeeze(self, dim: int) -> Traced:
        """Like Tensor.squeeze."""
        place = dim % self.ndim
        if self.shape[place] != 1:
            return self
        return self._viewed(self.real.squeeze(dim), (*self.shape[:place], *self.shape[place + 1:]),
                            (*self.strides[:place], *self.strides[place + 1:]))

    def permute(self, *dims: Any) -> Traced:
        """Like Tensor.permute."""
        dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
        return self._viewed(self.real.permute(dims), [self.shape[dim] for dim in dims],
                            [self.strides[dim] for dim in dims])

    def transpose(self, one: int, other: int) -> Traced:
        """Like Tensor.transpose."""
        dims = list(range(self.ndim))
        dims[one], dims[other] = dims[other], dims[one]
        return self.permute(dims)

    def t(self) -> Traced:
        """Like Tensor.t."""
        return self.transpose(0, 1) if self.ndim == 2 else self

    mT = property(lambda self: self.transpose(-2, -1))
    T = property(t)

    def expand(self, *shape: Any) -> Traced:
        """Like Tensor.expand."""
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        more = len(shape) - self.ndim
        sizes, strides = list(shape), [0] * len(shape)
        for dim, (size, step) in enumerate(zip(self.shape, self.strides), more):
            if shape[dim] == -1 or size != 1 or shape[dim] == 1:
                sizes[dim], strides[dim] = size, step
        return self._viewed(self.real.expand(known(shape)), sizes, strides)

    def __getitem__(self, index: Any) -> Traced:
        """Like Tensor's, with ints, slices with step 1, None and one Ellipsis."""
        index = index if isinstance(index, tuple) else (index,)
        if any(each is Ellipsis for each in index):
            place = next(place for place, each in enumerate(index) if each is Ellipsis)
            taken = sum(each is not None for each in index) - 1
            index = (*index[:place], *[slice(None)] * (self.ndim - taken), *index[place + 1:])
        shape: list = []
        strides: list = []
        offset: Any = 0
        real_index: list = []
        dim = 0
        for each in index:
            if each is None:
                shape.append(1)
                strides.append(0)
                real_index.append(None)
                continue
            size, step = self.shape[dim], self.strides[dim]
            dim += 1
            if isinstance(each, slice):
                begin, end = (self._bound(each.start, size, 0), self._bound(each.stop, size, size))
                if each.step not in (None, 1):
                    raise Untraceable("a slice with a step")
                end = end if each.start is None or begin <= end else begin
                offset = offset + begin * step
                shape.append(end - begin)
                strides.append(step)
                real_index.append(slice(known(begin), known(end)))
            elif isinstance(each, int):
                place = each + size if each < 0 else each
                bool(0 <= place < size)
                offset = offset + place * step
                real_index.append(known(each))
            else:
                raise Untraceable(f"an index of {type(each).__name__}")
        return self._viewed(self.real[tuple(real_index)], [*shape, *self.shape[dim:]], [*strides, *self.strides[dim:]],
                            offset * self.itemsize)

    @staticmethod
    def _bound(bound: Any, size: Any, default: Any) -> Any:
        if bound is None:
            return default
        if bound < 0:
            bound = bound + size
            return bound if bound >= 0 else 0
        return bound if bound <= size else size

    def select(self, dim: int, index: Any) -> Traced:
        """Like Tensor.select."""
        return self[(*[slice(None)] * (dim % self.ndim), index)]

    def narrow(self, dim: int, start: Any, length: Any) -> Traced:
        """Like Tensor.narrow."""
        return self[(*[slice(None)] * (dim % self.ndim), slice(start, start + length))]

    def unbind(self, dim: int = 0) -> tuple[Traced, ...]:
        """Like Tensor.unbind."""
        return tuple(self.select(dim, index) for index in range(operator.index(self.shape[dim])))

    def __getattr__(self, name: str) -> Any:
        if name in _SHUT:
            return getattr(self.real, name)
        raise Untraceable(f"Tensor.{name}")


class _Aligned:
    """The address of memory that a call allocates, which begins at a multiple of 16."""

    __slots__ = ("_offset",)

    def __init__(self, offset: Any):
        self._offset = offset

    def __mod__(self, alignment: int) -> Any:
        if alignment not in (1, 2, 4, 8, 16):
            raise Untraceable(f"the address of memory that a call allocates, beyond 16 bytes: {alignment}")
        return self._offset % alignment


def _dense(shape: Sequence) -> list:
    """The strides of a contiguous tensor."""
    return [math.prod(shape[dim + 1:]) for dim in range(len(shape))]
