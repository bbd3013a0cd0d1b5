# SPDX-License-Identifier: MIT
"""Files that a command writes at its end: what stands in their way is found before it starts."""

from __future__ import annotations

from pathlib import Path


def require_writable(path: Path, option: str) -> None:
    """Makes the folder of `path` and tries to write the file; what is in it stays, and no new one is left behind.

    Raises:
        ValueError: it cannot be written; the message begins with `option`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = path.exists()
        if exists and not path.is_file():
            raise ValueError(f"{option}: {path} exists and is no regular file")
        with path.open("ab"):
            pass
        if not exists:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{option}: cannot write {path}: {error.strerror or error}") from error
