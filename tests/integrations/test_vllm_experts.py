# SPDX-License-Identifier: MIT
"""The adapter to vLLM's layers of experts without vLLM: on layers and methods as vLLM makes them, against float64."""

from types import SimpleNamespace

import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.vllm import experts, linear

pytestmark = pytest.mark.usefixtures("simulated")

HIDDEN, INNER, EXPERTS, SLOTS, LIMIT = 64, 32, 6, 2, 2**-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) / 4).bfloat16()


def method_of(backend: str = "TRITON", sends: bool = False) -> SimpleNamespace:
    parallel = SimpleNamespace(use_all2all_kernels=sends)
    return SimpleNamespace(unquantized_backend=SimpleNamespace(name=backend), mk_can_overlap_shared_experts=False,
                           moe=SimpleNamespace(moe_parallel_config=parallel))


class Layer(torch.nn.Module):
    """vLLM's RoutedExperts, as far as ours read it."""

    def __init__(self, activation: str = "silu", has_bias: bool = False, local: int = EXPERTS, **more: object):
        super().__init__()
        self.w13_weight = torch.nn.Parameter(random(local, 2 * INNER, HIDDEN), requires_grad=False)
        self.w2_weight = torch.nn.Parameter(random(local, HIDDEN, INNER, seed=1), requires_grad=False)
        if has_bias:
            self.w13_bias = torch.nn.Parameter(random(local, 2 * INNER, seed=2), requires_grad=False)
            self.w2_bias = torch.nn.Parameter(random(local, HIDDEN, seed=3), requires_grad=False)
        self.activation, self.expert_map = SimpleNamespace(value=activation), None
        self.apply_router_weight_on_input = False
        vars(self).update(more)


def expected(layer: Layer, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    w13, w2 = layer.w13_weight.double(), layer.w2_weight.double()
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for token, slot in ((token, slot) for token in range(len(x)) for slot in range(SLOTS)):
        expert = int(ids[token, slot] if layer.expert_map is None else layer.expert_map[ids[token, slot].long()])
        if expert < 0:
            continue
        both = w13[expert] @ x[token].double()
        both = both + layer.w13_bias[expert].double() if hasattr(layer, "w13_bias") else both
        gate, up = (both[::2], both[1::2]) if layer.activation.value == "swigluoai" else both.chunk(2)
        if layer.activation.value.startswith("swigluoai"):
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            inner = gate * (1.702 * gate).sigmoid() * (up + 1)
        else:
            act = torch.nn.functional.silu if layer.activation.value == "silu" else torch.nn.functional.gelu
            inner = act(gate) * up
        down = w2[expert] @ inner
        down = down + layer.w2_bias[expert].double() if hasattr(layer, "w2_bias") else down
        out[token] += weights[token, slot].double() * down
    return out


def routed(tokens: int = 7, count: int = EXPERTS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, count, generator=generator).topk(SLOTS, 1).indices
    return random(tokens, HIDDEN) * 4, torch.rand(tokens, SLOTS, generator=generator), ids


@pytest.mark.parametrize(("activation", "has_bias"), (("silu", False), ("gelu", False), ("swigluoai", True),
                                                      ("swigluoai_uninterleave", False)))
def test_layers(activation, has_bias):
    layer = Layer(activation, has_bias)
    for tokens, dtype in ((1, torch.int32), (7, torch.int64)):
        x, weights, ids = routed(tokens)
        out = experts.apply(method_of(), layer, x, weights, ids.to(dtype), None, None)
        wanted = expected(layer, x, weights, ids)
        assert out.dtype == x.dtype and (out.double() - wanted).norm() < LIMIT * wanted.norm()


def test_experts_of_other_devices_have_no_part():
    expert_map = torch.tensor([-1, 0, -1, 2, 1, -1], dtype=torch.int32)
    layer = Layer(local=3, expert_map=expert_map)
    x, weights, ids = routed(11)
    out = experts.apply(method_of(), layer, x, weights, ids.int(), None, None)
    wanted = expected(layer, x, weights, ids)
    assert (out.double() - wanted).norm() < LIMIT * wanted.norm() and (wanted.abs().sum(1) == 0).any()


@pytest.mark.parametrize("expert_map", (None, torch.tensor([-1, 0, -1, 2, 1, 3], dtype=torch.int32)))
@pytest.mark.parametrize("tokens", (3, 11))
def test_numbers_that_are_no_experts_have_no_part(expert_map, tokens):
    """The last expert is here: -1 is not its number, nor is 2^32 that of the first."""
    layer = Layer(local=EXPERTS if expert_map is None else 4, expert_map=expert_map)
    x, weights, ids = routed(tokens)
    wrong = torch.tensor([[-1, EXPERTS], [2**32 + 1, -2**31], [2**31 - 1, 1 - 2**32]])
    ids[:3, :2], weights[:3, :2] = wrong, 0
    out = experts.apply(method_of(), layer, x, weights + (ids < 0) + (ids >= EXPERTS), ids, None, None)
    ids[:3, :2] = 0
    wanted = expected(layer, x, weights, ids)
    assert (out.double() - wanted).norm() <= LIMIT * wanted.norm()


def test_matrices_that_vllm_shuffled_for_aiter():
    layer, plain = Layer(), Layer()
    for name in ("w13_weight", "w2_weight"):
        shuffled = aiter_like.shuffle_weight(getattr(plain, name).data)
        setattr(layer, name, torch.nn.Parameter(shuffled, requires_grad=False))
        getattr(layer, name).is_shuffled = True
    x, weights, ids = routed()
    out = experts.apply(method_of("AITER"), layer, x, weights, ids, None, None)
    wanted = expected(plain, x, weights, ids)
    assert (out.double() - wanted).norm() < LIMIT * wanted.norm()


class Replacing:
    """Packs as vLLM 0.32 does: into a new parameter."""

    def process_weights_after_loading(self, layer):
        layer.w13_weight = torch.nn.Parameter(layer.w13_weight.flatten() * 0, requires_grad=False)


class Overwriting:
    """Packs as vLLM 0.33 does: into the memory of the parameters."""

    def process_weights_after_loading(self, layer):
        for one in layer.parameters():
            one.data.copy_(one.data.flip(-1, -2))


@pytest.fixture
def utilities(module):
    """vLLM's module that says whether weights are loaded as they were packed."""
    return module("vllm.model_executor.utils")


@pytest.mark.parametrize("method", (Replacing, Overwriting))
def test_matrices_that_vllm_packs_on_a_cpu_are_read_as_they_were(method, utilities):
    layer, plain = Layer(has_bias=True), Layer(has_bias=True)
    experts._keeping_weights(method)(method(), layer)
    assert layer.w13_weight.shape != plain.w13_weight.shape or not torch.equal(layer.w13_weight, plain.w13_weight)
    x, weights, ids = routed()
    out = experts.apply(method_of("CPU"), layer, x, weights, ids, None, None)
    wanted = expected(plain, x, weights, ids)
    assert (out.double() - wanted).norm() < LIMIT * wanted.norm()
    kept = len(experts._plain)
    del layer
    assert len(experts._plain) == kept - 1


def test_weights_of_linear_layers_that_vllm_packs_on_a_cpu_are_read_as_they_were():
    class Method:
        def process_weights_after_loading(self, layer):
            packed = layer.weight.data.copy_(layer.weight.flip(0))
            layer.weight = torch.nn.Parameter(packed[:0], requires_grad=False)

    layer, plain = torch.nn.Linear(8, 4), random(4, 8)
    layer.weight.data = plain.clone()
    linear._keeping_weights(Method)(Method(), layer)
    assert torch.equal(layer.weight, plain)


def test_weights_of_convolutions_stay_as_vllm_packs_them():
    class Method:
        def process_weights_after_loading(self, layer):
            layer.weight.data = layer.weight.data[:, 0].flip(0)

    layer, plain = torch.nn.Conv1d(8, 8, 4, groups=8, bias=False), random(8, 1, 4)
    layer.weight.data = plain.clone()
    linear._keeping_weights(Method)(Method(), layer)
    assert torch.equal(layer.weight, plain[:, 0].flip(0))


def test_matrices_that_were_packed_before_they_were_loaded_stay_vllms(utilities):
    layer = Layer()
    utilities.is_weights_pre_processed = lambda: False
    experts._keeping_weights(Overwriting)(Overwriting(), layer)
    utilities.is_weights_pre_processed = lambda: True
    experts._keeping_weights(Overwriting)(Overwriting(), layer)
    with pytest.raises(UnsupportedError, match="were packed when they were loaded"):
        experts.apply(method_of("CPU"), layer, *routed(), None, None)


@pytest.mark.parametrize(("method", "changes", "reason"), (
    (method_of("FLASHINFER_TRTLLM"), {}, "backend FLASHINFER_TRTLLM"), (method_of(sends=True), {}, "between devices"),
    (method_of(), {"apply_router_weight_on_input": True}, "inputs are weighted"),
    (method_of(), {"activation": "relu2"}, "activation relu2"),
    (method_of(), {"swiglu_alpha": 1.5}, "alpha 1.5")))
def test_what_stays_vllms(method, changes, reason):
    with pytest.raises(UnsupportedError, match=reason):
        experts.apply(method, Layer(**changes), *routed(), None, None)
