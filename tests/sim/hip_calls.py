# SPDX-License-Identifier: MIT
"""Structures of HIP's headers, calls with a result, and two kernels: read by test_hip_calls.py, test_hip_graphs.py."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
from hip_runtime import runtime

KERNELS = """
extern "C" __global__ void twice(int* x, int n) {
  int i = workgroup_index().x * 64 + thread_index();
  if (i < n) x[i] = 2 * x[i];
}
extern "C" __global__ void more(int* x, int n) { if (thread_index() < n) x[thread_index()] += 1; }
extern "C" void* stub_of_twice() { return (void*)&twice; }
"""


class Extent(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class Position(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t)]


class Pitched(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("pitch", c_size_t), ("width", c_size_t), ("height", c_size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [("from_array", c_void_p), ("from_at", Position), ("source", Pitched), ("to_array", c_void_p),
                ("to_at", Position), ("target", Pitched), ("extent", Extent), ("kind", c_int)]


class Channels(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("x", "y", "z", "w", "kind")]


class AllocationProperties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("metadata", c_void_p),
                ("flags", c_uint64)]


class Access(ctypes.Structure):
    _fields_ = [("location", c_int), ("device", c_int), ("flags", c_int)]


class KernelNode(ctypes.Structure):
    _fields_ = [("block", c_uint32 * 3), ("extra", c_void_p), ("stub", c_void_p), ("grid", c_uint32 * 3),
                ("params", c_void_p), ("lds_bytes", c_uint32)]


call = runtime().call


def made(name: str, *arguments: object) -> c_void_p:
    """The handle or address that a call writes through its first argument."""
    out = c_void_p()
    call(name, byref(out), *arguments)
    return out


def number(name: str, kind: type, *arguments: object) -> int:
    out = kind()
    call(name, byref(out), *arguments)
    return out.value


def address(array: np.ndarray) -> c_void_p:
    return c_void_p(array.ctypes.data)
