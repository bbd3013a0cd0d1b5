# SPDX-License-Identifier: MIT
"""Declaration: what an operator is, as data. OPS has every one of them; op.py makes it callable."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from aiter_like import env
from aiter_like.call import with_fields
from aiter_like.device import Target
from aiter_like.dispatch import table
from aiter_like.dispatch.backend import Backend, Candidate
from aiter_like.dispatch.kinds import check_kinds, check_shapes
from aiter_like.dispatch.registry import OPS
from aiter_like.dispatch.surroundings import into_inference_tensors, with_defaults, without_autocast
from aiter_like.dispatch.tuning import calls_of, columns_of, tuning_of
from aiter_like.errors import did_you_mean

_log = logging.getLogger("aiter_like")

SKIP = object()
"""An operator's `check` returns this when nothing is to be computed, as for empty tensors."""


class Declaration:
    """An operator as data.

    Attributes:
        name: also the stem of its files and the name in `torch.ops.aiter_like`.
        call: its call object, a NamedTuple: the operator's arguments in the order of the built functions, with
            annotations and defaults (call.py). The functions below are declared with a call object as argument and
            are kept as functions of its fields by position.
        reference: of (call): the torch implementation, which writes the outputs.
        backends: in order of preference.
        prefers: of (target, call): the name of the backend that goes before that order, or None.
        check: of (call): raises ValueError or TypeError; returns SKIP when nothing is to be computed.
        key: what tuned rows are chosen by, a NamedTuple with `of` and `make` (dispatch/tuning.py); None: it cannot be
            tuned. `tune_key` is its `of` as a dict with the names `tune_fields`; `tuning` has its other methods.
        round_field: the field that is rounded up where no row has its exact value (dispatch/table.py).
        writes: names of the arguments that are written.
        in_place: output → inputs that it may be: each element is read by whoever writes it, before that. Any other
            memory that an output shares with an argument is refused (addresses.py).
        cases: a few small calls by name that together reach every kernel of every compiled backend: keys, (key, options
            of its `make`), or a function of the device that makes the calls. Each
            is what a kernel must pass on hardware before its first automatic use (dispatch/self_check.py), and what
            verify, prebuilding and the tests over all operators run.
        traffic: of (call): (bytes, flops) that the operation needs; default: each tensor once, no flops.
        scratch: names of written arguments that are memory for the kernels, and no result.
        sums_in_fp32: nothing between inputs and results is rounded to fewer bits than fp32 has: the self-check then
            allows what results of their dtype are rounded by, however coarse the dtypes of inputs are.
        home: the module that declares it.
        public: the public functions made of it (torch_ops.register).
        failures: (backend, kernel, target) → why it is out of use in this process.
        bad_rows: tuned rows that turned out not to fit (file:line).
    """

    def __init__(self, name: str, *, call: type, reference: Callable[..., None],
                 backends: Sequence[Backend], prefers: Callable[..., str | None] | None = None,
                 check: Callable[..., Any] | None = None, key: type | None = None,
                 round_field: str | None = None, writes: Sequence[str] = ("out",),
                 in_place: Mapping[str, Sequence[str]] = MappingProxyType({}),
                 cases: Callable[[torch.device], Mapping[str, tuple]] | Mapping[str, Any] | None = None,
                 sums_in_fp32: bool = False, traffic: Callable[..., tuple[int, int]] | None = None,
                 scratch: Sequence[str] = ()):
        cases = calls_of(cases) if isinstance(cases, Mapping) else cases
        if name in OPS.declared:
            raise ValueError(f"operator {name} exists already")
        self.tune_fields: tuple[str, ...] = () if key is None else key._fields
        if round_field not in (None, *self.tune_fields):
            raise ValueError(f"{name}: its key has no field {round_field} to round")
        if len({backend.name for backend in backends}) != len(backends):
            raise ValueError(f"{name}: two backends with one name")
        self.home = sys._getframe(2).f_globals["__name__"]
        self.name, self.call, self.cases, self.sums_in_fp32 = name, call, with_defaults(cases), sums_in_fp32
        self.reference = without_autocast(with_fields(call, reference))
        self.prefers = with_fields(call, prefers, before=1)
        self.check = with_fields(call, check)
        self.tune_key = with_fields(call, None if key is None else lambda call: columns_of(key.of(call)))
        self.backends = tuple(backend.taking_fields(call) for backend in backends)
        self.round_field, self.writes = round_field, tuple(writes)
        self.tuning = None if key is None else tuning_of(key, with_fields(call, traffic), scratch)
        self.write_indices = tuple(call._fields.index(written) for written in writes)
        place = call._fields.index
        self.backends = tuple(
            replace(backend, function=into_inference_tensors(backend.function, self.write_indices))
            if backend.name == "torch" else backend for backend in self.backends)
        self.in_place = frozenset((place(out), place(one)) for out, inputs in in_place.items() for one in inputs)
        self.result_indices = tuple(index for name, index in zip(writes, self.write_indices) if name not in scratch)
        self.public: list[Callable] = []
        self.failures: dict[tuple[str, str, Target], str] = {}
        self.bad_rows: set[str] = set()
        self._reported: set[Any] = set()
        OPS.declared[name] = self

    def __repr__(self) -> str:
        return f"<operator {self.name}: {', '.join(backend.name for backend in self.backends)}>"

    @functools.cached_property
    def table(self) -> table.Table:
        """The tuned rows, read when first asked for."""
        kernels = {backend.name: backend.fixed_kernels() for backend in self.backends}
        return table.load(self.name, self.tune_fields, kernels, self.round_field)

    def is_empty(self, args: tuple) -> bool:
        """Checks the arguments, but for what is written; whether there is nothing to compute.

        Raises:
            ValueError, TypeError: an argument is wrong.
        """
        check_kinds(self.name, self.call, args)
        check_shapes(self.name, self.call, args, self.write_indices)
        return self.check is not None and self.check(*args) is SKIP

    def staleness(self, row: table.Row) -> str | None:
        """Why a tuned row no longer speaks of its kernel, or None: also where the kernel would be launched otherwise.
        No call asks that, for within a moment tensors of the CPU count as the row's device."""
        backend = self.backend(row.backend)
        if (reason := backend.staleness(row)) is not None or "-" not in row.kernel_rev:
            return reason
        here = self.revision(Candidate(backend, row.kernel, row.params, row.source), row.key)
        is_known = here in (row.kernel_rev, row.kernel_rev.partition("-")[0])
        return None if is_known else f"it timed {row.kernel_rev} of kernel and launch, this is {here}"

    def revision(self, candidate: Candidate, key: Sequence[Any]) -> str:
        """The kernel_rev of a tuned row with this key: what the kernel runs and, where that can be told without data,
        how it is launched (dispatch/launched.py)."""
        from aiter_like.dispatch import launched  # no call needs it

        arch, cu_num, *values = key
        text = candidate.backend.revision("hip" if arch.startswith("gfx") else "cuda")
        if not text or self.tuning is None:
            return text
        key = dict(zip(self.tune_fields, values))
        return "-".join(filter(None, (text, launched.launch_revision(candidate, self.tuning, key, arch, cu_num))))

    def backend(self, name: str) -> Backend:
        """The backend of a name."""
        return next(backend for backend in self.backends if backend.name == name)

    def tell_once(self, what: Any, message: str, *values: Any) -> None:
        """A warning that is given once about `what`."""
        if what not in self._reported:
            self._reported.add(what)
            _log.warning(message, *values)


def find_op(op: Declaration | str | Callable) -> Declaration:
    """The operator of a name, of a public function, or itself.

    Raises:
        ValueError: there is none.
    """
    if isinstance(op, str) and op in OPS:
        return OPS[op]
    op = getattr(op, "__wrapped__", op)
    for candidate in OPS.values():
        if op is candidate or candidate.name in (op, getattr(op, "__name__", None)) or op in candidate.public:
            return candidate
    name = getattr(op, "__name__", op)
    raise ValueError(f"{name} is no operator of aiter_like{did_you_mean(name, OPS.names())}; known: {', '.join(OPS)}")


@functools.cache
def tell_unknown_disabled() -> None:
    """Once per process, when an operator first runs: warns about names in AITER_LIKE_DISABLE that are no operators.

    Where engines' functions are taken, that is integrations/takeover.py's business: it knows their names too.
    """
    if "aiter_like.integrations.takeover" not in sys.modules:
        for name in env.get("AITER_LIKE_DISABLE"):
            if name not in OPS:
                _log.warning("AITER_LIKE_DISABLE: %r is no operator%s", name, did_you_mean(name, OPS.names()))
