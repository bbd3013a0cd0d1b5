# SPDX-License-Identifier: MIT
"""Settings of torch that the caller's code may have made, and that change what the package's own torch code computes:
autocast, the default dtype, the default device, and inference mode that made tensors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_changing_dtype = threading.RLock()


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in the dtypes of its arguments, also within torch.autocast."""

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():  # It has no public spelling for all devices at once.
            return function(*args, **named)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **named)

    return run


def into_inference_tensors(function: Callable[..., Any], writes: Sequence[int]) -> Callable[..., Any]:
    """`function` of a call object, which writes its fields `writes` by torch, also where these were made in inference
    mode and the caller has left it: kernels write such tensors, torch refuses. It refuses too where a derivative would
    be lost.
    """

    @functools.wraps(function)
    def run(call: tuple, **named: Any) -> Any:
        written = [call[index] for index in writes if isinstance(call[index], torch.Tensor)]
        if torch.is_inference_mode_enabled() or not any(one.is_inference() for one in written) or (
                torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in call)):
            return function(call, **named)
        with torch.inference_mode():
            return function(call, **named)

    return run


def with_defaults(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """`function`, which makes the tensors of a call, as torch is when nothing has been set."""
    if function is None:
        return None

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        with _defaults():
            return function(*args, **named)

    return run


@contextmanager
def _defaults() -> Iterator[None]:
    """The default dtype belongs to the whole process, so that one thread at a time changes it, and only if it must."""
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        if torch.get_default_dtype() is torch.float32:
            yield
            return
        with _changing_dtype:
            theirs = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            try:
                yield
            finally:
                torch.set_default_dtype(theirs)
