# SPDX-License-Identifier: MIT
"""Modelled cycles of launches, by csrc/sim/timing. Nothing here is measured."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from aiter_like import paths
from aiter_like.sim import library
from aiter_like.sim.state import Block, current

SCHEMA = 1
"""The version of the records in `Session.modelled`; csrc/sim/MODEL.md, "The cycle model", describes them."""

PEAK_MHZ = 2100.0
"""The MI300X's highest engine clock: cycles are stated at it unless a clock is given."""

BUDGET = 12_000_000
"""Wave instructions that are replayed of a launch, about: some seconds."""

CLASSES = {"attention": ("F1",), "product": ("F2", "F6"), "block_scale": ("F3",), "elementwise": ("F5", "F7")}
"""Classes of kernels, and the groups of published whole kernels that tell the model's error for each."""

ERRORS = "class_errors.json"
"""The file of sim/validation with the mean absolute error of each class, which `aiter-like sim validate --kernels DIR
--page FOLDER` writes beside the page KERNELS.md."""

SUSTAINED = {"bf16": (1207.0, 0.943), "fp16": (1115.0, 0.944), "8-bit": (1230.0, 0.831)}
"""The clocks in MHz at which power holds products of these operands, and the share of them in which the matrix units
work: AMD, "measuring max achievable FLOPS", part 2 (medians of 708, 654 and 1,273 TFLOP/s)."""

VECTOR_LOAD = 1014 / 1837
"""Power that a busy vector unit takes, of what a busy matrix unit takes: tingqli/pyhip's clocks of an MI308X under each
alone. Its streams run at 1,592 MHz, where 80 CUs share the power that moving as many bytes takes; those of an MI300X,
with 304, at 2,051 (the raw logs of SC25), so that memory adds nothing here."""


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


def busy_shares(launches: Sequence[Mapping]) -> tuple[float, float]:
    """The shares of the launches' modelled time in which the matrix and the vector units work."""
    total = sum(one["modelled_us"] for one in launches)
    matrix, vector = (sum(one["modelled_us"] * one["busy"][unit] for one in launches) / total
                      for unit in ("matrix", "vector"))
    return matrix, vector


def sustained_mhz(operands: str, matrix_busy: float, vector_busy: float) -> float:
    """The clock that power leaves to a kernel under sustained load, at most PEAK_MHZ.

    A busy clock of a unit is taken to need the same energy at every clock, since voltage hardly falls below the one of
    such load. So the clock falls as the shares of time rise in which the matrix and the vector units work.

    Args:
        operands: of its products, of SUSTAINED; "": it has none.
        matrix_busy, vector_busy: these shares, as a record's `busy` has them.
    """
    mhz, share = SUSTAINED[operands or "bf16"]
    load = matrix_busy / share + VECTOR_LOAD * vector_busy
    return min(mhz / load, PEAK_MHZ) if load > 0 else PEAK_MHZ


def class_of(home: str, name: str) -> str:
    """The class of CLASSES of an operator, whose module is `home`."""
    if "blockscale" in name:
        return "block_scale"
    families = {"attention": "attention", "mla": "attention", "gemm": "product", "moe": "product"}
    return families.get(home.removeprefix("aiter_like.ops.").partition(".")[0], "elementwise")


def class_error(kind: str) -> float:
    """The model's mean absolute error on published whole kernels of a class of CLASSES, relative: two modelled times
    that differ by less say nothing.
    """
    return class_errors()[kind]


@functools.cache
def class_errors() -> dict[str, float]:
    """Class → class_error()."""
    return json.loads((Path(__file__).parent / "validation" / ERRORS).read_text(encoding="utf-8"))["errors"]


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
    off = f", within {launch['sample_error']:.1%} as far as its own rounds tell" if launch["sample_error"] else ""
    place = "the chip's" if launch["xcds"] > 1 else "an XCD's"
    workgroups, cus = (launch[name] * launch["xcds"] for name in ("workgroups_of_xcd", "cus_of_xcd"))
    return [f"modelled (version {launch['model']}): {launch['modelled_clk']:.0f} clk, {launch['modelled_us']:.1f} us "
            f"at {launch['clock_mhz']:.0f} MHz{rate}",
            f"modelled from {launch['recorded']} of {place} {workgroups} workgroups on {cus} CUs{off}",
            f"modelled share of time that units are busy: {busy or 'none to speak of'}",
            f"modelled share of the waves' time that waits: {waits or 'none'}",
            f"modelled caches: {', '.join(hits) or 'not used'}"]
