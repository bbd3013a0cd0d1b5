# SPDX-License-Identifier: MIT
"""The division helpers in the compiler's sequence against IEEE division; conversions to 8-bit floats."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from isa_model import assert_close, canonical, unpack_mask, values

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value|divide by zero")

# v0 / v1, the order of LLVM's expansion: one Newton step on the reciprocal, two on the quotient.
DIVIDE_F32 = """
v_div_scale_f32 v2, s[8:9], v1, v1, v0
v_div_scale_f32 v3, vcc, v0, v1, v0
v_rcp_f32 v4, v2
v_fma_f32 v5, -v2, v4, 1.0
v_fma_f32 v4, v5, v4, v4
v_mul_f32 v5, v3, v4
v_fma_f32 v6, -v2, v5, v3
v_fma_f32 v5, v6, v4, v5
v_fma_f32 v2, -v2, v5, v3
v_div_fmas_f32 v2, v2, v4, v5
v_div_fixup_f32 v7, v2, v1, v0
"""
DIVIDE_F64 = """
v_div_scale_f64 v[4:5], s[8:9], v[2:3], v[2:3], v[0:1]
v_rcp_f64 v[6:7], v[4:5]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_div_scale_f64 v[8:9], vcc, v[0:1], v[2:3], v[0:1]
v_mul_f64 v[10:11], v[8:9], v[6:7]
v_fma_f64 v[4:5], -v[4:5], v[10:11], v[8:9]
v_div_fmas_f64 v[4:5], v[4:5], v[6:7], v[10:11]
v_div_fixup_f64 v[12:13], v[4:5], v[2:3], v[0:1]
"""


def dividends(kind: str, seed: int) -> np.ndarray:
    """Numbers over the whole exponent range, bit patterns, edges: [64, 64]."""
    x = values(kind, seed, (64, LANES))
    rng = np.random.default_rng(seed)
    info = np.finfo(x.dtype)
    exponents = rng.integers(info.minexp - info.nmant, info.maxexp, x.shape)
    wide = np.ldexp(1 + rng.random(x.shape), exponents).astype(x.dtype) * rng.choice([-1, 1], x.shape)
    return np.where(rng.random(x.shape) < 0.6, wide.astype(x.dtype), x)


@pytest.mark.parametrize("kind, body, registers", [
    ("f32", DIVIDE_F32, ("v0", "v1", "v7")), ("f64", DIVIDE_F64, ("v[0:1]", "v[2:3]", "v[12:13]"))])
def test_division_is_ieee(kind, body, registers):
    a, b = dividends(kind, 1), dividends(kind, 2)
    first, second, out = registers
    got = run(body, {first: a, second: b}, {out: a.dtype})[out]
    assert_close(f"{kind} division", got, a / b, 0, (a, b))


def test_special_cases_of_fixup():
    nan, inf = np.nan, np.inf
    numerator = np.array([0, inf, 1, -1, inf, 5, 0, nan, 2, 1e-38], np.float32)
    denominator = np.array([0, -inf, 0, 0, -3, -inf, -7, 1, nan, 3e38], np.float32)
    quotient = np.full(numerator.shape, 42, np.float32)
    lanes = [np.pad(x, (0, LANES - x.size), constant_values=1) for x in (quotient, denominator, numerator)]
    got = run("v_div_fixup_f32 v3, v0, v1, v2", {f"v{at}": x for at, x in enumerate(lanes)}, {"v3": np.float32})["v3"]
    wanted = np.array([nan, nan, inf, -inf, -inf, -0.0, -0.0, nan, nan, 0], np.float32)
    np.testing.assert_array_equal(canonical(got[:10]), canonical(wanted))


def test_fixup_f16():
    """The gfx9 opcode keeps the destination's high half, the legacy one zeroes it."""
    q, d, n = (values("f16", seed) for seed in (1, 2, 3))
    q = np.where(np.isnan(q), np.float16(2), q)
    old = values("u32", 4)
    got = run("v_div_fixup_f16 v4, v0, v1, v2\nv_div_fixup_legacy_f16 v5, v0, v1, v2",
              {"v0": q, "v1": d, "v2": n, "v4": old, "v5": old}, ["v4", "v5"])
    sign = np.signbit(d) != np.signbit(n)
    ieee = n / d
    ordinary = np.isfinite(d) & np.isfinite(n) & (d != 0) & (n != 0)
    wanted = np.where(ordinary, np.copysign(q, np.where(sign, -1, 1)), ieee).astype(np.float16)
    np.testing.assert_array_equal(got["v4"] >> 16, old >> 16)
    np.testing.assert_array_equal(got["v5"] >> 16, 0)
    for register in ("v4", "v5"):
        assert_close("v_div_fixup", got[register].astype(np.uint16).view(np.float16), wanted, 0, (q, d, n))


# ---- conversions to 8-bit floats


FORMATS = [("fp8", torch.float8_e4m3fnuz, 240), ("bf8", torch.float8_e5m2fnuz, 57344)]


def encoded(x: np.ndarray, kind: torch.dtype, largest: float) -> np.ndarray:
    """torch saturates nowhere in range; beyond the largest number, and for infinities, the code is NaN."""
    code = torch.from_numpy(np.ascontiguousarray(x)).to(kind).view(torch.uint8).numpy().astype(np.uint32)
    rounded = torch.from_numpy(code.astype(np.uint8)).view(kind).to(torch.float32).numpy()
    return np.where(np.isfinite(x) & np.isfinite(rounded), code, 0x80)


def in_range(kind: str, largest: float) -> np.ndarray:
    x = values("f32", 5)
    scale = np.random.default_rng(6).uniform(-1.2, 1.2, x.shape) * largest
    return np.where(np.abs(np.nan_to_num(x)) > largest, scale, x).astype(np.float32)


@pytest.mark.parametrize("name, kind, largest", FORMATS)
def test_pack_to_float8(name, kind, largest):
    a, b, old = in_range(name, largest), in_range(name, largest)[::-1], values("u32", 7)
    mask = 0x0123456789ABCDEF
    got = run(f"v_cvt_pk_{name}_f32 v2, v0, v1\nv_cvt_pk_{name}_f32 v3, -v0, |v1| op_sel:[0,0,1]",
              {"v0": a, "v1": b, "v2": old, "v3": old, "exec": mask}, ["v2", "v3"])
    active = unpack_mask(np.full(a.shape[0], mask, np.uint64))
    low = encoded(a, kind, largest) | encoded(b, kind, largest) << 8
    high = encoded(-a, kind, largest) | encoded(np.abs(b), kind, largest) << 8
    np.testing.assert_array_equal(got["v2"], np.where(active, old & 0xFFFF0000 | low, old))
    np.testing.assert_array_equal(got["v3"], np.where(active, old & 0xFFFF | high << 16, old))


@pytest.mark.parametrize("name, kind, largest", FORMATS)
def test_fp16_ovfl_saturates(name, kind, largest):
    x = np.full(LANES, 1.0, np.float32)
    x[:6] = [1e30, -1e30, np.inf, np.nan, largest, -2 * largest]
    got = run(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_cvt_pk_{name}_f32 v1, v0, v0", {"v0": x, "v1": 0},
              ["v1"])["v1"][:6] & 0xFF
    assert got.tolist() == [0x7F, 0xFF, 0x80, 0x80, 0x7F, 0xFF]


@pytest.mark.parametrize("name, kind, largest", FORMATS)
def test_stochastic_rounding(name, kind, largest):
    """Random bits 0 truncate, all ones round up; op_sel picks the byte."""
    x = np.abs(np.nan_to_num(in_range(name, largest), nan=1)) * np.float32(0.4)
    old = values("u32", 8)
    cases = [Case(f"v_cvt_sr_{name}_f32 v2, v0, v1 op_sel:[0,0,{byte & 1},{byte >> 1}]",
                  {"v0": x, "v1": np.full(x.shape, bits, np.uint32), "v2": old}, ["v2"])
             for byte, bits in ((0, 0), (1, 0xFFFFFFFF), (2, 0), (3, 0xFFFFFFFF))]
    for byte, result in enumerate(run_many(cases)):
        got = result["v2"]
        code = got >> 8 * byte & 0xFF
        np.testing.assert_array_equal(got & ~np.uint32(0xFF << 8 * byte), old & ~np.uint32(0xFF << 8 * byte))
        number = torch.from_numpy(code.astype(np.uint8)).view(kind).to(torch.float32).numpy()
        neighbour = code + 1 if byte % 2 == 0 else np.maximum(code, 1) - 1
        other = torch.from_numpy(neighbour.astype(np.uint8)).view(kind).to(torch.float32).numpy()
        if byte % 2 == 0:
            assert (number <= x).all() and (x < other).all()
        else:
            negligible = (code == 0) & (x < 2.0 ** -40)             # less than 2^-32 of the first step
            assert (((number >= x) & ((code == 0) | (other < x))) | negligible).all()
