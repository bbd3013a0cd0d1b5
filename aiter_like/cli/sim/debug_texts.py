# SPDX-License-Identifier: MIT
"""Shows a stopped launch for `aiter-like sim debug`, as lines of text."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aiter_like.errors import DebuggerError
from aiter_like.sim import names
from aiter_like.sim.debugging import data_types
from aiter_like.sim.profiling import sources

if TYPE_CHECKING:
    from aiter_like.sim.debugging.breakpoints import WatchedAccess
    from aiter_like.sim.debugging.stops import Stop
    from aiter_like.sim.debugging.wave_view import WaveView

_AROUND = 5
_LETTERS = {"f": "f32", "d": "i32", "u": "u32", "x": "u32", "h": "f16", "b": "bf16", "c": "u8", "g": "f64", "l": "i64"}
FORMATS = tuple(_LETTERS)
"""Formats of the command `x`: f32, i32, u32, hexadecimal, f16, bf16, bytes, f64, i64."""


def lanes_text(lanes: int) -> str:
    """ "lanes 0-3,5" of a bit each."""
    if lanes == 2**64 - 1:
        return "all lanes"
    found = [lane for lane in range(64) if lanes >> lane & 1]
    return f"lane{'s' * (len(found) > 1)} {names.spans(found)}" if found else "no lane"


def where(source: tuple[str, int]) -> str:
    """A place in the source."""
    return sources.shown(f"{source[0]}:{source[1]}") if source[1] else "no line"


def wave_text(view: WaveView) -> str:
    """Names the wave."""
    return f"workgroup {','.join(map(str, view.workgroup))} wave {view.wave}"


def stop_lines(stop: Stop) -> Iterator[str]:
    """Why and where it stopped."""
    reasons = {"breakpoint": f"breakpoint {stop.number}", "watch": f"watch {stop.number}", "step": "step",
               "report": "a checker reports", "failure": "the launch fails", "interrupt": "interrupted",
               "ended": "the wave has ended"}
    yield (f"{reasons[stop.reason]}: {names.short(stop.kernel)} {wave_text(stop.view)}, {lanes_text(stop.view.exec)} "
           f"active, after {stop.clock} instructions of the launch")
    if stop.reason == "breakpoint" and stop.lanes not in (0, stop.view.exec):
        yield f"  the condition holds in {lanes_text(stop.lanes)}"
    if stop.access:
        yield f"  {access_text(stop.access)}"
    yield from (f"  {line}" for line in stop.text.splitlines())
    yield from place_lines(stop.view, stop.index if stop.executed else None)


def access_text(access: WatchedAccess) -> str:
    """An access to a watched place: when, who, what."""
    kind = "wrote" if access.is_write else "read"
    values = ""
    if len(access.before) <= 8 and access.is_write:
        values = f": {_bytes_text(access.before)} → {_bytes_text(access.after)}"
    return (f"at {access.clock}: workgroup {access.workgroup} wave {access.wave} {lanes_text(access.lanes)} {kind} by "
            f"pc {access.pc:#x} ({where(access.source)}): {access.text}{values}")


def _bytes_text(data: bytes) -> str:
    number = f"0x{data[::-1].hex()}"
    return f"{number} ({struct.unpack('<f', data)[0]:.9g}f)" if len(data) == 4 else number


def place_lines(view: WaveView, done: int | None = None) -> Iterator[str]:
    """Function, source line and next instruction of a wave; `done`: the instruction that has just run."""
    at = view.index if done is None else done
    program = view.program
    source = program.instructions[at].source
    frames = program.frames(at, view.calls)
    outer = next(one for one in frames if not one.is_inlined)
    called = f" (inlined at {where(outer.source)} of {outer.function})" if frames[0].is_inlined else ""
    yield f"{where(source)} in {frames[0].function}{called}"
    text = sources.lines(source[0])
    if 0 < source[1] <= len(text):
        yield f"{source[1]:6}  {text[source[1] - 1]}"
    mark = "=>" if done is None else "ran"
    yield f"{mark:>6}  {program.instructions[at].pc - view.launch['entry']:#x}: {program.instructions[at].text}"


def list_lines(view: WaveView, file: str, line: int) -> list[str]:
    """Source lines around one; those with code have a mark."""
    text = sources.lines(file)
    if not text:
        raise DebuggerError(f"{file or 'the source of this code'} is not to be had here")
    with_code = {one.source[1] for one in view.program.instructions if one.source[0] == file}
    first = max(1, line - _AROUND)
    return [f"{'=>' if number == view.line and file == view.source[0] else '':2}{number:6}"
            f"{' *' if number in with_code else '  '} {text[number - 1]}"
            for number in range(first, min(len(text), first + 2 * _AROUND) + 1)]


def disassembly(view: WaveView, count: int) -> list[str]:
    """Instructions around the next one, with their source lines where these change."""
    lines, last = [], None
    first = max(0, view.index - count // 2)
    for index in range(first, min(len(view.program.instructions), first + count)):
        one = view.program.instructions[index]
        if one.source != last:
            lines.append(f"  {where(one.source)}")
            last = one.source
        lines.append(f"{'=>' if index == view.index else '':>4} {one.pc - view.launch['entry']:#8x}: {one.text}")
    return lines


def waves_lines(views: Sequence[WaveView], selected: WaveView) -> list[str]:
    """All waves that run, a line each."""
    return [f"{'*' if (one.group, one.wave) == (selected.group, selected.wave) else ' '} {one.group}.{one.wave}  "
            f"{wave_text(one)}  {one.state}, pc {one.pc:#x} ({where(one.source)}): {one.text}  "
            f"{lanes_text(one.exec)}, {one.executed} instructions" for one in views]


def register_lines(view: WaveView, names: Sequence[str]) -> list[str]:
    """Registers by their names, or all scalar ones and EXEC."""
    found = []
    for name in names or [f"s{n}" for n in range(min(view.launch["sgprs"], 102))] + ["vcc", "exec", "m0", "scc"]:
        kind = name.partition(":")[2]
        value = view.register(name.partition(":")[0].removeprefix("$"), kind)
        if value.is_uniform and not kind and isinstance(value[0], int):
            other = data_types.guessed(value.lanes[:1]) if value.is_untyped else None
            also = f", {data_types.text(value.lanes[0], other)} as {other.name}" if other else ""
            found.append(f"{value.name} = {value[0]:#x} ({value[0]}{also})")
        else:
            found += value.lines()
    return found


def local_lines(view: WaveView) -> list[str]:
    """Every variable in scope; those that are not to be had say why."""
    if view.program.debug is None:
        raise DebuggerError(view.program.no_debug)
    found = []
    for name in dict.fromkeys(one.name for one in view.variables()):
        try:
            lines = view.variable(name).lines()
            found += [*lines[:6], *([f"  … print {name} has all"] if len(lines) > 6 else [])]
        except DebuggerError as error:
            found.append(f"{name}: {str(error).removeprefix(name).lstrip(' :')}")
    return found or ["no variables here"]


def memory_lines(data: bytes, address: int, letter: str, name: str = "") -> list[str]:
    """Bytes as numbers, a row of 16 to 32 bytes a line."""
    kind = data_types.scalar_type(_LETTERS[letter])
    per_line = 16 if kind.size == 1 else max(1, 32 // kind.size)
    numbers = [data[at:at + kind.size] for at in range(0, len(data) - kind.size + 1, kind.size)]
    shown = [f"0x{one[::-1].hex()}" if letter == "x" else data_types.text(one, kind) for one in numbers]
    width = max(map(len, shown), default=0)
    place = f"{name}+" if name else ""
    return [f"{place}{address + at * kind.size:#x}: " + " ".join(one.rjust(width) for one in shown[at:at + per_line])
            for at in range(0, len(shown), per_line)]


def element_bytes(letter: str) -> int:
    """The size of an element in a format of `x`."""
    return data_types.scalar_type(_LETTERS[letter]).size


def four_bytes(number: int | float) -> bytes:
    """Four bytes as they are written: a whole number's low 32 bits, or an f32."""
    return struct.pack("<f", number) if isinstance(number, float) else struct.pack("<I", number & 0xffffffff)
