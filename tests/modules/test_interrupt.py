# SPDX-License-Identifier: MIT
"""Ctrl-C while modules are built: every process ends at once, the exit status says so, and what is finished is used."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import interrupted_build
import pytest
from jit_project import Compiler

from aiter_like.modules import build, cache, processes
from aiter_like.modules.build import load_or_build
from aiter_like.modules.recipe import ModuleSpec

HERE = Path(__file__).resolve().parent
NAMES = [f"op/m{number}" for number in range(4)]
FAILS = 600  # seconds after which an event that does not come is a failure

# Finishes tiny.cpp. For slow.cpp it tells its own process and one below it, and waits for `go` beyond all polite ends.
_COMPILER = r"""#!/bin/sh
if [ "$1" = --version ]; then echo "fake clang version {version}"; echo "InstalledDir: {folder}"; exit; fi
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2; shift ;; -MF) dep=$2; shift ;; *.cpp) source=$1 ;; esac
  shift
done
echo "${{source##*/}}" >> "{log}"
case "$source" in *slow.cpp)
  if ! [ -e "{folder}/go" ]; then
    until grep -q 0.o .ninja_log; do sleep 0.01; done
    trap "" INT TERM HUP
    sleep 1000 &
    echo $$ $! > "{folder}/told"
    wait
  fi ;;
esac
echo done > "$out"
if [ "$dep" ]; then echo "$out: $source {system}" > "$dep"; fi
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Compiler:
    found = Compiler(tmp_path / "bin" / "clang++", _COMPILER, version="22.0.0",
                     system=str(tmp_path / "system.h"))
    (tmp_path / "system.h").touch()
    os.mkfifo(found.path.parent / "told")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(found.path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)]))
    return found


@pytest.mark.parametrize("is_terminal", [
    pytest.param(False, id="to the process"),
    pytest.param(True, id="to its group, as a terminal does", marks=pytest.mark.exhaustive)])
def test_ctrl_c(compiler, tmp_path, is_terminal):
    told = os.open(compiler.path.parent / "told", os.O_RDWR)
    program = subprocess.Popen([sys.executable, HERE / "interrupted_build.py", tmp_path / "csrc", *NAMES],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with program:
        ended, lines = os.pidfd_open(program.pid), ""
        while lines.count("\n") < 2:
            assert ended not in select.select([told, ended], [], [])[0], program.communicate()
            lines += os.read(told, 1000).decode()
        running = [os.pidfd_open(int(pid)) for pid in lines.split()]
        for handle in (told, ended):
            os.close(handle)
        (os.killpg if is_terminal else os.kill)(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=FAILS)
    assert program.returncode == 130 and err == "aiter-like build: interrupted\n" and out == ""
    for process in running:
        assert select.select([process], [], [], FAILS)[0], "a compiler, or what it started, still runs"
        os.close(process)
    compiled = compiler.log.read_text().split()
    assert sorted(compiled) == ["slow.cpp"] * 2 + ["tiny.cpp"] * 2, "nothing was started after it"

    (compiler.path.parent / "go").touch()
    for spec in interrupted_build.specs(tmp_path / "csrc", NAMES):
        assert load_or_build(spec).read_text() == "done\n"
    again = compiler.log.read_text().split()[len(compiled):]
    # Of each module slow.cpp and the link; tiny.cpp of the two that had not begun.
    assert sorted(again) == ["slow.cpp"] * 4 + ["tiny.cpp"] * 2
    assert not list((tmp_path / "cache").rglob(".tmp-*"))


class Build(threading.Thread):
    """load_or_build in a thread, and how it ended."""

    def __init__(self, spec: ModuleSpec):
        super().__init__()
        self.spec, self.ended_by = spec, None
        self.start()

    def run(self):
        try:
            load_or_build(self.spec)
        except KeyboardInterrupt as error:
            self.ended_by = error


@pytest.mark.parametrize("changed", ["", "include/unused.h", "../system.h"])
def test_a_finished_object_is_used_while_all_that_it_is_made_of_is_the_same(compiler, tmp_path, changed):
    """By content: the time of change stays."""
    [spec] = interrupted_build.specs(tmp_path / "csrc", ["op/m"])
    (tmp_path / "system.h").write_text("1")
    with open(os.open(compiler.path.parent / "told", os.O_RDWR)) as lines:
        build = Build(spec)
        lines.readline()
        with processes.none_left():
            build.join()
    assert build.ended_by is not None
    (compiler.path.parent / "go").touch()
    if changed:
        path = spec.root / changed
        before = path.stat()
        path.write_text("2")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    load_or_build(spec)
    assert compiler.log.read_text().split().count("tiny.cpp") == (2 if changed else 1)


def test_whoever_waits_for_another_builder_is_interrupted_too(compiler, tmp_path):
    [spec] = interrupted_build.specs(tmp_path / "csrc", ["op/m"])
    (compiler.path.parent / "go").touch()
    with cache.locked(cache.cache_root() / spec.folder, build._request(spec.inputs()), 10):
        waiting = Build(spec)
        with processes.none_left():
            waiting.join()
    assert waiting.ended_by is not None and compiler.runs() == 0


@pytest.mark.parametrize("is_early", [False, True])
def test_a_child_that_was_started_as_the_interrupt_came_ends(monkeypatch, is_early):
    """Ctrl-C while Popen is at work, which would know nothing of the process that it has just forked."""
    started, is_interrupted = [], threading.Event()
    if is_early:  # the thread that starts it runs, and whoever started the thread does not know yet

        class Thread(threading.Thread):
            def start(self):
                super().start()
                threading.Event().wait()

        monkeypatch.setattr(threading, "Thread", Thread)

    def interrupt(*_):
        is_interrupted.set()
        raise KeyboardInterrupt

    class Slow(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(os.pidfd_open(self.pid))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            is_interrupted.wait()

    monkeypatch.setattr(subprocess, "Popen", Slow)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), processes.child(["sleep", "1000"]):
            threading.Event().wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert select.select(started, [], [], FAILS)[0] and not processes._running


def test_what_a_worker_has_left_in_its_session_ends(tmp_path):
    """A tuner's worker may have crashed while ninja was at work for it."""
    reader, writer = os.pipe()
    worker = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!"], stdout=writer, start_new_session=True)
    orphan = os.pidfd_open(int(os.read(reader, 100)))
    worker.wait()
    processes.end(worker, grace=0)
    assert select.select([orphan], [], [], FAILS)[0]
    for handle in (reader, writer, orphan):
        os.close(handle)
