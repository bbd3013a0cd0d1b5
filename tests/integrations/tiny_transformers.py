# SPDX-License-Identifier: MIT
"""Small transformers models of several families with weights that tell mistakes, and what was served of them."""

import copy

import torch
import transformers

from aiter_like.integrations import takeover

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64,
         "initializer_range": 0.2}  # the usual 0.02 makes attention uniform: any scale "passes"
FACTOR = 1.5  # of the error that the stock model has in bfloat16 itself; a softmax scale wrong by 5 % gives 3
TOKENS = 9


def llama(**changes):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES | changes)


def mistral(**changes):
    return transformers.MistralForCausalLM, transformers.MistralConfig(**SIZES | {"sliding_window": 4} | changes)


def gemma2():
    """softcap, weight + 1, tanh GELU, and a window in every other layer."""
    return transformers.Gemma2ForCausalLM, transformers.Gemma2Config(
        **SIZES, sliding_window=4, query_pre_attn_scalar=32, attn_logit_softcapping=2.0)


def qwen3_moe():
    return transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[0])


def mixtral():
    return transformers.MixtralForCausalLM, transformers.MixtralConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)


def deepseek_v3():
    """Experts in groups, chosen by sigmoids with a bias, a shared one beside them, and latent attention."""
    sizes = SIZES | {"head_dim": 16}
    return transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config(
        **sizes | {"num_key_value_heads": 2}, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32,
        qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32)


def gpt_oss():
    """Sinks, and tables of cosines with a value per pair."""
    return transformers.GptOssForCausalLM, transformers.GptOssConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=4)


def made(family, dtype=torch.bfloat16):
    """(model in `dtype`, the same bfloat16 weights in float32): both stock, eager attention."""
    model_class, config = family
    torch.manual_seed(0)
    with torch.no_grad():
        exact = model_class._from_config(config, attn_implementation="eager").eval()
        for name, parameter in exact.named_parameters():
            if "norm" in name or "sinks" in name:
                parameter.uniform_(0.3, 1.7)  # not all the same
            elif parameter.std() == 0 and parameter.ndim > 1:
                parameter.normal_(0, 0.2)
        exact.to(torch.bfloat16).float()  # rounded
    model = copy.deepcopy(exact).to(dtype)
    return model, exact


def tokens(batch=2, length=TOKENS, seed=1):
    return torch.randint(0, 100, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side, batch=2, length=TOKENS):
    mask = torch.ones(batch, length, dtype=torch.int64)
    if side == "left":
        mask[1, :3] = 0
    elif side == "right":
        mask[1, -3:] = 0
    return mask


def served():
    """Name → calls that we served; nothing may have fallen back."""
    counts = takeover.counters()
    assert not any(count.fell_back for count in counts.values()), counts
    return {name.removeprefix("transformers."): count.served for name, count in counts.items() if count.served}
