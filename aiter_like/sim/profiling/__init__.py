# SPDX-License-Identifier: MIT
"""Profiles of launches on the cycle model: what was counted and what is modelled, put together. Text, pages and files
for other programs are made of them by the modules beside this one.

Every time in a profile is modelled. Nothing here is measured.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from aiter_like.sim import modelling, session
from aiter_like.sim.profiling import figures, sources

SCHEMA = 2
"""The version of a profile: see `profiles`."""

TIMELINE = 20_000
"""Instructions of one CU that a profile lists with their times."""

Needs = Callable[[str, tuple], tuple[int, int] | None]
"""A function of an operator's name and a call's arguments: the (bytes, flops) that the call needs at least, None = not
known."""


@contextlib.contextmanager
def profiled(found: list[dict], sample: bool = True, clock_mhz: float = modelling.PEAK_MHZ,
             needs: Needs | None = None) -> Iterator[None]:
    """Adds a profile of each launch of the block to `found` at its end.

    Args:
        sample: only workgroups that the model replays run; memory is then not what the launches would leave.
        clock_mhz: at which modelled cycles become time.
        needs: what calls need at least; launches without it have no `call`.
    """
    calls: dict[int, dict] = {}
    with session.enabled(checks=False, on_report="collect", counters=True, model="sample" if sample else "whole",
                         clock_mhz=clock_mhz, timeline=TIMELINE) as open_session:

        @contextlib.contextmanager
        def watch(name: str, args: tuple) -> Iterator[None]:
            first = len(open_session.modelled)
            yield
            launches = range(first, len(open_session.modelled))
            least = needs(name, args) if needs and launches else None
            if least:
                call = {"operator": name, "bytes": least[0], "flops": least[1], "launches": len(launches)}
                calls.update(dict.fromkeys(launches, call))  # a call around others says more than these

        with session.calls_watched(watch):
            yield
    found += profiles(open_session.launches, open_session.modelled, calls)


def profiles(counts: Sequence[dict], cycles: Sequence[dict], calls: Mapping[int, dict] | None = None) -> list[dict]:
    """A profile of each launch that the cycle model has seen.

    Returns:
        dicts with the keys of a modelled launch (csrc/sim/MODEL.md, "The cycle model"), whose `instructions` have the
        counts of csrc/sim/MODEL.md, "Counters", too; `counts`: the totals of what ran; `registers`; `bound`, and what
        that means: `advice`; `roofs` of the chip; `figures` of the whole launch (figures.py); `lines`: "file:line" →
        its text; `call`: of the operator's call that made the launch, where it is known, what it needs at least:
        `operator`, `bytes`, `flops`, and how many `launches` it made.
    """
    found = []
    for number, (counted, one) in enumerate(zip(counts, cycles, strict=True)):
        by_pc = {line["pc"]: line for line in counted["instructions"]}
        lines = [{**by_pc[line["pc"]], **line} for line in one["instructions"]]
        profile = {**one, "schema": SCHEMA, "instructions": lines, "counts": counted["totals"],
                   "registers": counted["registers"], "bound": figures.bound(one),
                   "advice": figures.advice(figures.bound(one)),
                   "roofs": modelling.roofs(one["clock_mhz"]), "lines": sources.texts(lines)}
        total = math.prod(one["grid"])
        profile["figures"] = figures.of(profile, total / max(counted["workgroups"], 1), total / max(one["recorded"], 1))
        if calls and number in calls:
            profile["call"] = calls[number]
        found.append(profile)
    return found
