# SPDX-License-Identifier: MIT
"""Pictures of traces: one self-contained HTML page of SVG, made here, so that it needs no script but for the lane that
the pointer is on. Each memory instruction has its own: cells of memory or LDS, in the colour of the lane that touches
them, with its number.
"""

import bisect
import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from aiter_like import pages
from aiter_like.sim import names
from aiter_like.sim.profiling import sources

_BANKS, _BANK_BYTES, _SEGMENT = 32, 4, 128
_CELL_W, _CELL_H, _LABEL_W = 27, 19, 118
_MOST_ROWS = 48  # more rows are left out of a picture
_MOST_PICTURES = 160
_WHOLE = {"load": "reads", "store": "writes", "atomic": "changes"}


def page(launches: Sequence[dict]) -> str:
    """The page of traces that `traced` has found, in their order."""
    parts = [_launch(number, launch) for number, launch in enumerate(launches, 1)]
    body = "\n".join([_asset("page.html"), *parts])
    return pages.page("Memory accesses of a workgroup", body, _asset("page.css"), _asset("lanes.js"))


@cache
def _asset(name: str) -> str:
    return (Path(__file__).with_name("assets") / name).read_text()


def _launch(number: int, launch: dict) -> str:
    sizes = [" × ".join(map(str, launch[name])) for name in ("grid", "block")]
    groups = _folded(launch)
    left_out = launch["accesses"] - sum(len(group) for _, group in groups[:_MOST_PICTURES])
    facts = (f"workgroup {launch['group']} of {sizes[0]}, {sizes[1]} work-items each, {launch['lds_bytes']} bytes of "
             f"LDS; {launch['accesses']} accesses" + (f", {left_out} of them not shown" if left_out else "") +
             "; those that waves or passes make alike are folded")
    rows = [(group[0]["conflict_clk"] if group[0]["space"] == "LDS" else 0, _summary_row(number, index, group))
            for index, (_, group) in enumerate(groups[:_MOST_PICTURES])]
    parts = [f'<h1 id="launch{number}">{html.escape(names.short(launch["kernel"]))}</h1>'
             f'<p class="dim">{html.escape(facts)}</p><div class="wide"><table class="accesses"><thead><tr>',
             *(f'<th class="{kind}" title="{html.escape(tip)}"><span class="term">{name}</span></th>'
               for name, kind, tip in _HEADS), "</tr></thead><tbody>",
             *(row for _, row in sorted(rows, key=lambda item: -item[0])), "</tbody></table></div>"]
    written, shown, last = {}, {}, 0
    for index, (epoch, group) in enumerate(groups[:_MOST_PICTURES]):
        if epoch != last:
            parts.append('<p class="barrier">all waves have passed a barrier</p>')
            if written != shown:
                parts.append(_layout(written))
                shown = dict(written)
        last = epoch
        parts.append(_access(number, index, group, launch))
        for one in group:
            if one["space"] == "LDS" and one["access"] != "load":
                written.update({dword: (one["wave"], lane, one) for place, lane in enumerate(one["lanes"])
                                for dword in _dwords(one, place)})
    return "\n".join(parts)


_HEADS = (("line", "l", "where the instruction comes from; of an inlined function also the kernel's line of its call"),
          ("instruction", "l", "as the disassembler writes it"),
          ("waves", "", "of the workgroup, that do the same, each with its own base address"),
          ("access", "l", "LDS: memory of the workgroup; global: memory of the device; scratch: a lane's own memory"),
          ("lanes", "", "work-items of the wave that take part, of 64"), ("bytes", "", "of all lanes of a wave"),
          ("128 B segments", "", "pieces of memory of 128 B that a wave touches: few are good"),
          ("LDS clk", "", "cycles that the banks work for a wave"),
          ("lost to conflicts", "", "of these, because lanes of a phase ask for different dwords of one bank: the rows "
                                    "that lose most come first"))


def _folded(launch: dict) -> list[tuple[int, list[dict]]]:
    """(how many barriers are past, accesses that differ in their wave and base address alone), in order."""
    groups: dict[tuple, list[dict]] = {}
    for one in launch["recorded"]:
        epoch = bisect.bisect_right(launch["barriers"], one["clock"])
        steps = tuple(at - one["at"][0] for at in one["at"])
        key = (epoch, one["pc"], one["space"], one["access"], tuple(one["lanes"]), one["bytes"], steps,
               one["clk"], one["conflict_clk"], one["segments_64"], one["segments_128"])
        groups.setdefault(key, []).append(one)
    return [(key[0], group) for key, group in groups.items()]


def _layout(written: dict[int, tuple[int, int, dict]]) -> str:
    """LDS as the accesses that are shown have left it: which lane of which wave wrote each dword."""
    rows = sorted({dword // _BANKS for dword in written})
    shown = {row: number for number, row in enumerate(rows[:_MOST_ROWS])}
    has_waves = len({wave for wave, _, _ in written.values()}) > 1
    cell = _CELL_W + 4 * (has_waves and max(wave for wave, _, _ in written.values()) > 9)  # wide enough for "15.32"
    parts = _lds_frame(shown, cell)
    for dword, (wave, lane, one) in sorted(written.items()):
        if dword // _BANKS in shown:
            parts.append(_cell(_LABEL_W + dword % _BANKS * cell, 16 + shown[dword // _BANKS] * _CELL_H, cell,
                               [lane], f"wave {wave} lane {lane}: {one['text']} ({sources.where(one)})", "who",
                               f"{wave}.{lane}" if has_waves else ""))
    what = "wave.lane" if has_waves else "the lane"
    return (f'<h2>LDS here</h2><p class="dim">{what} that wrote each dword last, of the accesses that are shown</p>'
            + _svg(_LABEL_W + _BANKS * cell + 2, 18 + len(shown) * _CELL_H, parts) + _more(rows))


def _lds_frame(shown: dict[int, int], cell: int = _CELL_W) -> list[str]:
    parts = [f'<text class="head" x="{_LABEL_W + (bank + .5) * cell:.1f}" y="12">{bank}</text>'
             for bank in range(_BANKS)]
    for row, number in shown.items():
        y = 16 + number * _CELL_H
        parts.append(f'<text class="label" x="{_LABEL_W - 8}" y="{y + 14}">LDS {row * 128:#06x}</text>'
                     f'<rect class="row" x="{_LABEL_W}" y="{y}" width="{_BANKS * cell}" height="{_CELL_H}"/>')
    return parts


def _more(rows: Sequence[int]) -> str:
    return f'<p class="dim">{len(rows) - _MOST_ROWS} more rows</p>' if len(rows) > _MOST_ROWS else ""


def _summary_row(number: int, index: int, group: list[dict]) -> str:
    one = group[0]
    conflicts = one["conflict_clk"] if one["space"] == "LDS" else ""
    cells = [("l", f'<a href="#a{number}-{index}">{html.escape(sources.where(one))}</a>'),
             ("l", html.escape(one["text"])), ("", names.spans([each["wave"] for each in group])),
             ("l", f"{_WHOLE[one['access']]} {one['space']}"), ("", len(one["lanes"])),
             ("", len(one["lanes"]) * one["bytes"]), ("", one["segments_128"] or ""), ("", one["clk"] or ""),
             ("bad" if conflicts else "", conflicts)]
    return "<tr>" + "".join(f'<td class="{kind}">{text}</td>' for kind, text in cells) + "</tr>"


def _alike(group: list[dict]) -> str:
    """Names the others that do the same as the one that is drawn."""
    others = [one for one in group if one["wave"] != group[0]["wave"]]
    passes = len(group) - len({one["wave"] for one in group})
    waves = sorted({one["wave"] for one in others})
    told = [f"wave{'s' * (len(waves) > 1)} {names.spans(waves)} from {', '.join(_starts(others))}"] if waves else []
    told += [f"{passes} more pass{'es' * (passes > 1)} of a loop"] if passes else []
    return f'<p class="dim">the same: {html.escape("; ".join(told))}</p>' if told else ""


def _starts(others: list[dict]) -> list[str]:
    starts = [f"{one['at'][0]:#x}" for one in others]
    return [*starts[:4], "…"] if len(starts) > 4 else starts


def _access(number: int, index: int, group: list[dict], launch: dict) -> str:
    one = group[0]
    text = launch["lines"].get(sources.author(one), "").strip()
    if one["space"] == "LDS":
        lost = one["conflict_clk"]
        told = (f"{one['clk']} clk of the banks, " + (f"{lost} of them lost because lanes of a phase meet at a bank"
                                                     if lost else "no conflicts"))
    elif one["space"] == "global":
        asked = len(one["lanes"]) * one["bytes"]
        told = (f"{asked} bytes asked for in {one['segments_128']} segments of 128 B: "
                f"{100 * asked / max(1, one['segments_128'] * _SEGMENT):.0f} % of what they hold")
    else:
        told = "scratch: a lane's own memory"
    picture = _lds(one) if one["space"] == "LDS" else _memory(one, launch["arguments"])
    where = html.escape(sources.where(one))
    return (f'<section id="a{number}-{index}"><h2>{where} <code>{html.escape(text)}</code></h2>'
            f'<p><span class="mono">{one["pc"]:#x}: {html.escape(one["text"])}</span></p><p class="dim">wave '
            f"{one['wave']} {_WHOLE[one['access']]} {one['space']}, {len(one['lanes'])} lanes, {one['bytes']} bytes "
            f"each{' by LDS-DMA' if one['dma'] else ''}; {told}</p>{_alike(group)}{picture}</section>")


def _colour(lane: int) -> str:
    """A hue for each row of 16 lanes, lighter along it: neighbours look alike, and blocks of 16 apart. Dark enough for
    white numbers, yellow and green most of all."""
    row, place = divmod(lane, 16)
    hue, dark = (212, 285, 12, 140)[row], (36, 36, 24, 19)[row]
    return f"hsl({hue + place * 1.2:.1f} 60% {dark + place * .8:.1f}%)"


def _cell(x: float, y: float, width: float, lanes: Sequence[int], tip: str, mark: str = "", label: str = "") -> str:
    """A cell in the colour of its first lane, whose number is its label; `mark`: a class of its frame."""
    label = label or f"{lanes[0]}" + ("+" if len(lanes) > 1 else "")
    shown = f'<text x="{x + width / 2:.1f}" y="{y + _CELL_H - 5.5:.1f}">{label}</text>' if width >= 15 else ""
    return (f'<g class="c {mark}" data-lanes="{" ".join(map(str, lanes))}"><title>{html.escape(tip)}</title><rect '
            f'x="{x + .5:.1f}" y="{y + .5:.1f}" width="{width - 1:.1f}" height="{_CELL_H - 1}" '
            f'fill="{_colour(lanes[0])}"/>{shown}</g>')


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    return (f'<div class="wide"><svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
            + "".join(parts) + "</svg></div>")


def _lds(one: dict) -> str:
    """Rows of 32 banks, the whole access, then each phase of it where lanes meet."""
    by_phase: dict[int, list[int]] = defaultdict(list)
    for place, phase in enumerate(one["phases"]):
        by_phase[phase].append(place)
    tips = _lds_tips(one)
    whole = _banks(one, range(len(one["lanes"])), tips, by_phase)
    order = "; ".join(f"phase {phase}: lanes {names.spans([one['lanes'][place] for place in places])}"
                      for phase, places in sorted(by_phase.items()))
    worst = [(phase, places, *_busiest(one, places)) for phase, places in sorted(by_phase.items())]
    rows = "".join(f'<tr><td>{phase}</td><td class="l">{names.spans([one["lanes"][place] for place in places])}</td>'
                   f'<td class="{"bad" if clk > 1 else ""}">{clk}</td><td class="l">{html.escape(who)}</td></tr>'
                   for phase, places, clk, who in worst)
    return (f'{whole}<details{" open" if one["conflict_clk"] else ""}><summary title="{html.escape(order)}">'
            f"{len(by_phase)} phases</summary><div class=\"wide\"><table><thead><tr><th>phase</th>"
            f'<th class="l">lanes</th><th>clk</th><th class="l">busiest bank</th></tr></thead><tbody>{rows}</tbody>'
            "</table></div></details>")


def _lds_tips(one: dict) -> list[str]:
    tips = []
    for lane, at, phase, writer in zip(one["lanes"], one["at"], one["phases"], one["writers"], strict=True):
        wrote = ""
        if one["access"] != "store":
            wrote = "; nobody wrote it" if writer < 0 else f"; wave {writer // 64} lane {writer % 64} wrote it"
        tips.append(f"lane {lane}, phase {phase}: offset {at:#x}, bank {at // _BANK_BYTES % _BANKS}{wrote}")
    return tips


def _dwords(one: dict, place: int) -> range:
    first = one["at"][place] // _BANK_BYTES
    return range(first, (one["at"][place] + one["bytes"] - 1) // _BANK_BYTES + 1)


def _busiest(one: dict, places: Sequence[int]) -> tuple[int, str]:
    """How many dwords the busiest bank of a phase has, and whose they are."""
    banks: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        for dword in _dwords(one, place):
            banks[dword % _BANKS][dword].append(one["lanes"][place])
    bank, dwords = max(banks.items(), key=lambda item: len(item[1]))
    who = ", ".join(names.spans(lanes) for lanes in list(dwords.values())[:8]) + (", …" if len(dwords) > 8 else "")
    return len(dwords), f"bank {bank}: lane{'s' * (len(dwords) > 1)} {who}" if len(dwords) > 1 else ""


def _banks(one: dict, places: Iterable[int], tips: Sequence[str], by_phase: dict[int, list[int]]) -> str:
    cells: dict[int, list[int]] = defaultdict(list)
    for place in places:
        for dword in _dwords(one, place):
            cells[dword].append(place)
    meeting = set()
    for phase in by_phase.values():
        count = Counter(dword % _BANKS for dword in {dword for place in phase for dword in _dwords(one, place)})
        meeting |= {(place, dword) for place in phase for dword in _dwords(one, place) if count[dword % _BANKS] > 1}
    rows = sorted({dword // _BANKS for dword in cells})
    shown = {row: number for number, row in enumerate(rows[:_MOST_ROWS])}
    parts = _lds_frame(shown)
    for dword, who in sorted(cells.items()):
        if dword // _BANKS in shown:
            mark = "meets" if any((place, dword) in meeting for place in who) else ""
            parts.append(_cell(_LABEL_W + dword % _BANKS * _CELL_W, 16 + shown[dword // _BANKS] * _CELL_H, _CELL_W,
                               [one["lanes"][place] for place in who], "\n".join(tips[place] for place in who), mark))
    return _svg(_LABEL_W + _BANKS * _CELL_W + 2, 18 + len(shown) * _CELL_H, parts) + _more(rows)


def _memory(one: dict, arguments: Sequence[int]) -> str:
    """Rows of 128 bytes of memory, dword by dword, in the order of addresses."""
    cells: dict[int, list[int]] = defaultdict(list)
    for place in range(len(one["lanes"])):
        for dword in _dwords(one, place):
            cells[dword].append(place)
    rows = sorted({dword // _BANKS for dword in cells})
    shown = {row: number for number, row in enumerate(rows[:_MOST_ROWS])}
    first = {dword // _BANKS: 4 * dword for dword in sorted(cells, reverse=True)}
    parts = [f'<text class="head" x="{_LABEL_W + (at + .5) * _CELL_W:.1f}" y="12">+{4 * at}</text>'
             for at in range(0, _BANKS, 2)]
    for row, number in shown.items():
        gap = number and rows[number - 1] != row - 1
        parts.append(f'<text class="label" x="{_LABEL_W - 8}" y="{16 + number * _CELL_H + 14}">'
                     f"{_name(row * _SEGMENT, arguments, first[row])}</text><rect class=\"row{' gap' if gap else ''}\" "
                     f'x="{_LABEL_W}" y="{16 + number * _CELL_H}" width="{_BANKS * _CELL_W}" height="{_CELL_H}"/>')
    for dword, who in sorted(cells.items()):
        if dword // _BANKS in shown:
            tip = "\n".join(f"lane {one['lanes'][place]}: {_name(one['at'][place], arguments)}" for place in who[:8])
            parts.append(_cell(_LABEL_W + dword % _BANKS * _CELL_W, 16 + shown[dword // _BANKS] * _CELL_H, _CELL_W,
                               [one["lanes"][place] for place in who], tip))
    return _svg(_LABEL_W + _BANKS * _CELL_W + 2, 18 + len(shown) * _CELL_H, parts) + _more(rows)


def _name(address: int, arguments: Sequence[int], touched: int | None = None) -> str:
    """An address from the nearest argument on that points before it; of a row, before what is touched there first."""
    seen = address if touched is None else touched
    near = [(seen - base, number) for number, base in enumerate(arguments) if base and 0 <= seen - base < 2**40]
    if not near:
        first = [(base - address, number) for number, base in enumerate(arguments) if 0 < base - address < _SEGMENT]
        return f"arg{first[0][1]}-{first[0][0]:#x}" if first else f"{address:#x}"
    number = min(near)[1]
    offset = address - arguments[number]
    return f"arg{number}{'-' if offset < 0 else '+'}{abs(offset):#x}"
