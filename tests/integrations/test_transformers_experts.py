# SPDX-License-Identifier: MIT
"""Layers of experts of small transformers models served by fused_moe, against transformers' own."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tiny_transformers import FACTOR, deepseek_v3, gpt_oss, made, mixtral, qwen3_moe, tokens  # noqa: E402

from aiter_like.enums import ActivationType  # noqa: E402
from aiter_like.errors import UnsupportedError  # noqa: E402
from aiter_like.integrations import takeover  # noqa: E402
from aiter_like.integrations import transformers as integration  # noqa: E402
from aiter_like.integrations.transformers.experts import _gate_of, experts_forward  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_models")


def layers_of(model):
    return [module for module in model.modules() if experts_forward(module) is not None]


def counts():
    return takeover.counters()["transformers.experts"]


@pytest.mark.parametrize("family, layers", [(mixtral, 2), (qwen3_moe, 1), (deepseek_v3, 1), (gpt_oss, 2)],
                         ids=lambda value: getattr(value, "__name__", ""))
@torch.no_grad()
def test_families(family, layers):
    """Prompts and single tokens, with every expert's matrices: as near to float32 as the stock model in bfloat16."""
    model, exact = made(family())
    with torch.no_grad():
        for other in (model, exact):
            for name, one in other.named_parameters():
                if "experts" in name and "bias" in name:
                    one.copy_(torch.linspace(-1, 1, one.numel()).view_as(one).bfloat16())
    inputs = [tokens(), tokens(1, 1)]
    expected, stock = ([other(input_ids=ids).logits for ids in inputs] for other in (exact, model))
    integration.enable(model)
    takeover.reset_counters()
    ours = [model(input_ids=ids).logits for ids in inputs]
    assert (counts().served, counts().fell_back) == (2 * layers, 0)
    for mine, theirs, wanted in zip(ours, stock, expected):
        error, allowed = ((x.float() - wanted).norm() / wanted.norm() for x in (mine, theirs))
        assert 0 < error < FACTOR * allowed + 2**-9, (error, allowed)
    integration.disable(model)
    assert torch.equal(model(input_ids=inputs[0]).logits, stock[0])


@torch.no_grad()
def test_one_layer_alone():
    """Row for row: experts that a token does not have, weights in 16 bits, ids in 64, an id behind the last."""
    model, exact = made(mixtral())
    layer, reference = layers_of(model)[0], layers_of(exact)[0]
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.randint(0, 5, (7, 2), generator=torch.Generator().manual_seed(1))
    weights = torch.rand(7, 2, generator=torch.Generator().manual_seed(2)).bfloat16()
    out = experts_forward(layer)(layer, x, ids, weights)
    wanted = torch.zeros(7, 64)
    for token, slot in ((token, slot) for token in range(7) for slot in range(2) if ids[token, slot] < 4):
        both = reference.gate_up_proj[ids[token, slot]] @ x[token].float()
        inner = torch.nn.functional.silu(both[:128]) * both[128:]
        wanted[token] += weights[token, slot].float() * (reference.down_proj[ids[token, slot]] @ inner)
    assert (out.float() - wanted).norm() < 2**-6 * wanted.norm() and (ids == 4).any()


def test_what_gates_are():
    wanted = {mixtral: (ActivationType.Silu, None, "separated"), gpt_oss: (ActivationType.Swiglu, 7.0, "interleave")}
    for family, (activation, limit, mode) in wanted.items():
        layer = layers_of(made(family())[0])[0]
        assert _gate_of(layer) == {"activation": activation, "swiglu_limit": limit, "gate_mode": mode}
    layer._apply_gate = lambda x: x[..., ::2].tanh() * x[..., 1::2]
    assert _gate_of(layer) is None and experts_forward(layer) is None
    assert experts_forward(torch.nn.Linear(2, 2)) is None


def test_what_falls_back():
    model, exact = made(mixtral())
    layer = layers_of(model)[0]
    forward, x = experts_forward(layer), torch.randn(3, 64)
    ids, weights = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
    with pytest.raises(UnsupportedError, match="float32 with matrices of torch.bfloat16"):
        forward(layer, x, ids, weights)
    with pytest.raises(UnsupportedError, match="no kernel has a derivative"):
        forward(layer, x.bfloat16(), ids, weights)
    integration.enable(model)
    takeover.reset_counters()
    model(input_ids=tokens()).logits.sum().backward()
    assert layer.gate_up_proj.grad.abs().sum() > 0 and counts().served == 0 and counts().fell_back == 2


@torch.no_grad()
def test_one_compiled_graph():
    model, _ = made(mixtral())
    integration.enable(model)
    eager = model(input_ids=tokens()).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(input_ids=tokens()).logits
    assert (compiled.float() - eager.float()).norm() < 0.05 * eager.float().norm()


def test_switched_off(monkeypatch):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "experts")
    model, _ = made(mixtral())
    integration.enable(model)
    assert not any("forward" in layer.__dict__ for layer in layers_of(model))
