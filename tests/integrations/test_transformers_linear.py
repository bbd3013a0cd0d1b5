# SPDX-License-Identifier: MIT
"""Linear layers of small transformers models by our kernels: outputs, launches, adapters and hooks, graphs, undoing."""

import copy

import pytest
import torch

from aiter_like import dispatch, sim

transformers = pytest.importorskip("transformers")

from tiny_transformers import FACTOR, gpt_oss, llama, made, served, tokens  # noqa: E402

from aiter_like.integrations import takeover  # noqa: E402
from aiter_like.integrations import transformers as integration  # noqa: E402

LINEAR = {"attention": 2, "rms_norm": 5, "rotary": 2, "gated_mlp": 2, "linear": 2 * 5 + 1}  # gate and up: gated_mlp

pytestmark = pytest.mark.usefixtures("simulated_models")


def products(session: sim.Session) -> int:
    return sum(count["launches"] for kernel, count in session.counters.items() if "gemm_a16w16" in kernel)


@torch.no_grad()
def test_every_product_of_a_model_is_ours(asked):
    model, exact = made(llama())
    expected, stock = exact(tokens()).logits, model(tokens()).logits
    integration.enable(model)
    with sim.enabled(checks=False) as session:
        ours = model(tokens()).logits
    errors = [((x.float() - expected).norm() / expected.norm()).item() for x in (ours, stock)]
    assert 0 < errors[0] < FACTOR * errors[1], errors
    assert served() == LINEAR and products(session) == 2 * 7 + 1


@torch.no_grad()
def test_biases(asked):
    model, exact = made(gpt_oss())
    expected, stock = exact(tokens()).logits, model(tokens()).logits
    integration.enable(model)
    ours = model(tokens()).logits
    errors = [((x.float() - expected).norm() / expected.norm()).item() for x in (ours, stock)]
    assert 0 < errors[0] < FACTOR * errors[1], errors
    assert model.model.layers[0].self_attn.q_proj.bias is not None and served()["linear"] == 2 * 4 + 1


def test_the_simulator_is_left_to_transformers():
    model, _ = made(llama())
    integration.enable(model)
    assert not any("forward" in part.__dict__ for part in model.modules() if type(part) is torch.nn.Linear)
    with torch.no_grad(), sim.enabled(checks=False) as session:
        model(tokens())
    assert "linear" not in served() and products(session) == 0


@torch.no_grad()
@pytest.mark.parametrize("change", ["hook", "adapter", "autocast", "fp32"])
def test_what_else_a_layer_does_is_kept(asked, change):
    model, _ = made(llama(), torch.float32 if change == "fp32" else torch.bfloat16)
    integration.enable(model, compute_dtype=torch.bfloat16)
    layer, x = model.model.layers[0].self_attn.q_proj, torch.randn(3, 64).to(model.dtype)
    expected, is_ours = torch.nn.functional.linear(x, layer.weight), change in ("hook", "adapter")
    if change == "hook":
        layer.register_forward_hook(lambda module, args, out: out * 2)
        expected = expected * 2
    elif change == "adapter":
        extra, base = torch.nn.Linear(64, 64, dtype=x.dtype), layer
        layer = lambda x: base(x) + extra(x)  # noqa: E731
        expected = expected + extra(x)
    with torch.autocast("cpu", torch.float16, enabled=change == "autocast"):
        torch.testing.assert_close(layer(x).to(x.dtype), expected, rtol=2e-2, atol=2e-2)
    assert takeover.counters()["transformers.linear"] == takeover.Counts(is_ours, 0, not is_ours)


def test_training_stays_torchs(asked):
    model, _ = made(llama())
    integration.enable(model)
    layer, x = model.model.layers[0].self_attn.q_proj, torch.randn(3, 64).bfloat16()
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(64, -1), rtol=2e-2, atol=2e-2)
    assert takeover.counters()["transformers.linear"] == takeover.Counts(0, 0, 1)


def test_models_and_copies_are_given_back(asked):
    model, _ = made(llama())
    integration.enable(model)
    copied = copy.deepcopy(model)
    for each in (model, copied):
        assert "forward" in each.lm_head.__dict__
        integration.disable(each)
        assert not any("forward" in part.__dict__ for part in each.modules())


@pytest.mark.parametrize(("denied", "kept"), [("linear", set()), ("gemm_a16w16", {"gated_mlp"})])
def test_denied_linear_layers(asked, monkeypatch, denied, kept):
    """gemm_a16w16 also writes the products of gated activations, which then stay, too."""
    monkeypatch.setenv("AITER_LIKE_DISABLE", denied)
    dispatch.reset()
    model, _ = made(llama())
    integration.enable(model)
    with torch.no_grad():
        model(tokens())
    assert set(LINEAR) - set(served()) == {"linear"} | kept


@torch.no_grad()
@pytest.mark.usefixtures("fresh_dynamo")
def test_one_graph_has_the_products_as_our_operator(asked, graphs):
    model, _ = made(llama())
    integration.enable(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=graphs)
    for length in (9, 5):
        inputs = {"input_ids": tokens(length=length), "use_cache": False}
        eager, found = model(**inputs).logits, compiled(**inputs).logits
        assert (found - eager).norm() < 0.02 * eager.norm()
    assert list(map(len, graphs.targets("aiter_like.linear.default"))) == [2 * 7 + 1]
