# SPDX-License-Identifier: MIT
"""The two sides of a row as functions of its tensors: our operator, and the launches of somebody's code objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aiter_like.cli.sim import described, spec, steps
from aiter_like.cli.sim.launch import KernelLaunch
from aiter_like.cli.sim.race import arithmetic
from aiter_like.cli.sim.race.rows import Row, text
from aiter_like.cli.sim.steps import Buffer

if TYPE_CHECKING:
    from torch import Tensor

_GET = ("text", "dtype", "flag", "real")


class Launcher(Protocol):
    """Makes a launch on a device."""

    def __call__(self, launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> None: ...


class NotThere(Exception):
    """The folder lacks a file."""


def simulated(launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> None:
    """Launches on the simulated device, which then knows the tensors."""
    launch.run(buffers)


class Hardware:
    """Launches through the HIP runtime's module functions, of the real device or, for a rehearsal, of the simulator."""

    def __init__(self, target: Any):
        from aiter_like.jit.hip_runtime import ModuleRuntime

        self._runtime = ModuleRuntime(target)
        self._function = functools.cache(self._runtime.function)

    def __call__(self, launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> None:
        function = self._function(launch.image, launch.kernel.name)
        self._runtime.launch(function, launch.grid, launch.block, launch.step.kernargs(launch.kernel, buffers),
                             launch.shared_bytes)


# ---- calls of operators


def ours(row: Row, sizes: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Our call; its results by the names that the row has for them."""
    return _call(row.family.ours, sizes, tensors, f"{row.family.place}: ours")


def explained(row: Row, sizes: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The backends and kernels that serve our call: "ck flash_attn_fwd_hip[…]", for each of its operators."""
    import torch

    import aiter_like

    function, values = _function(row.family.ours, sizes, tensors, f"{row.family.place}: ours")
    with torch.no_grad():
        found = aiter_like.explain(function, **values)
    each = found if isinstance(found, tuple) else (found,)
    return "; ".join(f"{one.backend} {one.kernel}" for one in each if one.backend)


def _function(entry: Mapping[str, Any], sizes: Mapping[str, Any], tensors: Mapping[str, Tensor],
              place: str) -> tuple[Callable, dict[str, Any]]:
    from aiter_like.cli.explain import function_of

    if not isinstance(entry["call"], str) or not isinstance(entry["arguments"], dict):
        raise ValueError(f"{place}: call must be the name of a public function, arguments a table")
    values = {name: _value(given, sizes, tensors, f"{place}: arguments.{name}")
              for name, given in entry["arguments"].items()}
    return function_of(entry["call"]), values


def _call(entry: Mapping[str, Any], sizes: Mapping[str, Any], tensors: Mapping[str, Tensor],
          place: str) -> Callable[[], dict[str, Tensor]]:
    function, values = _function(entry, sizes, tensors, place)
    names = entry.get("results", [])

    def call() -> dict[str, Tensor]:
        found = function(**values)
        each = found if isinstance(found, (tuple, list)) else (found,)
        return dict(zip(names, each))

    return call


def _value(given: Any, sizes: Mapping[str, Any], tensors: Mapping[str, Tensor], place: str) -> Any:
    """An argument: a tensor or arithmetic by a text, {text}, {dtype}, {flag}, {real} for what a text would not say."""
    if isinstance(given, str) and given in tensors:
        return tensors[given]
    if not isinstance(given, dict):
        return given if isinstance(given, bool) else arithmetic.number(given, sizes, place)
    if len(given) != 1 or next(iter(given)) not in _GET:
        raise ValueError(f"{place} must have one of {', '.join(_GET)}, got {described.GOT.repr(given)}")
    if "real" in given:
        return float(arithmetic.number(given["real"], sizes, place))
    if "dtype" in given:
        from aiter_like import dtypes

        return described.one_of(given["dtype"], dtypes.DTYPES, place)
    return text(given["text"], sizes) if "text" in given else bool(arithmetic.number(given["flag"], sizes, place))


# ---- launches of others


def peer(row: Row, sizes: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path,
         launcher: Launcher) -> Callable[[], None]:
    """The other side's launches, which leave their results in `tensors`.

    Raises:
        NotThere: the folder lacks an object; the message is its path.
        ValueError: a file is no code object, or has no such kernel; the data file is damaged.
    """
    made: list[Callable[[], None]] = []
    for index, step in enumerate(row.family.launches):
        place = f"{row.family.place}: launches[{index}]"
        if "call" in step:
            made.append(functools.partial(_call_of_peer, step, sizes, tensors, place))
        else:
            made.append(_launch(step, sizes, tensors, folder, launcher, place))

    def run() -> None:
        for one in made:
            one()

    return run


def _call_of_peer(step: Mapping[str, Any], sizes: Mapping[str, Any], tensors: dict[str, Tensor], place: str) -> None:
    """A call of an operator of ours that stands for one of the other side's, as sorting; its results become tensors."""
    tensors.update(_call(step, sizes, tensors, place)())


def _launch(step: Mapping[str, Any], sizes: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path,
            launcher: Launcher, place: str) -> Callable[[], None]:
    file = folder / text(str(step["file"]), sizes)
    if not file.is_file():
        raise NotThere(f"{file}")
    code = spec.read_code(file)
    kernel = code.kernel(text(str(step["kernel"]), sizes))
    given = _arguments(step["arguments"], sizes, f"{place}: arguments")
    grid, block = (_sizes(step[key], sizes, f"{place}: {key}") for key in ("grid", "block"))
    shared = arithmetic.integer(step.get("shared", 0), sizes, f"{place}: shared")
    made = KernelLaunch(code.image, kernel, steps.Step(place, given), spec.Spec(place, {}, ()), grid, block, shared)

    def run() -> None:
        buffers = {name: Buffer(tensor, False, True) for name, tensor in tensors.items()}
        launcher(made, buffers)

    return run


def _sizes(given: Any, sizes: Mapping[str, Any], place: str) -> tuple[int, int, int]:
    each = given if isinstance(given, list) else [given]
    return steps.sizes([arithmetic.integer(one, sizes, place) for one in each], place)


def _arguments(given: Any, sizes: Mapping[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """[[0, "c"], [96, "u32", "m"]] as a SPEC.json has them: by their places in bytes."""
    if not isinstance(given, list):
        raise ValueError(f"{place} must be a list, got {described.GOT.repr(given)}")
    made: dict[str, dict[str, Any]] = {}
    for one in given:
        match one:
            case [int(at), str(name)]:
                made[f"{at}"] = {"buffer": name}
            case [int(at), str(kind), value]:
                exact = arithmetic.number if kind in ("fp16", "fp32", "fp64") else arithmetic.integer
                made[f"{at}"] = {"type": kind, "value": exact(value, sizes, f"{place}: {at}")}
            case _:
                raise ValueError(f"{place} must be [place, tensor] or [place, type, value], got "
                                 f"{described.GOT.repr(one)}")
    return made
