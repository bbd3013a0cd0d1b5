# SPDX-License-Identifier: MIT
"""HIP's other calls, as a client makes them: what devices tell, memory of other processes, what may be said of memory;
and what is not simulated."""

import ctypes
import re
import subprocess
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest
from hip_calls import address, call, made, number
from hip_runtime import HipError

from aiter_like import sim

_PER_THREAD = c_void_p(2)


@pytest.fixture
def devices():
    with sim.enabled(devices=2):
        yield
        call("hipSetDevice", 0)


class TestDevices:
    def test_pci_and_uuid_name_a_device(self, devices):
        names, uuids = set(), set()
        for device in range(2):
            text, uuid = ctypes.create_string_buffer(16), (c_char * 16)()
            call("hipDeviceGetPCIBusId", text, 16, device)
            call("hipDeviceGetUuid", uuid, device)
            assert number("hipDeviceGetByPCIBusId", c_int, text) == device
            properties = (c_char * 1472)()
            call("hipGetDevicePropertiesR0600", properties, device)
            assert properties.raw[256:272] == uuid.raw
            assert f"0000:{int.from_bytes(properties.raw[584:588], 'little'):02x}:00.0".encode() == text.value
            names.add(text.value)
            uuids.add(uuid.raw)
        assert len(names) == len(uuids) == 2
        with pytest.raises(HipError, match="no device has the bus ID 0000:ff:00.0"):
            number("hipDeviceGetByPCIBusId", c_int, b"0000:ff:00.0")

    def test_limits_and_links(self, devices):
        call("hipDeviceSetLimit", 0, c_size_t(2048))
        assert number("hipDeviceGetLimit", c_size_t, 0) == 2048
        with pytest.raises(HipError, match="215: this limit"):
            call("hipDeviceSetLimit", 0x1000, c_size_t(1))
        assert [number("hipDeviceGetP2PAttribute", c_int, which, 0, 1) for which in range(4)] == [0, 1, 1, 1]
        with pytest.raises(HipError, match="101: a device is not its own peer"):
            number("hipDeviceGetP2PAttribute", c_int, 1, 1, 1)

    def test_attributes_agree_with_the_properties(self):
        properties = (c_char * 1472)()
        call("hipGetDevicePropertiesR0600", properties, 0)
        fields = {0: 580, 2: 600, 3: 400, 8: 576, 12: 384, 14: 632, 15: 664, 16: 396, 19: 616, 20: 636, 24: 652,
                  25: 712, 56: 320, 57: 624, 63: 388, 67: 584, 68: 588, 70: 620, 74: 296, 75: 696, 78: 628, 79: 568,
                  81: 368, 82: 376, 85: 604, 87: 308, 88: 744, 90: 728, 91: 760, 10000: 1424, 10002: 1416, 10011: 1464}
        for which, offset in fields.items():
            value = int.from_bytes(properties.raw[offset:offset + 4], "little")
            assert number("hipDeviceGetAttribute", c_int, which, 0) == value, which

    def test_what_programs_look_for_before_they_use_it(self):
        """hipDeviceProp_t.arch, overlapping copies, and atomics in the host's memory, without which samples end."""
        properties = (c_char * 1472)()
        call("hipGetDevicePropertiesR0600", properties, 0)
        features = int.from_bytes(properties.raw[1428:1432], "little")
        missing = [bit for bit in range(32) if not features >> bit & 1]
        assert missing == [11, 13, 14, *range(16, 32)], "funnel shifts, surfaces, dynamic parallelism"
        assert [number("hipDeviceGetAttribute", c_int, which, 0) for which in (2, 12, 15)] == [8, 1, 1]


_OTHER_PROCESS = """
import ctypes, sys
from aiter_like import sim
library = sim.load()
handle, pointer = (ctypes.c_char * 64).from_buffer_copy(bytes.fromhex(sys.argv[1])), ctypes.c_void_p()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
by_value = Handle.from_buffer_copy(handle)
assert library.hipIpcOpenMemHandle(ctypes.byref(pointer), by_value, 1) == 0
print(ctypes.string_at(pointer.value, 8).hex())
assert library.hipMemset(pointer, 5, ctypes.c_size_t(4)) == 0
assert library.hipIpcCloseMemHandle(pointer) == 0
assert library.hipIpcCloseMemHandle(pointer) != 0
freed = Handle.from_buffer_copy(bytes.fromhex(sys.argv[2]))
assert library.hipIpcOpenMemHandle(ctypes.byref(pointer), freed, 1) == 1, "its memory is gone"
"""


class TestOtherProcesses:
    def test_memory_is_one_and_stays_where_it_is(self):
        data = np.random.default_rng().integers(0, 255, 1000, dtype=np.uint8)
        pointer, handle, freed = made("hipMalloc", c_size_t(1000)), (c_char * 64)(), (c_char * 64)()
        gone = made("hipMalloc", c_size_t(64))
        call("hipIpcGetMemHandle", freed, gone)
        call("hipFree", gone)
        call("hipMemcpy", pointer, address(data), c_size_t(1000), 1)
        call("hipIpcGetMemHandle", handle, pointer)  # its file has the number that the other one had
        assert ctypes.string_at(pointer.value, 1000) == data.tobytes()
        out = subprocess.run([sys.executable, "-c", _OTHER_PROCESS, handle.raw.hex(), freed.raw.hex()],
                             capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        assert bytes.fromhex(out.stdout.split()[-1]) == data[:8].tobytes()
        assert ctypes.string_at(pointer.value, 8) == bytes([5] * 4) + data[4:8].tobytes()
        call("hipFree", pointer)

    def test_not_its_own_and_no_other_memory(self):
        pointer = made("hipMalloc", c_size_t(64))

        class Handle(ctypes.Structure):
            _fields_ = [("bytes", c_char * 64)]

        handle = Handle()
        call("hipIpcGetMemHandle", byref(handle), pointer)
        with pytest.raises(HipError, match="201: a process does not open its own handles"):
            made("hipIpcOpenMemHandle", handle, 1)
        with pytest.raises(HipError, match="no handle of hipIpcGetMemHandle"):
            made("hipIpcOpenMemHandle", Handle(), 1)
        with pytest.raises(HipError, match="1: the pointer is in no memory of hipMalloc"):
            call("hipIpcGetMemHandle", byref(handle), address(np.zeros(4)))
        call("hipFree", pointer)

    def test_events_need_their_flags(self):
        handle, event = (c_char * 64)(), made("hipEventCreate")
        with pytest.raises(HipError, match="hipEventInterprocess and hipEventDisableTiming"):
            call("hipIpcGetEventHandle", handle, event)
        call("hipIpcGetEventHandle", handle, made("hipEventCreateWithFlags", 6))


def test_what_may_be_said_of_memory():
    memory, size = made("hipMallocManaged", c_size_t(4096), 1), c_size_t(4096)
    call("hipMemAdvise", memory, size, 3, -1)
    call("hipMemPrefetchAsync", memory, size, 0, None)
    found = c_size_t()
    call("hipMemPtrGetInfo", c_void_p(memory.value + 5), byref(found))
    assert found.value == 4096
    for name, *arguments, told in (("hipMemAdvise", c_size_t(8192), 1, 0, "not in one known allocation"),
                                   ("hipMemAdvise", size, 50, 0, "none of hipMemoryAdvise"),
                                   ("hipMemPrefetchAsync", size, 9, None, "device 9 of 1")):
        with pytest.raises(HipError, match=told):
            call(name, memory, *arguments)
    call("hipFree", memory)


def test_the_number_of_the_threads_own_stream_is_a_stream():
    data, back = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    pointer = made("hipMalloc", c_size_t(400))
    call("hipMemcpyAsync", pointer, address(data), c_size_t(400), 1, _PER_THREAD)
    call("hipMemsetAsync", pointer, 0, c_size_t(40), _PER_THREAD)
    call("hipMemcpyAsync", address(back), pointer, c_size_t(400), 2, _PER_THREAD)
    call("hipStreamSynchronize", _PER_THREAD)
    np.testing.assert_array_equal(back, np.where(data < 10, 0, data))
    assert sim.load().hipGetStreamDeviceId(_PER_THREAD) == 0
    words = (c_uint32 * 10)()
    call("hipExtStreamGetCUMask", _PER_THREAD, 10, words)
    assert sum(word.bit_count() for word in words) == 304
    with pytest.raises(HipError, match="the default stream cannot be destroyed"):
        call("hipStreamDestroy", _PER_THREAD)
    call("hipFree", pointer)


def test_what_is_not_simulated_says_so_once(capfd):
    for _ in range(2):
        with pytest.raises(HipError, match="801: hipTexRefGetArray is not simulated: textures"):
            call("hipTexRefGetArray", None, None)
    assert capfd.readouterr().err.count("hipTexRefGetArray is not simulated") <= 1


def test_every_function_of_the_public_header_is_there():
    """Triton brings HIP's header along; a macro in it gives two functions the names of their present structure."""
    folder = Path(pytest.importorskip("triton").__file__).parent
    header = (folder / "backends/amd/include/hip/hip_runtime_api.h").read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    names = set(re.findall(r"^(?:hipError_t|const char ?\*|int) ?(hip[A-Z]\w+)\(", text, re.MULTILINE))
    assert len(names) > 400
    library = sim.load()
    assert [name for name in sorted(names) if not hasattr(library, name)
            and not hasattr(library, f"{name}R0600")] == []
