# SPDX-License-Identifier: MIT
"""The products of experts: each token's row, or that of each pair of token and expert, with the expert's matrix.

What moe_sorting has sorted is multiplied block by block, a block being of one expert; few pairs need no sorting. Both
stages of a layer are calls of it: gate and up of chosen tokens, with the activation, and down.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like.device import Target, model_of
from aiter_like.dispatch import Backend, Op
from aiter_like.ops.activation.parts import gated
from aiter_like.ops.gemm.parts import after_product
from aiter_like.ops.layout.shuffle_weight import unshuffle_weight
from aiter_like.ops.moe import moe_gemm_blocks, moe_gemm_ck, moe_gemm_hip
from aiter_like.ops.moe.moe_formats import MXFP4_GROUP, SCALE_BLOCK, power_of_two, widened
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, has_block_scales, is_gated, pair_count
from aiter_like.ops.moe.moe_gemm_cases import cases
from aiter_like.ops.moe.moe_gemm_checks import check_call
from aiter_like.ops.moe.moe_gemm_tuning import MoeGemmKey, traffic

_OP = "moe_gemm"


def pairs_of(call: MoeGemmCall) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs that a call multiplies: their numbers, their experts, and their places among the weights."""
    device, count = call.a.device, call.b.shape[0]
    if call.sorted_ids is None:
        experts = call.experts.long()
        place = pair = torch.arange(len(experts), device=device)
    else:
        end = min(max(int(call.valid[0]), 0), call.sorted_ids.shape[0], call.experts.shape[0] * call.block)
        numbers = call.sorted_ids[:end].long()
        place = torch.arange(end, device=device)
        experts = call.experts.long()[place // call.block]
        token, slot = numbers & 0xFFFFFF, numbers >> 24
        pair = torch.where((slot >= 0) & (slot < call.slots), token * call.slots + slot, -1)
    is_here = (experts >= 0) & (experts < count) & (pair >= 0) & (pair < pair_count(call))
    return pair[is_here], experts[is_here], place[is_here]


def moe_gemm_ref(call: MoeGemmCall) -> None:
    """The formula in torch, in fp32; writes `out`. Looks at what was sorted."""
    pair, expert, place = pairs_of(call)
    rows = pair if call.a.shape[0] == pair_count(call) else pair // call.slots
    columns = call.out.shape[1]
    found = torch.zeros(len(pair), columns, device=call.a.device, dtype=torch.float32)
    for one in expert.unique().tolist():
        mine = expert == one
        product = _product(call, rows[mine], one)
        if call.bias is not None:
            product = product + call.bias[one].float()
        if call.weights is not None:
            product = product * call.weights[place[mine], None]
        found[mine] = activated_rows(product, call.activation, call.limit, call.is_interleaved)
    if not call.sums_slots:
        call.out[pair] = found.to(call.out.dtype)
        return
    of_pairs = torch.zeros(pair_count(call), columns, device=call.a.device, dtype=torch.float32)
    of_pairs[pair] = found
    call.out.copy_(of_pairs.view(-1, call.slots, columns).sum(1))


def _product(call: MoeGemmCall, rows: Tensor, expert: int) -> Tensor:
    """The scaled product of chosen rows with one expert's matrix."""
    a, b = call.a[rows].float(), call.b[expert]
    if call.is_shuffled:
        b = unshuffle_weight(b)
    k = call.a.shape[1]
    weights = widened(b, call.b_format)
    if call.b_scale is not None:
        scale = call.b_scale[expert]
        scale = power_of_two(scale) if call.b_format == "mxfp4" else scale.float()
        if call.group_size == 0:
            scale = scale[:, None]
        elif has_block_scales(call):
            scale = scale.repeat_interleave(SCALE_BLOCK, 0)[:len(weights)]
        if call.group_size:
            scale = scale.repeat_interleave(call.group_size, 1)[:, :k]
        weights = weights * scale
    if call.a_scale is not None:
        scale = call.a_scale[rows]
        a = a * (scale[:, None] if scale.ndim == 1 else scale.repeat_interleave(SCALE_BLOCK, 1)[:, :k])
    return a @ weights.t()


def activated_rows(product: Tensor, activation: str, limit: float, is_interleaved: bool) -> Tensor:
    """Applies an activation to a product's rows, in torch."""
    if not is_gated(activation):
        return after_product(product, activation)
    if is_interleaved:
        product = torch.cat((product[:, ::2], product[:, 1::2]), 1)
    return gated(product, activation.removesuffix("_and_mul"), limit)


class Tiles(NamedTuple):
    """Numbers of configs/gfx942/moe.toml."""

    least_block: int
    least_block_of_gates: int


def _prefers(target: Target, call: MoeGemmCall) -> str | None:
    """The backend that comes first where no row says what is fastest. Layers of 16 to 512 tokens took 2 to 46 % longer
    by the portable hip kernel (H100: Mixtral, Qwen3, DeepSeek-V3 and GPT-OSS in bf16). Times on gfx942 are modelled:
    hip takes 15 to 50 % longer than Triton for pairs that are not sorted, with weights of fewer bits, where their
    results are not added up; with scales for 32 weights, also where they are."""
    if target.platform == "cuda":
        return "triton"
    if call.sorted_ids is not None:
        least = model_of("gfx942", "moe.tiles", Tiles)
        gates = is_gated(call.activation)
        return "ck" if call.block >= (least.least_block_of_gates if gates else least.least_block) else None
    is_of_small_groups = call.b_format != "mxfp4" and call.group_size == MXFP4_GROUP
    is_packed = call.b_format != "same"
    return "triton" if is_packed and (not call.sums_slots or is_of_small_groups) else None


moe_gemm = Op(
    _OP, call=MoeGemmCall, reference=moe_gemm_ref, check=check_call, key=MoeGemmKey, round_field="pairs", cases=cases,
    traffic=traffic, sums_in_fp32=True, prefers=_prefers,
    backends=(Backend("hip", moe_gemm_hip.moe_gemm_hip, refusal=moe_gemm_hip.refusal, space=moe_gemm_hip.space),
              Backend("ck", moe_gemm_ck.moe_gemm_ck, refusal=moe_gemm_ck.ck_refusal, space=moe_gemm_ck.ck_space,
                      cost=moe_gemm_ck.ck_cost),
              Backend("triton", "ops.moe.triton.moe_gemm:moe_gemm", refusal=moe_gemm_blocks.refusal,
                      kernels=moe_gemm_blocks.kernels, space=moe_gemm_blocks.space),
              Backend("torch", moe_gemm_ref)))
