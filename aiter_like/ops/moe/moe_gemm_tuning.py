# SPDX-License-Identifier: MIT
"""What the tuner needs to know of moe_gemm: calls by key, what they move, the products of models with experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.gemm import problems
from aiter_like.ops.layout.shuffle_weight import shuffle_weight
from aiter_like.ops.moe.moe_formats import MXFP4_GROUP, SCALE_BLOCK, per_byte
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, block_for, blocks, pair_count
from aiter_like.ops.moe.moe_gemm_cases import sorted_case


def case(key: Mapping[str, Any], device: torch.device, seed: int) -> MoeGemmCall:
    """Pairs as an even router makes them, in bf16 out; a block of 1 stands for pairs that are not sorted."""
    random, generator = tune_shapes.normal(device, seed, "bf16"), torch.Generator().manual_seed(seed)
    pairs, experts, n, k, slots = (key[name] for name in ("pairs", "experts", "n", "k", "slots"))
    tokens = -(-pairs // slots)
    if key["block"] == 1:
        ids = torch.randint(experts, (pairs,), generator=generator, dtype=torch.int32).to(device)
        order: dict[str, Any] = {"experts": ids}
    else:
        numbers, _, of_blocks, valid = sorted_case(device, tokens, slots, experts, key["block"], seed)
        order = {"experts": of_blocks, "sorted_ids": numbers, "valid": valid, "block": key["block"]}
    rows = pairs if key["is_of_pairs"] else tokens
    dtype, b_format = dtypes.DTYPES[key["dtype"]], key["b_dtype"]
    is_wide = dtype in problems.SIXTEEN_BITS
    if b_format == "same":
        a, b = problems.operands(random, dtype, (rows, k), (experts, n, k))
    else:
        a = random(rows, k).to(dtype)
        stored = (experts, n, k // per_byte(b_format))
        b = torch.randint(-128, 128, stored, generator=torch.Generator(device).manual_seed(seed), device=device,
                          dtype=torch.int8).view(torch.uint8 if b_format == "mxfp4" else torch.int8)
        if b_format == "fp8":  # bits of any kind may be NaN
            b = random(experts, n, k).to(dtypes.fp8_of(target_of(device).arch))
    columns = n // 2 if key["is_gated"] else n
    return MoeGemmCall(
        torch.empty(pairs, columns, dtype=torch.bfloat16, device=device), a,
        shuffle_weight(b) if key["is_shuffled"] else b, slots=slots,
        activation="silu_and_mul" if key["is_gated"] else "none", b_format=b_format, group_size=key["group_size"],
        is_shuffled=bool(key["is_shuffled"]), **order, **_scales(key, rows, is_wide, device, seed))


def _scales(key: Mapping[str, Any], rows: int, is_wide: bool, device: torch.device, seed: int) -> dict[str, Tensor]:
    """Of a format, such that results are about 1."""
    experts, n, k, group_size = (key[name] for name in ("experts", "n", "k", "group_size"))
    given = {"generator": torch.Generator(device).manual_seed(seed + 1), "device": device}
    if is_wide and key["b_dtype"] == "same":
        return {}
    if key["b_dtype"] == "mxfp4":
        shape = (experts, n, -(-k // MXFP4_GROUP))
        return {"b_scale": torch.randint(118, 124, shape, dtype=torch.uint8, **given)}
    of_blocks = group_size and (not is_wide or key["b_dtype"] == "fp8")
    shape = (blocks(n), blocks(k)) if of_blocks else (n, -(-k // group_size)) if group_size else (n,)
    b_scale = (torch.rand(experts, *shape, **given) + 0.5) / k**0.5 / (40 if key["dtype"] == "int8" else 1)
    if is_wide:
        return {"b_scale": b_scale}
    return {"b_scale": b_scale, "a_scale": torch.rand((rows, blocks(k)) if of_blocks else (rows,), **given) + 0.5}


def traffic(call: MoeGemmCall) -> tuple[int, int]:
    """(bytes, flops): the weights of each expert that has a pair once, and the rest as it is."""
    live = call.experts
    if call.valid is not None:
        live = live[:-(-int(call.valid[0]) // call.block)]
    touched = live[(live >= 0) & (live < call.b.shape[0])].unique().numel()
    of_experts = [one for one in (call.b, call.b_scale, call.bias) if one is not None]
    others = [one for one in (call.out, call.a, call.a_scale, call.sorted_ids, call.experts, call.weights)
              if one is not None]
    moved = sum(one.numel() * one.element_size() for one in of_experts) * touched // max(call.b.shape[0], 1)
    moved += sum(one.numel() * one.element_size() for one in others)
    return moved, 2 * pair_count(call) * call.b.shape[1] * call.a.shape[1]


def shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Of models with experts: gate and up of each token's experts, and down; in 16 bits, in fp8 with blocks of scales
    and, as GPT-OSS has them, with weights of mxfp4; in the blocks that fused_moe sorts into."""
    formats = ((model.dtype, "same", 0), (tune_shapes.fp8_name(), "same", SCALE_BLOCK),
               (model.dtype, "mxfp4", MXFP4_GROUP))
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        if matrices == 1:
            continue
        is_first = k == model.hidden_size
        pairs = tokens * model.experts_per_token
        for dtype, b_format, group_size in formats:
            if k % per_byte(b_format):
                continue
            sorted_in = {block_for(pairs, matrices, arch) for arch in ("", "sm_90") if arch == "" or b_format == "same"}
            for block in (1,) if tokens == 1 else sorted(sorted_in):
                yield {"pairs": pairs, "experts": matrices, "n": n, "k": k, "slots": model.experts_per_token,
                       "block": block, "dtype": dtype, "b_dtype": b_format, "group_size": group_size,
                       "is_gated": int(is_first), "is_of_pairs": int(not is_first), "is_shuffled": 0}


def smaller(key: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Fewer experts of as many rows each; then fewer pairs, of the slots that are left."""
    while key["experts"] > 1:
        experts = -(-key["experts"] // 2)
        slots = min(key["slots"], experts)
        tokens = max(key["pairs"] // key["slots"] * key["slots"] // (2 * slots), 1)
        key = {**key, "experts": experts, "slots": slots, "pairs": tokens * slots,
               "is_of_pairs": 1 if slots == 1 else key["is_of_pairs"]}
        yield key
