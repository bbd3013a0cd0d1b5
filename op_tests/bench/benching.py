# SPDX-License-Identifier: MIT
"""What bench() of the op_tests prints: µs, TB/s of useful bytes, share of the device's own copy speed, error/limit.

A case is checked before it is timed. Needs a GPU; read by the op_tests' `bench` functions and by bench_all.py.
"""

import argparse
import functools
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench_peers
import held_out_calls
import run
import torch
import triton
import triton.testing
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS, Op
from aiter_like.errors import AiterLikeError
from aiter_like.tuning import judge
from aiter_like.tuning.clock import Contender, GpuClock, copies
from aiter_like.tuning.progress import Progress

_COPY_BYTES = 1 << 30  # read and write together: far beyond any cache
_WARMUP_MS, _REPEAT_MS = 20, 80  # per timed call; a table of 8 shapes × 4 columns then takes about 10 s
_ROUNDS = 11
_CACHES = 3  # inputs and outputs that are this many times the last-level cache find nothing of themselves in it
_MAX_SETS = 32
_STEP_SECONDS = 2.0  # a guess for the progress line: to make a case, check or time one call
_GRAPH_CALLS, _COMPUTE_CALLS = 24, 4  # of a graph at least: its own launch, some µs, is shared out among them
OURS = ("hip", "triton", "torch")


@dataclass(frozen=True)
class Case:
    """One shape.

    Attributes:
        name: first column, as "8192×8192".
        useful_bytes: what the algorithm must read and write, each byte once.
        calls: column name → the call to time; what it returns goes to `check`.
        check: raises when a result is wrong; returns its largest error as a fraction of the limit.
        others: the same calls on other tensors; see `rotating`.
        flops: what the algorithm computes, where that counts; then TFLOP/s are printed too.
        is_eager: no graph can hold the calls (autograd's own threads): they are timed one by one, as small ones are.
    """

    name: str
    useful_bytes: int
    calls: dict[str, Callable[[], Any]]
    check: Callable[[Any], float]
    others: tuple[dict[str, Callable[[], Any]], ...] = ()
    flops: int = 0
    is_eager: bool = False


@dataclass
class _Options:
    """Of this process: what `main` was called with, and whether all went well."""

    is_warming: bool = False
    rows: Path | None = None
    wrong: list[str] = field(default_factory=list)


_options = _Options()


def main(bench: Callable[[], None], doc: str | None, words: Sequence[str]) -> None:
    """Runs the bench of an op_test, which prints a table of times; exits with 1 when a call of ours was wrong."""
    parser = argparse.ArgumentParser(prog="run.py", description=doc, epilog="prints a table of times")
    parser.add_argument("--peers", action="store_true", help="also what other libraries have, where they import")
    parser.add_argument("--warm", action="store_true", help="only build and check; do not time")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each line of the table as JSON")
    args = parser.parse_args(words)
    run.need_gpu()
    _options.is_warming, _options.rows = args.warm, args.rows
    bench_peers.is_asked_for = args.peers
    bench()
    if _options.wrong:
        sys.exit("WRONG: " + "; ".join(_options.wrong))


def rotating(make: Callable[[int], Case]) -> Case:
    """The case that `make(0)` returns, with those of other seeds to rotate over until they exceed the caches."""
    first = make(0)
    count = min(math.ceil(_CACHES * _clock().cache_bytes / first.useful_bytes), _MAX_SETS)
    others = tuple(make(seed).calls for seed in range(1, count if not _options.is_warming else 1))
    return Case(first.name, first.useful_bytes, first.calls, first.check, others, first.flops)


def time_us(call: Callable[[], Any]) -> float:
    """Median time of one call in µs, the last-level cache flushed before each."""
    return triton.testing.do_bench(call, warmup=_WARMUP_MS, rep=_REPEAT_MS, return_mode="median") * 1e3


def copy_tbps() -> float:
    """TB/s, read and written, of a kernel that copies 1 GiB, timed like the cases."""
    times = _clock().rounds([Contender(copies(_COPY_BYTES, _clock().place) * 2)], _ROUNDS)[0]
    return _COPY_BYTES / statistics.median(times) * 1e-6


def table(title: str, cases: Iterable[Case]) -> None:
    """Checks and times every case; prints a line per case and call. What refuses, fails or is wrong says so instead.

    A graph calls the sets of a case in turn, in rounds of all contenders that begin with caches full of something else;
    among them "copy", which reads and writes as many bytes: the ceiling at that size.
    A small case of one set is timed call by call, the cache flushed before each, which also counts what the host takes
    longer than the device: marked "flushed".
    """
    copy = math.nan if _options.is_warming else copy_tbps()
    print(f"{title}: {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"copy {copy:.2f} TB/s; error/limit: the largest error of a result as a part of what its test allows")
    print(f"{'shape':>24} {'by':>14} {'us':>9} {'TB/s':>6} {'of copy':>8} {'error/limit':>12}", flush=True)
    for case, line in _watched(title, cases):
        errors, reasons = _checked(title, case, line.step)
        times = {} if _options.is_warming else _times(case, list(errors))
        line.clear()
        for name, reason in reasons.items():
            print(f"{case.name:>24} {name:>14} {reason}", flush=True)
            _record(title, case.name, name, reason=reason)
        flushed = _is_small(case)
        for name, us in times.items():
            tbps = case.useful_bytes / us * 1e-6
            how = f" {case.flops / us * 1e-6:.0f} TFLOP/s" if case.flops else ""
            how += " flushed" if flushed or name == "torch" else ""
            error = errors.get(name, 0.0)
            print(f"{case.name:>24} {name:>14} {us:9.2f} {tbps:6.2f} {tbps / copy:8.1%} {error:12.2f}{how}", flush=True)
            _record(title, case.name, name, us=us, tbps=tbps, share=tbps / copy, error=error, how=how.strip())


def _watched(title: str, cases: Iterable[Case]) -> Iterator[tuple[Case, Progress]]:
    """Each case with a line on a terminal's stderr, from when it is being made: what is done, and the time left of this
    shape. How many follow only the benchmark knows.
    """
    iterator = iter(cases)
    for index in itertools.count(1):
        line = Progress(f"{title}, shape {index}", sys.stderr.isatty())
        line.expect("steps", len(OURS) + 2, _STEP_SECONDS)
        line.enter("steps")
        try:
            case = next(iterator, None)
            if case is None:
                return
            line.expect("steps", len(case.calls) + 2)  # to make it, to check each call, to time them together
            line.step()
            yield case, line
        finally:
            line.clear()
            line.end()


def of(op: str, fields: str, shapes: Iterable[tuple], *, beside: Callable[[Any], dict[str, Callable]] | None = None,
       changed: Callable[[Any], Any] = lambda call: call, **others: Any) -> None:
    """The table of an operator's calls with tune keys: hip, triton, and what others have.

    Args:
        fields: names of those that differ, as of a named tuple; `others` are the same for all shapes. A dtype "fp8" is
            the device's own.
        beside: of a call: peers, of whose results the first is what the operator writes first; default: those of
            held_out_calls.py, or where it has none the operator's reference by torch.compile.
        changed: of a call: the one that is timed, for what no key says.
    """
    declared, names = OPS[op], fields.split()

    def cases() -> Iterator[Case]:
        for shape in shapes:
            torch._dynamo.reset()  # each shape is compiled afresh: its limit of recompilations never comes into play
            key = {**dict(zip(names, shape, strict=True)), **others}
            yield rotating(functools.partial(_of_key, declared, "×".join(map(str, shape)), key, changed, beside,
                                             functools.cache(compiled)))

    table(f"{op}: {' × '.join(names)}", cases())


def alone(call: Any) -> dict[str, Callable]:
    """No peers."""
    return {}


def _of_key(op: Op, name: str, key: dict[str, Any], changed: Callable, beside: Callable | None, compiler: Callable,
            seed: int) -> Case:
    """The case of a tune key. All that ours write is compared with the reference."""
    fp8 = dtypes.name(dtypes.fp8_of(target_of(_device()).arch))
    key = {field: fp8 if value == "fp8" else value for field, value in key.items()}
    call = changed(op.call(*op.tuning.case(key, _device(), seed)))
    calls = {each.name: functools.partial(op, call, backend=each.name) for each in op.backends
             if each.name in OURS and each.name != "torch"}
    first = held_out_calls.Calls.theirs
    if beside is not None:
        calls |= beside(call)
    elif op.name in held_out_calls.CALLS:
        known = held_out_calls.CALLS[op.name](call, compiler)
        calls, first = calls | known.peers, known.theirs
    else:
        calls["torch.compile"] = functools.partial(compiler(op.reference), *call)
    moved, flops = op.tuning.needs(call)
    return Case(name, moved, calls, (lambda _: 0.0) if seed else _check_of(op, call, first), flops=flops)


def _check_of(op: Op, call: tuple, first: Callable[[Any], Tensor] | None) -> Callable[[Any], float]:
    """Compares with the reference what ours write, and the first of what a peer returns; then outputs are as before."""
    made = judge.of_call(op, tuple(call))
    before = {one.index: call[one.index].clone() if one.is_kept else judge.poisoned(call[one.index])
              for one in made.outputs}

    def restore() -> None:
        for index, tensor in before.items():
            call[index].copy_(tensor)

    def check(result: Any) -> float:
        if result is None:
            pairs = [(call[one.index], one) for one in made.outputs]
        else:
            pairs = [] if first is None else [(first(result).reshape(made.outputs[0].expected.shape), made.outputs[0])]
        errors = [0.0]
        for got, one in pairs:
            error, fault = judge.difference(got, one.expected, one.own)
            assert fault is None, fault
            errors.append(error / (judge.limit(got, one.own) or 1.0))
        restore()
        return max(errors)

    restore()
    return check


def by_backend(function: Callable, *args: Any, backends: Iterable[str] = ("hip", "triton"),
               **kwargs: Any) -> dict[str, Callable[[], Any]]:
    """`calls` of a case: the public function on each backend, arguments fixed."""
    return {name: lambda name=name: function(*args, backend=name, **kwargs) for name in backends}


def compiled(function: Callable) -> Callable:
    """torch.compile's best for fixed shapes, without its CUDA graphs: those would hide the launch that others pay."""
    return torch.compile(function, dynamic=False, options={"max_autotune": True})


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _clock() -> GpuClock:
    return GpuClock(target_of(_device()))


def _is_ours(name: str) -> bool:
    return name.startswith(OURS) and name != "torch.compile"


def _checked(title: str, case: Case, step: Callable[[], None]) -> tuple[dict[str, float], dict[str, str]]:
    """Name → error/limit of what is right; name → reason of what is not to be timed. Warming up runs only ours."""
    errors, reasons = {}, {}
    for name, call in case.calls.items():
        step()
        if _options.is_warming and not _is_ours(name):
            continue
        try:
            with torch.no_grad():
                errors[name] = case.check(call())
        except AiterLikeError as refused:
            reasons[name] = str(refused).partition("\n")[0]
        except Exception as error:  # noqa: BLE001  a peer fails in its own way; a wrong kernel hides no other's time
            if isinstance(error, AssertionError) and not _is_ours(name):
                errors[name] = math.inf  # less exact than ours must be: its time still counts
                continue
            reasons[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if _is_ours(name):
                _options.wrong.append(f"{title}, {case.name}, {name}")
    return errors, reasons


def _is_small(case: Case) -> bool:
    return case.is_eager or not case.others and case.useful_bytes < _CACHES * _clock().cache_bytes


def _times(case: Case, names: list[str]) -> dict[str, float]:
    """Median µs of a call; the torch reference may synchronise, which no graph can hold."""
    graphed = [] if _is_small(case) else [name for name in names if name != "torch"]
    sets = (case.calls, *case.others)
    repeats = -(-(_COMPUTE_CALLS if case.flops else _GRAPH_CALLS) // len(sets))
    with torch.no_grad():
        contenders = [[calls[name] for calls in sets] * repeats for name in graphed]
        if graphed and not case.flops:
            contenders.append(copies(case.useful_bytes, _clock().place, len(sets)) * repeats)
        found = _clock().rounds([*map(Contender, contenders)], _ROUNDS)
        times = dict(zip([*graphed, "copy"], map(statistics.median, found)))
        return {name: times.pop(name) if name in times else time_us(case.calls[name]) for name in names} | times


def _record(title: str, shape: str, name: str, **values: Any) -> None:
    if _options.rows is not None:
        with _options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"title": title, "shape": shape, "by": name, **values}, ensure_ascii=False) + "\n")
