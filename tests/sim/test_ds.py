# SPDX-License-Identifier: MIT
"""DS instructions: LDS loads, stores, atomics and lane exchanges, against models on a byte array."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many

RNG = np.random.default_rng(3)
LDS_BYTES = 2048
LANE = np.arange(LANES, dtype=np.uint32)
FILL = RNG.integers(0, 256, LDS_BYTES, dtype=np.uint8)
# 32 bytes per lane; the body's own address register is v0.
FILL_ASM = "\n".join(["v_lshlrev_b32_e32 v200, 5, v201", "ds_write_b128 v200, v[202:205]",
                      "ds_write_b128 v200, v[206:209] offset:16", "s_waitcnt lgkmcnt(0)"])
DUMP_ASM = "\n".join(["s_mov_b64 exec, -1", "v_lshlrev_b32_e32 v200, 5, v201", "ds_read_b128 v[202:205], v200",
                      "ds_read_b128 v[206:209], v200 offset:16", "s_waitcnt lgkmcnt(0)"])


def _case(body: str, inputs: dict, outputs: dict, **options) -> Case:
    """`body` between filling all of LDS with FILL and reading it back."""
    inputs = {"v201": LANE, "v[202:209]": FILL.reshape(LANES, 32).view(np.uint32), **inputs}
    options = {"lds_bytes": LDS_BYTES, **options}
    return Case(f"{FILL_ASM}\n{body}\ns_waitcnt lgkmcnt(0)\n{DUMP_ASM}", inputs,
                {**outputs, "v[202:209]": np.uint32}, **options)


def _memory(result: dict) -> np.ndarray:
    return result["v[202:209]"].reshape(-1).view(np.uint8)


def _bytes_at(memory: np.ndarray, address: np.ndarray, count: int) -> np.ndarray:
    """[lanes, count] bytes; out of the allocation reads 0."""
    out = np.zeros((len(address), count), np.uint8)
    for lane, at in enumerate(np.asarray(address, np.int64)):
        if 0 <= at and at + count <= memory.size:
            out[lane] = memory[at:at + count]
    return out


LOADS = [("ds_read_u8", np.uint8, np.uint32), ("ds_read_i8", np.int8, np.int32), ("ds_read_u16", np.uint16, np.uint32),
         ("ds_read_i16", np.int16, np.int32)]


@pytest.mark.parametrize("name, narrow, wide", LOADS)
def test_narrow_load(name, narrow, wide):
    address = RNG.integers(0, LDS_BYTES - 64, LANES).astype(np.uint32)
    result = run_many([_case(f"{name} v1, v0 offset:37", {"v0": address}, {"v1": np.uint32})])[0]
    expected = _bytes_at(FILL, address + 37, np.dtype(narrow).itemsize).view(narrow)[:, 0].astype(wide).view(np.uint32)
    np.testing.assert_array_equal(result["v1"], expected)


@pytest.mark.parametrize("dwords", [1, 2, 3, 4])
@pytest.mark.parametrize("pattern", ["consecutive", "scattered", "uniform", "unaligned"])
def test_wide_load(dwords, pattern):
    size = 4 * dwords
    address = {"consecutive": LANE * size, "scattered": RNG.permutation(LANES).astype(np.uint32) * 16,
               "uniform": np.full(LANES, 64, np.uint32), "unaligned": LANE * 13}[pattern].astype(np.uint32)
    registers = f"v[4:{3 + dwords}]" if dwords > 1 else "v4"
    case = _case(f"ds_read_b{32 * dwords} {registers}, v0 offset:16", {"v0": address}, {registers: np.uint32})
    got = run_many([case])[0][registers].reshape(LANES, dwords)
    np.testing.assert_array_equal(got, _bytes_at(FILL, address + 16, size).view(np.uint32))


def test_load_may_overwrite_its_address():
    address = (LANE * 12).astype(np.uint32)
    result = run_many([_case("ds_read2_b32 v[0:1], v0 offset0:1 offset1:3", {"v0": address}, {"v[0:1]": np.uint32})])[0]
    np.testing.assert_array_equal(result["v[0:1]"][:, 0], _bytes_at(FILL, address + 4, 4).view(np.uint32)[:, 0])
    np.testing.assert_array_equal(result["v[0:1]"][:, 1], _bytes_at(FILL, address + 12, 4).view(np.uint32)[:, 0])


@pytest.mark.parametrize("name, half, signed", [
    ("ds_read_u8_d16", 0, False), ("ds_read_u8_d16_hi", 1, False), ("ds_read_i8_d16", 0, True),
    ("ds_read_i8_d16_hi", 1, True), ("ds_read_u16_d16", 0, None), ("ds_read_u16_d16_hi", 1, None)])
def test_d16_load_keeps_the_other_half(name, half, signed):
    address, old = RNG.integers(0, 2000, LANES).astype(np.uint32), RNG.integers(0, 2**32, LANES, dtype=np.uint32)
    result = run_many([_case(f"{name} v1, v0", {"v0": address, "v1": old}, {"v1": np.uint32})])[0]["v1"]
    kind = np.uint16 if signed is None else np.int8 if signed else np.uint8
    value = _bytes_at(FILL, address, np.dtype(kind).itemsize).view(kind)[:, 0].astype(np.int32).view(np.uint32) & 0xffff
    keep = old & (0xffff0000 if half == 0 else 0xffff)
    np.testing.assert_array_equal(result, keep | value << (16 * half))


@pytest.mark.parametrize("width, stride", [(32, 4), (64, 8), (32, 256), (64, 512)])
def test_two_address_forms(width, stride):
    count, infix = width // 32, "st64" if stride > 8 else ""
    base = (LANE * 2 * count * 4 % 512).astype(np.uint32)
    load = f"ds_read2{infix}_b{width} v[4:{3 + 2 * count}], v0 offset0:1 offset1:2"
    got = run_many([_case(load, {"v0": base}, {f"v[4:{3 + 2 * count}]": np.uint32})])[0][f"v[4:{3 + 2 * count}]"]
    expected = np.concatenate([_bytes_at(FILL, base + stride * k, 4 * count).view(np.uint32) for k in (1, 2)], axis=1)
    np.testing.assert_array_equal(got, expected)

    address = (LANE * 4 * count).astype(np.uint32)
    data = RNG.integers(0, 2**32, (2, LANES, count), dtype=np.uint32)
    registers = [f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}" for first in (4, 8)]
    shape = (LANES, count) if count > 1 else (LANES,)
    inputs = {"v0": address, registers[0]: data[0].reshape(shape), registers[1]: data[1].reshape(shape)}
    case = _case(f"ds_write2{infix}_b{width} v0, {registers[0]}, {registers[1]} offset0:0 offset1:2", inputs, {})
    memory = FILL.copy()
    for k, offset in enumerate((0, 2 * stride)):
        for lane in range(LANES):
            at = address[lane] + offset
            if at + 4 * count <= LDS_BYTES:
                memory[at:at + 4 * count] = data[k, lane].view(np.uint8)
    np.testing.assert_array_equal(_memory(run_many([case])[0]), memory)


@pytest.mark.parametrize("name, bytes_, first", [
    ("ds_write_b8", 1, 0), ("ds_write_b8_d16_hi", 1, 2), ("ds_write_b16", 2, 0), ("ds_write_b16_d16_hi", 2, 2),
    ("ds_write_b32", 4, 0), ("ds_write_b64", 8, 0), ("ds_write_b96", 12, 0), ("ds_write_b128", 16, 0)])
@pytest.mark.parametrize("mask", [2**64 - 1, 0x8421_ffff_0000_1357, 0])
def test_store_under_exec(name, bytes_, first, mask):
    dwords = max(bytes_ // 4, 1)
    registers = f"v[4:{3 + dwords}]" if dwords > 1 else "v4"
    data = RNG.integers(0, 2**32, (LANES, dwords), dtype=np.uint32)
    address = (RNG.permutation(LANES) * 24).astype(np.uint32)
    inputs = {"v0": address, registers: data if dwords > 1 else data[:, 0], "s[10:11]": mask}
    body = f"s_mov_b64 exec, s[10:11]\n{name} v0, {registers} offset:5"
    memory = FILL.copy()
    for lane in range(LANES):
        if mask >> lane & 1:
            at = address[lane] + 5
            memory[at:at + bytes_] = data[lane].view(np.uint8)[first:first + bytes_]
    np.testing.assert_array_equal(_memory(run_many([_case(body, inputs, {})])[0]), memory)


def test_out_of_the_allocation_reads_zero_and_drops_stores():
    address = (LANE * 64).astype(np.uint32)          # lanes 32-63 are beyond the 2048 bytes
    body = "ds_read_b64 v[2:3], v0\ns_waitcnt lgkmcnt(0)\nds_write_b32 v0, v4"
    result = run_many([_case(body, {"v0": address, "v4": LANE}, {"v[2:3]": np.uint32})])[0]
    np.testing.assert_array_equal(result["v[2:3]"], _bytes_at(FILL, address, 8).view(np.uint32))
    memory = FILL.copy()
    memory.view(np.uint32)[0:512:16] = LANE[:32]
    np.testing.assert_array_equal(_memory(result), memory)


def test_of_several_lanes_the_highest_wins():
    case = _case("ds_write_b32 v0, v1", {"v0": (LANE // 4 * 4).astype(np.uint32), "v1": LANE}, {})
    np.testing.assert_array_equal(_memory(run_many([case])[0])[:64].view(np.uint32), np.arange(3, 64, 4))


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def _integer_model(name: str, bits: int):
    """(old, data, data2) → new of one integer atomic."""
    top = (1 << bits) - 1
    return {
        "add": lambda old, d, _: old + d & top, "sub": lambda old, d, _: old - d & top,
        "rsub": lambda old, d, _: d - old & top, "inc": lambda old, d, _: 0 if old >= d else old + 1,
        "dec": lambda old, d, _: d if old == 0 or old > d else old - 1,
        "min_u": lambda old, d, _: min(old, d), "max_u": lambda old, d, _: max(old, d),
        "min_i": lambda old, d, _: min(old, d, key=lambda x: _signed(x, bits)),
        "max_i": lambda old, d, _: max(old, d, key=lambda x: _signed(x, bits)),
        "and": lambda old, d, _: old & d, "or": lambda old, d, _: old | d, "xor": lambda old, d, _: old ^ d,
        "mskor": lambda old, d, e: old & ~d & top | e, "cmpst": lambda old, d, e: e if old == d else old,
        "wrxchg": lambda old, d, _: d, "wrap": lambda old, d, e: old - d & top if old >= d else old + e & top,
    }[name]


ATOMICS = [(name, bits) for name in ("add_u", "sub_u", "rsub_u", "inc_u", "dec_u", "min_u", "max_u", "min_i", "max_i",
                                     "and_b", "or_b", "xor_b", "mskor_b", "cmpst_b", "wrxchg_b", "wrap_b")
           for bits in (32, 64) if (name, bits) != ("wrap_b", 64)]


@pytest.mark.parametrize("name, bits", ATOMICS)
def test_integer_atomic(name, bits):
    kind, words = np.dtype(f"u{bits // 8}"), bits // 32
    base, _, suffix = name.partition("_")
    model = _integer_model(name if base in ("min", "max") else base, bits)
    slots = LDS_BYTES // kind.itemsize
    address = (RNG.integers(0, 8, LANES) * 32).astype(np.uint32)           # collisions: lanes apply in order
    pool = FILL.view(kind)
    data, extra = RNG.choice(pool, LANES), RNG.choice(pool, LANES)
    data[::3] = RNG.integers(0, 2**bits, data[::3].size, dtype=kind)
    memory, old = FILL.copy().view(kind), np.zeros(LANES, kind)
    two = base in ("mskor", "cmpst", "wrap")
    for lane in range(LANES):
        slot = address[lane] // kind.itemsize % slots
        old[lane] = memory[slot]
        memory[slot] = model(int(memory[slot]), int(data[lane]), int(extra[lane]))
    register = (lambda first: f"v[{first}:{first + 1}]") if words == 2 else (lambda first: f"v{first}")
    sources = ", ".join([register(4), *([register(6)] if two else [])])
    inputs = {"v0": address, register(4): data, register(6): extra}
    cases = [_case(f"ds_{base}_rtn_{suffix}{bits} {register(8)}, v0, {sources}", inputs, {register(8): kind})]
    if base not in ("wrxchg", "wrap"):
        cases.append(_case(f"ds_{base}_{suffix}{bits} v0, {sources}", inputs, {}))
    results = run_many(cases)
    np.testing.assert_array_equal(results[0][register(8)], old)
    for result in results:
        np.testing.assert_array_equal(_memory(result), memory.view(np.uint8))


@pytest.mark.parametrize("name, kind", [("add", np.float32), ("min", np.float32), ("max", np.float32),
                                        ("add", np.float64), ("min", np.float64), ("max", np.float64)])
def test_float_atomic(name, kind):
    bits = np.dtype(kind).itemsize * 8
    start, data = RNG.standard_normal(LANES).astype(kind), RNG.standard_normal(LANES).astype(kind)
    data[3], start[4] = np.nan, np.nan
    operation = {"add": np.add, "min": np.fmin, "max": np.fmax}[name]
    register = (lambda first: f"v[{first}:{first + 1}]") if bits == 64 else (lambda first: f"v{first}")
    body = f"""ds_write_b{bits} v0, {register(2)}
      ds_{name}_rtn_f{bits} {register(6)}, v0, {register(4)}
      ds_read_b{bits} {register(8)}, v0
      s_waitcnt lgkmcnt(0)"""
    result = run(body, {"v0": LANE * (bits // 8), register(2): start, register(4): data},
                 {register(6): kind, register(8): kind}, lds_bytes=LDS_BYTES)
    np.testing.assert_array_equal(result[register(6)], start)
    np.testing.assert_array_equal(result[register(8)], operation(start, data))


def _bf16(x: np.ndarray) -> np.ndarray:
    """float32 → bf16 bits, nearest even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed_atomic(name):
    start, data = RNG.standard_normal((2, LANES, 2))
    if name == "f16":
        start, data = start.astype(np.float16), data.astype(np.float16)
        expected = start + data
    else:
        start, data = _bf16(start), _bf16(data)
        expected = _bf16(_from_bf16(start) + _from_bf16(data))
    body = f"ds_write_b32 v0, v1\nds_pk_add_{name} v0, v2\nds_read_b32 v3, v0\ns_waitcnt lgkmcnt(0)"
    words = [np.ascontiguousarray(x).view(np.uint32)[:, 0] for x in (start, data, expected)]
    result = run(body, {"v0": LANE * 4, "v1": words[0], "v2": words[1]}, ["v3"], lds_bytes=LDS_BYTES)
    np.testing.assert_array_equal(result["v3"], words[2])


@pytest.mark.parametrize("mask", [2**64 - 1, 0x00ff_3355_ffff_0001])
def test_lane_exchanges(mask):
    data = RNG.integers(0, 2**32, LANES, dtype=np.uint32)
    address = RNG.integers(0, 1024, LANES).astype(np.uint32)
    old = np.full(LANES, 7, np.uint32)
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    inputs = {"v0": address, "v1": data, "v2": old, "v3": old, "v4": old, "v5": old, "exec": mask}
    result = run("""ds_bpermute_b32 v2, v0, v1 offset:8
      ds_permute_b32 v3, v0, v1
      ds_swizzle_b32 v4, v1 offset:swizzle(QUAD_PERM,3,0,2,1)
      ds_swizzle_b32 v5, v1 offset:swizzle(BITMASK_PERM,"1p0ip")
      s_waitcnt lgkmcnt(0)""", inputs, ["v2", "v3", "v4", "v5"])
    source = (address + 8) // 4 % LANES
    quad = LANE // 4 * 4 + np.array([3, 0, 2, 1])[LANE % 4]
    bitmask = LANE // 32 * 32 + ((LANE % 32 & 0b01011 | 0b10000) ^ 0b00010)
    for name, lanes in (("v2", source), ("v4", quad), ("v5", bitmask)):
        expected = np.where(active, np.where(active[lanes], data[lanes], 0), old)
        np.testing.assert_array_equal(result[name], expected, err_msg=name)
    pushed = np.zeros(LANES, np.uint32)
    for lane in np.flatnonzero(active):
        pushed[address[lane] // 4 % LANES] = data[lane]
    np.testing.assert_array_equal(result["v3"], np.where(active, pushed, old))


def test_append_and_consume_count_active_lanes():
    body = """v_mov_b32_e32 v1, 100
      ds_write_b32 v0, v1
      s_mov_b64 exec, 0xff0f
      s_mov_b32 m0, 8
      ds_append v2 offset:4
      ds_consume v3 offset:4
      s_waitcnt lgkmcnt(0)"""
    result = run(body, {"v0": np.full(LANES, 12, np.uint32), "v2": LANE, "v3": LANE}, ["v2", "v3"], lds_bytes=64)
    active = np.array([0xff0f >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(result["v2"], np.where(active, 100, LANE))
    np.testing.assert_array_equal(result["v3"], np.where(active, 112, LANE))


def test_addtid_forms_use_m0():
    body = """s_mov_b32 m0, 64
      ds_write_addtid_b32 v1 offset:16
      ds_nop
      ds_read_addtid_b32 v2 offset:12
      s_waitcnt lgkmcnt(0)"""
    case = _case(body, {"v1": LANE + 5}, {"v2": np.uint32})
    result = run_many([case])[0]
    memory = FILL.copy()
    memory.view(np.uint32)[20:84] = LANE + 5
    np.testing.assert_array_equal(result["v2"], memory.view(np.uint32)[19:83])
    np.testing.assert_array_equal(_memory(result), memory)


@pytest.mark.parametrize("name, stride, bits", [("wrxchg2", 4, 32), ("wrxchg2st64", 256, 32), ("wrxchg2", 8, 64),
                                                ("wrxchg2st64", 512, 64)])
def test_two_exchanges(name, stride, bits):
    """Lane order within one exchange, and the second after the first; out of the allocation reads zero."""
    count, size, mask = bits // 32, bits // 8, 0xF0F0_FFFF_0000_1234
    address = RNG.integers(0, LDS_BYTES // 16, LANES).astype(np.uint32) * 8
    address[7] = LDS_BYTES
    data = RNG.integers(0, 1 << 32, (2, LANES, count), dtype=np.uint32)
    first, second, result = (f"v{at}" if count == 1 and at < 8 else f"v[{at}:{at + n * count - 1}]"
                             for at, n in ((4, 1), (6, 1), (8, 2)))
    body = f"s_mov_b64 exec, s[12:13]\nds_{name}_rtn_b{bits} {result}, v0, {first}, {second} offset0:1 offset1:3"
    old = RNG.integers(0, 1 << 32, (LANES, 2 * count), dtype=np.uint32)
    case = _case(body, {"v0": address, first: data[0], second: data[1], result: old, "s[12:13]": mask},
                 {result: np.uint32})
    got = run_many([case])[0]
    memory, wanted = FILL.copy(), old.copy()
    for k, offset in enumerate((1, 3)):
        for lane in np.flatnonzero(mask >> LANE.astype(np.uint64) & 1):
            at = int(address[lane]) + offset * stride
            inside = at + size <= LDS_BYTES
            part = slice(k * count, k * count + count)
            wanted[lane, part] = memory[at:at + size].view(np.uint32) if inside else 0
            if inside:
                memory[at:at + size] = data[k, lane].view(np.uint8)
    np.testing.assert_array_equal(got[result], wanted)
    np.testing.assert_array_equal(_memory(got), memory)
