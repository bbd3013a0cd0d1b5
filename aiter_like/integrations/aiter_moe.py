# SPDX-License-Identifier: MIT
"""AITER's functions of routing that have other parameters here. Named by aiter_names.txt."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like


def biased_grouped_topk_hip(gating_output: Tensor, correction_bias: Tensor, topk_weights: Tensor, topk_ids: Tensor,
                            num_expert_group: int, topk_grp: int, need_renorm: bool,
                            routed_scaling_factor: float = 1.0) -> None:
    """`aiter_like.biased_grouped_topk`, whose `topk_group` is `topk_grp` here."""
    aiter_like.biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_grp,
                                   need_renorm, routed_scaling_factor)


def biased_grouped_topk_torch(gating_output: Tensor, correction_bias: Tensor, topk: int, renormalize: bool,
                              num_expert_group: int = 0, topk_group: int = 0,
                              return_score: bool = False) -> tuple[Tensor, ...]:
    """`aiter_like.biased_grouped_topk` in torch, into new tensors: weights, ids and, if asked for, all scores."""
    weights, ids = _outputs(gating_output, topk)
    aiter_like.biased_grouped_topk(gating_output, correction_bias, weights, ids, max(num_expert_group, 1),
                                   max(topk_group, 1), renormalize, backend="torch")
    return (weights, ids, gating_output.float().sigmoid()) if return_score else (weights, ids)


def grouped_topk_torch(gating_output: Tensor, topk: int, renormalize: bool, num_expert_group: int = 0,
                       topk_group: int = 0, scoring_func: str = "softmax") -> tuple[Tensor, Tensor]:
    """`aiter_like.grouped_topk` in torch, into new tensors: weights and ids."""
    weights, ids = _outputs(gating_output, topk)
    aiter_like.grouped_topk(gating_output, weights, ids, max(num_expert_group, 1), max(topk_group, 1), renormalize,
                            scoring_func == "softmax", backend="torch")
    return weights, ids


def _outputs(gating_output: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    shape = (gating_output.shape[0], topk)
    return gating_output.new_empty(shape, dtype=torch.float32), gating_output.new_empty(shape, dtype=torch.int32)
