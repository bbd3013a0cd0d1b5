# SPDX-License-Identifier: MIT
"""A call's way to a kernel: operators and their backends, the choice between them, plans, tuned tables, self-checks."""

from aiter_like.dispatch.backend import Backend
from aiter_like.dispatch.declaration import SKIP, Declaration, find_op
from aiter_like.dispatch.explanation import Explanation, explain
from aiter_like.dispatch.op import Op, is_tuned, reset, use_backend
from aiter_like.dispatch.registry import OPS

__all__ = ["OPS", "SKIP", "Backend", "Declaration", "Explanation", "Op", "explain", "find_op", "is_tuned",
           "reset", "use_backend"]
