# SPDX-License-Identifier: MIT
"""Hand-written kernels: hsa/<arch>/<family>/<kernel>.s, assembled on first use and launched through the HIP runtime.

`manifest.csv` beside the sources lists the kernels and what each is for; `@asm_kernel` makes them one backend of an
operator. The argument layout is declared once and compared with the metadata of the assembled code object.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from aiter_like import paths
from aiter_like.call import call_type
from aiter_like.device import Target
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.jit.compile_ops import Instance, register
from aiter_like.jit.hip_runtime import ModuleRuntime
from aiter_like.jit.planned import Planned
from aiter_like.modules import build, code_object, manifest, revision_cpp
from aiter_like.modules.manifest import Row
from aiter_like.modules.recipe import ModuleSpec
from aiter_like.traced import Trace, exactly, known, text_in

ALIGNMENT = 16  # bytes, of every pointer: what a dwordx4 load takes at full speed

_TYPES = {"pointer": "Q", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "fp32": "f", "fp64": "d"}  # struct formats
_LARGEST_F32 = (2 - 2**-23) * 2.0**127
_RANGES = {"i32": (-2**31, 2**31 - 1), "u32": (0, 2**32 - 1), "i64": (-2**63, 2**63 - 1), "u64": (0, 2**64 - 1),
           "fp32": (-_LARGEST_F32, _LARGEST_F32), "fp64": (-math.inf, math.inf)}
_POINTER_KINDS = ("global_buffer", "dynamic_shared_pointer")


@dataclass(frozen=True)
class Launch:
    """How one call runs; what the decorated function returns.

    Attributes:
        facts: what chooses the row of the manifest: "dtype" and the names in its constraints.
        grid: workgroups; `block`: work-items per workgroup; three numbers each.
        values: the kernel's arguments that are no arguments of the call; None is a null pointer.
    """

    facts: Mapping[str, int | str]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: Mapping[str, int | float | None] = field(default_factory=dict)


def asm_kernel(module: str, op: str, arguments: Mapping[str, str]) -> Callable[[Callable[..., Launch]], AsmFunction]:
    """Turns a function of a call's arguments that returns its `Launch` into an `AsmFunction`. Builds nothing.

    Args:
        module: the source below hsa/, "gfx942/norm/rms_norm.s".
        op: the operator, as in the manifest.
        arguments: the kernel's arguments in order, name → pointer, i32, u32, i64, u64, fp32 or fp64. A name that is
            also a parameter of the function is taken from the call, every other one from Launch.values.
    """
    if unknown := [kind for kind in arguments.values() if kind not in _TYPES]:
        raise ValueError(f"asm_kernel: {unknown[0]!r} is none of {', '.join(_TYPES)}")
    return lambda plan: register(AsmFunction(plan, module, op, dict(arguments)))


class AsmFunction:
    """The kernels of one assembly source as a backend's function; the interface is that of `JitFunction`.

    Attributes:
        module: the source below hsa/.
        arch: what it is written for.
        op: the operator.
        arguments: name → type of the kernels' arguments.
    """

    platforms = ("hip",)

    def __init__(self, plan: Callable[..., Launch], module: str, op: str, arguments: dict[str, str]):
        self.__name__, self.__doc__, self.__module__, self.__wrapped__ = (
            plan.__name__, plan.__doc__, plan.__module__, plan)
        self.module, self.op, self.arguments = module, op, arguments
        self.arch = module.partition("/")[0]
        self.function_name = plan.__name__.removeprefix("_").removesuffix("_asm")
        self.call = call_type(plan)
        code = plan.__code__
        self.parameters = self.call._fields if self.call else code.co_varnames[:code.co_argcount]
        self._loaded: dict[tuple, Any] = {}  # (target, kernel) → (handle, key), or the BuildError

    def __repr__(self) -> str:
        return f"<AsmFunction {self.function_name} of {self.module}>"

    @property
    def source(self) -> Path:
        """The file of the kernels."""
        return paths.hsa() / self.module

    def text_revision(self, platform: str) -> str:
        """8 hex digits: what the kernels run, and what the manifest says of them."""
        rows = [f"{row.kernel} {row.symbol} {row.dtype} {sorted(row.constraints.items())}" for row in self._rows()]
        return revision_cpp.assembly_revision(self.source, "\n".join(rows))

    @property
    def stem(self) -> str:
        """Module and function: what is unique."""
        return f"hsa/{self.module.removesuffix('.s')}:{self.function_name}"

    def refusal(self, target: Target, facts: Mapping[str, int | str]) -> str | None:
        """Why no kernel of the manifest serves a call with these facts on `target`; None where one does."""
        if (target.platform, target.arch) != ("hip", self.arch):
            return f"assembly for {self.arch}, this is {target.arch}"
        try:
            self._row(facts)
        except (BuildError, UnsupportedError) as error:
            return str(error)
        return None

    def kernel_name(self, args: Sequence[Any]) -> str:
        """The kernel that serves these arguments: its name in the manifest."""
        return self._row(self.launch(args).facts).kernel

    def instances(self) -> tuple[Instance, ...]:
        """The module that `aiter-like build` makes: one code object with all kernels of the source."""
        return (Instance(),)

    def instance_spec(self, instance: Instance, platform: str, arch: str) -> ModuleSpec:
        """The module, for the one platform and architecture that it is written for."""
        name = self.module.removesuffix(".s")
        return ModuleSpec(f"hsa/{name}", (self.module,), kind="asm", arch=self.arch, root=paths.hsa(),
                          output=f"{PurePosixPath(name).name}.co")

    def spec(self, target: Target, args: Sequence[Any] | None = None) -> ModuleSpec:
        """The module; the same for all arguments."""
        return self.instance_spec(Instance(), target.platform, target.arch)

    def module_key(self, target: Target, args: Sequence[Any]) -> str:
        """Content key of the code object that `bind` loads."""
        return self._load(target, self._row(self.launch(args).facts))[1]

    def bind(self, target: Target, args: Sequence[Any]) -> Callable:
        """The function that launches the kernel for arguments with the metadata of `args`, on the current stream.

        Raises:
            UnsupportedError: no kernel of the manifest is for these arguments.
            BuildError: no compiler, the source does not assemble, or the built kernel takes other arguments.
        """
        launch = self.launch(args)
        if reason := self.refusal(target, launch.facts):
            raise UnsupportedError(f"{self.op}: {reason}", self.op)
        row = self._row(launch.facts)
        if missing := [name for name in self.arguments if name not in self.parameters and name not in launch.values]:
            raise TypeError(f"{self.op} ({row.kernel}): {missing[0]} is neither an argument of the call nor in "
                            "Launch.values")
        return _Bound(self, row.kernel, self._load(target, row)[0], target)

    def launch(self, args: Sequence[Any]) -> Launch:
        """How a call runs; of stand-ins (traced/) for a class of calls."""
        return self.__wrapped__(self.call(*args)) if self.call else self.__wrapped__(*args)

    def _row(self, facts: Mapping[str, int | str]) -> Row:
        rows = self._rows()
        for row in rows:
            if row.dtype == facts["dtype"] and all(facts.get(name) == value for name, value in row.constraints.items()):
                return row
        have = "; ".join(" ".join([row.dtype, *(f"{name}={value}" for name, value in row.constraints.items())])
                         for row in rows)
        asked = " ".join(f"{name}={value}" for name, value in facts.items())
        raise UnsupportedError(f"no assembly kernel for {asked}; there are: {have or 'none'}", self.op)

    def _rows(self) -> list[Row]:
        return [row for row in manifest.read(self.source.parent)
                if row.op == self.op and row.source == self.source.name]

    def _load(self, target: Target, row: Row) -> tuple[ctypes.c_void_p, str]:
        key = (target, row.kernel)
        found = self._loaded.get(key)
        if found is None:
            try:
                found = self._load_kernel(target, row)
            except BuildError as error:  # kept: each new shape would repeat it
                found = error
            self._loaded[key] = found
        if isinstance(found, BuildError):
            raise found
        return found

    def _load_kernel(self, target: Target, row: Row) -> tuple[ctypes.c_void_p, str]:
        entry = build.ensure(self.spec(target))
        image = entry.path.read_bytes()
        self._check_arguments(row, code_object.kernels(image, target.arch))
        runtime = ModuleRuntime(target)
        try:
            return runtime.function(image, row.symbol), entry.key
        except RuntimeError as error:
            raise BuildError(f"{row.where}: cannot load {row.symbol}: {error}", module=self.module) from error

    def _check_arguments(self, row: Row, kernels: Mapping[str, code_object.Kernel]) -> None:
        """Compares the declared arguments with those of the assembled kernel.

        Raises:
            BuildError: no such kernel, or they differ; the message shows both.
        """
        if row.symbol not in kernels:
            raise BuildError(f"{row.where}: {row.source} has no kernel {row.symbol}; it has: {', '.join(kernels)}")
        declared, end = [], 0
        for name, kind in self.arguments.items():
            size = struct.calcsize(_TYPES[kind])
            start = -(-end // size) * size  # natural alignment
            declared.append((name, start, size, kind == "pointer"))
            end = start + size
        built = [(argument.name, argument.offset, argument.size, argument.kind in _POINTER_KINDS)
                 for argument in kernels[row.symbol].arguments]
        if declared != built:
            show = [", ".join(f"{name}@{offset}:{'pointer' if is_pointer else size}"
                              for name, offset, size, is_pointer in one) for one in (declared, built)]
            raise BuildError(f"{self.module}: {self.__name__} declares the arguments ({show[0]}), but the built "
                             f"{row.symbol} has ({show[1]})", module=self.module)


class _Bound:
    """A kernel of one device; called with the operator's arguments."""

    def __init__(self, function: AsmFunction, kernel: str, handle: ctypes.c_void_p, target: Target):
        self.name, self.target, self.handle, self.function = f"{function.op} ({kernel})", target, handle, function
        self.runtime = ModuleRuntime(target)
        self.layout = struct.Struct("@" + "".join(_TYPES[kind] for kind in function.arguments.values()))

    def __call__(self, *args: Any) -> None:
        if len(args) != len(self.function.parameters):
            raise TypeError(f"{self.name}: takes {len(self.function.parameters)} arguments, got {len(args)}")
        launch = self.function.launch(args)
        values = [self._value(*each) for each in self._given(launch, args)]
        self.runtime.launch(self.handle, launch.grid, launch.block, self.layout.pack(*values))

    def launches(self, fields: tuple) -> tuple[_Traced]:
        """The launch of a class of calls, as dispatch/plan.py takes those of Triton's kernels."""
        return (_Traced(self, self.function.launch(fields), fields),)

    def _given(self, launch: Launch, args: Sequence[Any]) -> Iterator[tuple[str, str, Any]]:
        """Name, type and value of the kernel's arguments, in order."""
        parameters = self.function.parameters
        for name, kind in self.function.arguments.items():
            yield name, kind, args[parameters.index(name)] if name in parameters else launch.values[name]

    def _value(self, name: str, kind: str, value: Any) -> int | float:
        """Converts a value for the argument segment.

        Raises:
            TypeError: `value` is of another kind than the kernel's argument.
            ValueError: a tensor elsewhere, a pointer that is not 16-byte aligned, or an integer out of range.
        """
        if kind == "pointer":
            if value is None:
                return 0
            if not isinstance(value, Tensor):
                raise TypeError(f"{self.name}: {name} must be a tensor or None, got {type(value).__name__}")
            is_here = value.is_cpu if self.target.simulated else value.get_device() == self.target.index
            if not is_here:
                raise ValueError(f"{self.name}: {name} must be on the device of the launch, got {value.device}")
            address = value.data_ptr()
            if address % ALIGNMENT:
                raise ValueError(f"{self.name}: {name} must start at a multiple of {ALIGNMENT} bytes, got "
                                 f"{address:#x}; another backend takes such a tensor")
            return address
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind[0] == "f" else int):
            raise TypeError(f"{self.name}: {name} must be {kind}, got {type(value).__name__}")
        if kind[0] != "f":
            low, high = _RANGES[kind]
            if not low <= value <= high:
                raise ValueError(f"{self.name}: {name} must fit {kind}, got {value}")
        elif kind == "fp32" and math.isfinite(value) and abs(value) > _LARGEST_F32:
            raise ValueError(f"{self.name}: {name} must fit fp32, got {value}")
        return value


class _Traced:
    """The launch of a class of calls; it is not started."""

    def __init__(self, bound: _Bound, launch: Launch, fields: tuple):
        self._bound, self._launch, self._fields = bound, launch, fields

    def planned(self, trace: Trace) -> Planned:
        """Plans the launch for any call of the class."""
        bound, launch = self._bound, self._launch
        texts, values = [], []
        for name, kind, value in bound._given(launch, self._fields):
            values.append(bound._value(name, kind, value.real if isinstance(value, Tensor) else known(value)))
            if isinstance(value, Tensor):
                address = value.address()
                bool(value.data_ptr() % ALIGNMENT == 0)
                texts.append(address.text)
            elif value is None:
                texts.append("0")
            else:
                low, high = _RANGES[kind]
                bool(low <= value <= high)
                texts.append(text_in(trace, value))
        grid, block = known(launch.grid), exactly(launch.block)
        packed = f"{trace.object(bound.layout.pack)}({', '.join(texts)})"
        places = ", ".join(text_in(trace, each) for each in launch.grid)
        first = functools.partial(bound.runtime.launch, bound.handle, grid, block, bound.layout.pack(*values))
        return Planned(f"{trace.object(bound.runtime.launch)}({trace.object(bound.handle)}, ({places}, ), "
                       f"{trace.object(block)}, {packed})", first)
