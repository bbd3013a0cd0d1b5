# SPDX-License-Identifier: MIT
"""AITER's raw calls of experts: both stages, or one, over what moe_sorting has sorted. What the lists name and there is
not is an error where they can be seen, and is left out on a GPU.

Their kernels' names, split sums and hints have no meaning here. Those of assembly kernels read weights in the order of
shuffle_weight, marked or not; the others go by the mark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import marks
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import blocks
from aiter_like.ops.moe.moe_layer import Layer, layer_of
from aiter_like.ops.moe.moe_sorting import check_order
from aiter_like.ops.moe.moe_sum import moe_sum_op

BLOCK = 32
"""Rows of a block of sorted tokens where a call does not say it."""

class Sorted(NamedTuple):
    """What moe_sorting returns, of tokens with `slots` experts each in blocks of `block`."""

    ids: Tensor
    weights: Tensor | None
    experts: Tensor
    valid: Tensor
    slots: int
    block: int = BLOCK

    def check(self, op: str, device: torch.device) -> None:
        """Raises TypeError or ValueError, by the names that AITER has for them."""
        check.integer(op, "topk", self.slots, low=1, high=127)
        check.integer(op, "block_m", self.block, low=1, high=256)
        for name, one in (("sorted_token_ids", self.ids), ("sorted_expert_ids", self.experts),
                          ("num_valid_ids", self.valid)):
            check.tensor(op, name, one, rank=1, dtypes=(torch.int32,), device=device)
        if self.weights is not None:
            check.tensor(op, "sorted_weights", self.weights, rank=1, dtypes=(torch.float32,), device=device)
            if len(self.weights) < len(self.ids):
                raise ValueError(f"{op}: sorted_weights must have at least {len(self.ids)} elements, got "
                                 f"{len(self.weights)}")

    def check_contents(self, op: str, tokens: int, experts: int) -> None:
        """Raises ValueError where lists that can be seen name what there is not, of so many tokens and experts."""
        if not len(self.valid):
            raise ValueError(f"{op}: num_valid_ids must have an element, got none")
        check_order(op, self.ids, self.experts, self.valid, self.slots, self.block, tokens, experts)

    def order(self) -> dict[str, Any]:
        """Arguments of moe_gemm."""
        return {"experts": self.experts, "sorted_ids": self.ids, "valid": self.valid, "slots": self.slots,
                "block": self.block}

    def experts_of_pairs(self, tokens: int) -> Tensor:
        """[tokens, slots] int32: the expert of each pair, -1 where none was sorted; without waiting for the device."""
        places = torch.arange(min(len(self.ids), len(self.experts) * self.block), device=self.ids.device)
        numbers = self.ids[:len(places)].long()
        token, slot = numbers & 0xFFFFFF, numbers >> 24
        counts = (places < self.valid[:1]) & (slot >= 0) & (slot < self.slots) & (token < tokens)
        pairs = tokens * self.slots
        found = torch.full((pairs + 1,), -1, dtype=torch.int32, device=self.ids.device)
        found[torch.where(counts, token * self.slots + slot, pairs)] = self.experts[places // self.block]
        return found[:pairs].view(tokens, self.slots)


# ---- both stages


@aiter("aiter aiter.ops.moe_op")
def fmoe(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor, sorted_weights: Tensor,
         sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int) -> None:
    """Both stages in 16 bits with SiLU, added to `out`, which moe_sorting has filled with zeros."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe", out, input, None, (gate, None), (down, None), order, QuantType.No, ActivationType.Silu)


@aiter("aiter aiter.ops.moe_op")
def fmoe_g1u1(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor, sorted_weights: Tensor,
              sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int, input_scale: Tensor, fc1_scale: Tensor,
              fc2_scale: Tensor, kernelName: str | None = "", fc2_smooth_scale: Tensor | None = None,
              activation: int | None = ActivationType.Silu) -> None:
    """Both stages in fp8 or int8 with a scale per row, added to `out`. `input` has a row for each token, or one for
    each slot of each token, slot · tokens + token, as `moe_smoothquant_fwd` writes them.
    """
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe_g1u1", out, input, input_scale, (gate, fc1_scale), (down, fc2_scale), order, QuantType.per_Token,
                activation, (None, fc2_smooth_scale))


@aiter("aiter aiter.ops.moe_op")
def fmoe_g1u1_tkw1(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor,
                   sorted_weights: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int,
                   input_scale: Tensor, fc1_scale: Tensor, fc2_scale: Tensor, kernelName: str | None = "",
                   fc2_smooth_scale: Tensor | None = None, activation: int | None = ActivationType.Silu) -> None:
    """`fmoe_g1u1`, whose weights are multiplied before the activation."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe_g1u1_tkw1", out, input, input_scale, (gate, fc1_scale), (down, fc2_scale), order,
                QuantType.per_Token, activation, (None, fc2_smooth_scale), weighs_first=True)


@aiter("aiter aiter.ops.moe_op")
def fmoe_int8_g1u0(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor,
                   sorted_weights: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int,
                   input_scale: Tensor, fc1_scale: Tensor, fc2_scale: Tensor, fc2_smooth_scale: Tensor | None,
                   activation: int | None = ActivationType.Silu) -> None:
    """`fmoe_g1u1`; that there are no gates, the shapes say."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe_int8_g1u0", out, input, input_scale, (gate, fc1_scale), (down, fc2_scale), order,
                QuantType.per_Token, activation, (None, fc2_smooth_scale))


@aiter("aiter aiter.ops.moe_op")
def fmoe_g1u1_a16(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor,
                  sorted_weights: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int,
                  fc1_scale: Tensor, fc2_scale: Tensor, fc1_smooth_scale: Tensor | None,
                  fc2_smooth_scale: Tensor | None, activation: int | None = ActivationType.Silu) -> None:
    """`fmoe_g1u1` of 16-bit rows, which are smoothed by each expert's factors and quantised here."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe_g1u1_a16", out, input, None, (gate, fc1_scale), (down, fc2_scale), order, QuantType.per_Token,
                activation, (fc1_smooth_scale, fc2_smooth_scale))


@aiter("aiter aiter.ops.moe_op")
def fmoe_int8_g1u0_a16(out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor,
                       sorted_weights: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int,
                       fc1_scale: Tensor, fc2_scale: Tensor, fc1_smooth_scale: Tensor | None,
                       fc2_smooth_scale: Tensor | None, activation: int | None = ActivationType.Silu) -> None:
    """`fmoe_g1u1_a16`; that there are no gates, the shapes say."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk)
    both_stages("fmoe_int8_g1u0_a16", out, input, None, (gate, fc1_scale), (down, fc2_scale), order,
                QuantType.per_Token, activation, (fc1_smooth_scale, fc2_smooth_scale))


@aiter("aiter aiter.ops.moe_op")
def fmoe_fp8_blockscale_g1u1(
        out: Tensor, input: Tensor, gate: Tensor, down: Tensor, sorted_token_ids: Tensor, sorted_weights: Tensor,
        sorted_expert_ids: Tensor, num_valid_ids: Tensor, topk: int, input_scale: Tensor, fc1_scale: Tensor,
        fc2_scale: Tensor, kernelName: str | None = "", fc_scale_blkn: int = 128, fc_scale_blkk: int = 128,
        fc2_smooth_scale: Tensor | None = None, activation: int | None = ActivationType.Silu,
        block_size_M: int = BLOCK) -> None:
    """Both stages in fp8 with block scales, added to `out`. `input_scale` lies in memory as [k / 128, tokens], whatever
    its shape; `input` may have 16 bits, and is then quantised here.
    """
    op = "fmoe_fp8_blockscale_g1u1"
    if (fc_scale_blkn, fc_scale_blkk) != (128, 128):
        raise UnsupportedError(f"{op}: fc_scale_blkn and fc_scale_blkk must be 128, got {fc_scale_blkn} and "
                               f"{fc_scale_blkk}")
    if fc2_smooth_scale is not None:
        raise UnsupportedError(f"{op}: fc2_smooth_scale is not served with block scales, use None")
    check.tensor(op, "input", input, rank=2)
    scale = None
    if input.dtype not in SIXTEEN_BITS:
        check.tensor(op, "input_scale", input_scale, dtypes=(torch.float32,), device=input.device,
                     last_contiguous=False)
        rows, count = input.shape[0], blocks(input.shape[1])
        if input_scale.numel() != rows * count:
            raise ValueError(f"{op}: input_scale must have shape ({count}, {rows}), got {tuple(input_scale.shape)}")
        scale = input_scale.reshape(count, rows).t() if input_scale.is_contiguous() else input_scale
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, block_size_M)
    both_stages(op, out, input, scale, (gate, fc1_scale), (down, fc2_scale), order, QuantType.per_1x128, activation)


def both_stages(op: str, out: Tensor, hidden: Tensor, scale: Tensor | None, first: tuple[Tensor, Tensor | None],
                second: tuple[Tensor, Tensor | None], order: Sorted, kind: QuantType, activation: int | None,
                smooth: tuple[Tensor | None, Tensor | None] = (None, None), weighs_first: bool = False) -> None:
    """A layer of `first` and `second`, matrices with their scales, added to `out`; `smooth` are factors of each expert
    for the columns of each stage's rows, which are multiplied before these are quantised.
    """
    check.tensor(op, "input", hidden, rank=2)
    order.check(op, hidden.device)
    w1, w2 = first[0], second[0]
    layer = layer_of(op, hidden, w1, w2, marks.layouts(marks.marked(w1), marks.marked(w2)), first[1], second[1], kind,
                     ActivationType.Silu if activation is None else activation, None, False)
    check.tensor(op, "out", out, dtypes=SIXTEEN_BITS, shape=(None, layer.w2.shape[1]), device=hidden.device)
    tokens, slots = out.shape[0], order.slots
    if hidden.shape[0] not in (tokens, tokens * slots):
        raise ValueError(f"{op}: input must have {tokens} or {tokens * slots} rows, got {hidden.shape[0]}")
    order.check_contents(op, tokens, layer.w1.shape[0])
    if tokens == 0 or layer.w1.shape[0] == 0:
        return
    experts = order.experts_of_pairs(tokens)
    hidden, scale = _first_rows(op, hidden, scale, layer, smooth[0], experts)
    # Rows of pairs that nothing has sorted stay as they are made: a quantiser reads them.
    inner = hidden.new_zeros(tokens * slots, layer.inner, dtype=out.dtype)
    weights = order.weights
    moe_gemm.run(inner, hidden, layer.w1, weights=weights if weighs_first else None, a_scale=scale,
                 activation=layer.activation, b_scale=layer.w1_scale, **_format_of(layer), **order.order())
    if smooth[1] is not None:
        inner, scale = _smoothed(op, "fc2_smooth_scale", inner, smooth[1], experts.view(-1, 1), layer.rows_dtype)
    else:
        inner, scale = _quantised(inner, layer)
    of_pairs = out.new_empty(tokens * slots, out.shape[1])
    moe_gemm.run(of_pairs, inner, layer.w2, weights=None if weighs_first else weights, a_scale=scale,
                 b_scale=layer.w2_scale, **_format_of(layer), **order.order())
    _add(out, of_pairs, experts, layer)


# ---- one stage


@aiter("aiter aiter.ops.moe_op")
def ck_moe_stage1_fwd(
        hidden_states: Tensor, w1: Tensor, w2: Tensor, sorted_token_ids: Tensor, sorted_expert_ids: Tensor,
        num_valid_ids: Tensor, out: Tensor, topk: int, kernelName: str = "", w1_scale: Tensor | None = None,
        a1_scale: Tensor | None = None, block_m: int | None = BLOCK, sorted_weights: Tensor | None = None,
        quant_type: int = QuantType.No, activation: int = ActivationType.Silu, splitk: int | None = 1,
        use_non_temporal_load: bool | None = False, dst_type: torch.dtype | None = None) -> Tensor:
    """The product with gates and up, and the activation, of sorted tokens into `out`, [tokens, topk, inner]. Weights
    are multiplied before the activation where they are given. Block scales of rows are [tokens, k / 128]; rows of 16
    bits without `a1_scale` keep them beside fp8 and int4.

    Raises:
        UnsupportedError: `splitk` asks for sums without activation.
    """
    if splitk not in (None, 0, 1):
        raise UnsupportedError(f"ck_moe_stage1_fwd: splitk must be 1, {splitk} asks for sums without activation; a "
                               f"kernel splits its sums by itself here")
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, block_m or BLOCK)
    return stage1("ck_moe_stage1_fwd", hidden_states, (w1, w2), order, out, quant_type, activation, a1_scale, w1_scale)


@aiter("aiter aiter.ops.moe_op")
def ck_moe_stage2_fwd(
        inter_states: Tensor, w1: Tensor, w2: Tensor, sorted_token_ids: Tensor, sorted_expert_ids: Tensor,
        num_valid_ids: Tensor, out: Tensor, topk: int, kernelName: str = "", w2_scale: Tensor | None = None,
        a2_scale: Tensor | None = None, block_m: int | None = BLOCK, sorted_weights: Tensor | None = None,
        quant_type: int = QuantType.No, activation: int = ActivationType.Silu,
        use_non_temporal_load: bool | None = False) -> Tensor:
    """The product down of `inter_states`, [tokens, topk, inner], weighted where weights are given, added over the slots
    of a token to `out`, [tokens, columns], which moe_sorting has filled with zeros. Rows of 16 bits without `a2_scale`
    keep them beside fp8 and int4.
    """
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, block_m or BLOCK)
    return stage2("ck_moe_stage2_fwd", inter_states, (w1, w2), order, out, quant_type, activation, a2_scale, w2_scale)


def stage1(op: str, hidden: Tensor, weights: tuple[Tensor, Tensor], order: Sorted, out: Tensor, kind: int,
           activation: int | None, scale: Tensor | None, w1_scale: Tensor | None, bias: Tensor | None = None,
           is_interleaved: bool = False) -> Tensor:
    """The first product of sorted tokens with its activation into `out`, [tokens, slots, inner]; `op` is named where an
    argument is wrong."""
    check.tensor(op, "hidden_states", hidden, rank=2)
    order.check(op, hidden.device)
    layer = layer_of(op, hidden, *weights, marks.layouts(*weights), w1_scale, None, kind,
                     ActivationType.Silu if activation is None else activation, None, is_interleaved, stage=1,
                     keeps_rows=scale is None)
    check.tensor(op, "out", out, dtypes=SIXTEEN_BITS, shape=(hidden.shape[0], order.slots, layer.inner),
                 device=hidden.device)
    check.dense(op, "out", out)
    order.check_contents(op, hidden.shape[0], layer.w1.shape[0])
    if out.numel() and layer.w1.shape[0]:
        moe_gemm.run(out.view(-1, layer.inner), hidden, layer.w1, weights=order.weights, bias=bias,
                     a_scale=_row_scale(op, "a1_scale", scale, hidden, layer), activation=layer.activation,
                     limit=layer.limit, b_scale=layer.w1_scale, is_interleaved=layer.is_interleaved,
                     **_format_of(layer), **order.order())
    return out


def stage2(op: str, inner: Tensor, weights: tuple[Tensor, Tensor], order: Sorted, out: Tensor, kind: int,
           activation: int | None, scale: Tensor | None, w2_scale: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """The second product of `inner`, [tokens, slots, inner], added over the slots to `out`, [tokens, columns]."""
    check.tensor(op, "inter_states", inner, rank=3)
    order.check(op, inner.device)
    check.tensor(op, "inter_states", inner, shape=(None, order.slots, None))
    w1, w2 = weights
    tokens, rows = inner.shape[0], inner.reshape(-1, inner.shape[2])
    check.tensor(op, "w2", w2, rank=3, device=rows.device, last_contiguous=False)
    hidden = rows.new_empty(0, w2.shape[1])  # only its columns are looked at: the layer's are those of its result
    layer = layer_of(op, hidden, w1, w2, marks.layouts(w1, w2), None, w2_scale, kind,
                     ActivationType.Silu if activation is None else activation, None, False, stage=2,
                     keeps_rows=scale is None)
    check.tensor(op, "out", out, dtypes=SIXTEEN_BITS, shape=(tokens, w2.shape[1]), device=rows.device)
    scale = _row_scale(op, "a2_scale", scale, rows, layer)
    order.check_contents(op, tokens, layer.w2.shape[0])
    if tokens == 0 or layer.w2.shape[0] == 0:
        return out
    of_pairs = out.new_empty(tokens * order.slots, out.shape[1])
    moe_gemm.run(of_pairs, rows, layer.w2, weights=order.weights, bias=bias, a_scale=scale, b_scale=layer.w2_scale,
                 **_format_of(layer), **order.order())
    _add(out, of_pairs, order.experts_of_pairs(tokens), layer)
    return out


# ---- parts


def _format_of(layer: Layer) -> dict[str, Any]:
    return {"b_format": layer.b_format, "group_size": layer.group_size, "is_shuffled": layer.is_shuffled}


def _add(out: Tensor, of_pairs: Tensor, experts: Tensor, layer: Layer) -> None:
    """The rows of pairs with an expert, slot by slot, to what `out` has."""
    total = torch.empty_like(out)
    moe_sum_op.run(total, of_pairs.view(*experts.shape, -1), ids=experts, experts=layer.w1.shape[0])
    out += total


def _first_rows(op: str, hidden: Tensor, scale: Tensor | None, layer: Layer, smooth: Tensor | None,
                experts: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the first product reads: rows of tokens, or of pairs in the order of tokens, and their scales."""
    if layer.quantiser is None or hidden.dtype not in SIXTEEN_BITS:
        if layer.quantiser is not None:
            scale = _row_scale(op, "input_scale", scale, hidden, layer)
        tokens, slots = experts.shape
        if hidden.shape[0] == tokens:
            return hidden, scale
        return _by_token(hidden, tokens, slots), None if scale is None else _by_token(scale, tokens, slots)
    if smooth is not None:
        return _smoothed(op, "fc1_smooth_scale", hidden, smooth, experts, layer.rows_dtype)
    return _quantised(hidden, layer)


def _smoothed(op: str, name: str, x: Tensor, factors: Tensor, experts: Tensor,
              dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of pairs in the order of tokens, each times the factors of its expert, and their scales."""
    tokens, slots = experts.shape
    check.tensor(op, name, factors, dtypes=(torch.float32,), device=x.device, last_contiguous=False)
    if factors.numel() % x.shape[1] or factors.numel() == 0:
        raise ValueError(f"{op}: {name} must have {x.shape[1]} factors for each expert, got shape "
                         f"{tuple(factors.shape)}")
    out, scale = x.new_empty(tokens * slots, x.shape[1], dtype=dtype), x.new_empty(tokens * slots, dtype=torch.float32)
    aiter_like.moe_smoothquant_fwd(out, x, factors.reshape(-1, x.shape[1]), experts.contiguous(), scale[:, None])
    return _by_token(out, tokens, slots), _by_token(scale, tokens, slots)


def _by_token(rows: Tensor, tokens: int, slots: int) -> Tensor:
    """Rows slot · tokens + token as token · slots + slot."""
    return rows if tokens == 1 or slots == 1 else rows.unflatten(0, (slots, tokens)).transpose(0, 1).flatten(0, 1)


def _quantised(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """16-bit rows in the 8 bits of the weights, with a scale for each or for each 128 columns."""
    if layer.quantiser is None:
        return x, None
    if layer.quantiser != "block":
        found, scale = aiter_like.per_token_quant_hip(x, None, layer.rows_dtype)
        return found, scale.view(x.shape[0])
    rest = -x.shape[1] % 128
    padded = torch.nn.functional.pad(x, (0, rest)) if rest else x
    found, scale = aiter_like.per_group_quant_hip(padded, None, layer.rows_dtype, 128)
    return found[:, :x.shape[1]], scale


def _row_scale(op: str, name: str, scale: Tensor | None, rows: Tensor, layer: Layer) -> Tensor | None:
    """The scales of rows that have 8 bits already, as moe_gemm takes them."""
    if layer.quantiser is None:
        return None
    if rows.dtype != layer.rows_dtype:
        raise TypeError(f"{op}: rows must have the dtype of the weights, {layer.rows_dtype}, got {rows.dtype}")
    check.tensor(op, name, scale, dtypes=(torch.float32,), device=rows.device, last_contiguous=False)
    count = rows.shape[0] * (blocks(rows.shape[1]) if layer.quantiser == "block" else 1)
    if scale.numel() == 1 and layer.quantiser == "tensor":
        return scale.reshape(1).expand(rows.shape[0])
    if scale.numel() != count:
        raise ValueError(f"{op}: {name} must have {count} elements, got shape {tuple(scale.shape)}")
    return scale.reshape(rows.shape[0], -1) if layer.quantiser == "block" else scale.reshape(-1)
