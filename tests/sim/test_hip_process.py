# SPDX-License-Identifier: MIT
"""A C++ HIP program with the simulator as its only HIP library, and several simulated devices in one process."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import sim
from aiter_like.modules import toolchain

FOLDER = Path(__file__).parent


def compile_program(name: str, output: Path, *flags: str) -> None:
    """A source of this folder with the public HIP headers that Triton brings along."""
    headers = Path(pytest.importorskip("triton").__file__).parent / "backends/amd/include"
    command = [toolchain.find("hip").host_compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++20", "-O1",
               "-nogpuinc", "-nogpulib", "-D__HIP_PLATFORM_AMD__", "-Wno-unused-command-line-argument",
               f"-I{headers}", *flags, str(FOLDER / name), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def link_program(name: str, output: Path, *flags: str) -> None:
    """An executable of the source whose only HIP library is the simulator."""
    library = Path(sim.load()._name)
    compile_program(name, output.with_suffix(".o"), "-c", *flags)
    link = ["c++", str(output.with_suffix(".o")), "-o", str(output), str(library), f"-Wl,-rpath,{library.parent}"]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_without_python(tmp_path):
    compile_program("hip_process.hip", tmp_path / "module.co", "--offload-device-only", "--no-gpu-bundle-output", "-c")
    link_program("hip_process.hip", tmp_path / "program")
    done = subprocess.run([str(tmp_path / "program"), str(tmp_path / "module.co")], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout) == (0, "all of it works\n"), done.stdout + done.stderr
    linked = subprocess.run(["ldd", str(tmp_path / "program")], capture_output=True, text=True, check=True).stdout
    assert [line for line in linked.splitlines() if "hip" in line or "hsa" in line][0].split()[0] == "libamdhip64.so"


def run_pipeline(program: Path, settings: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(program)], env={**os.environ, "AITER_LIKE_SIM": settings}, capture_output=True,
                          text=True, check=False)


def test_a_pipeline_of_streams_a_captured_graph_and_pools(tmp_path):
    link_program("hip_pipeline.hip", tmp_path / "pipeline")
    for settings in ("1", "check", "fuzz=3,threads=2", "defer", *(f"defer,fuzz={seed}" for seed in range(1, 5))):
        done = run_pipeline(tmp_path / "pipeline", settings)
        told = "[sim:launch] kernel increment: block 2048x1x1 is not between 1 and 1024\n"  # which it tries
        expected = (0, "all of it works\n", told if settings == "check" else "")
        assert (done.returncode, done.stdout, done.stderr) == expected, (settings, done)


def test_a_forgotten_wait_shows_when_streams_are_deferred(tmp_path):
    link_program("hip_pipeline.hip", tmp_path / "pipeline", "-DFORGETS_TO_WAIT")
    assert run_pipeline(tmp_path / "pipeline", "1").returncode == 0, "program order hides it"
    assert all(run_pipeline(tmp_path / "pipeline", settings).returncode == 2 for settings in ("defer", "defer,fuzz=1"))


def test_after_a_fault_every_call_reports_it(tmp_path):
    """As on hardware; what a launch is refused for is not. The wrong line's three stores are told once."""
    link_program("hip_sticky.hip", tmp_path / "sticky", "-gline-tables-only")
    for how, settings in (("bounds", "check"), ("bounds", "check,defer"), ("wild", "1")):
        done = subprocess.run([str(tmp_path / "sticky"), how], env={**os.environ, "AITER_LIKE_SIM": settings},
                              capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "all of it works\n"), (settings, done)
        told = done.stderr.partition("[sim:bounds] store ")[2].splitlines()
        assert settings == "1" or (told[1].endswith(" (3 times)"), told[2:]) == (
            True, ["    the same cause at 2 more instructions: flat_store_dword (2)"]), done.stderr


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
                          env={**os.environ, "AITER_LIKE_SIM": "devices=2"}, check=False)
    assert done.returncode == 0, done.stderr
