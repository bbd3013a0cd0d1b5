# SPDX-License-Identifier: MIT
"""The report of a tuning run: a table per shape, what failed, and the choices under the device's roofline.

Markdown, and one HTML file that needs nothing else. Written by `aiter-like tune`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiter_like.tuning.tuner import Outcome, Result

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 420, 64, 16, 16, 44


@dataclass(frozen=True)
class Point:
    """A choice under the roofline: `x` flop/byte, or bytes where the operator has no flops; `y` per second."""

    x: float
    y: float
    title: str


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes OP.ARCH.md and OP.ARCH.html; their paths.

    Raises:
        OSError: the directory cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{outcome.op}.{outcome.device['arch']}"
    pages = [(folder / f"{stem}.md", markdown(outcome)), (folder / f"{stem}.html", page(outcome))]
    for path, text in pages:
        path.write_text(text, encoding="utf-8")
    return [path for path, _ in pages]


def markdown(outcome: Outcome) -> str:
    """The report as Markdown."""
    lines = [f"# {outcome.op} on {_device(outcome)}", "", *_facts(outcome), ""]
    header, rows = _choices(outcome)
    lines += _table(header, rows)
    lines += ["", "## Candidates", ""]
    for result in outcome.results:
        header, rows = _candidates(result)
        lines += [f"### {_key(result)}", "", *_table(header, rows), ""]
        if result.plan and result.plan.left_out:
            lines += [f"- not tried: {name}: {reason}" for name, reason in result.plan.left_out.items()] + [""]
    return "\n".join(lines)


def page(outcome: Outcome) -> str:
    """The report as one HTML file."""
    parts = [f"<h1>{html.escape(outcome.op)} on {html.escape(_device(outcome))}</h1>"]
    parts += [f"<p>{html.escape(fact)}</p>" for fact in _facts(outcome)]
    parts += [roofline(outcome), *_html_table(*_choices(outcome)), "<h2>Candidates</h2>"]
    for result in outcome.results:
        parts += [f"<details><summary>{html.escape(_key(result))}</summary>", *_html_table(*_candidates(result))]
        left_out = result.plan.left_out if result.plan else {}
        parts += [f"<p>not tried: {html.escape(name)}: {html.escape(why)}</p>" for name, why in left_out.items()]
        parts.append("</details>")
    style = ("body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
             "td,th{border:1px solid #bbb;padding:2px 8px;text-align:right}td:first-child,th:first-child{"
             "text-align:left}summary{cursor:pointer;padding:4px}")
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(outcome.op)}</title>'
            f"<style>{style}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


def roofline(outcome: Outcome) -> str:
    """An inline SVG, log-log: the choices, and the ceilings measured in the same run; "" where there is no time."""
    points = [_point(result) for result in outcome.results if result.best is not None and result.plan.bytes]
    if not points or not outcome.device["is_time"]:
        return ""
    has_flops = any(result.plan.flops for result in outcome.results if result.plan)
    ceilings = outcome.ceilings or (0.0, 0.0)
    roof = [min(ceilings[1], point.x * ceilings[0]) if has_flops else ceilings[0] for point in points]
    ridge = [ceilings[1] / ceilings[0]] if has_flops and outcome.ceilings else []
    x_low, x_high = _decades([*(point.x for point in points), *ridge])
    y_low, y_high = _decades([*(point.y for point in points), *filter(None, roof)])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return (_LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" role="img">'
             "<title>roofline</title>"]
    parts += _axes(at, (x_low, x_high), (y_low, y_high), has_flops)
    if outcome.ceilings:
        xs = [10 ** (x_low + (x_high - x_low) * step / 60) for step in range(61)]
        ys = [min(ceilings[1], x * ceilings[0]) if has_flops else ceilings[0] for x in xs]
        line = " ".join("{:.1f},{:.1f}".format(*at(x, max(y, 10 ** y_low))) for x, y in zip(xs, ys))
        parts.append(f'<polyline points="{line}" fill="none" stroke="#c33" stroke-width="2"/>')
    for point in points:
        x, y = at(point.x, point.y)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#36c" fill-opacity=".7">'
                     f"<title>{html.escape(point.title)}</title></circle>")
    return "\n".join([*parts, "</svg>"])


def _axes(at: Callable[[float, float], tuple[float, float]], x_range: tuple[int, int], y_range: tuple[int, int],
          has_flops: bool) -> Iterator[str]:
    text = '<text x="{:.0f}" y="{:.0f}" font-size="12" text-anchor="{}">{}</text>'
    for exponent in range(x_range[0], x_range[1] + 1):
        x, bottom = at(10.0 ** exponent, 10.0 ** y_range[0])
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:.1f}" stroke="#ddd"/>'
        yield text.format(x, bottom + 16, "middle", f"1e{exponent}")
    for exponent in range(y_range[0], y_range[1] + 1):
        left, y = at(10.0 ** x_range[0], 10.0 ** exponent)
        yield f'<line x1="{left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield text.format(left - 6, y + 4, "end", f"1e{exponent}")
    what = "flop per byte; flop/s" if has_flops else "useful bytes of a call; bytes/s"
    yield text.format(_WIDTH / 2, _HEIGHT - 6, "middle", f"{what}; the line: ceilings measured in this run")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _point(result: Result) -> Point:
    plan, seconds = result.plan, result.value * 1e-6
    title = f"{_key(result)}: {plan.trials[result.best].title}, {result.value:.2f} µs"
    if plan.flops:
        return Point(plan.flops / plan.bytes, plan.flops / seconds, title)
    return Point(plan.bytes, plan.bytes / seconds, title)


# ---- tables


def _device(outcome: Outcome) -> str:
    device = outcome.device
    return f"{device['name']} ({device['arch']}, {device['cu_num']} CUs)"


def _facts(outcome: Outcome) -> list[str]:
    facts = [f"Values in {outcome.device['unit']}." + ("" if outcome.device["is_time"] else " No time, no rows.")]
    if outcome.ceilings:
        facts.append(f"Ceilings measured in this run: copy {outcome.ceilings[0] / 1e12:.2f} TB/s, "
                     f"bf16 matrix product {outcome.ceilings[1] / 1e12:.0f} TFLOP/s.")
    if outcome.skipped:
        facts.append(f"{len(outcome.skipped)} shapes had a row already.")
    if not outcome.is_complete:
        facts.append("The budget was spent before all candidates were tried.")
    return facts


def _key(result: Result) -> str:
    return " ".join(f"{name}={value}" for name, value in result.key.items())


def _choices(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    header = ["shape", "choice", "value", "before", "gain %", "TB/s", "% of copy", "TFLOP/s", "error", "note"]
    rows = []
    for result in outcome.results:
        if result.best is None:
            rows.append([_key(result), "none", *[""] * 7, result.note])
            continue
        plan, row = result.plan, [_key(result), result.plan.trials[result.best].title, f"{result.value:.2f}",
                                  f"{result.before:.2f}", f"{(result.before / result.value - 1) * 100:+.1f}"]
        speed = ["", "", ""]
        if outcome.device["is_time"]:
            rate = plan.bytes / result.value * 1e6
            speed = [f"{rate / 1e12:.2f}", f"{rate / outcome.ceilings[0] * 100:.0f}" if outcome.ceilings else "",
                     f"{plan.flops / result.value * 1e-6:.1f}" if plan.flops else ""]
        rows.append([*row, *speed, f"{result.results[result.best]['err']:.2g}", result.note])
    return header, rows


def _candidates(result: Result) -> tuple[list[str], list[list[str]]]:
    header = ["candidate", "status", "value", "against the first", "rounds", "error", "detail"]
    rows = []
    for trial, found in zip(result.plan.trials if result.plan else (), result.results):
        numbers = [f"{found['value']:.2f}", f"{found['ratio']:.3f} ± {found['spread'] / 2:.3f}", str(found["rounds"])
                   ] if found["status"] == "ok" else ["", "", ""]
        rows.append([trial.title, found["status"], *numbers, f"{found['err']:.2g}" if "err" in found else "",
                     found.get("detail", "")])
    return header, rows or [[result.note, *[""] * 6]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *map(line, rows)]


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return ["<table>", line(header, "th"), *(line(cells, "td") for cells in rows), "</table>"]
