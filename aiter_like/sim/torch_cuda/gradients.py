# SPDX-License-Identifier: MIT
"""Backward passes within sim.as_gpu(): Python code that torch's engine calls finds its gradients where they are, and
the mode on.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from aiter_like.sim.torch_cuda import marks


class _Marking(TorchDispatchMode):
    """Results of operations are where their arguments are: those of C++, which the mode of functions does not see."""

    supports_higher_order_operators = True  # such as the backward pass of flex_attention

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        marks.follow(results, marks.tensors((args, kwargs)))
        return results


def engine(mode: TorchFunctionMode, original: Callable) -> Callable:
    """torch's call of its engine: `mode`, which is off while a function of torch runs, is on in what the engine calls.
    """
    def run(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        for output, gradient in zip(outputs, gradients, strict=False):
            if isinstance(output, torch.Tensor) and isinstance(gradient, torch.Tensor):
                marks.follow(gradient, [output])
        with _Marking(), switched_on(mode):
            return original(outputs, gradients, *args, **kwargs)

    return run


_PLACES = "_aiter_like_places"  # A node has this attribute: where each of its results is.


def applying() -> Any:
    """torch.autograd.Function's `apply`: the nodes of its results remember where these are."""
    original = torch.autograd.Function.apply.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        results = original(cls, *args, **kwargs)
        given = results if isinstance(results, tuple) else (results,)
        for one in given:
            node = one.grad_fn if isinstance(one, torch.Tensor) else None
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                setattr(node, _PLACES, [marks.index_of(each) if isinstance(each, torch.Tensor) else None
                                        for each in given])
                break
        return results

    return classmethod(apply)


def applying_backwards() -> Callable:
    """Calls `backward` of a Function: zeros, torch's gradients of unused results, are where these results were."""
    original = torch.autograd.function.BackwardCFunction.apply

    def apply(self: Any, *gradients: Any) -> Any:
        for gradient, place in zip(gradients, getattr(self, _PLACES, ()), strict=False):
            if place is not None and isinstance(gradient, torch.Tensor) and marks.index_of(gradient) is None:
                marks.put(gradient, place)
        return original(self, *gradients)

    return apply


def saving(mode: TorchFunctionMode) -> Callable:
    """saved_tensors_hooks' `__init__`: the mode is on in hooks, which functions of torch call while it is off."""
    original = torch.autograd.graph.saved_tensors_hooks.__init__

    def made(self: Any, pack_hook: Callable, unpack_hook: Callable) -> None:
        def within(hook: Callable) -> Callable:
            def call(value: Any) -> Any:
                with switched_on(mode):
                    return hook(value)

            return call

        original(self, within(pack_hook), within(unpack_hook))

    return made


def switched_on(mode: TorchFunctionMode) -> contextlib.AbstractContextManager:
    """A block in which the mode is on, unless it has ended."""
    is_on = any(one is mode for one in _get_current_function_mode_stack())
    return contextlib.nullcontext() if is_on or not mode.is_on else mode
