# SPDX-License-Identifier: MIT
"""The rows of a race, from configs/race/*.toml: one file for each kernel of somebody's, whose block of arguments
several rows of sizes share. configs/race/README.md describes the files; every mistake in one is named by its place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiter_like import paths
from aiter_like.cli.sim import described
from aiter_like.sim import modelling

PEERS = {
    "AITER": "AITER (github.com/ROCm/aiter): DIR is its folder hsa/gfx942; where the package `aiter` is installed, DIR "
             "may be left out",
    "MoonMath": "MoonMath (github.com/moonmath-ai/amd-kernels): csrc/attention_kernel.hip compiled into DIR as "
                "moonmath.co, by clang 19 (22 spills its registers):\n"
                "      AITER_LIKE_TOOLCHAIN=clang++-19 aiter-like sim compile -o DIR/moonmath.co -D BF16_ROUND=RTNE "
                "-I . -I csrc csrc/attention_kernel.hip -- -ffast-math -fno-math-errno -mllvm "
                "-amdgpu-early-inline-all=true",
    "HipKittens": "HipKittens (github.com/HazyResearch/HipKittens, branch cdna3): the kernel of "
                  "kernels/gemm/bf16fp32/mi325x\n    without its Python binding, its 8192 changed to 2048 and 4096, "
                  "compiled into DIR as hipkittens_2048.co\n    and hipkittens_4096.co:\n"
                  "      sed '/pyutils/d; /^PYBIND11_MODULE/,$d; s/8192/2048/' KERNEL.cpp > hipkittens.hip\n"
                  "      aiter-like sim compile -std c++20 -o DIR/hipkittens_2048.co -D KITTENS_CDNA3 -I include "
                  "-I HIP hipkittens.hip\n"
                  "      HIP: the folder of hip_bf16.h, ROCm's include/hip or this package's csrc/sim/include/hip",
}
"""Whose kernels there are, and how a user gets the folder."""

_KEYS = {"family", "error", "operands", "peer", "source", "like", "sizes", "tensors", "ours", "launches", "compare",
         "tolerance", "rows"}
_STEP_KEYS = {"file", "kernel", "grid", "block", "shared", "arguments"}
_CALL_KEYS = {"call", "arguments", "results"}
_OURS_KEYS = {*_CALL_KEYS, "runs_whole"}
_WORDS = {dict: "table", list: "list", str: "text"}
_ROW_KEYS = {"name", "is_large", "check"}


@dataclass(frozen=True)
class Family:
    """A data file: what one kernel, or a few that make one call, get.

    Attributes:
        place: the file, for messages.
        name: of the operators that race, as "int8 product"; several files may have the same.
        error: the class of modelling.class_error.
        operands: of matrix operations, of modelling.SUSTAINED; "": there are none.
        peer: whose kernel it is, of PEERS.
        source: where the facts stand.
        tensors: name → description.
        ours: our call.
        launches: the other side's launches and calls, in order.
        compare: name of a result of ours → the tensor that the other side leaves it in.
        tolerance: of the relative L2 difference, where the results' dtype does not decide; 0: it does.
    """

    place: str
    name: str
    error: str
    operands: str
    peer: str
    source: str
    tensors: Mapping[str, Mapping[str, Any]]
    ours: Mapping[str, Any]
    launches: tuple[Mapping[str, Any], ...]
    compare: Mapping[str, str]
    tolerance: float = 0.0


@dataclass(frozen=True)
class Row:
    """A call that two sides make.

    Attributes:
        name: "family sizes peer".
        sizes: named numbers and texts.
        check: the sizes at which results are compared, where those of the row take too long; else empty.
        is_large: it runs only where --only names it.
    """

    name: str
    family: Family
    sizes: Mapping[str, Any]
    check: Mapping[str, Any] = field(default_factory=dict)
    is_large: bool = False


def text(pattern: str, sizes: Mapping[str, Any]) -> str:
    """"tile_{m}.co" with the sizes put in."""
    return re.sub(r"\{(\w+)\}", lambda found: str(sizes.get(found[1], found[0])), pattern)


def folder() -> Path:
    """The folder of the data files."""
    return paths.configs() / "race"


def read() -> list[Row]:
    """All rows, by file.

    Raises:
        ValueError: a file is damaged.
    """
    tables = {path.name: _table(path) for path in sorted(folder().glob("*.toml"))}
    rows = [row for name, table in tables.items() for row in _rows(_inherited(name, tables), folder() / name)]
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{folder()}: {twice[0]} is there twice")
    return rows


def _table(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    described.require_keys(table, _KEYS, f"{path}")
    return table


def _inherited(name: str, tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A file's table with what it leaves out from the file that it is like; tensors and sizes are added up."""
    table = tables[name]
    if "like" not in table:
        return table
    base = described.one_of(table["like"], tables, f"{folder() / name}: like")
    if "like" in base:
        raise ValueError(f"{folder() / name}: like: {table['like']} is itself like another")
    both = {key: {**base.get(key, {}), **table.get(key, {})} for key in ("tensors", "sizes")}
    return {**{key: value for key, value in base.items() if key != "rows"}, **table, **both}


def _rows(table: Mapping[str, Any], path: Path) -> list[Row]:
    described.require_keys(table, _KEYS, f"{path}",
                          needed=tuple(sorted(_KEYS - {"like", "sizes", "tolerance"})))
    for key, kind in (("tensors", dict), ("ours", dict), ("compare", dict), ("sizes", dict), ("launches", list),
                      ("rows", list), ("family", str), ("source", str)):
        if not isinstance(table.get(key, {} if key == "sizes" else None), kind):
            raise ValueError(f"{path}: {key} must be a {_WORDS[kind]}, got {described.GOT.repr(table[key])}")
    for key, known in (("error", modelling.CLASSES), ("operands", ("", *modelling.SUSTAINED)), ("peer", PEERS)):
        described.one_of(table[key], dict.fromkeys(known, ()), f"{path}: {key}")
    described.require_keys(table["ours"], _OURS_KEYS, f"{path}: ours", needed=("call", "arguments"))
    for index, step in enumerate(table["launches"]):
        place = f"{path}: launches[{index}]"
        known = _CALL_KEYS if "call" in step else _STEP_KEYS
        described.require_keys(step, known, place, needed=tuple(sorted(known - {"shared", "results"})))
    for name in table["compare"].values():
        if name not in table["tensors"]:
            raise ValueError(f"{path}: compare: no tensor {described.GOT.repr(name)}")
    family = Family(f"{path}", table["family"], table["error"], table["operands"], table["peer"], table["source"],
                    table["tensors"], table["ours"], tuple(table["launches"]), table["compare"],
                    float(table.get("tolerance", 0.0)))
    return [_row(family, table.get("sizes", {}), entry, f"{path}: rows[{index}]")
            for index, entry in enumerate(table["rows"])]


def _row(family: Family, common: Mapping[str, Any], entry: Any, place: str) -> Row:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{place} must be a table with a name, got {described.GOT.repr(entry)}")
    sizes = {**common, **{key: value for key, value in entry.items() if key not in _ROW_KEYS}}
    check, is_large = entry.get("check", {}), entry.get("is_large", False)
    if not isinstance(check, dict) or not isinstance(is_large, bool):
        raise ValueError(f"{place}: check must be a table of sizes, is_large true or false")
    for name, value in {**sizes, **check}.items():
        if type(value) not in (int, float, str):
            raise ValueError(f"{place}: {name} must be a number or a text, got {described.GOT.repr(value)}")
        if name not in sizes:
            raise ValueError(f"{place}: check: the row has no size {name}")
    return Row(f"{family.name} {entry['name']} {family.peer}", family, sizes, {**sizes, **check} if check else {},
               is_large)
