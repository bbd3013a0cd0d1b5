# SPDX-License-Identifier: MIT
"""VOP2 against NumPy; test_forms.py runs its rows."""

import numpy as np
import pytest
from asm import LANES, run
from hip_runtime import HipError
from isa_model import (
    Row,
    assert_close,
    exact_fma,
    field,
    maximum,
    minimum,
    saturated,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")


def widened(function):
    """On int64 copies of the sources."""
    return lambda *sources: function(*(source.astype(np.int64) for source in sources))


def add_carry(a, b, carry=False):
    total = a.astype(np.uint64) + b.astype(np.uint64) + np.asarray(carry, np.uint64)
    return total.astype(np.uint32), total >> 32 != 0


def subtract_borrow(a, b, borrow=False):
    difference = a.astype(np.int64) - b.astype(np.int64) - np.asarray(borrow, np.int64)
    return difference.astype(np.uint32), difference < 0


def mad_f16(a, b, c):
    return (a * b).astype(np.float16) + c


def halves(x, index):
    return np.ascontiguousarray(x).view(np.float16).reshape(*x.shape, 2)[..., index]


def packed_fma(a, b, d):
    parts = [exact_fma(halves(a, at), halves(b, at), halves(d, at)) for at in (0, 1)]
    return np.stack(parts, -1).view(np.uint32)[..., 0]


def dot_f16(a, b, d):
    low = exact_fma(halves(a, 0).astype(np.float32), halves(b, 0).astype(np.float32), d)
    return exact_fma(halves(a, 1).astype(np.float32), halves(b, 1).astype(np.float32), low)


def dot_integers(bits):
    def model(a, b, d):
        total = d.astype(np.int64)
        for first in range(0, 32, bits):
            total = total + field(a, first, bits, True) * field(b, first, bits, True)
        return total.astype(np.uint32)
    return model


def plain_numbers(x):
    """A packed pair of f16 without NaN, whose bits a packed comparison could not ignore."""
    low, high = halves(x, 0), halves(x, 1)
    return np.stack([np.nan_to_num(low, posinf=2, neginf=-2), np.nan_to_num(high, posinf=2, neginf=-2)],
                    -1).view(np.uint32)[..., 0] & np.uint32(0xBFFFBFFF)


def ldexp(x, e):
    return np.ldexp(x.astype(np.longdouble), np.clip(e.astype(np.int64), -9000, 9000)).astype(x.dtype)


def low24(x, signed):
    return field(x, 0, 24, signed)


ROWS = [
    Row("v_cndmask_b32", "u32", "u32 u32 mask", lambda a, b, c: np.where(c, b, a)),
    *(row for kind in ("f16", "f32") for row in (
        Row(f"v_add_{kind}", kind, f"{kind} {kind}", lambda a, b: a + b),
        Row(f"v_sub_{kind}", kind, f"{kind} {kind}", lambda a, b: a - b),
        Row(f"v_subrev_{kind}", kind, f"{kind} {kind}", lambda a, b: b - a),
        Row(f"v_mul_{kind}", kind, f"{kind} {kind}", lambda a, b: a * b),
        Row(f"v_min_{kind}", kind, f"{kind} {kind}", minimum),
        Row(f"v_max_{kind}", kind, f"{kind} {kind}", maximum))),
    Row("v_fmac_f32", "f32", "f32 f32", exact_fma, reads_dst=True),
    Row("v_fmac_f64", "f64", "f64 f64", exact_fma, reads_dst=True),
    Row("v_mac_f16", "f16", "f16 f16", mad_f16, reads_dst=True),
    Row("v_ldexp_f16", "f16", "f16 i16", ldexp),
    Row("v_pk_fmac_f16", "u32", "u32 u32", packed_fma, reads_dst=True, ranges=(plain_numbers, plain_numbers)),
    Row("v_add_u32", "u32", "u32 u32", lambda a, b: a + b),
    Row("v_sub_u32", "u32", "u32 u32", lambda a, b: a - b),
    Row("v_subrev_u32", "u32", "u32 u32", lambda a, b: b - a),
    Row("v_add_co_u32", "u32 mask", "u32 u32", add_carry),
    Row("v_sub_co_u32", "u32 mask", "u32 u32", subtract_borrow),
    Row("v_subrev_co_u32", "u32 mask", "u32 u32", lambda a, b: subtract_borrow(b, a)),
    Row("v_addc_co_u32", "u32 mask", "u32 u32 mask", add_carry),
    Row("v_subb_co_u32", "u32 mask", "u32 u32 mask", subtract_borrow),
    Row("v_subbrev_co_u32", "u32 mask", "u32 u32 mask", lambda a, b, c: subtract_borrow(b, a, c)),
    Row("v_mul_i32_i24", "u32", "u32 u32", lambda a, b: low24(a, True) * low24(b, True)),
    Row("v_mul_hi_i32_i24", "u32", "u32 u32", lambda a, b: low24(a, True) * low24(b, True) >> 32),
    Row("v_mul_u32_u24", "u32", "u32 u32", lambda a, b: low24(a, False) * low24(b, False)),
    Row("v_mul_hi_u32_u24", "u32", "u32 u32", lambda a, b: low24(a, False) * low24(b, False) >> 32),
    *(Row(f"v_{name}_{kind}", kind, f"{kind} {kind}", function)
      for kind in ("u16", "i16", "u32", "i32") for name, function in (("min", np.minimum), ("max", np.maximum))),
    Row("v_lshrrev_b32", "u32", "u32 u32", lambda n, x: x >> (n & 31)),
    Row("v_ashrrev_i32", "i32", "u32 i32", widened(lambda n, x: x >> (n & 31))),
    Row("v_lshlrev_b32", "u32", "u32 u32", lambda n, x: x << (n & 31)),
    Row("v_and_b32", "u32", "u32 u32", lambda a, b: a & b),
    Row("v_or_b32", "u32", "u32 u32", lambda a, b: a | b),
    Row("v_xor_b32", "u32", "u32 u32", lambda a, b: a ^ b),
    Row("v_xnor_b32", "u32", "u32 u32", lambda a, b: ~(a ^ b)),
    Row("v_add_u16", "u16", "u16 u16", lambda a, b: a + b),
    Row("v_sub_u16", "u16", "u16 u16", lambda a, b: a - b),
    Row("v_subrev_u16", "u16", "u16 u16", lambda a, b: b - a),
    Row("v_mul_lo_u16", "u16", "u16 u16", lambda a, b: a * b),
    Row("v_lshlrev_b16", "u16", "u16 u16", lambda n, x: x << (n & 15)),
    Row("v_lshrrev_b16", "u16", "u16 u16", lambda n, x: x >> (n & 15)),
    Row("v_ashrrev_i16", "i16", "u16 i16", widened(lambda n, x: x >> (n & 15))),
    Row("v_dot2c_f32_f16", "f32", "u32 u32", dot_f16, reads_dst=True),
    Row("v_dot2c_i32_i16", "u32", "u32 u32", dot_integers(16), reads_dst=True),
    Row("v_dot4c_i32_i8", "u32", "u32 u32", dot_integers(8), reads_dst=True),
    Row("v_dot8c_i32_i4", "u32", "u32 u32", dot_integers(4), reads_dst=True),
]
def clamped(function, dtype):
    return widened(lambda a, b: saturated(function(a, b), dtype))


CLAMPED = {
    f"v_{name}_{kind}": clamped(function, dtype)
    for kind, dtype in (("u16", np.uint16), ("u32", np.uint32))
    for name, function in (("add", np.add), ("sub", np.subtract), ("subrev", lambda a, b: b - a))
}


def test_literal_constants():
    a, b = values("f32", 1), values("f32", 2)
    k = np.full_like(a, 2.5)
    got = run("v_fmamk_f32 v2, v0, 0x40200000, v1\nv_fmaak_f32 v3, v0, v1, 0x40200000",
              {"v0": a, "v1": b}, {"v2": np.float32, "v3": np.float32})
    with np.errstate(all="ignore"):
        assert_close("v_fmamk_f32", got["v2"], exact_fma(a, k, b), 0, (a, b))
        assert_close("v_fmaak_f32", got["v3"], exact_fma(a, b, k), 0, (a, b))
    a, b = values("f16", 1), values("f16", 2)
    k = np.full_like(a, 2.5)
    got = run("v_madmk_f16 v2, v0, 0x4100, v1\nv_madak_f16 v3, v0, v1, 0x4100", {"v0": a, "v1": b},
              {"v2": np.uint32, "v3": np.uint32})
    with np.errstate(all="ignore"):
        for register, wanted in (("v2", mad_f16(a, k, b)), ("v3", mad_f16(a, b, k))):
            assert not (got[register] >> 16).any()
            assert_close(register, got[register].astype(np.uint16).view(np.float16), wanted, 0, (a, b))


def test_inline_constants_take_the_operand_type():
    x16, x32 = np.float16(3), np.float32(3)
    got = run("v_mul_f16 v2, 0.5, v0\nv_mul_f32 v3, 0.5, v1\nv_add_u16 v4, -1, v0\nv_mul_f32 v5, 0.15915494, v1\n"
              "v_add_u32 v6, -16, v1\nv_cndmask_b32_e64 v7, 1.0, 2.0, s[8:9]",
              {"v0": np.full(LANES, x16), "v1": np.full(LANES, x32), "s[8:9]": 1},
              [f"v{at}" for at in range(2, 8)])
    assert got["v2"][0] == np.float16(1.5).view(np.uint16)
    assert got["v3"][0] == np.float32(1.5).view(np.uint32)
    assert got["v4"][0] == int(x16.view(np.uint16)) - 1
    assert got["v5"][0] == (np.uint32(0x3E22F983).view(np.float32) * x32).view(np.uint32)
    assert got["v6"][0] == int(x32.view(np.uint32)) - 16
    assert got["v7"][0] == 0x40000000 and got["v7"][1] == 0x3F800000


def test_destination_may_be_a_source():
    x = values("u64", 9)
    got = run("v_lshlrev_b64 v[0:1], v0, v[0:1]\nv_mad_u64_u32 v[2:3], s[8:9], v2, v3, v[2:3]",
              {"v[0:1]": x, "v[2:3]": x}, {"v[0:1]": np.uint64, "v[2:3]": np.uint64})
    np.testing.assert_array_equal(got["v[0:1]"], x << (x & np.uint64(63)))
    np.testing.assert_array_equal(got["v[2:3]"], (x & np.uint64(0xFFFFFFFF)) * (x >> np.uint64(32)) + x)


@pytest.mark.parametrize("text, message", [
    ("v_mul_f32_e64 v2, v0, v1 mul:2", "output modifier"),
    ("v_add_co_u32_e64 v2, s[8:9], v0, v1 clamp", "clamp"),
    ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_pk_fmac_f16 v2, v0, v1", "FP16_OVFL"),
])
def test_what_is_not_modelled_stops_the_launch(text, message):
    with pytest.raises(HipError, match=message):
        run(text, {"v0": 1, "v1": 2}, ["v2"])
