# SPDX-License-Identifier: MIT
"""Writes tuned rows: one row per key, sorted, atomically, whoever else writes. Used by tuner.py and nothing else."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import paths
from aiter_like.dispatch import table
from aiter_like.dispatch.table import Row
from aiter_like.errors import TuningError

if TYPE_CHECKING:
    from aiter_like.dispatch import Op


def default_folder() -> Path:
    """tuned_csv/ of a checkout; the user's own directory where the package is installed."""
    packaged = paths.tuned_csv()
    return packaged if packaged.parent != Path(__file__).parent.parent / "_data" else paths.user_tuned()


def prepare(folder: Path, what: str = "tuned rows", option: str = "--output") -> None:
    """Makes the directory and tries it, before device time is spent on what cannot be kept.

    Args:
        what, option: what is to be written there, and the option that names the directory; for the message.

    Raises:
        TuningError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TuningError(f"{folder}:0: {what} cannot be written there: {error.strerror}; {option} names another "
                          "directory") from error


def existing(path: Path, op: Op) -> dict[tuple, list[Row]]:
    """Key → the rows of a table, fastest first; empty where there is no file.

    Raises:
        TuningError: the file has a bad row, which would be lost if it were written again.
    """
    if not path.is_file():
        return {}
    known = {backend.name: backend.fixed_kernels() for backend in op.backends}
    rows, problems = table.read_file(path, op.name, op.tune_fields, known)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TuningError(f"{problems[0]}{more}")
    return rows


def cells(row: Row) -> list[str]:
    """A row as its file has it."""
    params = ";".join(f"{name}={table.text_of(value)}" for name, value in sorted(row.params.items()))
    us = f"{max(row.us, 0.01):.2f}"
    return [*map(str, row.key), row.backend, row.kernel, params, us, f"{row.err:.3g}", row.toolchain, row.kernel_rev,
            row.origin]


def update(path: Path, op: Op, rows: Sequence[Row], keys: Sequence[tuple] = ()) -> None:
    """Replaces the rows of these keys and keeps all others; readers see the old file or the new one.

    Args:
        keys: whose rows go, too. Nothing is written where none of all that changes anything; a table without rows goes.

    Raises:
        TuningError: the file has a bad row, or cannot be written.
    """
    try:
        with _locked(path.parent):
            known = existing(path, op)
            if not rows and not any(key in known for key in keys):
                return
            merged = {key: own for key, own in known.items() if key not in keys} | {row.key: [row] for row in rows}
            if not merged:
                path.unlink()
                return
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(table.columns(op.tune_fields))
            writer.writerows(cells(row) for key in sorted(merged) for row in merged[key])
            _replace(path, text.getvalue())
    except OSError as error:
        raise TuningError(f"{path}:0: cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Any]:
    """The directory's own lock: it leaves no file behind, and ends with its holder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tuned-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
