# SPDX-License-Identifier: MIT
"""Shared by the norms' Triton files: loads and factors of a row, its moments, and how many rows a program takes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of

_ELEMENTS, _PROGRAMS = 2048, 8  # the most elements of short rows that share a program; the fewest programs per CU


@triton.jit
def load_sum(x, residual, columns, hidden):
    """x, plus the residual where there is one, in fp32; zeros beyond the row."""
    values = tl.load(x + columns, mask=columns < hidden, other=0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + columns, mask=columns < hidden, other=0.0).to(tl.float32)
    return values


@triton.jit
def times(scaled, w, dtype: tl.constexpr, IS_MODEL_SENSITIVE: tl.constexpr, IS_GEMMA: tl.constexpr):
    """scaled · w, or · (w + 1); `scaled` is rounded to `dtype` first for T5."""
    if IS_MODEL_SENSITIVE:
        scaled = scaled.to(dtype).to(tl.float32)
    w = w.to(tl.float32)
    if IS_GEMMA:
        w += 1.0
    return scaled * w


@triton.jit
def moments(total, squares, count):
    """(mean, variance, whether it needs the squared deviations) of a row, by the sums of elements and of squares.

    Their difference loses more than a binary digit where mean² is above the variance: an offset, or equal elements.
    """
    total, squares = tl.reduce((total, squares), 0, _add_both)
    mean = tl.div_rn(total, count)
    variance = squares / count - mean * mean
    return mean, variance, not (mean * mean <= variance)


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


def rows_of_a_program(x: torch.Tensor, block: int, rows: int) -> int:
    """Short rows share a program where there are enough of them: a row of 128 elements alone leaves lanes idle."""
    count = min(_ELEMENTS // block, rows // (_PROGRAMS * target_of(x.device).cu_num))
    return 1 << max(count, 1).bit_length() - 1
