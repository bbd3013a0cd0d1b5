# SPDX-License-Identifier: MIT
"""A call's way to a kernel: operators and their backends, the choice between them, plans, tuned tables, self-checks.

A name is imported with its module when it is first asked for: the package's root and the command line need the
registry, which knows no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiter_like.dispatch.registry import OPS

if TYPE_CHECKING:
    from aiter_like.dispatch.backend import Backend
    from aiter_like.dispatch.declaration import SKIP, Declaration, find_op
    from aiter_like.dispatch.explanation import Explanation, explain
    from aiter_like.dispatch.kinds import STRIDED
    from aiter_like.dispatch.op import Op, reset, use_backend
    from aiter_like.dispatch.tuned_rows import is_tuned

__all__ = ["OPS", "SKIP", "STRIDED", "Backend", "Declaration", "Explanation", "Op", "explain", "find_op", "is_tuned",
           "reset", "use_backend"]

_MODULES = {"Backend": "backend", "Declaration": "declaration", "Explanation": "explanation", "Op": "op",
            "SKIP": "declaration", "STRIDED": "kinds", "explain": "explanation", "find_op": "declaration",
            "is_tuned": "tuned_rows", "reset": "op", "use_backend": "op"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
