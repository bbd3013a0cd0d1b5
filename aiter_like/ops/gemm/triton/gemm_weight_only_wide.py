# SPDX-License-Identifier: MIT
"""gemm_weight_only for many rows: a kernel makes weights of 16 bits, for the product of gemm_a16w16. Launched by
gemm_weight_only.py.

A weight costs 0.5 or 1 byte read, 2 written and, by the product, 2 read; the more rows there are, the less that counts
beside what each tile of a product in place spends on making the same weights again.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, scratch
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.gemm.triton import gemm_a16w16

_CHUNK = 128  # weights of a row that are taken together where they share no scale
_WEIGHTS = 8192  # a program makes so many
_SCALES = 1024  # likewise


@triton.jit
def _wide_weights_kernel(wide, b, scale, zero_points, count, chunks, depth, depth_bytes, wide_column, b_column, b_depth,
                         BITS: tl.constexpr, IS_GROUPED: tl.constexpr, SCALE_ROWS: tl.constexpr, CHUNK: tl.constexpr,
                         CHUNKS: tl.constexpr, OVERLAPS: tl.constexpr):
    """wide = (b − zero_points) · scale, for CHUNKS of the `count` chunks of CHUNK weights, of which a row of b has
    `chunks`; bound: memory. A scale or zero points of None are left out; with IS_GROUPED each chunk has its own, of
    SCALE_ROWS rows, else each row."""
    await_stream(OVERLAPS)
    BYTES: tl.constexpr = CHUNK * BITS // 8
    index = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    column, chunk = (index // chunks).to(tl.int64), index % chunks
    byte, k = tl.arange(0, BYTES), tl.arange(0, CHUNK)
    is_there = index < count
    is_inside = is_there[:, None] & (byte[None, :] < (depth_bytes - chunk * BYTES)[:, None])
    at = b + (column * b_column)[:, None] + ((chunk * BYTES)[:, None] + byte[None, :]).to(tl.int64) * b_depth
    weights = tl.load(at, mask=is_inside, other=0.0)
    if b.dtype.element_ty == tl.int8:
        weights = weights.to(tl.int32)
    if BITS == 4:
        weights = tl.join((weights << 28) >> 28, weights >> 4).reshape(CHUNKS, CHUNK)
    if IS_GROUPED:
        one = (column // SCALE_ROWS * chunks + chunk).to(tl.int64)
    else:
        one = column
    if zero_points is not None:
        weights -= tl.load(zero_points + one, mask=is_there, other=0).to(tl.int32)[:, None]
    weights = weights.to(tl.float32)
    if scale is not None:
        weights *= tl.load(scale + one, mask=is_there, other=0.0).to(tl.float32)[:, None]
    wide_at = wide + (column * wide_column)[:, None] + ((chunk * CHUNK)[:, None] + k[None, :])
    is_inside = is_there[:, None] & (k[None, :] < (depth - chunk * CHUNK)[:, None])
    tl.store(wide_at, weights.to(wide.dtype.element_ty), mask=is_inside)


@triton.jit
def _each_scale_kernel(scales, scale, count, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """scales [count] of the one number `scale`; bound: latency."""
    await_stream(OVERLAPS)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scales + index, tl.load(scale), mask=index < count)


def multiply(call: GemmWeightOnlyCall, params: dict[str, int]) -> tuple[Launch, ...]:
    """The launches that write `out`. Scales of groups are in the 16-bit weights; that of a row stays for the sum, and
    its weights are exact. params: those of the product, by gemm_a16w16.py beside this."""
    weights, *first = _wide_weights(call)
    product = GemmA16w16Call(call.out, call.a, weights, call.bias, call.residual, activation=call.activation)
    is_for_hopper = target_of(call.a.device).arch == "sm_90" and hopper.serves(call.a, weights)
    scale = None if call.group_size else call.scale
    if scale is not None and scale.shape[0] < weights.shape[0]:
        scale = scratch((weights.shape[0],), call.scale.dtype, call.scale)
        first.append(launch(_each_scale_kernel, (triton.cdiv(weights.shape[0], _SCALES),), scale, call.scale,
                            weights.shape[0], BLOCK=_SCALES, options={"num_warps": 4}))
    kernel = "gemm_a16w16_hopper" if is_for_hopper else "gemm_a16w16"
    return *first, *gemm_a16w16.multiply(product, scale, kernel, params)


def _wide_weights(call: GemmWeightOnlyCall) -> tuple[Any, ...]:
    """[n, k] in the dtype of `a`, with rows that TMA moves; and, unless it is empty, what writes it."""
    n, k = call.b.shape[0], call.a.shape[1]
    wide = scratch((n, -(-k // 8) * 8), call.a.dtype, call.a)[:, :k]
    chunk = call.group_size or _CHUNK
    chunks, at_a_time = triton.cdiv(k, chunk), _WEIGHTS // chunk
    if not (n and k):
        return (wide,)
    return wide, launch(
        _wide_weights_kernel, (triton.cdiv(n * chunks, at_a_time),), wide, call.b,
        call.scale if call.group_size else None, call.zero_points, n * chunks, chunks, k, call.b.shape[1],
        wide.stride(0), *call.b.stride(), BITS=call.bits, IS_GROUPED=call.group_size > 0, SCALE_ROWS=call.scale_rows,
        CHUNK=chunk, CHUNKS=at_a_time, options={"num_warps": 4})
