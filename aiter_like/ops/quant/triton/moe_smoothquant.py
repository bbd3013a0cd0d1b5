# SPDX-License-Identifier: MIT
"""Smooth-quantisation per expert in Triton, named by the operator of ops/quant/moe_smoothquant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.moe_smoothquant import MoeSmoothquantCall

_MAX_BLOCK = 8192  # elements of a row that a program keeps


@triton.jit(do_not_specialize=["tokens", "topk", "experts"])
def _moe_smoothquant_kernel(out, scale, x, x_scale, topk_ids, out_stride, x_stride, factor_stride, tokens, columns,
                            topk, experts, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, LARGEST: tl.constexpr,
                            OVERLAPS: tl.constexpr):
    """One program takes a token for one of its experts; the programs of a token are neighbours. Bound: memory."""
    await_stream(OVERLAPS)
    token = (tl.program_id(0) // topk).to(tl.int64)
    slot = tl.program_id(0) % topk
    expert = tl.load(topk_ids + token * topk + slot)
    used = tl.where((expert >= 0) & (expert < experts), columns, 0)  # a slot of no expert has no columns: zeros
    row = slot.to(tl.int64) * tokens + token
    x += token * x_stride
    x_scale += expert.to(tl.int64) * factor_stride
    out += row * out_stride
    lanes = tl.arange(0, BLOCK)
    values = tl.zeros([BLOCK], tl.float32)
    magnitude = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        values = _smoothed(x, x_scale, start + lanes, used)
        magnitude = quant_rule.larger(magnitude, tl.abs(values))
    own = quant_rule.scale_of(quant_rule.amax(magnitude, 0), LARGEST)
    inverse = quant_rule.inverse_of(own)
    tl.store(scale + row, own)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        if not IS_WHOLE:
            values = _smoothed(x, x_scale, start + lanes, used)
        q = quant_rule.quantised(values * inverse, out.dtype.element_ty, LARGEST)
        tl.store(out + start + lanes, q, mask=start + lanes < columns)


@triton.jit
def _smoothed(x, factor, column, columns):
    """x · factor in fp32; zeros beyond the row."""
    values = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    return values * tl.load(factor + column, mask=column < columns, other=0.0)


def moe_smoothquant(call: MoeSmoothquantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    input, factors, ids, columns = call.input, call.x_scale, call.topk_ids, call.input.shape[-1]
    block = min(power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    return launch(_moe_smoothquant_kernel, (ids.numel(),), call.out, call.scale, input, factors, ids,
                  call.out.stride(0), input.stride(0), factors.stride(0), *input.shape, ids.shape[1], factors.shape[0],
                  BLOCK=block, IS_WHOLE=columns <= block, LARGEST=largest(call.out.dtype),
                  options={"num_warps": num_warps})
