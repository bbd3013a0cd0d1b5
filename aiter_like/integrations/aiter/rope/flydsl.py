# SPDX-License-Identifier: MIT
"""AITER's fusion of norm, rotation and quantisation that is written in FlyDSL, of operators here. Named by
names.txt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.integrations.aiter.objects import MxDtypeInt, MxScaleRoundModeInt
from aiter_like.integrations.aiter.quant.formats import f32_to_mx_e8m0_scale
from aiter_like.ops.common import elements

_NAME = "flydsl_qk_norm_rope_quant"
_BF16, _EPSILON, _SMALLEST = (torch.bfloat16,), 1e-6, 1e-12


def flydsl_qk_norm_rope_quant(
        q: Tensor, kv: Tensor, kv_weight: Tensor, cos_cache: Tensor, sin_cache: Tensor, positions: Tensor, *,
        num_q_heads: int, head_dim: int, rope_head_dim: int, q_weight: Tensor | None = None, quant: bool = False,
        quant_group_size: int | None = None, scale_dtype: str = "fp32", q_out: Tensor | None = None,
        kv_out: Tensor | None = None, q_scale: Tensor | None = None, kv_scale: Tensor | None = None,
        swa_kv: Tensor | None = None, swa_dest_rows: Tensor | None = None, batch_id_per_token: Tensor | None = None,
        swa_block_tables: Tensor | None = None, swa_block_size: int | None = None,
        stream: Any = None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """`rms_norm` of each query head and of `kv` with an epsilon of 1e-6, whose last elements 2i and 2i + 1 are turned;
    in fp32, rounded once, or fp8 with scales that torch's functions find.

    Args:
        q: [tokens, heads · dim] or [tokens, heads, dim] bf16.
        kv: [tokens, dim] bf16, rows of any distance.
        kv_weight, q_weight: [dim] bf16; without the latter ones.
        cos_cache, sin_cache: [max_position, …, rope_head_dim / 2].
        positions: [tokens] integers.
        num_q_heads, head_dim, rope_head_dim: heads, dim, and elements that are turned, a head's last.
        quant: results are the device's fp8, each group's largest magnitude before the rotation, times √2, the largest.
        quant_group_size: elements with a scale of their own; None: dim.
        scale_dtype: "fp32", or "e8m0": powers of two, their biased exponents as bytes.
        q_out, kv_out, q_scale, kv_scale: tensors to write; None: new ones [tokens, heads, dim], [tokens, dim], and with
            the groups of a head in the place of its elements.
        swa_kv: [rows, dim] bf16, contiguous; not with `quant`. Rows of `kv_out` go there, too: that of a token to
            `swa_dest_rows` [≥ tokens] int32, or with `swa_block_tables` [sequences, blocks] int32 to the place of its
            position in a block of `swa_block_size` rows.
        batch_id_per_token: [≥ tokens] int32, a token's sequence; below 0 its row goes nowhere.
        stream: of no meaning; torch's current one is used.

    Returns:
        (q_out, kv_out, q_scale, kv_scale), the scales None without `quant`.
    """
    heads, dim = num_q_heads, head_dim
    for name, number in (("num_q_heads", heads), ("head_dim", dim)):
        check.integer(_NAME, name, number, 1)
    check.tensor(_NAME, "kv", kv, dtypes=_BF16, shape=(None, dim))
    tokens, device = len(kv), kv.device
    check.tensor(_NAME, "q", q, dtypes=_BF16, device=device)
    if tuple(q.shape) not in ((tokens, heads * dim), (tokens, heads, dim)):
        raise ValueError(f"{_NAME}: q must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}], got shape "
                         f"{tuple(q.shape)}")
    for name, weight in (("kv_weight", kv_weight), ("q_weight", q_weight)):
        if weight is not None or name == "kv_weight":
            check.tensor(_NAME, name, weight, dtypes=_BF16, shape=(dim,), device=device)
    check.integer(_NAME, "rope_head_dim", rope_head_dim, 2, dim)
    for name, table in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        check.tensor(_NAME, name, table, dtypes=elements.FLOATS, device=device)
        if not table.ndim or table.shape[-1] != rope_head_dim // 2:
            raise ValueError(f"{_NAME}: {name} must have {rope_head_dim // 2} columns, got shape {tuple(table.shape)}")
    check.tensor(_NAME, "positions", positions, dtypes=elements.INTEGERS, shape=(tokens,), device=device)
    size = dim if quant_group_size is None else quant_group_size
    check.integer(_NAME, "quant_group_size", size, 1, dim)
    check.choice(_NAME, "scale_dtype", scale_dtype, ("fp32", "e8m0"))
    if dim % size:
        raise ValueError(f"{_NAME}: quant_group_size must divide head_dim {dim}, got {size}")
    ring = swa_dest_rows, batch_id_per_token, swa_block_tables, swa_block_size
    if swa_kv is not None:
        _check_ring(kv, quant, swa_kv, *ring)
    wide = _normed_and_turned(q.reshape(tokens, heads, dim), kv, (q_weight, kv_weight), (cos_cache, sin_cache),
                              positions)
    found: list[Tensor | None] = []
    for (before, after), shape, out, scale, names in zip(
            wide, ((tokens, heads, dim), (tokens, dim)), (q_out, kv_out), (q_scale, kv_scale),
            (("q_out", "q_scale"), ("kv_out", "kv_scale")), strict=True):
        values, scales = _narrowed(before, after, size, scale_dtype) if quant else (after.to(torch.bfloat16), None)
        found += [_into(names[0], values.view(shape), out),
                  None if scales is None else _into(names[1], scales.view(*shape[:-1], dim // size), scale)]
    if swa_kv is not None and tokens:
        place = _places(positions, swa_kv, *ring)
        aiter_like.concat_and_cache_mla(*(each.contiguous() for each in found[2].chunk(2, -1)), swa_kv[:, None], place,
                                        "auto", None)
    return found[0], found[2], found[1], found[3]


def _normed_and_turned(q: Tensor, kv: Tensor, weights: tuple[Tensor | None, Tensor], tables: tuple[Tensor, Tensor],
                       positions: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of q and of kv: normed, and turned besides, [tokens, heads, dim] in fp32."""
    normed = []
    for x, weight in zip((q, kv[:, None]), weights, strict=True):
        weight = torch.ones(x.shape[-1], device=x.device, dtype=torch.float32) if weight is None else weight.float()
        normed.append(aiter_like.rms_norm(x.float(), weight, _EPSILON))
    cos, sin = (table.reshape(len(table), table.shape[-1]) for table in tables)
    turned = [each.clone() for each in normed]
    if len(q):
        aiter_like.rope_cached_thd_positions_2c_fwd_inplace(*turned, cos, sin, positions, 1, True, True)
    return list(zip(normed, turned, strict=True))


def _narrowed(before: Tensor, after: Tensor, size: int, scale_dtype: str) -> tuple[Tensor, Tensor]:
    """fp8, and the scales of groups: what stands before the rotation bounds what is behind it by √2."""
    arch = target_of(before.device).arch
    fp8, kind = dtypes.fp8_of(arch), MxDtypeInt.FP8_E4M3_FNUZ if arch == "gfx942" else MxDtypeInt.FP8_E4M3
    top = torch.finfo(fp8).max
    amax = (before.unflatten(-1, (-1, size)).abs().amax(-1) * 2**0.5).clamp(min=_SMALLEST)
    stored = scales = amax / top
    if scale_dtype == "e8m0":
        stored = f32_to_mx_e8m0_scale(amax, mode=MxScaleRoundModeInt.RoundUp, dtype=kind).view(torch.uint8)
        scales = torch.exp2(stored.float() - 127)
    narrow = (after.unflatten(-1, (-1, size)) / scales[..., None]).clamp(-top, top).to(fp8)
    return narrow.flatten(-2), stored


def _into(name: str, values: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return values.contiguous()
    check.tensor(_NAME, name, out, dtypes=(values.dtype,), shape=values.shape, device=values.device)
    return out.copy_(values)


def _check_ring(kv: Tensor, quant: bool, swa_kv: Tensor, rows: Tensor | None, batch_ids: Tensor | None,
                tables: Tensor | None, block_size: int | None) -> None:
    if quant:
        raise ValueError(f"{_NAME}: swa_kv must be None with quant, got a tensor")
    int32 = (torch.int32,)
    check.tensor(_NAME, "swa_kv", swa_kv, dtypes=_BF16, shape=(None, kv.shape[1]), device=kv.device)
    check.tensor(_NAME, "batch_id_per_token", batch_ids, rank=1, dtypes=int32, device=kv.device)
    wanted = {"batch_id_per_token": batch_ids}
    if tables is None:
        check.tensor(_NAME, "swa_dest_rows", rows, rank=1, dtypes=int32, device=kv.device)
        wanted["swa_dest_rows"] = rows
    else:
        check.tensor(_NAME, "swa_block_tables", tables, rank=2, dtypes=int32, device=kv.device)
        check.integer(_NAME, "swa_block_size", block_size, 1)
    for name, tensor in wanted.items():
        if len(tensor) < len(kv):
            raise ValueError(f"{_NAME}: {name} must have at least {len(kv)} elements, one for each token, got "
                             f"{len(tensor)}")


def _places(positions: Tensor, swa_kv: Tensor, rows: Tensor | None, batch_ids: Tensor, tables: Tensor | None,
            block_size: int | None) -> Tensor:
    """The row of `swa_kv` of each token, −1 for none."""
    batch = batch_ids[:len(positions)].long()
    if tables is None:
        place, is_there = rows[:len(positions)].long(), batch >= 0
    else:
        column = positions.long() // block_size
        is_there = (batch >= 0) & (batch < len(tables)) & (column >= 0) & (column < tables.shape[1])
        if not tables.numel():
            return torch.full_like(batch, -1)
        block = tables[batch.where(is_there, 0), column.where(is_there, 0)].long()
        place = block * block_size + positions.long() % block_size
        is_there = is_there & (block >= 0)
    return place.where(is_there & (place >= 0) & (place < len(swa_kv)), -1)
