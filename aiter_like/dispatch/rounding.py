# SPDX-License-Identifier: MIT
"""The sizes that stand in for others: tuned rows, and rules for calls without a row, hold for all that round to one."""

from __future__ import annotations

from collections.abc import Iterator


def rounded(size: int) -> Iterator[int]:
    """The sizes that stand in for a size without a row, as AITER has them: first up to a multiple of 16 (size ≤ 256),
    32 (≤ 1024), 64 (≤ 4096) or 128, then the next power of two.
    """
    coarse = 1 << max(size - 1, 0).bit_length()
    yield from dict.fromkeys(value for value in (rounded_up(size), coarse) if value != size)


def rounded_up(size: int) -> int:
    """The finer of these: what rules without a row round to, so that all sizes between have one answer."""
    step = 16 if size <= 256 else 32 if size <= 1024 else 64 if size <= 4096 else 128
    return -(-size // step) * step
