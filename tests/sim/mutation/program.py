# SPDX-License-Identifier: MIT
"""One kernel of a code object as a control-flow graph, and copies of the code object with an instruction changed."""

import functools
import re
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import asm
from mutants import instructions, replaced, text_section

NOP = struct.pack("<I", 0xBF800000)  # s_nop 0
_REGISTER = re.compile(r"(?<![\w.])([vas])(?:(\d+)\b|\[(\d+):(\d+)\])|\b(vcc|exec|m0|scc)(?:_lo|_hi)?\b")
_COMMA = re.compile(r",(?![^\[]*\])")  # between operands, not inside the brackets of s[0:1] or quad_perm:[2,3,0,1]
_PLAIN = re.compile(r"_(?:e32|e64|dpp|sdwa)$")


@dataclass(frozen=True)
class Inst:
    """An instruction. `pc`: offset in .text; `target`: the branch target's."""

    pc: int
    size: int
    text: str
    target: int | None = None

    @functools.cached_property
    def name(self) -> str:
        """The mnemonic without the encoding's suffix."""
        return _PLAIN.sub("", self.text.split()[0])

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """The printed operands; the last one carries the modifiers."""
        return tuple(part.strip() for part in _COMMA.split(self.text.partition(" ")[2])) if " " in self.text else ()

    @property
    def ends(self) -> bool:
        """Nothing follows it."""
        return self.name in ("s_endpgm", "s_branch", "s_setpc_b64")


class Program:
    """The instructions of one kernel that its first instruction reaches."""

    def __init__(self, elf: bytes, kernel: str):
        self.elf, self.kernel = elf, kernel
        begin, size = _symbol(elf, kernel, is_code=True)
        listed = [(pc, text) for pc, text in instructions(elf) if begin <= pc < begin + size]
        self.begin, self.end = begin, begin + size
        ends = [pc for pc, _ in listed[1:]] + [self.end]
        every = {pc: Inst(pc, end - pc, text, _target(pc, text)) for (pc, text), end in zip(listed, ends, strict=True)}
        self.insts: dict[int, Inst] = {}
        self.entry = begin + _preload_bytes(elf, kernel)
        todo = [self.entry]
        while todo:
            pc = todo.pop()
            if pc not in self.insts:
                self.insts[pc] = every[pc]
                todo += self._after(every[pc])
        self.insts = dict(sorted(self.insts.items()))
        self.every = every

    @staticmethod
    def _after(inst: Inst) -> list[int]:
        after = [] if inst.ends else [inst.pc + inst.size]
        return after + ([inst.target] if inst.target is not None else [])

    def after(self, inst: Inst) -> list[Inst]:
        """What may be executed next."""
        return [self.insts[pc] for pc in self._after(inst)]

    @functools.cached_property
    def before(self) -> dict[int, list[Inst]]:
        """pc → what may have been executed just before."""
        found: dict[int, list[Inst]] = {pc: [] for pc in self.insts}
        for inst in self.insts.values():
            for successor in self.after(inst):
                found[successor.pc].append(inst)
        return found

    def ways(self, branch: Inst) -> list[frozenset[int]]:
        """Per successor of a branch, what may be executed before the ways meet again: fall through, taken."""
        join = self._join(branch)
        return [self._reached(way.pc, join) for way in self.after(branch)]

    def _reached(self, start: int, stop: int | None) -> frozenset[int]:
        found: set[int] = set()
        todo = [start]
        while todo:
            pc = todo.pop()
            if pc != stop and pc not in found:
                found.add(pc)
                todo += self._after(self.insts[pc])
        return frozenset(found)

    def _join(self, branch: Inst) -> int | None:
        """Where the ways of a branch meet again for good: its immediate postdominator. None: at the end only."""
        common = self._postdominators[branch.pc] & ~(1 << self._index[branch.pc])
        # Of those, the nearest is the one that all others postdominate.
        candidates = [pc for pc, index in self._index.items() if common >> index & 1]
        return max(candidates, key=lambda pc: self._postdominators[pc].bit_count(), default=None)

    @functools.cached_property
    def _index(self) -> dict[int, int]:
        return {pc: index for index, pc in enumerate(self.insts)}

    @functools.cached_property
    def _postdominators(self) -> dict[int, int]:
        """pc → bits of the instructions that every way from there to the end passes, itself included."""
        every = (1 << len(self.insts)) - 1
        found = dict.fromkeys(self.insts, every)
        changed = True
        while changed:
            changed = False
            for pc in reversed(self.insts):
                common = every if self._after(self.insts[pc]) else 0
                for successor in self._after(self.insts[pc]):
                    common &= found[successor]
                common |= 1 << self._index[pc]
                changed |= common != found[pc]
                found[pc] = common
        return found

    def code(self, inst: Inst) -> bytes:
        """The instruction's bytes."""
        at = text_section(self.elf) + inst.pc
        return self.elf[at:at + inst.size]

    def patched(self, inst: Inst, code: bytes) -> bytes:
        """The code object with other bytes in the instruction's place, filled up with s_nop 0."""
        if len(code) > inst.size:
            raise ValueError(f"{inst.text}: {len(code)} bytes do not fit its {inst.size}")
        return replaced(self.elf, inst.pc, code + NOP * ((inst.size - len(code)) // 4))

    def without(self, inst: Inst) -> bytes:
        """The code object without the instruction: the kernel's later code moves up, branches follow it."""
        at, size = text_section(self.elf), inst.size

        def moved(pc: int) -> int:
            return pc - size if pc > inst.pc else pc

        code = bytearray(self.elf[at + self.begin:at + self.end])
        for branch in self.every.values():
            if branch.name == "s_getpc_b64":
                raise ValueError(f"{self.kernel} computes addresses of code")
            if branch.target is not None:
                offset = (moved(branch.target) - moved(branch.pc) - 4) // 4
                struct.pack_into("<h", code, branch.pc - self.begin, offset)
        first = inst.pc - self.begin
        code[first:] = code[first + size:] + NOP * (size // 4)
        return self.elf[:at + self.begin] + bytes(code) + self.elf[at + self.end:]


def registers(text: str) -> frozenset[str]:
    """The 32-bit registers that an operand, or a whole instruction, names: "v[2:3]" → v2, v3; vcc is one of them."""
    found = set()
    for kind, single, first, last, named in _REGISTER.findall(text):
        if named:
            found.add(named)
        else:
            found.update(f"{kind}{n}" for n in range(int(single or first), int(single or last) + 1))
    return frozenset(found)


def encode(texts: Iterable[str]) -> dict[str, bytes]:
    """Assembly → machine code, in one run of the assembler."""
    texts = sorted(set(texts))
    if not texts:
        return {}
    command = [asm.tool("llvm-mc"), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx942", "--show-encoding"]
    done = subprocess.run(command, input="\n".join(texts) + "\n", capture_output=True, text=True, check=False)
    codes = re.findall(r"encoding: \[([^]]*)\]", done.stdout)
    if done.returncode or len(codes) != len(texts):
        raise ValueError(f"llvm-mc: {done.stderr or 'not one encoding per line'}")
    return {text: bytes(int(byte, 16) for byte in code.split(",")) for text, code in zip(texts, codes, strict=True)}


def _target(pc: int, text: str) -> int | None:
    found = re.fullmatch(r"s_(?:c?branch\w*) (\d+)", text)
    if not found:
        return None
    offset = int(found[1])
    return pc + 4 + 4 * (offset - 65536 if offset >= 32768 else offset)


def _symbol(elf: bytes, name: str, is_code: bool) -> tuple[int, int]:
    """(offset in .text, or in the file for data, and bytes) of a symbol."""
    table, size, count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + index * size) for index in range(count)]
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        for at in range(offset, offset + length, 24):
            word, _, _, section, value, extent = struct.unpack_from("<IBBHQQ", elf, at)
            begin = sections[link][4] + word
            if elf[begin:elf.index(b"\0", begin)].decode() == name:
                return value - sections[section][3] + (0 if is_code else sections[section][4]), extent
    raise ValueError(f"no symbol {name}")


def _preload_bytes(elf: bytes, kernel: str) -> int:
    """What the hardware skips at the kernel's start when it preloads arguments: code for firmware that does not."""
    at, _ = _symbol(elf, f"{kernel}.kd", is_code=False)
    return 256 if struct.unpack_from("<H", elf, at + 58)[0] & 0x7F else 0  # kernarg_preload.length
