# SPDX-License-Identifier: MIT
"""Reports of one cause are told once, with the number of the others; sessions and errors keep every one."""

import struct

import checking
import numpy as np
import pytest
import torch
from hip_program import PRELUDE, code_object

from aiter_like import sim
from aiter_like.errors import SimulatorError
from aiter_like.sim import reports

SOURCE = """
extern "C" __global__ void lines(const float* x, float* y, float* z) {
  const int i = thread_index();
  const float value = x[i];
#pragma unroll
  for (int k = 0; k < 4; ++k) y[i + 1000 * k] = value;         // planted: past the end of y but for k = 0
  z[i] = value;                                                // and of z
}
"""
PLANTED = 1 + (PRELUDE + SOURCE).split("planted")[0].count("\n")


def _launch(x, y, z) -> None:
    elf = code_object(SOURCE, "--no-gpu-bundle-output", "-gline-tables-only")
    arguments = struct.pack("<QQQ", *[tensor.data_ptr() for tensor in (x, y, z)])
    sim.checked_call("lines", lambda *_: sim.launch(elf, "lines", (1, 1, 1), (64, 1, 1), 0, arguments), (x, y, z),
                     writes=(1, 2))


def test_one_wrong_line_is_one_report_with_a_count():
    """The memory behind y is there, so that three stores go past its end by a distance that names y."""
    x, y, z = torch.ones(64), torch.zeros(1 << 15)[:64], torch.zeros(1 << 15)[:32]
    with sim.enabled(on_report="collect") as session:
        _launch(x, y, z)
        _launch(x, y, z)
    found = reports.merged(session.reports)
    assert [report["check"] for report in found] == ["bounds"] * 4
    at_y, at_z = sorted(reports.listing(session.reports), key=lambda text: "`lines argument 2" in text)
    assert at_y.count("[sim:bounds] lines wg(0,0,0)") == 1 and f"program.hip:{PLANTED}): global_store" in at_y
    assert "past the end of `lines argument 1" in at_y and " (6 times)" in at_y
    assert at_y.endswith("\n    the same cause at 2 more instructions: global_store_dword (2)")
    assert f"program.hip:{PLANTED + 1}): " in at_z and "the same cause" not in at_z and at_z.endswith(" (2 times)")
    with sim.enabled(), pytest.raises(SimulatorError) as raised:
        _launch(x, y, z)
    assert len(raised.value.reports) == 4 and str(raised.value).startswith("lines: 4 report(s) of ")
    assert str(raised.value).count("[sim:bounds]") == 2


def test_code_without_lines_groups_by_the_producer_else_by_instruction():
    """Each wave's first use of a loaded register is told; the second wave uses it elsewhere."""
    body = """global_load_dword v1, v0, s[10:11]
              global_load_dword v2, v0, s[10:11]
              v_readfirstlane_b32 s20, v0
              s_cmp_eq_u32 s20, 0
              s_cbranch_scc1 1f
              v_mov_b32_e32 v3, v1
           1: v_or_b32_e32 v3, v2, v2
              v_xor_b32_e32 v3, v1, v1
              s_waitcnt vmcnt(0)"""
    data = {"inputs": {"v0": np.arange(128, dtype=np.uint32) * 4}, "waves": 2,
            "buffers": {"s[10:11]": np.zeros(128, np.uint32)}}
    uses = reports.listing({**report, "seed": 3} for report in checking.reports(body, **data))
    texts = sorted(use.partition("pc 0x")[2].partition(": ")[2].partition("\n")[0] for use in uses)
    assert uses[1].endswith(" (2 times) (seed 3)\n    the same cause at 1 more instruction: v_mov_b32_e32")
    assert texts == ["v_or_b32_e32 v3, v2, v2", "v_xor_b32_e32 v3, v1, v1"], uses
    stores = "".join(f"global_store_dword v0, v0, s[10:11] offset:{offset}\n" for offset in (8, 16))
    assert len(reports.listing(checking.reports(stores, **data))) == 2


@pytest.mark.parametrize("line, causes", [("y[i] = x[0] + x[5000];", 1), ("x[0] = x[5000];", 2)])
def test_what_one_line_loads_and_what_it_stores_are_two_causes_where_no_memory_has_a_name(line, causes):
    source = f'extern "C" __global__ void wild(volatile int* x, int* y) {{ const int i = thread_index(); {line} }}'
    elf = code_object(source, "--no-gpu-bundle-output", "-gline-tables-only")
    y = torch.zeros(64, dtype=torch.int32)
    with sim.enabled(on_report="collect") as session:
        sim.checked_call("wild", lambda *_: sim.launch(elf, "wild", (1, 1, 1), (64, 1, 1), 0, struct.pack(
            "<QQ", 4096, y.data_ptr())), (y,), writes=(0,))
    assert len(session.reports) == 2 and len(reports.listing(session.reports)) == causes, session.reports
