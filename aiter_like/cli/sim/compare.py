# SPDX-License-Identifier: MIT
"""`aiter-like sim compare A B`: two versions of kernels side by side: instructions, registers and LDS of the code; with
a description of what they get, counters and modelled cycles, per line.
"""

import argparse
import collections
import contextlib
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiter_like import sim
from aiter_like.cli.sim import compile as sim_compile
from aiter_like.cli.sim import launch as sim_launch
from aiter_like.cli.sim import spec
from aiter_like.errors import SimulatorError
from aiter_like.modules import code_object
from aiter_like.sim import library, profiling
from aiter_like.sim.names import demangled
from aiter_like.sim.profiling import comparison, sources

_DESCRIPTION = """Sets the kernels of two code objects beside one another: their instructions by kind, registers, LDS
and scratch, and their instructions per source line. With --args (the SPEC.json of sim run) both run on equal buffers,
and counters and modelled cycles follow, in all and per line; what is modelled is not measured. A and B are
  x.co            a code object
  x.hip           a HIP source, compiled as sim compile does, with -D and -I
  COMMIT:x.hip    the same as git has it: the source and all that it includes are the commit's
Kernels are paired by their names, and else by those of their C++ functions."""

_KINDS = (("matrix", r"v_s?mfmac?"), ("vector", r"v_"), ("waits", r"s_(?:waitcnt|barrier|nop|sleep)"),
          ("scalar memory", r"s_(?:load|buffer|store|dcache|mem)"),
          ("branches", r"s_(?:c?branch|call|setpc|swappc|end)"), ("scalar", r"s_"), ("LDS", r"ds_"),
          ("scratch", r"scratch_"), ("global memory", r"(?:global|buffer|flat|tbuffer)_"))
_MOST_LINES = 12


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        label: as the command line has it.
        code: the code object.
        folders: where the sources of a commit lie now, and where they would lie here.
    """

    label: str
    code: spec.Code
    folders: tuple[str, str] = ("", "")


def add_compare(actions: argparse._SubParsersAction) -> None:
    """Adds `compare`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    compare = actions.add_parser("compare", help="two versions of kernels side by side", description=_DESCRIPTION,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    compare.add_argument("sides", nargs=2, metavar="A|B")
    sim_launch.add_options(compare)
    compare.add_argument("-D", action="append", default=[], dest="defines", metavar="NAME[=VALUE]", help="of sources")
    compare.add_argument("-I", action="append", default=[], dest="includes", metavar="DIR",
                         help="of sources; of a commit's, where DIR is within the repository")
    compare.add_argument("--lines", type=int, default=_MOST_LINES, metavar="N",
                         help="how many lines, those that differ most (default: %(default)s)")
    compare.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        before, after = (_side(text, Path(folder, str(number)), args) for number, text in enumerate(args.sides))
        pairs = _pairs(before, after, args.kernel)
        for pair in pairs:
            print("\n".join(_static(pair, (before, after), args.lines)))
        for number, side in enumerate((before, after)):
            alone = [name for name in side.code.kernels if name not in [pair[number] for pair in pairs]]
            if alone and not args.kernel:
                print(f"only in {side.label}: {', '.join(map(demangled, alone))}")
        if args.args:
            print("\n".join(_modelled((before, after), args)))
    return 0


# ---- comparison


def _side(text: str, scratch: Path, args: argparse.Namespace) -> Side:
    """The code object that a word of the command line means."""
    scratch.mkdir()
    path, folders = Path(text), ("", "")
    if not path.exists() and (named := re.fullmatch(r"([\w./~^@-]+):(.+)", text)):
        tree = scratch / "tree"
        path = _compiled(_of_commit(named[1], named[2], tree), scratch, args, tree)
        folders = (f"{tree}", _git("rev-parse", "--show-toplevel").decode().strip())
    elif path.suffix in (*sim_compile.HIP_SUFFIXES, *sim_compile.ASSEMBLY) and path.is_file():
        path = _compiled(path, scratch, args, None)
    return Side(text, spec.read_code(path), folders)


def _compiled(source: Path, scratch: Path, args: argparse.Namespace, tree: Path | None) -> Path:
    """The code object of a source; folders of headers are those of the tree, where there is one."""
    includes = [tree / folder if tree and not Path(folder).is_absolute() else Path(folder) for folder in args.includes]
    options = ["-O3", "-std=c++17", *(f"-D{name}" for name in args.defines), *(f"-I{folder}" for folder in includes)]
    output = scratch / f"{source.stem}.co"
    sim_compile.compile_program([source], output, options)
    return output


def _of_commit(commit: str, name: str, tree: Path) -> Path:
    """A file as a commit has it, with all other files of that commit around it."""
    _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}",
         why=f"{commit}:{name}: no such file, and git knows no commit {commit} here")
    prefix = _git("rev-parse", "--show-prefix").decode().strip()
    place = f"{prefix}{name}"
    _git("cat-file", "-e", f"{commit}:{place}", why=f"{commit}:{name}: the commit has no such file")
    data = _git("-C", _git("rev-parse", "--show-toplevel").decode().strip(), "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(tree, filter="data")
    return tree / place


def _git(*words: str, why: str = "") -> bytes:
    try:
        done = subprocess.run(["git", *words], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise ValueError("git is not installed, which a commit's file needs") from None
    if done.returncode:
        raise ValueError(why or f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _pairs(before: Side, after: Side, name: str | None) -> list[tuple[str, str]]:
    """Names of kernels that belong together."""
    if name:
        return [tuple(side.code.kernel(name).name for side in (before, after))]
    kernels = [side.code.kernels for side in (before, after)]
    pairs = [(one, one) for one in kernels[0] if one in kernels[1]]
    left = [{spec.function_name(demangled(one)): one for one in own if one not in dict(pairs)} for own in kernels]
    pairs += [(one, left[1][function]) for function, one in left[0].items() if function in left[1]]
    if not pairs:
        raise ValueError(f"no kernel is in both: {before.label} has {', '.join(kernels[0]) or 'none'}, "
                         f"{after.label} has {', '.join(kernels[1]) or 'none'}")
    return pairs


# ---- the code


def _static(pair: Sequence[str], sides: Sequence[Side], most_lines: int) -> list[str]:
    """One kernel's code."""
    names = [demangled(name) for name in pair]
    title = names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"
    rows = [title, f"  {'':42} {sides[0].label[-18:]:>18} {sides[1].label[-18:]:>18} {'change':>8}"]
    resources = [sim.inspect(side.code.image)[name] for side, name in zip(sides, pair)]
    listings = [_listing(side.code.image, name) for side, name in zip(sides, pair)]
    kinds = [collections.Counter(_kind(text) for _, text, _ in listing) for listing in listings]
    rows.append(_row("instructions", [len(listing) for listing in listings]))
    rows += [_row(f"  {kind}", [one[kind] for one in kinds]) for kind in (*(kind for kind, _ in _KINDS), "other")
             if any(one[kind] for one in kinds)]
    for title, key in (("vector registers", "vgprs"), ("accumulation registers", "agprs"),
                       ("scalar registers", "sgprs"),
                       ("spilled vector registers", "vgpr_spills"), ("spilled scalar registers", "sgpr_spills"),
                       ("LDS of a workgroup, bytes", "lds_bytes"), ("scratch of a work-item, bytes", "private_bytes")):
        if any(one[key] for one in resources) or key == "vgprs":
            rows.append(_row(title, [one[key] for one in resources]))
    return rows + _static_lines(listings, sides, most_lines)


def _static_lines(listings: Sequence[Sequence[tuple[int, str, str]]], sides: Sequence[Side],
                  most_lines: int) -> list[str]:
    """Instructions per line; lines that have as many in both are only counted."""
    for listing, side in zip(listings, sides):
        if not any(source for _, _, source in listing):
            return [f"  no lines: {side.label} has no debug information (compile with -gline-tables-only)"]
    both = [{"instructions": [{"source": source} for _, _, source in listing]} for listing in listings]
    for one in both:
        one["lines"] = sources.texts(one["instructions"])
    _one_file(both, sides)
    counts = [collections.Counter(one["source"] for one in side["instructions"]) for side in both]
    rows = [(places, *(count[place] if place is not None else 0 for count, place in zip(counts, places)))
            for places in comparison.matched(both)]
    differing = sorted((row for row in rows if row[1] != row[2]), key=lambda row: -abs(row[2] - row[1]))
    head = f"  instructions by line: {len(rows) - len(differing)} lines have as many in both, {len(differing)} differ"
    return [head] + [_row(f"  {sources.shown(places[0] if places[1] is None else places[1])[-40:]}", values)
                     for places, *values in differing[:most_lines]]


def _one_file(both: Sequence[dict], sides: Sequence[Side]) -> None:
    """Makes the places comparable: a commit's sources are taken for those here, and if each side has one file that the
    other has not, these are two versions of one."""
    for one, side in zip(both, sides):
        if side.folders[0]:
            _rename(one, *side.folders)
    names = [{sources.place(line["source"])[0] for line in one["instructions"]} - {""} for one in both]
    alone = [names[0] - names[1], names[1] - names[0]]
    if len(alone[0]) == len(alone[1]) == 1:
        _rename(both[0], alone[0].pop(), alone[1].pop())


def _rename(one: dict, old: str, new: str) -> None:
    def renamed(place: str) -> str:
        return f"{new}{place[len(old):]}" if place.startswith((f"{old}/", f"{old}:")) else place

    one["instructions"] = [{**line, "source": renamed(line["source"])} for line in one["instructions"]]
    one["lines"] = {renamed(place): text for place, text in one["lines"].items()}


def _kind(text: str) -> str:
    return next((kind for kind, pattern in _KINDS if re.match(pattern, text)), "other")


def _listing(image: bytes, kernel: str) -> list[tuple[int, str, str]]:
    """A kernel's instructions: place, text, "file:line" or ""."""
    begin, end = code_object.function_range(code_object.unbundled(image, spec.ARCH), kernel)
    lines = dict(library.source_lines(image))
    return [(at, text, lines.get(at, "")) for at, text, _ in library.disassemble(image)
            if begin <= at < end and not text.startswith("<")]


def _row(name: str, values: Sequence[float]) -> str:
    before, after = values
    change = f"{after / before - 1:+.1%}" if before and before != after else ""
    return f"  {name:42} {before:18} {after:18} {change:>8}"


# ---- counters and the cycle model


def _modelled(sides: Sequence[Side], args: argparse.Namespace) -> Iterator[str]:
    """Both run, one after the other, on buffers with the same contents."""
    found: list[list[dict]] = []
    for side in sides:
        launches = sim_launch.read(side.code.file, args)
        profiles: list[dict] = []
        with profiling.profiled(profiles, sample=False), _named(side):
            for launch in launches:
                launch.run(launch.spec.buffers)
        found.append(profiles)
    for before, after in zip(*found, strict=True):
        counts = [one["counts"] for one in (before, after)]
        yield f"{after['name']}: counted, {sides[0].label} and {sides[1].label}"
        yield from (_row(title, values) for title, values in _counters(counts))
        _one_file((before, after), sides)
        yield from comparison.text(comparison.of(before, after), args.lines)


def _counters(counts: Sequence[Mapping]) -> Iterator[tuple[str, list[float]]]:
    for title, key in (("wave instructions", "executed"), ("active lanes", "active_lanes"),
                       ("bytes that lanes ask for", "global_bytes"), ("segments of 64 bytes", "segments_64"),
                       ("LDS clk that banks are busy", "lds_clk"), ("LDS clk lost in conflicts", "lds_conflict_clk"),
                       ("barriers", "barriers"), ("scratch bytes", "scratch_bytes"),
                       ("lanes of atomics that collide", "atomic_collisions")):
        values = [one.get(key, 0) for one in counts]
        if any(values):
            yield title, values


@contextlib.contextmanager
def _named(side: Side) -> Iterator[None]:
    """An error of a launch says which of the two it was."""
    try:
        yield
    except SimulatorError as error:
        raise SimulatorError(f"{side.label}: {error}", error.reports) from error
