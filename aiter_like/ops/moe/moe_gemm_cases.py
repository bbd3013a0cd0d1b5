# SPDX-License-Identifier: MIT
"""Calls of moe_gemm by which it is checked and tuned. Read by moe_gemm.py and the tests."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.layout.shuffle_weight import shuffle_weight
from aiter_like.ops.moe.moe_gemm_call import SWIGLU, MoeGemmCall
from aiter_like.ops.moe.moe_sorting import capacity


def sorted_case(device: torch.device, tokens: int, slots: int, experts: int, block: int,
                seed: int = 0) -> tuple[Tensor, ...]:
    """Random pairs as moe_sorting sorts them, and no more places than these may take: sorted_ids, weights, experts,
    valid."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, experts, generator=generator).topk(slots, 1).indices
    places = capacity(tokens * slots, experts, block)
    if ids.is_meta:  # Who plans a build asks for sizes alone.
        return tuple(ids.new_empty(size, dtype=dtype) for size, dtype in (
            (places, torch.int32), (places, torch.float32), (places // block, torch.int32), (2, torch.int32)))
    of_pairs, pairs = ids.flatten().sort(stable=True)
    counts = of_pairs.bincount(minlength=experts)
    taken = -(-counts // block)  # blocks
    before = block * (taken.cumsum(0) - taken) - (counts.cumsum(0) - counts)
    numbers = torch.full((places,), slots << 24 | tokens, dtype=torch.int32)
    numbers[before[of_pairs] + torch.arange(tokens * slots)] = (pairs % slots << 24 | pairs // slots).int()
    of_blocks = torch.zeros(places // block, dtype=torch.int32)
    end = block * int(taken.sum())
    of_blocks[:end // block] = torch.arange(experts, dtype=torch.int32).repeat_interleave(taken)
    weights = torch.rand(places, generator=generator)
    valid = torch.tensor([end, tokens], dtype=torch.int32)
    return tuple(one.to(device) for one in (numbers, weights, of_blocks, valid))


def cases(device: torch.device) -> dict[str, MoeGemmCall]:
    """Gates of chosen tokens and what follows them, in every format; few pairs that are not sorted; experts that are
    not here."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    tokens, slots, experts, k, inner = 21, 3, 5, 128, 64
    numbers, weights, of_blocks, valid = sorted_case(device, tokens, slots, experts, 16)
    of_blocks[1] = -1
    order = {"sorted_ids": numbers, "valid": valid, "slots": slots, "block": 16}
    fp8 = dtypes.fp8_of(target_of(device).arch)
    out = torch.zeros(tokens * slots, inner, dtype=torch.bfloat16, device=device)
    gates = MoeGemmCall(out, random(tokens, k).bfloat16(), random(experts, 2 * inner, k).bfloat16(), of_blocks,
                        activation="silu_and_mul", **order)
    down = MoeGemmCall(torch.zeros(tokens * slots, k, dtype=torch.bfloat16, device=device),
                       random(tokens * slots, inner).bfloat16(), random(experts, k, inner).bfloat16(), of_blocks,
                       weights=weights, bias=random(experts, k), **order)
    rows, scales = random(tokens).abs() + 0.1, random(experts, 2 * inner).abs() + 0.1
    grouped = random(experts, 2 * inner, k // 32).abs() + 0.1
    packed = torch.randint(-128, 128, (experts, 2 * inner, k // 2), generator=generator, dtype=torch.int8).to(device)
    ids = torch.randint(-1, experts + 1, (4 * slots,), generator=generator, dtype=torch.int32).to(device)
    few = {"sorted_ids": None, "valid": None, "block": 1, "experts": ids}
    numbers, weights, of_blocks, valid = sorted_case(device, tokens, slots, experts, 64)
    wide = {"sorted_ids": numbers, "valid": valid, "block": 64, "experts": of_blocks}
    rows_of_pairs = random(tokens * slots, 1).abs() + 0.1
    return {
        "gates": gates, "down": down, "gates, 64 places": gates._replace(**wide),
        "fp8, blocks, 64 places": down._replace(
            a=down.a.to(fp8), b=down.b.to(fp8), a_scale=rows_of_pairs, b_scale=scales[:, :1, None], group_size=128,
            weights=weights, **wide),
        "shuffled": gates._replace(b=shuffle_weight(gates.b), is_shuffled=True),
        "fp8": gates._replace(a=gates.a.to(fp8), b=gates.b.to(fp8), a_scale=rows, b_scale=scales),
        "int8": gates._replace(a=(random(tokens, k) * 40).to(torch.int8), a_scale=rows, b_scale=scales,
                               b=(random(experts, 2 * inner, k) * 40).to(torch.int8)),
        "fp8, blocks": gates._replace(a=gates.a.to(fp8), b=gates.b.to(fp8), a_scale=rows[:, None], group_size=128,
                                      b_scale=scales[:, :1, None]),
        "fp8 weights": gates._replace(b=gates.b.to(fp8), b_format="fp8", group_size=128, b_scale=scales[:, :1, None]),
        "int4 weights beside fp8": gates._replace(a=gates.a.to(fp8), b=packed, b_format="int4_words", a_scale=rows,
                                                  b_scale=scales),
        "int4 weights": gates._replace(b=packed, b_format="int4", group_size=32, b_scale=grouped),
        "mxfp4 weights": gates._replace(
            b=packed.view(torch.uint8), b_format="mxfp4", group_size=32, activation=SWIGLU, limit=7.0,
            is_interleaved=True, b_scale=(grouped * 4 + 120).to(torch.uint8)),
        "few": gates._replace(a=gates.a[:4], out=out[:4 * slots].clone(), **few),
        "few, summed": down._replace(a=down.a[:4 * slots], out=down.out[:4].clone(), weights=weights[:4 * slots],
                                     sums_slots=True, **few)}
