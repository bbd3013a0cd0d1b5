# SPDX-License-Identifier: MIT
"""Reads the tuner's shapes: from a CSV file, the recorder's files (record.py), or a model's configuration."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_like.dispatch import table
from aiter_like.errors import TuningError, did_you_mean

_IGNORED = (*table.DEVICE_COLUMNS, *table.VALUE_COLUMNS)  # so that recorded shapes and tuned tables are shape files too

_HINT = "hint_"


def read(path: Path, op: str, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The keys of a file: a header with the operator's key fields, in any order, and a row per shape.

    Raises:
        TuningError: with file:line, the first thing that is wrong.
    """
    return [key for key, _ in read_hinted(path, op, fields)]


def read_hinted(path: Path, op: str, fields: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Like `read`, each key with its hints: the columns hint_backend, hint_<parameter> (aiter_tables.py).

    Raises:
        TuningError: as `read`.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_header(header, fields, f"{path}:1", op)
            keys = []
            for cells in rows:
                if cells:
                    named = dict(zip(header, cells))
                    key = _key(named, len(cells) - len(header), fields, f"{path}:{rows.line_num}")
                    keys.append((key, {name.removeprefix(_HINT): text for name, text in named.items()
                                       if name.startswith(_HINT) and text}))
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"{path}:0: cannot be read: {error}") from error
    except csv.Error as error:
        raise TuningError(f"{path}:{rows.line_num}: no CSV: {error}") from error
    if not keys:
        raise TuningError(f"{path}:1: no shape in it")
    return keys


def recorded(folder: Path, op: str, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The keys of every process that recorded `op` into `folder`, each once.

    Raises:
        TuningError: nothing was recorded there, or a file is damaged.
    """
    files = sorted(path for path in folder.glob(f"{op}.*.csv") if path.name.split(".")[0] == op)
    if not files:
        raise TuningError(f"{folder}:0: no recorded shapes of {op}: run a program with AITER_LIKE_RECORD={folder}")
    unique = {tuple(key.values()): key for path in files for key in read(path, op, fields)}
    return [unique[values] for values in sorted(unique)]


def parse(text: str, op: str, fields: Sequence[str]) -> dict[str, Any]:
    """One key from the command line: "rows=1,hidden=4096,dtype=bf16,has_residual=0".

    Raises:
        TuningError: another form, or other fields.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    _check_header([name for name, _, _ in pairs], fields, "--shape", op)
    return _key({name: value for name, _, value in pairs}, 0, fields, "--shape")


def _check_header(header: Sequence[str], fields: Sequence[str], place: str, op: str) -> None:
    missing = [name for name in fields if name not in header]
    unknown = [name for name in header if name not in fields and name not in _IGNORED
               and not name.startswith(_HINT)]
    twice = [name for name in fields if header.count(name) > 1]
    if missing or unknown or twice:
        wrong = "; ".join(f"{what}: {', '.join(names)}" for what, names in (
            ("missing", missing), ("unknown", unknown), ("twice", twice)) if names)
        wrong += did_you_mean(unknown[0], missing or fields) if unknown else ""
        raise TuningError(f"{place}: shapes of {op} must have the columns {', '.join(fields)}; {wrong}")


def _key(cells: dict[str, str], surplus: int, fields: Sequence[str], place: str) -> dict[str, Any]:
    if surplus:
        raise TuningError(f"{place}: {abs(surplus)} cells too {'many' if surplus > 0 else 'few'}")
    key: dict[str, Any] = {}
    for name in fields:
        text = cells[name].strip()
        if table.is_text(name):
            if not text:
                raise TuningError(f"{place}: {name} must be a text, got ''")
            key[name] = text
            continue
        number = {"true": "1", "false": "0"}.get(text.lower(), text)
        if not number.isdecimal():
            raise TuningError(f"{place}: {name} must be a number, at least 0, got {text!r}")
        key[name] = int(number)
    return key
