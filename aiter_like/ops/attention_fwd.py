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

from aiter_like import check, dtypes
from aiter_like.attention_call import AttentionCall
from aiter_like.device import Target, arch_facts
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.tuning.hooks import Tuning

_OP = "flash_attn_fwd"
_DTYPES = (torch.bfloat16, torch.float16)
_HIP_HEAD_DIMS = (32, 64, 128)
_HIP_VARIANTS = ((torch.bfloat16, 0), (torch.bfloat16, 1), (torch.bfloat16, 2), (torch.float16, 0))
_ROUNDINGS = ("rtne", "rtna", "rtz")  # how_v3_bf16_cvt 0, 1, 2
_MIN_SCALE = 1e-8  # below it a masked score is no longer below every real one in the kernel's fp32
_MAX_GRID = 65535  # of a launch's second and third dimension, HIP and CUDA alike
_MAX_SEQLEN = 2**30 - 1
_MAX_ROW_STRIDE = 2**24 - 1  # 64 rows of 16-bit elements within a signed 32-bit offset


def flash_attn_fwd_ref(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None,
                       cu_seqlens_k: Tensor | None, seqlens_k: Tensor | None, bias: Tensor | None,
                       alibi_slopes: Tensor | None, sink: Tensor | None, q_descale: Tensor | None,
                       k_descale: Tensor | None, v_descale: Tensor | None, rng_state: Tensor | None,
                       workspace: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float,
                       window_left: int, window_right: int, sink_size: int, softcap: float, dropout_p: float,
                       num_splits: int, how_v3_bf16_cvt: int) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `lse`.

    P stays in fp32, so `how_v3_bf16_cvt` rounds nothing but `out`, and that is always to nearest even.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    group_size = q.shape[2] // k.shape[2]
    keys = k.to(wide).repeat_interleave(group_size, 2)
    values = v.to(wide).repeat_interleave(group_size, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), keys) * softmax_scale  # [batch, heads, seqlen_q, seqlen_k]
    seqlen_q, seqlen_k = scores.shape[-2:]
    hidden = torch.zeros(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
    if window_right == 0:
        hidden = torch.ones_like(hidden).triu(seqlen_k - seqlen_q + 1)
    is_blind = hidden.all(-1, keepdim=True)  # [seqlen_q, 1]: rows that see no key
    scores = scores.masked_fill(hidden, -math.inf)
    if lse is not None:
        lse.copy_(scores.logsumexp(-1))
    p = scores.masked_fill(is_blind, 0.0).softmax(-1).masked_fill(is_blind, 0.0)
    out.copy_(torch.einsum("bhqk,bkhd->bqhd", p, values))


def _instance(*args: Any) -> Instance:
    call = AttentionCall(*args)
    return _variant(call.q.dtype, call.head_dim, call.how_v3_bf16_cvt)


def _variant(dtype: torch.dtype, head_dim: int, how_v3_bf16_cvt: int) -> Instance:
    is_bf16 = dtype == torch.bfloat16
    rounding = how_v3_bf16_cvt if is_bf16 else 0
    return Instance(f"{dtypes.name(dtype)}_d{head_dim}_{_ROUNDINGS[rounding]}",
                    {"ELEMENT": "bf16" if is_bf16 else "f16", "HEAD_DIM": head_dim, "ROUNDING": rounding})


@compile_ops("attention/flash_attn_fwd.hip", gen_func=_instance, platforms=("hip",), prebuild=[
    _variant(dtype, head_dim, rounding) for head_dim in _HIP_HEAD_DIMS for dtype, rounding in _HIP_VARIANTS])
def _flash_attn_fwd_hip(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None,
                        cu_seqlens_k: Tensor | None, seqlens_k: Tensor | None, bias: Tensor | None,
                        alibi_slopes: Tensor | None, sink: Tensor | None, q_descale: Tensor | None,
                        k_descale: Tensor | None, v_descale: Tensor | None, rng_state: Tensor | None,
                        workspace: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float,
                        window_left: int, window_right: int, sink_size: int, softcap: float, dropout_p: float,
                        num_splits: int, how_v3_bf16_cvt: int) -> None: ...


def _check(*args: Any) -> object:
    call = AttentionCall(*args)
    q, k, v = call.q, call.k, call.v
    check.tensor(_OP, "q", q, rank=4, dtypes=_DTYPES)
    batch, seqlen_q, num_heads, head_dim = q.shape
    check.tensor(_OP, "k", k, dtypes=(q.dtype,), shape=(batch, None, None, head_dim), device=q.device)
    check.tensor(_OP, "v", v, dtypes=(q.dtype,), shape=k.shape, device=q.device)
    if head_dim == 0:
        raise ValueError(f"{_OP}: q must have a head dimension of at least 1, got shape {tuple(q.shape)}")
    num_kv_heads = k.shape[2]
    if (num_kv_heads == 0 and num_heads) or (num_kv_heads and num_heads % num_kv_heads):
        raise ValueError(f"{_OP}: the heads of q must be a multiple of the heads of k and v, got {num_heads} and "
                         f"{num_kv_heads}")
    check.tensor(_OP, "out", call.out, dtypes=(q.dtype,), shape=q.shape, device=q.device)
    if call.lse is not None:
        check.tensor(_OP, "lse", call.lse, dtypes=(torch.float32,), shape=(batch, num_heads, seqlen_q), device=q.device)
    check.real(_OP, "softmax_scale", call.softmax_scale, low=_MIN_SCALE)
    check.choice(_OP, "how_v3_bf16_cvt", call.how_v3_bf16_cvt, (0, 1, 2))
    return SKIP if q.numel() == 0 else None


def _kernel_unsupported(call: AttentionCall) -> str | None:
    """What both kernels refuse."""
    if call.softmax_scale > 1e30:
        return f"softmax_scale beyond fp32 after scaling: {call.softmax_scale}"
    for name, size, limit in (("batch", call.batch, _MAX_GRID), ("number of heads", call.num_heads, _MAX_GRID),
                              ("length of q", call.max_seqlen_q, _MAX_SEQLEN),
                              ("length of k", call.max_seqlen_k, _MAX_SEQLEN)):
        if size > limit:
            return f"{name} at most {limit}, got {size}"
    return None


def _plain_unsupported(call: AttentionCall) -> str | None:
    """What a kernel refuses that knows dense 16-bit tensors, no mask or a causal one, and nothing else."""
    if call.features:
        return f"no {', '.join(call.features)}"
    if call.is_varlen:
        return "no cu_seqlens"
    if call.mask == "window":
        return f"no window, got ({call.window_left}, {call.window_right})"
    if call.q.dtype not in _DTYPES:
        return f"bf16 or fp16, got {call.q.dtype}"
    if call.head_dim_v != call.head_dim:
        return f"one head dimension, got {call.head_dim} and {call.head_dim_v}"
    return _kernel_unsupported(call)


def _hip_unsupported(target: Target, *args: Any) -> str | None:
    call = AttentionCall(*args)
    if target.platform != "hip" or target.arch != "gfx942":
        return f"an MFMA kernel for gfx942, not for {target.arch}"
    if call.head_dim not in _HIP_HEAD_DIMS:
        return f"head dimension must be one of {_HIP_HEAD_DIMS}, got {call.head_dim}"
    if (reason := _plain_unsupported(call)) is not None:
        return reason
    for name, tensor in (("k", call.k), ("v", call.v)):
        if tensor.shape[1] > 1 and tensor.stride(1) > _MAX_ROW_STRIDE:
            return f"row stride of {name} at most {_MAX_ROW_STRIDE} elements, got {tensor.stride(1)}"
    return None


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
    cases = []
    for head_dim in _HIP_HEAD_DIMS:
        for dtype, rounding in _HIP_VARIANTS:
            q = torch.randn(1, 130, 4, head_dim, generator=generator).to(device, dtype)
            k, v = torch.randn(2, 1, 200, 2, head_dim, generator=generator).to(device, dtype)
            lse = torch.empty(1, 4, 130, dtype=torch.float32, device=device)
            cases.append(_dense(torch.empty_like(q), lse, q, k, v, True, rounding))
    return cases


def _local_memory(arch: str) -> int:
    try:
        return arch_facts(arch)["lds_bytes"]
    except ValueError:  # an architecture of which nothing is noted: what the smallest has
        return 65536


def _triton_space(target: Target, *args: Any) -> Iterator[dict[str, int]]:
    for block_m, block_n, num_warps, num_stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3)):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def _triton_cost(target: Target, *args: Any, BLOCK_M: int = 128, BLOCK_N: int = 64, num_warps: int = 4,
                 num_stages: int = 1) -> float:
    """Elements of score tiles that a CU computes, padding included; infinite where the tiles do not fit.

    The fp32 accumulator and a tile of scores must fit 512 (AMD) or 255 (NVIDIA) registers of a lane, and the K and V
    tiles of all stages local memory.
    """
    call = AttentionCall(*args)
    lanes = num_warps * target.wave_size
    registers = BLOCK_M * (call.head_dim_v + BLOCK_N) / lanes
    local_bytes = 2 * call.head_dim * (BLOCK_M + 2 * BLOCK_N * num_stages)
    if registers > (400 if target.platform == "hip" else 224) or local_bytes > _local_memory(target.arch):
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
    _OP, reference=flash_attn_fwd_ref, check=_check, tune_key=_tune_key,
    tune_fields=("mask", "layout", "batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim",
                 "head_dim_v", "features", "dtype"),
    writes=("out", "lse"), self_check=_self_check, tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("hip", _flash_attn_fwd_hip, unsupported=_hip_unsupported),
              Backend("triton", "attention:flash_attn_fwd", unsupported=_triton_unsupported, space=_triton_space,
                      cost=_triton_cost),
              Backend("torch", flash_attn_fwd_ref, differentiable=True)))
