# SPDX-License-Identifier: MIT
"""Tells how a tuned row's kernel is launched for the row's own key: the second part of its revision, of which
modules/revision.py is the first. It is asked of the operator without data and without a GPU, in a few ms; calls do not.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from aiter_like import device
from aiter_like.device import Target
from aiter_like.dispatch.backend import Candidate
from aiter_like.dispatch.tuning import Tuning
from aiter_like.dispatch.without_memory import call_of, quiet
from aiter_like.modules import revision, revision_python

logger = logging.getLogger("aiter_like")
_OF_DESCRIPTOR = ("base", "shape", "strides", "block_shape", "layout")
_OF_LAYOUT = ("swizzle_byte_width", "element_bitwidth", "transposed")


def launch_revision(candidate: Candidate, tuning: Tuning, key: Mapping[str, Any], arch: str, cu_num: int
                    ) -> str:
    """8 hex digits: the launches of a call with a tune key on a device, or the instance that is built for it; "" where
    that cannot be told without data.
    """
    backend = candidate.backend
    with device.planning_for(arch, cu_num) as target, quiet():
        try:
            args = call_of(tuning, key)
            said = _instance(candidate, target, args) if backend.is_jit else [
                _launch(launch) for launch in backend.bind(target, args, candidate).launches(args)]
        except Exception:  # kernels and launchers refuse in their own ways
            logger.debug("%s %s: cannot tell how it is launched", backend.name, candidate.kernel, exc_info=True)
            return ""
    return revision.short_hash(repr(said))


def _instance(candidate: Candidate, target: Target, args: tuple) -> list[Any]:
    """The macros of a compiled module, or the kernel, the grid and the numbers of an assembly kernel."""
    function = candidate.backend.function
    if not hasattr(function, "launch"):
        return sorted(candidate.backend.module(target, args, candidate).defines)
    launch = function.launch(args)
    return [function.kernel_name(args), launch.grid, launch.block, sorted(launch.values.items())]


def _launch(launch: Any) -> list[Any]:
    """The kernel of a launch in Triton, and all that it is given."""
    return [_said(launch.kernel), tuple(launch.grid), [_argument(each) for each in launch.arguments],
            _said(dict(launch.options)), _said(dict(launch.constants))]


def _argument(value: Any) -> Any:
    """A run-time argument. No kernel is made for a float, and none takes longer for it."""
    return "float" if type(value) is float else _said(value)


def _said(value: Any) -> Any:
    """Describes a value as kernels see it, in words that do not depend on versions of torch and Triton."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return str(value.dtype)
    if isinstance(value, Mapping):
        return sorted((name, _said(each)) for name, each in value.items())
    if hasattr(value, "_asdict"):
        return _said(value._asdict())
    if isinstance(value, Sequence):
        return [_argument(each) for each in value]
    if hasattr(value, "fn"):
        code = value.fn.__code__
        return revision_python.kernel_revision(Path(code.co_filename).resolve(), code.co_name)
    for facts in (_OF_DESCRIPTOR, _OF_LAYOUT):
        if hasattr(value, facts[0]):
            return [_said(getattr(value, name, None)) for name in facts]
    if dataclasses.is_dataclass(value):
        return _said({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return str(value)
