# SPDX-License-Identifier: MIT
"""The cycle model where workgroups meet: turns, tickets, arrivals at a barrier of the grid, one place for all."""

from __future__ import annotations

import pytest
import torch

from aiter_like import sim
from aiter_like.sim import modelling
from aiter_like.sim.validation.kernels import Kernel, arguments, code_object, name_of

_ONE_LANE = "v_mov_b32 v3, 0\nv_mov_b32 v4, 1\ns_mov_b64 exec, 1\n"
# A pass of 20 clk: 16 for s_nop, and a branch.
_DELAY = "7:\ns_nop 3\ns_sub_u32 s20, s20, 1\ns_cmp_lg_u32 s20, 0\ns_cbranch_scc1 7b\n"
_RAISE = "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)\nglobal_atomic_add v3, v4, s[4:5]\n"


def _await(condition: str, label: int = 2) -> str:
    """Polls the first buffer's first dword, s21, until the scalar condition code is zero."""
    return f"{label}:\ns_sleep 1\nglobal_load_dword v5, v3, s[4:5] sc1\ns_waitcnt vmcnt(0)\n" \
           f"v_readfirstlane_b32 s21, v5\n{condition}\ns_cbranch_scc1 {label}b\nbuffer_inv sc1\n"


def _modelled(body: str, groups: int, delay: int = 1, **options) -> dict:
    """One launch; s20: `delay`, which the second buffer's address holds."""
    code = code_object([(Kernel(body, f"{_ONE_LANE}s_mov_b32 s20, s9", unroll=1), 1)])
    buffer = torch.zeros(1 << 16, dtype=torch.int32)
    with sim.enabled(checks=False, model="whole", **options) as session:
        sim.launch(code, name_of(0), (groups, 1, 1), (64, 1, 1), 0,
                   arguments(buffer.data_ptr(), buffer.data_ptr(), 1, delay))
    (found,) = session.modelled
    assert "unmet" not in found
    return found


@pytest.mark.parametrize("groups", [2, 9, 40])
def test_turns_get_slower_by_every_planted_delay(groups):
    """Every workgroup waits for its number, works, and lets the next one go on."""
    turns = _await("s_cmp_lg_u32 s21, s2") + _DELAY + _RAISE
    base, more, most = (_modelled(turns, groups, delay) for delay in (1, 101, 1101))
    of_a_pass = (most["modelled_clk"] - more["modelled_clk"]) / 1000 / groups
    assert 28 <= of_a_pass <= 48, "s_nop, two scalar instructions and a branch that is taken"
    assert more["modelled_clk"] - base["modelled_clk"] == pytest.approx(100 * groups * of_a_pass, rel=0.01)
    assert base["xcds"] == 8 and base["recorded"] == groups


def test_a_sample_leaves_out_no_workgroup_of_a_kernel_that_sleeps():
    """It waits for others; its recording may still hold those of one XCD alone."""
    turns = _await("s_cmp_lg_u32 s21, s2") + _RAISE
    code = code_object([(Kernel(turns, _ONE_LANE, unroll=1), 1)])
    buffer, found = torch.zeros(1 << 10, dtype=torch.int32), []
    with modelling.modelled(found, sample=True, budget=1):
        sim.launch(code, name_of(0), (4000, 1, 1), (64, 1, 1), 0,
                   arguments(buffer.data_ptr(), buffer.data_ptr(), 1, 1))
    assert buffer[0] == 4000 and found[0]["recorded"] < 4000


@pytest.mark.parametrize("planted", [0, 3, 8])
def test_one_late_turn_delays_all_that_come_after_it(planted):
    late = f"s_cmp_eq_u32 s2, {planted}\ns_cbranch_scc1 7f\ns_mov_b32 s20, 1\n"
    turns = _await("s_cmp_lg_u32 s21, s2") + late + _DELAY + _RAISE
    base, more, most = (_modelled(turns, 9, delay)["modelled_clk"] for delay in (501, 1501, 2501))
    assert 28_000 <= more - base <= 48_000
    assert most - more == pytest.approx(more - base, rel=0.01)


def test_a_grid_meets_when_its_last_workgroup_has_come():
    """All arrive and wait for all: as late as the one that arrives last, whoever that was when it was recorded."""
    late = "s_cmp_eq_u32 s2, 5\ns_cbranch_scc1 7f\ns_mov_b32 s20, 1\n"
    barrier = late + _DELAY + _RAISE + _await("s_cmp_lt_u32 s21, 24")
    base, more = (_modelled(barrier, 24, delay)["modelled_clk"] for delay in (1, 2001))
    assert 56_000 <= more - base <= 96_000


def test_the_last_ticket_finds_all_others_work_done():
    """Whoever drew the last ticket works after everybody: the slowest one's delay and its own work add up."""
    late = "s_cmp_eq_u32 s2, 5\ns_cbranch_scc1 7f\ns_mov_b32 s20, 1\n"
    ticket = "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)\nglobal_atomic_add v5, v3, v4, s[4:5] sc0\ns_waitcnt vmcnt(0)\n" \
             "v_readfirstlane_b32 s21, v5\ns_cmp_lg_u32 s21, 23\ns_cbranch_scc1 8f\ns_movk_i32 s20, {tail}\n"
    tail = _DELAY.replace("7", "6").replace("s_nop 3", "s_nop 3") + "8:\n"
    base, late_one, long_tail, both = (
        _modelled(late + _DELAY + ticket.format(tail=after) + tail, 24, delay)["modelled_clk"]
        for delay, after in ((1, 1), (1001, 1), (1, 1001), (1001, 1001)))
    assert late_one - base > 28_000 and long_tail - base > 28_000
    assert both - base == pytest.approx(late_one + long_tail - 2 * base, rel=0.02)


def test_one_place_for_all_is_slower_from_more_chiplets():
    """Within an XCD atomics follow one another in its L2; between XCDs the line moves each time."""
    add = "global_atomic_add v3, v4, s[4:5]\ns_waitcnt vmcnt(0)\n" * 8
    eighth = f"s_and_b32 s22, s2, 7\ns_cmp_lg_u32 s22, 0\ns_cbranch_scc1 1f\n{add}1:\n"
    of_all, of_one = (_modelled(body, 64)["modelled_clk"] for body in (add, eighth))
    apart = _modelled("s_lshl_b32 s22, s2, 10\nv_mov_b32 v3, s22\n" + add, 64)["modelled_clk"]
    assert of_all > 2 * of_one and of_all > 2 * apart


def test_a_poll_is_one_instruction_and_its_time_a_stall():
    found = _modelled(_await("s_cmp_lg_u32 s21, s2") + _DELAY + _RAISE, 9, 500)
    (load,) = [one for one in found["instructions"] if one["text"].startswith("global_load")]
    assert load["issued"] == 9 and load["stall_clk"]["another workgroup"] > 8 * 500 * 28
    assert found["met"] == 8


def test_loads_of_data_with_sc1_do_not_wait():
    """The places that nobody writes are no meeting: passes of a loop that reads them again stay what they are."""
    passes = [_modelled(f"s_movk_i32 s20, {count}\n2:\nglobal_load_dword v5, v3, s[4:5] offset:64 sc1\n"
                        "s_waitcnt vmcnt(0)\ns_sub_u32 s20, s20, 1\ns_cmp_lg_u32 s20, 0\ns_cbranch_scc1 2b\n", 2)
              for count in (10, 20)]
    growth = passes[1]["modelled_clk"] - passes[0]["modelled_clk"]
    assert growth == pytest.approx(10 * 250, rel=0.1) and "met" not in passes[0]


def test_the_same_meeting_has_the_same_cycles_with_any_number_of_threads():
    turns = _await("s_cmp_lg_u32 s21, s2") + _DELAY + _RAISE
    assert len({_modelled(turns, 20, 30, threads=threads)["modelled_clk"] for threads in (1, 2)}) == 1
