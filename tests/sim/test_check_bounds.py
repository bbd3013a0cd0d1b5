# SPDX-License-Identifier: MIT
"""The bounds checker: accesses outside allocations, LDS and scratch, to read-only and to freed memory."""

import ctypes
import re

import numpy as np
import pytest
from asm import run
from checking import hip_reports, only, reports
from hip_runtime import runtime

from aiter_like import sim

LANE = np.arange(64, dtype=np.uint32)


def _reports(body: str, size: int = 256, inputs: dict | None = None, **options) -> list[dict]:
    inputs = {"v0": LANE * 4, "v5": LANE, **(inputs or {})}
    return reports(f"{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)", inputs, ("bounds",),
                   buffers={"s[10:11]": np.zeros(size, np.uint8)}, **options)


@pytest.mark.parametrize("access, verb", [
    ("global_load_dword v1, v0, s[10:11]", "loads"), ("global_store_dword v0, v5, s[10:11]", "stores"),
    ("global_atomic_add v0, v5, s[10:11]", "updates")])
def test_lanes_past_the_end(access, verb):
    assert not _reports(access, 256)
    report = only(_reports(access, 252), "bounds", re.escape(access), verb, "4 bytes in lane 63", "past the end of",
                  "252 bytes", "fix: mask")
    assert report["lanes"] == 1 << 63


def test_access_that_straddles_the_end():
    only(_reports("global_load_dwordx4 v[8:11], v1, s[10:11]", 1024, {"v1": LANE * 16 + 8}), "bounds",
         "global_load_dwordx4 .*", "lane 63", "runs 8 bytes past its end")


def test_address_before_the_allocation():
    report = only(_reports("global_load_dword v1, v0, s[10:11] offset:-8"), "bounds", "global_load_dword .*",
                  "8 bytes before")
    assert report["lanes"] == 0b11


def test_reported_lanes_read_zero_and_their_stores_are_dropped():
    with sim.enabled(checks=("bounds",), on_report="collect"):
        memory = np.full(32, 7, np.uint32)
        result = run("global_load_dword v1, v0, s[10:11]\nglobal_store_dword v0, v5, s[10:11]\ns_waitcnt vmcnt(0)",
                     {"v0": LANE * 4, "v5": LANE}, ["v1"], buffers={"s[10:11]": memory})
    np.testing.assert_array_equal(result["v1"], np.where(LANE < 32, 7, 0))
    np.testing.assert_array_equal(memory, LANE[:32])


def test_wild_pointer():
    found = _reports("global_load_dword v1, v[2:3], off", inputs={"v2": LANE * 0 + 0x1000, "v3": LANE * 0 + 0x77})
    only(found, "bounds", "global_load_dword .*", "no known allocation")


def test_inactive_lanes_are_not_checked():
    assert not _reports("s_mov_b64 exec, 0xff\nglobal_load_dword v1, v0, s[10:11]", 32)


def test_lds_beyond_the_workgroups_allocation():
    only(_reports("ds_read_b64 v[2:3], v0 offset:264", lds_bytes=512), "bounds", "ds_read_b64 .*", "8 bytes in lane 61",
         "LDS beyond", "512 bytes", "byte 508")
    assert not _reports("ds_read_b64 v[2:3], v0 offset:252", lds_bytes=512)


def test_scratch_beyond_the_lanes_allocation():
    only(_reports("scratch_store_dword v0, v5, off", scratch_bytes=64), "bounds", "scratch_store_dword .*", "lane 16",
         "scratch beyond", "byte 64")
    assert not _reports("scratch_store_dword off, v5, off offset:60", scratch_bytes=64)


_NARROW = """
global_load_dword v3, v0, s[10:11]
s_waitcnt vmcnt(0)
v_add_u32 v2, 1, v3
global_atomic_cmpswap v4, v0, v[2:3], s[10:11] sc0"""


def test_atomics_of_16_bits_touch_the_dword_around_them():
    one = "s_mov_b64 exec, 1\n"
    assert not _reports(one + _NARROW, 2)
    assert not _reports(f"{one}v_add_u32 v0, 4, v0{_NARROW}", 6)
    found = _reports(_NARROW, 128)  # 64 values: the 33rd dword begins past their end
    assert [report["lanes"] for report in found] == [0xFFFFFFFF << 32] * 2 and "past the end of" in found[0]["message"]


@pytest.mark.parametrize("body", [
    "global_load_dword v3, v0, s[10:11]", "global_store_dword v0, v5, s[10:11]", "global_atomic_add v0, v5, s[10:11]",
    _NARROW.replace("v3, v0", "v3, v5")])
def test_what_is_no_atomic_of_16_bits_ends_where_its_memory_ends(body):
    """The last one loads a dword at another address register than the compare-and-swap's."""
    found = _reports(f"s_mov_b64 exec, 1\n{body}", 2)
    assert len(found) == 1 and "runs 2 bytes past its end" in found[0]["message"]


def test_a_scalar_load_may_be_that_of_a_narrow_value():
    for size in (1, 2, 3):
        assert not _reports("s_load_dword s20, s[10:11], 0x4", 4 + size)
    only(_reports("s_load_dword s20, s[10:11], 0x4", 4), "bounds", "s_load_dword .*", "past the end")


def test_scalar_load():
    only(_reports("s_load_dwordx2 s[20:21], s[10:11], 0x200"), "bounds", r"s_load_dwordx2 s\[20:21\].*", "past the end")
    assert not _reports("s_load_dwordx4 s[20:23], s[10:11], 0xf0")


def test_buffer_descriptor_longer_than_its_tensor():
    body = """s_mov_b32 s4, s10
      s_and_b32 s5, s11, 0xffff
      s_mov_b32 s6, s12
      s_mov_b32 s7, 0x27000
      buffer_load_dword v1, v0, s[4:7], 0 offen"""
    assert not _reports(body, 128, {"s12": 128})                   # the descriptor clamps: that is what it is for
    only(_reports(body, 128, {"s12": 256}), "bounds", "buffer_load_dword .*", "lane 32", "past the end")


def test_a_range_that_only_soffset_clamps_is_named():
    body = """s_mov_b32 s4, s10
      s_and_b32 s5, s11, 0xffff
      s_mov_b32 s6, 128
      s_mov_b32 s7, 0x27000
      s_mov_b32 s8, 64
      buffer_load_dword v1, v0, s[4:7], s8 offen"""
    report = only(_reports(body, 128), "bounds", "buffer_load_dword .*", "soffset")
    assert report["lanes"] == 0xffff0000


HIP = """
__global__ void copy(const float* in, float* out, int n) {
  int i = workgroup_index().x * 64 + thread_index();
  if (i <%s n) out[i] = in[i];
}
extern "C" void launch(int groups, int block, float* in, float* out) {
  copy<<<groups, block, 0, nullptr>>>(in, out, 100);
}
"""


def test_off_by_one_in_a_compiled_kernel():
    arrays = [np.arange(101, dtype=np.float32)[:100], np.zeros(100, np.float32)]
    found = hip_reports(HIP % "=", arrays, 64, groups=2, read_only=[0])
    assert {report["check"] for report in found} == {"bounds"} and len(found) == 2
    load, store = found
    assert load["text"].startswith("global_load") and "`array0` (400 bytes)" in load["message"]
    assert store["text"].startswith("global_store") and "`array1`" in store["message"]
    assert load["workgroup"] == [1, 0, 0] and load["lanes"] == 1 << 36
    assert not hip_reports(HIP % "", arrays, 64, groups=2, read_only=[0])


def test_write_to_a_read_only_tensor():
    arrays = [np.arange(100, dtype=np.float32), np.zeros(100, np.float32)]
    only(hip_reports(HIP % "", arrays, 64, groups=2, read_only=[0, 1]), "bounds", "global_store.*", "`array1` + 0",
         "read-only", "fix: pass it as an output")


def test_use_after_free():
    hip, pointer = runtime(), ctypes.c_void_p()
    hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(256))
    store = lambda: _reports("global_store_dword v0, v5, s[4:5]", inputs={"s[4:5]": pointer.value})  # noqa: E731
    assert not store()
    hip.call("hipFree", pointer)
    only(store(), "bounds", "global_store_dword .*", "has been freed", "fix: free after")
