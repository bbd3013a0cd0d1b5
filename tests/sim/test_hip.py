# SPDX-License-Identifier: MIT
"""The HIP entry points, through compiled programs and through ctypes; how launches start, and how they fail."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from asm import assemble
from damage import places
from hip_program import code_object, library
from hip_runtime import HipError, runtime

from aiter_like import sim

PROGRAM = """
__global__ void add(const float* a, const float* b, float* out, int n) {
  int i = workgroup_index().x * 256 + thread_index();
  if (i < n) out[i] = a[i] + b[i];
}

__global__ void block_sums(const float* x, float* out) {            // one sum per workgroup, through LDS
  __shared__ float part[256];
  part[thread_index()] = x[workgroup_index().x * 256 + thread_index()];
  for (int width = 128; width > 0; width /= 2) {
    workgroup_barrier();
    if (thread_index() < width) part[thread_index()] += part[thread_index() + width];
  }
  if (thread_index() == 0) out[workgroup_index().x] = part[0];
}

__global__ void ids(int* out) {                                       // where each work-item is
  int x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y(), z = __builtin_amdgcn_workitem_id_z();
  int group = workgroup_index().x + 2 * (workgroup_index().y + 3 * workgroup_index().z);
  out[group * 64 + x + 8 * (y + 4 * z)] = group * 1000 + x + 10 * y + 100 * z;
}

__global__ void dynamic(int* out) {
  extern __shared__ int lds[];
  lds[thread_index()] = thread_index();
  workgroup_barrier();
  out[thread_index()] = lds[63 - thread_index()];
}

extern "C" {
int run_add(const float* a, const float* b, float* out, int n) {
  add<<<(n + 255) / 256, 256, 0, nullptr>>>(a, b, out, n);
  return hipGetLastError();
}
int run_block_sums(const float* x, float* out, int groups) {
  block_sums<<<groups, 256, 0, nullptr>>>(x, out);
  return hipGetLastError();
}
int run_ids(int* out) {
  ids<<<dim3(2, 3, 2), dim3(8, 4, 2), 0, nullptr>>>(out);
  return hipGetLastError();
}
int run_dynamic(int* out, int lds_bytes, int block) {
  dynamic<<<1, block, lds_bytes, nullptr>>>(out);
  return hipGetLastError();
}
}
"""

LOOP = """
extern "C" __global__ void forever(int* out) {
  for (int i = 0;; ) asm volatile("v_add_u32 %0, 1, %0" : "+v"(i));   // always something new: no deadlock
}
extern "C" __global__ void store(int* out) { out[thread_index()] = 1; }
"""


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def error_text(error: int = 719) -> str:
    hip = sim.load()
    return hip.hipGetErrorString(hip.hipPeekAtLastError() or error).decode()


@pytest.fixture
def program():
    sim.take_reports()
    yield library(PROGRAM)
    sim.load().hipGetLastError()
    sim.take_reports()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_reduction_is_the_same_for_any_thread_count_and_order(program, threads, seed):
    x = np.random.default_rng(1).standard_normal((300, 256), np.float32)
    expected, width = x.copy(), 128
    while width:
        expected[:, :width] += expected[:, width:2 * width]
        width //= 2
    out = np.zeros(300, np.float32)
    with sim.enabled(checks=False, threads=threads, fuzz=seed):
        assert program.run_block_sums(pointer(x), pointer(out), 300) == 0
    np.testing.assert_array_equal(out, expected[:, 0])


def test_three_dimensional_ids(program):
    out = np.full(12 * 64, -1, np.int32)
    assert program.run_ids(pointer(out)) == 0
    group, z, y, x = np.indices((12, 2, 4, 8))
    np.testing.assert_array_equal(out, (group * 1000 + x + 10 * y + 100 * z).ravel())


def test_dynamic_lds_and_its_limit(program):
    out = np.zeros(64, np.int32)
    assert program.run_dynamic(pointer(out), 256, 64) == 0
    np.testing.assert_array_equal(out, np.arange(63, -1, -1))
    assert program.run_dynamic(pointer(out), 70000, 64) == 9
    assert "70000 bytes of LDS" in error_text(9)
    assert program.run_dynamic(pointer(out), 256, 1025) == 9
    assert "1025x1x1" in error_text(9)


@pytest.mark.parametrize("address", [0x1000, 0xDEAD_0000_0000_0000])
def test_a_wild_pointer_is_an_error_and_not_a_crash(program, address):
    good = np.zeros(256, np.float32)
    assert program.run_add(ctypes.c_void_p(address), pointer(good), pointer(good), 256) == 719
    assert "wild memory access" in error_text() and "pc 0x" in error_text() and "global_load_dword" in error_text()
    assert program.run_add(pointer(good), pointer(good), pointer(good), 256) == 0, "the next launch works"
    reports = sim.take_reports()
    assert [report["check"] for report in reports] == ["launch"] and reports[0]["text"].startswith("global_load")


def test_an_endless_kernel_stops_at_the_limit():
    with runtime().module(code_object(LOOP)) as module, sim.enabled(checks=False, instruction_limit=100_000):
        with pytest.raises(HipError, match="an endless loop"):
            runtime().launch(module.function("forever"), 4, 128, 0, [0])
        report, = sim.take_reports()
    assert report["kernel"] == "forever" and report["wave"] in (0, 1) and report["pc"] < 64 and report["text"]
    assert f"kernel forever wg({report['workgroup'][0]},0,0) wave {report['wave']} pc {report['pc']:#x}: " \
        f"{report['text']}: a wave executed more than 100000 instructions" in report["message"]


def test_the_instruction_limit_is_a_setting_of_the_environment():
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from hip_program import code_object
from hip_runtime import HipError, runtime
from test_hip import LOOP
with runtime().module(code_object(LOOP)) as module:
    try:
        runtime().launch(module.function("forever"), 1, 64, 0, [0])
    except HipError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True,
                          env={**os.environ, "AITER_LIKE_SIM": "limit=12345"}, check=False)
    assert "more than 12345 instructions: an endless loop" in done.stdout, done.stderr


UNKNOWN = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.p2align 8
.globl probe
.type probe,@function
probe:
  s_mov_b32 s0, 0
  {instruction}
  s_endpgm
.size probe, .-probe
.rodata
.amdhsa_kernel probe
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
"""


@pytest.mark.parametrize("instruction, message", [
    ("s_cbranch_g_fork s[0:1], s[2:3]", "pc 0x4: s_cbranch_g_fork s[0:1], s[2:3]: instruction 's_cbranch_g_fork'"),
    (".long 0xffffffff", "pc 0x4: <no instruction>: these bytes are no gfx942 instruction"),
    ("v_mov_b32 v8, 0", "pc 0x4: v_mov_b32_e32 v8, 0: v8 is beyond the registers that kernel probe allocates"),
    ("v_accvgpr_write_b32 a0, v0", "a0 is beyond the registers that kernel probe allocates"),
    ("s_branch 100", "pc 0x4: s_branch 100: jump to an address that holds no instruction"),
])
def test_what_is_not_modelled_fails_with_pc_and_disassembly(instruction, message):
    with runtime().module(assemble(UNKNOWN.format(instruction=instruction))) as module:
        with pytest.raises(HipError) as raised:
            runtime().launch(module.function("probe"), 1, 64, 0, [])
    assert message in str(raised.value)
    sim.take_reports()


def test_kernel_arguments_as_one_buffer():
    hip, out = sim.load(), np.zeros(64, np.int32)
    buffer = ctypes.create_string_buffer(pointer(out).value.to_bytes(8, "little") + bytes(100))
    size = ctypes.c_size_t(108)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    with runtime().module(code_object(LOOP)) as module:
        assert hip.hipModuleLaunchKernel(module.function("store"), 1, 1, 1, 64, 1, 1, 0, None, None, extra) == 0
        np.testing.assert_array_equal(out, 1)
        small = ctypes.c_size_t(4)
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(small), 3)
        assert hip.hipModuleLaunchKernel(module.function("store"), 1, 1, 1, 64, 1, 1, 0, None, None, extra) == 719
        assert "4 bytes of arguments" in error_text()
    sim.take_reports()


def test_arguments_that_the_buffer_leaves_out_are_undefined():
    """HIP knows no size either, and shipped kernels list words that their host does not give."""
    source = 'extern "C" __global__ void second(int* out, int n, long spare) { out[0] = n; }'
    hip, out = sim.load(), np.zeros(1, np.int32)
    buffer = ctypes.create_string_buffer(pointer(out).value.to_bytes(8, "little") + (7).to_bytes(4, "little"))
    size = ctypes.c_size_t(12)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    with runtime().module(code_object(source)) as module:
        assert hip.hipModuleLaunchKernel(module.function("second"), 1, 1, 1, 64, 1, 1, 0, None, None, extra) == 0
    assert out[0] == 7


@pytest.mark.parametrize(("sizes", "text"), [
    ((2**22, 2**22, 2**21, 1, 1, 1, 0), "grid 4194304x4194304x2097152 has more than 2^64 workgroups"),
    ((2**31, 1, 1, 64, 1, 1, 0), "grid 2147483648x1x1 times block 64x1x1 is empty or beyond 2^32 work-items"),
    ((1, 1, 1, 2**31, 2**31, 4, 0), "block 2147483648x2147483648x4 is not between 1 and 1024"),
    ((1, 1, 1, 64, 1, 1, 2**32 - 256), "4294967040 bytes of LDS"),
])
def test_sizes_are_not_taken_modulo_anything(sizes, text):
    hip, out = sim.load(), np.zeros(64, np.int32)
    buffer = ctypes.create_string_buffer(pointer(out).value.to_bytes(8, "little"))
    size = ctypes.c_size_t(8)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    with runtime().module(code_object(LOOP)) as module:
        assert hip.hipModuleLaunchKernel(module.function("store"), *sizes, None, None, extra) == 9
        assert text in error_text() and not out.any()
        groups = ctypes.c_int(7)
        call = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
        assert call(ctypes.byref(groups), module.function("store"), 64, ctypes.c_size_t(2**64 - 1)) == 0
        assert groups.value == 0
    sim.take_reports()


@pytest.mark.parametrize(("change", "text"), [
    ({"grid": (2**32 + 1, 1, 1)}, "grid must be three numbers from 0 to 4294967295, got (4294967297, 1, 1)"),
    ({"block": (64, 1)}, "block must be three numbers"), ({"block": (-1, 1, 1)}, "block must be three numbers"),
    ({"shared_bytes": 2**32 + 64}, "shared_bytes must be a number from 0 to 4294967295")])
def test_a_launch_from_python_cuts_no_size_off(change, text):
    sizes = {"grid": (1, 1, 1), "block": (64, 1, 1), "shared_bytes": 0} | change
    with pytest.raises(ValueError, match=re.escape(f"sim.launch: {text}")):
        sim.launch(code_object(LOOP), "store", kernargs=bytes(8), **sizes)


ARGUMENTS = """
extern "C" __global__ void arguments(long* out, int a, float b, short c, long d) {
  if (thread_index() == 0) { out[0] = a; out[1] = (long)b; out[2] = c; out[3] = d; }
}
"""
PRELOAD = ("-mllvm", "-amdgpu-kernarg-preload-count=16")


def without_preload(elf: bytes) -> bytes:
    """The code object for hardware that cannot preload: its kernel starts at the prologue that loads the arguments."""
    descriptor, _ = places(elf)["descriptors"][0]
    assert elf[descriptor + 58] & 0x7f, "the compiler preloads"
    return elf[:descriptor + 58] + bytes(2) + elf[descriptor + 60:]


@pytest.mark.parametrize("flags, edit, has_loads", [((), bytes, True), (PRELOAD, bytes, False),
                                                    (PRELOAD, without_preload, True)])
def test_kernel_arguments_in_memory_preloaded_and_by_the_prologue(flags, edit, has_loads):
    out = np.zeros(4, np.int64)
    values = (ctypes.c_uint64(out.ctypes.data), ctypes.c_int(-5), ctypes.c_float(7), ctypes.c_short(-3),
              ctypes.c_int64(1 << 40))
    params = (ctypes.c_void_p * 5)(*(ctypes.addressof(value) for value in values))
    elf = edit(code_object(ARGUMENTS, "--no-gpu-bundle-output", *flags))
    with runtime().module(elf) as module, sim.enabled(checks=("wait", "uninit")) as session:
        sim.reset_counters()
        runtime().call("hipModuleLaunchKernel", module.function("arguments"), 1, 1, 1, 64, 1, 1, 0, None, params, None)
        assert ("smem" in session.counters["arguments"]["by_class"]) == has_loads
    np.testing.assert_array_equal(out, [-5, 7, -3, 1 << 40])


def test_allocations_copies_and_fills():
    hip, data = sim.load(), np.arange(1000, dtype=np.int32)
    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    for block in (first, second):
        assert hip.hipMalloc(ctypes.byref(block), ctypes.c_size_t(4000)) == 0 and block.value % 256 == 0
    back = np.zeros(1000, np.int32)
    assert hip.hipMemcpy(first, pointer(data), ctypes.c_size_t(4000), 1) == 0
    assert hip.hipMemcpy(second, first, ctypes.c_size_t(4000), 3) == 0
    assert hip.hipMemsetD32(second, 9, ctypes.c_size_t(10)) == 0
    assert hip.hipMemcpy(pointer(back), second, ctypes.c_size_t(4000), 2) == 0
    np.testing.assert_array_equal(back, np.append(np.full(10, 9), data[10:]))
    assert hip.hipFree(first) == 0 and hip.hipFree(second) == 0 and hip.hipFree(None) == 0
    assert hip.hipFree(first) == 1 and "not the start of a live allocation" in error_text()
    assert hip.hipMemcpy(ctypes.c_void_p(64), pointer(data), ctypes.c_size_t(4), 1) == 1
    assert "wild memory access" in hip.hipGetErrorString(1).decode()
    hip.hipGetLastError()


def test_device_properties():
    hip, properties, value = sim.load(), ctypes.create_string_buffer(1472), ctypes.c_int()
    assert hip.hipGetDevicePropertiesR0600(properties, 0) == 0
    raw = properties.raw
    assert raw[1160:1416].rstrip(b"\0") == b"gfx942:sramecc+:xnack-"
    assert int.from_bytes(raw[388:392], "little") == 304 and int.from_bytes(raw[308:312], "little") == 64
    assert hip.hipDeviceGetAttribute(ctypes.byref(value), 63, 0) == 0 and value.value == 304
    assert hip.hipDeviceGetAttribute(ctypes.byref(value), 424242, 0) == 1
    assert "attribute 424242 is not known" in hip.hipGetErrorString(1).decode()
    address, status = ctypes.c_void_p(), ctypes.c_int()
    for name in (b"hipGetDeviceProperties", b"hipModuleLaunchKernel"):
        assert hip.hipGetProcAddress(name, ctypes.byref(address), 0, ctypes.c_uint64(0), ctypes.byref(status)) == 0
        assert address.value and status.value == 0
    assert hip.hipGetProcAddress(b"hipNoSuch", ctypes.byref(address), 0, ctypes.c_uint64(0), None) == 500
    hip.hipGetLastError()
