# SPDX-License-Identifier: MIT
"""The derivatives of experts' matrices: for each expert the product of what its pairs' results and inputs have.

Kernel: ops/moe/triton/moe_weight_grad.py. Read by moe_backward.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.moe_gemm_call import block_for
from aiter_like.ops.moe.moe_gemm_cases import sorted_case

_OP = "moe_weight_grad"
_MOST_PROGRAMS = 2**23  # AMD counts the lanes of a launch in 32 bits
_MOST_EXPERTS = 65535  # the second dimension of a launch
_MOST_BLOCK = 256
BLOCKS = ("block_n", "block_k", "block_p", "num_warps", "num_stages")


class MoeWeightGradCall(NamedTuple):
    """One call of moe_weight_grad: `out[e] = Σ over the pairs of e of g[pair]ᵀ · a[pair]`.

    Attributes:
        out: [experts, n, k], written, zeros of experts without pairs; bf16|fp16|fp32, of any strides but that of k.
        g: [pairs, n] or [tokens, n], of which a token's row is that of each of its pairs; bf16|fp16, rows evenly
            spaced.
        a: [pairs, k] or [tokens, k] likewise, dtype of `g`.
        experts: [blocks] int32: the expert of each block; one that `out` does not have: the block is left out.
        sorted_ids: [blocks · block] int32: slot << 24 | token, and other numbers in padding.
        valid: [1] int32 or more: as many places of `sorted_ids` count.
        tokens: how many there are.
        slots: experts of a token.
        block: places of `sorted_ids` that share an expert.
    """

    out: Tensor
    g: Tensor
    a: Tensor
    experts: Tensor
    sorted_ids: Tensor
    valid: Tensor
    tokens: int = 1
    slots: int = 1
    block: int = 16


def moe_weight_grad_ref(call: MoeWeightGradCall) -> None:
    """The formula in torch, in fp32; writes `out`. Looks at what was sorted."""
    end = min(max(int(call.valid[0]), 0), call.sorted_ids.shape[0], call.experts.shape[0] * call.block)
    numbers = call.sorted_ids[:end].long()
    experts = call.experts.long()[torch.arange(end, device=call.g.device) // call.block]
    token, slot = numbers & 0xFFFFFF, numbers >> 24
    is_pair = (slot >= 0) & (slot < call.slots) & (token < call.tokens)
    for expert in range(call.out.shape[0]):
        mine = is_pair & (experts == expert)
        rows = [token[mine] if one.shape[0] == call.tokens else token[mine] * call.slots + slot[mine]
                for one in (call.g, call.a)]
        call.out[expert] = (call.g[rows[0]].float().t() @ call.a[rows[1]].float()).to(call.out.dtype)


def _check(call: MoeWeightGradCall) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    device = call.g.device
    check.integer(_OP, "tokens", call.tokens, low=0, high=2**24)
    check.integer(_OP, "slots", call.slots, low=1, high=127)
    check.integer(_OP, "block", call.block, low=1, high=_MOST_BLOCK)
    check.tensor(_OP, "g", call.g, rank=2, dtypes=SIXTEEN_BITS)
    check.tensor(_OP, "a", call.a, rank=2, dtypes=(call.g.dtype,), device=device)
    for name, one in (("g", call.g), ("a", call.a)):
        if one.shape[0] not in (call.tokens, call.tokens * call.slots):
            raise ValueError(f"{_OP}: {name} must have {call.tokens * call.slots} rows, one for each pair, or "
                             f"{call.tokens}, one for each token, got {one.shape[0]}")
    check.tensor(_OP, "out", call.out, dtypes=elements.FLOATS, shape=(None, call.g.shape[1], call.a.shape[1]),
                 device=device)
    for name in ("experts", "sorted_ids", "valid"):
        check.tensor(_OP, name, getattr(call, name), rank=1, dtypes=(torch.int32,), device=device)
    if call.valid.shape[0] < 1:
        raise ValueError(f"{_OP}: valid must have an element, got none")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: MoeWeightGradCall) -> str | None:
    experts, n, k = call.out.shape
    if experts > _MOST_EXPERTS or experts * -(-n // 64) * -(-k // 64) >= _MOST_PROGRAMS:
        return (f"out must have at most {_MOST_EXPERTS} experts and less than 2^23 tiles of 64 × 64, got shape "
                f"{tuple(call.out.shape)}")
    return None


def _tune_key(call: MoeWeightGradCall) -> dict[str, int | str]:
    experts, n, k = call.out.shape
    return {"pairs": call.tokens * call.slots, "experts": experts, "n": n, "k": k, "slots": call.slots,
            "block": call.block, "dtype": dtypes.name(call.g.dtype), "out_dtype": dtypes.name(call.out.dtype)}


def _case(key: Mapping[str, Any], device: torch.device, seed: int) -> MoeWeightGradCall:
    """Of a first product: results of pairs, inputs of tokens."""
    experts, n, k, slots, block = (key[name] for name in ("experts", "n", "k", "slots", "block"))
    tokens = -(-key["pairs"] // slots)
    random = tune_shapes.normal(device, seed, key["dtype"])
    numbers, _, of_blocks, valid = sorted_case(device, tokens, slots, experts, block, seed)
    out = torch.empty(experts, n, k, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return MoeWeightGradCall(out, random(tokens * slots, n), random(tokens, k), of_blocks, numbers, valid, tokens,
                             slots, block)


def _traffic(call: MoeWeightGradCall) -> tuple[int, int]:
    moved = sum(one.numel() * one.element_size() for one in call[:6])
    return moved, 2 * call.tokens * call.slots * call.g.shape[1] * call.a.shape[1]


def _shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Of models with experts: both matrices, in the blocks that moe_backward.py sorts into."""
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        if matrices > 1:
            pairs = tokens * model.experts_per_token
            for block in sorted({block_for(pairs, matrices, arch) for arch in ("", "sm_90")}):
                yield {"pairs": pairs, "experts": matrices, "n": n, "k": k, "slots": model.experts_per_token,
                       "block": block, "dtype": model.dtype, "out_dtype": model.dtype}


def _cases(device: torch.device) -> dict[str, MoeWeightGradCall]:
    """Both products of a layer, of several tiles and steps, with an expert that has no pair and a block that is left
    out."""
    random = tune_shapes.normal(device, 0, "bf16")
    numbers, _, of_blocks, valid = sorted_case(device, 85, 3, 5, 16)
    of_blocks[1] = -1
    out = torch.empty(6, 136, 200, dtype=torch.bfloat16, device=device)
    first = MoeWeightGradCall(out, random(255, 136), random(85, 200), of_blocks, numbers, valid, 85, 3, 16)
    return {"first": first, "second, fp32": first._replace(out=out.float(), g=random(85, 136), a=random(255, 200)),
            "fp16": first._replace(g=first.g.half(), a=first.a.half(), out=out.half())}


def _space(target: Target, call: MoeWeightGradCall) -> Iterator[dict[str, int]]:
    for block_n, block_k, num_warps in ((64, 64, 4), (64, 128, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8)):
        for block_p in (32, 64):
            for num_stages in (2, 3, 4):
                yield dict(zip(BLOCKS, (block_n, block_k, block_p, num_warps, num_stages)))


moe_weight_grad = Op(
    _OP, call=MoeWeightGradCall, reference=moe_weight_grad_ref, check=_check, tune_key=_tune_key,
    tune_fields=("pairs", "experts", "n", "k", "slots", "block", "dtype", "out_dtype"), round_field="pairs",
    cases=_cases, tuning=Tuning(_case, traffic=_traffic, shapes=_shapes), sums_in_fp32=True,
    backends=(Backend("triton", "ops.moe.triton.moe_weight_grad:moe_weight_grad", refusal=_refusal, space=_space),
              Backend("torch", moe_weight_grad_ref)))
