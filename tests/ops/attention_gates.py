# SPDX-License-Identifier: MIT
"""What compilers make of the loop of csrc/attention/flash_attn_fwd.hip: registers, spills, instructions, slots.

A slot is 4 clk. `vector_port` is what a wave and block take of the port that vector arithmetic and matrix instructions
share: an exponential 4 slots, as a 32-bit product of integers, everything else 1; the mean of the two groups of waves,
of which one turns V. Two waves share a port, so a block of one takes at least that long, and at least as long as its
matrix instructions take of the matrix pipe. `softmax_slots` is what a wave that turns V takes for its softmax phase,
from barrier to barrier, if it has the port for itself; `matrix_cycles` the matrix phase by llvm-mca.

`python tests/ops/attention_gates.py` prints a line per instance and compiler and fails where a bound does not hold;
`--record` writes attention_gates.csv for the instances that CI compiles; there figures may grow by 2 %. ROCm's compiler
is one more where it is installed, held to the bounds alone: its version is the machine's. Used by
test_attention_gates.py.
"""

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_gates import COMPILERS

from aiter_like import paths
from aiter_like.jit import Instance, JitFunction
from aiter_like.modules import cache, recipe, toolchain
from aiter_like.ops.attention.flash_attn_fwd_hip import HEAD_DIMS, MASKS, VARIANTS, flash_attn_fwd_hip, variant

ROCM = "hipcc"
MCA = "llvm-mca-22"
RECORDED = Path(__file__).with_suffix(".csv")
REGRESSION = 1.02
_SYMBOL = re.compile(r"(_ZN10aiter_like\d+flash_attn_fwd_kernel\w*):")
_LOOPS = {"none": 1, "right": 2, "both": 3}  # interior; then the right edge; then the left one


@dataclass(frozen=True)
class Bounds:
    """Of one head dimension: registers, instructions of the loop, slots.

    Attributes:
        lds_reads: in the matrix phase, in the softmax phase.
        pipe: slots of the matrix pipe.
        vector_port, softmax_slots: by rounding. Where vector_port is more than `pipe`, the port is the bound.
    """

    vgprs: int
    lds_bytes: int
    mfma: int
    pipe: int
    exp: int
    lds_reads: tuple[int, int]
    matrix_cycles: int
    vector_port: dict[str, int]
    softmax_slots: dict[str, int]


BOUNDS = {
    128: Bounds(252, 65536, 192, 768, 48, (26, 6), 780, {"rtz": 570, "rtna": 620, "rtne": 670, "f16": 620},
                {"rtz": 430, "rtna": 480, "rtne": 530, "f16": 480}),
    64: Bounds(224, 50176, 64, 512, 64, (10, 6), 525, {"rtz": 540, "rtna": 605, "rtne": 670, "f16": 605},
               {"rtz": 520, "rtna": 585, "rtne": 650, "f16": 585}),
}
LOADS = 4
KEY = ("instance", "compiler")
COMPARED = ("matrix_cycles", "softmax_slots", "vector_port")
FIELDS = (*KEY, "vgprs", *COMPARED)
_SLOW = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|mul_lo_u32|mul_hi_|mad_u64_u32|mad_i64_i32)")


@dataclass(frozen=True)
class Loop:
    """The loop over key blocks that hide nothing, as a block takes it that does not raise its maximum.

    Attributes:
        softmax: the softmax phase of group A, which moves K, from barrier to barrier.
        turning: that of group B, which moves V and turns it.
        matrix: the matrix phase, between its s_setprio.
        rest: of the matrix phase's slot.
        slow: a list per block that neither group takes.
    """

    softmax: list[str]
    turning: list[str]
    matrix: list[str]
    rest: list[str]
    slow: list[list[str]]

    @property
    def fast(self) -> list[str]:
        return self.softmax + self.matrix + self.rest

    @property
    def vector_port(self) -> int:
        """Of a wave and block: slots of the port, the mean of the groups."""
        both = self.matrix + self.rest
        return port(both) + (port(self.softmax) + port(self.turning) + 1) // 2


def instances(every: bool) -> list[Instance]:
    """Each rounding without a mask, and the default one with masks; `every`: all that there are."""
    return [variant(dtype, head_dim, rounding, mask) for head_dim in HEAD_DIMS for dtype, rounding in VARIANTS
            for mask in MASKS if every or mask == "none" or (rounding == 1 and mask in MASKS)]


def missing(compiler: str) -> str | None:
    """Why a compiler cannot be used; None: it can."""
    found = _candidate(compiler)
    return None if found.toolchain is not None else found.reason


def _candidate(compiler: str) -> toolchain.Candidate:
    if compiler == ROCM:
        return toolchain._probe(ROCM, *toolchain._search())
    return toolchain._identify(shutil.which(compiler) or compiler, *toolchain._search())


def assembly(instance: Instance, compiler: str, stub: JitFunction = flash_attn_fwd_hip) -> str:
    """The device code as text, as the JIT's flags make it; kept in the cache by content."""
    found = _candidate(compiler).toolchain
    if found is None:
        raise FileNotFoundError(f"{compiler} is needed for the static gates of attention: see .ci/setup.sh")
    spec = stub.instance_spec(instance, "hip", "gfx942")
    command = [*recipe.steps(spec, found)[0].command]
    command[command.index("-c"):command.index("-c") + 1] = ["-S"]
    sources = [*sorted((paths.csrc() / "attention").iterdir()),
               *sorted((paths.csrc() / "include").rglob("*.h"))]
    words = [found.identity, *command, *(cache.sha256_of(path) for path in sources)]
    kept = cache.cache_root() / "attention_gates" / f"{cache.sha256(chr(0).join(words).encode())}.s"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            output = Path(folder, "device.s")
            command[command.index("-o") + 1] = str(output)
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            output.rename(kept)
    return kept.read_text()


def blocks_of(text: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """The kernel's symbol and its basic blocks in order, with their labels."""
    start = _SYMBOL.search(text)
    if start is None:
        raise ValueError("the assembly has no flash_attn_fwd_kernel")
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in text[start.end():].splitlines():
        if line.startswith(".Lfunc_end"):
            return start[1], blocks
        if label := re.match(r"(\.LBB\w+):|; (%bb\.\d+):", line):
            blocks.append((label[1] or label[2], []))
        elif (words := line.split(";")[0].strip()) and not words.startswith("."):
            blocks[-1][1].append(words)
    raise ValueError("the kernel has no end")


Graph = dict[int, list[int]]


def loops_of(blocks: list[tuple[str, list[str]]]) -> list[tuple[list[list[str]], Graph]]:
    """The basic blocks of the loops that multiply, in order: sets of blocks that reach one another; and for the number
    of each in the list the numbers of those that may follow."""
    index = {label: number for number, (label, _) in enumerate(blocks)}
    after = [_successors(number, words, index) for number, (_, words) in enumerate(blocks)]
    reach = [_reachable(number, after) for number in range(len(blocks))]
    cycles = {frozenset(other for other in reach[number] if number in reach[other])
              for number in range(len(blocks)) if number in reach[number]}
    found = []
    for cycle in sorted(cycles, key=min):
        order = sorted(cycle)
        inside = [blocks[number][1] for number in order]
        if any(count(words, "v_mfma") for words in inside):
            found.append((inside, {place: [order.index(other) for other in after[number] if other in cycle]
                                   for place, number in enumerate(order)}))
    return found


def _successors(number: int, words: list[str], index: dict[str, int]) -> set[int]:
    targets = {index[word.split()[1]] for word in words if word.startswith(("s_cbranch", "s_branch"))}
    ends = bool(words) and words[-1].startswith(("s_branch", "s_endpgm"))
    return targets if ends else targets | {number + 1}


def _reachable(number: int, after: list[set[int]]) -> set[int]:
    found: set[int] = set()
    todo = [*after[number]]
    while todo:
        if (block := todo.pop()) < len(after) and block not in found:
            found.add(block)
            todo += after[block]
    return found


def port(words: list[str]) -> int:
    """Slots of the port of vector and matrix instructions."""
    return sum(4 if _SLOW.match(word) else 1 for word in words if word.startswith("v_"))


def issue(words: list[str]) -> int:
    """Slots that instructions of one wave take one after another; s_nop N takes N + 1."""
    nops = sum(int(word.split()[1], 0) for word in words if word.startswith("s_nop"))
    return port(words) + sum(not word.startswith("v_") for word in words) + nops


def _path(inside: list[list[str]], after: Graph, start: int, end: int) -> list[int]:
    """The blocks behind `start` up to `end`, the way that takes least of the port."""
    best, todo = {}, [(0, [other]) for other in after[start]]
    while todo:
        cost, path = todo.pop(todo.index(min(todo)))
        if path[-1] in best:
            continue
        best[path[-1]] = path
        cost += port(inside[path[-1]]) + len(inside[path[-1]]) / 1000
        if path[-1] != end:
            todo += [(cost, [*path, other]) for other in after[path[-1]]]
    return best[end]


def split(inside: list[list[str]], after: Graph) -> Loop:
    """The phases of a loop, one of whose blocks multiplies and one of which turns V.

    Raises:
        ValueError: no such blocks.
    """
    main = [number for number, words in enumerate(inside) if count(words, "v_mfma")]
    turns = [number for number, words in enumerate(inside)
             if count(words, "v_perm") >= 8 and not count(words, "v_exp") and not count(words, "v_mfma")]
    if len(main) != 1 or len(turns) != 1:
        raise ValueError(f"a loop multiplies in {len(main)} blocks and turns V in {len(turns)}, expected one each")
    body = inside[main[0]]
    barrier, low, high = body.index("s_barrier"), body.index("s_setprio 1"), body.index("s_setprio 0")
    last = len(body) - 1 - body[::-1].index("s_barrier")
    if not barrier < low < high < last:
        raise ValueError("the block that multiplies has no barriers around its matrix phase")
    direct = _path(inside, after, main[0], main[0])
    turning = _path(inside, after, main[0], turns[0]) + _path(inside, after, turns[0], main[0])
    phase = [body[last:] + [word for number in path[:-1] for word in inside[number]] + body[:barrier]
             for path in (direct, turning)]
    slow = [words for number, words in enumerate(inside) if number not in {*direct, *turning}]
    return Loop(*phase, body[low:high + 1], body[barrier:low] + body[high + 1:last], slow)


def count(words: list[str], pattern: str) -> int:
    """How many of the instructions match from their beginning on."""
    return sum(re.match(pattern, word) is not None for word in words)


def cycles(words: list[str]) -> int:
    """Modelled cycles of straight code."""
    done = subprocess.run([MCA, "-mtriple=amdgcn", "-mcpu=gfx942", "-iterations=1"], input="\n".join(words) + "\n",
                          capture_output=True, text=True, check=True)
    return int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1])


def resources(text: str, symbol: str) -> dict[str, int]:
    """The kernel's entry of the code object's metadata."""
    entry = next(part for part in re.split(r"\n  - ", text.partition("amdhsa.kernels:")[2]) if f".name: {symbol}" in
                 re.sub(r"\s+", " ", part))
    return {name: int(value) for name, value in re.findall(r"\.(\w+): +(\d+)$", entry, re.MULTILINE)}


@dataclass(frozen=True)
class Report:
    """One instance by one compiler: numbers, and what does not hold."""

    values: dict[str, str | int]
    failures: list[str]


def examine(instance: Instance, compiler: str) -> Report:
    """Compiles and checks."""
    text = assembly(instance, compiler)
    symbol, blocks = blocks_of(text)
    loops = loops_of(blocks)
    used, bounds = resources(text, symbol), BOUNDS[instance.defines["HEAD_DIM"]]
    failures = list(_resource_failures(used, bounds))
    mask, rounding = MASKS[instance.defines["MASK"]], instance.name.rpartition("_")[2]
    if len(loops) != _LOOPS[mask]:
        return Report({}, [*failures, f"{len(loops)} loops, expected {_LOOPS[mask]}"])
    interior = split(*min(loops, key=lambda loop: sum(count(words, "v_mfma") > 0 for words in loop[0])))
    failures += _interior_failures(interior, bounds)
    for inside, _ in loops:
        failures += _loop_failures(inside)
    rounding = "f16" if (instance.defines["ELEMENT"], rounding) == ("f16", "rtne") else rounding
    found = {"matrix_cycles": cycles(interior.matrix), "softmax_slots": issue(interior.turning),
             "vector_port": interior.vector_port}
    limits = {"matrix_cycles": bounds.matrix_cycles, "softmax_slots": bounds.softmax_slots[rounding],
              "vector_port": bounds.vector_port[rounding]}
    failures += [f"{name} {found[name]}, at most {limits[name]}" for name in COMPARED if found[name] > limits[name]]
    values = {"instance": instance.name, "compiler": compiler, "vgprs": used["vgpr_count"], **found}
    return Report(values, failures)


def _resource_failures(used: dict[str, int], bounds: Bounds) -> Iterator[str]:
    if used["vgpr_count"] > bounds.vgprs:
        yield f"{used['vgpr_count']} VGPRs, at most {bounds.vgprs}"
    if used["group_segment_fixed_size"] != bounds.lds_bytes:
        yield f"{used['group_segment_fixed_size']} bytes of LDS, expected {bounds.lds_bytes}"
    for name in ("agpr_count", "private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"):
        if used[name]:
            yield f"{name} {used[name]}, expected 0"


def _interior_failures(loop: Loop, bounds: Bounds) -> Iterator[str]:
    """Of the loop that most blocks take."""
    yield from _counts(
        (("v_mfma", loop.fast, bounds.mfma), ("v_exp_f32", loop.fast, bounds.exp),
         ("ds_read", loop.matrix, bounds.lds_reads[0]), ("ds_read", loop.softmax, bounds.lds_reads[1]),
         ("v_mov", loop.matrix, 0), ("v_cndmask", loop.fast, 0),
         ("v_pk_", loop.fast, 0)))
    for words in (loop.softmax, loop.turning, *loop.slow):
        if count(words, "v_mov") > 4:
            yield f"a part beside the matrix phase has {count(words, 'v_mov')} v_mov"


def _loop_failures(inside: list[list[str]]) -> Iterator[str]:
    """Of every loop, those at the edges of a mask too, where branches leave out tiles that see nothing."""
    words = [word for block in inside for word in block]
    yield from _counts((("buffer_load_dword", words, LOADS), ("s_barrier", words, 2), ("scratch_", words, 0),
                        ("v_accvgpr", words, 0), ("s_swappc", words, 0)))


def _counts(expected: Iterable[tuple[str, list[str], int]]) -> Iterator[str]:
    for pattern, words, wanted in expected:
        if (got := count(words, pattern)) != wanted:
            yield f"{got} of {pattern} in the loop, expected {wanted}"


def recorded() -> dict[tuple[str, str], dict[str, str]]:
    """Row of attention_gates.csv by instance and compiler."""
    with RECORDED.open(newline="") as file:
        return {(row["instance"], row["compiler"]): row for row in csv.DictReader(file)}


def regressions(values: dict[str, str | int], row: dict[str, str] | None) -> list[str]:
    """Where modelled cycles have grown by more than 2 %."""
    if row is None:
        return ["no row in attention_gates.csv: run tests/attention_gates.py --record"]
    return [f"{name} {values[name]}, recorded {row[name]}" for name in COMPARED
            if values[name] > REGRESSION * int(row[name])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write attention_gates.csv")
    arguments = parser.parse_args()
    rows, failed = {} if arguments.record else recorded(), False
    reports = [(instance, compiler, examine(instance, compiler)) for instance in instances(not arguments.record)
               for compiler in (*COMPILERS, *([] if arguments.record or missing(ROCM) else [ROCM]))]
    for instance, compiler, report in reports:
        wrong = list(report.failures)
        if (instance.name, compiler) in rows and report.values:
            wrong += regressions(report.values, rows[instance.name, compiler])
        failed |= bool(wrong)
        numbers = " ".join(f"{name}={report.values[name]}" for name in FIELDS[2:] if report.values)
        sys.stdout.write(f"{instance.name:24} {compiler}: {numbers} {'; '.join(wrong) or 'ok'}\n")
    if arguments.record and not failed:
        with RECORDED.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(report.values for _, _, report in reports)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
