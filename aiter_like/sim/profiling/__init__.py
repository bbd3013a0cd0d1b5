# SPDX-License-Identifier: MIT
"""Profiles of launches on the cycle model: what was counted and what is modelled, put together; as text, page, traces.

Every time in a profile is modelled. Nothing here is measured.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from aiter_like import paths
from aiter_like.sim import counting, modelling

SCHEMA = 1
"""Of a profile: see `profiles`."""

TIMELINE = 20_000
"""Instructions of one CU that a profile lists with their times."""

_BOUND = 0.6  # a unit that is busy for this share of the time is what a kernel is bound by


@contextlib.contextmanager
def profiled(found: list[dict], sample: bool = True, clock_mhz: float = modelling.PEAK_MHZ) -> Iterator[None]:
    """Adds a profile of each launch of the block to `found` at its end.

    Args:
        sample: only workgroups that the model replays run; memory is then not what the launches would leave.
        clock_mhz: at which modelled cycles become time.
    """
    counts: list[dict] = []
    cycles: list[dict] = []
    with counting.counted(counts), modelling.modelled(cycles, sample, clock_mhz, TIMELINE):
        yield
    found += profiles(counts, cycles)


def profiles(counts: Sequence[dict], cycles: Sequence[dict]) -> list[dict]:
    """A profile of each launch that the cycle model has seen.

    Returns:
        dicts with the keys of a modelled launch (csrc/sim/README.md, "The cycle model"), whose `instructions` have the
        counts of csrc/sim/README.md, "Counters", too; `counts`: the totals of what ran; `registers`; `bound`.
    """
    found = []
    for counted, one in zip(counts, cycles, strict=True):
        by_pc = {line["pc"]: line for line in counted["instructions"]}
        lines = [{**by_pc[line["pc"]], **line} for line in one["instructions"]]
        found.append({**one, "schema": SCHEMA, "instructions": lines, "counts": counted["totals"],
                      "registers": counted["registers"], "bound": bound(one)})
    return found


def bound(launch: dict) -> str:
    """What a launch is bound by: the busiest unit, or what its waves wait for."""
    unit, share = max(launch["busy"].items(), key=lambda item: item[1])
    if share >= _BOUND:
        return f"{unit} ({share:.0%} busy)"
    reasons = modelling.stalls(launch["instructions"])
    if not reasons:
        return "issue"
    return f"waits: {next(iter(reasons))}"


def summary(profile: dict, lines: int = 8) -> list[str]:
    """One screen of text."""
    counts, occupancy = profile["counts"], profile["occupancy"]
    ran = max(profile["recorded"], 1)
    scale = 8 * profile["workgroups_of_xcd"] / ran
    traffic = profile["traffic"]
    moved = 128 * scale * (traffic["hbm_lines"] + traffic["written_lines"])
    text = [f"{profile['kernel']}, grid {profile['grid']}, block {profile['block']}",
            f"bound (modelled): {profile['bound']}", *modelling.summary(profile),
            f"occupancy: {occupancy['waves_per_simd']} waves per SIMD, limited by {occupancy['limiter']}",
            f"LDS: {counts['lds_conflict_clk']} of {counts['lds_clk']} clk lost in bank conflicts; global memory: "
            f"{counts['segments_64'] / max(counts['global_bytes'], 1) * 64:.2f} bytes of segments per byte asked for; "
            f"modelled from memory {moved / 1e6:.1f} MB in all",
            "modelled share of the waves' time, by line:"]
    spent = {source: clk for source, clk in by_source(profile).items() if clk}
    total = sum(spent.values()) or 1
    for source, clk in sorted(spent.items(), key=lambda item: -item[1])[:lines]:
        text.append(f"  {clk / total:6.1%}  {source or '(no line)'}")
    return text


def by_source(profile: dict) -> dict[str, float]:
    """"file:line" → modelled cycles that waves spent there, issuing and waiting."""
    sums: dict[str, float] = {}
    for one in profile["instructions"]:
        sums[one["source"]] = sums.get(one["source"], 0) + one["busy_clk"] + sum(one["stall_clk"].values())
    return sums


def comparison(before: dict, after: dict) -> list[str]:
    """What changed between two profiles, as lines of text."""
    rows = [("modelled clk", before["modelled_clk"], after["modelled_clk"]),
            ("wave instructions per workgroup", *(one["counts"]["executed"] / max(one["recorded"], 1)
                                                  for one in (before, after))),
            ("LDS conflict clk per workgroup", *(one["counts"]["lds_conflict_clk"] / max(one["recorded"], 1)
                                                 for one in (before, after))),
            ("waves per SIMD", before["occupancy"]["waves_per_simd"], after["occupancy"]["waves_per_simd"])]
    for unit in before["busy"]:
        rows.append((f"{unit} busy, %", 100 * before["busy"][unit], 100 * after["busy"][unit]))
    both = [modelling.stalls(one["instructions"]) for one in (before, after)]
    per = [max(one["recorded"], 1) for one in (before, after)]
    for reason in sorted({*both[0], *both[1]}):
        rows.append((f"waits for {reason}, clk per workgroup", *(found.get(reason, 0) / groups
                                                                 for found, groups in zip(both, per, strict=True))))
    return [f"{'modelled, not measured':44} {'before':>14} {'after':>14} {'change':>9}",
            *(f"{name:44} {old:14.1f} {new:14.1f} {(f'{new / old - 1:+.1%}' if old else ''):>9}"
              for name, old, new in rows)]


def chrome_trace(profile: dict) -> dict:
    """The timeline in the format of chrome://tracing and Perfetto: a microsecond there stands for a modelled cycle."""
    names = [one["text"] for one in profile["instructions"]]
    events = []
    for wave, simd, place, why, since, at, until in profile["timeline"]:
        one = {"ph": "X", "pid": f"SIMD {simd}", "tid": f"wave {wave}"}
        if since < at:
            events.append({**one, "name": f"waits: {why}", "cat": "stall", "ts": since, "dur": at - since})
        events.append({**one, "name": names[place], "cat": "issue", "ts": at, "dur": max(until - at, 1)})
    return {"traceEvents": events, "otherData": {"modelled": profile["model"], "unit": "1 us = 1 modelled clk"}}


def page(found: Sequence[dict]) -> str:
    """A self-contained HTML page of profiles."""
    files = {line["source"].rpartition(":")[0] for one in found for line in one["instructions"]}
    texts = {name: text for name in sorted(files) if name and (text := _source_text(name))}
    data = json.dumps({"profiles": list(found), "sources": texts}, separators=(",", ":")).replace("</", "<\\/")
    return _template().replace("/*DATA*/", data)


@cache
def _template() -> str:
    return Path(__file__).with_name("page.html").read_text()


def _source_text(name: str) -> list[str]:
    """The lines of a file that the line table names: one of this package's, or one of the user's."""
    for path in (paths.csrc().parent / name, Path(name)):
        try:
            return path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
    return []
