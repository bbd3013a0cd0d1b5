# SPDX-License-Identifier: MIT
"""VOP3P against NumPy: packed 16-bit and f32 operations, mixed precision, dot products, and their modifiers."""

import itertools

import numpy as np
import pytest
from asm import Case, run, run_many
from hip_runtime import HipError

GROUPS = 8
RNG_SEED = 11
HALF_EDGES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
                       0x3555, 0x7FFF, 0x8001, 0x4248], np.uint16)
MASK = 0xF0F0FFFF00010001


def halves(seed: int) -> np.ndarray:
    """Random and edge bit patterns: u16 [GROUPS, 64, 2]."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << 16, (GROUPS, 64, 2)).astype(np.uint16)
    small = rng.standard_normal((GROUPS, 64, 2)).astype(np.float16).view(np.uint16)
    x = np.where(rng.random(x.shape) < 0.5, small, x)
    return np.where(rng.random(x.shape) < 0.3, rng.choice(HALF_EDGES, x.shape), x)


def floats(seed: int) -> np.ndarray:
    """Random f32 with edges: [GROUPS, 64, 2]."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((GROUPS, 64, 2)) * 10.0 ** rng.integers(-20, 20, (GROUPS, 64, 2))).astype(np.float32)
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38], np.float32)
    return np.where(rng.random(x.shape) < 0.2, rng.choice(edges, x.shape), x)


def bits(x: np.ndarray) -> np.ndarray:
    """Comparable bit patterns: every NaN is one pattern."""
    if x.dtype.kind != "f":
        return x
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x).view(f"u{x.itemsize}")


def assert_same(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(bits(np.ascontiguousarray(got)), bits(np.ascontiguousarray(wanted)))


def f16_extreme(a, b, a_wins):
    """A signalling NaN makes the result NaN (MODE.IEEE = 1), a quiet one loses against a number."""
    signaling = [np.isnan(x) & (x.view(np.uint16) & 0x200 == 0) for x in (a, b)]
    number = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(a_wins, a, b)))
    return np.where(signaling[0] | signaling[1], np.float16(np.nan), number)


def f16_minimum(a, b):
    return f16_extreme(a, b, (a < b) | ((a == b) & np.signbit(a)))


def f16_maximum(a, b):
    return f16_extreme(a, b, (a > b) | ((a == b) & ~np.signbit(a)))


def f16_fma(a, b, c):
    # longdouble has 64 mantissa bits: product and sum of f16 are exact in it wherever f16 could tell the difference.
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float16)


FLOAT_OPS = {
    "v_pk_add_f16": (2, lambda a, b: a + b),
    "v_pk_mul_f16": (2, lambda a, b: a * b),
    "v_pk_fma_f16": (3, f16_fma),
    "v_pk_min_f16": (2, f16_minimum),
    "v_pk_max_f16": (2, f16_maximum),
}
INTEGER_OPS = {                                      # on int64 copies; the result wraps, or saturates with clamp
    "v_pk_add_u16": (np.uint16, 2, True, lambda a, b: a + b),
    "v_pk_add_i16": (np.int16, 2, True, lambda a, b: a + b),
    "v_pk_sub_u16": (np.uint16, 2, True, lambda a, b: a - b),
    "v_pk_sub_i16": (np.int16, 2, True, lambda a, b: a - b),
    "v_pk_mad_u16": (np.uint16, 3, True, lambda a, b, c: a * b + c),
    "v_pk_mad_i16": (np.int16, 3, True, lambda a, b, c: a * b + c),
    "v_pk_mul_lo_u16": (np.uint16, 2, False, lambda a, b: a * b),
    "v_pk_lshlrev_b16": (np.uint16, 2, False, lambda a, b: b << (a & 15)),
    "v_pk_lshrrev_b16": (np.uint16, 2, False, lambda a, b: b >> (a & 15)),
    "v_pk_ashrrev_i16": (np.int16, 2, False, lambda a, b: b >> (a & 15)),
    "v_pk_min_u16": (np.uint16, 2, False, np.minimum),
    "v_pk_max_u16": (np.uint16, 2, False, np.maximum),
    "v_pk_min_i16": (np.int16, 2, False, np.minimum),
    "v_pk_max_i16": (np.int16, 2, False, np.maximum),
}


def selected(x: np.ndarray, at: int, op_sel=(), op_sel_hi=(), neg_lo=(), neg_hi=()) -> np.ndarray:
    """The two halves that operand `at` contributes: u16 [.., 2]."""
    low = x[..., 1 if op_sel and op_sel[at] else 0]
    high = x[..., 0 if op_sel_hi and not op_sel_hi[at] else 1]
    sign = np.uint16(0x8000)
    low = low ^ sign if neg_lo and neg_lo[at] else low
    high = high ^ sign if neg_hi and neg_hi[at] else high
    return np.stack([low, high], axis=-1)


def modifier_text(**lists) -> str:
    return " ".join(f"{name}:[{','.join(str(int(bit)) for bit in value)}]" for name, value in lists.items() if value)


def run_packed(name: str, sources: list[np.ndarray], text: str = "", **inputs) -> np.ndarray:
    registers = [f"v{4 + at}" for at in range(len(sources))]
    given = dict(zip(registers, sources, strict=True)) | inputs
    return run(f"{name} v0, {', '.join(registers)} {text}", given, {"v0": np.uint16})["v0"]


def random_lists(rng: np.random.Generator, count: int, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(bit) for bit in rng.integers(0, 2, count)) for name in names}


@pytest.mark.filterwarnings("ignore:overflow|invalid value")
@pytest.mark.parametrize("name", FLOAT_OPS)
def test_packed_f16(name):
    count, model = FLOAT_OPS[name]
    sources = [halves(seed) for seed in range(count)]
    rng = np.random.default_rng(RNG_SEED)
    lists = [{}, *(random_lists(rng, count, ("op_sel", "op_sel_hi", "neg_lo", "neg_hi")) for _ in range(6))]
    for chosen, clamp in itertools.product(lists, (False, True)):
        got = run_packed(name, sources, modifier_text(**chosen) + (" clamp" if clamp else ""))
        operands = [selected(x, at, **chosen).view(np.float16) for at, x in enumerate(sources)]
        wanted = model(*operands)
        if clamp:                                    # DX10_CLAMP: a NaN becomes 0
            wanted = np.where(np.isnan(wanted) | (wanted < 0), np.float16(0), np.minimum(wanted, np.float16(1)))
            got = np.where(got == 0x8000, 0, got).astype(np.uint16)          # -0 lies in [0, 1] and may keep its sign
            wanted = np.where(wanted == 0, np.float16(0), wanted)
        assert_same(got.view(np.float16), wanted.astype(np.float16))


@pytest.mark.parametrize("name", INTEGER_OPS)
def test_packed_integers(name):
    dtype, count, has_clamp, model = INTEGER_OPS[name]
    sources = [halves(seed) for seed in range(count)]
    rng = np.random.default_rng(RNG_SEED)
    lists = [{}, *(random_lists(rng, count, ("op_sel", "op_sel_hi")) for _ in range(4))]
    for chosen, clamp in itertools.product(lists, (False, True) if has_clamp else (False,)):
        got = run_packed(name, sources, modifier_text(**chosen) + (" clamp" if clamp else ""))
        operands = [selected(x, at, **chosen).view(dtype).astype(np.int64) for at, x in enumerate(sources)]
        wanted = model(*operands)
        if clamp:
            wanted = np.clip(wanted, np.iinfo(dtype).min, np.iinfo(dtype).max)
        assert_same(got.view(dtype), wanted.astype(dtype))


def test_packed_constants_and_scalars():
    x = halves(3)
    low_only, both, negative, high_only, exponents, scalar = run_many([
        Case("v_pk_add_u16 v0, v4, 5", {"v4": x}, {"v0": np.uint16}),
        Case("v_pk_add_u16 v0, v4, 5 op_sel_hi:[1,0]", {"v4": x}, {"v0": np.uint16}),
        Case("v_pk_add_u16 v0, v4, -1", {"v4": x}, {"v0": np.uint16}),
        Case("v_pk_add_u16 v0, v4, 0.5", {"v4": x}, {"v0": np.uint16}),
        Case("v_pk_add_u16 v0, v4, 0.5 op_sel:[0,1]", {"v4": x}, {"v0": np.uint16}),
        Case("v_pk_add_u16 v0, v4, s8", {"v4": x, "s8": 0x00070003}, {"v0": np.uint16})])
    assert_same(low_only["v0"], x + np.array([5, 0], np.uint16))
    assert_same(both["v0"], x + np.uint16(5))
    assert_same(negative["v0"], x - np.uint16(1))
    assert_same(high_only["v0"], x + np.array([0, 0x3f00], np.uint16))  # half an f32: compilers add exponents so
    assert_same(exponents["v0"], x + np.uint16(0x3f00))
    assert_same(scalar["v0"], x + np.array([3, 7], np.uint16))


def test_packed_operations_obey_exec_and_may_overwrite_a_source():
    x, y = halves(4), halves(5)
    lanes = (MASK >> np.arange(64, dtype=object) & 1).astype(bool)[None, :, None]
    partial = run("v_pk_add_u16 v4, v4, v5", {"v4": x, "v5": y, "exec": MASK}, {"v4": np.uint16})["v4"]
    assert_same(partial, np.where(lanes, x + y, x))
    swapped = run("v_pk_add_u16 v4, v4, v4 op_sel:[1,1] op_sel_hi:[0,0]", {"v4": x}, {"v4": np.uint16})["v4"]
    assert_same(swapped, (x + x)[..., ::-1])


def f32_fma(a, b, c):
    # The product is exact in longdouble's 64 bits. Rounding the sum twice could differ from once only where the
    # 64-bit sum falls on a tie of f32, which these inputs do not reach.
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


F32_OPS = {
    "v_pk_add_f32": (2, lambda a, b: a + b),
    "v_pk_mul_f32": (2, lambda a, b: a * b),
    "v_pk_fma_f32": (3, f32_fma),
}


@pytest.mark.filterwarnings("ignore:overflow|invalid value")
@pytest.mark.parametrize("name", F32_OPS)
def test_packed_f32(name):
    count, model = F32_OPS[name]
    sources = [floats(seed) for seed in range(count)]
    registers = [f"v[{4 + 2 * at}:{5 + 2 * at}]" for at in range(count)]
    rng = np.random.default_rng(RNG_SEED)
    lists = [{}, *(random_lists(rng, count, ("op_sel", "op_sel_hi", "neg_lo", "neg_hi")) for _ in range(6))]
    for chosen in lists:
        got = run(f"{name} v[0:1], {', '.join(registers)} {modifier_text(**chosen)}",
                  dict(zip(registers, sources, strict=True)), {"v[0:1]": np.float32})["v[0:1]"]
        operands = []
        for at, x in enumerate(sources):
            low = x[..., 1 if chosen and chosen["op_sel"][at] else 0]
            high = x[..., 0 if chosen and not chosen["op_sel_hi"][at] else 1]
            low = -low if chosen and chosen["neg_lo"][at] else low
            high = -high if chosen and chosen["neg_hi"][at] else high
            operands.append(np.stack([low, high], axis=-1))
        assert_same(got, model(*operands))


def test_packed_f32_scalars_constants_exec_and_clamp():
    x = floats(6)
    x[~np.isfinite(x)] = 0.25
    pair = np.array([2.0, -3.0], np.float32)
    lanes = (MASK >> np.arange(64, dtype=object) & 1).astype(bool)[None, :, None]
    names = {"v[4:5]": x, "s[8:9]": pair.view(np.uint64)[0]}
    scalar, constant, in_place, clamped = run_many([
        Case("v_pk_mul_f32 v[0:1], v[4:5], s[8:9]", names, {"v[0:1]": np.float32}),
        Case("v_pk_mul_f32 v[0:1], v[4:5], 0.5 op_sel_hi:[1,0]", names, {"v[0:1]": np.float32}),
        Case("v_pk_add_f32 v[4:5], v[4:5], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]", names | {"exec": MASK},
             {"v[4:5]": np.float32}),
        Case("v_pk_add_f32 v[0:1], v[4:5], 0 op_sel_hi:[1,0] clamp", names, {"v[0:1]": np.float32})])
    with np.errstate(over="ignore"):
        assert_same(scalar["v[0:1]"], x * pair)
        assert_same(in_place["v[4:5]"], np.where(lanes, x[..., ::-1] + x, x))
    assert_same(constant["v[0:1]"], x * np.float32(0.5))
    assert_same(np.abs(clamped["v[0:1]"]), np.clip(x, 0, 1) + np.float32(0))


def test_packed_f32_constant_has_no_high_half():
    with pytest.raises(HipError, match="no high half"):
        run("v_pk_mul_f32 v[0:1], v[4:5], 0.5")


def test_pk_mov_b32():
    x, y = floats(7), floats(8)
    for first, second in itertools.product((0, 1), repeat=2):
        got = run(f"v_pk_mov_b32 v[0:1], v[4:5], v[6:7] op_sel:[{first},{second}]", {"v[4:5]": x, "v[6:7]": y},
                  {"v[0:1]": np.float32})["v[0:1]"]
        assert_same(got, np.stack([x[..., first], y[..., second]], axis=-1))
    swapped = run("v_pk_mov_b32 v[4:5], v[4:5], v[4:5] op_sel:[1,0]", {"v[4:5]": x}, {"v[4:5]": np.float32})["v[4:5]"]
    assert_same(swapped, x[..., ::-1])
    scalar = run("v_pk_mov_b32 v[0:1], s[8:9], 1.0", {"s[8:9]": 0x4000000040400000}, {"v[0:1]": np.float32})["v[0:1]"]
    assert_same(scalar, np.tile(np.array([3.0, 1.0], np.float32), (64, 1)))


def mix_operand(x: np.ndarray, is_half: bool, is_high: bool, negate: bool, absolute: bool) -> np.ndarray:
    value = x.view(np.float16)[..., int(is_high)].astype(np.float32) if is_half else x.view(np.float32)[..., 0]
    value = np.abs(value) if absolute else value
    return -value if negate else value


@pytest.mark.filterwarnings("ignore:overflow|invalid value")
@pytest.mark.parametrize("text, bits", [
    ("1.0", 0x3C00), ("-4.0", 0xC400), ("0.5", 0x3800), ("0.15915494", 0x3118), ("0", 0), ("7", 7), ("-1", 0xFFFF)])
def test_fma_mix_takes_constants_as_halves(text, bits):
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    got = run(f"v_fma_mix_f32 v1, v0, {text}, v0 op_sel_hi:[0,1,0]", {"v0": x}, {"v1": np.float32})["v1"]
    factor = np.float64(np.uint16(bits).view(np.float16))
    np.testing.assert_array_equal(got, (x.astype(np.float64) * factor + x).astype(np.float32))


@pytest.mark.parametrize("name", ["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"])
def test_fma_mix(name):
    rng = np.random.default_rng(RNG_SEED)
    old = halves(20)
    for _ in range(16):
        is_half, is_high, negate, absolute = (rng.integers(0, 2, 3).astype(bool) for _ in range(4))
        sources = [np.ascontiguousarray(halves(30 + at)) if is_half[at] else
                   rng.standard_normal((GROUPS, 64, 1)).astype(np.float32).view(np.uint16) for at in range(3)]
        texts = [f"{'-' if negate[at] else ''}{'|' if absolute[at] else ''}v{4 + at}{'|' if absolute[at] else ''}"
                 for at in range(3)]
        lists = modifier_text(op_sel=tuple(is_high & is_half), op_sel_hi=tuple(is_half))
        given = {f"v{4 + at}": x for at, x in enumerate(sources)} | {"v0": old}
        clamp = bool(rng.integers(0, 2))
        got = run(f"{name} v0, {', '.join(texts)} {lists}{' clamp' * clamp}", given, {"v0": np.uint16})["v0"]
        wanted = f32_fma(*(mix_operand(x, is_half[at], is_high[at], negate[at], absolute[at])
                           for at, x in enumerate(sources)))
        if clamp:                                    # DX10_CLAMP: a NaN becomes 0
            wanted = np.where(np.isnan(wanted) | (wanted <= 0), np.float32(0), np.minimum(wanted, np.float32(1)))
            got = np.where(got == 0x8000, 0, got).astype(np.uint16) if name != "v_fma_mix_f32" else got
            old = np.where(old == 0x8000, 0, old).astype(np.uint16)
        if name == "v_fma_mix_f32":
            single = np.ascontiguousarray(got).view(np.float32)[..., 0]
            assert_same(np.where(clamp & (single == 0), np.float32(0), single), wanted)
        else:
            written = int(name == "v_fma_mixhi_f16")
            assert_same(got[..., 1 - written], old[..., 1 - written])
            assert_same(np.ascontiguousarray(got[..., written]).view(np.float16), wanted.astype(np.float16))


def nibbles(x: np.ndarray, count: int, signed: bool) -> np.ndarray:
    """The `count` elements of each register as int64 [.., count]."""
    width = 32 // count
    values = (x[..., None].astype(np.int64) >> (width * np.arange(count))) & ((1 << width) - 1)
    return np.where(values >> (width - 1) & 1, values - (1 << width), values) if signed else values


@pytest.mark.parametrize(("name", "count", "signed"), [
    ("v_dot2_i32_i16", 2, True), ("v_dot2_u32_u16", 2, False), ("v_dot4_i32_i8", 4, True), ("v_dot4_u32_u8", 4, False),
    ("v_dot8_i32_i4", 8, True), ("v_dot8_u32_u4", 8, False)])
def test_integer_dot_products(name, count, signed):
    rng = np.random.default_rng(RNG_SEED)
    a, b, c = (rng.integers(0, 1 << 32, (GROUPS, 64), dtype=np.uint64).astype(np.uint32) for _ in range(3))
    c[0], c[1] = 0x7FFFFFF0, 0xFFFFFFF0
    dtype = np.int32 if signed else np.uint32
    exact = (nibbles(a, count, signed) * nibbles(b, count, signed)).sum(-1) + c.view(dtype).astype(np.int64)
    given = {"v4": a, "v5": b, "v6": c}
    plain = run(f"{name} v0, v4, v5, v6", given, {"v0": dtype})["v0"]
    clamped = run(f"{name} v0, v4, v5, v6 clamp", given, {"v0": dtype})["v0"]
    assert_same(plain, (exact & 0xFFFFFFFF).astype(np.uint32).view(dtype))
    assert_same(clamped, np.clip(exact, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype))
    assert (plain != clamped).any()


def test_dot2_f32_f16():
    rng = np.random.default_rng(RNG_SEED)
    a, b = (rng.standard_normal((GROUPS, 64, 2)).astype(np.float16) for _ in range(2))
    c = rng.standard_normal((GROUPS, 64)).astype(np.float32)
    for lists in ({}, {"neg_lo": (1, 0, 0), "neg_hi": (0, 1, 0)}, {"neg_lo": (1, 1, 0), "neg_hi": (0, 1, 0)}):
        x, y = (selected(source.view(np.uint16), at, **lists).view(np.float16).astype(np.float64)
                for at, source in enumerate((a, b)))
        for clamp in ("", " clamp"):
            got = run(f"v_dot2_f32_f16 v0, v4, v5, v6 {modifier_text(**lists)}{clamp}", {"v4": a, "v5": b, "v6": c},
                      {"v0": np.float32})["v0"]
            wanted = (x * y).sum(-1) + c
            np.testing.assert_allclose(got, np.clip(wanted, 0, 1) if clamp else wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize(("body", "message"), [
    ("v_pk_mul_lo_u16 v0, v1, v2 clamp", "takes no clamp"),
    ("v_pk_add_u16 v0, v1, v2 neg_lo:[1,0]", "takes no neg")])
def test_modifiers_without_meaning_are_refused(body, message):
    with pytest.raises(HipError, match=message):
        run(body)
