# SPDX-License-Identifier: MIT
"""Smooth-quantisation per expert. Kernels: csrc/quant/moe_smoothquant.hip, ops/quant/triton/moe_smoothquant.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["moe_smoothquant_fwd"]

_OP = "moe_smoothquant"


class MoeSmoothquantCall(NamedTuple):
    """One call of moe_smoothquant.

    Attributes:
        out: row slot · tokens + token.
        scale: of a row each; the public function calls it `y_scale`.
        x_scale: each expert's factor per column.
        topk_ids: an id that is no expert makes a row of zeros.
    """

    out: Annotated[Tensor, "rows columns", quant_rule.DTYPES]
    scale: Annotated[Tensor, "*scale", torch.float32, STRIDED]
    input: Annotated[Tensor, "tokens columns", elements.FLOATS]
    x_scale: Annotated[Tensor, "experts columns", torch.float32]
    topk_ids: Annotated[Tensor, "tokens topk", torch.int32]


def moe_smoothquant_ref(call: MoeSmoothquantCall) -> None:
    """The formula, and the rule of ops/common/quant_rule.py."""
    factors, ids = call.x_scale, call.topk_ids.t().flatten().long()  # [topk · tokens]
    is_expert = ((ids >= 0) & (ids < factors.shape[0])).unsqueeze(-1)
    smoothed = call.input.float().repeat(call.topk_ids.shape[1], 1) * factors[ids.clamp(0, factors.shape[0] - 1)]
    quant_rule.store_quantised(call.out, call.scale, torch.where(is_expert, smoothed, 0.0), 0)


def _instance(call: MoeSmoothquantCall, *, lanes: int | None = None) -> Instance:
    row_layout = rows.row_layout(target_of(call.input.device), call.input, lanes=lanes, takes_unaligned=True)
    return row_layout.instance(*parts.kinds(call))


@compile_ops("quant/moe_smoothquant.hip", gen_func=_instance)
def _moe_smoothquant_hip(call: MoeSmoothquantCall) -> None: ...


def _check(call: MoeSmoothquantCall) -> object:
    count = call.topk_ids.numel()
    check.tensor(_OP, "out", call.out, shape=(count, call.input.shape[1]))
    if tuple(call.scale.shape) not in ((count, 1), (count,)):
        raise ValueError(f"{_OP}: y_scale must have shape ({count}, 1), got {tuple(call.scale.shape)}")
    for name, tensor in (("topk_ids", call.topk_ids), ("y_scale", call.scale)):
        if not tensor.is_contiguous():
            raise ValueError(f"{_OP}: {name} must be dense in memory, got strides {tensor.stride()}")
    if call.x_scale.shape[0] == 0:
        raise ValueError(f"{_OP}: x_scale must have at least one expert, got shape {tuple(call.x_scale.shape)}")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: MoeSmoothquantCall) -> str | None:
    if call.topk_ids.shape[1] >= 2**16:
        return f"at most {2**16 - 1} experts per token, got {call.topk_ids.shape[1]}"
    return parts.refusal(target, call) or rows.refusal(x_scale=call.x_scale)


class MoeSmoothquantKey(NamedTuple):
    """The fields that a tuned row of moe_smoothquant is chosen by."""

    tokens: int
    columns: int
    topk: int
    num_experts: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: MoeSmoothquantCall) -> MoeSmoothquantKey:
        return cls(*call.input.shape, call.topk_ids.shape[1], call.x_scale.shape[0], *parts.names(call))

    def make(self, device: torch.device, seed: int, *, lowest_id: int = 0) -> MoeSmoothquantCall:
        generator, count = torch.Generator(device).manual_seed(seed), self.topk * self.tokens
        x = torch.randn(self.tokens, self.columns, generator=generator, device=device, dtype=dtypes.DTYPES[self.dtype])
        factors = torch.rand(self.num_experts, self.columns, generator=generator, device=device)
        ids = torch.randint(lowest_id, self.num_experts, (self.tokens, self.topk), generator=generator, device=device,
                            dtype=torch.int32)
        out = torch.empty(count, self.columns, dtype=tune_shapes.dtype_on(device, self.out_dtype), device=device)
        return MoeSmoothquantCall(out, torch.empty(count, 1, device=device), x, factors, ids)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[MoeSmoothquantKey]:
        """The keys of what the experts' first product reads."""
        if model.num_experts:
            yield cls(tokens, model.hidden_size, model.experts_per_token, model.num_experts, model.dtype, "i8")


_moe_smoothquant = Op(
    _OP, call=MoeSmoothquantCall, reference=moe_smoothquant_ref, check=_check, key=MoeSmoothquantKey,
    round_field="tokens", writes=("out", "scale"),
    cases={name: (MoeSmoothquantKey(5, 1024, 2, 4, "bf16", out_dtype), {"lowest_id": -1})  # some slots have no expert
           for name, out_dtype in (("int8", "i8"), ("fp8", "fp8"))},
    backends=(Backend("hip", _moe_smoothquant_hip, refusal=_refusal, space=rows.lanes_of("input")),
              Backend("triton", "ops.quant.triton.moe_smoothquant:moe_smoothquant", refusal=_refusal,
                      space=tune_shapes.row_space),
              Backend("torch", moe_smoothquant_ref)))


def moe_smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor, *,
                        backend: str | None = None) -> None:
    """Quantises each token once per expert that it goes to, smoothed with that expert's factors.
    Row `slot · tokens + token` of `out · y_scale` is `input[token] · x_scale[topk_ids[token, slot]]`, rounded as by
    `per_token_quant_hip`.

    Args:
        out: [topk · tokens, K], written; the hardware's fp8, or int8; evenly spaced rows.
        input: [tokens, K] bf16|fp16|fp32, last dimension contiguous.
        x_scale: [num_experts, K] fp32: each expert's factor per column.
        topk_ids: [tokens, topk] int32, contiguous. An id that is no expert (-1: not on this GPU) makes a row of zeros.
        y_scale: [topk · tokens, 1] fp32, contiguous, written: the rows' scales.

    Source: Xiao et al., SmoothQuant (2023); AITER's `moe_smoothquant_fwd`.
    """
    _moe_smoothquant.run(out, y_scale, input, x_scale, topk_ids=topk_ids, backend=backend)
