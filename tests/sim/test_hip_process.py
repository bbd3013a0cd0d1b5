# SPDX-License-Identifier: MIT
"""A C++ HIP program with the simulator as its only HIP library, and several simulated devices in one process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import sim
from aiter_like.jit import toolchain

SOURCE = Path(__file__).parent / "hip_process.hip"


def compile_program(output: Path, *flags: str) -> None:
    """hip_process.hip with the public HIP headers that Triton brings along."""
    headers = Path(pytest.importorskip("triton").__file__).parent / "backends/amd/include"
    command = [toolchain.find("hip").path, "-x", "hip", "--offload-arch=gfx942", "-std=c++20", "-O1", "-nogpuinc",
               "-nogpulib", "-D__HIP_PLATFORM_AMD__", "-Wno-unused-command-line-argument",
               f"-I{headers}", *flags, str(SOURCE), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_without_python(tmp_path):
    library = Path(sim.load()._name)
    compile_program(tmp_path / "module.co", "--offload-device-only", "--no-gpu-bundle-output", "-c")
    compile_program(tmp_path / "object.o", "-c")
    link = ["c++", str(tmp_path / "object.o"), "-o", str(tmp_path / "program"), str(library),
            f"-Wl,-rpath,{library.parent}"]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([str(tmp_path / "program"), str(tmp_path / "module.co")], capture_output=True, text=True,
                          timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "all of it works\n"), done.stdout + done.stderr
    linked = subprocess.run(["ldd", str(tmp_path / "program")], capture_output=True, text=True, check=True).stdout
    assert [line for line in linked.splitlines() if "hip" in line or "hsa" in line][0].split()[0] == "libamdhip64.so"


def test_several_devices():
    hip, value = sim.load(), ctypes.c_int()
    with sim.enabled(checks=False, devices=3):
        assert hip.hipGetDeviceCount(ctypes.byref(value)) == 0 and value.value == 3
        assert hip.hipSetDevice(2) == 0 and hip.hipGetDevice(ctypes.byref(value)) == 0 and value.value == 2
        assert hip.hipSetDevice(3) == 101 and b"device 3 of 3" in hip.hipGetErrorString(101)
        block, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert hip.hipMalloc(ctypes.byref(block), ctypes.c_size_t(64)) == 0
        assert hip.hipStreamCreate(ctypes.byref(stream)) == 0
        assert hip.hipSetDevice(0) == 0
        attributes = (ctypes.c_int * 8)()
        assert hip.hipPointerGetAttributes(attributes, block) == 0 and list(attributes[:2]) == [2, 2]
        assert hip.hipStreamGetDevice(stream, ctypes.byref(value)) == 0 and value.value == 2
        assert hip.hipDeviceCanAccessPeer(ctypes.byref(value), 0, 2) == 0 and value.value == 1
        assert hip.hipDeviceEnablePeerAccess(2, 0) == 0 and hip.hipDeviceEnablePeerAccess(2, 0) == 704
        assert hip.hipDeviceDisablePeerAccess(2) == 0 and hip.hipDeviceDisablePeerAccess(2) == 705
        data, back = ctypes.create_string_buffer(b"x" * 64), ctypes.create_string_buffer(64)
        assert hip.hipMemcpy(block, data, ctypes.c_size_t(64), 1) == 0
        assert hip.hipMemcpyPeer(back, 0, block, 2, ctypes.c_size_t(64)) == 0 and back.raw == data.raw[:64]
        assert hip.hipFree(block) == 0 and hip.hipStreamDestroy(stream) == 0
        hip.hipGetLastError()
    assert hip.hipGetDeviceCount(ctypes.byref(value)) == 0 and value.value == 1


def test_each_device_has_its_own_variables():
    program = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from hip_program import library
from aiter_like import sim
hip = sim.load()
code = library('''
__device__ int counter = 1;
extern "C" int hipMemcpyToSymbol(const void*, const void*, size_t, size_t, int);
extern "C" int hipMemcpyFromSymbol(void*, const void*, size_t, size_t, int);
__global__ void bump() { if (thread_index() == 0) counter += 1; }
extern "C" int run() {
  int x = -1;
  bump<<<1, 64, 0, nullptr>>>();
  hipMemcpyFromSymbol(&x, &counter, 4, 0, 2);
  return x;
}
''')
assert [code.run(), code.run()] == [2, 3]
assert hip.hipSetDevice(1) == 0 and code.run() == 2
assert hip.hipSetDevice(0) == 0 and code.run() == 4
"""
    done = subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True,
                          env={**os.environ, "AITER_LIKE_SIM": "devices=2"}, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
