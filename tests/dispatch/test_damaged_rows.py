# SPDX-License-Identifier: MIT
"""A tuned row with one damaged parameter, for every operator that is tuned by parameters: the result is right."""

import csv
import logging

import pytest
import torch
from torch import Tensor

from aiter_like import device
from aiter_like.dispatch import OPS, Backend, table
from aiter_like.errors import BuildError

pytestmark = pytest.mark.rotating

DAMAGES = ("3", "7", "true", "1.5", "x", "33", "-1", "9" * 18)  # of any parameter; none of them is tried by the tuner
ALL_DAMAGES = (*DAMAGES, "0", "1", "64", "1000", "9" * 19, "9" * 5000)
SLOW = ("flash_attn_bwd", "flash_attn_fwd")  # to compile, and to run on the simulator
TARGET = device.simulated_target()


def _case(op):
    return next(iter(op.cases(torch.device("cpu")).values()))


def _base(backend, case):
    """The first parameters that the tuner would try, if the backend is tuned and takes the case."""
    if backend.space is None or (backend.refusal is not None and backend.refusal(TARGET, *case) is not None):
        return None
    return next(map(dict, backend.space(TARGET, *case)), None)


def _tuned(are_slow: bool) -> list[tuple[str, str]]:
    """(operator, backend); nothing is asked for its cases yet, which may launch."""
    return [(name, backend.name) for name in sorted(OPS) for backend in OPS[name].backends
            if OPS[name].cases and backend.space is not None and (name in SLOW) == are_slow]


def _fresh(case):
    return [arg.clone() if isinstance(arg, Tensor) else tuple(one.clone() for one in arg)
            if isinstance(arg, tuple) and arg and isinstance(arg[0], Tensor) else arg for arg in case]


def _kernel(backend, case, params):
    """What the row names: the kernel with these parameters, else the one without any."""
    try:
        return backend.kernel_names(TARGET, case, params)[0]
    except (ValueError, TypeError, ArithmeticError):
        return backend.kernel_names(TARGET, case, {})[0]


def _is_right(op, got, expected):
    for index in op.result_indices:
        if isinstance(expected[index], Tensor):
            a, b = (x[index].double() for x in (got, expected))
            size = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0.0
            if not torch.allclose(a, b, rtol=0.05, atol=0.05 * max(1.0, size), equal_nan=True):
                return False
    return True


def _check(op, backend, damages, monkeypatch, tmp_path, caplog):
    case, path = _case(op), tmp_path / f"{op.name}.csv"
    base = _base(backend, case)
    if base is None:
        pytest.skip("the tuner tries nothing for the first case")
    expected = _fresh(case)
    op(expected, backend="torch")
    monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
    key = table.normalised(op.name, op.tune_fields, op.tune_key(*case))
    default = {name: table.text_of(value) for name, value in base.items()}
    for params in [default | {"nonsense": "3"}, *(default | {name: text} for name in base for text in damages)]:
        parsed = {}
        if all(len(text) <= 18 for text in params.values()):
            parsed = table.parse_params(";".join(f"{name}={text}" for name, text in params.items()), "")
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([table.columns(op.tune_fields), [
                TARGET.arch, TARGET.cu_num, *key, backend.name, _kernel(backend, case, parsed),
                ";".join(f"{name}={text}" for name, text in params.items()), "1", "0", "", "", "measured:me"]])
        op.reset()
        caplog.clear()
        for _ in range(2):
            got = _fresh(case)
            op(got)
            assert _is_right(op, got, expected), params
        told = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()
                and record.levelno == logging.WARNING]
        is_used = not op.bad_rows and any(str(path) in row.source for row in op.table.rows())
        assert is_used != (len(told) == 1 and f"{path}:2: " in told[0]), (params, told)


@pytest.fixture
def simulated(monkeypatch):
    """CPU tensors run on the simulated device; what other tests decided, and what this one does, is forgotten."""
    monkeypatch.delenv("AITER_LIKE_BACKENDS", raising=False)
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): TARGET})
    yield
    monkeypatch.undo()
    for op in list(OPS.declared.values()):
        op.reset()


@pytest.mark.parametrize(("name", "backend"), [
    *_tuned(are_slow=False), *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in _tuned(are_slow=True))])
def test_a_damaged_parameter(name, backend, simulated, monkeypatch, tmp_path, caplog):
    """Triton compiles what it takes; of our own kernels none is compiled, and the next choice is the reference."""
    op, bind = OPS[name], Backend.bind

    def bound(self, target, args, candidate):
        if self not in op.backends:  # of an operator that makes the case
            return bind(self, target, args, candidate)
        if candidate.row is None:
            return op.reference
        if self.is_jit:
            raise BuildError("no such instance", command="clang")
        return bind(self, target, args, candidate)

    monkeypatch.setattr(Backend, "bind", bound)
    tuned = next(one for one in op.backends if one.name == backend)
    damages = ("7", "x") if name == "unified_attention" else DAMAGES  # each of its kernels takes a second to compile
    _check(op, tuned, damages, monkeypatch, tmp_path, caplog)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "backend"), _tuned(are_slow=False) + _tuned(are_slow=True))
def test_any_damage_with_the_kernels_themselves(name, backend, simulated, monkeypatch, tmp_path, caplog):
    op = OPS[name]
    tuned = next(one for one in op.backends if one.name == backend)
    _check(op, tuned, ALL_DAMAGES, monkeypatch, tmp_path, caplog)
