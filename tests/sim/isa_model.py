# SPDX-License-Identifier: MIT
"""Instruction rows and their NumPy models: operands with edges, exact comparison.

A `Row` names a mnemonic, the types of its destination and sources, and the model; form_cases.py runs them in all their
forms. Types: u16 i16 f16 u32 i32 f32 u64 i64 f64, and "mask" = one bit per lane of an SGPR pair.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from asm import LANES

from aiter_like import sim
from aiter_like.sim.library import json_of

GROUPS = 6
DTYPES = {"u16": np.uint16, "i16": np.int16, "f16": np.float16, "u32": np.uint32, "i32": np.int32, "f32": np.float32,
          "u64": np.uint64, "i64": np.int64, "f64": np.float64, "mask": np.bool_}
_EDGES = {
    "f16": np.array([0, 0x8000, 1, 0x83FF, 0x400, 0x3C00, 0xBC00, 0x3800, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
                     0x7D01, 0xFD55, 0x3BFF], np.uint16),
    "f32": np.array([0, 0x80000000, 1, 0x807FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x3F000000, 0x7F7FFFFF, 0xFF7FFFFF,
                     0x7F800000, 0xFF800000, 0x7FC00000, 0x7FA00001, 0xFFA00001, 0x4F000000, 0xCF000000, 0x4F800000,
                     0x4EFFFFFF, 0x3F7FFFFF], np.uint32),
    "f64": np.array([0, 1 << 63, 1, (1 << 63) + 3, 1 << 52, 0x3FF << 52, 0xBFF << 52, 0x3FE << 52, (0x7FF << 52) - 1,
                     0x7FF << 52, 0xFFF << 52, 0xFFF << 51, (0x7FF << 52) + 1, 0x41E << 52, 0xC1E << 52, 0x41F << 52],
                    np.uint64),
}
_INTEGER_EDGES = (0, 1, 2, 15, 16, 31, 32, 63, 64, 0x7FFF, 0x8000, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                  0x7FFFFFFFFFFFFFFF, 1 << 63, (1 << 64) - 1)


@dataclass(frozen=True)
class Row:
    """One instruction.

    Args:
        name: mnemonic without encoding suffix.
        dst: type of the result; "u32 mask" when there is a second destination of bits.
        src: types of the printed sources.
        model: arrays of the source types (masks as bool) → array of the result type, or a pair for two destinations.
        ulp: largest distance in units of the last place; 0 means the same bits, where any NaN equals any NaN.
        reads_dst: the model's last argument is the destination's old value.
        keep_high: a 16-bit result that leaves the destination's high half alone.
        ranges: per source, a function from random values to the wanted domain; None leaves them alone.
    """

    name: str
    dst: str
    src: str
    model: Callable
    ulp: int = 0
    reads_dst: bool = False
    keep_high: bool = False
    ranges: tuple = ()


def values(kind: str, seed: int, shape: tuple[int, ...] = (GROUPS, LANES)) -> np.ndarray:
    """Random values of a type, a third of them edges."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[kind])
    if kind == "mask":
        return rng.random(shape) < 0.5
    raw = rng.integers(0, 1 << 64, shape, np.uint64, endpoint=False) if dtype.itemsize == 8 else rng.integers(
        0, 1 << 8 * dtype.itemsize, shape)
    raw = raw.astype(f"u{dtype.itemsize}")
    if kind in _EDGES:
        spread = {"f16": 3, "f32": 12, "f64": 60}[kind]
        tame = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape))
        with np.errstate(over="ignore"):
            tame = np.where(rng.random(shape) < 0.5, tame, rng.standard_normal(shape)).astype(dtype).view(raw.dtype)
        raw = np.where(rng.random(shape) < 0.6, tame, raw)
        edges = _EDGES[kind]
    else:
        small = rng.integers(-70, 70, shape).astype(raw.dtype)
        raw = np.where(rng.random(shape) < 0.3, small, raw)
        edges = np.array([edge & (1 << 8 * dtype.itemsize) - 1 for edge in _INTEGER_EDGES], raw.dtype)
    raw = np.where(rng.random(shape) < 0.33, rng.choice(edges, shape), raw)
    return raw.view(dtype)


def pack_mask(bits: np.ndarray) -> np.ndarray:
    """bool [..., 64] → u64 [...], lane 0 lowest."""
    return np.packbits(bits, axis=-1, bitorder="little").view(np.uint64)[..., 0]


def unpack_mask(words: np.ndarray) -> np.ndarray:
    """u64 [...] → bool [..., 64]."""
    return np.unpackbits(np.ascontiguousarray(words)[..., None].view(np.uint8), axis=-1, bitorder="little").astype(bool)


def random_exec(seed: int) -> np.ndarray:
    """EXEC of each workgroup: full for the first half, then random, one lane, none."""
    masks = np.random.default_rng(seed).integers(0, 1 << 64, GROUPS, np.uint64, endpoint=False)
    masks[: GROUPS // 2] = ~np.uint64(0)
    masks[-2:] = 1 << 37, 0
    return masks


def canonical(x: np.ndarray) -> np.ndarray:
    """Comparable bits: one pattern for every NaN."""
    x = np.ascontiguousarray(x)
    if x.dtype.kind != "f":
        return x
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x).view(f"u{x.itemsize}")


def assert_close(name: str, got: np.ndarray, wanted: np.ndarray, ulp: int, sources: Sequence[np.ndarray]) -> None:
    """Equal bits, or float results within `ulp`; shows the first operands that differ."""
    good = canonical(got) == canonical(wanted)
    if ulp:
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(got.astype(np.longdouble) - wanted.astype(np.longdouble))
            good |= distance <= ulp * np.spacing(np.abs(wanted)).astype(np.longdouble)
    if good.all():
        return
    at = tuple(np.argwhere(~good)[0])
    shown = [s[at] for s in sources if s.shape == good.shape]
    raise AssertionError(f"{name}: {np.count_nonzero(~good)} of {good.size} differ, first at {at}: "
                         f"sources {shown}, got {got[at]!r}, expected {wanted[at]!r}")


@functools.cache
def tables() -> dict[str, list[str]]:
    """File of csrc/sim/isa, without .cpp → the mnemonics of its rows."""
    return json_of(sim.load().aiter_like_sim_tables())


def table_names(*files: str) -> set[str]:
    return {name for file in files for name in tables()[file]}


# ---- pieces of models


def round_exactly(x: Fraction, dtype: type) -> float:
    """The nearest number of a float type, ties to even; x is exact."""
    info = np.finfo(dtype)
    if x == 0:
        return 0.0
    top = x.numerator.bit_length() - x.denominator.bit_length()
    exponent = top if abs(x) >= Fraction(2) ** top else top - 1
    unit = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    rounded = round(x / unit) * unit
    if abs(rounded) > Fraction(float(info.max)):
        return math.inf if x > 0 else -math.inf
    return float(rounded) if rounded else math.copysign(0.0, -1 if x < 0 else 1)


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding."""
    dtype = a.dtype.type
    out = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(dtype)
    for at in np.ndindex(a.shape):
        x, y, z = float(a[at]), float(b[at]), float(c[at])
        if math.isfinite(x) and math.isfinite(y) and math.isfinite(z):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            if exact:
                out[at] = round_exactly(exact, dtype)
            elif x * y == 0 and z == 0:
                out[at] = math.copysign(0.0, x) * math.copysign(1.0, y) + z
            else:
                out[at] = 0.0
        elif math.isinf(z) and math.isfinite(x) and math.isfinite(y):
            out[at] = z
    return out


def is_signaling(x: np.ndarray) -> np.ndarray:
    word = f"u{x.itemsize}"
    quiet = np.array(1 << np.finfo(x.dtype).nmant - 1, word)
    return np.isnan(x) & (np.ascontiguousarray(x).view(word) & quiet == 0)


def _choose(a: np.ndarray, b: np.ndarray, first: np.ndarray) -> np.ndarray:
    number = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(first, a, b)))
    return np.where(is_signaling(a) | is_signaling(b), np.array(np.nan, a.dtype), number)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _choose(a, b, (a < b) | ((a == b) & np.signbit(a)))


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _choose(a, b, (a > b) | ((a == b) & ~np.signbit(a)))


def median(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "f":
        return np.sort(np.stack([a, b, c]), axis=0)[1]
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    low, high = minimum(minimum(a, b), c), maximum(maximum(a, b), c)
    middle = np.where(high == a, maximum(b, c), np.where(high == b, maximum(a, c), maximum(a, b)))
    return np.where(nan, low, middle)


def to_integer(x: np.ndarray, dtype: type) -> np.ndarray:
    """Truncates and saturates; NaN → 0."""
    info = np.iinfo(dtype)
    exact = np.trunc(np.nan_to_num(x.astype(np.longdouble), nan=0, posinf=info.max, neginf=info.min))
    return np.clip(exact, info.min, info.max).astype(dtype)


def saturated(x: np.ndarray, dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.clip(x, info.min, info.max).astype(dtype)


def field(x: np.ndarray, first: int, bits: int, signed: bool) -> np.ndarray:
    """Bits [first, first + bits) of u32 as i64."""
    value = (x.astype(np.int64) >> first) & ((1 << bits) - 1)
    return np.where(value >> bits - 1 & 1 == 1, value - (1 << bits), value) if signed else value
