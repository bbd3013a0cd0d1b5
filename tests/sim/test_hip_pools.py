# SPDX-License-Identifier: MIT
"""Memory pools: what is counted, held back and limited; memory that a capturing stream allocates."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import address, call, made
from hip_runtime import HipError

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8
MIB = 1 << 20


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("security", c_void_p),
                ("most", c_size_t), ("reserved", ctypes.c_char * 56)]


class Pool:
    def __init__(self, most: int = 0):
        self.handle = made("hipMemPoolCreate", byref(Properties(1, 0, 1, 0, None, most)))

    def __getitem__(self, which: int) -> int:
        value = c_uint64()
        call("hipMemPoolGetAttribute", self.handle, which, byref(value))
        return value.value

    def __setitem__(self, which: int, value: int) -> None:
        call("hipMemPoolSetAttribute", self.handle, which, byref(c_uint64(value)))

    def allocate(self, size: int) -> c_void_p:
        return made("hipMallocFromPoolAsync", c_size_t(size), self.handle, None)


@pytest.fixture
def pool():
    one = Pool(most=4 * MIB)
    yield one
    call("hipMemPoolDestroy", one.handle)


def test_what_is_used_and_held(pool):
    other = made("hipMalloc", c_size_t(MIB))
    first, second = pool.allocate(MIB), pool.allocate(2 * MIB)
    assert [pool[which] for which in (USED, USED_HIGH, RESERVED, RESERVED_HIGH)] == [3 * MIB] * 4
    call("hipFreeAsync", second, None)
    assert [pool[which] for which in (USED, USED_HIGH, RESERVED, RESERVED_HIGH)] == [MIB, 3 * MIB, MIB, 3 * MIB]
    pool[THRESHOLD] = 2**64 - 1
    call("hipFreeAsync", pool.allocate(MIB), None)
    call("hipFreeAsync", first, None)
    assert (pool[USED], pool[RESERVED]) == (0, 2 * MIB), "the threshold holds it"
    call("hipMemPoolTrimTo", pool.handle, c_size_t(MIB))
    assert pool[RESERVED] == MIB
    pool[USED_HIGH] = 0
    assert (pool[USED_HIGH], pool[RESERVED_HIGH]) == (0, 3 * MIB)
    for which, value in ((USED_HIGH, 5), (USED, 0)):
        with pytest.raises(HipError, match="can be set to 0 only|cannot be set"):
            pool[which] = value
    call("hipFree", other)


def test_a_pool_has_a_limit_and_may_be_the_devices(pool):
    first = pool.allocate(3 * MIB)
    with pytest.raises(HipError, match="error 2: the pool holds at most 4194304 bytes"):
        pool.allocate(2 * MIB)
    call("hipDeviceSetMemPool", 0, pool.handle)
    second = made("hipMallocAsync", c_size_t(MIB), None)
    assert pool[USED] == 4 * MIB and made("hipDeviceGetMemPool", 0).value == pool.handle.value
    found = c_void_p()
    call("hipPointerGetAttribute", byref(found), 17, second)
    assert found.value == pool.handle.value
    call("hipDeviceSetMemPool", 0, made("hipDeviceGetDefaultMemPool", 0))
    call("hipFree", first)
    call("hipFree", second)
    assert pool[USED] == 0


def test_what_is_no_pool():
    gone = Pool()
    memory = gone.allocate(8)
    call("hipMemPoolDestroy", gone.handle)
    call("hipFree", memory)
    for name, *arguments in (("hipMemPoolDestroy", gone.handle), ("hipMemPoolTrimTo", gone.handle, c_size_t(0)),
                             ("hipDeviceSetMemPool", 0, gone.handle)):
        with pytest.raises(HipError, match="not a live memory pool"):
            call(name, *arguments)
    with pytest.raises(HipError, match="pinned memory of a device"):
        made("hipMemPoolCreate", byref(Properties()))


def test_memory_of_a_capture():
    stream, out = made("hipStreamCreate"), np.zeros(16, np.uint8)
    call("hipStreamBeginCapture", stream, 0)
    pointer = made("hipMallocAsync", c_size_t(16), stream)
    call("hipMemsetAsync", pointer, 7, c_size_t(16), stream)
    call("hipMemcpyAsync", address(out), pointer, c_size_t(16), 2, stream)
    call("hipFreeAsync", pointer, stream)
    graph = c_void_p()
    call("hipStreamEndCapture", stream, byref(graph))
    count = c_size_t(4)
    nodes = (c_void_p * 4)()
    call("hipGraphGetNodes", graph, nodes, byref(count))
    kinds = []
    for node in nodes:
        kind = c_int()
        call("hipGraphNodeGetType", c_void_p(node), byref(kind))
        kinds.append(kind.value)
    assert kinds == [10, 2, 1, 11]
    executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    call("hipGraphDestroy", graph)
    for _ in range(2):
        out[:] = 0
        call("hipGraphLaunch", executable, stream)
        call("hipStreamSynchronize", stream)
        assert (out == 7).all()
    call("hipGraphExecDestroy", executable)
