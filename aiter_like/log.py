# SPDX-License-Identifier: MIT
"""The package's logger. Importing leaves logging alone; AITER_LIKE_LOG and the command line set it up."""

from __future__ import annotations

import functools
import logging

from aiter_like import env
from aiter_like.errors import did_you_mean

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("aiter_like")


def configure(default: str = "") -> None:
    """Sends the package's messages from AITER_LIKE_LOG, else `default`, upwards to stderr; "" changes nothing.

    Raises:
        ValueError: AITER_LIKE_LOG is no level.
    """
    level = env.get("AITER_LIKE_LOG") or default
    if not level:
        return
    if level.lower() not in _LEVELS:
        raise ValueError(f"AITER_LIKE_LOG must be one of {', '.join(_LEVELS)}, got {level!r}")
    _log.setLevel(level.upper())
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("aiter_like %(levelname)s: %(message)s"))
        _log.addHandler(handler)


@functools.cache
def first_use() -> None:
    """Once per process, when an operator first runs: apply AITER_LIKE_LOG, and warn about misspelt variables."""
    configure()
    for name in env.unknown():
        like = did_you_mean(name, env.VARIABLES)
        _log.warning("%s is not a variable of aiter_like%s; known: %s", name, like, ", ".join(env.VARIABLES))
