# SPDX-License-Identifier: MIT
"""A layer of experts: sorting, the product with gates and up, the activation, the product down, the weighted sum.

It is made of operators: moe_sorting, moe_gemm twice, the quantisers and moe_sum. Few tokens are not sorted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import target_of
from aiter_like.dispatch import torch_ops
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements, marks, quant_rule
from aiter_like.ops.gemm.problems import SIXTEEN_BITS, check_fp8
from aiter_like.ops.moe.moe_backward import experts_with_grad
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import block_for, blocks
from aiter_like.ops.moe.moe_gemm_hip import MAX_SLOTS, prefers_unsorted
from aiter_like.ops.moe.moe_layer import Layer, layer_of
from aiter_like.ops.moe.moe_sorting import check_local_tokens, check_mask, moe_sorting
from aiter_like.ops.moe.moe_sum import moe_sum_op
from aiter_like.ops.quant.row_quant import per_group_quant_hip, per_token_quant_hip
from aiter_like.ops.quant.tensor_quant import per_tensor_quant_hip

__all__ = ["fused_moe"]

_OP = "fused_moe"
_NOT_SERVED = ("shared_w1", "shared_w2", "shared_w1_scale", "shared_w2_scale", "stage2_scatter", "beta", "linear_beta")


def fused_moe(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
              expert_mask: Tensor | None = None, activation: int = ActivationType.Silu,
              quant_type: int = QuantType.No, doweight_stage1: bool = False, w1_scale: Tensor | None = None,
              w2_scale: Tensor | None = None, a1_scale: Tensor | None = None, a2_scale: Tensor | None = None,
              block_size_M: int | None = None, num_local_tokens: Tensor | None = None,
              moe_sorting_dispatch_policy: int = 0, dtype: torch.dtype | None = None, hidden_pad: int = 0,
              intermediate_pad: int = 0, bias1: Tensor | None = None, bias2: Tensor | None = None, splitk: int = 0,
              swiglu_limit: float | None = None, beta: float | None = None, linear_beta: float | None = None,
              gate_mode: str | None = "separated", shared_w1: Tensor | None = None, shared_w2: Tensor | None = None,
              shared_w1_scale: Tensor | None = None, shared_w2_scale: Tensor | None = None,
              shared_expert_id: int = -1, stage2_scatter: Any = None, *, backend: str | None = None) -> Tensor:
    """A layer of experts: `out[t] = Σ over its experts e of topk_weight · (act(hidden · w1[e]ᵀ + bias1[e]) · w2[e]ᵀ +
    bias2[e])`, act(gate) · up where `w1` has both, summed in a fixed order.

    Args:
        hidden_states: [tokens, k] bf16|fp16, rows evenly spaced; or with `a1_scale` in the 8 bits of the weights, or
            fp8 beside int4 with a scale for each row.
        w1: [experts, 2 · inner, k], gates and then what they let through, or [experts, inner, k] without gates; bf16,
            fp16; fp8 of the device or int8 with scales; int4 as [.., k / 2] bytes of `pack_int4` (int8, or AITER's
            i4x2); mxfp4 likewise (uint8, or fp4x2). Of any strides, or, but for mxfp4, marked by `shuffle_weight`,
            layout (16, 16). AITER's words of eight int4 (uint32, or int32) [.., k / 8], as its
            `rearrange_4bit_elements` orders them, are in the order of `shuffle_weight`, marked or not.
        w2: [experts, k, inner], stored like `w1`.
        topk_weight, topk_ids: [tokens, slots] fp32 and int32, rows evenly spaced; numbers of no expert do not count.
        expert_mask: [experts of all devices (and more)] int32: not 0 for those that are here, as many as `w1` has, in
            its order. On a GPU nobody looks: of more of them, tokens that go to those beyond `w1` get anything.
        activation: ActivationType: Silu, Gelu (erf), Swiglu (GPT-OSS: gate · sigmoid(1.702 gate) · (up + 1)), or No
            without gates.
        quant_type: QuantType: No (16 bits); per_Tensor and per_Token (fp8, int8, int4; the latter also words);
            per_1x128 or per_128x128 (fp8 with block scales; int4 with a scale for 128 of k); per_1x32 (mxfp4; int4 with
            AITER's scales).
        doweight_stage1: the weight is multiplied before the activation instead of at the end; without `bias1`.
        w1_scale, w2_scale: of 8 bits [experts] or, as per_Token has it, [experts, rows of w]; block scales [experts,
            ⌈rows / 128⌉, ⌈k / 128⌉]; of int4 [experts, rows] or [experts, rows, ⌈k / (32, 64 or 128)⌉] fp32|bf16|fp16,
            with per_1x32 [experts, k / 32, rows]; of mxfp4 [experts, rows, k / 32] exponents of 8 bits (e8m0 or uint8).
            Further dimensions of size 1, or flattened, are as good.
        a1_scale: of `hidden_states` that have 8 bits: [tokens], block scales [tokens, ⌈k / 128⌉], with per_Tensor one
            number; of others, with per_Tensor, one number to quantise with, else found.
        a2_scale: one number to quantise what is between the stages with, with per_Tensor; else found.
        block_size_M: rows of a block that an expert has for itself, 1 to 256; default: by the number of tokens.
        num_local_tokens: [1] int32, 0 … tokens: as many of the first tokens count; the rows of others are zeros. On a
            GPU nobody looks: less than 0 is 0, more than there are is all.
        moe_sorting_dispatch_policy, splitk: choose among AITER's kernels; no meaning here.
        dtype: of the result, bf16|fp16; default: that of `hidden_states`.
        hidden_pad, intermediate_pad: zeros at the end of k, and of inner; nothing depends on it.
        bias1, bias2: [experts, rows of w1] and [experts, k] bf16|fp16|fp32.
        swiglu_limit: gates are at most, the rest at most and at least, so far from 0; default: 7 of Swiglu, else none.
        gate_mode: "separated", or "interleave": gates are the even rows of `w1`.
        beta, linear_beta, shared_w1, shared_w2, shared_w1_scale, shared_w2_scale, stage2_scatter: not served: None.
        shared_expert_id: not served: -1.

    Returns: [tokens, k] of `dtype`. A token without experts that are here has zeros.

    Notes:
        Products are summed in fp32 (int8: int32), rounded to `dtype` after each stage; weights of 4 bits are widened,
        activations then keep their 16 bits, but become fp8 beside words of int4. Equal calls give equal results.
        Without waiting for the device; `backend` is that of the products. Derivatives of 16-bit layers without masks.
    """
    given = locals()
    for name in _NOT_SERVED:
        if given[name] is not None:
            raise UnsupportedError(f"{_OP}: {name} is not served, got {type(given[name]).__name__}")
    if shared_expert_id != -1:
        raise UnsupportedError(f"{_OP}: shared_expert_id must be -1, others are not served, got {shared_expert_id!r}")
    for name in ("moe_sorting_dispatch_policy", "hidden_pad", "intermediate_pad", "splitk"):
        check.integer(_OP, name, given[name], low=0)
    check.flag(_OP, "doweight_stage1", doweight_stage1)
    check.choice(_OP, "gate_mode", getattr(gate_mode, "value", gate_mode), (None, "separated", "interleave"))
    dtype = _check_hidden(hidden_states, dtype)
    layer = layer_of(_OP, hidden_states, w1, w2, marks.layouts(w1, w2), w1_scale, w2_scale, quant_type, activation,
                     swiglu_limit, getattr(gate_mode, "value", gate_mode) == "interleave")
    experts = _check_routing(hidden_states, topk_weight, topk_ids, expert_mask, num_local_tokens, w1.shape[0])
    _check_rest(layer, bias1, bias2, a1_scale, a2_scale, hidden_states, block_size_M)
    if doweight_stage1 and bias1 is not None:
        raise UnsupportedError(f"{_OP}: bias1 is not served with doweight_stage1: the weight would multiply it")
    tokens, slots = topk_ids.shape
    if tokens == 0 or slots == 0 or layer.w1.shape[0] == 0:
        return hidden_states.new_zeros(tokens, layer.w2.shape[1], dtype=dtype)
    if torch_ops.needs_grad(hidden_states, w1, w2, topk_weight, bias1, bias2):
        has_masks = expert_mask is not None or num_local_tokens is not None
        if layer.w1.dtype not in SIXTEEN_BITS or dtype != hidden_states.dtype or layer.is_shuffled or has_masks or (
                doweight_stage1):
            raise UnsupportedError(f"{_OP}: hidden_states or weights require grad: only of a layer of 16 bits, not "
                                   f"shuffled, without masks and with its weights at the end, there are derivatives")
        return experts_with_grad(hidden_states, w1, w2, topk_weight, topk_ids, layer.activation, limit=layer.limit,
                                 is_interleaved=layer.is_interleaved, bias1=bias1, bias2=bias2, block=block_size_M,
                                 backend=backend)
    hidden, scale = _first_operand(hidden_states, layer, a1_scale, backend)
    stages = _Stages(layer, dtype, topk_weight, topk_ids, expert_mask, num_local_tokens, experts, bias1, bias2,
                     doweight_stage1, a2_scale, backend)
    if backend != "ck" and expert_mask is num_local_tokens is block_size_M is None and _is_few(tokens, slots, layer):
        return stages.of_few(hidden, scale)
    is_common = layer.b_format == "same" and not layer.is_shuffled and layer.quantiser in (None, "block")
    arch = target_of(hidden.device).arch if is_common else ""  # Hopper has a kernel of its own for these
    return stages.of_sorted(hidden, scale, block_size_M or block_for(tokens * slots, layer.w1.shape[0], arch))


def _is_few(tokens: int, slots: int, layer: Layer) -> bool:
    """Whether pairs need no sorting."""
    expert_bytes = sum(one[0].numel() * one.element_size() for one in (layer.w1, layer.w2))
    return slots <= MAX_SLOTS and prefers_unsorted(tokens, slots, layer.w1.shape[0], expert_bytes)


class _Stages:
    """The two products of a call, and what is around them."""

    def __init__(self, layer: Layer, dtype: torch.dtype, weights: Tensor, ids: Tensor, mask: Tensor | None,
                 local_tokens: Tensor | None, experts: int, bias1: Tensor | None, bias2: Tensor | None,
                 weighs_first: bool, a2_scale: Tensor | None, backend: str | None):
        self.layer, self.dtype, self.weights, self.ids = layer, dtype, weights, ids
        self.mask, self.local_tokens, self.experts = mask, local_tokens, experts
        self.bias1, self.bias2, self.weighs_first = bias1, bias2, weighs_first
        self.a2_scale, self.backend = a2_scale, backend

    def of_few(self, hidden: Tensor, scale: Tensor | None) -> Tensor:
        """Pairs in the order of their tokens, each with its expert's matrices; the second product adds them up."""
        ids, weights = self.ids.reshape(-1), self.weights.reshape(-1)
        inner = self._first(hidden, scale, weights, experts=ids)
        out = inner.new_empty(len(self.ids), self.layer.w2.shape[1], dtype=self.dtype)
        self._second(out, inner, weights, experts=ids, sums_slots=True)
        return out

    def of_sorted(self, hidden: Tensor, scale: Tensor | None, block: int) -> Tensor:
        """Pairs sorted by expert, blocks of each; the pairs of a token are added up in the order of its slots."""
        beside = "torch" if self.backend == "torch" else None
        sorted_ids, weights, experts, valid, _ = moe_sorting(
            self.ids, self.weights, self.experts, 0, self.dtype, block, self.mask, self.local_tokens,
            accumulate=False, backend=beside)
        order = {"experts": experts, "sorted_ids": sorted_ids, "valid": valid, "block": block}
        inner = self._first(hidden, scale, weights, **order)
        tokens, slots = self.ids.shape
        of_pairs = inner.new_empty(tokens * slots, self.layer.w2.shape[1], dtype=self._dtype_of_pairs())
        self._second(of_pairs, inner, weights, **order)
        out = inner.new_empty(tokens, self.layer.w2.shape[1], dtype=self.dtype)
        moe_sum_op.run(out, of_pairs.view(tokens, slots, -1), ids=self.ids, mask=self.mask,
                       local_tokens=self.local_tokens, experts=self.experts, backend=beside)
        return out

    def _dtype_of_pairs(self) -> torch.dtype:
        """fp32 where that costs less than a sixteenth of the weights' bytes. Where results of pairs are rounded before
        two of them are added, 5 % of the sums are more than 1 % off.
        """
        w1, w2 = self.layer.w1, self.layer.w2
        more = 4 * self.ids.numel() * w2.shape[1]  # bytes: each is written and read with 2 more
        return torch.float32 if 16 * more < w1.nbytes + w2.nbytes else self.dtype

    def _first(self, hidden: Tensor, scale: Tensor | None, weights: Tensor, **order: Any) -> Tensor:
        """The rows between the stages, of all pairs."""
        layer = self.layer
        pairs = self.ids.numel()
        # Rows of pairs that are not here stay as they are made: a quantiser then reads them.
        make = torch.zeros if layer.quantiser else torch.empty
        inner = make(pairs, layer.inner, dtype=self.dtype, device=hidden.device)
        moe_gemm.run(inner, hidden, layer.w1, weights=weights if self.weighs_first else None, bias=self.bias1,
                     a_scale=scale, b_scale=layer.w1_scale, slots=self.ids.shape[1], activation=layer.activation,
                     limit=layer.limit, b_format=layer.b_format, group_size=layer.group_size,
                     is_shuffled=layer.is_shuffled, is_interleaved=layer.is_interleaved, backend=self.backend, **order)
        return inner

    def _second(self, out: Tensor, inner: Tensor, weights: Tensor, **order: Any) -> None:
        layer = self.layer
        inner, scale = _quantised(inner, layer, self.a2_scale, self.backend)
        moe_gemm.run(out, inner, layer.w2, weights=None if self.weighs_first else weights, bias=self.bias2,
                     a_scale=scale, b_scale=layer.w2_scale, slots=self.ids.shape[1], b_format=layer.b_format,
                     group_size=layer.group_size, is_shuffled=layer.is_shuffled, backend=self.backend, **order)


def _first_operand(hidden: Tensor, layer: Layer, scale: Tensor | None,
                   backend: str | None) -> tuple[Tensor, Tensor | None]:
    """hidden_states as the first product takes them, and their scales."""
    if layer.quantiser is None or hidden.dtype in SIXTEEN_BITS:
        return _quantised(hidden, layer, scale, backend)
    rows = hidden.shape[0]
    return hidden, scale.reshape(rows, -1) if layer.quantiser == "block" else scale.reshape(-1).expand(rows)


def _quantised(x: Tensor, layer: Layer, scale: Tensor | None, backend: str | None) -> tuple[Tensor, Tensor | None]:
    """Rows in 8 bits, and a scale for each or for each 128 of its columns."""
    backend = backend if backend in ("triton", "torch") else None
    (rows, columns), dtype = x.shape, layer.rows_dtype
    if layer.quantiser is None:
        return x, None
    if layer.quantiser == "tensor":
        found, scale = per_tensor_quant_hip(x, None if scale is None else scale.reshape(1), dtype, backend=backend)
        return found, scale.expand(rows)
    if layer.quantiser == "token":
        found, scale = per_token_quant_hip(x, None, dtype, backend=backend)
        return found, scale.view(rows)
    rest = -columns % 128
    found, scale = per_group_quant_hip(torch.nn.functional.pad(x, (0, rest)) if rest else x, None, dtype, 128,
                                       backend=backend)
    return found[:, :columns], scale


def _check_hidden(hidden: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """hidden_states, and the dtype of the result."""
    check.tensor(_OP, "hidden_states", hidden, rank=2, dtypes=(*SIXTEEN_BITS, *quant_rule.DTYPES))
    check_fp8(_OP, hidden, "hidden_states")
    dtype = dtype or hidden.dtype
    if dtype not in SIXTEEN_BITS:
        raise TypeError(f"{_OP}: dtype must be bf16 or fp16, got {dtype}")
    return dtype


def _check_routing(hidden: Tensor, weights: Tensor, ids: Tensor, mask: Tensor | None, local_tokens: Tensor | None,
                   experts: int) -> int:
    """Checks the experts of tokens; returns how many there are on all devices."""
    device = hidden.device
    check.tensor(_OP, "topk_ids", ids, rank=2, dtypes=(torch.int32,), shape=(hidden.shape[0], None), device=device)
    check.tensor(_OP, "topk_weight", weights, dtypes=(torch.float32,), shape=ids.shape, device=device)
    if ids.shape[1] > 127:
        raise ValueError(f"{_OP}: topk_ids must have at most 127 columns, got {ids.shape[1]}")
    if mask is not None:
        check.tensor(_OP, "expert_mask", mask, rank=1, dtypes=(torch.int32,), device=device)
        check_mask(_OP, mask, experts)
        experts = mask.shape[0]
    if local_tokens is not None:
        check.tensor(_OP, "num_local_tokens", local_tokens, dtypes=(torch.int32,), shape=(1,), device=device)
        check_local_tokens(_OP, local_tokens, ids)
    return experts


def _check_rest(layer: Layer, bias1: Tensor | None, bias2: Tensor | None, a1_scale: Tensor | None,
                a2_scale: Tensor | None, hidden: Tensor, block: int | None) -> None:
    for name, bias, weights in (("bias1", bias1, layer.w1), ("bias2", bias2, layer.w2)):
        if bias is not None:
            check.tensor(_OP, name, bias, dtypes=elements.FLOATS, shape=weights.shape[:2], device=hidden.device)
    if block is not None:
        check.integer(_OP, "block_size_M", block, low=1, high=256)
    is_quantised = hidden.dtype not in SIXTEEN_BITS
    if is_quantised and (layer.quantiser is None or hidden.dtype != layer.rows_dtype):
        raise TypeError(f"{_OP}: hidden_states must have 16 bits or the dtype of w1 with a quant_type of it, "
                        f"{layer.rows_dtype}, got {hidden.dtype}")
    rows, k = hidden.shape
    sizes = {None: (), "tensor": (1,), "token": (rows,), "block": (rows * blocks(k),)}[layer.quantiser]
    for name, scale, is_wanted in (("a1_scale", a1_scale, is_quantised), ("a2_scale", a2_scale, False)):
        if scale is None and not is_wanted:
            continue
        if scale is not None and not is_wanted and layer.quantiser != "tensor":
            raise ValueError(f"{_OP}: {name} must be None, since it is found, got {type(scale).__name__}")
        check.tensor(_OP, name, scale, dtypes=(torch.float32,), device=hidden.device, last_contiguous=False)
        if scale.numel() not in (sizes if is_wanted else (1,)):
            raise ValueError(f"{_OP}: {name} must have {sizes[0] if is_wanted else 1} elements, got shape "
                             f"{tuple(scale.shape)}")
