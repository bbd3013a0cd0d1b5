# SPDX-License-Identifier: MIT
"""AITER's products in Triton that quantise their activations themselves."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements, quant_rule
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import TOKENS, block_for, blocks

_PREQUANT = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"


@aiter(
    "aiter.ops.triton.[gemm.batched.]batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant",
    callers="V S")
def batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
        X: Tensor, WQ: Tensor, w_scale: Tensor, group_size: int = 128, bias: Tensor | None = None,
        dtype: torch.dtype | None = torch.bfloat16, splitK: int | None = None, YQ: Tensor | None = None,
        transpose_bm: bool | None = False, transpose_bm_in: bool | None = False, config: dict | None = None) -> Tensor:
    """The products of a batch of matrices, `Y[i] = X[i] · (WQ[i] · w_scale[i])ᵀ + bias[i]`, whose rows of X are
    quantised as WQ is, with a scale for each `group_size` columns: where a row has one scale by
    `dynamic_per_token_scaled_quant` and `batched_gemm_a8w8`, and where it has several by `per_group_quant_hip` and
    `moe_gemm`, a matrix as an expert.

    Args:
        X: [batch, m, k] bf16|fp16|fp32, or [m, batch, k] with `transpose_bm_in`; copied where its rows do not lie
            evenly spaced in the order of the result.
        WQ: [batch, n, k], fp8 of the device or int8.
        w_scale: fp32, one number or one for each matrix.
        group_size: 128, or not less than k; with 128, k must be a multiple of it or less.
        bias: [batch, 1, n] or [batch, n].
        dtype: of the result, where there is no `YQ`.
        splitK: None; with config of no meaning to the kernels here.
        YQ: tensor to write, [batch, m, n], or [m, batch, n] with `transpose_bm`; default: a new one.
        transpose_bm: the result is [m, batch, n].
        transpose_bm_in: `X` is [m, batch, k].

    Returns:
        `YQ`, or the new tensor.

    Raises:
        UnsupportedError: int8 or a group size with several groups in a row, other than 128 of fp8.
    """
    rows, batch, m = _rows_of(X, WQ, w_scale, bias, transpose_bm, transpose_bm_in)
    n, k = WQ.shape[1:]
    check.integer(_PREQUANT, "group_size", group_size, 1)
    has_groups = k > group_size
    if has_groups and (group_size != SCALE_BLOCK or k % SCALE_BLOCK or WQ.dtype == torch.int8 or len(rows) >= TOKENS):
        raise UnsupportedError(f"{_PREQUANT}: several scales of a row are served where group_size is {SCALE_BLOCK}, "
                               f"k a multiple of it and WQ fp8, of less than 2^24 rows, got {group_size}, {k}, "
                               f"{WQ.dtype} and {len(rows)}", _PREQUANT)
    shape = (m, batch, n) if transpose_bm else (batch, m, n)
    if YQ is None:
        YQ = torch.empty(shape, dtype=dtype, device=X.device)
    check.tensor(_PREQUANT, "YQ", YQ, dtypes=elements.FLOATS, shape=shape, device=X.device)
    if not YQ.numel():
        return YQ
    scale = w_scale.reshape(-1).float().expand(batch)
    bias = None if bias is None else bias.reshape(batch, n)
    if not has_groups:
        narrow, x_scale = torch.empty(rows.shape, dtype=WQ.dtype, device=X.device), X.new_empty(
            len(rows), 1, dtype=torch.float32)
        aiter_like.dynamic_per_token_scaled_quant(narrow, rows, x_scale)
        swap = (0, 1) if transpose_bm else (0, 0)
        aiter_like.batched_gemm_a8w8(
            narrow.view(*shape[:2], k).transpose(*swap), WQ, x_scale.view(shape[:2]).transpose(*swap).contiguous(),
            scale[:, None].expand(batch, n).contiguous(), bias, YQ.dtype, out=YQ.transpose(*swap))
        return YQ
    narrow, x_scale = aiter_like.per_group_quant_hip(rows, quant_dtype=WQ.dtype, group_size=SCALE_BLOCK)
    block = block_for(len(rows), batch)
    flat = YQ.view(len(rows), n) if YQ.is_contiguous() else YQ.new_empty(len(rows), n)
    moe_gemm.run(flat, narrow, WQ, **_order(batch, m, block, bool(transpose_bm), X.device), bias=bias, a_scale=x_scale,
                 b_scale=scale[:, None, None].expand(batch, blocks(n), blocks(k)), group_size=SCALE_BLOCK)
    return YQ if YQ.is_contiguous() else YQ.copy_(flat.view(shape))


def _rows_of(x: Tensor, weights: Tensor, w_scale: Tensor, bias: Tensor | None, is_out_transposed: bool | None,
             is_transposed: bool | None) -> tuple[Tensor, int, int]:
    """The rows of `X` in the order of the result's, the batch and m."""
    check.tensor(_PREQUANT, "X", x, rank=3, dtypes=elements.FLOATS, last_contiguous=False)
    x = x.transpose(0, 1) if is_transposed else x
    batch, m, k = x.shape
    check.tensor(_PREQUANT, "WQ", weights, dtypes=quant_rule.DTYPES, shape=(batch, None, k), device=x.device,
                 last_contiguous=False)
    check.tensor(_PREQUANT, "w_scale", w_scale, device=x.device, last_contiguous=False)
    if w_scale.numel() not in (1, batch):
        raise ValueError(f"{_PREQUANT}: w_scale must have 1 or {batch} elements, got shape {tuple(w_scale.shape)}")
    if bias is not None:
        check.tensor(_PREQUANT, "bias", bias, dtypes=elements.FLOATS, device=x.device)
        if tuple(bias.shape) not in ((batch, 1, weights.shape[1]), (batch, weights.shape[1])):
            raise ValueError(f"{_PREQUANT}: bias must have shape {(batch, 1, weights.shape[1])}, got "
                             f"{tuple(bias.shape)}")
    rows = (x.transpose(0, 1) if is_out_transposed else x).reshape(batch * m, k)
    return rows if rows.stride(-1) == 1 or k <= 1 else rows.contiguous(), batch, m


def _order(batch: int, m: int, block: int, is_transposed: bool, device: torch.device) -> dict[str, Tensor | int]:
    """Each matrix of the batch as an expert with m tokens: `moe_gemm`'s lists of them."""
    each = -(-m // block)
    place, matrix = torch.arange(each * block, device=device), torch.arange(batch, device=device)[:, None]
    row = place * batch + matrix if is_transposed else place + matrix * m
    ids = row.where(place < m, TOKENS | batch * m).to(torch.int32).view(-1)
    return {"experts": matrix.expand(batch, each).reshape(-1).to(torch.int32), "sorted_ids": ids,
            "valid": torch.full((1,), ids.numel(), dtype=torch.int32, device=device), "block": block}
