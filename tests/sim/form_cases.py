# SPDX-License-Identifier: MIT
"""Runs the forms of a vector instruction on whole registers; compares with the model between transformed operands and a
transformed result. Read by test_forms.py.
"""

from collections.abc import Callable, Sequence

import numpy as np
from asm import Case, run_many
from forms import (
    DPP,
    LANE,
    OMOD,
    SELECTS,
    Form,
    forms,
    instruction,
    is_float,
    kinds_of,
    omod_forms,
    size_of,
    source_register,
)
from isa_model import DTYPES, Row, assert_close, is_signaling, pack_mask, random_exec, unpack_mask, values

CLAMPS: dict[str, Callable] = {}               # integer instruction → its model with clamp; test_forms.py fills it
_MODES = {"f32": (4, 2), "f16": (6, 2), "f64": (6, 2)}                    # where MODE keeps a type's denormals


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

