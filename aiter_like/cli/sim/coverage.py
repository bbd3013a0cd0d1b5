# SPDX-License-Identifier: MIT
"""`aiter-like sim coverage DIR`: the instructions of a folder of code objects, and which of them would not run."""

import argparse
import functools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiter_like.cli.outputs import require_writable
from aiter_like.errors import SimulatorError
from aiter_like.modules import progress

_DESCRIPTION = """Reads every gfx942 code object under DIR, whatever its name, decodes it as a launch would, and lists
the instructions by mnemonic, or by mnemonic and kinds of operands, and last what would stop a launch on the simulated
MI300X. Some refusals depend on values and show only in a launch, as VGPR indexing of a matrix operation. Exit status: 1
when something would not run."""

_BUNDLES = (b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
_MACHINE_AMDGPU = 224
_PAST_THE_END = "execution ran past the end of a function"  # The guard behind each function has this error.


@dataclass
class Use:
    """How often something occurs: instructions, and the files that have it, relative to DIR."""

    count: int = 0
    files: list[str] = field(default_factory=list)

    def add(self, file: str) -> None:
        """Counts one more occurrence."""
        self.count += 1
        if not self.files or self.files[-1] != file:
            self.files.append(file)


@dataclass
class Coverage:
    """The contents of a folder of code objects.

    Attributes:
        files: code objects read.
        forms: "global_load_dword v, v, s[2] offset" → where. See `form_of`.
        refused: why it would not run → where; the reason has the instruction's text, or that of the file.
    """

    files: int = 0
    forms: dict[str, Use] = field(default_factory=dict)
    refused: dict[str, Use] = field(default_factory=dict)

    @property
    def mnemonics(self) -> dict[str, Use]:
        """The forms, by mnemonic."""
        found: dict[str, Use] = {}
        for form, use in self.forms.items():
            one = found.setdefault(form.split(" ", 1)[0], Use())
            one.count += use.count
            one.files = sorted({*one.files, *use.files})
        return found


def add_coverage(actions: argparse._SubParsersAction) -> None:
    """Adds `coverage`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    coverage = actions.add_parser("coverage", help="what of a folder of code objects would not run",
                                  description=_DESCRIPTION)
    coverage.add_argument("folder", type=Path, metavar="DIR")
    coverage.add_argument("--forms", action="store_true", help="list kinds of operands, too")
    coverage.add_argument("--json", type=Path, metavar="FILE", help="write count and files of each form there")
    coverage.set_defaults(run=_run)


def read(folder: Path) -> Coverage:
    """The code objects under `folder`; shows its progress."""
    files = list(_code_objects(folder))
    if not files:
        raise ValueError(f"{folder}: no code objects there")
    found = Coverage()
    with progress.shown(lambda: f"reading code objects: {found.files}/{len(files)}"):
        for file in files:
            _add(found, file, str(file.relative_to(folder)))
            found.files += 1
    return found


@functools.cache  # Code objects of one family repeat their instructions.
def form_of(text: str) -> str:
    """The kinds of an instruction's operands: registers with their count, `inline` and `literal` numbers, modifiers
    without their numbers.
    """
    mnemonic, _, rest = text.partition(" ")
    rest = re.sub(r"\b([vas]|ttmp)(?:\d+|\[(\d+):(\d+)\])", _register, rest)
    rest = re.sub(r"quad_perm:\[[\d,]+\]", "quad_perm", rest)
    rest = re.sub(r"\b(offset|offset0|offset1|row_sh[lr]|row_ror|row_newbcast):-?(?:0x)?[\da-f]+", r"\1", rest)
    rest = re.sub(r"(?<![\w:\[.,])-?(?:\d+\.\d+|\d+)(?![\w.])", "inline", rest)
    rest = re.sub(r"(?<![\w:])(?:lit\()?-?0x[\da-f]+\)?", "literal", rest)
    return f"{mnemonic} {rest}".rstrip()


def _register(match: re.Match) -> str:
    kind, first, last = match.groups()
    return f"{kind}[{int(last) - int(first) + 1}]" if first else kind


def _code_objects(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(24)
        is_elf = head.startswith(b"\x7fELF") and int.from_bytes(head[18:20], "little") == _MACHINE_AMDGPU
        if is_elf or head.startswith(_BUNDLES):
            yield path


def _add(found: Coverage, file: Path, name: str) -> None:
    from aiter_like.sim import library

    data = file.read_bytes()
    try:
        instructions = library.disassemble(data)
    except SimulatorError as error:
        found.refused.setdefault(f"the file: {error}", Use()).add(name)
        return
    for _, text, error in instructions:
        if error == _PAST_THE_END:
            continue
        found.forms.setdefault(form_of(text), Use()).add(name)
        if error:
            found.refused.setdefault(f"{form_of(text)}: {error}", Use()).add(name)


def _run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise ValueError(f"{args.folder}: no such folder")
    require_writable(args.json, "--json")
    found = read(args.folder)
    if args.json:
        parts = {name: {key: {"count": use.count, "files": use.files} for key, use in uses.items()}
                 for name, uses in (("forms", found.forms), ("refused", found.refused))}
        args.json.write_text(json.dumps({"files": found.files, **parts}, indent=1) + "\n")
    _print(found.forms if args.forms else found.mnemonics)
    total = sum(use.count for use in found.forms.values())
    print(f"{found.files} files, {total} instructions, {len(found.mnemonics)} mnemonics, {len(found.forms)} forms")
    if not found.refused:
        print("all of it is known to the simulated MI300X")
        return 0
    stopped = {file for use in found.refused.values() for file in use.files}
    print(f"would not run, in {len(stopped)} files:")
    _print(found.refused)
    return 1


def _print(uses: dict[str, Use]) -> None:
    for name, use in sorted(uses.items(), key=lambda item: (-item[1].count, item[0])):
        print(f"{use.count:10} {len(use.files):6} files  {name}  ({use.files[0]})")
    sys.stdout.flush()
