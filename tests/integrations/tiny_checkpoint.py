# SPDX-License-Identifier: MIT
"""Writes random checkpoints of two layers, grouped queries, in bf16: weights large enough that a wrong operator shows
in the tokens (std 0.15; what engines call dummy weights is so small that every operator passes)."""

from __future__ import annotations

import json
from pathlib import Path

import torch

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 2, 128, 4, 2, 32, 256, 256
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM",
                 "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
                 "deepseek_v3": "DeepseekV3ForCausalLM"}
EXPERTS, EXPERT_WIDTH = 8, 64  # their projections are called gate_proj, up_proj, down_proj; w1, w3, w2 in Mixtral
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_WITH_EXPERTS = {
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": EXPERT_WIDTH,
                "sliding_window": None},
    "qwen3_moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_WIDTH,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "deepseek_v3": {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
                    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
                    "routed_scaling_factor": 1.5, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}}
LATENT, ROPE, NOPE, V_DIM = 512, 64, 32, 32  # of latent attention: what vLLM's own kernel for CPUs takes


def write(folder: Path, model_type: str) -> None:
    """config.json and model.safetensors of a "llama", of a "qwen3", which also norms its queries and keys, of a
    "deepseek_v2" with latent attention and without experts; or, with experts in every layer, of a "mixtral", a
    "qwen3_moe", or a "deepseek_v3", whose experts are in groups, chosen with a bias, beside one that all tokens share.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    weights = {}

    def matrix(name: str, *shape: int) -> None:
        weights[name] = (torch.randn(*shape, generator=generator) * 0.15).bfloat16()

    def norm(name: str, size: int) -> None:
        weights[name] = (1 + torch.randn(size, generator=generator) * 0.15).bfloat16()

    matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    matrix("lm_head.weight", VOCABULARY, HIDDEN)
    norm("model.norm.weight", HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        norm(f"{prefix}input_layernorm.weight", HIDDEN)
        norm(f"{prefix}post_attention_layernorm.weight", HIDDEN)
        if model_type.startswith("deepseek"):
            matrix(f"{prefix}self_attn.q_proj.weight", HEADS * (NOPE + ROPE), HIDDEN)
            matrix(f"{prefix}self_attn.kv_a_proj_with_mqa.weight", LATENT + ROPE, HIDDEN)
            norm(f"{prefix}self_attn.kv_a_layernorm.weight", LATENT)
            matrix(f"{prefix}self_attn.kv_b_proj.weight", HEADS * (NOPE + V_DIM), LATENT)
            matrix(f"{prefix}self_attn.o_proj.weight", HIDDEN, HEADS * V_DIM)
        else:
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                matrix(f"{prefix}self_attn.{name}_proj.weight", heads * HEAD_DIM, HIDDEN)
            matrix(f"{prefix}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        if model_type in _WITH_EXPERTS:
            block = f"{prefix}{'block_sparse_moe' if model_type == 'mixtral' else 'mlp'}."
            matrix(f"{block}gate.weight", EXPERTS, HIDDEN)
            names = [f"{block}experts.{expert}." for expert in range(EXPERTS)]
            if model_type == "deepseek_v3":
                weights[f"{block}gate.e_score_correction_bias"] = torch.rand(EXPERTS, generator=generator)
                names.append(f"{block}shared_experts.")
        else:
            names = [f"{prefix}mlp."]
        width = EXPERT_WIDTH if model_type in _WITH_EXPERTS else INTERMEDIATE
        for name in names:
            for projection, shape in zip(("w1", "w3", "w2") if model_type == "mixtral" else _PROJECTIONS,
                                         ((width, HIDDEN), (width, HIDDEN), (HIDDEN, width))):
                matrix(f"{name}{projection}.weight", *shape)
        if model_type.startswith("qwen3"):
            norm(f"{prefix}self_attn.q_norm.weight", HEAD_DIM)
            norm(f"{prefix}self_attn.k_norm.weight", HEAD_DIM)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    own = {} if not model_type.startswith("deepseek") else {
        "kv_lora_rank": LATENT, "q_lora_rank": None, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE,
        "v_head_dim": V_DIM, "num_key_value_heads": HEADS, "head_dim": ROPE, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": EXPERT_WIDTH,
        "first_k_dense_replace": LAYERS}
    own |= _WITH_EXPERTS.get(model_type, {})
    (folder / "config.json").write_text(json.dumps({
        "architectures": [ARCHITECTURES[model_type]], "model_type": model_type, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": INTERMEDIATE, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
        "attention_bias": False, **own}))
