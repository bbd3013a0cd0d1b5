# SPDX-License-Identifier: MIT
"""Program of test_concurrency.py: forks processes that call a cold function, and prints what they answered as JSON.

    python cold_processes.py race|kill FOLDER
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from jit_project import Project, make_hip_project
from torch import Tensor

from aiter_like import device, paths
from aiter_like.jit import JitFunction, compile_ops
from aiter_like.modules import cache
from aiter_like.modules.build import load_or_build


def race(folder: Path) -> dict:
    """Eight processes call one cold operator at the same moment."""
    root = make_hip_project(folder / "csrc")
    paths.csrc = lambda: root
    sys.modules[JitFunction.__module__].load_hip_runtime = lambda simulated: None
    device.use_simulator(True)

    @compile_ops("op/scale.hip")
    def _scale_hip(x: Tensor, weight: Tensor | None, factor: float, times: int, is_on: bool, name: str) -> None: ...

    start, go = os.pipe()

    def call() -> float:
        os.close(go)
        os.read(start, 1)  # returns when the parent closes its end
        x = torch.tensor([21.0])
        _scale_hip(x, None, 2.0, 1, True, "")
        return x.item()

    children = [_fork(call) for _ in range(8)]
    os.close(go)
    return {"answers": [_answer(*child) for child in children]}


def kill(folder: Path) -> dict:
    """Twenty builds are killed, at points spread over the time that one takes; after each, a call must work."""
    project = Project(folder / "csrc")

    def call() -> int:
        return ctypes.CDLL(str(load_or_build(project.spec()))).tiny()

    def new_version(number: int) -> None:
        project.source.write_text(f"// {number}\nextern \"C\" int tiny() {{ return 42; }}\n")

    def whole_build() -> tuple[int | None, float]:
        begin = time.monotonic()
        return _answer(*_fork(call)), time.monotonic() - begin

    new_version(-1)
    duration = whole_build()[1]
    answers, killed, draw = [], 0, random.Random(0)
    for number in range(20):
        new_version(number)
        builder, reader = _fork(call)
        time.sleep(duration * (number + draw.random()) / 20)
        # The builder alone, whose compiler goes on as an orphan, or all its processes.
        (os.kill if number % 2 else os.killpg)(builder, signal.SIGKILL)
        killed += not os.read(reader, 1)
        os.close(reader)
        os.waitpid(builder, 0)
        answer, seconds = whole_build()
        answers.append(answer)
        duration = min(duration, seconds)  # the machine may have been busy before
    _wait_for_orphans()
    # What an orphan wrote while the next builder was removing its directory, and files that lost their writer; these
    # count as lost after an hour.
    for path in cache.cache_root().rglob(".tmp-*"):
        if path.is_file():
            os.utime(path, (0, 0))
    cache.prune(cache.cache_root(), days=1)
    left = [str(path) for path in cache.cache_root().rglob(".tmp-*")]
    return {"answers": answers, "killed": killed, "left": left}


def _wait_for_orphans() -> None:
    """Returns when no compiler runs any more (jit_project._WRAPPER holds the lock of its folder)."""
    folder = os.open(Path(os.environ["AITER_LIKE_TOOLCHAIN"]).parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    os.close(folder)


def _fork(work: Callable) -> tuple[int, int]:
    """Runs `work` in a new process; returns its pid and the pipe into which it writes its answer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        os.close(writer)
        return pid, reader
    try:
        os.setpgid(0, 0)
        os.write(writer, json.dumps(work()).encode())
    except BaseException:  # noqa: BLE001  (the child of a fork must not return into its parent's code)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _answer(pid: int, reader: int) -> float | None:
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


if __name__ == "__main__":
    result = {"race": race, "kill": kill}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(result))
