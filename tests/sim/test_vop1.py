# SPDX-License-Identifier: MIT
"""VOP1 against NumPy: moves, conversions, rounding, transcendental functions."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from isa_model import Row, is_signaling, to_integer, values

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")


def leading_zeros(x):
    return np.where(x == 0, -1, 31 - np.floor(np.log2(np.maximum(x.astype(np.float64), 1))).astype(np.int64))


def reverse(x):
    return np.array([int(f"{int(value):032b}"[::-1], 2) for value in x.ravel()], np.uint32).reshape(x.shape)


def sign_run(x):
    """Leading bits equal to the sign; -1 when all are."""
    return leading_zeros(np.where(x >> 31 == 1, ~x, x))


def byte(index):
    return lambda x: (x >> 8 * index & 0xFF).astype(np.float32)


def clamp_bytes(x):
    low, high = (x & 0xFFFF).astype(np.uint16).view(np.int16), (x >> 16).astype(np.uint16).view(np.int16)
    return (np.clip(low, 0, 255).astype(np.uint16) | np.clip(high, 0, 255).astype(np.uint16) << 8).astype(np.uint16)


def quieted(x):
    return np.where(is_signaling(x), np.array(np.nan, x.dtype), x)


def fract(x):
    exact = x.astype(np.longdouble) - np.floor(x.astype(np.longdouble))
    return np.minimum(exact.astype(x.dtype), np.nextafter(np.array(1, x.dtype), np.array(0, x.dtype)))


def frexp_exponent(x):
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1], 0)


def frexp_mantissa(x):
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[0], quieted(x)).astype(x.dtype)


def flushed(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def through(function, dtype):
    """A function evaluated in extended precision."""
    return lambda x: function(x.astype(np.longdouble)).astype(dtype)


def turns(function, beyond):
    def model(x):
        x = x.astype(np.longdouble)
        turn = x - np.rint(x)
        value = function(2 * np.longdouble("3.14159265358979323846264338327950288") * turn)
        value = np.where(4 * turn == np.rint(4 * turn), np.rint(value), value)       # quarter turns are exact
        return np.where(np.isfinite(x), np.where(np.abs(x) <= 256, value, beyond), np.nan)
    return model


def norm(low, scale):
    def model(x):
        bounded = np.nan_to_num(np.clip(x.astype(np.float32), low, 1), nan=0)
        return np.rint(bounded * np.float32(scale))
    return model


def float8(kind):
    return lambda codes: torch.from_numpy(codes.astype(np.uint8)).view(kind).to(torch.float32).numpy()


def float8_pair(kind):
    decode = float8(kind)
    def model(x):
        low, high = decode(x & 0xFF), decode(x >> 8 & 0xFF)
        return np.stack([low, high], -1).view(np.uint64)[..., 0]
    return model


def without_nan(x):
    """Codes 0x80 lose their sign: a pair of floats is compared as bits."""
    return np.where((x & 0xFF == 0x80) | (x >> 8 & 0xFF == 0x80), x & 0x7F7F, x)


FP8, BF8 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz


def near_one(x):
    return np.where(np.isfinite(x), np.mod(x.astype(np.float64), 300) * np.sign(x), x)


ROWS = [
    Row("v_mov_b32", "u32", "u32", lambda a: a),
    Row("v_mov_b64", "u64", "u64", lambda a: a),
    Row("v_not_b32", "u32", "u32", lambda a: ~a),
    Row("v_bfrev_b32", "u32", "u32", reverse),
    Row("v_ffbh_u32", "i32", "u32", leading_zeros),
    Row("v_ffbl_b32", "i32", "u32", lambda a: np.where(a == 0, -1, 31 - leading_zeros(a & -a.astype(np.int64)))),
    Row("v_ffbh_i32", "i32", "u32", sign_run),
    Row("v_sat_pk_u8_i16", "u16", "u32", clamp_bytes),
    Row("v_cvt_f32_i32", "f32", "i32", lambda a: a.astype(np.float32)),
    Row("v_cvt_f32_u32", "f32", "u32", lambda a: a.astype(np.float32)),
    Row("v_cvt_f64_i32", "f64", "i32", lambda a: a.astype(np.float64)),
    Row("v_cvt_f64_u32", "f64", "u32", lambda a: a.astype(np.float64)),
    Row("v_cvt_f64_f32", "f64", "f32", lambda a: a.astype(np.float64)),
    Row("v_cvt_f32_f64", "f32", "f64", lambda a: a.astype(np.float32)),
    Row("v_cvt_f32_f16", "f32", "f16", lambda a: a.astype(np.float32)),
    Row("v_cvt_f16_f32", "f16", "f32", lambda a: a.astype(np.float16)),
    Row("v_cvt_f16_u16", "f16", "u16", lambda a: a.astype(np.float16)),
    Row("v_cvt_f16_i16", "f16", "i16", lambda a: a.astype(np.float16)),
    Row("v_cvt_u16_f16", "u16", "f16", lambda a: to_integer(a, np.uint16)),
    Row("v_cvt_i16_f16", "i16", "f16", lambda a: to_integer(a, np.int16)),
    Row("v_cvt_u32_f32", "u32", "f32", lambda a: to_integer(a, np.uint32)),
    Row("v_cvt_i32_f32", "i32", "f32", lambda a: to_integer(a, np.int32)),
    Row("v_cvt_u32_f64", "u32", "f64", lambda a: to_integer(a, np.uint32)),
    Row("v_cvt_i32_f64", "i32", "f64", lambda a: to_integer(a, np.int32)),
    Row("v_cvt_rpi_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a.astype(np.float64) + 0.5), np.int32)),
    Row("v_cvt_flr_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a), np.int32)),
    Row("v_cvt_off_f32_i4", "f32", "u32", lambda a: (((a & 15).astype(np.int32) ^ 8) - 8) / 16),
    *(Row(f"v_cvt_f32_ubyte{index}", "f32", "u32", byte(index)) for index in range(4)),
    Row("v_cvt_norm_i16_f16", "i16", "f16", norm(-1, 32767)),
    Row("v_cvt_norm_u16_f16", "u16", "f16", norm(0, 65535)),
    Row("v_cvt_f32_fp8", "f32", "u32", lambda a: float8(FP8)(a & 0xFF)),
    Row("v_cvt_f32_bf8", "f32", "u32", lambda a: float8(BF8)(a & 0xFF)),
    Row("v_cvt_pk_f32_fp8", "u64", "u32", float8_pair(FP8), ranges=(without_nan,)),
    Row("v_cvt_pk_f32_bf8", "u64", "u32", float8_pair(BF8), ranges=(without_nan,)),
    *(Row(f"v_{name}_{kind}", kind, kind, function)
      for kind in ("f16", "f32", "f64")
      for name, function in (("trunc", np.trunc), ("ceil", np.ceil), ("floor", np.floor), ("rndne", np.rint),
                             ("fract", fract), ("frexp_mant", frexp_mantissa))),
    Row("v_frexp_exp_i32_f32", "i32", "f32", frexp_exponent),
    Row("v_frexp_exp_i32_f64", "i32", "f64", frexp_exponent),
    Row("v_frexp_exp_i16_f16", "i16", "f16", frexp_exponent),
    *(Row(name, "f32", "f32", lambda a: flushed(through(np.exp2, np.float32)(a)), ulp=1,
          ranges=(lambda x: np.where(np.abs(x) > 200, x * np.float32(1e-37), x),))
      for name in ("v_exp_f32", "v_exp_legacy_f32")),
    *(Row(name, "f32", "f32", lambda a: through(np.log2, np.float32)(flushed(a)), ulp=1)
      for name in ("v_log_f32", "v_log_legacy_f32")),
    Row("v_rcp_f32", "f32", "f32", lambda a: np.float32(1) / a, ulp=1),
    Row("v_rcp_iflag_f32", "f32", "f32", lambda a: np.float32(1) / a, ulp=1),
    Row("v_rsq_f32", "f32", "f32", through(lambda x: 1 / np.sqrt(x), np.float32), ulp=1),
    Row("v_sqrt_f32", "f32", "f32", np.sqrt, ulp=1),
    Row("v_sin_f32", "f32", "f32", turns(np.sin, 0), ulp=2, ranges=(near_one,)),
    Row("v_cos_f32", "f32", "f32", turns(np.cos, 1), ulp=2, ranges=(near_one,)),
    Row("v_rcp_f64", "f64", "f64", lambda a: 1 / a, ulp=1),
    Row("v_rsq_f64", "f64", "f64", through(lambda x: 1 / np.sqrt(x), np.float64), ulp=1),
    Row("v_sqrt_f64", "f64", "f64", np.sqrt, ulp=1),
    Row("v_exp_f16", "f16", "f16", through(np.exp2, np.float16), ulp=1),
    Row("v_log_f16", "f16", "f16", through(np.log2, np.float16), ulp=1),
    Row("v_rcp_f16", "f16", "f16", through(lambda x: 1 / x, np.float16), ulp=1),
    Row("v_rsq_f16", "f16", "f16", through(lambda x: 1 / np.sqrt(x), np.float16), ulp=1),
    Row("v_sqrt_f16", "f16", "f16", np.sqrt, ulp=1),
    Row("v_sin_f16", "f16", "f16", turns(np.sin, 0), ulp=2, ranges=(near_one,)),
    Row("v_cos_f16", "f16", "f16", turns(np.cos, 1), ulp=2, ranges=(near_one,)),
]
def test_exact_values():
    """Where one result is right: whole powers, quarter turns, special values."""
    x = np.zeros(LANES, np.float32)
    x[:12] = [0, 1, -3, 0.25, 0.5, 0.75, -0.25, 127, -126, np.inf, -np.inf, 128]
    got = run("v_exp_f32 v1, v0\nv_sin_f32 v2, v0\nv_cos_f32 v3, v0\nv_log_f32 v4, v1", {"v0": x},
              dict.fromkeys(("v1", "v2", "v3", "v4"), np.float32))
    np.testing.assert_array_equal(got["v1"][:12], np.exp2(x[:12].astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(got["v2"][:9], [0, 0, 0, 1, 0, -1, -1, 0, 0])
    np.testing.assert_array_equal(got["v3"][:9], [1, 1, 1, 0, -1, 0, 0, 1, 1])
    np.testing.assert_array_equal(got["v4"][[0, 1, 2, 7, 8]], x[[0, 1, 2, 7, 8]])


@pytest.mark.parametrize("kind, name", [(FP8, "fp8"), (BF8, "bf8")])
def test_every_float8_code(kind, name):
    codes = np.arange(256, dtype=np.uint32).reshape(4, LANES)
    body = "".join(f"v_cvt_f32_{name}_sdwa v{2 + at}, v0 src0_sel:BYTE_{at}\n" for at in range(4))
    got = run(body, {"v0": codes * 0x01010101}, {f"v{2 + at}": np.float32 for at in range(4)})
    for at in range(4):
        np.testing.assert_array_equal(got[f"v{2 + at}"], float8(kind)(codes))


def test_swap_exchanges_active_lanes():
    a, b = values("u32", 1), values("u32", 2)
    mask = 0x00FF00FF12345678
    got = run("v_swap_b32 v0, v1\nv_nop\nv_clrexcp", {"v0": a, "v1": b, "exec": mask}, ["v0", "v1"])
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(got["v0"], np.where(active, b, a))
    np.testing.assert_array_equal(got["v1"], np.where(active, a, b))


def test_readfirstlane():
    x = np.arange(LANES, dtype=np.uint32) + 100
    masks = (1 << 17 | 1 << 40, 1 << 63, 0)
    cases = [Case("v_readfirstlane_b32 s8, v0", {"v0": x, "exec": mask}, ["s8"]) for mask in masks]
    assert [int(result["s8"]) for result in run_many(cases)] == [117, 163, 100]
