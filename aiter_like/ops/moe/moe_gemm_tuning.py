# SPDX-License-Identifier: MIT
"""The key that tuned rows of moe_gemm are chosen by, and what else the tuner needs. Read by moe_gemm.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.gemm import problems
from aiter_like.ops.layout.shuffle_weight import shuffle_weight
from aiter_like.ops.moe.moe_formats import MXFP4_GROUP, SCALE_BLOCK, per_byte
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, block_for, blocks, is_gated, pair_count
from aiter_like.ops.moe.moe_gemm_cases import sorted_case


class MoeGemmKey(NamedTuple):
    """The fields that a tuned row of moe_gemm is chosen by: a block of 1 stands for pairs that are not sorted."""

    pairs: int
    experts: int
    n: int
    k: int
    slots: int
    block: int
    dtype: str
    b_dtype: str
    group_size: int
    is_gated: bool
    is_of_pairs: bool
    is_shuffled: bool = False

    @classmethod
    def of(cls, call: MoeGemmCall) -> MoeGemmKey:
        pairs, rows = pair_count(call), call.a.shape[0]
        return cls(pairs, *call.b.shape[:2], call.a.shape[1], call.slots, call.block, dtypes.name(call.a.dtype),
                   call.b_format, call.group_size, is_gated(call.activation), rows == pairs, call.is_shuffled)

    def make(self, device: torch.device, seed: int) -> MoeGemmCall:
        """Pairs as an even router makes them, in bf16 out."""
        random, generator = tune_shapes.normal(device, seed, "bf16"), torch.Generator().manual_seed(seed)
        pairs, experts, n, k, slots, block = self[:6]
        tokens = -(-pairs // slots)
        if not self.is_of_pairs and tokens * slots != pairs:
            raise ValueError(f"moe_gemm: pairs must be a multiple of slots, {slots}, where a has a row for each token, "
                             f"got {pairs}")
        if block == 1:
            ids = torch.randint(experts, (pairs,), generator=generator, dtype=torch.int32).to(device)
            order: dict[str, Any] = {"experts": ids}
        else:
            numbers, _, of_blocks, valid = sorted_case(device, tokens, slots, experts, block, seed)
            order = {"experts": of_blocks, "sorted_ids": numbers, "valid": valid, "block": block}
        rows, dtype = pairs if self.is_of_pairs else tokens, dtypes.DTYPES[self.dtype]
        if self.b_dtype == "same":
            a, b = problems.operands(random, dtype, (rows, k), (experts, n, k))
        else:
            a, b = random(rows, k).to(dtype), self._packed(random, device, seed)
        return MoeGemmCall(
            torch.empty(pairs, n // 2 if self.is_gated else n, dtype=torch.bfloat16, device=device), a,
            shuffle_weight(b) if self.is_shuffled else b, slots=slots,
            activation="silu_and_mul" if self.is_gated else "none", b_format=self.b_dtype, group_size=self.group_size,
            is_shuffled=bool(self.is_shuffled), **order, **self._scales(rows, device, seed))

    def _packed(self, random: Any, device: torch.device, seed: int) -> Tensor:
        """Weights of a format that is not the activations'."""
        if self.b_dtype == "fp8":  # bits of any kind may be NaN
            return random(self.experts, self.n, self.k).to(dtypes.fp8_of(target_of(device).arch))
        stored = (self.experts, self.n, self.k // per_byte(self.b_dtype))
        b = torch.randint(-128, 128, stored, generator=torch.Generator(device).manual_seed(seed), device=device,
                          dtype=torch.int8)
        return b.view(torch.uint8) if self.b_dtype == "mxfp4" else b

    def _scales(self, rows: int, device: torch.device, seed: int) -> dict[str, Tensor]:
        """Scales of a format, such that results are about 1."""
        (_, experts, n, k), group_size, dtype = self[:4], self.group_size, dtypes.DTYPES[self.dtype]
        given = {"generator": torch.Generator(device).manual_seed(seed + 1), "device": device}
        is_wide = dtype in problems.SIXTEEN_BITS
        if is_wide and self.b_dtype == "same":
            return {}
        if self.b_dtype == "mxfp4":
            shape = (experts, n, -(-k // MXFP4_GROUP))
            return {"b_scale": torch.randint(118, 124, shape, dtype=torch.uint8, **given)}
        of_blocks = group_size and (not is_wide or self.b_dtype == "fp8")
        shape = (blocks(n), blocks(k)) if of_blocks else (n, -(-k // group_size)) if group_size else (n,)
        b_scale = (torch.rand(experts, *shape, **given) + 0.5) / k**0.5 / (40 if dtype == torch.int8 else 1)
        if is_wide:
            return {"b_scale": b_scale}
        return {"b_scale": b_scale, "a_scale": torch.rand((rows, blocks(k)) if of_blocks else (rows,), **given) + 0.5}

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[MoeGemmKey]:
        """The keys of models with experts: gate and up of each token's experts, and down; in 16 bits, in fp8 with
        blocks of scales and, as GPT-OSS has them, with weights of mxfp4; in the blocks that fused_moe sorts into."""
        formats = ((model.dtype, "same", 0), (tune_shapes.fp8_name(), "same", SCALE_BLOCK),
                   (model.dtype, "mxfp4", MXFP4_GROUP))
        pairs = tokens * model.experts_per_token
        products = [one for one in tune_shapes.linear_weights(model, tp) if one[0] > 1]
        for (experts, n, k), (dtype, b_format, group_size) in itertools.product(products, formats):
            if k % per_byte(b_format):
                continue
            archs = ("", "sm_90") if b_format == "same" else ("",)
            for block in (1,) if tokens == 1 else sorted({block_for(pairs, experts, arch) for arch in archs}):
                is_first = k == model.hidden_size
                yield cls(pairs, experts, n, k, model.experts_per_token, block, dtype, b_format, group_size, is_first,
                          not is_first)

    def smaller(self) -> Iterator[MoeGemmKey]:
        """Fewer experts of as many rows each; then fewer pairs, of the slots that are left."""
        while self.experts > 1:
            experts = -(-self.experts // 2)
            slots = min(self.slots, experts)
            tokens = max(self.pairs // self.slots * self.slots // (2 * slots), 1)
            self = self._replace(experts=experts, slots=slots, pairs=tokens * slots,
                                 is_of_pairs=slots == 1 or self.is_of_pairs)
            yield self


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
