# SPDX-License-Identifier: MIT
"""The mutation campaign: a sample of it with its thresholds, all of it on request, and its own parts."""

import asm
import pytest
import torch
from mutants import instructions
from mutation import campaign, cases, equivalents, execute, kernels, operators
from mutation.execute import Task
from mutation.program import Program
from mutation.waits import first_hazard

from aiter_like.dispatch import OPS

RAW, WITHOUT_EQUIVALENTS, OF_CASES = 0.85, 0.95, 0.6
_BRANCH = "s_cmp_eq_u32 s8, 0\n s_cselect_b64 s[10:11], -1, 0\n s_and_b64 vcc, exec, s[10:11]\n s_cbranch_vccnz 1f\n"


def _program(body: str, **options) -> Program:
    return Program(asm.code_object([asm.Case(body, **options)]), "case0")


def _check(results: list[campaign.Result]) -> None:
    raw, without = campaign.shares(results)
    assert raw >= RAW and without >= WITHOUT_EQUIVALENTS, campaign.table(results)


def test_sample_of_the_campaign():
    """Each 24th mutant of two kernels: all are seen, by five of the ways in which a mutant can be."""
    pytest.importorskip("triton")
    results = campaign.run(kernels.kernels("rms_norm.s 4096", "triton rms_norm bf16"), every=24, seeds=8)
    assert len(results) > 12 and all(result.verdict.by for result in results), campaign.table(results)
    assert {"wait", "waitstate", "lds_race", "bounds", "output"} <= {result.by for result in results}


@pytest.mark.parametrize("name, backend", [("act_and_mul", "triton"), ("rms_norm", "asm"), ("pack_int4", "hip")])
def test_kernels_of_cases(name, backend):
    """Launches that are written down run as the operator's call did: buffers, offsets into them, and outputs."""
    if backend == "triton":
        pytest.importorskip("triton")
    own = cases.kernels(name, backend)
    launches = [launch for kernel in own for launch in kernel.launches]
    assert {launch.name for launch in launches} == set(OPS[name].cases(torch.device("cpu")))
    for kernel in own:
        machine = execute.Machine(kernel)
        for index, launch in enumerate(kernel.launches):
            before = b"".join(buffer.data for buffer in launch.buffers if buffer.is_output)
            assert launch.pointers and machine.expected(index) != before


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name, backend", cases.SERVED)
def test_campaign_of_an_operators_cases(name, backend):
    pytest.importorskip("triton")
    results = campaign.run(cases.kernels(name, backend), every=4, seeds=10)
    assert campaign.share_of_reached(results) >= OF_CASES, campaign.table(results)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_campaign():
    pytest.importorskip("triton")
    _check(campaign.run(kernels.kernels()))


@pytest.mark.parametrize("body, is_late", [
    ("global_load_dword v2, v[4:5], off\n s_waitcnt vmcnt(0)\n v_mov_b32 v3, v2", False),
    ("global_load_dword v2, v[4:5], off\n v_mov_b32 v3, v2", True),
    ("global_load_dword v2, v[4:5], off\n v_mov_b32 v2, 0", True),
    ("global_load_dword v2, v[4:5], off\n global_load_dword v2, v[6:7], off\n s_waitcnt vmcnt(0)", False),
    ("global_load_dword v2, v[4:5], off\n global_store_dword v[4:5], v8, off\n s_waitcnt vmcnt(1)\n v_mov_b32 v3, v2",
     False),
    ("global_load_dword v2, v[4:5], off\n global_load_dword v3, v[4:5], off\n s_waitcnt vmcnt(1)\n v_mov_b32 v8, v3",
     True),
    ("ds_read_b32 v2, v4\n ds_read_b32 v3, v4\n s_waitcnt lgkmcnt(1)\n v_mov_b32 v8, v2", False),
    ("ds_read_b32 v2, v4\n s_load_dword s8, s[4:5], 0\n s_waitcnt lgkmcnt(1)\n v_mov_b32 v8, v2", True),
    ("ds_write_b32 v4, v2\n s_barrier", True),
    ("ds_write_b32 v4, v2\n s_waitcnt lgkmcnt(0)\n s_barrier", False),
    ("buffer_load_dword v4, s[8:11], 0 offen lds\n s_barrier", True),
    ("buffer_load_dword v4, s[8:11], 0 offen lds\n v_mov_b32 v4, 0\n s_waitcnt vmcnt(0)\n s_barrier", False),
    (f"{_BRANCH} global_load_dword v2, v[4:5], off\n1: v_mov_b32 v3, v2", True),
    # The second branch goes the way of the first: nothing is in flight where v2 is read.
    (f"{_BRANCH} global_load_dword v2, v[4:5], off\n1: s_and_b64 vcc, exec, s[10:11]\n s_cbranch_vccz 2f\n"
     " v_mov_b32 v3, v2\n2: s_waitcnt vmcnt(0)", False),
    (f"{_BRANCH} global_load_dword v2, v[4:5], off\n1: s_and_b64 vcc, exec, s[10:11]\n s_cbranch_vccnz 2f\n"
     " v_mov_b32 v3, v2\n2: s_waitcnt vmcnt(0)", True),
    # The mask has changed in between.
    (f"{_BRANCH} global_load_dword v2, v[4:5], off\n1: s_mov_b64 s[10:11], -1\n s_and_b64 vcc, exec, s[10:11]\n"
     " s_cbranch_vccz 2f\n v_mov_b32 v3, v2\n2: s_waitcnt vmcnt(0)", True),
])
def test_proof_of_waits(body, is_late):
    assert (first_hazard(_program(body, lds_bytes=256)) is not None) == is_late


def test_no_argument_holds_for_a_fault():
    """Every mutant of this kernel is caught: nothing may call it equivalent."""
    kernel = kernels.kernels("rms_norm.s 4096")[0]
    program = Program(kernel.elf, kernel.symbol)
    made = operators.mutants(program)
    assert {mutant.operator for mutant in made} >= {"wait-delete", "wait-vm+1", "nop-delete", "branch-never"}
    for mutant in made:
        case = equivalents.Case(kernel, program, mutant,
                                lambda elf: execute.verdicts([kernel], [Task(0, elf, (0,))], 1)[0])
        assert not equivalents.argument(case), (mutant.operator, mutant.inst)


def test_taking_an_instruction_out_moves_branches():
    program = _program("s_mov_b32 s8, 0\n1: s_nop 3\n s_add_u32 s8, s8, 1\n s_cmp_lt_u32 s8, 5\n s_cbranch_scc1 1b\n"
                       " s_branch 2f\n s_mov_b32 s8, 9\n2: s_nop 0", outputs=("s8",))
    nop = next(inst for inst in program.insts.values() if inst.text == "s_nop 3")
    elf = program.without(nop)
    texts = [text for _, text in instructions(elf)]
    assert len(texts) == len(instructions(program.elf)) and "s_nop 3" not in texts
    branch = next(inst for inst in Program(elf, "case0").insts.values() if inst.name == "s_cbranch_scc1")
    assert Program(elf, "case0").insts[branch.target].text == "s_add_u32 s8, s8, 1"


def test_clamps_are_found_by_data_flow():
    program = _program("v_min_i32 v2, v3, v4\n v_min_i32 v6, v3, v4\n v_cmp_lt_i32 vcc, v7, v8\n"
                       "s_and_saveexec_b64 s[10:11], vcc\n ds_read_b32 v5, v2\n s_or_b64 exec, exec, s[10:11]\n"
                       "s_waitcnt lgkmcnt(0)\n v_cmp_lt_i32 vcc, v6, v8\n v_cndmask_b32 v9, v6, v5, vcc", lds_bytes=64)
    made = {(mutant.operator, mutant.inst.text) for mutant in operators.mutants(program)}
    assert ("min-first", "v_min_i32_e32 v2, v3, v4") in made and ("cmp-true", "v_cmp_lt_i32_e32 vcc, v7, v8") in made
    assert not any("v6" in text for operator, text in made if operator in operators.CLAMPS)


def test_processes_that_end_or_hang_are_replaced(monkeypatch):
    monkeypatch.setattr(execute, "SECONDS", 3)
    kernel = kernels.kernels("rms_norm.s 4096")[0]
    program = Program(kernel.elf, kernel.symbol)
    endless = program.patched(next(iter(program.insts.values())), b"\xff\xff\x82\xbf")  # s_branch to itself
    tasks = [Task(0, endless, (0,)), Task(1, kernel.elf, (0,)), Task(0, kernel.elf, range(1, 10**6)),
             Task(0, kernel.elf, (0, 1))]
    details = [verdict.detail for verdict in execute.verdicts([kernel], tasks, 2)]
    for detail, part in zip(details, ("endless loop", "process died", "no end within", ""), strict=True):
        assert part in detail
    assert details[-1] == ""
