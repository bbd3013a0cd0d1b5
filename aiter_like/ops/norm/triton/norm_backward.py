# SPDX-License-Identifier: MIT
"""Derivatives of the norms in Triton, named by the operator of ops/norm/norm_backward.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, launch, power_of_2, real
from aiter_like.ops.norm.norm_backward import NormBackwardCall

_LONGEST, _BLOCK = 16384, 8192  # elements of a row that 16 waves keep whole; of a block of a longer one


@triton.jit
def _norm_backward_kernel(dx, dweight, dbias, dout, x, weight, dx_stride, dout_stride, x_stride, rows, hidden, epsilon,
                          BLOCK: tl.constexpr, HAS_MEAN: tl.constexpr):
    """With n = (x - mean) · r, r = 1 / sqrt(mean square + epsilon), g = dout · weight:
    dx = r · (g - mean(g) - n · mean(g · n)). Each program walks through its rows, the next one on its way while it
    reduces one, and keeps their part of dweight = Σ dout · n and dbias = Σ dout. Bound: memory.
    """
    column = tl.arange(0, BLOCK)
    is_inside = column < hidden
    w = tl.zeros([BLOCK], tl.float32)
    if weight is not None:
        w = tl.load(weight + column, mask=is_inside, other=0.0).to(tl.float32)
    dweight_part = tl.zeros([BLOCK], tl.float32)
    dbias_part = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0)
    x_next = _row(x, x_stride, first, rows, column, is_inside)
    dout_next = _row(dout, dout_stride, first, rows, column, is_inside)
    for index in range(first, rows, tl.num_programs(0)):
        values, slope = x_next.to(tl.float32), dout_next.to(tl.float32)
        x_next = _row(x, x_stride, index + tl.num_programs(0), rows, column, is_inside)
        dout_next = _row(dout, dout_stride, index + tl.num_programs(0), rows, column, is_inside)
        if HAS_MEAN:
            values = tl.where(is_inside, values - tl.sum(values, 0) / hidden, 0.0)
        weighted = slope * w if weight is not None else slope
        squares, along, across = tl.reduce((values * values, weighted * values, weighted), 0, _add_three)
        scale = tl.rsqrt(squares / hidden + epsilon)
        normed = values * scale
        dweight_part += slope * normed
        dbias_part += slope
        result = weighted - normed * (along * scale / hidden)
        if HAS_MEAN:
            result -= across / hidden
        tl.store(dx + index.to(tl.int64) * dx_stride + column, (result * scale).to(dx.dtype.element_ty), mask=is_inside)
    if dweight is not None:
        tl.store(dweight + tl.program_id(0) * hidden + column, dweight_part, mask=is_inside)
    if dbias is not None:
        tl.store(dbias + tl.program_id(0) * hidden + column, dbias_part, mask=is_inside)


@triton.jit
def _row(matrix, stride, index, rows, column, is_inside):
    """A row as it is in memory; zeros beyond it, and of a row that is not there."""
    return tl.load(matrix + index.to(tl.int64) * stride + column, mask=is_inside & (index < rows), other=0.0)


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _long_norm_backward_kernel(dx, dweight, dbias, dout, x, weight, dx_stride, dout_stride, x_stride, rows, hidden,
                               epsilon, BLOCK: tl.constexpr, HAS_MEAN: tl.constexpr):
    """The same of rows longer than registers keep: in blocks, read three times (twice without mean), mostly from cache.
    The program's part of dweight and dbias grows in memory, from zeros.

    Each loop that writes ends with a barrier. The parts are read by whichever lane; and LLVM would put too few wait
    states between a wide store at the loop's end and its head, which may overwrite the registers stored.
    """
    lanes = tl.arange(0, BLOCK)
    for start in range(0, hidden, BLOCK):
        zeros = tl.zeros([BLOCK], tl.float32)
        _add(dweight, tl.program_id(0), start + lanes, hidden, zeros, False)
        _add(dbias, tl.program_id(0), start + lanes, hidden, zeros, False)
        tl.debug_barrier()
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index.to(tl.int64)
        x_row, dout_row = x + row * x_stride, dout + row * dout_stride
        mean = 0.0
        if HAS_MEAN:
            total = tl.zeros([BLOCK], tl.float32)
            for start in range(0, hidden, BLOCK):
                total += tl.load(x_row + start + lanes, mask=start + lanes < hidden, other=0.0).to(tl.float32)
            mean = tl.sum(total, 0) / hidden
        squares = tl.zeros([BLOCK], tl.float32)
        products = tl.zeros([BLOCK], tl.float32)
        slopes = tl.zeros([BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            values, _, weighted = _block(x_row, dout_row, weight, mean, start + lanes, hidden)
            squares += values * values
            products += weighted * values
            slopes += weighted
        square, along, across = tl.reduce((squares, products, slopes), 0, _add_three)
        scale = tl.rsqrt(square / hidden + epsilon)
        along = along * scale / hidden
        across = across / hidden if HAS_MEAN else 0.0
        for start in range(0, hidden, BLOCK):
            column = start + lanes
            values, slope, weighted = _block(x_row, dout_row, weight, mean, column, hidden)
            normed = values * scale
            _add(dweight, tl.program_id(0), column, hidden, slope * normed, True)
            _add(dbias, tl.program_id(0), column, hidden, slope, True)
            result = (weighted - normed * along - across) * scale
            tl.store(dx + row * dx_stride + column, result.to(dx.dtype.element_ty), mask=column < hidden)
            tl.debug_barrier()


@triton.jit
def _block(x, dout, weight, mean, column, hidden):
    """x - mean, dout, and dout · weight of a row's columns, in fp32; zeros beyond it."""
    is_inside = column < hidden
    values = tl.where(is_inside, tl.load(x + column, mask=is_inside, other=0.0).to(tl.float32) - mean, 0.0)
    slope = tl.load(dout + column, mask=is_inside, other=0.0).to(tl.float32)
    weighted = slope
    if weight is not None:
        weighted *= tl.load(weight + column, mask=is_inside, other=0.0).to(tl.float32)
    return values, slope, weighted


@triton.jit
def _add(parts, part, column, hidden, values, IS_SUM: tl.constexpr):
    """The launch that writes values to a row of `parts`, or adds them to it; nothing where there are no parts."""
    if parts is not None:
        place = parts + part.to(tl.int64) * hidden + column
        if IS_SUM:
            values += tl.load(place, mask=column < hidden, other=0.0)
        tl.store(place, values, mask=column < hidden)


def norm_backward(call: NormBackwardCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `dx`, `dweight` and `dbias`, with Triton's `num_warps`."""
    hidden = call.x.shape[-1]
    kernel = _norm_backward_kernel if hidden <= _LONGEST else _long_norm_backward_kernel
    block = power_of_2(hidden) if hidden <= _LONGEST else _BLOCK
    num_warps = num_warps or min(max(block // 512, 1), 16)  # at least 8 elements per lane on a wave of 64
    dx, dout, x = (tensor.view(-1, hidden) for tensor in (call.dx, call.dout, call.x))
    return launch(kernel, (call.parts,), dx, call.dweight, call.dbias, dout, x, call.weight, dx.stride(0),
                  dout.stride(0), x.stride(0), x.shape[0], hidden, real(call.epsilon), BLOCK=block,
                  HAS_MEAN=call.has_mean, options={"num_warps": num_warps})
