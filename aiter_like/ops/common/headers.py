# SPDX-License-Identifier: MIT
"""Constants that a header in csrc/ defines and that planners in Python count with: they are read there."""

from __future__ import annotations

import functools
import re

from aiter_like import paths


@functools.cache
def constant(header: str, name: str) -> int:
    """The number of `constexpr int name = …;` in a header, by its path within csrc/.

    Raises:
        LookupError: it defines no such number.
    """
    found = re.search(rf"^constexpr int {name} = (\d+);", (paths.csrc() / header).read_text(encoding="utf-8"), re.M)
    if found is None:
        raise LookupError(f"csrc/{header}: no line `constexpr int {name} = <number>;`")
    return int(found[1])
