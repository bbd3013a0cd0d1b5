# SPDX-License-Identifier: MIT
"""The mutation campaign: are the simulator's checkers able to see faults in the project's own kernels?

    python tests/sim/mutation/campaign.py [--kernels TEXT…] [--operators NAME…] [--every N] [--seeds N] [--report FILE]

One instruction of a kernel is deleted or weakened (operators.py), the kernel runs on small launches of odd sizes
(kernels.py; with --operators those of the operators' own cases: cases.py) with every checker on, in program order, then
under fuzzing (execute.py). A mutant is caught by a checker's report, by a failing launch, or by another output. What
survives all seeds is an equivalent if a hazard argument holds (equivalents.py), "unreached" if no launch executes its
instruction, which says something of the launches and nothing of the checkers, and a survivor otherwise.
"""

import argparse
import collections
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aiter_like.dispatch import OPS
from mutation import cases, equivalents, kernels, operators
from mutation.execute import Task, Verdict, verdicts
from mutation.operators import Mutant
from mutation.program import Program

SEEDS = 100           # under which an equivalent's output must not change
_CHECKED_SEEDS = 4    # of these, with the checkers on
_SEEDS_PER_TASK = 24


@dataclass(frozen=True)
class Result:
    """A mutant of a kernel, how it was caught, why it counts as equivalent ("" = it does not), and whether a launch
    executes its instruction.
    """

    kernel: kernels.Kernel
    mutant: Mutant
    verdict: Verdict
    argument: str = ""
    is_reached: bool = True

    @property
    def by(self) -> str:
        """Column of the table."""
        if self.verdict.by == "checker":
            return self.verdict.detail.split("+")[0]
        return self.verdict.by or ("equivalent" if self.argument else "survivor" if self.is_reached else "unreached")


def run(chosen: Sequence[kernels.Kernel], every: int = 1, seeds: int = SEEDS, first: int = 0) -> list[Result]:
    """The campaign over these kernels.

    Args:
        every: only each N-th mutant of an operator and kernel.
        seeds: of fuzzing, for the mutants that program order does not give away.
        first: where to begin to count, below `every`.
    Raises:
        AssertionError: a kernel itself is not silent and repeatable, or the proof about waits contradicts the checker.
    """
    programs = [Program(kernel.elf, kernel.symbol) for kernel in chosen]
    _check_clean(chosen, seeds)
    picked = [(index, mutant) for index, program in enumerate(programs)
              for mutant in _sample(operators.mutants(program), every, first)]
    found = verdicts(chosen, [Task(index, mutant.elf, range(_CHECKED_SEEDS + 1)) for index, mutant in picked])
    _fuzz(chosen, picked, found, seeds)
    results = []
    for (index, mutant), verdict in zip(picked, found, strict=True):
        case = equivalents.Case(chosen[index], programs[index], mutant,
                                lambda elf, index=index: verdicts(chosen, [Task(index, elf, (0,))], 1)[0])
        name = "" if verdict.by else equivalents.argument(case)
        results.append(Result(chosen[index], mutant, verdict, name,
                              bool(verdict.by or name) or case.is_executed()))
    for kernel, program in zip(chosen, programs, strict=True):
        ours = [result for result in results if result.kernel is kernel]
        wrong = equivalents.contradictions(program, [r.mutant for r in ours], [r.verdict for r in ours])
        assert not wrong, f"{kernel.name}: reported by the wait checker, unneeded by the proof: {wrong}"
    return results


def shares(results: Sequence[Result]) -> tuple[float, float]:
    """(raw share caught, share of those that are not equivalent)."""
    caught = sum(bool(result.verdict.by) for result in results)
    return caught / len(results), caught / max(sum(not result.argument for result in results), 1)


def share_of_reached(results: Sequence[Result]) -> float:
    """Share caught of those that are not equivalent and whose instruction a launch executes."""
    return shares([result for result in results if result.is_reached])[1]


def table(results: Sequence[Result]) -> str:
    """Markdown: totals, a row per kernel and operator, the arguments, the survivors."""
    columns = sorted({result.by for result in results} - {"equivalent", "survivor", "unreached", "output", "fault"})
    columns += ["output", "fault", "equivalent", "unreached", "survivor"]
    rows = collections.defaultdict(collections.Counter)
    for result in results:
        for key in ((result.kernel.name, result.mutant.operator), ("all", result.mutant.operator), ("all", "all")):
            rows[key][result.by] += 1
    lines = ["# Mutation campaign", "", _summary(results), "",
             "| kernel | operator | mutants | " + " | ".join(columns) + " |", "|---" * (len(columns) + 3) + "|"]
    for (kernel, operator), counts in sorted(rows.items(), key=lambda row: (row[0][0] != "all", row[0])):
        numbers = " | ".join(str(counts[column] or "") for column in columns)
        lines.append(f"| {kernel} | {operator} | {counts.total()} | {numbers} |")
    lines += ["", "## Equivalents", ""]
    used = collections.Counter(result.argument for result in results if result.argument)
    lines += [f"- **{name}** ({count}): {equivalents.ARGUMENTS[name][1]}" for name, count in sorted(used.items())]
    lines += ["", "| kernel | operator | pc | instruction | becomes | argument |", "|---|---|---|---|---|---|"]
    lines += [_row(result, result.argument) for result in results if result.argument]
    lines += ["", "## Survivors", "", "| kernel | operator | pc | instruction | becomes |", "|---|---|---|---|---|"]
    lines += [_row(result) for result in results if result.by == "survivor"]
    lines += ["", "## Unreached", "", "| kernel | operator | pc | instruction | becomes |", "|---|---|---|---|---|"]
    lines += [_row(result) for result in results if result.by == "unreached"]
    return "\n".join(lines) + "\n"


def _summary(results: Sequence[Result]) -> str:
    raw, without = shares(results)
    fuzzed = sum(result.verdict.seed > 0 for result in results)
    return (f"{len(results)} mutants of {len({r.kernel.name for r in results})} kernels: {raw:.1%} caught "
            f"({fuzzed} of them only under fuzzing), {without:.1%} without equivalents, "
            f"{share_of_reached(results):.1%} of those that a launch reaches.")


def _row(result: Result, *more: str) -> str:
    inst = result.mutant.inst
    cells = (result.kernel.name, result.mutant.operator, f"{inst.pc:#x}", f"`{inst.text}`",
             f"`{result.mutant.becomes}`", *more)
    return "| " + " | ".join(cells) + " |"


def _sample(mutants: Sequence[Mutant], every: int, first: int) -> list[Mutant]:
    seen = collections.Counter()
    picked = []
    for mutant in mutants:
        if seen[mutant.operator] % every == first:
            picked.append(mutant)
        seen[mutant.operator] += 1
    return picked


def _check_clean(chosen: Sequence[kernels.Kernel], seeds: int) -> None:
    """The kernels themselves: no report, and the same output under every seed."""
    found = verdicts(chosen, [Task(index, kernel.elf, range(seeds + 1)) for index, kernel in enumerate(chosen)])
    noticed = [f"{kernel.name}: {verdict}" for kernel, verdict in zip(chosen, found, strict=True) if verdict.by]
    assert not noticed, "\n".join(noticed)


def _fuzz(chosen: Sequence[kernels.Kernel], picked: Sequence[tuple[int, Mutant]], found: list[Verdict],
          seeds: int) -> None:
    """More seeds for what is left, a part of them at a time; `found` takes what they show."""
    for first in range(_CHECKED_SEEDS + 1, seeds + 1, _SEEDS_PER_TASK):
        left = [at for at, verdict in enumerate(found) if not verdict.by]
        part = range(first, min(first + _SEEDS_PER_TASK, seeds + 1))
        tasks = [Task(picked[at][0], picked[at][1].elf, part, is_checked=False) for at in left]
        for at, verdict in zip(left, verdicts(chosen, tasks), strict=True):
            found[at] = verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="*", default=(), help="only those whose name contains one of these")
    parser.add_argument("--operators", nargs="*", default=(), help="the cases of these operators instead; all: of all")
    parser.add_argument("--every", type=int, default=1, help="each N-th mutant of an operator and kernel")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--report", type=Path, help="write the table there")
    options = parser.parse_args()
    names = OPS if options.operators == ["all"] else options.operators
    chosen = [kernel for name, backend in cases.SERVED if name in names for kernel in cases.kernels(name, backend)]
    if not options.operators:
        chosen = kernels.kernels(*options.kernels)
    if not chosen:
        parser.error(f"no kernel has one of {options.operators or options.kernels} in its name")
    start = time.perf_counter()
    results = run(chosen, options.every, options.seeds)
    text = table(results)
    if options.report:
        options.report.write_text(text)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
