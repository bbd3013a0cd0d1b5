# SPDX-License-Identifier: MIT
"""Judges a candidate: does it write what the reference says? In float64 where the reference can; outputs poisoned.

Read by worker.py and bench.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

_WIDENED = (torch.bfloat16, torch.float16, torch.float32)
_OWN = 4.0  # times the reference's own error in the call's dtypes: room for another order and rounding of the sums
_SUMS = 8.0  # units of fp32: for sums in fp32 where the reference makes wider ones, whatever the dtypes
_FEW = 0.01  # part of 8-bit integers that may differ: they round to the other side of a tie


@dataclass(frozen=True)
class Output:
    """The expected values of one output.

    Attributes:
        is_kept: the operator also reads it, or leaves parts of it as they are: it cannot be poisoned.
        own: error of the reference itself in the call's dtypes.
    """

    index: int
    expected: Tensor
    is_kept: bool
    own: float


@dataclass(frozen=True)
class Case:
    """A call and what it must write.

    Attributes:
        is_exact: the reference ran in float64.
    """

    args: tuple
    outputs: tuple[Output, ...]
    is_exact: bool

    def fresh(self) -> tuple:
        """The arguments with outputs of their own: poisoned, or copies where the operator reads them."""
        args = list(self.args)
        for output in self.outputs:
            source = self.args[output.index]
            args[output.index] = source.clone() if output.is_kept else poisoned(source)
        return tuple(args)

    def fault(self, args: tuple) -> tuple[float, str | None]:
        """(largest error, why `args`, after the call, are not what the reference says, or None)."""
        errors, reason = [0.0], None
        for output in self.outputs:
            error, fault = difference(args[output.index], output.expected, output.own)
            errors.append(error)
            reason = reason or fault
        return max(errors), reason


def poisoned(tensor: Tensor) -> Tensor:
    """A tensor like it, full of NaN (integers: all bits set), so that what is not written shows."""
    fresh = torch.empty_like(tensor)
    if tensor.element_size() == 1 and tensor.is_floating_point():
        fresh.view(torch.uint8).fill_(0x80 if "fnuz" in str(tensor.dtype) else 0xFF)
    else:
        fresh.fill_(math.nan if tensor.is_floating_point() else True if tensor.dtype == torch.bool else -1)
    return fresh


def case(op: Op, key: Mapping[str, Any], device: torch.device, seed: int = 0) -> Case:
    """A call with this tune key, judged by the reference.

    Raises:
        ValueError: the operator's `tuning.case` makes a call with another key.
        RuntimeError: the reference does not run, for want of memory for instance.
    """
    args = op.tuning.case(key, device, seed)
    got = {name: int(value) if isinstance(value, bool) else value for name, value in op.tune_key(*args).items()}
    if got != dict(key):
        raise ValueError(f"{op.name}: the tuning case for {dict(key)} has the key {got}")
    return of_call(op, args)


def of_call(op: Op, args: tuple) -> Case:
    """A call, judged by the reference.

    Raises:
        RuntimeError: the reference does not run, for want of memory for instance.
    """
    indices = [index for index in op.result_indices if args[index] is not None]
    plain, is_exact = _run(op, args, indices, [])
    kept = [index for index in indices if _differ(plain, _run(op, args, indices, [index])[0])] if _differ(
        plain, _run(op, args, indices, indices)[0]) else []
    native = _native(op, args, indices)
    return Case(args, tuple(Output(index, plain[index], index in kept, _relative(native[index], plain[index]))
                            for index in indices), is_exact)


def _differ(plain: dict[int, Tensor], marked: dict[int, Tensor]) -> bool:
    """Whether poison has come through: a call reads what was poisoned, or leaves parts of it."""
    return not all(torch.equal(one.double().isnan(), marked[index].double().isnan())
                   and (one.is_floating_point() or torch.equal(one, marked[index])) for index, one in plain.items())


def check(made: Case, function: Callable[..., Any]) -> tuple[float, str | None]:
    """Calls `function` on fresh outputs; as `Case.fault`."""
    args = made.fresh()
    with torch.no_grad():
        function(*args)
    return made.fault(args)


def _run(op: Op, args: tuple, indices: list[int], poison: list[int]) -> tuple[dict[int, Tensor], bool]:
    """Runs the reference, in float64 where it takes that, those of `poison` poisoned. Returns its outputs, and whether
    it took float64."""
    for widen in (True, False):
        fresh = [poisoned(arg) if index in poison else arg for index, arg in enumerate(args)]
        fresh = [arg.double() if widen and isinstance(arg, Tensor) and arg.dtype in _WIDENED
                 else arg.clone() if index in indices else arg for index, arg in enumerate(fresh)]
        try:
            with torch.no_grad():
                op.reference(*fresh)
        except (RuntimeError, TypeError, ValueError):  # no float64 in it, or no memory for that
            if not widen:
                raise
            continue
        return {index: fresh[index] for index in indices}, widen
    raise AssertionError("unreachable")


def _native(op: Op, args: tuple, indices: list[int]) -> dict[int, Tensor]:
    fresh = [arg.clone() if index in indices else arg for index, arg in enumerate(args)]
    with torch.no_grad():
        op.reference(*fresh)
    return {index: fresh[index] for index in indices}


def difference(got: Tensor, expected: Tensor, own: float) -> tuple[float, str | None]:
    """(error, what is wrong): the error relative to the expected values as a whole, the part that differs of 8-bit
    integers; other integers must be equal.
    """
    if not got.is_floating_point():
        part = (got != expected).double().mean().item() if got.numel() else 0.0
        return part, None if part <= limit(got, own) else f"{part:.3%} of the integers differ"
    error, most = _relative(got, expected), limit(got, own)
    if not error <= most:
        return error, (f"relative L2 error {error:.3g}, limit {most:.3g}" if error < math.inf else "NaN or Inf differ")
    finite = expected.double().isfinite()
    largest = expected.double()[finite].abs().max().item() if bool(finite.any()) else 0.0
    worst = (got.double()[finite] - expected.double()[finite]).abs().max().item() if largest else 0.0
    most = (most + _unit(got)) * largest
    return error, None if worst <= most else f"max abs error {worst:.3g}, limit {most:.3g}"


def limit(got: Tensor, own: float) -> float:
    """The largest error of `difference` that is right, where the reference's is `own`."""
    if got.is_floating_point():
        return _OWN * own + _unit(got)
    return _FEW if got.element_size() == 1 and got.dtype != torch.bool else 0.0


def _unit(got: Tensor) -> float:
    return torch.finfo(got.dtype).eps * (_SUMS if got.dtype == torch.float32 else 1.0)


def _relative(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖ / ‖expected‖ over finite elements; infinite where NaN or infinities differ."""
    got, expected = got.double(), expected.double()
    finite = expected.isfinite()
    same = (got == expected) | (got.isnan() & expected.isnan())
    if not bool((same | finite).all()) or not bool(got[finite].isfinite().all()):
        return math.inf
    difference = (got[finite] - expected[finite]).norm().item()
    return difference / max(expected[finite].norm().item(), torch.finfo(torch.float32).tiny) if difference else 0.0
