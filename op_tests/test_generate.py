# SPDX-License-Identifier: MIT
"""A small transformers Llama on the device, served by this package: compiled, and captured in a CUDA graph."""

import pytest
import torch

from aiter_like.integrations import takeover

transformers = pytest.importorskip("transformers")

from aiter_like.integrations import transformers as integration  # noqa: E402

PROMPT, NEW = 7, 4
LIMIT = 0.02  # bfloat16 rounds at other places in a compiled model; anything but rounding gives more


@pytest.fixture
def model(device):
    """With all its layers served; what the compiler made of others is forgotten."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=128, num_hidden_layers=2, intermediate_size=256, vocab_size=200,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                      max_position_embeddings=64, initializer_range=0.2)
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval().to(device)
    integration.enable(model)
    yield model
    integration.uninstall()
    torch._dynamo.reset()


def tokens(model, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (2, length), generator=generator).to(model.device)


def filled(model):
    """A static cache with the prompt in it."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=PROMPT + NEW)
    model(input_ids=tokens(model, PROMPT, 0), past_key_values=cache)
    return cache


@torch.no_grad()
def decoded(model, step=None):
    """Logits [2, NEW, vocabulary] of one token after the other."""
    step = model if step is None else step
    cache, logits = filled(model), []
    for index in range(NEW):
        torch.compiler.cudagraph_mark_step_begin()
        out = step(input_ids=tokens(model, 1, 1 + index), past_key_values=cache).logits
        logits.append(out.clone())
    return torch.cat(logits, 1)


def check(got, expected):
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert error < LIMIT, error


def test_nothing_falls_back(model):
    takeover.reset_counters()
    decoded(model)
    served = {name: (counts.served, counts.fell_back) for name, counts in takeover.counters().items()
              if name.startswith("transformers.")}
    steps = 1 + NEW
    linear, fell_back = served.pop("transformers.linear")  # on the simulated device they are left to torch
    assert fell_back == 0 and (linear == 0 or model.device.type == "cuda")
    assert served == {"transformers.attention": (2 * steps, 0), "transformers.rms_norm": (5 * steps, 0),
                      "transformers.rotary": (2 * steps, 0), "transformers.gated_mlp": (2 * steps, 0),
                      "transformers.paged_attention": (0, 0)}  # that of continuous batching


def test_compiled_equals_eager(model):
    """By Inductor, with CUDA graphs where there are any."""
    options = {"mode": "reduce-overhead"} if model.device.type == "cuda" else {"backend": "aot_eager"}
    expected = decoded(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, **options)
    for _ in range(3 if model.device.type == "cuda" else 1):  # warm-up, recording, replay
        check(decoded(model, compiled), expected)


@torch.no_grad()
def test_captured_in_a_graph_equals_eager(model):
    if model.device.type != "cuda":
        pytest.skip("no CUDA graphs on the simulated device")
    expected = decoded(model)
    cache, token = filled(model), tokens(model, 1, 1)
    before = cache.layers[0].cumulative_length.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(input_ids=token, past_key_values=cache)  # kernels are built, and checked, outside of the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(input_ids=token, past_key_values=cache).logits
    for layer in cache.layers:
        layer.cumulative_length.copy_(before)
    got = []
    for index in range(NEW):
        token.copy_(tokens(model, 1, 1 + index))
        graph.replay()
        got.append(logits.clone())
    check(torch.cat(got, 1), expected)
