# SPDX-License-Identifier: MIT
"""Which backends serve a call, in which order, and why the others do not. Builds and runs nothing.

Read by dispatch.py, which binds the first candidate that builds, and by explain.py.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import env
from aiter_like.build import revision
from aiter_like.device import Target
from aiter_like.dispatch.table import Row
from aiter_like.errors import BuildError, TuningError, UnsupportedError

if TYPE_CHECKING:
    from aiter_like.dispatch.op import Op

_log = logging.getLogger("aiter_like")

KINDS = ("hip", "ck", "asm", "triton", "torch")


@dataclass(frozen=True)
class Backend:
    """One implementation of an operator.

    Attributes:
        name: one of KINDS.
        function: a `compile_ops` stub; "<module>:<function>", a module of
            this package that is imported on first use ("ops.norm.triton.rms_norm:rms_norm"); or a function.
            Called with the operator's arguments; a tuned row's params arrive by keyword (at a stub: in its gen_func).
        unsupported: of (target, *args): None, or the reason why this backend cannot serve the call.
        misplaced: of (*args): None, or the reason why it cannot take the addresses of these tensors. Not asked for each
            call: a launcher that finds such an address raises AddressError.
        kernels: of (target, *args, **params): names of its kernels that have these parameters, best first, where it has
            several; the chosen one arrives by keyword as `kernel`.
        differentiable: autograd passes through it.
        space: of (target, *args): the parameters that the tuner tries beyond the default, a dict for each trial, such
            as {"num_warps": 8}; all of them values that a tuned row can hold (int, float, bool, text).
        cost: of (target, *args, **params): what a trial is expected to cost, in a unit of its own, infinite where it
            cannot run; the tuner leaves out what is far from this backend's cheapest.
        self_check: of (device, *args): the arguments of a small call that takes the same kernel as this one; for a
            backend with more kernels than the operator's own cases can name.
        repeats: a call of the function returns what serves later calls whose arguments have the same metadata, at less
            cost on the host; or None, then the function itself goes on doing so.
    """

    name: str
    function: Any
    unsupported: Callable[..., str | None] | None = None
    kernels: Callable[..., list[str]] | None = None
    differentiable: bool = False
    space: Callable[..., Iterable[Mapping[str, Any]]] | None = None
    cost: Callable[..., float] | None = None
    self_check: Callable[..., tuple] | None = None
    misplaced: Callable[..., str | None] | None = None
    repeats: bool = False

    def __post_init__(self):
        if self.name not in KINDS:
            raise ValueError(f"backend must be one of {', '.join(KINDS)}, got {self.name!r}")

    @property
    def is_jit(self) -> bool:
        """Whether it is a module of our own that is built on first use."""
        return hasattr(self.function, "bind")

    def kernel_names(self, target: Target, args: tuple, params: Mapping[str, Any]) -> list[str]:
        """The kernels that can serve the call, best first."""
        if self.kernels is not None:
            return list(self.kernels(target, *args, **params))
        if self.is_jit:
            return [self.function.kernel_name(args, **params)]
        return [self.function.partition(":")[2] if isinstance(self.function, str) else self.name]

    def fixed_kernels(self) -> frozenset[str] | None:
        """The names a tuned row may give; None where they depend on the call."""
        if self.kernels is not None or self.is_jit:
            return None
        return frozenset(self.kernel_names(None, (), {}))

    @functools.cached_property
    def revision(self) -> str:
        """What a tuned row's kernel_rev is compared with: a hash of the kernel's source and of what it includes, or
        ""."""
        if self.is_jit:
            path = self.function.source
        elif isinstance(self.function, str):
            path = Path(__file__).parents[1] / f"{self.function.partition(':')[0].replace('.', '/')}.py"
        else:
            return ""
        return revision.of(path)

    def toolchain(self, platform: str) -> str:
        """What compiles it for "hip" or "cuda", as "nvcc 13.0" or "triton 3.6"; "" where that cannot be known."""
        if not self.is_jit:
            package = "triton" if isinstance(self.function, str) else "torch"
            return f"{package} {'.'.join(importlib.import_module(package).__version__.split('.')[:2])}"
        from aiter_like.build import toolchain

        try:
            found = toolchain.find(platform)
        except BuildError:
            return ""
        return f"{found.name} {'.'.join(map(str, found.version[:2]))}"

    def staleness(self, row: Row) -> str | None:
        """Why a tuned row no longer speaks of this backend's kernel, or None. An empty cell makes no claim."""
        if row.kernel_rev and row.kernel_rev != self.revision:
            return f"it timed revision {row.kernel_rev} of the kernel, this is {self.revision or 'unknown'}"
        name, _, version = row.toolchain.partition(" ")
        here = self.toolchain("hip" if row.key[0].startswith("gfx") else "cuda") if version else ""
        if here and f"{here}.".startswith(f"{name} {version}."):
            return None
        return f"it timed what {row.toolchain} made, here is {here}" if here else None

    def bind(self, target: Target, args: tuple, candidate: Candidate) -> Callable:
        """The function to call with the operator's arguments.

        Raises:
            BuildError: its module cannot be built or loaded.
            UnsupportedError: a package that it needs is not installed.
        """
        params = dict(candidate.params)
        if self.kernels is not None:
            params["kernel"] = candidate.kernel
        if self.is_jit:
            return self.function.bind(target, args, **params)
        function = _import(self.function) if isinstance(self.function, str) else self.function
        function = functools.partial(function, **params) if params else function
        return _Repeated(function) if self.repeats else function


class _Repeated:
    """A function of a backend that `repeats`, in one plan."""

    __slots__ = ("again", "function")

    def __init__(self, function: Callable):
        self.function, self.again = function, None

    def __call__(self, *args: Any) -> None:
        if self.again is None:
            self.again = self.function(*args)
        else:
            self.again(*args)


def _import(name: str) -> Callable:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(f"aiter_like.{module}"), function)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        raise UnsupportedError(f"triton cannot be imported: {error}") from error


@dataclass(frozen=True)
class Candidate:
    """A backend that serves the call, with kernel, parameters, and where the choice comes from."""

    backend: Backend
    kernel: str
    params: Mapping[str, Any]
    source: str


@dataclass
class Selection:
    """Candidates in order of preference, and backend name → reason for the others."""

    candidates: list[Candidate]
    refused: dict[str, str]
    key: dict[str, int | str] | None


@dataclass(frozen=True)
class Request:
    """One call to decide on.

    Attributes:
        forced: the only backend allowed, or None.
        forced_by: who says so: "backend='hip'" or "use_backend('hip')".
        needs_grad: grad mode is on and an argument requires grad.
        of_addresses: the decision is for these addresses; else for all tensors with the metadata of `args`.
    """

    target: Target
    args: tuple
    forced: str | None = None
    forced_by: str = ""
    needs_grad: bool = False
    of_addresses: bool = False


def select(op: Op, request: Request) -> Selection:
    """Decides: a tuned row first, then the operator's own order (or AITER_LIKE_BACKENDS).

    Raises:
        ValueError: AITER_LIKE_BACKENDS names an unknown backend, or the op's tune key does not fit its fields.
    """
    accepted: dict[str, Backend] = {}
    refused: dict[str, str] = {}
    order, source = _order(op, request)
    for backend in (*order, *(backend for backend in op.backends if backend not in order)):
        reason = _refusal(op, backend, request, backend in order)
        if reason is None:
            accepted[backend.name] = backend
        else:
            refused[backend.name] = reason
    key = op.tune_key(*request.args) if op.tune_key is not None else None
    row = _tuned_row(op, request, key, accepted) if key is not None else None
    tuned = [Candidate(accepted[row.backend], row.kernel, row.params, f"tuned: {row.source}")] if row else []
    own = [Candidate(backend, backend.kernel_names(request.target, request.args, {})[0], {}, source)
           for backend in accepted.values()]
    candidates = []
    for candidate in (*tuned, *own):
        failure = op.failures.get((candidate.backend.name, candidate.kernel, request.target))
        if failure is not None and request.forced is None:  # a forced backend tries again, and raises the error itself
            refused[candidate.backend.name] = failure
        else:
            candidates.append(candidate)
    return Selection(candidates, refused, key)


def _order(op: Op, request: Request) -> tuple[list[Backend], str]:
    if request.forced is not None:
        return [backend for backend in op.backends if backend.name == request.forced], f"forced: {request.forced_by}"
    names = env.get("AITER_LIKE_BACKENDS")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"AITER_LIKE_BACKENDS must list {', '.join(KINDS)}, got {', '.join(unknown)}")
    if names:
        by_name = {backend.name: backend for backend in op.backends}
        return [by_name[name] for name in names if name in by_name], f"AITER_LIKE_BACKENDS={','.join(names)}"
    return list(op.backends), f"heuristic: first of {', '.join(backend.name for backend in op.backends)} to accept"


def _refusal(op: Op, backend: Backend, request: Request, is_listed: bool) -> str | None:
    if request.forced is not None and backend.name != request.forced:
        return f"not asked for: {request.forced_by}"
    if backend.name != "torch" and op.name in env.get("AITER_LIKE_DISABLE"):
        return "the operator is in AITER_LIKE_DISABLE, which leaves torch only"
    if not is_listed:
        return "not in AITER_LIKE_BACKENDS"
    if request.needs_grad and not backend.differentiable:
        return "forward only, and an argument requires grad: call it under torch.no_grad()"
    if backend.name != "torch" and request.target.platform == "cpu":
        return "needs a GPU or the simulated MI300X"
    if backend.name == "triton" and not _has_triton():
        return "triton is not installed (pip install aiter_like[triton])"
    if backend.unsupported is not None and (reason := backend.unsupported(request.target, *request.args)) is not None:
        return reason
    return backend.misplaced(*request.args) if request.of_addresses and backend.misplaced is not None else None


def _has_triton() -> bool:
    return sys.modules.get("triton") is not None or importlib.util.find_spec("triton") is not None


def _tuned_row(op: Op, request: Request, key: Mapping[str, Any], accepted: Mapping[str, Backend]) -> Row | None:
    def usable(row: Row) -> bool:
        backend = accepted.get(row.backend)
        if backend is None or row.source in op.bad_rows:
            return False
        reason = backend.staleness(row)
        if reason is not None:
            op.tell_once((backend.name, reason), "%s: tuned row ignored, as all of %s %s like it: %s", row.source,
                         op.name, backend.name, reason)
            return False
        try:
            known = backend.kernel_names(request.target, request.args, row.params)
        except TypeError as error:  # gen_func does not take a parameter of the row
            return _drop(op, row, f"params do not fit {row.kernel}: {error}")
        return row.kernel in known or _drop(op, row, f"kernel must be one of {', '.join(known)} for this call, "
                                                     f"got {row.kernel!r}")

    return op.table.find(request.target.arch, request.target.cu_num, key, usable)


def _drop(op: Op, row: Row, why: str) -> bool:
    op.bad_rows.add(row.source)
    problem = TuningError(f"{row.source}: {why}")
    op.table.problems.append(problem)
    _log.warning("tuned table: %s", problem)
    return False
