# SPDX-License-Identifier: MIT
"""AITER's norm, rotation and quantisation of FlyDSL, against float64."""

from __future__ import annotations

import pytest
import torch

from aiter_like.integrations.aiter.rope.flydsl import flydsl_qk_norm_rope_quant

TOKENS, HEADS, DIM, ROPE, ROWS = 6, 3, 64, 16, 24
FP8 = torch.float8_e4m3fnuz
POSITIONS = torch.tensor([3, 19, 0, 7, 12, 5])


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def call(**options):
    angles = numbers(20, ROPE // 2, seed=4).float()
    return {"q": numbers(TOKENS, HEADS * DIM), "kv": numbers(TOKENS, 100 + DIM, seed=1)[:, 100:],
            "kv_weight": numbers(DIM, seed=2), "cos_cache": angles.cos()[:, None, None],
            "sin_cache": angles.sin()[:, None, None], "positions": POSITIONS, "num_q_heads": HEADS, "head_dim": DIM,
            "rope_head_dim": ROPE, **options}


def expect(arguments):
    """Of q [tokens, heads, dim] and kv [tokens, dim]: normed, and turned."""
    found = []
    for x, weight in ((arguments["q"].view(TOKENS, HEADS, DIM), arguments.get("q_weight")),
                      (arguments["kv"][:, None], arguments["kv_weight"])):
        x = x.double()
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 if weight is None else weight.double())
        cos, sin = (arguments[name].double()[POSITIONS][:, 0] for name in ("cos_cache", "sin_cache"))
        even, odd = x[..., DIM - ROPE::2], x[..., DIM - ROPE + 1::2]
        tail = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        found.append((x, torch.cat((x[..., :DIM - ROPE], tail), -1)))
    return found[0], (found[1][0][:, 0], found[1][1][:, 0])


@pytest.mark.parametrize("has_weight", (False, True))
def test_plain(simulated, has_weight):
    arguments = call(**({"q_weight": numbers(DIM, seed=3)} if has_weight else {}))
    q_out = torch.empty(TOKENS, HEADS, DIM, dtype=torch.bfloat16)
    q, kv, *scales = flydsl_qk_norm_rope_quant(**arguments, q_out=q_out)
    assert q is q_out and scales == [None, None]
    for got, (_, one) in zip((q, kv), expect(arguments), strict=True):
        torch.testing.assert_close(got.double(), one, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("size", (None, 16))
@pytest.mark.parametrize("scale_dtype", ("fp32", "e8m0"))
def test_quantised(simulated, size, scale_dtype):
    arguments = call(quant=True, quant_group_size=size, scale_dtype=scale_dtype)
    q, kv, *scales = flydsl_qk_norm_rope_quant(**arguments)
    for got, scale, (before, after) in zip((q, kv), scales, expect(arguments), strict=True):
        amax = before.unflatten(-1, (-1, size or DIM)).abs().amax(-1) * 2**0.5
        assert got.dtype == FP8 and scale.shape == amax.shape
        own = amax / 240
        if scale_dtype == "e8m0":
            assert scale.dtype == torch.uint8
            own, scale = torch.exp2(own.log2().ceil()), torch.exp2(scale.double() - 127)
        torch.testing.assert_close(scale.double(), own, rtol=1e-3, atol=0)
        full = scale.double().repeat_interleave(size or DIM, -1)
        assert ((got.double() * full - after).abs() <= after.abs() / 15 + full / 500).all()


def test_ring_by_rows(simulated):
    """A token of no sequence, one without a row and one behind the pool go nowhere."""
    arguments, pool = call(), torch.full((ROWS, DIM), 7.0).bfloat16()
    rows = torch.tensor([5, 0, 8, -1, ROWS + 5, 2], dtype=torch.int32)
    _, kv, *_ = flydsl_qk_norm_rope_quant(**arguments, swa_kv=pool, swa_dest_rows=rows,
                                          batch_id_per_token=torch.tensor([0, 1, -1, 0, 1, 1], dtype=torch.int32))
    expected = torch.full((ROWS, DIM), 7.0).bfloat16()
    for token in (0, 1, 5):
        expected[rows[token]] = kv[token]
    assert torch.equal(pool, expected)


def test_ring_by_blocks(simulated):
    arguments, pool = call(), torch.full((ROWS, DIM), 7.0).bfloat16()
    tables = torch.tensor([[2, -1, 0], [1, 5, 2]], dtype=torch.int32)
    batch = torch.tensor([0, 1, -1, 0, 0, 1], dtype=torch.int32)
    _, kv, *_ = flydsl_qk_norm_rope_quant(**arguments, swa_kv=pool, swa_block_tables=tables, swa_block_size=8,
                                          batch_id_per_token=batch)
    expected = torch.full((ROWS, DIM), 7.0).bfloat16()
    for token, (sequence, position) in enumerate(zip(batch.tolist(), POSITIONS.tolist(), strict=True)):
        block = int(tables[sequence, position // 8]) if sequence >= 0 else -1
        if 0 <= block < ROWS // 8:
            expected[block * 8 + position % 8] = kv[token]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize(("options", "message"), [
    ({"q": numbers(TOKENS, 100)}, "q must be"), ({"kv": numbers(TOKENS, DIM).float()}, "kv must have dtype"),
    ({"quant_group_size": 48, "quant": True}, "quant_group_size must divide head_dim 64, got 48"),
    ({"scale_dtype": "fp8"}, "scale_dtype must be"), ({"cos_cache": torch.ones(20, 3)}, "cos_cache must have 8"),
    ({"swa_kv": numbers(ROWS, DIM), "quant": True}, "swa_kv must be None with quant"),
    ({"swa_kv": numbers(ROWS, DIM), "batch_id_per_token": torch.zeros(TOKENS).int()}, "swa_dest_rows must be"),
    ({"swa_kv": numbers(ROWS, DIM), "batch_id_per_token": torch.zeros(2).int(),
      "swa_dest_rows": torch.zeros(TOKENS).int()}, "batch_id_per_token must have at least 6")])
def test_bad_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=f"flydsl_qk_norm_rope_quant: {message}"):
        flydsl_qk_norm_rope_quant(**call(**options))
