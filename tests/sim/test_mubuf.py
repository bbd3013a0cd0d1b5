# SPDX-License-Identifier: MIT
"""MUBUF: addressing and range checks of buffer descriptors, atomics, LDS-DMA, against a model on a byte array."""

import numpy as np
import pytest
from asm import LANES, run
from hip_runtime import HipError

RNG = np.random.default_rng(5)
LANE = np.arange(LANES, dtype=np.uint32)
SIZE = 8192
RAW = 0x00027000                                     # word 3 of a raw descriptor
# s[10:11] holds the buffer's address; s12 stride, s13 num_records, s14 soffset come from the test.
DESCRIPTOR = """s_mov_b32 s4, s10
  s_lshl_b32 s5, s12, 16
  s_and_b32 s15, s11, 0xffff
  s_or_b32 s5, s5, s15
  s_mov_b32 s6, s13
  s_mov_b32 s7, 0x27000
"""


def _memory() -> np.ndarray:
    return RNG.integers(0, 256, SIZE, dtype=np.uint8)


def _registers(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def _scalars(stride: int = 0, records: int = SIZE, soffset: int = 0) -> dict:
    return {"s12": stride, "s13": records, "s14": soffset}


def _load(memory: np.ndarray, start: np.ndarray, dwords: int, in_range) -> np.ndarray:
    """[lanes, dwords]; in_range(lane, dword) decides, the rest is 0."""
    out = np.zeros((LANES, dwords), np.uint32)
    for lane in range(LANES):
        for k in range(dwords):
            if in_range(lane, k):
                at = int(start[lane]) + 4 * k
                out[lane, k] = memory[at:at + 4].view(np.uint32)[0]
    return out


@pytest.mark.parametrize("form", ["off", "offen", "idxen", "both"])
@pytest.mark.parametrize("dwords", [1, 2, 3, 4])
@pytest.mark.parametrize("soffset", ["0", "s14"])
def test_load_addressing(form, dwords, soffset):
    memory = _memory()
    index, offset = RNG.permutation(LANES).astype(np.uint32), (LANE * 4 % 60).astype(np.uint32)
    stride = 64 if form in ("idxen", "both") else 0
    vaddr = {"off": "off", "offen": "v1", "idxen": "v0", "both": "v[0:1]"}[form]
    flags = {"off": "", "offen": "offen", "idxen": "idxen", "both": "idxen offen"}[form]
    out, name = _registers(4, dwords), "dword" + (f"x{dwords}" if dwords > 1 else "")
    body = f"{DESCRIPTOR}buffer_load_{name} {out}, {vaddr}, s[4:7], {soffset} {flags} offset:12\ns_waitcnt vmcnt(0)"
    result = run(body, {"v0": index, "v1": offset, **_scalars(stride, soffset=128)}, {out: np.uint32},
                 buffers={"s[10:11]": memory})
    start = 12 + (128 if soffset == "s14" else 0) + np.zeros(LANES, int)
    start += offset * (form in ("offen", "both")) + index * stride
    np.testing.assert_array_equal(result[out].reshape(LANES, dwords), _load(memory, start, dwords, lambda *_: True))


@pytest.mark.parametrize("dwords", [1, 2, 3, 4])
@pytest.mark.parametrize("soffset", [0, 36])
@pytest.mark.parametrize("records", [0, 3, 4, 250, 256, 1000])
def test_raw_range_counts_bytes_with_soffset_dword_by_dword(dwords, soffset, records):
    memory, at = _memory(), RNG.integers(0, 280, LANES).astype(np.uint32) * 4
    out, name = _registers(4, dwords), "dword" + (f"x{dwords}" if dwords > 1 else "")
    data = RNG.integers(0, 2**32, (LANES, dwords), dtype=np.uint32)
    inside = lambda lane, k: at[lane] + 20 + soffset + 4 * k + 4 <= records  # noqa: E731
    body = f"{DESCRIPTOR}buffer_load_{name} {out}, v1, s[4:7], s14 offen offset:20\ns_waitcnt vmcnt(0)"
    result = run(body, {"v1": at, **_scalars(records=records, soffset=soffset)}, {out: np.uint32},
                 buffers={"s[10:11]": memory})
    expected = _load(memory, at + 20 + soffset, dwords, inside)
    np.testing.assert_array_equal(result[out].reshape(LANES, dwords), expected)

    at = (RNG.permutation(280)[:LANES] * 16).astype(np.uint32)          # stores that do not overlap
    stored = memory.copy()
    for lane in range(LANES):
        for k in range(dwords):
            if inside(lane, k):
                begin = at[lane] + 20 + soffset + 4 * k
                stored[begin:begin + 4] = data[lane, k:k + 1].view(np.uint8)
    body = f"{DESCRIPTOR}buffer_store_{name} {out}, v1, s[4:7], s14 offen offset:20"
    run(body, {"v1": at, out: data if dwords > 1 else data[:, 0], **_scalars(records=records, soffset=soffset)}, {},
        buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(memory, stored)


def test_offset_sum_wraps_before_the_range_check():
    memory = _memory()
    at = np.where(LANE % 2, LANE * 4, 0xffff_fff0 + LANE % 3 * 4).astype(np.uint32)
    result = run(f"{DESCRIPTOR}buffer_load_dword v2, v1, s[4:7], 0 offen offset:64\ns_waitcnt vmcnt(0)",
                 {"v1": at, **_scalars(records=1024)}, ["v2"], buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(result["v2"], _load(memory, at + np.uint32(64), 1, lambda *_: True)[:, 0])


def test_structured_range_counts_records():
    memory, index = _memory(), RNG.integers(0, 100, LANES).astype(np.uint32)
    body = f"{DESCRIPTOR}buffer_load_dwordx2 v[2:3], v0, s[4:7], 0 idxen offset:8\ns_waitcnt vmcnt(0)"
    result = run(body, {"v0": index, **_scalars(stride=48, records=60)}, {"v[2:3]": np.uint32},
                 buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(result["v[2:3]"], _load(memory, index * 48 + 8, 2, lambda lane, _: index[lane] < 60))


@pytest.mark.parametrize("name, kind", [("ubyte", np.uint8), ("sbyte", np.int8), ("ushort", np.uint16),
                                        ("sshort", np.int16)])
def test_narrow_load_at_the_end(name, kind):
    memory, size = _memory(), np.dtype(kind).itemsize
    at = (LANE + 70).astype(np.uint32)
    result = run(f"{DESCRIPTOR}buffer_load_{name} v2, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)",
                 {"v1": at, **_scalars(records=101)}, ["v2"], buffers={"s[10:11]": memory})
    values = np.stack([memory[a:a + size] for a in at]).view(kind)[:, 0].astype(np.int64).astype(np.uint32)
    np.testing.assert_array_equal(result["v2"], np.where(at + size <= 101, values, 0))


def test_atomic_returns_into_its_data_register_and_is_dropped_out_of_range():
    memory = RNG.integers(0, 2**32, LANES, dtype=np.uint32)
    start, data = memory.copy(), RNG.integers(0, 2**32, LANES, dtype=np.uint32)
    body = f"{DESCRIPTOR}buffer_atomic_add v2, v1, s[4:7], 0 offen sc0\ns_waitcnt vmcnt(0)"
    result = run(body, {"v1": LANE * 4, "v2": data, **_scalars(records=160)}, ["v2"], buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(result["v2"], np.where(LANE < 40, start, 0))
    np.testing.assert_array_equal(memory, np.where(LANE < 40, start + data, start))


@pytest.mark.parametrize("name, kind", [("dword", np.uint32), ("ubyte", np.uint8), ("sbyte", np.int8),
                                        ("ushort", np.uint16), ("sshort", np.int16)])
@pytest.mark.parametrize("mask", [2**64 - 1, 0x0fff_ffff_ffff_ff01])
def test_load_to_lds(mask, name, kind):
    memory, at = _memory(), RNG.permutation(LANES).astype(np.uint32) * 16
    body = f"""{DESCRIPTOR}ds_write_b32 v2, v3
      ds_write_b32 v2, v3 offset:256
      s_waitcnt lgkmcnt(0)
      s_mov_b32 m0, 32
      s_mov_b64 exec, s[16:17]
      buffer_load_{name} v1, s[4:7], 0 offen offset:8 lds
      s_waitcnt vmcnt(0)
      s_mov_b64 exec, -1
      ds_read_b32 v4, v2 offset:40
      s_waitcnt lgkmcnt(0)"""
    inputs = {"v1": at, "v2": LANE * 4, "v3": np.full(LANES, 99, np.uint32), "s[16:17]": mask, **_scalars(records=700)}
    result = run(body, inputs, ["v4"], buffers={"s[10:11]": memory}, lds_bytes=512)
    size = np.dtype(kind).itemsize
    items = np.stack([memory[place:place + size] for place in at + 8]).view(kind)[:, 0].astype(np.int64)
    loaded = np.where(at + 8 + size <= 700, items.astype(np.uint32), 0)
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(result["v4"], np.where(active, loaded, 99))


def test_cache_instructions_do_nothing():
    result = run("buffer_wbl2 sc1\nbuffer_inv sc0 sc1\ns_waitcnt vmcnt(0)", {"v0": LANE}, ["v0"])
    np.testing.assert_array_equal(result["v0"], LANE)


@pytest.mark.parametrize("register, bits, text", [("s5", 1 << 31, "swizzled"), ("s7", 1 << 23, "ADD_TID_ENABLE"),
                                                  ("s7", 1 << 30, "type field")])
def test_descriptors_that_are_not_supported_stop_the_launch(register, bits, text):
    body = f"{DESCRIPTOR}s_or_b32 {register}, {register}, {bits:#x}\nbuffer_load_dword v2, v1, s[4:7], 0 offen"
    with pytest.raises(HipError, match=text):
        run(body, {"v1": LANE, **_scalars()}, {}, buffers={"s[10:11]": _memory()})
