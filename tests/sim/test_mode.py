# SPDX-License-Identifier: MIT
"""MODE: flushed denormals of f32 and f64, output modifiers; VGPR indexing. Against NumPy models."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from hip_runtime import HipError
from isa_model import GROUPS, canonical, exact_fma, maximum, minimum, random_exec, unpack_mask, values

from aiter_like import sim

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")

INDEXES = (0, 1, 3, 8)
# Body with {d} {a} {b} {c}, and the model on register rows (u32): read(number) gives a row.
INDEXED = {
    "v_mov_b32 v{d}, v{a}": lambda read, a, b, c: [read(a)],
    "v_sub_u32 v{d}, v{a}, v{b}": lambda read, a, b, c: [read(a) - read(b)],
    "v_sub_u32_e64 v{d}, v{a}, v{b}": lambda read, a, b, c: [read(a) - read(b)],
    "v_bfi_b32 v{d}, v{a}, v{b}, v{c}": lambda read, a, b, c: [read(a) & read(b) | ~read(a) & read(c)],
    "v_mov_b64 v[{d}:{d1}], v[{a}:{a1}]": lambda read, a, b, c: [read(a), read(a + 1)],
}


def denormal(x: np.ndarray) -> np.ndarray:
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


def flush(x: np.ndarray, active: bool = True) -> np.ndarray:
    return np.where(denormal(x), np.copysign(x.dtype.type(0), x), x) if active else x


def mode_text(offset: int, keep: int) -> str:
    return f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, {offset}, 2), {keep}\n"


FLUSHED = {
    "v_add_f32 {}, {}, {}": lambda a, b: a + b,
    "v_mul_f32 {}, {}, {}": lambda a, b: a * b,
    "v_sub_f32_e64 {}, {}, |{}|": lambda a, b: a - np.abs(b),
    "v_min_f32 {}, {}, {}": minimum,
    "v_max_f32 {}, {}, {}": maximum,
    "v_fma_f32 {}, {}, {}, 1.0": lambda a, b: exact_fma(a, b, np.ones_like(a)),
    "v_fma_f32 {}, {}, {}, 0": lambda a, b: exact_fma(a, b, np.zeros_like(a)),
}


def small(kind: str, seed: int) -> np.ndarray:
    """Numbers around the smallest normal one, among all others."""
    x = values(kind, seed)
    tiny = np.finfo(x.dtype).tiny
    near = (np.random.default_rng(seed).uniform(-3, 3, x.shape) * tiny).astype(x.dtype)
    near = np.where(np.arange(x.size).reshape(x.shape) % 3 == 1, np.sqrt(np.abs(near)), near)
    return np.where(np.arange(x.size).reshape(x.shape) % 4 == 0, x, near)


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_denormals(kind, keep):
    """Bit 0 keeps those of the sources, bit 1 those of the result; the other type's field does not matter."""
    wide = kind == "f64"
    registers = ("v[6:7]", "v[2:3]", "v[4:5]") if wide else ("v6", "v2", "v4")
    bodies = {body.replace("f32", kind).replace("_e64", "_e64" if not wide else ""): model
              for body, model in FLUSHED.items() if not (wide and "sub" in body)}
    a, b, old, mask = small(kind, 1), small(kind, 2), values(kind, 3), random_exec(4)
    dtype = np.dtype(a.dtype)
    prefix = mode_text(6 if wide else 4, keep)
    cases = [Case(prefix + body.format(*registers), {registers[1]: a, registers[2]: b, registers[0]: old, "exec": mask},
                  {registers[0]: dtype}) for body in bodies]
    x, y = flush(a, not keep & 1), flush(b, not keep & 1)
    active = unpack_mask(mask)
    for (body, model), result in zip(bodies.items(), run_many(cases), strict=True):
        with np.errstate(all="ignore"):
            wanted = np.where(active, flush(model(x, y).astype(dtype), not keep & 2), old)
        np.testing.assert_array_equal(canonical(result[registers[0]]), canonical(wanted), f"{body} keep={keep}")


def test_moves_comparisons_and_integers_under_flushing():
    a, b = small("f32", 5), small("f32", 6)
    body = (mode_text(4, 0) + "v_mov_b32 v6, v2\nv_add_u32 v7, v2, v4\nv_cmp_lt_f32_e64 s[20:21], v2, v4\n"
            "v_cmp_class_f32_e64 s[22:23], v2, v5\nv_cndmask_b32 v8, v2, v4, s[20:21]\nv_cvt_f64_f32 v[10:11], v2\n"
            "v_cvt_i32_f32 v9, v2\nv_exp_f32 v12, v4")
    got = run(body, {"v2": a, "v4": b, "v5": np.full(LANES, 0x90, np.uint32)},
              {"v6": np.float32, "v7": np.uint32, "v8": np.float32, "v[10:11]": np.float64, "s[20:21]": np.uint64,
               "s[22:23]": np.uint64})
    less = flush(a) < flush(b)
    np.testing.assert_array_equal(canonical(got["v6"]), canonical(a))
    np.testing.assert_array_equal(got["v7"], a.view(np.uint32) + b.view(np.uint32))
    np.testing.assert_array_equal(unpack_mask(got["s[20:21]"]), less)
    np.testing.assert_array_equal(unpack_mask(got["s[22:23]"]), denormal(a))       # a class is a matter of bits
    np.testing.assert_array_equal(canonical(got["v8"]), canonical(np.where(less, b, a)))
    np.testing.assert_array_equal(canonical(got["v[10:11]"]), canonical(flush(a).astype(np.float64)))


def test_conversions_flush_by_the_type_of_each_side():
    a, b = small("f64", 13), small("f32", 14).astype(np.float64) * 1.5
    x = np.where(np.arange(LANES) % 2 == 0, a, b)
    for offset, keep in ((4, 0), (6, 0), (4, 1), (4, 2)):
        got = run(mode_text(offset, keep) + "v_cvt_f32_f64 v6, v[2:3]", {"v[2:3]": x}, {"v6": np.float32})["v6"]
        source = flush(x, offset == 6)
        wanted = flush(source.astype(np.float32), offset == 4 and not keep & 2)
        np.testing.assert_array_equal(canonical(got), canonical(wanted), f"{offset} {keep}")


def test_division_steps_keep_denormals():
    a, b = small("f32", 15), small("f32", 16)
    text = "v_div_scale_f32 v6, s[20:21], v2, v4, v2\nv_div_fixup_f32 v7, v2, v4, v2"
    results = [run(prefix + text, {"v2": a, "v4": b}, ["v6", "v7", "s[20:21]"]) for prefix in ("", mode_text(4, 0))]
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_the_descriptors_denormal_mode():
    a, b = small("f32", 7), small("f32", 8)
    got = run("v_add_f32 v6, v2, v4", {"v2": a, "v4": b}, {"v6": np.float32}, directives=("float_denorm_mode_32 0",))
    np.testing.assert_array_equal(canonical(got["v6"]), canonical(flush(flush(a) + flush(b))))


def test_flushing_ends_with_the_mode_and_stays_in_its_wave():
    a = small("f32", 9)
    half = np.full(LANES, 0.5, np.float32)
    got = run(mode_text(4, 0) + "v_mul_f32 v6, v2, v4\n" + mode_text(4, 3) + "v_mul_f32 v7, v2, v4",
              {"v2": a, "v4": half}, {"v6": np.float32, "v7": np.float32})
    np.testing.assert_array_equal(canonical(got["v6"]), canonical(flush(flush(a) * np.float32(0.5))))
    np.testing.assert_array_equal(canonical(got["v7"]), canonical(a * np.float32(0.5)))


@pytest.mark.parametrize("omod, factor", [("mul:2", 2), ("mul:4", 4), ("div:2", 0.5)])
@pytest.mark.parametrize("clamp", ["", " clamp"])
def test_output_modifiers_with_ieee_off(omod, factor, clamp):
    a, b = small("f32", 10), small("f32", 11)
    off = mode_text(4, 0) + "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0\n"
    text = f"v_add_f32_e64 v6, v2, v4{clamp} {omod}"
    got = run(off + text, {"v2": a, "v4": b}, {"v6": np.float32})["v6"]
    wanted = flush(flush(flush(a) + flush(b)) * np.float32(factor))
    wanted = np.nan_to_num(np.clip(wanted, np.float32(0), np.float32(1)), nan=0) if clamp else wanted
    np.testing.assert_array_equal(canonical(got + np.float32(0)), canonical(wanted + np.float32(0)))
    for prefix in ("", mode_text(4, 0), "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0\n"):
        with pytest.raises(HipError, match="output modifier"):
            run(prefix + text, {"v2": a, "v4": b}, {"v6": np.float32})


def test_what_no_mode_gives_is_refused():
    with pytest.raises(HipError, match="f16 denormals"):
        run(mode_text(6, 0) + "v_pack_b32_f16 v2, v0, v1", {"v0": values("u32", 1), "v1": values("u32", 2)}, ["v2"])
    with pytest.raises(HipError, match="f16 denormals"):
        run(mode_text(6, 0) + "v_fma_mix_f32 v2, v0, v1, v0", {"v0": values("u32", 1), "v1": values("u32", 2)}, ["v2"])


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_mixed_f16_and_f32_flush_as_f32(keep):
    """Composable Kernel's attention, compiled to flush f32 denormals, scales and narrows by v_fma_mixlo_f16. An f16
    denormal is kept as a source, in the high half of v5, and as a result: the mode of f16 rules them."""
    a, b, rng = small("f32", 1), small("f32", 2), np.random.default_rng(14)
    half = (rng.uniform(-2, 2, a.shape) * 2.0 ** -14).astype(np.float16)
    large = (rng.uniform(1, 2, a.shape) * 2.0 ** 120).astype(np.float32)
    tiny = (rng.uniform(0, 2, a.shape) * 2.0 ** -127).astype(np.float32)
    text = ("v_fma_mix_f32 v6, v2, v3, 0\nv_fma_mix_f32 v7, v5, v5, v3 op_sel:[1,1,0] op_sel_hi:[1,1,0]\n"
            "v_fma_mixlo_f16 v8, v4, v9, 0\nv_fma_mixlo_f16 v10, v5, 1.0, 0 op_sel:[1,0,0] op_sel_hi:[1,0,0]")
    got = run(mode_text(4, keep) + text,
              {"v2": a, "v3": b, "v4": tiny, "v5": half.view(np.uint16).astype(np.uint32) << 16, "v9": large},
              {"v6": np.float32, "v7": np.float32, "v8": np.uint32, "v10": np.uint32})
    read, written = not keep & 1, not keep & 2
    fa, fb, zero, wide = flush(a, read), flush(b, read), np.zeros_like(a), half.astype(np.float32)
    np.testing.assert_array_equal(canonical(got["v6"]), canonical(flush(exact_fma(fa, fb, zero), written)))
    np.testing.assert_array_equal(canonical(got["v7"]), canonical(flush(exact_fma(wide, wide, fb), written)))
    product = (flush(tiny, read) * large).astype(np.float16)
    np.testing.assert_array_equal(got["v8"] & 0xFFFF, product.view(np.uint16))
    np.testing.assert_array_equal(got["v10"] & 0xFFFF, np.where(half == 0, 0, half.view(np.uint16)))


# ---- VGPR indexing


@pytest.mark.parametrize("body", INDEXED)
def test_indexed_registers(body):
    """Registers v20 and on; every choice of operands, several indexes, EXEC masks."""
    rows, mask = [values("u32", 30 + at) for at in range(32)], random_exec(12)
    places = dict(d=20, a=24, b=27, c=30)
    text = body.format(**places, d1=21, a1=25)
    names = [f"v{20 + at}" for at in range(32)]
    inputs = {**dict(zip(names, rows, strict=True)), "exec": mask}
    settings = [(which, index) for which in range(16) for index in INDEXES]
    cases = [Case(f"s_set_gpr_idx_on s10, {which:#x}\n{text}\ns_set_gpr_idx_off\nv_mov_b32 v2, v20",
                  {**inputs, "s10": index | 0xABCD00}, [*names, "v2"]) for which, index in settings]
    active = unpack_mask(mask)
    for (which, index), result in zip(settings, run_many(cases), strict=True):
        at = {name: place + (index if which >> bit & 1 else 0)
              for bit, (name, place) in enumerate(zip("abcd", (places[name] for name in "abcd"), strict=True))}
        wanted = dict(zip(range(20, 52), rows, strict=True))
        for k, value in enumerate(INDEXED[body](lambda n: rows[n - 20], at["a"], at["b"], at["c"])):
            wanted[at["d"] + k] = np.where(active, value, rows[at["d"] + k - 20])
        for number, value in wanted.items():
            np.testing.assert_array_equal(result[f"v{number}"], value, f"{text} {which:#x} +{index}: v{number}")
        np.testing.assert_array_equal(result["v2"][active], wanted[20][active])        # indexing is off again


def test_indexing_is_controlled_through_m0():
    rows = {f"v{at}": np.full(LANES, 1000 + at, np.uint32) for at in range(8, 16)}
    body = """s_mov_b32 m0, 0xffff0fff
      s_set_gpr_idx_on s10, gpr_idx(SRC0)
      s_mov_b32 s20, m0
      v_mov_b32 v2, v8
      s_set_gpr_idx_idx s11
      s_mov_b32 s21, m0
      v_mov_b32 v3, v8
      s_set_gpr_idx_mode gpr_idx(DST)
      s_mov_b32 s22, m0
      v_mov_b32 v4, v8
      s_set_gpr_idx_mode gpr_idx()
      v_mov_b32 v6, v8
      s_mov_b32 m0, 0x1003
      v_mov_b32 v7, v8
      s_mov_b32 s12, s10
      s_getreg_b32 s23, hwreg(HW_REG_MODE, 27, 1)
      s_set_gpr_idx_off
      s_getreg_b32 s24, hwreg(HW_REG_MODE, 27, 1)"""
    got = run(body, {**rows, "s10": 0x105, "s11": 0xFF02}, ["v2", "v3", "v6", "v7", "s20", "s21", "s22", "s23", "s24"])
    assert [int(got[name]) for name in ("s20", "s21", "s22")] == [0xFFFF1F05, 0xFFFF1F02, 0xFFFF8F02]
    # With DST and index 2 the move to v4 went to v6, and the one after it, with no operand indexed, too.
    assert [int(got[name][0]) for name in ("v2", "v3", "v6", "v7")] == [1013, 1010, 1008, 1011]
    assert (int(got["s23"]), int(got["s24"])) == (1, 0)


@pytest.mark.parametrize("body, reason", [
    ("v_readlane_b32 s12, v0, 3", "is not modelled"),
    ("v_readfirstlane_b32 s12, v0", "is not modelled"),
    ("v_mov_b32_dpp v1, v0 row_shl:1", "is not modelled"),
    ("v_add_u32_sdwa v1, v0, v0 dst_sel:BYTE_0 src0_sel:BYTE_1 src1_sel:BYTE_1", "is not modelled"),
    ("v_mov_b32 v1, v250", "past the kernel's registers"),
])
def test_indexing_that_is_refused(body, reason):
    with pytest.raises(HipError, match=reason):
        run(f"s_set_gpr_idx_on s10, 0x1\n{body}", {"s10": 200, "v0": np.zeros((GROUPS, LANES), np.uint32)}, ["s12"])


def test_memory_and_scalar_instructions_are_not_indexed():
    data = np.arange(64, dtype=np.uint32)
    got = run("s_set_gpr_idx_on s12, 0xf\nglobal_load_dword v4, v0, s[10:11]\ns_waitcnt vmcnt(0)\ns_set_gpr_idx_off",
              {"v0": np.arange(LANES, dtype=np.uint32) * 4, "s12": 5}, ["v4"], buffers={"s[10:11]": data})
    np.testing.assert_array_equal(got["v4"], data)


def test_writelane_has_its_destination_indexed():
    """As AITER's topksoftmax kernels use it; src0 and the lane are scalars, and are not."""
    rows = {f"v{at}": np.full(LANES, 1000 + at, np.uint32) for at in range(8, 12)}
    got = run("s_set_gpr_idx_on s10, gpr_idx(SRC0,SRC1,DST)\nv_writelane_b32 v8, s11, 5\ns_set_gpr_idx_off",
              {**rows, "s10": 2, "s11": 77}, list(rows))
    expected = {name: row.copy() for name, row in rows.items()}
    expected["v10"][5] = 77
    for name, row in expected.items():
        np.testing.assert_array_equal(got[name], row, err_msg=name)


# ---- s_setvskip: vector instructions do not issue

SKIPPED = """s_setvskip s12, {bit}
v_mov_b32 v2, 1
v_cmp_eq_u32 vcc, v0, v0
v_exp_f32 v3, v0
v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[0:1], 0
global_store_dword v0, v1, s[10:11]
ds_write_b32 v0, v1
buffer_load_dword v8, v0, s[16:19], 0 offen
v_readfirstlane_b32 s20, v1
s_mov_b32 s21, 5
s_setvskip 0, 0
s_nop 7
s_nop 7
v_mov_b32 v9, 9
ds_read_b32 v10, v0
s_waitcnt vmcnt(0) lgkmcnt(0)"""


@pytest.mark.parametrize("bit, skips", [(3, True), ("s13", True), (2, False)])
def test_skipped_instructions(bit, skips):
    """Bit 3 of s12 is set. Nothing that is skipped is seen by the checkers: no wait is missing at the end."""
    old = {f"v{at}": np.full(LANES, 50 + at, np.uint32) for at in (1, 2, 3, 4, 8, 9)}
    data = np.arange(64, dtype=np.uint32)
    body = "v_mov_b32 v10, 3\nds_write_b32 v0, v10\ns_mov_b64 vcc, 0\ns_mov_b32 s20, 0\n" \
           "s_mov_b64 s[16:17], s[10:11]\ns_mov_b32 s18, 256\ns_mov_b32 s19, 0x20000\ns_waitcnt lgkmcnt(0)\n" \
           + SKIPPED.format(bit=bit)
    with sim.enabled(on_report="collect") as session:
        got = run(body, {"v0": np.arange(LANES, dtype=np.uint32) * 4, "s12": 8, "s13": 3, **old},
                  [*old, "v10", "s20", "s21", "vcc"], buffers={"s[10:11]": data}, lds_bytes=256)
    kept = {name: np.array_equal(got[name], old[name]) for name in ("v2", "v3", "v4", "v8")}
    assert set(kept.values()) == {skips}, kept
    assert (got["v9"] == 9).all() and int(got["s21"]) == 5
    assert (got["v10"] == (3 if skips else 51)).all() and int(got["s20"]) == (0 if skips else 51)
    assert (data == np.arange(64)).all() == skips and (int(got["vcc"]) == 0) == skips
    assert not session.reports or not skips


def test_skipping_is_a_bit_of_mode():
    got = run("s_setvskip 1, 0\ns_getreg_b32 s20, hwreg(HW_REG_MODE, 28, 1)\nv_mov_b32 v1, 7\n"
              "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 28, 1), 0\nv_mov_b32 v2, 7",
              {"v1": np.zeros(LANES, np.uint32), "v2": np.zeros(LANES, np.uint32)}, ["v1", "v2", "s20"])
    assert int(got["s20"]) == 1 and not got["v1"].any() and (got["v2"] == 7).all()


# ---- FP16_OVFL: an f16 result that overflows is the largest number of its sign; a true infinity stays

LIMIT = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"
# The result in float64, where nothing overflows: what is infinite there is a true infinity.
LIMITED = {
    "v_add_f16 v6, v2, v3": lambda a, b, c: a + b,
    "v_sub_f16_e64 v6, -v2, |v3|": lambda a, b, c: -a - np.abs(b),
    "v_mul_f16 v6, v2, v3": lambda a, b, c: a * b,
    "v_fma_f16 v6, v2, v3, v4": lambda a, b, c: a * b + c,
    "v_max_f16 v6, v2, v3": lambda a, b, c: maximum(a, b),
    "v_rcp_f16 v6, v2": lambda a, b, c: 1 / a,
    "v_rsq_f16 v6, v2": lambda a, b, c: np.where(a == 0, np.copysign(np.inf, a), 1 / np.sqrt(a)),
    "v_ldexp_f16 v6, v2, 5": lambda a, b, c: a * 32,
    "v_mul_f16_dpp v6, v2, v3 quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf": lambda a, b, c: a * b,
}


def halves(seed: int) -> np.ndarray:
    """f16 numbers of which many overflow when they meet: most are large, some are infinite, NaN, zero or small."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-70000, 70000, (GROUPS, LANES))
    x[:, 1::4] = rng.uniform(-4, 4, x[:, 1::4].shape)
    special = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, -65504.0, 2.0**-24], x[:, 2::8].shape)
    x[:, 2::8] = special
    with np.errstate(all="ignore"):
        return np.where(np.abs(x) > 65504, np.where(np.isinf(x), x, np.copysign(65504, x)), x).astype(np.float16)


def limited(exact: np.ndarray) -> np.ndarray:
    """float64 as f16 bits under FP16_OVFL."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float16)
    rounded = np.where(np.isinf(rounded) & np.isfinite(exact), np.copysign(np.float16(65504), rounded), rounded)
    return np.where(np.isnan(rounded), 0x7E00, rounded.view(np.uint16)).astype(np.uint32)


def without_nan(bits: np.ndarray) -> np.ndarray:
    return np.where((bits & 0x7FFF) > 0x7C00, 0x7E00, bits)


@pytest.mark.parametrize("body", LIMITED)
def test_overflow_of_f16_is_limited(body):
    a, b, c, mask = halves(1), halves(2), halves(3), random_exec(4)
    words = [x.view(np.uint16).astype(np.uint32) for x in (a, b, c)]
    registers = dict(zip(("v2", "v3", "v4"), words, strict=True)) | {"v6": 0}
    limiting, plain = run_many([Case(prefix + body, registers | {"exec": mask}, ["v6"]) for prefix in (LIMIT, "")])
    with np.errstate(all="ignore"):
        wanted = limited(LIMITED[body](*(x.astype(np.float64) for x in (a, b, c))))
    got = without_nan(limiting["v6"] & 0xFFFF)
    np.testing.assert_array_equal(got, np.where(unpack_mask(mask), wanted, 0))
    if not body.startswith(("v_max", "v_rsq")):  # neither overflows
        assert (limiting["v6"] != plain["v6"]).any()  # the mode is what does it


def test_overflow_of_packed_and_mixed_f16_is_limited():
    a, b, c = halves(5), halves(6), halves(7)
    wide = values("f32", 8)
    packed = [(x.view(np.uint16) | y.view(np.uint16).astype(np.uint32) << 16) for x, y in ((a, b), (b, c), (c, a))]
    got = run(LIMIT + "v_pk_add_f16 v6, v2, v3\nv_pk_mul_f16 v7, v2, v3 op_sel:[1,0] op_sel_hi:[0,1]\n"
              "v_pk_fma_f16 v8, v2, v3, v4\nv_fma_mixlo_f16 v9, v2, v3, v4 op_sel_hi:[1,1,1]\n"
              "v_fma_mixhi_f16 v10, v5, 1.0, 0\nv_cvt_f16_f32 v11, v5",
              {"v2": packed[0], "v3": packed[1], "v4": packed[2], "v5": wide, "v9": 0, "v10": 0},
              ["v6", "v7", "v8", "v9", "v10", "v11"])
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    with np.errstate(all="ignore"):
        pairs = {"v6": (a + b, b + c), "v7": (b * b, a * c), "v8": (a * b + c, b * c + a)}
        for register, (low, high) in pairs.items():
            np.testing.assert_array_equal(without_nan(got[register] & 0xFFFF), limited(low), register)
            np.testing.assert_array_equal(without_nan(got[register] >> 16), limited(high), register)
        mixed = np.float32(a) * np.float32(b) + np.float32(c)  # the product is exact
        np.testing.assert_array_equal(without_nan(got["v9"] & 0xFFFF), limited(mixed.astype(np.float64)))
        np.testing.assert_array_equal(without_nan(got["v10"] >> 16), limited(wide.astype(np.float64) + 0.0))
        np.testing.assert_array_equal(without_nan(got["v11"] & 0xFFFF), limited(wide.astype(np.float64)))
