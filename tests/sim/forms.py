# SPDX-License-Identifier: MIT
"""The encodings and modifiers of a vector instruction as assembly text. Read by form_cases.py and test_forms.py.

A unit is one thing that a form can have: "e64 neg1", "sdwa sext0", "dpp", "e64 clamp". LLVM's assembler says which
units an instruction takes (`accepted`); `forms` combines them into a few instructions.
"""

import functools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from asm import LANES, tool
from isa_model import DTYPES, Row

SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
           "WORD_1": (16, 16), "DWORD": (0, 32)}
LANE = np.arange(LANES)
# Control text → lane read, -1 for none; row and bank mask; bound_ctrl. test_dpp.py has every control.
DPP = (("quad_perm:[2,0,3,1]", LANE // 4 * 4 + np.array([2, 0, 3, 1])[LANE % 4], 0xA, 0x7, False),
       ("row_shr:3", np.where(LANE % 16 >= 3, LANE - 3, -1), 0xF, 0xF, True),
       ("row_shr:3", np.where(LANE % 16 >= 3, LANE - 3, -1), 0xF, 0xF, False))
OMOD = {"mul:2": 2, "mul:4": 4, "div:2": 0.5}
DPP_TEXT = "{} row_mask:{:#x} bank_mask:{:#x}{}"


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
    done = subprocess.run([tool("llvm-mc"), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-filetype=null", "-"],
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
