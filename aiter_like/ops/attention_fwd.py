# SPDX-License-Identifier: MIT
"""flash_attn_fwd, the forward operator behind every function of ops/attention*.py that is not paged: reference, checks,
backends. Kernels: csrc/attention/, triton_kernels/attention.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes, philox
from aiter_like.attention_call import OP, AttentionCall, beyond_launch, check_call
from aiter_like.device import Target, local_memory_bytes
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.ops.attention_fast import HEAD_DIMS, MASKS, VARIANTS, _flash_attn_fwd_hip, hip_unsupported
from aiter_like.ops.attention_tile import _flash_attn_fwd_ck, ck_self_check, ck_space, ck_unsupported
from aiter_like.tuning.hooks import Tuning


def flash_attn_fwd_ref(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None,
                       cu_seqlens_k: Tensor | None, seqlens_k: Tensor | None, bias: Tensor | None,
                       alibi_slopes: Tensor | None, sink: Tensor | None, q_descale: Tensor | None,
                       k_descale: Tensor | None, v_descale: Tensor | None, rng_state: Tensor | None,
                       workspace: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float,
                       window_left: int, window_right: int, sink_size: int, softcap: float, dropout_p: float,
                       num_splits: int, how_v3_bf16_cvt: int) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `lse`.

    P stays in fp32, so `how_v3_bf16_cvt` rounds nothing but `out`, and that is always to nearest even. Lengths of
    sequences, and the seed of dropout, are read on the host.
    """
    call = AttentionCall(
        out, lse, q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k, bias, alibi_slopes, sink, q_descale, k_descale,
        v_descale, rng_state, workspace, max_seqlen_q, max_seqlen_k, softmax_scale, window_left, window_right,
        sink_size, softcap, dropout_p, num_splits, how_v3_bf16_cvt)
    if not call.is_varlen:
        lengths = None if seqlens_k is None else seqlens_k.clamp(0, k.shape[1]).view(-1, 1, 1, 1)
        _attend(call, out, lse, q, k, v, lengths, bias, alibi_slopes, 0)
        return
    starts_q, starts_k = (_bounded(starts, len(tensor)) for starts, tensor in ((cu_seqlens_q, q), (cu_seqlens_k, k)))
    for index in range(call.batch):
        rows, keys = slice(*starts_q[index:index + 2]), slice(*starts_k[index:index + 2])
        own_bias = None if bias is None else bias[rows, :keys.stop - keys.start]
        slopes = alibi_slopes[index] if alibi_slopes is not None and alibi_slopes.ndim == 2 else alibi_slopes
        _attend(call, out[None, rows], None if lse is None else lse[None, :, rows], q[None, rows], k[None, keys],
                v[None, keys], None, own_bias, slopes, index)


def _bounded(starts: Tensor, total: int) -> list[int]:
    """The starts and the end of the sequences, none before the one before it or beyond the tensor."""
    return list(itertools.accumulate((min(max(start, 0), total) for start in starts.tolist()), max))


def _attend(call: AttentionCall, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
            lengths: Tensor | None, bias: Tensor | None, slopes: Tensor | None, first: int) -> None:
    """Sequences `first`, … of equal length; writes `out` and `lse`. lengths: [batch, 1, 1, 1], of the keys that count.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values = (tensor.to(wide).repeat_interleave(q.shape[2] // max(k.shape[2], 1), 2) for tensor in (k, v))
    # [batch, heads, seqlen_q, seqlen_k]
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), keys) * call.softmax_scale
    for descale in (call.q_descale, call.k_descale):
        scores = scores if descale is None else scores * descale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    (seqlen_q, seqlen_k), device = scores.shape[-2:], q.device
    row, key = torch.arange(seqlen_q, device=device)[:, None], torch.arange(seqlen_k, device=device)
    end = seqlen_k if lengths is None else lengths
    distance = row + (end - seqlen_q) - key  # how far a key is before the diagonal
    if bias is not None:
        scores = scores + bias.to(wide)
    if slopes is not None:
        scores = scores - slopes.to(wide)[..., None, None] * distance.abs()
    hidden = (key >= end).expand(distance.shape)
    if call.window_right >= 0:
        hidden = hidden | (distance < -call.window_right)
    if call.window_left >= 0:
        hidden = hidden | ((distance > call.window_left) & (key >= call.sink_size))
    scores = scores.masked_fill(hidden, -math.inf)
    all_scores = scores
    if call.sink is not None:
        all_scores = torch.cat((scores, call.sink.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)), -1)
    total = all_scores.logsumexp(-1)
    if lse is not None:
        lse.copy_(total)
    p = (scores - total.masked_fill(total == -math.inf, 0.0)[..., None]).exp()  # a row that sees no key: 0
    if call.dropout_p:
        heads = torch.arange(p.shape[0] * p.shape[1], device=device).view(*p.shape[:2], 1) + first * p.shape[1]
        kept = philox.attention_kept(call.rng_state, call.dropout_p, heads, row[:, 0], seqlen_k)
        p = torch.where(kept, p / (1 - call.dropout_p), 0.0)
    if lengths is not None:
        values = values.masked_fill((key[:, None, None] >= lengths), 0.0)  # 0 · NaN is no 0
    result = torch.einsum("bhqk,bkhd->bqhd", p, values)
    out.copy_(result if call.v_descale is None else result * call.v_descale)


def _check(*args: Any) -> object:
    call = AttentionCall(*args)
    check_call(call)
    return SKIP if call.out.numel() == 0 else None


def _kernel_unsupported(call: AttentionCall) -> str | None:
    """What both kernels refuse."""
    if call.softmax_scale > 1e30:
        return f"softmax_scale beyond fp32 after scaling: {call.softmax_scale}"
    return beyond_launch(call, call.max_seqlen_q, call.max_seqlen_k)


def _triton_unsupported(target: Target, *args: Any) -> str | None:
    call = AttentionCall(*args)
    if max(call.head_dim, call.head_dim_v) > 256:
        return f"head dimensions at most 256, got {call.head_dim} and {call.head_dim_v}"
    return _kernel_unsupported(call)


def _tune_key(*args: Any) -> dict[str, int | str]:
    call = AttentionCall(*args)
    return {"mask": call.mask, "layout": call.layout, "batch": call.batch, "seqlen_q": call.max_seqlen_q,
            "seqlen_k": call.max_seqlen_k, "num_heads": call.num_heads, "num_kv_heads": call.num_kv_heads,
            "head_dim": call.head_dim, "head_dim_v": call.head_dim_v, "features": "+".join(call.features) or "none",
            "dtype": dtypes.name(call.q.dtype)}


def _dense(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, rounding: int) -> tuple:
    """The arguments of a plain dense call."""
    return AttentionCall(out, lse, q, k, v, *[None] * 11, q.shape[1], k.shape[1], q.shape[3] ** -0.5, -1,
                         0 if is_causal else -1, 0, 0.0, 0.0, 0, rounding)


def _self_check(device: torch.device) -> list[tuple]:
    """One case per instance of the module."""
    generator = torch.Generator().manual_seed(0)
    windows = {"none": (-1, -1), "right": (-1, 0), "both": (33, 0)}
    cases = []
    for head_dim, (dtype, rounding), mask in itertools.product(HEAD_DIMS, VARIANTS, MASKS):
        q = torch.randn(1, 130, 4, head_dim, generator=generator).to(device, dtype)
        k, v = torch.randn(2, 1, 200, 2, head_dim, generator=generator).to(device, dtype)
        lse = torch.empty(1, 4, 130, dtype=torch.float32, device=device)
        left, right = windows[mask]
        cases.append(_dense(torch.empty_like(q), lse, q, k, v, False, rounding)._replace(window_left=left,
                                                                                        window_right=right))
    return cases


def _triton_space(target: Target, *args: Any) -> Iterator[dict[str, int]]:
    """Tiles and stages; on Hopper tensor descriptors (TMA), on MI300X the order of workgroups (XCDS)."""
    extra = {"sm_90": ("TMA", (0, 1)), "gfx942": ("XCDS", (1, 8))}.get(target.arch, ("XCDS", (1,)))
    for block_m, block_n, num_warps, num_stages, value in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3),
                                                                            extra[1]):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages,
               extra[0]: value}


def _triton_cost(target: Target, *args: Any, BLOCK_M: int = 128, BLOCK_N: int = 64, num_warps: int = 4,
                 num_stages: int = 1, **_: int) -> float:
    """Elements of score tiles that a CU computes, padding included; infinite where the tiles do not fit.

    The fp32 accumulator and a tile of scores must fit 512 (AMD) or 255 (NVIDIA) registers of a lane, and the K and V
    tiles of all stages local memory.
    """
    call = AttentionCall(*args)
    lanes = num_warps * target.wave_size
    registers = BLOCK_M * (call.head_dim_v + BLOCK_N) / lanes
    local_bytes = 2 * call.head_dim * (BLOCK_M + 2 * BLOCK_N * num_stages)
    if registers > (400 if target.platform == "hip" else 224) or local_bytes > local_memory_bytes(target.arch):
        return math.inf
    workgroups = -(-call.max_seqlen_q // BLOCK_M) * call.num_heads * call.batch
    return -(-workgroups // target.cu_num) * BLOCK_M * -(-call.max_seqlen_k // BLOCK_N) * BLOCK_N


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    generator = torch.Generator(device).manual_seed(seed)

    def random(length: str, heads: str, dim: str) -> Tensor:
        return torch.randn(key["batch"], key[length], key[heads], key[dim], generator=generator, device=device,
                           dtype=dtypes.DTYPES[key["dtype"]])

    q, k, v = (random("seqlen_q", "num_heads", "head_dim"), random("seqlen_k", "num_kv_heads", "head_dim"),
               random("seqlen_k", "num_kv_heads", "head_dim_v"))
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=device)
    return _dense(out, None, q, k, v, key["mask"] == "causal", 1)


def _traffic(*args: Any) -> tuple[int, int]:
    """Each tensor once; two products per pair of query and key, about half of the pairs where causal."""
    call = AttentionCall(*args)
    pairs = call.batch * call.num_heads * call.max_seqlen_q * call.max_seqlen_k
    flops = 2 * pairs * (call.head_dim + call.head_dim_v)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (call.out, call.q, call.k, call.v))
    return moved, flops // 2 if call.mask == "causal" else flops


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Prefill of one sequence; a latent-attention model (kv_lora_rank) attends elsewhere."""
    if not model.kv_lora_rank and tokens >= 128:
        yield {"mask": "causal", "layout": "dense", "batch": 1, "seqlen_q": tokens, "seqlen_k": tokens,
               "num_heads": model.num_heads // tp, "num_kv_heads": max(model.num_kv_heads // tp, 1),
               "head_dim": model.head_dim, "head_dim_v": model.head_dim, "features": "none", "dtype": model.dtype}


flash_attn_fwd = Op(
    OP, reference=flash_attn_fwd_ref, check=_check, tune_key=_tune_key,
    tune_fields=("mask", "layout", "batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim",
                 "head_dim_v", "features", "dtype"),
    writes=("out", "lse", "workspace"), self_check=_self_check, tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("hip", _flash_attn_fwd_hip, unsupported=hip_unsupported),
              Backend("ck", _flash_attn_fwd_ck, unsupported=ck_unsupported, space=ck_space, self_check=ck_self_check),
              Backend("triton", "attention:flash_attn_fwd", unsupported=_triton_unsupported, space=_triton_space,
                      cost=_triton_cost),
              Backend("torch", flash_attn_fwd_ref, differentiable=True)))
