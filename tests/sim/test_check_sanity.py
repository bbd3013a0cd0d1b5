# SPDX-License-Identifier: MIT
"""The sanity checker: alignment, barriers that some waves miss, lanes that disagree, EXEC, register and LDS budgets."""

import re

import numpy as np
import pytest
from asm import run
from checking import hip_reports, only, reports
from hip_runtime import HipError

LANE = np.arange(64, dtype=np.uint32)
TWO = np.arange(128, dtype=np.uint32)


def _reports(body: str, inputs: dict | None = None, **options) -> list[dict]:
    options = {"lds_bytes": 2048, "buffers": {"s[10:11]": np.zeros(2048, np.uint8)}, **options}
    inputs = {"v0": LANE * 8, "v1": LANE * 8 + 2, "v2": LANE * 8 + 4, "v5": LANE, "v6": LANE + 1, **(inputs or {})}
    return reports(f"{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)", inputs, ("sanity",), **options)


@pytest.mark.parametrize("access, aligned, misaligned, bytes_", [
    ("global_atomic_add {0}, v5, s[10:11]", "v2", "v1", 4),
    ("global_atomic_pk_add_bf16 {0}, v5, s[10:11]", "v2", "v1", 4),
    ("global_atomic_add_f64 {0}, v[4:5], s[10:11]", "v0", "v2", 8),
    ("ds_add_u32 {0}, v5", "v2", "v1", 4),
    ("ds_add_rtn_u64 v[8:9], {0}, v[4:5]", "v0", "v2", 8)])
def test_atomics_are_aligned_to_their_size(access, aligned, misaligned, bytes_):
    assert not _reports(access.format(aligned))
    report = only(_reports(access.format(misaligned)), "sanity", re.escape(access.format(misaligned)),
                  f"atomic of {bytes_} bytes", "in lane 0", "fix: align it")
    assert report["lanes"] == 2**64 - 1 and report["address"] % bytes_


@pytest.mark.parametrize("access", [
    "global_load_dwordx4 v[8:11], v1, s[10:11]", "global_store_dwordx2 v1, v[4:5], s[10:11]",
    "ds_read_b128 v[8:11], v1", "ds_write_b64 v1, v[4:5]", "scratch_store_dword off, v5, off offset:3"])
def test_other_vector_accesses_may_start_anywhere(access):
    assert not _reports(access, scratch_bytes=16)


def test_scalar_memory_drops_the_low_bits_of_its_address():
    load = "s_load_dword s20, s[4:5], 0x4"
    assert not _reports("s_mov_b64 s[4:5], s[10:11]\n" + load)
    report = only(_reports("s_add_u32 s4, s10, 2\ns_addc_u32 s5, s11, 0\n" + load), "sanity", re.escape(load),
                  "drops the two low bits", "fix: align")
    assert report["address"] % 4 == 2
    descriptor = "s_mov_b32 s4, s10\ns_and_b32 s5, s11, 0xffff\ns_mov_b32 s6, 64\ns_mov_b32 s7, 0x27000\n"
    buffer = "s_mov_b32 s8, {0}\ns_buffer_load_dword s20, s[4:7], s8"
    assert not _reports(descriptor + buffer.format(8))
    only(_reports(descriptor + buffer.format(6)), "sanity", "s_buffer_load_dword .*", "drops the two low bits")


def test_lds_dma_writes_whole_dwords():
    body = "s_mov_b32 m0, {0}\nglobal_load_lds_dword v0, s[10:11]"
    assert not _reports(body.format(64))
    only(_reports(body.format(66)), "sanity", "global_load_lds_dword .*", "from byte 66 = m0 + offset")


# ---- lanes of one store

@pytest.mark.parametrize("store, same", [
    ("ds_write_b32 {0}, v5", "ds_write_b32 {0}, v7"),
    ("ds_write_b128 {0}, v[16:19]", "ds_write_b128 {0}, v[20:23]"),
    ("ds_write_b16 {0}, v5", "ds_write_b16 {0}, v7")])
def test_lanes_that_store_different_values_to_one_place(store, same):
    place = LANE * 16
    place[40] = place[3]
    wide = {f"v{16 + k}": LANE * 0 + k for k in range(3)} | {"v19": LANE} | {f"v{20 + k}": LANE * 0 for k in range(4)}
    inputs = {"v3": place, "v4": LANE[::-1] * 16, "v7": LANE * 0 + 9, **wide}
    report = only(_reports(store.format("v3"), inputs), "sanity", re.escape(store.format("v3")), "lanes 3 and 40",
                  "different values", "fix: let one lane store")
    assert report["lanes"] == 1 << 3 | 1 << 40 and report["address"] == 48
    assert not _reports(same.format("v3"), inputs)                  # Triton does that
    assert not _reports(store.format("v4"), inputs)                 # each lane its own place, not in order
    assert not _reports("s_mov_b64 exec, 0xff\n" + store.format("v3"), inputs)


def test_a_sum_that_lanes_have_rounded_differently_is_a_note():
    """Compilers contract a product and a sum in some lanes' way to it; which of them stays is of no weight."""
    place, values = LANE * 16, np.full(64, 1.7, np.float32).view(np.uint32)
    place[40], place[50] = place[3], place[5]

    def report(first: int, second: int) -> dict:
        stored = values.copy()
        stored[40] += first
        stored[50] += second
        return only(_reports("ds_write_b32 v3, v7", {"v3": place, "v7": stored}), "sanity", "ds_write_b32 v3, v7")

    for steps in ((1, 0), (4, 0), (2, 1)):
        found = report(*steps)
        assert found["severity"] == "note" and "lanes 3 and 40 of it store fp32 numbers" in found["message"]
    for *steps, lanes in ((64, 0, "3 and 40"), (1, 64, "5 and 50"), (64, 1, "3 and 40"), (1 << 31, 0, "3 and 40")):
        found = report(*steps)
        assert found["severity"] == "error" and f"lanes {lanes} of it store different values" in found["message"]


def test_accesses_that_overlap_in_part():
    inputs = {"v3": LANE[::-1] * 8, "v4": LANE[::-1] * 6, "v7": LANE}
    assert not _reports("ds_write_b64 v3, v[6:7]", inputs)
    only(_reports("ds_write_b64 v4, v[6:7]", inputs), "sanity", "ds_write_b64 .*", "different values")


def test_neighbouring_halves_of_a_dword_are_different_places():
    assert not _reports("ds_write_b16 v3, v5", {"v3": LANE[::-1] * 2})


# ---- EXEC

MFMA = "v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], 0"


def test_mfma_with_inactive_lanes():
    assert not _reports(MFMA)
    report = only(_reports("s_mov_b64 exec, 0xffff\ns_nop 4\n" + MFMA), "sanity", re.escape(MFMA), "EXEC 0xffff",
                  "fix: s_mov_b64 exec, -1")
    assert report["lanes"] == 2**64 - 2**16
    assert not _reports("s_mov_b64 exec, 1\nv_accvgpr_write_b32 a0, v5\nv_readlane_b32 s20, v5, 3")


def test_first_lane_of_none():
    body = "s_mov_b64 exec, {0}\nv_readfirstlane_b32 s20, v5\ns_mov_b64 exec, -1"
    assert not _reports(body.format(8))
    only(_reports(body.format(0)), "sanity", "v_readfirstlane_b32 .*", "no lane is active")


# ---- barriers

def _two_waves(body: str) -> list[dict]:
    body = f"v_readfirstlane_b32 s24, v6\n{body}"
    return _reports(body, {"v0": TWO * 4, "v1": TWO, "v2": TWO, "v5": TWO, "v6": TWO // 64}, waves=2)


def _in_wave(wave: int, body: str) -> str:
    return f"s_cmp_lg_u32 s24, {wave}\ns_cbranch_scc1 {10 + wave}f\n{body}\n{10 + wave}:\n"


def test_a_barrier_that_one_wave_misses():
    found = _two_waves(_in_wave(0, "s_barrier") + "s_nop 1\ns_barrier")
    report = only(found, "sanity", "s_barrier", "wave 0 at pc", "wave 1 at pc", "wave 1 passed 1, wave 0 passed 2")
    assert str(hex(report["pc"])) in report["message"]
    assert not _two_waves("s_barrier\ns_nop 1\ns_barrier")


def test_a_wave_that_leaves_before_the_others():
    leave = _in_wave(1, "s_waitcnt vmcnt(0) lgkmcnt(0)\ns_endpgm")
    only(_two_waves(f"s_barrier\n{leave}s_barrier"), "sanity", "s_barrier", "wave 0 at pc", "wave 1 had ended",
         "wave 1 passed 1, wave 0 passed 2")
    only(_two_waves(f"ds_write_b32 v0, v5\n{leave}s_barrier"), "sanity", "s_barrier", "wave 1 had ended",
         "wave 1 passed 0, wave 0 passed 1")
    assert not _two_waves(f"{leave}s_barrier\nds_write_b32 v0, v5\ns_barrier")     # it never took part


def test_waves_that_run_shifted_by_one_barrier_are_no_fault():
    assert not _two_waves(_in_wave(1, "s_barrier") + "s_barrier\ns_nop 1\ns_barrier\n" + _in_wave(0, "s_barrier"))


def test_a_hang_names_each_wave_and_where_it_is():
    """One wave waits at a barrier, the other for a word of LDS that nobody writes."""
    spin = "9:\nds_read_b32 v9, v0\ns_waitcnt lgkmcnt(0)\nv_readfirstlane_b32 s20, v9\ns_cmp_lg_u32 s20, 77\n" \
           "s_cbranch_scc1 9b\n"
    with pytest.raises(HipError, match="deadlock") as error:
        _two_waves("v_mov_b32 v9, 0\nds_write_b32 v0, v9\n" + _in_wave(1, spin) + "s_barrier")
    assert re.search(r"at the barrier at pc 0x[0-9a-f]+: s_barrier: wg\(0,0,0\) wave 0", str(error.value))
    assert re.search(r"in the loop at pc 0x[0-9a-f]+: .*: wg\(0,0,0\) wave 1", str(error.value))


# ---- budgets

def test_scalar_registers_beyond_the_descriptor():
    with pytest.raises(HipError, match="s99 is beyond the registers that kernel case0 allocates"):
        run("s_nop 0", sgprs=64)                                # the harness uses s96 to s99
    run("s_nop 0", sgprs=100)


def test_a_workgroup_that_no_cu_holds_is_refused():
    """The kernels of the harness have 512 registers: a SIMD holds one wave of them."""
    run("s_nop 0", waves=4)
    with pytest.raises(HipError, match="no CU holds a workgroup of 320 work-items with 512 registers each"):
        run("s_nop 0", waves=5)


HIP = """
__global__ void halves(const int* in, int* out) {
  __shared__ int lds[256];
  lds[thread_index()] = in[thread_index()];
  %s workgroup_barrier();
  out[thread_index()] = lds[255 - thread_index()];
  workgroup_barrier();
}
extern "C" void launch(int groups, int block, int* in, int* out) {
  halves<<<groups, block, 0, nullptr>>>(in, out);
}
"""


def test_a_barrier_under_a_condition_in_a_compiled_kernel():
    arrays = [np.arange(256, dtype=np.int32), np.zeros(256, np.int32)]
    found = hip_reports(HIP % "if (thread_index() < 64)", arrays, 256, read_only=[0])
    divergent = [report for report in found if report["check"] == "sanity"]
    only(divergent, "sanity", "s_barrier", "barriers in all: waves 1, 2, 3 passed 1, wave 0 passed 2")
    assert not hip_reports(HIP % "", arrays, 256, read_only=[0])
