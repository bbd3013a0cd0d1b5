# SPDX-License-Identifier: MIT
"""The plot that measured_page.py writes, as SVG: ratios on the GPU above, shares of the bound on the modelled MI300X
below. Wide for pages; narrow for phones, where names stand above their marks.
"""

import html
import math
import re
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiter_like.pages import COLOURS, FONT

_STYLE = f"""{COLOURS}text {{ fill: var(--fg); font: 13px {FONT} }}
.dim {{ fill: var(--dim) }} .strong {{ font-weight: 600 }} .head {{ font-weight: 600; font-size: 15px }}
.page {{ fill: var(--bg); stroke: var(--line) }} .track {{ fill: var(--card) }} .bar {{ fill: var(--accent) }}
.grid {{ stroke: var(--line) }} .one {{ stroke: var(--dim); stroke-dasharray: 4 3 }}
.good {{ fill: var(--good); stroke: var(--good) }} .less {{ fill: var(--warn); stroke: var(--warn) }}
.any {{ fill: var(--dim); stroke: var(--dim) }} .hollow {{ fill: var(--bg); stroke-width: 2 }}
.range {{ stroke-width: 3; stroke-linecap: round; opacity: .45 }}"""
_TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8)


@dataclass(frozen=True)
class Row:
    """A family: the best peer's time over ours, of each shape."""

    title: str
    graph: Sequence[float]
    eager: Sequence[float]


@dataclass(frozen=True)
class Layout:
    """Pixels: where marks begin and end, the height of a row, and of its marks below its name."""

    width: int
    edge: int
    left: int
    right: int
    row: int
    below: int
    letters: int  # of a line

    def ratio(self, value: float) -> float:
        """Place on a logarithmic axis."""
        low, high = _TICKS[0], _TICKS[-1]
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return self.left + share * (self.right - self.left)

    def axis(self, kind: str, x: float, top: float, rows: int) -> Iterator[str]:
        """A line across all rows; where names stand above marks, a piece beside the marks of each."""
        whole = [(top, top + self.row * rows)]
        pieces = [(top + self.row * n + 22, top + self.row * n + 38) for n in range(rows)]
        for begin, end in whole if self.below < 0 else pieces:
            yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{begin}" y2="{end}"/>'

    def share(self, value: float) -> float:
        """Place on an axis from 0 to 1.1."""
        return self.left + min(value, 1.1) / 1.1 * (self.right - self.left)


_WIDE = Layout(860, 20, 310, 700, 26, -4, 120)
_NARROW = Layout(400, 14, 14, 386, 40, 14, 48)


def plot(about: str, heads: tuple[str, str], rows: Sequence[Row], shares: Mapping[str, float], is_narrow: bool) -> str:
    at = _NARROW if is_narrow else _WIDE
    parts, top = [], 12.0
    for lines, height in (_ratios(at, heads[0], rows), _shares(at, heads[1], shares)):
        parts += [f'<g transform="translate(0 {top:.0f})">', *lines, "</g>"]
        top += height
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {at.width} {top:.0f}" width="{at.width}" '
                      f'height="{top:.0f}" role="img"><title>{html.escape(about)}</title><style>{_STYLE}</style>',
                      f'<rect class="page" x=".5" y=".5" width="{at.width - 1}" height="{top - 1:.0f}" rx="10"/>',
                      *parts, "</svg>"])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{html.escape(text)}</text>'


def _head(at: Layout, title: str, text: str) -> tuple[list[str], float]:
    """A panel's title and what it shows, and where they end."""
    lines = [(line, "head") for line in textwrap.wrap(title, at.letters * 9 // 10)]
    lines += [(line, "dim") for line in textwrap.wrap(text, at.letters, break_on_hyphens=False)]
    return [_text(at.edge, 18 + 20 * n, line, kind) for n, (line, kind) in enumerate(lines)], 18 + 20 * len(lines)


def _ratios(at: Layout, title: str, rows: Sequence[Row]) -> tuple[list[str], float]:
    """The measured panel, and its height."""
    parts, y = _head(at, title, "Best peer's time / ours, geometric means; shapes drawn by a seed, none of them tuned.")
    parts += _legend(at, y)
    one, end = at.ratio(1), at.width - at.edge
    heads = y + 36
    hints = heads if at is _WIDE else heads + 20
    top = hints + 8
    bottom = top + at.row * len(rows)
    if at is _WIDE:
        parts.append(f'<rect class="track" x="{one:.1f}" y="{top - 24}" width="{at.right - one:.1f}" '
                     f'height="{bottom - top + 24}"/>')
    parts += [_text(end - 66, heads, "graphs", "dim", "end"), _text(end, heads, "eager", "dim", "end")]
    parts += [_text(one - 8, hints, "← a peer is faster", "dim", "end"),
              _text(one + 8, hints, "ours is faster →", "dim")]
    for tick in _TICKS:
        name = "" if at is _NARROW and tick in (0.25, 4) else f"{tick:g} ×"
        parts += _tick(at, at.ratio(tick), top, len(rows), name, tick == 1)
    for index, row in enumerate(rows):
        y = top + 18 + at.row * index
        parts += [_text(at.edge, y, row.title), *_marks(at, y + at.below, row)]
        for place, ratios, kind in ((end - 66, row.graph, "strong"), (end, row.eager, "")):
            text = f"{statistics.geometric_mean(ratios):.2f} ×" if ratios else "–"
            parts.append(_text(place, y, text, kind, "end"))
    return parts, bottom + 46


def _tick(at: Layout, x: float, top: float, rows: int, text: str, is_one: bool) -> Iterator[str]:
    """A line and its name, which stays within the edges."""
    yield from at.axis("one" if is_one else "grid", x, top, rows)
    anchor = "start" if x < at.edge + 9 else "end" if x > at.width - at.edge - 9 else "middle"
    yield _text(x, top + at.row * rows + 18, text, "dim", anchor)


def _legend(at: Layout, y: float) -> Iterator[str]:
    entries = [("CUDA graphs", '<circle class="any" cx="6" cy="-4" r="5.5"/>'),
               ("eager", '<circle class="any hollow" cx="6" cy="-4" r="5"/>'),
               ("worst to best shape", '<line class="any range" x1="0" x2="14" y1="-4" y2="-4"/>')]
    x = at.edge
    for text, mark in entries:
        yield f'<g transform="translate({x} {y + 4})">{mark}{_text(20, 0, text, "dim")}</g>'
        x += 36 + 8 * len(text)


def _marks(at: Layout, y: float, row: Row) -> Iterator[str]:
    """A family's range, and its means: eager below graphs where they meet."""
    def kind(ratios: Sequence[float]) -> str:
        return "good" if statistics.geometric_mean(ratios) >= 1 else "less"

    shown = row.graph or row.eager
    yield (f'<line class="{kind(shown)} range" x1="{at.ratio(min(shown)):.1f}" x2="{at.ratio(max(shown)):.1f}" '
           f'y1="{y}" y2="{y}"/>')
    for ratios, more, radius in ((row.eager, " hollow", 5), (row.graph, "", 5.5)):
        if ratios:
            yield (f'<circle class="{kind(ratios)}{more}" cx="{at.ratio(statistics.geometric_mean(ratios)):.1f}" '
                   f'cy="{y}" r="{radius}"/>')


def _shares(at: Layout, title: str, shares: Mapping[str, float]) -> tuple[list[str], float]:
    """The modelled panel, and its height."""
    parts, y = _head(at, title, "Share of the bound: of the matrix peak, or of the memory rate gpu-stream measured; "
                                "at sustained clocks.")
    top, end = y + 4, at.width - at.edge
    for index, (name, share) in enumerate(shares.items()):
        y = top + 18 + at.row * index
        place = f'x="{at.left}" y="{y + at.below - 6}" height="12" rx="2"'
        parts += [_text(at.edge, y, re.sub(r"(?<=\d)x(?=\d)", "×", name)),
                  _text(end, y, f"{share:.0%}", "strong", "end"),
                  f'<rect class="track" {place} width="{at.right - at.left}"/>',
                  f'<rect class="bar" {place} width="{at.share(share) - at.left:.1f}"/>']
    for tick in (0, 0.5, 1):
        parts += _tick(at, at.share(tick), top, len(shares), f"{tick:.0%}", tick == 1)
    return parts, top + at.row * len(shares) + 34
