# SPDX-License-Identifier: MIT
"""AITER's functions of routing and of layers of experts that have other parameters here, and its references in torch.
Its raw calls over sorted tokens are in moe/experts.py.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.moe.experts import Sorted, both_stages
from aiter_like.ops.common import elements, marks
from aiter_like.ops.common.contents import as_int32
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.fused_moe import fused_moe as _fused_moe
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import blocks
from aiter_like.ops.moe.moe_layer import Layer, layer_of
from aiter_like.ops.moe.moe_sorting import check_mask
from aiter_like.ops.quant.row_quant import per_token_quant_hip

_TORCH_ACTIVATIONS = {ActivationType.Silu: torch.nn.functional.silu, ActivationType.Gelu: torch.nn.functional.gelu}
_QUANT_TYPE, _GATE_MODE = map(list(inspect.signature(_fused_moe).parameters).index, ("quant_type", "gate_mode"))
_PADDED_TOKENS = (32768, 131072)  # AITER's tables of tuned layers have no larger numbers of tokens than these


@aiter("aiter aiter.ops.topk", stays=True)
def biased_grouped_topk_hip(gating_output: Tensor, correction_bias: Tensor, topk_weights: Tensor, topk_ids: Tensor,
                            num_expert_group: int, topk_grp: int, need_renorm: bool,
                            routed_scaling_factor: float = 1.0) -> None:
    """`aiter_like.biased_grouped_topk`, whose `topk_group` is `topk_grp` here."""
    aiter_like.biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_grp,
                                   need_renorm, routed_scaling_factor)


@aiter("aiter aiter.ops.topk", stays=True)
def biased_grouped_topk_torch(gating_output: Tensor, correction_bias: Tensor, topk: int, renormalize: bool,
                              num_expert_group: int = 0, topk_group: int = 0,
                              return_score: bool = False) -> tuple[Tensor, ...]:
    """`aiter_like.biased_grouped_topk` in torch, into new tensors: weights, ids and, if asked for, all scores."""
    weights, ids = _outputs(gating_output, topk)
    aiter_like.biased_grouped_topk(gating_output, correction_bias, weights, ids, max(num_expert_group, 1),
                                   max(topk_group, 1), renormalize, backend="torch")
    return (weights, ids, gating_output.float().sigmoid()) if return_score else (weights, ids)


@aiter("aiter aiter.ops.topk", stays=True)
def grouped_topk_torch(gating_output: Tensor, topk: int, renormalize: bool, num_expert_group: int = 0,
                       topk_group: int = 0, scoring_func: str = "softmax") -> tuple[Tensor, Tensor]:
    """`aiter_like.grouped_topk` in torch, into new tensors: weights and ids."""
    weights, ids = _outputs(gating_output, topk)
    aiter_like.grouped_topk(gating_output, weights, ids, max(num_expert_group, 1), max(topk_group, 1), renormalize,
                            scoring_func == "softmax", backend="torch")
    return weights, ids


def _outputs(gating_output: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    shape = (gating_output.shape[0], topk)
    return gating_output.new_empty(shape, dtype=torch.float32), gating_output.new_empty(shape, dtype=torch.int32)


# ---- layers


@functools.wraps(_fused_moe)
@aiter("aiter.fused_moe", callers="V S")
def fused_moe(*args: Any, **options: Any) -> Tensor:
    """`aiter_like.fused_moe`, where `gate_mode` says something of weights with scales for 32 columns alone: engines
    pass "interleave" with weights of every kind, and AITER looks at it for no others.
    """
    kind = args[_QUANT_TYPE] if len(args) > _QUANT_TYPE else options.get("quant_type", QuantType.No)
    if kind != QuantType.per_1x32:
        if len(args) > _GATE_MODE:
            args = (*args[:_GATE_MODE], None, *args[_GATE_MODE + 1:])
        elif "gate_mode" in options:
            options = options | {"gate_mode": None}
    return _fused_moe(*args, **options)


@aiter("aiter.fused_moe_bf16_asm")
def asm_moe(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
            fc1_scale: Tensor | None = None, fc2_scale: Tensor | None = None, fc1_smooth_scale: Tensor | None = None,
            fc2_smooth_scale: Tensor | None = None, a16: bool = False,
            per_tensor_quant_scale: Tensor | float | None = None, block_shape: tuple[int, int] | None = None,
            expert_mask: Tensor | None = None, activation: int = ActivationType.Silu,
            local_expert_hash: Tensor | None = None) -> Tensor:
    """`aiter_like.fused_moe` of weights in the order of shuffle_weight, marked or not: 16 bits without scales, block
    scales by `block_shape`, else a scale per row; with factors of smooth-quantisation by experts.py. `a16` says
    where AITER quantises, and `local_expert_hash` follows from `expert_mask`: neither has a meaning here.

    Raises:
        UnsupportedError: other blocks than 128 · 128, or scales that do not go together.
    """
    op = "asm_moe"
    check.tensor(op, "w1", w1, rank=3, last_contiguous=False)
    w1, w2 = marks.marked(w1), marks.marked(w2)
    has_factors = fc1_smooth_scale is not None or fc2_smooth_scale is not None
    if has_factors and (fc1_scale is None or block_shape is not None or per_tensor_quant_scale is not None):
        raise UnsupportedError(f"{op}: fc1_smooth_scale and fc2_smooth_scale are served with fc1_scale and fc2_scale "
                               f"alone")
    if has_factors:
        return _smooth_layer(op, hidden_states, w1, w2, topk_weight, topk_ids, fc1_scale, fc2_scale, fc1_smooth_scale,
                             fc2_smooth_scale, expert_mask, activation)
    kind, dtype, scale = QuantType.No if fc1_scale is None else QuantType.per_Token, hidden_states.dtype, None
    if fc1_scale is not None and block_shape is not None:
        if tuple(block_shape) != (128, 128):
            raise UnsupportedError(f"{op}: block_shape must be (128, 128), got {block_shape}")
        kind = QuantType.per_1x128
    elif fc1_scale is not None and per_tensor_quant_scale is not None:
        scale = torch.as_tensor(per_tensor_quant_scale, dtype=torch.float32, device=hidden_states.device).reshape(1)
        has_words = w1.dtype in (torch.int32, torch.uint32)
        rows_dtype = dtypes.fp8_of(target_of(hidden_states.device).arch) if has_words else w1.dtype
        hidden_states, scale = aiter_like.per_tensor_quant_hip(hidden_states, scale, rows_dtype)
        scale = scale.expand(hidden_states.shape[0])
    return aiter_like.fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, kind,
                                w1_scale=fc1_scale, w2_scale=fc2_scale, a1_scale=scale, dtype=dtype)


def _smooth_layer(op: str, hidden: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor, scale1: Tensor,
                  scale2: Tensor, smooth1: Tensor | None, smooth2: Tensor | None, mask: Tensor | None,
                  activation: int) -> Tensor:
    """A layer whose rows take each expert's factors before they are quantised."""
    check.tensor(op, "hidden_states", hidden, rank=2, dtypes=SIXTEEN_BITS)
    check.tensor(op, "w2", w2, rank=3, last_contiguous=False)
    check.tensor(op, "topk_ids", ids, rank=2, dtypes=(torch.int32,), shape=(hidden.shape[0], None))
    if mask is not None:
        check.tensor(op, "expert_mask", mask, rank=1, dtypes=(torch.int32,))
        check_mask(op, mask, w1.shape[0])
    experts = w1.shape[0] if mask is None else mask.numel()
    order = aiter_like.moe_sorting(ids, weights, experts, w2.shape[1], hidden.dtype, 32, mask)
    out = order[4]
    both_stages(op, out, hidden, None, (w1, scale1), (w2, scale2), Sorted(*order[:4], ids.shape[1]),
                QuantType.per_Token, activation, (smooth1, smooth2))
    return out


@aiter("aiter.fused_moe_bf16_asm", callers="V")
def asm_moe_tkw1(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
                 fc1_scale: Tensor | None = None, fc2_scale: Tensor | None = None,
                 fc1_smooth_scale: Tensor | None = None, fc2_smooth_scale: Tensor | None = None, a16: bool = False,
                 per_tensor_quant_scale: Tensor | None = None, expert_mask: Tensor | None = None,
                 activation: int = ActivationType.Silu) -> Tensor:
    """`aiter_like.fused_moe` with the weights of the routing before the activation, of matrices in the order of
    shuffle_weight, marked or not, with a scale per row.

    Raises:
        UnsupportedError: factors of smooth-quantisation or a scale of all rows.
    """
    for name, one in (("fc1_smooth_scale", fc1_smooth_scale), ("fc2_smooth_scale", fc2_smooth_scale),
                      ("per_tensor_quant_scale", per_tensor_quant_scale)):
        if one is not None:
            raise UnsupportedError(f"asm_moe_tkw1: {name} is not served, use None; asm_moe takes it")
    return aiter_like.fused_moe(
        hidden_states, marks.marked(w1), marks.marked(w2), topk_weight, topk_ids, expert_mask, activation,
        QuantType.No if fc1_scale is None else QuantType.per_Token, True, fc1_scale, fc2_scale)


@aiter("aiter.fused_moe_dp_shared_expert")
def fused_moe_dp_share_expert(
        hidden_states: Tensor, w1: Tensor, w2: Tensor, expert_mask: Tensor | None = None,
        activation: int = ActivationType.Silu, quant_type: int = QuantType.No, doweight_stage1: bool = False,
        w1_scale: Tensor | None = None, w2_scale: Tensor | None = None, a1_scale: Tensor | None = None,
        a2_scale: Tensor | None = None, block_size_M: int | None = None, num_local_tokens: Tensor | None = None,
        moe_sorting_dispatch_policy: int = 0, dtype: torch.dtype | None = None, dp_size: int = 1, dp_rank: int = 0,
        moe_buf: Tensor | None = None) -> Tensor:
    """Experts that every token has, each with the weight 1: `aiter_like.fused_moe`, with factors `asm_moe`, of the
    tokens of one rank.

    Args:
        hidden_states: [tokens, hidden] bf16|fp16.
        w1, w2, expert_mask, activation, quant_type, doweight_stage1, w1_scale, w2_scale: as of `fused_moe`.
        a1_scale, a2_scale: [experts, 1, columns] fp32 factors of smooth-quantisation, both or none.
        block_size_M: of no meaning, with moe_sorting_dispatch_policy.
        num_local_tokens: None.
        dtype: of a new result; default: that of `hidden_states`.
        dp_size, dp_rank: this rank has the tokens from dp_rank · n on, n = ⌈tokens / dp_size⌉.
        moe_buf: [tokens, hidden] to add to; default: zeros.

    Returns:
        `moe_buf`: the rows of other ranks' tokens are as they were.
    """
    op = "fused_moe_dp_share_expert"
    if num_local_tokens is not None:
        raise UnsupportedError(f"{op}: num_local_tokens is not served, use None", op)
    check.tensor(op, "hidden_states", hidden_states, rank=2, dtypes=SIXTEEN_BITS)
    check.tensor(op, "w1", w1, rank=3, last_contiguous=False)
    check.integer(op, "dp_size", dp_size, 1)
    check.integer(op, "dp_rank", dp_rank, 0, dp_size - 1)
    each = -(-len(hidden_states) // dp_size)
    own = hidden_states[each * dp_rank:each * (dp_rank + 1)]
    if moe_buf is None:
        moe_buf = torch.zeros(hidden_states.shape, dtype=dtype or hidden_states.dtype, device=hidden_states.device)
    check.tensor(op, "moe_buf", moe_buf, shape=hidden_states.shape, device=hidden_states.device)
    if not len(own):
        return moe_buf
    experts = w1.shape[0] if expert_mask is None else expert_mask.numel()
    ids = torch.arange(experts, dtype=torch.int32, device=own.device).repeat(len(own), 1)
    weights = torch.ones(ids.shape, device=own.device, dtype=torch.float32)
    if a1_scale is not None or a2_scale is not None:
        found = asm_moe(own, w1, w2, weights, ids, w1_scale, w2_scale, a1_scale, a2_scale, expert_mask=expert_mask,
                        activation=activation)
    else:
        found = aiter_like.fused_moe(own, w1, w2, weights, ids, expert_mask, activation, quant_type, doweight_stage1,
                                     w1_scale, w2_scale)
    moe_buf[each * dp_rank:each * dp_rank + len(own)] += found
    return moe_buf


@aiter("aiter.fused_moe", stays=True)
def get_padded_M(M: int) -> int:
    """The number of tokens by which AITER looks a layer up: the next power of two, and from 32768 on that or 131072."""
    if M < _PADDED_TOKENS[0]:
        return 1 << max(M - 1, 0).bit_length()
    return max(tier for tier in _PADDED_TOKENS if M >= tier)


# ---- references in torch


@aiter("aiter.fused_moe", "aiter.fused_moe_dp_shared_expert", stays=True)
def torch_moe(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
              fc1_scale: Tensor | None = None, fc2_scale: Tensor | None = None,
              fc1_smooth_scale: Tensor | None = None, fc2_smooth_scale: Tensor | None = None,
              expert_mask: Tensor | None = None, activation: int = ActivationType.Silu) -> Tensor:
    """A layer of experts in torch, in fp32 and not rounded before its end; weights times a scale per row, rows times
    factors of each expert. Not shuffled. Looks at the ids.
    """
    pairs = _torch_pairs(hidden_states, (w1, fc1_scale), (w2, fc2_scale), topk_ids, expert_mask, activation,
                         (fc1_smooth_scale, fc2_smooth_scale))
    return (pairs * topk_weight[..., None]).sum(1).to(hidden_states.dtype)


@aiter("aiter.fused_moe_bf16_asm", stays=True)
def torch_moe_tkw1(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
                   fc1_scale: Tensor | None = None, fc2_scale: Tensor | None = None,
                   fc1_smooth_scale: Tensor | None = None, fc2_smooth_scale: Tensor | None = None,
                   expert_mask: Tensor | None = None, activation: int = ActivationType.Silu) -> Tensor:
    """`torch_moe`, whose weights of the routing are multiplied before the activation, and whose rows between the stages
    are rounded to the device's fp8 with a scale each.
    """
    pairs = _torch_pairs(hidden_states, (w1, fc1_scale), (w2, fc2_scale), topk_ids, expert_mask, activation,
                         (fc1_smooth_scale, fc2_smooth_scale), topk_weight)
    return pairs.sum(1).to(hidden_states.dtype)


def _torch_pairs(hidden: Tensor, first: tuple[Tensor, Tensor | None], second: tuple[Tensor, Tensor | None],
                 ids: Tensor, mask: Tensor | None, activation: int, smooth: tuple[Tensor | None, Tensor | None],
                 weights: Tensor | None = None) -> Tensor:
    """[tokens, slots, columns] fp32: what each expert makes of each token, zeros where it is elsewhere."""
    w1, w2 = first[0], second[0]
    if activation not in _TORCH_ACTIVATIONS:
        raise UnsupportedError(f"torch_moe: activation must be Silu or Gelu, got {activation!r}")
    act = _TORCH_ACTIVATIONS[activation]
    ids = ids.long()
    if mask is not None:
        here = torch.nn.functional.pad(mask, (0, 1)) != 0  # the last is for numbers that are no expert's
        ids = torch.where(here, here.cumsum(0) - 1, -1)[ids.clamp(-1, mask.numel())]
    out = torch.zeros(*ids.shape, w2.shape[1], device=hidden.device, dtype=torch.float32)
    for expert in range(w1.shape[0]):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        x = hidden[token].float()
        if smooth[0] is not None:
            x = x * smooth[0].reshape(w1.shape[0], -1)[expert]
        x = x @ _widened(*first, expert).t()
        if weights is not None:
            x = x * weights[token, slot, None]
        if w1.shape[1] == 2 * w2.shape[2]:
            gate, up = x.chunk(2, 1)
            x = act(gate) * up
        else:
            x = act(x)
        if smooth[1] is not None:
            x = x * smooth[1].reshape(w1.shape[0], -1)[expert]
        if weights is not None and len(x):
            narrow, scale = per_token_quant_hip(x, None, dtypes.fp8_of(target_of(x.device).arch), backend="torch")
            x = narrow.float() * scale
        out[token, slot] = x @ _widened(*second, expert).t()
    return out


def _widened(weights: Tensor, scale: Tensor | None, expert: int) -> Tensor:
    """One expert's matrix in fp32, with a scale for each row."""
    one = weights[expert].float()
    return one if scale is None else one * scale.reshape(weights.shape[0], -1)[expert, :, None]


@aiter("aiter.fused_moe", stays=True)
def torch_moe_stage1(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
                     dtype: torch.dtype = torch.float16, activation: int = ActivationType.Silu,
                     quant_type: int = QuantType.No, a1_scale: Tensor | None = None, w1_scale: Tensor | None = None,
                     w1_bias: Tensor | None = None, doweight: bool = False, swiglu_limit: float | None = None,
                     situ_beta: float = 4.0, situ_linear_beta: float = 25.0) -> Tensor:
    """The first stage in torch, [tokens, slots, inner] of `dtype`: the formula of moe_gemm, in fp32.

    Raises:
        UnsupportedError: activations of 4 bits, or a bias beside weights of the routing, which it would follow.
    """
    op = "torch_moe_stage1"
    if w1_bias is not None and doweight:
        raise UnsupportedError(f"{op}: w1_bias with doweight is not served")
    layer = layer_of(op, hidden_states, w1, w2, marks.layouts(w1, w2), w1_scale, None, quant_type, activation,
                     swiglu_limit, False, stage=1)
    out = torch.zeros(*topk_ids.shape, layer.inner, dtype=dtype, device=hidden_states.device)
    operands = _operands(op, hidden_states, a1_scale, layer, topk_weight if doweight else None, topk_ids, w1_bias)
    moe_gemm.run(
        out.view(-1, layer.inner), b=layer.w1, experts=as_int32(topk_ids.reshape(-1)), slots=topk_ids.shape[1],
        b_scale=layer.w1_scale, activation=layer.activation, limit=layer.limit, group_size=layer.group_size,
        is_shuffled=layer.is_shuffled, backend="torch", **operands)
    return out


@aiter("aiter.fused_moe", stays=True)
def torch_moe_stage2(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor,
                     dtype: torch.dtype = torch.float16, quant_type: int = QuantType.No,
                     w2_scale: Tensor | None = None, a2_scale: Tensor | None = None, w2_bias: Tensor | None = None,
                     doweight: bool = True) -> Tensor:
    """The second stage in torch, [tokens, columns] of `dtype`: the formula of moe_gemm and the sum, in fp32."""
    rows = hidden_states.reshape(topk_ids.numel(), -1)
    op = "torch_moe_stage2"
    layer = layer_of(op, rows.new_empty(0, w2.shape[1]), w1, w2, marks.layouts(w1, w2), None, w2_scale, quant_type,
                     ActivationType.Silu, None, False, stage=2)
    out = torch.zeros(topk_ids.shape[0], layer.w2.shape[1], dtype=dtype, device=rows.device)
    operands = _operands(op, rows, a2_scale, layer, topk_weights if doweight else None, topk_ids, w2_bias)
    moe_gemm.run(
        out, b=layer.w2, experts=as_int32(topk_ids.reshape(-1)), slots=topk_ids.shape[1], b_scale=layer.w2_scale,
        group_size=layer.group_size, is_shuffled=layer.is_shuffled, sums_slots=True, backend="torch", **operands)
    return out


def _operands(op: str, rows: Tensor, scale: Tensor | None, layer: Layer, weights: Tensor | None, ids: Tensor,
              bias: Tensor | None) -> dict[str, Any]:
    """Arguments of moe_gemm. AITER's callers have the int4 of its words as int8, beside fp8: these rows are exact in
    bf16, and their scales are factors of pairs."""
    scale, b_format = _rows_scale(scale, rows, layer), layer.b_format
    weights = None if weights is None else weights.reshape(-1)
    if rows.dtype in elements.FP8 and layer.w1.dtype == torch.int8 and b_format == "same":
        if bias is not None:
            raise UnsupportedError(f"{op}: a bias is not served with fp8 beside int8")
        rows, b_format = rows.bfloat16(), "int8"
        if scale is not None:
            of_pairs = scale.repeat_interleave(ids.numel() // len(scale)) if len(scale) else scale
            weights, scale = of_pairs if weights is None else of_pairs * weights, None
    return {"a": rows, "a_scale": scale, "weights": weights, "bias": bias, "b_format": b_format}


def _rows_scale(scale: Tensor | None, rows: Tensor, layer: Layer) -> Tensor | None:
    """Scales of rows of 8 bits: of all, of each, or of 128 columns of each."""
    if scale is None or rows.dtype not in (torch.int8, *elements.FP8):
        return None
    scale = scale.reshape(-1).float()
    if layer.group_size:
        return scale.reshape(rows.shape[0], blocks(rows.shape[1]))
    if scale.numel() == 1 or rows.shape[0] == scale.numel():
        return scale.expand(rows.shape[0])
    return scale.repeat_interleave(rows.shape[0] // scale.numel())  # a token's pairs share its scale
