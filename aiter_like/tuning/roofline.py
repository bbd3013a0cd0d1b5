# SPDX-License-Identifier: MIT
"""The plot of a tuning report: choices under the device's ceilings, as an SVG within a page, whose colours it takes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiter_like.tuning.outcome import Outcome, Result

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 500, 104, 44, 24, 64
_LETTER, _LINE = 7.4, 14  # px: what a letter and a line of labels take at most
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")

_STYLE = """svg.roofline .fine { stroke: var(--card) } svg.roofline circle { fill: var(--accent); fill-opacity: .8 }
svg.roofline .roof { stroke: var(--bad); stroke-width: 2; fill: none }
svg.roofline text.roof { fill: var(--bad); stroke: none }"""


@dataclass(frozen=True)
class Point:
    """A choice: `x` flop/byte, or bytes where the operator has no flops; `y` per second; `label` beside it."""

    x: float
    y: float
    label: str
    title: str


@dataclass(frozen=True)
class _Scale:
    """Logarithmic axes over whole decades: exponents of ten."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        across = (math.log10(x) - self.x_low) / (self.x_high - self.x_low)
        up = (math.log10(y) - self.y_low) / (self.y_high - self.y_low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)


def svg(outcome: Outcome) -> str:
    """The plot, log-log; "" where nothing is measured."""
    results = [result for result in outcome.results if result.best is not None and result.plan.bytes]
    if not results or not outcome.device["is_measured"]:
        return ""
    points = [_point(result, label) for result, label in zip(results, _labels(results))]
    has_flops = any(result.plan.flops for result in results)
    ceilings = outcome.ceilings or (0.0, 0.0)
    roof = [min(ceilings[1], point.x * ceilings[0]) if has_flops else ceilings[0] for point in points]
    ridge = [ceilings[1] / ceilings[0]] if has_flops and outcome.ceilings else []
    x_low, x_high = _decades([*(point.x for point in points), *ridge])
    y_low, y_high = _decades([*(point.y for point in points), *filter(None, roof)])
    scale = _Scale(x_low, x_high, y_low, y_high)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="roofline" width="{_WIDTH}" height="{_HEIGHT}" '
             f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{html.escape(outcome.op)} under its roofline</title>'
             f"<style>{_STYLE}</style>"]
    parts += _axes(scale, has_flops)
    taken: list[tuple[float, float, float, float]] = []
    if outcome.ceilings:
        parts += _roof(scale, ceilings, has_flops, taken)
    parts += _points(scale, points, taken)
    return "\n".join([*parts, "</svg>"])


def _axes(scale: _Scale, has_flops: bool) -> Iterator[str]:
    """Grid, scales in readable units, and what they are of."""
    x_unit, y_unit = ("flop/B", "flop/s") if has_flops else ("B", "B/s")
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for low, high, is_x in ((scale.x_low, scale.x_high, True), (scale.y_low, scale.y_high, False)):
        for exponent in range(low, high + 1):
            for digit in range(1, 10 if exponent < high else 2):
                value = digit * 10.0 ** exponent
                x, y = scale.at(value, 10.0 ** scale.y_low) if is_x else scale.at(10.0 ** scale.x_low, value)
                kind = "grid" if digit == 1 else "fine"
                yield (f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>' if is_x else
                       f'<line class="{kind}" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
                if digit == 1 and is_x:
                    yield _text(x, bottom + 18, "middle", quantity(value, x_unit))
                elif digit == 1:
                    yield _text(_LEFT - 8, y + 4, "end", quantity(value, y_unit))
    yield f'<path class="axis" d="M{_LEFT},{_TOP}V{bottom}H{right}"/>'
    across = "arithmetic intensity: flop per useful byte of a call" if has_flops else "useful bytes of a call"
    up = "flop per second" if has_flops else "useful bytes per second"
    yield _text((_LEFT + right) / 2, _HEIGHT - 16, "middle", across)
    middle = (_TOP + bottom) / 2
    yield f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{up}</text>'


def _roof(scale: _Scale, ceilings: tuple[float, float], has_flops: bool, taken: list) -> Iterator[str]:
    """The ceilings, with what they are and how high."""
    floor = 10.0 ** scale.y_low
    xs = [10 ** (scale.x_low + (scale.x_high - scale.x_low) * step / 60) for step in range(61)]
    ys = [max(min(ceilings[1], x * ceilings[0]) if has_flops else ceilings[0], floor) for x in xs]
    line = " ".join("{:.1f},{:.1f}".format(*scale.at(x, y)) for x, y in zip(xs, ys))
    yield f'<polyline class="roof" points="{line}"/>'
    taken += [(x - 2, y - 2, 12, 4) for x, y in (scale.at(x, y) for x, y in zip(xs, ys))]
    texts = [f"copy, {quantity(ceilings[0], 'B/s')}"]
    if has_flops:
        texts.append(f"bf16 matrix product, {quantity(ceilings[1], 'flop/s')}")
    places = [scale.at(x, y) for x, y in zip(xs, ys)]
    slope = [place for x, y, place in zip(xs, ys, places) if floor < y < ceilings[1]] or places
    for text, (x, _) in zip(texts, (slope[len(slope) // 2] if has_flops else places[0], places[-1])):
        width = _LETTER * len(text)
        x = max(x - 12, _LEFT + 8 + width)
        y = min(up for across, up in places if across <= x) - 8  # the roof rises: the text lies above it
        taken.append((x - width, y - _LINE, width, _LINE))
        yield f'<text class="roof" x="{x:.1f}" y="{y:.1f}" text-anchor="end">{html.escape(text)}</text>'


def _points(scale: _Scale, points: Sequence[Point], taken: list[tuple[float, float, float, float]]) -> Iterator[str]:
    """The choices, each with its label where there is room for one; every one has a title, and a line in the table."""
    places = [scale.at(point.x, point.y) for point in points]
    taken += [(x - 8, y - 5, 16, 10) for x, y in places]
    for point, (x, y) in zip(points, places):
        yield (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{html.escape(point.title)}</title></circle>')
        width = _LETTER * len(point.label)
        for left, top in ((x + 10, y - 7), (x - 10 - width, y - 7), (x - width / 2, y - 22), (x - width / 2, y + 8),
                          (x + 8, y - 21), (x + 8, y + 7), (x - 8 - width, y - 21), (x - 8 - width, y + 7)):
            box = (left, top, width, _LINE)
            if _LEFT < left and left + width < _WIDTH - 2 and top > 0 and not any(_overlap(box, one) for one in taken):
                taken.append(box)
                is_before = left + width < x  # its end is where the box ends, however wide its letters are
                yield _text(left + width * is_before, top + _LINE - 3, "end" if is_before else "start", point.label)
                break


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return all(one[axis] < other[axis] + other[axis + 2] and other[axis] < one[axis] + one[axis + 2]
               for axis in (0, 1))


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def quantity(value: float, unit: str) -> str:
    """`20 TB/s`, `512 MB`, `0.1 flop/B`: three digits, and a decimal prefix."""
    step = min(max(int(math.log10(value) // 3), 0), len(_PREFIXES) - 1) if value > 0 and unit != "flop/B" else 0
    number = value / 1000.0 ** step
    return f"{number:.3g} {_PREFIXES[step]}{unit}" if number < 999.5 else f"{number:.0f} {_PREFIXES[step]}{unit}"


def _labels(results: Sequence[Result]) -> Iterator[str]:
    """Labels that tell the shapes of a plot apart: those fields of the key that differ."""
    varying = [name for name in results[0].key if len({result.key[name] for result in results}) > 1]
    for result in results:
        yield " ".join(f"{name}={result.key[name]}" for name in varying or list(result.key)[:1])


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _point(result: Result, label: str) -> Point:
    plan, seconds = result.plan, result.value * 1e-6
    key = " ".join(f"{name}={value}" for name, value in result.key.items())
    title = f"{key}: {plan.trials[result.best].title}, {result.value:.2f} µs"
    if plan.flops:
        return Point(plan.flops / plan.bytes, plan.flops / seconds, label, title)
    return Point(plan.bytes, plan.bytes / seconds, label, title)
