# SPDX-License-Identifier: MIT
"""What a long build, or a wait for one, shows. The compilers here wait until it was shown, not for a time."""

import logging
import os
import threading
from pathlib import Path

import pytest
from jit_project import Project, fake_compiler, forget

from aiter_like.modules import build, cache, progress


@pytest.fixture
def gate(tmp_path, monkeypatch) -> Path:
    """A file for which every compilation waits; without it one goes on after half a minute, and the test fails."""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    compiler, gate = fake_compiler(tmp_path / "bin"), tmp_path / "gate"
    text = compiler.path.read_text()
    wait = f'for i in $(seq 600); do [ -e "{gate}" ] && break; sleep 0.05; done\n'
    compiler.path.write_text(text.replace("echo run >>", wait + "echo run >>"))
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    forget()
    return gate


class Lines(logging.Handler):
    """Keeps the messages of the package's logger, and calls `seen` at each."""

    def __init__(self, seen):
        super().__init__()
        self.seen, self.lines = seen, []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))
        self.seen(record.getMessage())

    def of_builds(self) -> list[str]:
        """Without those of a lock that was free, which a delay of zero may show."""
        return [message for _, message in self.lines if message.startswith("building ")]


@pytest.fixture
def logged(gate, monkeypatch):
    """The handler, which opens the gate at a build's message; by default warnings are what is shown."""
    handler = Lines(lambda text: gate.touch() if "once:" in text else None)
    logger = logging.getLogger("aiter_like")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    logger.manager._clear_cache()
    return handler


class Terminal:
    """A pseudo-terminal as stderr. A thread reads it, and calls `seen` when the text has come."""

    def __init__(self, monkeypatch, seen):
        self.text, self._seen = "", seen
        self._master, slave = os.openpty()
        self._stream = os.fdopen(slave, "w")
        monkeypatch.setattr("sys.stderr", self._stream)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._master, 4096).decode():
                self.text += part
                self._seen(self.text)
        except OSError:  # closed
            pass

    def close(self) -> str:
        self._stream.close()
        self._reader.join()
        os.close(self._master)
        return self.text


def test_one_log_line_at_the_default_level(logged, project: Project):
    build.ensure(project.spec())
    assert {level for level, _ in logged.lines} == {logging.WARNING} and len(logged.of_builds()) == 1
    assert logged.of_builds()[0].startswith(f"building op/tiny for {project.spec().arch}, once: 0/2")


def test_a_short_build_and_a_found_module_show_nothing(logged, gate, project: Project, monkeypatch):
    build.ensure(project.spec())
    logged.lines.clear()
    build.ensure(project.spec())
    monkeypatch.setattr(progress, "DELAY", 600.0)
    build.ensure(project.spec(), rebuild=True)
    assert logged.lines == []


def test_time_left_follows_from_the_steps_done(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    (tmp_path / "0.o").touch()  # of a build that was interrupted: it tells nothing of this one's speed
    text = progress.of_build("the simulator", tmp_path, [f"{index}.o" for index in range(5)])
    clock[0] += 10
    assert text() == "building the simulator, once: 1/5, for 10 s"
    (tmp_path / "1.o").touch()
    assert text() == "building the simulator, once: 2/5, about 30 s left"


def test_a_terminal_has_one_line_that_is_erased(gate, project: Project, monkeypatch):
    terminal = Terminal(monkeypatch, lambda text: gate.touch() if "once: 0/2" in text else None)
    build.ensure(project.spec())
    text = terminal.close()
    assert "\r\x1b[Kbuilding op/tiny for" in text and "\n" not in text and text.endswith("\r\x1b[K")


def test_a_failed_build_leaves_the_terminal_clean(gate, project: Project, monkeypatch):
    project.source.write_text("#error bad\n")
    terminal = Terminal(monkeypatch, lambda text: gate.touch() if "once: 0/2" in text else None)
    with pytest.raises(build.BuildError):
        build.ensure(project.spec())
    assert terminal.close().endswith("\r\x1b[K")


@pytest.mark.parametrize("level", [logging.ERROR, logging.WARNING])
def test_a_terminal_is_as_quiet_as_the_logger(gate, project: Project, monkeypatch, level):
    monkeypatch.setattr(logging.getLogger("aiter_like"), "level", level)
    logging.getLogger("aiter_like").manager._clear_cache()
    if level == logging.ERROR:
        gate.touch()
    terminal = Terminal(monkeypatch, lambda text: gate.touch())
    build.ensure(project.spec())
    assert bool(terminal.close()) == (level == logging.WARNING)


def test_waiting_for_another_builder_names_it(logged, gate, project: Project, tmp_path):
    """The lock is held until the wait has been told."""
    gate.touch()
    spec, told, held = project.spec(), threading.Event(), threading.Event()
    logged.seen = lambda text: told.set()

    def hold() -> None:
        with cache.locked(cache.cache_root() / spec.folder, build._request(spec.inputs()), 10):
            held.set()
            told.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    build.ensure(spec)
    holder.join()
    assert logged.lines[0][1].startswith(f"waiting for pid {os.getpid()} on ")
    assert f"which builds op/tiny for {spec.arch}" in logged.lines[0][1]


def test_a_caller_with_progress_of_its_own(logged, gate, project: Project):
    gate.touch()
    with progress.left_to_caller():
        build.ensure(project.spec())
    assert logged.lines == []


def test_the_time_left_never_climbs():
    """An estimate that does says that the last one was too low, and by its word alone."""
    left = progress.Left()
    assert [left(seconds) for seconds in (30, 10, 27, 10.5, 9, 40)] == [
        ("about", 30), ("about", 10), ("over", 10), ("about", 10), ("about", 9), ("over", 9)]
