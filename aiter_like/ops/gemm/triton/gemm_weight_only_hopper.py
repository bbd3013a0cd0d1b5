# SPDX-License-Identifier: MIT
"""gemm_weight_only for some rows on Hopper, where weights of 8 and 4 bits are widened in registers. Launched by
gemm_weight_only.py.

The weights stand on the left of the product and go from shared memory to the registers in which the matrix unit takes
them; two of them are made 16-bit numbers by 2.5 instructions, and what is left is done to sums. The low and the high
halves of bytes have a product each, with the activations of even and of odd depth. For up to 64 rows two activations
are read as one word of 32 bits, so that both are had without moving them; for more rows a kernel has put them apart,
and wgmma takes them from shared memory as they come. With 1 or 2 warps Triton takes mma.sync.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, scratch
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.gemm.triton.parts import SUM_BLOCK, finish, sum_kernel

_WORDS = 1024  # a program puts so many words of a row apart


@triton.jit
def low_and_high(packed, IS_BF16: tl.constexpr):
    """Both 4-bit numbers of each byte, exact. u = number + 8 becomes the lowest mantissa bits of 128 (bf16) or 1024
    (fp16), of which 128 + 8 or 1024 + 8 is taken away; with fp16's wider mantissa the high half may stay in its place,
    as 1024 + 16 u."""
    if IS_BF16:
        return tl.inline_asm_elementwise("""
            {
            .reg .b32 t0, t1, h0, h1, base, one;
            prmt.b32 t0, $4, 0, 0x4140;
            prmt.b32 t1, $4, 0, 0x4342;
            shr.b32 h0, t0, 4;
            shr.b32 h1, t1, 4;
            lop3.b32 t0, t0, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 t1, t1, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 h0, h0, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 h1, h1, 0x000F000F, 0x43084308, 0x6A;
            mov.b32 base, 0xC308C308;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 $0, t0, one, base;
            fma.rn.bf16x2 $1, t1, one, base;
            fma.rn.bf16x2 $2, h0, one, base;
            fma.rn.bf16x2 $3, h1, one, base;
            }
            """, "=r,=r,=r,=r,r", [packed], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise("""
            {
            .reg .b32 t0, t1, h0, h1, low, high, one, sixteenth;
            prmt.b32 t0, $4, 0, 0x4140;
            prmt.b32 t1, $4, 0, 0x4342;
            lop3.b32 h0, t0, 0x00F000F0, 0x64806480, 0x6A;
            lop3.b32 h1, t1, 0x00F000F0, 0x64806480, 0x6A;
            lop3.b32 t0, t0, 0x000F000F, 0x64086408, 0x6A;
            lop3.b32 t1, t1, 0x000F000F, 0x64086408, 0x6A;
            mov.b32 low, 0xE408E408;
            mov.b32 high, 0xD480D480;
            mov.b32 one, 0x3C003C00;
            mov.b32 sixteenth, 0x2C002C00;
            fma.rn.f16x2 $0, t0, one, low;
            fma.rn.f16x2 $1, t1, one, low;
            fma.rn.f16x2 $2, h0, sixteenth, high;
            fma.rn.f16x2 $3, h1, sixteenth, high;
            }
            """, "=r,=r,=r,=r,r", [packed], dtype=(tl.float16, tl.float16), is_pure=True, pack=4)


@triton.jit
def widened(bytes, IS_BF16: tl.constexpr):
    """8-bit numbers, exact. fp16: 1024 + (number + 128), less 1152. bf16 has 7 mantissa bits: 128 + the lower 7 bits,
    less 128, or less 256 where the number is negative."""
    if IS_BF16:
        return tl.inline_asm_elementwise("""
            {
            .reg .b32 t0, t1, m0, m1, one;
            prmt.b32 t0, $2, 0, 0x4140;
            prmt.b32 t1, $2, 0, 0x4342;
            lop3.b32 m0, t0, 0x00800080, 0xC300C300, 0xEA;
            lop3.b32 m1, t1, 0x00800080, 0xC300C300, 0xEA;
            lop3.b32 t0, t0, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 t1, t1, 0x007F007F, 0x43004300, 0xEA;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 $0, t0, one, m0;
            fma.rn.bf16x2 $1, t1, one, m1;
            }
            """, "=r,=r,r", [bytes], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise("""
            {
            .reg .b32 x, t0, t1, base, one;
            xor.b32 x, $2, 0x80808080;
            mov.b32 base, 0x64646464;
            prmt.b32 t0, x, base, 0x4140;
            prmt.b32 t1, x, base, 0x4342;
            mov.b32 base, 0xE480E480;
            mov.b32 one, 0x3C003C00;
            fma.rn.f16x2 $0, t0, one, base;
            fma.rn.f16x2 $1, t1, one, base;
            }
            """, "=r,=r,r", [bytes], dtype=tl.float16, is_pure=True, pack=4)


@triton.jit
def _apart_kernel(apart, a, rows, words, apart_row, a_row, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """apart [2, rows, words]: the low and the high 16 bits of the words of a row; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    both = tl.load(a + row * a_row + k, mask=k < words, other=0)
    at = apart + row * apart_row + k
    tl.store(at, both.to(tl.int16), mask=k < words)
    tl.store(at + rows * apart_row, (both >> 16).to(tl.int16), mask=k < words)


@triton.jit
def _gemm_weight_only_hopper_kernel(a, b, out, scale, zero_points, bias, residual, partials, rows, columns, depth,
                                    groups, out_row, out_column, residual_row, residual_column, BITS: tl.constexpr,
                                    GROUP_SIZE: tl.constexpr, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
                                    OPERANDS_ARE_BF16: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
                                    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_APART: tl.constexpr,
                                    OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out, the blocks of rows side by side; bound: what is done to weights and
    activations on their way to the matrix unit. Where weights have 4 bits, `a` has words of two activations, or with
    IS_APART the rows of all of even depth and then those of odd depth.
    With SPLITS > 1 the sums over a part of the depth go to partials [SPLITS, rows, columns]; with GROUP_SIZE > 0 a step
    of BLOCK_K lies in one group."""
    await_stream(OVERLAPS)
    PER_BYTE: tl.constexpr = 8 // BITS
    blocks_m, split = tl.cdiv(rows, BLOCK_M), tl.program_id(1)
    first_row, first_column = tl.program_id(0) % blocks_m * BLOCK_M, tl.program_id(0) // blocks_m * BLOCK_N
    steps = tl.cdiv(depth, BLOCK_K)
    first, end = steps * split // SPLITS, steps * (split + 1) // SPLITS
    column, row = first_column + tl.arange(0, BLOCK_N), first_row + tl.arange(0, BLOCK_M)
    group_at = column.to(tl.int64) * groups
    if GROUP_SIZE > 0:
        group_at += first * BLOCK_K // GROUP_SIZE
        factor = tl.load(scale + group_at, mask=column < columns, other=0.0)
    if zero_points is not None:
        zero = tl.load(zero_points + group_at, mask=column < columns, other=0)
    product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(first, end):
        weights = b.load([first_column, step * (BLOCK_K // PER_BYTE)])
        activations = a.load([first_row, step * (BLOCK_K // PER_BYTE)]).T
        if GROUP_SIZE > 0:
            # A step ahead: the pipeliner leaves loads of 2 bytes where they are, and no product may wait for memory.
            ahead = (step + 1) * BLOCK_K // GROUP_SIZE - first * BLOCK_K // GROUP_SIZE
            is_there = (column < columns) & (step + 1 < end)
            next_factor = tl.load(scale + group_at + ahead, mask=is_there, other=0.0)
            if zero_points is not None:
                next_zero = tl.load(zero_points + group_at + ahead, mask=is_there, other=0)
        # Each step adds to its own sums, also where no scales want it: the next step's weights would otherwise come to
        # the registers from which the matrix unit may still read these.
        part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if BITS == 4:
            low, high = low_and_high(weights, OPERANDS_ARE_BF16)
            if IS_APART:
                even, odd = activations, a.load([rows + first_row, step * (BLOCK_K // PER_BYTE)]).T
            else:
                even = (activations & 0xFFFF).to(tl.int16).to(low.dtype, bitcast=True)
                odd = (activations >> 16).to(tl.int16).to(low.dtype, bitcast=True)
            if zero_points is not None:
                less = zero.to(low.dtype)[:, None]
                low, high = low - less, high - less
            part = tl.dot(low, even, part)
            part = tl.dot(high, odd, part)
        else:
            wide = widened(weights, OPERANDS_ARE_BF16)
            if zero_points is not None:
                wide -= zero.to(wide.dtype)[:, None]
            part = tl.dot(wide, activations, part)
        if GROUP_SIZE > 0:
            product += part * factor.to(tl.float32)[:, None]
            factor = next_factor
            if zero_points is not None:
                zero = next_zero
        else:
            product += part
    row, column = row[None, :], column[:, None]
    if SPLITS > 1:
        at = partials + (split.to(tl.int64) * rows + row) * columns + column
        tl.store(at, product, mask=(row < rows) & (column < columns))
    else:
        finish(product, out, None, None if GROUP_SIZE > 0 else scale, bias, residual, row, column, rows, columns,
               out_row, out_column, residual_row, residual_column, ACTIVATION, IS_BF16)


def multiply(call: GemmWeightOnlyCall, block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int,
             splits: int) -> tuple[Launch, ...]:
    """The launches that write `out`. A program has block_m rows, block_n columns and one of `splits` parts of the
    depth, which a second kernel adds up."""
    (m, k), n, per_byte = call.a.shape, call.b.shape[0], 8 // call.bits
    block_k = min(block_k, call.group_size or block_k)
    is_apart = per_byte == 2 and m > 64
    a, *first = _apart(call.a) if is_apart else (call.a if per_byte == 1 else call.a.view(torch.int32),)
    descriptors = (TensorDescriptor(one, list(one.shape), list(one.stride()), [rows, block_k // per_byte])
                   for one, rows in ((a, block_m), (call.b, block_n)))
    partials = scratch((splits, m, n), torch.float32, call.a) if splits > 1 else None
    strides = (*call.out.stride(), *((0, 0) if call.residual is None else call.residual.stride()))
    constants = {"ACTIVATION": call.activation, "IS_BF16": call.out.dtype == torch.bfloat16, "SPLITS": splits}
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n), splits)
    product = launch(
        _gemm_weight_only_hopper_kernel, grid, *descriptors, call.out, call.scale, call.zero_points, call.bias,
        call.residual, partials, m, n, k, call.scale.shape[1], *strides, BITS=call.bits, GROUP_SIZE=call.group_size,
        OPERANDS_ARE_BF16=call.a.dtype == torch.bfloat16, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        IS_APART=is_apart, **constants, options={"num_warps": num_warps, "num_stages": num_stages})
    return *first, product, *add_up(call, partials, strides, constants)


def _apart(a: Tensor) -> tuple[Tensor, Launch]:
    """[2 · rows, depth / 2], what `a` has at even depth, then what it has at odd depth, in rows that TMA moves; and
    what writes it."""
    rows, words = a.shape[0], a.shape[1] // 2
    apart = scratch((2 * rows, triton.cdiv(words, 8) * 8), a.dtype, a)
    return apart[:, :words], launch(
        _apart_kernel, (triton.cdiv(words, _WORDS), rows), apart.view(torch.int16), a.view(torch.int32), rows, words,
        apart.stride(0), a.stride(0) // 2, BLOCK=_WORDS, options={"num_warps": 4})


def add_up(call: GemmWeightOnlyCall, partials: Tensor | None, strides: tuple[int, ...],
           constants: dict[str, Any]) -> tuple[Launch, ...]:
    """The launch that writes `out` from the sums over parts of the depth [splits, rows, columns], where there is more
    than one."""
    if partials is None:
        return ()
    (m, n), row_scale = call.out.shape, None if call.group_size else call.scale
    return (launch(sum_kernel, (triton.cdiv(n, SUM_BLOCK), m), partials, call.out, None, row_scale, call.bias,
                   call.residual, m, n, *strides, ROW_SCALES=True, COLUMN_SCALES=True, BLOCK=SUM_BLOCK, **constants,
                   options={"num_warps": 4}),)
