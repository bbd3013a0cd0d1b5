# SPDX-License-Identifier: MIT
"""Selects the backends that serve a call, in order, and says why the others do not. Builds and runs nothing.

Read by op.py, which binds the first candidate that builds, and by explanation.py.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiter_like import env
from aiter_like.device import Target
from aiter_like.dispatch import tuned_rows
from aiter_like.dispatch.backend import KINDS, Backend, Candidate
from aiter_like.dispatch.declaration import Declaration
from aiter_like.dispatch.table import Row
from aiter_like.traced import showing

_log = logging.getLogger("aiter_like")


class OfAddresses(str):
    """Why a backend does not serve a call: where its tensors lie."""

    __slots__ = ()


@dataclass
class Selection:
    """Candidates in order of preference, and backend name → reason for the others."""

    candidates: list[Candidate] | _InTurn
    refused: dict[str, str]
    key: dict[str, int | str] | None


@dataclass(frozen=True)
class Request:
    """One call to decide on.

    Attributes:
        forced: the only backend allowed, or None.
        forced_by: who says so: "backend='hip'" or "use_backend('hip')".
        real: the arguments themselves, where `args` are stand-ins of them (traced/).
        needs_grad: grad mode is on and an argument requires grad.
        compiled_only: no backend counts that is not a compiled module, as where Triton and the vendor's library serve
            nothing.
    """

    target: Target
    args: tuple
    forced: str | None = None
    forced_by: str = ""
    needs_grad: bool = False
    real: tuple = ()
    compiled_only: bool = False


def select(op: Declaration, request: Request, in_turn: bool = False) -> Selection:
    """Decides: a tuned row first, then the operator's own order (or AITER_LIKE_BACKENDS).

    Args:
        in_turn: a backend is asked when those before it did not serve; until then it is not among the refused either.

    Raises:
        ValueError: AITER_LIKE_BACKENDS names an unknown backend, or the op's tune key does not fit its fields.
    """
    refused: dict[str, str] = {}
    order, source = _order(op, request)
    verdicts: dict[str, bool] = {}

    def accepts(backend: Backend) -> bool:
        if backend.name not in verdicts:
            reason = refusal(op, backend, request, backend in order)
            verdicts[backend.name] = reason is None
            if reason is not None:
                refused[backend.name] = reason
        return verdicts[backend.name]

    key = op.tune_key(*request.args) if op.tune_key is not None else None
    row = _tuned_row(op, request, key, accepts) if key is not None else None

    def candidates() -> Iterator[Candidate]:
        if row is not None:
            kind = "tuned, modelled" if row.is_modelled else "tuned"
            backend = op.backend(row.backend)
            yield Candidate(backend, row.kernel, row.params, f"{kind}: {row.source}", row)
        for backend in (*order, *(backend for backend in op.backends if backend not in order)):
            if accepts(backend):
                yield Candidate(backend, functools.partial(_first_kernel, backend, request), {}, source)

    def not_failed() -> Iterator[Candidate]:
        for each in candidates():
            failure = op.failures.get((each.backend.name, each.kernel, request.target)) if op.failures else None
            if failure is not None and request.forced is None:  # a forced one tries again, and raises the error itself
                refused[each.backend.name] = failure
            else:
                yield each

    return Selection(_InTurn(not_failed()) if in_turn else [*not_failed()], refused, key)


class _InTurn:
    """Candidates, each found when it is asked for."""

    def __init__(self, others: Iterator[Candidate]):
        self._found: list[Candidate] = []
        self._others = others

    def __iter__(self) -> Iterator[Candidate]:
        yield from self._found
        for each in self._others:
            self._found.append(each)
            yield each

    def __bool__(self) -> bool:
        return any(True for _ in self)


def _first_kernel(backend: Backend, request: Request) -> str:
    """Its best kernel; where it has one alone, its name decides nothing."""
    args = request.args if backend.kernels is not None else request.real or request.args
    return backend.kernel_names(request.target, args, {})[0]


def _order(op: Declaration, request: Request) -> tuple[list[Backend], str]:
    if request.forced is not None:
        return [backend for backend in op.backends if backend.name == request.forced], f"forced: {request.forced_by}"
    names = env.get("AITER_LIKE_BACKENDS")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"AITER_LIKE_BACKENDS must list {', '.join(KINDS)}, got {', '.join(unknown)}")
    if names:
        by_name = {backend.name: backend for backend in op.backends}
        return [by_name[name] for name in names if name in by_name], f"AITER_LIKE_BACKENDS={','.join(names)}"
    backends = list(op.backends)
    if op.prefers is not None:
        first = op.prefers(request.target, *request.args)
        backends.sort(key=lambda backend: backend.name != first)  # stable: the others stay as they are
    return backends, f"heuristic: first of {', '.join(backend.name for backend in backends)} to accept"


def refusal(op: Declaration, backend: Backend, request: Request, is_listed: bool = True) -> str | None:
    """Why a backend does not serve a call, or None; `is_listed`: it is in the order that applies."""
    if request.forced is not None and backend.name != request.forced:
        return f"not asked for: {request.forced_by}"
    if request.compiled_only and not backend.is_jit:
        return "not a compiled module"
    if backend.name != "torch" and op.name in env.get("AITER_LIKE_DISABLE"):
        return "the operator is in AITER_LIKE_DISABLE, which leaves torch only"
    if not is_listed:
        return "not in AITER_LIKE_BACKENDS"
    if request.needs_grad and not backend.differentiable:
        return "forward only, and an argument requires grad: call it under torch.no_grad()"
    if backend.name == "vendor" and (request.target.platform == "cpu" or request.target.simulated):
        return "the vendor's library needs a GPU"
    if backend.name != "torch" and request.target.platform == "cpu":
        return "needs a GPU or the simulated MI300X"
    if backend.name == "triton" and not _has_triton():
        return "triton is not installed (pip install aiter_like[triton])"
    if backend.refusal is not None:
        with showing(request.args):
            reason = backend.refusal(request.target, *request.args)
        if reason is not None:
            return reason
    if backend.address_refusal is not None and (reason := backend.address_refusal(*request.args)) is not None:
        return OfAddresses(reason)
    return None


def _has_triton() -> bool:
    return sys.modules.get("triton") is not None or _is_installed("triton", importlib.util.find_spec)


@functools.cache
def _is_installed(package: str, find_spec: Callable[[str], Any]) -> bool:
    return find_spec(package) is not None


def _tuned_row(op: Declaration, request: Request, key: Mapping[str, Any],
               accepts: Callable[[Backend], bool]) -> Row | None:
    def usable(row: Row) -> bool:
        backend = op.backend(row.backend)
        if row.source in op.bad_rows or not accepts(backend):
            return False
        reason = backend.staleness(row)
        if reason is not None:
            op.tell_once((backend.name, reason), "%s: tuned row ignored, as all of %s %s like it: %s", row.source,
                         op.name, backend.name, reason)
            return False
        return tuned_rows.fits(op, backend, row, request.target, request.args, request.real or request.args)

    return op.table.find(request.target.arch, request.target.cu_num, key, usable)
