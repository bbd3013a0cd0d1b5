# SPDX-License-Identifier: MIT
"""Tuned rows whose parameters their kernel does not take: such a row is ignored, and the call goes on."""

import logging

import pytest
import torch
from toys import FakeJit, ScaleKey, make_op, run

from aiter_like.dispatch import Backend, table
from aiter_like.errors import BuildError, SimulatorError

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Writes the tuned rows of an operator for a call of [2, 4]: (backend, kernel, params) each, the fastest first."""

    def write(op, *entries):
        path = tmp_path / f"{op.name}.csv"
        lines = [f"gfx942,304,2,4,float32,{backend},{kernel},{params},{us},0,,,measured:me"
                 for us, (backend, kernel, params) in enumerate(entries, 1)]
        path.write_text("\n".join([",".join(table.columns(ScaleKey._fields)), *lines]) + "\n")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
        return path

    return write


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Picky(FakeJit):
    """A module whose instance is chosen by `lanes`, of which it takes 4 and 8."""

    def __init__(self, when: str, error: Exception):
        super().__init__(instance=lambda *args, lanes=4: self.chosen(when, error, lanes))
        self.when, self.failure = when, error

    @staticmethod
    def chosen(when, error, lanes):
        if when == "deciding" and lanes not in (4, 8):
            raise error
        return "l"

    def bind(self, target, args, lanes=4, **params):
        is_bad = lanes not in (4, 8)
        if self.when == "binding" and is_bad:
            raise self.failure
        bound = super().bind(target, args, lanes=lanes, **params)

        def call(*args):
            if self.when == "running" and is_bad:
                raise self.failure
            bound(*args)

        return call


FAILURES = [("deciding", ValueError("lanes must be 4 or 8")), ("deciding", ZeroDivisionError("by zero")),
            ("binding", TypeError("no such option")), ("binding", BuildError("clang says no", command="clang x")),
            ("running", AssertionError("num_warps must be a power of 2")), ("running", RuntimeError("out of LDS")),
            ("running", SimulatorError("block 2048x1x1", [{"check": "launch", "refused": True}]))]


@pytest.mark.parametrize("forced", [None, "hip"])
@pytest.mark.parametrize(("when", "error"), FAILURES, ids=lambda value: getattr(value, "args", (value,))[0])
def test_a_bad_parameter_costs_the_row_and_not_the_call(rows, caplog, when, error, forced):
    op = make_op(Backend("hip", hip := Picky(when, error)))
    path = rows(op, ("hip", "scale[l]", "lanes=33"))
    x = torch.randn(2, 4)
    for _ in range(3):
        assert torch.equal(run(op, x, backend=forced), 3 * x)
    why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert told(caplog) == [f"tuned row ignored: {path}:2: params do not fit scale[l]: {why}"]
    assert hip.calls == 3 and hip.binds[-1] == {"lanes": 4} and op.bad_rows == {f"{path}:2"}
    assert len(op.table.problems) == 1


def test_the_next_row_serves(rows, caplog):
    op = make_op(Backend("hip", hip := Picky("running", RuntimeError("no"))))
    rows(op, ("hip", "scale[l]", "lanes=33"), ("hip", "scale[l]", "lanes=3"), ("hip", "scale[l]", "lanes=8"))
    run(op)
    assert hip.binds[-1] == {"lanes": 8} and len(told(caplog)) == 2


def test_a_row_is_on_trial_for_one_call_only(rows):
    """Later calls take what serves calls without rows, behind the same check of addresses."""
    op = make_op(Backend("hip", hip := FakeJit(instance=lambda *args, lanes=4: "l")))
    rows(op, ("hip", "scale[l]", "lanes=8"))
    x, out = torch.randn(2, 4), torch.empty(2, 4)
    op.prepare(out, x, 3.0)
    assert len(op._classes) == 0, "what has not run yet is decided again"
    for _ in range(3):
        op.run(out, x, 3.0)
    assert len(hip.binds) == 2 and hip.calls == 3 and len(op._classes) == 1
    with pytest.raises(ValueError, match="out must not overlap x"):
        op.run(x.view(-1)[:4].view(1, 4), x.view(-1)[2:6].view(1, 4), 3.0)


def test_an_address_is_no_fault_of_the_row(rows, caplog):
    op = make_op(Backend("hip", hip := FakeJit(instance=lambda *args, lanes=4: "l"),
                         address_refusal=lambda out, x, *_: "odd" if x.data_ptr() % 16 else None))
    rows(op, ("hip", "scale[l]", "lanes=8"))
    odd, even = torch.randn(9)[1:].view(2, 4), torch.randn(2, 4)
    for x in (odd, even, odd, even):
        assert torch.equal(run(op, x), 3 * x)
    assert not op.bad_rows and hip.calls == 2 and len(hip.binds) == 1


def test_a_fault_of_a_kernel_that_ran_is_told(rows):
    """It may have written: another kernel's result would not be that of the call's arguments."""
    error = SimulatorError("hip: out of bounds", [{"check": "bounds", "refused": False}])
    op = make_op(Backend("hip", Picky("running", error)))
    rows(op, ("hip", "scale[l]", "lanes=33"))
    for _ in range(2):
        with pytest.raises(SimulatorError, match="out of bounds"):
            run(op)
    assert not op.bad_rows


def test_a_row_that_cannot_be_built_here_takes_no_kernel_with_it(rows, caplog):
    """Without a compiler other parameters of the kernel may be prebuilt, of this call and of all others."""
    op = make_op(Backend("hip", Picky("binding", BuildError("no compiler for gfx942"))))
    path = rows(op, ("hip", "scale[l]", "lanes=33"), ("hip", "scale[l]", "lanes=8"))
    run(op)
    hip = op.backends[0].function
    assert hip.binds == [{"lanes": 8}] and op.failures == {}
    run(op, torch.randn(3, 4))
    assert len(hip.binds) == 2, "a shape without a row"
    assert told(caplog) == [f"tuned row ignored: {path}:2: scale[l] cannot be built here: no compiler for gfx942"]


def test_through_torch_library(rows, caplog):
    op = make_op(Backend("hip", Picky("running", RuntimeError("no"))))
    rows(op, ("hip", "scale[l]", "lanes=33"))
    x, out = torch.randn(2, 4), torch.empty(2, 4)
    op._eager(out, x, 3.0, 0)
    assert torch.equal(out, 3 * x) and len(op.bad_rows) == 1


@pytest.mark.parametrize("lanes", ["1", "64", "true", "0.5", "x"])
def test_a_parameter_far_from_what_the_tuner_tries_costs_the_row_before_it_is_compiled(rows, caplog, lanes):
    op = make_op(Backend("hip", hip := FakeJit(instance=lambda *args, lanes=4: "l"),
                         space=lambda target, *args: [{"lanes": 8}, {"lanes": 12}]))
    path = rows(op, ("hip", "scale[l]", f"lanes={lanes}"))
    run(op)
    assert hip.binds == [{}]
    assert told(caplog) == [f"tuned row ignored: {path}:2: lanes must be an integer from 2 to 48, got {lanes}"]
