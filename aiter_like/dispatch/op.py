# SPDX-License-Identifier: MIT
"""Op: an operator that can be called; the call picks one of its backends.

A call of a class that is known (classes.py) goes straight to what serves that class; what no class knows is decided
here: checks, backend (selection.py), tuned row, build. Needs no GPU.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from aiter_like import device, env, log
from aiter_like.call import entry, with_fields
from aiter_like.device import Target
from aiter_like.dispatch import record, self_check, table, torch_ops, tuned_rows
from aiter_like.dispatch.addresses import AddressCheck, statement
from aiter_like.dispatch.backend import KINDS, Candidate
from aiter_like.dispatch.classes import CallClass, Classes
from aiter_like.dispatch.declaration import Declaration, tell_unknown_disabled
from aiter_like.dispatch.explanation import Explanation, Recorder, conditions, describe, selector
from aiter_like.dispatch.kinds import check_outputs
from aiter_like.dispatch.plan import Plan, plan_of
from aiter_like.dispatch.registry import OPS
from aiter_like.dispatch.selection import OfAddresses, Request, Selection, select
from aiter_like.dispatch.torch_ops import each_tensor
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.traced import Trace, Untraceable, known, showing

logger = logging.getLogger("aiter_like")
_is_tracing = torch.compiler.is_dynamo_compiling  # cheaper than is_compiling; whatever else traces brings fake tensors
_selected = selector.get

# A call of a class that has served lately costs its questions and its launch, no more. Others go on to Op.run.
_WARM = """\
if not is_tracing() and derivatives._current_level < 0:
    chosen = selected()
    chosen = backend if chosen is None else (chosen, backend)
    last = classes.last
    if last(chosen, FIELDS): return
    for serves in classes.recent:
        if serves is not last and serves(chosen, FIELDS):
            classes.last = serves
            return"""


class Op(Declaration):
    """An operator that can be called. Private to its family's file, which wraps it into the public functions.

    Attributes:
        answers: what callers have concluded from the choice of a backend, under keys of their own; emptied whenever
            calls are decided anew.
    """

    def __init__(self, name: str, **declared: Any):
        super().__init__(name, **declared)
        self.answers: dict[Any, Any] = {}
        self._classes = Classes()
        self._writes = frozenset(self.write_indices)
        self._check_addresses = AddressCheck(name, self.call._fields, self.write_indices, self.in_place)
        self._out_op = torch_ops.define(f"{name}_out", self.reference, kernel=self._eager, fake=_nothing,
                                        writes=self.writes)
        self.run = entry(self.call, self.run, _WARM, is_tracing=_is_tracing, selected=_selected,
                         classes=self._classes, derivatives=forward_ad)

    def __call__(self, call: tuple, *, backend: str | None = None) -> None:
        """Runs the operator on a call object. `backend` forces one; then nothing else is tried.

        Raises:
            ValueError, TypeError: an argument is wrong.
            UnsupportedError: no backend, or not the forced one, serves the call.
            BuildError: the forced backend does not build.
        """
        self._serve(tuple(call), backend)

    def run(self, *args: Any, backend: str | None = None, **fields: Any) -> None:
        """Like `op(call)`, with the fields of a call object by position or name. Public functions call this. Each
        operator's begins with _WARM and has the fields as parameters: a call object costs the host half as much again.
        """
        self._serve((*self.call(*args, **fields),), backend)

    def prepare(self, *args: Any, backend: str | None = None, **fields: Any) -> None:
        """Decides and builds what `run` of the same will do and raises what it would raise, but runs nothing. A
        function that runs several operators prepares those that come after the first write.
        """
        if not _is_tracing() and not isinstance(_selected(), Recorder):
            self._serve((*self.call(*args, **fields),), backend, runs=False)

    def _serve(self, args: tuple, backend: str | None, runs: bool = True) -> None:
        """Serves a call, or, unless it `runs`, decides it and raises what serving it would raise."""
        if _is_tracing():
            self._out_op(*args, backend=backend)
            return
        chosen = _chosen(backend)
        try:
            serve = self._otherwise(chosen, args)
            if serve is None:
                self._serve_plain(chosen, args, runs)
            elif runs:
                serve(*args)
        except (ValueError, TypeError, UnsupportedError) as error:
            error.fields = dict(zip(self.call._fields, args))  # public.py looks up which parameters these are
            raise

    def _serve_plain(self, chosen: Any, args: tuple, runs: bool = True) -> None:
        """Serves a call of tensors that are what they look like: by its class, or by a decision."""
        if self._classes.find(chosen, args, runs) is None:
            self._decide(chosen, args, runs)

    def reset(self) -> None:
        """Forget classes, failures and tuned rows."""
        self.forget_plans()
        self._reported.clear()
        self.failures.clear()
        self.bad_rows.clear()
        self.__dict__.pop("table", None)

    def forget_plans(self) -> None:
        """Let each call be decided again."""
        self._classes.clear()
        self.answers.clear()

    def select(self, args: tuple, forced: str | None = None, forced_by: str = "") -> Selection:
        """The backends for a call, in order, with the reasons of the others."""
        return select(self, self._request(args, args, forced, forced_by))

    def _eager(self, *args: Any, backend: str | None = None) -> None:
        """The kernel of the registered operator: as `__call__`, without routing back into torch.library."""
        args = tuple(self.call(*args))  # torch.library leaves out what equals the schema's defaults
        self._serve_plain(_chosen(backend), args)

    def _otherwise(self, chosen: Any, args: tuple) -> Callable | None:
        """Finds what serves a call whose tensors are not what they look like: transformed, fake, negated where read."""
        if torch_ops.differentiated(args):
            return self._differentiable(chosen, args)
        if torch_ops.intercepted(args):
            return functools.partial(self._out_op, backend=chosen[1] if isinstance(chosen, tuple) else chosen)
        if any(map(_is_lazy, each_tensor(args))):
            return functools.partial(self._resolved, chosen)
        return None

    def _differentiable(self, chosen: Any, args: tuple) -> Callable:
        """The function for calls that torch.func transforms, or whose tensors have tangents; nothing else may serve it.

        Raises:
            UnsupportedError: there is no such backend, or it is not the forced one.
        """
        forced, forced_by, recorder = _read(self, chosen)
        is_empty = self.is_empty(args)
        refused = {}
        for backend in self.backends:
            if forced not in (None, backend.name):
                refused[backend.name] = f"{forced_by} asks for {forced}"
            elif not backend.differentiable:
                refused[backend.name] = "has no derivative that torch.func or forward mode could take"
            elif is_empty or recorder is not None:
                return _nothing
            else:
                return with_fields(self.call, backend.function)
        raise UnsupportedError(f"{self.name}: no backend serves a call that torch.func transforms, or with tangents",
                               self.name, refused)

    def _resolved(self, chosen: Any, *args: Any) -> None:
        """Runs the operator on copies of the views that torch negates or conjugates where it reads them, as no kernel
        does; results are written back.
        """
        copies = {}
        for name, arg in zip(self.call._fields, args):
            for tensor in filter(_is_lazy, each_tensor((arg,))):
                try:
                    copies[id(tensor)] = tensor.resolve_conj().resolve_neg()
                except RuntimeError as error:  # 8-bit floats and bool
                    raise TypeError(f"{self.name}: {name} must not be a negative view of {tensor.dtype}, which torch "
                                    "does not negate") from error
        plain = tuple(tuple(copies.get(id(one), one) for one in arg) if isinstance(arg, (tuple, list))
                      else copies.get(id(arg), arg) for arg in args)
        self._serve(plain, chosen[1] if isinstance(chosen, tuple) else chosen)
        for tensor in each_tensor(args[index] for index in self.write_indices):
            if id(tensor) in copies:
                tensor.copy_(copies[id(tensor)])

    def _decide(self, chosen: Any, args: tuple, runs: bool = True) -> None:
        """Decides a call of no known class, serves it if it `runs`, and keeps its class."""
        log.first_use()
        tell_unknown_disabled()
        forced, forced_by, recorder = _read(self, chosen)
        if recorder is not None:
            recorder.found.append(self._explain(args, forced, forced_by))
            return
        key = self._classes.key(chosen, args)
        opened = () if env.get("AITER_LIKE_RECORD") else self._classes.opened(key, args)  # records name each size
        trace = Trace(args, opened)
        try:
            plan, addresses = self._decided(self._request(trace.fields, args, forced, forced_by), trace)
        except (Exception, Untraceable) as why:
            logger.debug("%s: decided for these sizes alone: %r", self.name, why, exc_info=True)
            trace = Trace(args, ())  # The arguments are decided on themselves: what is wrong is told of them.
            trace.fix()
            plan, addresses = self._decided(self._request(args, args, forced, forced_by), trace)
        if not plan.is_empty:
            self._check_addresses(args)
        if runs and (again := plan.run(self, args)) is not None:
            tuned_rows.drop_row(self, plan.row, again)
            self._decide(chosen, args)
        elif plan.is_final and (runs or plan.row is None):
            used = {"refuse": self._check_addresses, **plan.used}
            trace.settle()
            made = CallClass(chosen, args, trace, addresses, plan.statements, used)
            self._classes.keep(key, made)

    def _decided(self, request: Request, trace: Trace) -> tuple[Plan, str]:
        """The plan of a class, and the statement that checks its addresses."""
        plan = self._planned(request, trace)
        return plan, "" if plan.is_empty else statement(trace, self._writes, self.in_place)

    def _planned(self, request: Request, trace: Trace) -> Plan:
        """Check, select, bind. `request` has stand-ins, or the arguments themselves."""
        args, real = request.args, request.real
        with showing(args):
            if self.is_empty(args):
                empty = torch_ops.plan_of_empty(self, request.forced, real)
                return replace(plan_of(self, empty, args, trace), is_empty=True)
        selection = select(self, request, in_turn=True)
        if selection.candidates:  # else the reasons of the backends say more
            check_outputs(self.name, self.call, args, self.write_indices)
            if all(tensor.is_meta for tensor in each_tensor(args)):  # nothing is to be computed
                return replace(plan_of(self, None, args, trace), is_empty=True)
        if selection.key is not None:
            values = known(table.normalised(self.name, self.tune_fields, selection.key))
            record.record(self.name, self.tune_fields, request.target.arch, request.target.cu_num, values)
        for name, reason in selection.refused.items():
            if isinstance(reason, OfAddresses) and request.forced is None:
                self.tell_once((name, reason), "%s: not %s but the next backend serves calls where %s", self.name, name,
                               reason)
        return self._bind_first(request, selection, trace)

    def _bind_first(self, request: Request, selection: Selection, trace: Trace) -> Plan:
        """The plan of the first candidate that builds and, on hardware, passes its self-check. It is final, unless a
        candidate before it could not be judged now.
        """
        is_final = True
        for candidate in selection.candidates:
            name = candidate.backend.name
            is_simulated = request.target.simulated and name != "torch"
            try:
                if is_simulated:
                    from aiter_like.sim import seam

                    seam.load()  # its settings decide whether this very call is checked
                function = candidate.backend.bind(request.target, request.args, candidate)
                plan = plan_of(self, function, request.args, trace, is_simulated, candidate.row)
            except UnsupportedError as error:
                selection.refused[name] = str(error)
                continue
            except Exception as error:
                if candidate.row is not None:  # its kernel stays in use: other parameters of it may be built
                    tuned_rows.drop_row(self, candidate.row, error)
                    return self._bind_first(request, select(self, request, in_turn=True), trace)
                if not isinstance(error, BuildError) or request.forced is not None:
                    raise
                self._fail(candidate, request.target, f"does not build: {error}")
                selection.refused[name] = str(error).partition("\n")[0]
                continue
            if request.forced is None and self_check.applies(candidate.backend, request.target):
                verdict = self_check.verdict(self, candidate, request.target, request.real)
                if verdict is self_check.DEFERRED:
                    is_final = False
                    selection.refused[name] = "not checked on this device yet, and a graph is being captured"
                    continue
                if verdict is not None:
                    self._fail(candidate, request.target, verdict)
                    selection.refused[name] = verdict
                    continue
            self._log_choice(candidate, request, selection)
            return plan if is_final else replace(plan, is_final=False)
        message = f"{self.name}: no backend serves the call on {request.target.arch}"
        raise UnsupportedError(message, self.name, selection.refused)

    def _explain(self, args: tuple, forced: str | None, forced_by: str) -> Explanation:
        is_empty = self.is_empty(args)
        request = self._request(args, args, forced, forced_by)
        if is_empty:
            return Explanation(self.name, request.target, None, None, "", {}, "empty: nothing to compute", {})
        found = describe(self, request, select(self, request))
        return replace(found, conditions=self._conditions(args, forced, forced_by))

    def _conditions(self, args: tuple, forced: str | None, forced_by: str) -> tuple[str, ...]:
        trace = Trace(args)
        request = self._request(trace.fields, args, forced, forced_by)
        try:
            with showing(trace.fields):
                self.is_empty(trace.fields)
            for candidate in select(self, request).candidates[:1]:
                candidate.backend.kernel_names(request.target, trace.fields, candidate.params)
        except Untraceable:
            trace.fix()
        trace.settle()
        return conditions(trace, self.call._fields)

    def _request(self, args: tuple, real: tuple, forced: str | None, forced_by: str) -> Request:
        tensors = [*each_tensor(args)]
        if not tensors:
            raise TypeError(f"{self.name}: no tensor among the arguments")
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return Request(device.target_of(tensors[0].device), args, forced, forced_by, needs_grad, real)

    def _fail(self, candidate: Candidate, target: Target, why: str) -> None:
        """Takes a kernel out of automatic use, with one warning."""
        key = (candidate.backend.name, candidate.kernel, target)
        if key not in self.failures:
            self.failures[key] = why
            self.answers.clear()
            logger.warning("%s: backend %s (%s) is out of use on %s: %s", self.name, *key[:2], target.arch, why)

    def _log_choice(self, candidate: Candidate, request: Request, selection: Selection) -> None:
        """One line per backend and target when it first serves; a warning where only torch is left."""
        name, target = candidate.backend.name, request.target
        key = (name, target)
        if key in self._reported:
            return
        self._reported.add(key)
        refused = "; ".join(f"{other}: {reason}" for other, reason in selection.refused.items())
        is_fallback = name == "torch" and request.forced is None and len(self.backends) > 1
        if is_fallback and self.name not in env.get("AITER_LIKE_DISABLE"):
            logger.warning("%s runs as torch reference on %s: %s", self.name, target.arch, refused)
        else:
            logger.info("%s runs on %s as %s (%s; %s)", self.name, target.arch, name, candidate.kernel,
                        candidate.source)


def _is_lazy(tensor: Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj()


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


def reset() -> None:
    """Forget every plan, failure and tuned table: the environment variables are read anew."""
    for op in list(OPS.declared.values()):
        op.reset()


def _forget_plans() -> None:
    for op in list(OPS.declared.values()):
        op.forget_plans()


device.on_change.append(_forget_plans)


def _chosen(backend: str | None) -> Any:
    """The backend that callers ask for, together with what applies to all calls around."""
    context = _selected()
    return backend if context is None else (context, backend)


def _read(op: Declaration, chosen: Any) -> tuple[str | None, str, Recorder | None]:
    """The backend that is forced, who forces it, and the recorder of explain.

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
