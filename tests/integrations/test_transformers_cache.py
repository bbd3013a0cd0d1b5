# SPDX-License-Identifier: MIT
"""Caches of transformers models: where position alone decides what a query sees, no mask reaches the kernel."""

import math

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tiny_transformers import FACTOR, TOKENS, gpt_oss, llama, made, mistral, padding, served, tokens  # noqa: E402
from transformers.masking_utils import create_causal_mask  # noqa: E402

from aiter_like.integrations import transformers as integration  # noqa: E402
from aiter_like.integrations.transformers import attention as transformers_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_models")

LENGTH = TOKENS + 7  # of a static cache


def made_cache(kind, model):
    if kind == "dynamic":
        return transformers.DynamicCache(config=model.config)
    return transformers.StaticCache(config=model.config, max_cache_len=LENGTH)


@torch.no_grad()
def chunked(model, kind, sizes, mask=None, is_poisoned=False):
    """Logits [batch, sum(sizes), vocabulary] of tokens that come in chunks. A poisoned static cache holds NaN where no
    key is yet: any key that is read too early shows.
    """
    cache, logits, start = made_cache(kind, model), [], 0
    for size in sizes:
        end = start + size
        logits.append(model(input_ids=tokens(length=sum(sizes))[:, start:end], past_key_values=cache,
                            attention_mask=None if mask is None else mask[:, :end]).logits)
        for layer in cache.layers if kind == "static" and is_poisoned else ():
            layer.keys[:, :, end:] = layer.values[:, :, end:] = math.nan
        start = end
    return torch.cat(logits, 1)


@pytest.mark.parametrize("sizes", [(4, 5, 3), (8, 1, 1, 1)], ids=["chunks", "decoding"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_plain_causal_needs_no_mask(calls, kind, sizes):
    model, exact = made(llama())
    expected = exact(input_ids=tokens(length=sum(sizes))).logits
    error = (chunked(model, "dynamic", sizes).float() - expected).norm()
    integration.enable(model)
    ours = chunked(model, kind, sizes, is_poisoned=True)
    assert 0 < (ours.float() - expected).norm() < FACTOR * error
    assert all(options["bias"] is None for options in calls)
    has_lengths = [options["cu_seqlens_kv"] is not None for options in calls[::model.config.num_hidden_layers]]
    assert has_lengths == [kind == "static" and index > 0 for index in range(len(sizes))]
    assert served()["attention"] == len(calls) == model.config.num_hidden_layers * len(sizes)


@pytest.mark.parametrize("side, has_bias", [("none", False), ("left", True)])
@pytest.mark.parametrize("kind, sizes", [("dynamic", (8, 4)), ("static", (8, 4)), ("static", (8, 1, 1, 1))], ids=str)
def test_padding_is_looked_up(calls, kind, sizes, side, has_bias):
    """A mask of ones, as `generate` passes, is none; padding is."""
    model, exact = made(llama())
    length = sum(sizes)
    mask = padding(side, length=length)
    positions = mask.bool()[:, :, None]
    with torch.no_grad():
        expected = exact(input_ids=tokens(length=length), attention_mask=mask).logits * positions
    error = (chunked(model, "dynamic", sizes, mask) * positions - expected).norm()
    integration.enable(model)
    ours = chunked(model, kind, sizes, mask, is_poisoned=not has_bias)
    assert ((ours * positions).where(positions, 0) - expected).norm() < FACTOR * error
    assert (calls[-1]["bias"] is not None) == has_bias


@pytest.mark.parametrize("mask, visible", [([1, 1, 1, 1, 1, 1, 1], [0, 7]), ([1, 1, 1, 1, 1, 1], None),
                                           ([1] * 8, [0, 7]), ([1, 1, 1, 1, 1, 1, 1, 0], None)], ids=str)
def test_masks_that_end_elsewhere(mask, visible):
    """Keys behind the end of a mask are hidden; those behind the last query are by their position."""
    found = transformers_attention.attention_mask(1, 3, 8, q_offset=torch.tensor(4), allow_is_causal_skip=False,
                                                  attention_mask=torch.tensor([mask]).bool())
    starts = getattr(found, "visible_keys", None)
    assert (starts if starts is None else starts.tolist()) == visible


@pytest.mark.parametrize("family", [mistral, gpt_oss])
def test_windows_and_sinks_in_a_static_cache(family):
    """What lengths do not say goes in as a mask."""
    model, exact = made(family())
    sizes = (8, 1, 1, 1)
    with torch.no_grad():
        expected = exact(input_ids=tokens(length=sum(sizes))).logits
    mask = padding("none", length=sum(sizes))
    error = (chunked(model, "static", sizes, mask).float() - expected).norm()
    integration.enable(model)
    assert (chunked(model, "static", sizes, mask).float() - expected).norm() < FACTOR * error


def test_a_mask_that_a_model_changes_counts():
    """Changed masks are new tensors, without the number of visible keys."""
    made_mask = transformers_attention.attention_mask(1, 3, 8, q_offset=torch.tensor(4), allow_is_causal_skip=False)
    assert made_mask.visible_keys.tolist() == [0, 7] and made_mask.visible_keys.dtype == torch.int32
    q, k, v = (torch.randn(1, 2, length, 32, generator=torch.Generator().manual_seed(length)).bfloat16()
               for length in (3, 8, 8))
    changed = made_mask.clone()
    changed[..., 0] = -math.inf
    layer = torch.nn.Identity()
    expected, _ = transformers_attention.stock_attention(layer, q, k, v, changed.bfloat16())
    got, _ = transformers_attention.attention_forward(layer, q, k, v, changed)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    served_by_lengths, _ = transformers_attention.attention_forward(layer, q, k, v, made_mask)
    assert (served_by_lengths - got).abs().max() > 0.1


def test_training_with_a_static_cache_has_gradients(calls):
    """Lengths have no derivative: the mask serves."""
    q, k, v = (torch.randn(1, 2, length, 32).bfloat16().requires_grad_() for length in (3, 8, 8))
    mask = transformers_attention.attention_mask(1, 3, 8, q_offset=torch.tensor(4))
    out, _ = transformers_attention.attention_forward(torch.nn.Identity(), q, k, v, mask)
    out.sum().backward()
    assert calls[0]["bias"] is not None and all(x.grad.norm() > 0 for x in (q, k, v))


def has_lengths(graphs):
    """Of each graph, whether its calls of attention have lengths and no mask."""
    return [[node.args[7] is not None and node.args[8] is None for node in nodes
             if "flash_attn_fwd" in str(node.target)] for nodes in graphs.nodes]


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompiled:
    def test_decoding_with_a_static_cache_is_one_graph(self, graphs):
        """Lengths in place of a mask."""
        model, _ = made(llama())
        integration.enable(model)
        logits = []
        with torch.no_grad():
            for step in (model, torch.compile(model, fullgraph=True, backend=graphs)):
                cache = made_cache("static", model)
                model(input_ids=tokens(), past_key_values=cache)
                logits.append(torch.cat([step(input_ids=tokens(length=1, seed=seed), past_key_values=cache).logits
                                         for seed in range(3)], 1))
        assert (logits[1] - logits[0]).norm() < 0.02 * logits[0].norm()
        assert has_lengths(graphs) == [[True] * model.config.num_hidden_layers]

    def test_masks_made_outside_of_the_graph(self, graphs):
        """As `generate` does for a compiled forward: their lengths are an input, which no graph knows by value."""
        model, _ = made(llama())
        integration.enable(model)
        step = torch.compile(model, fullgraph=True, backend=graphs)
        cache, logits = made_cache("static", model), []
        with torch.no_grad():
            expected = chunked(model, "static", (TOKENS, 1, 1, 1))[:, TOKENS:]
            ids = tokens(length=TOKENS + 3)
            model(input_ids=ids[:, :TOKENS], past_key_values=cache)
            for end in range(TOKENS + 1, TOKENS + 4):
                embedded = model.get_input_embeddings()(ids[:, end - 1:end])
                mask = create_causal_mask(model.config, embedded, torch.ones(2, end), cache)
                logits.append(step(input_ids=ids[:, end - 1:end], past_key_values=cache, attention_mask=mask).logits)
        assert (torch.cat(logits, 1) - expected).norm() < 0.02 * expected.norm()
        assert has_lengths(graphs) == [[True] * model.config.num_hidden_layers]
