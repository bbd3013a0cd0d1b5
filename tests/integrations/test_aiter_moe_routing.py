# SPDX-License-Identifier: MIT
"""AITER's routing in Triton: its lists against a sort of the pairs."""

import pytest
import torch
import torch.nn.functional as F
from seeded import wide_numbers as numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe import ragged as aiter_moe_ragged
from aiter_like.integrations.aiter.moe import routing as aiter_moe_routing

TOKENS, EXPERTS, SLOTS = 13, 8, 3
SCORES = {"sqrtsoftplus": lambda x: F.softplus(x).sqrt(), "sigmoid": torch.sigmoid, "softmax": lambda x: x}


def check_lists(found, weights, ids, block):
    """`weights` and `ids` [tokens, slots] as they are chosen."""
    data, gather, scatter = found
    pairs = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    assert torch.equal(gather, pairs.int()) and torch.equal(scatter[gather.long()], torch.arange(ids.numel()).int())
    torch.testing.assert_close(data.gate_scal.double(), weights.flatten()[pairs].double(), rtol=1e-2, atol=1e-4)
    assert data.block_m == block and (data.n_expts_tot, data.n_expts_act) == (EXPERTS, SLOTS)
    lists = data.expt_data
    assert torch.equal(data.expt_hist, counts.int()) and torch.equal(lists.hist, counts.int())
    assert lists.token_offs_raw.tolist() == [0, *counts.cumsum(0).tolist()]
    tiles = [(number << 16) + expert for expert, count in enumerate(counts.tolist())
             for number in range(-(-count // block))]
    most = data.n_blocks(ids.numel(), block)
    assert lists.block_pid_map.tolist() == tiles + [-1] * (most - len(tiles))
    assert lists.token_offs_pad.tolist() == [0, *(-(-counts // block)).cumsum(0).tolist()]
    assert all(one.dtype == torch.int32 for one in (*vars(lists).values(), gather, scatter))


def chosen(scores, biased):
    ids = biased.topk(SLOTS, 1).indices.sort(1).values
    return scores.gather(1, ids), ids


@pytest.mark.parametrize("sm_first", (False, True))
def test_plain(simulated, sm_first):
    logits = numbers(TOKENS, EXPERTS)
    weights, ids = chosen(logits.double().softmax(-1) if sm_first else logits.double(), logits)
    weights = weights if sm_first else weights.softmax(-1)
    check_lists(aiter_moe_routing.routing(logits, SLOTS, sm_first=sm_first), weights, ids, 16)
    found = aiter_moe_routing.routing(logits.bfloat16(), SLOTS, sm_first=sm_first)
    assert found[0].gate_scal.dtype == torch.bfloat16


@pytest.mark.parametrize("renorm", (False, True))
@pytest.mark.parametrize("mode", SCORES)
def test_scores(simulated, mode, renorm):
    logits, bias = numbers(TOKENS, EXPERTS), None if mode == "softmax" else numbers(EXPERTS, seed=1)
    scores = SCORES[mode](logits.double())
    weights, ids = chosen(scores, scores if bias is None else scores + bias)
    weights = (weights / weights.sum(1, keepdim=True) if renorm else weights) * 2.5
    found = aiter_moe_routing.routing(logits, SLOTS, score_mode=mode, bias=bias, renorm=renorm,
                                      routed_scaling_factor=2.5)
    check_lists(found, weights, ids, 16)


@pytest.mark.parametrize(("mode", "has_bias"), [("sigmoid", True), ("sigmoid", False), ("softmax", False)])
def test_groups(simulated, mode, has_bias):
    logits, bias = numbers(TOKENS, EXPERTS), numbers(EXPERTS, seed=1) if has_bias else None
    scores = logits.double().softmax(-1) if mode == "softmax" else logits.double().sigmoid()
    biased = scores if bias is None else scores + bias
    groups = biased.view(TOKENS, 4, 2)
    best = (groups.sum(-1) if has_bias else groups.amax(-1)).topk(2, 1).indices
    hidden = torch.ones(TOKENS, 4, dtype=torch.bool).scatter(1, best, False).repeat_interleave(2, 1)
    weights, ids = chosen(scores, biased.masked_fill(hidden, -torch.inf))
    found = aiter_moe_routing.routing(logits, SLOTS, score_mode=mode, bias=bias, use_grouped_topk=True,
                                      num_expert_group=4, topk_group=2)
    check_lists(found, weights / weights.sum(1, keepdim=True), ids, 16)


@pytest.mark.parametrize("mode", SCORES)
def test_table(simulated, mode):
    logits = numbers(TOKENS, EXPERTS)
    table = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(row)) for row in range(20)])
    tokens = torch.arange(TOKENS) * 3 % 20
    ids = table[tokens, :SLOTS]
    weights = SCORES[mode](logits.double()).gather(1, ids)
    found = aiter_moe_routing.routing_from_hash(logits, table.int(), tokens, SLOTS, 32, score_mode=mode, renorm=False,
                                                routed_scaling_factor=0.5)
    check_lists(found, weights * 0.5, ids, 32)
    for name, number in (("tid2eid", -1), ("tid2eid", EXPERTS), ("tid2eid", 2**32), ("input_ids", -1),
                         ("input_ids", 20), ("input_ids", 2**32)):
        wrong = {"tid2eid": table.clone(), "input_ids": tokens.clone()}
        wrong[name][int(tokens[-1]) if name == "tid2eid" else -1] = number
        with pytest.raises(ValueError, match=f"^routing_from_hash: {name} must name "):
            aiter_moe_routing.routing_from_hash(logits, n_expts_act=SLOTS, block_m=32, score_mode=mode, **wrong)


def test_bad_routing(simulated):
    logits = numbers(TOKENS, EXPERTS)
    grouped = {"use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2}
    with pytest.raises(UnsupportedError, match="routing: groups are served of equal shares"):
        aiter_moe_routing.routing(logits, SLOTS, score_mode="sqrtsoftplus", **grouped)
    with pytest.raises(UnsupportedError, match="routing: groups are served of equal shares"):
        aiter_moe_routing.routing(logits, SLOTS, score_mode="sigmoid", expert_group=torch.zeros(EXPERTS), **grouped)
    with pytest.raises(UnsupportedError, match="routing: no backend supports bias with score_mode 'softmax'"):
        aiter_moe_routing.routing(logits, SLOTS, score_mode="softmax", bias=logits[0])
    with pytest.raises(ValueError, match="routing: use_grouped_topk must come with num_expert_group and topk_group"):
        aiter_moe_routing.routing(logits, SLOTS, score_mode="sigmoid", use_grouped_topk=True)
    with pytest.raises(ValueError, match="routing: score_mode must be"):
        aiter_moe_routing.routing(logits, SLOTS, score_mode="tanh")


@pytest.mark.parametrize("number", (-1, TOKENS * SLOTS, -2**31, 2**31 - 1, 2**32, -2**32))
def test_tokens_that_there_are_not(simulated, number):
    hashed = numbers(50, SLOTS).int(), torch.tensor([number, *[0] * (TOKENS - 1)])
    with pytest.raises(ValueError, match="routing_from_hash: input_ids must name rows of tid2eid from 0 to"):
        aiter_moe_routing.routing_from_hash(numbers(TOKENS, EXPERTS), hashed[0][:TOKENS * SLOTS], hashed[1], SLOTS, 32)


def test_counts_that_32_bits_do_not_hold():
    """Sums stay at the most that they do, so nothing behind them begins among the pairs."""
    data = aiter_moe_routing.compute_expt_data_torch(torch.tensor([3, 2**32 + 1, 2**31 - 1, 5]), 4, 8, 32)
    assert data.token_offs_raw.tolist() == [0, 3, *[2**31 - 1] * 3]
    assert (data.token_offs_pad.diff() >= 0).all() and data.token_offs_pad[1] == 1


def test_static_fp8(simulated):
    x, scale = numbers(5, 64), torch.tensor(0.5)
    found = aiter_moe_ragged.downcast_to_static_fp8(x, scale)
    assert found.dtype == torch.float8_e4m3fnuz
    torch.testing.assert_close(found.double() * 0.5, x.double(), rtol=0.07, atol=0.01)
