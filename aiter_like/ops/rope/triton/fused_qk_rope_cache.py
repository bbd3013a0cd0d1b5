# SPDX-License-Identifier: MIT
"""q/k norm, rotary embedding and the KV cache's write in Triton, named by the operator of
ops/rope/fused_qk_rope_cache.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.common.triton.quant_rule import quantised
from aiter_like.ops.rope.fused_qk_rope_cache import FusedQkRopeCacheCall
from aiter_like.ops.rope.triton.parts import load_pairs, places, row_angles, row_count, row_step

_ELEMENTS = 2048  # that one program takes, of all its heads together


@triton.jit
def _load(x, heads, is_head, columns, is_column):
    """[BLOCK_H, columns] in fp32; zeros elsewhere."""
    return tl.load(x + heads + columns[None, :], mask=is_head & is_column[None, :], other=0.0).to(tl.float32)


@triton.jit
def _put(cache, heads, is_head, columns, is_column, values, pack_step, dim_step, PACK: tl.constexpr,
         LARGEST: tl.constexpr):
    """Columns of a head into a cache whose dims are in packs of PACK."""
    place = (columns // PACK).to(tl.int64) * pack_step + (columns % PACK).to(tl.int64) * dim_step
    if LARGEST > 0:
        rounded = quantised(values, cache.dtype.element_ty, LARGEST)
    else:
        rounded = values.to(cache.dtype.element_ty)
    tl.store(cache + heads + place[None, :], rounded, mask=is_head & is_column[None, :])


@triton.jit
def _heads(x, out, out_start, weight, cos, sin, is_row, x_head, out_head, cache, cache_head, pack_step, dim_step,
           is_cached, inverse, first_head, count, head_dim, epsilon, rotary_half, first, second, BLOCK_H: tl.constexpr,
           BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, PACK: tl.constexpr, LARGEST: tl.constexpr,
           IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr):
    """BLOCK_H heads of q or k, whose pairs load_pairs gave: norm, rotation, result, and the cache where there is one.
    `x`, `out` + out_start, `cos`, `sin` and `cache` point to the token's.
    """
    head = first_head + tl.arange(0, BLOCK_H)
    is_head = (head < count)[:, None]
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos, sin, is_row, rotary_half, BLOCK_P, IS_GPTJ, IS_SHARED, False)
    if IS_GPTJ:
        first, second = tl.split(tl.reshape(first, (BLOCK_H, BLOCK_P, 2)))
    first, second = first.to(tl.float32), second.to(tl.float32)
    if BLOCK_C > 0:
        rest = 2 * rotary_half + tl.arange(0, BLOCK_C)
        is_rest = rest < head_dim
        kept = _load(x, head.to(tl.int64)[:, None] * x_head, is_head, rest, is_rest)
    if weight is not None:
        total = tl.sum(first * first + second * second, 1)
        if BLOCK_C > 0:
            total += tl.sum(kept * kept, 1)
        inverse_rms = tl.rsqrt(total / head_dim + epsilon)[:, None]
        weight_1, weight_2 = load_pairs(weight, 0, 1, 0, 0, rotary_half, 1, BLOCK_P, IS_GPTJ)
        if IS_GPTJ:
            weight_1, weight_2 = tl.split(tl.reshape(weight_1, (1, BLOCK_P, 2)))
        first *= inverse_rms * weight_1.to(tl.float32)
        second *= inverse_rms * weight_2.to(tl.float32)
        if BLOCK_C > 0:
            kept *= inverse_rms * tl.load(weight + rest, mask=is_rest, other=0.0).to(tl.float32)[None, :]
    turned_1 = first * cos_1 - second * sin_1
    turned_2 = second * cos_2 + first * sin_2
    if IS_GPTJ:
        turned_1 = tl.reshape(tl.join(turned_1, turned_2), (BLOCK_H, 2 * BLOCK_P))
    tl.debug_barrier()  # `out` may be `x`: a wave may load what another one, with the same elements, stores
    if out is not None:
        kind = out.dtype.element_ty
        place, mask = places(out_head, count, first_head, 0, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
        tl.store(out + out_start + place, turned_1.to(kind), mask=mask)
        if not IS_GPTJ:
            tl.store(out + out_start + place + rotary_half, turned_2.to(kind), mask=mask)
        if BLOCK_C > 0:
            place = head.to(tl.int64)[:, None] * out_head + rest[None, :]
            tl.store(out + out_start + place, kept.to(kind), mask=is_head & is_rest[None, :])
    if cache is not None:
        is_head = is_head & is_cached
        slots = head.to(tl.int64)[:, None] * cache_head
        if IS_GPTJ:
            flat = tl.arange(0, 2 * BLOCK_P)
            _put(cache, slots, is_head, flat, flat < 2 * rotary_half, turned_1 * inverse, pack_step, dim_step, PACK,
                 LARGEST)
        else:
            pairs = tl.arange(0, BLOCK_P)
            is_pair = pairs < rotary_half
            _put(cache, slots, is_head, pairs, is_pair, turned_1 * inverse, pack_step, dim_step, PACK, LARGEST)
            _put(cache, slots, is_head, pairs + rotary_half, is_pair, turned_2 * inverse, pack_step, dim_step, PACK,
                 LARGEST)
        if BLOCK_C > 0:
            _put(cache, slots, is_head, rest, is_rest, kept * inverse, pack_step, dim_step, PACK, LARGEST)


@triton.jit
def _fused_qk_rope_cache_kernel(
        q_out, k_out, v_out, key_cache, value_cache, q, k, v, q_weight, k_weight, cos, sin, positions, offsets, slots,
        k_scale, v_scale, q_token, q_head, k_token, k_head, v_token, v_head, q_out_token, q_out_head, k_out_token,
        k_out_head, v_out_token, v_out_head, key_block, key_token, key_head, key_pack, key_dim, value_block, value_pack,
        value_token, value_head, value_dim, cos_row, sin_row, rows, positions_step, offsets_step, num_heads,
        num_kv_heads, head_dim, epsilon, rotary_half, page_size, num_slots, slot_count, q_blocks, BLOCK_H: tl.constexpr,
        BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, KEY_PACK: tl.constexpr,
        VALUE_PACK: tl.constexpr, LARGEST: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr,
        OVERLAPS: tl.constexpr):
    """One token's BLOCK_H heads of q, or of k and v from block `q_blocks` on; bound: memory."""
    await_stream(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    first_head = tl.where(block < q_blocks, block, block - q_blocks) * BLOCK_H
    if block < q_blocks:
        first, second = load_pairs(q + token * q_token, q_head, num_heads, first_head, 0, rotary_half, BLOCK_H, BLOCK_P,
                                   IS_GPTJ)
    else:
        first, second = load_pairs(k + token * k_token, k_head, num_kv_heads, first_head, 0, rotary_half, BLOCK_H,
                                   BLOCK_P, IS_GPTJ)
    tl.debug_barrier()  # heads first: ptxas would wait for the position before it loads them
    row = tl.load(positions + token * positions_step).to(tl.int64)
    if offsets is not None:
        row += tl.load(offsets + token * offsets_step).to(tl.int64)
    is_row = (row >= 0) & (row < rows)
    cos += row * cos_row
    sin += row * sin_row
    if block < q_blocks:
        _heads(q + token * q_token, q_out, token * q_out_token, q_weight, cos, sin, is_row, q_head, q_out_head, None, 0,
               0, 0, False, 1.0, first_head, num_heads, head_dim, epsilon, rotary_half, first, second, BLOCK_H, BLOCK_P,
               BLOCK_C, 1, LARGEST, IS_GPTJ, IS_SHARED)
    else:
        slot = tl.load(slots + token, mask=token < slot_count, other=-1).to(tl.int64)
        is_cached = (slot >= 0) & (slot < num_slots)
        page, offset = slot // page_size, slot % page_size
        head = first_head + tl.arange(0, BLOCK_H)
        is_head = (head < num_kv_heads)[:, None]
        head = head.to(tl.int64)[:, None]
        columns = tl.arange(0, BLOCK_D)
        is_column = columns < head_dim
        values = _load(v, token * v_token + head * v_head, is_head, columns, is_column)
        inverse = 1.0
        if k_scale is not None:
            inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.load(k_scale))
        _heads(k + token * k_token, k_out, token * k_out_token, k_weight, cos, sin, is_row, k_head, k_out_head,
               key_cache + page * key_block + offset * key_token, key_head, key_pack, key_dim, is_cached, inverse,
               first_head, num_kv_heads, head_dim, epsilon, rotary_half, first, second, BLOCK_H, BLOCK_P, BLOCK_C,
               KEY_PACK, LARGEST, IS_GPTJ, IS_SHARED)
        inverse = 1.0
        if v_scale is not None:
            inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.load(v_scale))
        if v_out is not None:
            tl.store(v_out + token * v_out_token + head * v_out_head + columns[None, :],
                     values.to(v_out.dtype.element_ty), mask=is_head & is_column[None, :])
        start = page * value_block + offset // VALUE_PACK * value_pack + offset % VALUE_PACK * value_token
        _put(value_cache + start, head * value_head, is_head & is_cached, columns, is_column, values * inverse,
             value_dim, 0, 1, LARGEST)


def fused_qk_rope_cache(call: FusedQkRopeCacheCall, elements: int | None = None,
                        num_warps: int | None = None) -> Launch | None:
    """The launch that writes the results and the caches.

    `elements` of the heads are one program's; None for either parameter: what suits most sizes.
    """
    q, k, key_cache, value_cache = call.q, call.k, call.key_cache, call.value_cache
    tokens, num_heads, head_dim = q.shape
    num_kv_heads, rotary_half = k.shape[1], call.rotary_dim // 2
    block_d, rest = power_of_2(head_dim), head_dim - 2 * rotary_half
    block_h = min(power_of_2(max(num_heads, num_kv_heads)), max((elements or _ELEMENTS) // block_d, 1))
    q_blocks, kv_blocks = triton.cdiv(num_heads, block_h), triton.cdiv(num_kv_heads, block_h)
    steps = [step for x in (q, k, call.v, call.q_out, call.k_out, call.v_out)
             for step in ((0, 0) if x is None else x.stride()[:2])]
    if not num_heads + num_kv_heads:
        return None
    return launch(_fused_qk_rope_cache_kernel, (tokens, q_blocks + kv_blocks), call.q_out, call.k_out, call.v_out,
                  key_cache, value_cache, q, k, call.v, call.q_weight, call.k_weight, call.cos, call.sin,
                  call.positions, call.offsets, call.slot_mapping, call.k_scale, call.v_scale, *steps,
                  *_cache_strides(call), row_step(call.cos), row_step(call.sin), row_count(call.cos),
                  call.positions.stride(0), 0 if call.offsets is None else call.offsets.stride(0), num_heads,
                  num_kv_heads, head_dim, real(call.epsilon), rotary_half, call.page_size,
                  call.page_size * key_cache.shape[0], call.slot_mapping.shape[0], q_blocks, BLOCK_H=block_h,
                  BLOCK_P=power_of_2(max(rotary_half, 1)), BLOCK_C=power_of_2(rest) if rest else 0, BLOCK_D=block_d,
                  KEY_PACK=1 if call.layout == "rows" else key_cache.shape[4],
                  VALUE_PACK=value_cache.shape[4] if call.layout == "shuffled" else 1,
                  LARGEST=quant_rule.largest(key_cache.dtype) if call.is_fp8 else 0.0, IS_GPTJ=call.rotate_style == 1,
                  IS_SHARED=call.reuse_freqs_front_part,
                  options={"num_warps": num_warps or (4 if block_h * block_d >= 2048 else 1)})


def _cache_strides(call: FusedQkRopeCacheCall) -> list[int]:
    """The keys' strides of block, token, head, pack and element; the values' of block, pack, token, head and element.
    """
    key, value = call.key_cache.stride(), call.value_cache.stride()
    if call.layout == "rows":
        return [key[0], key[1], key[2], key[3], 0, value[0], value[1], 0, value[2], value[3]]
    if call.layout == "columns":
        return [key[0], key[3], key[1], key[2], key[4], value[0], value[3], 0, value[1], value[2]]
    return [key[0], key[3], key[1], key[2], key[4], value[0], value[2], value[4], value[1], value[3]]
