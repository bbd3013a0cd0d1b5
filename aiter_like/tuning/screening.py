# SPDX-License-Identifier: MIT
"""An analytic estimate of a launch, from its counts and its occupancy: which candidates the cycle model is worth asking
about. Used by sim_clock.py.

Nothing is replayed here. A launch takes as long as the busiest of what its waves share, and the last wave's way from
its first instruction to its last; or as long as waves one after the other take for their ways, whichever is longer.
Instructions of a straight line take what llvm-mca says, where it is installed, else what their classes take.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiter_like.sim import library
from aiter_like.sim.validation import mca

_LINE = 128
_PIECE = 64  # bytes that the host's memory is aligned to: more depends on where it happens to lie
_BRANCHES = ("branch", "end")
_ARITHMETIC = ("valu", "trans", "mfma", "salu")
_MEMORY = ("global", "flat", "scratch", "mubuf")


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of one launch.

    Attributes:
        clk: that it takes, roughly: good for an order of candidates and for nothing else.
        bound: what that comes from.
    """

    clk: float
    bound: str


def estimate(launch: Mapping[str, Any], useful_bytes: int) -> Estimate:
    """Estimates a launch's cycles.

    Args:
        launch: its counts (csrc/sim/MODEL.md, "Counters"), of all its workgroups or of a sample.
        useful_bytes: that the call has to move between memory and the chip.
    """
    p, totals = parameters(), launch["totals"]
    groups = math.prod(launch["grid"])
    scale = groups / launch["workgroups"]
    cus = p["xcds"] * p["cus"]
    per_cu = max(groups / cus, 1.0)  # workgroups of a busy CU
    own = per_cu / launch["workgroups"]  # counts of the sample → of a busy CU
    asked = _PIECE * totals["segments_64"] * scale
    vector, matrix = _pipes(launch["instructions"])
    l2_bytes = p["xcds"] * p["l2_channels"] * _LINE / p["channel_clk"]  # per clk
    hbm_bytes = p["hbm_read_tb_per_s"] * 1e6 / p["clock_mhz"]
    shared = {
        # Few waves hide little of one of these behind another one.
        "vector units, matrix units and LDS": own * ((vector + matrix) / p["simds"] + totals["lds_clk"]),
        "L1": own * _PIECE * totals["segments_64"] / p["l1_fill_bytes"],
        "L2": asked / l2_bytes,
        "memory": min(useful_bytes, asked) / hbm_bytes}
    beyond = min(useful_bytes / asked, 1.0) if asked else 0.0
    resident = max(launch["occupancy"]["workgroups_per_cu"], 1)
    rounds = max(per_cu / resident, 1.0)
    way = _way(launch, beyond) + p["dispatch_clk"]
    bound, clk = max(shared.items(), key=lambda item: item[1])
    if clk + way < rounds * way:
        return Estimate(rounds * way, "waves one after the other")
    return Estimate(clk + way, bound)


@functools.cache
def parameters() -> dict[str, float]:
    """Those of the cycle model's numbers that an estimate needs (csrc/sim/timing/parameters.h)."""
    return library.json_of(library.load_timing().aiter_like_sim_model_parameters())


def _pipes(instructions: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Clk that instructions keep the vector units and the matrix units busy."""
    p, vector, matrix = parameters(), 0.0, 0.0
    for one in instructions:
        if one["class"] == "mfma":
            matrix += one["executed"] * one["passes"] * p["pass_clk"]
        elif one["class"] in ("valu", "trans"):
            vector += one["executed"] * (p["trans_clk"] if one["class"] == "trans" else p["issue_clk"])
    return vector, matrix


def _way(launch: Mapping[str, Any], beyond: float) -> float:
    """Clk from a wave's first instruction to its last, if nobody is in its way.

    Args:
        beyond: the share of its loads that come from memory; the others find their lines in the L2.
    """
    p, totals, instructions = parameters(), launch["totals"], launch["instructions"]
    latency = {"vmcnt": beyond * p["hbm_latency_clk"] + (1 - beyond) * p["l2_latency_clk"],
               "lgkmcnt": p["lds_latency_clk"]}
    clk = sum(waits(instructions, counter) * latency[counter] for counter in latency)
    clk += totals["barriers"] * p["barrier_clk"] + totals["by_class"].get("branch", 0) * p["branch_taken_clk"]
    straight = list(straight_lines(instructions))
    known = mca.cycles(tuple(tuple(one["text"] for one in line) for line in straight))
    for line, cycles in zip(straight, known or [None] * len(straight), strict=True):
        executed = line[0]["executed"]
        if cycles is None:
            clk += executed * sum(_issue(one) for one in line)
        else:  # llvm-mca has transcendental functions at full rate
            late = sum(p["trans_clk"] - p["issue_clk"] for one in line if one["class"] == "trans")
            clk += executed * (cycles * mca.CLK + late)
    others = sum(one["executed"] for one in instructions if one["class"] not in _ARITHMETIC)
    return (clk + others * p["issue_clk"]) / launch["waves"]


def _issue(one: Mapping[str, Any]) -> float:
    p = parameters()
    return {"trans": p["trans_clk"], "mfma": one.get("passes", 0) * p["pass_clk"]}.get(one["class"], p["issue_clk"])


def waits(instructions: Sequence[Mapping[str, Any]], counter: str) -> int:
    """How often waves wait for memory that they have asked for since they last waited: of several waits in a row for
    loads that were issued together, the first takes the time.
    """
    classes = _MEMORY if counter == "vmcnt" else ("ds", "smem", "flat")
    is_pending, count = False, 0
    for one in instructions:
        if one["class"] in classes:
            is_pending = True
        elif one.get(f"waits_{counter}") and is_pending:
            is_pending, count = False, count + one["executed"]
    return count


def straight_lines(instructions: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The arithmetic instructions of a launch in runs that are executed equally often, with no branch between."""
    line: list[Mapping[str, Any]] = []
    for one in instructions:
        if line and (one["executed"] != line[0]["executed"] or one["class"] in _BRANCHES):
            yield line
            line = []
        if one["class"] in _ARITHMETIC:
            line.append(one)
    if line:
        yield line
