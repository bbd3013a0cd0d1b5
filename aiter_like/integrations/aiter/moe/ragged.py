# SPDX-License-Identifier: MIT
"""AITER's ragged products in Triton of int8 and fp8, by the lists of moe/routing.py, and what quantises for them.
Named by names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe.routing import RoutingData, routing
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_values

_BAND = 16  # rows of a matrix in the order of shuffle_weight

Lists = tuple[RoutingData, Tensor | None, Tensor | None]
"""Of `routing`; then the pair of each place, or None where rows are sorted; and the place of each pair, or None where
results stay sorted."""
Gate = tuple[float, float | None, bool] | None
"""alpha, limit and whether 1 is added; None: there is no gate."""


def moe_gemm_int8_smoothquant(
        x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
        routing_data: RoutingData | None = None, gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None,
        gammas: Tensor | None = None, preshuffled: bool = False, out_dtype: torch.dtype = torch.bfloat16,
        apply_activation: bool = False, swiglu_add_residual: bool = False, alpha: float = 1.0,
        limit: float | None = 1.0) -> Tensor:
    """`aiter_like.grouped_gemm` of pairs sorted by expert, and with `scatter_indx` `moe_unpermute` behind it; the gate,
    and weights that are not scattered, are torch's.

    Args:
        x: [rows, k] int8: a row for each place sorted by expert, or with `gather_indx` for each token.
        w: [experts, k, n] int8 of any strides; or of `preshuffle_weights`.
        x_scale: [rows] fp32.
        w_scale: [experts, n] fp32.
        bias: [experts, n] fp32.
        routing_data: of `routing`.
        gather_indx: [pairs], the pair of each place; None: `x` is sorted.
        scatter_indx: [pairs], the place of each pair: the results of a token are added up; None: they stay sorted.
        gammas: [pairs] fp32: what the result of each place is multiplied by.
        preshuffled: `w` is of `preshuffle_weights`.
        out_dtype: of the result, bf16|fp16|fp32.
        apply_activation: even columns are gates, odd ones what they let through: g · sigmoid(alpha · g) · l.
        swiglu_add_residual: l + 1 instead of l.
        alpha: see there.
        limit: gates are at most, the others at most and at least, this far from 0; None: they are not bounded.

    Returns:
        [pairs, columns], or with `scatter_indx` [tokens, columns].
    """
    op = "moe_gemm_int8_smoothquant"
    check_lists(op, routing_data)
    check.tensor(op, "x", x, rank=2, dtypes=(torch.int8,))
    check.tensor(op, "w", w, rank=3, dtypes=(torch.int8,), device=x.device, last_contiguous=False)
    check.flag(op, "apply_activation", apply_activation)
    weights = _rows_of(op, w, x.shape[1]) if preshuffled else w.mT
    return _ragged(op, x, weights, x_scale.reshape(-1), w_scale, bias, (routing_data, gather_indx, scatter_indx),
                   gammas, out_dtype, (alpha, limit, swiglu_add_residual) if apply_activation else None)


def moe_gemm_smoothquant_torch(
        x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None = None,
        routing_data: RoutingData | None = None, gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None,
        gammas: Tensor | None = None, apply_activation: bool = False, add_residual: bool = False, alpha: float = 1.0,
        limit: float | None = 1.0) -> Tensor:
    """`moe_gemm_int8_smoothquant` in torch, fp32. Looks at the lists."""
    return moe_gemm_torch(x.float() * x_scale.reshape(-1, 1), w.float() * w_scale[:, None], bias, routing_data,
                          gather_indx, scatter_indx, gammas, apply_activation, alpha, limit, add_residual)


def moe_gemm_torch(
        x: Tensor, w: Tensor, bias: Tensor | None, routing_data: RoutingData | None = None,
        gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None, gammas: Tensor | None = None,
        apply_swiglu: bool = False, alpha: float = 1.0, limit: float | None = 1.0,
        add_residual: bool = True) -> Tensor:
    """The products of `moe_gemm_int8_smoothquant` in torch, fp32, of x [rows, k] and w [experts, k, n]: the results in
    the dtype of `x`, sums of tokens in fp32. Looks at the lists.
    """
    slots, first = routing_data.n_expts_act, 0
    token = torch.arange(len(x), device="cpu") if gather_indx is None else gather_indx.long() // slots
    found = []
    for expert, count in enumerate(routing_data.expt_hist.tolist()):
        own = token[first:first + count].to(x.device)
        y = x[own].float() @ w[expert].float()
        y = y if bias is None else y + bias[expert]
        y = _gated(y, alpha, limit, add_residual) if apply_swiglu else y
        found.append(y if gammas is None else y * gammas[first:first + count, None])
        first += count
    y = torch.cat(found).to(x.dtype)
    return y if scatter_indx is None else y[scatter_indx.long()].float().view(-1, slots, y.shape[1]).sum(1)


def moe_gemm_torch_unlimited(
        x: Tensor, w: Tensor, bias: Tensor | None, routing_data: RoutingData | None = None,
        gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None, gammas: Tensor | None = None,
        apply_swiglu: bool = False, alpha: float = 1.0, limit: float | None = None,
        add_residual: bool = True) -> Tensor:
    """`moe_gemm_torch` of AITER's module of block scales, whose gates are not bounded where nobody asks for it."""
    return moe_gemm_torch(x, w, bias, routing_data, gather_indx, scatter_indx, gammas, apply_swiglu, alpha, limit,
                          add_residual)


def moe_gemm_a8w8(
        x: Tensor, w: Tensor, x_scales: Tensor | None, w_scales: Tensor | None, x_static_scale: Tensor | None = None,
        w_static_scale: Tensor | None = None, quant_static_scale: Tensor | None = None, bias: Tensor | None = None,
        routing_data: RoutingData | None = None, gather_indx: Tensor | None = None, scatter_indx: Tensor | None = None,
        gammas: Tensor | None = None, swizzle_mx_scale: str | None = None, out_dtype: torch.dtype = torch.bfloat16,
        apply_swiglu: bool = False, alpha: float = 1.0, limit: float | None = 1.0, swiglu_add_residual: bool = True,
        unpadded_N: int | None = None, unpadded_K: int | None = None) -> Tensor:
    """`moe_gemm_int8_smoothquant` of the device's fp8 with one scale for all of `x` and one for all of `w`.

    Args:
        x_scales, w_scales, swizzle_mx_scale: None: scales of 32 elements belong to gfx950.
        x_static_scale, w_static_scale: fp32, 1 element; None: 1.
        quant_static_scale: fp32, 1 element, by which the result is divided before it is rounded to the device's fp8.
        unpadded_N, unpadded_K: AITER's hints; of no meaning.
        The others: see `moe_gemm_int8_smoothquant`, whose `apply_activation` is `apply_swiglu` here.
    """
    op = "moe_gemm_a8w8"
    asked = {"x_scales": x_scales, "w_scales": w_scales, "swizzle_mx_scale": swizzle_mx_scale}
    reasons = {name: "formats whose 32 elements share a scale belong to gfx950"
               for name, value in asked.items() if value is not None}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}: {next(iter(reasons.values()))}", op,
                               reasons)
    check_lists(op, routing_data)
    kind = dtypes.fp8_of(target_of(x.device).arch)
    check.tensor(op, "x", x, rank=2, dtypes=(kind,))
    check.tensor(op, "w", w, rank=3, dtypes=(kind,), device=x.device, last_contiguous=False)
    check.flag(op, "apply_swiglu", apply_swiglu)
    one = torch.ones(1, device=x.device, dtype=torch.float32)
    scales = [one if scale is None else scale.float().reshape(1) for scale in (x_static_scale, w_static_scale)]
    found = _ragged(
        op, x, w.mT, scales[0].expand(len(x)).contiguous(), scales[1].expand(len(w), w.shape[2]).contiguous(), bias,
        (routing_data, gather_indx, scatter_indx), gammas,
        torch.bfloat16 if quant_static_scale is not None else out_dtype,
        (alpha, limit, swiglu_add_residual) if apply_swiglu else None)
    return found if quant_static_scale is None else downcast_to_static_fp8(found, quant_static_scale.float())


def fused_moe_int8_smoothquant(hidden_states: Tensor, w13: Tensor, w2: Tensor, w13_scale: Tensor, w2_scale: Tensor,
                               gating_output: Tensor, topk: int, renormalize: bool,
                               dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A layer of experts in int8, whose rows are quantised on the way, each with a scale.

    Args:
        hidden_states: [tokens, hidden] bf16|fp16.
        w13: [experts, hidden, 2 · inner] int8, gates in the even columns.
        w2: [experts, inner, hidden] int8.
        w13_scale, w2_scale: [experts, columns] fp32.
        gating_output: [tokens, experts] logits.
        topk: experts of a token.
        renormalize: the weights are the softmax of the chosen logits, else of all.
        dtype: of the result, and between the products.
    """
    data, gather, scatter = routing(gating_output, topk, sm_first=not renormalize)
    narrow, scale = aiter_like.per_token_quant_hip(hidden_states, quant_dtype=torch.int8)
    inner = moe_gemm_int8_smoothquant(narrow, w13, scale, w13_scale, None, data, gather, out_dtype=dtype,
                                      apply_activation=True, limit=None)
    narrow, scale = aiter_like.per_token_quant_hip(inner, quant_dtype=torch.int8)
    return moe_gemm_int8_smoothquant(narrow, w2, scale, w2_scale, None, data, None, scatter, data.gate_scal,
                                     out_dtype=dtype)


def preshuffle_weights(w: Tensor) -> Tensor:
    """`aiter_like.shuffle_weight` of [experts, k, n] int8, whose rows are the columns n: [experts, 16 · k, n / 16]."""
    op = "preshuffle_weights"
    check.tensor(op, "w", w, rank=3, dtypes=(torch.int8,), last_contiguous=False)
    experts, k, n = w.shape
    return aiter_like.shuffle_weight(w.mT.contiguous()).view(experts, n // _BAND, k * _BAND).mT


def smoothquant_quantize(x: Tensor, smooth_scale: Tensor) -> tuple[Tensor, Tensor]:
    """`aiter_like.smoothquant_fwd` into new tensors: [rows, k] int8 and [rows] fp32."""
    check.tensor("smoothquant_quantize", "x", x, rank=2, dtypes=elements.FLOATS)
    out, scale = torch.empty(x.shape, dtype=torch.int8, device=x.device), x.new_empty(len(x), 1, dtype=torch.float32)
    aiter_like.smoothquant_fwd(out, x, smooth_scale.float(), scale)
    return out, scale[:, 0]


def quantize_weights_int8(w: Tensor) -> tuple[Tensor, Tensor]:
    """`per_token_quant_hip` of the columns of [experts, k, n] or [k, n]: int8 of the same shape, contiguous, and a
    scale of each column, [experts, n] or [n].
    """
    check.tensor("quantize_weights_int8", "w", w, dtypes=elements.FLOATS, last_contiguous=False)
    narrow, scale = aiter_like.per_token_quant_hip(w.mT.contiguous(), quant_dtype=torch.int8)
    return narrow.mT.contiguous(), scale[..., 0]


def downcast_to_static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """`aiter_like.static_per_tensor_quant` into a new tensor of the device's fp8."""
    check.tensor("downcast_to_static_fp8", "x", x, dtypes=elements.FLOATS)
    out = torch.empty(x.shape, dtype=dtypes.fp8_of(target_of(x.device).arch), device=x.device)
    aiter_like.static_per_tensor_quant(out, x, scale.reshape(1))
    return out


def downcast_to_static_fp8_3d(x: Tensor, scale: Tensor) -> Tensor:
    """`downcast_to_static_fp8` of three dimensions."""
    check.tensor("downcast_to_static_fp8_3d", "x", x, rank=3, dtypes=elements.FLOATS, last_contiguous=False)
    return downcast_to_static_fp8(x.contiguous(), scale)


def dequant_x_blockscale(x: Tensor, x_scales: Tensor, per_row_x_scale: bool,
                         group_shape: tuple[int, int, int]) -> Tensor:
    """x [rows, k] times the scales of its blocks of `group_shape` (rows, n, k), with `per_row_x_scale` of one row each:
    [blocks of rows, blocks of k]. fp32, in torch.
    """
    return _times_blocks("dequant_x_blockscale", x[None], x_scales[None],
                         (1 if per_row_x_scale else group_shape[0], group_shape[2]))[0]


def dequant_w_blockscale(w: Tensor, w_scales: Tensor, group_shape: tuple[int, int, int]) -> Tensor:
    """w [experts, k, n] times the scales of its blocks of `group_shape` (rows, n, k): [experts, blocks of k, blocks of
    n]. fp32, in torch.
    """
    return _times_blocks("dequant_w_blockscale", w, w_scales, (group_shape[2], group_shape[1]))


def _times_blocks(op: str, x: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    wanted = tuple(-(-size // step) for size, step in zip(x.shape[1:], block))
    if tuple(scales.shape) != (x.shape[0], *wanted):
        raise ValueError(f"{op}: the scales must have shape {wanted}, got {tuple(scales.shape[1:])}")
    wide = scales.float().repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)
    return x.float() * wide[:, :x.shape[1], :x.shape[2]]


def check_lists(op: str, routing_data: RoutingData | None) -> None:
    """Raises ValueError where a product has no lists."""
    if routing_data is None or routing_data.expt_data is None:
        raise ValueError(f"{op}: routing_data must be given, with expt_data")


def _ragged(op: str, x: Tensor, weights: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, bias: Tensor | None,
            lists: Lists, gammas: Tensor | None, out_dtype: torch.dtype, gate: Gate) -> Tensor:
    """The products of pairs, sorted by expert, with [experts, n, k], and with places of pairs their sums by token."""
    routing_data, gather_indx, _ = lists
    check_places(op, x, lists, gammas)
    rows = None if gather_indx is None else (as_int32(gather_indx) // routing_data.n_expts_act)
    y = aiter_like.grouped_gemm(x, weights, routing_data.expt_data.token_offs_raw, x_scale, w_scale, bias,
                                row_index=rows, dtype=dtype_between(lists, gammas, out_dtype, gate))
    return finished(y, lists, gammas, out_dtype, gate)


def check_places(op: str, x: Tensor, lists: Lists, gammas: Tensor | None) -> int:
    """What does not have an element for each pair is refused; how many pairs there are."""
    routing_data, gather_indx, scatter_indx = lists
    pairs = len(x) if gather_indx is None else gather_indx.numel()
    for name, tensor in (("scatter_indx", scatter_indx), ("gammas", gammas)):
        if tensor is not None and tensor.numel() != pairs:
            raise ValueError(f"{op}: {name} must have {pairs} elements, one for each pair, got {tensor.numel()}")
    for name, tensor, count in (("gather_indx", gather_indx, len(x) * routing_data.n_expts_act),
                                ("scatter_indx", scatter_indx, pairs)):
        if tensor is not None:
            check_values(op, name, tensor, 0, count - 1, "hold numbers of pairs")
    return pairs


def dtype_between(lists: Lists, gammas: Tensor | None, out_dtype: torch.dtype, gate: Gate) -> torch.dtype:
    """Of products: the result's, unless torch goes on with them."""
    return out_dtype if gate is None and (gammas is None or lists[2] is not None) else torch.float32


def finished(y: Tensor, lists: Lists, gammas: Tensor | None, out_dtype: torch.dtype, gate: Gate) -> Tensor:
    """What follows the products of places [pairs, columns]: the gate, `gammas`, and the sums of tokens."""
    scatter_indx = lists[2]
    if gate is not None:
        y = _gated(y, *gate)
    if scatter_indx is None:
        return (y if gammas is None else y * gammas.reshape(-1, 1)).to(out_dtype)
    places = as_int32(scatter_indx).view(-1, lists[0].n_expts_act)
    factors = (torch.ones(places.shape, dtype=torch.float32, device=y.device) if gammas is None
               else gammas.float()[places.long()])
    out = torch.empty(len(places), y.shape[1], dtype=out_dtype, device=y.device)
    aiter_like.moe_unpermute(out, y, factors, places)
    return out


def _rows_of(op: str, w: Tensor, k: int) -> Tensor:
    """The matrices [experts, n, k] of `preshuffle_weights`, marked."""
    rows = w.mT
    if rows.shape[2] != k * _BAND or not rows.is_contiguous():
        raise ValueError(f"{op}: w must be of preshuffle_weights, [experts, {k * _BAND}, n / {_BAND}] with the first "
                         f"of both contiguous, got shape {tuple(w.shape)}, strides {w.stride()}")
    rows = rows.view(w.shape[0], -1, k)
    rows.is_shuffled, rows.shuffle_layout = True, (_BAND, _BAND)
    return rows


def _gated(y: Tensor, alpha: float, limit: float | None, adds_one: bool) -> Tensor:
    gate, other = y[..., 0::2], y[..., 1::2]
    if limit is not None:
        gate, other = gate.clamp(max=limit), other.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (other + 1 if adds_one else other)
