# SPDX-License-Identifier: MIT
"""The uninit checker: undefined values where they matter, and the operations that make them harmless."""

import ctypes

import numpy as np
import pytest
from checking import hip_reports, only, reports
from hip_runtime import runtime

LANE = np.arange(64, dtype=np.uint32)
UNDEFINED = "ds_read_b32 v1, v0 offset:256\ns_waitcnt lgkmcnt(0)\n"      # v1: LDS that nobody wrote
STORE = "global_store_dword v0, {0}, s[10:11]"


def _reports(body: str, inputs: dict | None = None, **options) -> list[dict]:
    options = {"lds_bytes": 1024, "buffers": {"s[10:11]": np.zeros(1024, np.uint8)}, **options}
    inputs = {"v0": LANE * 4, "v5": LANE, **(inputs or {})}
    return reports(f"{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)", inputs, ("uninit",), **options)


def test_uninitialised_lds_reaches_memory():
    report = only(_reports(UNDEFINED + STORE.format("v1")), "uninit", "global_store_dword v0, v1, .*", "stores v1",
                  "ds_read_b32 v1, v0 offset:256", "LDS byte 256, which has no defined value")
    assert report["lanes"] == 2**64 - 1 and report["address"] == 256
    assert not _reports("ds_write_b32 v0, v5 offset:256\n" + UNDEFINED + STORE.format("v1"))


def test_only_the_undefined_lanes_are_named():
    body = "s_mov_b64 exec, 0xffff\nds_write_b32 v0, v5 offset:256\ns_mov_b64 exec, -1\n"
    report = only(_reports(body + UNDEFINED + STORE.format("v1")), "uninit", "global_store_dword .*", "lane 16")
    assert report["lanes"] == 2**64 - 2**16 and report["address"] == 256 + 64


USES = {
    "arithmetic": ("v_add_f32_e32 v2, v1, v5\n" + STORE.format("v2"), "global_store_dword .*", "stores v2"),
    "LDS address": ("ds_read_b32 v2, v1", "ds_read_b32 v2, v1", "takes its address from v1"),
    "branch": ("v_cmp_eq_u32_e32 vcc, 0, v1\ns_cbranch_vccnz 1f\n1:", "s_cbranch_vccnz .*", "branches on vcc_lo"),
    "scalar branch": ("v_readfirstlane_b32 s20, v1\ns_cmp_eq_u32 s20, 0\ns_cbranch_scc1 1f\n1:", "s_cbranch_scc1 .*",
                      "branches on SCC"),
    "EXEC": ("v_cmp_gt_u32_e32 vcc, 9, v1\ns_and_saveexec_b64 s[20:21], vcc\ns_mov_b64 exec, -1",
             r"s_and_saveexec_b64 s\[20:21\], vcc", "writes undefined lanes to exec_lo"),
    "atomic": ("global_atomic_add v0, v1, s[10:11]", "global_atomic_add .*", "combines memory with v1"),
    "through LDS": ("ds_write_b32 v0, v1\nds_read_b32 v2, v0\ns_waitcnt lgkmcnt(0)\n" + STORE.format("v2"),
                    "global_store_dword .*", "stores v2"),
    "through scratch": ("scratch_store_dword off, v1, off\nscratch_load_dword v2, off, off\ns_waitcnt vmcnt(0)\n" +
                        STORE.format("v2"), "global_store_dword .*", "stores v2"),
    "through a lane exchange": ("ds_bpermute_b32 v2, v0, v1\ns_waitcnt lgkmcnt(0)\n" + STORE.format("v2"),
                                "global_store_dword .*", "stores v2"),
    "through DPP": ("v_mov_b32_dpp v2, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0\n" + STORE.format("v2"),
                    "global_store_dword .*", "stores v2"),
    "part of a dword": ("v_and_b32_e32 v2, 0xff, v1\n" + STORE.format("v2"), "global_store_dword .*", "stores v2"),
    "selected": ("s_mov_b64 vcc, -1\nv_cndmask_b32_e32 v2, v5, v1, vcc\n" + STORE.format("v2"), "global_store_dword .*",
                 "stores v2"),
    "one half": ("v_lshl_or_b32 v2, v1, 16, v5\nglobal_store_short_d16_hi v0, v2, s[10:11]",
                 "global_store_short_d16_hi .*", "stores v2"),
}


@pytest.mark.parametrize("name", USES)
def test_use_that_matters_is_reported(name):
    body, offender, what = USES[name]
    only(_reports(UNDEFINED + body, scratch_bytes=16), "uninit", offender, what, "defined value")


# Every one of these is silent: the undefined bits do not reach the result, or the result does not matter.
HARMLESS = {
    "never used": "v_add_f32_e32 v2, v1, v5\nv_mul_f32_e32 v3, v2, v2\nds_write_b32 v0, v3",
    "masked by and": "v_and_b32_e32 v2, 0, v1\n" + STORE.format("v2"),
    "masked by or": "v_or_b32_e32 v2, -1, v1\n" + STORE.format("v2"),
    "shifted out": "v_lshl_or_b32 v2, v1, 16, v5\nv_and_b32_e32 v2, 0xffff, v2\n" + STORE.format("v2"),
    "only the defined half is stored": "v_lshl_or_b32 v2, v1, 16, v5\nglobal_store_short v0, v2, s[10:11]",
    "not selected": "s_mov_b64 vcc, 0\nv_cndmask_b32_e32 v2, v5, v1, vcc\n" + STORE.format("v2"),
    "overwritten": "v_mov_b32_e32 v1, v5\n" + STORE.format("v1"),
    "inactive lanes": "s_mov_b64 exec, 0xff\nv_mov_b32_e32 v1, v5\n" + STORE.format("v1"),
    "bit field": "v_lshl_or_b32 v2, v1, 16, v5\nv_bfe_u32 v2, v2, 3, 8\n" + STORE.format("v2"),
    "byte permute": "v_perm_b32 v2, v1, v5, v6\n" + STORE.format("v2"),
    "bit select": "v_bfi_b32 v2, v7, v5, v1\nv_and_b32_e32 v2, v2, v7\n" + STORE.format("v2"),
    "written lane": "v_writelane_b32 v1, s20, 3\ns_mov_b64 exec, 8\n" + STORE.format("v1"),
    "defined lane read": "v_writelane_b32 v1, s20, 3\nv_readlane_b32 s21, v1, 3\ns_cmp_eq_u32 s21, 0\n"
                         "s_cbranch_scc1 1f\n1:",
    "first active lane is defined": "v_writelane_b32 v1, s20, 3\ns_mov_b64 exec, 0x18\nv_readfirstlane_b32 s21, v1\n"
                                    "s_mov_b64 exec, -1\ns_cmp_eq_u32 s21, 0\ns_cbranch_scc1 1f\n1:",
    "mask of defined lanes": "s_mov_b64 exec, 1\nv_mov_b32_e32 v1, v5\ns_mov_b64 exec, -1\n"
                             "v_cmp_eq_u32_e32 vcc, 0, v1\ns_and_b64 vcc, vcc, 1\ns_cbranch_vccnz 1f\n1:",
    "a known non-zero mask": "s_mov_b64 exec, 1\nv_mov_b32_e32 v1, 0\ns_mov_b64 exec, -1\nv_cmp_eq_u32_e32 vcc, 0, v1\n"
                             "s_cbranch_vccnz 1f\n1:",
    "DPP reads only the defined row": "s_mov_b64 exec, 0xffff\nv_mov_b32_e32 v1, v5\nv_mov_b32_dpp v2, v1 row_ror:3 "
                                      "row_mask:0xf bank_mask:0xf\n" + STORE.format("v2"),
    "halves packed apart": "v_lshl_or_b32 v2, v1, 16, v5\nv_pk_add_u16 v2, v2, v2\nglobal_store_short v0, v2, s[10:11]",
    "dwords packed apart": "v_mov_b32_e32 v2, v5\nv_mov_b32_e32 v3, v1\nv_pk_mul_f32 v[2:3], v[2:3], v[2:3]\n" +
                           STORE.format("v2"),
    "narrow operand": "v_lshl_or_b32 v2, v1, 16, v6\nv_cvt_f32_f16_e32 v2, v2\n" + STORE.format("v2"),
    "byte operand": "v_lshl_or_b32 v2, v1, 16, v5\nv_cvt_f32_ubyte1_e32 v2, v2\n" + STORE.format("v2"),
    "spilled and reloaded": "v_mov_b32_e32 v2, v1\nv_mov_b32_e32 v3, v5\nscratch_store_dwordx2 off, v[2:3], off\n"
                            "scratch_load_dwordx2 v[6:7], off, off\ns_waitcnt vmcnt(0)\n" + STORE.format("v7"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_use_is_silent(name):
    inputs = {"v6": LANE * 0 + 0x03020100, "v7": LANE * 0 + 0xff00ff, "s20": 7}
    assert not _reports(UNDEFINED + HARMLESS[name], inputs, scratch_bytes=16)


@pytest.mark.parametrize("name, body", [
    ("v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], 0"),
    ("v_mfma_f32_32x32x8_bf16", "v_mfma_f32_32x32x8_bf16 v[20:35], v[10:11], v[12:13], 0")])
def test_an_undefined_row_of_a_stays_in_its_row_of_d(name, body):
    """Row 0 of A is undefined: of D, register 0 of the lanes of row 0 is, nothing else."""
    size = 16 if "16x16" in name else 32
    # lanes 0 and size, …, hold row 0 of A; v1 is undefined everywhere, so clear the other lanes.
    row0 = sum(1 << lane for lane in range(0, 64, size))
    body = f"""v_mov_b32_e32 v10, v5
      v_mov_b32_e32 v11, v5
      s_mov_b64 exec, s[20:21]
      v_mov_b32_e32 v11, v1
      s_mov_b64 exec, -1
      {body}
      s_nop 15
      s_nop 2
      global_store_dword v0, v{{0}}, s[10:11]"""
    inputs = {"v12": LANE, "v13": LANE, "s[20:21]": row0}
    report = only(_reports(UNDEFINED + body.format(20), inputs), "uninit", "global_store_dword .*", "stores v20")
    assert report["lanes"] == 2**size - 1                       # D: row 0 is register 0 of lanes 0..size-1
    assert not _reports(UNDEFINED + body.format(21), inputs)


def test_address_of_global_memory():
    body = f"{UNDEFINED}v_mul_u32_u24_e32 v2, 4, v1\nglobal_load_dword v3, v2, s[10:11]\ns_waitcnt vmcnt(0)"
    found = reports(body, {"v0": LANE * 4}, ("uninit", "bounds"), lds_bytes=1024,
                    buffers={"s[10:11]": np.zeros(64, np.uint32)})
    assert [report["check"] for report in found] == ["uninit", "bounds"]
    assert "takes its address from v2" in found[0]["message"]


def test_device_memory_that_nobody_wrote():
    hip, pointer = runtime(), ctypes.c_void_p()
    hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(256))
    body = f"global_load_dword v1, v0, s[4:5]\ns_waitcnt vmcnt(0)\n{STORE.format('v1')}"
    only(_reports(body, {"s[4:5]": pointer.value}), "uninit", "global_store_dword .*", "memory that nobody wrote",
         "global_load_dword v1")
    write = "global_store_dword v0, v5, s[4:5]\n"
    assert not _reports(write + body, {"s[4:5]": pointer.value})
    assert not _reports(body, {"s[4:5]": pointer.value})       # still written, by the launch before
    hip.call("hipFree", pointer)


def test_objects_with_padding_are_copied_in_silence():
    """A dword, four bytes that nobody writes, eight more: copied whole, they keep their hole, which is no value."""
    hip, pointer = runtime(), ctypes.c_void_p()
    hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(3 * 1024))
    inputs, wait = {"s[4:5]": pointer.value, "v1": LANE * 16, "v[2:3]": LANE.astype(np.uint64)}, "s_waitcnt vmcnt(0)\n"
    copy = (f"global_load_dwordx4 v[8:11], v1, s[4:5]\n{wait}"
            f"global_store_dwordx4 v1, v[8:11], s[4:5] offset:1024\n{wait}")
    only(_reports(copy, inputs), "uninit", "global_store_dwordx4 .*", "stores v8", "memory that nobody wrote")
    hip.call("hipFree", pointer)
    hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(3 * 1024))
    inputs["s[4:5]"] = pointer.value
    assert not _reports("global_store_dword v1, v5, s[4:5]\nglobal_store_dwordx2 v1, v[2:3], s[4:5] offset:8\n" + copy,
                        inputs)
    for offset in (0, 8, 12):
        again = f"global_load_dword v6, v1, s[4:5] offset:{1024 + offset}\n{wait}{STORE.format('v6')}"
        assert not _reports(again, inputs)
    hole = f"global_load_dword v6, v1, s[4:5] offset:1028\n{wait}{STORE.format('v6')}"
    only(_reports(hole, inputs), "uninit", "global_store_dword v0, v6, .*", "memory that nobody wrote")
    hip.call("hipFree", pointer)


def test_registers_at_the_start_of_a_kernel():
    only(_reports(STORE.format("v77")), "uninit", "global_store_dword v0, v77, .*", "never written")
    only(_reports("s_cmp_eq_u32 s40, 0\ns_cbranch_scc1 1f\n1:"), "uninit", "s_cbranch_scc1 .*", "never written")


HIP = """
__global__ void stencil(const float* in, float* out) {
  __shared__ float line[66];
  line[thread_index() + 1] = in[thread_index()];
  %s
  workgroup_barrier();
  out[thread_index()] = line[thread_index()] + line[thread_index() + 2];
}
extern "C" void launch(int groups, int block, float* in, float* out) {
  stencil<<<groups, block, 0, nullptr>>>(in, out);
}
"""


def test_forgotten_halo_in_a_compiled_kernel():
    arrays = [np.ones(64, np.float32), np.zeros(64, np.float32)]
    report = only(hip_reports(HIP % "", arrays, 64, read_only=[0]), "uninit", "global_store_dword .*", "ds_read",
                           "no defined value")
    assert report["lanes"] == 1 << 63 | 1
    halo = "if (thread_index() < 2) line[65 * thread_index()] = 0;"
    assert not hip_reports(HIP % halo, arrays, 64, read_only=[0])
