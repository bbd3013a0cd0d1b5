# SPDX-License-Identifier: MIT
"""AITER's routing in Triton: the experts of tokens, and the lists by which its ragged products read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_values

_BLOCKS = (16, 128)  # rows of a tile of AITER's products, the least and the most
_SCORES = (None, "sqrtsoftplus", "sigmoid", "softmax")


@aiter("aiter.ops.triton.[moe.]moe_routing.routing")
@dataclass
class ExptData:
    """Which rows and tiles of a ragged product belong to which expert.

    Attributes:
        hist: [experts] int32: pairs of each expert.
        token_offs_raw: [experts + 1] int32: where its pairs begin among those sorted by expert.
        token_offs_pad: [experts + 1] int32: where its tiles begin.
        block_pid_map: [most tiles] int32: of each tile its number among the expert's, times 2^16, plus the expert; −1
            where none is left.
    """

    hist: Tensor
    token_offs_raw: Tensor
    token_offs_pad: Tensor
    block_pid_map: Tensor


@aiter("aiter.ops.triton.[moe.]moe_routing.routing")
@dataclass
class RoutingData:
    """What a layer's products need of the routing.

    Attributes:
        block_m: rows of a tile.
        gate_scal: [pairs] the pairs' weights, sorted by expert.
        expt_hist: [experts] int32: pairs of each expert.
        n_expts_tot, n_expts_act: experts, and those of a token.
        expt_data: see `ExptData`.
    """

    block_m: int
    gate_scal: Tensor
    expt_hist: Tensor
    n_expts_tot: int
    n_expts_act: int
    expt_data: ExptData | None = None

    def n_blocks(self, n_rows: int, block_m: int) -> int:
        """The most tiles that so many rows can take."""
        return _most_tiles(n_rows, self.n_expts_tot, block_m)


@aiter("aiter.ops.triton.[moe.]moe_routing.routing", callers="V S")
def routing(logits: Tensor, n_expts_act: int, *, score_mode: str | None = None, sm_first: bool = False,
            bias: Tensor | None = None, renorm: bool = True, routed_scaling_factor: float = 1.0,
            use_grouped_topk: bool = False, num_expert_group: int | None = None, topk_group: int | None = None,
            expert_group: Tensor | None = None) -> tuple[RoutingData, Tensor, Tensor]:
    """Chooses the experts of tokens by `aiter_like.topk_gating`, or of groups by `grouped_topk` and
    `biased_grouped_topk`, and sorts the pairs by `moe_permute`.

    Args:
        logits: [tokens, experts] bf16|fp16|fp32.
        n_expts_act: experts of a token.
        score_mode: None: softmax of the chosen logits; "sqrtsoftplus" or "sigmoid": of all, "softmax": the logits
            themselves. The rest but `sm_first` counts with a mode alone.
        sm_first: without a mode: softmax of all logits.
        bias: [experts] fp32, added to the scores for the choice alone.
        renorm: the weights of a token are divided by their sum.
        routed_scaling_factor: and multiplied by it.
        use_grouped_topk, num_expert_group, topk_group: experts are chosen from the best groups, equal shares of them in
            order.
        expert_group: None.

    Returns:
        The lists; the pair (token · n_expts_act + slot, a token's experts ascending) of each place sorted by expert,
        [pairs] int32; and the place of each pair.

    Raises:
        UnsupportedError: a table of groups, or groups by "sqrtsoftplus" or "softmax" with a bias.
    """
    op = "routing"
    check.tensor(op, "logits", logits, rank=2, dtypes=elements.FLOATS)
    check.choice(op, "score_mode", score_mode, _SCORES)
    tokens, experts = logits.shape
    check.integer(op, "n_expts_act", n_expts_act, 1, experts)
    ids = torch.empty(tokens, n_expts_act, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, n_expts_act, device=logits.device, dtype=torch.float32)
    if score_mode is None:
        aiter_like.topk_gating(weights, ids, logits, None, not sm_first, 1.0, "softmax")
    elif use_grouped_topk and num_expert_group != 1:
        _choose_of_groups(op, weights, ids, logits, score_mode, bias, renorm, routed_scaling_factor, num_expert_group,
                          topk_group, expert_group)
    elif score_mode == "softmax":
        if bias is not None:
            raise UnsupportedError(f"{op}: no backend supports bias with score_mode 'softmax'", op)
        aiter_like.topk_gating(weights, ids, logits, None, False, 1.0, "softmax")
        weights = logits.gather(1, ids.long()).float()
        weights = (weights / (weights.sum(1, keepdim=True) + 1e-20) if renorm else weights) * routed_scaling_factor
    else:
        aiter_like.topk_gating(weights, ids, logits, bias, renorm, routed_scaling_factor, score_mode)
    ids, order = ids.sort(1)
    mean = max(1, tokens * n_expts_act // experts)
    block = max(_BLOCKS[0], min(1 << (mean - 1).bit_length(), _BLOCKS[1]))
    return _sorted(weights.gather(1, order).to(logits.dtype), ids, experts, block)


@aiter("aiter.ops.triton.[moe.]moe_routing.routing", callers="V")
def routing_from_hash(router_logits: Tensor, tid2eid: Tensor, input_ids: Tensor, n_expts_act: int, block_m: int, *,
                      score_mode: str = "sqrtsoftplus", renorm: bool = True,
                      routed_scaling_factor: float = 1.0) -> tuple[RoutingData, Tensor, Tensor]:
    """`routing` by a table: the experts of token t are tid2eid[input_ids[t], :n_expts_act], in that order; torch takes
    their scores, and `moe_permute` sorts the pairs.

    Args:
        router_logits: [tokens, experts] bf16|fp16|fp32.
        tid2eid: [vocabulary, ≥ n_expts_act] integers.
        input_ids: [tokens] integers.
        n_expts_act: experts of a token.
        block_m: rows of a tile, a power of two.
        score_mode: "sqrtsoftplus", "sigmoid" or "softmax", the logits themselves.
        renorm, routed_scaling_factor: as of `routing`.
    """
    op = "routing_from_hash"
    check.tensor(op, "router_logits", router_logits, rank=2, dtypes=elements.FLOATS)
    check.choice(op, "score_mode", score_mode, _SCORES[1:])
    check.tensor(op, "tid2eid", tid2eid, rank=2, device=router_logits.device, last_contiguous=False)
    check.tensor(op, "input_ids", input_ids, dtypes=elements.INTEGERS, shape=router_logits.shape[:1],
                 device=router_logits.device)
    check.integer(op, "n_expts_act", n_expts_act, 1, tid2eid.shape[1])
    check.integer(op, "block_m", block_m, 1)
    check_values(op, "input_ids", input_ids, 0, len(tid2eid) - 1, "name rows of tid2eid")
    ids = tid2eid[input_ids.long(), :n_expts_act]
    check_values(op, "tid2eid", ids, 0, router_logits.shape[1] - 1, "name experts")
    ids = as_int32(ids)
    chosen = router_logits.gather(1, ids.long()).float()
    if score_mode == "sqrtsoftplus":
        chosen = torch.nn.functional.softplus(chosen).sqrt()
    elif score_mode == "sigmoid":
        chosen = chosen.sigmoid()
    chosen = (chosen / (chosen.sum(1, keepdim=True) + 1e-20) if renorm else chosen) * routed_scaling_factor
    return _sorted(chosen.to(router_logits.dtype), ids.contiguous(), router_logits.shape[1], block_m)


@aiter("aiter.ops.triton.[moe.]moe_routing.routing")
def compute_expt_data_torch(hist: Tensor, n_expts_tot: int, n_gates: int, block_m: int) -> ExptData:
    """The lists of `ExptData` from the pairs of each expert, in torch, without waiting for the device."""
    hist = as_int32(hist[:n_expts_tot])
    tiles = (hist.long() + block_m - 1) // block_m
    ends = [torch.nn.functional.pad(as_int32(counts.cumsum(0)), (1, 0)) for counts in (hist, tiles)]
    tile = torch.arange(_most_tiles(n_gates, n_expts_tot, block_m), dtype=torch.int32, device=hist.device)
    expert = torch.searchsorted(ends[1][1:], tile, right=True, out_int32=True)
    number = tile - ends[1][expert.clamp(max=n_expts_tot - 1)]
    return ExptData(hist, *ends, torch.where(expert < n_expts_tot, (number << 16) + expert, -1))


def _choose_of_groups(op: str, weights: Tensor, ids: Tensor, logits: Tensor, score_mode: str, bias: Tensor | None,
                      renorm: bool, factor: float, groups: int | None, topk_group: int | None,
                      table: Tensor | None) -> None:
    if table is not None or score_mode == "sqrtsoftplus" or score_mode == "softmax" and bias is not None:
        raise UnsupportedError(f"{op}: groups are served of equal shares in order, by 'sigmoid', and by 'softmax' "
                               f"without a bias, got score_mode {score_mode!r}", op)
    if groups is None or topk_group is None:
        raise ValueError(f"{op}: use_grouped_topk must come with num_expert_group and topk_group, got {groups} and "
                         f"{topk_group}")
    if bias is not None:
        aiter_like.biased_grouped_topk(logits, bias, weights, ids, groups, topk_group, renorm, factor)
    else:
        aiter_like.grouped_topk(logits, weights, ids, groups, topk_group, renorm, score_mode == "softmax", factor)


def _sorted(weights: Tensor, ids: Tensor, experts: int, block: int) -> tuple[RoutingData, Tensor, Tensor]:
    """Of pairs [tokens, slots]."""
    slots = ids.shape[1]
    _, _, first, places, pairs = aiter_like.moe_permute(ids.view(torch.uint8), None, ids, experts)
    data = compute_expt_data_torch(first.diff(), experts, ids.numel(), block)
    return (RoutingData(block, weights.flatten()[pairs.long()], data.hist, experts, slots, data), pairs,
            places.view(-1))


def _most_tiles(rows: int, experts: int, block: int) -> int:
    """Each expert may have a tile that is not full."""
    return rows if rows <= experts else -(-max(rows - experts + 1, 0) // block) + experts - 1
