# SPDX-License-Identifier: MIT
"""Rotary position embedding of latent attention's queries and keys, and the cache's write, in one kernel.

Kernel: csrc/rope/fused_qk_rope_concat_and_cache_mla.hip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule, tune_shapes, vectors
from aiter_like.ops.rope import parts

__all__ = ["fused_qk_rope_concat_and_cache_mla"]

_OP = "fused_qk_rope_concat_and_cache_mla"
_IN_VECTORS = ("q_out", "q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin")


class FusedMlaCacheCall(NamedTuple):
    """One call: its arguments in the order of the function that the .hip exports.

    Attributes:
        q_out: [tokens, heads, rank + pe], dtype of `q_nope` or fp8; written.
        kv_cache: [blocks, page_size, kv_heads, rank + pe], dtype of `q_nope` or fp8; written.
        q_nope: [tokens, heads, rank]; `q_pe` [tokens, heads, pe].
        kv_c: [tokens, kv_heads, rank]; `k_pe` [tokens, kv_heads, pe].
        slot_mapping: [≤ tokens], the place of each of the first tokens.
        positions: [tokens], rows of the tables `cos` and `sin`, [rows, pe / 2].
        k_scale, q_scale: 1 fp32 element, what an element of an fp8 result counts; None: 1.
        is_neox: pairs (i, i + pe / 2); else (2i, 2i + 1).
        is_nope_first: results are latent ‖ rotated; else rotated ‖ latent.
        compute_all_q_rope: queries of tokens without a slot are written too.
    """

    q_out: Tensor
    kv_cache: Tensor
    q_nope: Tensor
    q_pe: Tensor
    kv_c: Tensor
    k_pe: Tensor
    slot_mapping: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    k_scale: Tensor | None = None
    q_scale: Tensor | None = None
    is_neox: bool = True
    is_nope_first: bool = True
    compute_all_q_rope: bool = False

    @property
    def vec(self) -> int:
        """Elements of an access: 16 bytes of them, or fewer where parts, heads or rows of the tables lie closer."""
        tensors = (self.q_out, self.q_nope, self.q_pe, self.kv_c, self.k_pe, self.cos, self.sin)
        steps = [step for tensor in tensors for size, step in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
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
    found = [x * (1 / scale) if scale is not None and like.dtype.itemsize == 1 else x
             for x, scale, like in zip(found, (call.q_scale, call.k_scale), (call.q_out, call.kv_cache))]
    q, k = (quant_rule.rounded(x, like.dtype) if like.dtype.itemsize == 1 else x.to(like.dtype)
            for x, like in zip(found, (call.q_out, call.kv_cache)))
    blocks, page_size = call.kv_cache.shape[:2]
    kept, block, offset = paged_cache.places(call.slot_mapping, page_size, blocks)
    rows = torch.arange(tokens, device=q.device) if call.compute_all_q_rope else kept
    paged_cache.as_bytes(call.q_out)[rows] = paged_cache.as_bytes(q)[rows]
    paged_cache.as_bytes(call.kv_cache)[block, offset] = paged_cache.as_bytes(k)[kept]


def _instance(call: FusedMlaCacheCall) -> Instance:
    dtype, table = call.q_nope.dtype, call.cos.dtype
    kinds = [elements.CPP[tensor.dtype] for tensor in (call.q_out, call.kv_cache)]
    name = (dtypes.name(dtype), f"table_{dtypes.name(table)}", *(f"{place}_fp8" for place, kind in zip(
        ("q", "kv"), kinds) if kind == "fp8"), f"v{call.vec}")
    return Instance("_".join(name), {"ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table], "Q_OUT": kinds[0],
                                     "CACHE": kinds[1], "VEC": call.vec})


@compile_ops("rope/fused_qk_rope_concat_and_cache_mla.hip", gen_func=_instance)
def _fused_qk_rope_concat_and_cache_mla_hip(call: FusedMlaCacheCall) -> None: ...


def _check(call: FusedMlaCacheCall) -> object:
    q, k = call.q_nope, call.kv_c
    check.tensor(_OP, "q_nope", q, rank=3, dtypes=elements.FLOATS)
    tokens, heads, rank = q.shape
    device = q.device
    check.tensor(_OP, "k_pe", call.k_pe, rank=3, dtypes=(q.dtype,), device=device)
    kv_heads, pe = call.k_pe.shape[1:]
    check.tensor(_OP, "q_pe", call.q_pe, dtypes=(q.dtype,), shape=(tokens, heads, pe), device=device)
    check.tensor(_OP, "kv_c", k, dtypes=(q.dtype,), shape=(tokens, kv_heads, rank), device=device)
    check.tensor(_OP, "k_pe", call.k_pe, shape=(tokens, kv_heads, pe))
    if rank % 2 or pe % 2:
        raise ValueError(f"{_OP}: kv_c and k_pe must have even dimensions, got {rank} and {pe}")
    target = target_of(device)
    allowed = (q.dtype, dtypes.fp8_of(target.arch))
    for name, tensor, shape in (("q_out", call.q_out, (tokens, heads, rank + pe)),
                                ("kv_cache", call.kv_cache, (None, None, kv_heads, rank + pe))):
        if reason := quant_rule.refusal(target, tensor.dtype):
            raise TypeError(f"{_OP}: {name}: {reason}")
        check.tensor(_OP, name, tensor, dtypes=allowed, shape=shape, device=device)
    if call.kv_cache.shape[1] == 0:
        raise ValueError(f"{_OP}: kv_cache must have pages of at least 1 token, got shape "
                         f"{tuple(call.kv_cache.shape)}")
    paged_cache.check_slots(_OP, call.slot_mapping, tokens, device)
    check.tensor(_OP, "positions", call.positions, rank=1, dtypes=elements.INTEGERS, device=device,
                 last_contiguous=False)
    if call.positions.shape[0] < call.slot_mapping.shape[0]:
        raise ValueError(f"{_OP}: positions must have at least {call.slot_mapping.shape[0]} elements, one for each "
                         f"slot, got {call.positions.shape[0]}")
    parts.check_table(_OP, "cos", call.cos, q, pe, min(tokens, 1), True)
    if call.cos.shape[-1] * 2 != pe:
        raise ValueError(f"{_OP}: cos must have {pe // 2} columns, one for each pair of k_pe, got {call.cos.shape[-1]}")
    check.tensor(_OP, "sin", call.sin, dtypes=(call.cos.dtype,), shape=call.cos.shape, device=device)
    for name, scale in (("k_scale", call.k_scale), ("q_scale", call.q_scale)):
        paged_cache.check_scale(_OP, name, scale, device)
    for name in ("is_neox", "is_nope_first", "compute_all_q_rope"):
        check.flag(_OP, name, getattr(call, name))
    return SKIP if 0 in (tokens, call.slot_mapping.shape[0], rank, pe, heads + kv_heads) else None


def _hip_refusal(target: Target, call: FusedMlaCacheCall) -> str | None:
    tokens, heads = call.slot_mapping.shape[0], call.q_nope.shape[1] + call.kv_c.shape[1]
    lanes = tokens * heads * (call.q_out.shape[2] // (2 * call.vec))
    if lanes >= 2**31 - 256:
        return f"too many heads for one launch: {tokens} tokens of {heads}"
    return paged_cache.too_many_slots(*call.kv_cache.shape[:2])


def _tune_key(call: FusedMlaCacheCall) -> dict[str, int | str]:
    return {"tokens": call.slot_mapping.shape[0], "heads": call.q_nope.shape[1], "rank": call.kv_c.shape[2],
            "rotary_dim": call.k_pe.shape[2], "page_size": call.kv_cache.shape[1],
            "dtype": dtypes.name(call.q_nope.dtype), "q_dtype": dtypes.name(call.q_out.dtype),
            "cache_dtype": dtypes.name(call.kv_cache.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> FusedMlaCacheCall:
    """Tokens fill one page after the other, as in prefill, and pages lie in random order."""
    random = tune_shapes.normal(device, seed, key["dtype"])
    tokens, heads, rank, pe, page_size = (key[name] for name in ("tokens", "heads", "rank", "rotary_dim", "page_size"))
    blocks, index = -(-tokens // page_size), torch.arange(tokens, device=device)
    pages = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).to(device)
    q_dtype, cache_dtype = (dtypes.DTYPES[key[name]] for name in ("q_dtype", "cache_dtype"))
    one = torch.ones(1, device=device)
    cos, sin = random(2, tokens, pe // 2)
    return FusedMlaCacheCall(
        torch.zeros(tokens, heads, rank + pe, device=device).to(q_dtype),
        torch.zeros(blocks, page_size, 1, rank + pe, device=device).to(cache_dtype), random(tokens, heads, rank),
        random(tokens, heads, pe), random(tokens, 1, rank), random(tokens, 1, pe),
        pages[index // page_size] * page_size + index % page_size, index, cos, sin, k_scale=one, q_scale=one)


def _cases(device: torch.device) -> dict[str, FusedMlaCacheCall]:
    """As it is and as fp8, both kinds of pairs, both orders, accesses of 16 bytes and of one element."""
    fp8 = dtypes.name(dtypes.fp8_of(target_of(device).arch))
    key = {"tokens": 5, "heads": 3, "rank": 64, "rotary_dim": 32, "page_size": 4, "dtype": "bf16", "q_dtype": "bf16",
           "cache_dtype": "bf16"}
    odd = {**key, "rank": 18, "rotary_dim": 6, "dtype": "fp32", "q_dtype": "fp32", "cache_dtype": "fp32"}
    return {"bf16": _tune_case(key, device, 0),
            "fp8": _tune_case({**key, "q_dtype": fp8, "cache_dtype": fp8}, device, 1)._replace(is_neox=False),
            "fp8 cache": _tune_case({**key, "cache_dtype": fp8}, device, 2)._replace(is_nope_first=False),
            "fp32": _tune_case(odd, device, 3)._replace(is_neox=False, is_nope_first=False)}


def _traffic(call: FusedMlaCacheCall) -> tuple[int, int]:
    """Of the cache, only what the tokens write."""
    others = sum(tensor.nbytes for name, tensor in call._asdict().items()
                 if isinstance(tensor, Tensor) and name != "kv_cache")
    return others + call.slot_mapping.shape[0] * call.kv_cache[0, :1].numel() * call.kv_cache.element_size(), 0


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A GPU's heads, as they are and with a cache of fp8, in models with latent attention."""
    if not model.kv_lora_rank:
        return
    for cache_dtype in (model.dtype, tune_shapes.fp8_name()):
        yield {"tokens": tokens, "heads": model.num_heads // tp, "rank": model.kv_lora_rank,
               "rotary_dim": model.qk_rope_head_dim, "page_size": 64, "dtype": model.dtype, "q_dtype": cache_dtype,
               "cache_dtype": cache_dtype}


fused_mla_cache = Op(
    _OP, call=FusedMlaCacheCall, reference=fused_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "rank", "rotary_dim", "page_size", "dtype", "q_dtype", "cache_dtype"),
    round_field="tokens", writes=("q_out", "kv_cache"), cases=_cases,
    tuning=Tuning(_tune_case, _traffic, _tune_shapes),
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
        k_scale: 1 fp32 element, what an element of an fp8 cache counts; None: 1.
        q_scale: likewise of an fp8 `q_out`.
        positions: [≥ slots] int64|int32: rows of the tables.
        cos_cache: [max_position, pe / 2] bf16|fp16|fp32, or with two dimensions of 1 between.
        sin_cache: like `cos_cache`.
        is_neox: True: pairs (i, i + pe / 2); False: pairs (2i, 2i + 1).
        is_nope_first: True: results are latent ‖ rotated; False: rotated ‖ latent.
        compute_all_q_rope: False: a token whose slot is outside the cache has no query written either.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `q_out` and `kv_cache` are written.

    Raises:
        TypeError: an argument is of another kind or dtype; fp8 is of another device's format.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        fp32 throughout, each result rounded to nearest even once; fp8 saturates. A slot outside the cache is skipped; a
        position outside the tables gives NaN in the rotated part. Two tokens with one slot: which of them stays is
        undefined. Can be captured in a graph.

    Source: AITER's `fused_qk_rope_concat_and_cache_mla`.
    """
    for name, tensor, ranks in (("kv_c", kv_c, (2, 3)), ("k_pe", k_pe, (2, 3)), ("kv_cache", kv_cache, (3, 4))):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{_OP}: {name} must be a tensor, got {type(tensor).__name__}")
        if tensor.ndim not in ranks:
            raise ValueError(f"{_OP}: {name} must have {' or '.join(map(str, ranks))} dimensions, got shape "
                             f"{tuple(tensor.shape)}")
    kv_c, k_pe = (tensor.unsqueeze(1) if tensor.ndim == 2 else tensor for tensor in (kv_c, k_pe))
    cache = kv_cache.unsqueeze(2) if kv_cache.ndim == 3 else kv_cache
    if isinstance(slot_mapping, Tensor) and isinstance(positions, Tensor) and slot_mapping.ndim == positions.ndim == 1:
        parts.check_positions(_OP, "positions", positions[:slot_mapping.shape[0]], None, cos_cache)
    fused_mla_cache.run(q_out, cache, q_nope, q_pe, kv_c, k_pe, slot_mapping, positions, cos=cos_cache, sin=sin_cache,
               k_scale=k_scale, q_scale=q_scale, is_neox=is_neox, is_nope_first=is_nope_first,
               compute_all_q_rope=compute_all_q_rope, backend=backend)


fused_mla_cache.public.append(fused_qk_rope_concat_and_cache_mla)
