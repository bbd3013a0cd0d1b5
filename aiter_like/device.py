# SPDX-License-Identifier: MIT
"""Describes a tensor's device: platform, architecture, compute units. Only this module knows what is simulated."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch

from aiter_like import env, paths

_log = logging.getLogger("aiter_like")
Model = TypeVar("Model")


@dataclass(frozen=True)
class Target:
    """A place where kernels run.

    Attributes:
        platform: "hip", "cuda", or "cpu" when neither a GPU nor the simulator serves the device.
        arch: "gfx942", "sm_90", …; "cpu" on that platform.
        cu_num: compute units (AMD) or streaming multiprocessors (NVIDIA).
        wave_size: lanes per wave.
        simulated: True when the simulated MI300X runs the kernels on CPU tensors.
        index: device ordinal.
    """

    platform: str
    arch: str
    cu_num: int
    wave_size: int
    simulated: bool = False
    index: int = 0


_CPU = Target("cpu", "cpu", 0, 1)


def target_of(device: torch.device) -> Target:
    """The `Target` of a torch device; cached, so that a call costs a dict lookup."""
    target = _targets.get(device)
    if target is None:
        target = _targets[device] = _probe(device)
    return target


def default_target() -> Target:
    """The device that serves where nobody names one: the current GPU, else the CPU with its simulated MI300X."""
    return target_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def reset() -> None:
    """Forget every probed device (after a change of AITER_LIKE_SIM or AITER_LIKE_ARCH)."""
    _targets.clear()
    _changed()


def use_simulator(enable: bool) -> None:
    """Let CPU tensors run on the simulated MI300X (True) or nowhere (False), whatever GPU is present."""
    _targets[torch.device("cpu")] = simulated_target() if enable else _CPU
    _changed()


@contextmanager
def planning_for(arch: str, cu_num: int | None = None) -> Iterator[Target]:
    """Within the block tensors of the CPU, or without memory, count as tensors of such a device: what it decides about
    a call can be asked.

    An architecture without a file counts as large as the one of its platform that has a file, unless `cu_num` is given.
    """
    platform = "hip" if arch.startswith("gfx") else "cuda"
    facts = _facts_like(arch, platform)
    target = Target(platform, arch, cu_num or facts.cu_num, facts.wave_size)
    with _replaced({torch.device("cpu"): target, torch.device("meta"): target}):
        yield target


@contextmanager
def simulated_gpus(count: int) -> Iterator[None]:
    """Within the block so many GPUs are the simulated MI300X, and so is the CPU."""
    targets = {torch.device("cuda", index): replace(simulated_target(), index=index) for index in range(count)}
    with _replaced({torch.device("cpu"): simulated_target(), torch.device("cuda"): simulated_target(), **targets}):
        yield


@contextmanager
def _replaced(targets: dict[torch.device, Target]) -> Iterator[None]:
    before = {device: _targets[device] for device in targets if device in _targets}
    _targets.update(targets)
    _changed()
    try:
        yield
    finally:
        for device in targets:
            _targets.pop(device, None)
        _targets.update(before)
        _changed()


@dataclass(frozen=True)
class Facts:
    """The numbers of an architecture: configs/<arch>/device.toml, and beside it those that models of its time take.

    Attributes:
        arch: the folder.
        cu_num, wave_size: as in `Target`.
        lds_bytes: LDS (shared memory) that a workgroup can have.
        cache_bytes: of the last-level cache.
        sum_registers: registers of a lane that a kernel's sums can take, so that it does not spill.
        xcds: chiplets to which workgroups go in turn, each with an L2 of its own.
    """

    arch: str
    cu_num: int
    wave_size: int
    lds_bytes: int
    cache_bytes: int
    sum_registers: int
    xcds: int = 1

    def model(self, place: str, kind: type[Model]) -> Model:
        """Like `model_of`, for this architecture."""
        return model_of(self.arch, place, kind)


def _constant(function: Callable) -> Callable:
    """Has compiled graphs take the result as a constant, as torch.compiler.assume_constant_result would, which imports
    the compiler: torch cannot follow how a file is read."""
    function._dynamo_marked_constant = True
    return function


@cache
def arch_facts(arch: str) -> Facts:
    """The numbers of an architecture.

    Raises:
        ValueError: there is no file of it.
    """
    path = paths.configs() / arch / "device.toml"
    if not path.is_file():
        known = sorted(entry.parent.name for entry in paths.configs().glob("*/device.toml"))
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(known)}")
    return Facts(arch, **tomllib.loads(path.read_text(encoding="utf-8")))


@cache
def facts_of(target: Target) -> Facts:
    """The numbers of a device, with the CUs that it has."""
    return replace(_facts_like(target.arch, target.platform), cu_num=target.cu_num)


def _facts_like(arch: str, platform: str) -> Facts:
    """Those of the architecture; without a file, of the likest one, with the least LDS that any has."""
    try:
        return arch_facts(arch)
    except ValueError:
        return replace(arch_facts("sm_90" if platform == "cuda" else "gfx942"), lds_bytes=65536)


@cache
@_constant
def model_of(arch: str, place: str, kind: type[Model]) -> Model:
    """The numbers of a model of time, as `kind`, which has a field for each of them.

    place: "<file>.<table>" in configs/<arch>/.
    """
    file, _, table = place.partition(".")
    numbers = tomllib.loads((paths.configs() / arch / f"{file}.toml").read_text(encoding="utf-8"))[table]
    return kind(**{name: _frozen(value) for name, value in numbers.items()})


def _frozen(value: Any) -> Any:
    """Lists as tuples, and tables by their keys, which are numbers."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {int(key): each for key, each in value.items()}
    return value


def simulated_target() -> Target:
    """The simulated MI300X as a `Target`."""
    facts = arch_facts("gfx942")
    return Target("hip", "gfx942", facts.cu_num, facts.wave_size, simulated=True)


_targets: dict[torch.device, Target] = {}

on_change: list[Callable[[], None]] = []
"""Called after devices have got new targets: whoever decided by a target decides again."""


def _changed() -> None:
    for forget in on_change:
        forget()


def _probe(device: torch.device) -> Target:
    if device.type == "cpu":
        if torch.cuda.is_available() and not env.get("AITER_LIKE_SIM"):
            return _CPU
        _log.warning("no GPU in use: CPU tensors run on the simulated MI300X (gfx942), which is correct but slow")
        return simulated_target()
    if device.type != "cuda":
        return _CPU
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        arch = env.get("AITER_LIKE_ARCH") or properties.gcnArchName.split(":")[0]
        return Target("hip", arch, properties.multi_processor_count, properties.warp_size, index=index)
    arch = env.get("AITER_LIKE_ARCH") or f"sm_{properties.major}{properties.minor}"
    return Target("cuda", arch, properties.multi_processor_count, 32, index=index)
