# SPDX-License-Identifier: MIT
"""The simulated MI300X in this process: its settings, checkers, counters, and launches of code objects.

`with sim.enabled():` switches the checkers on; `csrc/sim/README.md` describes the simulator itself.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiter_like.sim.library import counters, inspect, load, module_spec, reset_counters
from aiter_like.sim.reports import as_simulator_error, take_reports
from aiter_like.sim.rocm import load_rtc
from aiter_like.sim.session import Session, checked_call, checking, enabled, launch
from aiter_like.sim.settings import CHECKS, DEFAULT_CHECKS, Settings, parse_checks, parse_settings

if TYPE_CHECKING:
    import torch

    from aiter_like.sim.debugging import debug
    from aiter_like.sim.triton import disable_triton, enable_triton

__all__ = ["CHECKS", "DEFAULT_CHECKS", "Session", "Settings", "as_gpu", "as_simulator_error", "checked_call",
           "checking", "counters", "debug", "disable_triton", "enable_triton", "enabled", "inspect", "launch", "load",
           "load_rtc", "module_spec", "parse_checks", "parse_settings", "reset_counters", "take_reports"]


_LATER = {"debug": "debugging", "enable_triton": "triton", "disable_triton": "triton"}


def __getattr__(name: str) -> Any:
    """Imports the debugger, or what needs Triton, when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"aiter_like.sim.{_LATER[name]}"), name)


@contextlib.contextmanager
def as_gpu() -> Iterator[torch.device]:
    """A block in which torch's "cuda" is the simulated MI300X: programs that were written for a GPU run as they are.

    Tensors made with device="cuda", by `.cuda()` or `.to("cuda")`, and what torch and this package make of them, are
    CPU tensors whose memory bears a mark: `.device` is cuda:0, `.is_cuda` is True, `.cpu()` is a copy, NumPy is refused
    them. torch's own functions run on the CPU; this package's operators and Triton's kernels run on the simulator.
    `torch.cuda` tells of the simulated device; what it cannot do raises UnsupportedError. All of it ends with the
    block. csrc/sim/GPU.md, has the rest.

    Yields:
        The current device, cuda:0.
    Raises:
        RuntimeError: torch sees a GPU; another thread is in such a block; the simulator defers streams' work.
        BuildError: the simulator cannot be built or loaded.
    """
    from aiter_like.sim import torch_cuda
    from aiter_like.sim.torch_cuda import children

    with contextlib.ExitStack() as stack:
        stack.enter_context(children.entering(as_gpu))
        if importlib.util.find_spec("triton"):
            from aiter_like.sim import triton

            stack.enter_context(triton.enabled())
            stack.enter_context(triton.short_benchmarks())
        yield stack.enter_context(torch_cuda.as_gpu())
