# SPDX-License-Identifier: MIT
"""A decision comes to a plan: statements that serve calls of its class, and what serves the first of them at once. Used
by op.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aiter_like.dispatch.classes import parameters
from aiter_like.dispatch.declaration import Declaration
from aiter_like.dispatch.table import Row
from aiter_like.dispatch.torch_ops import each_tensor
from aiter_like.dispatch.tuned_rows import has_run
from aiter_like.traced import Trace, Untraceable, text_in

_ALIGNMENT = 256  # bytes: torch's allocator aligns memory to so many, and more is asked of no scratch


@dataclass(frozen=True)
class Plan:
    """How calls of a class are served.

    Attributes:
        first: serves the call that was decided, of its arguments.
        statements: serve any call of the class; they see `used`, the leaves of the trace and `parameters(…)`.
        row: the tuned row that it follows.
        is_final: it holds for later calls too.
        is_empty: nothing is computed, so that no address counts.
    """

    first: Callable[[tuple], None]
    statements: Sequence[str]
    used: Mapping[str, Any]
    row: Row | None = None
    is_final: bool = True
    is_empty: bool = False

    def run(self, op: Declaration, args: tuple) -> Exception | None:
        """Serves the call that was decided; where its row's parameters turn out not to fit, why."""
        try:
            self.first(args)
        except Exception as error:
            if self.row is None or has_run(error):
                raise
            return error
        if not self.is_empty:
            torch.autograd.graph.increment_version(tuple(each_tensor(args[index] for index in op.write_indices)))
        return None


def plan_of(op: Declaration, function: Callable | None, fields: tuple, trace: Trace, is_simulated: bool = False,
            row: Row | None = None) -> Plan:
    """The plan of calls that `function` serves; on the simulated device with its errors, and through its checkers
    whenever they are on. fields: stand-ins, or arguments of calls that have these sizes alone.
    """
    if function is None:
        return Plan(lambda args: None, (), {}, row)
    names = parameters(len(fields))
    passed = ", ".join(names)
    used: dict[str, Any] = {"function": function, "tell_written": torch.autograd.graph.increment_version}
    statements, first = [f"function({passed})"], (lambda args: function(*args))
    if hasattr(function, "launches") and trace.fields is fields:
        try:
            launches = [launch.planned(trace) for launch in function.launches(fields)]
        except Untraceable as why:
            trace.untraced = str(why)
        else:
            launched = [*_allocation(trace, used), *(launch.statement for launch in launches)]
            statements = _on_this_device(launched, statements, trace, used)
            starts = [launch.first for launch in launches]
            first = functools.partial(_start, starts)
    if is_simulated:
        from aiter_like.sim import seam

        used |= {"checking": seam.checking, "checked_call": functools.partial(_checked_call, op, function),
                 "raise_failure": functools.partial(_raise_failure, op.name)}
        statements = [f"if checking(): checked_call(({passed},))", "else:", "    try:",
                      *(f"        {one}" for one in statements or ["pass"]),
                      "    except RuntimeError as error: raise_failure(error)"]
        first = functools.partial(_first_simulated, op, function, first)
    written = "".join(f"{names[index]}, " if isinstance(fields[index], Tensor) else f"*{names[index]}, "
                      for index in op.write_indices if isinstance(fields[index], (Tensor, tuple, list)))
    # Tells autograd which tensors have changed: it may have saved them.
    return Plan(first, [*statements, *[f"tell_written(({written}))"] * bool(written)], used, row)


def _on_this_device(launched: list[str], otherwise: list[str], trace: Trace, used: dict[str, Any]) -> list[str]:
    """A loaded kernel is one device's, and it is launched on the current one: where there are several, that is asked.
    """
    device = next(iter(trace.fields[index] for index in trace.ranks)).device
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        return launched
    used["current_device"] = torch.cuda.current_device
    return [f"if current_device() != {torch.cuda.current_device()}: {otherwise[0]}", "else:",
            *(f"    {one}" for one in launched or ["pass"])]


def _allocation(trace: Trace, used: dict[str, Any]) -> list[str]:
    """Statements: one allocation for all memory that the launches ask for."""
    if not trace.allocated:
        return []
    used |= {"empty": torch.empty, "uint8": torch.uint8, "device": trace.allocated[0].device}
    ends, place = [], "m0"
    for index, memory in enumerate(trace.allocated, 1):
        ends.append(f"m{index} = {place} + ({text_in(trace, memory.nbytes + (_ALIGNMENT - 1))} & {-_ALIGNMENT})")
        place = f"m{index}"
    return ["m0 = 0", *ends, f"memory = empty({place}, dtype=uint8, device=device)", "m0 = memory.data_ptr()",
            *ends[:-1]]


def _start(starts: list[Callable[[], None]], args: tuple) -> None:
    for start in starts:
        start()
    starts.clear()  # They hold the call's tensors.


def _first_simulated(op: Declaration, function: Callable, first: Callable[[tuple], None], args: tuple) -> None:
    from aiter_like.sim import seam

    if seam.checking():
        _checked_call(op, function, args)
        return
    try:
        first(args)
    except RuntimeError as error:
        _raise_failure(op.name, error)


def _checked_call(op: Declaration, function: Callable, args: tuple) -> None:
    from aiter_like.sim import seam

    seam.checked_call(op.name, function, args, op.write_indices)


def _raise_failure(op: str, error: RuntimeError) -> None:
    """Raises what the simulated device has to say of an error of a launch, or the error itself."""
    from aiter_like.sim import seam

    failure = seam.as_error(op, error)
    if failure is error:
        raise error
    raise failure from error
