# SPDX-License-Identifier: MIT
"""A proof that the waits of a kernel suffice, over all paths: what the wait checker sees on one path, from the text
alone and by another method, so that the two can be held against each other.

Per register: which counter its load is on, and how many later operations that counter has at least seen. A wait for n
retires what n or more have followed; where ways meet, the younger counts. Branches on one mask that nobody changed in
between go the same way (`s_and_b64 vcc, exec, s[a:b]` before s_cbranch_vcc…: compilers branch on loop conditions so).
"""

from mutation.operators import is_access, is_dma, wait_counts, written
from mutation.program import Inst, Program, registers

_LDS_WRITES = "LDS"  # stands for what this wave has written to LDS and other waves read behind the barrier
_CAP = 64            # more are never in flight
_IN_ORDER = ("vm", "ds")

# (register, counter's operations: "vm", "ds", "smem") → operations since
Pending = dict[tuple[str, str], int]
# The mask pair that VCC was made from, and whether VCC is zero when the mask is not; masks known to be zero or not.
Facts = tuple[tuple[str, bool] | None, frozenset[tuple[str, bool]]]


def first_hazard(program: Program, waits: dict[int, tuple[int, int]] | None = None) -> Inst | None:
    """An instruction that may use a register, or pass a barrier, too early. None: there is no such instruction.

    Args:
        waits: pc → (vmcnt, lgkmcnt) of waits that are other than in the program.
    """
    waits = waits or {}

    states: dict[tuple[int, Facts], Pending] = {}
    todo: list[tuple[int, Facts, Pending]] = [(program.entry, (None, frozenset()), {})]
    while todo:
        pc, facts, incoming = todo.pop()
        inst, known = program.insts[pc], states.get((pc, facts))
        pending = incoming if known is None else _joined(known, incoming)
        if pending == known:
            continue
        states[pc, facts] = pending
        if _is_early(inst, pending):
            return inst
        after = _issued(inst, _retired(pending, waits.get(pc) or wait_counts(inst)) if inst.name == "s_waitcnt"
                        else pending)
        todo += [(successor, new, after) for successor, new in _ways(program, inst, _learned(inst, facts))]
    return None


def _joined(a: Pending, b: Pending) -> Pending:
    return {key: min(a.get(key, _CAP), b.get(key, _CAP)) for key in a.keys() | b.keys()}


def _retired(pending: Pending, counts: tuple[int, int]) -> Pending:
    vm, lgkm = counts
    if any(kind == "smem" for _, kind in pending) and lgkm:
        lgkm = _CAP + 1  # scalar loads return in any order: only 0 says something
    return {(name, kind): age for (name, kind), age in pending.items() if age < (vm if kind == "vm" else lgkm)}


def _is_early(inst: Inst, pending: Pending) -> bool:
    if inst.name == "s_barrier":
        return any(name == _LDS_WRITES for name, _ in pending)
    if inst.name == "s_waitcnt":
        return False
    kind, results = _kind(inst), _loaded(inst)
    sources = registers(",".join(inst.operands[1:])) if results else registers(inst.text)
    return any(name in sources or (name in results and not (kind == other and kind in _IN_ORDER))
               for name, other in pending)


def _issued(inst: Inst, pending: Pending) -> Pending:
    kind = _kind(inst)
    if not kind:
        return pending
    same = ("vm",) if kind == "vm" else ("ds", "smem")
    after = {(name, k): min(age + (k in same), _CAP) for (name, k), age in pending.items()}
    after.update({(name, kind): 0 for name in _loaded(inst)})
    if inst.name.startswith("ds_write") or is_dma(inst):
        after[_LDS_WRITES, kind] = 0
    return after


def _kind(inst: Inst) -> str:
    if inst.name.startswith("s_load"):
        return "smem"
    if inst.name.startswith("ds_"):
        return "ds"
    if inst.name.startswith(("global_", "buffer_", "scratch_")):
        return "vm"
    if inst.name.startswith(("flat_", "s_buffer", "s_store", "s_atomic")):
        raise ValueError(f"no rule for {inst.text}")
    return ""


def _loaded(inst: Inst) -> frozenset[str]:
    """Registers in which something arrives later."""
    return written(inst) - {"scc"} if _kind(inst) and ("ds_" in inst.name or "load" in inst.name or is_access(inst)) \
        else frozenset()


def _learned(inst: Inst, facts: Facts) -> Facts:
    """What is known of VCC and of masks behind the instruction."""
    alias, known = facts
    names = written(inst)
    known = frozenset((pair, value) for pair, value in known if not registers(pair) & (names | {"exec"} & names))
    if alias and (registers(alias[0]) | {"vcc"}) & names:
        alias = None
    if inst.name in ("s_and_b64", "s_andn2_b64") and inst.operands[:2] == ("vcc", "exec"):
        alias = (inst.operands[2], inst.name == "s_andn2_b64")
    if "exec" in names:
        alias, known = None, frozenset()
    return alias, known


def _ways(program: Program, inst: Inst, facts: Facts) -> list[tuple[int, Facts]]:
    """Successors, without those that contradict what is known."""
    if inst.name not in ("s_cbranch_vccz", "s_cbranch_vccnz") or facts[0] is None:
        return [(after.pc, facts) for after in program.after(inst)]
    (pair, inverted), known = facts
    ways = []
    for pc, is_taken in ((inst.pc + inst.size, False), (inst.target, True)):
        value = is_taken == (inst.name == "s_cbranch_vccnz") ^ inverted  # the mask is all ones or zero on this way
        if (pair, not value) not in known:
            ways.append((pc, (facts[0], known | {(pair, value)})))
    return ways
