# SPDX-License-Identifier: MIT
"""Typed buffers against a model: every data and number format, components, d16, DST_SEL, ranges, what is refused."""

import itertools

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from hip_runtime import HipError
from isa_model import canonical, table_names

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")
LANE = np.arange(LANES)
# Data format → bits of X, Y, Z, W, from the lowest bit up.
LAYOUTS = {1: (8,), 2: (16,), 3: (8, 8), 4: (32,), 5: (16, 16), 6: (11, 11, 10), 7: (10, 11, 11), 8: (2, 10, 10, 10),
           9: (10, 10, 10, 2), 10: (8, 8, 8, 8), 11: (32, 32), 12: (16, 16, 16, 16), 13: (32, 32, 32),
           14: (32, 32, 32, 32)}
UNORM, SNORM, USCALED, SSCALED, UINT, SINT, _, FLOAT = range(8)
XYZW = 4 | 5 << 3 | 6 << 6 | 7 << 9


def exists(data: int, number: int) -> bool:
    wide = LAYOUTS[data][0] == 32
    if number == FLOAT:
        return wide or LAYOUTS[data][0] == 16 or data in (6, 7)
    return number != 6 and (not wide or number in (UINT, SINT))


FORMATS = [(data, number) for data, number in itertools.product(LAYOUTS, range(8)) if exists(data, number)]
NARROW = [(data, number) for data, number in FORMATS if LAYOUTS[data][0] != 32]
STORED = [(data, number) for data, number in FORMATS if number not in (USCALED, SSCALED)
          and not (number == FLOAT and data in (6, 7))]


def size_of(data: int) -> int:
    return sum(LAYOUTS[data]) // 8


def small_float(raw: int, bits: int) -> float:
    """Unsigned, 5 bits of exponent."""
    mantissa_bits = bits - 5
    exponent, mantissa = raw >> mantissa_bits, raw & (1 << mantissa_bits) - 1
    if exponent == 31:
        return np.nan if mantissa else np.inf
    scale = 2.0 ** (max(exponent, 1) - 15)
    return scale * (mantissa / (1 << mantissa_bits) + (exponent > 0))


def component(raw: int, bits: int, number: int):
    """A float, or an int for the integer formats."""
    signed = raw - (1 << bits) if raw >> bits - 1 else raw
    if number == FLOAT:
        if bits in (16, 32):
            return float(np.array(raw, f"u{bits // 8}").view(f"f{bits // 8}"))
        return small_float(raw, bits)
    return {UNORM: raw / ((1 << bits) - 1), SNORM: max(signed / ((1 << bits - 1) - 1), -1.0), USCALED: float(raw),
            SSCALED: float(signed), UINT: raw, SINT: signed}[number]


def texel(item: bytes, data: int, number: int) -> list:
    """X, Y, Z, W; what the format lacks is 0, 0, 0, 1."""
    word, made = int.from_bytes(item, "little"), []
    for bits in LAYOUTS[data]:
        made.append(component(word & (1 << bits) - 1, bits, number))
        word >>= bits
    return made + [0, 0, 0, 1][len(made):]


def registers(values: np.ndarray, number: int, half: bool) -> np.ndarray:
    """[lanes, components] → u32 [lanes, rows]; d16 packs two of them."""
    if number in (UINT, SINT):
        bits = np.array([[int(x) & 0xFFFFFFFF for x in row] for row in values], np.uint32)
        bits = bits.astype(np.uint16) if half else bits
    else:
        with np.errstate(over="ignore"):
            bits = values.astype(np.float32)
            bits = bits.astype(np.float16) if half else bits
        bits = canonical(bits)
    if half:
        bits = np.pad(bits, ((0, 0), (0, bits.shape[1] % 2)))
        return np.ascontiguousarray(bits).view(np.uint32)
    return bits


def canonical_registers(got: np.ndarray, number: int, half: bool) -> np.ndarray:
    if number in (UINT, SINT):
        return got
    return canonical(np.ascontiguousarray(got).view(np.float16 if half else np.float32)).view(np.uint32)


def descriptor(data: int = 0, number: int = 0, select: int = XYZW, stride: int = 16, records: int = LANES) -> str:
    return (f"s_mov_b32 s4, s10\ns_and_b32 s5, s11, 0xffff\ns_or_b32 s5, s5, {stride << 16:#x}\n"
            f"s_mov_b32 s6, {records}\ns_mov_b32 s7, {select | number << 12 | data << 15:#x}\n")


def vector(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def prefix(typed: bool, action: str) -> str:
    return f"{'t' * typed}buffer_{action}_format"


def tail(typed: bool, data: int, number: int) -> str:
    return f"format:{data | number << 4} idxen" if typed else "idxen"


def random_memory(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, LANES * 16, dtype=np.uint8)
    edges = np.array([0, 0x80, 0xFF, 0x7F, 0x01, 0x7C, 0x3C], np.uint8)
    return np.where(rng.random(memory.size) < 0.3, rng.choice(edges, memory.size), memory)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_loads(typed, half):
    index = np.random.default_rng(1).permutation(LANES)
    names = ["x", "xy", "xyz", "xyzw"]
    formats = NARROW if half else FORMATS
    memory = [random_memory(at) for at in range(len(formats))]
    cases = []
    for at, (data, number) in enumerate(formats):
        lines = [descriptor(0 if typed else data, 0 if typed else number)]
        for count, name in enumerate(names, 1):
            rows = (count + 1) // 2 if half else count
            lines.append(f"{prefix(typed, 'load')}_{'d16_' * half}{name} {vector(8 + 4 * count, rows)}, v0, s[4:7], 0 "
                         f"{tail(typed, data, number)}")
        inputs = {"v0": index.astype(np.uint32), **{f"v{12 + k}": np.zeros(LANES, np.uint32) for k in range(16)}}
        cases.append(Case("\n".join([*lines, "s_waitcnt vmcnt(0)"]), inputs, {"v[12:27]": np.uint32},
                          buffers={"s[10:11]": memory[at]}))
    for (data, number), held, result in zip(formats, memory, run_many(cases), strict=True):
        size = size_of(data)
        texels = [texel(held[16 * k:16 * k + size].tobytes(), data, number) for k in index]
        values = np.array(texels, object if number in (UINT, SINT) else np.float64)
        for count in range(1, 5):
            wanted = registers(values[:, :count], number, half)
            got = result["v[12:27]"][:, 4 * count - 4:4 * count - 4 + wanted.shape[1]]
            np.testing.assert_array_equal(canonical_registers(got, number, half), wanted, f"{data} {number} x{count}")


def stored_values(data: int, number: int, half: bool, rng: np.random.Generator) -> np.ndarray:
    """[lanes, components]: within what the format holds, and what saturates."""
    bits = LAYOUTS[data]
    if number in (UINT, SINT):
        limits = [min(b, 16) if half else b for b in bits]
        return np.array([[int(rng.integers(0, 1 << b)) - ((1 << b - 1) if number == SINT else 0) for b in limits]
                         for _ in LANE], object)
    x = rng.uniform(-1.3, 1.3, (LANES, len(bits))) * (1 if number != FLOAT else 100)
    x[:4] = [[0.0], [-0.0], [1.0], [np.inf]]
    return x.astype(np.float16 if half else np.float32)


def stored_bytes(row: np.ndarray, data: int, number: int) -> bytes:
    word, first = 0, 0
    for x, bits in zip(row, LAYOUTS[data], strict=True):
        if number in (UINT, SINT):
            raw = int(x) & (1 << bits) - 1
        elif number == FLOAT:
            with np.errstate(over="ignore"):
                raw = int(np.array(x, f"f{bits // 8}").view(f"u{bits // 8}"))
        else:
            low, top = (0.0, (1 << bits) - 1) if number == UNORM else (-1.0, (1 << bits - 1) - 1)
            raw = int(np.rint(min(max(float(x), low), 1.0) * top)) & (1 << bits) - 1
        word, first = word | raw << first, first + bits
    return word.to_bytes(size_of(data), "little")


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_stores(typed, half):
    rng, mask = np.random.default_rng(2), 0xF00FFFFF12345678
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    names = ["x", "xy", "xyz", "xyzw"]
    formats = [f for f in STORED if not half or f in NARROW]
    prepared = []
    for data, number in formats:
        count, values = len(LAYOUTS[data]), stored_values(data, number, half, rng)
        memory, rows = random_memory(data), registers(values, number, half)
        name = f"{prefix(typed, 'store')}_{'d16_' * half}{names[count - 1]}"
        body = (descriptor(0 if typed else data, 0 if typed else number) + "s_mov_b64 exec, s[12:13]\n"
                f"{name} {vector(12, rows.shape[1])}, v0, s[4:7], 0 {tail(typed, data, number)} offset:0")
        inputs = {"v0": LANE.astype(np.uint32), "s[12:13]": mask}
        inputs |= {f"v{12 + k}": rows[:, k] for k in range(rows.shape[1])}
        wanted = memory.copy()
        for lane in np.flatnonzero(active):
            item = np.frombuffer(stored_bytes(values[lane], data, number), np.uint8)
            wanted[16 * lane:16 * lane + item.size] = item
        prepared.append((data, number, Case(body, inputs, {}, buffers={"s[10:11]": memory}), memory, wanted))
    run_many([case for *_, case, _, _ in prepared])
    for data, number, _, memory, wanted in prepared:
        np.testing.assert_array_equal(memory, wanted, f"{data} {number}")


def test_the_high_half():
    memory, old = random_memory(5), np.random.default_rng(6).integers(0, 1 << 32, LANES, dtype=np.uint32)
    result = run(descriptor(2, UINT) + "buffer_load_format_d16_hi_x v2, v0, s[4:7], 0 idxen\n"
                 "buffer_store_format_d16_hi_x v3, v0, s[4:7], 0 idxen offset:8\ns_waitcnt vmcnt(0)",
                 {"v0": LANE.astype(np.uint32), "v2": old, "v3": old}, ["v2"], buffers={"s[10:11]": memory})
    halves = memory.view(np.uint16).reshape(LANES, 8)
    np.testing.assert_array_equal(result["v2"], old & 0xFFFF | halves[:, 0].astype(np.uint32) << 16)
    np.testing.assert_array_equal(halves[:, 4], old >> 16)


def test_the_descriptor_selects_components():
    """W, 1, 0, X of four bytes."""
    memory = random_memory(7)
    select = 7 | 1 << 3 | 0 << 6 | 4 << 9
    text = "buffer_load_format_xyzw v[4:7], v0, s[4:7], 0 idxen\ns_waitcnt vmcnt(0)"
    result = run(descriptor(10, UINT, select) + text, {"v0": LANE.astype(np.uint32)}, {"v[4:7]": np.uint32},
                 buffers={"s[10:11]": memory})
    item = memory.reshape(LANES, 16).astype(np.uint32)
    wanted = np.stack([item[:, 3], np.ones(LANES), np.zeros(LANES), item[:, 0]], -1)
    np.testing.assert_array_equal(result["v[4:7]"], wanted)


def test_an_item_is_in_range_as_a_whole():
    """Raw: bytes count, and an item that begins in range but ends outside reads zeros and is not written."""
    memory = random_memory(8)
    before, at = memory.copy(), LANE.astype(np.uint32) * 12
    body = (descriptor(stride=0, records=400) +
            "tbuffer_load_format_xy v[4:5], v0, s[4:7], 0 format:75 offen offset:4\n"
            "tbuffer_store_format_xy v[6:7], v0, s[4:7], 0 format:75 offen\ns_waitcnt vmcnt(0)")
    data = np.random.default_rng(9).integers(0, 1 << 32, (LANES, 2), dtype=np.uint32)
    result = run(body, {"v0": at, "v[6:7]": data}, {"v[4:5]": np.uint32}, buffers={"s[10:11]": memory})
    for lane in range(LANES):
        start = int(at[lane])
        inside = start + 12 <= 400
        loaded = before[start + 4:start + 12].view(np.uint32) if inside else [0, 0]
        np.testing.assert_array_equal(result["v[4:5]"][lane], loaded)
        if start + 8 <= 400:
            before[start:start + 8] = data[lane].view(np.uint8)
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("text, reason", [
    ("tbuffer_load_format_x v2, off, s[4:7], 0 format:0", "data format 0"),
    ("tbuffer_load_format_x v2, off, s[4:7], 0 format:4", "no number format 0"),
    ("tbuffer_load_format_x v2, off, s[4:7], 0 format:97", "no number format 6"),
    ("tbuffer_load_format_d16_x v2, off, s[4:7], 0 format:116", "d16 with 32-bit components"),
    ("tbuffer_store_format_x v2, off, s[4:7], 0 format:3", "fewer components"),
    ("tbuffer_store_format_x v2, off, s[4:7], 0 format:34", "scaled formats"),
    ("tbuffer_store_format_x v2, off, s[4:7], 0 format:65", "cannot hold"),
    ("tbuffer_store_format_x v2, off, s[4:7], 0 format:81", "cannot hold"),
    ("buffer_load_format_x v2, off, s[4:7], 0", "data format 0"),
])
def test_what_is_not_defined_is_refused(text, reason):
    with pytest.raises(HipError, match=reason):
        run(descriptor(stride=0, records=64) + text, {"v2": 300}, [], buffers={"s[10:11]": random_memory(1)})


def test_every_row_is_tested():
    names = ("x", "xy", "xyz", "xyzw")
    tested = {f"{prefix(typed, action)}_{d16}{name}" for typed in (False, True) for action in ("load", "store")
              for d16 in ("", "d16_") for name in names}
    tested |= {"buffer_load_format_d16_hi_x", "buffer_store_format_d16_hi_x"}
    assert tested == table_names("mtbuf")
