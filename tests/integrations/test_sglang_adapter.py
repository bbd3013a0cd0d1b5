# SPDX-License-Identifier: MIT
"""The adapter to SGLang without SGLang: what it calls for a layer, a batch and a video model, with stand-ins for them.

test_sglang.py runs the same against SGLang itself.
"""

from types import SimpleNamespace

import pytest
import torch
from watching import watched

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.sglang import attention, diffusion, hooks, layers
from aiter_like.testing import check_rms_norm, relative_l2

HEADS, KV_HEADS, DIM = 4, 2, 64
LIMIT = 2**-8


@pytest.fixture(autouse=True)
def clean(fresh_takeover):
    yield
    for cached in (hooks._served, attention.backend_over, diffusion._backend_over, diffusion._implementation_over):
        cached.cache_clear()


@pytest.fixture
def sglang(module):
    """Modules of SGLang that the adapter reads at a call: `sglang(path, **attributes)`."""
    module("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: False)
    module("sglang.srt.layers.layernorm", _flashinfer_rmsnorm_quant_available=False)
    module("sglang.srt.mem_cache.memory_pool", KVWriteLoc=SimpleNamespace(for_batch=lambda batch: batch.out_cache_loc))
    return module


def norm_layer(**changes) -> SimpleNamespace:
    return SimpleNamespace(**{
        "weight": torch.linspace(0.5, 1.5, 64).bfloat16(), "variance_epsilon": 1e-5, "variance_size_override": None,
        "fp32_residual": False, "override_orig_dtype": None, "cast_x_before_out_mul": False, "_quant_linear": None,
        **changes})


def test_norm_leaves_its_inputs(sglang):
    layer, x, residual = norm_layer(), torch.randn(3, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    kept = x.clone(), residual.clone()
    check_rms_norm(layers.forward_rms_norm(layer, x), x, layer.weight, 1e-5)
    out, total = layers.forward_rms_norm(layer, x, residual)
    torch.testing.assert_close(total, (x.float() + residual.float()).bfloat16(), rtol=0, atol=0)
    assert relative_l2(out, torch.nn.functional.rms_norm((x.double() + residual.double()), (64,), layer.weight.double(),
                                                         1e-5)) < LIMIT
    assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])


@pytest.mark.parametrize("changes", [
    {"variance_size_override": 32}, {"override_orig_dtype": torch.float32}, {"x_pad_to_multiple": 128},
    {"fp32_residual": True}])
def test_norm_refuses_what_it_cannot(sglang, changes):
    x = torch.randn(3, 64).bfloat16()
    with pytest.raises(UnsupportedError, match="RMSNorm with"):
        layers.forward_rms_norm(norm_layer(**changes), x, x)


def test_norm_refuses_fp8_for_the_next_layer(sglang):
    x, linear = torch.randn(3, 64).bfloat16(), object()
    assert layers.forward_rms_norm(norm_layer(), x, quant_linear=linear).shape == x.shape
    sglang("sglang.srt.layers.layernorm", _flashinfer_rmsnorm_quant_available=True,
           _fp8_static_input_scale=lambda given: given is linear or None)
    with pytest.raises(UnsupportedError, match="quantisation"):
        layers.forward_rms_norm(norm_layer(_quant_linear=linear), x)


def test_norm_refuses_batch_invariance(sglang):
    sglang("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: True)
    with pytest.raises(UnsupportedError, match="batch-invariant"):
        layers.forward_rms_norm(norm_layer(), torch.randn(3, 64).bfloat16())


class Toy:
    """A class as SGLang has them: it finds out once which of its methods serves it."""

    def forward_native(self, x):
        return "own"

    def resolve(self):
        return self.forward_native


class Special(Toy):
    def forward_native(self, x):
        return "special"


def toy_layer(forward) -> hooks.Layer:
    return hooks.Layer(f"{__name__}.Toy", "toy_op", forward)


def test_hook_answers_for_the_class_and_not_for_methods_of_subclasses(monkeypatch):
    monkeypatch.setattr(hooks, "_is_on", True)
    layer = toy_layer(lambda self, x: "ours")
    assert hooks._answer(layer, Toy.resolve, Toy())(0) == "ours"
    assert hooks._answer(layer, Special.resolve, Special())(0) == "special"
    assert takeover.counters()["sglang.Toy"] == takeover.Counts(1, 0)


@pytest.mark.parametrize("denied", ["Toy", "toy_op", "sglang.Toy"])
def test_hook_leaves_what_is_denied(monkeypatch, denied):
    monkeypatch.setattr(hooks, "_is_on", True)
    monkeypatch.setenv("AITER_LIKE_DISABLE", denied)
    assert hooks._answer(toy_layer(lambda self, x: "ours"), Toy.resolve, Toy())(0) == "own"


def test_hook_that_is_off_changes_nothing():
    instance = Toy()
    assert hooks._answer(toy_layer(lambda self, x: "ours"), Toy.resolve, instance) == instance.forward_native


def test_hook_leaves_a_layer_that_is_first_asked_in_a_trace(monkeypatch):
    monkeypatch.setattr(hooks, "_is_on", True)
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    assert hooks._answer(toy_layer(lambda self, x: "ours"), Toy.resolve, Toy())(0) == "own"


class Pool:
    dtype = torch.bfloat16
    kv_cache_layout = "nhd"

    def __init__(self):
        self.k, self.v = (torch.zeros(33, KV_HEADS, DIM, dtype=torch.bfloat16) for _ in range(2))

    def get_key_buffer(self, layer_id):
        return self.k

    def get_value_buffer(self, layer_id):
        return self.v

    def set_kv_buffer(self, layer, loc, k, v):
        self.k[loc], self.v[loc] = k, v


Pool.__name__ = "MHATokenToKVPool"


class Own:
    """SGLang's backend."""

    def __init__(self, runner):
        self.token_to_kv_pool, self.req_to_token_pool = Pool(), SimpleNamespace(req_to_token=runner.table)

    def init_forward_metadata(self, batch):
        pass

    def init_forward_metadata_in_graph(self, batch):
        pass

    def forward_extend(self, *args, **kwargs):
        return "own extend"

    def forward_decode(self, *args, **kwargs):
        return "own decode"


def radix(**changes) -> torch.nn.Module:
    layer = torch.nn.Module()
    vars(layer).update({
        "layer_id": 0, "tp_q_head_num": HEADS, "qk_head_dim": DIM, "v_head_dim": DIM, "scaling": 0.125,
        "logit_cap": 0.0, "logit_capping_method": "tanh", "sliding_window_size": -1, "is_cross_attention": False,
        "use_irope": False, "xai_temperature_len": -1, "attn_type": SimpleNamespace(value="decoder"), **changes})
    return layer


def batch_of(mode: str, slots: torch.Tensor, length: int, count: int, **changes) -> SimpleNamespace:
    """One request in row 1 of the table, of which `count` tokens are new."""
    return SimpleNamespace(**{
        "forward_mode": SimpleNamespace(name=mode, is_decode=lambda: mode == "DECODE"), "spec_info": None,
        "encoder_lens": None, "req_pool_indices": torch.tensor([1]), "seq_lens": torch.tensor([length]),
        "seq_lens_cpu": torch.tensor([length]), "extend_seq_lens": torch.tensor([count]),
        "extend_seq_lens_cpu": [count], "out_cache_loc": slots[length - count:length].long(), **changes})


@pytest.fixture
def backend(sglang):
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(0)).int() + 1
    return attention.backend_over(Own)(SimpleNamespace(table=torch.stack((torch.zeros_like(slots), slots)))), slots


def qkv(count: int) -> list[torch.Tensor]:
    return [torch.randn(count, heads, DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS)]


@pytest.mark.parametrize("in_graph", [False, True])
def test_backend_extends_and_decodes(backend, in_graph):
    """A request of 9 tokens, then one more: each time against torch's attention in float64 over all its keys."""
    served, slots = backend
    torch.manual_seed(0)
    keys, values = [], []
    for mode, count, length in (("EXTEND", 9, 9), ("DECODE", 1, 10)):
        batch, (q, k, v) = batch_of(mode, slots, length, count), qkv(count)
        served.init_forward_metadata(batch)
        if in_graph:
            served.init_forward_metadata_in_graph(batch)
        out = (served.forward_decode if mode == "DECODE" else served.forward_extend)(q.flatten(1), k, v, radix(), batch)
        keys, values = [*keys, k], [*values, v]
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.double().transpose(0, 1) for x in (q, torch.cat(keys), torch.cat(values))), attn_mask=mask,
            enable_gqa=True, scale=0.125)
        assert relative_l2(out.view(count, HEADS, DIM), expected.transpose(0, 1)) < LIMIT
    assert takeover.counters()["sglang.attention"] == takeover.Counts(2, 0)


def test_a_warm_layer_imports_nothing(backend):
    served, slots = backend
    batch, (q, k, v), layer = batch_of("DECODE", slots, 10, 1), qkv(1), radix()
    served.init_forward_metadata(batch)
    for _ in range(2):
        served.forward_decode(q, k, v, layer, batch)
    with watched() as found:
        served.forward_decode(q, k, v, layer, batch)
    assert not found


@pytest.mark.parametrize("layer,changes,options,reason", [
    ({"is_cross_attention": True}, {}, {}, "cross attention"),
    ({"attn_type": SimpleNamespace(value="decoder_bidirectional")}, {}, {}, "both directions"),
    ({"use_irope": True}, {}, {}, "chunked attention"),
    ({"logit_cap": 1.0, "logit_capping_method": "other"}, {}, {}, "logit cap by other"),
    ({}, {"spec_info": object()}, {}, "speculative decoding"),
    ({}, {"forward_mode": SimpleNamespace(name="TARGET_VERIFY")}, {}, "forward mode TARGET_VERIFY"),
    ({}, {"encoder_lens": torch.tensor([1])}, {}, "an encoder's keys"),
    ({}, {}, {"score_mod": object()}, "options score_mod")])
def test_backend_leaves_to_its_base(backend, caplog, layer, changes, options, reason):
    served, slots = backend
    batch, (q, k, v) = batch_of("EXTEND", slots, 2, 2, **changes), qkv(2)
    served.init_forward_metadata_in_graph(batch)
    assert served.forward_extend(q, k, v, radix(**layer), batch, **options) == "own extend"
    assert not served.token_to_kv_pool.k.any()  # the base writes
    assert reason in caplog.text


@pytest.mark.parametrize("attribute,value,reason", [
    ("kv_cache_layout", "hnd", "a layout of the pool's own"), ("dtype", torch.float8_e4m3fn, "quantised keys")])
def test_backend_refuses_other_pools(backend, caplog, attribute, value, reason):
    served, slots = backend
    setattr(served.token_to_kv_pool, attribute, value)
    batch, (q, k, v) = batch_of("EXTEND", slots, 2, 2), qkv(2)
    assert served.forward_extend(q, k, v, radix(), batch) == "own extend" and reason in caplog.text


@pytest.fixture
def video_backend(module, monkeypatch):
    """Makes a backend of SGLang's video models of a name, and gives it and what its layers are."""

    class Base:
        def forward_varlen(self, *args, **kwargs):
            raise NotImplementedError

    class OwnImpl(Base):
        softmax_scale, causal, dropout = 0.125, False, 0.0

        def forward(self, query, key, value, attn_metadata=None, **options):
            return "own"

    def make(name: str):
        class OwnBackend:
            get_enum = staticmethod(lambda: SimpleNamespace(name=name))
            get_impl_cls = staticmethod(lambda: OwnImpl)

        return OwnBackend, OwnImpl

    module("sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend", AttentionImpl=Base)
    monkeypatch.setattr(diffusion, "_is_on", True)
    return make


def test_video_layer_of_a_dense_backend(video_backend, caplog):
    own, implementation = video_backend("FA")
    layer = diffusion._answer(lambda size: own, 64).get_impl_cls()()
    assert isinstance(layer, implementation)
    q, k, v = (torch.randn(1, 20, 2, 64).bfloat16() for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.double().transpose(1, 2) for x in (q, k, v)))
    assert relative_l2(layer.forward(q, k, v, None), expected.transpose(1, 2)) < LIMIT
    assert layer.forward(q, k, v, None, return_softmax_lse=True) == "own"
    layer.dropout = 0.1
    assert layer.forward(q, k, v) == "own"
    layer.dropout, layer._request_skip_softmax_threshold = 0.0, lambda: (True, 1.0)
    assert layer.forward(q, k, v) == "own"
    assert takeover.counters()["sglang.diffusion_attention"] == takeover.Counts(1, 3)
    assert all(word in caplog.text for word in ("return_softmax_lse", "dropout", "skipped softmax"))


@pytest.mark.parametrize("number", (2**32, 2**32 + 20, -2**32 + 20))
def test_numbers_that_32_bits_do_not_hold(backend, video_backend, caplog, number):
    """Modulo 2^32 some would be lengths. They are left to the base."""
    served, slots = backend
    for name in ("seq_lens", "extend_seq_lens"):
        batch = batch_of("EXTEND", slots, 20, 20, **{name: torch.tensor([number])})
        served.init_forward_metadata(batch)
        assert served.forward_extend(*qkv(20), radix(), batch) == "own extend", name
    q, k, v = (torch.randn(20, 2, 64).bfloat16() for _ in range(3))
    layer = diffusion._answer(lambda size: video_backend("FA")[0], 64).get_impl_cls()()
    with pytest.raises(ValueError, match="flash_attn_varlen_func: cu_seqlens_q must start at 0"):
        diffusion._forward_varlen(layer, q, k, v, cu_seqlens=torch.tensor([0, number]), max_seqlen=20)
    assert "the keys of a sequence must be" in caplog.text and "cu_seqlens_q must" in caplog.text


def test_video_layer_of_a_sparse_backend_stays(video_backend):
    own, _ = video_backend("SLIDING_TILE_ATTN")
    assert diffusion._answer(lambda: own) is own


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(8192, 8192), (32760, 32760), (75600, 75600), (75600, 512)])
def test_shapes_of_wan_have_a_kernel(seqlen_q, seqlen_k):
    """Self attention of 480p and 720p video in Wan 2.1 (12 heads), and cross attention to its 512 text tokens."""
    q, k = (torch.empty(1, seqlen, 12, 128, dtype=torch.bfloat16) for seqlen in (seqlen_q, seqlen_k))
    found = aiter_like.explain(aiter_like.flash_attn_func, q, k, k, softmax_scale=128 ** -0.5)
    assert found.backend in ("hip", "asm", "ck"), found
