# SPDX-License-Identifier: MIT
"""Classes under use: right results of second members on every kind of backend, few classes for many sizes, threads,
forked processes.
"""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from bench_fresh import VARYING
from decisions import Decisions, resized

from aiter_like.dispatch import OPS, self_check
from aiter_like.errors import UnsupportedError

CPU = torch.device("cpu")
ANY = 37  # rows of a call that others are made of; no other of its sizes is as large


def _keys(op):
    """A field that varies, and keys of the operator's own calls that the tuner makes, the smallest call first."""
    field = next(name for name in VARYING if name in op.tune_fields)
    cases = sorted(op.cases(CPU).values(), key=lambda case: sum(
        arg.numel() for arg in case if isinstance(arg, torch.Tensor)))
    return field, [op.tune_key(*case) for case in cases]


def _call(op, size, seed=0):
    field, keys = _keys(op)
    for key in keys:
        try:
            return tuple(op.tuning.case(key | {field: size}, CPU, seed))
        except (ValueError, TypeError, KeyError, RuntimeError):  # a case that the tuner cannot make
            continue
    pytest.skip("the tuner makes none of its calls")


TUNED = [name for name in sorted(OPS) if OPS[name].tuning is not None
         and any(field in OPS[name].tune_fields for field in VARYING)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, backend", [
    pytest.param(name, backend.name, marks=[pytest.mark.exhaustive] * (name not in ("rms_norm", "act_and_mul")))
    for name in TUNED for backend in OPS[name].backends if backend.name not in ("vendor", "torch")])
@torch.no_grad()
def test_second_members_give_right_results(simulated, name, backend):
    """Other sizes, other data, on the simulated device."""
    op, served = OPS[name], 0
    for seed, size in enumerate((3, 5, 17, 4, 33)):
        args = _call(op, size, seed)
        served += op._classes.find(backend, args, runs=False) is not None
        try:
            error, tolerance = self_check.compare(op, lambda *given: op.run(*given, backend=backend), args)
        except UnsupportedError:
            continue
        assert error <= tolerance, size
    # A kernel in assembly has a launch for each metadata.
    assert served or not len(op._classes) or backend == "asm", "no class served a second call"


@pytest.mark.rotating
@pytest.mark.parametrize("name", TUNED)
def test_many_sizes_make_few_classes(simulated, monkeypatch, name):
    decisions = Decisions(monkeypatch, opens=False)
    op, counts = OPS[name], []
    first = _call(op, ANY)
    for size in random.Random(name).sample(range(1, 341), 120):
        args = resized(first, ANY, size)
        if decisions.known(op, None, args) is None:
            decisions.decided(op, None, args)
        counts.append(len(op._classes))
    assert counts[-1] <= 24 and counts[-1] - counts[59] <= 4, counts


def _norm(draw):
    """One call, right or wrong, and whether it came out so."""
    rows, hidden = draw.randint(1, 9), draw.choice((8, 9, 16, 24, 64))
    weight = hidden if draw.random() < 0.8 else hidden + 1
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(draw.randrange(1000)))
    out, epsilon = torch.empty_like(x), draw.choice((1e-6, 1e-5, 0.5))
    call = (out, x, torch.full((weight,), 2.0))
    op = OPS["rms_norm"]
    named = dict(zip(op.call._fields, call)) | {"epsilon": epsilon}
    try:
        op(op.call(**{name: named.get(name, op.call._field_defaults.get(name)) for name in op.call._fields}),
           backend="torch")
    except ValueError as refusal:
        return weight != hidden and str(weight) in str(refusal)
    return weight == hidden and torch.allclose(
        out, 2 * torch.nn.functional.rms_norm(x, (hidden,), eps=epsilon), atol=1e-5)


def test_two_threads_with_sizes_of_their_own():
    op, interval = OPS["rms_norm"], sys.getswitchinterval()
    op.forget_plans()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda seed: [_norm(draw) for draw in [random.Random(seed)] for _ in range(300)], (1, 2))
            assert all(map(all, found))
    finally:
        sys.setswitchinterval(interval)
    assert len(op._classes) <= 32


def test_a_forked_process_goes_on_with_the_classes():
    assert all(_norm(random.Random(seed)) for seed in range(20))
    child = os.fork()
    if child == 0:
        try:
            os._exit(not all(_norm(random.Random(seed)) for seed in range(10, 40)))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert all(_norm(random.Random(seed)) for seed in range(40, 50))
