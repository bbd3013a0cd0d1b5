# SPDX-License-Identifier: MIT
"""Tuned rows that do not fit their kernel: found when a call is decided, bound or first run; then the row is ignored
and the call goes on with the next choice. Used by selection.py and op.py. Beside them is_tuned, which asks for a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from aiter_like import device
from aiter_like.device import Target
from aiter_like.dispatch.backend import Backend
from aiter_like.dispatch.declaration import Declaration, find_op
from aiter_like.dispatch.table import Row
from aiter_like.errors import AddressError, BuildError, SimulatorError, TuningError

_FAR = 4  # times the largest value that the tuner tries, or that part of the smallest

logger = logging.getLogger("aiter_like")


def drop_row(op: Declaration, row: Row, why: Exception | str) -> None:
    """Takes a row out of use, with one warning."""
    if row.source in op.bad_rows:  # another thread has done it
        return
    op.bad_rows.add(row.source)
    if isinstance(why, BuildError) and not why.command:  # no compiler has run
        why = f"{row.kernel} cannot be built here: {str(why).partition(chr(10))[0]}"
    elif isinstance(why, Exception):
        why = f"params do not fit {row.kernel}: {_first_line(why)}"
    problem = TuningError(f"{row.source}: {why}")
    op.table.problems.append(problem)
    logger.warning("tuned row ignored: %s", problem)


def fits(op: Declaration, backend: Backend, row: Row, target: Target, args: tuple, real: tuple) -> bool:
    """Whether a row's kernel can serve the call and takes the row's parameters, as far as that shows before a build;
    a row whose does not is dropped. real: the arguments, of which `args` may be stand-ins.
    """
    try:
        known = backend.kernel_names(target, real, row.params)
        known = known if args is real else backend.kernel_names(target, args, row.params)
    except Exception as error:  # each kernel refuses parameters in its own way
        logger.debug("%s: %s", row.source, row.kernel, exc_info=True)
        drop_row(op, row, error)
        return False
    if row.kernel not in known:
        drop_row(op, row, f"kernel must be one of {', '.join(known)} for this call, got {row.kernel!r}")
        return False
    if strange := _strange(backend, row, target, real):
        drop_row(op, row, strange)
    return not strange


def _strange(backend: Backend, row: Row, target: Target, args: tuple) -> str:
    """Names a parameter that is far from all that the tuner would try, "" where none is: some compilers take an hour,
    or all memory, for 33 stages.
    """
    tried: dict[str, list[int]] = {}
    for trial in backend.space(target, *args) if backend.space is not None else ():
        for name, value in trial.items():
            if type(value) is int:
                tried.setdefault(name, []).append(value)
    for name, values in tried.items():
        value, low, high = row.params.get(name, values[0]), min(values) // _FAR, max(values) * _FAR
        if type(value) is not int or not low <= value <= high:
            return f"{name} must be an integer from {low} to {high}, got {str(value).lower()}"
    return ""


def has_run(error: Exception) -> bool:
    """Whether a row's first call failed for other reasons than its parameters: an address, memory, or a fault in a
    kernel that has run and may have written. Much of what parameters can have wrong shows only at the first launch.
    """
    is_fault = isinstance(error, SimulatorError) and any(not report["refused"] for report in error.reports)
    return is_fault or isinstance(error, (AddressError, torch.OutOfMemoryError))


def is_tuned(op: Declaration | str | Callable, *, arch: str = "gfx942", cu_num: int | None = None,
             **key: int | str) -> bool:
    """Whether a tuned row, exact or rounded, serves a key.

    Args:
        op: a public function, or the operator's name.
        arch: the architecture; its CU count comes from configs/<arch>/device.toml unless given.
        key: the operator's key fields.

    Raises:
        ValueError: not an operator of this package, or the key has other fields than the operator's.
    """
    found = find_op(op)
    if cu_num is None:
        cu_num = device.arch_facts(arch).cu_num

    def serves(row: Row) -> bool:
        return row.source not in found.bad_rows and found.backend(row.backend).staleness(row) is None

    return found.table.find(arch, cu_num, key, serves) is not None


def _first_line(error: BaseException) -> str:
    """The type and first line of the error that was raised first: Triton's own begins with lines of the kernel."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
