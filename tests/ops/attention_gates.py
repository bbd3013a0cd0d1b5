# SPDX-License-Identifier: MIT
"""What compilers make of the loop of csrc/attention/flash_attn_fwd.hip: registers, spills, instructions, cycles.

`python tests/attention_gates.py` prints a line per instance and compiler and fails where a bound does not hold;
`--record` writes attention_gates.csv, whose modelled cycles may grow by 2 %. ROCm's compiler is one more where it is
installed, held to the bounds alone: its version is the machine's. Used by test_attention_gates.py.
"""

from __future__ import annotations

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

from aiter_like import paths
from aiter_like.build import cache, recipe, toolchain
from aiter_like.jit import Instance
from aiter_like.ops.attention.flash_attn_fwd_hip import HEAD_DIMS, MASKS, VARIANTS, flash_attn_fwd_hip, variant

COMPILERS = ("clang++-19", "clang++-22")
ROCM = "hipcc"
MCA = "llvm-mca-22"
RECORDED = Path(__file__).with_suffix(".csv")
REGRESSION = 1.02
_SYMBOL = re.compile(r"(_ZN10aiter_like\d+flash_attn_fwd_kernel\w*):")
_LOOPS = {"none": 1, "right": 2, "both": 3}  # interior; then the right edge; then the left one


@dataclass(frozen=True)
class Bounds:
    """Of one head dimension: registers, instructions of the loop, cycles as llvm-mca counts them (1 = 4 clk)."""

    vgprs: int
    lds_bytes: int
    mfma: int
    dma: int
    exp: int
    lds_reads: tuple[int, int]  # in the matrix phase, in the softmax phase
    matrix_cycles: int
    softmax_cycles: dict[str, int]


BOUNDS = {
    128: Bounds(252, 65536, 192, 16, 48, (40, 8), 800, {"rtz": 200, "rtna": 250, "rtne": 300, "f16": 250}),
    64: Bounds(224, 32768, 128, 8, 64, (16, 8), 595, {"rtz": 260, "rtna": 325, "rtne": 390, "f16": 325}),
}
KEY = ("instance", "compiler")
FIELDS = (*KEY, "vgprs", "matrix_cycles", "softmax_cycles", "softmax_start")


@dataclass(frozen=True)
class Loop:
    """The loop over key blocks that hide nothing: what every block takes, and what only rescaling takes.

    Attributes:
        start: of the softmax phase, up to the vote on rescaling: DMA, maxima.
        softmax: the rest of that phase.
        matrix: the matrix phase, between its s_setprio.
        rest: of the same basic blocks: barriers, the loop's branch.
        slow: a list per other block.
    """

    start: list[str]
    softmax: list[str]
    matrix: list[str]
    rest: list[str]
    slow: list[list[str]]

    @property
    def fast(self) -> list[str]:
        return self.start + self.softmax + self.matrix + self.rest


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


def assembly(instance: Instance, compiler: str) -> str:
    """The device code as text, as the JIT's flags make it; kept in the cache by content."""
    found = _candidate(compiler).toolchain
    if found is None:
        raise FileNotFoundError(f"{compiler} is needed for the static gates of attention: see .ci/setup.sh")
    spec = flash_attn_fwd_hip.instance_spec(instance, "hip", "gfx942")
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


def loops_of(blocks: list[tuple[str, list[str]]]) -> list[list[list[str]]]:
    """The basic blocks of the loops that multiply, in order: sets of blocks that reach one another."""
    index = {label: number for number, (label, _) in enumerate(blocks)}
    after = [_successors(number, words, index) for number, (_, words) in enumerate(blocks)]
    reach = [_reachable(number, after) for number in range(len(blocks))]
    cycles = {frozenset(other for other in reach[number] if number in reach[other])
              for number in range(len(blocks)) if number in reach[number]}
    found = []
    for cycle in sorted(cycles, key=min):
        inside = [blocks[number][1] for number in sorted(cycle)]
        if any(count(words, "v_mfma") for words in inside):
            found.append(inside)
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


def split(inside: list[list[str]]) -> Loop:
    """The phases: the block that moves begins the softmax phase, the one that multiplies ends it.

    Raises:
        ValueError: no such blocks.
    """
    begin = [words for words in inside if count(words, "buffer_load")]
    main = [words for words in inside if count(words, "v_mfma")]
    if len(begin) != 1 or len(main) != 1 or begin[0] is main[0]:
        raise ValueError(f"a loop moves in {len(begin)} blocks and multiplies in {len(main)}, expected one each")
    body = main[0]
    barrier, low, high = body.index("s_barrier"), body.index("s_setprio 1"), body.index("s_setprio 0")
    slow = [words for words in inside if words is not body and words is not begin[0]]
    return Loop(begin[0], body[:barrier], body[low:high + 1], body[barrier:low] + body[high + 1:], slow)


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
    interior = split(min(loops, key=lambda loop: sum(count(words, "v_mfma") > 0 for words in loop)))
    failures += _interior_failures(interior, bounds)
    for loop in loops:
        failures += _loop_failures(loop, bounds)
    matrix, softmax = cycles(interior.matrix), cycles(interior.softmax)
    limit = bounds.softmax_cycles["f16" if (instance.defines["ELEMENT"], rounding) == ("f16", "rtne") else rounding]
    if matrix > bounds.matrix_cycles:
        failures.append(f"matrix phase {matrix} cycles, at most {bounds.matrix_cycles}")
    if softmax > limit:
        failures.append(f"softmax phase {softmax} cycles, at most {limit}")
    values = {"instance": instance.name, "compiler": compiler, "vgprs": used["vgpr_count"], "matrix_cycles": matrix,
              "softmax_cycles": softmax, "softmax_start": len(interior.start)}
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
         ("v_mov", loop.start + loop.softmax + loop.matrix, 0), ("v_cndmask", loop.fast, 0)))
    for words in loop.slow:
        if count(words, "v_mov") > 1:
            yield f"a block beside the fast path has {count(words, 'v_mov')} v_mov"


def _loop_failures(inside: list[list[str]], bounds: Bounds) -> Iterator[str]:
    """Of every loop, those at the edges of a mask too, where branches leave out tiles that see nothing."""
    words = [word for block in inside for word in block]
    yield from _counts((("buffer_load_dword .* lds", words, bounds.dma), ("s_barrier", words, 2),
                        ("s_waitcnt.*vmcnt", words, 1), ("scratch_", words, 0), ("v_accvgpr", words, 0),
                        ("s_swappc", words, 0)))


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
    return [f"{name} {values[name]}, recorded {row[name]}" for name in ("matrix_cycles", "softmax_cycles")
            if values[name] > REGRESSION * int(row[name])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write attention_gates.csv")
    arguments = parser.parse_args()
    rows, failed = {} if arguments.record else recorded(), False
    reports = [(instance, compiler, examine(instance, compiler)) for instance in instances(True)
               for compiler in (*COMPILERS, *([] if arguments.record or missing(ROCM) else [ROCM]))]
    for instance, compiler, report in reports:
        wrong = list(report.failures)
        if not arguments.record and report.values and compiler in COMPILERS:
            wrong += regressions(report.values, rows.get((instance.name, compiler)))
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
