# SPDX-License-Identifier: MIT
"""Models' sizes: they add up to the published number of parameters; the shapes that operators make of them."""

import pytest

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like.dispatch import OPS
from aiter_like.errors import TuningError
from aiter_like.ops.common import tune_shapes
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
    for name, sizes in (("qwen3-8b", (3, 8, 2, 128, 128, 16, 1)), ("llama-3-8b", (3, 8, 2, 128, 128, 16, 0))):
        keys = models.keys(OPS["fused_qk_rope_cache"], models.load(name), 4, (3,))
        assert {tuple(value for value in key.values() if isinstance(value, int)) for key in keys} == {sizes}
        assert [key["layout"] for key in keys] == ["rows", "rows", "shuffled", "shuffled"]
        assert len({key["cache_dtype"] for key in keys}) == 2
    attention = models.keys(OPS["flash_attn_fwd"], models.load("llama-3-70b"), 8, (1, 128, 4096))
    assert [(key["seqlen_q"], key["num_heads"], key["num_kv_heads"], key["head_dim"]) for key in attention] == [
        (128, 8, 1, 128), (4096, 8, 1, 128)]
    latent, = models.keys(OPS["flash_attn_fwd"], models.load("deepseek-v3"), 8, (128,))
    assert [latent[name] for name in ("num_heads", "num_kv_heads", "head_dim", "head_dim_v")] == [16, 16, 192, 128]


def test_shapes_of_linear_layers():
    """Worked out by hand from the models' sizes; row_quant and tensor_quant see them too."""
    def inputs(name, tp):
        return set(tune_shapes.linear_inputs(models.load(name), tp, 3))

    assert inputs("llama-3-8b", 2) == {(3, 4096), (3, 2048), (3, 7168)}
    assert inputs("qwen3-30b-a3b", 8) == {(3, 2048), (3, 512), (24, 96)}
    assert inputs("deepseek-v3", 8) == {(3, 7168), (3, 1536), (3, 2048), (3, 2304), (3, 256), (24, 256)}
    assert list(tune_shapes.linear_weights(models.load("llama-3-8b"), 2)) == [
        (1, 3072, 4096), (1, 4096, 2048), (1, 14336, 4096), (1, 4096, 7168)]
    assert list(tune_shapes.linear_weights(models.load("deepseek-v3"), 8)) == [
        (1, 2112, 7168), (1, 3072, 1536), (1, 4096, 512), (1, 7168, 2048), (1, 4608, 7168), (1, 7168, 2304),
        (1, 512, 7168), (1, 7168, 256), (256, 512, 7168), (256, 7168, 256)]

    def keys(op, name, tp=8):
        return [tuple(value for value in key.values() if isinstance(value, int))
                for key in models.keys(OPS[op], models.load(name), tp, (3,))]

    assert keys("row_quant", "qwen3-30b-a3b") == [(3, 2048, 0), (3, 2048, 128), (3, 512, 0), (3, 512, 128), (24, 96, 0)]
    assert keys("tensor_quant", "llama-3-8b", 2) == [
        (3, size, is_dynamic) for size in (4096, 2048, 7168) for is_dynamic in (0, 1)]
    assert keys("block_quant", "llama-3-8b", 2) == [
        (*size, 128) for size in tune_shapes.linear_weights(models.load("llama-3-8b"), 2)]
    assert keys("flatten_group_quant", "deepseek-v3") == [(3, 16, 128, 128)]
    assert keys("moe_smoothquant", "deepseek-v3") == [(3, 7168, 8, 256)]
    norm = {(7168, 0, 0), (7168, 0, 1), (1536, 512, 0)}
    assert {(hidden, second, residual) for _, hidden, second, _, _, residual in keys("fused_rms_quant", "deepseek-v3")
            } == norm and len(keys("fused_rms_quant", "deepseek-v3")) == 9
    assert keys("norm_backward", "llama-3-8b") == [(3, 4096, 0), (3, 4096, 1)]
    assert keys("dropout_layer_norm", "llama-3-8b") == [(3, 4096)]
    for op in ("flatten_group_quant", "moe_smoothquant"):
        with pytest.raises(TuningError, match=f"{op} does not occur in llama-3-8b"):
            keys(op, "llama-3-8b")


def test_mistakes(monkeypatch, tmp_path):
    with pytest.raises(TuningError, match="no model 'llama' \\(did you mean llama-3-8b\\?\\); there are: "):
        models.load("llama")
    llama = models.load("llama-3-8b")
    with pytest.raises(TuningError, match="tp must divide its 32 heads, got 3"):
        models.keys(OPS["rms_norm"], llama, 3)
    with pytest.raises(TuningError, match="flash_attn_fwd does not occur in llama-3-8b"):
        models.keys(OPS["flash_attn_fwd"], llama, 8, (1,))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.toml").write_text("hidden_size = 1\nhiden = 2\n")
    monkeypatch.setattr(models.paths, "configs", lambda: tmp_path)
    with pytest.raises(TuningError, match="toy.toml:1: unknown: hiden; missing: source, parameters, intermediate_size"):
        models.load("toy")
