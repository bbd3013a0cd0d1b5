# SPDX-License-Identifier: MIT
"""DS instructions: addresses, collisions, pairs and lane exchanges, against models on a byte array;
test_memory_forms.py runs every load, store and atomic."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from test_memory_forms import parse, updated

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


def test_out_of_the_allocation_reads_zero_and_drops_stores():
    address = (LANE * 64).astype(np.uint32)          # lanes 32-63 are beyond the 2048 bytes
    body = "ds_read_b64 v[2:3], v0\ns_waitcnt lgkmcnt(0)\nds_write_b32 v0, v4"
    result = run_many([_case(body, {"v0": address, "v4": LANE}, {"v[2:3]": np.uint32})])[0]
    np.testing.assert_array_equal(result["v[2:3]"], _bytes_at(FILL, address, 8).view(np.uint32))
    memory = FILL.copy()
    memory.view(np.uint32)[0:512:16] = LANE[:32]
    np.testing.assert_array_equal(_memory(result), memory)


@pytest.mark.parametrize("name", ["ds_add_rtn_u32", "ds_add_rtn_f32", "ds_inc_rtn_u64", "ds_wrxchg_rtn_b32",
                                  "ds_cmpst_rtn_b64", "ds_mskor_rtn_b32"])
def test_lanes_that_collide_apply_in_order(name):
    access = parse(name)
    address = (RNG.integers(0, 8, LANES) * 32).astype(np.uint32)
    data = RNG.choice(FILL.view(np.uint32), (LANES, access.data_dwords))
    memory, old = FILL.copy(), np.zeros((LANES, access.dwords), np.uint32)
    for lane, at in enumerate(address):
        item = memory[at:at + access.size]
        old[lane] = item.view(np.uint32)
        item[:] = updated(access, item[None], data[lane:lane + 1], in_l2=False)[0]
    first, second, result = (f"v[{at}:{at + access.dwords - 1}]" for at in (4, 4 + access.dwords, 8))
    sources = [first, second][:access.data_dwords // access.dwords]
    inputs = {"v0": address, f"v[4:{3 + access.data_dwords}]": data}
    got = run_many([_case(f"{name} {result}, v0, {', '.join(sources)}", inputs, {result: np.uint32})])[0]
    np.testing.assert_array_equal(got[result].reshape(LANES, -1), old)
    np.testing.assert_array_equal(_memory(got), memory)


def test_of_several_lanes_the_highest_wins():
    case = _case("ds_write_b32 v0, v1", {"v0": (LANE // 4 * 4).astype(np.uint32), "v1": LANE}, {})
    np.testing.assert_array_equal(_memory(run_many([case])[0])[:64].view(np.uint32), np.arange(3, 64, 4))


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
