# SPDX-License-Identifier: MIT
"""AITER's names of routing, each a thin edge of topk_gating.py's operator, which checks what it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.moe.topk_gating import SCORES, topk_gating_op

__all__ = ["biased_grouped_topk", "fused_topk", "grouped_topk", "moe_fused_gate", "topk_gating", "topk_sigmoid",
           "topk_softmax"]


def _written_weights(op: str, indices: Tensor, weights: Tensor, shared: int = 0) -> Tensor:
    """The columns of the weights that are written: with shared experts AITER's kernels take more. Checks what the
    operator does under another name, in the words of AITER's.

    Raises:
        TypeError, ValueError: they are not like the indices.
    """
    check.integer(op, "num_shared_experts", shared, low=0)
    check.tensor(op, "topk_indices", indices, dtypes=(torch.int32,), rank=2)
    if not isinstance(weights, Tensor) or weights.ndim != 2:
        return weights  # the operator refuses it
    rows, columns = weights.shape
    used = indices.shape[1] + shared
    is_like = indices.shape[1] == columns or shared and used <= columns
    if indices.shape[0] != rows or not is_like or indices.device != weights.device:
        shapes = f"{(rows, columns)}" + (f" or {(rows, columns - shared)} or fewer columns" if shared else "")
        raise ValueError(f"{op}: topk_indices must have shape {shapes} on {weights.device}, like topk_weights, got "
                         f"{tuple(indices.shape)} on {indices.device}")
    return weights[:, :used] if used < columns else weights


def topk_softmax(topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor | None, gating_output: Tensor,
                 need_renorm: bool, num_shared_experts: int = 0, shared_expert_scoring_func: str = "", *,
                 backend: str | None = None) -> None:
    """The best experts of each token: `topk_weights, topk_indices = topk(softmax(gating_output[:, :E]), k)`.

    Args:
        topk_weights: [tokens, k + num_shared_experts] fp32, written, rows evenly spaced, the best first; with
            `topk_indices` [tokens, k] and shared experts of more columns, of which the last stay as they are.
        topk_indices: [tokens, k + num_shared_experts] or [tokens, k] int32, written: experts.
        token_expert_indices: AITER's scratch; not used.
        gating_output: [tokens, E + num_shared_experts] bf16|fp16|fp32, rows evenly spaced: logits.
        need_renorm: the k weights are divided by their sum.
        num_shared_experts: s of them come last, with ids E to E + s - 1 and the sigmoid of their own logits as weights.
        shared_expert_scoring_func: "sigmoid" or "", which means the same.

    Notes:
        The kernels take up to 1024 experts and 32 places of a token, torch more. Of equal logits the lowest expert
        comes first, a NaN after all numbers, with weight 0; several infinite logits share a softmax. Deterministic.
    """
    check.choice("topk_softmax", "shared_expert_scoring_func", shared_expert_scoring_func, ("", "sigmoid"))
    weights = _written_weights("topk_softmax", topk_indices, topk_weights, num_shared_experts)
    topk_gating_op.run(weights, topk_indices, gating_output, is_renormalized=need_renorm,
                       shared=num_shared_experts, has_shared_logits=True, backend=backend)


def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, *,
                 backend: str | None = None) -> None:
    """Routing by the sigmoid: `topk_weights, topk_indices = topk(sigmoid(gating_output), k)`. Like `topk_softmax`.

    Args:
        topk_weights: [tokens, k] fp32, written, rows evenly spaced, the best first.
        topk_indices: [tokens, k] int32, written: experts.
        gating_output: [tokens, experts] bf16|fp16|fp32, rows evenly spaced: logits.

    Source: AITER's `topk_sigmoid`, the routing of Llama 4.
    """
    _written_weights("topk_sigmoid", topk_indices, topk_weights)
    topk_gating_op.run(topk_weights, topk_indices, gating_output, score=SCORES["sigmoid"], is_renormalized=False,
                       backend=backend)


def topk_gating(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor,
                correction_bias: Tensor | None = None, need_renorm: bool = True, routed_scaling_factor: float = 1.0,
                score_func: str = "sqrtsoftplus", num_shared_experts: int = 0, *,
                backend: str | None = None) -> None:
    """Routing by a score function, with a bias that counts for the choice alone. Like `topk_softmax` otherwise.

    `topk_indices = topk(score(gating_output) + correction_bias, k); topk_weights = score(gating_output)[topk_indices]`.
    Without a bias experts are chosen by their logits, which are ordered like all three scores.

    Args:
        correction_bias: [experts] fp32|bf16|fp16; None or empty: none.
        routed_scaling_factor: the k weights are multiplied by it, after they are divided.
        score_func: "softmax", "sigmoid" or "sqrtsoftplus", √log(1 + e^x).

    Source: AITER's `topk_gating`; sqrtsoftplus is that of DeepSeek-V4.
    """
    check.choice("topk_gating", "score_func", score_func, tuple(SCORES))
    bias = None if isinstance(correction_bias, Tensor) and correction_bias.numel() == 0 else correction_bias
    weights = _written_weights("topk_gating", topk_indices, topk_weights, num_shared_experts)
    topk_gating_op.run(weights, topk_indices, gating_output, bias, score=SCORES[score_func],
                       is_renormalized=need_renorm, scale=routed_scaling_factor, shared=num_shared_experts,
                       has_shared_logits=True, backend=backend)


def grouped_topk(gating_output: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int, topk_group: int,
                 need_renorm: bool, is_softmax: bool = True, routed_scaling_factor: float = 1.0, *,
                 backend: str | None = None) -> None:
    """The k best experts of each token, all of the groups whose best experts are the best: of equal groups the lowest,
    and one as good as a NaN after all others. Like `topk_sigmoid` otherwise.

    Args:
        topk_ids: [tokens, k] int32, written: experts.
        num_expert_group: groups, of equally many experts in order; up to 32 for the kernels.
        topk_group: of so many groups the experts may be.
        is_softmax: scores are the softmax of the logits, else their sigmoid.
        routed_scaling_factor: the weights are multiplied by it, after they are divided.

    Source: DeepSeek-V2 (arXiv:2405.04434), group-limited routing; AITER's `grouped_topk`.
    """
    check.flag("grouped_topk", "is_softmax", is_softmax)
    topk_gating_op.run(topk_weights, topk_ids, gating_output, score=SCORES["softmax" if is_softmax else "sigmoid"],
                       groups=num_expert_group, best_groups=topk_group, is_renormalized=need_renorm,
                       scale=routed_scaling_factor, backend=backend)


def biased_grouped_topk(gating_output: Tensor, correction_bias: Tensor, topk_weights: Tensor, topk_ids: Tensor,
                        num_expert_group: int, topk_group: int, need_renorm: bool, routed_scaling_factor: float = 1.0,
                        *, backend: str | None = None) -> None:
    """Routing by sigmoid and bias, in the groups whose two best have the largest sum. Like `grouped_topk` otherwise.

    An expert of another group is never chosen, however small the scores are; AITER's reference in torch, which counts
    it as 0, may choose it before one whose score and bias are negative.

    Args:
        correction_bias: [experts] fp32|bf16|fp16, added for the choice of groups and experts alone.

    Source: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2; AITER's `biased_grouped_topk`.
    """
    topk_gating_op.run(topk_weights, topk_ids, gating_output, correction_bias, score=SCORES["sigmoid"],
                       groups=num_expert_group, best_groups=topk_group, has_sum_of_two=True,
                       is_renormalized=need_renorm, scale=routed_scaling_factor, backend=backend)


def moe_fused_gate(input: Tensor, bias: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int,
                   topk_group: int, topk: int, n_share_experts_fusion: int, routed_scaling_factor: float = 1.0, *,
                   backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Routing with weights that add up to 1, and shared experts among a token's places. Like `biased_grouped_topk`.

    Args:
        input: [tokens, experts] bf16|fp16|fp32, rows evenly spaced: logits.
        bias: [experts] fp32|bf16|fp16, added for the choice of groups and experts alone.
        topk_weights: [tokens, topk] fp32, written, rows evenly spaced.
        topk_ids: [tokens, topk] int32, written: experts, and experts + s for shared expert s, which come last.
        topk, n_share_experts_fusion: columns of both, and how many of them are for shared experts.
        routed_scaling_factor: the weight of a shared expert is 1 / routed_scaling_factor; those of the others are not
            multiplied by it, which is left to what adds up the experts' results.

    Returns: `topk_weights` and `topk_ids`.

    Source: SGLang's `moe_fused_gate`, and AITER's of the same name.
    """
    check.dense("moe_fused_gate", "bias", bias)
    check.tensor("moe_fused_gate", "topk_weights", topk_weights, rank=2)
    check.integer("moe_fused_gate", "n_share_experts_fusion", n_share_experts_fusion, low=0)
    check.integer("moe_fused_gate", "topk", topk, low=topk_weights.shape[1], high=topk_weights.shape[1])
    check.real("moe_fused_gate", "routed_scaling_factor", routed_scaling_factor, above=0)
    topk_gating_op.run(topk_weights, topk_ids, input, bias, score=SCORES["sigmoid"], groups=num_expert_group,
                       best_groups=topk_group, has_sum_of_two=True, shared=n_share_experts_fusion,
                       shared_weight=1 / routed_scaling_factor, backend=backend)
    return topk_weights, topk_ids


def fused_topk(hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool,
               topk_ids: Tensor | None = None, topk_weights: Tensor | None = None, *,
               backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Routing into new tensors or the first rows of given ones, without shared experts. Like `topk_softmax` otherwise.

    Args:
        hidden_states: [tokens, …], whose tokens are counted.
        gating_output: [tokens, experts] bf16|fp16|fp32, rows evenly spaced: logits.
        topk: k, the experts of a token.
        renormalize: the weights are divided by their sum.
        topk_ids, topk_weights: [tokens or more, k] int32 and fp32, whose first rows are written; default: new ones.

    Returns: `topk_weights` [tokens, k] fp32 and `topk_ids` [tokens, k] int32, or those that were given, whole.
    """
    check.tensor("fused_topk", "hidden_states", hidden_states, last_contiguous=False)
    check.tensor("fused_topk", "gating_output", gating_output, rank=2)
    if hidden_states.ndim == 0 or hidden_states.shape[0] != gating_output.shape[0]:
        raise ValueError(f"fused_topk: hidden_states must have the {gating_output.shape[0]} tokens of gating_output, "
                         f"got shape {tuple(hidden_states.shape)}")
    check.integer("fused_topk", "topk", topk, low=1, high=gating_output.shape[1])
    shape = (gating_output.shape[0], topk)
    if topk_weights is None:
        topk_weights = gating_output.new_empty(shape, dtype=torch.float32)
    if topk_ids is None:
        topk_ids = gating_output.new_empty(shape, dtype=torch.int32)
    written = [one[:shape[0]] if isinstance(one, Tensor) and one.ndim == 2 else one for one in (topk_weights, topk_ids)]
    topk_gating_op.run(*written, gating_output, is_renormalized=renormalize, backend=backend)
    return topk_weights, topk_ids


topk_gating_op.public += [topk_softmax, topk_sigmoid, topk_gating, grouped_topk, biased_grouped_topk, moe_fused_gate,
                          fused_topk]
