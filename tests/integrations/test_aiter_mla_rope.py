# SPDX-License-Identifier: MIT
"""AITER's decoding over latents whose newest token is not turned yet, against float64."""

from __future__ import annotations

import pytest
import torch

from aiter_like.integrations.aiter.mla.rope import decode_attention_fwd_grouped_rope

BATCH, HEADS, RANK, PE, ROTARY, ROWS, SCALE = 3, 4, 128, 32, 16, 40, 0.08
POSITIONS = torch.tensor([[6], [0], [19]])


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call(table_dtype=torch.bfloat16):
    starts = torch.tensor([0, 7, 7, 27], dtype=torch.int32)
    angles = numbers(20, ROTARY // 2, seed=3, dtype=torch.float32)
    cache = numbers(ROWS, 1, RANK + PE, seed=1)
    return {"q": numbers(BATCH, HEADS, RANK + PE), "k_buffer": cache, "v_buffer": cache[..., :RANK].contiguous(),
            "o": torch.full((BATCH, HEADS, RANK), 7.0).bfloat16(), "kv_indptr": starts,
            "kv_indices": torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))[:27],
            "k_pe_tokens": torch.full((BATCH, PE), 7.0).bfloat16(), "kv_lora_rank": RANK, "rotary_dim": ROTARY,
            "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), 1).to(table_dtype), "positions": POSITIONS,
            "attn_logits": None, "num_kv_splits": 2, "sm_scale": SCALE, "use_rope": True}


def turned(x, table, is_neox):
    """`x` [heads, pe] by a row of the table."""
    cos, sin = table.double().chunk(2)
    first, second = (x[:, :ROTARY].chunk(2, -1) if is_neox else (x[:, 0:ROTARY:2], x[:, 1:ROTARY:2]))
    both = first * cos - second * sin, second * cos + first * sin
    return torch.cat((torch.cat(both, -1) if is_neox else torch.stack(both, -1).flatten(-2), x[:, ROTARY:]), -1)


def expect(arguments, is_neox, has_rope):
    """The results, and the turned ends of the last keys."""
    out, ends = torch.zeros(BATCH, HEADS, RANK, dtype=torch.float64), {}
    starts = arguments["kv_indptr"].tolist()
    for b in range(BATCH):
        q = arguments["q"][b].double()
        keys = arguments["k_buffer"][arguments["kv_indices"][starts[b]:starts[b + 1]], 0].double()
        if not len(keys):
            continue
        if has_rope:
            table = arguments["cos_sin_cache"][POSITIONS[b, 0]]
            q = torch.cat((q[:, :RANK], turned(q[:, RANK:], table, is_neox)), -1)
            ends[b] = turned(keys[-1:, RANK:], table, is_neox)[0]
            keys = torch.cat((keys[:-1], torch.cat((keys[-1, :RANK], ends[b]))[None]))
        out[b] = (q @ keys.T * SCALE).softmax(-1) @ keys[:, :RANK]
    return out, ends


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(("is_neox", "table_dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_with_rope(simulated, is_neox, table_dtype):
    arguments = call(table_dtype)
    before = arguments["k_buffer"].clone()
    decode_attention_fwd_grouped_rope(**arguments, is_neox_style=is_neox)
    expected, ends = expect(arguments, is_neox, True)
    close(arguments["o"], expected)
    for b in range(BATCH):
        close(arguments["k_pe_tokens"][b], ends.get(b, torch.full((PE,), 7.0).double()))
    assert torch.equal(arguments["k_buffer"], before)


def test_without_rope(simulated):
    arguments = call() | {"use_rope": False, "k_pe_tokens": None, "positions": None, "cos_sin_cache": None,
                          "rotary_dim": None}
    decode_attention_fwd_grouped_rope(**arguments)
    close(arguments["o"], expect(arguments, True, False)[0])


@pytest.mark.parametrize(("name", "value", "message"), [
    ("q", numbers(BATCH, HEADS, RANK + PE, dtype=torch.float32), "q must have dtype"),
    ("v_buffer", numbers(ROWS, 1, RANK + 1), "v_buffer must have shape"),
    ("k_pe_tokens", None, "k_pe_tokens must be a tensor"), ("rotary_dim", 64, "rotary_dim must be between"),
    ("positions", POSITIONS[:2], "positions must have 3 elements"),
    ("kv_indptr", torch.zeros(3, dtype=torch.int32), "kv_indptr must have shape")])
def test_bad_arguments(name, value, message):
    arguments = call()
    with pytest.raises((TypeError, ValueError), match=f"decode_attention_fwd_grouped_rope: {message}"):
        decode_attention_fwd_grouped_rope(**arguments | {name: value})
    assert (arguments["o"] == 7).all()
