# SPDX-License-Identifier: MIT
"""What is deleted or weakened: one instruction per mutant.

    wait-delete      s_waitcnt → s_nop 0
    wait-vm+1, wait-vm-max, wait-lgkm+1, wait-lgkm-max      one counter of it allows one more, or all (the other stays)
    barrier-delete   s_barrier → s_nop 0
    nop-delete       s_nop taken out: the later code moves up
    nop-shorten      s_nop N → s_nop N - 1
    exec-keep        s_and_saveexec_b64 d, s → s_mov_b64 d, exec: no lane is masked
    cmp-true, cmp-false      integer v_cmp → v_cmp_t or v_cmp_f: the same for all lanes
    min-first, min-second    integer v_min, v_max, s_min, s_max → a move of one source
    branch-never     a forward branch on SCC or VCC that decides over a memory access → s_nop 0
    range-max        s_mov_b32 of a buffer descriptor's num_records → 0xffffffff

The last group are the bounds clamps: by the data flow over registers (`reaches`), the result of a compare decides over
a memory access, that of a minimum is part of its address or of its EXEC mask.
"""

import functools
import re
from dataclasses import dataclass

from mutation.program import NOP, Inst, Program, encode, registers

MEMORY = ("global_", "flat_", "buffer_", "ds_read", "ds_write", "scratch_")
CLAMPS = ("exec-keep", "cmp-true", "cmp-false", "min-first", "min-second", "branch-never", "range-max")
_COMPARE = re.compile(r"v_cmp_(?:lt|eq|le|gt|lg|ne|ge)_([iu](?:16|32|64))$")
_SELECT = ("v_min_i32", "v_min_u32", "v_max_i32", "v_max_u32", "s_min_i32", "s_min_u32", "s_max_i32", "s_max_u32")
_KEEP_SCC = ("s_mov", "s_load", "s_mul", "s_cselect", "s_cmov", "s_pack", "s_bfm", "s_sext", "s_ff", "s_brev")
_VM_MAX, _LGKM_MAX = 63, 15


@dataclass(frozen=True)
class Mutant:
    """A changed copy of a code object; `becomes` says what the instruction at `inst` was replaced by."""

    operator: str
    inst: Inst
    becomes: str
    elf: bytes


def mutants(program: Program) -> list[Mutant]:
    """Every mutant of the kernel."""
    made, clamps = [], []
    for inst in program.insts.values():
        if inst.name == "s_waitcnt":
            made += [Mutant(operator, inst, text, program.patched(inst, wait_code(*counts)))
                     for operator, text, counts in _weaker_waits(inst)]
        elif inst.name == "s_barrier":
            made.append(Mutant("barrier-delete", inst, "s_nop 0", program.patched(inst, NOP)))
        elif inst.name == "s_nop":
            made.append(Mutant("nop-delete", inst, "nothing", program.without(inst)))
            if states := int(inst.operands[0]):
                code = encode([f"s_nop {states - 1}"])[f"s_nop {states - 1}"]
                made.append(Mutant("nop-shorten", inst, f"s_nop {states - 1}", program.patched(inst, code)))
        else:
            clamps += [(operator, inst, text) for operator, text in _weaker_clamps(program, inst)]
    codes = encode(text for _, _, text in clamps)
    return made + [Mutant(operator, inst, text, program.patched(inst, codes[text])) for operator, inst, text in clamps]


def wait_counts(inst: Inst) -> tuple[int, int]:
    """vmcnt and lgkmcnt that a wait leaves outstanding."""
    found = dict(re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", inst.text))
    return int(found.get("vmcnt", _VM_MAX)), int(found.get("lgkmcnt", _LGKM_MAX))


def wait_code(vm: int, lgkm: int) -> bytes:
    """s_waitcnt (CDNA3 ISA 12.5.1: vmcnt in bits 3:0 and 15:14, expcnt in 6:4, lgkmcnt in 11:8)."""
    return (0xBF8C0000 | vm & 15 | 7 << 4 | lgkm << 8 | vm >> 4 << 14).to_bytes(4, "little")


def _weaker_waits(inst: Inst) -> list[tuple[str, str, tuple[int, int]]]:
    vm, lgkm = wait_counts(inst)
    found = {}
    for operator, counts in (("wait-delete", (_VM_MAX, _LGKM_MAX)), ("wait-vm-max", (_VM_MAX, lgkm)),
                             ("wait-lgkm-max", (vm, _LGKM_MAX)), ("wait-vm+1", (min(vm + 1, _VM_MAX), lgkm)),
                             ("wait-lgkm+1", (vm, min(lgkm + 1, _LGKM_MAX)))):
        if counts != (vm, lgkm) and counts not in found.values():
            found[operator] = counts
    return [(operator, f"s_waitcnt vmcnt({counts[0]}) lgkmcnt({counts[1]})", counts)
            for operator, counts in found.items()]


def _weaker_clamps(program: Program, inst: Inst) -> list[tuple[str, str]]:
    """(operator, new text) of the ways to weaken a clamp; none where the instruction is no clamp."""
    name, (first, *rest) = inst.name, inst.operands or ("",)
    if name == "s_and_saveexec_b64":
        return [("exec-keep", f"s_mov_b64 {first}, exec")]
    if name.startswith("s_cbranch_") and name[10:13] in ("scc", "vcc"):
        is_guard = inst.target > inst.pc and decides(program, inst)
        return [("branch-never", "s_nop 0")] if is_guard else []
    if compare := _COMPARE.match(name):
        head, tail = inst.text.split(" ", 1)
        made = [(f"cmp-{word}", f"{head.replace(name, f'v_cmp_{word[0]}_{compare[1]}')} {tail}")
                for word in ("true", "false")]
        return made if reaches(program, inst) else []
    if name in _SELECT:
        move = "s_mov_b32" if name[0] == "s" else "v_mov_b32"
        suffix = "" if name[0] == "s" else "_e64" if inst.text.split()[0].endswith("_e64") else "_e32"
        made = [(operator, f"{move}{suffix} {first}, {source.split()[0]}")
                for operator, source in zip(("min-first", "min-second"), rest[:2])]
        return made if reaches(program, inst) & {"address", "exec"} else []
    if name == "s_mov_b32" and reaches(program, inst) == {"range"}:
        return [("range-max", f"s_mov_b32 {first}, -1")]
    return []


def is_access(inst: Inst) -> bool:
    """It reads or writes memory or LDS."""
    return inst.name.startswith(MEMORY)


@functools.lru_cache(maxsize=2**16)  # the flow from each instruction asks for many others
def written(inst: Inst) -> frozenset[str]:
    """Registers that the instruction writes, by its text: the first operand unless it stores or branches."""
    if inst.name.startswith(("s_cbranch", "s_branch", "s_waitcnt", "s_nop", "s_barrier", "s_endpgm")) or (
            is_access(inst) and ("store" in inst.name or "write" in inst.name)) or is_dma(inst):
        return frozenset()
    found = registers(",".join(inst.operands[:_num_results(inst)]))
    if "saveexec" in inst.name:
        found |= {"exec"}
    if inst.name.startswith(("s_cmp", "s_bitcmp")):
        return frozenset({"scc"})
    return found | ({"scc"} if inst.name.startswith("s_") and not inst.name.startswith(_KEEP_SCC) else set())


def is_dma(inst: Inst) -> bool:
    """A load whose data goes to LDS: its first operand is an address."""
    return inst.name.startswith("buffer_load") and inst.text.endswith(" lds")


def _num_results(inst: Inst) -> int:
    """How many of the printed operands are results."""
    return 2 if inst.name.startswith(("v_add_co", "v_addc_co", "v_sub_co", "v_subb_co", "v_subrev_co",
                                      "v_mad_u64_u32", "v_mad_i64_i32", "v_div_scale")) else 1


@functools.lru_cache(maxsize=2**16)
def read(inst: Inst) -> frozenset[str]:
    """Registers that the instruction may read: all that it names, and the implicit masks."""
    found = registers(inst.text if not written(inst) else ",".join(inst.operands[_num_results(inst):]))
    if inst.name.startswith(("s_cmp", "s_bitcmp")):
        found = registers(inst.text)
    if inst.name.startswith(("v_fmac", "v_mac", "v_mfma")) or "d16" in inst.name:
        found |= registers(inst.operands[0])
    if "_scc" in inst.name or inst.name.startswith(("s_cselect", "s_addc", "s_subb")):
        found |= {"scc"}
    if "_vcc" in inst.name:
        found |= {"vcc"}
    return found | ({"exec"} if "exec" in inst.name else set())


def reaches(program: Program, inst: Inst) -> set[str]:
    """What the instruction's result reaches: "address" of an access, "exec" at one, a "branch" that decides over one,
    the "range" of a descriptor.
    """
    found: set[str] = set()
    for pc, tainted in flow(program, inst).items():
        at = program.insts[pc]
        if at.name.startswith("s_cbranch") and read(at) & tainted and decides(program, at):
            found.add("branch")
        if is_access(at):
            found |= {"exec"} if "exec" in tainted else set()
            found |= {"address"} if address(at) & tainted else set()
            found |= {"range"} if range_register(at) in tainted else set()
    return found


def flow(program: Program, inst: Inst) -> dict[int, frozenset[str]]:
    """pc → registers that may hold there what depends on the instruction's result."""
    todo = {successor.pc: written(inst) for successor in program.after(inst)}
    seen: dict[int, frozenset[str]] = {}
    while todo:
        pc = min(todo)  # in the program's order, so that what meets at an instruction is mostly there by its turn
        at, tainted, known = program.insts[pc], todo.pop(pc), seen.get(pc, frozenset())
        if tainted <= known:
            continue
        seen[pc] = tainted = tainted | known
        outgoing = tainted - written(at) | _tainted(at, tainted)
        for successor in program.after(at):
            todo[successor.pc] = todo.get(successor.pc, frozenset()) | outgoing
    return seen


def _tainted(inst: Inst, tainted: frozenset[str]) -> frozenset[str]:
    """What the instruction writes that depends on tainted registers."""
    if "saveexec" in inst.name:
        saved, source = registers(inst.operands[0]), registers(inst.operands[1])
        return (saved if "exec" in tainted else frozenset()) | (
            {"exec"} if tainted & (source | {"exec"}) else frozenset())
    if inst.name == "s_or_b64" and inst.operands[:2] == ("exec", "exec"):  # back to a mask that was saved before
        return frozenset({"exec"}) if tainted & registers(inst.operands[2]) else frozenset()
    return written(inst) if read(inst) & tainted else frozenset()


@functools.lru_cache(maxsize=4096)
def decides(program: Program, branch: Inst) -> bool:
    """Whether some memory access is executed depends on this conditional branch."""
    ways = program.ways(branch)
    return any(is_access(program.insts[pc]) for pc in ways[0] ^ ways[-1])


def address(inst: Inst) -> frozenset[str]:
    """Registers of the address: every operand but the data of a store and the result of a load."""
    stores = "store" in inst.name or "write" in inst.name
    if inst.name.startswith("buffer_"):
        return registers(",".join(inst.operands[1:])) - {range_register(inst)}
    if inst.name.startswith("ds_"):
        return registers(inst.operands[0 if stores else 1])
    data = {1} if stores else {0}
    return frozenset().union(*[registers(o) for k, o in enumerate(inst.operands) if k not in data])


def range_register(inst: Inst) -> str:
    """The register of num_records in the descriptor of a buffer access, "" for other accesses."""
    found = re.search(r"s\[(\d+):(\d+)\]", inst.text) if inst.name.startswith("buffer_") else None
    return f"s{int(found[1]) + 2}" if found and int(found[2]) - int(found[1]) == 3 else ""
