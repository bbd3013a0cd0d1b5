# SPDX-License-Identifier: MIT
"""gemm_weight_only for up to 16 rows on Hopper in Gluon, Triton's lower level, where weights stream at the memory's
rate. Launched by gemm_weight_only.py.

Each lane reads 16 bytes of a row of weights straight into the registers from which the matrix unit takes its left side,
several steps ahead. A product may add up in any order of the depth as long as both sides have the same: here it is the
one in which a weight is made a 16-bit number by the fewest instructions, 1.4 with 4 bits. The numbers at the same place
in the two halves of a 32-bit word are a pair, and four lanes share 64 bytes of a row. The activations are brought into
that order on their way to shared memory, once for all columns of a program.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, scratch
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.gemm.triton.gemm_weight_only_hopper import add_up
from aiter_like.ops.gemm.triton.parts import finish
from aiter_like.ops.gemm.weight_only import SKINNY_DEPTH

_HAS_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))  # since Triton 3.7

_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_REGISTERS = 128  # two programs of 8 warps share an SM if a lane has no more


@gluon.constexpr_function
def _count(size):
    """The number of bits of an index below a power of two."""
    return size.bit_length() - 1


@gluon.constexpr_function
def _bits(size):
    return [1 << bit for bit in range(size.bit_length() - 1)]


@gluon.constexpr_function
def _weight_layout(rows, words, vector, num_warps):
    """The layout of words [rows, words]: rows as on the left side of a product; `vector` neighbours in a lane, four
    lanes to a row."""
    row, word = [[one, 0] for one in _bits(rows)], [[0, one] for one in _bits(words)]
    near, warps = _count(vector), _count(num_warps)
    return gl.DistributedLinearLayout(word[:near] + word[near + 2:] + row[3:4] + row[4 + warps:],
                                      word[near:near + 2] + row[:3], row[4:4 + warps], [], [rows, words])


@gluon.constexpr_function
def _activation_layout(rows, depth, apart, num_warps):
    """The layout of activations [rows, depth]: 8 neighbours in a lane and, where there are enough, the four times 8
    that are `apart`, whose neighbours a product has side by side."""
    k, row = [[0, one] for one in _bits(depth)], [[one, 0] for one in _bits(rows)]
    own, rest, near, lanes = k[:3], k[3:] + row, _count(apart), 5 + _count(num_warps)
    if len(rest) >= lanes + 2 and near >= 3:
        own, rest = own + k[near:near + 2], k[3:near] + k[near + 2:] + row
    threads = (rest + [[0, 0]] * lanes)[:lanes]
    return gl.DistributedLinearLayout(own + rest[lanes:], threads[:5], threads[5:], [], [rows, depth])


@gluon.jit
def _pairs_of_4_bits(words, IS_BF16: gl.constexpr):
    """Words of 16-bit pairs: of the numbers at the same place in the low and the high half of each word."""
    if IS_BF16:
        return gl.inline_asm_elementwise("""
            {
            .reg .b32 t0, t1, t2, t3, base, one;
            shr.b32 t1, $4, 4;
            shr.b32 t2, $4, 8;
            shr.b32 t3, $4, 12;
            lop3.b32 t0, $4, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 t1, t1, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 t2, t2, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 t3, t3, 0x000F000F, 0x43084308, 0x6A;
            mov.b32 base, 0xC308C308;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 $0, t0, one, base;
            fma.rn.bf16x2 $1, t1, one, base;
            fma.rn.bf16x2 $2, t2, one, base;
            fma.rn.bf16x2 $3, t3, one, base;
            }
            """, "=r,=r,=r,=r,r", [words], dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1)
    else:
        return gl.inline_asm_elementwise("""
            {
            .reg .b32 t0, t1, t2, t3, low, high, one, sixteenth;
            shr.b32 t2, $4, 8;
            lop3.b32 t0, $4, 0x000F000F, 0x64086408, 0x6A;
            lop3.b32 t1, $4, 0x00F000F0, 0x64806480, 0x6A;
            lop3.b32 t3, t2, 0x00F000F0, 0x64806480, 0x6A;
            lop3.b32 t2, t2, 0x000F000F, 0x64086408, 0x6A;
            mov.b32 low, 0xE408E408;
            mov.b32 high, 0xD480D480;
            mov.b32 one, 0x3C003C00;
            mov.b32 sixteenth, 0x2C002C00;
            fma.rn.f16x2 $0, t0, one, low;
            fma.rn.f16x2 $1, t1, sixteenth, high;
            fma.rn.f16x2 $2, t2, one, low;
            fma.rn.f16x2 $3, t3, sixteenth, high;
            }
            """, "=r,=r,=r,=r,r", [words], dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1)


@gluon.jit
def _pairs_of_8_bits(words, IS_BF16: gl.constexpr):
    """The same of 8-bit numbers."""
    if IS_BF16:
        return gl.inline_asm_elementwise("""
            {
            .reg .b32 x, t0, t1, m0, m1, one;
            shr.b32 x, $2, 8;
            lop3.b32 m0, $2, 0x00800080, 0xC300C300, 0xEA;
            lop3.b32 m1, x, 0x00800080, 0xC300C300, 0xEA;
            lop3.b32 t0, $2, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 t1, x, 0x007F007F, 0x43004300, 0xEA;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 $0, t0, one, m0;
            fma.rn.bf16x2 $1, t1, one, m1;
            }
            """, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1)
    else:
        return gl.inline_asm_elementwise("""
            {
            .reg .b32 x, t0, t1, base, one;
            shr.b32 x, $2, 8;
            lop3.b32 t0, $2, 0x00FF00FF, 0x64806480, 0x6A;
            lop3.b32 t1, x, 0x00FF00FF, 0x64806480, 0x6A;
            mov.b32 base, 0xE480E480;
            mov.b32 one, 0x3C003C00;
            fma.rn.f16x2 $0, t0, one, base;
            fma.rn.f16x2 $1, t1, one, base;
            }
            """, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1)


@gluon.jit
def _less(pairs, zero, IS_BF16: gl.constexpr):
    """pairs − zero, of words of two 16-bit numbers each."""
    less = ()
    for index in gl.static_range(len(pairs)):
        if IS_BF16:
            one = gl.inline_asm_elementwise("{.reg .b32 one; mov.b32 one, 0xBF80BF80; fma.rn.bf16x2 $0, $2, one, $1;}",
                                            "=r,r,r", [pairs[index], zero], dtype=gl.int32, is_pure=True, pack=1)
        else:
            one = gl.inline_asm_elementwise("sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [pairs[index], zero], dtype=gl.int32,
                                            is_pure=True, pack=1)
        less = less + (one, )
    return less


@gluon.jit
def _halves(words, IS_BF16: gl.constexpr):
    """The two numbers of each word."""
    if IS_BF16:
        return gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [words], dtype=(gl.bfloat16, gl.bfloat16),
                                         is_pure=True, pack=1)
    else:
        return gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [words], dtype=(gl.float16, gl.float16),
                                         is_pure=True, pack=1)


@gluon.jit
def _fetch(b_at, scale_at, zero_at, word, step, end, row_words, WORDS: gl.constexpr, IS_GROUPED: gl.constexpr,
           IS_EVEN: gl.constexpr):
    """Loads a step's weights: words, and their group's scales and zero points or 0. Steps beyond the end get the last
    step's words, which meet activations of 0, and scales of 0."""
    first = gl.minimum(step, end - 1) * WORDS
    if IS_EVEN:
        words = gl.load(b_at + first, eviction_policy="evict_first")
    else:
        words = gl.load(b_at + first, mask=(word < row_words - first)[None, :], other=0)
    factor, zero = 0, 0
    if IS_GROUPED:
        factor = gl.load(scale_at + step, mask=step < end, other=0.0)
        if zero_at is not None:
            zero = gl.load(zero_at + step, mask=step < end, other=0)
    return words, factor, zero


@gluon.jit
def _left(words, zero, LAYOUT: gl.constexpr, VECTOR: gl.constexpr, BITS: gl.constexpr, IS_BF16: gl.constexpr):
    """Words of weights less their zero points, as the left side of a product; in the order of the depth that the file's
    head tells."""
    ROWS: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    PAIRS: gl.constexpr = 16 // BITS
    if BITS == 4:
        pairs = _pairs_of_4_bits(words, IS_BF16)
    else:
        pairs = _pairs_of_8_bits(words, IS_BF16)
    if zero is not None:
        half = zero.to(gl.bfloat16 if IS_BF16 else gl.float16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
        pairs = _less(pairs, (half | (half << 16))[:, None], IS_BF16)
    if PAIRS == 4:
        wide = gl.join(gl.join(pairs[0], pairs[1]), gl.join(pairs[2], pairs[3]))
        wide = wide.permute([0, 1, 3, 2]).reshape([ROWS, WORDS, 4])
    else:
        wide = gl.join(pairs[0], pairs[1])
    low, high = _halves(wide, IS_BF16)
    left = gl.join(low, high).reshape([ROWS, WORDS // (4 * VECTOR), 4, VECTOR, PAIRS, 2]).permute([0, 1, 3, 4, 2, 5])
    return gl.convert_layout(left.reshape([ROWS, WORDS * PAIRS * 2]), LAYOUT, assert_trivial=True)


@gluon.jit
def _added(product, words, factor, zero, activations, VECTOR: gl.constexpr, BITS: gl.constexpr, IS_BF16: gl.constexpr,
           IS_GROUPED: gl.constexpr):
    """product and that of a step's weights and activations [rows, depth]."""
    LAYOUT: gl.constexpr = product.type.layout
    left = _left(words, zero, gl.DotOperandLayout(0, LAYOUT, 2), VECTOR, BITS, IS_BF16)
    right = activations.permute([1, 0]).load(gl.DotOperandLayout(1, LAYOUT, 2))
    if IS_GROUPED:
        return product + mma_v2(left, right, gl.zeros_like(product)) * factor.to(gl.float32)[:, None]
    else:
        return mma_v2(left, right, product)


@gluon.jit
def _rows_together(shared, CHUNK: gl.constexpr, BLOCK_M: gl.constexpr, STEP: gl.constexpr):
    """The same memory as [CHUNK · BLOCK_M, STEP]."""
    if _HAS_REINTERPRET:
        return shared.reinterpret(shared.dtype, [CHUNK * BLOCK_M, STEP], shared.layout)
    else:
        return shared._reinterpret(shared.dtype, [CHUNK * BLOCK_M, STEP], shared.layout)


@gluon.jit
def _store_in_order(chunk, activations, VECTOR: gl.constexpr, WORDS: gl.constexpr, PAIRS: gl.constexpr):
    """Activations of CHUNK steps to shared memory, each step's in the order in which `_left` has the weights."""
    ROWS: gl.constexpr = chunk.shape[0]
    # [.., words of a lane apart, lanes, neighbours, halves of a word, pairs]
    parts = activations.reshape([ROWS, WORDS // (4 * VECTOR), 4, VECTOR, 2, PAIRS])
    chunk.store(parts.permute([0, 1, 3, 5, 2, 4]).reshape([ROWS, WORDS * PAIRS * 2]))


@gluon.jit
def _store_part(product, partials, split, row, column, rows, columns):
    """To partials [splits, rows, columns]."""
    at = partials + (split.to(gl.int64) * rows + row) * columns + column
    gl.store(at, product, mask=(row < rows) & (column < columns))


@gluon.constexpr_function
def _shared_layout(depth):
    """The layout of activations [rows, depth] in shared memory. The matrix unit takes 8 rows by 16 bytes at a time: no
    two lie in one bank."""
    phases = min(8, depth // 8)
    return gl.SwizzledSharedLayout(8, 8 // phases, phases, [1, 0])


@gluon.jit
def _gemm_weight_only_skinny_kernel(a, b, out, scale, zero_points, bias, residual, partials, rows, columns, depth,
                                    groups, a_row, b_row, out_row, out_column, residual_row, residual_column,
                                    BITS: gl.constexpr, GROUP_SIZE: gl.constexpr, ACTIVATION: gl.constexpr,
                                    IS_BF16: gl.constexpr, OPERANDS_ARE_BF16: gl.constexpr, SPLITS: gl.constexpr,
                                    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STEP: gl.constexpr,
                                    CHUNK: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr,
                                    IS_EVEN: gl.constexpr, OVERLAPS: gl.constexpr):
    """BLOCK_N columns of all rows of out; bound: memory. b has words of 32 bits; a_row and b_row count 16 bytes. A step
    takes STEP weights of each row, one group where there are groups; activations come to shared memory for CHUNK steps.
    Weights are read STAGES steps ahead in a loop of UNROLL steps, which lets them stay in the registers that they were
    read into. With SPLITS > 1 the sums over a part of the depth go to partials [SPLITS, rows, columns]."""
    await_stream(OVERLAPS)
    NUM_WARPS: gl.constexpr = gl.num_warps()
    IS_GROUPED: gl.constexpr = GROUP_SIZE > 0
    WORDS: gl.constexpr = STEP * BITS // 32
    VECTOR: gl.constexpr = min(4, WORDS // 4)
    PAIRS: gl.constexpr = 16 // BITS
    ACC: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [NUM_WARPS, 1], [16, 8])
    WEIGHTS: gl.constexpr = _weight_layout(BLOCK_N, WORDS, VECTOR, NUM_WARPS)
    ACTIVATIONS: gl.constexpr = _activation_layout(CHUNK * BLOCK_M, STEP, 2 * PAIRS * VECTOR, NUM_WARPS)
    AHEAD: gl.constexpr = BLOCK_M == 8  # more rows leave no registers for the next activations

    first_column, split = gl.program_id(0) * BLOCK_N, gl.program_id(1)
    steps = gl.cdiv(depth, STEP)
    chunks = gl.cdiv(steps, CHUNK)
    first, end = chunks * split // SPLITS * CHUNK, gl.minimum(chunks * (split + 1) // SPLITS * CHUNK, steps)
    # Beyond the last column its weights are read again.
    column = gl.minimum(first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, WEIGHTS)), columns - 1).to(gl.int64)
    word, row_words = gl.arange(0, WORDS, gl.SliceLayout(0, WEIGHTS)), depth * BITS // 32
    b_at = b + (column * b_row * 4)[:, None] + word[None, :]
    zero_at = None if zero_points is None else zero_points + column * groups
    row_zero = None if zero_points is None or IS_GROUPED else gl.load(zero_at)
    column = gl.minimum(first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, ACC)), columns - 1).to(gl.int64)
    scale_at = scale + column * groups
    index = gl.arange(0, CHUNK * BLOCK_M, gl.SliceLayout(1, ACTIVATIONS))
    row, k, limit = index % BLOCK_M, gl.arange(0, STEP, gl.SliceLayout(0, ACTIVATIONS)), gl.minimum(end * STEP, depth)
    k = (index // BLOCK_M * STEP)[:, None] + k[None, :]
    a_at, is_row = a + (row.to(gl.int64) * a_row * 8)[:, None] + k, (row < rows)[:, None]
    shared = gl.allocate_shared_memory(a.dtype.element_ty, [CHUNK, BLOCK_M, STEP], _shared_layout(STEP))
    chunk = _rows_together(shared, CHUNK, BLOCK_M, STEP)
    ring = ()
    for stage in gl.static_range(STAGES):
        ring = ring + (_fetch(b_at, scale_at, zero_at, word, first + stage, end, row_words, WORDS, IS_GROUPED,
                              IS_EVEN), )
    product = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC)
    if AHEAD:
        activations = gl.load(a_at + first * STEP, mask=is_row & (k < limit - first * STEP), other=0.0)
    for start in range(first, end, CHUNK):
        if not AHEAD:
            activations = gl.load(a_at + start * STEP, mask=is_row & (k < limit - start * STEP), other=0.0)
        _store_in_order(chunk, activations, VECTOR, WORDS, PAIRS)
        if AHEAD:
            beyond = (start + CHUNK) * STEP
            activations = gl.load(a_at + beyond, mask=is_row & (k < limit - beyond), other=0.0)
        _barrier()  # Triton would put one into the loop
        for base in range(0, CHUNK, UNROLL):
            for stage in gl.static_range(UNROLL):
                words, factor, zero = ring[0]
                ring = ring[1:] + (_fetch(b_at, scale_at, zero_at, word, start + base + (stage + STAGES), end,
                                          row_words, WORDS, IS_GROUPED, IS_EVEN), )
                if zero_points is None or not IS_GROUPED:
                    zero = row_zero
                product = _added(product, words, factor, zero, shared.index(base + stage), VECTOR, BITS,
                                 OPERANDS_ARE_BF16, IS_GROUPED)
    row = gl.arange(0, BLOCK_M, gl.SliceLayout(0, ACC))[None, :]
    column = (first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, ACC)))[:, None]
    if SPLITS > 1:
        _store_part(product, partials, split, row, column, rows, columns)
    else:
        finish(product, out, None, None if IS_GROUPED else scale, bias, residual, row, column, rows, columns, out_row,
               out_column, residual_row, residual_column, ACTIVATION, IS_BF16)


def multiply(call: GemmWeightOnlyCall, block_n: int, num_warps: int, num_stages: int,
             splits: int) -> tuple[Launch, ...]:
    """The launches that write `out`. A program has block_n columns and one of `splits` parts of the depth, which a
    second kernel adds up; a part has at least SKINNY_DEPTH. num_stages: steps of 128 weights that are read ahead."""
    if block_n % (16 * num_warps):
        raise ValueError(f"block_n must be a multiple of 16 for each of {num_warps} warps, got {block_n}")
    (m, k), n = call.a.shape, call.b.shape[0]
    step = call.group_size or 128
    block_m, times = 8 if m <= 8 else 16, 128 // step
    splits = min(splits, triton.cdiv(k, SKINNY_DEPTH))
    partials = scratch((splits, m, n), torch.float32, call.a) if splits > 1 else None
    strides = (*call.out.stride(), *((0, 0) if call.residual is None else call.residual.stride()))
    constants = {"ACTIVATION": call.activation, "IS_BF16": call.out.dtype == torch.bfloat16, "SPLITS": splits}
    product = launch(
        _gemm_weight_only_skinny_kernel, (triton.cdiv(n, block_n), splits), call.a, call.b.view(torch.int32), call.out,
        call.scale, call.zero_points, call.bias, call.residual, partials, m, n, k, call.scale.shape[1],
        call.a.stride(0) // 8, call.b.stride(0) // 16, *strides, BITS=call.bits, GROUP_SIZE=call.group_size,
        OPERANDS_ARE_BF16=call.a.dtype == torch.bfloat16, BLOCK_M=block_m, BLOCK_N=block_n, STEP=step,
        CHUNK=SKINNY_DEPTH // step, STAGES=num_stages * times,
        UNROLL=(4 if block_m == 8 and call.bits == 4 else 2) * times, IS_EVEN=k % step == 0, **constants,
        options={"num_warps": num_warps, "maxnreg": _REGISTERS})
    return product, *add_up(call, partials, strides, constants)
