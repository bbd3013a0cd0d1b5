# SPDX-License-Identifier: MIT
"""A toy operator with planted candidates and a clock that they set: what workers run in test_tuner.py."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like import device, dispatch
from aiter_like.device import Target
from aiter_like.dispatch import Backend, Op
from aiter_like.tuning.clock import interleaved
from aiter_like.tuning.harness import Harness

NAME = "planted"
HARNESS = "planted:harness"
TARGET = Target("hip", "gfx942", 304, 64)

# `mode` and time of the candidates beside the default one, which is right and takes 10 µs.
PLANTS = {
    0: [("good", 5.0), ("good", 50.0)],
    1: [("wrong", 1.0), ("unwritten", 1.0), ("raise", 1.0), ("crash", 1.0), ("hang", 1.0), ("good", 4.0)],
    2: [("good", 9.9)],
    3: [("nan", 1.0), ("rots", 1.0), ("exit", 1.0)],
    4: [("good", 9.0), ("good", 8.0), ("tell", 7.0), ("good", 6.0)],
    5: [("quit", 1.0), ("good", 4.0)],
    # Time, modelled time and launches, for a clock that models.
    6: [("good", 9.0, 8.9), ("good", 8.0, 8.8), ("good", 7.0, 12.0), ("good", 6.0, 1.0, 2), ("good", 20.0, 1.0)],
    7: [("good", 9.0, 9.6), ("good", 8.0, 9.5)],
    8: [("good", 9.0, 9.3), ("good", 8.0, 9.0), ("wrong", 1.0, 1.0), ("good", 7.0, 8.8)],
}
# Of a backend that compiles at its first call.
COMPILED = {9: [("crash", 1.0), *(("note", 11.0 + number) for number in range(8)), ("note", 4.0)]}
NOTES = "PLANTED_NOTES"  # names a file: who runs "note" adds its process and time there
DEFAULT_US = 10.0
TOLD = "PLANTED_TOLD"  # names a pipe: who hangs, or runs "tell", writes its process there and waits to be ended
_elapsed = 0.0
_modelled, _launches = 0.0, 0
_calls = 0


class PlantedCall(NamedTuple):
    """A call of the planted operator."""

    out: Tensor
    x: Tensor
    plant: int


def scale_ref(call: PlantedCall) -> None:
    """out = 2 · x."""
    call.out.copy_(call.x * 2.0)


def kernel(call: PlantedCall, mode: str = "good", us: float = DEFAULT_US, modelled: float = DEFAULT_US,
           launches: int = 1) -> None:
    """scale_ref, or what `mode` plants."""
    global _elapsed, _calls, _modelled, _launches
    out, x, _ = call
    _elapsed += us
    _modelled, _launches = modelled, launches
    _calls += 1
    if mode == "raise":
        raise RuntimeError("launch failed")
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "exit":
        os._exit(7)
    if mode == "quit":  # the machine goes down
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    if mode == "hang" or (mode == "tell" and TOLD in os.environ):
        Path(os.environ[TOLD]).write_text(f"{os.getpid()}\n")
        time.sleep(1000)
    if mode == "note":
        with open(os.environ[NOTES], "a") as notes:
            notes.write(f"{os.getpid()} {us}\n")
    if mode == "unwritten":
        return
    out.copy_(x * (2.1 if mode == "wrong" or (mode == "rots" and _calls > 20) else 2.0))
    if mode == "nan":
        out[0, 0] = float("nan")


def _space(target: Target, call: PlantedCall) -> list[dict]:
    return [dict(zip(("mode", "us", "modelled", "launches"), plant)) for plant in PLANTS.get(call.plant, ())]


def _compiled_space(target: Target, call: PlantedCall) -> list[dict]:
    return [dict(zip(("mode", "us"), plant)) for plant in COMPILED[call.plant]]


class PlantedKey(NamedTuple):
    """What a call of the planted operator is tuned by."""

    rows: int
    plant: int
    dtype: str

    @classmethod
    def of(cls, call: PlantedCall) -> PlantedKey:
        return cls(call.x.shape[0], call.plant, "fp32")

    def make(self, device: torch.device, seed: int) -> PlantedCall:
        x = torch.randn(self.rows, 8, generator=torch.Generator(device).manual_seed(seed))
        return PlantedCall(torch.empty_like(x), x, self.plant)

    def smaller(self) -> list[PlantedKey]:
        return [self._replace(rows=rows) for rows in (32, 4, 2)]


@functools.cache
def op() -> Op:
    """The operator; torch keeps the name, so one per process."""
    return Op(NAME, call=PlantedCall, reference=scale_ref, key=PlantedKey,
              backends=(Backend("hip", kernel, space=_space),
                        Backend("triton", kernel, space=_compiled_space,
                                refusal=lambda target, call: None if call.plant in COMPILED else "never"),
                        Backend("torch", _slow)))


def _slow(call: PlantedCall) -> None:
    kernel(call, us=30.0)


class PlantedClock:
    """Reads what the candidates say that they took."""

    unit, trial_unit, is_measured, origin, least_gain, shape_seconds = "us", "us", True, "", 3.0, None
    about, found = (), ()

    def sets(self, size: int) -> int:
        return 2

    def rounds(self, contenders, count):
        def once(calls):
            before = _elapsed
            for call in calls:
                call()
            return (_elapsed - before) / len(calls)

        return interleaved([functools.partial(once, contender.calls) for contender in contenders], count)

    finals = rounds


class PlantedModel(PlantedClock):
    """Takes what candidates say that they took for an estimate, and what they say of a model for modelled."""

    unit, trial_unit, is_measured, origin, least_gain = "modelled us", "guesses", False, "modelled:7 at 900 MHz", 7.9
    shape_seconds, about = 600.0, ("All of it is planted.",)

    def sets(self, size: int) -> int:
        return 1

    def rounds(self, contenders, count):
        times = [super(PlantedModel, self).rounds([contender], 1)[0] for contender in contenders]
        self.found = [{"launches": _launches, "bytes": 640, "lane_operations": 64, "text": "a guess"}]
        return times

    def finals(self, contenders, count):
        (contender,) = contenders
        contender.calls[0]()
        self.found = [{"launches": _launches, "text": "a model"}]
        return [[_modelled]]


def _kernels(call: functools.partial) -> list[str]:
    """Calls of 100 and of 2 rows run one that no other does, and those of 101 rows, too."""
    rows = call.args[1].shape[0]
    return ["common", *(["for 2 or 100"] if rows in (2, 100) else ["for 101"] if rows == 101 else [])]


def harness(index: int) -> Harness:
    dispatch.OPS.declared[NAME] = op()
    device._targets[torch.device("cpu")] = TARGET
    return Harness(torch.device("cpu"), TARGET, PlantedClock(), f"Toy {index}", ceilings=lambda target: (1e9, 1e12))


def modelling(index: int) -> Harness:
    harness(index)
    return Harness(torch.device("cpu"), TARGET, PlantedModel(), "Toy model", most_judged=(256, 1), kernels=_kernels)


def in_a_hurry(index: int) -> Harness:
    made = modelling(index)
    made.clock.shape_seconds = 0.0
    return made


def broken(index: int) -> Harness:
    raise ValueError("no such device")
