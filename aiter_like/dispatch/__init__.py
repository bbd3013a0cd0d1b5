# SPDX-License-Identifier: MIT
"""A call's way to a kernel: operators and their backends, the choice between them, plans, tuned tables, self-checks."""

from aiter_like.dispatch.explanation import Explanation, explain
from aiter_like.dispatch.op import OPS, SKIP, Op, is_tuned, reset, use_backend
from aiter_like.dispatch.selection import Backend

__all__ = ["OPS", "SKIP", "Backend", "Explanation", "Op", "explain", "is_tuned", "reset", "use_backend"]
