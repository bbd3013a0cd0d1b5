# SPDX-License-Identifier: MIT
"""The tuner's journal: each trial's start and result, so that a run that was killed goes on where it ended.

A line of JSON per event. An entry holds for the same operator, key, kernel revision, toolchain and device only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiter_like.errors import TuningError

_LETHAL = 2  # a trial that was under way when so many runs ended without a word is not started again


class Journal:
    """An open journal; one process has it at a time, a second one gets a file of its own.

    Attributes:
        results: id → result of the trials that are done.
        starts: id → how often a trial was started.
    """

    def __init__(self, path: Path):
        self.results: dict[str, dict[str, Any]] = {}
        self.starts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open(path)
        except OSError as error:
            raise TuningError(f"{path}:0: the journal cannot be written: {error.strerror}") from error
        self._read()

    def _open(self, path: Path) -> Any:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            self.path = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
            return self._open(self.path)
        return file

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith("\n"):
            self._file.write("\n")  # the line that a killed run did not finish; it is no entry
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                name = entry["id"]
            except (ValueError, TypeError, KeyError):
                continue
            if "result" in entry:
                self.results[name] = entry["result"]
            else:
                self.starts[name] = self.starts.get(name, 0) + 1

    def is_lethal(self, name: str) -> bool:
        """Whether runs ended while this trial was under way, time and again."""
        return name not in self.results and self.starts.get(name, 0) >= _LETHAL

    def start(self, name: str, what: str) -> None:
        """Notes that a trial begins; `what` is for people."""
        self._append({"id": name, "start": what})

    def finish(self, name: str, result: Mapping[str, Any]) -> None:
        """Notes its result."""
        self.results[name] = dict(result)
        self._append({"id": name, "result": self.results[name]})

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, is_complete: bool) -> None:
        """Ends it; a run that came to its end leaves nothing to go on with."""
        if is_complete:
            self.path.unlink(missing_ok=True)
        self._file.close()


def identity(*parts: Any) -> str:
    """The id of a trial."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]
