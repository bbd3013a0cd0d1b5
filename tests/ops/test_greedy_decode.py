# SPDX-License-Identifier: MIT
"""A small Llama, also with experts in its layers, decodes by this package's operators and gives torch's tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import tiny_experts
import tiny_llama
import torch
from tiny_llama import DTYPE, EPSILON, HEAD_DIM, HEADS, KV_HEADS, LONGEST
from torch import Tensor

import aiter_like
from aiter_like import dispatch

pytestmark = pytest.mark.rotating

SEED, STEPS, PAGE_SIZE = 0, 64, 16
PROMPTS = [[88, 102, 2, 121, 91], [63, 66, 13, 47, 121, 89, 120]]
"""Whose best token leads by 3 % of the logits' standard deviation or more at each step."""
HIP = ("rms_norm", "rope_cached_positions_2c_fwd_inplace", "reshape_and_cache_flash", "silu_and_mul", "greedy_sample")


class Decoder:
    """Sequences over pages in random order that are shared out as they grow.

    Attributes:
        served: operator → the backends that explain() named.
    """

    def __init__(self, model: tiny_llama.Weights, attention: str, sequences: int = len(PROMPTS)):
        self._model, self._attention = model, attention
        pages = LONGEST // PAGE_SIZE
        shape = (2, sequences * pages, PAGE_SIZE, KV_HEADS, HEAD_DIM)
        self._caches = [torch.full(shape, torch.nan, dtype=DTYPE) for _ in model.layers]
        order = torch.randperm(shape[1], generator=torch.Generator().manual_seed(3))
        self._table = order.to(torch.int32).view(sequences, pages)
        self._lengths = torch.zeros(sequences, dtype=torch.int32)
        self.served: dict[str, set[str]] = {}

    def _run(self, backend: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls with that backend forced, and says who served the first call."""
        options["backend"] = backend
        name = function.__name__
        if name not in self.served:
            self.served[name] = {dispatch.explain(function, *args, **options).backend}
        return function(*args, **options)

    def step(self, tokens: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Takes `counts` tokens of each sequence, one after the other in `tokens`: the next token of each, and their
        logits."""
        run, model, new = self._run, self._model, torch.tensor(counts)
        earlier = torch.repeat_interleave(self._lengths, new)
        starts = torch.nn.functional.pad(new.cumsum(0), (1, 0)).int()
        sequence = torch.repeat_interleave(torch.arange(len(counts)), new)
        positions = earlier + torch.arange(len(tokens)) - starts[sequence]
        slots = self._table[sequence, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
        self._lengths += new.int()
        x = model.embedding[tokens].float()
        for layer, (keys, values) in zip(model.layers, self._caches):
            y = run("hip", aiter_like.rms_norm, x.to(DTYPE), layer.norm, EPSILON)
            qkv = run("ck", aiter_like.gemm_a16w16, y, layer.qkv).view(len(tokens), -1, HEAD_DIM)
            q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
            run("hip", aiter_like.rope_cached_positions_2c_fwd_inplace, q[:, None], k[:, None],
                model.cos[:, None, None], model.sin[:, None, None], positions[:, None], 0, True, False)
            run("hip", aiter_like.reshape_and_cache_flash, k, v, keys, values, slots, "auto", None, None)
            attended = run(self._attention, aiter_like.paged_attention, q, keys, values, self._table, self._lengths,
                           LONGEST, max_seqlen_q=max(counts), cu_seqlens_q=starts)
            x = x + run("ck", aiter_like.gemm_a16w16, attended.flatten(1), layer.o, otype=torch.float32)
            y = run("hip", aiter_like.rms_norm, x.to(DTYPE), layer.mlp_norm, EPSILON)
            x = x + self._feed(layer, y)
        y = run("hip", aiter_like.rms_norm, x[starts[1:].long() - 1].to(DTYPE), model.norm, EPSILON)
        logits = run("ck", aiter_like.gemm_a16w16, y, model.head, otype=torch.float32)
        found = torch.empty(len(counts), dtype=torch.int32)
        run("hip", aiter_like.greedy_sample, found, logits)
        return found.long(), logits

    def _feed(self, layer: tiny_llama.Layer, y: Tensor) -> Tensor:
        return self._dense(y, layer.gate_up, layer.down)

    def _dense(self, y: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        hidden = torch.empty(len(y), down.shape[1], dtype=DTYPE)
        self._run("hip", aiter_like.silu_and_mul, hidden, self._run("ck", aiter_like.gemm_a16w16, y, gate_up))
        return self._run("ck", aiter_like.gemm_a16w16, hidden, down, otype=torch.float32)


class DecoderWithExperts(Decoder):
    """Of a model whose layers have experts, which the dispatcher's choice of backends serves."""

    def _feed(self, layer: tiny_llama.Layer, y: Tensor) -> Tensor:
        experts, kind = layer.experts, layer.experts.kind
        logits = self._run("ck", aiter_like.gemm_a16w16, y, experts.gate, otype=torch.float32)
        weights, ids = torch.empty(len(y), kind.slots), torch.empty(len(y), kind.slots, dtype=torch.int32)
        if kind.groups:
            aiter_like.biased_grouped_topk(logits, experts.bias, weights, ids, kind.groups, kind.best_groups, True,
                                           kind.factor)
        else:
            aiter_like.topk_softmax(weights, ids, torch.empty_like(ids), logits, True)
        name = f"fused_moe of {len(y)}"
        if name not in self.served:
            found = dispatch.explain(aiter_like.fused_moe, y, experts.w1, experts.w2, weights, ids)
            self.served[name] = {one.backend for one in found}
        out = aiter_like.fused_moe(y, experts.w1, experts.w2, weights, ids).float()
        return out if experts.shared is None else out + self._dense(y, *experts.shared)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_tokens_are_those_of_torchs_attention(simulated, backend):
    """Torch computes the logits of all steps at once: while each token is its best one, it decodes the same text."""
    model, counts = tiny_llama.weights(SEED), [len(prompt) for prompt in PROMPTS]
    decoder = Decoder(model, backend)
    found = [decoder.step(torch.tensor(sum(PROMPTS, [])), counts)]
    while len(found) < STEPS:
        found.append(decoder.step(found[-1][0], [1] * len(PROMPTS)))
    assert decoder.served == {**dict.fromkeys(HIP, {"hip"}), "gemm_a16w16": {"ck"}, "paged_attention": {backend}}
    for index, prompt in enumerate(PROMPTS):
        tokens = torch.stack([step_tokens[index] for step_tokens, _ in found])
        text = torch.tensor([*prompt, *tokens[:-1]])[None]
        expected = tiny_llama.logits_of(model, text)[0, len(prompt) - 1:]
        assert tokens.tolist() == expected.argmax(-1).tolist()
        assert torch.stack([logits[index] for _, logits in found]).sub(expected).abs().max() < 0.015 * expected.std()
        late = tiny_llama.logits_of(model, text, STEPS // 2)[0, len(prompt) - 1:]
        assert tokens.tolist() != late.argmax(-1).tolist(), "earlier keys would not show in the tokens"


WITH_EXPERTS = {"mixtral": (14, [[107, 88, 12, 22, 71], [121, 102, 106, 28, 10, 80, 61]]),
                "qwen3_moe": (372, [[127, 94, 122, 47, 13, 63]]), "deepseek": (125, [[61, 29, 98, 87, 127, 67]])}
"""Kind of model → seed of its weights, and prompts of which each step's best token leads by 1.5 % of the logits'
standard deviation or more, and each layer's chosen experts by 0.0015 of their scores: no rounding chooses others."""


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_tokens_of_models_with_experts(simulated, name):
    """Prompts have more tokens than a step, of one sequence or of two: pairs sorted by expert, and pairs that are not.
    """
    seed, prompts = WITH_EXPERTS[name]
    model = tiny_experts.weights(name, seed)
    decoder = DecoderWithExperts(model, "hip", len(prompts))
    found = [decoder.step(torch.tensor(sum(prompts, [])), list(map(len, prompts)))]
    while len(found) < STEPS:
        found.append(decoder.step(found[-1][0], [1] * len(prompts)))
    products = set().union(*(decoder.served[key] for key in decoder.served if key.startswith("fused_moe")))
    assert products and "torch" not in products, decoder.served
    for index, prompt in enumerate(prompts):
        tokens = torch.stack([step_tokens[index] for step_tokens, _ in found])
        text = torch.tensor([*prompt, *tokens[:-1]])[None]
        expected = tiny_llama.logits_of(model, text, of_experts=tiny_experts.forward64)[0, len(prompt) - 1:]
        assert tokens.tolist() == expected.argmax(-1).tolist()
        assert torch.stack([logits[index] for _, logits in found]).sub(expected).abs().max() < 0.015 * expected.std()
