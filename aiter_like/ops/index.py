# SPDX-License-Identifier: MIT
"""The module of ops/ that declares an operator, and the one of a public function. Written by `aiter-like generate`."""

OPERATORS = {name: f"{family}.{name}" for family, names in {
    "activation": "act_and_mul act_and_mul_quant elementwise relu_squared",
    "attention": "dropout_randval flash_attn_bwd flash_attn_dbias flash_attn_fwd merge_attn_states pa_metadata "
                 "paged_attention unified_attention",
    "conv": "causal_conv1d",
    "gemm": "batched_gemm gemm_a16w16 gemm_a8w8 gemm_a8w8_blockscale gemm_weight_only grouped_gemm",
    "kv_cache": "copy_blocks cp_gather_indexer_k_quant_cache indexer_k_quant_and_cache reshape_and_cache "
                "reshape_and_cache_with_block_quant reshape_and_cache_with_pertoken_quant",
    "mla": "mla_decode mla_metadata mla_reduce mqa_logits",
    "moe": "moe_align_block_size moe_gemm moe_permute moe_sorting moe_sum moe_weight_grad topk_gating",
    "norm": "dropout_layer_norm fused_qk_rmsnorm fused_rms_quant gated_rms_norm group_norm layer_norm norm_backward "
            "rms_norm rms_norm_quant",
    "quant": "block_quant flatten_group_quant hadamard moe_smoothquant mxfp4_quant pack_int4 row_quant tensor_quant "
             "truncated_quant",
    "rope": "fused_qk_norm_rope_group_quant fused_qk_rope_cache fused_qk_rope_concat_and_cache_mla rope rope_2d "
            "rope_rounded",
    "sampling": "exponential penalties renorm_probs sample sampling_from_probs softmax token_bitmask topk "
                "verify_chain verify_tree",
}.items() for name in names.split()}

PUBLIC = {name: module for module, names in {
    "activation.act_and_mul": "gelu_and_mul gelu_and_mul_bias gelu_fast gelu_tanh_and_mul scaled_silu_and_mul "
                              "silu_and_mul silu_and_mul_bias swiglu_and_mul swiglu_and_mul_bias",
    "activation.act_and_mul_quant": "act_mul_and_fp8_group_quant silu_and_mul_quant",
    "activation.arithmetic": "add add_ div div_ mul mul_ sub sub_",
    "activation.elementwise": "sigmoid tanh",
    "activation.fused": "fused_clamp_act_mul fused_silu_mul",
    "activation.relu_squared": "relu_squared",
    "attention.cascade_attention": "cascade_attention",
    "attention.dropout_randval": "dropout_randval",
    "attention.flash_attn": "flash_attn_func flash_attn_varlen_func",
    "attention.flash_attn_fp8": "flash_attn_fp8_pertensor_func flash_attn_varlen_fp8_pertensor_func",
    "attention.flash_attn_with_kvcache": "flash_attn_with_kvcache",
    "attention.merge_attn_states": "merge_attn_states merge_state merge_state_v2",
    "attention.mha_batch_prefill": "mha_batch_prefill_func",
    "attention.pa_metadata": "get_pa_metadata_info_v1 get_pa_metadata_v1",
    "attention.paged_attention": "paged_attention paged_attention_workspace_bytes",
    "attention.paged_attention_entries": "paged_attention_decode paged_attention_ragged paged_attention_v1",
    "attention.paged_attention_packed": "pa_fwd_asm paged_attention_common paged_attention_rocm",
    "attention.unified_attention": "unified_attention",
    "attention.workspace": "attention_workspace_bytes",
    "conv.causal_conv1d": "causal_conv1d_split_qkv",
    "gemm.batched_gemm": "batched_gemm_a8w8 batched_gemm_bf16",
    "gemm.gemm_a16w16": "gemm_a16w16",
    "gemm.gemm_a8w8": "gemm_a8w8 gemm_a8w8_bpreshuffle",
    "gemm.gemm_a8w8_blockscale": "gemm_a8w8_blockscale gemm_a8w8_blockscale_bpreshuffle",
    "gemm.gemm_weight_only": "gemm_a16w4 gemm_a16w8",
    "gemm.grouped_gemm": "grouped_gemm",
    "kv_cache.copy_blocks": "copy_blocks swap_blocks",
    "kv_cache.cp_gather_indexer_k_quant_cache": "cp_gather_indexer_k_quant_cache",
    "kv_cache.indexer_k_quant_and_cache": "indexer_k_quant_and_cache",
    "kv_cache.reshape_and_cache": "concat_and_cache_mla reshape_and_cache reshape_and_cache_flash",
    "kv_cache.reshape_and_cache_with_block_quant": "reshape_and_cache_with_block_quant "
                                                   "reshape_and_cache_with_block_quant_for_asm_pa",
    "kv_cache.reshape_and_cache_with_pertoken_quant": "reshape_and_cache_with_pertoken_quant",
    "layout.shuffle_weight": "shuffle_scale shuffle_weight unshuffle_weight",
    "mla.mla_decode": "mla_decode_fwd mla_decode_workspace_bytes",
    "mla.mla_metadata": "get_mla_metadata_info_v1 get_mla_metadata_v1 get_ps_metadata_info_v1 get_ps_metadata_v1",
    "mla.mla_prefill": "mla_prefill_fwd mla_prefill_ps_asm_fwd mla_prefill_ps_fwd",
    "mla.mla_reduce": "mla_reduce_v1",
    "mla.mqa_logits": "mqa_logits paged_mqa_logits",
    "moe.fused_moe": "fused_moe",
    "moe.moe_align_block_size": "moe_align_block_size",
    "moe.moe_permute": "moe_permute moe_unpermute",
    "moe.moe_sorting": "moe_sorting moe_sorting_fwd",
    "moe.moe_sum": "moe_sum",
    "moe.routing": "biased_grouped_topk fused_topk grouped_topk moe_fused_gate topk_gating topk_sigmoid topk_softmax",
    "norm.dropout_layer_norm": "dropout_layer_norm",
    "norm.fused_qk_rmsnorm": "fused_add_rmsnorm_pad fused_qk_rmsnorm",
    "norm.fused_rms_fp8": "fused_rms_fp8_group_quant fused_rms_fp8_per_tensor_static_quant",
    "norm.fused_rms_quant": "fused_qk_rmsnorm_quant",
    "norm.gated_rms_norm": "gated_rms_norm gated_rms_norm_quant",
    "norm.group_norm": "group_norm",
    "norm.layer_norm": "layer_norm layernorm2d_fwd layernorm2d_fwd_with_add layernorm2d_fwd_with_add_dynamicquant "
                       "layernorm2d_fwd_with_add_smoothquant layernorm2d_fwd_with_dynamicquant "
                       "layernorm2d_fwd_with_smoothquant",
    "norm.norm_backward": "layer_norm_backward rms_norm_backward",
    "norm.rms_norm": "add_rmsnorm fused_add_rms_norm_cu rms_norm rms_norm_cu rmsnorm rmsnorm2d_fwd "
                     "rmsnorm2d_fwd_with_add",
    "norm.rms_norm_quant": "add_rmsnorm_quant rmsnorm2d_fwd_with_add_dynamicquant rmsnorm2d_fwd_with_add_smoothquant "
                           "rmsnorm2d_fwd_with_dynamicquant rmsnorm2d_fwd_with_smoothquant rmsnorm_quant",
    "quant.block_quant": "per_block_quant",
    "quant.flatten_group_quant": "fused_flatten_fp8_group_quant",
    "quant.hadamard": "hadamard_transform",
    "quant.moe_smoothquant": "moe_smoothquant_fwd",
    "quant.mxfp4_quant": "quant_mxfp4",
    "quant.pack_int4": "pack_int4 unpack_int4",
    "quant.quant_types": "get_hip_quant get_torch_quant get_triton_quant per_block_quant_wrapper per_tensor_quant "
                         "pertoken_quant",
    "quant.row_quant": "dynamic_per_token_quant_fp8_i8 dynamic_per_token_scaled_quant per_group_quant_hip "
                       "per_token_quant_hip smoothquant_fwd",
    "quant.tensor_quant": "dynamic_per_tensor_quant dynamic_per_tensor_quant_fp8_i8 per_tensor_quant_hip "
                          "static_per_tensor_quant static_per_tensor_quant_fp8_i8",
    "quant.truncated_quant": "truncated_quant",
    "rope.fused_norm_rope_entries": "fused_kv_norm_rope_group_quant fused_qk_norm_rope_group_quant",
    "rope.fused_qk_norm_rope_cache": "fused_qk_norm_rope_cache_pts_quant_shuffle",
    "rope.fused_qk_rope_cache": "fused_qk_rope_reshape_and_cache",
    "rope.fused_qk_rope_concat_and_cache_mla": "fused_qk_rope_concat_and_cache_mla",
    "rope.rope": "rope_fwd rope_fwd_inplace rope_bwd rope_bwd_inplace rope_2c_fwd rope_2c_fwd_inplace rope_2c_bwd "
                 "rope_2c_bwd_inplace rope_cached_fwd rope_cached_fwd_inplace rope_cached_bwd rope_cached_bwd_inplace "
                 "rope_cached_2c_fwd rope_cached_2c_fwd_inplace rope_cached_2c_bwd rope_cached_2c_bwd_inplace "
                 "rope_cached_positions_fwd rope_cached_positions_fwd_inplace rope_cached_positions_bwd "
                 "rope_cached_positions_bwd_inplace rope_cached_positions_2c_fwd rope_cached_positions_2c_fwd_inplace "
                 "rope_cached_positions_2c_bwd rope_cached_positions_2c_bwd_inplace rope_cached_positions_offsets_fwd "
                 "rope_cached_positions_offsets_fwd_inplace rope_cached_positions_offsets_bwd "
                 "rope_cached_positions_offsets_bwd_inplace rope_cached_positions_offsets_2c_fwd "
                 "rope_cached_positions_offsets_2c_fwd_inplace rope_cached_positions_offsets_2c_bwd "
                 "rope_cached_positions_offsets_2c_bwd_inplace rope_thd_fwd rope_thd_fwd_inplace rope_thd_bwd "
                 "rope_thd_bwd_inplace",
    "rope.rope_2d": "rope_2d_bwd rope_2d_bwd_inplace rope_2d_fwd rope_2d_fwd_inplace",
    "rope.rope_rounded": "rope_rounded",
    "rope.rotary": "RoPE RoPE2D RoPECached RoPETHD RotaryEmbedding batched_rotary_embedding get_rope "
                   "rope_cached_thd_positions_2c_fwd_inplace rope_cached_thd_positions_offsets_2c_fwd_inplace "
                   "rotary_embedding_fwd",
    "sampling.exponential": "exponential",
    "sampling.penalties": "apply_penalties",
    "sampling.renorm_probs": "min_p_renorm_probs top_k_renorm_probs top_p_renorm_probs",
    "sampling.sample": "greedy_sample mixed_sample mixed_sample_outer_exponential random_sample "
                       "random_sample_outer_exponential",
    "sampling.sampling_from_probs": "min_p_sampling_from_probs sampling_from_probs top_k_sampling_from_probs "
                                    "top_k_top_p_sampling_from_probs top_p_sampling_from_probs",
    "sampling.softmax": "softmax",
    "sampling.token_bitmask": "apply_token_bitmask_inplace",
    "sampling.topk": "top_k_per_row_decode top_k_per_row_prefill topk topk_plain",
    "sampling.verify_chain": "chain_speculative_sampling",
    "sampling.verify_tree": "tree_speculative_sampling_target_only verify_tree_greedy",
}.items() for name in names.split()}
