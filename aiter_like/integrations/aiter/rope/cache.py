# SPDX-License-Identifier: MIT
"""AITER's Triton functions that turn queries and keys and put them together, or into caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.gemm import triton
from aiter_like.ops.common import elements


@aiter("aiter.ops.triton.[fusions.]fused_qk_concat", callers="s")
def fused_qk_rope_cat(q_nope: Tensor, q_pe: Tensor, k_nope: Tensor, k_pe: Tensor, pos: Tensor, cos: Tensor, sin: Tensor,
                      is_neox: bool) -> tuple[Tensor, Tensor]:
    """`q_nope ‖ rope(q_pe)` and `k_nope ‖ rope(k_pe)`. Where heads and tables have one dtype of 16 bits, copies and
    `rope_rounded`, since AITER's rounds each product; else `fused_qk_rope_concat_and_cache_mla` into a cache of as many
    tokens, or where a table's row has a value for each element copies, and the rotation in place.

    Args:
        q_nope, q_pe, k_nope, k_pe: [tokens, heads, dim] bf16|fp16|fp32, the keys with heads of their own.
        pos: [tokens] integers, rows of `cos` and `sin`.
        cos, sin: [rows, 1, 1, width] or [rows, width]; width is the rotated elements, or half of them.
        is_neox: pairs are elements i and i + pe / 2; else 2i and 2i + 1.

    Returns:
        The queries and the keys, [tokens, heads, nope + pe].
    """
    op = "fused_qk_rope_cat"
    _check_parts(op, q_nope, q_pe, k_nope, k_pe)
    tokens, kv_heads, _ = k_nope.shape
    q_out, k_out = (nope.new_empty(*nope.shape[:2], nope.shape[2] + pe.shape[2])
                    for nope, pe in ((q_nope, q_pe), (k_nope, k_pe)))
    if len(q_nope) != tokens:
        raise ValueError(f"{op}: k_nope must have {len(q_nope)} tokens, as q_nope has, got {tokens}")
    is_half, is_rounded = _is_half(op, cos, q_pe), cos.dtype == q_pe.dtype != torch.float32
    if is_half and not is_rounded:
        aiter_like.fused_qk_rope_concat_and_cache_mla(
            q_nope, q_pe, k_nope, k_pe, k_out[:, None], q_out, _numbers(tokens, k_out.device), None, None, pos, cos,
            sin, is_neox, True, True)
        return q_out, k_out
    for out, nope, pe in ((q_out, q_nope, q_pe), (k_out, k_nope, k_pe)):
        out[..., :nope.shape[2]] = nope
        if not is_rounded:
            out[..., nope.shape[2]:] = pe
    if is_rounded:
        aiter_like.rope_rounded(q_pe, k_pe, cos, sin, pos, None, 0 if is_neox else 1, is_half,
                                out=(q_out[..., q_nope.shape[2]:], k_out[..., k_nope.shape[2]:]))
        return q_out, k_out
    _turn(q_out[..., q_nope.shape[2]:], k_out[..., k_nope.shape[2]:], cos, sin, pos, is_neox)
    return q_out, k_out


@aiter("aiter.ops.triton.[fusions.]fused_kv_cache", callers="s")
def fused_qk_rope_cat_and_cache_mla(
        q_nope: Tensor, q_pe: Tensor, k_nope: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, pos: Tensor,
        cos: Tensor, sin: Tensor, k_scale: Tensor | float | None, is_neox: bool, num_decode_toks_for_zeros: int = 0,
        apply_scale: bool = True, q_out: Tensor | None = None, decode_q_pe_out: Tensor | None = None,
        k_pe_out: Tensor | None = None, q_out_dtype: torch.dtype | None = None, shuffled_kv_cache: bool = False,
        upcast_operand: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fused_qk_rope_cat` whose keys go into the slots of a cache.

    Args:
        q_nope, q_pe, k_nope, k_pe, pos, cos, sin, is_neox: as there. Keys may have more tokens than queries: those
            behind the queries' are turned already and only written.
        kv_cache: [tokens, kv_heads, nope + pe], dtype of `k_nope` or the device's fp8; written.
        slot_mapping: [tokens] int64|int32: of each of the first tokens of the keys, at least of those with queries.
        k_scale: 1 element, what an element of an fp8 cache counts; None: 1.
        num_decode_toks_for_zeros: so many first tokens' turned queries and zeros are returned, too.
        apply_scale: False: `k_scale` is 1.
        q_out, decode_q_pe_out, k_pe_out: tensors to write; default: new ones, of `q_out` with `q_out_dtype` or the
            dtype of `q_nope`, that or the device's fp8.
        shuffled_kv_cache: False.
        upcast_operand: of no meaning: what is turned is multiplied in fp32 always.

    Returns:
        q_out [tokens, heads, nope + pe]; decode_q_pe_out [num_decode_toks_for_zeros, heads, pe]; k_pe_out [tokens,
        kv_heads, pe], written for tokens that have a slot's place; zeros [num_decode_toks_for_zeros, heads, nope].
    """
    op = "fused_qk_rope_cat_and_cache_mla"
    _check_parts(op, q_nope, q_pe, k_nope, k_pe)
    _refuse_shuffled(op, shuffled_kv_cache)
    check.tensor(op, "kv_cache", kv_cache, rank=3, device=q_nope.device)
    check.tensor(op, "slot_mapping", slot_mapping, rank=1, dtypes=elements.INTEGERS, device=q_nope.device)
    (tokens, heads, rank), pe = q_nope.shape, q_pe.shape[2]
    check.integer(op, "num_decode_toks_for_zeros", num_decode_toks_for_zeros, 0, tokens)
    if not tokens <= len(slot_mapping) <= len(k_nope):
        raise ValueError(f"{op}: slot_mapping must have {tokens} elements, one for each query, to {len(k_nope)}, got "
                         f"{len(slot_mapping)}")
    scale = _scale(op, k_scale if apply_scale else None, kv_cache)
    if q_out is None:
        q_out = q_nope.new_empty(tokens, heads, rank + pe, dtype=q_out_dtype or q_nope.dtype)
    if k_pe_out is None:
        k_pe_out = torch.empty_like(k_pe)
    check.tensor(op, "q_out", q_out, shape=(tokens, heads, rank + pe), device=q_nope.device)
    check.tensor(op, "k_pe_out", k_pe_out, dtypes=(k_pe.dtype,), shape=k_pe.shape, device=q_nope.device)
    if decode_q_pe_out is None:
        decode_q_pe_out = q_nope.new_empty(num_decode_toks_for_zeros, heads, pe)
    check.tensor(op, "decode_q_pe_out", decode_q_pe_out, dtypes=(q_nope.dtype,), device=q_nope.device,
                 shape=(num_decode_toks_for_zeros, heads, pe))
    turned_q, rest = q_pe.clone(), slice(tokens, len(slot_mapping))
    k_pe_out.copy_(k_pe)
    _turn(turned_q, k_pe_out[:tokens], cos, sin, pos[:tokens], is_neox)
    if _is_half(op, cos, q_pe):
        aiter_like.fused_qk_rope_concat_and_cache_mla(
            q_nope, q_pe, k_nope[:tokens], k_pe[:tokens], kv_cache[:, None], q_out, slot_mapping[:tokens], scale, None,
            pos, cos, sin, is_neox, True, True)
    else:
        q_out[..., :rank], q_out[..., rank:], rest = q_nope, turned_q, slice(0, len(slot_mapping))
    if rest.start < rest.stop:
        _write(k_nope[rest], k_pe_out[rest], kv_cache, slot_mapping[rest], scale)
    decode_q_pe_out.copy_(turned_q[:num_decode_toks_for_zeros])
    return q_out, decode_q_pe_out, k_pe_out, q_nope.new_zeros(num_decode_toks_for_zeros, heads, rank)


@aiter("aiter.ops.triton.fusions.fused_bmm_rope_kv_cache", callers="S")
def fused_fp8_bmm_rope_cat_and_cache_mla(
        q_nope: Tensor, w_k: Tensor, w_k_scale: Tensor, q_pe: Tensor, k_nope: Tensor, k_rope: Tensor, kv_cache: Tensor,
        slot_mapping: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, group_size: int = 128,
        transpose_bm: bool = True, config: dict | None = None, k_scale: Tensor | float | None = None,
        is_neox: bool = False, q_out_dtype: torch.dtype | None = torch.bfloat16,
        num_decode_toks_for_zeros: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The product of queries and the keys' projection, and `fused_qk_rope_cat_and_cache_mla` of what it makes.

    Args:
        q_nope: [heads, tokens, k] bf16|fp16.
        w_k, w_k_scale, group_size: [heads, nope, k] and its scale, as of
            batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant.
        q_pe, k_nope, k_rope, kv_cache, slot_mapping, positions, cos, sin, k_scale, is_neox, num_decode_toks_for_zeros:
            as there.
        transpose_bm: True; config is of no meaning.
        q_out_dtype: of the queries.

    Returns:
        As there.
    """
    latent = triton.batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
        q_nope, w_k, w_k_scale, group_size, dtype=q_nope.dtype, transpose_bm=True)
    return fused_qk_rope_cat_and_cache_mla(
        latent, q_pe, k_nope, k_rope, kv_cache, slot_mapping, positions, cos, sin, k_scale, is_neox,
        num_decode_toks_for_zeros, q_out_dtype=q_out_dtype)


def _write(k_nope: Tensor, k_pe: Tensor, cache: Tensor, slots: Tensor, scale: Tensor | None) -> None:
    cache, rank = cache[:, None], k_nope.shape[2]  # pages of one token
    kind = "auto" if cache.dtype == k_nope.dtype else "fp8"
    aiter_like.reshape_and_cache_flash(k_nope, k_pe, cache[..., :rank], cache[..., rank:], slots, kind, scale, scale)


def _turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pos: Tensor, is_neox: bool) -> None:
    """Both in place, [tokens, heads, pe]."""
    half = 2 * cos.shape[-1] == q.shape[2]
    aiter_like.rope_cached_thd_positions_2c_fwd_inplace(q, k, cos, sin, pos, 0 if is_neox else 1, half, False)


def _check_parts(op: str, q_nope: Any, q_pe: Any, k_nope: Any, k_pe: Any) -> None:
    check.tensor(op, "q_nope", q_nope, rank=3, dtypes=elements.FLOATS)
    check.tensor(op, "k_nope", k_nope, dtypes=(q_nope.dtype,), shape=(None, None, q_nope.shape[2]),
                 device=q_nope.device)
    check.tensor(op, "q_pe", q_pe, dtypes=(q_nope.dtype,), shape=(*q_nope.shape[:2], None), device=q_nope.device)
    check.tensor(op, "k_pe", k_pe, dtypes=(q_nope.dtype,), shape=(*k_nope.shape[:2], q_pe.shape[2]),
                 device=q_nope.device)


def _is_half(op: str, cos: Any, pe: Tensor) -> bool:
    """Whether a row of the tables has a value for each pair, not for each element."""
    check.tensor(op, "cos", cos, last_contiguous=False)
    if not cos.ndim or cos.shape[-1] not in (pe.shape[2], pe.shape[2] // 2):
        raise ValueError(f"{op}: cos must have {pe.shape[2]} columns, those of q_pe, or half of them, got shape "
                         f"{tuple(cos.shape)}")
    return cos.shape[-1] == pe.shape[2] // 2


def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def _refuse_shuffled(op: str, is_shuffled: bool) -> None:
    if is_shuffled:
        raise UnsupportedError(f"{op}: no backend supports shuffled_kv_cache, the order of kernels for gfx950 and "
                               f"gfx1250", op, {"shuffled_kv_cache": "True"})


def _scale(op: str, scale: Tensor | float | None, cache: Tensor) -> Tensor | None:
    """[1] fp32, of an fp8 cache alone."""
    if scale is None or cache.element_size() > 1:
        return None
    if not isinstance(scale, Tensor):
        return torch.full((1,), float(scale), device=cache.device, dtype=torch.float32)
    if scale.numel() != 1:
        raise ValueError(f"{op}: k_scale must have 1 element, got shape {tuple(scale.shape)}")
    return scale.reshape(1).float()
