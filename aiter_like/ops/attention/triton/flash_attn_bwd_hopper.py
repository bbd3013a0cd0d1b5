# SPDX-License-Identifier: MIT
"""Derivatives of dense attention for Hopper in Gluon: TMA, asynchronous products, specialised warps.

As in flash_attn_bwd.py some programs have keys, for dK and dV, others rows, for dQ, and there are no atomics. One
launch has both kinds, so that SMs which the one leaves idle take the other. A warp loads what the loop walks along into
rings in shared memory; each warp group has 64 keys or rows, and starts products before it needs them: those of one
group, or of another program on the SM, run while it computes probabilities. What this does not serve is left to the
kernels of flash_attn_bwd.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from aiter_like.device import Target, model_of
from aiter_like.ops.attention.call import AttentionBackwardCall
from aiter_like.ops.attention.checks import has_aligned_strides
from aiter_like.ops.attention.triton.boxes import head_box
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_keys import load_for_keys, of_keys
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_parts import OWN, Shape, ring_barriers
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_rows import load_for_rows, of_rows
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_wide import of_shared_keys
from aiter_like.ops.attention.triton.parts import LOG2_E
from aiter_like.ops.common.triton.launch import Launch, launch, power_of_2, scratch
from aiter_like.traced import exactly

# Warp groups of a program → programs that share an SM, and registers of a lane at the start. Later those of each of two
# groups, and of the warp that loads; a single group takes what that leaves.
_PROGRAMS, _REGISTERS = {1: 2, 2: 1}, {1: 128, 2: 168}
_GROUP_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)
_ADDED = 1024  # numbers of dk, and of dv, of a program of _add_parts_kernel


class HopperNumbers(NamedTuple):
    """Numbers of configs/sm_90/attention.toml."""

    longest: float
    kept_bytes: int


@gluon.jit
def _load(boxes, memory, key_programs, orders, heads, sizes, SHAPE: gl.constexpr):
    """The warp that loads."""
    index = gl.program_id(0)
    if SHAPE.KEYS and (not SHAPE.ROWS or index < key_programs):
        load_for_keys(index, boxes, memory, orders[0], heads, sizes, SHAPE)
    else:
        load_for_rows(index - key_programs, boxes, memory, orders[1], heads, sizes, SHAPE)


@gluon.jit
def _group(results, strides, numbers, memory, key_programs, orders, heads, sizes, scales, GROUP: gl.constexpr,
           SHAPE: gl.constexpr):
    """One warp group."""
    index = gl.program_id(0)
    if SHAPE.KEYS and (not SHAPE.ROWS or index < key_programs):
        if SHAPE.OWNERS < SHAPE.GROUPS:
            of_shared_keys(index, results, strides, memory, orders[0], heads, sizes, scales, GROUP == 1, SHAPE)
        else:
            of_keys(index, results, strides, memory, orders[0], heads, sizes, scales, GROUP, SHAPE)
    else:
        of_rows(index - key_programs, results[2], strides[2], numbers, memory, orders[1], sizes, scales, GROUP, SHAPE)


@gluon.jit(do_not_specialize=["key_programs", "key_blocks", "row_blocks", "key_heads", "row_heads", "batch",
                              "num_heads", "part_heads", "parts", "seqlen_q", "seqlen_k", "edge", "scratch_rows"])
def _products_kernel(dk, dv, dq, q_box, dout_box, k_box, v_box, lse_box, delta_box, lse2, delta, strides, key_programs,
                     key_blocks, row_blocks, key_heads, row_heads, batch, num_heads, part_heads, parts, seqlen_q,
                     seqlen_k, edge, scratch_rows, scale, softmax_scale, SHAPE: gl.constexpr):
    """The first key_programs programs: dV = Pᵀ dO and dK = softmax_scale · dSᵀ Q of some keys; the others: dQ =
    softmax_scale · dS K of some rows. Bound: matrix unit.

    parts: of a KV head, part_heads query heads each, with a dK and a dV of their own. key_heads, row_heads: parts and
    heads whose blocks take turns. A row sees keys up to row + edge. scale: softmax_scale in units of log 2.
    """
    dtype: gl.constexpr = q_box.dtype
    first_own = gl.allocate_shared_memory(dtype, [SHAPE.OWNERS, 1, OWN, 1, SHAPE.D], q_box.layout)
    second_own = gl.allocate_shared_memory(dtype, [SHAPE.OWNERS, 1, OWN, 1, SHAPE.D], q_box.layout)
    first_tiles = gl.allocate_shared_memory(dtype, [SHAPE.STAGES, 1, SHAPE.WALKED, 1, SHAPE.D], q_box.layout)
    second_tiles = gl.allocate_shared_memory(dtype, [SHAPE.STAGES, 1, SHAPE.WALKED, 1, SHAPE.D], q_box.layout)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [SHAPE.STAGES, 1, SHAPE.WALKED], lse_box.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [SHAPE.STAGES, 1, SHAPE.WALKED], delta_box.layout)
    own_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(own_full, 1)
    rings = ring_barriers(SHAPE.STAGES, SHAPE.GROUPS), ring_barriers(SHAPE.STAGES, SHAPE.GROUPS)
    fence_async_shared()  # the barriers are there for the copies

    memory = (first_own, second_own), own_full, (first_tiles, second_tiles, lse_tiles, delta_tiles), rings
    all_parts = num_heads // part_heads
    orders = ((key_blocks, all_parts, all_parts * batch, key_heads),
              (row_blocks, num_heads, num_heads * batch, row_heads))
    heads, sizes = (num_heads, part_heads, parts), (seqlen_q, seqlen_k, edge, scratch_rows)
    boxes, results, scales = (q_box, dout_box, k_box, v_box, lse_box, delta_box), (dk, dv, dq), (scale, softmax_scale)
    numbers = lse2, delta
    if SHAPE.GROUPS == 1:
        gl.warp_specialize([
            (_group, (results, strides, numbers, memory, key_programs, orders, heads, sizes, scales, 0, SHAPE)),
            (_load, (boxes, memory, key_programs, orders, heads, sizes, SHAPE))], [1], [_LOADER_REGISTERS])
    else:
        gl.warp_specialize([
            (_group, (results, strides, numbers, memory, key_programs, orders, heads, sizes, scales, 0, SHAPE)),
            (_group, (results, strides, numbers, memory, key_programs, orders, heads, sizes, scales, 1, SHAPE)),
            (_load, (boxes, memory, key_programs, orders, heads, sizes, SHAPE))],
            [4, 1], [_GROUP_REGISTERS, _LOADER_REGISTERS])


@triton.jit(do_not_specialize=["num_rows", "num_heads", "seqlen"])
def _add_parts_kernel(dk, dv, dk_parts, dv_parts, dk_strides, dv_strides, num_rows, num_heads, seqlen,
                      PARTS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr):
    """dk and dv = Σ of the parts of each KV head, one after the other: [rows, heads, parts, DIM]; bound: memory."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    inside = (places < num_rows)[:, None] & (columns < DIM)[None, :]
    row, head = places // num_heads, places % num_heads
    batch, row = (row // seqlen).to(tl.int64), (row % seqlen).to(tl.int64)
    first = places.to(tl.int64)[:, None] * (PARTS * DIM) + columns[None, :]
    for which in tl.static_range(2):
        source = dv_parts if which else dk_parts
        target, strides = (dv, dv_strides) if which else (dk, dk_strides)
        total = tl.load(source + first, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            total += tl.load(source + first + part * DIM, mask=inside, other=0.0)
        at = target + batch * strides[0] + row * strides[1] + head.to(tl.int64) * strides[2]
        tl.store(at[:, None] + columns[None, :], total, mask=inside)


def serves(call: AttentionBackwardCall, target: Target) -> bool:
    """Whether products_on_hopper takes such calls: dense, no mask but an upper end, no row without keys, as its tiles
    come whole from memory and 0 · NaN is no 0. A head dimension between 64, 128 and 256 is filled up with zeros in
    shared memory.
    """
    forward = call.forward
    if target.arch != "sm_90" or forward.is_varlen or not call.max_seqlen_k:
        return False
    if not 32 < forward.head_dim <= 256 or forward.head_dim % 8 or forward.head_dim_v != forward.head_dim:
        return False
    if call.softcap > 0 or call.dropout_p > 0 or 0 <= call.window_left < call.max_seqlen_k:
        return False
    if call.bias is not None or call.alibi_slopes is not None:
        return False
    if 0 <= call.window_right < call.max_seqlen_q - call.max_seqlen_k:
        return False
    return all(has_aligned_strides(tensor) for tensor in (call.q, call.k, call.v, call.dout))


def products_on_hopper(call: AttentionBackwardCall, settings: dict[str, int], target: Target, delta: Tensor,
                       lse2: Tensor) -> tuple[Launch, ...]:
    """The launches for a call that is served, with aligned addresses; they write dq, dk and dv.

    settings: those of configs/triton/flash_attn_bwd_hopper.toml; PARTS, of each KV head's query heads, instead of as
    many as keep the SMs busy. delta, lse2: as flash_attn_bwd.py has them.
    """
    forward = call.forward
    parts = settings.get("PARTS") or _parts(call, settings, target)
    dk, dv = call.dk, call.dv
    if parts > 1:
        shape = forward.batch, call.max_seqlen_k, forward.num_kv_heads * parts, forward.head_dim
        dk, dv = (scratch(shape, torch.float32, call.lse) for _ in range(2))

    has_one_tile = settings["dkdv_BLOCK_M"] == settings["dq_BLOCK_N"] == OWN.value
    are_together = has_one_tile and settings["dkdv_STAGES"] == settings["dq_STAGES"] and forward.head_dim <= 128
    launches = [_products(call, settings, (dk, dv, call.dq), (lse2, delta), parts, *kinds)
                for kinds in ([(True, True)] if are_together else [(True, False), (False, True)])]
    if parts > 1:
        rows, block_d = forward.batch * call.max_seqlen_k * forward.num_kv_heads, power_of_2(forward.head_dim)
        launches.append(launch(
            _add_parts_kernel, (triton.cdiv(rows, _ADDED // block_d), 1, 1), call.dk, call.dv, dk, dv,
            call.dk.stride()[:3], call.dv.stride()[:3], rows, forward.num_kv_heads, call.max_seqlen_k, PARTS=parts,
            DIM=forward.head_dim, BLOCK_D=block_d, ROWS=_ADDED // block_d, options={"num_warps": 4}))
    return tuple(launches)


def _products(call: AttentionBackwardCall, settings: dict[str, int], results: tuple[Tensor, ...],
              numbers: tuple[Tensor, Tensor], parts: int, has_keys: bool, has_rows: bool) -> Launch:
    """A launch of _products_kernel: programs of one kind or of both. numbers: LSE and delta."""
    forward, kind = call.forward, "dkdv" if has_keys else "dq"
    rows, keys, num_heads, kv_heads = call.max_seqlen_q, call.max_seqlen_k, forward.num_heads, forward.num_kv_heads
    edge = keys - rows + (call.window_right if call.window_right >= 0 else rows)
    dim, groups = power_of_2(forward.head_dim), settings["GROUPS"]
    shape = exactly(Shape(
        KEYS=has_keys, ROWS=has_rows, GROUPS=groups, OWNERS=1 if dim > 128 and has_keys else groups,
        WALKED=settings["dkdv_BLOCK_M" if has_keys else "dq_BLOCK_N"], D=dim, COLUMNS=forward.head_dim,
        STAGES=settings[f"{kind}_STAGES"], KEYS_UNROLL=settings["dkdv_UNROLL"], ROWS_UNROLL=settings["dq_UNROLL"]))
    own, walked = OWN.value, shape.WALKED
    of_rows, of_keys = (walked, own) if has_keys else (own, walked)
    boxes = (head_box(tensor, count, dim) for tensor, count in (
        (call.q, of_rows), (call.dout, of_rows), (call.k, of_keys), (call.v, of_keys)))
    key_blocks, row_blocks = (triton.cdiv(length, own * shape.OWNERS) for length in (keys, rows))
    key_programs = key_blocks * kv_heads * parts * forward.batch if has_keys else 0
    row_programs = row_blocks * num_heads * forward.batch if has_rows else 0
    part_heads, row_bytes = num_heads // (kv_heads * parts), 2 * 2 * dim  # of two tensors
    key_heads = max(settings["dkdv_HEADS"], _numbers().kept_bytes // (row_bytes * rows * part_heads))
    row_heads = max(settings["dq_HEADS"], _numbers().kept_bytes // (row_bytes * keys) * (num_heads // kv_heads))
    return launch(
        _products_kernel, (key_programs + row_programs, 1, 1), *results, *boxes,
        *(_row_box(each, walked) for each in numbers), *numbers, tuple(each.stride()[:3] for each in results),
        key_programs, key_blocks, row_blocks, key_heads, row_heads, forward.batch, num_heads, part_heads, parts, rows,
        keys, edge, numbers[0].shape[1], call.softmax_scale * LOG2_E.value, call.softmax_scale, SHAPE=shape,
        options={"num_warps": 4, "maxnreg": _REGISTERS[groups]})


def _parts(call: AttentionBackwardCall, settings: dict[str, int], target: Target) -> int:
    """Parts of each KV head's query heads: the fewest with which no program with keys takes much longer than all
    programs take together. A product of two tiles is the unit: four with each tile of keys and rows, three for dQ.
    """
    forward = call.forward
    group_size = forward.num_heads // forward.num_kv_heads
    hidden = max(call.max_seqlen_q - 1 - call.window_right, 0) if call.window_right >= 0 else 0
    pairs = call.max_seqlen_q * call.max_seqlen_k - hidden * (hidden + 1) // 2
    own = OWN.value * (settings["GROUPS"] if forward.head_dim <= 128 else 1)
    at_once = target.cu_num * _PROGRAMS[settings["GROUPS"]]
    share = 7 * pairs * forward.num_heads * forward.batch / (own * at_once)
    longest, fewest = 4 * call.max_seqlen_q * group_size, 1
    while fewest < group_size and (group_size % fewest or longest > _numbers().longest * share * fewest):
        fewest += 1
    return fewest


def _numbers() -> HopperNumbers:
    return model_of("sm_90", "attention.flash_attn_bwd", HopperNumbers)


def _row_box(numbers: Tensor, rows: int) -> TensorDescriptor:
    """A box of [heads, rows], a number each: `rows` rows of one head."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(numbers, list(numbers.shape), list(numbers.stride()), [1, rows], layout)
