# SPDX-License-Identifier: MIT
"""The simulated MI300X in this process: its settings, checkers, counters, and launches of code objects.

`with sim.enabled():` switches the checkers on; `csrc/sim/README.md` describes the simulator itself.
"""

from aiter_like.sim.debugging import debug
from aiter_like.sim.library import counters, inspect, module_spec, reset_counters
from aiter_like.sim.reports import as_simulator_error, take_reports
from aiter_like.sim.rocm import load_rtc
from aiter_like.sim.session import (
    Session,
    checked_call,
    checking,
    enabled,
    launch,
    load,
)
from aiter_like.sim.settings import CHECKS, DEFAULT_CHECKS, Settings, parse_checks, parse_settings

__all__ = ["CHECKS", "DEFAULT_CHECKS", "Session", "Settings", "as_simulator_error", "checked_call", "checking",
           "counters", "debug", "disable_triton", "enable_triton", "enabled", "inspect", "launch", "load", "load_rtc",
           "module_spec", "parse_checks", "parse_settings", "reset_counters", "take_reports"]


def enable_triton() -> None:
    """Triton compiles kernels for gfx942 and runs them on the simulator, on CPU tensors, until `disable_triton`.

    Raises:
        ImportError: Triton is not installed.
        BuildError: the simulator cannot be built or loaded.
    """
    from aiter_like.sim import triton

    triton.enable()


def disable_triton() -> None:
    """Triton uses what it used before `enable_triton`."""
    from aiter_like.sim import triton

    triton.disable()
