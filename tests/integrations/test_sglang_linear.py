# SPDX-License-Identifier: MIT
"""SGLang's linear layers without SGLang: the hook around its method's `apply`, in calls and in graphs."""

import functools
import sys
from types import SimpleNamespace

import pytest
import torch

from aiter_like.integrations import takeover
from aiter_like.integrations.sglang import hooks, layers
from aiter_like.testing import relative_l2

LIMIT = 2**-8

pytestmark = pytest.mark.usefixtures("fresh_takeover")


@pytest.fixture
def sglang(module):
    """Modules of SGLang that the adapter reads at a call: `sglang(path, **attributes)`."""
    module("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: False)
    return module


class UnquantizedLinearMethod:
    """SGLang's: its product is a tenth off, so that results tell whose they are."""

    def apply(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, layer.weight, bias) * 1.1


@pytest.fixture
def linear_apply(sglang, asked, monkeypatch):
    """`apply` of SGLang's method with our hook around it, where our kernels are asked for on the simulator."""
    monkeypatch.setattr(hooks, "_is_on", True)
    backend = SimpleNamespace(is_cutedsl=lambda: False, is_gemv=lambda: False)
    sglang(layers._UNQUANTISED, get_bf16_gemm_backend=lambda: backend, _use_aiter=False)
    method, (hook,) = UnquantizedLinearMethod(), hooks._linear_hook().values()
    return functools.partial(hook, UnquantizedLinearMethod.apply, method)  # as SGLang calls a hook around a function


def linear_operands() -> tuple[SimpleNamespace, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 128).bfloat16(), requires_grad=False)
    return SimpleNamespace(weight=weight), torch.randn(3, 128).bfloat16(), torch.randn(64).bfloat16()


def test_linear_layers(linear_apply):
    layer, x, bias = linear_operands()
    for given in (None, bias):
        expected = torch.nn.functional.linear(x.double(), layer.weight.double()) + (0 if given is None else given)
        assert relative_l2(linear_apply(layer, x, bias=given), expected) < LIMIT
    assert takeover.counters()["sglang.linear"] == takeover.Counts(2, 0, 0)


@pytest.mark.parametrize("change", ["backend", "batch invariance", "amx", "torchao", "off"])
def test_linear_layers_that_sglang_has_a_reason_for_stay(linear_apply, sglang, monkeypatch, change):
    class Packed(torch.Tensor):
        pass

    layer, x, bias = linear_operands()
    if change == "backend":
        backend = SimpleNamespace(is_cutedsl=lambda: False, is_gemv=lambda: True)
        monkeypatch.setattr(sys.modules[layers._UNQUANTISED], "get_bf16_gemm_backend", lambda: backend)
    elif change == "batch invariance":
        sglang("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: True)
    elif change == "amx":
        layer.use_intel_amx_backend = True
    elif change == "torchao":
        layer.weight = layer.weight.data.as_subclass(Packed)
    else:
        hooks.uninstall()
    assert torch.equal(linear_apply(layer, x, bias), UnquantizedLinearMethod().apply(layer, x, bias))
    assert takeover.counters()["sglang.linear"] == takeover.Counts(0, 0, 1)


@pytest.mark.usefixtures("fresh_dynamo")
def test_linear_layers_in_a_graph(linear_apply, graphs):
    layer, _, bias = linear_operands()
    compiled = torch.compile(lambda x: linear_apply(layer, x, bias), fullgraph=True, dynamic=True, backend=graphs)
    for rows in (2, 4):
        x = torch.randn(rows, 128).bfloat16()
        expected = torch.nn.functional.linear(x.double(), layer.weight.double(), bias.double())
        assert relative_l2(compiled(x), expected) < LIMIT
    assert graphs.targets("linear") == [["aiter_like.linear.default"]]


@pytest.mark.parametrize("uses_aiter", [False, True])
def test_what_ours_leaves_in_a_graph_is_sglangs_product(sglang, uses_aiter):
    tgemm = SimpleNamespace(mm=lambda x, weight, bias, otype: ("tgemm", otype))
    sglang(layers._UNQUANTISED, _use_aiter=uses_aiter, tgemm=tgemm)
    layer, x, bias = linear_operands()
    found = layers.own_linear(x, layer.weight, bias)
    assert found == ("tgemm", x.dtype) if uses_aiter else torch.equal(
        found, torch.nn.functional.linear(x, layer.weight, bias))


@pytest.mark.parametrize("denied", ["linear", "gemm_a16w16"])
def test_denied_linear_layers_get_no_hook(monkeypatch, denied):
    monkeypatch.setenv("AITER_LIKE_DISABLE", denied)
    assert hooks._linear_hook() == {}
