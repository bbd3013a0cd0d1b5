# SPDX-License-Identifier: MIT
"""One self-contained HTML page of profiles: this folder's `assets/` and the data, in one file that loads nothing."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from aiter_like import pages
from aiter_like.sim.profiling import sources, summary

LAUNCHES, TIMELINES = 24, 6
"""How many launches a page has, the longest ones, and how many of them with a timeline, which takes a megabyte."""

_SCRIPTS = ("base", "overview", "roofline", "timeline", "code", "arrows", "memory", "banks", "compare", "main")


def page(found: Sequence[dict], compared: dict | None = None) -> str:
    """The page.

    Args:
        found: profiles, the longest first; it says how many are left out.
        compared: what changed since before, of comparison.py, for the first of them.
    """
    shown = []
    for number, one in enumerate(found[:LAUNCHES]):
        timeline = one["timeline"] if number < TIMELINES else {"reasons": [], "waves": [], "events": []}
        shown.append({**one, "timeline": timeline, "title": summary.short_name(one)})
    names = {sources.place(source)[0] for one in shown for source in one["lines"]}
    data = {"profiles": shown, "sources": {name: sources.lines(name) for name in sorted(names) if name},
            "comparison": compared, "left_out": len(found) - len(shown)}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return _template().replace("/*DATA*/", text)


@cache
def _template() -> str:
    def asset(name: str) -> str:
        return (Path(__file__).with_name("assets") / name).read_text()

    scripts = "\n".join(asset(f"{name}.js") for name in _SCRIPTS)
    return pages.page("Modelled profile", asset("page.html"), asset("page.css"), scripts)
