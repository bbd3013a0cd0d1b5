# SPDX-License-Identifier: MIT
"""The debugger without its user interface: breakpoints, watches, stops, and how a launch goes on from them.

The library calls `_event` on the launch's thread; `on_stop` is called there, too, and decides. One debugger at a time.
"""

import ctypes
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from aiter_like.errors import DebuggerError
from aiter_like.sim import library
from aiter_like.sim.debugging import breakpoints, conditions
from aiter_like.sim.debugging.breakpoints import ANY_GROUP, ANY_WAVE, Breakpoint, Watch, WatchedAccess
from aiter_like.sim.debugging.machine import Machine, Watched
from aiter_like.sim.debugging.program import Program
from aiter_like.sim.debugging.stops import Caught, Stop
from aiter_like.sim.debugging.wave_view import WaveView, static_register
from aiter_like.sim.state import current

REASONS = ("launch", "breakpoint", "watch", "step", "report", "failure", "interrupt", "ended", "finished")
_ON, _INSTRUCTION, _LINE, _OVER, _OUT, _QUIT = range(6)
_DEEPEST = 2**32 - 1


class Controller:
    """Breakpoints and watches of the launches of a process.

    Attributes:
        on_stop: called at each stop; it says how to go on by `proceed` (which is what happens otherwise), `step`,
            `next`, `finish`, `step_instruction` or `quit`.
        on_launch: called at each launch with its description, before anything of it runs.
        breakpoints, watches: by their numbers.
        program, launch: the running launch's code and description; None between launches.
        error: what `on_stop` raised; the launch is stopped.
    """

    def __init__(self, on_stop: Callable[[Stop], None], on_launch: Callable[[dict], None] | None = None):
        self.on_stop, self.on_launch = on_stop, on_launch
        self.breakpoints: dict[int, Breakpoint] = {}
        self.watches: dict[int, Watch] = {}
        self.program: Program | None = None
        self.launch: dict | None = None
        self.machine = Machine()
        self.error: BaseException | None = None
        self.quitting = False
        self._numbers = itertools.count(1)
        self._programs: dict[tuple, Program] = {}
        self._go: tuple[int, ...] = (_ON, 0, 0, 0, 0, 0)
        self._more = 0  # steps that are left of a repeated one
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(self._event)

    def attach(self, reports: bool = False, failures: bool = True, signals: bool = False) -> None:
        """Stops launches from now on.

        Args:
            reports: also where a checker reports an error.
            failures: also where an instruction fails.
            signals: also at SIGINT, while a launch runs.
        """
        if not current.debugger.acquire(blocking=False):
            raise DebuggerError("another debugger is attached in this process, and there is one simulated device: end "
                                "it first")
        library.load_debug().aiter_like_sim_debug_attach(self._callback, reports, failures, signals)

    def detach(self) -> None:
        """Launches run as without a debugger again."""
        library.load_debug().aiter_like_sim_debug_attach(None, 0, 0, 0)
        current.debugger.release()

    # Requests of the user.

    def break_at(self, place: str, workgroup: int | Sequence[int] | None = None, wave: int | None = None,
                 lane: int | None = None, when: str = "", temporary: bool = False, ignore: int = 0) -> Breakpoint:
        """Stops before an instruction.

        Args:
            place: "file:line", "line" of the file that the launch is in, "*0x40" (from the kernel's entry on, as
                reports have it), or the name of a kernel or function.
            workgroup, wave, lane: only there; a lane must be active.
            when: only when that holds in a lane: see conditions.py.
            temporary: once.
            ignore: not the first so many times.
        Returns:
            The breakpoint. Before a launch it waits for one that has the place.
        """
        if lane is not None and not 0 <= lane < 64:
            raise DebuggerError(f"a wave has lanes 0 to 63, got {lane}")
        terms = conditions.parse(when) if when else ()
        found = Breakpoint(next(self._numbers), place.strip(), workgroup, wave, lane, terms, when, temporary, ignore)
        if self.launch is not None:
            self._place(found)
        self.breakpoints[found.number] = found
        self._set()
        return found

    def watch_memory(self, address: int, size: int = 4, what: str = "", **options: Any) -> Watch:
        """Stops after accesses to these bytes of memory. Options: reads, writes, stops, workgroup, wave."""
        return self._watch(what or f"{size} bytes at {address:#x}", "global", address, size, options)

    def watch_lds(self, offset: int, size: int = 4, what: str = "", **options: Any) -> Watch:
        """Stops after accesses to these bytes of LDS. Options: as of `watch_memory`."""
        return self._watch(what or f"LDS bytes {offset} to {offset + size - 1}", "lds", offset, size, options)

    def watch_register(self, view: WaveView, name: str, lane: int | None = None, **options: Any) -> Watch:
        """Stops after instructions that change a register of one dword, of that wave. Options: stops."""
        source, first, count = conditions.register(view.launch, name)
        if source not in ("vector", "scalar") or count != 1:
            raise DebuggerError(f"${name} cannot be watched: single vector and scalar registers can")
        lanes = 2**64 - 1 if lane is None or source == "scalar" else 1 << lane
        where = {"workgroup": view.group, "wave": view.wave, "lanes": lanes}
        return self._watch(f"${name} of wave {view.wave} of workgroup {view.group}", source, first, 4,
                           {**options, **where})

    def _watch(self, what: str, space: str, begin: int, size: int, options: dict) -> Watch:
        limit = {"global": 4096, "lds": 65536 - begin}.get(space, 4)
        if not 0 < size <= limit or begin < 0:
            raise DebuggerError(f"{what}: from 1 to {max(limit, 0)} bytes can be watched there")
        found = Watch(next(self._numbers), what, space, begin, size, **options)
        self.watches[found.number] = found
        self._set()
        return found

    def delete(self, number: int) -> None:
        """Forgets a breakpoint or watch."""
        if number not in self.breakpoints and number not in self.watches:
            known = ", ".join(map(str, sorted([*self.breakpoints, *self.watches])))
            raise DebuggerError(f"no breakpoint or watch {number}; there are: {known or 'none'}")
        self.breakpoints.pop(number, None)
        self.watches.pop(number, None)
        self._set()

    # How it goes on.

    def proceed(self) -> None:
        """To the next breakpoint."""
        self._plan(None, _ON, 1)

    def step_instruction(self, view: WaveView, count: int = 1) -> None:
        """That wave's next instruction, `count` times."""
        self._plan(view, _INSTRUCTION, count)

    def step(self, view: WaveView, count: int = 1) -> None:
        """That wave's next source line, also in functions that are called or inlined."""
        self._require_lines()
        self._plan(view, _LINE, count)

    def next(self, view: WaveView, count: int = 1) -> None:
        """That wave's next source line in the same function, or in one around it."""
        self._require_lines()
        self._plan(view, _OVER, count)

    def finish(self, view: WaveView) -> None:
        """The line after the call of the function that the wave is in, which may be inlined."""
        self._require_lines()
        if not view.calls and not self._depth(view):
            raise DebuggerError("the wave is in the outermost function, the kernel: use `continue`")
        self._plan(view, _OUT, 1)

    def quit(self) -> None:
        """The launch is stopped, and fails."""
        self.quitting = True
        self._go = (_QUIT, 0, 0, 0, 0, 0)

    def _require_lines(self) -> None:
        if self.program is not None and not self.program.files:
            raise DebuggerError("the code object has no source lines (compile it with -g or -gline-tables-only): step "
                                "by instructions")

    def _depth(self, view: WaveView) -> int:
        return view.program.debug.depth(view.program.address(view.index)) if view.program.debug else 0

    def _plan(self, view: WaveView | None, action: int, count: int) -> None:
        if self.quitting:
            return
        self._more = count - 1
        if view is None:
            self._go = (_ON, 0, 0, 0, 0, 0)
            return
        calls, inlined, line = _DEEPEST, _DEEPEST, 0
        if action in (_LINE, _OVER):
            line = view.program.line_numbers[1].get(view.source, 0)
        if action in (_OVER, _OUT):
            calls, inlined = len(view.calls), self._depth(view)
            self._set_lines(with_depths=True)
        if action == _OUT:
            calls, inlined = (calls, inlined - 1) if inlined else (calls - 1, _DEEPEST)
        self._go = (action, view.group, view.wave, line, calls, inlined)

    # Calls from the library.

    def _event(self, reason: int) -> None:
        with Caught() as caught:
            if REASONS[reason] == "launch":
                self._begin()
            elif REASONS[reason] == "finished":
                self.launch = self.program = None
            else:
                self._stopped(self.machine.stop())
        if caught.error:
            self.error = self.error or caught.error
            self.quit()
        if self.launch is not None:
            library.load_debug().aiter_like_sim_debug_go(*self._go)

    def _begin(self) -> None:
        self.launch = self.machine.launch()
        text = self.machine.memory(self.launch["text"], self.launch["text_bytes"])
        key = (self.launch["code"], self.launch["source"], zlib.crc32(text))
        if key not in self._programs:
            self._programs[key] = Program(self.launch["image"], self.machine.code(), self.machine.section)
        self.program = self._programs[key]
        if self._go[0] != _QUIT:
            self._go = (_ON, 0, 0, 0, 0, 0)
        for one in self.breakpoints.values():
            try:
                self._place(one)
            except DebuggerError as problem:
                one.places, one.problem = [], str(problem)
        self._set_lines(with_depths=False)
        self._set()
        if self.on_launch:
            self.on_launch(self.launch)

    def _set_lines(self, with_depths: bool) -> None:
        lines, depths = self.program.line_numbers[0], self.program.depths if with_depths else None
        library.load_debug().aiter_like_sim_debug_lines(lines.buffer_info()[0], depths.buffer_info()[0] if depths
                                                        else None)

    def _place(self, one: Breakpoint) -> None:
        file = self._own_file()
        one.places = breakpoints.find_place(self.program, one.place, self.launch["entry"], file)
        if one.workgroup is not None:
            breakpoints.group_number(one.workgroup, self.launch["grid"])
        for place in one.places:
            self._terms(one, place)
        one.placed = True

    def _own_file(self) -> str:
        """The file that a bare line is in: that of the launch's kernel."""
        first = self.program.index_of(self.launch["entry"])
        return next((one.source[0] for one in self.program.instructions[first:] if one.source[1]), "")

    def _set(self) -> None:
        """Tells the library of all breakpoints and watches."""
        if self.launch is None:
            return
        debug = library.load_debug()
        debug.aiter_like_sim_debug_clear()
        for one in self.breakpoints.values():
            group = ANY_GROUP if one.workgroup is None else breakpoints.group_number(one.workgroup,
                                                                                      self.launch["grid"])
            for place in one.places:
                terms = conditions.array_of(self._terms(one, place) or ())
                debug.aiter_like_sim_debug_break(place, one.number, group, ANY_WAVE if one.wave is None else one.wave,
                                                 -1 if one.lane is None else one.lane, terms, len(terms))
        for watch in self.watches.values():
            kinds = watch.reads + 2 * watch.writes
            debug.aiter_like_sim_debug_watch(ctypes.byref(Watched(
                watch.number, breakpoints.SPACES[watch.space], kinds, watch.begin, watch.size,
                ANY_GROUP if watch.workgroup is None else watch.workgroup,
                ANY_WAVE if watch.wave is None else watch.wave, watch.lanes)))

    def _terms(self, one: Breakpoint, place: int) -> list[conditions.Term] | None:
        """The condition for the library; None: a part of it is in memory, and is looked at here."""
        found = []
        for comparison in one.condition:
            if comparison.is_register:
                source, first, _ = conditions.register(self.launch, comparison.name[1:])
                found.append(comparison.term(source, first, comparison.default_type))
                continue
            if self.program.debug is None:
                raise DebuggerError(f"{comparison.name}: {self.program.no_debug}")
            address = self.program.address(place)
            held = static_register(self.program.debug.variables(address), comparison.name, address, self.launch)
            if held is None:
                return None
            found.append(comparison.term(held[0], held[1], comparison.type or held[2]))
        return found

    def _stopped(self, raw: dict) -> None:
        reason, number, text = REASONS[raw["reason"]], raw["number"], raw["text"]
        view = WaveView(self.machine, self.program, self.launch, raw["group"], raw["wave"])
        access, lanes = None, raw["lanes"]
        if reason == "breakpoint":
            one = self.breakpoints[number]
            lanes, text = self._holds(one, view, lanes)
            one.hits += bool(lanes)
            if not lanes or one.hits <= one.ignore:
                return
            if one.temporary:
                self.delete(number)
        elif reason == "watch":
            access = self._remember(raw)
            if not self.watches[number].stops:
                return
        elif reason == "step" and self._more > 0:
            self._plan(view, self._go[0], self._more)
            return
        self.proceed()
        self.on_stop(Stop(reason, number, view, raw["index"], raw["executed"], lanes, access, text, raw["clock"],
                          self.launch["kernel"]))

    def _holds(self, one: Breakpoint, view: WaveView, lanes: int) -> tuple[int, str]:
        """The lanes in which a condition holds that the library has not looked at, and what is wrong with it."""
        if self._terms(one, view.index) is not None:
            return lanes, ""
        for comparison in one.condition:
            try:
                name = comparison.name
                value = view.register(name[1:], comparison.default_type) if comparison.is_register \
                    else view.variable(name)
            except DebuggerError as problem:
                return view.exec or 1, f"the condition cannot be told: {problem}"
            for lane in range(64):
                number = value[lane if comparison.lane is None else comparison.lane]
                if not isinstance(number, (int, float)) or not comparison.holds(number):
                    lanes &= ~(1 << lane)
        return lanes, ""

    def _remember(self, raw: dict) -> WatchedAccess:
        watch, instruction = self.watches[raw["number"]], self.program.instructions[raw["index"]]
        found = WatchedAccess(raw["clock"], raw["group"], raw["wave"], instruction.pc - self.launch["entry"],
                              instruction.text, instruction.source, raw["lanes"], raw["is_write"], raw["address"],
                              bytes.fromhex(raw["before"]), bytes.fromhex(raw["after"]), self.launch["kernel"])
        watch.history.append(found)
        del watch.history[:-breakpoints.MOST_WRITES]
        return found
