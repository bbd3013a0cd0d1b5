# SPDX-License-Identifier: MIT
"""elementwise in Triton: body and launcher, named by ops/activation/elementwise.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.activation.elementwise import MOST_DIMS, ElementwiseCall
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch

_TILE = 2048  # elements of one program


@triton.jit
def _function(x, y, OPERATION: tl.constexpr):
    if OPERATION == "add":
        z = x + y
    elif OPERATION == "sub":
        z = x - y
    elif OPERATION == "mul":
        z = x * y
    elif OPERATION == "div":
        z = tl.div_rn(x, y)
    elif OPERATION == "sigmoid":
        z = 1.0 / (1.0 + tl.exp(-x))
    else:  # 1 - 2 / (1 + e^2x) would cancel near 0: there the series, to x^11
        square = x * x
        p = -1382.0 / 155925 * square + 62.0 / 2835
        p = (((p * square - 17.0 / 315) * square + 2.0 / 15) * square - 1.0 / 3) * square
        magnitude = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.abs(x)))
        z = tl.where(tl.abs(x) < 0.3, x + x * p, tl.where(x < 0.0, -magnitude, magnitude))
    return z


@triton.jit
def _elementwise_kernel(out, input, other, total, size_0, size_1, size_2, out_0, out_1, out_2, out_3, input_0, input_1,
                        input_2, input_3, other_0, other_1, other_2, other_3, OPERATION: tl.constexpr,
                        HAS_OTHER: tl.constexpr, TILE: tl.constexpr, OVERLAPS: tl.constexpr):
    """TILE elements of a space of four dimensions, dimension 0 the fastest; bound: memory."""
    await_stream(OVERLAPS)
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = index < total
    at_0 = (index % size_0).to(tl.int64)
    rest = index // size_0
    at_1 = (rest % size_1).to(tl.int64)
    rest = rest // size_1
    at_2 = (rest % size_2).to(tl.int64)
    at_3 = (rest // size_2).to(tl.int64)
    x = tl.load(input + at_0 * input_0 + at_1 * input_1 + at_2 * input_2 + at_3 * input_3, mask=mask).to(tl.float32)
    y = x
    if HAS_OTHER:
        y = tl.load(other + at_0 * other_0 + at_1 * other_1 + at_2 * other_2 + at_3 * other_3,
                    mask=mask).to(tl.float32)
    z = _function(x, y, OPERATION)
    tl.store(out + at_0 * out_0 + at_1 * out_1 + at_2 * out_2 + at_3 * out_3, z.to(out.dtype.element_ty), mask=mask)


def elementwise(call: ElementwiseCall, num_warps: int = 4) -> Launch:
    """The launch that writes `out`, with Triton's `num_warps`."""
    dims = call.dims
    dims += [[1, 0, 0, 0]] * (MOST_DIMS - len(dims))
    sizes = [dim[0] for dim in dims[:-1]]
    steps = [dim[i] for i in (1, 2, 3) for dim in dims]
    total = call.out.numel()
    return launch(_elementwise_kernel, (triton.cdiv(total, _TILE),), call.out, call.input,
                  call.input if call.other is None else call.other, total, *sizes, *steps, OPERATION=call.operation,
                  HAS_OTHER=call.other is not None, TILE=_TILE, options={"num_warps": num_warps})
