# SPDX-License-Identifier: MIT
"""Records the shapes that a program uses, for the tuner: AITER_LIKE_RECORD names the directory. Called by dispatch.py.

One file per operator and process, append-only: `<op>.<host>.<pid>.csv` with arch, cu_num and the key fields.
"""

from __future__ import annotations

import csv
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from aiter_like import env
from aiter_like.dispatch.table import DEVICE_COLUMNS

_log = logging.getLogger("aiter_like")
_seen: set[tuple] = set()
_failed: set[str] = set()


def record(op: str, fields: Sequence[str], arch: str, cu_num: int, values: Sequence[int | str]) -> None:
    """Append a shape unless this process did so before. A directory that cannot be written is reported once."""
    directory = env.get("AITER_LIKE_RECORD")
    if not directory or directory in _failed:
        return
    path = Path(directory) / f"{op}.{socket.gethostname()}.{os.getpid()}.csv"  # the pid: a forked child starts its own
    shape = (str(path), arch, cu_num, *values)
    if shape in _seen:
        return
    _seen.add(shape)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow([*DEVICE_COLUMNS, *fields])
            writer.writerow(shape[1:])
    except OSError as error:
        _failed.add(directory)
        _log.warning("AITER_LIKE_RECORD: cannot write %s: %s", path, error)
