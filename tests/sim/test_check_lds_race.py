# SPDX-License-Identifier: MIT
"""The LDS race checker: accesses of different waves with no barrier between, and what must not be called a race."""

import numpy as np
import pytest
from checking import among, hip_reports, listing, only, reports

LANE = np.arange(128, dtype=np.uint32)
INPUTS = {"v0": LANE * 4, "v2": LANE[::-1] * 4, "v4": LANE % 64 * 4, "v5": LANE, "v6": LANE // 64}
SYNC = "s_waitcnt lgkmcnt(0)\ns_barrier"
RACE = ("wait", "lds_race")                          # without a barrier LDS is often also read before it is written


def _reports(body: str, inputs: dict | None = None, **options) -> list[dict]:
    body = f"v_readfirstlane_b32 s24, v6\n{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)"
    return reports(body, {**INPUTS, **(inputs or {})}, RACE, waves=2, lds_bytes=1024, **options)


def _in_wave(wave: int, body: str) -> str:
    label = 10 + wave
    return f"s_cmp_lg_u32 s24, {wave}\ns_cbranch_scc1 {label}f\n{body}\n{label}:\n"


READ_AFTER_WRITE = "ds_write_b32 v0, v5\n{sync}\nds_read_b32 v1, v2"
WRITE_AFTER_READ = f"ds_write_b32 v0, v5\n{SYNC}\nds_read_b32 v1, v2\n{{sync}}\nds_write_b32 v0, v2"
MIXED = _in_wave(0, "ds_add_u32 v4, v5") + "{sync}\n" + _in_wave(1, "ds_write_b32 v4, v5")


@pytest.mark.parametrize("body, offender, producer", [
    (READ_AFTER_WRITE, "ds_read_b32 v1, v2", "ds_write_b32 v0, v5"),
    (READ_AFTER_WRITE.replace("ds_read_b32 v1", "ds_read_u8 v1"), "ds_read_u8 v1, v2", "ds_write_b32 v0, v5"),
    (WRITE_AFTER_READ, "ds_write_b32 v0, v2", "ds_read_b32 v1, v2"),
    (MIXED, "ds_write_b32 v4, v5", "ds_add_u32 v4, v5"),
])
def test_missing_barrier(body, offender, producer):
    report = among(_reports(body.format(sync="s_waitcnt lgkmcnt(0)")), "lds_race", offender, producer, "s_barrier")
    assert report["wave"] == 1 and "wave 0" in report["message"]
    assert not _reports(body.format(sync=SYNC))


def test_writes_of_different_values_race_and_equal_ones_do_not():
    only(_reports("ds_write_b32 v4, v5"), "lds_race", "ds_write_b32 v4, v5", "wave 0 wrote", "ds_write_b32 v4, v5")
    assert not _reports("ds_write_b32 v4, v4")


def test_wide_accesses_are_checked_at_each_dword():
    body = _in_wave(0, "ds_write_b128 v7, v[8:11]") + "{sync}\n" + _in_wave(1, "ds_read_b64 v[12:13], v3")
    inputs = {"v7": LANE % 64 * 16, "v3": LANE % 64 * 0 + 1012, "v[8:11]": np.ones((128, 4), np.uint32)}
    only(_reports(body.format(sync=""), inputs), "lds_race", "ds_read_b64 .*", "ds_write_b128 v7", "LDS byte 1012")
    assert not _reports(body.format(sync=SYNC), inputs)


def test_neighbouring_halves_of_a_dword_do_not_race():
    """bf16 elements of one dword belong to different waves."""
    half = LANE % 64 * 4 + LANE // 64 * 2
    body = "ds_write_b16 v0, v5\ns_waitcnt lgkmcnt(0)\nds_read_u16 v1, v0"
    assert not _reports(body, {"v0": half.astype(np.uint32), "v5": LANE})


def test_atomics_do_not_race_with_atomics():
    assert not _reports(f"ds_write_b32 v0, v5\n{SYNC}\nds_add_u32 v4, v5\nds_max_u32 v4, v5\nds_add_rtn_u32 v6, v4, v5")


def test_a_wave_does_not_race_with_itself():
    assert not _reports("ds_write_b32 v0, v5\nds_read_b32 v1, v0\ns_waitcnt lgkmcnt(0)\nds_write_b32 v0, v1")


def test_all_waves_may_read_the_same_bytes():
    assert not _reports(f"ds_write_b32 v0, v5\n{SYNC}\nds_read_b32 v1, v4\nds_read_b128 v[8:11], v4")


def test_dma_is_published_by_vmcnt_and_a_barrier():
    buffers = {"s[10:11]": np.arange(64, dtype=np.uint32)}
    body = _in_wave(0, "s_mov_b32 m0, 0\nglobal_load_lds_dword v4, s[10:11]\n{wait}") + "{barrier}\n" + \
        _in_wave(1, "ds_read_b32 v1, v4")
    found = _reports(body.format(wait="", barrier="s_barrier"), buffers=buffers)
    only(found, "wait", "ds_read_b32 v1, v4", "global_load_lds_dword", "s_waitcnt vmcnt(0) before the s_barrier")
    found = _reports(body.format(wait="s_waitcnt vmcnt(0)", barrier=""), buffers=buffers)
    only(found, "lds_race", "ds_read_b32 v1, v4", "global_load_lds_dword", "no barrier between")
    assert not _reports(body.format(wait="s_waitcnt vmcnt(0)", barrier="s_barrier"), buffers=buffers)


HIP = """
__global__ void reverse(const int* in, int* out) {
  __shared__ int lds[256];
  lds[thread_index()] = in[thread_index()];
  %s
  out[thread_index()] = lds[255 - thread_index()];
}
extern "C" void launch(int groups, int block, int* in, int* out) {
  reverse<<<groups, block, 0, nullptr>>>(in, out);
}
"""


def test_removed_barrier_in_a_compiled_kernel():
    arrays = [np.arange(256, dtype=np.int32), np.zeros(256, np.int32)]
    found = hip_reports(HIP % "", arrays, 256, groups=4, read_only=[0])
    races = [report for report in found if report["check"] == "lds_race"]
    assert any("ds_read" in r["text"] and "ds_write" in r["message"] for r in races), listing(found)
    assert not hip_reports(HIP % "workgroup_barrier();", arrays, 256, groups=4, read_only=[0])
    np.testing.assert_array_equal(arrays[1], np.arange(256)[::-1])


REDUCE = """
__global__ void sums(const float* in, float* out) {                 // all waves reuse LDS twice a round
  __shared__ float part[512];
  float total = 0;
  for (int round = 0; round < 4; ++round) {
    part[thread_index()] = in[round * 512 + thread_index()];
    for (int width = 256; width > 0; width /= 2) {
      workgroup_barrier();
      if (thread_index() < width) part[thread_index()] += part[thread_index() + width];
    }
    workgroup_barrier();
    total += part[0];
    %s
  }
  if (thread_index() == 0) out[workgroup_index().x] = total;
}
extern "C" void launch(int groups, int block, float* in, float* out) {
  sums<<<groups, block, 0, nullptr>>>(in, out);
}
"""


def test_reuse_of_a_buffer_needs_a_barrier_too():
    arrays = [np.ones(2048, np.float32), np.zeros(3, np.float32)]
    among(hip_reports(REDUCE % "", arrays, 512, groups=3, read_only=[0]), "lds_race", "ds_(read|write)_b32 .*",
          "no barrier between")
    assert not hip_reports(REDUCE % "workgroup_barrier();", arrays, 512, groups=3, read_only=[0])
    np.testing.assert_array_equal(arrays[1], 2048)
