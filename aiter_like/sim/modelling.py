# SPDX-License-Identifier: MIT
"""Modelled cycles of launches, by csrc/sim/timing. Nothing here is measured."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator

from aiter_like import paths
from aiter_like.sim import library
from aiter_like.sim.state import Block, current

SCHEMA = 1
"""The version of the records in `Session.modelled`; csrc/sim/MODEL.md, "The cycle model", describes them."""

PEAK_MHZ = 2100.0
"""The MI300X's highest engine clock: cycles are stated at it unless a clock is given."""

BUDGET = 12_000_000
"""Wave instructions that are replayed of a launch, about: some seconds."""

USUAL_ERROR = 0.087
"""The model's relative error: three quarters of the public microbenchmarks of csrc/sim/timing/VALIDATION.md are within
it. It does not model what most of the others measure."""

LEAST_GAIN = (1 + USUAL_ERROR) / (1 - USUAL_ERROR) - 1
"""The factor by which modelled times must differ to mean anything: two that are off by USUAL_ERROR, one up and one
down, can be so far apart."""

SUSTAINED_MHZ = {"matrix bf16": 1207.0, "matrix fp16": 1115.0, "matrix 8-bit": 1230.0, "attention": 1343.0,
                 "vector": 1837.0, "memory": 1592.0}
"""Clocks that the MI300X's power leaves to kernels of a class under sustained load. Matrix: AMD, "measuring max
achievable FLOPS", part 2 (medians of 708, 654 and 1,273 TFLOP/s). The others: tingqli/pyhip on an MI308X: MFMA and exp,
VALU, streaming. Chosen before the model was run on any whole kernel, and the same for all kernels of a class."""

SUSTAINED_SHARE = 0.94
"""Of the time that matrix units are busy in the products whose clocks these are: hipBLASLt's tile of 256 x 256 takes 4,351
clk for 4,096 of matrix operations (AMD, the same)."""


@contextlib.contextmanager
def modelled(launches: list[dict], sample: bool = False, clock_mhz: float = PEAK_MHZ,
             timeline: int = 0, budget: int = BUDGET) -> Iterator[None]:
    """Adds what the model says of the block's launches to `launches`, at `take` and at the block's end.

    Args:
        sample: only the workgroups that the model replays run; memory is then not what the launches would leave.
        timeline: how many instructions of one CU to list with their times.
        clock_mhz: of the shader engines; bandwidths beyond the L2 are fixed in bytes per second.
        budget: about how many wave instructions are replayed of a launch that has more; 0: all that it has.

    Raises:
        ValueError: a block of another one's is open, or the clock is no clock.
    """
    if current.kept("cycles"):
        raise ValueError("the cycle model is on already, and has one set of settings: end that block first")
    if not 100 <= clock_mhz <= 10000:
        raise ValueError(f"clock_mhz must be from 100 to 10000, got {clock_mhz}")
    timing = library.load_timing()
    timing.aiter_like_sim_model(True, sample, clock_mhz, timeline, budget)
    try:
        with current.opened(Block(cycles=launches), take):
            yield
    finally:
        timing.aiter_like_sim_model(False, sample, clock_mhz, timeline, budget)


def take() -> None:
    """Gives the launches that have ended to whoever asks."""
    found = library.json_of(library.load_timing().aiter_like_sim_take_modelled())
    for launch in found:
        launch.update(schema=SCHEMA, modelled_us=launch["modelled_clk"] / launch["clock_mhz"])
    current.give("cycles", found)


def elapsed() -> tuple[int, float] | None:
    """Identifies the open block with the cycle model, and gives the modelled microseconds of its launches so far; None
    where none is open.
    """
    if not (open_blocks := current.kept("cycles")):
        return None
    take()
    return id(open_blocks[-1]), sum(launch["modelled_us"] for launch in open_blocks[-1])


@functools.cache
def version() -> str:
    """The model's version: its answer for one launch changes only with it. It is read from the sources, because
    modelled rows are checked against it on machines that never run the model.
    """
    return re.search(r'kModelVersion = "([^"]+)"', (paths.csrc() / "sim/timing/parameters.h").read_text())[1]


def sustained_mhz(kind: str, matrix_busy: float) -> float:
    """The clock that power leaves to a kernel of a class of SUSTAINED_MHZ whose matrix units are busy for a share of the
    time: the class's at SUSTAINED_SHARE, that of streaming where nothing is multiplied, and in proportion between them,
    since it is their work that takes the power.
    """
    idle = SUSTAINED_MHZ["memory"]
    if SUSTAINED_MHZ[kind] >= idle:
        return SUSTAINED_MHZ[kind]
    return idle - (idle - SUSTAINED_MHZ[kind]) * min(matrix_busy / SUSTAINED_SHARE, 1)


def roofs(clock_mhz: float) -> list[dict]:
    """The most that the model's parameters allow the whole chip: `name`, `unit` ("flop" or "B"), `per_second`. There is
    one for each operand type of matrix operations, for packed f32 arithmetic, and for each level of memory.
    """
    return library.json_of(library.load_timing().aiter_like_sim_model_roofs(clock_mhz))


def stalls(instructions: Iterable[dict]) -> dict[str, float]:
    """Reason → cycles that waves waited, of all instructions; the longest first."""
    sums: dict[str, float] = {}
    for one in instructions:
        for reason, clk in one["stall_clk"].items():
            sums[reason] = sums.get(reason, 0) + clk
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def summary(launch: dict) -> list[str]:
    """A launch as lines of text; every figure says that it is modelled."""
    tflops = launch["mfma_flops"] / max(launch["modelled_us"], 1e-9) / 1e6
    rate = f", {tflops:.1f} TFLOP/s of matrix operations" if tflops else ""
    busy = ", ".join(f"{unit} {share:.0%}" for unit, share in launch["busy"].items() if share >= 0.005)
    reasons = stalls(launch["instructions"])
    total = sum(reasons.values()) + sum(one["busy_clk"] for one in launch["instructions"])
    waits = ", ".join(f"{reason} {clk / total:.0%}" for reason, clk in reasons.items() if clk >= 0.005 * total)
    traffic = launch["traffic"]
    hits = [f"{name} hits {traffic[f'{key}_hits'] / traffic[f'{key}_lines']:.0%}"
            for name, key in (("L1", "l1"), ("L2", "l2")) if traffic[f"{key}_lines"]]
    return [f"modelled (version {launch['model']}): {launch['modelled_clk']:.0f} clk, {launch['modelled_us']:.1f} us "
            f"at {launch['clock_mhz']:.0f} MHz{rate}",
            f"modelled from {launch['recorded']} of an XCD's {launch['workgroups_of_xcd']} workgroups on "
            f"{launch['cus_of_xcd']} CUs",
            f"modelled share of time that units are busy: {busy or 'none to speak of'}",
            f"modelled share of the waves' time that waits: {waits or 'none'}",
            f"modelled caches: {', '.join(hits) or 'not used'}"]
