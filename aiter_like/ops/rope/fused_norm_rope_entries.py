# SPDX-License-Identifier: MIT
"""The operator fused_qk_norm_rope_group_quant as AITER calls it: queries with their key, or keys into pages."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.ops.rope import parts
from aiter_like.ops.rope.fused_qk_norm_rope_group_quant import FusedQkNormRopeGroupQuantCall, fused_norm_rope_quant

__all__ = ["fused_kv_norm_rope_group_quant", "fused_qk_norm_rope_group_quant"]

_KEY_GROUP = 64  # Readers of the entries take a scale for so many elements.


def fused_qk_norm_rope_group_quant(
        q: Tensor, kv: Tensor, k_weight: Tensor, positions: Tensor, cos_cache: Tensor, sin_cache: Tensor, eps: float,
        is_neox: bool = False, q_out_dtype: torch.dtype = torch.bfloat16, q_nope_scale_buff: Tensor | None = None,
        q_rope_buff: Tensor | None = None, k_nope_scale_buff: Tensor | None = None, k_rope_buff: Tensor | None = None,
        q_weight: Tensor | None = None, quant_group_size: int = 64, scale_dtype: str = "e8m0",
        swa_nope_scale_buff: Tensor | None = None, swa_rope_buff: Tensor | None = None,
        swa_block_tables: Tensor | None = None, swa_dest_row: Tensor | None = None, swa_block_size: int | None = None,
        batch_id_per_token: Tensor | None = None, *,
        backend: str | None = None) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """RMSNorm of latent attention's queries and its only key, rotary position embedding of their last pe elements, and
    fp8 with a power-of-two scale per group of the others:
    `y = norm(x) · weight`; an entry is `round(y[:nope] / scale)`, then each group's scale twice, as its exponent's byte
    (e8m0), with `scale = 2^ceil(log2(amax / largest))`; beside it `rope(y[nope:])`, not quantised.

    Args:
        q: [num_tokens, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        kv: [num_tokens, head_dim] or [num_tokens, 1, head_dim], dtype of `q`.
        k_weight, q_weight: [head_dim], dtype of `q`; `q_weight` may be None: 1.
        positions: [num_tokens] int32|int64: rows of the tables.
        cos_cache, sin_cache: [max_position, pe / 2] bf16|fp16|fp32.
        eps: added to the mean of squares; finite, ≥ 0.
        is_neox: True: pairs (i, i + pe / 2) of the rotated part; False: pairs (2i, 2i + 1).
        q_out_dtype: of a new `q_nope_scale_buff`: the device's fp8 for entries, or the dtype of `q`.
        q_nope_scale_buff: written: entries in the device's fp8, or whole heads in the dtype of `q`, shaped as it;
            None: new.
        q_rope_buff: written beside entries: [num_tokens, num_heads, pe], dtype of `q`; None: new.
        k_nope_scale_buff: written: entries like `kv`, in the device's fp8; None: new.
        k_rope_buff: written: [num_tokens, pe] or [num_tokens, 1, pe], dtype of `q`; None: new.
        quant_group_size: elements of q with a scale: 32, 64 or 128, which divides what is not rotated. The key has 64.
        scale_dtype: "e8m0".
        swa_nope_scale_buff: written: entries of the key once more, [rows, head_dim] in the device's fp8.
        swa_rope_buff: written beside it: [rows, pe], dtype of `q`.
        swa_block_tables, swa_block_size: [sequences, blocks] int32|int64: blocks of so many rows; a negative one: none.
        swa_dest_row: instead: [num_tokens] int32|int64, each token's row; a negative one: none.
        batch_id_per_token: [num_tokens] int32|int64: each token's sequence; a negative one has no row.

    Returns:
        (q_nope_scale_buff, q_rope_buff or None, k_nope_scale_buff, k_rope_buff); what was given is written, the bytes
        behind an entry's scales are not.

    Notes:
        fp32 throughout, each result rounded to nearest even once; deterministic. A position outside the tables gives
        NaN in the rotated part; a row outside the pool, and one of a token whose position is negative, is skipped.

    Source: AITER's function of this name; DeepSeek-V4 (2026).
    """
    name = "fused_qk_norm_rope_group_quant"
    keys, fp8, pe = _keys(name, kv, cos_cache, scale_dtype)
    check.tensor(name, "q", q, rank=3)
    check.floating(name, "q_out_dtype", q_out_dtype)
    if q_nope_scale_buff is None:
        check.choice(name, "q_out_dtype", str(q_out_dtype), (str(fp8), str(q.dtype)))
        q_nope_scale_buff = torch.empty_like(q, dtype=q_out_dtype, memory_format=torch.contiguous_format)
    has_entries = q_nope_scale_buff.dtype.itemsize == 1
    q_rope = q.new_empty(*q.shape[:2], pe) if has_entries and q_rope_buff is None else q_rope_buff
    if not has_entries:
        q_rope = None
    if k_nope_scale_buff is None:
        k_nope_scale_buff = torch.empty_like(kv, dtype=fp8, memory_format=torch.contiguous_format)
    if k_rope_buff is None:
        k_rope_buff = kv.new_empty(*kv.shape[:-1], pe)
    pool, pool_rope = (None if one is None else one[None] for one in (swa_nope_scale_buff, swa_rope_buff))
    if pool is None:
        parts.check_positions(name, "positions", positions, None, cos_cache)
    call = FusedQkNormRopeGroupQuantCall(
        _bytes(name, "k_nope_scale_buff", _with_head(name, "k_nope_scale_buff", k_nope_scale_buff), fp8),
        _with_head(name, "k_rope_buff", k_rope_buff),
        _bytes(name, "q_nope_scale_buff", q_nope_scale_buff, fp8) if has_entries else q_nope_scale_buff, q_rope,
        None if pool is None else _bytes(name, "swa_nope_scale_buff", pool, fp8), pool_rope, q, keys, q_weight,
        k_weight, positions, cos_cache, sin_cache, swa_dest_row=swa_dest_row, swa_block_tables=swa_block_tables,
        batch_id_per_token=batch_id_per_token, swa_block_size=swa_block_size or 0, q_group_size=quant_group_size,
        quant_group_size=_KEY_GROUP, eps=eps, is_neox=is_neox)
    fused_norm_rope_quant.run(*call, backend=backend)
    return q_nope_scale_buff, q_rope, k_nope_scale_buff, k_rope_buff


def fused_kv_norm_rope_group_quant(
        kv: Tensor, kv_weight: Tensor, positions: Tensor, slot_mapping: Tensor, cos_cache: Tensor, sin_cache: Tensor,
        eps: float, k_nope_scale_buff: Tensor, k_rope_buff: Tensor, is_neox: bool = False, quant_group_size: int = 64,
        scale_dtype: str = "e8m0", *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Norm, rotation and fp8 of keys alone, into a paged cache of entries. Like `fused_qk_norm_rope_group_quant`.

    Args:
        kv: [num_tokens, head_dim] or [num_tokens, 1, head_dim] bf16|fp16|fp32, last dimension contiguous.
        kv_weight: [head_dim], dtype of `kv`.
        slot_mapping: [num_tokens] int32|int64, `block · page_size + offset`; one outside the cache is skipped, and
            which of two tokens with one slot stays is undefined.
        k_nope_scale_buff: [num_blocks, page_size, head_dim] in the device's fp8: entries; written.
        k_rope_buff: [num_blocks, page_size, pe], dtype of `kv`; written.
        quant_group_size: elements with a scale: 32, 64 or 128, which divides what is not rotated.

    Returns: (k_nope_scale_buff, k_rope_buff), of which only the named slots are written, and not behind their scales.

    Source: AITER's function of this name; DeepSeek-V4 (2026).
    """
    name = "fused_kv_norm_rope_group_quant"
    keys, fp8, _ = _keys(name, kv, cos_cache, scale_dtype)
    parts.check_positions(name, "positions", positions, None, cos_cache)
    check.tensor(name, "slot_mapping", slot_mapping)
    fused_norm_rope_quant.run(
        _bytes(name, "k_nope_scale_buff", k_nope_scale_buff, fp8), k_rope_buff, None, None, None, None, None, keys,
        None, kv_weight, positions, cos_cache, sin_cache, slot_mapping=slot_mapping,
        quant_group_size=quant_group_size, eps=eps, is_neox=is_neox, backend=backend)
    return k_nope_scale_buff, k_rope_buff


def _keys(name: str, kv: Tensor, cos_cache: Tensor, scale_dtype: str) -> tuple[Tensor, torch.dtype, int]:
    """`kv` [tokens, head_dim], the device's fp8, and how many elements the tables turn."""
    check.choice(name, "scale_dtype", scale_dtype, ("e8m0",))
    check.tensor(name, "kv", kv)
    if kv.ndim not in (2, 3) or kv.ndim == 3 and kv.shape[1] != 1:
        raise ValueError(f"{name}: kv must have shape [tokens, head_dim] or [tokens, 1, head_dim], got "
                         f"{tuple(kv.shape)}")
    check.tensor(name, "cos_cache", cos_cache, rank=2)
    return kv if kv.ndim == 2 else kv[:, 0], dtypes.fp8_of(target_of(kv.device).arch), 2 * cos_cache.shape[1]


def _with_head(name: str, argument: str, tensor: Tensor) -> Tensor:
    """[tokens, 1, …] of what may lack the dimension."""
    check.tensor(name, argument, tensor)
    return tensor[:, None] if tensor.ndim == 2 else tensor


def _bytes(name: str, argument: str, entries: Tensor, fp8: torch.dtype) -> Tensor:
    check.tensor(name, argument, entries, dtypes=(fp8,))
    return dtypes.viewed(entries, torch.uint8)
