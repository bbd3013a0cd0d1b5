# SPDX-License-Identifier: MIT
"""Runs a Triton kernel by Triton's own launcher, on a GPU or the simulated MI300X. Launchers have it by way of
ops/common/triton/launch.py.

A launch is data: a launcher is a function of a call that returns its launches, and starts none. Called with stand-ins
(traced/) it returns launches whose numbers and addresses are texts: those of a whole class of calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from aiter_like.device import Target, target_of
from aiter_like.jit import cuda_launch
from aiter_like.jit.planned import Planned
from aiter_like.traced import Number, Trace, Traced, Untraceable, exactly, known, text_in

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # a version before it
    gdc_wait = None

_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
_ALIGNMENT = 16  # bytes of an address, or a number's factor, by which Triton tells kernels apart
_NEAR = 2**31  # bytes of a tensor that buffer instructions reach


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel.

    Attributes:
        kernel: the `@triton.jit` function.
        grid: up to three counts of programs.
        arguments: the kernel's run-time arguments, in order: tensors, descriptors of tensors, None, int, float, bool,
            tuples of them.
        options: num_warps, num_stages and the AMD-only ones, which NVIDIA never sees.
        constants: the kernel's constexpr arguments.
    """

    kernel: triton.JITFunction
    grid: tuple[int, ...]
    arguments: tuple
    options: Mapping[str, Any]
    constants: Mapping[str, Any]

    def start(self) -> CompiledKernel:
        """Starts it on the device of its first tensor; the kernel that was compiled for its arguments."""
        return self._run(self.target)

    @property
    def target(self) -> Target:
        """The device on which it runs."""
        return target_of(next(each.device for each in self.arguments if isinstance(each, Tensor)))

    def _run(self, target: Target, is_warmup: bool = False) -> CompiledKernel:
        """Runs or compiles the kernel. Hopper may start one early that has a constexpr argument OVERLAPS, which it
        hands to await_stream."""
        options = {"enable_fp_fusion": True, **self.options}  # Triton's default, which a later version reverses
        if target.platform != "hip":
            options = {name: value for name, value in options.items() if name not in _AMD_ONLY}
        constants = self._constants(target)
        if constants.get("OVERLAPS"):
            options["launch_pdl"] = True
        with driver_of(target):
            return self.kernel.run(*self.arguments, grid=self.grid, warmup=is_warmup, **constants, **options)

    def _constants(self, target: Target) -> dict[str, Any]:
        own = {"OVERLAPS": overlaps(target)} if "OVERLAPS" in self.kernel.arg_names else {}
        return {**self.constants, **own}

    # ---- launches of stand-ins

    def planned(self, trace: Trace) -> Planned:
        """Plans the launch for any call of the class that `trace` stands for; the kernel is compiled, not started.

        Raises:
            Untraceable: an argument is neither the call's nor memory that the launcher asked for.
        """
        target = self.target
        arguments = [_Argument(trace, each, parameter.do_not_specialize, parameter.do_not_specialize_on_alignment,
                               target.platform == "hip")
                     for each, parameter in zip(self.arguments, self.kernel.params)]
        real = tuple(each.real for each in arguments)
        options, constants = ({name: exactly(value) for name, value in given.items()}
                              for given in (self.options, self.constants))
        fixed = Launch(self.kernel, tuple(map(known, self.grid)), real, options, constants)
        compiled = fixed._run(target, is_warmup=True)
        ordered = _ordered(self.kernel, len(real), fixed._constants(target))
        grid = (*self.grid, 1, 1)[:3]
        texts = [each.text for each in arguments] + [trace.object(value) for value in ordered]
        first = starter(compiled, fixed.grid, target)
        packed = _packed(compiled, arguments, trace) if target.platform == "cuda" else None
        if packed is not None:
            return Planned(f"{packed[0]}({', '.join([*(text_in(trace, each) for each in grid), *packed[1]])})",
                           lambda: first(*real, *ordered))
        if any(type(each) is Number and each.leaves for each in grid):
            start = trace.object(_Started(compiled, target) if target.simulated else compiled)
            start += f"[({', '.join(text_in(trace, each) for each in grid)})]"
        else:
            start = trace.object(first)
        return Planned(f"{start}({', '.join(texts)})", lambda: first(*real, *ordered))


class _Argument:
    """A run-time argument of a traced launch: `real`, in the call that is traced, and its `text` in others; `parts` are
    what a tuple holds. What Triton would make another kernel for is asked of the trace.
    """

    __slots__ = ("descriptor", "is_constant", "parts", "real", "text")

    def __init__(self, trace: Trace, value: Any, is_any: bool, is_unaligned: bool, is_amd: bool):
        self.is_constant = type(value) is not Traced and not (type(value) is Number and value.leaves)
        self.parts: list[_Argument] = [self]
        self.descriptor: _Descriptor | None = None
        if type(value) is Traced:
            address = value.address()
            bool(value.data_ptr() % _ALIGNMENT == 0)
            if is_amd and value.root[0] != "m" and value.real.untyped_storage().nbytes() < _NEAR:
                bool(value.extent() < _NEAR)
            self.real, self.text = value.real, address.text
        elif type(value) is Number:
            if isinstance(value, int):
                if -2**31 <= value.value < 2**31:
                    bool(-2**31 <= value < 2**31)  # noted as bounds, which others may narrow
                else:
                    text, low, high = value.text, trace.constant(-2**31), trace.constant(2**31)
                    trace.ask(f"{low} <= {text} < {high}", False, value.leaves)
                    bool(value < 2**63)
                if not is_any and value != 1 and not is_unaligned:
                    bool(value % _ALIGNMENT == 0)
            self.real, self.text = value.value, text_in(trace, value)
        elif type(value) is tuple:
            parts = [_Argument(trace, each, is_any, is_unaligned, is_amd) for each in value]
            self.real, self.is_constant = tuple(part.real for part in parts), all(part.is_constant for part in parts)
            self.text = trace.object(self.real) if self.is_constant else \
                f"({''.join(f'{part.text}, ' for part in parts)})"
            self.parts = [inner for part in parts for inner in part.parts]
        elif isinstance(value, Tensor) or isinstance(value, tuple):
            raise Untraceable(f"an argument of a launch that is no part of the call: {type(value).__name__}")
        elif isinstance(base := getattr(value, "base", None), Tensor):
            self.is_constant = False
            self.descriptor = _Descriptor(trace, value, base)
            self.real, self.text = self.descriptor.real, self.descriptor.text
        else:
            self.real, self.text = value, trace.object(value)


class _Descriptor:
    """A descriptor of a tensor: `real`, with real numbers; the `text` that makes another for Triton's launcher; the
    texts of its address, shape and strides."""

    __slots__ = ("address", "real", "sizes", "text")

    def __init__(self, trace: Trace, value: Any, base: Tensor):
        if type(base) is not Traced:
            raise Untraceable("a descriptor of a tensor that is no part of the call")
        bool(base.data_ptr() % _ALIGNMENT == 0)
        facts = vars(value)
        shape, strides = ([*facts[name]] for name in ("shape", "strides"))
        others = {name: exactly(tuple(fact)) if isinstance(fact, list) else fact for name, fact in facts.items()
                  if name not in ("base", "shape", "strides")}
        others = {name: list(fact) if isinstance(facts[name], list) else fact for name, fact in others.items()}
        make = _maker(type(value), others)
        texts = [[text_in(trace, each) for each in one] for one in (shape, strides)]
        self.real = make(base.real, [*map(known, shape)], [*map(known, strides)])
        self.address, self.sizes = base.address().text, [*texts[0], *texts[1]]
        self.text = f"{trace.object(make)}({self.address}, [{', '.join(texts[0])}], [{', '.join(texts[1])}])"


def _packed(compiled: CompiledKernel, arguments: list[_Argument], trace: Trace) -> tuple[str, list[str]] | None:
    """The name of a function that starts a kernel by one call of the CUDA driver, and the texts of its arguments; None
    where only Triton's own launcher can.
    """
    parameters = cuda_launch.parameters(compiled)
    if (start := cuda_launch.starter(compiled, parameters)) is None:
        return None
    texts: list[str] = []
    for argument, parameter in zip((inner for each in arguments for inner in each.parts), parameters):
        if parameter == "constexpr":
            continue
        if (descriptor := argument.descriptor) is None:
            texts.append(argument.text)
        elif (make := cuda_launch.descriptor_maker(parameter, descriptor.real)) is None:
            return None
        else:
            sizes = descriptor.sizes
            texts += [f"{trace.object(make)}({', '.join([descriptor.address, *sizes])})", *sizes]
    return trace.object(start), texts


def _maker(kind: type, facts: Mapping[str, Any]) -> Callable[[Any, list, list], Any]:
    """Makes descriptors that differ in address, shape and strides; without the constructor and its checks."""

    def made(base: Any, shape: list, strides: list) -> Any:
        new = object.__new__(kind)
        vars(new).update(facts, base=base if isinstance(base, Tensor) else _Address(base), shape=shape, strides=strides)
        return new

    return made


class _Address:
    """Stands for a descriptor's tensor; Triton reads the address from it."""

    __slots__ = ("_address",)

    def __init__(self, address: int):
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class Launcher:
    """A function of a call that returns its launches, as a backend's function: it starts them.

    Attributes:
        function: of the fields of a call.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *args: Any) -> None:
        for each in self.launches(args):
            each.start()

    def launches(self, args: tuple) -> tuple[Launch, ...]:
        """The launches of a call, in order."""
        found = self.function(*args)
        return (found,) if isinstance(found, Launch) else tuple(found or ())


def starter(compiled: CompiledKernel, grid: tuple[int, ...], target: Target) -> Callable[..., None]:
    """Makes a function that launches a compiled kernel over `grid`. It takes all arguments of the kernel in order, with
    addresses for tensors.
    """
    places = (*grid, 1, 1)[:3]
    if not target.simulated:
        return compiled[places]
    return _Started(compiled, target)[places]


class _Started:
    """Acts like a compiled kernel, which `[grid]` launches, but asks anew which simulated device is the current one."""

    __slots__ = ("_compiled", "_target")

    def __init__(self, compiled: CompiledKernel, target: Target):
        self._compiled, self._target = compiled, target

    def __getitem__(self, places: tuple[int, int, int]) -> Callable[..., None]:
        def start(*args: Any) -> None:
            with driver_of(self._target):
                self._compiled[places](*args)

        return start


@cache
def overlaps(target: Target) -> bool:
    """Whether a kernel that begins with await_stream may start before the previous one has ended: since Hopper."""
    is_known = gdc_wait is not None
    return is_known and target.platform == "cuda" and int(target.arch.removeprefix("sm_").rstrip("af")) >= 90


def driver_of(target: Target) -> AbstractContextManager:
    """Triton's own driver for a GPU; the simulator's for the simulated one."""
    return _simulators_driver()() if target.simulated else nullcontext()


@cache
def _simulators_driver() -> Callable[[], AbstractContextManager]:
    from aiter_like.sim import seam  # a GPU needs no simulator

    return seam.triton_driver()


def _ordered(kernel: triton.JITFunction, given: int, constants: Mapping[str, Any]) -> list[Any]:
    """The arguments behind the first `given` ones; those that nobody names have their defaults."""
    parameters = inspect.signature(kernel.fn).parameters
    return [constants.get(name, parameters[name].default) for name in kernel.arg_names[given:]]
