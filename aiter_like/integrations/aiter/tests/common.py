# SPDX-License-Identifier: MIT
"""AITER's `test_common` for scripts that use it: a comparison, which raises here, a stop watch, and its small helpers.

While `aiter-like aiter-tests` counts checks (checks.py), a difference is counted and the script goes on.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter import checks as aiter_checks
from aiter_like.integrations.aiter.declare import aiter

_log = logging.getLogger("aiter_like")


@aiter("aiter.test_common", stays=True)
def checkAllclose(a: Tensor, b: Tensor, rtol: float = 0.01, atol: float = 0.01, tol_err_ratio: float = 0.05,
                  msg: str = "", printNum: int = 8, printLog: bool = True, max_abs_delta: float | None = None,
                  catastrophic_check: bool = False) -> float:
    """The share of elements of `a` that are not close to `b`.

    Args:
        a, b: of one shape; |a − b| ≤ atol + rtol · |b| is close.
        tol_err_ratio: the share that is allowed.
        msg: begins the error's message.
        printNum: how many elements the message shows.
        printLog: log the share where it is allowed and not 0.
        max_abs_delta: the largest |a − b| that is allowed, of all elements.
        catastrophic_check: no element of either may be infinite or NaN, and none of `a` further off than half of the
            largest |b|, or than 0.5 where that is below 1.

    Raises:
        AssertionError: more are wrong, or one too much; AITER returns the share then, which callers overlook.
    """
    a, b = (tensor.detach().double().cpu() for tensor in (a, b))
    delta = (a - b).abs()
    wrong = ~torch.isclose(a, b, rtol, atol)
    ratio = wrong.double().mean().item() if wrong.numel() else 0.0
    largest = delta.max().item() if delta.numel() else 0.0
    is_broken = catastrophic_check and not _is_plausible(a, b, largest)
    problem = ""
    if ratio > tol_err_ratio or is_broken or (max_abs_delta is not None and largest > max_abs_delta):
        problem = (f"{msg}{': ' if msg else ''}{ratio:.2%} of {wrong.numel()} elements differ ("
                   f"{tol_err_ratio:.2%} allowed), by up to {largest:.3g}; the first: "
                   f"{a[wrong][:printNum].tolist()} for {b[wrong][:printNum].tolist()}")
    if not aiter_checks.compared(problem) and problem:
        raise AssertionError(problem)
    if ratio and printLog:
        _log.warning("%s: %.2f%% of %d elements differ, by up to %.3g", msg or "checkAllclose", 100 * ratio,
                     wrong.numel(), largest)
    return ratio


@aiter("aiter.test_common", stays=True)
def run_perftest(func: Callable, *args: Any, num_iters: int = 101, num_warmup: int = 2, testGraph: bool = False,
                 num_rotate_args: int = 0, needTrace: bool = False, use_cuda_event: bool = False,
                 **kwargs: Any) -> tuple[Any, float]:
    """Runs `func`; returns its result, and microseconds per call.

    Args:
        num_iters, num_warmup: calls that are timed, and before them.
        testGraph, needTrace: not there.
        num_rotate_args: copies of the arguments that take turns, so that a cache does not serve them; 0: none.
        use_cuda_event: no difference: on a GPU events are what is read.

    Raises:
        UnsupportedError: a graph or a trace is asked for.
    """
    if testGraph or needTrace:
        raise UnsupportedError("run_perftest: graphs and traces are not timed here; use `aiter-like bench`")
    sets = [args, *([_copied(value) for value in args] for _ in range(num_rotate_args - 1))]
    is_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in (*args, *kwargs.values()))
    if aiter_checks.journal is not None:  # results are checked here, and kernels that write in place have one once
        num_iters, num_warmup = 1, 0
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_gpu else []
    for _ in range(num_warmup):
        func(*args, **kwargs)
    if events:
        events[0].record()
    start, out = time.perf_counter(), None
    for turn in range(num_iters):
        out = func(*sets[turn % len(sets)], **kwargs)
    seconds = time.perf_counter() - start
    if events:
        events[1].record()
        events[1].synchronize()
        seconds = events[0].elapsed_time(events[1]) / 1e3
    return out, seconds / num_iters * 1e6


@aiter("aiter.test_common", stays=True)
def perftest(num_iters: int = 101, num_warmup: int = 2, testGraph: bool = False, num_rotate_args: int = 0,
             needTrace: bool = False, use_cuda_event: bool = False) -> Callable[[Callable], Callable]:
    """A decorator: the function returns what `run_perftest` does."""
    options = {"num_iters": num_iters, "num_warmup": num_warmup, "testGraph": testGraph,
               "num_rotate_args": num_rotate_args, "needTrace": needTrace, "use_cuda_event": use_cuda_event}

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> tuple[Any, float]:
            return run_perftest(functools.partial(function, **kwargs), *args, **options)

        return timed

    return decorate


@aiter("aiter.test_common", stays=True)
def benchmark() -> Callable[[Callable], Callable]:
    """A decorator: the function returns its arguments by name, with the entries of the dictionary that it returned."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def collected(*args: Any, **kwargs: Any) -> dict[str, Any]:
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            found = None
            with aiter_checks.part(function.__name__):
                found = function(*args, **kwargs)
            return {**bound.arguments, **(found or {})}

        return collected

    return decorate


@aiter("aiter.test_common", stays=True)
def tensor_dump(x: Tensor, name: str, dir: str = "./") -> None:
    """Writes a tensor's bytes to `dir/name.bin`, and what they are to `dir/name.meta`, for `tensor_load`."""
    data = x.detach().cpu().contiguous()
    path = Path(dir) / name
    path.with_name(f"{name}.bin").write_bytes(ctypes.string_at(data.data_ptr(), data.nbytes))
    path.with_name(f"{name}.meta").write_text(f"{str(x.dtype).removeprefix('torch.')} {' '.join(map(str, x.shape))}")


@aiter("aiter.test_common", stays=True)
def tensor_load(filename: str) -> Tensor:
    """The tensor that `tensor_dump` wrote, on the CPU.

    Args:
        filename: its .bin file; what it holds stands in the .meta file beside it.

    Raises:
        ValueError: the .meta file names no dtype of torch.
    """
    path = Path(filename)
    name, *shape = path.with_suffix(".meta").read_text().split()
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"tensor_load: {path.with_suffix('.meta')} must begin with a dtype, got {name!r}")
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if path.stat().st_size else \
        torch.empty(0, dtype=torch.uint8)
    return data.view(dtype).view([int(size) for size in shape])


def _is_plausible(a: Tensor, b: Tensor, largest: float) -> bool:
    """Finite, and nowhere off by more than half of the reference's peak."""
    peak = max(b.abs().max().item(), 1.0) if b.numel() else 1.0
    return bool(torch.isfinite(a).all() and torch.isfinite(b).all()) and largest <= 0.5 * peak


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
