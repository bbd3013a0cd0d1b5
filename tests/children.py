# SPDX-License-Identifier: MIT
"""Python programs that tests run, in forks of one process that has imported torch, Triton and pytest: that takes
seconds, and these programs do not look at it. One that looks at imports, or at how Python starts, takes `subprocess`.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from pathlib import Path

IMPORTED = ("pytest", "torch", "triton")


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
        ) -> subprocess.CompletedProcess:
    """What `subprocess.run([sys.executable, *words])` gives, with text of both outputs."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as told:
        status = start([*map(str, words)], out.fileno(), told.fileno(), env, cwd)
        out.seek(0)
        told.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), told.read())


def of_pytester(command, stdout, stderr, **_) -> types.SimpleNamespace:
    """For `pytester.popen` of pytest: the program has ended when this returns."""
    assert command[:2] == (sys.executable, "-mpytest")
    code = start(["-m", "pytest", *map(str, command[2:])], stdout.fileno(), stderr.fileno())
    return types.SimpleNamespace(stdin=io.StringIO(), wait=lambda: code)


def start(words: list[str], out: int, told: int, env: Mapping[str, str] | None = None,
          cwd: str | Path | None = None) -> int:
    """Runs a program with these outputs and gives its exit status."""
    request = {"words": words, "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
    link = _server()
    socket.send_fds(link, [json.dumps(request).encode()], [out, told])
    return int(link.recv(64))


@functools.cache
def _server() -> socket.socket:
    """The link to the process that forks; it ends with the last copy of the link."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "AITER_LIKE" not in name}
    with theirs:
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=clean)
    return ours


def serve(link: socket.socket) -> None:
    """Forks for each request, waits for the program and answers with its status."""
    sys.path.pop(0)  # this file's folder
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    while True:
        message, files, _, _ = socket.recv_fds(link, 2**20, 2)
        if not message:
            return
        child = os.fork()
        if not child:
            link.close()
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files)):
                os.dup2(file, number)
            try:
                _run(**json.loads(message))
            finally:
                _end(sys.exc_info()[1])
        for file in files:
            os.close(file)
        link.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _run(words: list[str], env: dict[str, str], cwd: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    is_file = words[0] not in ("-c", "-m")
    first = str(Path(words[0]).parent) if is_file else "" if words[0] == "-c" else cwd
    sys.path[:0] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = words if is_file else words[1:] if words[0] == "-m" else ["-c", *words[2:]]
    if is_file:
        runpy.run_path(words[0], run_name="__main__")
    elif words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)


def _end(error: BaseException | None) -> None:
    """Ends as Python would, with all that is registered for it, but without half a second of freeing."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
