# SPDX-License-Identifier: MIT
"""Routing: the experts of each token and their weights, by all the rules that models have.

Kernels: csrc/moe/topk_gating.hip, ops/moe/triton/topk_gating.py. Names of AITER: routing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__: list[str] = []

_OP = "topk_gating"
SCORES = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2}
"""Score functions, by the numbers that the kernels know them by."""

_MOST = 32  # places of a token, and groups: lanes of a wave on NVIDIA
_EXPERTS = (64, 128, 256, 512, 1024)  # experts of the builds


class TopkGatingCall(NamedTuple):
    """One call of topk_gating: its arguments in the order of the function that topk_gating.hip exports.

    Attributes:
        weights: [tokens, k + shared]: the best expert first, the shared ones last.
        ids: [tokens, k + shared] or [tokens, k]: experts, and experts + s for shared expert s.
        gating: logits, [tokens, experts], with has_shared_logits [tokens, experts + shared].
        bias: [experts], added to the scores for the choice alone.
        score: one of SCORES.
        groups: of equally many experts, in order.
        best_groups: groups among which the k best are chosen.
        has_sum_of_two: a group is as good as the sum of its two best experts, else as its best one.
        is_renormalized: the k weights are divided by their sum.
        scale: the k weights are multiplied by it afterwards.
        shared: experts that each token has beside its k.
        has_shared_logits: their weights are the sigmoid of the logits behind those of the experts; else shared_weight.
        shared_weight: the weight of each.
    """

    weights: Annotated[Tensor, "tokens _", torch.float32]
    ids: Annotated[Tensor, "tokens _", torch.int32]
    gating: Annotated[Tensor, "tokens _", elements.FLOATS]
    bias: Annotated[Tensor | None, "_", elements.FLOATS] = None
    score: int = 0
    groups: int = 1
    best_groups: int = 1
    has_sum_of_two: bool = False
    is_renormalized: bool = True
    scale: float = 1.0
    shared: int = 0
    has_shared_logits: bool = False
    shared_weight: float = 1.0


def sizes(call: TopkGatingCall) -> tuple[int, int]:
    """(experts, k) without the shared ones."""
    return (call.gating.shape[1] - call.shared * call.has_shared_logits, call.weights.shape[1] - call.shared)


def topk_gating_ref(call: TopkGatingCall) -> None:
    """The formula in torch, in fp32; writes `weights` and `ids`."""
    experts, k = sizes(call)
    logits = call.gating[:, :experts].float()
    is_number = ~logits.isnan()
    if call.score == SCORES["softmax"]:
        largest = logits.masked_fill(~is_number, -torch.inf).amax(1, keepdim=True)
        powers = torch.where(logits == largest, 1.0, (logits - largest).exp()).masked_fill(~is_number, 0)
        scores = powers / powers.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    elif call.score == SCORES["sigmoid"]:
        scores = logits.sigmoid()
    else:
        scores = functional.softplus(logits.clamp(max=1e30), threshold=90).sqrt()
    scores = scores.masked_fill(~is_number, 0)
    choice = logits if call.bias is None else scores + call.bias.float()
    ranks = _ranks(choice.masked_fill(~is_number, torch.nan))
    if call.groups > 1:
        grouped = choice.masked_fill(~is_number, torch.nan).unflatten(1, (call.groups, -1))
        best = grouped.gather(2, _order(grouped)[..., :1 + (call.has_sum_of_two and grouped.shape[2] > 1)]).sum(2)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _order(best)[:, :call.best_groups], True)
        ranks = ranks + experts * ~kept.repeat_interleave(grouped.shape[2], 1)
    ids = ranks.argsort(dim=1, stable=True)[:, :k]
    weights = scores.gather(1, ids)
    if call.is_renormalized:
        total = weights.sum(1, keepdim=True)
        weights = torch.where(total > 0, weights / total, 0)
    call.weights[:, :k] = weights * call.scale
    call.ids[:, :k] = ids
    if call.shared:
        call.ids[:, k:] = experts + torch.arange(call.ids.shape[1] - k, device=call.ids.device)
        call.weights[:, k:] = call.gating[:, experts:].float().sigmoid() if call.has_shared_logits \
            else call.shared_weight


def _order(x: Tensor) -> Tensor:
    """Places along the last dimension, the largest first, NaNs last, of equal ones the lowest first."""
    order = x.masked_fill(x.isnan(), -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order.gather(-1, x.isnan().gather(-1, order).to(torch.uint8).argsort(dim=-1, stable=True))


def _ranks(x: Tensor) -> Tensor:
    """The place of each element in that order."""
    return _order(x).argsort(-1)


def _instance(call: TopkGatingCall) -> Instance:
    experts = next(size for size in _EXPERTS if size >= sizes(call)[0])
    return Instance(f"{dtypes.name(call.gating.dtype)}_e{experts}",
                    {"ELEMENT": elements.CPP[call.gating.dtype], "EXPERTS": experts})


@compile_ops("moe/topk_gating.hip", gen_func=_instance)
def _topk_gating_hip(call: TopkGatingCall) -> None: ...


def _check(call: TopkGatingCall) -> object:
    check.integer(_OP, "num_shared_experts", call.shared, low=0)
    (tokens, columns), (experts, k) = call.weights.shape, sizes(call)
    is_short = call.shared > 0 and call.ids.shape[1] == k
    check.tensor(_OP, "topk_ids", call.ids, shape=(tokens, k if is_short else columns))
    if experts < 1:
        raise ValueError(f"{_OP}: gating must have a column for each expert, got shape "
                         f"{tuple(call.gating.shape)} with {call.shared} shared experts")
    if not 1 <= k <= experts:
        raise ValueError(f"{_OP}: topk_weights must have 1 to {experts} columns beside those of the shared experts, "
                         f"got shape {tuple(call.weights.shape)}")
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, shape=(experts,))
    check.integer(_OP, "num_expert_group", call.groups, low=1, high=experts)
    if experts % call.groups:
        raise ValueError(f"{_OP}: num_expert_group must divide the {experts} experts, got {call.groups}")
    check.integer(_OP, "topk_group", call.best_groups, low=1, high=call.groups)
    if k > call.best_groups * (experts // call.groups):
        raise ValueError(f"{_OP}: topk_group must be so many that their experts are at least {k}, got "
                         f"{call.best_groups} groups of {experts // call.groups}")
    check.real(_OP, "routed_scaling_factor", call.scale)
    return SKIP if tokens == 0 else None


def _kernel_refusal(target: Target, call: TopkGatingCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    if sizes(call)[0] > _EXPERTS[-1]:
        return f"at most {_EXPERTS[-1]} experts, got {sizes(call)[0]}"
    if call.weights.shape[1] > _MOST:
        return f"at most {_MOST} experts of a token, got {call.weights.shape[1]}"
    if call.groups > _MOST:
        return f"at most {_MOST} groups, got {call.groups}"
    if call.bias is not None and not call.bias.is_contiguous():
        return "correction_bias must be contiguous"
    return rows.refusal(gating_output=call.gating, topk_weights=call.weights, topk_ids=call.ids)


class TopkGatingKey(NamedTuple):
    """The fields that a tuned row of topk_gating is chosen by."""

    tokens: int
    experts: int
    k: int
    groups: int
    dtype: str

    @classmethod
    def of(cls, call: TopkGatingCall) -> TopkGatingKey:
        return cls(call.gating.shape[0], *sizes(call), call.groups, dtypes.name(call.gating.dtype))

    def make(self, device: torch.device, seed: int, shared: int = 0, has_bias: bool = False,
             **fields: Any) -> TopkGatingCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        shape = (self.tokens, self.k + shared)
        return TopkGatingCall(
            torch.empty(shape, device=device), torch.empty(shape, dtype=torch.int32, device=device),
            random(self.tokens, self.experts + shared), random(self.experts).float() if has_bias else None,
            groups=self.groups, shared=shared, has_shared_logits=shared > 0,
            **{"best_groups": max(self.groups // 2, 1), **fields})

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[TopkGatingKey]:
        """The keys of models with experts, which every GPU routes to alike."""
        if model.num_experts:
            yield cls(tokens, model.num_experts, model.experts_per_token, 1, model.dtype)


topk_gating_op = Op(
    _OP, call=TopkGatingCall, reference=topk_gating_ref, check=_check, key=TopkGatingKey, round_field="tokens",
    cases={"softmax": TopkGatingKey(5, 60, 4, 1, "bf16"),
           "shared": (TopkGatingKey(3, 128, 8, 1, "fp16"), {"shared": 2}),
           "groups": (TopkGatingKey(6, 256, 8, 8, "fp32"),
                      {"has_bias": True, "score": 1, "has_sum_of_two": True, "scale": 2.5}),
           "best of group": (TopkGatingKey(2, 1000, 6, 10, "fp32"), {"best_groups": 3, "is_renormalized": False}),
           "sqrtsoftplus": (TopkGatingKey(2, 384, 16, 1, "bf16"), {"has_bias": True, "score": 2})},
    writes=("weights", "ids"),
    backends=(Backend("hip", _topk_gating_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.moe.triton.topk_gating:topk_gating", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (1, 2, 4)]),
              Backend("torch", topk_gating_ref)))
