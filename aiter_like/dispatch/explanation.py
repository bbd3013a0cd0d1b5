# SPDX-License-Identifier: MIT
"""`explain`: which backend would serve a call, and why not the others. Nothing is built or launched.

A public function is called as usual; its operators see the `Recorder` in the selector and describe instead of running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiter_like import env
from aiter_like.device import Target
from aiter_like.dispatch.backend import Candidate
from aiter_like.dispatch.declaration import Declaration
from aiter_like.dispatch.selection import Selection
from aiter_like.errors import BuildError

# What applies to the calls of this context: a backend's name (use_backend), a Recorder (explain), or None.
selector: ContextVar[Any] = ContextVar("aiter_like_selector", default=None)


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
        source: where the choice comes from: `tuned: file:line`, `heuristic: …`, `forced: …`.
        rejected: every other backend → the reason, those behind the chosen one in the order included.
    """

    op: str
    target: Target
    key: Mapping[str, int | str] | None
    backend: str | None
    kernel: str
    params: Mapping[str, Any]
    source: str
    rejected: Mapping[str, str]

    def __str__(self) -> str:
        simulated = ", simulated" if self.target.simulated else ""
        lines = [f"{self.op} on {self.target.arch} ({self.target.platform}, {self.target.cu_num} CUs{simulated})"]
        if self.key:
            lines.append("  key      " + " ".join(f"{name}={value}" for name, value in self.key.items()))
        lines += [f"  backend  {self.backend or 'none'}", f"  source   {self.source}"]
        if self.kernel:
            lines.insert(-1, f"  kernel   {self.kernel}")
        if self.params:
            lines.insert(-1, "  params   " + ";".join(f"{name}={value}" for name, value in self.params.items()))
        lines += [f"  not      {name}: {reason}" for name, reason in self.rejected.items()]
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


def describe(op: Declaration, target: Target, selection: Selection) -> Explanation:
    """The explanation of a selection: what would run first, and a reason for all others."""
    rejected, chosen = dict(selection.refused), None
    for candidate in selection.candidates:
        name = candidate.backend.name
        reason = None if chosen else _not_buildable(target, candidate)
        if chosen is None and reason is None:
            chosen = candidate
        elif chosen is None or name != chosen.backend.name:
            rejected.setdefault(name, reason or f"comes after {chosen.backend.name}")
    if chosen is None:
        return Explanation(op.name, target, selection.key, None, "", {}, "every backend refuses", rejected)
    rejected.pop(chosen.backend.name, None)
    return Explanation(op.name, target, selection.key, chosen.backend.name, chosen.kernel, dict(chosen.params),
                       chosen.source, rejected)


def _not_buildable(target: Target, candidate: Candidate) -> str | None:
    """Why a module that may have to be built cannot be: no compiler. Prebuilt directories are taken at their word."""
    if not candidate.backend.is_jit or env.get("AITER_LIKE_PREBUILT_DIR"):
        return None
    from aiter_like.build import toolchain

    try:
        toolchain.find(target.platform)
    except BuildError as error:
        return str(error)
    return None
