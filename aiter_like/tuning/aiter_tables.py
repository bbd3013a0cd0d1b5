# SPDX-License-Identifier: MIT
"""Reads AITER's tuned tables: `aiter-like tune --import-aiter FILE…`.

Their kernels are not ours, so no row is taken as measured. What maps onto an operator becomes a shape file for `tune
--shapes`, with hints (kind of kernel, split of K, rows of a block) that say what to try first; the rest is counted.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import dtypes
from aiter_like.dispatch import table
from aiter_like.errors import TuningError

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

# Part of a file's name → the operator that has the same work; the longest part that fits counts.
TABLES = {
    "a8w8_tuned_gemm": "gemm_a8w8", "a8w8_bpreshuffle_tuned_gemm": "gemm_a8w8",
    "a8w8_blockscale_tuned_gemm": "gemm_a8w8_blockscale",
    "a8w8_blockscale_bpreshuffle_tuned_gemm": "gemm_a8w8_blockscale",
    "a4w4_blockscale_tuned_gemm": "gemm_a4w4_blockscale", "a8w8_tuned_batched_gemm": "batched_gemm",
    "bf16_tuned_batched_gemm": "batched_gemm", "bf16_tuned_gemm": "gemm_a16w16", "tuned_fmoe": "fused_moe",
}
_COLUMNS = {"solidx": "kernelid", "err_ratio": "errratio", "ksplit": "splitk"}  # other spellings, lower case
# Part of a file's name → what its rows have in common, in columns that it does not have.
_COMMON = {"a8w8_tuned_gemm": {"band": "0", "use_fast_accum": "0"},
           "a8w8_bpreshuffle_tuned_gemm": {"band": "16", "use_fast_accum": "0"},
           "a8w8_blockscale_tuned_gemm": {"bpreshuffle": "0"},
           "a8w8_blockscale_bpreshuffle_tuned_gemm": {"bpreshuffle": "1"},
           "a8w8_tuned_batched_gemm": {"dtype": "torch.int8", "outdtype": "torch.bfloat16"},
           "bf16_tuned_batched_gemm": {"dtype": "torch.bfloat16", "outdtype": "torch.bfloat16"},
           "bf16_tuned_gemm": {"bpreshuffle": "0", "is_gated": "0"}}
_ARCH_OF_CUS = {"80": "gfx942", "304": "gfx942", "256": "gfx950"}  # tuned_fmoe has no gfx column
# An operator's key field → the column that means it, where the names differ; a text field may also end in _layout.
_FIELDS = {"batch": "b", "num_tokens": "token", "hidden_size": "model_dim", "intermediate_size": "inter_dim",
           "num_experts": "expert", "a_dtype": "q_dtype_a", "weight_dtype": "q_dtype_w", "b_dtype": "q_dtype_w",
           "out_dtype": "outdtype", "is_shuffled": "bpreshuffle"}
_BACKENDS = {"ck": "ck", "cktile": "ck", "asm": "asm", "triton": "triton", "torch": "torch", "hipblaslt": "torch",
             "skinny": "hip", "opus": "hip", "flydsl": "hip"}


@dataclass
class Imported:
    """The result of importing one file.

    Attributes:
        op: name of the operator that its rows would be for; "" where no table is known by that name.
        rows: per architecture.
        keys: key → hint, of what was kept.
        dropped: reason → rows.
        problems: bad rows, with file:line.
    """

    path: Path
    op: str
    rows: Counter = field(default_factory=Counter)
    keys: dict[tuple, dict[str, str]] = field(default_factory=dict)
    dropped: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def read(path: Path, ops: Mapping[str, Op]) -> Imported:
    """One of AITER's tables, tuned or untuned.

    Raises:
        TuningError: the file cannot be read.
    """
    stem = path.stem.replace("untuned", "tuned")
    known = max((part for part in TABLES if part in stem), key=len, default="")
    found = Imported(path, TABLES.get(known, ""))
    op = ops.get(found.op)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [_column(name) for name in next(rows, [])]
            for cells in rows:
                if cells:
                    named = _COMMON.get(known, {}) | dict(zip(header, cells))
                    _take(found, op, named, len(cells) - len(header), f"{path}:{rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TuningError(f"{path}:0: cannot be read: {error}") from error
    return found


def shape_files(imported: Iterable[Imported], ops: Mapping[str, Op]) -> dict[str, str]:
    """Operator → the text of its shape file with hints, all tables together."""
    merged: dict[str, dict[tuple, dict[str, str]]] = {}
    for found in imported:
        merged.setdefault(found.op, {}).update(found.keys)
    texts = {}
    for name, keys in sorted(merged.items()):
        if not keys:
            continue
        hints = sorted({hint for value in keys.values() for hint in value})
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*ops[name].tune_fields, *(f"hint_{hint}" for hint in hints)])
        writer.writerows([*key, *(keys[key].get(hint, "") for hint in hints)] for key in sorted(keys))
        texts[name] = text.getvalue()
    return texts


def coverage(imported: Sequence[Imported]) -> list[str]:
    """A line per file, and one per reason why rows were not kept."""
    lines = []
    for found in imported:
        rows = ", ".join(f"{count} {arch}" for arch, count in sorted(found.rows.items())) or "no rows"
        lines.append(f"{found.path.name}: {rows}; {len(found.keys)} shapes for {found.op or 'no operator'}")
        lines += [f"  {count} rows not kept: {reason}" for reason, count in found.dropped.most_common()]
        lines += [f"  {problem}" for problem in found.problems]
    total, kept = sum(sum(found.rows.values()) for found in imported), sum(len(found.keys) for found in imported)
    lines.append(f"{len(imported)} files, {total} rows, {kept} shapes kept")
    return lines


def _column(name: str) -> str:
    plain = name.strip().lower()
    return _COLUMNS.get(plain, plain)


def _take(found: Imported, op: Op | None, cells: dict[str, str], surplus: int, place: str) -> None:
    if surplus:
        found.problems.append(f"{place}: {abs(surplus)} cells too {'many' if surplus > 0 else 'few'}")
        return
    cells = {name: text.strip() for name, text in cells.items()}
    found.rows[cells.get("gfx") or _ARCH_OF_CUS.get(cells.get("cu_num", ""), "unknown architecture")] += 1
    if op is None:
        found.dropped[f"no operator {found.op}" if found.op else "no table of this name is known"] += 1
        return
    columns = {name: name if name in cells else _FIELDS.get(name, name.removesuffix("_layout"))
               for name in op.tune_fields}
    missing = [name for name, column in columns.items() if column not in cells]
    if missing:
        found.dropped[f"no column for {', '.join(missing)}"] += 1
        return
    try:
        key = tuple(_value(name, cells[column]) for name, column in columns.items())
    except TypeError as error:  # a dtype that nothing here takes
        found.dropped[str(error).partition(";")[0]] += 1
        return
    except (ValueError, AttributeError) as error:
        found.problems.append(f"{place}: {error}")
        return
    hint = {"backend": _BACKENDS.get(cells.get("libtype", ""), ""), "split_k": cells.get("splitk", ""),
            "block_m": cells.get("block_m", "")}
    found.keys[key] = {name: text for name, text in hint.items() if text}


def _value(name: str, text: str) -> Any:
    """A cell as a key has it: torch.bfloat16 → bf16, QuantType.per_Token → per_token, False → 0, 64.0 → 64."""
    import torch

    if name.endswith("dtype"):
        return dtypes.name(getattr(torch, text.removeprefix("torch.")))
    if table.is_text(name):
        return text.rpartition(".")[2].lower()
    flags = {"true": 1, "false": 0}
    if text.lower() in flags:
        return flags[text.lower()]
    number = float(text)
    if number != int(number) or number < 0:
        raise ValueError(f"{name} must be a count, got {text!r}")
    return int(number)
