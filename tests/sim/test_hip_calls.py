# SPDX-License-Identifier: MIT
"""HIP's other calls, as a client makes them: contexts, arrays, copies in three dimensions, virtual memory, memory of
other processes, attributes of streams; and what is not simulated."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest
from hip_calls import (
    KERNELS,
    Access,
    AllocationProperties,
    Channels,
    Copy3D,
    Extent,
    Pitched,
    Position,
    address,
    call,
    made,
    number,
)
from hip_program import code_object
from hip_runtime import HipError, runtime

from aiter_like import sim

_PER_THREAD = c_void_p(2)
_PAGE = 2 << 20


@pytest.fixture
def devices():
    with sim.enabled(devices=2):
        yield
        call("hipSetDevice", 0)


class TestDevices:
    def test_contexts_are_a_stack_of_devices(self, devices):
        primary = made("hipCtxGetCurrent")
        first, second = made("hipCtxCreate", 0, 0), made("hipCtxCreate", 0, 1)
        assert number("hipCtxGetDevice", c_int) == 1 and made("hipCtxGetCurrent").value == second.value
        assert made("hipCtxPopCurrent").value == second.value
        assert number("hipCtxGetDevice", c_int) == 0 and made("hipCtxGetCurrent").value == first.value
        call("hipCtxPushCurrent", second)
        call("hipCtxDestroy", second)
        with pytest.raises(HipError, match="201: this is not a live context"):
            call("hipCtxSetCurrent", second)
        call("hipSetDevice", 0)
        call("hipCtxDestroy", first)
        assert made("hipCtxGetCurrent").value == primary.value == made("hipDevicePrimaryCtxRetain", 0).value

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


class TestCopies:
    def test_a_box_of_a_volume(self):
        rng = np.random.default_rng()
        data = rng.integers(0, 255, (4, 5, 7), dtype=np.uint8)
        volume = Pitched()
        call("hipMalloc3D", byref(volume), Extent(7, 5, 4))
        assert volume.pitch >= 7 and volume.pitch % 256 == 0
        call("hipMemset3D", volume, 9, Extent(7, 5, 4))
        whole = Pitched(data.ctypes.data, 7, 7, 5)
        call("hipMemcpy3D", byref(Copy3D(source=whole, from_at=Position(2, 1, 1), target=volume,
                                         to_at=Position(1, 2, 1), extent=Extent(4, 3, 2), kind=1)))
        back = np.zeros_like(data)
        call("hipMemcpy3DAsync", byref(Copy3D(source=volume, target=Pitched(back.ctypes.data, 7, 7, 5),
                                              extent=Extent(7, 5, 4), kind=2)), None)
        expected = np.full_like(data, 9)
        expected[1:3, 2:5, 1:5] = data[1:3, 1:4, 2:6]
        np.testing.assert_array_equal(back, expected)
        call("hipFree", c_void_p(volume.pointer))

    def test_arrays_row_by_row_and_over_the_ends_of_rows(self):
        data = np.random.default_rng().standard_normal((6, 9)).astype(np.float32)
        array = made("hipMallocArray", byref(Channels(32, 0, 0, 0, 2)), c_size_t(9), c_size_t(6), 0)
        call("hipMemcpy2DToArray", array, c_size_t(0), c_size_t(0), address(data), c_size_t(36), c_size_t(36),
             c_size_t(6), 1)
        window, run = np.zeros((2, 4), np.float32), np.zeros(13, np.float32)
        call("hipMemcpy2DFromArray", address(window), c_size_t(16), array, c_size_t(8), c_size_t(3), c_size_t(16),
             c_size_t(2), 2)
        np.testing.assert_array_equal(window, data[3:5, 2:6])
        call("hipMemcpyAtoH", address(run), array, c_size_t(4 * 7), c_size_t(4 * 13))
        np.testing.assert_array_equal(run, data.ravel()[7:20])
        extent, channels = Extent(), Channels()
        call("hipArrayGetInfo", byref(channels), byref(extent), None, array)
        assert (extent.width, extent.height, extent.depth, channels.x, channels.kind) == (9, 6, 0, 32, 2)
        with pytest.raises(HipError, match="1: the copy exceeds the array"):
            call("hipMemcpy2DFromArray", address(window), c_size_t(16), array, c_size_t(24), c_size_t(0), c_size_t(16),
                 c_size_t(2), 2)
        call("hipFreeArray", array)
        with pytest.raises(HipError, match="400: this is not a live array"):
            call("hipFreeArray", array)

    def test_an_array_of_vectors_takes_elements_for_its_extent(self):
        data = np.random.default_rng().integers(0, 9, (3, 4, 2), dtype=np.int16)
        array = made("hipMallocArray", byref(Channels(16, 16, 0, 0, 0)), c_size_t(4), c_size_t(3), 0)
        call("hipMemcpy3D", byref(Copy3D(source=Pitched(data.ctypes.data, 16, 4, 3), to_array=array,
                                         extent=Extent(4, 3, 1), kind=1)))
        back = np.zeros((2, 2, 2), np.int16)
        call("hipMemcpy3D", byref(Copy3D(from_array=array, from_at=Position(1, 1, 0),
                                         target=Pitched(back.ctypes.data, 8, 2, 2), extent=Extent(2, 2, 1), kind=2)))
        np.testing.assert_array_equal(back, data[1:3, 1:3])
        call("hipFreeArray", array)

    def test_the_threads_own_stream(self):
        data, back = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
        pointer = made("hipMalloc", c_size_t(400))
        call("hipMemcpy_spt", pointer, address(data), c_size_t(400), 1)
        call("hipMemsetAsync_spt", pointer, 0, c_size_t(40), None)
        call("hipMemcpyAsync_spt", address(back), pointer, c_size_t(400), 2, None)
        call("hipStreamSynchronize_spt", None)
        np.testing.assert_array_equal(back, np.where(data < 10, 0, data))
        numbers = []
        for stream in (None, _PER_THREAD):
            found = c_uint64()
            call("hipStreamGetId", stream, byref(found))
            numbers.append(found.value)
        assert numbers[0] == 0 < numbers[1]
        call("hipFree", pointer)


class TestVirtualMemory:
    def test_one_piece_of_memory_at_two_addresses(self):
        properties = AllocationProperties(1, 1, 1, 0)
        assert number("hipMemGetAllocationGranularity", c_size_t, byref(properties), 0) == _PAGE
        space = made("hipMemAddressReserve", c_size_t(2 * _PAGE), c_size_t(0), None, c_uint64(0))
        piece = made("hipMemCreate", c_size_t(_PAGE), byref(properties), c_uint64(0))
        for place in (space.value, space.value + _PAGE):
            call("hipMemMap", c_void_p(place), c_size_t(_PAGE), c_size_t(0), piece, c_uint64(0))
        with pytest.raises(HipError, match="mapped at these addresses already"):
            call("hipMemMap", space, c_size_t(_PAGE), c_size_t(0), piece, c_uint64(0))
        call("hipMemSetAccess", space, c_size_t(2 * _PAGE), byref(Access(1, 0, 3)), c_size_t(1))
        call("hipMemRelease", piece)

        x, back = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
        call("hipMemcpy", space, address(x), c_size_t(256), 1)
        with runtime().module(code_object(KERNELS)) as module, sim.enabled(checks=True):
            runtime().launch(module.function("twice"), 1, 64, 0,
                             [space.value + _PAGE, 64])
        call("hipMemcpy", address(back), space, c_size_t(256), 2)
        np.testing.assert_array_equal(back, 2 * x)

        call("hipMemUnmap", space, c_size_t(2 * _PAGE))
        with pytest.raises(HipError):
            call("hipMemcpy", address(back), space, c_size_t(256), 2)
        call("hipMemAddressFree", space, c_size_t(2 * _PAGE))

    def test_without_access_a_copy_is_an_error(self):
        space = made("hipMemAddressReserve", c_size_t(_PAGE), c_size_t(0), None, c_uint64(0))
        piece = made("hipMemCreate", c_size_t(_PAGE), byref(AllocationProperties(1, 0, 1, 0)), c_uint64(0))
        call("hipMemMap", space, c_size_t(_PAGE), c_size_t(0), piece, c_uint64(0))
        with pytest.raises(HipError):
            call("hipMemset", space, 0, c_size_t(8))
        call("hipMemUnmap", space, c_size_t(_PAGE))
        call("hipMemRelease", piece)
        call("hipMemAddressFree", space, c_size_t(_PAGE))

    def test_a_file_descriptor_carries_memory(self):
        properties, file = AllocationProperties(1, 1, 1, 0), c_int()
        piece = made("hipMemCreate", c_size_t(_PAGE), byref(properties), c_uint64(0))
        call("hipMemExportToShareableHandle", byref(file), piece, 1, c_uint64(0))
        again = made("hipMemImportFromShareableHandle", c_void_p(file.value), 1)
        for handle, value in ((piece, 7), (again, None)):
            space = made("hipMemAddressReserve", c_size_t(_PAGE), c_size_t(0), None, c_uint64(0))
            call("hipMemMap", space, c_size_t(_PAGE), c_size_t(0), handle, c_uint64(0))
            call("hipMemSetAccess", space, c_size_t(_PAGE), byref(Access(1, 0, 3)), c_size_t(1))
            if value:
                call("hipMemset", space, value, c_size_t(16))
            assert ctypes.string_at(space.value, 16) == bytes([7]) * 16
            call("hipMemUnmap", space, c_size_t(_PAGE))
            call("hipMemRelease", handle)
            call("hipMemAddressFree", space, c_size_t(_PAGE))


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


class TestStreams:
    def test_attributes(self):
        stream, value = made("hipStreamCreate"), (c_int * 16)(4)
        call("hipStreamSetAttribute", stream, 3, value)
        other = made("hipStreamCreateWithPriority", 0, -1)
        found = (c_int * 16)()
        call("hipStreamGetAttribute", other, 8, found)
        assert found[0] == -1
        call("hipStreamCopyAttributes", other, stream)
        call("hipStreamGetAttribute", other, 3, found)
        assert found[0] == 4
        with pytest.raises(HipError, match="no attribute of a stream"):
            call("hipStreamSetAttribute", stream, 2, value)
        for one in (stream, other):
            call("hipStreamDestroy", one)

    def test_values_in_memory(self):
        place = made("hipMalloc", c_size_t(8))
        call("hipStreamWriteValue64", None, place, c_uint64(1 << 40), 0)
        call("hipStreamWaitValue64", None, place, c_uint64(1 << 39), 0, c_uint64(2 ** 64 - 1))
        call("hipStreamWaitValue32", None, c_void_p(place.value + 4), c_uint32(1 << 8), 1, c_uint32(0xffff))
        with pytest.raises(HipError, match="null or not aligned"):
            call("hipStreamWriteValue32", None, c_void_p(place.value + 1), c_uint32(0), 0)
        call("hipFree", place)


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
