# SPDX-License-Identifier: MIT
"""The clock: order of rounds, when it gives up, graphs and the loop in their place, on a toy torch.cuda."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from aiter_like.device import Target
from aiter_like.tuning import clock


def test_rounds_alternate():
    seen = []

    def contender(name):
        return lambda: seen.append(name) or 1.0

    times = clock.interleaved([contender("a"), contender("b")], 4)
    assert "".join(seen) == "abbaabba" and times == [[1.0] * 4] * 2


@pytest.mark.parametrize(("others", "rounds"), [((2.0,), 2), ((1.4,), 7), ((2.0, 1.4), 7), ((), 7)])
def test_gives_up_on_hopeless_contenders(others, rounds):
    times = clock.interleaved([lambda value=value: value for value in (1.0, *others)], 7)
    assert [len(values) for values in times] == [rounds] * (1 + len(others))


class Cuda:
    """As much of torch.cuda as the clock uses; a replayed graph takes 3 ms, a called function `ms`."""

    def __init__(self, captures=True, ms=1.0):
        self.captures, self.ms, self.log, self.now = captures, ms, [], 0.0
        cuda = self

        class Event:
            def __init__(self, enable_timing):
                self.time = None

            def record(self):
                self.time = cuda.now

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.time - self.time

        class Graph:
            def capture_begin(self):
                cuda.log.append("begin")
                if not cuda.captures:
                    raise RuntimeError("capture is not permitted\nmore")

            def capture_end(self):
                cuda.log.append("end")

            def replay(self):
                cuda.now += 3.0

        self.Event, self.CUDAGraph = Event, Graph
        self.Stream = lambda: SimpleNamespace(synchronize=lambda: None)
        self.stream = lambda stream: contextlib.nullcontext()
        self.synchronize = lambda: None
        self.get_device_properties = lambda index: SimpleNamespace(L2_cache_size=50 << 20)

    def call(self):
        self.now += self.ms
        self.log.append("call")


@pytest.fixture
def make(monkeypatch):
    def made(**settings):
        cuda = Cuda(**settings)
        monkeypatch.setattr(clock, "torch", SimpleNamespace(cuda=cuda, empty=torch.empty, uint8=torch.uint8))
        monkeypatch.setattr(clock, "_WARM_SECONDS", 0.0)
        timer = clock.GpuClock(Target("cuda", "sm_90", 132, 32))
        timer._flush = torch.ones(8, dtype=torch.uint8)
        return cuda, timer

    return made


def test_a_graph_holds_a_call_per_set_and_caches_are_overwritten(make):
    cuda, timer = make()
    assert timer.rounds([clock.Contender([cuda.call] * 4)], 5) == [[750.0] * 5]
    assert cuda.log == ["call", "call", "call", "begin", *["call"] * 4, "end"]
    assert not timer._flush.any()


def test_a_long_call_is_alone_in_its_graph(make):
    cuda, timer = make(ms=2.5)
    assert timer.finals([clock.Contender([cuda.call] * 4)], 5) == [[3000.0] * 5]
    assert cuda.log == ["call", "call", "call", "begin", "call", "end"]


def test_what_cannot_be_captured_is_timed_call_by_call(make, caplog):
    cuda, timer = make(captures=False)
    assert timer.rounds([clock.Contender([cuda.call] * 4)], 3) == [[1000.0] * 3]
    assert "timed without a graph: capture is not permitted" in caplog.text and "more" not in caplog.text


@pytest.mark.parametrize(("size", "sets"), [(1, 64), (10 << 20, 10), (1 << 30, 4), (0, 64)])
def test_sets_exceed_the_cache_twice(make, size, sets):
    assert make()[1].sets(size) == sets


def test_known_caches_go_before_what_the_driver_says(make):
    make()
    assert clock.GpuClock(Target("hip", "gfx942", 304, 64)).cache_bytes == 256 << 20
    assert clock.GpuClock(Target("cuda", "sm_80", 108, 32)).cache_bytes == 50 << 20
