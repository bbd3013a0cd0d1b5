# SPDX-License-Identifier: MIT
"""Child processes that do not outlive the wait for them, nor do theirs: ninja and its compilers, the tuner's workers.

ninja gives each compiler a process group of its own, so neither Ctrl-C nor a signal to ninja's group reaches them all.
Used by build.py, cache.py and the tuner.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_GRACE = 1.0  # seconds that a compiler has to remove its temporary files

_lock = threading.Lock()
_running: dict[subprocess.Popen, bool] = {}  # → whether `none_left` has ended it
_closed = 0  # blocks of `none_left` that are open


@contextlib.contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """subprocess.Popen(command, **options) for a with block; when it is left early, the process and all below it end.

    Raises:
        KeyboardInterrupt: `none_left` has ended the process.
    """
    process = _start(command, options)
    try:
        yield process
        process.wait()
    except BaseException:
        end(process)
        raise
    finally:
        with _lock:
            was_ended = _running.pop(process)
    if was_ended:
        raise KeyboardInterrupt


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """For the thread that was interrupted: the children of all threads end, and none starts within the block."""
    global _closed
    with _lock:
        _closed += 1
        _running.update(dict.fromkeys(_running, True))
        ended = list(_running)
    try:
        for process in ended:
            end(process)
        yield
    finally:
        with _lock:
            _closed -= 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads run children; when the block is left by an exception, so Ctrl-C, they end and no other
    starts.
    """
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            with none_left():
                pool.shutdown(cancel_futures=True)
            raise


def check() -> None:
    """For threads that wait for something else than a child.

    Raises:
        KeyboardInterrupt: within `none_left`.
    """
    if _closed:
        raise KeyboardInterrupt


def end(process: subprocess.Popen, grace: float = _GRACE) -> None:
    """Ends a process and all below it: politely, then, after `grace` seconds, by force. If it led a session and has
    ended already, ends what it has left there.
    """
    tree = _tree(process.pid)
    try:
        if grace > 0 and process.poll() is None:
            process.terminate()  # ninja hands it on, and waits for its compilers
            process.wait(grace)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it starts nothing more
            tree |= _tree(process.pid)
            process.kill()
        for pid, start in tree.items():
            if pid != process.pid and _status(pid)[-1] == start:  # else it has ended, and the number is another's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def _start(command: Sequence[str], options: dict[str, Any]) -> subprocess.Popen:
    """Starts it in another thread: Ctrl-C is raised in the main one, where Popen would lose what it has just forked."""
    found: list[Any] = []
    is_done, is_abandoned = threading.Event(), threading.Event()

    def start() -> None:
        try:
            with _lock:
                if is_abandoned.is_set():
                    return
                check()
                found.append(subprocess.Popen(command, **options))
                _running[found[0]] = False
        except (OSError, ValueError, TypeError, subprocess.SubprocessError, KeyboardInterrupt) as error:
            found.append(error)
        finally:
            is_done.set()

    try:
        threading.Thread(target=start).start()
        is_done.wait()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]
    except BaseException:
        with _lock:  # Popen has returned, or will not be called
            is_abandoned.set()
            process = next((one for one in found if isinstance(one, subprocess.Popen)), None)
            _running.pop(process, None)
        if process is not None:
            end(process)
        raise


def _tree(root: int) -> dict[int, str]:
    """Process → start time, of `root`, all below it, and all of its session where it leads one."""
    known = {int(entry.name): _status(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = {pid: start for pid, (_, session, start) in known.items() if root in (pid, session)}
    while more := {pid: start for pid, (parent, _, start) in known.items() if pid not in found and parent in found}:
        found |= more
    return found


def _status(pid: int) -> tuple[int, int, str]:
    """Parent, session and start time of a process; (0, 0, "") of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may hold anything
    except OSError:
        return 0, 0, ""
    return int(fields[1]), int(fields[3]), fields[19]
