# SPDX-License-Identifier: MIT
"""A Triton kernel with a planted error. Read by test_lines.py and test_sim_check.py."""

import triton
import triton.language as tl


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    """out = 2 * x, without a mask: it writes BLOCK elements, however few `out` has."""
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    tl.store(out + offsets, value + value)
