# SPDX-License-Identifier: MIT
"""Hazard arguments: why a mutant that nothing notices is no fault. Each has a predicate that a machine checks, on the
code alone or by further mutants ("probes") that must run in a certain way. A mutant counts as equivalent only when one
of them holds and its output stayed the same under every seed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mutation import operators
from mutation.execute import Verdict
from mutation.kernels import Kernel
from mutation.operators import Mutant, is_access
from mutation.program import Inst, Program, encode, registers
from mutation.waits import first_hazard

_TRAP = "s_trap 2"  # the simulator refuses it: a launch that executes it fails
_BEYOND = b"\xff\x7f"  # a branch offset that leaves the code object


@dataclass(frozen=True)
class Case:
    """A survivor. `probe` runs a code object through all launches of the kernel."""

    kernel: Kernel
    program: Program
    mutant: Mutant
    probe: Callable[[bytes], Verdict]

    def is_executed(self) -> bool:
        """Some launch executes the mutated instruction."""
        return self.probe(self.program.patched(self.mutant.inst, encode([_TRAP])[_TRAP])).by == "fault"


def _waits_suffice(case: Case) -> bool:
    if not case.mutant.operator.startswith("wait"):
        return False
    counts = operators.wait_counts(replace(case.mutant.inst, text=case.mutant.becomes))
    return first_hazard(case.program, {case.mutant.inst.pc: counts}) is None


def _is_packed_result(case: Case) -> bool:
    inst = case.mutant.inst
    before = case.program.before[inst.pc]
    return case.mutant.operator == "nop-delete" and inst.operands == ("0",) and case.is_executed() and all(
        one.name.startswith("v_pk_") and operators.written(one) & operators.read(after)
        for one in before for after in case.program.after(inst))


def _is_assembly_result(case: Case) -> bool:
    inst = case.mutant.inst
    before = case.program.before[inst.pc]
    return case.mutant.operator == "nop-delete" and inst.operands == ("0",) and bool(before) and all(
        one.name == "v_mbcnt_lo_u32_b32" for one in before) and case.is_executed()


def _is_any_lane(case: Case) -> bool:
    """The compare with 0 that picks the lane (of the wave, or of a row's four) may as well pick lane 1, 2 or 3."""
    inst = case.mutant.inst
    if case.mutant.operator == "exec-keep":
        inst = _definition(case.program, inst, inst.operands[1])
    if case.mutant.operator not in ("exec-keep", "cmp-true") or inst is None or inst.name != "v_cmp_eq_u32" or (
            inst.operands[1] != "0"):
        return False
    others = [inst.text.replace(" 0, ", f" {lane}, ") for lane in (1, 2, 3)]
    return all(not case.probe(case.program.patched(inst, code)).by for code in encode(others).values())


def _is_clamped_again(case: Case) -> bool:
    """The accesses behind the branch to memory are loads, whose addresses pass another clamp there."""
    program, inst = case.program, case.mutant.inst
    if case.mutant.operator != "branch-never" or not case.probe(_taken_fails(case)).by == "fault":
        return False
    region = program.ways(inst)[0] - program.ways(inst)[-1]
    clamped = _addressed(program, [program.insts[pc] for pc in region], ("v_min_i32", "v_min_u32", "v_cndmask_b32"))
    accesses = [pc for pc in region if is_access(program.insts[pc]) and not program.insts[pc].name.startswith("ds_")]
    return bool(accesses) and all("load" in program.insts[pc].name and pc in clamped for pc in accesses)


def _is_empty_row(case: Case) -> bool:
    """The branch skips a loop for a count below 1; no launch takes it."""
    inst = case.mutant.inst
    if case.mutant.operator != "branch-never" or "rms_norm" not in case.kernel.name:
        return False
    compare = _definition(case.program, inst, "scc")
    return compare is not None and compare.name == "s_cmp_lt_i32" and compare.operands[1] == "1" and not case.probe(
        _taken_fails(case)).by


def _is_guarded_twice(case: Case) -> bool:
    """Another compare of the same row decides too: without both, lanes leave their memory."""
    inst, program = case.mutant.inst, case.program
    if case.mutant.operator != "cmp-true" or not inst.name.endswith("_i64"):
        return False
    for other in program.insts.values():
        if other.name == inst.name and other != inst and other.operands[-1] == inst.operands[-1]:
            text = other.text.replace(other.name, "v_cmp_t_i64")
            both = Program(case.mutant.elf, program.kernel).patched(other, encode([text])[text])
            if case.probe(both).detail == "bounds":
                return True
    return False


def _is_only_row(case: Case) -> bool:
    """A compare of the row, where a workgroup has one and every workgroup has one."""
    return case.mutant.operator == "cmp-true" and case.mutant.inst.name.endswith("_i64") and case.is_executed() and all(
        launch.block == 256 and "_l256_" in case.kernel.name and launch.grid[0] == int(launch.name.split("x")[0])
        for launch in case.kernel.launches)


def _is_not_empty(case: Case) -> bool:
    """`0 < n`, and every access that it guards is also guarded by a `column < n`."""
    inst, program = case.mutant.inst, case.program
    if case.mutant.operator == "exec-keep":
        inst = _definition(program, inst, inst.operands[1])
    if inst is None or inst.name != "v_cmp_lt_i32" or inst.operands[1] != "0" or case.mutant.operator not in (
            "cmp-true", "exec-keep"):
        return False
    guarded = set()
    for other in program.insts.values():
        if other.name in ("v_cmp_lt_i32", "v_cmp_lt_u32") and other != inst and other.operands[2] == inst.operands[2]:
            guarded |= _guarded(program, other)
    others = _guarded(program, inst) - guarded
    selected = _addressed(program, program.insts.values(), ("v_cndmask_b32",))
    return bool(guarded) and all("load" in program.insts[pc].name and pc in selected for pc in others)


def _addressed(program: Program, insts: Iterable[Inst], names: Sequence[str]) -> set[int]:
    """Accesses whose address comes from one of these instructions that has one of these names."""
    return {pc for inst in insts if inst.name in names for pc, tainted in operators.flow(program, inst).items()
            if is_access(program.insts[pc]) and operators.address(program.insts[pc]) & tainted}


def _guarded(program: Program, compare: Inst) -> set[int]:
    """Accesses under an EXEC mask that depends on the compare."""
    return {pc for pc, tainted in operators.flow(program, compare).items()
            if "exec" in tainted and is_access(program.insts[pc])}


def _is_later_column(case: Case) -> bool:
    """Reached only where a compare of an earlier column with the same length had no lane."""
    inst, program = case.mutant.inst, case.program
    if case.mutant.operator != "cmp-false" or inst.name != "v_cmp_lt_u32":
        return False
    todo, seen = [inst], set()
    while todo:
        one = todo.pop()
        if one.pc in seen:
            continue
        seen.add(one.pc)
        if not program.before[one.pc]:
            return False
        for before in program.before[one.pc]:
            if not before.name.startswith("s_cbranch"):
                todo.append(before)
            elif not _is_empty_mask(program, before, one, inst):
                return False
    return True


def _is_empty_mask(program: Program, branch: Inst, way: Inst, later: Inst) -> bool:
    """The branch goes this way where EXEC is empty, and EXEC is of a compare with the same length."""
    if branch.name not in ("s_cbranch_execz", "s_cbranch_execnz") or (
            (branch.target == way.pc) != (branch.name == "s_cbranch_execz")):
        return False
    mask = _definition(program, branch, "exec")
    compare = mask and mask.name == "s_and_saveexec_b64" and _definition(program, mask, mask.operands[1])
    return bool(compare) and compare.name == later.name and compare.operands[2] == later.operands[2]


def _is_soft_clause(case: Case) -> bool:
    """Between vector loads, of which one that stands next to it overwrites registers of an address among them."""
    program, inst = case.program, case.mutant.inst
    if case.mutant.operator != "nop-delete" or inst.operands != ("0",):
        return False
    clause = []
    for step in (lambda one: program.before[one.pc], program.after):
        at = step(inst)
        while len(at) == 1 and at[0].name.startswith(("global_load", "buffer_load")):
            clause.append(at[0])
            at = step(at[0])
        if not clause:
            return False
    results = frozenset().union(*[operators.written(one) for one in clause])
    return any(operators.address(one) & results for one in clause) and case.is_executed()


def _is_lower_half(case: Case) -> bool:
    """The shortest row that this code object serves is among the launches, and no lane is outside it."""
    if case.mutant.operator != "cmp-true" or not case.kernel.name.startswith("triton rms_norm"):
        return False
    rows = [int(launch.name.split("x")[-1]) for launch in case.kernel.launches]
    return any((row - 1).bit_count() == 1 for row in rows)


def _is_unmasked(case: Case) -> bool:
    """No access through this descriptor has an address that passes a select."""
    program, inst = case.program, case.mutant.inst
    if case.mutant.operator != "range-max":
        return False
    ours = {pc for pc, tainted in operators.flow(program, inst).items()
            if operators.range_register(program.insts[pc]) in tainted and is_access(program.insts[pc])}
    for select in program.insts.values():
        if select.name == "v_cndmask_b32":
            reached = operators.flow(program, select)
            if any(operators.address(program.insts[pc]) & reached.get(pc, frozenset()) for pc in ours):
                return False
    return bool(ours)


def _is_interior(case: Case) -> bool:
    """A bound of the pass without masks in the causal Triton kernel: `seen_by_all`, minimum with seqlen_k, maximum
    with 0.
    """
    name = case.mutant.inst.name
    return case.kernel.name.startswith("triton flash_attn") and "causal" in case.kernel.name and (
        (name, case.mutant.operator) in (("s_min_i32", "min-first"), ("s_max_i32", "min-second"))
    ) and case.is_executed()


def _is_spare_block(case: Case) -> bool:
    """The branch ends the loop over key blocks; another step would be one with masks."""
    program, inst = case.program, case.mutant.inst
    if case.mutant.operator != "branch-never" or not case.kernel.name.startswith("flash_attn_fwd.hip"):
        return False
    step = [program.insts[pc] for pc in program.ways(inst)[0] - program.ways(inst)[-1]]
    return all(any(one.name.startswith(name) for one in step) for name in ("v_mfma", "s_barrier", "v_cndmask")) and (
        case.probe(_taken_fails(case)).by == "fault")


def _taken_fails(case: Case) -> bytes:
    """The code object with the branch, when it is taken, leading out of it."""
    inst = case.mutant.inst
    opcode = case.program.code(inst)[2:]
    return case.program.patched(inst, _BEYOND + opcode)


def _definition(program: Program, inst: Inst, operand: str) -> Inst | None:
    """The instruction that writes the operand which `inst` reads, where there is one for all ways to it."""
    names, found, seen, todo = registers(operand), set(), set(), list(program.before[inst.pc])
    while todo:
        one = todo.pop()
        if one.pc in seen:
            continue
        seen.add(one.pc)
        if operators.written(one) & names:
            found.add(one)
        else:
            todo += program.before[one.pc]
    return found.pop() if len(found) == 1 else None


# name → (predicate, hazard argument)
ARGUMENTS: dict[str, tuple[Callable[[Case], bool], str]] = {
    "wait-covered": (_waits_suffice, "On no feasible path is a register used, or LDS published by a barrier, before a "
                     "wait that covers it (waits.first_hazard, over all paths of the mutant)."),
    "packed-result": (_is_packed_result, "The s_nop stands between a packed VOP3P and a reader of its result. LLVM "
                      "takes op_sel_hi of the first source for VOP3's op_sel of the destination, which share a bit, "
                      "and so sees a result that fills half a register. Packed results fill theirs: no wait state is "
                      "due (CDNA3 ISA 4.5). The instruction is executed, and no pair of the table is too close."),
    "assembly-result": (_is_assembly_result, "The s_nop stands behind inline assembly, into which LLVM does not look: "
                        "its result might fill a part of a register. That of v_mbcnt_lo_u32_b32 fills all of it, and "
                        "where LLVM has made both instructions itself it puts no s_nop between them. The instruction "
                        "is executed, and no pair of the table is too close."),
    "any-lane": (_is_any_lane, "The guard picks one of several lanes that hold the same value and store it at the same "
                 "address (the result of a butterfly): with lane 1, 2 or 3 instead, everything stays the same."),
    "clamped-again": (_is_clamped_again, "The branch saves work: behind it are only loads, whose addresses are clamped "
                      "once more there, and whose values are masked or not used."),
    "empty-row": (_is_empty_row, "The branch is for a row of no elements. The operator returns before a launch then."),
    "guarded-twice": (_is_guarded_twice, "A row that is not there is kept away by its address, which is the last "
                      "row's, and by its length, which is 0: each alone suffices. Without both, a checker reports."),
    "only-row": (_is_only_row, "A workgroup has one row, and the grid has as many workgroups as there are rows: the "
                 "compare is true."),
    "not-empty": (_is_not_empty, "Every store behind `0 < length` is also behind `column < length`, and columns are "
                  "not negative: the next clamp excludes the same lanes. So is every load, or the compare selects its "
                  "address: lanes outside load the row's first place, which is there."),
    "later-column": (_is_later_column, "Reached only where no lane's column is inside the row; this compare is of a "
                     "later column with the same length, so no lane is inside here either."),
    "soft-clause": (_is_soft_clause, "The s_nop ends a clause of loads, one of which overwrites an address register: "
                    "needed where the memory system has loads repeated (XNACK). This device runs with XNACK off, as "
                    "MI300X does unless it is asked for; no pair of the wait-state table is too close."),
    "lower-half": (_is_lower_half, "BLOCK is the least power of two that holds the row, so that columns below "
                   "BLOCK / 2 are inside every row: the compare is true. The shortest row, BLOCK / 2 + 1, is among the "
                   "launches."),
    "unmasked": (_is_unmasked, "Triton masks a lane by an offset beyond the descriptor's range, through a select. No "
                 "address that goes with this descriptor comes from one: the range decides nothing."),
    "spare-block": (_is_spare_block, "The branch leaves the loop over key blocks, for all waves alike. One more step "
                    "would be over a block whose keys the mask hides from every row, moved in as zeros: each p of it "
                    "is 0, and so is what it adds."),
    "interior": (_is_interior, "The pass without masks ends where every row of the block sees all keys: never beyond "
                 "seqlen_k, as a block begins below seqlen_q; and a pass that ends at 0 leaves every key to the pass "
                 "with masks, which computes the same."),
}


def argument(case: Case) -> str:
    """Name of the first argument that holds; "" for none."""
    return next((name for name, (holds, _) in ARGUMENTS.items() if holds(case)), "")


def contradictions(program: Program, mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> list[str]:
    """Waits that the wait checker reported and that the proof calls unneeded: one of the two would be wrong."""
    found = []
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        if mutant.operator.startswith("wait") and verdict.detail == "wait":
            counts = operators.wait_counts(replace(mutant.inst, text=mutant.becomes))
            if first_hazard(program, {mutant.inst.pc: counts}) is None:
                found.append(f"{mutant.inst.pc:#x}: {mutant.inst.text}")
    return found
