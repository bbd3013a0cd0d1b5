# SPDX-License-Identifier: MIT
"""What the cycle model says of each instruction: which wait retires a memory operation, how much of its latency is
hidden, which waiting other work covers, where its data was found; and the model's roofs.
"""

import pytest
import torch

from aiter_like import sim
from aiter_like.sim import modelling
from aiter_like.sim.validation.kernels import Kernel, arguments, code_object, name_of

_LOAD = "global_load_dword {}, v2, s[4:5]"
_BUFFER = torch.zeros(1 << 16, dtype=torch.int32)


def _instructions(kernel: Kernel, loops: int = 1, unroll: int = 1) -> list[dict]:
    """Of one workgroup, whose buffer begins at a page."""
    place = _BUFFER.data_ptr() + -_BUFFER.data_ptr() % 4096
    with sim.enabled(checks=False, model="whole") as session:
        sim.launch(code_object([(kernel, unroll)]), name_of(0), (1, 1, 1), (64 * kernel.waves, 1, 1), 0,
                   arguments(place, place, loops, 0))
    (launch,) = session.modelled
    return launch["instructions"]


def _find(instructions: list[dict], text: str) -> dict:
    (found,) = [one for one in instructions if one["text"] == text]
    return found


def test_a_wait_retires_the_oldest_operations():
    body = "\n".join([_LOAD.format("v20"), _LOAD.format("v21"), "s_waitcnt vmcnt(1)", _LOAD.format("v22"),
                      "ds_read_b32 v23, v2", "s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(0)"])
    found = _instructions(Kernel(body, "v_lshlrev_b32 v2, 2, v0\nv_and_b32 v2, 0xff, v2", lds_bytes=256), loops=3)
    retired = {}
    for one in found:
        for place, times, _ in one.get("retires", ()):
            retired.setdefault(one["text"], []).append((found[place]["text"], times))
    assert retired["s_waitcnt vmcnt(1)"] == [(_LOAD.format("v20"), 3)]
    assert retired["s_waitcnt vmcnt(0)"] == [(_LOAD.format("v21"), 3), (_LOAD.format("v22"), 3)]
    assert ("ds_read_b32 v23, v2", 3) in retired["s_waitcnt lgkmcnt(0)"]


def test_a_wait_of_the_next_pass_retires_what_this_one_loads():
    body = "\n".join(["s_waitcnt vmcnt(0)", _LOAD.format("v20")])
    found = _instructions(Kernel(body, "v_lshlrev_b32 v2, 2, v0"), loops=5)
    load = found.index(_find(found, _LOAD.format("v20")))
    times = [times for one in found for place, times, _ in one.get("retires", ()) if place == load]
    # Four within the loop; the fifth one's is the wait behind the loop, if there is one.
    assert times[0] == 4 and sum(times) <= 5


def test_arithmetic_hides_a_latency():
    """What lies between a load and its wait hides as much of the latency as it takes."""
    hidden = []
    for count in (0, 20, 60, 400):
        body = "\n".join([_LOAD.format("v20"), *["v_add_u32 v21, v22, v23"] * count, "s_waitcnt vmcnt(0)"])
        load = _find(_instructions(Kernel(body, "v_lshlrev_b32 v2, 2, v0")), _LOAD.format("v20"))
        assert 0 <= load["hidden_clk"] <= load["latency_clk"]
        hidden.append((load["hidden_clk"], load["latency_clk"]))
    (none, _), (some, _), (more, _), (all_, whole) = hidden
    assert none <= 8 and some == none + 20 * 4 and more == none + 60 * 4 and all_ == whole


@pytest.mark.parametrize("waves", [4, 16])
def test_waits_are_covered_by_other_waves(waves):
    """Waves of four or of one a SIMD: a wait for memory is covered where another wave has arithmetic."""
    body = "\n".join([_LOAD.format("v20"), "s_waitcnt vmcnt(0)", *["v_add_u32 v21, v22, v23"] * 40])
    found = _instructions(Kernel(body, "v_lshlrev_b32 v2, 2, v1", waves=waves), loops=6)
    wait = next(one for one in found if one["text"] == "s_waitcnt vmcnt(0)" and one["issued"] == 6 * waves)
    share = wait["covered_clk"] / sum(wait["stall_clk"].values())
    assert 0 <= share <= 1 and (share == 0 if waves == 4 else share > 0.3)
    for one in found:
        assert one["covered_clk"] <= sum(one["stall_clk"].values()) + 1e-6


def test_waiting_at_a_barrier_is_the_barriers():
    """Wave 0 has long work before the barrier; the others wait for it there, and not at what comes after."""
    body = "\n".join(["s_barrier", "v_add_u32 v21, v22, v23"])
    prepare = "\n".join(["v_readfirstlane_b32 s12, v1", "s_cmp_lg_u32 s12, 0", "s_cbranch_scc1 2f",
                         *["v_exp_f32 v20, v20"] * 200, "2:"])
    found = _instructions(Kernel(body, prepare, waves=4))
    barriers = [one for one in found if one["text"] == "s_barrier"]
    assert max(one["stall_clk"].get("barrier", 0) for one in barriers) > 3 * 200 * 10
    assert not [one for one in found if one["text"] != "s_barrier" and "barrier" in one["stall_clk"]]


def test_traffic_of_an_instruction():
    first, again = "global_load_dword v20, v2, s[4:5]", "global_load_dword v21, v2, s[4:5]"
    store = "global_store_dword v2, v20, s[6:7] offset:2048"
    body = "\n".join([first, "s_waitcnt vmcnt(0)", again, "s_waitcnt vmcnt(0)", store])
    found = _instructions(Kernel(body, "v_lshlrev_b32 v2, 2, v0"))
    assert _find(found, first)["traffic"] == {"l1_lines": 2, "l2_lines": 2, "l2_read_bytes": 256, "hbm_lines": 2}
    assert _find(found, again)["traffic"] == {"l1_lines": 2, "l1_hits": 2}
    assert _find(found, store)["traffic"] == {"stored_lines": 2, "l2_written_bytes": 256, "written_lines": 2}
    scalar = next(one for one in found if one["text"].startswith("s_load_dwordx4"))
    assert scalar["traffic"]["scalar_lines"] == 1 and "traffic" not in _find(found, "s_mov_b32 s10, s8")


def test_roofs_follow_from_the_parameters():
    """The chip's public peaks: dense matrix operations, packed f32, LDS; memory does not depend on the clock."""
    at = {clock: {roof["name"]: roof["per_second"] for roof in modelling.roofs(clock)} for clock in (2100.0, 1050.0)}
    for name, tera in (("fp8_fp8", 2614.9), ("i8", 2614.9), ("bf16", 1307.4), ("f16", 1307.4), ("xf32", 653.7),
                       ("f32", 163.4), ("f64", 163.4), ("vector f32", 163.4), ("LDS", 81.7)):
        assert at[2100.0][name] == pytest.approx(tera * 1e12, rel=1e-3), name
        assert at[1050.0][name] == pytest.approx(at[2100.0][name] / 2, rel=1e-4)
    assert at[1050.0]["HBM"] == at[2100.0]["HBM"] and at[2100.0]["HBM"] < at[2100.0]["MALL"] < at[2100.0]["L2"]
