# SPDX-License-Identifier: MIT
"""Tuned tables: table.py reads and validates them, record.py collects shapes, tuner.py measures and writes rows.

`aiter_like.tuning.tune(...)` and `Options` are the tuner's Python interface; it is loaded when first asked for, since
programs that only read tables have no use for it.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("tune", "Options", "Outcome"):
        from aiter_like.tuning import tuner

        return getattr(tuner, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
