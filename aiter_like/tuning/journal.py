# SPDX-License-Identifier: MIT
"""The tuner's journal: each trial's start and result, so that a run that was killed goes on where it ended.

A line of JSON per event. An entry holds for the same operator, key, kernel revision, toolchain and device only.
"""

import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiter_like.errors import TuningError

_LETHAL = 2  # a trial that was under way when so many runs ended without a word is not started again


_FIELDS = {"ok": ((int, float), ("err", "value", "base", "ratio")),
           **dict.fromkeys(("wrong", "failed", "refused", "crashed", "hung"), (str, ("detail",)))}

_log = logging.getLogger("aiter_like")


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
            if path.exists() and not path.is_file():
                raise TuningError(f"{path}:0: the journal must be a plain file")
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
        text = self.path.read_bytes()
        lines = text.splitlines()
        if text and not text.endswith(b"\n"):
            self._file.write("\n")
            lines.pop()  # the line that a killed run did not finish
        ignored = [number for number, line in enumerate(lines, 1) if not self._take(line)]
        if ignored:
            _log.warning("%s: %d of %d lines ignored, which are no entries of a journal; the first is line %d",
                         self.path, len(ignored), len(lines), ignored[0])

    def _take(self, line: bytes) -> bool:
        """Enters what a line says; whether it is an entry."""
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            return False
        name = entry["id"]
        if "result" in entry:
            if not _is_result(entry["result"]):
                return False
            self.results[name] = entry["result"]
        elif "start" in entry or "stop" in entry:
            self.starts[name] = self.starts.get(name, 0) + (1 if "start" in entry else -1)
        else:
            return False
        return True

    def is_lethal(self, name: str) -> bool:
        """Whether runs ended while this trial was under way, time and again."""
        return name not in self.results and self.starts.get(name, 0) >= _LETHAL

    def start(self, name: str, what: str) -> None:
        """Notes that a trial begins; `what` is for people."""
        self._append({"id": name, "start": what})

    def stop(self, name: str) -> None:
        """Notes that its run was interrupted, which says nothing of the trial."""
        self._append({"id": name, "stop": "interrupted"})

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


def _is_result(result: Any) -> bool:
    """Whether it is what the tuner reads of a trial: status and detail, or the numbers of one that passed."""
    if not isinstance(result, dict) or result.get("status") not in _FIELDS:
        return False
    kind, names = _FIELDS[result["status"]]
    return all(isinstance(result.get(name), kind) for name in names)


def identity(*parts: Any) -> str:
    """The id of a trial."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]
