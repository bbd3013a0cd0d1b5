# SPDX-License-Identifier: MIT
"""GLOBAL, FLAT and SCRATCH: addressing, widths, apertures, atomics and LDS-DMA, against models on arrays."""

import numpy as np
import pytest
from asm import LANES, run

RNG = np.random.default_rng(4)
LANE = np.arange(LANES, dtype=np.uint32)
SIZE = 4096
ADDRESS = "v_mov_b32_e32 v20, s11\nv_add_co_u32_e32 v20, vcc, s10, v0\nv_mov_b32_e32 v21, s11\n" \
          "v_addc_co_u32_e32 v21, vcc, 0, v21, vcc\n"


def _bytes(memory: np.ndarray, offset: np.ndarray, count: int) -> np.ndarray:
    return np.stack([memory[at:at + count] for at in np.asarray(offset, np.int64)])


def _memory() -> np.ndarray:
    return RNG.integers(0, 256, SIZE, dtype=np.uint8)


def _registers(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def _load(form: str, name: str, destination: str, offset: int) -> str:
    """The body that loads from buffer s[10:11] + v0 + offset in the given addressing form."""
    if form == "saddr":
        return f"global_load_{name} {destination}, v0, s[10:11] offset:{offset}\ns_waitcnt vmcnt(0)"
    space, tail = ("flat", "") if form == "flat" else ("global", ", off")
    return f"{ADDRESS}{space}_load_{name} {destination}, v[20:21]{tail} offset:{offset}\ns_waitcnt vmcnt(0) lgkmcnt(0)"


@pytest.mark.parametrize("form, offset", [("saddr", 24), ("saddr", -40), ("vaddr", -24), ("vaddr", 4), ("flat", 40)])
@pytest.mark.parametrize("dwords", [1, 2, 3, 4])
@pytest.mark.parametrize("pattern", ["consecutive", "scattered", "uniform", "unaligned"])
def test_wide_load(form, offset, dwords, pattern):
    at = {"consecutive": LANE * 4 * dwords, "scattered": RNG.permutation(LANES) * 16, "uniform": LANE * 0,
          "unaligned": LANE * 17}[pattern].astype(np.uint32) + 64
    memory, out = _memory(), _registers(4, dwords)
    name = "dword" if dwords == 1 else f"dwordx{dwords}"
    result = run(_load(form, name, out, offset), {"v0": at}, {out: np.uint32}, buffers={"s[10:11]": memory})
    expected = _bytes(memory, at.astype(np.int64) + offset, 4 * dwords).view(np.uint32)
    np.testing.assert_array_equal(result[out].reshape(LANES, dwords), expected)


@pytest.mark.parametrize("name, size, first", [
    ("byte", 1, 0), ("byte_d16_hi", 1, 2), ("short", 2, 0), ("short_d16_hi", 2, 2), ("dword", 4, 0),
    ("dwordx2", 8, 0), ("dwordx3", 12, 0), ("dwordx4", 16, 0)])
@pytest.mark.parametrize("form", ["saddr", "flat"])
@pytest.mark.parametrize("mask", [2**64 - 1, 0xf00f_0000_1234_8001])
def test_store(name, size, first, form, mask):
    dwords = max(size // 4, 1)
    data = RNG.integers(0, 2**32, (LANES, dwords), dtype=np.uint32)
    for at in (LANE * 16, RNG.permutation(LANES).astype(np.uint32) * 20 + 3):
        memory = _memory()
        expected = memory.copy()
        for lane in range(LANES):
            if mask >> lane & 1:
                expected[at[lane] + 9:at[lane] + 9 + size] = data[lane].view(np.uint8)[first:first + size]
        if form == "saddr":
            body = f"s_mov_b64 exec, s[12:13]\nglobal_store_{name} v0, {_registers(4, dwords)}, s[10:11] offset:9"
        else:
            body = f"{ADDRESS}s_mov_b64 exec, s[12:13]\nflat_store_{name} v[20:21], {_registers(4, dwords)} offset:9"
        inputs = {"v0": at.astype(np.uint32), _registers(4, dwords): data if dwords > 1 else data[:, 0],
                  "s[12:13]": mask}
        run(body, inputs, {}, buffers={"s[10:11]": memory})
        np.testing.assert_array_equal(memory, expected)


def test_inactive_lanes_keep_the_destination_and_may_hold_any_address():
    memory, old = _memory(), LANE + 1000
    at = np.where(LANE % 2, 0xdeadbeef, LANE * 4).astype(np.uint32)
    result = run("global_load_dwordx2 v[2:3], v0, s[10:11]\ns_waitcnt vmcnt(0)",
                 {"v0": at, "v2": old, "v3": old, "exec": 0x5555_5555_5555_5555}, ["v2"], buffers={"s[10:11]": memory})
    expected = old.copy()
    expected[::2] = _bytes(memory, at[::2], 4).view(np.uint32)[:, 0]
    np.testing.assert_array_equal(result["v2"], expected)


def test_f32_atomic_of_the_l2_flushes_denormals():
    memory = np.full(LANES, 1e-40, np.float32)
    run("global_atomic_add_f32 v0, v1, s[10:11]", {"v0": LANE * 4, "v1": np.full(LANES, 2e-40, np.float32)}, {},
        buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(memory, 0)


def test_colliding_atomics_all_count():
    memory = np.zeros(1, np.uint32)
    run("global_atomic_add v0, v1, s[10:11]", {"v0": LANE * 0, "v1": np.broadcast_to(LANE, (8, LANES))}, {},
        buffers={"s[10:11]": memory})
    assert memory[0] == 8 * LANE.sum()


def test_packed_bf16_atomic_rounds_to_nearest_even():
    one, small = 0x3f80, 0x3b80                      # 1 and 2^-8: a tie, which goes to the even mantissa
    memory, data = np.full(LANES, one << 16 | one, np.uint32), np.full(LANES, small << 16 | small, np.uint32)
    run("global_atomic_pk_add_bf16 v0, v1, s[10:11]", {"v0": LANE * 4, "v1": data}, {}, buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(memory, one << 16 | one)


def test_flat_goes_by_the_aperture_of_each_lane():
    """Lanes 0-31 address memory, 32-47 LDS, 48-63 scratch."""
    memory = RNG.integers(0, 2**32, LANES, dtype=np.uint32)
    body = """s_mov_b64 s[16:17], src_shared_base
      s_mov_b64 s[18:19], src_private_base
      ds_write_b32 v1, v2
      scratch_store_dword off, v3, off offset:8
      s_waitcnt vmcnt(0) lgkmcnt(0)
      v_mov_b32_e32 v4, s11
      v_add_co_u32_e32 v5, vcc, s10, v1
      v_addc_co_u32_e32 v4, vcc, 0, v4, vcc
      v_mov_b32_e32 v6, s17
      v_mov_b32_e32 v7, s19
      v_cndmask_b32_e64 v5, v5, v1, s[20:21]
      v_cndmask_b32_e64 v4, v4, v6, s[20:21]
      v_cndmask_b32_e64 v5, v5, v8, s[22:23]
      v_cndmask_b32_e64 v4, v4, v7, s[22:23]
      v_mov_b32_e32 v10, v5
      v_mov_b32_e32 v11, v4
      flat_load_dword v12, v[10:11]
      s_waitcnt vmcnt(0) lgkmcnt(0)
      v_add_u32_e32 v13, 1, v12
      flat_store_dword v[10:11], v13
      s_waitcnt vmcnt(0) lgkmcnt(0)
      ds_read_b32 v14, v1
      scratch_load_dword v15, off, off offset:8
      s_waitcnt vmcnt(0) lgkmcnt(0)"""
    start = memory.copy()
    inputs = {"v1": LANE * 4, "v2": LANE + 100, "v3": LANE + 200, "v8": np.full(LANES, 8, np.uint32),
              "s[20:21]": 0x0000_ffff_0000_0000, "s[22:23]": 0xffff_0000_0000_0000}
    result = run(body, inputs, ["v12", "v14", "v15"], buffers={"s[10:11]": memory}, lds_bytes=512, scratch_bytes=16)
    loaded = np.where(LANE < 32, start, np.where(LANE < 48, LANE + 100, LANE + 200))
    np.testing.assert_array_equal(result["v12"], loaded)
    np.testing.assert_array_equal(memory, start + (LANE < 32))
    np.testing.assert_array_equal(result["v14"], LANE + 100 + ((LANE >= 32) & (LANE < 48)))
    np.testing.assert_array_equal(result["v15"], LANE + 200 + (LANE >= 48))


@pytest.mark.parametrize("address", ["v1, off", "off, s20", "v1, s20", "off, off"])
def test_scratch_is_private_to_each_lane(address):
    vaddr, saddr = address.split(", ")
    body = f"""scratch_store_dwordx2 {vaddr}, v[2:3], {saddr} offset:16
      scratch_store_byte {vaddr}, v4, {saddr} offset:17
      s_waitcnt vmcnt(0)
      scratch_load_dwordx3 v[6:8], {address} offset:12
      s_waitcnt vmcnt(0)"""
    data = RNG.integers(0, 2**32, (LANES, 2), dtype=np.uint32)
    inputs = {"v1": LANE % 4 * 8, "s20": 8, "v[2:3]": data, "v4": LANE}
    result = run(body, inputs, {"v[6:8]": np.uint32}, scratch_bytes=128)
    expected = data.copy()
    expected.view(np.uint8).reshape(LANES, 8)[:, 1] = LANE
    np.testing.assert_array_equal(result["v[6:8]"][:, 1:], expected)


@pytest.mark.parametrize("name, kind", [("dword", np.uint32), ("ubyte", np.uint8), ("sbyte", np.int8),
                                        ("ushort", np.uint16), ("sshort", np.int16)])
def test_load_to_lds_adds_the_offset_on_both_sides(name, kind):
    memory, at = _memory(), RNG.permutation(LANES).astype(np.uint32) * 8
    mask = 0xffff_ffff_ffff_00ff
    body = f"""ds_write_b32 v2, v3
      ds_write_b32 v2, v3 offset:256
      s_waitcnt lgkmcnt(0)
      s_mov_b32 m0, 64
      s_mov_b64 exec, s[12:13]
      global_load_lds_{name} v0, s[10:11] offset:16
      s_waitcnt vmcnt(0)
      s_mov_b64 exec, -1
      ds_read_b32 v4, v2 offset:80"""
    result = run(f"{body}\ns_waitcnt lgkmcnt(0)",
                 {"v0": at, "v2": LANE * 4, "v3": np.full(LANES, 99, np.uint32), "s[12:13]": mask}, ["v4"],
                 buffers={"s[10:11]": memory}, lds_bytes=512)
    loaded = _bytes(memory, at + 16, np.dtype(kind).itemsize).view(kind)[:, 0].astype(np.int64).astype(np.uint32)
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(result["v4"], np.where(active, loaded, 99))


@pytest.mark.parametrize("name, kind", [("ubyte", np.uint8), ("sbyte", np.int8), ("ushort", np.uint16),
                                        ("sshort", np.int16), ("dword", np.uint32)])
@pytest.mark.parametrize("address, start", [("v0, off offset:16", 16), ("off, s14 offset:8", 20), ("off, off", 0)])
def test_scratch_to_lds(name, kind, address, start):
    """Every lane reads its own scratch; LDS gets a dword per lane at M0, the offset counts on both sides."""
    data = RNG.integers(0, 1 << 32, (LANES, 12), dtype=np.uint32)
    stores = "\n".join(f"scratch_store_dwordx4 off, v[{20 + 4 * k}:{23 + 4 * k}], off offset:{16 * k}"
                       for k in range(3))
    at = RNG.integers(0, 8, LANES).astype(np.uint32) * 4 if address.startswith("v0") else np.zeros(LANES, np.uint32)
    offset = int(address.split("offset:")[1]) if "offset" in address else 0
    body = f"""{stores}
      ds_write_b32 v2, v3
      s_waitcnt vmcnt(0) lgkmcnt(0)
      s_mov_b32 m0, 64
      s_nop 0
      s_mov_b64 exec, s[12:13]
      scratch_load_lds_{name} {address}
      s_waitcnt vmcnt(0)
      s_mov_b64 exec, -1
      ds_read_b32 v4, v2
      s_waitcnt lgkmcnt(0)"""
    mask = 0xffff_ffff_0000_00ff
    result = run(body, {"v0": at, "v2": LANE * 4 + 64 + offset, "v3": np.full(LANES, 99, np.uint32), "v[20:31]": data,
                        "s14": 12, "s[12:13]": mask}, ["v4"], lds_bytes=512, scratch_bytes=48)
    rows = data.view(np.uint8).reshape(LANES, 48)
    size = np.dtype(kind).itemsize
    loaded = np.stack([rows[lane, at[lane] + start:][:size] for lane in range(LANES)]).view(kind)[:, 0]
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(result["v4"], np.where(active, loaded.astype(np.int64).astype(np.uint32), 99))
