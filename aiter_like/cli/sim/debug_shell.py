# SPDX-License-Identifier: MIT
"""The commands of `aiter-like sim debug`: a line of text each, over aiter_like/sim/debugging."""

import cmd
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aiter_like.cli.sim import debug_texts
from aiter_like.errors import DebuggerError, did_you_mean
from aiter_like.sim import names
from aiter_like.sim.debugging.debugger import Controller
from aiter_like.sim.debugging.stops import Stop
from aiter_like.sim.debugging.wave_view import Value, WaveView

_SHORT = {"b": "break", "tb": "tbreak", "c": "continue", "cont": "continue", "s": "step", "si": "stepi", "n": "next",
          "fin": "finish", "p": "print", "l": "list", "i": "info", "bt": "backtrace", "where": "backtrace", "q": "quit",
          "r": "run", "d": "delete", "disas": "disassemble", "h": "help", "?": "help", "exit": "quit"}
_MOST_BYTES = 1 << 16


class Shell(cmd.Cmd):
    """Reads commands while nothing runs and at each stop.

    Attributes:
        control: what the commands are about.
        wants_run: the user has asked for the program to run.
        has_quit: the user has had enough.
    """

    prompt = "(sim) "
    intro = None

    def __init__(self, commands: Iterable[str]):
        """`commands` are carried out first, as if they were typed."""
        super().__init__()
        self.use_rawinput = sys.stdin.isatty()
        self.prompt = self.prompt if self.use_rawinput else ""
        self.control = Controller(self.on_stop, self._on_launch)
        self.cmdqueue = list(commands)
        self.wants_run = self.has_quit = False
        self._view: WaveView | None = None
        self._lane = 0

    def on_stop(self, stop: Stop) -> None:
        """Shows a stop, and carries out commands until one of them goes on."""
        if self.has_quit:
            return
        self._view = stop.view
        self._tell(debug_texts.stop_lines(stop))
        self.cmdloop()
        self._view = None

    def _on_launch(self, launch: dict) -> None:
        waiting = [one for one in self.control.breakpoints.values() if not one.placed and one.problem]
        sizes = " x ".join(map(str, launch["grid"])), " x ".join(map(str, launch["block"]))
        if self.control.breakpoints or self.control.watches:
            self._tell([f"launch of {names.short(launch['kernel'])}: {sizes[0]} workgroups of {sizes[1]} work-items"])
        self._tell(f"  breakpoint {one.number} has no place in it: {one.problem}" for one in waiting)

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stdout.write(line + "\n")
        self.stdout.flush()

    # How lines become commands.

    def onecmd(self, line: str) -> bool:
        """Carries out a line; errors are shown. True: go on with the program, or end."""
        name, _, rest = line.strip().partition(" ")
        name, slash, form = name.partition("/")
        if line.strip() != "EOF":
            name = _SHORT.get(name, name)
        try:
            return bool(super().onecmd(f"{name} {slash}{form} {rest}".rstrip() if slash else f"{name} {rest}".rstrip()))
        except DebuggerError as error:
            self._tell([f"error: {error}"])
            return False

    def default(self, line: str) -> None:
        """An unknown command."""
        known = [name[3:] for name in self.get_names() if name.startswith("do_") and name != "do_EOF"]
        raise DebuggerError(f"no command {line.split()[0]}{did_you_mean(line.split()[0], known)}; `help` lists them")

    def emptyline(self) -> None:
        """Nothing: it does not repeat."""

    def do_help(self, arg: str) -> None:
        """help [COMMAND]: what there is, or what one does."""
        name = _SHORT.get(arg, arg)
        if name:
            if not (text := getattr(getattr(self, f"do_{name}", None), "__doc__", None)):
                return self.default(arg)
            return self._tell([line.strip() for line in text.splitlines()])
        names = sorted(name for name in self.get_names() if name.startswith("do_") and name != "do_EOF")
        return self._tell([getattr(self, name).__doc__.splitlines()[0].strip() for name in names])

    def _here(self) -> WaveView:
        if self._view is None:
            raise DebuggerError("nothing has stopped: set breakpoints, then `run`")
        return self._view

    def _count(self, text: str) -> int:
        if text and not (text.isdecimal() and int(text)):
            raise DebuggerError(f"a count of 1 or more is wanted, got {text!r}")
        return int(text or 1)

    # Commands for places to stop at.

    def do_break(self, arg: str) -> None:
        """break PLACE [workgroup N|X,Y,Z] [wave N] [lane N] [if CONDITION]: stop before it.
        PLACE is file:line, a line, *PC (from the kernel's entry on, as in reports), or a kernel or function.
        CONDITION is one of a lane: i == 70 and $v3:f32 > 0.5 and sum[5] < 1. Lanes it does not hold in do not count.
        Without PLACE: the line that the wave is in."""
        self._break(arg, False)

    def do_tbreak(self, arg: str) -> None:
        """tbreak PLACE …: as break, but once."""
        self._break(arg, True)

    def _break(self, arg: str, temporary: bool) -> None:
        place, _, when = arg.partition(" if ") if not arg.startswith("if ") else ("", "", arg[3:])
        options: dict[str, Any] = {}
        for name, value in re.findall(r"\b(workgroup|wave|lane)\s+([\d,]+)", place):
            numbers = tuple(map(int, filter(None, value.split(","))))
            options[name] = numbers[0] if len(numbers) == 1 else numbers
        place = re.sub(r"\b(workgroup|wave|lane)\s+[\d,]+", "", place).strip()
        if not place:
            source = self._here().source
            place = f"{source[0]}:{source[1]}"
        found = self.control.break_at(place, when=when.strip(), temporary=temporary, **options)
        self._tell([found.describe()])

    def do_delete(self, arg: str) -> None:
        """delete NUMBER…: forget breakpoints and watches."""
        for number in arg.split():
            if not number.isdecimal():
                raise DebuggerError(f"a breakpoint's or watch's number is wanted, got {number!r}")
            self.control.delete(int(number))

    def do_watch(self, arg: str) -> None:
        """watch WHAT [BYTES] [log]: stop after each write to it; with `log` only remember: see `who`.
        WHAT is an address: 0x7f…, a pointer variable or $arg0 (the kernel's first argument), +BYTES behind it; or
        lds+OFFSET of the wave's workgroup; or $v3[LANE], $s4 of the selected wave."""
        self._watch(arg, False, True)

    def do_rwatch(self, arg: str) -> None:
        """rwatch WHAT [BYTES] [log]: as watch, of reads."""
        self._watch(arg, True, False)

    def do_awatch(self, arg: str) -> None:
        """awatch WHAT [BYTES] [log]: as watch, of reads and writes."""
        self._watch(arg, True, True)

    def _watch(self, arg: str, reads: bool, writes: bool) -> None:
        words = arg.split()
        stops = "log" not in words
        words = [word for word in words if word != "log"]
        if not words or len(words) > 2:
            raise DebuggerError("WHAT is wanted, and perhaps how many bytes: help watch")
        size = self._count(words[1]) if len(words) > 1 else 4
        options = {"reads": reads, "writes": writes, "stops": stops}
        register = re.fullmatch(r"\$([vas]\d+)(?:\[(\d+)\])?", words[0])
        if register and not register[1].startswith("arg"):
            lane = int(register[2]) if register[2] else None
            found = self.control.watch_register(self._here(), register[1], lane, stops=stops)
        elif words[0].startswith("lds"):
            offset = self._number(words[0][3:].removeprefix("+") or "0")
            group = self._view.group if self._view else None
            found = self.control.watch_lds(offset, size, workgroup=group, **options)
        else:
            found = self.control.watch_memory(self._address(words[0]), size, f"{size} bytes at {words[0]}", **options)
        self._tell([found.describe()])

    def do_who(self, arg: str) -> None:
        """who NUMBER: every access to a watched place so far: when, which lanes, by which instruction."""
        watch = self.control.watches.get(int(arg)) if arg.isdecimal() else None
        if watch is None:
            raise DebuggerError(f"no watch {arg}; there are: {', '.join(map(str, self.control.watches)) or 'none'}")
        self._tell(debug_texts.access_text(access) for access in watch.history)
        if not watch.history:
            self._tell(["nobody so far"])

    # How to go on.

    def do_run(self, arg: str) -> bool:
        """run: start the program; again when it has ended."""
        if self._view is not None:
            raise DebuggerError("the program runs: `continue` goes on, `quit` ends it")
        self.wants_run = True
        return True

    def do_continue(self, arg: str) -> bool:
        """continue: go on to the next breakpoint."""
        self._here()
        self.control.proceed()
        return True

    def do_step(self, arg: str) -> bool:
        """step [COUNT]: to the selected wave's next source line, also in functions."""
        self.control.step(self._here(), self._count(arg))
        return True

    def do_next(self, arg: str) -> bool:
        """next [COUNT]: to the selected wave's next source line, over functions, inlined ones too."""
        self.control.next(self._here(), self._count(arg))
        return True

    def do_stepi(self, arg: str) -> bool:
        """stepi [COUNT]: the selected wave's next instruction."""
        self.control.step_instruction(self._here(), self._count(arg))
        return True

    def do_finish(self, arg: str) -> bool:
        """finish: to where the function, which may be inlined, has returned to."""
        self.control.finish(self._here())
        return True

    def do_advance(self, arg: str) -> bool:
        """advance PLACE: the selected wave to there."""
        view = self._here()
        self.control.break_at(arg, workgroup=view.group, wave=view.wave, temporary=True)
        return self.do_continue("")

    def do_quit(self, arg: str) -> bool:
        """quit: stop the launch, and end."""
        self.has_quit = True
        self.control.quit()
        return True

    do_EOF = do_quit

    # Commands for looking at things.

    def do_wave(self, arg: str) -> None:
        """wave [GROUP.]WAVE: select a wave, of that workgroup by its place in the grid. Without: shows the selected."""
        view = self._here()
        if arg:
            group, _, wave = arg.rpartition(".")
            view = WaveView(view.machine, view.program, view.launch, self._number(group) if group else view.group,
                            self._number(wave))
            self._view = view
        self._tell([debug_texts.wave_text(view), *debug_texts.place_lines(view)])

    def do_lane(self, arg: str) -> None:
        """lane [LANE]: select the lane whose addresses `x` and `watch` take from vector registers and variables."""
        if arg:
            if not arg.isdecimal() or int(arg) > 63:
                raise DebuggerError(f"a lane from 0 to 63 is wanted, got {arg!r}")
            self._lane = int(arg)
        self._tell([f"lane {self._lane}"])

    def do_print(self, arg: str) -> None:
        """print NAME[LANE] …, print $v3[LANE]:f32 …: variables, registers, $arg0; of all lanes without [LANE]."""
        for word in arg.split() or [""]:
            match = re.fullmatch(r"(\$?[A-Za-z_]\w*(?:\[\d+:\d+\]|\.[xyz])?)(?:\[(\d+)\])?(?::(\w+))?", word)
            if not match:
                raise DebuggerError(f"a variable or $register is wanted, got {word!r}: help print")
            value = self._value(match[1], match[3] or "")
            if match[2] is None:
                self._tell(value.lines())
            elif int(match[2]) > 63:
                raise DebuggerError(f"a wave has lanes 0 to 63, got {match[2]}")
            else:
                one = (value.lanes[int(match[2])],)
                shown = Value(f"{match[1]}[{match[2]}]", value.type, one, 1, True, value.origin)
                self._tell(shown.lines())

    def _value(self, name: str, kind: str = "") -> Value:
        view = self._here()
        if match := re.fullmatch(r"\$arg(\d+)", name):
            return view.argument(int(match[1]))
        return view.register(name[1:], kind) if name.startswith("$") else view.variable(name)

    def do_set(self, arg: str) -> None:
        """set $REGISTER[LANE] = NUMBER, set lds+OFFSET = NUMBER, set ADDRESS = NUMBER: write 4 bytes; 1.5 as f32."""
        match = re.fullmatch(r"(\S+)\s*=\s*(\S+)", arg)
        if not match:
            raise DebuggerError("help set")
        view, number = self._here(), self._any_number(match[2])
        register = re.fullmatch(r"\$(?!arg)([a-z_]+\d*)(?:\[(\d+)\])?", match[1])
        if register:
            return view.set_register(register[1], number, int(register[2]) if register[2] else None)
        data = debug_texts.four_bytes(number)
        if match[1].startswith("lds"):
            offset = self._number(match[1][3:].removeprefix("+") or "0")
            view.machine.lds(view.group, offset, 4, data)
        else:
            view.machine.memory(self._address(match[1]), 4, data)
        return None

    def do_x(self, arg: str) -> None:
        """x[/FORMAT] ADDRESS [COUNT], x[/FORMAT] lds+OFFSET [COUNT]: memory, or the workgroup's LDS.
        FORMAT: f, d, u, x: 4 bytes as f32, i32, u32, hexadecimal; h f16, b bf16, c bytes, g f64, l i64."""
        words = arg.split()
        letter = words.pop(0)[1:] if words and words[0].startswith("/") else "f"
        if letter not in debug_texts.FORMATS or not 1 <= len(words) <= 2:
            raise DebuggerError("help x")
        size = self._count(words[1] if len(words) > 1 else "8") * debug_texts.element_bytes(letter)
        if size > _MOST_BYTES:
            raise DebuggerError(f"at most {_MOST_BYTES} bytes at once")
        view = self._here()
        if words[0].startswith("lds"):
            offset = self._number(words[0][3:].removeprefix("+") or "0")
            self._tell(debug_texts.memory_lines(view.machine.lds(view.group, offset, size), offset, letter, "lds"))
        else:
            address = self._address(words[0])
            self._tell(debug_texts.memory_lines(view.machine.memory(address, size), address, letter))

    def _address(self, text: str) -> int:
        """0x…, or a pointer variable, $arg0 or $s[2:3], and +BYTES behind it."""
        name, _, offset = text.removeprefix("*").partition("+")
        if name[:1].isdecimal():
            return self._number(name) + self._number(offset or "0")
        value = self._value(name)[self._lane]
        if not isinstance(value, int):
            raise DebuggerError(f"{name} is no address")
        return value + self._number(offset or "0")

    def _number(self, text: str) -> int:
        number = self._any_number(text)
        if not isinstance(number, int) or number < 0:
            raise DebuggerError(f"a whole number is wanted, got {text!r}")
        return number

    @staticmethod
    def _any_number(text: str) -> int | float:
        for kind in (lambda: int(text, 0), lambda: float(text)):
            try:
                return kind()
            except ValueError:
                continue
        raise DebuggerError(f"a number is wanted, got {text!r}")

    def do_list(self, arg: str) -> None:
        """list [[FILE:]LINE]: source around a line, or around the wave's; lines with code have a *."""
        view = self._here()
        file, line = view.source
        if arg:
            name, _, number = arg.rpartition(":")
            file = (view.program.file_named(name) or name) if name else file
            line = self._number(number)
        self._tell(debug_texts.list_lines(view, file, line))

    def do_disassemble(self, arg: str) -> None:
        """disassemble [COUNT]: instructions around the wave's next one."""
        self._tell(debug_texts.disassembly(self._here(), self._count(arg or "16")))

    def do_backtrace(self, arg: str) -> None:
        """backtrace: the functions that the wave is in, inlined ones too, the innermost first."""
        self._tell(f"#{number} {frame.function}{' (inlined)' * frame.is_inlined} at {debug_texts.where(frame.source)}"
                   for number, frame in enumerate(self._here().frames()))

    def do_info(self, arg: str) -> None:
        """info breakpoints|watches|waves|registers [NAME…]|lds [OFFSET]|locals|launch|functions: look at them."""
        what, _, rest = arg.partition(" ")
        topics: dict[str, Callable[[Sequence[str]], Iterable[str]]] = {
            "breakpoints": lambda _: [one.describe() for one in self.control.breakpoints.values()] or ["none"],
            "watches": lambda _: [one.describe() for one in self.control.watches.values()] or ["none"],
            "waves": lambda _: debug_texts.waves_lines(self._waves(), self._here()),
            "registers": lambda names: debug_texts.register_lines(self._here(), names),
            "locals": lambda _: debug_texts.local_lines(self._here()),
            "launch": lambda _: [f"{name}: {value}" for name, value in self._here().launch.items()],
            "functions": lambda _: self._here().program.function_names()}
        if what == "lds":
            return self.do_x(f"lds+{rest or 0} 64")
        found = [name for name in topics if what and name.startswith(what)]
        if len(found) != 1:
            raise DebuggerError(f"info {', '.join([*topics, 'lds'])}: one of these is wanted")
        return self._tell(topics[found[0]](rest.split()))

    def _waves(self) -> list[WaveView]:
        view = self._here()
        return [WaveView(view.machine, view.program, view.launch, group["number"], wave["wave"])
                for group in view.machine.groups() for wave in group["waves"]]
