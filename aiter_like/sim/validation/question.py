# SPDX-License-Identifier: MIT
"""A question: a point that manuals leave open, and a kernel whose result decides it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiter_like.sim.validation.kernels import Kernel

LANES = 64
UNTOUCHED = 0xEEEEEEEE
"""The words of the second buffer before the launch."""

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Question:
    """A kernel that runs once, and what its result says.

    Attributes:
        asks: the question, in a sentence.
        kernel: s[4:5]: `inputs`; s[6:7]: `rows` rows of 64 dwords, full of `UNTOUCHED`, that come back.
        decide: of the rows, the answer in words.
        simulated: the answer of the simulated MI300X.
        where: the file of csrc/sim that would change.
    """

    name: str
    asks: str
    kernel: Kernel
    decide: Callable[[Rows], str]
    simulated: str
    where: str
    rows: int = 1
    inputs: Sequence[int] = ()
    groups: int = 1


def bits(value: float) -> int:
    """The bits of an f32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def stored(registers: Sequence[str]) -> str:
    """Assembly that stores each lane's registers, one row each. v63 is taken."""
    lines = ["v_lshlrev_b32 v63, 2, v0"]
    for row, register in enumerate(registers):
        if row and row % 15 == 0:  # the largest offset is 4095
            lines.append(f"v_add_u32 v63, {15 * 4 * LANES:#x}, v63")
        lines.append(f"global_store_dword v63, {register}, s[6:7] offset:{row % 15 * 4 * LANES}")
    return "\n".join(lines)


def once(body: str, registers: Sequence[str], **options: int) -> Kernel:
    """A kernel with v60 = 4 * lane that runs `body` once and stores `registers`."""
    return Kernel(f"{body}\ns_mov_b64 exec, -1\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_nop 7\n{stored(registers)}",
                  "v_lshlrev_b32 v60, 2, v0", unroll=1, **options)


def each(names: Sequence[str], answers: Sequence[str]) -> str:
    """ "a: x, b: y", or "x" where all are x."""
    if len(set(answers)) == 1:
        return answers[0]
    return ", ".join(f"{name}: {answer}" for name, answer in zip(names, answers, strict=True))
