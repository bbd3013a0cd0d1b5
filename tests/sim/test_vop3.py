# SPDX-License-Identifier: MIT
"""VOP3 against NumPy: integer and float operations with three sources, 64-bit arithmetic;
test_forms.py runs its rows."""

import numpy as np
import pytest
from asm import LANES, run
from isa_model import (
    Row,
    canonical,
    exact_fma,
    field,
    is_signaling,
    maximum,
    median,
    minimum,
    saturated,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")


def wide(function):
    """On int64 copies of the sources."""
    return lambda *sources: function(*(source.astype(np.int64) for source in sources))


def exactly(function):
    """Lane by lane on Python integers."""
    def model(*sources):
        flat = zip(*(source.ravel().tolist() for source in sources), strict=True)
        return np.array([function(*lane) for lane in flat], object).reshape(sources[0].shape)
    return model


def wrapped(function, bits):
    return lambda *sources: (exactly(function)(*sources) & (1 << bits) - 1).astype(f"u{bits // 8}")


def sad(bits, masked=False, shift=0):
    def model(a, b, c):
        total = np.zeros(a.shape, np.int64)
        for first in range(0, 32, bits):
            x, y = field(a, first, bits, False), field(b, first, bits, False)
            total += np.where(masked & (y == 0), 0, np.abs(x - y))
        return ((total << shift) + c.astype(np.int64)).astype(np.uint32)
    return model


def lerp(a, b, c):
    result = np.zeros(a.shape, np.int64)
    for first in range(0, 32, 8):
        result |= (field(a, first, 8, False) + field(b, first, 8, False) + field(c, first, 1, False) >> 1) << first
    return result.astype(np.uint32)


def perm(a, b, selectors):
    data = [*b.to_bytes(4, "little"), *a.to_bytes(4, "little")]
    out = 0
    for at, selector in enumerate(selectors.to_bytes(4, "little")):
        if selector < 8:
            byte = data[selector]
        elif selector < 12:
            byte = 0xFF if data[2 * (selector - 8) + 1] & 0x80 else 0
        else:
            byte = 0 if selector == 12 else 0xFF
        out |= byte << 8 * at
    return out


def bfe(x, offset, width):
    return x >> (offset & 31) & (1 << (width & 31)) - 1


def bfe_signed(x, offset, width):
    offset, width = offset & 31, width & 31
    width = min(width, 32 - offset)
    value = x >> offset & (1 << width) - 1
    return (value - (1 << width) if width and value >> width - 1 & 1 else value) & 0xFFFFFFFF


def mad_wide(bits_of_carry):
    def model(a, b, c):
        total = a.astype(object) * b.astype(object) + c.astype(object)
        low = (total & (1 << 64) - 1).astype(np.uint64)
        return low, (total >> bits_of_carry & 1).astype(bool)
    return model


def mad_f16(a, b, c):
    return (a * b).astype(np.float16) + c


def ldexp(x, e):
    return np.ldexp(x.astype(np.longdouble), np.clip(e.astype(np.int64), -9000, 9000)).astype(x.dtype)


def legacy_multiply(a, b):
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def toward_zero(x):
    near = x.astype(np.float16)
    return np.where(np.abs(near.astype(np.float32)) > np.abs(x), np.nextafter(near, np.float16(0)), near)


def pack(low, high):
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


def half_bits(x):
    return np.ascontiguousarray(x, np.float16).view(np.uint16)


def norm(low, scale):
    def model(x):
        bounded = np.nan_to_num(np.clip(x.astype(np.float32), low, 1), nan=0)
        return np.rint(bounded * np.float32(scale)).astype(np.int64).astype(np.uint16)
    return lambda a, b: pack(model(a), model(b))


def no_nan(x):
    return np.where(np.isnan(x), x.dtype.type(3), x)


def small_selectors(x):
    return x & 0x0F0F0F0F


TYPES3 = [(kind, f"{kind} {kind} {kind}") for kind in ("u16", "i16", "u32", "i32", "f16", "f32")]
INTEGER_ROWS = [
    Row("v_add_i32", "i32", "i32 i32", lambda a, b: a + b),
    Row("v_sub_i32", "i32", "i32 i32", lambda a, b: a - b),
    Row("v_add_i16", "i16", "i16 i16", lambda a, b: a + b),
    Row("v_sub_i16", "i16", "i16 i16", lambda a, b: a - b),
    Row("v_add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c),
    Row("v_lshl_add_u32", "u32", "u32 u32 u32", lambda a, n, b: (a << (n & 31)) + b),
    Row("v_add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, n: a + b << (n & 31)),
    Row("v_lshl_or_b32", "u32", "u32 u32 u32", lambda a, n, b: a << (n & 31) | b),
    Row("v_and_or_b32", "u32", "u32 u32 u32", lambda a, b, c: a & b | c),
    Row("v_or3_b32", "u32", "u32 u32 u32", lambda a, b, c: a | b | c),
    Row("v_xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    Row("v_lshl_add_u64", "u64", "u64 u32 u64", wrapped(lambda a, n, b: (a << (n & 7)) + b, 64),
        ranges=(None, lambda n: n % 5, None)),
    Row("v_mul_lo_u32", "u32", "u32 u32", lambda a, b: a * b),
    Row("v_mul_hi_u32", "u32", "u32 u32", wrapped(lambda a, b: a * b >> 32, 32)),
    Row("v_mul_hi_i32", "u32", "i32 i32", wrapped(lambda a, b: a * b >> 32, 32)),
    Row("v_mad_i32_i24", "u32", "u32 u32 u32", lambda a, b, c: field(a, 0, 24, True) * field(b, 0, 24, True) + c),
    Row("v_mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: field(a, 0, 24, False) * field(b, 0, 24, False) + c),
    Row("v_mad_u32_u16", "u32", "u16 u16 u32", wide(lambda a, b, c: a * b + c)),
    Row("v_mad_i32_i16", "i32", "i16 i16 i32", wide(lambda a, b, c: a * b + c)),
    Row("v_mad_u16", "u16", "u16 u16 u16", lambda a, b, c: a * b + c, keep_high=True),
    Row("v_mad_i16", "i16", "i16 i16 i16", lambda a, b, c: a * b + c, keep_high=True),
    Row("v_mad_legacy_u16", "u16", "u16 u16 u16", lambda a, b, c: a * b + c),
    Row("v_mad_legacy_i16", "i16", "i16 i16 i16", lambda a, b, c: a * b + c),
    Row("v_mad_u64_u32", "u64 mask", "u32 u32 u64", mad_wide(64)),
    Row("v_mad_i64_i32", "u64 mask", "i32 i32 i64", mad_wide(64)),
    *(Row(f"v_{name}_{kind}", kind, src, function)
      for kind, src in TYPES3[:4] for name, function in (
          ("min3", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
          ("max3", lambda a, b, c: np.maximum(np.maximum(a, b), c)), ("med3", median))),
    Row("v_bfe_u32", "u32", "u32 u32 u32", exactly(bfe)),
    Row("v_bfe_i32", "u32", "u32 u32 u32", exactly(bfe_signed)),
    Row("v_bfi_b32", "u32", "u32 u32 u32", lambda m, a, b: m & a | ~m & b),
    Row("v_bfm_b32", "u32", "u32 u32", wrapped(lambda width, offset: (1 << (width & 31)) - 1 << (offset & 31), 32)),
    Row("v_alignbit_b32", "u32", "u32 u32 u32", wrapped(lambda a, b, n: (a << 32 | b) >> (n & 31), 32)),
    Row("v_alignbyte_b32", "u32", "u32 u32 u32", wrapped(lambda a, b, n: (a << 32 | b) >> 8 * (n & 3), 32)),
    Row("v_perm_b32", "u32", "u32 u32 u32", exactly(perm), ranges=(None, None, small_selectors)),
    Row("v_bcnt_u32_b32", "u32", "u32 u32", wrapped(lambda a, b: a.bit_count() + b, 32)),
    Row("v_lshlrev_b64", "u64", "u32 u64", wrapped(lambda n, x: x << (n & 63), 64)),
    Row("v_lshrrev_b64", "u64", "u32 u64", wrapped(lambda n, x: x >> (n & 63), 64)),
    Row("v_ashrrev_i64", "u64", "u32 i64", wrapped(lambda n, x: x >> (n & 63), 64)),
    Row("v_sad_u8", "u32", "u32 u32 u32", sad(8)),
    Row("v_msad_u8", "u32", "u32 u32 u32", sad(8, masked=True), ranges=(None, lambda b: b & 0xFF00FFFF, None)),
    Row("v_sad_hi_u8", "u32", "u32 u32 u32", sad(8, shift=16)),
    Row("v_sad_u16", "u32", "u32 u32 u32", sad(16)),
    Row("v_sad_u32", "u32", "u32 u32 u32", sad(32)),
    Row("v_lerp_u8", "u32", "u32 u32 u32", lerp),
    Row("v_cvt_pk_u16_u32", "u32", "u32 u32", lambda a, b: pack(np.minimum(a, 0xFFFF), np.minimum(b, 0xFFFF))),
    Row("v_cvt_pk_i16_i32", "u32", "i32 i32",
        lambda a, b: pack(saturated(a, np.int16).view(np.uint16), saturated(b, np.int16).view(np.uint16))),
]
FLOAT_ROWS = [
    Row("v_fma_f32", "f32", "f32 f32 f32", exact_fma),
    Row("v_mul_legacy_f32", "f32", "f32 f32", legacy_multiply),
    *(Row(f"v_{name}_{kind}", kind, src, function)
      for kind, src in TYPES3[4:] for name, function in (
          ("min3", lambda a, b, c: minimum(minimum(a, b), c)), ("max3", lambda a, b, c: maximum(maximum(a, b), c)),
          ("med3", median))),
    Row("v_ldexp_f32", "f32", "f32 i32", ldexp),
    Row("v_fma_f64", "f64", "f64 f64 f64", exact_fma),
    Row("v_add_f64", "f64", "f64 f64", lambda a, b: a + b),
    Row("v_mul_f64", "f64", "f64 f64", lambda a, b: a * b),
    Row("v_min_f64", "f64", "f64 f64", minimum),
    Row("v_max_f64", "f64", "f64 f64", maximum),
    Row("v_ldexp_f64", "f64", "f64 i32", ldexp),
    Row("v_fma_f16", "f16", "f16 f16 f16", exact_fma, keep_high=True),
    Row("v_mad_f16", "f16", "f16 f16 f16", mad_f16, keep_high=True),
    Row("v_fma_legacy_f16", "f16", "f16 f16 f16", exact_fma),
    Row("v_mad_legacy_f16", "f16", "f16 f16 f16", mad_f16),
    Row("v_cvt_pkrtz_f16_f32", "u32", "f32 f32",
        lambda a, b: pack(half_bits(toward_zero(a)), half_bits(toward_zero(b))), ranges=(no_nan, no_nan)),
    Row("v_cvt_pknorm_i16_f32", "u32", "f32 f32", norm(-1, 32767)),
    Row("v_cvt_pknorm_u16_f32", "u32", "f32 f32", norm(0, 65535)),
    Row("v_cvt_pknorm_i16_f16", "u32", "f16 f16", norm(-1, 32767)),
    Row("v_cvt_pknorm_u16_f16", "u32", "f16 f16", norm(0, 65535)),
    Row("v_pack_b32_f16", "u32", "f16 f16", lambda a, b: pack(half_bits(a), half_bits(b)), ranges=(no_nan, no_nan)),
]
CLAMPED = {
    "v_add_i32": wide(lambda a, b: saturated(a + b, np.int32)),
    "v_sub_i16": wide(lambda a, b: saturated(a - b, np.int16)),
    "v_mad_u32_u24": lambda a, b, c: saturated(field(a, 0, 24, False) * field(b, 0, 24, False) + c, np.uint32),
    "v_mad_u16": wide(lambda a, b, c: saturated(a * b + c, np.uint16)),
    "v_sad_u32": wide(lambda a, b, c: saturated(np.abs(a - b) + c, np.uint32)),
}


def test_median_of_nan_is_the_minimum():
    nan = np.float32(np.nan)
    x = np.zeros((3, LANES), np.float32)
    x[:, :3] = [[nan, 1, 2], [1, nan, 5], [7, 3, nan]]
    got = run("v_med3_f32 v3, v0, v1, v2", {f"v{at}": x[at] for at in range(3)}, {"v3": np.float32})["v3"][:3]
    np.testing.assert_array_equal(canonical(got), canonical(np.array([1, 1, 2], np.float32)))
    assert not is_signaling(got).any()


@pytest.mark.parametrize("selectors", [0x07060302, 0x05040100, 0x00010203, 0x0C0C0706, 0x0DFF0401, 0x0908030B,
                                       0x04040404])
def test_byte_permutation_by_one_selector_for_all_lanes(selectors):
    a, b, old = (values("u32", at) for at in range(3))
    mask = 0xFF00F0F1
    got = run(f"v_perm_b32 v3, v0, v1, s8\nv_perm_b32 v0, v0, -2, s8\ns_mov_b64 exec, {mask:#x}\n"
              "v_perm_b32 v4, v1, v5, s8", {"v0": a, "v1": b, "v4": old, "v5": a, "s8": selectors}, ["v0", "v3", "v4"])

    def wanted(x, y):
        return np.array([perm(int(p), int(q), selectors) for p, q in zip(x.flat, y.flat, strict=True)],
                        np.uint32).reshape(x.shape)

    np.testing.assert_array_equal(got["v3"], wanted(a, b))
    np.testing.assert_array_equal(got["v0"], wanted(a, np.full_like(a, 0xFFFFFFFE)))
    np.testing.assert_array_equal(got["v4"], np.where(mask >> np.arange(LANES) & 1 == 1, wanted(b, a), old))
