# SPDX-License-Identifier: MIT
"""VOP3 for images and video against Python models: sums of absolute differences, cube faces, bytes; 2/pi segments."""

import math
from fractions import Fraction

import numpy as np
import pytest
from asm import run
from isa_model import GROUPS, LANES, Row, random_exec, unpack_mask, values

pytestmark = pytest.mark.filterwarnings("ignore:overflow")

# 2/pi as an integer scaled by 2^1201, from Machin's formula for pi.
_SCALE = 1 << 1500


def _arctan_of_inverse(n: int) -> int:
    total, power, k = 0, _SCALE // n, 0
    while power:
        total += (-1) ** k * (power // (2 * k + 1))
        power, k = power // (n * n), k + 1
    return total


TWO_OVER_PI = (2 * _SCALE << 1201) // (4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239)))


def lanes(function, dtype):
    """A model on Python numbers, lane by lane."""
    def model(*sources):
        flat = zip(*(source.ravel().tolist() for source in sources), strict=True)
        return np.array([function(*lane) for lane in flat], dtype).reshape(sources[0].shape)
    return model


def sad(a: int, b: int, masked: bool) -> int:
    pairs = zip(a.to_bytes(4, "little"), b.to_bytes(4, "little"), strict=True)
    return sum(abs(x - y) for x, y in pairs if y or not masked)


def quad(masked: bool, limit: bool):
    def model(a: int, b: int, c: int) -> int:
        sums = [sad(a >> 8 * n & 0xFFFFFFFF, b, masked) + (c >> 16 * n & 0xFFFF) for n in range(4)]
        return sum((min(x, 0xFFFF) if limit else x & 0xFFFF) << 16 * n for n, x in enumerate(sums))
    return lanes(model, np.uint64)


def cube_face(x: float, y: float, z: float) -> tuple[str, bool]:
    """The major axis, and whether the vector points to its negative side."""
    if abs(z) >= abs(x) and abs(z) >= abs(y):
        return "z", z < 0
    if abs(y) >= abs(x):
        return "y", y < 0
    return "x", x < 0


def cube_id(x, y, z):
    axis, negative = cube_face(x, y, z)
    return {"x": 0, "y": 2, "z": 4}[axis] + negative


def cube_s(x, y, z):
    return {("z", True): -x, ("z", False): x, ("y", True): x, ("y", False): x,
            ("x", True): z, ("x", False): -z}[cube_face(x, y, z)]


def cube_t(x, y, z):
    return {("z", True): -y, ("z", False): -y, ("y", True): -z, ("y", False): z,
            ("x", True): -y, ("x", False): -y}[cube_face(x, y, z)]


def cube_major(x, y, z):
    return 2 * {"x": x, "y": y, "z": z}[cube_face(x, y, z)[0]]


def byte(x: float, at: int, old: int) -> int:
    value = 0 if math.isnan(x) else round(min(max(x, 0), 255))         # round() is to nearest, ties to even
    shift = 8 * (at % 4)
    return old & ~(0xFF << shift) | value << shift


def trig_preop(x: float, segment: int) -> float:
    exponent = int(np.float64(x).view(np.uint64) >> np.uint64(52)) & 0x7FF
    shift = 53 * (segment % 32) + max(exponent - 1077, 0)
    bits = (TWO_OVER_PI << shift & (1 << 1201) - 1) >> 1201 - 53
    return math.ldexp(bits, -53 - shift + (128 if exponent >= 1968 else 0))


def near_bytes(x):
    """Values around 0 and 255 and halves, among others."""
    return np.where(np.arange(x.size).reshape(x.shape) % 3 == 0, x, np.round(np.nan_to_num(x) % 520 - 130) / 2)


def often_equal(x):
    """Few magnitudes, so that two axes are often as long."""
    return np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, x, np.sign(np.nan_to_num(x)) * (np.abs(x) > 1))


def few_segments(x):
    return x % 36


CUBE = dict(dst="f32", src="f32 f32 f32", ranges=(often_equal,) * 3)
ROWS = [
    Row("v_qsad_pk_u16_u8", "u64", "u64 u32 u64", quad(masked=False, limit=False)),
    Row("v_mqsad_pk_u16_u8", "u64", "u64 u32 u64", quad(masked=True, limit=False),
        ranges=(None, lambda b: b & 0xFF00FFFF, None)),
    Row("v_cubeid_f32", model=lanes(cube_id, np.float32), **CUBE),
    Row("v_cubesc_f32", model=lanes(cube_s, np.float32), **CUBE),
    Row("v_cubetc_f32", model=lanes(cube_t, np.float32), **CUBE),
    Row("v_cubema_f32", model=lanes(cube_major, np.float32), **CUBE),
    Row("v_cvt_pk_u8_f32", "u32", "f32 u32 u32", lanes(byte, np.uint32), ranges=(near_bytes, None, None)),
    Row("v_cvt_pkaccum_u8_f32", "u32", "f32 u32", lanes(byte, np.uint32), ranges=(near_bytes, None), reads_dst=True),
    Row("v_trig_preop_f64", "f64", "f64 u32", lanes(trig_preop, np.float64), ranges=(None, few_segments)),
]
CLAMPED = {"v_qsad_pk_u16_u8": quad(masked=False, limit=True), "v_mqsad_pk_u16_u8": quad(masked=True, limit=True)}


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_four_sums_of_32_bits(clamp, in_place):
    a, b, old = values("u64", 1), values("u32", 2) & np.uint32(0xFFFF00FF), values("u64", 5)
    c = np.stack([values("u32", 10 + n) for n in range(4)], axis=-1)
    mask = random_exec(7)
    dst = "v[8:11]" if in_place else "v[12:15]"
    before = c if in_place else np.stack([old.astype(np.uint32)] * 4, axis=-1)
    inputs = {"v[2:3]": a, "v4": b, "v[8:11]": c, dst: before, "exec": mask}
    got = run(f"v_mqsad_u32_u8 {dst}, v[2:3], v4, v[8:11]{' clamp' if clamp else ''}", inputs, {dst: np.uint32})[dst]
    wanted = before.copy()
    for group in range(GROUPS):
        for lane in np.flatnonzero(unpack_mask(mask)[group]):
            for n in range(4):
                window = int(a[group, lane]) >> 8 * n & 0xFFFFFFFF
                total = sad(window, int(b[group, lane]), True) + int(c[group, lane, n])
                wanted[group, lane, n] = min(total, 0xFFFFFFFF) if clamp else total & 0xFFFFFFFF
    np.testing.assert_array_equal(got, wanted)


def test_huge_arguments_reduce_to_the_right_angle():
    """The three segments of 2/pi that libm's reduction uses give sin's argument of numbers up to 2^1000."""
    x = np.array([1e22, 3.0**600, 2.0**1000, 1.5, 2.0**53 + 2] + [1.0] * (LANES - 5))
    got = run("\n".join(f"v_trig_preop_f64 v[{4 + 2 * n}:{5 + 2 * n}], v[0:1], {n}" for n in range(3)), {"v[0:1]": x},
              {f"v[{4 + 2 * n}:{5 + 2 * n}]": np.float64 for n in range(3)})
    for lane in range(5):
        number = int(2 * x[lane])
        scaled = sum(int(Fraction(got[f"v[{4 + 2 * n}:{5 + 2 * n}]"][lane]) * 2**1300) for n in range(3))
        if x[lane] >= 2.0**945:
            scaled >>= 128
        turns = number * scaled                                        # 2 x · 2/pi · 2^1300; whole multiples of 8 drop
        exact = number * (TWO_OVER_PI << 99)
        difference = (turns - exact) % (8 << 1300)
        assert min(difference, (8 << 1300) - difference) < 1 << 1300 - 90, x[lane]
