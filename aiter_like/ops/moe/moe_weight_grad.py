# SPDX-License-Identifier: MIT
"""The derivatives of experts' matrices: for each expert the product of what its pairs' results and inputs have.

Kernel: ops/moe/triton/moe_weight_grad.py. Read by moe_backward.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
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
        out: zeros of experts without pairs.
        g, a: of as many rows as pairs, or as tokens: a token's row is that of each of its pairs.
        experts: [blocks]: the expert of each block; one that `out` does not have: the block is left out.
        sorted_ids: [blocks · block]: slot << 24 | token, and other numbers in padding.
        valid: [1] or more: as many places of `sorted_ids` count.
        tokens: how many there are.
        slots: experts of a token.
        block: places of `sorted_ids` that share an expert.
    """

    out: Annotated[Tensor, "_ n k", elements.FLOATS]
    g: Annotated[Tensor, "_ n", SIXTEEN_BITS]
    a: Annotated[Tensor, "_ k", "g"]
    experts: Annotated[Tensor, "_", torch.int32]
    sorted_ids: Annotated[Tensor, "_", torch.int32]
    valid: Annotated[Tensor, "_", torch.int32]
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
    check.integer(_OP, "tokens", call.tokens, low=0, high=2**24)
    check.integer(_OP, "slots", call.slots, low=1, high=127)
    check.integer(_OP, "block", call.block, low=1, high=_MOST_BLOCK)
    for name, one in (("g", call.g), ("a", call.a)):
        if one.shape[0] not in (call.tokens, call.tokens * call.slots):
            raise ValueError(f"{_OP}: {name} must have {call.tokens * call.slots} rows, one for each pair, or "
                             f"{call.tokens}, one for each token, got {one.shape[0]}")
    if call.valid.shape[0] < 1:
        raise ValueError(f"{_OP}: valid must have an element, got none")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: MoeWeightGradCall) -> str | None:
    experts, n, k = call.out.shape
    if experts > _MOST_EXPERTS or experts * -(-n // 64) * -(-k // 64) >= _MOST_PROGRAMS:
        return (f"out must have at most {_MOST_EXPERTS} experts and less than 2^23 tiles of 64 × 64, got shape "
                f"{tuple(call.out.shape)}")
    return None


class MoeWeightGradKey(NamedTuple):
    """The fields that a tuned row of moe_weight_grad is chosen by."""

    pairs: int
    experts: int
    n: int
    k: int
    slots: int
    block: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: MoeWeightGradCall) -> MoeWeightGradKey:
        return cls(call.tokens * call.slots, *call.out.shape, call.slots, call.block, dtypes.name(call.g.dtype),
                   dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int, is_second: bool = False,
             leaves_out: bool = False) -> MoeWeightGradCall:
        """Makes results of pairs and inputs of tokens, of a first or a second product; `leaves_out`: the last expert
        has no pair, and a block does not count."""
        tokens, random = -(-self.pairs // self.slots), tune_shapes.normal(device, seed, self.dtype)
        numbers, _, of_blocks, valid = sorted_case(device, tokens, self.slots, self.experts - leaves_out, self.block,
                                                   seed)
        if leaves_out:
            of_blocks[1] = -1
        out = torch.empty(self.experts, self.n, self.k, dtype=dtypes.DTYPES[self.out_dtype], device=device)
        rows = (tokens, tokens * self.slots) if is_second else (tokens * self.slots, tokens)
        return MoeWeightGradCall(out, random(rows[0], self.n), random(rows[1], self.k), of_blocks, numbers, valid,
                                 tokens, self.slots, self.block)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[MoeWeightGradKey]:
        """The keys of models with experts: both matrices, in the blocks that moe_backward.py sorts into."""
        for matrices, n, k in tune_shapes.linear_weights(model, tp):
            if matrices > 1:
                pairs = tokens * model.experts_per_token
                for block in sorted({block_for(pairs, matrices, arch) for arch in ("", "sm_90")}):
                    yield cls(pairs, matrices, n, k, model.experts_per_token, block, model.dtype, model.dtype)


def _traffic(call: MoeWeightGradCall) -> tuple[int, int]:
    moved = sum(one.numel() * one.element_size() for one in call[:6])
    return moved, 2 * call.tokens * call.slots * call.g.shape[1] * call.a.shape[1]


def _space(target: Target, call: MoeWeightGradCall) -> Iterator[dict[str, int]]:
    for block_n, block_k, num_warps in ((64, 64, 4), (64, 128, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8)):
        for block_p in (32, 64):
            for num_stages in (2, 3, 4):
                yield dict(zip(BLOCKS, (block_n, block_k, block_p, num_warps, num_stages)))


_CASE = MoeWeightGradKey(255, 6, 136, 200, 3, 16, "bf16", "bf16")  # several tiles and steps

moe_weight_grad = Op(
    _OP, call=MoeWeightGradCall, reference=moe_weight_grad_ref, check=_check, key=MoeWeightGradKey,
    round_field="pairs",
    cases={"first": (_CASE, {"leaves_out": True}),
           "second, fp32": (_CASE._replace(out_dtype="fp32"), {"leaves_out": True, "is_second": True}),
           "fp16": (_CASE._replace(dtype="fp16", out_dtype="fp16"), {"leaves_out": True})},
    traffic=_traffic, sums_in_fp32=True,
    backends=(Backend("triton", "ops.moe.triton.moe_weight_grad:moe_weight_grad", refusal=_refusal, space=_space),
              Backend("torch", moe_weight_grad_ref)))
