# SPDX-License-Identifier: MIT
"""Dense attention: flash_attn_func. Kernels: csrc/attention/, triton_kernels/attention.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, arch_facts
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.jit import Instance, compile_ops
from aiter_like.tuning.hooks import Tuning

__all__ = ["flash_attn_func"]

_OP = "flash_attn_func"
_DTYPES = (torch.bfloat16, torch.float16)
_HIP_HEAD_DIMS = (32, 64, 128)
_HIP_VARIANTS = ((torch.bfloat16, 0), (torch.bfloat16, 1), (torch.bfloat16, 2), (torch.float16, 0))
_ROUNDINGS = ("rtne", "rtna", "rtz")  # how_v3_bf16_cvt 0, 1, 2
_MIN_SCALE = 1e-8  # below it a masked score is no longer below every real one in the kernel's fp32
_MAX_GRID = 65535  # of a launch's second and third dimension, HIP and CUDA alike
_MAX_SEQLEN = 2**30 - 1
_MAX_ROW_STRIDE = 2**24 - 1  # 64 rows of 16-bit elements within a signed 32-bit offset


def flash_attn_ref(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
                   how_v3_bf16_cvt: int) -> None:
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
    if causal:
        hidden = torch.ones_like(hidden).triu(seqlen_k - seqlen_q + 1)
    is_blind = hidden.all(-1, keepdim=True)  # [seqlen_q, 1]: rows that see no key
    scores = scores.masked_fill(hidden, -math.inf)
    if lse is not None:
        lse.copy_(scores.logsumexp(-1))
    p = scores.masked_fill(is_blind, 0.0).softmax(-1).masked_fill(is_blind, 0.0)
    out.copy_(torch.einsum("bhqk,bkhd->bqhd", p, values))


def _instance(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
              how_v3_bf16_cvt: int) -> Instance:
    return _variant(q.dtype, q.shape[-1], how_v3_bf16_cvt)


def _variant(dtype: torch.dtype, head_dim: int, how_v3_bf16_cvt: int) -> Instance:
    is_bf16 = dtype == torch.bfloat16
    rounding = how_v3_bf16_cvt if is_bf16 else 0
    return Instance(f"{dtypes.name(dtype)}_d{head_dim}_{_ROUNDINGS[rounding]}",
                    {"ELEMENT": "bf16" if is_bf16 else "f16", "HEAD_DIM": head_dim, "ROUNDING": rounding})


@compile_ops("attention/flash_attn_fwd.hip", gen_func=_instance, platforms=("hip",), prebuild=[
    _variant(dtype, head_dim, rounding) for head_dim in _HIP_HEAD_DIMS for dtype, rounding in _HIP_VARIANTS])
def _flash_attn_fwd_hip(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float,
                        causal: bool, how_v3_bf16_cvt: int) -> None: ...


def _check(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
           how_v3_bf16_cvt: int) -> object:
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
    check.tensor(_OP, "out", out, dtypes=(q.dtype,), shape=q.shape, device=q.device)
    if lse is not None:
        check.tensor(_OP, "lse", lse, dtypes=(torch.float32,), shape=(batch, num_heads, seqlen_q), device=q.device)
    check.real(_OP, "softmax_scale", softmax_scale, low=_MIN_SCALE)
    check.flag(_OP, "causal", causal)
    check.choice(_OP, "how_v3_bf16_cvt", how_v3_bf16_cvt, (0, 1, 2))
    return SKIP if q.numel() == 0 else None


def _kernel_unsupported(target: Target, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                        softmax_scale: float, causal: bool, how_v3_bf16_cvt: int) -> str | None:
    """What both kernels refuse."""
    if softmax_scale > 1e30:
        return f"softmax_scale beyond fp32 after scaling: {softmax_scale}"
    for name, size, limit in (("batch", q.shape[0], _MAX_GRID), ("number of heads", q.shape[2], _MAX_GRID),
                              ("length of q", q.shape[1], _MAX_SEQLEN), ("length of k", k.shape[1], _MAX_SEQLEN)):
        if size > limit:
            return f"{name} at most {limit}, got {size}"
    return None


def _hip_unsupported(target: Target, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                     softmax_scale: float, causal: bool, how_v3_bf16_cvt: int) -> str | None:
    if target.platform != "hip" or target.arch != "gfx942":
        return f"an MFMA kernel for gfx942, not for {target.arch}"
    if q.shape[-1] not in _HIP_HEAD_DIMS:
        return f"head dimension must be one of {_HIP_HEAD_DIMS}, got {q.shape[-1]}"
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[1] > 1 and tensor.stride(1) > _MAX_ROW_STRIDE:
            return f"row stride of {name} at most {_MAX_ROW_STRIDE} elements, got {tensor.stride(1)}"
    return _kernel_unsupported(target, out, lse, q, k, v, softmax_scale, causal, how_v3_bf16_cvt)


def _triton_unsupported(target: Target, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                        softmax_scale: float, causal: bool, how_v3_bf16_cvt: int) -> str | None:
    if q.shape[-1] > 256:
        return f"head dimension at most 256, got {q.shape[-1]}"
    return _kernel_unsupported(target, out, lse, q, k, v, softmax_scale, causal, how_v3_bf16_cvt)


def _tune_key(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
              how_v3_bf16_cvt: int) -> dict[str, int | str]:
    batch, seqlen_q, num_heads, head_dim = q.shape
    return {"batch": batch, "seqlen_q": seqlen_q, "seqlen_k": k.shape[1], "num_heads": num_heads,
            "num_kv_heads": k.shape[2], "head_dim": head_dim, "causal": int(causal), "dtype": dtypes.name(q.dtype)}


def _self_check(device: torch.device) -> list[tuple]:
    """One case per instance of the module."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for head_dim in _HIP_HEAD_DIMS:
        for dtype, rounding in _HIP_VARIANTS:
            q = torch.randn(1, 130, 4, head_dim, generator=generator).to(device, dtype)
            k, v = torch.randn(2, 1, 200, 2, head_dim, generator=generator).to(device, dtype)
            lse = torch.empty(1, 4, 130, dtype=torch.float32, device=device)
            cases.append((torch.empty_like(q), lse, q, k, v, head_dim ** -0.5, True, rounding))
    return cases


def _local_memory(arch: str) -> int:
    try:
        return arch_facts(arch)["lds_bytes"]
    except ValueError:  # an architecture of which nothing is noted: what the smallest has
        return 65536


def _triton_space(target: Target, out: Tensor, lse: Tensor | None, q: Tensor, *_: object) -> Iterator[dict[str, int]]:
    for block_m, block_n, num_warps, num_stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3)):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def _triton_cost(target: Target, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, *_: object,
                 BLOCK_M: int = 128, BLOCK_N: int = 64, num_warps: int = 4, num_stages: int = 1) -> float:
    """Elements of score tiles that a CU computes, padding included; infinite where the tiles do not fit.

    The fp32 accumulator and a tile of scores must fit 512 (AMD) or 255 (NVIDIA) registers of a lane, and the K and V
    tiles of all stages local memory.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    lanes = num_warps * target.wave_size
    registers = BLOCK_M * (head_dim + BLOCK_N) / lanes
    local_bytes = 2 * head_dim * (BLOCK_M + 2 * BLOCK_N * num_stages)
    if registers > (400 if target.platform == "hip" else 224) or local_bytes > _local_memory(target.arch):
        return math.inf
    workgroups = -(-seqlen_q // BLOCK_M) * num_heads * batch
    return -(-workgroups // target.cu_num) * BLOCK_M * -(-k.shape[1] // BLOCK_N) * BLOCK_N


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    generator = torch.Generator(device).manual_seed(seed)

    def random(length: str, heads: str) -> Tensor:
        return torch.randn(key["batch"], key[length], key[heads], key["head_dim"], generator=generator, device=device,
                           dtype=dtypes.DTYPES[key["dtype"]])

    q, k, v = random("seqlen_q", "num_heads"), *(random("seqlen_k", "num_kv_heads") for _ in range(2))
    return torch.empty_like(q), None, q, k, v, key["head_dim"] ** -0.5, bool(key["causal"]), 1


def _traffic(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
             how_v3_bf16_cvt: int) -> tuple[int, int]:
    """Each tensor once; two products per pair of query and key, about half of the pairs where causal."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    flops = 4 * batch * num_heads * seqlen_q * k.shape[1] * head_dim
    return sum(tensor.numel() * tensor.element_size() for tensor in (out, q, k, v)), flops // 2 if causal else flops


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Prefill of one sequence; a latent-attention model (kv_lora_rank) attends elsewhere."""
    if not model.kv_lora_rank and tokens >= 128:
        yield {"batch": 1, "seqlen_q": tokens, "seqlen_k": tokens, "num_heads": model.num_heads // tp,
               "num_kv_heads": max(model.num_kv_heads // tp, 1), "head_dim": model.head_dim, "causal": 1,
               "dtype": model.dtype}


_flash_attn = Op(
    _OP, reference=flash_attn_ref, check=_check, tune_key=_tune_key,
    tune_fields=("batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim", "causal", "dtype"),
    writes=("out", "lse"), self_check=_self_check, tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("hip", _flash_attn_fwd_hip, unsupported=_hip_unsupported),
              Backend("triton", "attention:flash_attn_func", unsupported=_triton_unsupported, space=_triton_space,
                      cost=_triton_cost),
              Backend("torch", flash_attn_ref, differentiable=True)))


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0), bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, deterministic: bool = True, return_lse: bool = False,
        return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None, num_splits: int = 0, *,
        out: Tensor | None = None, backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of dense, equally long sequences.

    `out = softmax(softmax_scale · q kᵀ + mask) v`; query head h reads KV head h // (num_heads / num_kv_heads).

    Args:
        q: [batch, seqlen_q, num_heads, head_dim] bf16|fp16, last dimension contiguous, other strides free.
        k: [batch, seqlen_k, num_kv_heads, head_dim], likewise; num_heads is a multiple of num_kv_heads.
        v: shape and dtype of `k`.
        dropout_p: 0.
        softmax_scale: finite, ≥ 1e-8; default 1 / sqrt(head_dim).
        causal: query i sees key j iff j ≤ i + seqlen_k − seqlen_q (bottom-right alignment).
        window_size: (left, right[, sink tokens]): unlimited, (-1, -1[, 0]) or None; (-1, 0[, 0]) is `causal`.
        bias: None.
        alibi_slopes: None.
        deterministic: results always repeat bit for bit.
        return_lse: also return the log-sum-exp of the scaled scores.
        return_attn_probs: False.
        how_v3_bf16_cvt: rounding of P and `out` to bf16: 0 to nearest even, 1 to nearest with ties away from zero, 2
            towards zero. fp16 always rounds to nearest even; backend "torch" rounds only `out`, to nearest even.
        cu_seqlens_q: None.
        cu_seqlens_kv: None.
        sink_ptr: None.
        num_splits: 0 or 1: keys are not split between workgroups.
        out: tensor to write, shape and dtype of `q`; default: a new contiguous one.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`, or with `return_lse` the pair `out`, lse: [batch, num_heads, seqlen_q] fp32, natural logarithm. A row
        that sees no key, also where seqlen_k is 0, gives 0 and −inf. An empty q gives empty results.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or scale do not fit.
        UnsupportedError: an option that is not supported yet, by name, or a backend that cannot serve the call.

    Notes:
        Scores, softmax and sums in fp32. A NaN in q, k or v reaches every row that sees it. Deterministic; can be
        captured in a graph. "hip" serves head dimensions 32, 64 and 128 on gfx942, "triton" up to 256. Only "torch" has
        a derivative: an input that requires grad selects it.

    Source: Dao et al., FlashAttention (2022); AITER's `flash_attn_func`.
    """
    if (type(dropout_p) is not float or dropout_p or type(window_size) is not tuple or window_size != (-1, -1, 0)
            or bias is not None or alibi_slopes is not None or return_attn_probs is not False
            or cu_seqlens_q is not None or cu_seqlens_kv is not None or sink_ptr is not None
            or type(num_splits) is not int or num_splits):
        _refuse(dropout_p=dropout_p, bias=bias, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, sink_ptr=sink_ptr, num_splits=num_splits)
        causal = _with_window(window_size, causal)
    if not isinstance(q, Tensor) or q.dim() != 4:
        check.tensor(_OP, "q", q, rank=4)
    if softmax_scale is None:
        head_dim = q.shape[3]
        softmax_scale = head_dim ** -0.5 if head_dim else 1.0
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if return_lse is False:
        _flash_attn(out, None, q, k, v, softmax_scale, causal, how_v3_bf16_cvt, backend=backend)
        return out
    check.flag(_OP, "return_lse", return_lse)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    _flash_attn(out, lse, q, k, v, softmax_scale, causal, how_v3_bf16_cvt, backend=backend)
    return out, lse


_flash_attn.public.append(flash_attn_func)  # not registered in torch.library: what it returns depends on return_lse


def _refuse(*, dropout_p: float, return_attn_probs: bool, num_splits: int, **tensors: Tensor | None) -> None:
    """Names every option that asks for something that no backend does yet.

    Raises:
        TypeError: an option is of another kind.
        ValueError: dropout_p or num_splits is out of range.
        UnsupportedError: the list.
    """
    check.real(_OP, "dropout_p", dropout_p, low=0.0)
    check.flag(_OP, "return_attn_probs", return_attn_probs)
    check.integer(_OP, "num_splits", num_splits, low=0)
    reasons = {}
    for name, value in tensors.items():
        if value is not None:
            check.tensor(_OP, name, value, last_contiguous=False)
            reasons[name] = f"not supported yet, got a tensor of shape {tuple(value.shape)}"
    for name, value, off in (("dropout_p", dropout_p, (0,)), ("return_attn_probs", return_attn_probs, (False,)),
                             ("num_splits", num_splits, (0, 1))):
        if value not in off:
            reasons[name] = f"not supported yet, got {value}"
    if reasons:
        raise UnsupportedError(f"{_OP}: no backend supports {', '.join(reasons)}", _OP, reasons)


def _with_window(window_size: Sequence[int] | None, causal: bool) -> bool:
    """`causal`, or True where the window says the same.

    Raises:
        TypeError: not two or three integers.
        ValueError: another count, or a size below -1.
        UnsupportedError: a window that limits anything else.
    """
    if window_size is None:
        return causal
    if not isinstance(window_size, (tuple, list)) or not all(type(size) is int for size in window_size):
        raise TypeError(f"{_OP}: window_size must be 2 or 3 integers or None, got {window_size!r}")
    if len(window_size) not in (2, 3) or min(window_size) < -1:
        raise ValueError(f"{_OP}: window_size must be (left, right[, sink tokens]), -1 = no limit, got {window_size}")
    left, right, *_ = window_size  # without a left limit sink tokens are visible anyway
    if left != -1 or right > 0:
        raise UnsupportedError(f"{_OP}: no backend supports window_size {window_size}, only (-1, -1) and (-1, 0)",
                               _OP, {"window_size": "not supported yet"})
    return True if right == 0 else causal
