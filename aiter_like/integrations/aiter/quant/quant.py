# SPDX-License-Identifier: MIT
"""AITER's quantising functions that are compositions of ours."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.quant import int8 as aiter_int8
from aiter_like.ops.common import quant_rule


@aiter("aiter aiter.ops.quant")
def smooth_per_token_scaled_quant(
        out: Tensor, input: Tensor, scales: Tensor, smooth_scale: Tensor, smooth_scale_map: Tensor | None = None,
        shuffle_scale: bool = False, num_rows: Tensor | None = None, num_rows_factor: int = 1,
        smooth_scale_map_hash: Tensor | None = None, enable_ps: bool = True) -> None:
    """Quantises rows with a scale each, after factors per column: `out · scales ≈ input · smooth_scale`; int8
    towards zero.

    Args:
        out: [rows, K] or [m, topk, K], written; fp8 of the device or int8. With three dimensions either order may be
            that of memory: the scales lie as the rows of `out` do.
        input: as `out`, bf16|fp16|fp32; rows may be expanded.
        scales: fp32, as many as rows, dense; written.
        smooth_scale: [K] fp32; with a map [experts, K].
        smooth_scale_map: [m, topk] int32: the row of factors that each row takes; one that is none makes zeros.
        shuffle_scale, enable_ps: without effect on fp8 and int8.
        num_rows, num_rows_factor: one int32: the rows from num_rows · num_rows_factor on are zeros.
        smooth_scale_map_hash: [numbers] int32, another number for each of the map's, −1 for none.

    Raises:
        TypeError, ValueError: an argument does not fit.
        UnsupportedError: `out` has 4 bits.
    """
    name = "smooth_per_token_scaled_quant"
    check.tensor(name, "out", out)
    if out.dtype not in quant_rule.DTYPES:
        raise UnsupportedError(f"{name}: fp8 and int8 are served, got {out.dtype}: gfx942 has no FP4", "row_quant")
    if out.shape != input.shape and input.ndim == 3 and out.shape == (*input.shape[1::-1], input.shape[2]):
        out = out.view(input.shape)  # the same rows, counted by another first dimension
    check.tensor(name, "input", input, shape=out.shape)
    check.tensor(name, "scales", scales, dtypes=(torch.float32,))
    if not scales.is_contiguous() or scales.numel() != input.shape[:-1].numel():
        raise ValueError(f"{name}: scales must be dense, with an element for each of {input.shape[:-1].numel()} rows, "
                         f"got shape {tuple(scales.shape)}, strides {scales.stride()}")
    if smooth_scale_map is None and num_rows is None:
        aiter_int8.smoothquant_fwd(out, input, smooth_scale.view(-1), scales)
        return
    factors = smooth_scale.view(-1, input.shape[-1])
    ids = _experts(name, smooth_scale_map, smooth_scale_map_hash, input, num_rows, num_rows_factor)  # [m, topk]
    rows, own = (x.view(*ids.shape, -1) if x.ndim == 2 else x for x in (input, out))
    is_slot_major = 1 not in ids.shape and own.stride(0) < own.stride(1)
    if is_slot_major and rows.stride(1) == 0 and own.transpose(0, 1).is_contiguous():
        aiter_int8.moe_smoothquant_fwd(own.transpose(0, 1).flatten(0, 1), rows[:, 0], factors, ids, scales.view(-1, 1))
        return
    own_scales = scales.view(ids.shape[::-1]) if is_slot_major else scales.view(ids.shape).t()  # [topk, m]
    for slot in range(ids.shape[1]):
        found = own_scales.new_empty(len(ids), 1)
        aiter_int8.moe_smoothquant_fwd(own[:, slot], rows[:, slot], factors, ids[:, slot:slot + 1].contiguous(), found)
        own_scales[slot].copy_(found[:, 0])


@aiter("aiter aiter.ops.quant")
def moe_smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor) -> None:
    """That of `aiter_int8`; `input` may be [tokens, 1, K], and `out` and `y_scale` any dense shapes of as many rows."""
    check.tensor("moe_smoothquant_fwd", "out", out)
    check.tensor("moe_smoothquant_fwd", "y_scale", y_scale)
    dense = [x.flatten(0, -2) if x.ndim > 2 and x.is_contiguous() else x for x in (out, y_scale)]
    rows = input[:, 0] if input.ndim == 3 and input.shape[1] == 1 else input
    aiter_int8.moe_smoothquant_fwd(dense[0], rows, x_scale, topk_ids, dense[1])


@aiter("aiter.ops.gated_rmsnorm_fp8_group_quant")
def gated_rmsnorm_fp8_group_quant(out: Tensor, scale: Tensor, x: Tensor, z: Tensor, weight: Tensor, epsilon: float,
                                  group_size: int, transpose_scale: bool = False) -> None:
    """`gated_rms_norm_quant` of heads, a group each: `x` is [tokens, heads, head_dim], `out` [tokens, heads · dim],
    `scale` [tokens, heads], dense, heads outermost in memory where `transpose_scale`.
    """
    name = "gated_rmsnorm_fp8_group_quant"
    check.tensor(name, "x", x, rank=3)
    tokens, heads, head_dim = x.shape
    if group_size != head_dim:
        raise UnsupportedError(f"{name}: a head is a group here, group_size must be {head_dim}, got {group_size}",
                               "gated_rms_norm")
    check.tensor(name, "out", out, shape=(tokens, heads * head_dim))
    check.tensor(name, "scale", scale, dtypes=(torch.float32,), shape=(tokens, heads))
    found = torch.empty_like(scale) if transpose_scale else scale
    aiter_like.gated_rms_norm_quant(out.view(x.shape), x, z, found.view(tokens, heads, 1), weight, epsilon)
    if transpose_scale:
        scale.view(heads, tokens).copy_(found.t())


@aiter("aiter.ops.gated_rmsnorm_fp8_per_token_quant")
def gated_rmsnorm_fp8_per_token_quant(out: Tensor, scale: Tensor, x: Tensor, z: Tensor, weight: Tensor,
                                      epsilon: float) -> None:
    """`gated_rms_norm` of each head of `x` [tokens, heads, head_dim], then quantised with a scale per token."""
    name = "gated_rmsnorm_fp8_per_token_quant"
    check.tensor(name, "x", x, rank=3)
    rows = x.shape[0], x.shape[1] * x.shape[2]
    check.tensor(name, "out", out, shape=rows)
    gated = aiter_like.gated_rms_norm(x, z, weight, epsilon)
    aiter_like.dynamic_per_token_scaled_quant(out, gated.view(rows), scale.view(-1, 1))


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def v_1way_per_head_fp8_quant(v: Tensor) -> tuple[Tensor, Tensor]:
    """`per_head_quant`."""
    return per_head_quant(v)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def v_2way_per_head_fp8_quant(v0: Tensor, v1: Tensor) -> tuple[Tensor, Tensor]:
    """`per_head_quant` of the tokens of both, those of `v1` last."""
    return per_head_quant(torch.cat((v0, v1), 1))


def per_head_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp8 with a scale for each head of a sequence.

    Args:
        x: [batch, tokens, heads, head_dim] bf16|fp16|fp32, contiguous.

    Returns:
        The same shape in the device's fp8, and fp32 [batch, heads].
    """
    check.tensor("per_head_quant", "x", x, rank=4)
    batch, tokens, heads, head_dim = x.shape
    dtype = dtypes.fp8_of(target_of(x.device).arch)
    if head_dim in quant_rule.GROUPS and 0 < tokens <= 2**16:
        q, scale = aiter_like.per_block_quant(x.view(batch, tokens, heads * head_dim), None, dtype, (tokens, head_dim))
    else:  # block_quant has no such block: each one becomes a row.
        q, scale = aiter_like.per_token_quant_hip(x.transpose(1, 2).reshape(batch * heads, -1), quant_dtype=dtype)
        bytes_of = q.view(torch.uint8).view(batch, heads, tokens, head_dim)
        q = bytes_of.transpose(1, 2).contiguous().view(dtype)
    return q.view(x.shape), scale.view(batch, heads)


def _experts(name: str, numbers: Tensor | None, names: Tensor | None, input: Tensor, num_rows: Tensor | None,
             num_rows_factor: int) -> Tensor:
    """[m, topk] int32: the row of factors of each row of `input`, below 0 for none."""
    shape = tuple(input.shape[:-1]) if input.ndim == 3 else (input.shape[0], 1)
    if numbers is None:
        numbers = torch.zeros(shape, dtype=torch.int32, device=input.device)
    check.tensor(name, "smooth_scale_map", numbers, dtypes=(torch.int32,))
    if numbers.numel() != shape[0] * shape[1]:
        raise ValueError(f"{name}: smooth_scale_map must have shape {shape}, got {tuple(numbers.shape)}")
    ids = numbers.reshape(shape if input.ndim == 3 else numbers.shape)
    if names is not None:
        check.tensor(name, "smooth_scale_map_hash", names, rank=1, dtypes=(torch.int32,))
        is_known = (ids >= 0) & (ids < len(names))
        ids = names[ids.where(is_known, 0)].where(is_known, -1) if len(names) else torch.full_like(ids, -1)
    if num_rows is not None:
        is_used = torch.arange(ids.numel(), device=ids.device).view(ids.shape) < num_rows * num_rows_factor
        ids = ids.where(is_used, -1)
    return ids.contiguous()
