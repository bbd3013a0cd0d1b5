# SPDX-License-Identifier: MIT
"""AITER's norm, rotation and ring of a sliding window in one call, against float64."""

from __future__ import annotations

import pytest
import torch

from aiter_like.integrations.aiter.rope.swa import fused_reduce_qk_norm_rope_swa_write

TOKENS, HEADS, DIM, ROPE, RINGS, WIN, EPSILON = 5, 3, 64, 16, 4, 8, 1e-6
POSITIONS = torch.tensor([3, 19, 0, 7, 12])


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expect(x, weight, angles, is_neox):
    x = x.double()
    x = x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * (1 if weight is None else weight.double())
    kept, tail = x[..., :DIM - ROPE], x[..., DIM - ROPE:]
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    first, second = tail.chunk(2, -1) if is_neox else (tail[..., 0::2], tail[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat((kept, torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)), -1)


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=0.01, atol=0.01)


def tables():
    angles = numbers(20, ROPE // 2, seed=2, dtype=torch.float32)
    return angles, angles.cos()[:, None, None], angles.sin()[:, None, None]


@pytest.mark.parametrize("parts", (None, 2))
@pytest.mark.parametrize("is_neox", (False, True))
def test_with_a_ring(simulated, parts, is_neox):
    """Rows that are not listed stay as they are, and so do places of the rings that no row goes to."""
    q = numbers(*(() if parts is None else (parts,)), TOKENS, HEADS * DIM)
    kv, (angles, cos, sin) = numbers(TOKENS, DIM, seed=1), tables()
    weight = numbers(DIM, seed=3) if is_neox else None
    listed, rings = torch.tensor([4, -1, 0, 1, -1]).int(), torch.tensor([3, 1, 0])
    sequences = torch.tensor([0, 0, 1, 1, 2])
    swa, before = torch.full((RINGS, WIN, DIM), 7.0).bfloat16(), kv.clone()
    found = fused_reduce_qk_norm_rope_swa_write(
        q, kv, weight, weight, EPSILON, EPSILON, ROPE, cos, sin, POSITIONS, is_neox=is_neox, write_indices=listed,
        batch_id_per_token=sequences, state_slot_mapping=rings, swa_kv=swa, win=WIN)
    whole = q if parts is None else q.double().sum(0)
    close(found, expect(whole.view(TOKENS, HEADS, DIM), weight, angles[POSITIONS], is_neox))
    rows = expect(before[:, None], weight, angles[POSITIONS], is_neox)[:, 0]
    wanted = torch.full(swa.shape, 7.0).double()
    for token in range(TOKENS):
        if token in (0, 1, 4):
            close(kv[token], rows[token])
            wanted[rings[sequences[token]], POSITIONS[token] % WIN] = rows[token]
        else:
            assert torch.equal(kv[token], before[token])
    close(swa, wanted)


def test_without_a_ring(simulated):
    q, kv, (angles, cos, sin) = numbers(TOKENS, HEADS * DIM), numbers(TOKENS, DIM, seed=1), tables()
    out, before = torch.empty(TOKENS, HEADS, DIM, dtype=torch.float16), kv.clone()
    assert fused_reduce_qk_norm_rope_swa_write(q, kv, None, None, EPSILON, EPSILON, ROPE, cos, sin, POSITIONS,
                                               out) is out
    close(out, expect(q.view(TOKENS, HEADS, DIM), None, angles[POSITIONS], False))
    close(kv, expect(before[:, None], None, angles[POSITIONS], False)[:, 0])


@pytest.mark.parametrize(("name", "value", "message"), [
    ("q", numbers(TOKENS, 100), "q must be"), ("rope_head_dim", 128, "rope_head_dim must be"),
    ("positions", POSITIONS[1:], "positions must have shape"),
    ("cos_cache", torch.ones(20, 3), "cos_cache must have 8"),
    ("q_out", numbers(TOKENS, 1, DIM), "q_out must have shape"), ("win", 4, "swa_kv must have shape"),
    ("batch_id_per_token", torch.zeros(2).int(), "batch_id_per_token must have at least 5")])
def test_bad_arguments(name, value, message):
    _, cos, sin = tables()
    kv = numbers(TOKENS, DIM)
    call = {"q": numbers(TOKENS, HEADS * DIM), "kv": kv, "q_norm_weight": None, "kv_norm_weight": None,
            "q_rms_eps": EPSILON, "kv_rms_eps": EPSILON, "rope_head_dim": ROPE, "cos_cache": cos, "sin_cache": sin,
            "positions": POSITIONS, "write_indices": torch.arange(TOKENS).int(),
            "batch_id_per_token": torch.zeros(TOKENS).int(), "state_slot_mapping": torch.zeros(1).int(),
            "swa_kv": torch.zeros(RINGS, WIN, DIM).bfloat16(), "win": WIN}
    with pytest.raises((TypeError, ValueError), match=f"fused_reduce_qk_norm_rope_swa_write: {message}"):
        fused_reduce_qk_norm_rope_swa_write(**call | {name: value})
    assert torch.equal(kv, numbers(TOKENS, DIM))
