# SPDX-License-Identifier: MIT
"""What serves vLLM's operator classes, without vLLM: on layers as vLLM makes them, and with its registries as toys."""

from __future__ import annotations

import enum
import functools
import sys
import types

import pytest
import torch
import toy_vllm_parts
from seeded import numbers

from aiter_like import integrations
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations import vllm as adapter
from aiter_like.integrations.vllm import attention, layers, linear

HEADS, KV_HEADS, DIM = 4, 2, 32

pytestmark = pytest.mark.usefixtures("fresh_takeover")


def norm_layer(**changes) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{"weight": torch.nn.Parameter(1 + numbers(64, seed=9) / 8), "variance_epsilon": 1e-6,
                                    "variance_size_override": None, "has_weight": True} | changes)


def normed(x: torch.Tensor, layer: types.SimpleNamespace, offset: float = 0.0) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (layer.weight.float() + offset)


@pytest.mark.parametrize(("function", "offset"), [(layers.rms_norm, 0.0), (layers.gemma_rms_norm, 1.0)])
def test_norms(function, offset):
    layer, x, residual = norm_layer(), numbers(3, 64), numbers(3, 64, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(function(layer, x).float(), normed(x, layer, offset), rtol=1e-2, atol=1e-2)
        before = x.clone(), residual.clone()
        out, total = function(layer, x, residual)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out.float(), normed(x.float() + residual.float(), layer, offset), rtol=1e-2, atol=1e-2)


def test_norm_of_heads_within_a_projection():
    layer, projection = norm_layer(), numbers(3, 5 * 64)
    heads = projection[:, 64:4 * 64].view(3, 3, 64)  # vLLM's Qwen3: rows are not evenly spaced
    with torch.no_grad():
        torch.testing.assert_close(layers.rms_norm(layer, heads).float(), normed(heads, layer), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("change", [{"variance_size_override": 32}, {"has_weight": False}])
def test_norms_that_are_refused(change):
    with pytest.raises(UnsupportedError):
        layers.rms_norm(norm_layer(**change), numbers(3, 64))


def test_activations():
    x = numbers(3, 128)
    gate, up = x.float().chunk(2, -1)
    tanh, erf = types.SimpleNamespace(approximate="tanh"), types.SimpleNamespace(approximate="none")
    clamp = types.SimpleNamespace(alpha=1.0, beta=0.0, swiglu_limit=1.5)
    oai = types.SimpleNamespace(alpha=1.702, beta=1.0, swiglu_limit=7.0)
    gelu = torch.nn.functional.gelu
    cases = ((layers.silu_and_mul, None, torch.nn.functional.silu(gate) * up),
             (layers.gelu_and_mul, tanh, gelu(gate, approximate="tanh") * up),
             (layers.gelu_and_mul, erf, gelu(gate) * up),
             (layers.clamped_silu_and_mul, clamp, torch.nn.functional.silu(gate.clamp(max=1.5)) * up.clamp(-1.5, 1.5)),
             (layers.clamped_silu_and_mul, oai, gate.clamp(max=7) * torch.sigmoid(1.702 * gate.clamp(max=7))
              * (up.clamp(-7, 7) + 1)))
    for function, layer, expected in cases:
        torch.testing.assert_close(function(layer, x).float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("form", [(1.0, 0.0, 0.0), (1.702, 1.0, 6.0), (1.0, 1.0, 7.0)])
def test_clamped_forms_that_are_refused(form):
    alpha, beta, limit = form
    with pytest.raises(UnsupportedError, match=f"limit {limit}"):
        layers.clamped_silu_and_mul(types.SimpleNamespace(alpha=alpha, beta=beta, swiglu_limit=limit), numbers(3, 128))


@pytest.mark.parametrize("is_neox", [True, False])
def test_rotary_embedding_turns_slices_of_a_projection(is_neox):
    angle = torch.arange(40)[:, None] / 10000 ** (torch.arange(0, DIM, 2) / DIM)
    table = torch.cat((angle.cos(), angle.sin()), -1).bfloat16()  # [positions, cos | sin], as vLLM keeps it
    layer = types.SimpleNamespace(use_flashinfer=False, head_size=DIM, is_neox_style=is_neox,
                                  _match_cos_sin_cache_dtype=lambda query: table)
    positions, projection = torch.tensor([3, 17, 39]), numbers(3, (HEADS + 2 * KV_HEADS) * DIM)
    query, key, value = projection.split((HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM), -1)
    expected, untouched = [turned(side, positions, table, is_neox) for side in (query, key)], value.clone()
    found = layers.rotary_embedding(layer, positions, query, key)
    assert found[0] is query and found[1] is key and torch.equal(value, untouched)
    for side, turn in zip(found, expected):
        torch.testing.assert_close(side.float(), turn, rtol=1e-2, atol=1e-2)
    layer.use_flashinfer = True
    with pytest.raises(UnsupportedError, match="FlashInfer"):
        layers.rotary_embedding(layer, positions, query, key)


def turned(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, is_neox: bool) -> torch.Tensor:
    cos, sin = table[positions].float()[:, None].chunk(2, -1)
    heads = x.float().view(3, -1, DIM)
    first, second = heads.chunk(2, -1) if is_neox else (heads[..., ::2], heads[..., 1::2])
    pair = (first * cos - second * sin, second * cos + first * sin)
    return (torch.cat(pair, -1) if is_neox else torch.stack(pair, -1).flatten(-2)).flatten(1)


# Registries.

@pytest.fixture
def vllm(module):
    """vLLM's registries as far as we use them: `classes`, `backends` (overrides), and its operator classes."""
    registry: dict[str, type] = {}
    overrides: dict[enum.Enum, str] = {}

    class CustomOp:
        name = "custom"

        def __new__(cls, *args):
            return super().__new__(registry.get(cls.__name__, cls))

        def forward(self, *args):
            return "stock", *args

        @classmethod
        def register_oot(cls, served, name):
            assert name not in registry
            served.name = name
            registry[name] = served

    class Member(enum.Enum):
        CPU_ATTN, TRITON_ATTN, ROCM_AITER_FA, ROCM_AITER_UNIFIED_ATTN, CUSTOM = (
            "toy_vllm_attention.Cpu", "toy_vllm_attention.Triton", "rocm.Fa", "rocm.Unified", None)

        def is_overridden(self):
            return self in overrides

        def get_path(self):
            return overrides.get(self, self.value)

        def clear_override(self):
            del overrides[self]

    def rotary(name: str, *bases: type, **formula) -> type:
        return type(name, bases, formula)

    first = rotary("RotaryEmbedding", CustomOp, forward_native=len, forward_cuda=len, _match_cos_sin_cache_dtype=len)
    names = {row.name for row in layers._ROWS if row.ours is layers.rotary_embedding} - {"RotaryEmbedding"}
    turning = {name: rotary(name, first) for name in names} | {"RotaryEmbedding": first}
    turning["YaRNScalingRotaryEmbedding"] = rotary("YaRNScalingRotaryEmbedding", first, forward_native=abs)
    classes = {row.name: type(row.name, (CustomOp,), {"name": row.name.lower()}) for row in layers._ROWS} | turning
    for path in {row.module for row in layers._ROWS}:
        module(path, **{row.name: classes[row.name] for row in layers._ROWS if row.module == path})
    module("vllm.model_executor.custom_op", op_registry_oot=registry)
    module("vllm.v1.attention.backends.registry", AttentionBackendEnum=Member,
           register_backend=lambda member, path: overrides.__setitem__(member, path))
    methods = {name: linear_method(name) for name in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")}
    for path, name in linear._METHODS:
        module(path, **{name: methods[name]})
    module(f"{layers._LAYERS}.utils", dispatch_unquantized_gemm=lambda: stock_gemm)
    for path, members in toy_vllm_parts.modules().items():
        module(path, **members)
    envs = module("vllm.envs", VLLM_BATCH_INVARIANT=False, compile_factors=lambda: {"VLLM_X": 1})
    answers = {f"is_{name}": (lambda name=name: platform.device_type == name) for name in ("cpu", "rocm", "cuda")}
    platform = types.SimpleNamespace(device_type="cpu", **answers)
    module("vllm.platforms", current_platform=platform)
    module("vllm", __version__="0.33.0")
    yield types.SimpleNamespace(registry=registry, overrides=overrides, classes=classes, envs=envs, platform=platform,
                                Member=Member, methods=methods)
    takeover.restore_attributes("vllm")


def stock_gemm(layer, x, weight, bias=None):
    """vLLM's own product: a tenth off, so that results tell whose they are."""
    return torch.nn.functional.linear(x, weight, bias) * 1.1


def linear_method(name: str) -> type:
    def init(method):
        method._gemm_impl = stock_gemm

    def process_weights_after_loading(method, layer):
        layer.packed, layer.weight = layer.weight, torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def apply(method, layer, x, bias=None):
        return method._gemm_impl(layer, x, getattr(layer, "packed", layer.weight), bias)

    return type(name, (), {"__init__": init, "apply": apply,
                           "process_weights_after_loading": process_weights_after_loading})


def test_classes_are_registered_and_given_back(vllm):
    adapter.install()
    adapter.install()  # vLLM loads plugins in every process, some of them twice
    assert set(vllm.registry) == {row.name for row in layers._ROWS} - {"YaRNScalingRotaryEmbedding"}
    made = vllm.classes["SiluAndMul"]()
    assert isinstance(made, vllm.classes["SiluAndMul"]) and made.name == "siluandmul"
    torch.testing.assert_close(made.forward(torch.ones(2, 4)), torch.full((2, 2), 0.7310586))
    refused = torch.ones(2, 4, dtype=torch.float64)
    assert made.forward(refused) == ("stock", refused)
    adapter.uninstall()
    assert not vllm.registry and not vllm.overrides
    assert vllm.classes["SiluAndMul"]().forward(1) == ("stock", 1)


def test_compiled_graphs_are_kept_under_a_key_of_what_is_taken(vllm, monkeypatch):
    keys = []
    for denied in ("", "rms_norm"):
        monkeypatch.setenv("AITER_LIKE_DISABLE", denied)
        adapter.install()
        adapter.install()
        keys.append(vllm.envs.compile_factors())
        adapter.uninstall()
        assert vllm.envs.compile_factors() == {"VLLM_X": 1}
    assert [key["VLLM_X"] for key in keys] == [1, 1] and len({key["AITER_LIKE"] for key in keys}) == 2


@pytest.mark.parametrize(("platform", "names"), [
    ("cpu", ["CPU_ATTN"]), ("cuda", ["CUSTOM"]), ("rocm", ["ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "CUSTOM"])])
def test_attention_is_registered_by_platform(vllm, platform, names):
    vllm.platform.device_type = platform
    adapter.install()
    assert {member.name: path for member, path in vllm.overrides.items()} == {
        name: f"{attention.__name__}.{name}" for name in names}


def test_what_another_plugin_registered_stays(vllm):
    other = type("RMSNorm", (vllm.classes["RMSNorm"],), {})
    vllm.registry["RMSNorm"], vllm.overrides[vllm.Member.CPU_ATTN] = other, "other.Attention"
    adapter.install()
    assert vllm.registry["RMSNorm"] is other and vllm.overrides == {vllm.Member.CPU_ATTN: "other.Attention"}
    adapter.uninstall()
    assert vllm.registry == {"RMSNorm": other} and vllm.overrides == {vllm.Member.CPU_ATTN: "other.Attention"}


@pytest.mark.parametrize("name", ["act_and_mul", "SiluAndMul", "vllm.SiluAndMul", "silu_and_mul"])
def test_the_deny_list_knows_classes_and_operators(vllm, monkeypatch, name):
    monkeypatch.setenv("AITER_LIKE_DISABLE", name)
    adapter.install()
    assert "SiluAndMul" not in vllm.registry and "RMSNorm" in vllm.registry
    assert ("GeluAndMul" in vllm.registry) == (name != "act_and_mul")


@pytest.mark.parametrize("name", ["CPU_ATTN", "CUSTOM"])
def test_backend_of_a_name_is_made_from_the_one_it_replaces(vllm, module, monkeypatch, name):
    class Impl:
        forward = do_kv_cache_update = None

    class Cpu:
        @staticmethod
        def get_impl_cls():
            return Impl

        @staticmethod
        def get_name():
            return "STOCK"

    Impl.forward = Impl.do_kv_cache_update = lambda *args: args
    module("toy_vllm_attention", Cpu=Cpu, Triton=Cpu)
    attention._backend.cache_clear()
    served = getattr(attention, name)
    assert issubclass(served, Cpu) and issubclass(served.get_impl_cls(), Impl) and served.get_impl_cls() is not Impl
    assert served.get_name() == (name if name == "CUSTOM" else "STOCK") and getattr(attention, name) is served
    monkeypatch.setenv("AITER_LIKE_DISABLE", "attention")
    attention._backend.cache_clear()
    assert getattr(attention, name) is Cpu
    attention._backend.cache_clear()


def test_a_name_that_is_no_backend_is_no_attribute():
    with pytest.raises(AttributeError, match="FLASHINFER"):
        attention.FLASHINFER  # noqa: B018


@pytest.mark.parametrize("spoil", [
    lambda vllm: setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True),
    lambda vllm: setattr(vllm.platform, "device_type", "tpu"),
    lambda vllm: delattr(sys.modules[f"{layers._LAYERS}.activation"], "GeluAndMul"),
    lambda vllm: setattr(sys.modules["vllm"], "__version__", "0.31.0")])
def test_where_vllm_cannot_be_served_it_stays_stock_with_one_warning(vllm, monkeypatch, caplog, spoil):
    spoil(vllm)
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.setattr(integrations, "_ADAPTERS", {"vllm": "vllm"})
    try:
        assert integrations.install() is False and integrations.install() is False
    finally:
        integrations.uninstall()
    assert not vllm.registry and not vllm.overrides
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and warnings[0].startswith("these keep their own operators: vllm (")


# Linear layers.

def linear_layer() -> torch.nn.Module:
    layer = torch.nn.Linear(128, 64).bfloat16().requires_grad_(False)
    layer.weight.copy_(numbers(64, 128, seed=1))
    return layer


def is_ours(method: object, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether ours gave the product, vLLM's being a tenth off."""
    weight = getattr(layer, "packed", layer.weight)
    ratio = method.apply(layer, x, bias).float().norm() / torch.nn.functional.linear(x, weight, bias).float().norm()
    assert abs(ratio - 1) < 1e-2 or abs(ratio - 1.1) < 1e-2
    return abs(ratio - 1) < 1e-2


@pytest.mark.parametrize("name", ["UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"])
def test_linear_layers_and_the_head(vllm, asked, name):
    adapter.install()
    adapter.install()
    method, layer, x = vllm.methods[name](), linear_layer(), numbers(3, 128)
    method.process_weights_after_loading(layer)  # which packs the weight for the CPU, and here leaves it in its place
    assert layer.weight.shape == (64, 128)
    assert is_ours(method, layer, x) and is_ours(method, layer, x, bias=layer.bias)
    assert takeover.counters()["vllm.linear"] == takeover.Counts(2, 0, 0)
    method._gemm_impl = functools.partial(stock_gemm)  # as for `--linear-backend flashinfer_cutedsl`
    assert not is_ours(method, layer, x)
    adapter.uninstall()
    method._gemm_impl = stock_gemm
    assert not is_ours(method, layer, x) and not linear.taken_methods()


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_linear_layers_of_tensors_without_a_kernel_are_vllms(vllm, platform):
    """On GPUs they are taken; what serves a tensor there is the dispatcher's choice."""
    vllm.platform.device_type = platform
    adapter.install()
    assert linear.taken_methods() == ["UnquantizedEmbeddingMethod", "UnquantizedLinearMethod"]
    assert not is_ours(vllm.methods["UnquantizedLinearMethod"](), linear_layer(), numbers(3, 128))
    assert takeover.counters()["vllm.linear"] == takeover.Counts(0, 0, 1)


def test_linear_layers_of_the_cpu_platform_are_vllms(vllm, caplog):
    adapter.install()
    assert not linear.taken_methods() and "vllm.linear" not in takeover.counters()
    assert "vllm.linear: left to the engine, AITER_LIKE_BACKENDS names neither ck nor triton" in caplog.text


@pytest.mark.parametrize("name", ["linear", "gemm_a16w16", "vllm.linear"])
def test_denied_linear_layers_are_vllms(vllm, asked, monkeypatch, name):
    monkeypatch.setenv("AITER_LIKE_DISABLE", name)
    adapter.install()
    assert not linear.taken_methods() and takeover.denied() == ("vllm.linear",)


def test_what_is_taken_of_linear_layers_is_part_of_the_key_of_graphs(vllm):
    keys = []
    for platform in ("cpu", "cuda"):
        vllm.platform.device_type = platform
        adapter.install()
        keys.append(vllm.envs.compile_factors()["AITER_LIKE"])
        adapter.uninstall()
    assert "UnquantizedLinearMethod" not in keys[0] and "UnquantizedLinearMethod" in keys[1]


@pytest.mark.usefixtures("fresh_dynamo")
def test_graphs_have_linear_layers_as_our_operator(vllm, asked, graphs):
    adapter.install()
    method, layer = vllm.methods["UnquantizedLinearMethod"](), linear_layer()
    compiled = torch.compile(lambda x: method.apply(layer, x, layer.bias), fullgraph=True, dynamic=True, backend=graphs)
    for rows in (2, 4):
        x = numbers(rows, 128)
        torch.testing.assert_close(compiled(x), torch.nn.functional.linear(x, layer.weight, layer.bias), rtol=2e-2,
                                   atol=2e-2)
    assert graphs.targets("linear") == [["aiter_like.linear.default"]]
    assert takeover.counters()["vllm.linear"].served == 2
