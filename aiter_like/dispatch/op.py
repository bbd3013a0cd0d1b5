# SPDX-License-Identifier: MIT
"""Op: an operator's reference, checks, tune key and ordered backends, and the call that picks one of them.

A call whose arguments look like an earlier one goes straight to the function bound then (plans.py); everything that
metadata decides is decided once: checks, backend (select.py), tuned row, build. Needs no GPU.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from aiter_like import device, env, log
from aiter_like.device import Target
from aiter_like.dispatch import record, self_check, table, torch_ops
from aiter_like.dispatch.explanation import Explanation, Recorder, describe, explain, selector
from aiter_like.dispatch.plans import PlanCache
from aiter_like.dispatch.registry import OPS
from aiter_like.dispatch.selection import KINDS, Backend, Candidate, Request, Selection, select
from aiter_like.dispatch.tuning import Tuning
from aiter_like.errors import AddressError, BuildError, UnsupportedError

__all__ = ["OPS", "SKIP", "Backend", "Explanation", "Op", "explain", "is_tuned", "reset", "use_backend"]

_log = logging.getLogger("aiter_like")
_is_tracing = torch.compiler.is_dynamo_compiling  # cheaper than is_compiling; whatever else traces brings fake tensors
_selected = selector.get

SKIP = object()
"""What an op's `check` returns when nothing is to be computed, as for empty tensors."""


class Op:
    """An operator. Private to its family's file, which wraps it into the public function.

    Attributes:
        name: also the stem of its files and the name in `torch.ops.aiter_like`.
        reference: torch implementation, annotated; (*args) in the order of the backends; writes the outputs.
        backends: in order of preference.
        check: of (*args): raises ValueError or TypeError; returns SKIP when nothing is to be computed.
        tune_key: of (*args): the key of tuned rows, a dict with the names `tune_fields`.
        round_field: the field that is rounded up where no row has its exact value (dispatch/table.py).
        writes: names of the arguments that are written.
        self_check: of (device): the arguments of one small case, or a list of cases (one per instance of a module);
            what a kernel must pass on hardware before its first automatic use (verify.py).
        tuning: what the tuner needs to know of it (dispatch/tuning.py); None: it cannot be tuned.
        public: the public functions made of it (torch_ops.register).
        failures: (backend, kernel, target) → why it is out of use in this process.
        bad_rows: tuned rows that turned out not to fit (file:line).
    """

    def __init__(self, name: str, *, reference: Callable, backends: Sequence[Backend],
                 check: Callable[..., Any] | None = None, tune_key: Callable[..., dict[str, int | str]] | None = None,
                 tune_fields: Sequence[str] = (), round_field: str | None = None, writes: Sequence[str] = ("out",),
                 self_check: Callable[[torch.device], Any] | None = None, tuning: Tuning | None = None):
        if name in OPS.declared:
            raise ValueError(f"operator {name} exists already")
        if (tune_key is None) != (not tune_fields) or round_field not in (None, *tune_fields):
            raise ValueError(f"{name}: tune_key, tune_fields and round_field do not fit together")
        if len({backend.name for backend in backends}) != len(backends):
            raise ValueError(f"{name}: two backends with one name")
        parameters = list(inspect.signature(reference).parameters)
        self.name, self.reference, self.backends = name, reference, tuple(backends)
        self.check, self.tune_key, self.tune_fields = check, tune_key, tuple(tune_fields)
        self.round_field, self.writes, self.self_check = round_field, tuple(writes), self_check
        self.tuning = tuning
        self.write_indices = tuple(parameters.index(written) for written in writes)
        self.public: list[Callable] = []
        self.failures: dict[tuple[str, str, Target], str] = {}
        self.bad_rows: set[str] = set()
        self._told: set[Any] = set()
        self._plans = PlanCache()
        self._detours = PlanCache()  # of calls whose plan's kernel cannot take an address
        self._recent = self._plans.recent
        self._out_op = torch_ops.define(f"{name}_out", reference, kernel=self._eager, fake=_nothing, writes=writes)
        OPS.declared[name] = self

    def __repr__(self) -> str:
        return f"<Op {self.name}: {', '.join(backend.name for backend in self.backends)}>"

    def __call__(self, *args: Any, backend: str | None = None) -> None:
        """Runs the operator. `backend` forces one; then nothing else is tried.

        Raises:
            ValueError, TypeError: an argument is wrong.
            UnsupportedError: no backend, or not the forced one, serves the call.
            BuildError: the forced backend does not build.
        """
        if _is_tracing():
            self._out_op(*args, backend=backend)
            return
        chosen = _selected()
        chosen = backend if chosen is None else (chosen, backend)
        plan = self._recent(chosen, args)
        if plan is None:
            plan = self._find(chosen, args)
        try:
            plan(*args)
        except AddressError:
            self._detour(chosen, args)(*args)

    @functools.cached_property
    def table(self) -> table.Table:
        """The tuned rows, read when first asked for."""
        kernels = {backend.name: backend.fixed_kernels() for backend in self.backends}
        return table.load(self.name, self.tune_fields, kernels, self.round_field)

    def stale_rows(self) -> list[str]:
        """Tuned rows (file:line) that timed another revision of their kernel, or what another compiler made of it."""
        backends = {backend.name: backend for backend in self.backends}
        return [row.source for row in self.table.rows() if backends[row.backend].staleness(row) is not None]

    def reset(self) -> None:
        """Forget plans, failures and tuned rows."""
        self.forget_plans()
        self._told.clear()
        self.failures.clear()
        self.bad_rows.clear()
        self.__dict__.pop("table", None)

    def tell_once(self, what: Any, message: str, *values: Any) -> None:
        """A warning that is given once about `what`."""
        if what not in self._told:
            self._told.add(what)
            _log.warning(message, *values)

    def forget_plans(self) -> None:
        """Let each call be decided again."""
        self._plans.clear()
        self._detours.clear()

    def select(self, args: tuple, forced: str | None = None, forced_by: str = "") -> Selection:
        """The backends for a call, in order, with the reasons of the others."""
        return select(self, self._request(args, forced, forced_by))

    def _eager(self, *args: Any, backend: str | None = None) -> None:
        """The kernel of the registered operator: as `__call__`, without routing back into torch.library."""
        chosen = _selected()
        chosen = backend if chosen is None else (chosen, backend)
        plan = self._plans.find(chosen, args) or self._plan(chosen, args)
        try:
            plan(*args)
        except AddressError:
            self._detour(chosen, args)(*args)

    def _find(self, chosen: Any, args: tuple) -> Callable:
        if torch_ops.intercepted(args):
            return functools.partial(self._out_op, backend=chosen[1] if isinstance(chosen, tuple) else chosen)
        return self._plans.find(chosen, args) or self._plan(chosen, args)

    def _plan(self, chosen: Any, args: tuple) -> Callable:
        """Decides a call of new metadata: check, select, bind."""
        log.first_use()
        forced, forced_by, recorder = _read(self, chosen)
        skip = self.check is not None and self.check(*args) is SKIP
        if recorder is not None:
            recorder.found.append(self._explain(args, forced, forced_by, skip))
            return _nothing
        if skip:
            self._plans.store(chosen, args, _nothing)
            return _nothing
        request = self._request(args, forced, forced_by)
        selection = select(self, request)
        if selection.key is not None:
            values = table.normalised(self.name, self.tune_fields, selection.key)
            record.record(self.name, self.tune_fields, request.target.arch, request.target.cu_num, values)
        plan, is_final = self._bind_first(request, selection)
        if is_final:
            self._plans.store(chosen, args, plan)
        return plan

    def _detour(self, chosen: Any, args: tuple) -> Callable:
        """Decides a call that the planned kernel has just refused for an address; the plan stays for the others."""
        plan = self._detours.find(chosen, args)
        if plan is None:
            forced, forced_by, _ = _read(self, chosen)
            request = self._request(args, forced, forced_by, of_addresses=True)
            selection = select(self, request)
            plan, is_final = self._bind_first(request, selection)
            for backend in self.backends:
                if backend.misplaced is not None and (reason := backend.misplaced(*args)) is not None:
                    self.tell_once((backend.name, reason), "%s: not %s but the next backend serves calls where %s",
                                   self.name, backend.name, reason)
            if is_final:
                self._detours.store(chosen, args, plan)
        return plan

    def _bind_first(self, request: Request, selection: Selection) -> tuple[Callable, bool]:
        """The first candidate that builds and, on hardware, passes its self-check; and whether that may be kept."""
        is_final = True
        for candidate in selection.candidates:
            name = candidate.backend.name
            try:
                if _runs_on_simulator(candidate, request.target):
                    from aiter_like import sim

                    sim.load()  # its settings decide whether this very call is checked
                function = candidate.backend.bind(request.target, request.args, candidate)
            except UnsupportedError as error:
                selection.refused[name] = str(error)
                continue
            except BuildError as error:
                if request.forced is not None:
                    raise
                self._fail(candidate, request.target, f"does not build: {error}")
                selection.refused[name] = str(error).partition("\n")[0]
                continue
            if request.forced is None and self_check.applies(candidate.backend, request.target):
                verdict = self_check.verdict(self, candidate, request.target, request.args)
                if verdict is self_check.LATER:
                    is_final = False
                    selection.refused[name] = "not checked on this device yet, and a graph is being captured"
                    continue
                if verdict is not None:
                    self._fail(candidate, request.target, verdict)
                    selection.refused[name] = verdict
                    continue
            self._tell(candidate, request, selection)
            return self._watched(function, candidate, request.target), is_final
        message = f"{self.name}: no backend serves the call on {request.target.arch}"
        raise UnsupportedError(message, self.name, selection.refused)

    def _watched(self, function: Callable, candidate: Candidate, target: Target) -> Callable:
        """`function`; on the simulated device with its errors, and through its checkers whenever they are on."""
        if not _runs_on_simulator(candidate, target):
            return function
        from aiter_like import sim

        name, writes, checking = self.name, self.write_indices, sim.checking

        def call(*args: Any) -> None:
            if checking():
                sim.checked_call(name, function, args, writes)
                return
            try:
                function(*args)
            except RuntimeError as error:
                failure = sim.as_simulator_error(name, error)
                if failure is error:
                    raise
                raise failure from error

        return call

    def _explain(self, args: tuple, forced: str | None, forced_by: str, skip: bool) -> Explanation:
        request = self._request(args, forced, forced_by, of_addresses=True)
        if skip:
            return Explanation(self.name, request.target, None, None, "", {}, "empty: nothing to compute", {})
        return describe(self, request.target, select(self, request))

    def _request(self, args: tuple, forced: str | None, forced_by: str, of_addresses: bool = False) -> Request:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if not tensors:
            raise TypeError(f"{self.name}: no tensor among the arguments")
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return Request(device.target_of(tensors[0].device), args, forced, forced_by, needs_grad, of_addresses)

    def _fail(self, candidate: Candidate, target: Target, why: str) -> None:
        """Takes a kernel out of automatic use, with one warning."""
        key = (candidate.backend.name, candidate.kernel, target)
        if key not in self.failures:
            self.failures[key] = why
            _log.warning("%s: backend %s (%s) is out of use on %s: %s", self.name, *key[:2], target.arch, why)

    def _tell(self, candidate: Candidate, request: Request, selection: Selection) -> None:
        """One line per backend and target when it first serves; a warning where only torch is left."""
        name, target = candidate.backend.name, request.target
        key = (name, target)
        if key in self._told:
            return
        self._told.add(key)
        refused = "; ".join(f"{other}: {reason}" for other, reason in selection.refused.items())
        is_fallback = name == "torch" and request.forced is None and len(self.backends) > 1
        if is_fallback and self.name not in env.get("AITER_LIKE_DISABLE"):
            _log.warning("%s runs as torch reference on %s: %s", self.name, target.arch, refused)
        else:
            _log.info("%s runs on %s as %s (%s; %s)", self.name, target.arch, name, candidate.kernel, candidate.source)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within the block, in this thread or task, every operator runs on backend `name` or raises UnsupportedError.

    An explicit `backend=` of a call goes before it.

    Raises:
        ValueError: there is no such backend.
    """
    if name not in KINDS:
        raise ValueError(f"use_backend: name must be one of {', '.join(KINDS)}, got {name!r}")
    token = selector.set(name)
    try:
        yield
    finally:
        selector.reset(token)


def is_tuned(op: Op | str | Callable, *, arch: str = "gfx942", cu_num: int | None = None, **key: int | str) -> bool:
    """Whether a tuned row, exact or rounded, serves a key.

    Args:
        op: a public function, or the operator's name.
        arch: the architecture; its CU count comes from configs/arch unless given.
        key: the operator's key fields.

    Raises:
        ValueError: not an operator of this package, or the key has other fields than the operator's.
    """
    found = find_op(op)
    if cu_num is None:
        cu_num = device.arch_facts(arch)["cu_num"]
    stale = found.stale_rows()
    return found.table.find(arch, cu_num, key, lambda row: row.source not in (*found.bad_rows, *stale)) is not None


def reset() -> None:
    """Forget every plan, failure and tuned table: the environment variables are read anew."""
    for op in OPS.values():
        op.reset()


def _forget_plans() -> None:
    for op in OPS.values():
        op.forget_plans()


device.on_change.append(_forget_plans)


def find_op(op: Op | str | Callable) -> Op:
    """The operator of a name, of a public function, or itself.

    Raises:
        ValueError: there is none.
    """
    for candidate in OPS.values():
        if op is candidate or candidate.name in (op, getattr(op, "__name__", None)) or op in candidate.public:
            return candidate
    raise ValueError(f"{getattr(op, '__name__', op)} is no operator of aiter_like; known: {', '.join(OPS)}")


def _runs_on_simulator(candidate: Candidate, target: Target) -> bool:
    return target.simulated and candidate.backend.name != "torch"


def _read(op: Op, chosen: Any) -> tuple[str | None, str, Recorder | None]:
    """What forces a backend, who does, and the recorder of explain.

    Raises:
        ValueError: `backend=` names none of the operator's backends.
    """
    context, forced = chosen if isinstance(chosen, tuple) else (None, chosen)
    recorder = context if isinstance(context, Recorder) else None
    if recorder is not None:
        context = recorder.outer
    names = [backend.name for backend in op.backends]
    if forced is not None:
        if forced not in names:
            raise ValueError(f"{op.name}: backend must be one of {', '.join(names)}, got {forced!r}")
        return forced, f"backend={forced!r}", recorder
    return context, f"use_backend({context!r})" if context else "", recorder


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The plan of an empty call, and the fake of operators that only write their arguments."""
