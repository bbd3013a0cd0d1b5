# SPDX-License-Identifier: MIT
"""Attention in Triton: bodies and launchers, named by the operators of ops/attention.py."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.triton_kernels.launch import config, launch

# Start of the running maximum, and the score of a masked key: a masked score never raises the maximum and its exp2 is 0
# exactly, so that a fully masked row needs no special case.
_MINIMUM = tl.constexpr(-1.0e30)
_MASKED = tl.constexpr(-3.0e38)


@triton.jit
def _round(x, dtype: tl.constexpr, ROUNDING: tl.constexpr):
    """float32 → `dtype`: 0 to nearest even, 1 to nearest with ties away, 2 towards zero (1 and 2: bfloat16 only)."""
    if ROUNDING == 0:
        return x.to(dtype)
    bits = x.to(tl.int32, bitcast=True)
    if ROUNDING == 1:
        bits += 0x8000
    truncated = (bits & -0x10000).to(tl.float32, bitcast=True)
    return tl.where(x == x, truncated, x).to(dtype)  # NaN stays NaN


@triton.jit
def _attend(acc, total, maximum, q, k_base, v_base, k_stride, v_stride, first_key, last_key, seqlen_k, rows_limit,
            scale_log2, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, IS_MASKED: tl.constexpr,
            ROUNDING: tl.constexpr):
    """One online-softmax pass over the keys [first_key, last_key). rows_limit: last key that each row sees."""
    dims = tl.arange(0, BLOCK_D)
    for start in range(first_key, last_key, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        offsets = keys.to(tl.int64)
        k_pointers = k_base + offsets[None, :] * k_stride + dims[:, None]  # [BLOCK_D, BLOCK_N]
        v_pointers = v_base + offsets[:, None] * v_stride + dims[None, :]  # [BLOCK_N, BLOCK_D]
        if IS_MASKED:
            k = tl.load(k_pointers, mask=(keys < seqlen_k)[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
        elif HEAD_DIM != BLOCK_D:
            k = tl.load(k_pointers, mask=(dims < HEAD_DIM)[:, None], other=0.0)
        else:
            k = tl.load(k_pointers)
        scores = tl.dot(q, k) * scale_log2
        if IS_MASKED:
            scores = tl.where(keys[None, :] <= rows_limit[:, None], scores, _MASKED)
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        p = tl.exp2(scores - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None]
        if IS_MASKED:
            v = tl.load(v_pointers, mask=(keys < seqlen_k)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        elif HEAD_DIM != BLOCK_D:
            v = tl.load(v_pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            v = tl.load(v_pointers)
        acc = tl.dot(_round(p, v.dtype, ROUNDING), v, acc)
        maximum = new_maximum
    return acc, total, maximum


# Lengths and counts vary from call to call: variants for those that are 1 or a multiple of 16 only cost compilations.
@triton.jit(do_not_specialize=["num_heads", "group_size", "seqlen_q", "seqlen_k"])
def _flash_attn_kernel(out, lse, q, k, v, out_batch, out_row, out_head, q_batch, q_row, q_head, k_batch, k_row, k_head,
                       v_batch, v_row, v_head, num_heads, group_size, seqlen_q, seqlen_k, scale_log2,
                       HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                       IS_CAUSAL: tl.constexpr, HAS_LSE: tl.constexpr, ROUNDING: tl.constexpr):
    """out = softmax(q kᵀ · scale + mask) v for BLOCK_M rows of one head per program; bound: matrix unit.

    Key blocks that every row sees run without a mask; those that touch the diagonal or the end follow with one.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # causal: the longest first
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    kv_head = (head // group_size).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    row_mask = (rows < seqlen_q)[:, None] & (dims < HEAD_DIM)[None, :]

    q_base = q + batch * q_batch + head.to(tl.int64) * q_head
    q_tile = tl.load(q_base + rows.to(tl.int64)[:, None] * q_row + dims[None, :], mask=row_mask, other=0.0)
    k_base = k + batch * k_batch + kv_head * k_head
    v_base = v + batch * v_batch + kv_head * v_head

    if IS_CAUSAL:
        diagonal = seqlen_k - seqlen_q
        last_row = tl.minimum((block + 1) * BLOCK_M, seqlen_q) - 1
        end = tl.maximum(tl.minimum(last_row + diagonal + 1, seqlen_k), 0)
        seen_by_all = tl.maximum(tl.minimum(block * BLOCK_M + diagonal + 1, seqlen_k), 0)
        rows_limit = tl.minimum(rows + diagonal, seqlen_k - 1)
    else:
        end = seqlen_k
        seen_by_all = seqlen_k
        rows_limit = tl.zeros([BLOCK_M], tl.int32) + (seqlen_k - 1)
    interior = seen_by_all // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.zeros([BLOCK_M], tl.float32) + _MINIMUM
    acc, total, maximum = _attend(acc, total, maximum, q_tile, k_base, v_base, k_row, v_row, 0, interior, seqlen_k,
                                  rows_limit, scale_log2, HEAD_DIM, BLOCK_D, BLOCK_N, False, ROUNDING)
    acc, total, maximum = _attend(acc, total, maximum, q_tile, k_base, v_base, k_row, v_row, interior, end, seqlen_k,
                                  rows_limit, scale_log2, HEAD_DIM, BLOCK_D, BLOCK_N, True, ROUNDING)

    result = acc * tl.where(total == 0.0, 0.0, 1.0 / total)[:, None]  # 0: no visible key
    out_base = out + batch * out_batch + head.to(tl.int64) * out_head
    out_pointers = out_base + rows.to(tl.int64)[:, None] * out_row + dims[None, :]
    tl.store(out_pointers, _round(result, out.dtype.element_ty, ROUNDING), mask=row_mask)
    if HAS_LSE:
        value = tl.where(total == 0.0, float("-inf"), (maximum + tl.log2(total)) * 0.6931471805599453)
        tl.store(lse + (batch * num_heads + head) * seqlen_q + rows, value, mask=rows < seqlen_q)


def flash_attn_fwd(out: torch.Tensor, lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   cu_seqlens_q: None, cu_seqlens_k: None, seqlens_k: None, bias: None, alibi_slopes: None, sink: None,
                   q_descale: None, k_descale: None, v_descale: None, rng_state: None, workspace: torch.Tensor | None,
                   max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float, window_left: int, window_right: int,
                   sink_size: int, softcap: float, dropout_p: float, num_splits: int, how_v3_bf16_cvt: int,
                   **params: int) -> None:
    """Same arguments as the operator's other backends; writes `out` and `lse`.

    params: a tuned row's values instead of those of configs/triton/flash_attn_fwd.toml.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1], k.shape[2]
    block_d = max(triton.next_power_of_2(head_dim), 16)  # tl.dot needs at least 16
    settings = {**config("flash_attn_fwd", target_of(q.device).arch, f"d{max(block_d, 32)}"), **params}
    block_m = min(settings["BLOCK_M"], max(64, triton.next_power_of_2(seqlen_q)))
    options = {name: value for name, value in settings.items() if not name.startswith("BLOCK")}
    rounding = how_v3_bf16_cvt if q.dtype == torch.bfloat16 else 0
    launch(_flash_attn_kernel, (triton.cdiv(seqlen_q, block_m), num_heads, batch), out, lse, q, k, v,
           *out.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], num_heads, num_heads // num_kv_heads,
           seqlen_q, seqlen_k, softmax_scale * math.log2(math.e), HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=block_m,
           BLOCK_N=settings["BLOCK_N"], IS_CAUSAL=window_right == 0, HAS_LSE=lse is not None, ROUNDING=rounding,
           options=options)
