# SPDX-License-Identifier: MIT
"""Exact counts of launches per instruction and source line, by csrc/sim/timing, and sums over them."""

import contextlib
from collections.abc import Iterable, Iterator

from aiter_like.sim import library
from aiter_like.sim.state import Block, current

SCHEMA = 1
"""The version of the records in `Session.launches`; csrc/sim/MODEL.md, "Counters", describes them. New keys do not
change it."""


@contextlib.contextmanager
def counted(launches: list[dict], sample: int = 0, leaves_out: bool = False) -> Iterator[None]:
    """Adds the counts of the block's launches to `launches`, at `take` and at the block's end.

    Args:
        sample: so many workgroups of a launch are counted, spread over its grid; 0: all.
        leaves_out: the other workgroups do not run; memory is then not what the launches would leave.

    Raises:
        ValueError: a sample is wanted while another block counts.
    """
    if sample and current.kept("counts"):
        raise ValueError("launches are counted already, and there is one choice of workgroups: end that block first")
    timing = library.load_timing()
    timing.aiter_like_sim_count(True, sample, leaves_out)
    try:
        with current.opened(Block(counts=launches), take):
            yield
    finally:
        timing.aiter_like_sim_count(False, sample, leaves_out)


def take() -> None:
    """Gives the launches that have ended to everybody who counts."""
    found = library.json_of(library.load_timing().aiter_like_sim_take_counts())
    for launch in found:
        launch.update(schema=SCHEMA, totals=totals(launch["instructions"]), lines=_lines(launch["instructions"]))
    current.give("counts", found)


def totals(instructions: Iterable[dict]) -> dict:
    """Sums over instructions: plain counts by their names, instructions by class, matrix operations by type, waits by
    counter, barriers, straddling instructions.
    """
    sums: dict = {"executed": 0, "by_class": {}, "waits": {"vmcnt": 0, "lgkmcnt": 0}, "barriers": 0, "straddling": 0,
                  "vector_instructions": 0, "active_lanes": 0, "mfma_passes": 0, "mfma_flops": {},
                  **dict.fromkeys(_PLAIN, 0)}
    for one in instructions:
        executed, kind = one["executed"], one["class"]
        sums["executed"] += executed
        sums["by_class"][kind] = sums["by_class"].get(kind, 0) + executed
        sums["straddling"] += executed * one.get("straddles", 0)
        sums["barriers"] += executed * (kind == "barrier")
        for counter in sums["waits"]:
            sums["waits"][counter] += executed * one.get(f"waits_{counter}", 0)
        if "active_lanes" in one:
            sums["vector_instructions"] += executed
            sums["active_lanes"] += one["active_lanes"]
        if kind == "mfma":
            sums["mfma_passes"] += executed * one["passes"]
            flops = sums["mfma_flops"]
            flops[one["type"]] = flops.get(one["type"], 0) + executed * one["flops"]
        for name in _PLAIN:
            sums[name] += one.get(name, 0)
    return sums


_PLAIN = ("global_bytes", "segments_64", "segments_128", "lds_bytes", "lds_clk", "lds_conflict_clk", "scratch_bytes",
          "atomic_lanes", "atomic_collisions")


def _lines(instructions: Iterable[dict]) -> dict[str, dict]:
    """"file:line" → `totals` of its instructions; "" has those that no line stands for."""
    by_line: dict[str, list[dict]] = {}
    for one in instructions:
        by_line.setdefault(one["source"], []).append(one)
    return {source: totals(own) for source, own in by_line.items()}


def summary(launch: dict) -> list[str]:
    """A launch's counts as lines of text."""
    sums, occupancy = launch["totals"], launch["occupancy"]
    limits = ", ".join(f"{name} {limit}" for name, limit in occupancy["limits"].items() if limit < 2**32 - 1)
    lanes = sums["active_lanes"] / max(sums["vector_instructions"], 1)
    lines = [f"{sums['executed']} wave instructions: " +
             ", ".join(f"{kind} {count}" for kind, count in sorted(sums["by_class"].items(), key=lambda kv: -kv[1])),
             f"occupancy: {occupancy['workgroups_per_cu']} workgroups per CU, {occupancy['waves_per_simd']} waves per "
             f"SIMD, limited by {occupancy['limiter']} (workgroups by {limits})",
             f"active lanes of vector instructions: {lanes:.1f} of 64"]
    if sums["mfma_passes"]:
        flops = ", ".join(f"{kind} {count:.4g}" for kind, count in sums["mfma_flops"].items())
        lines.append(f"matrix operations: {sums['mfma_passes']} passes of 4 clk, flops {flops}")
    if sums["segments_64"]:
        share = sums["global_bytes"] / (64 * sums["segments_64"])
        lines.append(f"global memory: {sums['global_bytes']} bytes asked for in {sums['segments_64']} segments of 64 B "
                     f"({share:.2f} per byte of them), {sums['segments_128']} of 128 B")
    if sums["lds_bytes"]:
        lines.append(f"LDS: {sums['lds_bytes']} bytes, {sums['lds_clk']} clk, {sums['lds_conflict_clk']} of them lost "
                     "in bank conflicts")
    if sums["atomic_lanes"]:
        lines.append(f"atomics: {sums['atomic_lanes']} lanes, {sums['atomic_collisions']} of them at another's address")
    registers = launch["registers"]
    if sums["scratch_bytes"] or registers["vgpr_spills"] or registers["sgpr_spills"]:
        lines.append(f"scratch: {sums['scratch_bytes']} bytes; spilled registers: {registers['vgpr_spills']} vector, "
                     f"{registers['sgpr_spills']} scalar")
    waits = ", ".join(f"{name} {count}" for name, count in sums["waits"].items())
    lines.append(f"waits: {waits}; barriers {sums['barriers']}; 8-byte instructions across a multiple of 8 bytes: "
                 f"{sums['straddling']}")
    return lines
