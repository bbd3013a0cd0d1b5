# SPDX-License-Identifier: MIT
"""Repeats what a function launched: for other tensors of the same metadata its kernels start again, at their addresses,
without the function. dispatch/backend.py puts it around functions that launch Triton kernels; jit/triton_launch.py
tells of launches.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aiter_like.call import handing_on

_ALIGNMENT = 16  # bytes: by no larger one does Triton, or a launcher of ours, tell addresses apart
_SCRATCH_ALIGNMENT = 256  # Torch's allocator aligns memory to so many bytes.
_ATTEMPTS = 3  # a plan whose addresses keep changing their pattern goes on without being recorded

_aten = torch.ops.aten
_ALLOCATIONS = {_aten.empty.memory_format, _aten.empty_like.default, _aten.empty_strided.default,
                _aten.new_empty.default, _aten.new_empty_strided.default}
_READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.__repr__}
"""Of a tensor on the CPU these are no operations of torch's; other ways to its numbers end at one."""


class Started(NamedTuple):
    """One launch.

    Attributes:
        start: of `arguments`: launches the compiled kernel over the same grid. It takes addresses for tensors.
        arguments: of the kernel, constants too: tensors, descriptors of tensors, tuples, numbers, None.
    """

    start: Callable[..., None]
    arguments: tuple


def is_recording() -> bool:
    """Whether this thread's launches are being recorded."""
    return bool(_recordings.open)


def tell(start: Callable[..., None], arguments: tuple) -> None:
    """Tells whoever records in this thread of a launch."""
    if _recordings.open:
        _recordings.open[-1].started.append(Started(start, arguments))


class Repeated:
    """A function that launches kernels, in one plan: it is called with fields of the same metadata.

    Its second call is recorded. If then it did nothing but launch, look at metadata, make views and allocate memory,
    later calls launch the same kernels with the addresses of their own tensors. Metadata do not tell all that such a
    function may ask for: a recording holds for tensors whose addresses have the same alignment and coincide where they
    did before. Others are recorded anew.
    A function that has read numbers of a tensor on the host is not repeated: they may be others in the next call.

    Attributes:
        unrepeated: the function.
    """

    __slots__ = ("_attempts", "_serve", "unrepeated")

    def __init__(self, function: Callable[..., Any]):
        self.unrepeated = function
        self._serve, self._attempts = self._first, _ATTEMPTS

    def __call__(self, *args: Any) -> None:
        self._serve(*args)

    def _first(self, *args: Any) -> None:
        """Most shapes of a varying size come once: recording costs as much as some hundred calls save."""
        self.unrepeated(*args)
        self._serve = self._recorded

    def _recorded(self, *args: Any) -> None:
        with Recording() as recording:
            self.unrepeated(*args)
        repeat = recording.repeat(args, self._otherwise)
        self._attempts -= 1
        self._serve = self.unrepeated if repeat is None else repeat

    def _otherwise(self, *args: Any) -> None:
        """Serves a call whose addresses are not like those of the recorded one."""
        (self._recorded if self._attempts > 0 else self.unrepeated)(*args)


class _Recordings(threading.local):
    """Those that are open in a thread; a launch belongs to the last."""

    def __init__(self) -> None:
        self.open: list[Recording] = []


_recordings = _Recordings()


class Recording(TorchDispatchMode):
    """While it is open: the launches of this thread, and whether anything else happened that a repetition would miss.

    Attributes:
        started: the launches, in order.
        is_complete: torch ran no operation but views and allocations, and nobody read a tensor's numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Started] = []
        self.is_complete = True
        self._fresh: list[Tensor] = []
        self._reads = _Reads()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by torch, which else imports torch._dynamo for the first operation that it sees: that takes seconds."""
        return False

    def __enter__(self) -> Recording:
        _recordings.open.append(self)
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)
        self.is_complete &= not self._reads.happened
        _recordings.open.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self._fresh.append(result)
        elif not _makes_views(func):
            self.is_complete = False
        return result

    def repeat(self, args: tuple, otherwise: Callable[..., None]) -> Callable[..., None] | None:
        """What launches the same for other tensors in the places of those among `args`; None where that is not known.

        Args:
            args: of the call that was recorded.
            otherwise: serves calls whose addresses are not like those of this one.
        """
        tensors = {index: arg for index, arg in enumerate(args) if isinstance(arg, Tensor)}
        if not self.is_complete or not self.started or any(isinstance(arg, (tuple, list)) for arg in args):
            return None
        names = [f"arg{index}" for index in range(len(args))]
        text = _Text(tensors, self._fresh)
        launches = [text.launch(launch) for launch in self.started]
        if None in launches:
            return None
        statements = [*(f"at{index} = arg{index}.data_ptr()" for index in tensors),
                      f"if {text.difference()}: return otherwise({', '.join(names)})", *text.allocation(), *launches]
        text.used["otherwise"] = otherwise
        return handing_on("repeat", dict.fromkeys(names, inspect.Parameter.empty), {}, statements, **text.used)


class _Reads(TorchFunctionMode):
    """Notes whether a tensor's numbers are read without an operation of torch's."""

    happened = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _READS:
            self.happened = True
        return func(*args, **(kwargs or {}))


class _Text:
    """Source text of a repetition; `at3` is the address of the fourth field, `scratch` that of memory for the call.

    Attributes:
        used: what the text names.
    """

    def __init__(self, tensors: dict[int, Tensor], fresh: list[Tensor]):
        self.used: dict[str, Any] = {}
        self._tensors = tensors
        self._addresses = {index: tensor.data_ptr() for index, tensor in tensors.items() if tensor.numel()}
        self._fresh = {_storage(tensor): tensor for tensor in fresh if _storage(tensor)}
        self._places: dict[int, int] = {}  # storage of an allocation → where it lies in the scratch
        self._bytes = 0

    def launch(self, launch: Started) -> str | None:
        """The statement for it; None where an argument is not known."""
        given = [self._argument(argument) for argument in launch.arguments]
        return None if None in given else f"{self._named(launch.start)}({', '.join(given)})"

    def difference(self) -> str:
        """Whether addresses differ from the recorded ones in what a launcher may have asked for."""
        aligned = [index for index, address in self._addresses.items() if address % _ALIGNMENT == 0]
        asked = [f"({' | '.join(f'at{index}' for index in aligned)}) & {_ALIGNMENT - 1}"] * bool(aligned)
        asked += [f"at{index} & {_ALIGNMENT - 1} != {address % _ALIGNMENT}"
                  for index, address in self._addresses.items() if address % _ALIGNMENT]
        first: dict[int, int] = {}
        for index, address in self._addresses.items():
            if first.setdefault(address, index) != index:
                asked.append(f"at{index} != at{first[address]}")
        if len(first) > 1:
            asked.append(f"len({{{', '.join(f'at{index}' for index in first.values())}}}) < {len(first)}")
        device = next(iter(self._tensors.values())).device
        if device.type == "cuda" and torch.cuda.device_count() > 1:  # a compiled kernel is one device's
            self.used["current_device"] = torch.cuda.current_device
            asked.append(f"current_device() != {torch.cuda.current_device()}")
        return " or ".join(asked) or "False"

    def allocation(self) -> Iterator[str]:
        """One for all that the function allocates and hands to a kernel."""
        if self._bytes:
            device = next(iter(self._tensors.values())).device
            self.used |= {"empty": torch.empty, "uint8": torch.uint8, "device": device}
            yield f"memory = empty({self._named(self._bytes)}, dtype=uint8, device=device)"
            yield "scratch = memory.data_ptr()"

    def _named(self, value: Any) -> str:
        name = f"value{len(self.used)}"
        self.used[name] = value
        return name

    def _argument(self, argument: Any) -> str | None:
        if isinstance(argument, Tensor):
            return self._address(argument)
        if isinstance(getattr(argument, "base", None), Tensor):
            place = self._address(argument.base)
            return place and f"{self._named(_moving(argument))}({place})"
        if argument is None:
            return "None"
        return None if _holds_tensors(argument) else self._named(argument)

    def _address(self, tensor: Tensor) -> str | None:
        """Of a field, of a view of one, or of memory that the function has allocated."""
        for index, field in self._tensors.items():
            if field is tensor:
                return f"at{index}"
        storage, address = _storage(tensor), tensor.data_ptr()
        if not storage:
            return None
        owners = [index for index, field in self._tensors.items() if _storage(field) == storage]
        # A view of one of several fields in one memory: it is known which where it begins as one of them does.
        same = [index for index in owners if self._addresses.get(index) == address]
        if same or len(owners) == 1:
            index = (same or owners)[0]
            return self._moved(f"at{index}", address - self._tensors[index].data_ptr())
        if owners or storage not in self._fresh:
            return None
        if storage not in self._places:
            self._places[storage] = self._bytes
            size = self._fresh[storage].untyped_storage().nbytes()
            self._bytes += -(-size // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        return self._moved("scratch", self._places[storage] + address - storage)

    def _moved(self, name: str, distance: int) -> str:
        return f"{name} + {self._named(distance)}" if distance else name


def _holds_tensors(argument: Any) -> bool:
    return isinstance(argument, (tuple, list)) and any(isinstance(one, Tensor) or _holds_tensors(one)
                                                       for one in argument)


class _Address:
    """What Triton reads an address from, in the place of a descriptor's tensor."""

    __slots__ = ("_address",)

    def __init__(self, address: int):
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def _moving(descriptor: Any) -> Callable[[int], Any]:
    """Makes copies of a tensor's descriptor that lie at other addresses; without the constructor and its checks."""
    kind, facts = type(descriptor), {name: value for name, value in vars(descriptor).items() if name != "base"}

    def moved(address: int) -> Any:
        copy = object.__new__(kind)
        vars(copy).update(facts, base=_Address(address))
        return copy

    return moved


def _storage(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 where it has none."""
    return tensor.untyped_storage().data_ptr()


def _makes_views(func: Any) -> bool:
    """Whether an operation of torch's only looks at memory in another way."""
    schema = func._schema
    return (not schema.is_mutable and len(schema.returns) > 0
            and all(result.alias_info is not None for result in schema.returns))
