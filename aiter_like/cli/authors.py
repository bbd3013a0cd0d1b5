# SPDX-License-Identifier: MIT
"""`aiter-like generate` and `aiter-like new-op`: texts that follow from the operators' declarations, and the four files
of a new operator. For a checkout; an installed package has no sources to write.
"""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from string import Template
from types import ModuleType
from typing import TYPE_CHECKING

from aiter_like import paths
from aiter_like.dispatch import OPS

if TYPE_CHECKING:
    from aiter_like.dispatch import Declaration

_INDEX = "aiter_like/ops/index.py"
_NAMES = "aiter_like/integrations/aiter/index.json"
_README, _PAGE = "README.md", "aiter_like/ops/README.md"
_MARKS = "<!-- operators: written by `aiter-like generate` -->", "<!-- end of operators -->"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `generate` and `new-op`; each parser sets `run`: of the parsed arguments, returns the exit status."""
    generate = subparsers.add_parser("generate", help="write the texts that follow from the operators' declarations")
    generate.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file would change")
    generate.set_defaults(run=_generate)
    new = subparsers.add_parser("new-op", help="write the four files of a new operator, and what is generated",
                                description="Writes an operator that computes nothing yet: every place to fill in "
                                            "raises or fails a test that says what belongs there.")
    new.add_argument("name", help="the operator's name and the stem of its files, e.g. relu_squared")
    new.add_argument("--family", required=True, help="a folder of aiter_like/ops, e.g. activation; a new one is made")
    new.set_defaults(run=_new_op)


def generated(root: Path) -> dict[Path, str]:
    """File → its text as it follows from the operators, and the names of AITER's, that the checkout declares."""
    from aiter_like.integrations.aiter import declare

    modules = {name: importlib.import_module(f"aiter_like.ops.{name}") for name in _module_names(root)}
    operators = {op.name: op for op in OPS.declared.values() if op.home.startswith("aiter_like.ops.")}
    texts = {root / _INDEX: _index(modules, operators), root / _NAMES: declare.index()}
    for place, rows in ((_README, _family_table(modules, operators)), (_PAGE, _file_table(modules, operators))):
        before, _, rest = (root / place).read_text(encoding="utf-8").partition(_MARKS[0])
        after = rest.partition(_MARKS[1])[2]
        texts[root / place] = "\n".join([f"{before}{_MARKS[0]}", *rows, f"{_MARKS[1]}{after}"])
    return texts


def _generate(args: argparse.Namespace) -> int:
    texts = generated(_checkout())
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        if not args.check:
            path.write_text(texts[path], encoding="utf-8")
        print(f"{'out of date' if args.check else 'written'}: {path.relative_to(_checkout())}")
    return 1 if args.check and changed else 0


def _checkout() -> Path:
    root = paths.data_root()
    if not (root / "pyproject.toml").is_file():
        raise ValueError(f"{root} is no checkout of this project: sources are written where they are kept")
    return root


def _module_names(root: Path) -> Iterator[str]:
    """Modules of operators, "norm.rms_norm", in order."""
    for path in sorted((root / "aiter_like/ops").glob("*/*.py")):
        if path.parent.name != "common" and path.stem != "__init__":
            yield f"{path.parent.name}.{path.stem}"


def _index(modules: dict[str, ModuleType], operators: dict[str, Declaration]) -> str:
    public = {module: list(getattr(loaded, "__all__", ())) for module, loaded in modules.items()}
    declared: dict[str, list[str]] = {module.partition(".")[0]: [] for module in modules}
    for op in sorted(operators.values(), key=lambda op: op.name):
        family, _, stem = op.home.removeprefix("aiter_like.ops.").partition(".")
        if stem != op.name:
            raise ValueError(f"{op.name}: an operator's file must have its name, got {op.home}")
        declared[family].append(op.name)

    def table(of: dict[str, list[str]]) -> str:
        return "".join(_entry(home, names) for home, names in of.items() if names)

    return ("# SPDX-License-Identifier: MIT\n"
            '"""The module of ops/ that declares an operator, and the one of a public function. Written by '
            '`aiter-like generate`."""\n\n'
            f'OPERATORS = {{name: f"{{family}}.{{name}}" for family, names in {{\n{table(declared)}'
            "}.items() for name in names.split()}\n\n"
            f"PUBLIC = {{name: module for module, names in {{\n{table(public)}"
            "}.items() for name in names.split()}\n")


def _entry(home: str, names: list[str]) -> str:
    """One line, or a text in several."""
    first, *more = textwrap.wrap(" ".join(names), 108 - len(home))
    return ' "\n'.join([f'    "{home}": "{first}', *(f'{" " * (len(home) + 8)}"{row}' for row in more)]) + '",\n'


def _backends(operators: dict[str, Declaration], prefix: str) -> str:
    """Backends but torch of the operators whose modules begin so."""
    from aiter_like.dispatch.backend import KINDS

    found = {backend.name for op in operators.values() if f"{op.home}.".startswith(f"{prefix}.")
             for backend in op.backends}
    return ", ".join(kind for kind in KINDS if kind in found and kind != "torch") or "torch"


def _family_table(modules: dict[str, ModuleType], operators: dict[str, Declaration]) -> Iterator[str]:
    """README's rows: a family, what its package says it is, and the backends of its operators."""
    yield "| family | what | functions | backends |"
    yield "|---|---|---|---|"
    for family in dict.fromkeys(name.partition(".")[0] for name in modules):
        about = importlib.import_module(f"aiter_like.ops.{family}").__doc__.strip().rstrip(".")
        count = sum(len(getattr(module, "__all__", ())) for name, module in modules.items()
                    if name.startswith(f"{family}."))
        yield (f"| [{family}](aiter_like/ops/{family}) | {about} | {count} | "
               f"{_backends(operators, f'aiter_like.ops.{family}')} |")


def _file_table(modules: dict[str, ModuleType], operators: dict[str, Declaration]) -> Iterator[str]:
    """Rows of the operators' page: the public functions of a file, and the backends of what it declares."""
    yield "| file | functions | backends |"
    yield "|---|---|---|"
    for name, module in modules.items():
        if public := getattr(module, "__all__", ()):
            declares = any(op.home == module.__name__ for op in operators.values())
            backends = _backends(operators, module.__name__) if declares else ""
            functions = ", ".join(f"`{function}`" for function in public)
            yield f"| `{name.replace('.', '/')}.py` | {functions} | {backends} |"


def _new_op(args: argparse.Namespace) -> int:
    root = _checkout()
    for what, text in (("NAME", args.name), ("--family", args.family)):
        if not _NAME.fullmatch(text):
            raise ValueError(f"new-op: {what} must be a lower-case Python name, got {text!r}")
    if args.name in OPS:
        raise ValueError(f"new-op: there is an operator {args.name}, in {OPS[args.name].home}")
    places = {"op.py": f"aiter_like/ops/{args.family}/{args.name}.py",
              "op.hip": f"csrc/{args.family}/{args.name}.hip",
              "triton.py": f"aiter_like/ops/{args.family}/triton/{args.name}.py",
              "test.py": f"op_tests/{args.family}/test_{args.name}.py"}
    if existing := [place for place in places.values() if (root / place).exists()]:
        raise ValueError(f"new-op: {existing[0]} exists")
    words = {"op": args.name, "family": args.family, "Name": "".join(map(str.capitalize, args.name.split("_")))}
    templates = Path(__file__).with_name("new_op")
    for folder in {f"aiter_like/ops/{args.family}", f"aiter_like/ops/{args.family}/triton"}:
        start = root / folder / "__init__.py"
        if not start.exists():
            start.parent.mkdir(parents=True, exist_ok=True)
            start.write_text(f'# SPDX-License-Identifier: MIT\n"""Operators of the family {args.family}."""\n')
    for template, place in places.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((templates / f"{template}.txt").read_text()).substitute(words), encoding="utf-8")
        print(f"written: {place}")
    importlib.import_module(f"aiter_like.ops.{args.family}.{args.name}")
    _generate(argparse.Namespace(check=False))
    print(f"next: aiter_like/ops/README.md, and the failing tests: pytest {places['test.py']}")
    return 0
