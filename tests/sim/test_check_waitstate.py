# SPDX-License-Identifier: MIT
"""The waitstate checker: each row of its table planted, with a twin that has the wait states it asks for."""

import functools
import re

import numpy as np
import pytest
from asm import Case, run_many
from checking import listing
from wait_pairs import FREE, INSTRUCTIONS, PAIRS

from aiter_like import paths, sim

# v98 = the low half of the buffer's address, so that writing it to s10 changes nothing; every other source is 0.
_SETUP = "v_mov_b32_e32 v98, s10\ns_mov_b32 m0, 0\ns_mov_b32 s20, 0\n" \
         "s_mov_b64 s[24:25], 0\ns_mov_b64 s[26:27], 0\n" + "s_nop 7\n" * 3


def _nops(states: int) -> str:
    return "".join(f"s_nop {min(states - at, 8) - 1}\n" for at in range(0, states, 8))


def _case(earlier: str, later: str, states: int) -> Case:
    body = f"{_SETUP}{INSTRUCTIONS[earlier][0]}\n{_nops(states)}{INSTRUCTIONS[later][0]}\ns_mov_b64 exec, -1\n"
    inputs = {"v0": np.arange(64, dtype=np.uint32) * 16, "v97": np.zeros(64, np.uint32)}
    return Case(body + "s_nop 7\n" * 3, inputs, buffers={"s[10:11]": np.zeros(1024, np.uint32)}, lds_bytes=1024)


@functools.cache
def _outcomes() -> dict[tuple[str, str, int], list[dict]]:
    """(earlier, later, wait states between) → reports. All in one code object: assembling is what takes time."""
    keys = [(pair.earlier, pair.later, pair.states - lack) for pair in PAIRS for lack in (1, 0)]
    keys += [(earlier, later, 0) for earlier, later in FREE]
    keys = list(dict.fromkeys(keys))
    with sim.enabled(checks=("waitstate",), on_report="collect") as session:
        run_many([_case(*key) for key in keys])
    outcomes = {key: [] for key in keys}
    for report in session.reports:
        outcomes[keys[int(report["kernel"].removeprefix("case"))]].append(report)
    return outcomes


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.earlier} - {pair.later}")
def test_one_state_too_few_is_reported_and_enough_is_silent(pair):
    found = _outcomes()[pair.earlier, pair.later, pair.states - 1]
    assert len(found) == 1 and found[0]["check"] == "waitstate", listing(found)
    earlier, later = (INSTRUCTIONS[name][0] for name in (pair.earlier, pair.later))
    assert found[0]["text"] == later
    for phrase in (pair.row, f"{pair.states - 1} wait states after", earlier.split(" ")[0], f"{pair.states} are needed",
                   "fix: s_nop 0"):
        assert phrase in found[0]["message"], listing(found)
    # Where the hardware needs less than the manual, what is enough for the one leaves a note of the other.
    enough = [one for one in _outcomes()[pair.earlier, pair.later, pair.states]
              if one["severity"] == found[0]["severity"]]
    assert not enough, listing(enough)


@pytest.mark.parametrize("earlier, later", FREE)
def test_pairs_that_need_nothing_are_silent(earlier, later):
    found = _outcomes()[earlier, later, 0]
    assert not found, listing(found)


def test_every_row_of_the_table_has_a_pair():
    table = (paths.csrc() / "sim/checks/waitstate_table.cpp").read_text()
    rows = re.findall(r'^    \{"([^"]+)", kRole', table, re.MULTILINE)
    assert len(rows) > 30 and set(rows) == {pair.row for pair in PAIRS}


def _reports(body: str) -> list[dict]:
    with sim.enabled(checks=("waitstate",), on_report="collect") as session:
        run_many([Case(body)])
    return session.reports


def test_the_fix_counts_what_is_missing():
    mfma = INSTRUCTIONS["xdl16"][0]
    found = _reports(f"{mfma}\ns_nop 1\nv_mov_b32_e32 v100, v101\nv_mov_b32_e32 v96, v32\n" + "s_nop 7\n" * 3)
    assert len(found) == 1 and "3 wait states after" in found[0]["message"], listing(found)
    assert "(v32)" in found[0]["message"] and "fix: s_nop 7, s_nop 7 before it" in found[0]["message"]


def test_a_hazard_across_a_loops_back_edge_is_seen():
    body = """s_mov_b32 s20, 3
      1:
      v_mov_b32_e32 v96, v8
      s_sub_u32 s20, s20, 1
      s_cmp_lg_u32 s20, 0
      v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], v[12:15]
      s_cbranch_scc1 1b
      s_nop 7"""
    found = _reports(body)
    assert len(found) == 1 and found[0]["text"] == "v_mov_b32_e32 v96, v8" and found[0]["count"] == 2, listing(found)


@pytest.mark.parametrize("states, reports", ((0, 1), (1, 0)))
def test_a_branch_that_is_not_taken_is_no_wait_state(states, reports):
    """The loop's exit lies behind the branch back: LLVM takes both for wait states (test_waitstate_llvm.py)."""
    body = f"""{_SETUP}s_mov_b32 s20, 3
      1:
      {_nops(states)}v_mov_b32_e32 v9, 0
      s_sub_u32 s20, s20, 1
      s_cmp_lg_u32 s20, 0
      buffer_store_dwordx4 v[8:11], v0, s[24:27], 0 offen
      s_cbranch_scc1 1b
      s_branch 2f
      2:
      s_nop 7"""
    found = _reports(body)
    assert len(found) == reports, listing(found)
    for report in found:
        assert report["text"] == "v_mov_b32_e32 v9, 0" and report["count"] == 2, listing(found)
        assert "(v9): 1 wait states after" in report["message"] and "fix: s_nop 0 before it" in report["message"]


def test_a_newer_result_in_the_register_counts_alone():
    """The short MFMA takes the place of the long one's result; its own distance is what matters."""
    body = f"{INSTRUCTIONS['xdl16'][0]}\nv_mfma_f32_4x4x4_16b_f16 v[32:35], v[2:3], v[4:5], 0\ns_nop 4\n" \
           "v_mov_b32_e32 v96, v32\n" + "s_nop 7\n" * 3
    assert not _reports(body)
