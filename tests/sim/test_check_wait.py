# SPDX-License-Identifier: MIT
"""The wait checker: registers used before their load has arrived, and LDS handed over a barrier without a wait."""

import numpy as np
import pytest
from checking import hip_reports, only, reports

LANE = np.arange(64, dtype=np.uint32)
DATA = np.arange(4096, dtype=np.uint32)

# body with {wait}, the wait that makes it right, offender, producer, what the report proposes
CASES = {
    "load then use": ("global_load_dword v1, v0, s[10:11]\n{wait}\nv_add_u32_e32 v2, 1, v1", "s_waitcnt vmcnt(0)",
                      "v_add_u32_e32 v2, 1, v1", "global_load_dword v1, v0, s[10:11]", "s_waitcnt vmcnt(0)"),
    "older of two loads": ("global_load_dword v1, v0, s[10:11]\nglobal_load_dword v2, v0, s[10:11] offset:4\n{wait}\n"
                           "v_mov_b32_e32 v3, v1\ns_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)", "v_mov_b32_e32 v3, v1",
                           "global_load_dword v1", "s_waitcnt vmcnt(1)"),
    "a store counts": ("global_load_dword v1, v0, s[10:11]\nglobal_store_dword v0, v5, s[10:11] offset:512\n{wait}\n"
                       "v_mov_b32_e32 v3, v1", "s_waitcnt vmcnt(1)", "v_mov_b32_e32 v3, v1", "global_load_dword v1",
                       "s_waitcnt vmcnt(1)"),
    "LDS": ("ds_write_b32 v0, v5\nds_read_b32 v1, v0\nds_read_b32 v2, v0\n{wait}\nv_add_u32_e32 v3, v1, v5\n"
            "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(1)", "v_add_u32_e32 v3, v1, v5", "ds_read_b32 v1, v0",
            "s_waitcnt lgkmcnt(1)"),
    "scalar load": ("s_load_dword s20, s[10:11], 0x10\n{wait}\ns_add_u32 s21, s20, 1", "s_waitcnt lgkmcnt(0)",
                    "s_add_u32 s21, s20, 1", "s_load_dword s20", "s_waitcnt lgkmcnt(0)"),
    "overwritten": ("global_load_dword v1, v0, s[10:11]\n{wait}\nv_mov_b32_e32 v1, 0\ns_waitcnt vmcnt(0)",
                    "s_waitcnt vmcnt(0)", "v_mov_b32_e32 v1, 0", "global_load_dword v1", "s_waitcnt vmcnt(0)"),
    "as an address": ("ds_write_b32 v0, v0\nds_read_b32 v1, v0\n{wait}\nglobal_load_dword v2, v1, s[10:11]\n"
                      "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_waitcnt lgkmcnt(0)", "global_load_dword v2, v1, .*",
                      "ds_read_b32 v1", "s_waitcnt lgkmcnt(0)"),
    "lane exchange": ("ds_bpermute_b32 v1, v0, v5\n{wait}\nv_mov_b32_e32 v2, v1", "s_waitcnt lgkmcnt(0)",
                      "v_mov_b32_e32 v2, v1", "ds_bpermute_b32 v1", "s_waitcnt lgkmcnt(0)"),
    "atomic with return": ("global_atomic_add v1, v0, v5, s[10:11] sc0\n{wait}\nv_mov_b32_e32 v2, v1",
                           "s_waitcnt vmcnt(0)", "v_mov_b32_e32 v2, v1", "global_atomic_add v1", "s_waitcnt vmcnt(0)"),
    "own LDS-DMA": ("s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v0, s[10:11]\n{wait}\n"
                    "ds_read_b32 v2, v0\ns_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(0)", "ds_read_b32 v2, v0",
                    "global_load_lds_dword v0", "s_waitcnt vmcnt(0)"),
    "a load that outlasts many LDS accesses": (
        "global_load_dword v1, v0, s[10:11]\n" + 150 * "ds_bpermute_b32 v2, v0, v5\ns_waitcnt lgkmcnt(0)\n" +
        "{wait}\nv_mov_b32_e32 v3, v1", "s_waitcnt vmcnt(0)", "v_mov_b32_e32 v3, v1", "global_load_dword v1",
        "s_waitcnt vmcnt(0)"),
    "MFMA operand": ("global_load_dwordx2 v[2:3], v0, s[10:11]\nv_mov_b32_e32 v4, v0\nv_mov_b32_e32 v5, v0\ns_nop 1\n"
                     "{wait}\nv_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], 0\ns_nop 7\ns_nop 7",
                     "s_waitcnt vmcnt(0)", "v_mfma_f32_16x16x16_f16 .*", "global_load_dwordx2 v[2:3]",
                     "s_waitcnt vmcnt(0)"),
}


def _reports(body: str) -> list[dict]:
    return reports(body, {"v0": LANE * 4, "v5": LANE}, buffers={"s[10:11]": DATA.copy()}, lds_bytes=1024)


@pytest.mark.parametrize("name", CASES)
def test_missing_wait_is_reported_with_its_producer(name):
    body, _, offender, producer, fix = CASES[name]
    only(_reports(body.format(wait="")), "wait", offender, producer, fix)


@pytest.mark.parametrize("name", CASES)
def test_right_wait_is_silent(name):
    body, wait, *_ = CASES[name]
    assert not _reports(body.format(wait=wait))


def test_scalar_loads_return_in_any_order():
    body = """s_load_dword s20, s[10:11], 0x10
      s_load_dword s21, s[10:11], 0x20
      s_waitcnt lgkmcnt(1)
      s_mov_b32 s22, s20
      s_waitcnt lgkmcnt(0)"""
    only(_reports(body), "wait", "s_mov_b32 s22, s20", "s_load_dword s20", "lgkmcnt(0)")


def test_report_names_place_and_distance():
    body = "global_load_dword v1, v0, s[10:11]\ns_nop 0\nv_mov_b32_e32 v3, v0\nv_mov_b32_e32 v2, v1\ns_waitcnt vmcnt(0)"
    report = only(_reports(body), "wait", "v_mov_b32_e32 v2, v1", "reads v1", "issued 3 instructions ago")
    producer = int(report["message"].split("pc ")[1].split(":")[0], 16)
    assert report["pc"] == producer + 8 + 4 + 4                    # global_load is 8 bytes long, the others 4
    assert report["kernel"] == "case0" and report["count"] == 1


def test_repeats_are_counted():
    body = """s_mov_b32 s20, 5
      1:
      global_load_dword v1, v0, s[10:11]
      v_mov_b32_e32 v2, v1
      s_waitcnt vmcnt(0)
      s_sub_u32 s20, s20, 1
      s_cmp_lg_u32 s20, 0
      s_cbranch_scc1 1b"""
    assert only(_reports(body), "wait", "v_mov_b32_e32 v2, v1")["count"] == 5


def test_loads_of_one_kind_may_overwrite_each_other():
    body = "global_load_dword v1, v0, s[10:11]\nglobal_load_dword v1, v0, s[10:11] offset:4\ns_waitcnt vmcnt(0)\n" \
           "v_mov_b32_e32 v2, v1"
    assert not _reports(body)


EXCHANGE = """ds_write_b32 v0, v5
  {before}
  s_barrier
  {after}
  ds_read_b32 v1, v2
  s_waitcnt lgkmcnt(0)"""


def _exchange(before: str, after: str = "") -> list[dict]:
    lane = np.arange(128, dtype=np.uint32)
    return reports(EXCHANGE.format(before=before, after=after), {"v0": lane * 4, "v2": lane[::-1] * 4, "v5": lane},
                   waves=2, lds_bytes=512)


def test_write_must_be_waited_for_before_the_barrier():
    found = only(_exchange(""), "wait", "ds_read_b32 v1, v2", "wave 1 wrote", "ds_write_b32 v0, v5",
                 "s_waitcnt lgkmcnt(0) before the s_barrier")
    assert found["count"] > 1                                      # the other wave reads too early as well
    assert not _exchange("s_waitcnt lgkmcnt(0)")


def test_a_wait_after_the_barrier_is_too_late():
    only(_exchange("", "s_waitcnt lgkmcnt(0)"), "wait", "ds_read_b32 v1, v2", "before the s_barrier")


def test_a_pacing_barrier_alone_is_silent():
    """A barrier with LDS writes in flight is no fault while nobody relies on them."""
    lane = np.arange(128, dtype=np.uint32)
    body = "ds_write_b32 v0, v5\ns_barrier\ns_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)"
    assert not reports(body, {"v0": lane * 4, "v2": lane[::-1] * 4, "v5": lane}, waves=2, lds_bytes=512)


HIP = """
__global__ void kernel(const int* in, int* out) {
  int x;
  asm volatile("global_load_dword %%0, %%1, off\\n%s" : "=v"(x) : "v"(in + thread_index()));
  out[thread_index()] = x + 1;
}
extern "C" void launch(int groups, int block, int* in, int* out) { kernel<<<groups, block, 0, nullptr>>>(in, out); }
"""


def test_compiler_does_not_wait_for_inline_assembly():
    arrays = [np.arange(64, dtype=np.int32), np.zeros(64, np.int32)]
    only(hip_reports(HIP % "", arrays, 64, read_only=[0]), "wait", "v_add_u32_e32 .*", "global_load_dword",
         "s_waitcnt vmcnt(0)")
    assert not hip_reports(HIP % "s_waitcnt vmcnt(0)", arrays, 64, read_only=[0])
    np.testing.assert_array_equal(arrays[1], np.arange(64) + 1)


def test_lds_returns_in_order_beside_a_scalar_load():
    """While s_load is outstanding, lgkmcnt(N) still leaves the latest N of the LDS operations only."""
    reads = "\n".join(f"ds_read_b32 v{number}, v1" for number in range(2, 8))
    body = f"v_mov_b32 v9, 0\nds_write_b32 v1, v9\ns_waitcnt lgkmcnt(0)\ns_load_dword s20, s[8:9], 0x0\n{reads}\n" \
           "s_waitcnt lgkmcnt(2)\nv_mov_b32 v10, v{used}\ns_waitcnt lgkmcnt(0)"
    inputs = {"v1": np.arange(64, dtype=np.uint32) * 4}
    options = {"buffers": {"s[8:9]": np.zeros(4, np.uint32)}, "lds_bytes": 256}
    assert not reports(body.format(used=5), inputs, **options)
    (early,) = reports(body.format(used=6), inputs, **options)
    assert early["check"] == "wait" and "lgkmcnt(1)" in early["message"]
    (scalar,) = reports(body.format(used=5) .replace("v_mov_b32 v10, v5", "v_mov_b32 v10, s20"), inputs, **options)
    assert "lgkmcnt(0)" in scalar["message"]
