# SPDX-License-Identifier: MIT
"""Models' sizes: they add up to the published number of parameters; the shapes that operators make of them."""

from __future__ import annotations

import pytest

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like.dispatch import OPS
from aiter_like.errors import TuningError
from aiter_like.tuning import models


def parameters(model):
    """Weights of the projections and embeddings; norms and biases are less than a thousandth."""
    hidden, heads, kv_heads, dim = model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim
    attention = hidden * dim * 2 * (heads + kv_heads)
    if model.kv_lora_rank:
        query = model.qk_nope_head_dim + model.qk_rope_head_dim
        attention = (hidden * model.q_lora_rank + model.q_lora_rank * heads * query
                     + hidden * (model.kv_lora_rank + model.qk_rope_head_dim)
                     + model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
                     + heads * model.v_head_dim * hidden)
    dense = 3 * hidden * model.intermediate_size
    experts = model.num_experts + model.num_shared_experts
    sparse = 3 * hidden * model.moe_intermediate_size * experts + hidden * model.num_experts
    num_dense = model.num_dense_layers if experts else model.num_layers
    return (model.num_layers * attention + num_dense * dense + (model.num_layers - num_dense) * sparse
            + model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2))


@pytest.mark.parametrize("name", models.names())
def test_sizes_add_up_to_the_published_number(name):
    model = models.load(name)
    assert parameters(model) == pytest.approx(model.parameters, rel=0.004)
    assert model.source.startswith("https://")


def test_every_model_of_the_list_is_there():
    assert {"llama-3-8b", "llama-3-70b", "llama-3-405b", "qwen3-0.6b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b",
            "deepseek-v3", "mixtral-8x7b", "mixtral-8x22b", "gpt-oss-20b", "gpt-oss-120b"} <= set(models.names())


def test_shapes_of_a_layer():
    def sizes(name, tp, tokens=(5,)):
        return {(key["rows"], key["hidden"], key["has_residual"])
                for key in models.keys(OPS["rms_norm"], models.load(name), tp, tokens)}

    assert sizes("llama-3-70b", 8) == {(5, 8192, 0), (5, 8192, 1)}
    assert sizes("qwen3-8b", 2) == {(5, 4096, 0), (5, 4096, 1), (80, 128, 0), (20, 128, 0)}
    assert sizes("qwen3-30b-a3b", 8) >= {(20, 128, 0), (5, 128, 0)}, "a KV head per GPU at least"
    assert sizes("deepseek-v3", 8) == {(5, 7168, 0), (5, 7168, 1), (5, 1536, 0), (5, 512, 0)}
    llama = models.load("llama-3-8b")
    assert [tuple(key.values()) for key in models.keys(OPS["layer_norm"], llama, 4, (3,))] == [
        (3, 4096, "bf16", "bf16", residual) for residual in (0, 1)]
    assert {(key["rows"], key["hidden"], key["group_size"], key["has_residual"])
            for key in models.keys(OPS["rms_norm_quant"], llama, 4, (3,))} == {
        (3, 4096, group_size, residual) for group_size in (0, 128) for residual in (0, 1)}
    assert [tuple(key.values()) for key in models.keys(OPS["gated_rms_norm"], llama, 4, (3,))] == [
        (24, 128, "bf16", "bf16")]
    for name, sizes in (("llama-3-8b", (24, 128, 6, 128)), ("deepseek-v3", (3, 1536, 3, 512))):
        assert [tuple(key.values()) for key in models.keys(OPS["fused_qk_rmsnorm"], models.load(name), 4, (3,))] == [
            (*sizes, "bf16")]
    attention = models.keys(OPS["flash_attn_fwd"], models.load("llama-3-70b"), 8, (1, 128, 4096))
    assert [(key["seqlen_q"], key["num_heads"], key["num_kv_heads"], key["head_dim"]) for key in attention] == [
        (128, 8, 1, 128), (4096, 8, 1, 128)]


def test_mistakes(monkeypatch, tmp_path):
    with pytest.raises(TuningError, match="no model 'llama'; there are: deepseek-v3, "):
        models.load("llama")
    llama = models.load("llama-3-8b")
    with pytest.raises(TuningError, match="tp must divide its 32 heads, got 3"):
        models.keys(OPS["rms_norm"], llama, 3)
    with pytest.raises(TuningError, match="flash_attn_fwd does not occur in deepseek-v3"):
        models.keys(OPS["flash_attn_fwd"], models.load("deepseek-v3"), 8)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.toml").write_text("hidden_size = 1\nhiden = 2\n")
    monkeypatch.setattr(models.paths, "configs", lambda: tmp_path)
    with pytest.raises(TuningError, match="toy.toml:1: unknown: hiden; missing: source, parameters, intermediate_size"):
        models.load("toy")
