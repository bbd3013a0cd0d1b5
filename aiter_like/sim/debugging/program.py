# SPDX-License-Identifier: MIT
"""A code object under the debugger: its instructions, source lines and functions, and places that breakpoints name."""

import array
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from aiter_like.errors import DebuggerError, did_you_mean
from aiter_like.sim import names
from aiter_like.sim.debugging import dwarf
from aiter_like.sim.profiling import sources

END = "<end of function>"


class Instruction(NamedTuple):
    """One instruction: its address in the process, text, (file, line) or ("", 0), and whether a statement begins."""

    pc: int
    text: str
    source: tuple[str, int]
    begins: bool


@dataclass(frozen=True)
class Frame:
    """A function that a wave is in.

    Attributes:
        function: its name; of inlined ones, too.
        source: where it is: (file, line); ("", 0): not known.
        is_inlined: its code is part of the frame around it.
        index: the instruction.
    """

    function: str
    source: tuple[str, int]
    is_inlined: bool
    index: int


class Program:
    """The code of a launch.

    Attributes:
        image: the address that the file's address 0 has in the process.
        instructions: all of them; each function ends with one that stands for running past its end.
        kernels: name → its first instruction's index.
        no_debug: why there is no information on functions and variables, "" = there is.
    """

    def __init__(self, image: int, code: dict, section: Callable[[str], bytes]):
        self.image = image
        self.instructions = [Instruction(pc, text, sources.place(source), begins)
                             for pc, text, source, begins in code["instructions"]]
        self._at = {one.pc: index for index, one in enumerate(self.instructions) if one.text != END}
        self.kernels = {name: self._at[entry] for name, entry in code["kernels"] if entry in self._at}
        self.variables = {name: (address, size) for name, address, size in code["variables"]}
        found = {name: data for name in dwarf.SECTIONS if (data := section(name))}
        self.debug: dwarf.DebugInfo | None = None
        self.no_debug = "the code object has no debug information (compile it with -g)"
        if "debug_info" in found:
            try:
                self.debug = dwarf.DebugInfo(found)
                self.no_debug = self.debug.damage
            except ImportError as error:
                self.no_debug = str(error)

    def address(self, index: int) -> int:
        """The address of an instruction in the file."""
        return self.instructions[index].pc - self.image

    def index_of(self, pc: int) -> int:
        """The instruction at an address of the process."""
        if pc not in self._at:
            raise DebuggerError(f"no instruction is at {pc:#x}")
        return self._at[pc]

    @functools.cached_property
    def files(self) -> list[str]:
        """Those that have code, in the order of addresses."""
        return list(dict.fromkeys(one.source[0] for one in self.instructions if one.source[1]))

    @functools.cached_property
    def line_numbers(self) -> tuple[array.array, dict[tuple[str, int], int]]:
        """For each instruction at which a statement begins a number that stands for its line, else 0; and each line's
        number."""
        numbers: dict[tuple[str, int], int] = {}
        starts = array.array("I", bytes(4 * len(self.instructions)))
        for index, one in enumerate(self.instructions):
            if one.begins and one.source[1]:
                starts[index] = numbers.setdefault(one.source, len(numbers) + 1)
        return starts, numbers

    @functools.cached_property
    def depths(self) -> array.array | None:
        """The number of calls that are inlined around each instruction; None where that is not known."""
        if self.debug is None:
            return None
        return array.array("I", [self.debug.depth(self.address(index)) for index in range(len(self.instructions))])

    def file_named(self, name: str) -> str | None:
        """The file with code whose path ends so."""
        wanted = PurePath(name).parts
        found = [file for file in self.files if PurePath(file).parts[-len(wanted):] == wanted or file == name]
        if len(found) > 1:
            raise DebuggerError(f"{name} may be any of {', '.join(found)}: name more of its path")
        return found[0] if found else None

    def line(self, file: str, line: int) -> list[int]:
        """The instructions with which the line begins, one for each piece of code that was made of it."""
        found = [index for index, one in enumerate(self.instructions) if one.source == (file, line)]
        starts = [index for index in found if index == 0 or self.instructions[index - 1].source != (file, line)
                  or self.instructions[index - 1].text == END]
        if not starts:
            raise DebuggerError(f"no code for {file}:{line}; {self._nearby(file, line)}")
        return [index for index in starts if self._begins(index)] or starts

    def _begins(self, start: int) -> bool:
        """Whether a piece of a line's code has a beginning of a statement: others only go on with one."""
        source = self.instructions[start].source
        for one in self.instructions[start:]:
            if one.source != source:
                return False
            if one.begins:
                return True
        return False

    def _nearby(self, file: str, line: int) -> str:
        known = sorted({one.source[1] for one in self.instructions if one.source[0] == file and one.source[1]},
                       key=lambda other: (abs(other - line), other))[:6]
        return f"lines near it that have: {', '.join(map(str, sorted(known)))}"

    def function(self, name: str) -> list[int]:
        """First instructions of a kernel or a function, also where it was inlined; of a template, of all instances."""
        if own := [at for kernel, at in self.kernels.items()
                   if name in (kernel, names.short(kernel), names.short(kernel).partition("<")[0])]:
            return sorted(own)
        found = {self._at[begin + self.image] for scope in self._scopes()
                 if name in (scope.name, scope.linkage_name, scope.name.partition("<")[0])
                 for begin, _ in scope.ranges[:1] if begin + self.image in self._at}
        if not found:
            known = [*map(names.short, self.kernels), *(scope.name for scope in self._scopes() if scope.name)]
            also = f" ({self.no_debug})" if self.no_debug else ""
            raise DebuggerError(f"no kernel or function {name}{did_you_mean(name, known)}{also}")
        return sorted(found)

    def _scopes(self) -> Iterable[dwarf.Scope]:
        todo = list(self.debug.functions) if self.debug else []
        while todo:
            scope = todo.pop()
            todo += scope.scopes
            if scope.name:
                yield scope

    def function_names(self) -> list[str]:
        """Kernels, and functions that the debug information knows."""
        return sorted({*map(names.short, self.kernels), *(scope.name for scope in self._scopes())})

    def name_at(self, index: int) -> str:
        """The function that an instruction belongs to, by its address; "?" where nothing says it."""
        chain = self.debug.chain(self.address(index)) if self.debug else []
        if chain:
            return chain[0].name or chain[0].linkage_name or "?"
        first = index
        while first and self.instructions[first - 1].text != END:
            first -= 1
        return next((names.short(name) for name, start in self.kernels.items() if start == first), "?")

    def frames(self, index: int, calls: Iterable[int]) -> list[Frame]:
        """The functions that a wave is in, the innermost first.

        Args:
            index: its instruction.
            calls: the instructions that called the functions around, the outermost first.
        """
        found: list[Frame] = []
        for at in [index, *reversed(list(calls))]:
            source = self.instructions[at].source
            chain = self.debug.chain(self.address(at)) if self.debug else []
            for scope in reversed(chain):
                if scope.is_inlined:
                    found.append(Frame(scope.name, source, True, at))
                    source = scope.call or ("", 0)
            found.append(Frame(self.name_at(at), source, False, at))
        return found
