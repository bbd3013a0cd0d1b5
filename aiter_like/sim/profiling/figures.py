# SPDX-License-Identifier: MIT
"""The figures of a profile's whole launch: its bound, its arithmetic, its traffic per level of memory. Text,
page and comparison show these figures and none of their own.
"""

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from aiter_like.sim import modelling

_BOUND = 0.6  # a unit that is busy for this share of the time is what a kernel is bound by
_VECTOR_MEMORY = ("global", "flat", "mubuf", "scratch")
_LINE = 128  # bytes
# Operations per lane as AMD's profilers count them: an addition or multiplication is one, so is a transcendental.
_ONE = re.compile(r"v_(?:pk_)?(?:add|sub|subrev|mul|exp|log|rcp|rsq|sqrt|sin|cos)(?:_legacy)?_f(?:16|32|64)")
_TWO = re.compile(r"v_(?:pk_)?(?:fma|fmac|fmamk|fmaak|mad|mac|fma_mix)(?:_legacy)?_f(?:16|32|64)|v_fma_mix")
_DOT = re.compile(r"v_dot2c?_f32_(?:f16|bf16)")


def bound(launch: dict) -> str:
    """Names the bound of a launch: the busiest unit, a grid that leaves CUs without work, or what its waves wait
    for."""
    unit, share = max(launch["busy"].items(), key=lambda item: item[1])
    if share >= _BOUND:
        return f"{unit} ({share:.0%} busy)"
    if idle_cus(launch) >= launch["cus_of_xcd"] / 4:
        return f"grid: no workgroup for {idle_cus(launch)} of {launch['cus_of_xcd']} CUs"
    reasons = modelling.stalls(launch["instructions"])
    if not reasons:
        return "issue"
    return f"waits: {next(iter(reasons))}"


def advice(bound: str) -> dict[str, str]:
    """`meaning` and `remedy` of a bound."""
    return _advice()[bound.removeprefix("waits: ").partition(" (")[0].partition(":")[0]]


@functools.cache
def _advice() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("assets").joinpath("advice.toml").read_text(encoding="utf-8"))


def idle_cus(launch: dict) -> int:
    """CUs of an XCD that have no workgroup, because the grid has too few."""
    return max(launch["cus_of_xcd"] - launch["workgroups_of_xcd"], 0)


def of(profile: dict, counted_scale: float, replayed_scale: float) -> dict:
    """The figures of a whole launch.

    Args:
        profile: with `instructions`, `counts`, `traffic`, `roofs` and `modelled_us`.
        counted_scale: workgroups of the launch per counted one.
        replayed_scale: … per replayed one.

    Returns:
        `flop`: of matrix operations by type, and of vector arithmetic under "vector".
        `compute`: for each of these that there are `name`, `flop`, `flop_per_s`, `roof` (the name of the roof above
        it), `share` of it.
        `levels`: from the lanes down to the memory, `name`, `bytes`, `bytes_per_s`, `share` of its roof or None, and
        where the level is a cache `lines` that it is asked for and `hits`.
        `asked_bytes`, `segment_bytes` (of 64 B, distinct within each access); `moved_bytes` beyond the L2;
        `lines_128`: what the segments of 128 B hold.
    """
    counts, seconds = profile["counts"], max(profile["modelled_us"], 1e-9) * 1e-6
    roofs = {roof["name"]: roof["per_second"] for roof in profile["roofs"]}
    flop = {name: count * counted_scale for name, count in counts["mfma_flops"].items()}
    flop["vector"] = vector_flop(profile["instructions"]) * counted_scale
    compute = []
    for name, count in flop.items():
        roof = "fp8_fp8" if name[:3] in ("fp8", "bf8") else "vector f32" if name == "vector" else name
        if count and roof in roofs:
            rate = count / seconds
            compute.append({"name": name, "flop": count, "flop_per_s": rate, "roof": roof, "share": rate / roofs[roof]})
    levels = _levels(profile, counted_scale, replayed_scale)
    for level in levels:
        rate = level["bytes"] / seconds
        level.update(bytes_per_s=rate, share=rate / roofs[level["name"]] if level["name"] in roofs else None)
    return {"flop": flop, "compute": compute, "levels": levels, "asked_bytes": counts["global_bytes"] * counted_scale,
            "segment_bytes": 64 * counts["segments_64"] * counted_scale,
            "lines_128": _LINE * counts["segments_128"] * counted_scale,
            "moved_bytes": next(level["bytes"] for level in levels if level["name"] == "HBM")}


def vector_flop(instructions: Iterable[dict]) -> int:
    """Additions and multiplications of floating-point numbers in vector arithmetic, of active lanes."""
    return sum(lane_flop(one["text"]) * one.get("active_lanes", 0) for one in instructions
               if one["class"] in ("valu", "trans"))


def lane_flop(text: str) -> int:
    """Those of one lane of an instruction."""
    mnemonic = text.partition(" ")[0]
    if _DOT.match(mnemonic):
        return 4
    once = 2 if _TWO.match(mnemonic) else 1 if _ONE.match(mnemonic) else 0
    return 2 * once if mnemonic.startswith("v_pk_") else once


def _levels(profile: dict, counted: float, replayed: float) -> list[dict]:
    traffic = profile["traffic"]

    def asked(*classes: str) -> float:
        return counted * sum(one.get("global_bytes", 0) + one.get("scratch_bytes", 0) for one in profile["instructions"]
                             if one["class"] in classes)

    beyond = traffic["mall_hits"] + traffic["hbm_lines"]
    return [{"name": "LDS", "bytes": profile["counts"]["lds_bytes"] * counted},
            {"name": "L1", "bytes": asked(*_VECTOR_MEMORY), "lines": traffic["l1_lines"] * replayed,
             "hits": traffic["l1_hits"] * replayed},
            {"name": "scalar L1", "bytes": asked("smem"), "lines": traffic["scalar_lines"] * replayed,
             "hits": traffic["scalar_hits"] * replayed},
            {"name": "L2", "bytes": (traffic["l2_read_bytes"] + traffic["l2_written_bytes"]) * replayed,
             "lines": (traffic["l2_lines"] + traffic["stored_lines"]) * replayed,
             "hits": (traffic["l2_hits"] + traffic["stored_hits"]) * replayed},
            {"name": "MALL", "bytes": _LINE * (beyond + traffic["written_lines"]) * replayed,
             "lines": beyond * replayed, "hits": traffic["mall_hits"] * replayed},
            {"name": "HBM", "bytes": _LINE * (traffic["hbm_lines"] + traffic["written_lines"]) * replayed}]
