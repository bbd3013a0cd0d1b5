# SPDX-License-Identifier: MIT
"""Runs a folder of programs in the manner of AITER's op_tests through the shim, and tells what they checked.

Each has a process of its own (tests/process.py), a time limit, and this package's `aiter` first on its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aiter_like.integrations.aiter import shim
from aiter_like.integrations.aiter.checks import KINDS
from aiter_like.integrations.aiter.uses import Uses

_POLL_S = 0.2


@dataclass(frozen=True)
class Settings:
    """How the files run.

    Attributes:
        limit_s: seconds that a file may take.
        is_sim: "cuda" is the CPU with the simulated MI300X.
        memory_bytes: what a file's process may allocate; 0: no limit.
        arguments: file name → its command line.
        logs: a folder for what the files print; None: it is dropped.
        jobs: files that run at a time.
    """

    limit_s: float
    is_sim: bool
    memory_bytes: int = 0
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    logs: Path | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Result:
    """The result of running one file.

    Attributes:
        file: its name.
        counts: kind (aiter_checks.KINDS) → events.
        missing: the first thing that it wants and that is not there; "" where nothing was.
        problem: the first failed check, or else the first other exception; "" where there was none.
        reasons: what went wrong or was missing, without the tests' names → how often; the ten most frequent.
        ended: "" for its own end, else one of aiter_checks.ENDS, "time limit", "exit status 2", "signal 11".
        seconds: it took.
        names: its names of AITER's: served, raising, absent → how many.
        absent: the absent ones.
    """

    file: str
    counts: dict[str, int]
    missing: str
    problem: str
    reasons: dict[str, int]
    ended: str
    seconds: float
    names: dict[str, int]
    absent: list[str]

    @property
    def is_counted(self) -> bool:
        """Whether at least one check ran."""
        return self.counts["passed"] + self.counts["failed"] > 0

    @property
    def is_well(self) -> bool:
        """Whether nothing went wrong in it; what is missing or left out is not wrong."""
        return not self.counts["failed"] and not self.counts["errors"] and self.ended in ("", "missing", "other arch")


Progress = Callable[[Sequence[tuple[str, float, dict[str, int]]]], None]
"""Told, several times a second, of each file that runs: its name, its seconds, and its counts so far."""


def run_files(files: Iterable[Path], settings: Settings, progress: Progress) -> Iterator[Result]:
    """Runs files, each until it ends or its time is over, and yields their results as they end.

    Args:
        files: programs that import aiter.
        settings: of the run.
        progress: see `Progress`; also called when a file starts.
    """
    waiting, running = list(files), []
    try:
        while waiting or running:
            while waiting and len(running) < settings.jobs:
                running.append(_Running(waiting.pop(0), settings))
            progress([one.state() for one in running])
            for one in [one for one in running if one.is_over()]:
                running.remove(one)
                yield one.end()
            if running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running[0].process.wait(_POLL_S)
    finally:
        for one in running:
            one.end()


def write(path: Path, about: dict[str, object], results: Sequence[Result]) -> None:
    """Writes results as JSON, whole or not at all; messages name this package's files without the folder it lies in.

    Args:
        path: the file.
        about: what they were measured on.
        results: one for each file that has run.
    """
    text = json.dumps({**about, "files": [asdict(result) for result in results]}, indent=1)
    text = text.replace(f"{Path(__file__).parents[4]}{os.sep}", "")
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text + "\n")
    partial.replace(path)


def read(path: Path) -> tuple[dict[str, object], list[Result]]:
    """Reads what `write` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        about = json.loads(path.read_text())
        return about, [Result(**row) for row in about.pop("files")]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no result of `aiter-like aiter-tests`: {error}") from None


class _Running:
    """A file's process."""

    def __init__(self, file: Path, settings: Settings):
        self._file, self._limit_s, self._scratch = file, settings.limit_s, tempfile.TemporaryDirectory()
        self._journal = Path(self._scratch.name, "journal")
        self._journal.touch()
        job = {"file": str(file), "journal": str(self._journal), "is_sim": settings.is_sim,
               "arguments": list(settings.arguments.get(file.name, ())), "memory_bytes": settings.memory_bytes}
        root = Path(__file__).resolve().parents[4]
        paths = [shim.PATH, file.parent.parent, file.parent, root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"AITER_LIKE": "1", "PYTHONPATH": os.pathsep.join(map(str, paths)),
                                    "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                                    "PYTEST_ADDOPTS": ""}
        self._start = time.monotonic()
        with ((settings.logs or Path(self._scratch.name)) / f"{file.stem}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aiter_like.integrations.aiter.tests.process", json.dumps(job)],
                cwd=self._scratch.name, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)

    def state(self) -> tuple[str, float, dict[str, int]]:
        """The same as in `Progress`."""
        return self._file.name, time.monotonic() - self._start, _counts(_events(self._journal))

    def is_over(self) -> bool:
        """Whether it has ended, or its time has."""
        return self.process.poll() is not None or time.monotonic() - self._start >= self._limit_s

    def end(self) -> Result:
        """Ends the file's process and its children, and returns its result."""
        status, uses = self.process.poll(), Uses.of(self._file)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _, seconds, counts = self.state()
        events = _events(self._journal)
        self._scratch.cleanup()
        told = [what for kind, what, _ in events if kind == "ended"]
        return Result(self._file.name, counts, _first(events, "unserved"),
                      _first(events, "failed") or _first(events, "errors"), _reasons(events),
                      told[0] if told else _ended(status),
                      round(seconds, 1), uses.counts, uses.absent)


def _ended(status: int | None) -> str:
    """How a process ended that did not say so itself: its status, None while it runs."""
    return "time limit" if status is None else f"signal {-status}" if status < 0 else f"exit status {status}"


def _events(journal: Path) -> list[list[str]]:
    """The events so far; a line that is being written is left out."""
    return [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _counts(events: Sequence[Sequence[str]]) -> dict[str, int]:
    kinds = [kind for kind, _, _ in events]
    return {kind: kinds.count(kind) for kind in KINDS}


def _reasons(events: Sequence[Sequence[str]]) -> dict[str, int]:
    texts = Counter(what for kind, what, _ in events if kind in ("failed", "errors", "unserved"))
    return dict(texts.most_common(10))


def _first(events: Sequence[Sequence[str]], wanted: str) -> str:
    return next((f"{part}: {what}" if part else what for kind, what, part in events if kind == wanted), "")
