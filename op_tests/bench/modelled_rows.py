# SPDX-License-Identifier: MIT
"""Cases of bench_modelled.py: norms, activations, quantisers, caches and rotations, which memory bounds."""

from collections.abc import Iterator

import torch
from modelled_case import Case, bytes_of, normal

import aiter_like
from aiter_like import dtypes

_FP8 = dtypes.fp8_of("gfx942")
_PAGE = 16  # tokens of a page
_HEADS, _HEAD_DIM = 8, 128


def _norms(rows: int) -> Iterator[tuple[str, Case]]:
    for hidden in (4096, 5120, 4100):  # 4100: rows that 16 bytes do not divide
        x, weight = normal(rows, hidden), normal(hidden)
        out, residual, summed = torch.empty_like(x), normal(rows, hidden), torch.empty_like(x)
        quantised, scale = torch.empty(rows, hidden, dtype=_FP8), torch.empty(rows, 1)
        yield f"rms_norm {hidden}", Case(
            lambda x=x, weight=weight, out=out: aiter_like.rms_norm_cu(out, x, weight, 1e-6), bytes_of(x),
            bytes_of(out))
        if hidden == 4100:
            continue
        yield f"rms_norm add {hidden}", Case(
            lambda x=x, weight=weight, out=out, residual=residual, summed=summed: aiter_like.rmsnorm2d_fwd_with_add(
                out, x, residual, summed, weight, 1e-6), bytes_of(x, residual), bytes_of(out, summed))
        yield f"layer_norm {hidden}", Case(
            lambda x=x, weight=weight, out=out: aiter_like.layernorm2d_fwd(x, weight, weight, out=out),
            bytes_of(x), bytes_of(out))
        yield f"rms_norm_quant fp8 {hidden}", Case(
            lambda x=x, weight=weight, quantised=quantised, scale=scale: aiter_like.rmsnorm_quant(
                quantised, x, scale, weight, 1e-6), bytes_of(x), bytes_of(quantised))
    x, weight, residual = normal(rows, 4096), normal(4096), normal(rows, 4096)
    quantised, scale, summed = torch.empty(rows, 4096, dtype=_FP8), torch.empty(rows, 32), torch.empty_like(x)
    yield "rms_norm_quant fp8 by 128", Case(
        lambda: aiter_like.rmsnorm_quant(quantised, x, scale, weight, 1e-6, 128), bytes_of(x),
        bytes_of(quantised, scale))
    yield "rms_norm_quant add fp8", Case(
        lambda: aiter_like.add_rmsnorm_quant(quantised, x, residual, summed, scale[:, :1].contiguous(), weight, 1e-6),
        bytes_of(x, residual), bytes_of(summed, quantised))


def _activations(rows: int) -> Iterator[tuple[str, Case]]:
    x = normal(rows, 2 * 4096)
    out, quantised = torch.empty(rows, 4096, dtype=x.dtype), torch.empty(rows, 4096, dtype=_FP8)
    scale = torch.empty(rows, 32)
    yield "silu_and_mul", Case(lambda: aiter_like.silu_and_mul(out, x), bytes_of(x), bytes_of(out))
    yield "silu_and_mul_quant fp8 by 128", Case(lambda: aiter_like.silu_and_mul_quant(quantised, x, scale, 128),
                                                bytes_of(x), bytes_of(quantised, scale))


def _quantisers(rows: int) -> Iterator[tuple[str, Case]]:
    x = normal(rows, 4096)
    for name, dtype in (("int8", torch.int8), ("fp8", _FP8)):
        out = torch.empty(rows, 4096, dtype=dtype)
        yield f"per_token_quant {name}", Case(
            lambda dtype=dtype: aiter_like.per_token_quant_hip(x, quant_dtype=dtype), bytes_of(x), bytes_of(out))
        yield f"per_group_quant {name} by 128", Case(
            lambda dtype=dtype: aiter_like.per_group_quant_hip(x, quant_dtype=dtype), bytes_of(x),
            bytes_of(out) + 4 * rows * 32)
        scale = torch.full((1,), 0.05)
        yield f"static_per_tensor_quant {name}", Case(
            lambda out=out, scale=scale: aiter_like.static_per_tensor_quant(out, x, scale), bytes_of(x), bytes_of(out))


def _caches(rows: int) -> Iterator[tuple[str, Case]]:
    key, value = normal(rows, _HEADS, _HEAD_DIM), normal(rows, _HEADS, _HEAD_DIM)
    blocks, slots = -(-rows // _PAGE) + 1, torch.arange(rows)
    shape = (blocks, _PAGE, _HEADS, _HEAD_DIM)
    for name, dtype, kind in (("bf16", torch.bfloat16, "auto"), ("fp8", _FP8, "fp8")):
        caches = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        scale = torch.ones(1) if kind == "fp8" else None
        written = bytes_of(key, value) * caches[0].element_size() // 2
        yield f"reshape_and_cache_flash {name}", Case(
            lambda caches=caches, kind=kind, scale=scale: aiter_like.reshape_and_cache_flash(
                key, value, *caches, slots, kind, scale, scale), bytes_of(key, value), written)
        each = 16 // caches[0].element_size()
        packed = (caches[0].view(blocks, _HEADS, _HEAD_DIM // each, _PAGE, each),
                  caches[1].view(blocks, _HEADS, _PAGE // each, _HEAD_DIM, each))
        for start in (0, 3):  # 3: the first token lies within a pack of tokens
            yield f"reshape_and_cache shuffled {name} +{start}", Case(
                lambda packed=packed, kind=kind, scale=scale, start=start: aiter_like.reshape_and_cache(
                    key, value, *packed, slots + start, kind, scale, scale, True), bytes_of(key, value), written, True)


def _ropes(rows: int) -> Iterator[tuple[str, Case]]:
    q, k = normal(rows, 1, 32, _HEAD_DIM), normal(rows, 1, _HEADS, _HEAD_DIM)
    cos, sin = normal(rows, 1, 1, _HEAD_DIM // 2), normal(rows, 1, 1, _HEAD_DIM // 2)
    positions = torch.arange(rows).view(rows, 1)
    yield "rope 2c cached", Case(lambda: aiter_like.rope_cached_positions_2c_fwd_inplace(
        q, k, cos, sin, positions, 0, True, False), bytes_of(q, k), bytes_of(q, k))


_FAMILIES = (_norms, _activations, _quantisers, _caches, _ropes)


def cases(rows: int) -> Iterator[tuple[str, Case]]:
    """The calls on that many tokens, by name."""
    for family in _FAMILIES:
        torch.manual_seed(rows)
        yield from family(rows)
