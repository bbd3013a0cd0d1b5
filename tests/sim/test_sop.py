# SPDX-License-Identifier: MIT
"""Scalar instructions against Python integers: results, SCC, EXEC, branches, hardware registers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from asm import Case, run, run_many
from hip_runtime import HipError
from isa_model import table_names

SAMPLES = 48
_EDGES = (0, 1, 2, 31, 32, 63, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF,
          1 << 63, (1 << 64) - 1, 0x00100004, 0x00080018, 0x00200000, 0x00400000)


@dataclass(frozen=True)
class Row:
    """name; width of the result (0: only SCC); widths of the sources; model(*sources) → result, or (result, scc).

    `scc`: the model's last argument is SCC before; `old`: its first argument is the destination before.
    """

    name: str
    dst: int
    src: tuple[int, ...]
    model: Callable
    scc: bool = False
    old: bool = False


def signed(x: int, bits: int = 32) -> int:
    return x - (1 << bits) if x >> bits - 1 & 1 else x


def nonzero(function: Callable, bits: int) -> Callable:
    """SCC = the result is not 0."""
    def model(*sources: int) -> tuple[int, int]:
        result = function(*sources) & (1 << bits) - 1
        return result, int(result != 0)
    return model


def carry(total: int) -> tuple[int, int]:
    return total, int(not 0 <= total < 1 << 32)


def overflow(total: int) -> tuple[int, int]:
    return total, int(not -(1 << 31) <= total < 1 << 31)


def choose(a: int, b: int, first: bool) -> tuple[int, int]:
    return (a if first else b), int(first)


def first_one(x: int) -> int:
    return (x & -x).bit_length() - 1


def leading(bits: int) -> Callable:
    return lambda x: bits - x.bit_length() if x else -1


def sign_run(bits: int) -> Callable:
    return lambda x: leading(bits)(~x & (1 << bits) - 1 if x >> bits - 1 else x)


def field(bits: int, is_signed: bool) -> Callable:
    def model(x: int, control: int) -> int:
        offset, width = control & bits - 1, control >> 16 & 127
        width = min(width, bits - offset)
        value = x >> offset & (1 << width) - 1
        return signed(value, width) if is_signed and width else value
    return nonzero(model, bits)


def quads(x: int) -> list[bool]:
    return [bool(x >> 4 * quad & 15) for quad in range(16)]


def whole_quads(x: int) -> int:
    return sum(15 << 4 * quad for quad, any_bit in enumerate(quads(x)) if any_bit)


def quad_mask(x: int) -> int:
    return sum(1 << quad for quad, any_bit in enumerate(quads(x)) if any_bit)


def reverse(bits: int) -> Callable:
    return lambda x: int(f"{x:0{bits}b}"[::-1], 2)


def by_width(name: str, function: Callable, suffixes: tuple[str, str] = ("b32", "b64"), count: int = 2) -> list[Row]:
    return [Row(f"{name}_{suffix}", bits, (bits,) * count, nonzero(function, bits))
            for suffix, bits in zip(suffixes, (32, 64), strict=True)]


def shift(name: str, function: Callable, suffixes: tuple[str, str], is_signed: bool = False) -> list[Row]:
    def model(bits: int) -> Callable:
        return nonzero(lambda x, n: function(signed(x, bits) if is_signed else x, n & bits - 1), bits)
    return [Row(f"{name}_{suffix}", bits, (bits, 32), model(bits))
            for suffix, bits in zip(suffixes, (32, 64), strict=True)]


LOGIC = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
         "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
         "xnor": lambda a, b: ~(a ^ b)}
COMPARE = {"eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
           "lt": lambda a, b: a < b, "le": lambda a, b: a <= b}


def compare_row(name: str, function: Callable, kind: str) -> Row:
    if kind == "i32":
        return Row(f"s_cmp_{name}_i32", 0, (32, 32), lambda a, b: function(signed(a), signed(b)))
    bits = int(kind[1:])
    return Row(f"s_cmp_{name}_{kind}", 0, (bits, bits), function)


ROWS = [
    Row("s_add_u32", 32, (32, 32), lambda a, b: carry(a + b)),
    Row("s_sub_u32", 32, (32, 32), lambda a, b: carry(a - b)),
    Row("s_add_i32", 32, (32, 32), lambda a, b: overflow(signed(a) + signed(b))),
    Row("s_sub_i32", 32, (32, 32), lambda a, b: overflow(signed(a) - signed(b))),
    Row("s_addc_u32", 32, (32, 32), lambda a, b, c: carry(a + b + c), scc=True),
    Row("s_subb_u32", 32, (32, 32), lambda a, b, c: carry(a - b - c), scc=True),
    Row("s_min_i32", 32, (32, 32), lambda a, b: choose(a, b, signed(a) < signed(b))),
    Row("s_max_i32", 32, (32, 32), lambda a, b: choose(a, b, signed(a) > signed(b))),
    Row("s_min_u32", 32, (32, 32), lambda a, b: choose(a, b, a < b)),
    Row("s_max_u32", 32, (32, 32), lambda a, b: choose(a, b, a > b)),
    *(Row(f"s_cselect_b{bits}", bits, (bits, bits), lambda a, b, c: a if c else b, scc=True) for bits in (32, 64)),
    *(row for name, function in LOGIC.items() for row in by_width(f"s_{name}", function)),
    *shift("s_lshl", lambda x, n: x << n, ("b32", "b64")),
    *shift("s_lshr", lambda x, n: x >> n, ("b32", "b64")),
    *shift("s_ashr", lambda x, n: x >> n, ("i32", "i64"), is_signed=True),
    *(Row(f"s_bfm_b{bits}", bits, (32, 32), lambda w, o, m=bits - 1: (1 << (w & m)) - 1 << (o & m))
      for bits in (32, 64)),
    Row("s_mul_i32", 32, (32, 32), lambda a, b: a * b),
    Row("s_mul_hi_u32", 32, (32, 32), lambda a, b: a * b >> 32),
    Row("s_mul_hi_i32", 32, (32, 32), lambda a, b: signed(a) * signed(b) >> 32),
    *(Row(f"s_bfe_{sign}{bits}", bits, (bits, 32), field(bits, sign == "i")) for sign in "ui" for bits in (32, 64)),
    Row("s_absdiff_i32", 32, (32, 32), nonzero(lambda a, b: abs(signed(signed(a) - signed(b) & 0xFFFFFFFF)), 32)),
    *(Row(f"s_lshl{n}_add_u32", 32, (32, 32), lambda a, b, n=n: carry((a << n) + b)) for n in (1, 2, 3, 4)),
    Row("s_pack_ll_b32_b16", 32, (32, 32), lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16),
    Row("s_pack_lh_b32_b16", 32, (32, 32), lambda a, b: a & 0xFFFF | b >> 16 << 16),
    Row("s_pack_hh_b32_b16", 32, (32, 32), lambda a, b: a >> 16 | b >> 16 << 16),
    *(Row(f"s_mov_b{bits}", bits, (bits,), lambda a: a) for bits in (32, 64)),
    *(Row(f"s_cmov_b{bits}", bits, (bits,), lambda old, a, c: a if c else old, scc=True, old=True)
      for bits in (32, 64)),
    *by_width("s_not", lambda a: ~a, count=1),
    *by_width("s_wqm", whole_quads, count=1),
    *by_width("s_quadmask", quad_mask, count=1),
    *(Row(f"s_brev_b{bits}", bits, (bits,), reverse(bits)) for bits in (32, 64)),
    *(Row(f"s_bcnt0_i32_b{bits}", 32, (bits,), nonzero(lambda a, n=bits: n - a.bit_count(), 32)) for bits in (32, 64)),
    *(Row(f"s_bcnt1_i32_b{bits}", 32, (bits,), nonzero(lambda a: a.bit_count(), 32)) for bits in (32, 64)),
    *(Row(f"s_ff0_i32_b{bits}", 32, (bits,), lambda a, m=(1 << bits) - 1: first_one(~a & m)) for bits in (32, 64)),
    *(Row(f"s_ff1_i32_b{bits}", 32, (bits,), first_one) for bits in (32, 64)),
    *(Row(f"s_flbit_i32_b{bits}", 32, (bits,), leading(bits)) for bits in (32, 64)),
    Row("s_flbit_i32", 32, (32,), sign_run(32)),
    Row("s_flbit_i32_i64", 32, (64,), sign_run(64)),
    Row("s_sext_i32_i8", 32, (32,), lambda a: signed(a & 0xFF, 8)),
    Row("s_sext_i32_i16", 32, (32,), lambda a: signed(a & 0xFFFF, 16)),
    *(Row(f"s_bitset0_b{bits}", bits, (32,), lambda old, n, m=bits - 1: old & ~(1 << (n & m)), old=True)
      for bits in (32, 64)),
    *(Row(f"s_bitset1_b{bits}", bits, (32,), lambda old, n, m=bits - 1: old | 1 << (n & m), old=True)
      for bits in (32, 64)),
    Row("s_abs_i32", 32, (32,), nonzero(lambda a: abs(signed(a)), 32)),
    Row("s_bitreplicate_b64_b32", 64, (32,), lambda a: sum(3 << 2 * at for at in range(32) if a >> at & 1)),
    *(compare_row(name, function, kind) for kind in ("i32", "u32") for name, function in COMPARE.items()),
    *(compare_row(name, COMPARE[name], "u64") for name in ("eq", "lg")),
    *(Row(f"s_bitcmp{value}_b{bits}", 0, (bits, 32), lambda a, n, v=value, m=bits - 1: a >> (n & m) & 1 == v)
      for value in (0, 1) for bits in (32, 64)),
]
SAVEEXEC = {**LOGIC, "andn1": lambda s, e: ~s & e, "orn1": lambda s, e: ~s | e}
WREXEC = {"andn1": SAVEEXEC["andn1"], "andn2": LOGIC["andn2"]}
IMMEDIATE = {f"s_cmpk_{name}_{kind}" for name in COMPARE for kind in ("i32", "u32")}
IMMEDIATE |= {"s_movk_i32", "s_cmovk_i32", "s_addk_i32", "s_mulk_i32"}
RELATIVE = {f"s_movrel{which}_b{bits}" for which in "sd" for bits in (32, 64)}


def scalars(bits: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << bits, SAMPLES, np.uint64, endpoint=False)
    edges = np.array([edge & (1 << bits) - 1 for edge in _EDGES], np.uint64)
    x = np.where(rng.random(SAMPLES) < 0.5, rng.choice(edges, SAMPLES), x)
    return x.astype(np.uint32) if bits == 32 else x


def pair(first: int, bits: int) -> str:
    return f"s{first}" if bits == 32 else f"s[{first}:{first + 1}]"


def test_rows():
    cases, inputs = [], []
    for index, row in enumerate(ROWS):
        sources = [scalars(bits, 100 * index + at) for at, bits in enumerate(row.src)]
        if len(sources) == 2 and row.dst == 0:
            same = np.arange(SAMPLES) % 3 == 0             # random operands are hardly ever equal
            sources[1] = np.where(same, sources[0] & 0xFFFFFFFF, sources[1]).astype(sources[1].dtype)
        registers = [pair(10 + 2 * at, bits) for at, bits in enumerate(row.src)]
        dst = [pair(20, row.dst)] if row.dst else []
        old = scalars(row.dst or 32, 100 * index + 9)
        scc = np.arange(SAMPLES, dtype=np.uint32) % 2
        given = dict(zip(registers, sources, strict=True)) | {"scc": scc} | ({dst[0]: old} if dst else {})
        cases.append(Case(f"{row.name} {', '.join(dst + registers)}", given, [*dst, "scc"]))
        inputs.append((sources, old, scc))
    for row, (sources, old, scc), result in zip(ROWS, inputs, run_many(cases), strict=True):
        for at in range(SAMPLES):
            arguments = ([int(old[at])] if row.old else []) + [int(x[at]) for x in sources]
            wanted = row.model(*arguments, *([int(scc[at])] if row.scc else []))
            value, flag = wanted if isinstance(wanted, tuple) else (wanted, int(scc[at]))
            if row.dst:
                got = int(result[pair(20, row.dst)][at])
                assert got == value & (1 << row.dst) - 1, f"{row.name} {arguments}: {got:#x}"
            else:
                flag = int(bool(wanted))
            assert int(result["scc"][at]) == flag, f"{row.name} {arguments}: scc"


def test_saveexec_and_wrexec():
    source, mask = scalars(64, 1), scalars(64, 2)
    rows = [(f"s_{name}_saveexec_b64", function, True) for name, function in SAVEEXEC.items()]
    rows += [(f"s_{name}_wrexec_b64", function, False) for name, function in WREXEC.items()]
    cases = [Case(f"{name} s[20:21], s[10:11]", {"s[10:11]": source, "exec": mask}, ["s[20:21]", "exec", "scc"])
             for name, _, _ in rows]
    for (name, function, saves), result in zip(rows, run_many(cases), strict=True):
        wanted = function(source, mask)
        np.testing.assert_array_equal(result["exec"], wanted, name)
        np.testing.assert_array_equal(result["s[20:21]"], mask if saves else wanted, name)
        np.testing.assert_array_equal(result["scc"], wanted != 0, name)


@pytest.mark.parametrize("k", [0, 5, 0x7FFF, 0x8000, 0xFFFF])
def test_immediate_forms(k):
    x, scc = scalars(32, 3), np.arange(SAMPLES, dtype=np.uint32) % 2
    small = np.where(np.arange(SAMPLES) % 2 == 0, np.uint32(signed(k, 16) & 0xFFFFFFFF), x)
    names = sorted(IMMEDIATE)
    cases = [Case(f"{name} s10, {k:#x}", {"s10": small, "scc": scc}, ["s10", "scc"]) for name in names]
    results = dict(zip(names, run_many(cases), strict=True))
    signed_k = signed(k, 16)
    for at, value in enumerate(int(v) for v in small):
        for name, function in COMPARE.items():
            assert int(results[f"s_cmpk_{name}_i32"]["scc"][at]) == function(signed(value), signed_k)
            assert int(results[f"s_cmpk_{name}_u32"]["scc"][at]) == function(value, k)
        assert int(results["s_movk_i32"]["s10"][at]) == signed_k & 0xFFFFFFFF
        assert int(results["s_cmovk_i32"]["s10"][at]) == (signed_k & 0xFFFFFFFF if scc[at] else value)
        total, flag = overflow(signed(value) + signed_k)
        assert int(results["s_addk_i32"]["s10"][at]) == total & 0xFFFFFFFF
        assert int(results["s_addk_i32"]["scc"][at]) == flag
        assert int(results["s_mulk_i32"]["s10"][at]) == value * signed_k & 0xFFFFFFFF


def test_movrel():
    got = run("s_mov_b32 m0, 4\ns_movrels_b32 s20, s10\ns_movreld_b32 s11, s10\ns_movrels_b64 s[22:23], s[12:13]\n"
              "s_movreld_b64 s[26:27], s[10:11]",
              {f"s{at}": 100 + at for at in range(10, 18)}, ["s20", "s15", "s[22:23]", "s[30:31]"])
    assert int(got["s20"]) == 114 and int(got["s15"]) == 110
    assert int(got["s[22:23]"]) == 117 << 32 | 116 and int(got["s[30:31]"]) == 111 << 32 | 110


def test_every_row_is_tested():
    tested = {row.name for row in ROWS} | IMMEDIATE | RELATIVE
    tested |= {f"s_{name}_saveexec_b64" for name in SAVEEXEC} | {f"s_{name}_wrexec_b64" for name in WREXEC}
    assert tested == table_names("sop")


def test_literals_and_special_sources():
    got = run("s_mov_b64 s[10:11], 0xdeadbeef\ns_mov_b64 s[12:13], -2\ns_mov_b32 s14, 1.0\ns_mov_b64 s[16:17], vcc\n"
              "s_mov_b64 s[18:19], src_shared_base\ns_cmp_eq_u32 s14, s14\ns_mov_b32 s15, src_scc", {"vcc": 1 << 40},
              ["s[10:11]", "s[12:13]", "s14", "s15", "s[16:17]", "s[18:19]"])
    assert int(got["s[10:11]"]) == 0xDEADBEEF and int(got["s[12:13]"]) == (1 << 64) - 2
    assert int(got["s14"]) == 0x3F800000 and int(got["s15"]) == 1 and int(got["s[16:17]"]) == 1 << 40
    assert int(got["s[18:19]"]) == 1 << 48


# ---- SOPP: control


DEBUGGER = ("cdbgsys", "cdbguser", "cdbgsys_or_user", "cdbgsys_and_user")       # there is none


def test_conditional_branches():
    """Each branch skips one s_bitset1; the bits tell which were taken."""
    conditions = ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz", *DEBUGGER)
    body = "".join(f"s_cbranch_{name} 1f\ns_bitset1_b32 s10, {at}\n1:\n" for at, name in enumerate(conditions))
    for scc, vcc, mask in ((0, 0, 0), (1, 5, 7), (1, 0, 1)):
        got = int(run(body, {"s10": 0, "scc": scc, "vcc": vcc, "exec": mask}, ["s10"])["s10"])
        taken = [not scc, bool(scc), vcc == 0, vcc != 0, mask == 0, mask != 0, *[False for _ in DEBUGGER]]
        assert got == sum(1 << at for at, jumped in enumerate(taken) if not jumped)


def test_loop_call_and_program_counter():
    got = run("s_mov_b32 s10, 0\n1:\ns_add_u32 s10, s10, 3\ns_cmp_lt_u32 s10, 30\ns_cbranch_scc1 1b\ns_branch 3f\n"
              "2:\ns_mov_b32 s11, 77\ns_setpc_b64 s[12:13]\n3:\ns_call_b64 s[12:13], 2b\n"
              "s_getpc_b64 s[14:15]\ns_add_u32 s14, s14, 16\ns_addc_u32 s15, s15, 0\ns_swappc_b64 s[16:17], s[14:15]\n"
              "s_mov_b32 s11, 60\ns_sub_u32 s18, s14, s16\ns_nop 0\ns_sleep 1\ns_setprio 3\ns_barrier\ns_icache_inv\n"
              "s_ttracedata\ns_wakeup\ns_incperflevel 1\ns_decperflevel 1\ns_sethalt 0\ns_waitcnt 0",
              {}, ["s10", "s11", "s18"])
    # s_swappc jumps to 16 bytes after s_getpc's end: past s_add, s_addc, itself and the move of 60.
    assert (int(got["s10"]), int(got["s11"]), int(got["s18"])) == (30, 77, 4)


def test_trap_stops_the_launch():
    with pytest.raises(HipError, match="s_trap 2"):
        run("s_trap 2", {}, ["s10"])
    with pytest.raises(HipError, match="s_sethalt"):
        run("s_sethalt 1", {}, ["s10"])
    for name in ("s_sendmsg", "s_sendmsghalt"):
        with pytest.raises(HipError, match="messages to the host"):
            run(f"{name} sendmsg(MSG_INTERRUPT)", {}, ["s10"])


def test_hardware_registers():
    got = run("s_getreg_b32 s10, hwreg(HW_REG_MODE)\ns_getreg_b32 s11, hwreg(HW_REG_XCC_ID, 0, 4)\n"
              "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 0\ns_mov_b32 s12, 1\n"
              "s_setreg_b32 hwreg(HW_REG_MODE, 9, 1), s12\n"
              "s_getreg_b32 s13, hwreg(HW_REG_MODE, 8, 2)\ns_getreg_b32 s14, hwreg(HW_REG_HW_ID, 4, 2)",
              {"s20": np.zeros(10, np.uint32)}, ["s10", "s11", "s13", "s14"])
    assert (got["s10"] & 0x3FF == 0x3F0).all()             # nearest, denormals kept, DX10_CLAMP, IEEE
    np.testing.assert_array_equal(got["s11"], np.arange(10) % 8)
    assert (got["s13"] == 2).all() and (got["s14"] == 0).all()
    with pytest.raises(HipError, match="not modelled"):
        run("s_getreg_b32 s10, hwreg(HW_REG_GPR_ALLOC)", {}, ["s10"])


def test_every_control_row_is_tested():
    tested = {f"s_cbranch_{name}" for name in ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz", *DEBUGGER)}
    tested |= {f"s_{name}" for name in (
        "branch call_b64 setpc_b64 getpc_b64 swappc_b64 nop sleep setprio barrier icache_inv ttracedata wakeup "
        "incperflevel decperflevel sethalt sendmsg sendmsghalt waitcnt trap endpgm getreg_b32 setreg_b32 "
        "setreg_imm32_b32 setvskip set_gpr_idx_on set_gpr_idx_off set_gpr_idx_mode set_gpr_idx_idx"
    ).split()}
    assert tested == table_names("sopp")
