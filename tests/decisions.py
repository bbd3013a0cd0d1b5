# SPDX-License-Identifier: MIT
"""What a call comes to, noted instead of run: functions with their macros, launches with what Triton would compile.
And calls that differ from a case in something, right and wrong ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor

from aiter_like.dispatch import Op
from aiter_like.dispatch import op as dispatch_op
from aiter_like.dispatch.backend import Backend
from aiter_like.dispatch.classes import Classes
from aiter_like.errors import UnsupportedError
from aiter_like.jit import JitFunction, asm, triton_launch
from aiter_like.sim import seam
from aiter_like.traced import Trace

EDGES = (0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 2048)
INTEGERS = (0, 1, -1, 16, 64, 1024, 2**31 - 1, 2**31, 2**40, 2**63, -2**63)
FLOATS = (0.0, -0.0, 1.0, -1.0, float("inf"), float("nan"), 1e300, 1e-6, 1e-45, 1e-50, 1, 0, 10**400)
_MOST = 1 << 21  # elements of a tensor that is made
_FIRST_ADDRESS = 1 << 40  # no other number of a launch is as large


class Decisions:
    """Notes what is launched while it is installed.

    Attributes:
        noted: what the last call launched.
        opened: the leaves that new classes leave open (traced/trace.py); None: all.
    """

    opened: Container[str] | None = None

    def __init__(self, monkeypatch: Any, opens: bool = True):
        """opens: whether `opened` tells what classes leave open, and not what calls have differed in."""
        self.noted: list[tuple] = []
        bind = Backend.bind

        def bound(backend: Backend, target: Any, args: tuple, candidate: Any) -> Callable:
            if backend.is_jit or backend.name == "triton":
                return bind(backend, target, args, candidate)
            return self._noting("python", backend.name, repr(candidate.params))

        monkeypatch.setattr(Backend, "bind", bound)
        for kind, name, method in ((JitFunction, "_resolve", self._resolve), (asm.AsmFunction, "bind", self._bind_asm),
                                   (triton_launch.Launch, "_run", self._run)):
            monkeypatch.setattr(kind, name, lambda *args, method=method, **named: method(*args, **named))
        monkeypatch.setattr(seam, "checking", lambda: False)
        if opens:
            monkeypatch.setattr(Classes, "opened", lambda classes, chosen, args: self.opened)

    def cold(self, op: Op, chosen: str | None, args: tuple) -> Any:
        """What the call comes to where nothing is known and nothing stands in for its arguments."""
        def serve() -> None:
            trace = Trace(args, ())
            forced, forced_by, _ = dispatch_op._read(op, chosen)
            plan = op._planned(op._request(args, args, forced, forced_by), trace)
            op._check_addresses(args)
            plan.first(args)

        return self._outcome(serve, args)

    def decided(self, op: Op, chosen: str | None, args: tuple) -> Any:
        """What it comes to where a class is made for it."""
        return self._outcome(lambda: op._decide(chosen, args), args)

    def known(self, op: Op, chosen: str | None, args: tuple) -> Any:
        """What it comes to in a class that there is; None where there is none."""
        served = []
        found = self._outcome(lambda: served.append(op._classes.find(chosen, args) is not None), args)
        assert found == [] or isinstance(found, list), found
        return found if served == [True] else None

    def _outcome(self, serve: Callable[[], Any], args: tuple) -> Any:
        """Launches, or the error's type and text."""
        self.noted.clear()
        try:
            serve()
        except (ValueError, TypeError, UnsupportedError) as refusal:
            assert not self.noted, "launched before it was refused"
            return f"{type(refusal).__name__}: {refusal}"
        storages = [each.untyped_storage() for each in args
                    if isinstance(each, Tensor) and each.layout is torch.strided and not each.is_meta]
        ranges = [(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages]
        return [_comparable(each, ranges) for each in self.noted]

    def _noting(self, *what: Any) -> Callable[..., None]:
        return lambda *args: self.noted.append((*what, *map(_shown, args)))

    def _resolve(self, function: Any, target: Any, args: tuple, params: dict) -> tuple[Callable, str]:
        if target.platform not in function.platforms:
            raise UnsupportedError("another platform", function.function_name)
        instance = function._instance(args, params)
        return self._noting(function.stem, instance.name, *sorted(instance.defines.items())), "key"

    def _bind_asm(self, function: Any, target: Any, args: tuple) -> Callable:
        launch = function._launch(args)
        if reason := function.refusal(target, launch.facts):
            raise UnsupportedError(f"{function.op}: {reason}", function.op)
        return self._noting(function.stem, function._row(launch.facts).kernel, repr(launch))

    def _run(self, launch: Any, target: Any, is_warmup: bool = False) -> _Compiled:
        """What Triton tells kernels apart by, in place of the compiled kernel."""
        constants = launch._constants(target)
        ordered = triton_launch._ordered(launch.kernel, len(launch.arguments), constants)
        with triton_launch.driver_of(target):
            device = triton_launch.triton.runtime.driver.active.get_current_device()
            *_, binder = launch.kernel.device_caches[device]
            options = {name: value for name, value in launch.options.items()
                       if target.platform == "hip" or name not in triton_launch._AMD_ONLY}
            _, told, _ = binder(*launch.arguments, **constants, **options, debug=False)
        function = launch.kernel.fn
        compiled = _Compiled(self.noted, (function.__module__, function.__name__, repr(told), str({**options})))
        if not is_warmup:
            compiled[launch.grid](*launch.arguments, *ordered)
        return compiled


class _Compiled:
    """A kernel that notes its launches."""

    def __init__(self, noted: list[tuple], what: tuple):
        self.noted, self.what = noted, what

    def __getitem__(self, grid: tuple) -> Callable[..., None]:
        return lambda *args: self.noted.append((*self.what, *map(int, (*grid, 1, 1)[:3]), *map(_passed, args)))


def _shown(value: Any) -> Any:
    """An argument of a compiled function."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_shown, value))
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return repr(value)


def _passed(value: Any) -> Any:
    """An argument of a launch: addresses and their like as they are, the others with their types."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, tuple):
        return tuple(map(_passed, value))
    if hasattr(value, "base") and hasattr(value, "strides"):
        return value.base.data_ptr(), repr(value.shape), repr(value.strides)
    return value if type(value) is int and value >= _FIRST_ADDRESS else repr(value)


def _comparable(value: Any, ranges: list[tuple[int, int]]) -> Any:
    """Memory that a launch asks for lies elsewhere each time."""
    if isinstance(value, tuple):
        return tuple(_comparable(each, ranges) for each in value)
    if type(value) is int and value >= _FIRST_ADDRESS and not any(low <= value <= high for low, high in ranges):
        return "scratch"
    return value


def resized(args: tuple, old: int, new: int) -> tuple:
    """The arguments with all sizes `old` replaced, on zeroed memory; a tensor that comes twice comes twice."""
    made: dict[int, Tensor] = {}
    for arg in args:
        if isinstance(arg, Tensor) and id(arg) not in made:
            shape = [new if size == old else size for size in arg.shape]
            made[id(arg)] = like(arg, shape) if old in arg.shape else arg
    return tuple(made.get(id(arg), arg) for arg in args)


def like(tensor: Tensor, shape: list[int]) -> Tensor:
    """Zeros of another shape; dense, or with gaps between what a tensor that is not dense has in its order."""
    if torch.Size(shape).numel() > _MOST:
        raise RuntimeError("a tensor too large")
    if tensor.is_contiguous():
        return torch.zeros(shape, dtype=tensor.dtype)
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    made = torch.zeros([max(shape[dim], 1) + (dim == order[-1]) for dim in order], dtype=tensor.dtype)
    made = made.permute([order.index(dim) for dim in range(tensor.ndim)])
    for dim, size in enumerate(shape):
        made = made.narrow(dim, 0, size)
    return made


def extent(tensor: Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0


def behind(tensor: Tensor, count: int) -> Tensor:
    """Zeros of the same shape and strides, so many elements behind where an allocation begins."""
    return torch.zeros(extent(tensor) + count, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride(), count)


def variations(args: tuple, draw: random.Random, count: int) -> Iterator[tuple[str, tuple]]:
    """(what differs, arguments) of other calls, right and wrong ones."""
    for _ in range(count):
        other, words = args, []
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            try:
                what, other = draw.choice((_size, _size, _size, _dim, _strides, _address, _number, _number, _alias,
                                           _overlap))(
                    other, draw)
            except (RuntimeError, IndexError):  # there is no such tensor
                continue
            words.append(what)
        if words:
            yield "; ".join(words), other


def _one(args: tuple, draw: random.Random) -> tuple[int, Tensor]:
    return draw.choice([(index, arg) for index, arg in enumerate(args) if isinstance(arg, Tensor)])


def _with(args: tuple, index: int, value: Any) -> tuple:
    return (*args[:index], value, *args[index + 1:])


def _sizes(args: tuple) -> list[int]:
    return sorted({size for arg in args if isinstance(arg, Tensor) for size in arg.shape})


def _size(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    old = draw.choice(_sizes(args))
    new = draw.choice((old + 1, max(old - 1, 0), 2 * old, old // 2, draw.choice(EDGES), draw.choice(_sizes(args))))
    return f"sizes {old} are {new}", resized(args, old, new)


def _dim(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    index, tensor = _one(args, draw)
    dim = draw.randrange(tensor.ndim) if tensor.ndim else 0
    size = tensor.shape[dim]
    shape = [*tensor.shape]
    shape[dim] = draw.choice((size + 1, max(size - 1, 0), 2 * size, 1, 0, draw.choice(EDGES)))
    return f"argument {index} has the shape {shape}", _with(args, index, like(tensor, shape))


def _strides(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    index, tensor = _one(args, draw)
    if tensor.numel() > _MOST:
        raise RuntimeError("a tensor too large")
    one, other = draw.randrange(tensor.ndim or 1), draw.randrange(tensor.ndim or 1)
    rows, last = tensor.shape[:-1], tensor.shape[-1] if tensor.ndim else 1
    kind, made = draw.choice((
        ("twice the columns", lambda: torch.zeros(*rows, 2 * last, dtype=tensor.dtype)[..., :last]),
        ("8 more columns", lambda: torch.zeros(*rows, last + 8, dtype=tensor.dtype)[..., :last]),
        ("one more column", lambda: torch.zeros(*rows, last + 1, dtype=tensor.dtype)[..., :last]),
        ("every other column", lambda: torch.zeros(*rows, 2 * last, dtype=tensor.dtype)[..., ::2]),
        ("exchanged dimensions", lambda: tensor.transpose(one, other).contiguous().transpose(one, other)),
        ("one element for all of a dimension", lambda: tensor.narrow(one, 0, 1).expand(tensor.shape))))
    return f"argument {index} is in memory of {kind}", _with(args, index, made())


def _address(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    (index, tensor), count = _one(args, draw), draw.choice((1, 2, 4, 8, 16))
    return f"argument {index} begins {count} elements on", _with(args, index, behind(tensor, count))


def _number(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    index, value = draw.choice([(index, arg) for index, arg in enumerate(args) if type(arg) in (int, float)])
    new = draw.choice((value + 1, 2 * value, *(INTEGERS if type(value) is int else FLOATS)))
    return f"argument {index} is {f'{new:.3g}' if abs(new) < 1e300 else 'huge'}", _with(args, index, new)


def _alias(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    (index, _), (other, tensor) = _one(args, draw), _one(args, draw)
    return f"argument {index} is argument {other}", _with(args, index, tensor)


def _overlap(args: tuple, draw: random.Random) -> tuple[str, tuple]:
    """Two tensors in one memory, the second a few elements behind the begin, or near the end, of the first."""
    (one, first), (other, second) = _one(args, draw), _one(args, draw)
    end = extent(first)
    begin = max(draw.choice((0, 1, 8, 16, end - 1, end, end + 16)), 0)
    memory = torch.zeros((end + extent(second) + 16) * max(first.itemsize, second.itemsize), dtype=torch.uint8)
    made = [memory[:memory.numel() // tensor.itemsize * tensor.itemsize].view(tensor.dtype).as_strided(
        tensor.shape, tensor.stride(), place) for tensor, place in ((first, 0), (second, begin))]
    return f"arguments {one} and {other} are {begin} elements apart", _with(_with(args, one, made[0]), other, made[1])
