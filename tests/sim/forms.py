# SPDX-License-Identifier: MIT
"""Every encoding and modifier of a vector instruction, tested with the model of its plain form. Read by test_forms.py.

A unit is one thing that a form can have: "e64 neg1", "sdwa sext0", "dpp", "e64 clamp". LLVM's assembler says which units
an instruction takes (`accepted`), `forms` combines them into a few instructions, and `check_forms` runs these on whole
registers and compares each with the row's model between transformed operands and a transformed result.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from asm import LANES, Case, _tool, run_many
from isa_model import DTYPES, Row, assert_close, is_signaling, pack_mask, random_exec, unpack_mask, values

SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
           "WORD_1": (16, 16), "DWORD": (0, 32)}
LANE = np.arange(LANES)
# Control text → lane read, -1 for none; row and bank mask; bound_ctrl. test_dpp.py has every control.
DPP = (("quad_perm:[2,0,3,1]", LANE // 4 * 4 + np.array([2, 0, 3, 1])[LANE % 4], 0xA, 0x7, False),
       ("row_shr:3", np.where(LANE % 16 >= 3, LANE - 3, -1), 0xF, 0xF, True),
       ("row_shr:3", np.where(LANE % 16 >= 3, LANE - 3, -1), 0xF, 0xF, False))
CLAMPS: dict[str, Callable] = {}               # integer instruction → its model with clamp; test_forms.py fills it
OMOD = {"mul:2": 2, "mul:4": 4, "div:2": 0.5}
DPP_TEXT = "{} row_mask:{:#x} bank_mask:{:#x}{}"
_MODES = {"f32": (4, 2), "f16": (6, 2), "f64": (6, 2)}                    # where MODE keeps a type's denormals


@dataclass(frozen=True)
class Form:
    """One instruction of a row: encoding, modifiers of each source (sets of "neg", "abs", "sext"), and the rest."""

    encoding: str
    signs: tuple[frozenset, ...] = ()
    clamp: bool = False
    omod: str = ""
    op_sel: tuple[int, ...] = ()
    selects: tuple[str, ...] = ()              # SDWA: of each source
    dst_sel: str = "DWORD"
    dst_unused: str = "UNUSED_PAD"
    dpp: int = 0                               # index into DPP
    in_place: bool = False                     # the destination is the first source
    scalar: int = -1                           # which source is an SGPR: the same value in all lanes

    def units(self) -> set[str]:
        found = {f"{sign}{k}" for k, signs in enumerate(self.signs) for sign in signs}
        found |= {"clamp"} if self.clamp else set()
        found |= {"omod"} if self.omod else set()
        found |= {f"op_sel{k}" for k, bit in enumerate(self.op_sel) if bit}
        found |= {f"sel{k}" for k, name in enumerate(self.selects) if name != "DWORD"}
        found |= {"dst_sel"} if self.dst_sel != "DWORD" else set()
        return {self.encoding, *(f"{self.encoding} {unit}" for unit in found)}


def kinds_of(row: Row) -> list[str]:
    return row.src.split()


def is_vopc(row: Row) -> bool:
    return row.name.startswith("v_cmp")


def is_float(kind: str) -> bool:
    return kind[0] == "f"


def size_of(kind: str) -> int:
    return np.dtype(DTYPES[kind]).itemsize


# ---- text


def source_register(kind: str, k: int) -> str:
    if kind == "mask":
        return f"s[{20 + 2 * k}:{21 + 2 * k}]"
    return f"v[{2 + 2 * k}:{3 + 2 * k}]" if size_of(kind) == 8 else f"v{2 + 2 * k}"


def instruction(row: Row, form: Form, slot: int) -> list[str]:
    """The form's lines; its results are in v[40 + 2 slot] and s[30 + 2 slot]."""
    kinds, (dst_kind, *bit_kinds) = kinds_of(row), row.dst.split()
    implicit = form.encoding in ("e32", "dpp", "sdwa") and not (form.encoding == "sdwa" and is_vopc(row))
    bits = f"s[{30 + 2 * slot}:{31 + 2 * slot}]"
    mask_text = "vcc" if implicit else bits
    lines, operands = [], []
    if dst_kind == "mask":
        operands.append(mask_text)
    elif form.in_place:
        operands.append(source_register(dst_kind, 0))
    else:
        first = 40 + 2 * slot
        operands.append(f"v[{first}:{first + 1}]" if size_of(dst_kind) == 8 else f"v{first}")
    operands += [mask_text for _ in bit_kinds]
    for k, kind in enumerate(kinds):
        if kind == "mask":
            operands.append("vcc" if implicit else source_register(kind, k))
            lines += [f"s_mov_b64 vcc, {source_register(kind, k)}"] if implicit else []
            continue
        text = source_register(kind, k)
        if k == form.scalar:
            text = "s[26:27]" if size_of(kind) == 8 else "s26"
        signs = form.signs[k] if k < len(form.signs) else ()
        text = f"|{text}|" if "abs" in signs else f"sext({text})" if "sext" in signs else text
        operands.append(f"-{text}" if "neg" in signs else text)
    lines.append(f"{row.name}_{form.encoding} {', '.join(operands)}{suffix(form, is_vopc(row))}")
    if implicit and (dst_kind == "mask" or bit_kinds):
        lines.append(f"s_mov_b64 {bits}, vcc")
    if row.name.startswith("v_cmpx"):
        lines += [f"s_mov_b64 {bits}, exec", "s_mov_b64 exec, s[86:87]"]
    return lines


def suffix(form: Form, vopc: bool) -> str:
    words = ["clamp"] if form.clamp else []
    words += [form.omod] if form.omod else []
    if form.encoding == "dpp":
        control, _, row_mask, bank_mask, bound = DPP[form.dpp]
        words.append(DPP_TEXT.format(control, row_mask, bank_mask, " bound_ctrl:0" if bound else ""))
    if form.encoding == "sdwa":
        words += [] if vopc else [f"dst_sel:{form.dst_sel} dst_unused:{form.dst_unused}"]
        words += [f"src{k}_sel:{name}" for k, name in enumerate(form.selects)]
    if form.op_sel:
        words.append(f"op_sel:[{','.join(map(str, form.op_sel))}]")
    return " " + " ".join(words) if words else ""


# ---- which units exist


def candidates(row: Row) -> Iterator[Form]:
    """A form per unit that an instruction might take."""
    vector = [k for k, kind in enumerate(kinds_of(row)) if kind != "mask"]
    one = lambda k, *names: tuple(frozenset(names if at == k else ()) for at in range(len(vector)))  # noqa: E731
    dwords = tuple("DWORD" for _ in vector[:2])
    yield from (Form("e32"), Form("e64"), Form("dpp"), Form("sdwa", selects=dwords))
    for k in vector:
        for name in ("neg", "abs"):
            yield from (Form("e64", one(k, name)), Form("dpp", one(k, name)))
            yield Form("sdwa", one(k, name), selects=dwords)
        if k < 2:
            selects = tuple("WORD_1" if at == k else "DWORD" for at in vector[:2])
            yield from (Form("sdwa", selects=selects), Form("sdwa", one(k, "sext"), selects=selects))
    yield from (Form("e64", clamp=True), Form("e64", omod="mul:2"))
    if not is_vopc(row):
        yield Form("sdwa", selects=dwords, dst_sel="WORD_1")
    yield from (Form("sdwa", selects=dwords, clamp=True), Form("sdwa", selects=dwords, omod="mul:2"))
    for k in range(len(vector) + 1):
        yield Form("e64", op_sel=tuple(int(at == k) for at in range(len(vector) + 1)))


@functools.cache
def _rejected(lines: tuple[str, ...]) -> frozenset[int]:
    """Indexes of the lines that LLVM's assembler refuses."""
    done = subprocess.run([_tool("llvm-mc"), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-filetype=null", "-"],
                          input="\n".join(lines), capture_output=True, text=True, check=False)
    return frozenset(int(line) - 1 for line in re.findall(r"^<stdin>:(\d+):\d+: error", done.stderr, re.MULTILINE))


def accepted(rows: Sequence[Row]) -> dict[str, set[str]]:
    """Instruction → the units that LLVM assembles."""
    tried = [(row.name, form, next(line for line in instruction(row, form, 0) if line.startswith(row.name)))
             for row in rows for form in candidates(row)]
    rejected = _rejected(tuple(line for _, _, line in tried))
    units: dict[str, set[str]] = {row.name: set() for row in rows}
    for index, (name, form, _) in enumerate(tried):
        if index not in rejected:
            units[name] |= form.units()
    if "v_pk_fmac_f16" in units:                         # assembled without an error, but also without the modifier
        units["v_pk_fmac_f16"] -= {f"sdwa {sign}{k}" for sign in ("neg", "abs", "sext") for k in (0, 1)}
        units["v_pk_fmac_f16"] -= {f"e64 op_sel{k}" for k in range(3)}
    return units


def forms(row: Row, units: set[str]) -> list[Form]:
    """Instructions that together have every unit, most of them several."""
    count = sum(kind != "mask" for kind in kinds_of(row))
    made = [Form(encoding) for encoding in ("e32", "e64") if encoding in units]

    def signs(encoding: str, *choice: tuple[str, ...]) -> tuple[frozenset, ...]:
        return tuple(frozenset(name for name in choice[k % len(choice)] if f"{encoding} {name}{k}" in units)
                     for k in range(count))

    patterns = ((("neg",), ("abs",)), (("abs",), ("neg",)), (("neg", "abs"), ("neg", "abs")))
    for encoding in ("e64", "dpp"):
        made += [Form(encoding, signs(encoding, *pattern), dpp=at) for at, pattern in enumerate(patterns)
                 if encoding in units]
    if "e64" in units:
        constant_bus = "mask" in row.src               # the mask is the one scalar that an instruction may read
        made += [Form("e64", scalar=k) for k in range(count) if not constant_bus]
    made += [Form("e64", signs("e64", *patterns[at]), clamp=True) for at in (0, 1) if "e64 clamp" in units]
    bits = [int(f"e64 op_sel{k}" in units) for k in range(count + 1)]
    if any(bits):
        made += [Form("e64", signs("e64", *patterns[at % 3]), op_sel=tuple(bit & at >> k & 1 for k, bit in
                 enumerate(bits))) for at in range(1, 1 << count + 1)]
    if "sdwa" in units:
        made += list(_sdwa_forms(row, units, count, signs))
    if row.dst.split()[0] != "mask" and made:
        made.append(Form("e64" if "e64" in units else "e32", in_place=True))
    return made


def _sdwa_forms(row: Row, units: set[str], count: int, signs) -> Iterator[Form]:
    names, unused = list(SELECTS), ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
    placed = "sdwa dst_sel" in units
    kinds = [kind for kind in kinds_of(row) if kind != "mask"]
    for at in range(7):
        selects = tuple(names[(at + 3 * k) % 7] for k in range(min(count, 2)))
        # A sign is tested where the selected field is as wide as the number: its sign bit is the number's.
        whole = [SELECTS[name][1] == 8 * size_of(kind) for name, kind in zip(selects, kinds)]
        whole += [True] * (count - len(whole))
        wanted = signs("sdwa", ("neg", "sext"), ("abs", "sext")) if at % 2 else signs("sdwa", ("abs",), ("neg",))
        chosen = tuple(s if "sext" in s or whole[k] else frozenset() for k, s in enumerate(wanted))
        yield Form("sdwa", chosen, selects=selects, dst_sel=names[(at + 5) % 7] if placed else "DWORD",
                   dst_unused=unused[at % 3] if placed else unused[0])
    full = tuple("WORD_1" if size_of(kind) == 2 else "DWORD" for kind in kinds[:2])
    for pattern in ((("neg",), ("abs",)), (("abs",), ("neg",)), (("neg", "abs"),)):
        yield Form("sdwa", signs("sdwa", *pattern), selects=full)
    if "sdwa clamp" in units:
        yield Form("sdwa", selects=full, clamp=True)


def omod_forms(units: set[str], count: int) -> list[Form]:
    """They need another MODE: output denormals flushed, IEEE off."""
    dwords = tuple("DWORD" for _ in range(min(count, 2)))
    made = [Form("e64", omod=name, clamp=name == "div:2") for name in OMOD if "e64 omod" in units]
    return made + [Form("sdwa", selects=dwords, omod="mul:4")] * ("sdwa omod" in units)


# ---- running and comparing


def raw_sources(row: Row, seed: int, quiet: bool) -> list[np.ndarray]:
    """Whole registers (u32, u64; bool for masks); both halves of a 16-bit operand are from the row's domain."""
    made = []
    for k, kind in enumerate(kinds_of(row)):
        fit = row.ranges[k] if k < len(row.ranges) else None
        if kind == "mask":
            made.append(values(kind, seed + 10 + k))
            continue
        parts = []
        for half in range(2 if size_of(kind) == 2 else 1):
            part = values(kind, seed + 10 + k + 50 * half)
            with np.errstate(all="ignore"):
                part = part if fit is None else fit(part).astype(part.dtype)
                part = np.where(is_signaling(part), part.dtype.type(1), part) if quiet and is_float(kind) else part
            parts.append(np.ascontiguousarray(part).view(f"u{part.itemsize}"))
        made.append(parts[0] if len(parts) == 1 else parts[0] | parts[1].astype(np.uint32) << 16)
    return made


def operand(form: Form, kind: str, k: int, raw: np.ndarray, active: np.ndarray) -> np.ndarray:
    """What the operation sees of a source."""
    if kind == "mask":
        return raw
    if k == form.scalar:
        raw = np.broadcast_to(raw[:1, :1], raw.shape)
    if form.encoding == "dpp" and k == 0:
        source = DPP[form.dpp][1]
        valid = (source >= 0) & active[:, np.maximum(source, 0)]
        raw = np.where(valid, raw[:, np.maximum(source, 0)], 0).astype(raw.dtype)
    signs = form.signs[k] if k < len(form.signs) else ()
    if k < len(form.selects):
        first, bits = SELECTS[form.selects[k]]
        raw = raw >> np.uint32(first) & np.uint32((1 << bits) - 1)
        if "sext" in signs:
            raw = np.where(raw >> np.uint32(bits - 1) & 1 == 1, raw | np.uint32(-1 << bits & 0xFFFFFFFF), raw)
    if k < len(form.op_sel) and form.op_sel[k]:
        raw = raw >> np.uint32(16)
    if not is_float(kind):                           # v_cndmask_b32: the sign bit of what may be a float
        raw = raw & np.uint32(0x7FFFFFFF) if "abs" in signs else raw
        raw = raw ^ np.uint32(0x80000000) if "neg" in signs else raw
    value = np.ascontiguousarray(raw.astype(f"u{size_of(kind)}")).view(DTYPES[kind])
    if not is_float(kind):
        return value
    value = np.abs(value) if "abs" in signs else value
    return -value if "neg" in signs else value


def finish(row: Row, form: Form, result: np.ndarray) -> np.ndarray:
    """The typed result after output modifiers."""
    kind = row.dst.split()[0]
    if form.omod:
        result = result * result.dtype.type(OMOD[form.omod])
        tiny = np.abs(result) < np.finfo(result.dtype).tiny
        result = np.where(tiny, result.dtype.type(0), result)
    if form.clamp and is_float(kind):                # DX10_CLAMP: NaN becomes 0
        result = np.where(np.isnan(result) | (result <= 0), result.dtype.type(0), np.minimum(result, 1))
    return result.astype(DTYPES[kind])


def whole_register(row: Row, form: Form, result: np.ndarray, old: np.ndarray) -> np.ndarray:
    """The result in its place of the destination, as u32 or u64."""
    size = result.itemsize
    bits = np.ascontiguousarray(result).view(f"u{size}")
    if size > 4:
        return bits
    bits = bits.astype(np.uint32)
    if form.encoding == "sdwa" and form.dst_sel != "DWORD":
        first, width = SELECTS[form.dst_sel]
        field = np.uint32((1 << width) - 1 << first)
        moved = bits << np.uint32(first) & field
        if form.dst_unused == "UNUSED_PRESERVE":
            return moved | old & ~field
        negative = bits >> np.uint32(width - 1) & 1 == 1
        above = np.uint32(-1 << first + width & 0xFFFFFFFF)
        return np.where(negative & (form.dst_unused == "UNUSED_SEXT"), moved | above, moved)
    if len(form.op_sel) and form.op_sel[-1]:
        return bits << np.uint32(16) | old & np.uint32(0xFFFF)
    return bits | old & np.uint32(0xFFFF0000) if size == 2 and row.keep_high else bits


class Prepared:
    """One row's forms as one kernel."""

    def __init__(self, row: Row, chosen: Sequence[Form], seed: int, flushing: bool = False):
        assert len(chosen) <= 28, row.name
        self.row, self.forms, self.exec = row, list(chosen), random_exec(seed)
        kinds, self.dst_kind = kinds_of(row), row.dst.split()[0]
        self.raw = raw_sources(row, seed, flushing)
        self.wide = size_of(self.dst_kind) == 8 if self.dst_kind != "mask" else False
        self.old = values("u64" if self.wide else "u32", seed + 2)
        inputs = {source_register(kind, k): pack_mask(raw) if kind == "mask" else raw
                  for k, (kind, raw) in enumerate(zip(kinds, self.raw))}
        inputs["v[36:37]" if self.wide else "v36"] = self.old
        inputs["s[86:87]"] = self.exec
        body = ["s_mov_b64 exec, -1"]
        if flushing:
            at, count = _MODES[self.dst_kind]
            body += [f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, {at}, {count}), 1",
                     "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0"]
        for slot in range(len(chosen)):
            body += [f"v_mov_b32 v{40 + 2 * slot + half}, v{36 + half}" for half in range(1 + self.wide)]
        scalars = {form.scalar: self.raw[form.scalar] for form in chosen if form.scalar >= 0}
        body.append("s_mov_b64 exec, s[86:87]")
        outputs: dict[str, type] = {}
        for slot, form in enumerate(chosen):
            if form.scalar >= 0:
                value = int(scalars[form.scalar][0, 0])
                body += [f"s_mov_b32 s26, {value & 0xFFFFFFFF:#x}", f"s_mov_b32 s27, {value >> 32:#x}"]
            body += instruction(row, form, slot)
            if self.dst_kind != "mask":
                outputs[self.register(form, slot)] = np.uint64 if self.wide else np.uint32
            if "mask" in row.dst:
                outputs[f"s[{30 + 2 * slot}:{31 + 2 * slot}]"] = np.uint64
        self.case = Case("\n".join(body), inputs, outputs)

    def register(self, form: Form, slot: int) -> str:
        if form.in_place:
            return source_register("u64" if self.wide else "u32", 0)
        return f"v[{40 + 2 * slot}:{41 + 2 * slot}]" if self.wide else f"v{40 + 2 * slot}"

    def check(self, result: dict[str, np.ndarray]) -> None:
        for slot, form in enumerate(self.forms):
            self.check_form(form, slot, result)

    def check_form(self, form: Form, slot: int, result: dict[str, np.ndarray]) -> None:
        row, active, kinds = self.row, unpack_mask(self.exec), kinds_of(self.row)
        label = instruction(row, form, slot)[-1 if len(row.dst.split()) == 1 else 0]
        old = self.old
        if form.in_place:
            raw = self.raw[0].astype(np.uint64 if self.wide else np.uint32)
            old = raw | (self.old * 0)
            if self.wide and size_of(kinds[0]) < 8:      # the pair's upper register is the untouched next one
                return
        sources = [operand(form, kind, k, raw, active) for k, (kind, raw) in enumerate(zip(kinds, self.raw))]
        if row.reads_dst:
            typed = np.ascontiguousarray(old.astype(f"u{size_of(self.dst_kind)}")).view(DTYPES[self.dst_kind])
            sources.append(typed)
        with np.errstate(all="ignore"):
            saturates = form.clamp and not is_float(self.dst_kind)
            wanted = (CLAMPS[row.name] if saturates else row.model)(*sources)
            wanted, *bits = wanted if isinstance(wanted, tuple) else (wanted,)
            if self.dst_kind == "mask":
                bits, wanted = [wanted], None
            else:
                plain = np.asarray(wanted).astype(DTYPES[self.dst_kind])
                wanted = finish(row, form, plain)
        written = active
        if form.encoding == "dpp":
            _, source, row_mask, bank_mask, bound = DPP[form.dpp]
            enabled = (row_mask >> LANE // 16 & 1 == 1) & (bank_mask >> LANE // 4 % 4 & 1 == 1)
            written = active & enabled & (bound | (source >= 0) & active[:, np.maximum(source, 0)])
        for bit in bits:
            got = unpack_mask(result[f"s[{30 + 2 * slot}:{31 + 2 * slot}]"])
            assert_close(label, got, np.asarray(bit, bool) & written, 0, sources)
        if form.omod:                                # whether a denormal is flushed before it is scaled is not known
            edge = np.finfo(plain.dtype).tiny * (1 + np.finfo(plain.dtype).eps)
            scaled = plain * plain.dtype.type(OMOD[form.omod])
            written = written & ~((plain != 0) & ((np.abs(plain) < edge) | (np.abs(scaled) < edge)))
            old = np.where(written == active, old, result[self.register(form, slot)])
        if wanted is not None:
            self.check_registers(form, label, result[self.register(form, slot)], wanted, old, written, sources)

    def check_registers(self, form, label, got, wanted, old, written, sources) -> None:
        """The number where it is one (any NaN equals any NaN, ulp counts), then the register around it."""
        row, size = self.row, size_of(self.dst_kind)
        placed = form.encoding == "sdwa" and form.dst_sel != "DWORD"
        shift = 16 if form.op_sel and form.op_sel[-1] else 0
        if not placed or (size == 2 and SELECTS[form.dst_sel][1] == 16):
            shift = SELECTS[form.dst_sel][0] if placed else shift
            typed = np.ascontiguousarray((got >> got.dtype.type(shift)).astype(f"u{size}")).view(DTYPES[self.dst_kind])
            if form.clamp or form.omod:                    # the sign of a zero is no matter of clamp
                typed, wanted = (np.where(x == 0, np.abs(x), x) if is_float(self.dst_kind) else x
                                 for x in (typed, wanted))
            assert_close(label, np.where(written, typed, wanted), wanted, row.ulp, sources)
            wanted = np.where(written, typed, wanted).astype(wanted.dtype)
        elif is_float(self.dst_kind):
            numbers = ~np.isnan(wanted)
            written, got, old = written & numbers, np.where(numbers, got, old), old
        whole = whole_register(row, form, wanted, old)
        if placed and row.ulp:
            return
        if form.clamp or form.omod:
            got = np.where(written, whole, got) if size != 2 else got & ~np.uint32(0x8000 << shift)
            whole = whole if size != 2 else whole & ~np.uint32(0x8000 << shift)
            old = old if size != 2 else old & ~np.uint32(0x8000 << shift)
        np.testing.assert_array_equal(got, np.where(written, whole, old), label)


def check_forms(rows: Sequence[Row], units: dict[str, set[str]], refused: set[tuple[str, str]], seed: int = 1) -> set:
    """Runs every form of the rows but those with a refused unit. Returns the (instruction, unit) pairs compared."""
    prepared, tested = [], set()
    for index, row in enumerate(rows):
        mine = {unit for unit in units[row.name] if (row.name, unit) not in refused}
        plain = forms(row, mine)
        scaled = omod_forms(mine, sum(kind != "mask" for kind in kinds_of(row)))
        for chosen, flushing in ((plain, False), (scaled, True)):
            for first in range(0, len(chosen), 28):
                part = chosen[first:first + 28]
                prepared.append(Prepared(row, part, seed + 100 * index + 7 * first, flushing))
                tested |= {(row.name, unit) for form in part for unit in form.units()}
    for first in range(0, len(prepared), 150):
        part = prepared[first:first + 150]
        for item, result in zip(part, run_many([item.case for item in part]), strict=True):
            item.check(result)
    return tested

