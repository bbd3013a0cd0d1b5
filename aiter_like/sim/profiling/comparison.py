# SPDX-License-Identifier: MIT
"""Two profiles beside one another: totals, units, waits, source lines and the instructions of each. Text and page show
the same figures, all of whole launches, so that kernels with other workgroups can be compared, too.
"""

import math
import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from aiter_like.sim import modelling
from aiter_like.sim.profiling import sources
from aiter_like.sim.profiling.summary import spent

_REGISTER = re.compile(r"\b([vsa])(?:\d+|\[\d+:\d+\])")
_OFFSET = re.compile(r"\b(offset\d?):\w+")


def pair(before: Sequence[dict], after: Sequence[dict]) -> tuple[dict, dict]:
    """The longest launch of `after`, and of `before` the longest of the same kernel, or else the longest."""
    last = max(after, key=lambda one: one["modelled_clk"])
    same = [one for one in before if one["kernel"] == last["kernel"]]
    return max(same or before, key=lambda one: one["modelled_clk"]), last


def of(before: dict, after: dict) -> dict:
    """The difference between two profiles.

    Returns:
        `names`: of the kernels; `totals`, `units`, `waits`: rows of `name`, `unit`, `before`, `after`; `lines`: rows of
        `source` (the place in each, or None), `text`, `before` and `after` in modelled cycles of waves, and
        `instructions`: rows of `text` without the numbers of registers, `times` and `clk` in each. The lines that
        changed most come first.
    """
    both = (before, after)
    return {"names": [one["name"] for one in both], "totals": _totals(both),
            "units": [_row(f"{unit} busy", "%", (100 * one["busy"][unit] for one in both)) for unit in before["busy"]],
            "waits": _waits(both), "lines": _lines(both)}


def text(compared: dict, lines: int = 8) -> list[str]:
    """One screen of it."""
    rows = [f"{'modelled, not measured':44} {'before':>14} {'after':>14} {'change':>9}"]
    for row in (*compared["totals"], *compared["units"], *compared["waits"]):
        unit = f", {row['unit']}" if row["unit"] else ""
        rows.append(_text_row(row["name"] + unit, row["before"], row["after"]))
    rows.append("clk of waves by line, those that changed most:")
    for line in compared["lines"][:lines]:
        place = line["source"][0] if line["source"][1] is None else line["source"][1]
        rows.append(_text_row(f"  {sources.shown(place)[-40:]}", line["before"], line["after"]))
    return rows


def _text_row(name: str, before: float, after: float) -> str:
    change = f"{after / before - 1:+.1%}" if before else ""
    return f"{name:44} {_number(before)} {_number(after)} {change:>9}"


def _number(value: float) -> str:
    return f"{value:14.3f}" if abs(value) < 10 else f"{value:14.1f}" if abs(value) < 1e6 else f"{value:14.4g}"


def _row(name: str, unit: str, values: Sequence[float]) -> dict:
    before, after = values
    return {"name": name, "unit": unit, "before": before, "after": after}


def _scale(profile: dict) -> float:
    """Workgroups of the launch per replayed one."""
    return math.prod(profile["grid"]) / max(profile["recorded"], 1)


def _totals(both: Sequence[dict]) -> list[dict]:
    def level(name: str) -> list[float]:
        return [next(one["bytes"] for one in profile["figures"]["levels"] if one["name"] == name) for profile in both]

    counts = [one["counts"] for one in both]
    rows = [_row("modelled time", "clk", [one["modelled_clk"] for one in both]),
            _row("wave instructions", "", [one["replayed_instructions"] * _scale(one) for one in both]),
            _row("flop of matrix operations", "", [one["mfma_flops"] for one in both]),
            _row("flop of vector arithmetic", "", [one["figures"]["flop"]["vector"] for one in both]),
            _row("workgroups", "", [math.prod(one["grid"]) for one in both]),
            _row("waves per SIMD", "", [one["occupancy"]["waves_per_simd"] for one in both]),
            _row("vector registers", "", [one["registers"]["vgprs"] + one["registers"]["agprs"] for one in both]),
            _row("LDS of a workgroup", "B", [one["lds_bytes"] for one in both]),
            _row("bank cycles lost in conflicts", "%", [100 * one["lds_conflict_clk"] / max(one["lds_clk"], 1)
                                                        for one in counts]),
            _row("segments of 64 B per byte asked for", "B", [one["figures"]["segment_bytes"] /
                                                              max(one["figures"]["asked_bytes"], 1) for one in both])]
    return rows + [_row(f"through {name}", "B", level(name)) for name in ("LDS", "L1", "L2", "HBM")]


def _waits(both: Sequence[dict]) -> list[dict]:
    scales = [_scale(one) for one in both]
    stalls = [modelling.stalls(one["instructions"]) for one in both]
    reasons = dict.fromkeys([*stalls[1], *stalls[0]])
    issues = [sum(line["busy_clk"] for line in one["instructions"]) * scale for one, scale in zip(both, scales)]
    return [_row("waves issue", "clk", issues)] + [
        _row(f"waves wait: {reason}", "clk", [one.get(reason, 0) * scale for one, scale in zip(stalls, scales)])
        for reason in reasons]


def _lines(both: Sequence[dict]) -> list[dict]:
    """Rows of source lines; those that are in one profile alone, too."""
    rows = []
    for places in matched(both):
        groups = [[line for line in one["instructions"] if line["source"] == place] if place is not None else []
                  for one, place in zip(both, places)]
        known = next((one["lines"][place] for one, place in zip(both[::-1], places[::-1])
                      if place is not None and place in one["lines"]), "")
        clk = [sum(map(spent, group)) * _scale(one) for one, group in zip(both, groups)]
        if any(clk):
            rows.append({"source": places, "text": known.strip(), "before": clk[0], "after": clk[1],
                         "instructions": _instructions(groups, [_scale(one) for one in both])})
    return sorted(rows, key=lambda row: -abs(row["after"] - row["before"]))


def matched(both: Sequence[dict]) -> list[list[str | None]]:
    """Pairs of places: lines of one file with the same text in the same order, else with the same number.

    Args:
        both: of each, `instructions`, whose `source` says where they are from, and `lines`: place → text.
    """
    files: list[dict[str, list[int]]] = []
    for one in both:
        found: dict[str, list[int]] = {}
        for source in {line["source"] for line in one["instructions"]}:
            name, line = sources.place(source)
            found.setdefault(name, []).append(line)
        files.append({name: sorted(lines) for name, lines in found.items()})
    pairs: list[list[str | None]] = []
    for name in sorted({*files[0], *files[1]}):
        lines = [one.get(name, []) for one in files]
        places = [[f"{name}:{line}" if name else "" for line in own] for own in lines]
        pairs += _matched_lines(places, [[one["lines"].get(place, place).strip() for place in own]
                                         for one, own in zip(both, places)])
    return pairs


def _matched_lines(places: Sequence[Sequence[str]], texts: Sequence[Sequence[str]]) -> list[list[str | None]]:
    pairs: list[list[str | None]] = []
    for _, i1, i2, j1, j2 in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        old, new = list(places[0][i1:i2]), list(places[1][j1:j2])
        if texts[0][i1:i2] == texts[1][j1:j2]:
            pairs += [[one, other] for one, other in zip(old, new)]
            continue
        pairs += [[place, place if place in new else None] for place in old]
        pairs += [[None, place] for place in new if place not in old]
    return pairs


def _instructions(groups: Sequence[Sequence[dict]], scales: Sequence[float]) -> list[dict]:
    """The instructions of a line by their form: which registers they use differs from one compilation to the next."""
    forms: dict[str, dict] = {}
    for side, (group, scale) in enumerate(zip(groups, scales)):
        for one in group:
            form = _OFFSET.sub(r"\1", _REGISTER.sub(r"\1", one["text"]))
            row = forms.setdefault(form, {"text": form, "times": [0, 0], "clk": [0, 0]})
            row["times"][side] += one["issued"] * scale
            row["clk"][side] += spent(one) * scale
    return sorted(forms.values(), key=lambda row: -abs(row["clk"][1] - row["clk"][0]))
