# SPDX-License-Identifier: MIT
"""The report of a tuning run: a table per shape, what failed, and the choices under the device's roofline.

Markdown, and one HTML file that needs nothing else. Written by `aiter-like tune`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiter_like import pages
from aiter_like.errors import TuningError
from aiter_like.tuning import roofline

if TYPE_CHECKING:
    from aiter_like.tuning.outcome import Outcome, Result

_ERROR = "relative L2 error"
_STYLE = """body { max-width: 1320px }
p { max-width: 70rem } :is(td, th):is(:nth-child(-n+2), :last-child) { text-align: left }
td:last-child { white-space: pre-wrap; min-width: 9rem } details { margin: .3rem 0 }
"""


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Writes OP.ARCH.md and OP.ARCH.html; their paths.

    Raises:
        TuningError: a page cannot be written.
    """
    stem = f"{outcome.op}.{outcome.device['arch']}"
    pages = [(folder / f"{stem}.md", markdown(outcome)), (folder / f"{stem}.html", page(outcome))]
    for path, text in pages:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TuningError(f"{path}:0: the report cannot be written: {error.strerror}") from error
    return [path for path, _ in pages]


def markdown(outcome: Outcome) -> str:
    """The report as Markdown."""
    lines = [f"# {outcome.op} on {_device(outcome)}", "", *_facts(outcome), ""]
    header, rows = _choices(outcome)
    lines += _table(header, rows)
    lines += ["", "## Candidates", ""]
    for result in outcome.results:
        header, rows = _candidates(outcome, result)
        lines += [f"### {_key(result)}", "", *_table(header, rows), ""]
        if result.plan and result.plan.left_out:
            lines += [f"- not tried: {name}: {reason}" for name, reason in result.plan.left_out.items()] + [""]
    return "\n".join(lines)


def page(outcome: Outcome) -> str:
    """The report as one HTML file."""
    parts = [f"<h1>{html.escape(outcome.op)} on {html.escape(_device(outcome))}</h1>"]
    parts += [f'<p class="dim">{html.escape(fact)}</p>' for fact in _facts(outcome)]
    plot = roofline.svg(outcome)
    caption = "A point without a label had no room for one: it says what it is under the pointer, as does the table."
    parts += [f'<figure><div class="wide">{plot}</div><figcaption>{caption}</figcaption></figure>'] if plot else []
    parts += [*_html_table(*_choices(outcome)), "<h2>Candidates</h2>"]
    for result in outcome.results:
        parts.append(f"<details><summary>{html.escape(_key(result))}</summary>")
        parts += _html_table(*_candidates(outcome, result))
        left_out = result.plan.left_out if result.plan else {}
        parts += [f"<p>not tried: {html.escape(name)}: {html.escape(why)}</p>" for name, why in left_out.items()]
        parts.append("</details>")
    return pages.page(f"{outcome.op} on {outcome.device['name']}", "\n".join(parts), _STYLE)


# ---- tables


def _device(outcome: Outcome) -> str:
    device = outcome.device
    return f"{device['name']} ({device['arch']}, {device['cu_num']} CUs)"


def _facts(outcome: Outcome) -> list[str]:
    device = outcome.device
    facts = [f"Values in {device['unit']}.", *device["about"]]
    if outcome.ceilings:
        facts.append(f"Ceilings measured in this run: copy {outcome.ceilings[0] / 1e12:.2f} TB/s, "
                     f"bf16 matrix product {outcome.ceilings[1] / 1e12:.0f} TFLOP/s.")
    facts.append("Errors are relative L2 errors, ‖result − reference‖ / ‖reference‖ over all finite elements, of "
                 "integers the part that differs; the reference runs in float64 where it can.")
    if not device["is_measured"]:
        facts.append("A call that would take the simulator too long to judge is judged by one of a smaller key, which "
                     "runs the same machine code; the note says which. Bytes moved are those that lanes ask for, "
                     "before any cache; intensity is the call's flops per byte moved, where the operator states flops, "
                     "else operations of vector lanes (op).")
    if outcome.skipped:
        facts.append(f"{len(outcome.skipped)} shape{'s' * (len(outcome.skipped) > 1)} had a row already.")
    if not outcome.is_complete:
        facts.append("The budget was spent before all candidates were tried.")
    return facts


def _key(result: Result) -> str:
    return " ".join(f"{name}={value}" for name, value in result.key.items())


def _choices(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    rates = ["TB/s", "% of copy", "TFLOP/s"] if outcome.device["is_measured"] else [
        "bytes moved", "of useful", "intensity"]
    header = ["shape", "choice", "value", "before", "gain %", *rates, _ERROR, "note"]
    rows = []
    for result in outcome.results:
        if result.best is None:
            rows.append([_key(result), "none", *[""] * 7, result.note])
            continue
        plan, row = result.plan, [_key(result), result.plan.trials[result.best].title, f"{result.value:.2f}",
                                  f"{result.before:.2f}", f"{(result.before / result.value - 1) * 100:+.1f}"]
        speed = ["", "", ""]
        if outcome.device["is_measured"]:
            rate = plan.bytes / result.value * 1e6
            speed = [f"{rate / 1e12:.2f}", f"{rate / outcome.ceilings[0] * 100:.0f}" if outcome.ceilings else "",
                     f"{plan.flops / result.value * 1e-6:.1f}" if plan.flops else ""]
        elif found := result.results[result.best].get("found"):
            speed = [f"{found['bytes']}", f"{found['bytes'] / plan.bytes:.2f}×" if plan.bytes else "",
                     _intensity(found, plan.flops)]
        rows.append([*row, *speed, f"{result.results[result.best]['err']:.2g}", result.note])
    return header, rows


def _intensity(found: Mapping[str, int], flops: int) -> str:
    """Arithmetic per byte moved: the flops that the operator states for the call, else operations of lanes."""
    if not found["bytes"]:
        return ""
    return f"{flops / found['bytes']:.3g} flop/B" if flops else f"{found['lane_operations'] / found['bytes']:.3g} op/B"


def _candidates(outcome: Outcome, result: Result) -> tuple[list[str], list[list[str]]]:
    device = outcome.device
    header = ["candidate", "status", device["trial_unit"], "against the first", "rounds", f"final, {device['unit']}",
              _ERROR, "detail"]
    rows = []
    for index, (trial, found) in enumerate(zip(result.plan.trials if result.plan else (), result.results)):
        numbers = [f"{found['value']:.2f}", f"{found['ratio']:.3f} ± {found['spread'] / 2:.3f}", str(found["rounds"])
                   ] if found["status"] == "ok" else ["", "", ""]
        final = result.finals.get(index, {})
        details = (found.get("detail"), found.get("found", {}).get("text"), final.get("text"), final.get("error"))
        rows.append([trial.title, found["status"], *numbers, f"{final['value']:.2f}" if "value" in final else "",
                     f"{found['err']:.2g}" if "err" in found else "", "; ".join(filter(None, details))])
    return header, rows or [[result.note, *[""] * 7]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *map(line, rows)]


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return ['<div class="wide"><table>', line(header, "th"), *(line(cells, "td") for cells in rows), "</table></div>"]
