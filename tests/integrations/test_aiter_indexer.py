# SPDX-License-Identifier: MIT
"""indexer_qk_rope_quant_and_cache against the formulas in float64; refusals before the first write."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter
from aiter_like import sim

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fnuz
HEADS, DIM, ROTARY, PAGE, BLOCKS, TOKENS = 3, 128, 64, 16, 2, 5
EPSILON, SCALE = 1e-6, 0.25
SLOTS = torch.tensor([7, -1, 0, 30, 17])
KEPT = [0, 2, 3, 4]


def arguments(**changes):
    turns = torch.arange(20)[:, None] * 10.0 ** -torch.linspace(0, 3, ROTARY // 2)
    return {"q": numbers(TOKENS, HEADS, DIM), "q_out": torch.zeros(TOKENS, HEADS, DIM).to(FP8),
            "weights": numbers(TOKENS, HEADS, seed=1), "weights_out": torch.zeros(TOKENS, HEADS),
            "k": 3 + numbers(TOKENS, DIM, seed=2), "kv_cache": torch.zeros(BLOCKS, PAGE, DIM + 4).to(FP8),
            "slot_mapping": SLOTS, "norm_weight": 1 + numbers(DIM, seed=3, dtype=F32) / 8,
            "norm_bias": numbers(DIM, seed=4, dtype=F32) / 8, "positions": torch.tensor([3, 0, 19, 4, 4]),
            "cos_cache": turns.cos().to(BF16), "sin_cache": turns.sin().to(BF16), "epsilon": EPSILON,
            "quant_block_size": DIM, "scale_fmt": "ue8m0", "weights_scale": SCALE} | changes


def turned(x, call):
    cos, sin = (call[name].double()[call["positions"]] for name in ("cos_cache", "sin_cache"))
    if x.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]
    first, rest = x[..., :ROTARY], x[..., ROTARY:]
    if call.get("is_neox", True):
        a, b = first.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
    a, b = first[..., ::2], first[..., 1::2]
    return torch.cat((torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2), rest), -1)


def expect(call):
    """Queries and keys in float64, before they are quantised."""
    k = call["k"].double()
    k = (k - k.mean(-1, keepdim=True)) * torch.rsqrt(k.var(-1, correction=0, keepdim=True) + EPSILON)
    k = (k * call["norm_weight"].double() + call["norm_bias"].double()).to(BF16).double()
    return turned(call["q"].double(), call), turned(k, call)


def check(call):
    q, k = expect(call)
    scales = call["weights_out"].double() / (call["weights"].double() * SCALE)
    largest = q.abs().amax(-1) / 240
    if call["scale_fmt"] == "ue8m0":
        assert torch.equal(scales.log2().round(), scales.log2())
        assert ((scales >= largest * 0.99) & (scales < 2.02 * largest)).all()
    else:
        torch.testing.assert_close(scales, largest, rtol=2**-7, atol=0)
    torch.testing.assert_close(call["q_out"].double() * scales[..., None], q, rtol=0.07, atol=float(scales.max()))
    flat = call["kv_cache"].view(torch.uint8).flatten(1)
    keys = flat[:, :PAGE * DIM]
    if call.get("preshuffle"):  # tiles of 16 tokens and 16 elements
        keys = keys.unflatten(1, (1, DIM // 16, 16, 16)).transpose(2, 3).flatten(1)
    keys = keys.reshape(-1, DIM).contiguous().view(FP8).double()
    scale = flat[:, PAGE * DIM:].contiguous().view(F32).flatten().double()
    torch.testing.assert_close((keys * scale[:, None])[SLOTS[KEPT]], k[KEPT], rtol=0.07, atol=float(scale.max()))
    assert scale.count_nonzero() == len(KEPT)


@pytest.mark.parametrize("changes", ({}, {"scale_fmt": ""}, {"compute_all_q_rope": True},
                                     {"is_neox": False, "preshuffle": True}), ids=str)
def test_numbers(changes):
    call = arguments(**changes)
    before = {name: call[name].clone() for name in ("q", "k", "weights")}
    with aiter.use_backend("torch"):
        aiter.indexer_qk_rope_quant_and_cache(**call)
    check(call)
    assert all(torch.equal(call[name], value) for name, value in before.items())


def test_by_kernels():
    """On the simulated device, by HIP."""
    call = arguments()
    with sim.enabled(), aiter.use_backend("hip"):
        explanations = aiter.explain(aiter.indexer_qk_rope_quant_and_cache, **call)
        assert len(explanations) == 4 and all(one.backend == "hip" for one in explanations)
        aiter.indexer_qk_rope_quant_and_cache(**call)
    check(call)


def test_strides_and_tensors_of_more_tokens():
    call = arguments(q=numbers(TOKENS + 2, DIM, HEADS).transpose(1, 2),
                     q_out=torch.zeros(TOKENS + 1, HEADS, 2 * DIM).to(FP8)[..., ::2],
                     weights_out=torch.zeros(HEADS, TOKENS + 3).t())
    with aiter.use_backend("torch"):
        aiter.indexer_qk_rope_quant_and_cache(**call)
    assert not call["weights_out"][TOKENS:].any() and not call["q_out"].float()[TOKENS:].any()
    check(call | {name: call[name][:TOKENS] for name in ("q", "q_out", "weights_out")})


def test_no_tokens():
    call = arguments(slot_mapping=SLOTS[:0])
    with aiter.use_backend("torch"):
        aiter.indexer_qk_rope_quant_and_cache(**call)
    assert not call["kv_cache"].float().any() and not call["weights_out"].any()


def test_refusals():
    call = arguments()
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    for message, kind, changes in (
            ("q must have 3 dimensions", ValueError, {"q": call["q"][0]}),
            ("q_out must have dtype", TypeError, {"q_out": call["q_out"].float()}),
            ("q_out must have at least 5 rows", ValueError, {"q_out": call["q_out"][:4]}),
            ("weights must have shape", ValueError, {"weights": call["weights"][:, :2]}),
            ("weights_out must have dtype", TypeError, {"weights_out": call["weights"].clone()}),
            ("k must have dtype", TypeError, {"k": call["k"].half()}),
            ("kv_cache must have", ValueError, {"kv_cache": call["kv_cache"][..., :64]}),
            ("norm_bias must have dtype", TypeError, {"norm_bias": call["norm_bias"].half()}),
            ("positions must be rows of the table", ValueError, {"positions": call["positions"] + 5}),
            ("sin_cache must have shape", ValueError, {"sin_cache": call["sin_cache"][:3]}),
            ("cos_cache must have at most", ValueError, dict.fromkeys(("cos_cache", "sin_cache"),
                                                                    torch.ones(20, 65, dtype=BF16))),
            ("quant_block_size must be", ValueError, {"quant_block_size": 64}),
            ("scale_fmt must be", ValueError, {"scale_fmt": "fp32"}),
            ("epsilon must be", ValueError, {"epsilon": -1.0}),
            ("preshuffle must be", TypeError, {"preshuffle": "yes"}),
            ("weights_scale must be", ValueError, {"weights_scale": float("nan")})):
        with pytest.raises(kind, match=f"^indexer_qk_rope_quant_and_cache: {message}"):
            aiter.indexer_qk_rope_quant_and_cache(**call | changes)
    assert all(torch.equal(call[name], value) for name, value in before.items())
