# SPDX-License-Identifier: MIT
"""The tuner's end of a worker process: starts it, watches it, replaces it. Used by tuner.py and cli/sim/hardware."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiter_like.errors import TuningError
from aiter_like.modules import processes

_START_SECONDS = 600.0  # the simulator may have to be built first


class Lost(Exception):
    """The worker crashed or hung; the text says which."""


class Worker:
    """One worker process for one device; started on the first request, and again after it was lost.

    Attributes:
        hello: what it says about its device; empty before the start.
    """

    def __init__(self, harness: str, index: int, module: str = "aiter_like.tuning.worker"):
        """`module`: what the process runs; it serves as worker.py's does."""
        self.harness, self.index, self.module = harness, index, module
        self.hello: dict[str, Any] = {}
        self._process: subprocess.Popen | None = None
        self._buffer = b""
        self._lock = threading.Lock()
        self._is_stopped = False

    def start(self) -> dict[str, Any]:
        """Starts it unless it runs; `hello`.

        Raises:
            TuningError: it does not come up; with its last words.
            Lost: `stop` was called.
        """
        if self._process is not None:
            return self.hello
        with self._lock:
            if self._is_stopped:
                raise Lost("stopped")
            self._launch()
        try:
            self.hello = self._receive(_START_SECONDS)
        except Lost as error:
            raise TuningError(f"the worker for device {self.index} does not start: {error}") from error
        return self.hello

    def _launch(self) -> None:
        child_read, self._write = os.pipe()
        self._read, child_write = os.pipe()
        self._words = tempfile.TemporaryFile()
        command = [sys.executable, "-m", self.module, self.harness, str(self.index), str(child_read), str(child_write)]
        self._process = subprocess.Popen(command, pass_fds=(child_read, child_write), stdin=subprocess.DEVNULL,
                                         stdout=self._words, stderr=self._words, start_new_session=True)
        os.close(child_read)
        os.close(child_write)
        self._buffer = b""

    def stop(self) -> None:
        """Ends the process while another thread may wait for its answer, who gets Lost; it is not started again."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                processes.end(self._process, grace=0)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """One request.

        Raises:
            Lost: no answer within `timeout` seconds, or the process ended; the next request starts another.
            TuningError: it does not start.
        """
        self.start()
        try:
            os.write(self._write, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            self._lose()
        reply = self._receive(timeout)
        if reply.get("is_broken"):
            self.close()
        return reply

    def close(self) -> None:
        """Ends the process, whatever it does."""
        if self._process is None:
            return
        processes.end(self._process, grace=0)  # with the compilers that it started
        self._process = None
        os.close(self._read)
        os.close(self._write)
        self._words.close()

    def _receive(self, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0.0))
            if not ready:
                self.close()
                raise Lost(f"hung: no answer within {timeout:g} s")
            part = os.read(self._read, 1 << 16)
            if not part:
                self._lose()
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _lose(self) -> None:
        with contextlib.suppress(ChildProcessError):  # `stop` was first; else its number stays its own until `close`
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        status = self._process.wait()
        self._words.seek(0)
        words = [line.strip() for line in self._words.read().decode(errors="replace").splitlines() if line.strip()]
        self.close()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise Lost(f"crashed: {how}" + (f": {words[-1][:300]}" if words else ""))


@contextlib.contextmanager
def threads(workers: Sequence[Worker]) -> Iterator[ThreadPoolExecutor]:
    """A thread for each worker. What ends the block early, as Ctrl-C does, ends the workers first, since the threads
    wait for them.
    """
    with processes.threads(len(workers)) as made:
        try:
            yield made
        except BaseException:
            for worker in workers:
                worker.stop()
            raise
