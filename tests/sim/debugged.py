# SPDX-License-Identifier: MIT
"""The HIP kernel that tests of the debugger stop in, and its launch."""

import struct

import torch
from hip_program import PRELUDE, code_object

from aiter_like import sim

GROUPS, LANES, COUNT = 2, 128, 8
SOURCE = """
struct Pair { float a; int b; };
__device__ float half_of(float x) {
  float h = x * 0.5f;
  return h;                                                    // the half
}
extern "C" __global__ void weigh(const float* x, float* out, int n) {
  __shared__ float tile[128];
  const int i = thread_index();
  const int at = workgroup_index().x * 128 + i;
  Pair p = {1.5f, i};
  float sum = 0;                                               // the sum begins
  for (int k = 0; k < n; ++k) {
    sum += half_of(x[k]) * p.b;                                // a product
  }
  tile[i] = sum + p.a;
  workgroup_barrier();
  out[at] = tile[127 - i];                                     // the store
}
"""
FILE = "program.hip"


def line_of(phrase: str) -> int:
    text = PRELUDE + SOURCE
    return next(number for number, line in enumerate(text.splitlines(), 1) if phrase in line)


def elf(*flags: str) -> bytes:
    return code_object(SOURCE, "--no-gpu-bundle-output", *flags)


class Launch:
    """A launch of `weigh`, to be called; its tensors."""

    def __init__(self, *flags: str, out_count: int = GROUPS * LANES):
        self.x, self.out = torch.arange(1.0, COUNT + 1), torch.zeros(out_count)
        self._elf = elf(*(flags or ("-g",)))

    def __call__(self) -> str:
        arguments = struct.pack("<QQi", self.x.data_ptr(), self.out.data_ptr(), COUNT)
        sim.checked_call("weigh", lambda *_: sim.launch(self._elf, "weigh", (GROUPS, 1, 1), (LANES, 1, 1), 0,
                                                        arguments), (self.x, self.out), writes=(1,))
        return "done"

    def expected(self) -> torch.Tensor:
        own = torch.arange(LANES) * (self.x.sum() / 2) + 1.5
        return own.flip(0).repeat(GROUPS)
