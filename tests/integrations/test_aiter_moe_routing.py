# SPDX-License-Identifier: MIT
"""AITER's routing in Triton and its ragged products of int8: the lists against a sort of the pairs, and the products
against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe import ragged as aiter_moe_ragged
from aiter_like.integrations.aiter.moe import ragged_blocks
from aiter_like.integrations.aiter.moe import routing as aiter_moe_routing

TOKENS, EXPERTS, SLOTS = 13, 8, 3
SCORES = {"sqrtsoftplus": lambda x: F.softplus(x).sqrt(), "sigmoid": torch.sigmoid, "softmax": lambda x: x}


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
    for function in (aiter_moe_routing.routing, aiter_moe_routing.routing_torch):
        found = function(logits, SLOTS, sm_first=sm_first)
        check_lists(found, weights, ids, 16)
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


def expected_product(x, weights, bias, routed, gather, scatter, gammas, gate):
    data, pairs, places = routed
    expert = torch.repeat_interleave(torch.arange(EXPERTS), data.expt_hist.long())
    rows = x.double()[pairs.long() // SLOTS] if gather else x.double()
    y = torch.einsum("rk,rkn->rn", rows, weights.double()[expert]) + bias.double()[expert]
    if gate:
        first, second = y[:, 0::2].clamp(max=1), y[:, 1::2].clamp(-1, 1)
        y = first * torch.sigmoid(first * 1.5) * (second + 1)
    y = y if gammas is None else y * gammas.double()[:, None]
    return y[places.long()].view(TOKENS, SLOTS, -1).sum(1) if scatter else y


@pytest.mark.parametrize("gate", (False, True))
@pytest.mark.parametrize("has_gammas", (False, True))
@pytest.mark.parametrize(("gather", "scatter"), [(False, False), (True, False), (False, True), (True, True)])
def test_ragged_products(simulated, gather, scatter, has_gammas, gate):
    routed = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    smooth, wide = numbers(64, seed=1).abs() + 0.1, numbers(EXPERTS, 64, 32, seed=2)
    x, x_scale = aiter_moe_ragged.smoothquant_quantize(numbers(TOKENS * (1 if gather else SLOTS), 64, seed=3), smooth)
    w, w_scale = aiter_moe_ragged.quantize_weights_int8(wide)
    assert w.shape == wide.shape and w_scale.shape == (EXPERTS, 32) and x_scale.shape == x.shape[:1]
    torch.testing.assert_close(w * w_scale[:, None], wide, rtol=0, atol=w_scale.max().item())
    bias, gammas = numbers(EXPERTS, 32, seed=4), numbers(TOKENS * SLOTS, seed=5) if has_gammas else None
    lists = routed[1] if gather else None, routed[2] if scatter else None
    expected = expected_product(x * x_scale[:, None], w * w_scale[:, None], bias, routed, gather, scatter, gammas, gate)
    options = {"apply_activation": gate, "alpha": 1.5, "limit": 1.0}
    for is_shuffled in (False, True):
        weights = aiter_moe_ragged.preshuffle_weights(w) if is_shuffled else w
        found = aiter_moe_ragged.moe_gemm_int8_smoothquant(
            x, weights, x_scale, w_scale, bias, routed[0], *lists, gammas, is_shuffled, torch.float32,
            swiglu_add_residual=gate, **options)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    torch_y = aiter_moe_ragged.moe_gemm_smoothquant_torch(x, x_scale, w, w_scale, bias, routed[0], *lists, gammas,
                                                          add_residual=gate, **options)
    torch.testing.assert_close(torch_y.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scatter", (False, True))
@pytest.mark.parametrize("gate", (False, True))
def test_ragged_products_of_fp8(simulated, gate, scatter):
    """One scale for all tokens and one for all weights; a result of fp8 is divided by one more."""
    routed = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    scales = [torch.tensor(0.25), torch.tensor(0.5)]
    x = aiter_moe_ragged.downcast_to_static_fp8(numbers(TOKENS, 64, seed=3), scales[0])
    w = aiter_moe_ragged.downcast_to_static_fp8_3d(numbers(EXPERTS, 64, 32, seed=2), scales[1])
    bias, gammas = numbers(EXPERTS, 32, seed=4), numbers(TOKENS * SLOTS, seed=5)
    lists = routed[1], routed[2] if scatter else None
    wide = [one.float() * scale for one, scale in zip((x, w), scales)]
    expected = expected_product(*wide, bias, routed, True, scatter, gammas, gate)
    options = {"apply_swiglu": gate, "alpha": 1.5, "limit": 1.0}
    found = aiter_moe_ragged.moe_gemm_a8w8(x, w, None, None, *scales, None, bias, routed[0], *lists, gammas,
                                           out_dtype=torch.float32, swiglu_add_residual=gate, **options)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    torch_y = aiter_moe_ragged.moe_gemm_torch(*wide, bias, routed[0], *lists, gammas, add_residual=gate, **options)
    torch.testing.assert_close(torch_y.double(), expected, rtol=1e-4, atol=1e-3)
    scale = expected.abs().max().float() / 240
    narrow = aiter_moe_ragged.moe_gemm_a8w8(x, w, None, None, *scales, scale, bias, routed[0], *lists, gammas,
                                            swiglu_add_residual=gate, **options)
    assert narrow.dtype == x.dtype
    torch.testing.assert_close(narrow.double() * scale.double(), expected, rtol=0.08, atol=2 * scale.item())


@pytest.mark.parametrize("dtype", (torch.float8_e4m3fnuz, torch.float8_e4m3fn))
@pytest.mark.parametrize(("gather", "scatter", "gate", "is_of_rows"),
                         [(False, False, False, True), (True, False, True, False), (False, True, True, True),
                          (True, True, False, False)])
def test_ragged_products_by_scales_of_blocks(simulated, dtype, gather, scatter, gate, is_of_rows):
    """Of sizes that no block divides; AITER's own test hands over e4m3fn, which is not the device's."""
    k, n, block = 200, 144, (128, 128, 128)
    routed = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    x = (numbers(TOKENS * (1 if gather else SLOTS), k, seed=3)).to(dtype)
    w = numbers(EXPERTS, k, n, seed=2).to(dtype)
    x_scale, w_scale = numbers(len(x) if is_of_rows else 1, 2, seed=6), numbers(EXPERTS, 2, 2, seed=7)
    bias, gammas = numbers(EXPERTS, n, seed=4), numbers(TOKENS * SLOTS, seed=5)
    wide = (aiter_moe_ragged.dequant_x_blockscale(x, x_scale, is_of_rows, block),
            aiter_moe_ragged.dequant_w_blockscale(w, w_scale, block))
    lists = routed[1] if gather else None, routed[2] if scatter else None
    options = {"alpha": 1.5, "limit": 1.0}
    expected = expected_product(*wide, bias, routed, gather, scatter, gammas, gate)
    found = ragged_blocks.moe_gemm_a8w8_blockscale(
        x, w, x_scale, w_scale, None, None, None, bias, routed[0], *lists, gammas, torch.float32, gate,
        per_row_x_scale=is_of_rows, **options)
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


def test_ragged_products_by_one_scale_beside_blocks(simulated):
    """Results of fp8; NaN of e4m3fn stays NaN, and its −0 a number."""
    routed = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    x, w = numbers(TOKENS * SLOTS, 128).to(torch.float8_e4m3fn), numbers(EXPERTS, 128, 16, seed=2)
    bits, w = x.view(torch.uint8), w.to(torch.float8_e4m3fn)
    bits[0, :2], bits[1, 3], bits[2, 4] = 0x80, 0x7F, 0xFF
    scales = torch.tensor(0.25), numbers(EXPERTS, 1, 1, seed=3)
    bias, scale = numbers(EXPERTS, 16, seed=4), torch.tensor(4.0)
    expected = expected_product(x.float() * 0.25, w.float() * scales[1], bias, routed, False, False, None, False)
    found = ragged_blocks.moe_gemm_a8w8_blockscale(x, w, None, scales[1], scales[0], None, scale, bias,
                                                             routed[0])
    assert found.dtype == torch.float8_e4m3fn and found[1:3].isnan().all() and not found[3:].isnan().any()
    torch.testing.assert_close(4 * found.double(), expected, rtol=0.07, atol=0.1, equal_nan=True)
    with pytest.raises(ValueError, match=r"moe_gemm_a8w8_blockscale: w_block_scales must have shape \(8, 1, 1\)"):
        ragged_blocks.moe_gemm_a8w8_blockscale(x, w, w_block_scales=scales[1][:2], routing_data=routed[0])
    with pytest.raises(TypeError, match="moe_gemm_a8w8_blockscale: w must have dtype torch.float8_e4m3fn"):
        ragged_blocks.moe_gemm_a8w8_blockscale(x, w.view(torch.float8_e4m3fnuz), routing_data=routed[0])


@pytest.mark.parametrize("number", (-1, TOKENS * SLOTS, -2**31, 2**31 - 1, 2**32, -2**32))
def test_places_that_there_are_not(simulated, number):
    routed = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    x, w, scales = numbers(TOKENS, 128), numbers(EXPERTS, 128, 16), (torch.ones(TOKENS), torch.ones(EXPERTS, 16))
    for name, lists in (("gather_indx", list(routed[1:])), ("scatter_indx", list(routed[1:]))):
        lists[name[0] == "s"] = lists[name[0] == "s"].long().index_fill(0, torch.tensor([3]), number)
        with pytest.raises(ValueError, match=f"moe_gemm_int8_smoothquant: {name} must hold numbers of pairs"):
            aiter_moe_ragged.moe_gemm_int8_smoothquant(x.to(torch.int8), w.to(torch.int8), *scales, None, routed[0],
                                                       *lists)
        with pytest.raises(ValueError, match=f"moe_gemm_a8w8_blockscale: {name} must hold numbers of pairs"):
            ragged_blocks.moe_gemm_a8w8_blockscale(
                x.to(torch.float8_e4m3fnuz), w.to(torch.float8_e4m3fnuz), scales[0][:, None], torch.ones(EXPERTS, 1, 1),
                None, None, None, None, routed[0], *lists)
    hashed = numbers(50, SLOTS).int(), torch.tensor([number, *[0] * (TOKENS - 1)])
    with pytest.raises(ValueError, match="routing_from_hash: input_ids must name rows of tid2eid from 0 to"):
        aiter_moe_routing.routing_from_hash(numbers(TOKENS, EXPERTS), hashed[0][:TOKENS * SLOTS], hashed[1], SLOTS, 32)


def test_counts_that_32_bits_do_not_hold():
    """Sums stay at the most that they do, so nothing behind them begins among the pairs."""
    data = aiter_moe_routing.compute_expt_data_torch(torch.tensor([3, 2**32 + 1, 2**31 - 1, 5]), 4, 8, 32)
    assert data.token_offs_raw.tolist() == [0, 3, *[2**31 - 1] * 3]
    assert (data.token_offs_pad.diff() >= 0).all() and data.token_offs_pad[1] == 1


def test_scales_of_blocks_in_torch():
    x, w = numbers(5, 7).bfloat16(), numbers(2, 7, 6, seed=1)
    found = aiter_moe_ragged.dequant_x_blockscale(x, scales := numbers(3, 2, seed=2), False, (2, 3, 4))
    assert torch.equal(found, torch.stack([x[row].float() * scales[row // 2][[0] * 4 + [1] * 3] for row in range(5)]))
    found = aiter_moe_ragged.dequant_x_blockscale(x, scales := numbers(5, 2, seed=2), True, (2, 3, 4))
    assert torch.equal(found, x.float() * scales[:, [0] * 4 + [1] * 3])
    found = aiter_moe_ragged.dequant_w_blockscale(w, scales := numbers(2, 2, 2, seed=2), (2, 3, 4))
    assert torch.equal(found, w * scales[:, [0] * 4 + [1] * 3][:, :, [0] * 3 + [1] * 3])
    with pytest.raises(ValueError, match=r"dequant_w_blockscale: the scales must have shape \(2, 2\), got \(2, 3\)"):
        aiter_moe_ragged.dequant_w_blockscale(w, numbers(2, 2, 3), (2, 3, 4))


def test_layer(simulated):
    x, logits = numbers(TOKENS, 64).bfloat16(), numbers(TOKENS, EXPERTS, seed=1)
    up, up_scale = aiter_moe_ragged.quantize_weights_int8(numbers(EXPERTS, 64, 32, seed=2))
    down, down_scale = aiter_moe_ragged.quantize_weights_int8(numbers(EXPERTS, 16, 64, seed=3))
    found = aiter_moe_ragged.fused_moe_int8_smoothquant(x, up, down, up_scale, down_scale, logits, SLOTS, True)
    weights, ids = logits.double().topk(SLOTS, 1)
    expected = torch.zeros(TOKENS, 64, dtype=torch.float64)
    for token in range(TOKENS):
        for weight, expert in zip(weights[token].softmax(0), ids[token], strict=True):
            y = x[token].double() @ (up[expert] * up_scale[expert]).double()
            expected[token] += weight * (F.silu(y[0::2]) * y[1::2]) @ (down[expert] * down_scale[expert]).double()
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.03 * expected.abs().max().item())


def test_static_fp8(simulated):
    x, scale = numbers(5, 64), torch.tensor(0.5)
    found = aiter_moe_ragged.downcast_to_static_fp8(x, scale)
    assert found.dtype == torch.float8_e4m3fnuz
    torch.testing.assert_close(found.double() * 0.5, x.double(), rtol=0.07, atol=0.01)


def test_bad_ragged_products(simulated):
    data, gather, _ = aiter_moe_routing.routing(numbers(TOKENS, EXPERTS), SLOTS)
    x, w = torch.zeros(TOKENS, 64, dtype=torch.int8), torch.zeros(EXPERTS, 64, 32, dtype=torch.int8)
    scales = torch.ones(TOKENS), torch.ones(EXPERTS, 32)
    product = aiter_moe_ragged.moe_gemm_int8_smoothquant
    with pytest.raises(ValueError, match="moe_gemm_int8_smoothquant: routing_data must be given, with expt_data"):
        product(x, w, *scales)
    with pytest.raises(ValueError, match="moe_gemm_int8_smoothquant: gammas must have 39 elements, one for each pair"):
        product(x, w, *scales, None, data, gather, gammas=torch.ones(3))
    with pytest.raises(ValueError, match="moe_gemm_int8_smoothquant: w must be of preshuffle_weights"):
        product(x, w, *scales, None, data, gather, preshuffled=True)
    with pytest.raises(UnsupportedError, match="moe_gemm_a8w8: no backend supports x_scales, w_scales: formats whose"):
        aiter_moe_ragged.moe_gemm_a8w8(x, w, *scales, routing_data=data)
    with pytest.raises(TypeError, match="moe_gemm_a8w8: x must have dtype torch.float8_e4m3fnuz"):
        aiter_moe_ragged.moe_gemm_a8w8(x, w, None, None, routing_data=data)
    with pytest.raises(ValueError, match="moe_gemm_a8w8: routing_data must be given, with expt_data"):
        aiter_moe_ragged.moe_gemm_a8w8(x, w, None, None)
