# SPDX-License-Identifier: MIT
"""Numbers that models of time count with: configs/<arch>/ holds them, and headers of csrc/ what kernels have too."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from aiter_like import paths
from aiter_like.device import arch_facts
from aiter_like.ops.common.headers import constant

OPS = Path(paths.__file__).parent / "ops"
EXACT = (0, 0.5, 1)  # nothing, a half and a whole are no estimates
TIMED = re.compile(r"\b(us|µs|ns|clocks?|H100|H200|cycle model|modelled|measured)\b")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    return ((path, ast.parse(path.read_text())) for path in sorted(OPS.rglob("*.py")))


def tables() -> dict[str, list[str]]:
    """Architectures by table."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths.configs().glob("*/*.toml")):
        arch = path.parent.name
        if (path.parent / "device.toml").is_file() and path.stem != "device":
            for table in tomllib.loads(path.read_text()):
                found.setdefault(f"{path.stem}.{table}", []).append(arch)
    return found


def kinds() -> dict[str, set[type]]:
    """By table, the types as which operators read it."""
    found: dict[str, set[type]] = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            if getattr(called, "attr", getattr(called, "id", "")) in ("model", "model_of") and len(node.args) > 1:
                module = importlib.import_module(".".join(path.relative_to(OPS.parents[1]).with_suffix("").parts))
                place, kind = node.args[-2:]
                kind = eval(ast.unparse(kind), vars(module))  # a name, or one of another module
                found.setdefault(ast.literal_eval(place), set()).add(kind)
    return found


def test_each_table_is_read_as_one_type_with_its_fields():
    pytest.importorskip("triton")
    read, known = kinds(), tables()
    assert read.keys() == known.keys()
    for place, archs in known.items():
        (kind,) = read[place]
        hints = get_type_hints(kind)
        for arch in archs:
            for name, value in arch_facts(arch).model(place, kind)._asdict().items():
                wanted = hints[name]
                is_alike = isinstance(value, (int, float)) if wanted is float else \
                    isinstance(value, getattr(wanted, "__origin__", wanted))
                assert is_alike, (arch, place, name, value)


def test_each_table_says_where_it_is_from():
    for path in sorted(paths.configs().glob("*/*.toml")):
        if (path.parent / "device.toml").is_file():
            lines = path.read_text().splitlines()
            bare = [line for before, line in zip(lines, lines[1:]) if line.startswith("[") and before[:1] != "#"]
            assert lines[1].startswith("# ") and not bare, path


def test_operators_have_no_numbers_of_models():
    """None beside which a time stands, or a GPU that was timed; and no fraction where a cost is found."""
    found = []
    for path, tree in trees():
        lines = path.read_text().splitlines()
        found += [f"{path}:{node.lineno}: {lines[node.lineno - 1]}" for node in tree.body
                  if isinstance(node, (ast.Assign, ast.AnnAssign)) and numbers(node)
                  and TIMED.search(_said(lines, node))]
        found += [f"{path}:{node.lineno}: {each}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                  and (node.name.endswith("cost") or re.search(r"\.model\(|\bmodel_of\(", ast.unparse(node)))
                  for each in numbers(node) if type(each) is float]
    assert not found, "\n".join(found)


def test_what_prefers_a_backend_has_no_numbers():
    """But places of sizes, which are subscripts."""
    found = []
    for path, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and re.search("prefers|is_ahead", function.name):
                places = {place for node in ast.walk(function) if isinstance(node, ast.Subscript)
                          for place in ast.walk(node.slice)}
                found += [f"{path}:{node.lineno}: {node.value}" for node in ast.walk(function)
                          if isinstance(node, ast.Constant) and node not in places and numbers(node)]
    assert not found, "\n".join(found)


def numbers(tree: ast.AST) -> list[int | float]:
    """Those that could be estimates."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
            and type(node.value) in (int, float) and node.value not in EXACT]


def _said(lines: list[str], node: ast.stmt) -> str:
    """The comments of a statement: above it, behind it, and the text that follows."""
    first = node.lineno - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    said = " ".join(re.sub(r"^[^#]*", "", line) for line in lines[first:node.end_lineno])
    after = lines[node.end_lineno:node.end_lineno + 4]
    return said + (" ".join(after).split('"""')[1] if after and after[0].startswith('"""') else "")


@pytest.mark.parametrize(("header", "name"), [
    ("attention/flash_attn_plan.h", "kBlockN"), ("attention/flash_attn_plan.h", "kMostRoundsOfAll"),
    ("attention/flash_attn_plan.h", "kLeastSplitBlocks"), ("attention/flash_attn_plan.h", "kLeastPartBlocks"),
    ("include/aiter_like/cluster.h", "kMostOfCluster")])
def test_constants_of_headers(header, name):
    """Read where the kernels have them, once each; nothing in Python repeats one."""
    text = (paths.csrc() / header).read_text()
    assert len(re.findall(rf"\b{name} = ", text)) == 1
    assert f"constexpr int {name} = {constant(header, name)};" in text


def test_constants_that_headers_do_not_have():
    with pytest.raises(LookupError, match="flash_attn_plan.h: no line `constexpr int kNone = <number>;`"):
        constant("attention/flash_attn_plan.h", "kNone")
