# SPDX-License-Identifier: MIT
"""Every wait and barrier of a compiled kernel, removed one at a time: each removal must be reported."""

import struct

import numpy as np
import pytest
from checking import listing
from hip_program import code_object
from hip_runtime import runtime
from mutants import instructions, replaced

from aiter_like import sim

NOP = struct.pack("<I", 0xBF800000)                  # s_nop 0
GROUPS, BLOCK, ROUNDS = 2, 256, 3

# Loads in flight over arithmetic, LDS written, read by other waves and written again: each wait and barrier is needed.
SOURCE = """
extern "C" __global__ __launch_bounds__(256) void shuffled_sums(const float* in, float* out, int rounds) {
  __shared__ float line[256];
  __shared__ float part[4];
  const int t = thread_index();
  const float* x = in + workgroup_index().x * 256 * rounds;
  float total = 0;
  for (int round = 0; round < rounds; ++round) {
    const float mine = x[round * 256 + t];
    line[t] = mine;
    workgroup_barrier();
    total += line[(t + 64) % 256] * mine + line[255 - t];
    workgroup_barrier();
  }
  for (int mask = 32; mask > 0; mask /= 2) total += __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(
      4 * (lane_index() ^ mask), __builtin_bit_cast(int, total)));
  if (lane_index() == 0) part[wave_index()] = total;
  workgroup_barrier();
  if (t == 0) out[workgroup_index().x] = part[0] + part[1] + part[2] + part[3];
}
"""


def _run(elf: bytes) -> tuple[list[dict], np.ndarray]:
    hip = runtime()
    data = np.arange(GROUPS * BLOCK * ROUNDS, dtype=np.float32) % 7
    out = np.zeros(GROUPS, np.float32)
    with hip.memory() as memory, hip.module(elf) as module:
        pointers = memory.upload(data), memory.upload(out)
        with sim.enabled(on_report="collect") as session:
            hip.launch(module.function("shuffled_sums"), GROUPS, BLOCK, 0, (*pointers, ROUNDS))
        memory.download(pointers[1], out)
    return session.reports, out


def _expected() -> np.ndarray:
    x = (np.arange(GROUPS * BLOCK * ROUNDS, dtype=np.float64) % 7).reshape(GROUPS, ROUNDS, BLOCK)
    return (np.roll(x, -64, axis=2) * x + x[:, :, ::-1]).sum(axis=(1, 2))


def test_clean_kernel_is_right_and_silent():
    found, out = _run(code_object(SOURCE))
    assert not found, listing(found)
    np.testing.assert_allclose(out, _expected(), rtol=1e-6)


@pytest.mark.parametrize("mnemonic, checks", [("s_waitcnt", {"wait"}), ("s_barrier", {"lds_race", "wait", "uninit"})])
def test_every_removal_is_reported(mnemonic, checks):
    elf, survivors = code_object(SOURCE), []
    places = [(pc, text) for pc, text in instructions(elf) if text.startswith(mnemonic)]
    assert len(places) >= 3
    for pc, text in places:
        found, _ = _run(replaced(elf, pc, NOP))
        if not {report["check"] for report in found} & checks:
            survivors.append(f"{pc:#x}: {text}")
    assert not survivors
