# SPDX-License-Identifier: MIT
"""The numbers of csrc/sim/timing/parameters.h, by name: what a case depends on and would change."""

from __future__ import annotations

import re

from aiter_like import paths

_NUMBER = re.compile(r"(\w+) = (\d+(?:\.\d+)?(?: << \d+)?|u64\{\d+\} << \d+)")


def values() -> dict[str, float]:
    """Parameter → value."""
    text = (paths.csrc() / "sim/timing/parameters.h").read_text()
    found = {}
    for line in text[text.index("struct Parameters"):text.index("// Bytes per clk that one XCD")].splitlines():
        for name, value in _NUMBER.findall(line.partition("//")[0]):
            base, _, shift = value.replace("u64{", "").replace("}", "").partition(" << ")
            found[name] = float(base) * 2 ** int(shift or 0)
    return found
