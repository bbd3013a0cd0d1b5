# SPDX-License-Identifier: MIT
"""Adapters take lengths, starts, pages and experts of 64 bits: what 32 bits do not hold is never what its low 32 bits
say, but an error, or, where such a number has a meaning, the same as -1.
"""

from types import SimpleNamespace

import pytest
import torch
from seeded import numbers

from aiter_like.integrations.aiter.moe import fused_moe as aiter_moe
from aiter_like.integrations.vllm import mla

FAR = (2**32, -2**32)
pytestmark = pytest.mark.usefixtures("simulated", "in_torch")


def longs(*values):
    return torch.tensor(values)


def with_last(values, number):
    return torch.cat((values.flatten()[:-1], longs(number))).view(values.shape)


@pytest.mark.parametrize("far", FAR)
def test_starts_and_lengths(far):
    q, starts = numbers(21, 4, 64), longs(0, 8, 21)
    attention = SimpleNamespace(scale=0.1)
    latents = SimpleNamespace(kv_lora_rank=512, scale=0.1), numbers(2, 4, 576), numbers(3, 16, 576)

    def decode(lengths):
        table = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
        return mla.decode(*latents, SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=lengths)), None)

    calls = {
        "vLLM's prompts": (lambda ends: mla.prefill(attention, q, q, q, ends, starts, True, False), starts),
        "vLLM's keys": (lambda ends: mla.prefill(attention, q, q, q, starts, ends, True, False), starts),
        "vLLM's lengths": (decode, longs(20, 5))}
    for name, (call, right) in calls.items():
        call(right)
        with pytest.raises(ValueError, match=r"^\w+: .* must "):
            call(with_last(right, int(right.flatten()[-1]) + far))
            pytest.fail(name)


@pytest.mark.parametrize("far", FAR)
def test_starts_of_transformers(far):
    pytest.importorskip("transformers")
    from aiter_like.integrations.transformers.attention import attention_forward

    qkv, longest = [numbers(1, heads, 21, 64) for heads in (4, 2, 2)], {"max_length_q": 13, "max_length_k": 13}
    for starts in (longs(0, 8, 21), longs(0, 8, 21 + far)):
        call = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, **longest}
        if starts[-1] == 21:
            attention_forward(torch.nn.Module(), *qkv, None, scaling=0.1, **call)
        else:
            with pytest.raises(ValueError, match="cu_seqlens_q must start at 0"):
                attention_forward(torch.nn.Module(), *qkv, None, scaling=0.1, **call)


@pytest.mark.parametrize("far", FAR)
def test_numbers_of_none(far):
    """Experts that there are not have no part."""
    x, w1, w2 = numbers(5, 64), numbers(4, 128, 64, seed=1), numbers(4, 64, 64, seed=2)
    ids, weights = longs(0, 1, 2, 3, 1, 0, 3, 2, 1, 2).view(5, 2), torch.full((5, 2), 0.5)
    calls = {"stage 1": (lambda ids: aiter_moe.torch_moe_stage1(x, w1, w2, weights, ids, torch.bfloat16), ids),
             "stage 2": (lambda ids: aiter_moe.torch_moe_stage2(
                 numbers(10, 64), w1, w2, weights, ids, torch.bfloat16), ids)}
    for name, (call, right) in calls.items():
        none = call(with_last(right, -1))
        assert not torch.equal(call(right), none), name
        assert torch.equal(call(with_last(right, int(right.flatten()[-1]) + far)), none), name
