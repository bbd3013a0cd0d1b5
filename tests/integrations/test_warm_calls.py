# SPDX-License-Identifier: MIT
"""What an engine calls in every step reads no file, imports nothing, and looks into no signature or pattern, once it is
warm: the public functions, AITER's names, and the adapters of vLLM, SGLang and transformers, on stand-ins for layers.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from public_calls import call_of, public_names
from watching import watched

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.sglang import layers as sglang_layers
from aiter_like.integrations.vllm import attention, layers, sampler

FP8, I32 = torch.float8_e4m3fnuz, torch.int32
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 16

pytestmark = pytest.mark.usefixtures("fresh_takeover", "one_thread")


@pytest.fixture
def one_thread():
    """Sums of so few numbers would wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).bfloat16()


@torch.no_grad()
def in_third_call(function, *args) -> dict[str, int]:
    function(*args)
    function(*args)
    with watched() as found:
        function(*args)
    return found


@pytest.fixture
def dry(simulated):
    """Kernels are launched on the simulated MI300X, which computes nothing."""
    with sim.enabled(checks=False, dry=True):
        yield


def test_what_is_watched_is_seen(tmp_path, monkeypatch):
    """Else the tests below say nothing."""
    def costly():
        import json
        (tmp_path / "file").write_text(json.dumps(re.sub("a", "b", "a")))
        inspect.signature(costly)
        logging.getLogger("aiter_like").warning("%s", "told")

    monkeypatch.setitem(globals(), "__name__", "aiter_like.somewhere")
    with watched() as found:
        costly()
    seen = {text.partition(",")[0] for text in found}
    assert {"import json", "open", "re.sub", "Pattern.sub", "inspect.signature", "logging.makeRecord"} <= seen
    assert all(text.endswith("in aiter_like.somewhere.costly") for text in found), found


def test_public_functions():
    with aiter_like.use_backend("torch"):
        found = {name: in_third_call(function, *args) for name in public_names()
                 for function, args in [call_of(name)]}
    assert not any(found.values()), {name: counts for name, counts in found.items() if counts}


def aiters_calls() -> dict[str, tuple]:
    """Name of AITER's → arguments as vLLM's paths give them."""
    x, weight, slots, tables = randn(3, 64), randn(64), torch.arange(3), [randn(8, 1, 1, 32)] * 2
    a, b, scale, scales = randn(3, 128).to(FP8), randn(128, 128).to(FP8), torch.ones(3, 1), torch.ones(1, 128)
    experts = randn(4, 128, 64), randn(4, 64, 64), torch.rand(3, 2), torch.tensor([[0, 1], [2, 3], [1, 0]], dtype=I32)
    pages, heads, starts = randn(4, PAGE, KV_HEADS, DIM), randn(3, HEADS, 64), torch.arange(4, dtype=I32)
    kept = pages.clone(), pages.clone(), slots, "auto", None, None
    step = starts, 1, torch.full((3,), PAGE, dtype=I32), PAGE, 0.1, True, (-1, -1), starts[:3, None], 0.0
    return {
        "aiter.rms_norm": (x, weight, 1e-6),
        "aiter.rmsnorm2d_fwd_with_add": (x.clone(), x, x.clone(), x.clone(), weight, 1e-6),
        "aiter.silu_and_mul": (randn(3, 32), x),
        "aiter.rope_cached_2c_fwd": (heads[:, None], heads[:, None], *tables, 0, True, False),
        "aiter.ops.triton.rope.rope.rope_cached_thd_positions_offsets_2c_fwd_inplace": (
            heads.clone(), heads.clone(), *tables, slots, None, 0, True, False),
        "aiter.gemm_a8w8_CK": (a, b, scale, scales, None, torch.bfloat16),
        "aiter.gemm_a8w8_blockscale": (a, b, scale, scales[:, :1], torch.bfloat16),
        "aiter.per_token_quant_hip": (x, None, FP8),
        "aiter.fused_moe.fused_moe": (x, *experts),
        "aiter.reshape_and_cache_flash": (pages[0, :3], pages[1, :3], *kept),
        "aiter.ops.triton.unified_attention.unified_attention": (
            heads[..., :DIM], pages, pages, randn(3, HEADS, DIM), *step, None, None, None)}


@pytest.mark.parametrize("name", aiters_calls())
def test_aiters_names(name):
    args = aiters_calls()[name]
    row = next(row for row in aiter_names.table() if name in (f"{module}.{row.name}" for module in row.modules))
    with aiter_like.use_backend("torch"):
        assert not in_third_call(takeover.take(name, row.value, None, announce=False), *args)


def vllms_calls() -> dict[str, tuple]:
    """Adapter → the function that serves, and its arguments."""
    norm = SimpleNamespace(weight=torch.nn.Parameter(randn(64)), variance_epsilon=1e-6, variance_size_override=None,
                           has_weight=True)
    table = randn(8, DIM)
    rotary = SimpleNamespace(use_flashinfer=False, head_size=DIM, is_neox_style=True,
                             _match_cos_sin_cache_dtype=lambda query: table)
    impl = SimpleNamespace(num_kv_heads=KV_HEADS, head_size=DIM, scale=0.1, sliding_window=-1, logits_soft_cap=0,
                           alibi_slopes=None, attn_type="decoder", kv_cache_dtype="auto")
    scales = SimpleNamespace(_q_scale=torch.ones(()), _k_scale=torch.ones(()), _v_scale=torch.ones(()))
    step = SimpleNamespace(num_actual_tokens=2, max_query_len=1, query_start_loc=torch.arange(3, dtype=I32),
                           max_seq_len=9, seq_lens=torch.tensor([9, 3], dtype=I32), causal=True,
                           block_table=torch.tensor([[1], [0]], dtype=I32))
    cache, q, k = randn(2, KV_HEADS, PAGE, 2 * DIM), randn(2, HEADS, DIM), randn(2, KV_HEADS, DIM)
    return {
        "norm": (layers.rms_norm, norm, randn(3, 64)),
        "norm with residual": (layers.rms_norm, norm, randn(3, 64), randn(3, 64)),
        "activation": (layers.silu_and_mul, None, randn(3, 64)),
        "rotary": (layers.rotary_embedding, rotary, torch.arange(2), q.view(2, -1), k.view(2, -1)),
        "cache": (attention.cache_write, impl, scales, k, k, cache, torch.tensor([25, 2])),
        "attention": (attention.attention, impl, scales, q, k, k, cache, step, torch.empty_like(q)),
        "largest logit": (sampler.greedy_sample, randn(2, 64).float())}


@pytest.mark.parametrize("name", vllms_calls())
def test_vllms_layers(name, dry):
    function, *args = vllms_calls()[name]
    assert not in_third_call(takeover.take(f"vllm.{name}", function, None, announce=False), *args)


def test_sglangs_norm(dry, monkeypatch):
    for module in ("batch_invariant_ops", "layers.layernorm"):
        monkeypatch.setitem(sys.modules, f"sglang.srt.{module}", ModuleType(module))
    sys.modules["sglang.srt.batch_invariant_ops"].is_batch_invariant_mode_enabled = bool
    norm = SimpleNamespace(weight=randn(64), variance_epsilon=1e-6, variance_size_override=None, fp32_residual=False,
                           override_orig_dtype=None, cast_x_before_out_mul=False, _quant_linear=None)
    assert not in_third_call(sglang_layers.forward_rms_norm, norm, randn(3, 64))


def test_a_model_of_transformers(dry):
    transformers = pytest.importorskip("transformers")
    from aiter_like.integrations import transformers as adapter

    model = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=1, intermediate_size=64, vocab_size=8, num_attention_heads=2),
        dtype=torch.bfloat16).eval()
    adapter.enable(model)
    try:
        assert not in_third_call(model, torch.zeros(1, 1, dtype=torch.int64))
    finally:
        adapter.uninstall()
    assert takeover.counters()["transformers.rotary"].served == 3


@pytest.mark.parametrize("ours", ["a layer's refusal", "an operator's refusal"])
def test_calls_that_fall_back(ours):
    """Engines make such calls in every step, too; sizes may differ each time."""
    lengths = iter(range(1, 9))

    def refuse(x: torch.Tensor) -> None:
        raise UnsupportedError(f"a norm of {next(lengths)} rows")

    function = refuse if ours == "a layer's refusal" else lambda x: aiter_like.silu_and_mul(x[:, :32], x)
    taken = takeover.take("vllm.Toy", function, lambda x: x)
    assert not in_third_call(taken, torch.zeros(3, 64, dtype=torch.float64))
    assert takeover.counters()["vllm.Toy"].fell_back == 3


def test_the_fp8_of_the_device(dry):
    assert not in_third_call(dtypes.get_dtype_fp8)
