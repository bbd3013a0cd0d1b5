# SPDX-License-Identifier: MIT
"""The candidates of a call: every backend that accepts it × kernel × parameters, less what a cost model rules out.

Runs in a worker, which has the arguments; what comes of it is plain data for the tuner, its journal and its rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiter_like.device import Target, facts_of
from aiter_like.dispatch.selection import Backend, Candidate, Request, select
from aiter_like.dispatch.table import normalised

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

FAR = 4.0
"""A trial whose expected cost is this many times its backend's cheapest is left out."""


PIECES = ("rows", "q_rows", "k_rows", "tokens", "patches", "samples", "matrices", "batch")
"""Fields of tune keys that count pieces of the same work."""


@dataclass(frozen=True)
class Trial:
    """A candidate as plain data.

    Attributes:
        revision, toolchain: of what is timed, as a tuned row has them.
        module: the fields of the ModuleSpec that has to be built for it; None where nothing is.
    """

    backend: str
    kernel: str
    params: Mapping[str, Any]
    revision: str
    toolchain: str
    module: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        """For people: backend, kernel, parameters."""
        params = " ".join(f"{name}={value}" for name, value in self.params.items())
        return " ".join(filter(None, (self.backend, self.kernel, params)))

    def candidate(self, op: Op) -> Candidate:
        """The candidate in the form that `Backend.bind` takes.

        Raises:
            StopIteration: the operator has no such backend.
        """
        return Candidate(op.backend(self.backend), self.kernel, self.params, "tuner")


@dataclass
class Plan:
    """The candidates for one call.

    Attributes:
        trials: all candidates, the operator's present choice (`incumbent`) first.
        default: index of what it would choose without tuned rows.
        left_out: what is not tried → why.
        bytes, flops: that the call needs (dispatch/tuning.py).
        judged: what the key of the call that is judged has in place of this one's; empty: it is this one.
    """

    trials: list[Trial]
    default: int
    left_out: dict[str, str]
    bytes: int
    flops: int
    judged: dict[str, Any] = field(default_factory=dict)

    def hinted(self, hint: Mapping[str, str]) -> Plan:
        """The same, with the trials that a hint names (backend, and parameters by name) right after the first."""
        def hits(trial: Trial) -> int:
            params = {_plain_name(name): str(value) for name, value in trial.params.items()}
            return (trial.backend == hint.get("backend")) + sum(
                params.get(_plain_name(name)) == text for name, text in hint.items())

        default = self.trials[self.default]
        trials = [self.trials[0], *sorted(self.trials[1:], key=hits, reverse=True)]  # stable: else as it was
        place = next(index for index, trial in enumerate(trials) if trial is default)
        return dataclasses.replace(self, trials=trials, default=place)

    def of_backends(self, names: Sequence[str]) -> Plan:
        """The same without the trials of other backends, but for the present choice and the operator's own."""
        own, kept = self.trials[self.default], [self.trials[0]]
        kept += [trial for trial in self.trials[1:] if trial.backend in names or trial is own]
        left_out = {trial.backend: "not asked for" for trial in self.trials if not any(trial is one for one in kept)}
        place = next(index for index, trial in enumerate(kept) if trial is own)
        return dataclasses.replace(self, trials=kept, default=place, left_out=self.left_out | left_out)

    def plain(self) -> dict[str, Any]:
        """The plan in a form that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Plan:
        """The inverse of `plain`."""
        return cls(**{**plain, "trials": [Trial(**trial) for trial in plain["trials"]]})


def _plain_name(name: str) -> str:
    """split_k, splitK and SPLIT_K are one parameter."""
    return name.replace("_", "").lower()


def smaller(op: Op, key: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Keys of calls that run the same kernels on less work, the mildest first."""
    if op.tuning.smaller is not None:
        yield from op.tuning.smaller(key)
        return
    counts = [name for name in PIECES if name in key]
    while any(key[name] > 1 for name in counts):
        key = {**key, **{name: -(-key[name] // 2) for name in counts}}
        yield key


def plan(op: Op, target: Target, args: tuple) -> Plan:
    """The candidates for a call on `target`.

    Raises:
        UnsupportedError: no backend accepts it.
    """
    selection = select(op, Request(target, args))
    left_out = dict(selection.refused)
    found: dict[tuple, Trial] = {}
    for backend in op.backends:
        if backend.name not in left_out:
            for params in _affordable(backend, target, args, left_out):
                for trial in _trials(op, backend, target, args, params):
                    found[_identity(backend, trial)] = trial  # explicit parameters go before a default of that effect
    chosen = selection.candidates[:1] or [_nothing_serves(op, selection.refused)]
    own = next((candidate for candidate in selection.candidates if candidate.row is None), chosen[0])
    first, second = (_find(found, op, target, args, candidate) for candidate in (chosen[0], own))
    others = [trial for trial in found.values() if trial is not first]
    trials = [first, *others]
    needs = op.tuning.needs(args)
    return Plan(trials, next(index for index, trial in enumerate(trials) if trial is second), left_out, *needs)


def _nothing_serves(op: Op, refused: Mapping[str, str]) -> Any:
    from aiter_like.errors import UnsupportedError

    raise UnsupportedError(f"{op.name}: no backend serves the call", op.name, dict(refused))


def _affordable(backend: Backend, target: Target, args: tuple, left_out: dict[str, str]) -> Iterator[Mapping[str, Any]]:
    """The default, then the backend's space: what its cost model expects most of first, without what that rules out."""
    yield {}
    space = list(backend.space(target, *args)) if backend.space is not None else []
    if backend.cost is None:
        yield from space
        return
    facts = facts_of(target)
    expected = [(backend.cost(*args, facts=facts, **params), params) for params in space]
    limit = FAR * min((cost for cost, _ in expected), default=math.inf)
    for cost, params in sorted(expected, key=lambda pair: pair[0]):  # a budget that ends early has tried the likely
        if cost <= limit and math.isfinite(cost):
            yield params
        else:
            name = f"{backend.name} {' '.join(f'{name}={value}' for name, value in params.items())}"
            left_out[name] = f"expected to cost {cost:.3g}, more than {limit:.3g}"


def _trials(op: Op, backend: Backend, target: Target, args: tuple, params: Mapping[str, Any]) -> Iterator[Trial]:
    for kernel in backend.kernel_names(target, args, params):
        yield _trial(op, Candidate(backend, kernel, params, "tuner"), target, args)


def _trial(op: Op, candidate: Candidate, target: Target, args: tuple) -> Trial:
    backend, module = candidate.backend, None
    if backend.is_jit and hasattr(backend.function, "spec"):
        extra = {"kernel": candidate.kernel} if backend.kernels is not None else {}
        spec = backend.function.spec(target, args, **candidate.params, **extra)
        module = {"name": spec.name, "sources": list(spec.sources), "kind": spec.kind, "arch": spec.arch,
                  "defines": dict(spec.defines), "flags": list(spec.flags), "root": str(spec.root)}
    key = (target.arch, target.cu_num, *normalised(op.name, op.tune_fields, op.tune_key(*args)))
    return Trial(backend.name, candidate.kernel, dict(sorted(candidate.params.items())), op.revision(candidate, key),
                 backend.toolchain(target.platform), module)


def _identity(backend: Backend, trial: Trial) -> tuple:
    """A module's kernel name says which instance it is; elsewhere parameters reach the kernel at run time."""
    if backend.is_jit and backend.kernels is None:
        return trial.backend, trial.kernel
    return trial.backend, trial.kernel, tuple(trial.params.items())


def _find(found: dict[tuple, Trial], op: Op, target: Target, args: tuple, candidate: Candidate) -> Trial:
    """The trial of a candidate that select names; a row's own parameters may lie outside the backend's space."""
    trial = _trial(op, candidate, target, args)
    return found.setdefault(_identity(candidate.backend, trial), trial)
