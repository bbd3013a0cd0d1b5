# SPDX-License-Identifier: MIT
"""What a program does wrong with HIP is its error and nothing worse: null and dead handles, places beyond an
allocation, pitches, directions, flags."""

import ctypes
import re
import subprocess
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint32, c_void_p

import hip_table
import numpy as np
import pytest
from hip_calls import KERNELS, address, call, made, number
from hip_program import code_object
from hip_runtime import HipError

from aiter_like import sim

INVALID_VALUE, INVALID_PITCH, INVALID_DIRECTION, INVALID_HANDLE = 1, 12, 21, 400

# Calls each function with the same arguments, and says before each one which it is.
CALLER = """
import ctypes, sys
library, argument, *names = sys.argv[1:]
library, memory = ctypes.CDLL(library), ctypes.create_string_buffer(b"\\xab" * 65536)
arguments = [ctypes.c_void_p(0 if argument == "null" else ctypes.addressof(memory) + 4096 * i) for i in range(12)]
for name in names:
    print(name, flush=True)
    getattr(library, name)(*arguments)
print("to the end")
"""


def error(name: str, *arguments: object) -> int:
    """The error's number, which the call alone has told."""
    library = sim.load()
    code = getattr(library, name)(*arguments)
    library.hipGetLastError()
    return code


# By value, or a host address of any length: the program's memory is at stake, on hardware too.
NO_ADDRESS = {"hipCreateChannelDesc"}
WILD = {"hipDrvLaunchKernelEx", "hipLaunchKernelExC"}


@pytest.mark.parametrize("argument", ("null", "garbage"))
def test_no_function_dies_of_its_arguments(argument):
    names = [name for name in hip_table.exported() if name not in NO_ADDRESS]
    if argument == "garbage":
        names = [name for name in names if name not in WILD and not name.startswith(("hipMemset", "hipMemcpy"))]
    done = subprocess.run([sys.executable, "-c", CALLER, sim.load()._name, argument, *names], capture_output=True,
                          text=True, timeout=120, check=False)
    assert len(names) > 120 and done.stdout.splitlines()[-1] == "to the end", f"{argument} arguments, and dead"


class TestHandles:
    def test_of_graphs(self):
        stream, pointer, graph, node = made("hipStreamCreate"), made("hipMalloc", c_size_t(4)), c_void_p(), c_void_p()
        call("hipStreamBeginCapture", stream, 0)
        call("hipMemsetAsync", pointer, 0, c_size_t(4), stream)
        call("hipStreamEndCapture", stream, byref(graph))
        call("hipGraphGetNodes", graph, byref(node), byref(c_size_t(1)))
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphExecDestroy", executable)
        call("hipGraphDestroy", graph)
        kind = c_int()
        for name, *arguments in (
                ("hipGraphDestroy", graph), ("hipGraphDestroy", None), ("hipGraphExecDestroy", executable),
                ("hipGraphExecDestroy", None), ("hipGraphLaunch", executable, None),
                ("hipGraphNodeGetType", node, byref(kind)),
                ("hipGraphInstantiate", byref(node), graph, None, None, c_size_t(0))):
            assert error(name, *arguments) == INVALID_VALUE, name

    def test_of_modules(self):
        code = code_object(KERNELS)
        module = made("hipModuleLoadData", code)
        function = made("hipModuleGetFunction", module, b"twice")
        call("hipModuleUnload", module)
        assert error("hipModuleUnload", module) == error("hipModuleUnload", None) == INVALID_HANDLE
        assert error("hipModuleGetFunction", byref(function), module, b"twice") == INVALID_HANDLE
        for gone in (function, None):
            assert error("hipModuleLaunchKernel", gone, 1, 1, 1, 64, 1, 1, 0, None, None, None) == INVALID_HANDLE

    def test_of_streams_and_events(self):
        stream, event = made("hipStreamCreate"), made("hipEventCreate")
        call("hipStreamDestroy", stream)
        call("hipEventDestroy", event)
        out = c_void_p()
        for name, *arguments in (("hipStreamDestroy", stream), ("hipStreamSynchronize", stream),
                                 ("hipEventDestroy", event), ("hipEventRecord", event, None),
                                 ("hipMallocAsync", byref(out), c_size_t(8), stream)):
            assert error(name, *arguments) == INVALID_HANDLE, name

    def test_flags_exist(self):
        out = c_void_p()
        for name, *arguments in (
                ("hipStreamCreateWithFlags", byref(out), 6), ("hipEventCreateWithFlags", byref(out), 0x100),
                ("hipEventCreateWithFlags", byref(out), 4),
                ("hipHostMalloc", byref(out), c_size_t(8), c_uint32(0xc0000000)),
                ("hipMallocManaged", byref(out), c_size_t(8), 7), ("hipMallocManaged", byref(out), c_size_t(0), 1),
                ("hipExtMallocWithFlags", byref(out), c_size_t(9), 2), ("hipStreamWaitEvent", None, None, 9),
                ("hipStreamAddCallback", None, None, None, 0), ("hipDeviceEnablePeerAccess", 0, 1)):
            assert error(name, *arguments) == INVALID_VALUE, name
        priority = c_int()
        for asked, given in ((-100, -1), (100, 1), (0, 0)):
            stream = made("hipStreamCreateWithPriority", 0, asked)
            call("hipStreamGetPriority", stream, byref(priority))
            assert priority.value == given


class TestPlaces:
    def test_copies_and_fills_end_in_the_allocation(self):
        pointer, host = made("hipMalloc", c_size_t(64)), np.zeros(256, np.uint8)
        inner = c_void_p(pointer.value + 60)
        with pytest.raises(HipError, match=r"the copy's target has 65 bytes, and hipMalloc #\d+ ends after 64"):
            call("hipMemcpy", pointer, address(host), c_size_t(65), 1)
        for name, *arguments in (
                ("hipMemcpy", address(host), inner, c_size_t(5), 2), ("hipMemset", pointer, 0, c_size_t(65)),
                ("hipMemcpyAsync", pointer, address(host), c_size_t(65), 1, None),
                ("hipMemsetD32", inner, 0, c_size_t(2)),
                ("hipMemcpy", None, address(host), c_size_t(1), 1), ("hipMemset", None, 0, c_size_t(1)),
                ("hipMemset2D", pointer, c_size_t(4), 0, c_size_t(8), c_size_t(2)),
                ("hipMemcpy2D", pointer, c_size_t(32), address(host), c_size_t(32), c_size_t(32), c_size_t(3), 1)):
            assert error(name, *arguments) == INVALID_VALUE, name
        assert error("hipMemcpy", pointer, address(host), c_size_t(64), 1) == 0
        assert error("hipMemcpy", inner, address(host), c_size_t(0), 1) == 0
        call("hipFree", pointer)
        with pytest.raises(HipError, match="which is freed"):
            call("hipMemcpy", address(host), pointer, c_size_t(4), 2)

    def test_pitches_and_directions(self):
        pointer, host = made("hipMalloc", c_size_t(64)), np.zeros(64, np.uint8)
        for pitches in ((8, 16), (16, 8)):
            to, source, width = map(c_size_t, (*pitches, 16))
            assert error("hipMemcpy2D", pointer, to, address(host), source, width, c_size_t(2), 1) == INVALID_PITCH
        for kind in (-1, 5, 77):
            assert error("hipMemcpy", pointer, address(host), c_size_t(4), kind) == INVALID_DIRECTION
        assert error("hipMemcpy", pointer, address(host), c_size_t(4), 1024) == 0

    def test_memory_of_another_kind_is_not_freed(self):
        pointer = made("hipMalloc", c_size_t(64))
        assert error("hipHostFree", pointer) == INVALID_VALUE and error("hipMemset", pointer, 0, c_size_t(64)) == 0
        assert error("hipFree", pointer) == 0 and error("hipFree", pointer) == INVALID_VALUE


def test_what_may_be_asked_of_a_pointer():
    pointer = made("hipMalloc", c_size_t(64))
    answers = {which: number("hipPointerGetAttribute", ctypes.c_uint64, which, pointer)
               for which in (2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)}
    assert answers[7] and answers[11] == answers[3] == pointer.value and answers[12] == 64 and answers[17] == 0
    assert number("hipPointerGetAttribute", ctypes.c_uint64, 7, made("hipMalloc", c_size_t(64))) != answers[7]
    assert error("hipPointerGetAttribute", byref(c_void_p()), 99, pointer) == INVALID_VALUE
    assert error("hipPointerGetAttributes", (c_char * 64)(), None) == INVALID_VALUE


def test_every_error_has_a_name():
    """hipError_t of HIP's public headers, as this repository's have it."""
    listed = (hip_table.ROOT / "csrc/sim/hip/error_names.def").read_text()
    names = re.findall(r'ERROR\((\d+), (hip\w+), "([^"]+)"\)', listed)
    library, text = sim.load(), ctypes.c_char_p()
    library.hipGetErrorName.restype = ctypes.c_char_p
    assert len(names) == 80 and {"hipErrorNoDevice", "hipErrorIllegalAddress"} <= {name for _, name, _ in names}
    for code, name, _ in names:
        assert library.hipGetErrorName(int(code)).decode() == name
        call("hipDrvGetErrorString", int(code), byref(text))
        assert text.value
    assert error("hipDrvGetErrorName", 4711, byref(text)) == error("hipDrvGetErrorName", 1, None) == INVALID_VALUE


def test_a_reset_device_has_nothing_left():
    pointer, host = made("hipMalloc", c_size_t(1 << 20)), made("hipHostMalloc", c_size_t(8), 0)
    stream = made("hipStreamCreate")
    free, total = c_size_t(), c_size_t()
    call("hipDeviceSetLimit", 0, c_size_t(4096))
    call("hipDeviceReset")
    assert error("hipFree", pointer) == INVALID_VALUE and error("hipStreamDestroy", stream) == INVALID_HANDLE
    call("hipMemGetInfo", byref(free), byref(total))
    assert number("hipDeviceGetLimit", c_size_t, 0) == 1024 and total.value - free.value < 1 << 20
    call("hipHostFree", host)
