# SPDX-License-Identifier: MIT
"""Calls of HIP with a result, and two kernels."""

from ctypes import byref, c_void_p

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
