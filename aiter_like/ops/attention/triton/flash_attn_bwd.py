# SPDX-License-Identifier: MIT
"""Derivatives of attention in Triton, named by the operator of ops/attention/flash_attn_bwd.py.

Three kernels and no atomics: one number for each row, then dK and dV by blocks of keys, dQ by blocks of rows. P is
computed again from the forward's LSE; sums over rows, heads and keys have one order.

That is seven products; five are enough, but not for sums in one order. If the kernel for dK and dV added its part to dQ
in memory, a block of 64 keys and 64 rows of head dimension 128 would read and write 64 KB beside 2,560 clk of an
MI300X CU's matrix operations, 16 TB/s of 304 CUs; dS of all pairs, kept for dQ, takes 2 bytes for each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aiter_like.device import Target, target_of
from aiter_like.ops.attention.call import AttentionBackwardCall, AttentionDbiasCall
from aiter_like.ops.attention.checks import is_aligned
from aiter_like.ops.attention.triton.flash_attn_bwd_far import far
from aiter_like.ops.attention.triton.flash_attn_bwd_loops import dkdv_rows, dq_keys
from aiter_like.ops.attention.triton.flash_attn_bwd_parts import (
    PADDING,
    Bias,
    Dropout,
    Rule,
    address,
    alibi_slope,
    bias_address,
    load_rows,
    place_of_program,
    plain,
    random_word,
    rows_index,
    scratch_index,
    seen_by,
    seen_from,
    sequence,
    store_rows,
    view_of,
)
from aiter_like.ops.attention.triton.parts import LOG2_E
from aiter_like.ops.attention.triton.strides import stride_of_batch, strides_of_bias, strides_of_rows
from aiter_like.ops.attention.triton.terms import sink_score
from aiter_like.ops.common import philox
from aiter_like.ops.common.triton.fill import fill
from aiter_like.ops.common.triton.launch import Launch, config, launch, power_of_2, scratch
from aiter_like.traced import exactly

UNSPECIALIZED = ("num_heads", "group_size", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k", "left", "right",
                 "sink_size", "threshold", "slopes_batch", "scratch_rows")


# Lengths and counts vary from call to call: variants for those that are 1 or a multiple of 16 only cost compilations.
@triton.jit(do_not_specialize=("scratch_rows", "num_heads", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k",
                               "right"))
def _delta_kernel(delta, lse2, dsink, out, dout, lse, highest, rests, dlse, sink, cu_seqlens_q, cu_seqlens_k,
                  out_strides, dout_strides, scratch_rows, num_heads, total_q, total_k, max_seqlen_q, max_seqlen_k,
                  right, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """delta = Σ dout · out − dlse, and the LSE to base 2, +∞ for a row that sees nothing or is none: its p becomes 0.

    dsink [num_heads, batch · blocks]: this block's part of −Σ exp(sink − lse) · delta. highest, rests: of _far_kernel,
    None without bias and slopes. Bound: memory.
    """
    out, dout = view_of(out, out_strides), view_of(dout, dout_strides)
    first_row = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2)
    start, seqlen_q = sequence(cu_seqlens_q, batch, total_q, max_seqlen_q)
    rows = first_row + tl.arange(0, BLOCK_M)
    is_row = rows < seqlen_q
    _, seqlen_k = sequence(cu_seqlens_k, batch, total_k, max_seqlen_k)
    has_keys = is_row & (seqlen_k > 0)  # without any, what is in out and dout counts for nothing, not even for dsink
    if right is not None:
        has_keys &= rows + (seqlen_k - seqlen_q + right) >= 0
    result = load_rows(address(out, batch, start, head), first_row, out.row, has_keys, BLOCK_M, DIM, BLOCK_D)
    slope = load_rows(address(dout, batch, start, head), first_row, dout.row, has_keys, BLOCK_M, DIM, BLOCK_D)
    difference = tl.sum(result.to(tl.float32) * slope.to(tl.float32), 1)
    index = rows_index(cu_seqlens_q, batch, start, head, num_heads, total_q, max_seqlen_q) + rows
    if dlse is not None:
        difference -= tl.load(dlse + index, mask=is_row, other=0.0)
    value = tl.load(lse + index, mask=is_row, other=float("-inf"))
    sees = value != float("-inf")
    difference = tl.where(sees, plain(difference), 0.0)
    is_padded = rows < tl.cdiv(seqlen_q, PADDING) * PADDING
    place = scratch_index(cu_seqlens_q, batch, start, head, num_heads, scratch_rows) + rows
    tl.store(delta + place, difference, mask=is_padded)
    value2 = value * LOG2_E
    if rests is not None:
        value2 = tl.load(highest + place, mask=is_row, other=0.0)
    tl.store(lse2 + place, tl.where(sees, plain(value2), float("inf")), mask=is_padded)
    if sink is not None:
        if rests is not None:
            rest = tl.load(rests + place, mask=is_row, other=0.0)
            weight = tl.exp2(sink_score(tl.load(sink + head), True) - value2 - rest)
        else:
            weight = tl.exp2((tl.load(sink + head) - value) * LOG2_E)
        part = -tl.sum(tl.where(sees, weight * difference, 0.0), 0)
        blocks = tl.num_programs(0)
        tl.store(dsink + (head * tl.num_programs(2) + batch).to(tl.int64) * blocks + tl.program_id(0), part)


@triton.jit(do_not_specialize=["count"])
def _sum_kernel(out, parts, out_stride, count, BLOCK: tl.constexpr):
    """out = Σ of a row of parts, in one order; bound: memory."""
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        total += tl.load(parts + row.to(tl.int64) * count + first + lanes, mask=first + lanes < count, other=0.0)
    tl.store(out + row * out_stride, tl.sum(total, 0))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dkdv_kernel(dk, dv, dout, q, k, v, bias, slopes, delta, lse2, rests, cu_seqlens_q, cu_seqlens_k, rng_state,
                 dk_strides, dv_strides, strides, bias_strides, slopes_batch, scratch_rows, num_heads, group_size,
                 total_q, total_k, max_seqlen_q, max_seqlen_k, left, right, sink_size, threshold, softmax_scale, scale,
                 cap_log2, keep_scale, DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr,
                 BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """dV = Pᵀ dO and dK = softmax_scale · dSᵀ Q of BLOCK_N keys of one KV head, dS = P · (dO Vᵀ − delta).

    Every query head of the group adds its part in turn. Row blocks that see all the keys run without a mask; those on
    an edge follow with one. Bound: matrix unit. strides: of dout, q, k, v.
    """
    dk, dv = view_of(dk, dk_strides), view_of(dv, dv_strides)
    dout, q, k, v = view_of(dout, strides[0]), view_of(q, strides[1]), view_of(k, strides[2]), view_of(v, strides[3])
    bias = Bias(bias, bias_strides[0], bias_strides[1], bias_strides[2], bias_strides[3])
    block, kv_head, batch, _ = place_of_program(right)
    first_key = block * BLOCK_N
    q_start, seqlen_q = sequence(cu_seqlens_q, batch, total_q, max_seqlen_q)
    k_start, seqlen_k = sequence(cu_seqlens_k, batch, total_k, max_seqlen_k)
    if first_key >= seqlen_k:
        return
    keys = first_key + tl.arange(0, BLOCK_N)
    is_key = keys < seqlen_k
    k_tile = load_rows(address(k, batch, k_start, kv_head), first_key, k.row, is_key, BLOCK_N, DIM, BLOCK_D)
    v_tile = load_rows(address(v, batch, k_start, kv_head), first_key, v.row, is_key, BLOCK_N, DIM_V, BLOCK_DV)
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    last_key = tl.minimum(first_key + BLOCK_N, seqlen_k) - 1
    first, end, inner, inner_end = seen_by(first_key, last_key, seqlen_q, seqlen_k, left, right, sink_size, BLOCK_M,
                                            BLOCK_N)
    gap = inner_end - inner
    for index in range(group_size):
        head = kv_head * group_size + index
        rows_at = scratch_index(cu_seqlens_q, batch, q_start, head, num_heads, scratch_rows)
        rule = Rule(seqlen_q, seqlen_k, left, right, sink_size, scale, cap_log2, slopes,
                    alibi_slope(slopes, batch, slopes_batch, head), bias, bias_address(bias, batch, q_start, head),
                    rests, rows_at)
        dropout = Dropout(rng_state, random_word(rng_state, 0), random_word(rng_state, 1), batch * num_heads + head,
                          threshold, keep_scale)
        rows_of = (address(q, batch, q_start, head), q.row, address(dout, batch, q_start, head), dout.row,
                   delta + rows_at, lse2 + rows_at, first_key, last_key)
        dk_tile, dv_tile = dkdv_rows(dk_tile, dv_tile, k_tile, v_tile, first_key, rule, dropout, rows_of, inner,
                                     inner_end, 0, 0, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_M, BLOCK_N, False)
        dk_tile, dv_tile = dkdv_rows(dk_tile, dv_tile, k_tile, v_tile, first_key, rule, dropout, rows_of, first,
                                     end - gap, inner, gap, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_M, BLOCK_N, True)
    store_rows(dk, batch, k_start, kv_head, keys, seqlen_k, dk_tile * softmax_scale, DIM, BLOCK_D)
    store_rows(dv, batch, k_start, kv_head, keys, seqlen_k, dv_tile, DIM_V, BLOCK_DV)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dq_kernel(dq, dout, q, k, v, bias, slopes, delta, lse2, rests, cu_seqlens_q, cu_seqlens_k, rng_state, dq_strides,
               strides, bias_strides, slopes_batch, scratch_rows, num_heads, group_size, total_q, total_k,
               max_seqlen_q, max_seqlen_k, left, right, sink_size, threshold, softmax_scale, scale, cap_log2,
               keep_scale, DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """dQ = softmax_scale · dS K of BLOCK_M rows of one head, dS = P · (dO Vᵀ − delta).

    Key blocks that every row sees run without a mask; those on an edge follow with one. Bound: matrix unit. strides: of
    dout, q, k, v.
    """
    dq, dout, q = view_of(dq, dq_strides), view_of(dout, strides[0]), view_of(q, strides[1])
    k, v = view_of(k, strides[2]), view_of(v, strides[3])
    bias = Bias(bias, bias_strides[0], bias_strides[1], bias_strides[2], bias_strides[3])
    block, head, batch, blocks = place_of_program(right)
    first_row = (blocks - 1 - block) * BLOCK_M  # causal: the longest first
    q_start, seqlen_q = sequence(cu_seqlens_q, batch, total_q, max_seqlen_q)
    k_start, seqlen_k = sequence(cu_seqlens_k, batch, total_k, max_seqlen_k)
    if first_row >= seqlen_q:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    rows_at = scratch_index(cu_seqlens_q, batch, q_start, head, num_heads, scratch_rows)
    rule = Rule(seqlen_q, seqlen_k, left, right, sink_size, scale, cap_log2, slopes,
                alibi_slope(slopes, batch, slopes_batch, head), bias, bias_address(bias, batch, q_start, head),
                rests, rows_at)
    dropout = Dropout(rng_state, random_word(rng_state, 0), random_word(rng_state, 1), batch * num_heads + head,
                      threshold, keep_scale)
    is_row = rows < seqlen_q
    q_tile = load_rows(address(q, batch, q_start, head), first_row, q.row, is_row, BLOCK_M, DIM, BLOCK_D)
    dout_tile = load_rows(address(dout, batch, q_start, head), first_row, dout.row, is_row, BLOCK_M, DIM_V, BLOCK_DV)
    delta_rows, lse2_rows = tl.load(delta + rows_at + rows), tl.load(lse2 + rows_at + rows)
    kv_head = head // group_size
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    keys_of = (address(k, batch, k_start, kv_head), k.row, address(v, batch, k_start, kv_head), v.row, first_row,
               last_row)
    first, end, inner, inner_end, sinks = seen_from(first_row, last_row, seqlen_q, seqlen_k, left, right, sink_size,
                                                     BLOCK_N)
    gap = inner_end - inner
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dq_tile = dq_keys(dq_tile, q_tile, dout_tile, rows, delta_rows, lse2_rows, rule, dropout, keys_of, inner,
                       inner_end, 0, 0, 0, 0, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_N, False)
    dq_tile = dq_keys(dq_tile, q_tile, dout_tile, rows, delta_rows, lse2_rows, rule, dropout, keys_of, 0,
                       sinks + end - first - gap, sinks, first, inner, gap, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_N,
                       True)
    store_rows(dq, batch, q_start, head, rows, seqlen_q, dq_tile * softmax_scale, DIM, BLOCK_D)


def _limit(size: int, longest: int) -> int | None:
    """A window's size, None where it limits nothing among `longest` positions."""
    return None if size < 0 or size >= longest - 1 else size


def _window(call: AttentionBackwardCall | AttentionDbiasCall) -> tuple[int | None, int | None]:
    """Left and right as a Rule has them."""
    return _limit(call.window_left, call.max_seqlen_k), _limit(call.window_right, call.max_seqlen_q)


def _scales(call: AttentionBackwardCall | AttentionDbiasCall) -> tuple[float, float | None]:
    """scale and cap_log2 as a Rule has them."""
    if call.softcap:
        return call.softmax_scale / call.softcap, call.softcap * LOG2_E.value
    return call.softmax_scale * LOG2_E.value, None


def flash_attn_bwd(call: AttentionBackwardCall, **params: int) -> tuple[Launch, ...]:
    """Writes dq, dk, dv and dsink.

    params: a tuned row's values instead of those of configs/triton/flash_attn_bwd.toml; where dq_HEADS is one of them,
    of flash_attn_bwd_hopper.toml, for the kernels of flash_attn_bwd_hopper.py.
    """
    exactly((call.q.shape[-2:], call.k.shape[-2:], call.v.shape[-1]))  # A model has one of each.
    if not call.forward.batch or not call.forward.num_heads or not call.max_seqlen_q:
        return tuple(fill(gradient, 0.0) for gradient in call.results if gradient is not None and gradient.numel())
    # Packed gradients may have rows of no sequence.
    cleared = [fill(gradient, 0.0) for gradient in call.gradients if call.cu_seqlens_q is not None and gradient.numel()]
    before, (delta, lse2, rests, parts) = row_sums(call, call.dsink)
    target = target_of(call.q.device)
    settings = _for_hopper(call, params, target)
    if settings is None:
        products = _products(call, {} if "dq_HEADS" in params else params, delta, lse2, rests)
    else:
        from aiter_like.ops.attention.triton.flash_attn_bwd_hopper import products_on_hopper

        products = products_on_hopper(call, settings, target, delta, lse2)
    behind = () if parts is None else (launch(
        _sum_kernel, (parts.shape[0], 1, 1), call.dsink, parts, call.dsink.stride(0), parts.shape[1], BLOCK=1024,
        options={"num_warps": 4}),)
    return *cleared, *before, *products, *behind


def _for_hopper(call: AttentionBackwardCall, params: dict[str, int], target: Target) -> dict[str, int] | None:
    """Settings of flash_attn_bwd_hopper.py, where its kernels serve and no parameters of the others are given."""
    if "dq_HEADS" not in params and (target.arch != "sm_90" or params):
        return None
    from aiter_like.ops.attention.triton import flash_attn_bwd_hopper  # not every Triton for AMD has Gluon for NVIDIA

    if not flash_attn_bwd_hopper.serves(call, target) or not all(map(is_aligned, (call.q, call.k, call.v, call.dout))):
        return None
    return {**config("flash_attn_bwd_hopper", target.arch, f"d{power_of_2(call.forward.head_dim)}"), **params}


def row_sums(call: AttentionBackwardCall | AttentionDbiasCall, dsink: Tensor | None = None
             ) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
    """The launches of _delta_kernel and, where a bias or slopes can move rows, of _far_kernel; and what they write:
    delta, the LSE to base 2 and its rest, [heads, rows], each sequence padded as scratch_index says; parts of dsink.
    """
    forward = call.forward
    heads, rows = forward.num_heads * forward.batch, call.max_seqlen_q
    if forward.is_varlen:
        heads, rows = forward.num_heads, call.q.shape[0] + forward.batch * PADDING.value
    rows = triton.cdiv(rows, PADDING.value) * PADDING.value
    delta, lse2 = (scratch((heads, rows), torch.float32, call.lse) for _ in range(2))
    launches, highest, rests, parts = [], None, None, None
    if call.bias is not None or call.alibi_slopes is not None:
        highest, rests = (scratch((heads, rows), torch.float32, call.lse) for _ in range(2))
        launches.append(far(call, highest, rests, _window(call), _scales(call), _padded(forward.head_dim)))
    block_d = _padded(forward.head_dim_v)
    block_m = min(8192 // block_d, PADDING.value)  # 64 elements of dout and of out for each lane of 128
    blocks = triton.cdiv(call.max_seqlen_q, PADDING.value) * (PADDING.value // block_m)
    if dsink is not None:
        parts = scratch((forward.num_heads, forward.batch * blocks), torch.float32, call.lse)
    launches.append(launch(
        _delta_kernel, (blocks, forward.num_heads, forward.batch), delta, lse2, parts, call.out, call.dout, call.lse,
        highest, rests, call.dlse, None if parts is None else call.sink, call.cu_seqlens_q, call.cu_seqlens_k,
        strides_of_rows(call.out), strides_of_rows(call.dout), rows, forward.num_heads, call.q.shape[0],
        call.k.shape[0], call.max_seqlen_q, call.max_seqlen_k, _limit(call.window_right, call.max_seqlen_q),
        DIM=forward.head_dim_v, BLOCK_D=block_d, BLOCK_M=block_m, options={"num_warps": 4}))
    return launches, (delta, lse2, rests, parts)


def _products(call: AttentionBackwardCall, params: dict[str, int], delta: Tensor, lse2: Tensor,
              rests: Tensor | None) -> list[Launch]:
    """The launches of _dkdv_kernel and _dq_kernel."""
    settings = {**config("flash_attn_bwd", target_of(call.q.device).arch, width(call)), **params}
    tensors, numbers, factors, dims = arguments(call, delta, lse2, rests)
    numbers, forward = (*numbers, call.softmax_scale, *factors), call.forward
    launches = []
    if call.max_seqlen_k:
        blocks, options = _tiles(settings, "dkdv_")
        launches.append(launch(
            _dkdv_kernel, _grid(triton.cdiv(call.max_seqlen_k, blocks["BLOCK_N"]), forward.num_kv_heads, call), call.dk,
            call.dv, *tensors, strides_of_rows(call.dk), strides_of_rows(call.dv), *numbers, **dims, **blocks,
            options=options))
    blocks, options = _tiles(settings, "dq_")
    launches.append(launch(
        _dq_kernel, _grid(triton.cdiv(call.max_seqlen_q, blocks["BLOCK_M"]), forward.num_heads, call), call.dq,
        *tensors, strides_of_rows(call.dq), *numbers, **dims, **blocks, options=options))
    return launches


def width(call: AttentionBackwardCall | AttentionDbiasCall) -> str:
    """The name of a configuration by head dimension."""
    return f"d{max(_padded(call.forward.head_dim), _padded(call.forward.head_dim_v), 32)}"


def arguments(call: AttentionBackwardCall | AttentionDbiasCall, delta: Tensor, lse2: Tensor, rests: Tensor | None
              ) -> tuple[tuple, tuple, tuple, dict[str, int]]:
    """Kernels over tiles of scores share these, in their order: tensors, strides and sizes, factors; constants."""
    forward = call.forward
    tensors = (call.dout, call.q, call.k, call.v, call.bias, call.alibi_slopes, delta, lse2, rests, call.cu_seqlens_q,
               call.cu_seqlens_k, call.rng_state if call.dropout_p else None)
    numbers = (
        tuple(map(strides_of_rows, (call.dout, call.q, call.k, call.v))), strides_of_bias(call.bias),
        stride_of_batch(call.alibi_slopes), delta.shape[1], forward.num_heads,
        forward.num_heads // max(forward.num_kv_heads, 1), call.q.shape[0], call.k.shape[0], call.max_seqlen_q,
        call.max_seqlen_k, *_window(call), call.sink_size, philox.threshold(call.dropout_p))
    dims = {"DIM": forward.head_dim, "BLOCK_D": _padded(forward.head_dim), "DIM_V": forward.head_dim_v,
            "BLOCK_DV": _padded(forward.head_dim_v)}
    return tensors, numbers, (*_scales(call), 1 / (1 - call.dropout_p)), dims


def _grid(blocks: int, heads: int, call: AttentionBackwardCall) -> tuple[int, int, int]:
    """The grid, in the order that place_of_program reads."""
    batch, is_causal = call.forward.batch, _limit(call.window_right, call.max_seqlen_q) is not None
    if is_causal and target_of(call.q.device).arch == "gfx942":
        return heads, batch, blocks
    return blocks, heads, batch


def _padded(dim: int) -> int:
    """A head dimension as the kernels hold it."""
    return max(power_of_2(dim), 16)


def _tiles(settings: dict[str, int], kernel: str) -> tuple[dict[str, int], dict[str, int]]:
    """Tile sizes and launch options of one kernel: its own settings have its prefix, those of both have none."""
    own = {name.removeprefix(kernel): value for name, value in settings.items()
           if name.startswith(kernel) or not name.startswith(("dkdv_", "dq_"))}
    return ({name: value for name, value in own.items() if name.startswith("BLOCK")},
            {name: value for name, value in own.items() if not name.startswith("BLOCK")})
