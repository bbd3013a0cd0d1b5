# SPDX-License-Identifier: MIT
"""Gives calls of operators what they need of the simulator: dispatch and jit import no other module of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from aiter_like.sim import modelling
from aiter_like.sim.library import load
from aiter_like.sim.reports import as_simulator_error as as_error
from aiter_like.sim.session import checked_call, checking

__all__ = ["as_error", "checked_call", "checking", "load", "model_version", "triton_driver"]


def model_version() -> str:
    """The version of the cycle model, by which modelled rows live and die."""
    return modelling.version()


def triton_driver() -> Callable[[], AbstractContextManager]:
    """Loads the simulator's driver of Triton, and returns the block in which Triton uses it."""
    from aiter_like.sim.triton import active

    return active
