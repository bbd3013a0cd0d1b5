# SPDX-License-Identifier: MIT
"""Variables of kernels, the calls that only answer, and the stack."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p

import numpy as np
import pytest
from hip_calls import address, call, made, number
from hip_program import code_object, library
from hip_runtime import HipError, runtime

from aiter_like import sim

_TO_DEVICE, _TO_HOST = 1, 2

PROGRAM = """
__device__ int table[4];
extern "C" __global__ void copy_table(int* out) { if (thread_index() < 4) out[thread_index()] = table[thread_index()]; }
extern "C" void* stub_of_copy() { return (void*)&copy_table; }
extern "C" void* symbol_of_table() { return (void*)&table; }
"""


class Config(ctypes.Structure):
    _fields_ = [("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("lds", c_size_t), ("stream", c_void_p),
                ("attributes", c_void_p), ("count", c_uint32)]


@pytest.fixture
def memory():
    taken = made("hipMalloc", c_size_t(1024))
    call("hipMemset", taken, 0, c_size_t(1024))
    yield taken
    call("hipFree", taken)


class TestVariables:
    @pytest.fixture
    def program(self):
        program = library(PROGRAM)
        program.stub_of_copy.restype = program.symbol_of_table.restype = c_void_p
        return program

    def table(self, program, memory) -> list[int]:
        """As a kernel sees it."""
        params = (c_void_p * 1)(ctypes.addressof(memory))
        config = Config((1, 1, 1), (64, 1, 1))
        call("hipLaunchKernelExC", byref(config), c_void_p(program.stub_of_copy()), params)
        return np.frombuffer(ctypes.string_at(memory.value, 16), np.int32).tolist()

    def test_copies_to_and_from(self, program, memory):
        symbol, values = c_void_p(program.symbol_of_table()), np.array([3, 1, 4, 1], np.int32)
        call("hipMemcpyToSymbol", symbol, address(values), c_size_t(16), c_size_t(0), _TO_DEVICE)
        assert self.table(program, memory) == [3, 1, 4, 1]
        call("hipMemcpyToSymbolAsync", symbol, address(values), c_size_t(4), c_size_t(12), _TO_DEVICE, None)
        back = np.zeros(2, np.int32)
        for name, stream in (("hipMemcpyFromSymbol", ()), ("hipMemcpyFromSymbolAsync", (None,))):
            back[:] = 0
            call(name, address(back), symbol, c_size_t(8), c_size_t(8), _TO_HOST, *stream)
            call("hipDeviceSynchronize")
            assert back.tolist() == [4, 3]
        with pytest.raises(HipError, match="exceeds variable"):
            call("hipMemcpyToSymbol", symbol, address(values), c_size_t(16), c_size_t(4), _TO_DEVICE)
        name = sim.load().hipKernelNameRefByPtr
        name.restype, name.argtypes = c_char_p, (c_void_p, c_void_p)
        assert name(program.stub_of_copy(), None) == b"copy_table" and name(symbol, None) is None


class TestAnswers:
    def test_of_a_device(self):
        major, minor = c_int(), c_int()
        call("hipDeviceComputeCapability", byref(major), byref(minor), 0)
        assert (major.value, minor.value) == (9, 4)
        assert number("hipDeviceGet", c_int, 0) == 0 and number("hipDeviceTotalMem", c_size_t, 0) == 192 << 30
        assert number("hipDeviceGetCacheConfig", c_uint32) == 0 and number("hipDeviceGetSharedMemConfig", c_uint32) == 1
        call("hipSetDeviceFlags", 4)
        assert number("hipGetDeviceFlags", c_uint32) & 7 == 4
        call("hipSetDeviceFlags", 0)
        with pytest.raises(HipError, match="these device flags do not exist"):
            call("hipSetDeviceFlags", 1 << 20)
        for name in ("hipDeviceReset", "hipProfilerStart", "hipProfilerStop"):
            call(name)
        call("hipDeviceSetCacheConfig", 1)
        assert number("hipRuntimeGetVersion", c_int) == number("hipDriverGetVersion", c_int)


@pytest.fixture
def stack():
    """Sets how large it is, until the test ends."""
    yield lambda size: call("hipDeviceSetLimit", 0, c_size_t(size))
    call("hipDeviceSetLimit", 0, c_size_t(1024))


def test_a_kernel_that_calls_itself_has_the_stack_that_is_set(stack):
    """Its compiler cannot tell how much it takes; hipLimitStackSize says what every work-item has."""
    source = """
__device__ __attribute__((noinline)) int sum_to(int n) {
  volatile int kept[8];
  kept[n & 7] = n;
  return n ? sum_to(n - 1) + kept[n & 7] : 0;
}
extern "C" __global__ void sums(int* out, int n) { out[thread_index()] = sum_to(n); }
"""
    sums = np.zeros(64, np.int32)
    with runtime().module(code_object(source)) as module, runtime().memory() as memory:
        out = memory.upload(sums)

        def sums_to(number: int) -> set[int]:
            runtime().launch(module.function("sums"), 1, 64, 0, [out, number])
            memory.download(out, sums)
            return set(sums.tolist())

        assert sums_to(5) == {15}
        with pytest.raises(HipError, match="scratch beyond the lane's 1024 bytes, as hipDeviceSetLimit"):
            sums_to(500)
        stack(131056)
        assert sums_to(500) == {125250}
