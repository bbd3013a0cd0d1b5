# SPDX-License-Identifier: MIT
"""AITER's description of a layer of experts in two stages: the functions of each, and the blocks they sort into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import default_target
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.moe.experts import BLOCK, Sorted, stage1, stage2
from aiter_like.ops.common import elements
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.moe_gemm_call import block_for

_OP = "get_2stage_cfgs"
_FOUR_BITS = (dtypes.i4x2, dtypes.fp4x2, torch.uint8)


@aiter("aiter.fused_moe", stays=True)
@dataclass
class MOEMetadata:
    """How a layer is computed.

    Attributes:
        stage1: `stage1(hidden_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, block_m=,
            a1_scale=, w1_scale=, sorted_weights=, bias1=)`, as `ck_moe_stage1_fwd`.
        stage2: `stage2(inter_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, block_m=,
            w2_scale=, a2_scale=, sorted_weights=, bias2=)`, as `ck_moe_stage2_fwd`.
        block_m: rows of a block to sort into.
        ksplit: 0: kernels split their sums by themselves.
        run_1stage: False: there are two.
        has_bias: stages take biases.
        use_non_temporal_load: a hint of AITER's kernels, with no meaning here; likewise all that follows.
    """

    stage1: Callable[..., Tensor] | None
    stage2: Callable[..., Tensor] | None
    block_m: int
    ksplit: int
    run_1stage: bool = False
    has_bias: bool = False
    use_non_temporal_load: bool = True
    fuse_quant: str = ""
    stage2_has_bias: bool = False
    flat: bool = False
    output_aux: bool = False
    prequant: bool = True
    skip_inter_quant: bool = False
    route_bucket: str = ""
    expected_sorted_blocks: int | None = None
    min_sorted_blocks: int | None = None
    max_sorted_blocks: int | None = None


@aiter("aiter.fused_moe", stays=True)
@functools.lru_cache(maxsize=2048)
def get_2stage_cfgs(token: int, model_dim: int, inter_dim: int, expert: int, topk: int, dtype: torch.dtype,
                    q_dtype_a: torch.dtype, q_dtype_w: torch.dtype, q_type: int, use_g1u1: bool, activation: int,
                    doweight_stage1: bool, hidden_pad: int, intermediate_pad: int, is_shuffled: bool = True,
                    gate_mode: str = "separated", is_ep: bool = False, has_stage2_bias: bool = False,
                    opus_weights_shuffled: bool | None = None, config_file: str | None = None) -> MOEMetadata:
    """The two stages of a layer of `expert` experts, of which each of `token` tokens has `topk`.

    `q_dtype_a` is the dtype of the rows that the stages are given: that of the weights where these have 8 bits, fp8
    beside words of int4, or `dtype`. Weights are shuffled where they bear the mark of shuffle_weight, whatever
    `is_shuffled` is. Padding, sizes, tables and what chooses among AITER's kernels have no meaning here.

    Raises:
        UnsupportedError: rows of another dtype, which nothing here multiplies with such weights.
    """
    for name, value in (("token", token), ("expert", expert), ("topk", topk)):
        check.integer(_OP, name, value, low=1)
    kind = QuantType(int(q_type))
    mode = getattr(gate_mode, "value", gate_mode)
    check.choice(_OP, "gate_mode", mode, (None, "separated", "interleave"))
    _check_dtypes(dtype, q_dtype_a, q_dtype_w, kind)
    given: dict[str, Any] = {"quant_type": kind, "activation": ActivationType(int(activation))}
    is_interleaved = mode == "interleave" and kind is QuantType.per_1x32
    return MOEMetadata(functools.partial(_first, dst_type=dtype, is_interleaved=is_interleaved, **given),
                       functools.partial(_second, **given), _block(token * topk, expert, kind, q_dtype_w),
                       ksplit=0, has_bias=True, stage2_has_bias=True)


def _block(pairs: int, experts: int, kind: QuantType, weights: torch.dtype) -> int:
    """The rows of a block, as fused_moe chooses them; at least 16, which every kernel takes."""
    has_kernel = weights in SIXTEEN_BITS or kind in (QuantType.per_1x128, QuantType.per_128x128)
    return max(block_for(pairs, experts, default_target().arch if has_kernel else ""), 16)


def _check_dtypes(dtype: torch.dtype, rows: torch.dtype, weights: torch.dtype, kind: QuantType) -> None:
    """Raises where no product has rows of that dtype."""
    if dtype not in SIXTEEN_BITS:
        raise TypeError(f"{_OP}: dtype must be bf16 or fp16, got {dtype}")
    accepted = {dtype: (dtype,), torch.int8: (torch.int8, dtype)}  # int8 may hold two weights of 4 bits
    accepted |= dict.fromkeys(_FOUR_BITS, (dtype,)) | {one: (one, dtype) for one in elements.FP8}
    accepted[torch.uint32] = (*elements.FP8, dtype)
    if weights not in accepted or (weights == dtype) != (kind is QuantType.No):
        raise UnsupportedError(f"{_OP}: q_dtype_w {weights} with {kind} and dtype {dtype} is not served")
    if rows not in accepted[weights]:
        raise UnsupportedError(f"{_OP}: q_dtype_a must be {' or '.join(map(str, accepted[weights]))} with q_dtype_w "
                               f"{weights}, got {rows}")


def _first(hidden_states: Tensor, w1: Tensor, w2: Tensor, sorted_token_ids: Tensor, sorted_expert_ids: Tensor,
           num_valid_ids: Tensor, out: Tensor, topk: int, block_m: int | None = BLOCK, a1_scale: Tensor | None = None,
           w1_scale: Tensor | None = None, sorted_weights: Tensor | None = None, bias1: Tensor | None = None,
           kernelName: str = "", splitk: int | None = 0, dst_type: torch.dtype | None = None,
           use_non_temporal_load: bool | None = False, *, quant_type: int, activation: int,
           is_interleaved: bool = False) -> Tensor:
    """`ck_moe_stage1_fwd` with a bias."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, block_m or BLOCK)
    return stage1("ck_moe_stage1_fwd", hidden_states, (w1, w2), order, out, quant_type, activation, a1_scale, w1_scale,
                  bias1, is_interleaved)


def _second(inter_states: Tensor, w1: Tensor, w2: Tensor, sorted_token_ids: Tensor, sorted_expert_ids: Tensor,
            num_valid_ids: Tensor, out: Tensor, topk: int, block_m: int | None = BLOCK, w2_scale: Tensor | None = None,
            a2_scale: Tensor | None = None, sorted_weights: Tensor | None = None, bias2: Tensor | None = None,
            kernelName: str = "", use_non_temporal_load: bool | None = False, *, quant_type: int,
            activation: int) -> Tensor:
    """`ck_moe_stage2_fwd` with a bias."""
    order = Sorted(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, block_m or BLOCK)
    return stage2("ck_moe_stage2_fwd", inter_states, (w1, w2), order, out, quant_type, activation, a2_scale, w2_scale,
                  bias2)
