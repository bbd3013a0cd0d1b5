# SPDX-License-Identifier: MIT
"""The self-check of compiled kernels on hardware: each module against the reference, before its first automatic use.

These kernels were developed on a simulator; silicon is the judge. A verdict is kept in the cache directory by module
key and device. `aiter-like verify` runs every case, also on the simulator, and writes a report. Used by op.py.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aiter_like.device import Target
from aiter_like.dispatch.backend import Backend, Candidate
from aiter_like.dispatch.declaration import Declaration
from aiter_like.errors import AiterLikeError

_log = logging.getLogger("aiter_like")

DEFERRED = object()
"""Verdict while a graph is being captured: nothing may be launched or synchronised for a check."""

TOLERANCE = 8  # times the coarsest dtype's eps: a check for wrong kernels, not for the last bit

_verdicts: dict[tuple[str, str], str | None] = {}  # (module key, device name) → None, or what failed


def applies(backend: Backend, target: Target) -> bool:
    """Whether a backend needs the self-check: our own code for AMD hardware."""
    return target.platform == "hip" and not target.simulated and backend.name in ("hip", "ck", "asm")


def verdict(op: Declaration, candidate: Candidate, target: Target, args: tuple) -> Any:
    """None when the candidate's module passed on this device, the reason when it failed, DEFERRED during graph
    capture.
    """
    key = (_module_key(candidate, target, args), device_name(target))
    if key not in _verdicts:
        stored = _load(key)
        if stored is None:
            if torch.cuda.is_current_stream_capturing():
                return DEFERRED
            stored = _judge(op, candidate, target, args)
            _save(key, stored)
        _verdicts[key] = stored["failure"]
    return _verdicts[key]


def keep(candidate: Candidate, target: Target, args: tuple, error: float, tolerance: float) -> None:
    """Keeps the verdict on a case that was run outside of a call."""
    failure = None if error <= tolerance else _failure_text(error, tolerance)
    _save((_module_key(candidate, target, args), device_name(target)), {"failure": failure, "kernel": candidate.kernel})


def forget() -> None:
    """Forget the verdicts of this process (the files stay)."""
    _verdicts.clear()


def cases(op: Declaration, target: Target) -> list[tuple]:
    """The argument tuples of an operator's self-check."""
    return [] if op.cases is None else list(op.cases(torch_device(target)).values())


def torch_device(target: Target) -> torch.device:
    """The device of torch on which a target's tensors live."""
    return torch.device("cpu" if target.simulated or target.platform == "cpu" else f"cuda:{target.index}")


def device_name(target: Target) -> str:
    """The device as a user knows it."""
    if target.simulated:
        return f"simulated {target.arch}"
    return torch.cuda.get_device_name(target.index) if target.platform != "cpu" else "cpu"


def compare(op: Declaration, function: Any, args: tuple) -> tuple[float, float]:
    """Runs `function` and the reference on one case; (largest error, tolerance), the error relative to the largest
    magnitude of the reference where that is above 1, infinite where non-finite values differ.
    """
    got, expected = _poisoned(op, args), _poisoned(op, args)
    with torch.no_grad():
        function(*got)
        op.reference(*expected)
    rounded = [args[index] for index in op.result_indices] if op.sums_in_fp32 else args
    dtypes = {one.dtype for one in rounded if isinstance(one, Tensor) and one.is_floating_point()}
    coarsest = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    errors = [_error(got[index], expected[index]) for index in op.result_indices if expected[index] is not None]
    return max(errors, default=0.0), TOLERANCE * coarsest


def _judge(op: Declaration, candidate: Candidate, target: Target, call: tuple) -> dict[str, Any]:
    """Runs the cases that use the candidate's kernel."""
    backend, ran = candidate.backend, False
    outcome = {"kernel": candidate.kernel, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    own = backend.self_check
    for args in cases(op, target) if own is None else [own(torch_device(target), *call)]:
        if candidate.kernel not in backend.kernel_names(target, args, candidate.params):
            continue
        ran = True
        try:
            error, tolerance = compare(op, backend.bind(target, args, candidate), args)
        except (AiterLikeError, RuntimeError) as failure:
            return outcome | {"failure": f"self-check raised {failure}"}
        if not error <= tolerance:
            return outcome | {"failure": _failure_text(error, tolerance)}
    if not ran:
        return outcome | {"failure": f"no self-check case covers {candidate.kernel}"}
    _log.info("%s: %s %s passed its self-check on %s", op.name, backend.name, candidate.kernel, device_name(target))
    return outcome | {"failure": None}


def _failure_text(error: float, tolerance: float) -> str:
    return (f"self-check differs from the reference by a max abs error of {error:.3g}, limit {tolerance:.3g} (per "
            "max(1, max |reference|))")


def _poisoned(op: Declaration, args: tuple) -> tuple:
    """The arguments with copies of the written ones, filled with NaN (integers: -1): what is not written shows."""
    fresh = list(args)
    for index in op.write_indices:
        if fresh[index] is not None:
            fresh[index] = torch.empty_like(fresh[index])
            fresh[index].fill_(math.nan if fresh[index].is_floating_point() else -1)
    return tuple(fresh)


def _error(got: Tensor, expected: Tensor) -> float:
    got, expected = got.double(), expected.double()  # also waits for the kernels
    finite = expected.isfinite()
    special = (got == expected) | (got.isnan() & expected.isnan())
    if not bool((special | finite).all()) or not bool(got[finite].isfinite().all()):
        return math.inf
    difference = (got[finite] - expected[finite]).abs()
    if difference.numel() == 0:
        return 0.0
    return difference.max().item() / max(1.0, expected[finite].abs().max().item())


def _module_key(candidate: Candidate, target: Target, args: tuple) -> str:
    if candidate.backend.is_jit:
        return candidate.backend.function.module_key(target, args, **candidate.params)
    return f"{candidate.kernel}-{candidate.backend.revision(target.platform)}"


def _path(key: tuple[str, str]) -> Path:
    from aiter_like.modules.cache import cache_root

    module, name = ("".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in part) for part in key)
    return cache_root() / "verified" / name / f"{module}.json"


def _load(key: tuple[str, str]) -> dict[str, Any] | None:
    from aiter_like.modules.cache import read_json

    stored = read_json(_path(key))
    return stored if stored is not None and "failure" in stored else None


def _save(key: tuple[str, str], stored: dict[str, Any]) -> None:
    from aiter_like.modules.cache import write_json

    _verdicts[key] = stored["failure"]
    try:
        write_json(_path(key), stored)
    except OSError as error:
        _log.warning("self-check verdict cannot be kept in %s: %s", _path(key), error)
