# SPDX-License-Identifier: MIT
"""csrc/include/aiter_like/preload.h: words of a kernel's struct that it is handed in scalar registers."""

import ctypes
import struct

import numpy as np
import pytest
from hip_program import code_object, library
from hip_runtime import runtime

from aiter_like import sim
from aiter_like.modules import recipe, toolchain

PROGRAM = """
#include "aiter_like/preload.h"
struct Args {
  long* out;
  int first, second;
  long others[5];
  const long* input;
  float number;
  int last;
  static constexpr Preload preload() { return {offsetof(Args, input), offsetof(Args, out), offsetof(Args, number)}; }
};
extern "C" __global__ void gather(AITER_LIKE_PRELOADED(Args)) {
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  load_arguments_first();
  const long input = *args.input;
  await_arguments(args.others[4], args.first);
  if (thread_index() != 0) return;
  long* out = global(args.out);
  out[0] = input, out[1] = (long)(2 * args.number), out[2] = args.last;
  out[3] = args.first, out[4] = args.others[4], out[5] = *argument_in_memory<int>(offsetof(Args, second));
}
extern "C" const char* launch(long* out, const long* input) {
  launch_overlapped(gather, dim3(1), 64, nullptr, Args{out, -5, 7, {1, 2, 3, 4, 1l << 40}, input, 2.5f, -3});
  auto error = hipGetLastError();
  return error ? hipGetErrorString(error) : nullptr;
}
"""
EXPECTED = [11, 5, -3, -5, 1 << 40, 7]
PRELOAD = ("-mllvm", "-amdgpu-kernarg-preload-count=16")


def test_a_launch_hands_over_the_words():
    out, value = np.zeros(6, np.int64), np.array([11])
    launch = library(PROGRAM).launch
    launch.restype = ctypes.c_char_p
    with sim.enabled(checks=("wait", "uninit")):
        assert launch(out.ctypes.data_as(ctypes.c_void_p), value.ctypes.data_as(ctypes.c_void_p)) is None
    np.testing.assert_array_equal(out, EXPECTED)


@pytest.mark.parametrize("flags, loads", [((), 6), (PRELOAD, 4)])
def test_the_words_replace_what_is_in_memory(flags, loads):
    out, value = np.zeros(6, np.int64), np.array([11])
    words = [ctypes.c_uint64(word) for word in (value.ctypes.data, out.ctypes.data,
                                                *struct.unpack("<Q", struct.pack("<fi", 2.5, -3)), 0, 0, 0, 0)]
    memory = ctypes.create_string_buffer(struct.pack("<Qii5qQfi", 1, -5, 7, 1, 2, 3, 4, 1 << 40, 3, 0, 0))
    params = (ctypes.c_void_p * 8)(*map(ctypes.addressof, [*words, memory]))
    elf = code_object(PROGRAM, "--no-gpu-bundle-output", *flags)
    with runtime().module(elf) as module, sim.enabled(checks=("wait", "uninit")) as session:
        runtime().call("hipModuleLaunchKernel", module.function("gather"), 1, 1, 1, 64, 1, 1, 0, None, params, None)
        (counts,) = session.counters.values()
    assert counts["by_class"]["smem"] <= loads
    np.testing.assert_array_equal(out, EXPECTED)


@pytest.mark.parametrize("name, version, identity, preloads", [
    ("clang", (22, 1, 8), "", True), ("clang", (19, 1, 7), "", False),
    ("hipcc", (7, 0, 1), "HIP version: 7.0.1\nAMD clang version 20.0.0git (roc-7.0.1)", True),
    ("hipcc", (6, 4, 0), "HIP version: 6.4.0\nAMD clang version 19.0.0git (roc-6.4.0)", False),
    ("hipcc", (7, 0, 1), "HIP version: 7.0.1", False)])
def test_compilers_that_are_asked_to_preload(name, version, identity, preloads):
    spec = recipe.ModuleSpec("norm/rms_norm", ("norm/rms_norm.hip",), arch="gfx942")
    device, host = recipe.steps(spec, toolchain.Toolchain(name, name, version, identity, "clang++"))
    assert (PRELOAD[1] in device.command) == preloads and PRELOAD[1] not in host.command
    assert any(PRELOAD[1] in line for line in recipe.normalised(spec, [device])) == preloads, "the key covers it"
