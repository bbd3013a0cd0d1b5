# SPDX-License-Identifier: MIT
"""Reports of one cause are told once, with the number of the others; sessions and errors keep every one."""

from __future__ import annotations

import struct

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


_ONE = {"check": "bounds", "severity": "error", "kernel": "k", "pc": 0, "text": "global_load_dword", "source": "",
        "caller": "", "other": None, "count": 1, "summary": "one", "message": "loads 4 bytes at no allocation"}


def test_code_without_lines_groups_by_the_producer_else_by_instruction():
    assert reports.listing([_ONE, {**_ONE, "pc": 8, "summary": "two"}]) == ["one", "two"]
    uses = [{**_ONE, "check": "wait", "message": "reads v1", "pc": 16 + pc, "text": text, "summary": text,
             "other": {"pc": producer}} for pc, (text, producer) in enumerate([("a", 0), ("b", 0), ("c", 8), ("d", 0)])]
    assert reports.listing(uses) == ["a (3 times)\n    the same cause at 2 more instructions: b, d", "c"]
    assert reports.listing({**use, "source": "a:1", "seed": 3} for use in uses) == [
        "a (4 times) (seed 3)\n    the same cause at 3 more instructions: b, c, d"]


def test_what_one_line_loads_and_what_it_stores_are_two_causes_where_no_memory_has_a_name():
    one = {**_ONE, "source": "a:1"}
    two = {**one, "pc": 8, "text": "global_store_dword", "summary": "two", "message": "stores 4 bytes likewise"}
    assert reports.listing([one, two, two]) == ["one", "two (2 times)"]
