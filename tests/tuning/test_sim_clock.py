# SPDX-License-Identifier: MIT
"""The clock of the simulated MI300X: what it can say nothing of, when a sample will do; estimates grow with work."""

import copy
import functools
import math

import pytest
import torch

import aiter_like
from aiter_like import device, dispatch, sim
from aiter_like.dispatch import OPS
from aiter_like.dispatch.backend import Candidate
from aiter_like.sim import counting, modelling
from aiter_like.sim.validation import mca
from aiter_like.sim.validation.kernels import Kernel, arguments, code_object, name_of
from aiter_like.tuning import harness, screening, sim_clock
from aiter_like.tuning.clock import Contender

GROUPS = 32


@pytest.fixture(autouse=True)
def simulated():
    """What `harness.sim` chooses, for this test."""
    yield
    device.reset()
    dispatch.reset()


_OWN = "s_lshl_b32 s11, s2, 2\ns_sub_u32 s12, 124, s11\n"  # bytes to this workgroup's dword, and to that of another one
KERNELS = {
    "write": Kernel("global_store_dword v2, v3, s[6:7]", f"{_OWN}v_mov_b32 v2, s11\nv_mov_b32 v3, 2"),
    "follow": Kernel("v_add_u32 v2, 1, v1", f"{_OWN}s_load_dword s10, s[6:7], s12\ns_waitcnt lgkmcnt(0)\n"
                                            "s_and_b32 s10, s10, 1\ns_add_u32 s10, s10, 1"),
    "read": Kernel("v_add_u32 v2, 1, v1", f"{_OWN}s_load_dword s13, s[6:7], s12"),
    "add": Kernel("global_atomic_add v2, v3, s[6:7]", f"{_OWN}v_mov_b32 v2, s11\nv_mov_b32 v3, 1"),
}


@functools.cache
def _code() -> bytes:
    return code_object([(kernel, 1) for kernel in KERNELS.values()])


def _call(*names: str, groups: int = GROUPS):
    """A call that makes these launches on memory of its own."""
    def call() -> None:
        buffer = torch.empty(GROUPS, dtype=torch.int32)
        for name in names:
            sim.launch(_code(), name_of(list(KERNELS).index(name)), (groups, 1, 1), (64, 1, 1), 0,
                       arguments(0, buffer.data_ptr(), 1, 0))

    return call


@pytest.mark.parametrize(("names", "groups", "is_sampled"), [
    (("follow",), GROUPS, True),  # all that it reads is input
    (("write", "read"), GROUPS, True),
    (("write", "follow"), GROUPS, False),  # how far the second goes is what the first has written
    (("write", "read", "follow"), GROUPS, False),
    (("add",), GROUPS, False),  # workgroups meet
    (("write", "read"), 4, False),  # nothing is left out of a launch of four workgroups: nothing is known
])
def test_when_a_sample_of_the_workgroups_will_do(names, groups, is_sampled):
    small, large = _call(*names, groups=groups), _call(*names)
    clock = sim_clock.SimClock()
    ((clk,),) = clock.finals([Contender([large], small)], 1)
    (found,) = clock.found
    assert clk > 0 and found["launches"] == len(names)
    assert found["text"].endswith("a sample of the workgroups ran" if is_sampled else "all workgroups ran")


def test_several_launches_without_a_judged_call_run_whole():
    clock = sim_clock.SimClock()
    clock.finals([Contender([_call("write", "read")])], 1)
    assert clock.found[0]["text"].endswith("all workgroups ran")


def test_what_it_can_say_nothing_of():
    def with_torch() -> None:
        torch.zeros(3).add_(1)
        _call("read")()

    clock = sim_clock.SimClock()
    (nothing,), (more,) = clock.rounds([Contender([lambda: torch.ones(3)]), Contender([with_torch])], 1)
    assert math.isinf(nothing) and math.isinf(more)
    assert clock.found[0] == {"reason": "launches nothing on gfx942, so there is nothing to model"}
    assert clock.found[1] == {"reason": "also runs operations of torch, which are not modelled: add_, zeros"}


def test_the_same_call_has_the_same_figures_and_they_are_labelled():
    made, clock = harness.sim(0), sim_clock.SimClock()
    op = OPS["rms_norm"]
    args = op.tuning.case({"rows": 40, "hidden": 512, "dtype": "bf16", "has_residual": 0}, made.device, 0)
    backend = op.backends[0]
    function = backend.bind(made.target, args, Candidate(backend, "rms_norm", {}, "test"))
    call, useful = functools.partial(made.placed(op, function), *args), op.tuning.needs(args)[0]
    contender = Contender([call], call, useful)
    assert clock.rounds([contender], 1) == clock.rounds([contender], 1)
    assert clock.found[0]["bytes"] >= useful > 80000 and clock.found[0]["launches"] == 1
    assert clock.finals([contender], 1) == clock.finals([contender], 1)
    version = modelling.version()
    assert clock.origin == f"modelled:{version} at 2100 MHz" and version in clock.unit and "modelled" in clock.unit
    assert not clock.is_measured and "none is measured" in clock.about[0]
    with sim.enabled(checks=False, model="whole") as session:
        call()
    assert session.modelled[0]["model"] == version, "the library says the same of itself as its sources"


@pytest.fixture(scope="module")
def launch():
    """The counts of a kernel with loads, LDS, barriers and a loop."""
    launches: list[dict] = []
    x = torch.randn(40, 4096, dtype=torch.bfloat16)
    with sim.enabled(checks=False), counting.counted(launches):
        aiter_like.rms_norm(x, torch.ones(4096, dtype=torch.bfloat16), 1e-6, backend="hip")
    return launches[0]


def _more(launch, of: str, times: int = 50) -> dict:
    """The same with some instructions executed more often."""
    changed = copy.deepcopy(launch)
    for one in changed["instructions"]:
        if one["class"] == of:
            for name in ("executed", "segments_64", "lds_clk", "lds_conflict_clk"):
                one[name] = one.get(name, 0) * times
    changed["totals"] = counting.totals(changed["instructions"])
    return changed


@pytest.mark.parametrize("has_mca", [True, False])
@pytest.mark.parametrize("of", ["valu", "global", "ds", "wait", "barrier"])
def test_more_work_never_has_a_lower_estimate(launch, of, has_mca, monkeypatch):
    if not has_mca:
        monkeypatch.setattr(mca, "tool", lambda: None)
    elif mca.tool() is None:
        pytest.skip("llvm-mca is not installed")
    before, after = screening.estimate(launch, 10**5), screening.estimate(_more(launch, of), 10**5)
    assert after.clk > before.clk > 0


def test_estimates_know_memory_and_occupancy(launch):
    many = copy.deepcopy(launch)
    many["grid"] = [100_000, 1, 1]
    useful = 4 << 30
    assert screening.estimate(many, useful).bound == "memory"
    assert screening.estimate(many, useful).clk > screening.estimate(many, useful // 2).clk
    few = copy.deepcopy(many)
    few["occupancy"]["workgroups_per_cu"] = 1
    assert screening.estimate(few, 0).bound == "waves one after the other"
    assert screening.estimate(few, 0).clk > screening.estimate(many, 0).clk


def test_straight_lines_hold_arithmetic_that_is_executed_equally_often():
    def one(text, executed=1, kind="valu"):
        return {"text": text, "executed": executed, "class": kind}

    lines = screening.straight_lines([
        one("a"), one("load", kind="global"), one("b"), one("branch", kind="branch"), one("c"), one("d", 5),
        one("e", 5, "mfma"), one("f"), one("end", kind="end")])
    assert [[each["text"] for each in line] for line in lines] == [["a", "b"], ["c"], ["d", "e"], ["f"]]


def test_waits_in_a_row_count_once():
    load, store, wait = {"class": "global"}, {"class": "ds"}, {"class": "wait", "waits_vmcnt": 1, "executed": 3}
    assert screening.waits([load, load, wait, wait, store, wait, load, wait], "vmcnt") == 6
    assert screening.waits([load, wait], "lgkmcnt") == 0


@pytest.mark.skipif(mca.tool() is None, reason="llvm-mca is not installed")
def test_cycles_of_several_lines():
    one = "v_add_u32 v1, v2, v3"
    found = mca.cycles(((one,), (one,) * 8, ("v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], v[4:7]",)))
    assert len(found) == 3 and found[1] > found[0] and found[2] > found[0]
    assert mca.cycles((("no_such_instruction v1",),)) is None
