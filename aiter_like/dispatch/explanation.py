# SPDX-License-Identifier: MIT
"""`explain`: which backend would serve a call, which others would, and what tuned rows say. Nothing is built or run.

A public function is called as usual; its operators see the `Recorder` in the selector and describe instead of running.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from aiter_like import env
from aiter_like.device import Target
from aiter_like.dispatch.backend import Backend, Candidate
from aiter_like.dispatch.declaration import Declaration
from aiter_like.dispatch.selection import Request, Selection, refusal
from aiter_like.dispatch.table import Row, is_amount, normalised
from aiter_like.errors import BuildError
from aiter_like.traced import Trace

# Applies to the calls of this context: a backend's name (use_backend), a Recorder (explain), or None.
selector: ContextVar[Any] = ContextVar("aiter_like_selector", default=None)


@dataclass(frozen=True)
class RowNote:
    """The relation of a tuned row to a call.

    Attributes:
        source: file:line.
        state: "used"; "stale", "ignored" or "behind", of a row for this very key; "nearest", of one for another key
            where none is used.
        text: kernel and parameters, the time and whether it is measured or modelled, what its key has that the call has
            not, and why it is not used.
    """

    source: str
    state: str
    text: str

    def __str__(self) -> str:
        return f"{self.state}: {self.source}: {self.text}"


@dataclass(frozen=True)
class Explanation:
    """How one operator would serve a call.

    Attributes:
        op: the operator.
        target: where its kernels run.
        key: its tune key; None where it has none.
        backend: the chosen backend; None when every one refuses, or when nothing is to be computed (empty tensors).
        kernel: its kernel; for a compiled module with the instance in brackets.
        params: the tuned row's parameters.
        source: where the choice comes from: `tuned: file:line`, `tuned, modelled: file:line`, `heuristic: …`,
            `forced: …`.
        rejected: every other backend → the reason, those behind the chosen one in the order included.
        accepts: every backend → why it could not serve the call if it was asked for, or None: it could.
        rows: the tuned rows that speak of the call, or the nearest.
        conditions: of the arguments' numbers and addresses: what the decision asked. A call for which they hold, and
            whose dtypes, ranks, flags and devices are the same, is of this call's class: it is served without another
            decision, and one for which they do not is decided anew.
    """

    op: str
    target: Target
    key: Mapping[str, int | str] | None
    backend: str | None
    kernel: str
    params: Mapping[str, Any]
    source: str
    rejected: Mapping[str, str]
    accepts: Mapping[str, str | None] = field(default_factory=dict)
    rows: tuple[RowNote, ...] = ()
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        simulated = ", simulated" if self.target.simulated else ""
        lines = [f"{self.op} on {self.target.arch} ({self.target.platform}, {self.target.cu_num} CUs{simulated})"]
        if self.key:
            lines.append("  key      " + " ".join(f"{name}={value}" for name, value in self.key.items()))
        if self.conditions:
            lines.append(f"  class    {', '.join(self.conditions)}")
        lines += [f"  backend  {self.backend or 'none'}", f"  source   {self.source}"]
        if self.kernel:
            lines.insert(-1, f"  kernel   {self.kernel}")
        if self.params:
            lines.insert(-1, "  params   " + ";".join(f"{name}={value}" for name, value in self.params.items()))
        for name, reason in self.accepts.items():
            verdict = "serves the call" if name == self.backend else f"would serve it, but {self.rejected[name]}"
            lines.append(f"    {name:7}{verdict if reason is None else f'cannot serve it: {reason}'}")
        lines += [f"  row      {row}" for row in self.rows]
        if self.key and not self.rows:
            lines.append(f"  row      none for {self.target.arch} with {self.target.cu_num} CUs")
        return "\n".join(lines)


@dataclass(eq=False)
class Recorder:
    """Collects the explanations of one `explain` call; `outer` is the backend that use_backend forces around it."""

    outer: str | None
    found: list[Explanation] = field(default_factory=list)


def explain(function: Callable, *args: Any, **kwargs: Any) -> Explanation | tuple[Explanation, ...]:
    """Says which backend and kernel would serve `function(*args, **kwargs)`, why, and why not the others.

    Args:
        function: a public operator such as `aiter_like.rms_norm`. Its outputs are allocated, not written.

    Returns:
        An Explanation; a tuple of them where the function is made of several operators.

    Raises:
        ValueError, TypeError: what the call itself would raise for its arguments.
        ValueError: the function reached no operator of this package.
    """
    outer = selector.get()
    recorder = Recorder(outer.outer if isinstance(outer, Recorder) else outer)
    token = selector.set(recorder)
    try:
        function(*args, **kwargs)
    finally:
        selector.reset(token)
    if not recorder.found:
        raise ValueError(f"explain: {getattr(function, '__name__', function)} reached no operator of aiter_like")
    return recorder.found[0] if len(recorder.found) == 1 else tuple(recorder.found)


def describe(op: Declaration, request: Request, selection: Selection) -> Explanation:
    """The explanation of a selection: what would run first, what else could, and what tuned rows say."""
    rejected, chosen, target = dict(selection.refused), None, request.target
    for candidate in selection.candidates:
        name = candidate.backend.name
        reason = None if chosen else _not_buildable(target, candidate.backend)
        if chosen is None and reason is None:
            chosen = candidate
        elif chosen is None or name != chosen.backend.name:
            rejected.setdefault(name, reason or f"it comes after {chosen.backend.name}")
    if chosen is not None:
        rejected.pop(chosen.backend.name, None)
    accepts = {backend.name: _verdict(op, backend, request) for backend in op.backends}
    rows = tuple(_rows(op, request, selection, chosen)) if selection.key is not None else ()
    if chosen is None:
        return Explanation(op.name, target, selection.key, None, "", {}, "every backend refuses", rejected, accepts,
                           rows)
    return Explanation(op.name, target, selection.key, chosen.backend.name, chosen.kernel, dict(chosen.params),
                       chosen.source, rejected, accepts, rows)


def _verdict(op: Declaration, backend: Backend, request: Request) -> str | None:
    """Why a backend could not serve the call, whatever the order and whoever is forced; None: it could."""
    failed = (why for (name, _, target), why in op.failures.items() if (name, target) == (backend.name, request.target))
    return (refusal(op, backend, replace(request, forced=None, forced_by="")) or next(failed, None)
            or _not_buildable(request.target, backend))


def _not_buildable(target: Target, backend: Backend) -> str | None:
    """Why a module that may have to be built cannot be: no compiler. Prebuilt directories are taken at their word."""
    if not backend.is_jit or env.get("AITER_LIKE_PREBUILT_DIR"):
        return None
    from aiter_like.modules import toolchain

    try:
        toolchain.find(target.platform)
    except BuildError as error:
        return str(error)
    return None


def conditions(trace: Trace, fields: Sequence[str]) -> tuple[str, ...]:
    """The questions that a call was asked, in the words of its fields."""

    def worded(text: str) -> str:
        def name(match: re.Match) -> str:
            word = match[0]
            if word in expressions:
                return f"({worded(expressions[word])})"
            if word in trace.constants:
                value = trace.constants[word]
                return getattr(getattr(value, "func", value), "__name__", repr(value))
            leaf = re.fullmatch(r"(arg|[sta])(\d+)(?:_(\d+))?", word)
            if leaf is None:
                return word
            field = fields[int(leaf[2])]
            return {"arg": field, "s": f"{field}.shape[{leaf[3]}]", "t": f"{field}.stride({leaf[3]})",
                    "a": f"{field}.data_ptr()"}[leaf[1]]

        return re.sub(r"[a-z]\w*", name, text)

    steps = [*trace.steps()]
    expressions = {name: text for name, text, _ in steps if name}
    exact = [f"{worded(leaf)} == {value!r}" for leaf, value in trace.exact.items()]
    return (*exact, *(worded(text) for name, text, _ in steps if not name))


# ---- tuned rows


def _rows(op: Declaration, request: Request, selection: Selection, chosen: Candidate | None) -> Iterator[RowNote]:
    """The rows of the call's key, and the nearest of all where none of them is used."""
    backends = {backend.name: backend for backend in op.backends}
    problems = {source: str(problem).removeprefix(f"{source}: ") for problem in op.table.problems
                if (source := str(problem).partition(": ")[0]) in op.bad_rows}
    device = (request.target.arch, request.target.cu_num)
    key = normalised(op.name, op.tune_fields, selection.key)
    matching = list(op.table.matching(*device, selection.key))
    used = chosen.row if chosen is not None else None
    for row in matching:
        stale = backends[row.backend].staleness(row)
        if row is used:
            state, why = "used", ""
        elif row.source in op.bad_rows:
            state, why = "ignored", problems.get(row.source, "it does not fit its kernel")
        elif stale is not None:
            state, why = "stale", stale
        elif row.backend in selection.refused:
            state, why = "ignored", f"{row.backend}: {selection.refused[row.backend]}"
        else:
            state, why = "behind", "another row goes before it"
        yield _note(op, row, state, key, why)
    others = [row for row in op.table.rows() if row.key[:2] == device and row not in matching
              and row.source not in op.bad_rows and backends[row.backend].staleness(row) is None]
    others = [row for row in others if _is_same_kind(op.tune_fields, row.key[2:], key)]
    if used is None and others:
        yield _note(op, min(others, key=lambda row: _distance(op.tune_fields, row.key[2:], key)), "nearest", key, "")


def _note(op: Declaration, row: Row, state: str, key: tuple, why: str) -> RowNote:
    params = ";".join(f"{name}={value}" for name, value in row.params.items())
    others = ", ".join(f"{name}={theirs} for {ours}" for name, theirs, ours in zip(op.tune_fields, row.key[2:], key)
                       if theirs != ours)
    kernel = " ".join(filter(None, (row.backend, row.kernel, params)))
    return RowNote(row.source, state, "; ".join(filter(None, (kernel, row.figure, others, why))))


def _is_same_kind(fields: tuple[str, ...], theirs: tuple, ours: tuple) -> bool:
    """Whether a row may tell of the same kernel: it differs in amounts alone, of which 0 says that something is not
    there."""
    return all(one == other or is_amount(name) and one and other for name, one, other in zip(fields, theirs, ours))


def _distance(fields: tuple[str, ...], theirs: tuple, ours: tuple) -> float:
    """Distance of two keys of one kind: the sum of their amounts' ratios, in powers of two."""
    return sum(abs(math.log2(abs(one / other))) for name, one, other in zip(fields, theirs, ours)
               if is_amount(name) and one and other)
