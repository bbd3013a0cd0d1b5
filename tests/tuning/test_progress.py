# SPDX-License-Identifier: MIT
"""The progress line: an estimate before anything is done, then what the steps tell; a terminal and a file."""

import io
import threading

import pytest

from aiter_like.tuning import progress
from aiter_like.tuning.progress import Progress


class Stream(io.StringIO):
    """Keeps what is written; `waited` is set with the third writing."""

    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal, self.writings, self.waited = terminal, 0, threading.Event()

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.writings += 1
        if self.writings >= 3:
            self.waited.set()
        return super().write(text)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until the test moves it: clock[0] is the time in seconds."""
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 3600.0)
    monkeypatch.setattr(progress, "_LOG_SECONDS", 3600.0)
    return [100.0]


def made(clock, terminal=False):
    stream = Stream(terminal)
    return Progress("op", True, stream, lambda: clock[0]), stream


def test_time_left_is_guessed_at_first_and_then_follows_from_what_is_done(clock):
    line, stream = made(clock)
    line.expect("modules built", 4, 10.0)
    line.expect("trials", 6, 5.0)
    line.enter("modules built")
    assert stream.getvalue() == "op: 0/4 modules built, about 01:10 left\n"
    clock[0] += 7.0
    assert line.line() == "op: 0/4 modules built, about 01:03 left"
    line.step()
    assert line.line() == "op: 1/4 modules built, about 00:51 left", "3 · 7 s, and 6 trials that are still guessed"
    line.expect("trials", 2)
    line.all_shapes = 2
    line.enter("trials")
    clock[0] += 3.0
    line.step()
    assert line.line() == "op: 1/2 trials, 0/2 shapes, 00:03 left", "what was left of the modules counts no more"
    line.step()
    line.shape_done()
    line.end()
    assert stream.getvalue().splitlines()[-1] == "op: 2/2 trials, 1/2 shapes, 00:00 left"


def test_a_terminal_has_one_line_that_makes_room(clock):
    line, stream = made(clock, terminal=True)
    line.expect("trials", 10, 1.0)
    line.enter("trials")
    line.step()
    assert stream.getvalue().count("\r") == 2 and "\n" not in stream.getvalue()
    line.clear()
    assert stream.getvalue().endswith("\r")
    line.step()
    line.end()
    assert stream.getvalue().endswith("00:00 left\n"), stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_line_goes_on_while_nothing_is_done(monkeypatch, terminal):
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 0.001)
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.001)
    line, stream = made([0.0], terminal)
    line.expect("trials", 1, 1.0)
    line.enter("trials")
    assert stream.waited.wait(60), "no line but the first"
    line.end()
    assert not line._ticker.is_alive()


def test_quiet(clock):
    stream = Stream(False)
    line = Progress("op", False, stream)
    line.expect("trials", 1, 1.0)
    line.enter("trials")
    line.step()
    line.shape_done()
    line.note("x")
    line.end()
    assert stream.getvalue() == "" and line._ticker is None
