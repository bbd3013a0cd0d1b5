# SPDX-License-Identifier: MIT
"""What a plan is: the function that serves a call, behind the checks that come with every call. Used by op.py."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aiter_like.call import handing_on
from aiter_like.dispatch.addresses import AddressCheck, parameters
from aiter_like.dispatch.declaration import Declaration


def checked(op: Declaration, function: Callable, args: tuple, is_simulated: bool = False, of_addresses: bool = True,
            refusal: Callable[..., str | None] | None = None) -> Callable:
    """`function` of arguments with the metadata of `args`, behind the check of their addresses, the backend's `refusal`
    of them included; on the simulated device with its errors, and through its checkers whenever they are on.

    All in one function, as each more would cost the host 0.1 µs per call. Its attribute `text` is its statements and
    what they name; `refuse_addresses`, where it has one, is the check of addresses alone.
    """
    addresses = AddressCheck(op.name, op.call._fields, args, op.write_indices, op.in_place, refusal)
    first = [addresses.statement] if of_addresses and addresses.statement else []
    passed = ", ".join(names := parameters(len(args)))
    last = [f"tell_written(({written}))"] if of_addresses and (written := _written(op, args, names)) else []
    used = {"function": function, "cleared": addresses.cleared, "refuse": addresses.refuse,
            "tell_written": torch.autograd.graph.increment_version}  # by it autograd sees that a saved tensor changed
    if is_simulated:
        from aiter_like import sim

        call = [f"if checking(): checked_call(({passed},))", "else:", f"    try: function({passed})",
                "    except RuntimeError as error: raise_failure(error)"]
        seen = getattr(function, "unrepeated", function)  # checkers know memory by its tensors
        used |= {"checking": sim.checking, "checked_call": functools.partial(_checked_call, op, seen),
                 "raise_failure": functools.partial(_raise_failure, op.name)}
    elif first or last:
        call = [f"function({passed})"]
    else:
        return function
    positional = dict.fromkeys(names, inspect.Parameter.empty)
    plan = handing_on("plan", positional, {}, [*first, *call, *last], **used)
    plan.text = [*first, *call, *last], used
    if first:
        plan.refuse_addresses = handing_on("refuse_addresses", positional, {}, first, **used)
    return plan


def _written(op: Declaration, args: tuple, names: Sequence[str]) -> str:
    """The tensors that a call writes, as the text of a tuple's elements."""
    return "".join(f"{names[index]}, " if isinstance(args[index], Tensor) else f"*{names[index]}, "
                   for index in op.write_indices if isinstance(args[index], (Tensor, tuple, list)))


def _checked_call(op: Declaration, function: Callable, args: tuple) -> None:
    from aiter_like import sim

    sim.checked_call(op.name, function, args, op.write_indices)


def _raise_failure(op: str, error: RuntimeError) -> None:
    """Raises what the simulated device has to say of an error of a launch, or the error itself."""
    from aiter_like import sim

    failure = sim.as_simulator_error(op, error)
    if failure is error:
        raise error
    raise failure from error
