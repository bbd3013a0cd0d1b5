# SPDX-License-Identifier: MIT
"""Points that manuals leave open and the simulator had to choose, each a small kernel whose result decides it.

`aiter-like sim validate --hardware` asks them. A test asks the simulator: `simulated` is what it answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiter_like.sim.names import spans
from aiter_like.sim.validation.memory_questions import memory_questions
from aiter_like.sim.validation.question import LANES, Question, Rows, bits, each, once

_SIGNAL, _QUIET, _OTHER, _DENORMAL = 0x7FA00001, 0x7FC00002, 0xFFC00003, 0x00000005
_ONE, _TWO, _QUIETED = bits(1.0), bits(2.0), 1 << 22
# Operands of the questions about minima, maxima and medians.
_PAIRS = {"sNaN 1": (_SIGNAL, _ONE), "1 sNaN": (_ONE, _SIGNAL), "qNaN 1": (_QUIET, _ONE), "1 qNaN": (_ONE, _QUIET),
          "qNaN sNaN": (_QUIET, _SIGNAL), "sNaN qNaN": (_SIGNAL, _QUIET), "qNaN qNaN": (_QUIET, _OTHER),
          "denormal 1": (_DENORMAL, _ONE), "-0 0": (1 << 31, 0), "0 -0": (0, 1 << 31)}


def questions() -> list[Question]:
    """All of them."""
    return [*memory_questions(), *_float8(), _random_bits(), _dpp(), *_modes()]


# ---- conversions to 8-bit floats

_LARGE = {"1e6": bits(1e6), "-1e6": bits(-1e6), "inf": bits(float("inf")), "-inf": bits(float("-inf")),
          "NaN": 0x7FC00000}
_OVFL = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {}\ns_nop 4"


def _float8() -> Iterator[Question]:
    for name in ("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32", "v_cvt_sr_fp8_f32", "v_cvt_sr_bf8_f32"):
        second = "v4" if "_sr_" in name else "v3"
        body = "global_load_dword v3, v60, s[4:5]\nv_mov_b32 v4, 0\nv_mov_b32 v20, 0\nv_mov_b32 v21, 0\n" \
               f"s_waitcnt vmcnt(0)\n{_OVFL.format(0)}\n{name} v20, v3, {second}\n{_OVFL.format(1)}\n" \
               f"{name} v21, v3, {second}\n{_OVFL.format(0)}"

        def decide(rows: Rows) -> str:
            told = {0x80: "NaN", 0x7F: "largest", 0xFF: "-largest"}
            said = [" ".join(told.get(value & 0xFF, f"{value & 0xFF:#x}") for value in row[:len(_LARGE)])
                    for row in rows]
            return f"without {said[0]}; with {said[1]}"

        yield Question(f"FP16_OVFL and {name}",
                       f"what does a conversion make of {', '.join(_LARGE)}, without MODE.FP16_OVFL and with it?",
                       once(body, ["v20", "v21"]), decide,
                       "without NaN NaN NaN NaN NaN; with largest -largest NaN NaN NaN", "isa/float8.h", rows=2,
                       inputs=[*_LARGE.values(), *[0] * (LANES - len(_LARGE))])


def _random_bits() -> Question:
    """One bit of the random number is set, lane by lane. Beside a value just below the next number, every bit that is
    added shows; beside one half-way below it, only the highest."""
    below = {"fp8": (0x3F8FFFFF, 0x3F880000), "bf8": (0x3F9FFFFF, 0x3F900000)}
    lines, registers = ["v_mov_b32 v3, 1", "v_lshlrev_b32 v4, v0, v3"], []
    for kind, values in below.items():
        for value in values:
            registers.append(f"v{20 + len(registers)}")
            lines += [f"v_mov_b32 {registers[-1]}, 0", f"v_mov_b32 v5, {value:#x}",
                      f"v_cvt_sr_{kind}_f32 {registers[-1]}, v5, v4"]

    def decide(rows: Rows) -> str:
        said = []
        for kind, (fine, half) in zip(below, (rows[:2], rows[2:]), strict=True):
            least = min(*fine[:32], *half[:32])
            up = [[lane for lane, value in enumerate(row[:32]) if value != least] for row in (fine, half)]
            said.append(f"{kind}: bits {spans(up[0])} are added, half of a step is bit {spans(up[1])}")
        return "; ".join(said)

    return Question("random bits of sr conversions", "which bits of its second source does a stochastic rounding add?",
                    once("\n".join(lines), registers), decide,
                    "fp8: bits 12-31 are added, half of a step is bit 31; "
                    "bf8: bits 11-31 are added, half of a step is bit 31", "isa/float8.h", rows=4)


# ---- lanes

def _dpp() -> Question:
    """Active lanes read inactive ones."""
    old, first = 0xDEAD, 0x100
    moves = {"row_shr:1": "0xaaaaaaaa", "quad_perm:[1,0,3,2]": "0xaaaaaaaa", "row_bcast:15": "0x7fff7fff"}
    source = {"row_shr:1": (1, 0), "quad_perm:[1,0,3,2]": (1, 0), "row_bcast:15": (16, 15)}
    lines, names, registers = [f"v_add_u32 v3, {first}, v0"], [], []
    for control, active in moves.items():
        for bound in ("", " bound_ctrl:0"):  # the bit is set, whatever the number is
            names.append(control)
            registers.append(f"v{20 + len(registers)}")
            lines += ["s_mov_b64 exec, -1", f"v_mov_b32 {registers[-1]}, {old:#x}", f"s_mov_b32 exec_lo, {active}",
                      f"s_mov_b32 exec_hi, {active}", "s_nop 7",
                      f"v_mov_b32_dpp {registers[-1]}, v3 {control} row_mask:0xf bank_mask:0xf{bound}", "s_nop 7"]

    def decide(rows: Rows) -> str:
        said = []
        for name, row in zip(names, rows, strict=True):
            lane, other = source[name]
            said.append({old: "keeps the old value", 0: "gets 0", first + other: "reads it"}.get(
                row[lane], f"{row[lane]:#x}"))
        return "; ".join(f"bound_ctrl {bit}: {each(names[bit::2], said[bit::2])}" for bit in range(2))

    return Question("DPP from inactive lanes", "what does a lane get that reads an inactive one, by DPP's bound_ctrl?",
                    once("\n".join(lines), registers), decide,
                    "bound_ctrl 0: keeps the old value; bound_ctrl 1: gets 0", "isa/dpp.cpp", rows=len(registers))


# ---- MODE

_MODES = {"IEEE": (1, 15), "not IEEE": (0, 15), "flushed": (1, 0)}


def _modes() -> Iterator[Question]:
    nans = "Aq Bq B A Bq Aq B"
    for name, operands, simulated in (
            ("v_min_f32", "v3, v4", f"IEEE: {nans} A A B, not IEEE: {nans} A A B, flushed: {nans} 0 A B"),
            ("v_max_f32", "v3, v4", f"{nans} B B A"), ("v_med3_f32", "v3, v4, 2.0", "2 2 B A 2 2 2 B B A"),
            ("v_min3_f32", "v3, v4, 2.0", "IEEE: {0} A A B, not IEEE: {0} A A B, flushed: {0} 0 A B".format(
                "2 2 B A 2 2 2")),
            ("v_max_f32 with clamp", "v3, v4 clamp", "0 0 B A 0 0 0 B B A")):
        yield _mode(name, operands, simulated)


def _mode(name: str, operands: str, simulated: str) -> Question:
    lines = ["global_load_dword v3, v60, s[4:5]", f"global_load_dword v4, v60, s[4:5] offset:{4 * LANES}",
             "s_waitcnt vmcnt(0)"]
    registers = []
    for ieee, denormals in _MODES.values():
        registers.append(f"v{20 + len(registers)}")
        suffix = "_e64" if "clamp" in operands else ""
        lines += [f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), {ieee}", "s_nop 1",
                  f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), {denormals}", "s_nop 4",
                  f"{name.split(' ')[0]}{suffix} {registers[-1]}, {operands}", "s_nop 4"]

    def decide(rows: Rows) -> str:
        return each(list(_MODES), [" ".join(_told(row[lane], *pair) for lane, pair in enumerate(_PAIRS.values()))
                                   for row in rows])

    first, second = ([pair[k] for pair in _PAIRS.values()] for k in range(2))
    rest = [0] * (LANES - len(first))
    return Question(f"MODE and {name}", f"what of the pairs A B = {', '.join(_PAIRS)} (Aq: A, quieted)"
                                        f"{', beside 2' if '2.0' in operands else ''}, by MODE.IEEE and with flushed "
                                        "denormals?",
                    once("\n".join(lines), registers), decide, simulated, "isa/mode.cpp", rows=len(registers),
                    inputs=[*first, *rest, *second, *rest])


def _told(value: int, first: int, second: int) -> str:
    known = ((first, "A"), (second, "B"), (first | _QUIETED, "Aq"), (second | _QUIETED, "Bq"), (0, "0"),
             (1 << 31, "-0"), (_ONE, "1"), (_TWO, "2"))
    return next((text for number, text in known if number == value), f"{value:#x}")
