# SPDX-License-Identifier: MIT
"""Rotary position embedding of latent attention's queries and keys, and the cache's write. Kernel: csrc/rope/."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, tune_shapes, vectors
from aiter_like.ops.rope import parts

__all__ = ["fused_qk_rope_concat_and_cache_mla"]

_OP = "fused_qk_rope_concat_and_cache_mla"
_IN_VECTORS = ("q_out", "q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin")


class FusedMlaCacheCall(NamedTuple):
    """One call of the operator.

    Attributes:
        q_out: [tokens, heads, rank + pe], dtype of `q_nope` or fp8.
        kv_cache: [blocks, page_size, kv_heads, rank + pe], dtype of `q_nope` or fp8.
        slot_mapping: [≤ tokens], the place of each of the first tokens.
        positions: [≥ slots], rows of the tables `cos` and `sin`, [rows, pe / 2].
        k_scale, q_scale: 1 fp32 element, what an element of an fp8 result counts; None: 1.
        is_neox: pairs (i, i + pe / 2); else (2i, 2i + 1).
        is_nope_first: results are latent ‖ rotated; else rotated ‖ latent.
        compute_all_q_rope: queries of tokens without a slot are written too.
    """

    q_out: Tensor
    kv_cache: Tensor
    q_nope: Annotated[Tensor, "tokens heads rank", elements.FLOATS]
    q_pe: Annotated[Tensor, "tokens heads pe", "q_nope"]
    kv_c: Annotated[Tensor, "tokens kv_heads rank", "q_nope"]
    k_pe: Annotated[Tensor, "tokens kv_heads pe", "q_nope"]
    slot_mapping: Tensor
    positions: Annotated[Tensor, "positions", elements.INTEGERS, STRIDED]
    cos: Annotated[Tensor, "*cos", elements.FLOATS]
    sin: Annotated[Tensor, "*sin", "cos"]
    k_scale: Tensor | None = None
    q_scale: Tensor | None = None
    is_neox: bool = True
    is_nope_first: bool = True
    compute_all_q_rope: bool = False

    @property
    def vec(self) -> int:
        """Elements of an access: 16 bytes of them, or fewer where parts, heads or rows of the tables lie closer."""
        steps = parts.steps(self.q_out, self.q_nope, self.q_pe, self.kv_c, self.k_pe, self.cos, self.sin)
        return math.gcd(16 // self.q_nope.element_size(), self.kv_c.shape[-1] // 2, self.k_pe.shape[-1] // 2, *steps)


def fused_ref(call: FusedMlaCacheCall) -> None:
    """In torch, in fp32, each result rounded once."""
    tokens = len(call.slot_mapping)
    angles = [parts.table_rows(table, call.positions[:tokens], torch.float32)[:, None]
              for table in (call.cos, call.sin)]
    found = []
    for latent, pe in ((call.q_nope, call.q_pe), (call.kv_c, call.k_pe)):
        both = [latent[:tokens].float(),
                parts.rotated(pe[:tokens].float(), *angles, 0 if call.is_neox else 1, True, False, False)]
        found.append(torch.cat(both if call.is_nope_first else both[::-1], -1))
    q, k = (parts.stored(x, scale if out.dtype.itemsize == 1 else None, out.dtype)
            for x, scale, out in zip(found, (call.q_scale, call.k_scale), (call.q_out, call.kv_cache)))
    blocks, page_size = call.kv_cache.shape[:2]
    kept, block, offset = paged_cache.places(call.slot_mapping, page_size, blocks)
    rows = torch.arange(tokens, device=q.device) if call.compute_all_q_rope else kept
    paged_cache.as_bytes(call.q_out)[rows] = paged_cache.as_bytes(q)[rows]
    paged_cache.as_bytes(call.kv_cache)[block, offset] = paged_cache.as_bytes(k)[kept]


def _instance(call: FusedMlaCacheCall) -> Instance:
    dtype, table = call.q_nope.dtype, call.cos.dtype
    q_out, cache = (elements.CPP[tensor.dtype] for tensor in (call.q_out, call.kv_cache))
    name = (f"{dtypes.name(dtype)}_table_{dtypes.name(table)}{'_q_fp8' * (q_out == 'fp8')}"
            f"{'_kv_fp8' * (cache == 'fp8')}_v{call.vec}")
    return Instance(name, {"ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table], "Q_OUT": q_out,
                           "CACHE": cache, "VEC": call.vec})


@compile_ops("rope/fused_qk_rope_concat_and_cache_mla.hip", gen_func=_instance)
def _fused_qk_rope_concat_and_cache_mla_hip(call: FusedMlaCacheCall) -> None: ...


def _check(call: FusedMlaCacheCall) -> object:
    (tokens, heads, rank), (_, kv_heads, pe), device = call.q_nope.shape, call.k_pe.shape, call.q_nope.device
    if rank % 2 or pe % 2:
        raise ValueError(f"{_OP}: kv_c and k_pe must have even dimensions, got {rank} and {pe}")
    for name, tensor, shape in (("q_out", call.q_out, (tokens, heads, rank + pe)),
                                ("kv_cache", call.kv_cache, (None, None, kv_heads, rank + pe))):
        paged_cache.check_fp8(_OP, name, tensor, (call.q_nope.dtype,))
        check.tensor(_OP, name, tensor, shape=shape, device=device)
    paged_cache.check_pages(_OP, "kv_cache", call.kv_cache, call.kv_cache.shape[1])
    paged_cache.check_slots(_OP, call.slot_mapping, tokens, device)
    if call.positions.shape[0] < call.slot_mapping.shape[0]:
        raise ValueError(f"{_OP}: positions must have at least {call.slot_mapping.shape[0]} elements, one for each "
                         f"slot, got {call.positions.shape[0]}")
    parts.check_table(_OP, "cos", call.cos, call.sin, pe, min(tokens, 1), True)
    if call.cos.shape[-1] * 2 != pe:
        raise ValueError(f"{_OP}: cos must have {pe // 2} columns, one for each pair of k_pe, got {call.cos.shape[-1]}")
    paged_cache.check_scale(_OP, "k_scale", call.k_scale, device)
    paged_cache.check_scale(_OP, "q_scale", call.q_scale, device)
    return SKIP if 0 in (tokens, call.slot_mapping.shape[0], rank, pe, heads + kv_heads) else None


def _hip_refusal(target: Target, call: FusedMlaCacheCall) -> str | None:
    tokens, heads = call.slot_mapping.shape[0], call.q_nope.shape[1] + call.kv_c.shape[1]
    lanes = tokens * heads * (call.q_out.shape[2] // (2 * call.vec))
    if lanes >= 2**31 - 256:
        return f"too many heads for one launch: {tokens} tokens of {heads}"
    return paged_cache.too_many_slots(*call.kv_cache.shape[:2])


class FusedMlaCacheKey(NamedTuple):
    """The fields that a tuned row of the operator is chosen by."""

    tokens: int
    heads: int
    rank: int
    rotary_dim: int
    page_size: int
    dtype: str
    q_dtype: str
    cache_dtype: str

    @classmethod
    def of(cls, call: FusedMlaCacheCall) -> FusedMlaCacheKey:
        names = (dtypes.name(tensor.dtype) for tensor in (call.q_nope, call.q_out, call.kv_cache))
        return cls(call.slot_mapping.shape[0], call.q_nope.shape[1], call.kv_c.shape[2], call.k_pe.shape[2],
                   call.kv_cache.shape[1], *names)

    def make(self, device: torch.device, seed: int, **flags: bool) -> FusedMlaCacheCall:
        """Tokens fill pages as in prefill."""
        random, (tokens, heads, rank, pe, page_size, *_) = tune_shapes.normal(device, seed, self.dtype), self
        blocks, slots = parts.prefill_slots(tokens, page_size, device, seed)
        outs = [torch.zeros(*shape, rank + pe, device=device).to(tune_shapes.dtype_on(device, dtype)) for shape, dtype
                in (((tokens, heads), self.q_dtype), ((blocks, page_size, 1), self.cache_dtype))]
        inputs = [random(tokens, *shape) for shape in ((heads, rank), (heads, pe), (1, rank), (1, pe))]
        one = torch.ones(1, device=device)
        return FusedMlaCacheCall(*outs, *inputs, slots, torch.arange(tokens, device=device),
                                 *random(2, tokens, pe // 2), one, one, **flags)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FusedMlaCacheKey]:
        """A GPU's heads, as they are and with a cache of fp8, in models with latent attention."""
        if model.kv_lora_rank:
            for kept in (model.dtype, tune_shapes.fp8_name()):
                yield cls(tokens, model.num_heads // tp, model.kv_lora_rank, model.qk_rope_head_dim, 64, model.dtype,
                          kept, kept)


def _traffic(call: FusedMlaCacheCall) -> tuple[int, int]:
    return parts.traffic(call, call.slot_mapping.shape[0] * call.kv_cache[0, :1].nbytes, "kv_cache")


fused_mla_cache = Op(
    _OP, call=FusedMlaCacheCall, reference=fused_ref, check=_check, key=FusedMlaCacheKey, traffic=_traffic,
    round_field="tokens", writes=("q_out", "kv_cache"),
    cases={  # Accesses of 16 bytes, in fp32 of one element.
        "bf16": FusedMlaCacheKey(5, 3, 64, 32, 4, "bf16", "bf16", "bf16"),
        "fp8": (FusedMlaCacheKey(5, 3, 64, 32, 4, "bf16", "fp8", "fp8"), {"is_neox": False}),
        "fp8 cache": (FusedMlaCacheKey(5, 3, 64, 32, 4, "bf16", "bf16", "fp8"), {"is_nope_first": False}),
        "fp32": (FusedMlaCacheKey(5, 3, 18, 6, 4, "fp32", "fp32", "fp32"), {"is_neox": False, "is_nope_first": False})},
    backends=(Backend("hip", _fused_qk_rope_concat_and_cache_mla_hip, refusal=_hip_refusal,
                      address_refusal=vectors.begin_at(lambda call: dict.fromkeys(_IN_VECTORS, call.vec))),
              Backend("torch", fused_ref)))


def fused_qk_rope_concat_and_cache_mla(
        q_nope: Tensor, q_pe: Tensor, kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, q_out: Tensor, slot_mapping: Tensor,
        k_scale: Tensor | None, q_scale: Tensor | None, positions: Tensor, cos_cache: Tensor, sin_cache: Tensor,
        is_neox: bool, is_nope_first: bool, compute_all_q_rope: bool = False, *, backend: str | None = None) -> None:
    """Rotates the position parts of latent attention's queries and keys and writes both: `q_out = q_nope ‖ rope(q_pe)`
    and `kv_cache[slot] = kv_c ‖ rope(k_pe)`, in fp8 `round(x · (1 / scale))`.

    Args:
        q_nope: [num_tokens, num_heads, rank] bf16|fp16|fp32, last dimension contiguous, other strides free.
        q_pe: [num_tokens, num_heads, pe], dtype of `q_nope`.
        kv_c: [num_tokens, rank] or [num_tokens, num_kv_heads, rank], dtype of `q_nope`.
        k_pe: [num_tokens, pe] or [num_tokens, num_kv_heads, pe], dtype of `q_nope`.
        kv_cache: [num_blocks, page_size, rank + pe] or [num_blocks, page_size, num_kv_heads, rank + pe], dtype of
            `q_nope` or the device's fp8; written.
        q_out: [num_tokens, num_heads, rank + pe], dtype of `q_nope` or the device's fp8; written.
        slot_mapping: [≤ num_tokens] int64|int32, `block · page_size + offset` of each of the first tokens.
        k_scale, q_scale: 1 fp32 element, what an element of an fp8 cache and an fp8 `q_out` counts; None: 1.
        positions: [≥ slots] int64|int32: rows of the tables.
        cos_cache, sin_cache: [max_position, pe / 2] bf16|fp16|fp32, or with two dimensions of 1 between.
        is_neox: True: pairs (i, i + pe / 2); False: pairs (2i, 2i + 1).
        is_nope_first: True: results are latent ‖ rotated; False: rotated ‖ latent.
        compute_all_q_rope: False: a token whose slot is outside the cache has no query written either.

    Notes:
        fp32 throughout, each result rounded to nearest even once; fp8 saturates. A slot outside the cache is skipped; a
        position outside the tables gives NaN in the rotated part. Two tokens with one slot: which of them stays is
        undefined.
    """
    for name, tensor, rank in (("kv_c", kv_c, 2), ("k_pe", k_pe, 2), ("kv_cache", kv_cache, 3)):
        parts.has_rank(_OP, name, tensor, rank, rank + 1)
    kv_c, k_pe = (tensor.unsqueeze(1) if tensor.ndim == 2 else tensor for tensor in (kv_c, k_pe))
    cache = kv_cache.unsqueeze(2) if kv_cache.ndim == 3 else kv_cache
    if isinstance(slot_mapping, Tensor) and isinstance(positions, Tensor) and slot_mapping.ndim == positions.ndim == 1:
        parts.check_positions(_OP, "positions", positions[:slot_mapping.shape[0]], None, cos_cache)
    fused_mla_cache.run(q_out, cache, q_nope, q_pe, kv_c, k_pe, slot_mapping, positions, cos_cache, sin_cache, k_scale,
                        q_scale, is_neox, is_nope_first, compute_all_q_rope, backend=backend)


fused_mla_cache.public.append(fused_qk_rope_concat_and_cache_mla)
