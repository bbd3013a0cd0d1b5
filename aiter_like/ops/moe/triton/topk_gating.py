# SPDX-License-Identifier: MIT
"""topk_gating in Triton: body and launcher, named by ops/moe/topk_gating.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.moe.topk_gating import TopkGatingCall, sizes


@triton.jit
def _key(x):
    """Bits that are ordered like floats, as a signed number; a NaN is below all numbers, zeros are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x != x, -0x7FFFFFFF, key)


@triton.jit
def _number(key):
    """The float of such a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _best(keys, place):
    """The largest key and the lowest place that has it."""
    key = tl.max(keys, axis=0)
    return key, tl.min(tl.where(keys == key, place, 0x7FFFFFFF), axis=0)


@triton.jit
def _scores(x, SCORE: tl.constexpr):
    """Scores of a token's logits; 0 for a NaN, several infinities share the weight of a softmax."""
    is_number = x == x
    if SCORE == 0:
        largest = tl.max(tl.where(is_number, x, -float("inf")), axis=0)
        powers = tl.where(is_number, tl.where(x == largest, 1.0, tl.exp(x - largest)), 0.0)
        scores = powers / tl.maximum(tl.sum(powers, axis=0), 2e-38)  # a normal number: others are fp64 to Triton 3.6
    elif SCORE == 1:
        scores = 1 / (1 + tl.exp(-x))
    else:
        x = tl.minimum(x, 1e30)
        t = tl.exp(-tl.abs(x))
        log = tl.where(t < 0.0078125, t * (1 - t * (0.5 - t * 0.3333333)), tl.log(1 + t))  # 1 + t loses most of t
        scores = tl.sqrt(tl.maximum(x, 0.0) + log)
    return tl.where(is_number, scores, 0.0)


@triton.jit
def _topk_gating_kernel(weights, ids, gating, bias, weights_stride, ids_stride, gating_stride, experts, k, id_columns,
                        best_groups, scale, shared_weight, SCORE: tl.constexpr, GROUPS: tl.constexpr,
                        SUM_OF_TWO: tl.constexpr, RENORMALIZED: tl.constexpr, SHARED: tl.constexpr,
                        SHARED_LOGITS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_G: tl.constexpr,
                        BLOCK_K: tl.constexpr, OVERLAPS: tl.constexpr):
    """A token: scores of all its experts, the best one k times; bound: latency."""
    await_stream(OVERLAPS)
    LOWEST: tl.constexpr = -0x80000000  # marks what cannot be chosen (any more)
    token = tl.program_id(0).to(tl.int64)
    row = gating + token * gating_stride
    expert, place = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    is_expert = expert < experts
    x = tl.load(row + expert, mask=is_expert, other=float("nan")).to(tl.float32)
    scores = _scores(x, SCORE)
    if bias is not None:
        added = scores + tl.load(bias + expert, mask=is_expert, other=0.0).to(tl.float32)
        keys = _key(tl.where(x == x, added, float("nan")))
    else:  # scores rise with logits, so that these tell which is the best
        keys = _key(x)
    keys = tl.where(is_expert, keys, LOWEST)
    if GROUPS > 1:
        size = experts // GROUPS
        group = tl.arange(0, BLOCK_G)
        group_keys = tl.full((BLOCK_G,), LOWEST, tl.int32)
        for index in range(GROUPS):
            of_group = tl.where((expert >= index * size) & (expert < (index + 1) * size), keys, LOWEST)
            best, first = _best(of_group, expert)
            if SUM_OF_TWO and size > 1:
                second = tl.max(tl.where(expert == first, LOWEST, of_group), axis=0)
                both = _key(_number(best) + _number(second))
                best = tl.where((best <= -0x7FFFFFFF) | (second <= -0x7FFFFFFF), -0x7FFFFFFF, both)
            group_keys = tl.where(group == index, best, group_keys)
        kept = tl.zeros((BLOCK_E,), tl.int32)
        for _ in range(best_groups):
            _, chosen = _best(group_keys, group)
            kept = tl.where((expert >= chosen * size) & (expert < (chosen + 1) * size), 1, kept)
            group_keys = tl.where(group == chosen, LOWEST, group_keys)
        keys = tl.where(kept == 1, keys, LOWEST)
    total = 0.0
    chosen_ids, chosen_weights = tl.zeros((BLOCK_K,), tl.int32), tl.zeros((BLOCK_K,), tl.float32)
    for index in range(k):
        _, chosen = _best(keys, expert)
        score = tl.sum(tl.where(expert == chosen, scores, 0.0), axis=0)
        total += score
        keys = tl.where(expert == chosen, LOWEST, keys)
        chosen_ids = tl.where(place == index, chosen, chosen_ids)
        chosen_weights = tl.where(place == index, score, chosen_weights)
    if RENORMALIZED:
        chosen_weights = tl.where(total > 0, chosen_weights / total, 0.0)
    chosen_weights *= scale
    if SHARED > 0:
        number = experts + place - k
        if SHARED_LOGITS:
            logit = tl.load(row + number, mask=(place >= k) & (place < k + SHARED), other=0.0).to(tl.float32)
            of_shared = 1 / (1 + tl.exp(-logit))
        else:
            of_shared = tl.zeros((BLOCK_K,), tl.float32) + shared_weight
        chosen_ids = tl.where(place >= k, number, chosen_ids)
        chosen_weights = tl.where(place >= k, of_shared, chosen_weights)
    mask = place < k + SHARED
    tl.store(weights + token * weights_stride + place, chosen_weights, mask=mask)
    tl.store(ids + token * ids_stride + place, chosen_ids, mask=place < id_columns)


def topk_gating(call: TopkGatingCall, num_warps: int = 1) -> Launch:
    """The launch that writes `weights` and `ids`, with Triton's `num_warps`."""
    experts, k = sizes(call)
    return launch(
        _topk_gating_kernel, (call.gating.shape[0],), call.weights, call.ids, call.gating, call.bias,
        call.weights.stride(0), call.ids.stride(0), call.gating.stride(0), experts, k, call.ids.shape[1],
        call.best_groups, real(call.scale), real(call.shared_weight), SCORE=call.score, GROUPS=call.groups,
        SUM_OF_TWO=call.has_sum_of_two, RENORMALIZED=call.is_renormalized, SHARED=call.shared,
        SHARED_LOGITS=call.has_shared_logits, BLOCK_E=power_of_2(max(experts, 16)), BLOCK_G=power_of_2(call.groups),
        BLOCK_K=power_of_2(k + call.shared), options={"num_warps": num_warps})
