# SPDX-License-Identifier: MIT
"""MODE's rounding fields and flushed f16 denormals against exact models on fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from asm import Case, run, run_many
from hip_runtime import HipError
from isa_model import assert_close, maximum, minimum, random_exec, unpack_mask, values

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")
NEAREST, UP, DOWN, ZERO = range(4)


def round_exactly(x: Fraction, dtype: type, mode: int) -> float:
    """The number of a float type next to x; x is exact and not 0."""
    info = np.finfo(dtype)
    top = x.numerator.bit_length() - x.denominator.bit_length()
    exponent = top if abs(x) >= Fraction(2) ** top else top - 1
    unit = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    steps = {NEAREST: round, UP: math.ceil, DOWN: math.floor, ZERO: math.trunc}[mode](x / unit)
    if abs(steps * unit) > Fraction(float(info.max)):
        toward = {NEAREST: True, UP: x > 0, DOWN: x < 0, ZERO: False}[mode]
        return (math.inf if toward else float(info.max)) * (1 if x > 0 else -1)
    return float(steps * unit) if steps else 0.0 if x > 0 else -0.0


def rounded(function, dtype, mode: int, plain):
    """Elementwise: the exact function where it is finite and not 0, else what `plain` (IEEE, to nearest) gives."""
    def model(*sources):
        with np.errstate(all="ignore"):
            out = plain(*sources).astype(dtype)
        for at in np.ndindex(out.shape):
            lane = [float(source[at]) for source in sources]
            if not all(math.isfinite(x) for x in lane):
                continue
            exact = function(*(Fraction(x) for x in lane))
            if exact:
                out[at] = round_exactly(exact, dtype, mode)
            elif mode == DOWN and not exact_zero_is_signed(lane, function):
                out[at] = -0.0
        return out
    return model


def exact_zero_is_signed(lane, function) -> bool:
    """A zero from numbers that cancel is -0 when rounding down; one made of zeros alone keeps IEEE's sign rule."""
    probe = function(*(Fraction(1) if x == 0 and math.copysign(1, x) > 0 else Fraction(-1) if x == 0 else Fraction(x)
                       for x in lane))
    return probe != 0 and any(x == 0 for x in lane)


def fma(a, b, c):
    return a * b + c


def wide(function):
    return lambda *sources: function(*(source.astype(np.longdouble) for source in sources))


# Name → (types, exact function, the sources' number). {k}: f16, f32, f64.
OPERATIONS = {
    "v_add_f32": ("f32", "f32 f32", lambda a, b: a + b), "v_sub_f32": ("f32", "f32 f32", lambda a, b: a - b),
    "v_subrev_f32": ("f32", "f32 f32", lambda a, b: b - a), "v_mul_f32": ("f32", "f32 f32", lambda a, b: a * b),
    "v_fma_f32": ("f32", "f32 f32 f32", fma), "v_fmac_f32": ("f32", "f32 f32", fma),
    "v_add_f64": ("f64", "f64 f64", lambda a, b: a + b), "v_mul_f64": ("f64", "f64 f64", lambda a, b: a * b),
    "v_fma_f64": ("f64", "f64 f64 f64", fma), "v_fmac_f64": ("f64", "f64 f64", fma),
    "v_add_f16": ("f16", "f16 f16", lambda a, b: a + b), "v_sub_f16": ("f16", "f16 f16", lambda a, b: a - b),
    "v_mul_f16": ("f16", "f16 f16", lambda a, b: a * b), "v_fma_f16": ("f16", "f16 f16 f16", fma),
    "v_cvt_f32_f64": ("f32", "f64", lambda a: a), "v_cvt_f16_f32": ("f16", "f32", lambda a: a),
    "v_cvt_f32_i32": ("f32", "i32", lambda a: a), "v_cvt_f32_u32": ("f32", "u32", lambda a: a),
    "v_cvt_f16_u16": ("f16", "u16", lambda a: a),
}
FIELD_OF_F64 = {"f16": 2, "f64": 2, "f32": 0}
DTYPE = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def field_of(name: str, kind: str) -> int:
    return 2 if name == "v_cvt_f32_f64" else FIELD_OF_F64[kind]


def register(kind: str, first: int) -> str:
    return f"v[{first}:{first + 1}]" if kind in ("f64", "u64") else f"v{first}"


def close_pairs(kind: str, seed: int) -> np.ndarray:
    """Numbers of like size, so that sums are inexact in their last bits or cancel."""
    x = values(kind, seed)
    if kind[0] != "f":
        return x
    near = (1 + np.random.default_rng(seed).integers(-64, 64, x.shape) / 37).astype(x.dtype)
    return np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, x, near)


def cases_of(mode: int, f32_mode: int) -> list[tuple]:
    made = []
    for index, (name, (kind, source_kinds, function)) in enumerate(OPERATIONS.items()):
        sources = [close_pairs(k, 10 * index + at) for at, k in enumerate(source_kinds.split())]
        old, mask = close_pairs(kind, 10 * index + 7), random_exec(index)
        texts = [register(k, 2 + 2 * at) for at, k in enumerate(source_kinds.split())]
        dst = register(kind, 20)
        bits = f32_mode | mode << 2
        body = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {bits}\n{name} {dst}, {', '.join(texts)}"
        inputs = dict(zip(texts, sources, strict=True)) | {dst: old, "exec": mask}
        outputs = {dst: np.uint64 if kind == "f64" else np.uint32}
        arguments = [*sources, old] if "fmac" in name else sources
        chosen = mode if field_of(name, kind) else f32_mode
        plain = {2: lambda a, b, f=function: f(a, b)}.get(len(arguments), wide(function))
        wanted = rounded(function, DTYPE[kind], chosen, plain)(*arguments)
        made.append((name, kind, Case(body, inputs, outputs), dst, wanted, unpack_mask(mask), arguments))
    return made


@pytest.mark.parametrize("mode, f32_mode", [(UP, DOWN), (DOWN, ZERO), (ZERO, UP), (NEAREST, UP), (DOWN, NEAREST)])
def test_each_field_rounds_its_types(mode, f32_mode):
    prepared = cases_of(mode, f32_mode)
    for (name, kind, _, dst, wanted, active, sources), result in zip(
            prepared, run_many([case for _, _, case, *_ in prepared]), strict=True):
        got = result[dst].astype(f"u{np.dtype(DTYPE[kind]).itemsize}").view(DTYPE[kind])
        assert_close(f"{name} {mode} {f32_mode}", np.where(active, got, wanted), wanted, 0, sources)


@pytest.mark.parametrize("mode", [UP, DOWN, ZERO])
def test_packed_operations_round_alike(mode):
    a, b = (np.stack([close_pairs("f16", seed), close_pairs("f16", seed + 1)], -1) for seed in (1, 3))
    x, y = (np.stack([close_pairs("f32", seed), close_pairs("f32", seed + 1)], -1) for seed in (5, 7))
    inputs = {"v2": a, "v3": b, "v[4:5]": x, "v[6:7]": y}
    body = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {mode * 5}\n"
    got = run(body + "v_pk_add_f16 v8, v2, v3\nv_pk_mul_f16 v9, v2, v3\nv_pk_add_f32 v[10:11], v[4:5], v[6:7]\n"
              "v_pk_mul_f32 v[12:13], v[4:5], v[6:7]", inputs,
              {"v8": np.float16, "v9": np.float16, "v[10:11]": np.float32, "v[12:13]": np.float32})
    for name, (first, second), function in (("v8", (a, b), np.add), ("v9", (a, b), np.multiply),
                                            ("v[10:11]", (x, y), np.add), ("v[12:13]", (x, y), np.multiply)):
        wanted = rounded(lambda p, q, f=function: p + q if f is np.add else p * q, first.dtype, mode, function)
        assert_close(name, got[name], wanted(first, second), 0, (first, second))


@pytest.mark.parametrize("mode", [UP, DOWN, ZERO])
def test_what_names_its_rounding_does_not_change(mode):
    """Conversions to integers truncate, v_rndne is to even, v_cvt_pkrtz to zero; approximations stay."""
    x, y = close_pairs("f32", 30), close_pairs("f32", 31)
    wide_x = close_pairs("f64", 32)
    text = ("v_rndne_f32 v4, v2\nv_floor_f32 v5, v2\nv_cvt_i32_f32 v6, v2\nv_cvt_pkrtz_f16_f32 v7, v2, v3\n"
            "v_rcp_f32 v8, v2\nv_rndne_f64 v[10:11], v[14:15]\nv_cvt_rpi_i32_f32 v12, v2\nv_min_f32 v13, v2, v3\n"
            "v_div_fixup_f32 v16, v2, v3, v2\nv_exp_f32 v17, v2")
    names = ["v4", "v5", "v6", "v7", "v8", "v[10:11]", "v12", "v13", "v16", "v17"]
    inputs = {"v2": x, "v3": y, "v[14:15]": wide_x}
    setting = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {mode * 5}\n"
    plain, other = run(text, inputs, names), run(setting + text, inputs, names)
    for name in names:
        np.testing.assert_array_equal(other[name], plain[name], name)


def test_the_descriptors_rounding_mode():
    a, b = close_pairs("f32", 40), close_pairs("f32", 41)
    got = run("v_add_f32 v6, v2, v4", {"v2": a, "v4": b}, {"v6": np.float32},
              directives=("float_denorm_mode_32 3", "float_round_mode_32 2"))["v6"]
    assert_close("v_add_f32", got, rounded(lambda p, q: p + q, np.float32, DOWN, np.add)(a, b), 0, (a, b))


@pytest.mark.parametrize("text", [
    "v_div_fmas_f32 v2, v0, v1, v0", "v_dot2_f32_f16 v2, v0, v1, v0", "v_fma_mixlo_f16 v2, v0, v1, v0",
    "v_cvt_pknorm_i16_f32 v2, v0, v1", "v_cvt_pk_fp8_f32 v2, v0, v1", "v_cvt_pk_u8_f32 v2, v0, v1, v0"])
def test_what_is_not_known_under_a_rounding_mode_is_refused(text):
    with pytest.raises(HipError, match="rounding other than to nearest even"):
        run(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 15\n{text}", {"v0": 1, "v1": 2}, ["v2"])


# ---- flushed f16 denormals


def flush(x: np.ndarray, active: bool) -> np.ndarray:
    tiny = np.abs(x) < np.finfo(np.float16).tiny
    return np.where(tiny, np.copysign(np.float16(0), x), x) if active else x


def small_halves(seed: int) -> np.ndarray:
    """u16 [n, 64, 2]: both halves around the smallest normal number."""
    rng = np.random.default_rng(seed)
    x = np.stack([values("f16", seed), values("f16", seed + 1)], -1)
    near = (rng.uniform(-3, 3, x.shape) * np.finfo(np.float16).tiny).astype(np.float16)
    near = np.where(rng.random(x.shape) < 0.4, np.sqrt(np.abs(near)), near)
    return np.where(rng.random(x.shape) < 0.7, near, x).astype(np.float16)


def exact(function):
    return lambda *sources: function(*(x.astype(np.longdouble) for x in sources)).astype(np.float16)


HALF = {                                             # operands a, b low; A, B high
    "v_add_f16 v6, v2, v4": ("ab", exact(lambda a, b: a + b), 0), "v_mul_f16 v6, v2, v4": ("ab", exact(np.multiply), 0),
    "v_min_f16 v6, v2, v4": ("ab", minimum, 0), "v_max_f16 v6, v2, v4": ("ab", maximum, 0),
    "v_mad_f16 v6, v2, v4, v2 op_sel:[1,0,0,0]": ("Aba", lambda a, b, c: (a * b).astype(np.float16) + c, 0),
    "v_fma_f16 v6, v2, v4, v4 op_sel:[0,1,0,1]": ("aBb", exact(fma), 1),
    "v_mul_f16_sdwa v6, v2, -v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0":
        ("Ab", exact(lambda a, b: -a * b), 1),
}


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_half_denormals(keep):
    a, b, old, mask = small_halves(1), small_halves(5), small_halves(9), random_exec(4)
    parts = {"a": a[..., 0], "A": a[..., 1], "b": b[..., 0], "B": b[..., 1]}
    prefix = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 6, 2), {keep}\n"
    cases = [Case(prefix + body, {"v2": a, "v4": b, "v6": old, "exec": mask}, {"v6": np.float16, "v2": np.float16,
                  "v4": np.float16}) for body in HALF]
    active = unpack_mask(mask)
    for (body, (operands, model, written)), result in zip(HALF.items(), run_many(cases), strict=True):
        with np.errstate(all="ignore"):
            wanted = flush(model(*(flush(parts[x], not keep & 1) for x in operands)).astype(np.float16), not keep & 2)
        got = result["v6"][..., written]
        assert_close(f"{body} {keep}", np.where(active, got, wanted), wanted, 0, (a, b))
        for name, value in (("v2", a), ("v4", b)):                     # the sources keep their denormals
            np.testing.assert_array_equal(result[name].view(np.uint16), value.view(np.uint16), body)
        if "op_sel" in body or "PRESERVE" in body:
            other = result["v6"][..., 1 - written].view(np.uint16)
            np.testing.assert_array_equal(other, old[..., 1 - written].view(np.uint16), body)


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_packed_and_accumulated_half_denormals(keep):
    a, b, d = small_halves(11), small_halves(13), small_halves(15)
    got = run(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 6, 2), {keep}\nv_pk_add_f16 v6, v2, v4\nv_mac_f16 v8, v2, v4\n"
              "v_mul_f16 v4, v4, v2\nv_cvt_f32_f16 v10, v2\nv_cmp_lt_f16_e64 s[20:21], v2, s22\n"
              "v_cmp_class_f16_e64 s[24:25], v2, v12", {"v2": a, "v4": b, "v8": d, "s22": 3, "v12": np.full(64, 0x90)
              .astype(np.uint32)}, {"v6": np.float16, "v8": np.float16, "v4": np.float16, "v10": np.float32,
              "s[20:21]": np.uint64, "s[24:25]": np.uint64})
    x, y, z = (flush(v, not keep & 1) for v in (a, b, d))
    with np.errstate(all="ignore"):
        assert_close("add", got["v6"], flush(x + y, not keep & 2), 0, (a, b))
        mad = (x[..., 0] * y[..., 0]).astype(np.float16) + z[..., 0]
        product = flush(y[..., 0] * x[..., 0], not keep & 2)
    settled = ~((x[..., 0] * y[..., 0] != 0) & (np.abs(x[..., 0] * y[..., 0]) < np.finfo(np.float16).tiny))
    mad = np.where(settled, flush(mad, not keep & 2), 0)       # whether the product is flushed before the sum is open
    assert_close("mac", np.where(settled, got["v8"][..., 0], 0), mad, 0, (a, b))
    assert_close("mul", got["v4"][..., 0], product, 0, (a, b))
    assert_close("cvt", got["v10"], x[..., 0].astype(np.float32), 0, (a,))
    limit = flush(np.full_like(a[..., 0], np.array(3, np.uint16).view(np.float16)), not keep & 1)
    np.testing.assert_array_equal(unpack_mask(got["s[20:21]"]), x[..., 0] < limit)
    tiny = (a[..., 0] != 0) & (np.abs(a[..., 0]) < np.finfo(np.float16).tiny)
    np.testing.assert_array_equal(unpack_mask(got["s[24:25]"]), tiny)              # a class is a matter of bits
