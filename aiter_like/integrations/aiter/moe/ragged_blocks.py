# SPDX-License-Identifier: MIT
"""AITER's ragged product in Triton of fp8 with scales of blocks, by `moe_gemm` and the lists of moe/routing.py.
Named by names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.integrations.aiter.moe import ragged
from aiter_like.integrations.aiter.moe.routing import ExptData, RoutingData
from aiter_like.ops.common import elements
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import TOKENS, blocks

_OP = "moe_gemm_a8w8_blockscale"
_SIGN, _MAGNITUDE = 0x80, 0x7F  # bits of 8; e4m3fn's NaN has all of the magnitude, e4m3fnuz's the sign alone


def moe_gemm_a8w8_blockscale(
        x: Tensor, w: Tensor, x_block_scales: Tensor | None = None, w_block_scales: Tensor | None = None,
        x_static_scale: Tensor | None = None, w_static_scale: Tensor | None = None,
        quant_static_scale: Tensor | None = None, bias: Tensor | None = None, routing_data: RoutingData | None = None,
        gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None, gammas: Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16, apply_swiglu: bool = False, alpha: float = 1.0,
        limit: float | None = None, swiglu_add_residual: bool = True, unpadded_N: int | None = None,
        unpadded_K: int | None = None, per_row_x_scale: bool = False) -> Tensor:
    """`moe_gemm` of pairs sorted by expert, and with `scatter_indx` `moe_unpermute` behind it; the gate, and results
    that are not scattered, are torch's.

    Args:
        x: [rows, k] fp8: a row for each place sorted by expert, or with `gather_indx` for each token. Where the device
            has another fp8 than e4m3fn, that is taken too, and written anew at each call, and so is `w`.
        w: [experts, k, n] fp8 of any strides.
        x_block_scales: fp32, [rows, ceil(k / 128)] with `per_row_x_scale`, else [ceil(rows / 128), ceil(k / 128)].
        w_block_scales: [experts, ceil(k / 128), ceil(n / 128)] fp32.
        x_static_scale, w_static_scale: fp32, 1 element, in place of those of blocks; None: 1.
        quant_static_scale: fp32, 1 element, by which the result is divided before it is rounded to the fp8 of `x`.
        unpadded_N, unpadded_K: AITER's hints; of no meaning.
        The others: see `moe_gemm_int8_smoothquant`, whose `apply_activation` is `apply_swiglu` here.

    Returns:
        [pairs, columns], or with `scatter_indx` [tokens, columns].
    """
    ragged.check_lists(_OP, routing_data)
    check.tensor(_OP, "x", x, rank=2, dtypes=elements.FP8)
    check.tensor(_OP, "w", w, rank=3, dtypes=(x.dtype,), device=x.device, last_contiguous=False)
    check.flag(_OP, "apply_swiglu", apply_swiglu)
    lists = routing_data, gather_indx, scatter_indx
    pairs = ragged.check_places(_OP, x, lists, gammas)
    if pairs >= TOKENS:
        raise ValueError(f"{_OP}: there must be less than {TOKENS} pairs, got {pairs}")
    (rows, x_factor), (weights, w_factor) = _of_device(x), _of_device(w)
    x_scale = x_factor * _row_scales(x, x_block_scales, x_static_scale, per_row_x_scale)
    w_scale = w_factor * _weight_scales(w, w_block_scales, w_static_scale)
    if gather_indx is not None:
        token = gather_indx.long() // routing_data.n_expts_act
        rows, x_scale = rows.view(torch.uint8)[token].view(rows.dtype), x_scale[token]
    gate = (alpha, limit, swiglu_add_residual) if apply_swiglu else None
    wanted = torch.bfloat16 if quant_static_scale is not None else out_dtype
    y = torch.empty(pairs, w.shape[2], dtype=ragged.dtype_between(lists, gammas, wanted, gate), device=x.device)
    experts, sorted_ids, valid = _blocks_of(routing_data.expt_data, routing_data.block_m, pairs)
    moe_gemm.run(y, rows, weights.mT, experts, sorted_ids=sorted_ids, valid=valid, bias=bias, a_scale=x_scale,
                 b_scale=w_scale.mT, block=routing_data.block_m, group_size=SCALE_BLOCK)
    y = ragged.finished(y, lists, gammas, wanted, gate)
    return y if quant_static_scale is None else _narrow(y, quant_static_scale, x.dtype)


def _blocks_of(lists: ExptData, block: int, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """The experts of `moe_gemm`'s blocks, the places in them, and how many count: AITER's tiles, each a block."""
    tile = lists.block_pid_map
    expert = torch.where(tile < 0, -1, tile & 0xFFFF)
    own = expert.clamp(min=0).long()
    place = (lists.token_offs_raw[own] + (tile >> 16) * block)[:, None] + torch.arange(block, device=tile.device)
    is_there = (tile >= 0)[:, None] & (place < lists.token_offs_raw[own + 1][:, None])
    return (expert.to(torch.int32), torch.where(is_there, place, 1 << 24 | pairs).to(torch.int32).view(-1),
            (lists.token_offs_pad[-1:] * block).to(torch.int32))


def _of_device(x: Tensor) -> tuple[Tensor, float]:
    """In the device's fp8, and what that has to be multiplied by: the bits of e4m3fn say half as much in e4m3fnuz, but
    for those of NaN and of −0."""
    kind = dtypes.fp8_of(target_of(x.device).arch)
    if x.dtype == kind:
        return x, 1.0
    if x.dtype != torch.float8_e4m3fn:
        raise TypeError(f"{_OP}: x must have dtype {kind} on this device, got {x.dtype}")
    bits = x.view(torch.uint8)
    magnitude = bits & _MAGNITUDE
    bits = torch.where(magnitude == _MAGNITUDE, _SIGN, torch.where(magnitude == 0, 0, bits))
    return bits.to(torch.uint8).view(kind), 2.0


def _narrow(y: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """y / scale in fp8: by a kernel where it is the device's."""
    if dtype == dtypes.fp8_of(target_of(y.device).arch):
        return ragged.downcast_to_static_fp8(y, scale.float())
    most = torch.finfo(dtype).max
    return (y.float() / scale.float()).clamp(-most, most).to(dtype)


def _row_scales(x: Tensor, of_blocks: Tensor | None, of_all: Tensor | None, is_of_rows: bool) -> Tensor:
    """[rows, ceil(k / 128)] fp32."""
    rows, columns = len(x), blocks(x.shape[1])
    if of_blocks is None:
        return _one(of_all, x.device).expand(rows, columns)
    shape = (rows if is_of_rows else blocks(rows), columns)
    check.tensor(_OP, "x_block_scales", of_blocks, shape=shape, dtypes=(torch.float32,), device=x.device,
                 last_contiguous=False)
    return of_blocks if is_of_rows else of_blocks.repeat_interleave(SCALE_BLOCK, 0)[:rows]


def _weight_scales(w: Tensor, of_blocks: Tensor | None, of_all: Tensor | None) -> Tensor:
    """[experts, ceil(k / 128), ceil(n / 128)] fp32."""
    shape = len(w), blocks(w.shape[1]), blocks(w.shape[2])
    if of_blocks is None:
        return _one(of_all, w.device).expand(shape)
    check.tensor(_OP, "w_block_scales", of_blocks, shape=shape, dtypes=(torch.float32,), device=w.device,
                 last_contiguous=False)
    return of_blocks


def _one(scale: Tensor | None, device: torch.device) -> Tensor:
    return torch.ones(1, device=device, dtype=torch.float32) if scale is None else scale.float().reshape(1)
