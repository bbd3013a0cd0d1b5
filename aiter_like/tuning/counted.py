# SPDX-License-Identifier: MIT
"""What the simulator's counters say of a call's traffic and arithmetic. Used by clock.py and report.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LANES = 64


def lane_bytes(mnemonic: str) -> int:
    """Bytes that one lane moves with an access to global, flat, scratch or buffer memory; 0: it moves none."""
    if "_atomic_" in mnemonic:
        return 8 if mnemonic.endswith(("_x2", "_f64")) else 4
    formatted = re.search(r"_format_(d16_)?(?:hi_)?([xyzw]+)$", mnemonic)
    if formatted:
        return (2 if formatted[1] else 4) * len(formatted[2])
    size = re.search(r"_(dword|[us]?byte|[us]?short)(?:x(\d))?", mnemonic)
    if size is None:
        return 0
    return {"d": 4, "b": 1, "s": 2}[re.sub("^[us](?=byte|short)", "", size[1])[0]] * int(size[2] or 1)


def totals(counters: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Of all kernels of a call: `bytes` that accesses of whole waves move, before any cache; `lane_operations` of the
    vector units, and `matrix` instructions, of which each is many operations.
    """
    by_class = [counts["by_class"] for counts in counters.values()]
    return {"bytes": sum(_LANES * lane_bytes(name) * count for counts in counters.values()
                         for name, count in counts["accesses"].items()),
            "lane_operations": _LANES * sum(one.get("valu", 0) + one.get("trans", 0) for one in by_class),
            "matrix": sum(one.get("mfma", 0) for one in by_class)}


def intensity(counted: Mapping[str, int], flops: int) -> str:
    """Arithmetic per byte moved: the flops that the operator states for the call, else operations of lanes."""
    if not counted.get("bytes"):
        return ""
    if flops:
        return f"{flops / counted['bytes']:.3g} flop/B"
    return f"{counted['lane_operations'] / counted['bytes']:.3g} op/B"
