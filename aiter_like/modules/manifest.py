# SPDX-License-Identifier: MIT
"""`manifest.csv` of a folder of assembly kernels: which kernel of which source is for what. Read by asm.py."""

import csv
import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aiter_like import dtypes
from aiter_like.errors import BuildError

FILE = "manifest.csv"
COLUMNS = ("kernel", "source", "symbol", "op", "dtype", "constraints")

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Row:
    """One kernel of a manifest.

    Attributes:
        kernel: its name in explain() and tuned rows.
        source: the .s file beside the manifest.
        symbol: the kernel's name in the code object.
        op: the operator.
        dtype: "bf16", … (dtypes.py).
        constraints: what a call must have exactly, {"hidden": 4096}.
        where: "file:line".
    """

    kernel: str
    source: str
    symbol: str
    op: str
    dtype: str
    constraints: Mapping[str, int]
    where: str


def read(folder: Path) -> tuple[Row, ...]:
    """The rows of a folder's manifest; read anew when the file has changed.

    Raises:
        BuildError: it cannot be read, or a line is wrong; the message starts with file:line.
    """
    try:
        state = os.stat(path := folder / FILE)
    except OSError as error:
        raise BuildError(f"{folder / FILE}: {error}") from error
    return _read(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int, _size: int) -> tuple[Row, ...]:
    folder, rows = path.parent, {}
    try:
        with open(path, newline="") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != COLUMNS:
                raise BuildError(f"{path}:1: columns must be {','.join(COLUMNS)}")
            for cells in reader:
                row = _row(folder, cells, f"{path}:{reader.line_num}")
                if row.kernel in rows:
                    raise BuildError(f"{row.where}: kernel {row.kernel} is already in {rows[row.kernel].where}")
                rows[row.kernel] = row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BuildError(f"{path}: {error}") from error
    return tuple(rows.values())


def _row(folder: Path, cells: list[str], where: str) -> Row:
    if len(cells) != len(COLUMNS):
        raise BuildError(f"{where}: {len(COLUMNS)} cells expected, got {len(cells)}")
    values = dict(zip(COLUMNS, cells))
    for name in ("kernel", "symbol", "op"):
        if not _NAME.fullmatch(values[name]):
            raise BuildError(f"{where}: {name} must be an identifier, got {values[name]!r}")
    source = values["source"]
    if PurePosixPath(source).name != source or not source.endswith(".s") or not (folder / source).is_file():
        raise BuildError(f"{where}: source must be a .s file in {folder.name}/, got {source!r}")
    if values["dtype"] not in dtypes.DTYPES:
        raise BuildError(f"{where}: dtype must be one of {', '.join(dtypes.DTYPES)}, got {values['dtype']!r}")
    constraints: dict[str, int] = {}
    for part in filter(None, values["constraints"].split(";")):
        name, _, value = part.partition("=")
        if not _NAME.fullmatch(name) or not value.isdecimal() or name in constraints:
            raise BuildError(f"{where}: constraints must be name=integer;… with each name once, got {part!r}")
        constraints[name] = int(value)
    return Row(**(values | {"constraints": constraints}), where=where)
