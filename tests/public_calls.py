# SPDX-License-Identifier: MIT
"""A small valid call of every public function, for tests that look at all of them."""

import copy
import inspect

import pytest
import rotation
import torch

import aiter_like
from aiter_like import QuantType
from aiter_like.ops.index import OPERATORS, PUBLIC

BF16, F32, I32, FP8, I8 = torch.bfloat16, torch.float32, torch.int32, torch.float8_e4m3fnuz, torch.int8
ROWS, HIDDEN, HEADS, DIM, PAGE, BLOCKS = 6, 128, 2, 32, 16, 3
EPSILON, ONE = 1e-6, torch.ones(1)
NOT_TRACED = {  # not operators of tensors
    "attention_workspace_bytes": "a number of bytes", "paged_attention_workspace_bytes": "the same",
    "mla_decode_workspace_bytes": "the same", "get_mla_metadata_info_v1": "sizes of tensors",
    "get_ps_metadata_info_v1": "sizes of tensors", "get_pa_metadata_info_v1": "sizes of tensors",
    "RotaryEmbedding": "what get_rope returns, which is called",
    "get_hip_quant": "returns a function", "get_torch_quant": "returns a function",
    "get_triton_quant": "returns a function", "per_block_quant_wrapper": "returns a function",
    "shuffle_weight": "for weights, once, while loading", "unshuffle_weight": "the same",
    "shuffle_scale": "the same",
    **dict.fromkeys(("chain_speculative_sampling", "exponential", "min_p_sampling_from_probs", "mixed_sample",
                     "random_sample", "sampling_from_probs", "top_k_sampling_from_probs",
                     "top_k_top_p_sampling_from_probs", "top_p_sampling_from_probs"),
                    "draws its seed from a generator of torch")}


def public_names():
    """Public functions of the operators that take tensors."""
    return sorted(set(PUBLIC) - set(NOT_TRACED))


def sampled(names):
    """Names of operators or functions as parameters; of each family those out of the sample are `exhaustive`."""
    families = {name: (OPERATORS.get(name) or PUBLIC[name]).partition(".")[0] for name in names}
    seeds = {name: rotation.seed(rotation.operators_named(name)) for name in names}
    others = rotation.left_out(families, seeds)
    return [pytest.param(name, marks=pytest.mark.exhaustive) if name in others else name for name in sorted(names)]


def called_by_tensors():
    """Names of the functions that are called with tensors one by one."""
    return [name for name in public_names() if name not in SEQUENCES and name != "get_rope"]


def r(*shape, dtype=BF16):
    """Random numbers; the same for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def zeros(*shape, dtype=BF16):
    return torch.zeros(shape, dtype=dtype)


def i32(*values):
    return torch.tensor(values, dtype=I32)


def rows(dtype=BF16):
    return zeros(ROWS, HIDDEN, dtype=dtype)


x, wide, weight, factors = r(ROWS, HIDDEN), r(ROWS, 2 * HIDDEN), r(HIDDEN), r(1, HIDDEN, dtype=F32)[0].abs()
scale, slots, row_ids = zeros(ROWS, 1, dtype=F32), torch.arange(ROWS), i32(*[0, 1] * (ROWS // 2))
q, k = r(1, ROWS, HEADS, DIM), r(1, ROWS, 1, DIM)
starts = i32(0, 2, ROWS)
pages = r(BLOCKS, PAGE, 1, DIM)
experts = zeros(ROWS, 4, dtype=F32), zeros(ROWS, 4, dtype=I32)
heads = r(ROWS, HEADS, DIM)
tables = (r(ROWS, DIM // 2), r(ROWS, DIM // 2))
tiled = (zeros(BLOCKS, HEADS, DIM // 16, PAGE, 16, dtype=FP8), zeros(BLOCKS, HEADS, DIM, PAGE, dtype=FP8))
eighths = (zeros(BLOCKS, HEADS, DIM // 8, PAGE, 8), zeros(BLOCKS, HEADS, DIM, PAGE))
index_cache = zeros(BLOCKS, PAGE, HIDDEN + 4, dtype=torch.uint8)
latent_call = (r(ROWS, HEADS, DIM), pages, zeros(ROWS, HEADS, 16), starts, i32(0, 2, 3), i32(2, 0, 1), i32(5, PAGE), 4,
               PAGE)
plan = (zeros(2, dtype=torch.uint64), zeros(8, dtype=I32), zeros(3, dtype=I32), zeros(2, 2, dtype=I32),
        zeros(9, dtype=I32))
expanded = (r(ROWS, HEADS, DIM), r(ROWS, HEADS, DIM), r(ROWS, HEADS, 16), zeros(ROWS, HEADS, 16))
norm_add = (rows(), x, x + 1, rows())
quant = (rows(I8), x, scale)
quant_add = (rows(I8), x, x + 1, rows())
paged = (zeros(ROWS, HEADS, DIM), zeros(ROWS, dtype=torch.uint8), q[0])
tiled_pages = (r(BLOCKS, 1, DIM // 8, PAGE, 8), r(BLOCKS, 1, PAGE // 8, DIM, 8))
tokens, nodes = zeros(ROWS, dtype=I32), zeros(ROWS, 1, dtype=torch.int64)

CALLS = {
    **{name: (rows(), wide) for name in ("gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul", "swiglu_and_mul")},
    **{name: (rows(), wide, row_ids, r(2, 2 * HIDDEN)) for name in ("gelu_and_mul_bias", "silu_and_mul_bias",
                                                                    "swiglu_and_mul_bias")},
    "gelu_fast": (rows(), x),
    **{name: (rows(), x) for name in ("add", "add_", "div", "div_", "mul", "mul_", "sub", "sub_")},
    "sigmoid": (x,), "tanh": (x,),
    "scaled_silu_and_mul": (rows(I8), wide, ONE),
    "fused_clamp_act_mul": (wide,),
    "fused_silu_mul": (wide,),
    "act_mul_and_fp8_group_quant": (wide, "silu", 128),
    "silu_and_mul_quant": (rows(I8), wide, scale, HIDDEN),
    "gemm_a16w16": (x, r(24, HIDDEN)),
    **dict.fromkeys(("gemm_a8w8_blockscale", "gemm_a8w8_blockscale_bpreshuffle"),
                    (x.to(FP8), r(32, HIDDEN).to(FP8), r(ROWS, 1, dtype=F32), r(1, 1, dtype=F32))),
    "gemm_a8w8": (x.to(I8), r(24, HIDDEN).to(I8), scale + 1, ONE),
    "gemm_a8w8_bpreshuffle": (x.to(FP8), r(32, HIDDEN).to(FP8), scale + 1, r(32, dtype=F32)),
    "batched_gemm_bf16": (x[None], r(1, 24, HIDDEN)),
    "batched_gemm_a8w8": (x[None].to(FP8), r(1, 24, HIDDEN).to(FP8), scale[None], r(1, 1, 24, dtype=F32)),
    "grouped_gemm": (x, r(2, 24, HIDDEN), starts),
    "gemm_a16w8": (x, r(24, HIDDEN).to(I8), r(24, dtype=F32)),
    "gemm_a16w4": (x, r(24, HIDDEN // 2).to(I8), r(24, dtype=F32)),
    "flash_attn_func": (q, k, k),
    "flash_attn_varlen_func": (q[0], k[0], k[0], starts, starts, 4, 4),
    "mha_batch_prefill_func": (q[0], pages, pages, starts, i32(0, 1, 2), i32(0, 2), 4, PAGE),
    "flash_attn_fp8_pertensor_func": (q.to(FP8), k.to(FP8), k.to(FP8), ONE, ONE, ONE),
    "flash_attn_varlen_fp8_pertensor_func": (q[0].to(FP8), k[0].to(FP8), k[0].to(FP8), ONE, ONE, ONE, starts, starts, 4,
                                             4),
    "flash_attn_with_kvcache": (q[:, :1], k, k),
    "unified_attention": (q[0], pages, pages, zeros(ROWS, HEADS, DIM), starts, 4, i32(2, 4), PAGE, 0.2, True, (-1, -1),
                          i32([0], [2]), 0.0, None, None, None),
    "paged_attention": (q[0], pages, pages, i32(*([0],) * ROWS), i32(*range(ROWS)), PAGE),
    "cascade_attention": (q[0], pages, pages, i32(*([0],) * ROWS), i32(*range(ROWS)), PAGE, 0),
    "merge_attn_states": (zeros(ROWS, HEADS, DIM), q[0], r(HEADS, ROWS, dtype=F32), q[0], r(HEADS, ROWS, dtype=F32)),
    **dict.fromkeys(("merge_state", "merge_state_v2"), (q[0], r(ROWS, HEADS, dtype=F32)) * 2),
    "paged_attention_v1": (*paged, pages, pages, 0.2, i32(*([0],) * ROWS), None, i32(*range(ROWS)), PAGE, None, "auto",
                           "NHD", 0.0, None, None),
    "paged_attention_ragged": (*paged, pages, pages, 0.2, i32(*range(ROWS + 1)), i32(*([0] * ROWS)), i32(*range(ROWS)),
                               PAGE, 1, None, "auto", "NHD", 0.0, None, None),
    "paged_attention_rocm": (zeros(ROWS, HEADS, DIM), None, None, None, q[0], *tiled_pages, 1, 0.2,
                             i32(*([0],) * ROWS), i32(*range(ROWS)), PAGE, PAGE, None, "auto", None, None),
    "pa_fwd_asm": (q[0], *tiled_pages, i32(*([0],) * ROWS), i32(*range(ROWS)), 1),
    "paged_attention_common": (q[0], *tiled_pages, None, None, None, i32(*([0],) * ROWS), i32(*range(ROWS)), 1, 0.2, 1,
                               PAGE),
    "paged_attention_decode": (zeros(ROWS, HEADS, DIM), q[0], pages.transpose(1, 2), pages.transpose(1, 2),
                               i32(*range(ROWS)), i32(*([0],) * ROWS), 0.2, PAGE, None, None, None),
    "fused_qk_rope_concat_and_cache_mla": (
        heads, heads, heads[:, :1], heads[:, :1], zeros(BLOCKS, PAGE, 1, 2 * DIM), zeros(ROWS, HEADS, 2 * DIM), slots,
        ONE, ONE, slots, *tables, True, True),
    "fused_kv_norm_rope_group_quant": (x, weight, slots, slots, r(ROWS, 32), r(ROWS, 32), EPSILON,
                                       zeros(BLOCKS, PAGE, HIDDEN, dtype=FP8), zeros(BLOCKS, PAGE, 64)),
    "fused_qk_norm_rope_group_quant": (
        x[:, None], x, weight, slots, r(ROWS, 32), r(ROWS, 32), EPSILON, False, FP8,
        zeros(ROWS, 1, HIDDEN, dtype=FP8), zeros(ROWS, 1, 64), zeros(ROWS, HIDDEN, dtype=FP8), zeros(ROWS, 64)),
    "mla_decode_fwd": (*latent_call, 1, None, 0.0, 1),  # no parts, whose memory would hold anything
    "mla_prefill_fwd": latent_call[:8],
    "mqa_logits": (q[0].to(FP8), k[0, :, 0].to(FP8), scale[:, 0] + 1, r(ROWS, HEADS, dtype=F32), slots.to(I32) * 0,
                   slots.to(I32)),
    "paged_mqa_logits": (q.to(FP8)[:, :2], zeros(BLOCKS, PAGE, DIM + 4, dtype=torch.uint8), r(2, HEADS, dtype=F32),
                         zeros(2, PAGE, dtype=F32), i32(5), i32([2])),
    "mla_reduce_v1": (r(8, HEADS, DIM, dtype=F32), r(8, HEADS, dtype=F32), i32(0, 2, 4), i32([0, 2], [2, 4]),
                      i32(0, 2, 4, 6), 2, 0, zeros(ROWS, HEADS, DIM), zeros(ROWS, HEADS, dtype=F32)),
    "get_mla_metadata_v1": (starts, i32(0, 2, 3), i32(5, PAGE), HEADS, 1, True, plan[0], zeros(9, 8, dtype=I32),
                            *plan[1:]),
    "get_pa_metadata_v1": (starts, i32(0, 2, 3), i32(20, PAGE), 2, HEADS, True, plan[0], plan[1],
                           zeros(9, 8, dtype=I32), *plan[2:]),
    "get_ps_metadata_v1": (starts, i32(0, 2, 3), i32(5, PAGE), 1, HEADS, plan[0], plan[1], zeros(9, 8, dtype=I32),
                           *plan[2:]),
    "mla_prefill_ps_asm_fwd": (*expanded[:3], starts, starts, i32(*range(ROWS)), None, None, 4, 0.2, True, None, None,
                               expanded[3]),
    "mla_prefill_ps_fwd": (*expanded, starts, starts, i32(*range(ROWS)), None, None, 4, True),
    "dropout_layer_norm": (x, x, weight, weight, 0.5, 7),
    "dropout_randval": (torch.tensor([5, 9]), 0.25, (1, HEADS, ROWS, ROWS)),
    "fused_flatten_fp8_group_quant": (heads, 32),
    "fused_rms_fp8_group_quant": (x, weight, EPSILON),
    "fused_rms_fp8_per_tensor_static_quant": (x, weight, EPSILON, ONE),
    "fused_qk_rmsnorm_quant": (rows(I8), scale, x, weight, EPSILON, None, None, None, None, None, None, None, False,
                               QuantType.per_Token),
    "fused_qk_norm_rope_cache_pts_quant_shuffle": (
        r(ROWS, 4 * DIM), r(DIM), r(DIM), r(ROWS, DIM), slots, ROWS, 2, 1, 1, DIM, True, EPSILON, zeros(ROWS, 2, DIM),
        zeros(BLOCKS, PAGE, 1, DIM), zeros(BLOCKS, PAGE, 1, DIM), slots, ONE, ONE, None, None, False, False, PAGE, 8),
    "fused_qk_rope_reshape_and_cache": (heads, heads, heads, zeros(BLOCKS, PAGE, HEADS, DIM),
                                        zeros(BLOCKS, PAGE, HEADS, DIM), slots, slots, *tables, None, None, True, True),
    "group_norm": (r(2, 8, 5, 5), 4),
    "cp_gather_indexer_k_quant_cache": (index_cache, zeros(ROWS, HIDDEN, dtype=torch.uint8), zeros(ROWS, 1, dtype=F32),
                                        i32([0], [1]), starts),
    "indexer_k_quant_and_cache": (x, index_cache, slots, HIDDEN, "ue8m0"),
    "pack_int4": (zeros(ROWS, HIDDEN, dtype=I8),),
    "unpack_int4": (zeros(ROWS, HIDDEN, dtype=I8),),
    "quant_mxfp4": (x,),
    "copy_blocks": ([r(BLOCKS, 4)], [r(BLOCKS, 4)], torch.tensor([[0, 1]])),
    "swap_blocks": (r(BLOCKS, 4), zeros(BLOCKS, 4), torch.tensor([[0, 1]])),
    "concat_and_cache_mla": (x, r(ROWS, 64), zeros(BLOCKS, PAGE, HIDDEN + 64), slots, "auto", None),
    "reshape_and_cache": (heads, heads, *eighths, slots, "auto"),
    "reshape_and_cache_flash": (heads, heads, zeros(BLOCKS, PAGE, HEADS, DIM), zeros(BLOCKS, PAGE, HEADS, DIM), slots,
                                "auto", None, None),
    "reshape_and_cache_with_block_quant": (heads[None], heads[None], *tiled, zeros(HEADS, BLOCKS, dtype=F32),
                                           zeros(HEADS, BLOCKS, dtype=F32), slots, False),
    "reshape_and_cache_with_block_quant_for_asm_pa": (
        heads[None], heads[None], *tiled, zeros(HEADS, 1, dtype=F32), zeros(HEADS, 1, dtype=F32), slots, False,
        BLOCKS * PAGE),
    "reshape_and_cache_with_pertoken_quant": (heads, heads, *tiled, zeros(HEADS, BLOCKS * PAGE, dtype=F32),
                                              zeros(HEADS, BLOCKS * PAGE, dtype=F32), slots, False),
    "layer_norm": (x, weight, weight),
    "layernorm2d_fwd": (x, weight, weight),
    "layernorm2d_fwd_with_add": (*norm_add, weight, weight, EPSILON),
    "layernorm2d_fwd_with_add_dynamicquant": (*quant_add, scale, weight, weight, EPSILON),
    "layernorm2d_fwd_with_add_smoothquant": (*quant_add, factors, scale, weight, weight, EPSILON),
    "layernorm2d_fwd_with_dynamicquant": (*quant, weight, weight, EPSILON),
    "layernorm2d_fwd_with_smoothquant": (*quant[:2], factors, scale, weight, weight, EPSILON),
    "add_rmsnorm": (*norm_add, weight, EPSILON),
    "fused_add_rms_norm_cu": (x, x + 1, weight, EPSILON),
    "rms_norm": (x, weight, EPSILON),
    "rms_norm_cu": (rows(), x, weight, EPSILON),
    "rmsnorm": (rows(), x, weight, EPSILON),
    "rmsnorm2d_fwd": (x, weight, EPSILON),
    "rmsnorm2d_fwd_with_add": (*norm_add, weight, EPSILON),
    "layer_norm_backward": (x, x, weight, EPSILON),
    "rms_norm_backward": (x, x, weight, EPSILON),
    "fused_add_rmsnorm_pad": (x, weight, EPSILON),
    "fused_qk_rmsnorm": (rows(), x, weight, EPSILON, rows(), x + 1, weight, EPSILON),
    "gated_rms_norm": (x, x, weight, EPSILON),
    "gated_rms_norm_quant": (zeros(ROWS, HEADS, HIDDEN, dtype=FP8), r(ROWS, HEADS, HIDDEN), r(ROWS, HEADS, HIDDEN),
                             zeros(ROWS, HEADS, dtype=F32), weight, EPSILON),
    "add_rmsnorm_quant": (*quant_add, scale, weight, EPSILON),
    "rmsnorm2d_fwd_with_add_dynamicquant": (*quant_add, scale, weight, EPSILON),
    "rmsnorm2d_fwd_with_add_smoothquant": (*quant_add, factors, scale, weight, EPSILON),
    "rmsnorm2d_fwd_with_dynamicquant": (*quant, weight, EPSILON),
    "rmsnorm2d_fwd_with_smoothquant": (*quant[:2], factors, scale, weight, EPSILON),
    "rmsnorm_quant": (*quant, weight, EPSILON),
    "dynamic_per_token_quant_fp8_i8": quant,
    "dynamic_per_token_scaled_quant": quant,
    "per_group_quant_hip": (x,),
    "hadamard_transform": (x,),
    "per_token_quant_hip": (x,),
    "smoothquant_fwd": (*quant[:2], factors, scale),
    "per_block_quant": (r(HIDDEN, HIDDEN),),
    "moe_smoothquant_fwd": (rows(I8), x, r(2, HIDDEN, dtype=F32), row_ids[:, None], scale),
    "dynamic_per_tensor_quant": (*quant[:2], zeros(1, dtype=F32)),
    "dynamic_per_tensor_quant_fp8_i8": (*quant[:2], zeros(1, dtype=F32)),
    "per_tensor_quant_hip": (x,),
    "static_per_tensor_quant": (*quant[:2], ONE),
    "truncated_quant": quant,
    "static_per_tensor_quant_fp8_i8": (*quant[:2], ONE),
    "per_tensor_quant": (x,),
    "pertoken_quant": (x,),
    "batched_rotary_embedding": (slots, heads, heads + 1, DIM, *tables, True, False, DIM, slots * 0),
    "rotary_embedding_fwd": (slots, heads, heads + 1, DIM, *tables, True, False),
    "rope_cached_thd_positions_2c_fwd_inplace": (heads, heads + 1, *tables, slots, 0, True, False),
    "rope_cached_thd_positions_offsets_2c_fwd_inplace": (heads, heads + 1, *tables, slots, slots * 0, 0, True, False),
    "rope_rounded": (heads.bfloat16(), (heads + 1).bfloat16(), *(each.bfloat16() for each in tables), slots),
    "get_rope": (slots, heads, heads + 1),
    "greedy_sample": (tokens, x),
    "random_sample_outer_exponential": (tokens, x, x.float().abs(), scale[:, 0] + 1),
    "mixed_sample_outer_exponential": (tokens, x, x.float().abs(), scale[:, 0] + 1),
    "softmax": (x,),
    "top_k_renorm_probs": (x.float().softmax(-1), None, 5),
    "top_p_renorm_probs": (x.float().softmax(-1), None, 0.5),
    "apply_penalties": (x.float(), scale.long(), scale.int(), scale[:, 0], scale[:, 0], scale[:, 0] + 1),
    "causal_conv1d_split_qkv": (r(HIDDEN, ROWS), r(HIDDEN, 4), weight, zeros(2, HIDDEN, 3), starts, DIM),
    "apply_token_bitmask_inplace": (x.float(), zeros(ROWS, HIDDEN // 32, dtype=I32) + 5),
    "verify_tree_greedy": (
        tokens, zeros(ROWS, 2, dtype=I32), tokens.clone(), nodes, slots[:, None], nodes - 1, nodes - 1, nodes),
    "tree_speculative_sampling_target_only": (
        tokens, zeros(ROWS, 2, dtype=I32), tokens.clone(), nodes, slots[:, None], nodes - 1, nodes - 1, scale + 0.5,
        scale[:, 0], r(ROWS, 1, 8, dtype=F32).softmax(-1), zeros(ROWS, 1, 8, dtype=F32)),
    "topk": (x, 5),
    "topk_plain": (x, zeros(ROWS, 5, dtype=I32), zeros(ROWS, 5), 5),
    "top_k_per_row_prefill": (x.float(), tokens, tokens + HIDDEN, zeros(ROWS, 5, dtype=I32), None, ROWS, HIDDEN, 1, 5),
    "top_k_per_row_decode": (x.float(), 2, tokens[:3] + HIDDEN, zeros(ROWS, 5, dtype=I32), ROWS, HIDDEN, 1, 5),
    "min_p_renorm_probs": (x.float().softmax(-1), None, 0.1),
    "topk_softmax": (*experts, None, x, True),
    "topk_sigmoid": (*experts, x),
    "topk_gating": (*experts, x, weight),
    "grouped_topk": (x, *experts, 8, 4, True),
    "biased_grouped_topk": (x, weight, *experts, 8, 4, True),
    "moe_fused_gate": (x, weight, *experts, 8, 4, 4, 1, 2.5),
    "fused_topk": (x, x, 4, True),
    "fused_moe": (x, r(4, 64, HIDDEN), r(4, HIDDEN, 32), *experts),
    "moe_align_block_size": (experts[1], 8, 16, *(zeros(size, dtype=I32) for size in (999, 99, 99, 1))),
    "moe_permute": (x, None, experts[1], 8),
    "moe_unpermute": (rows(), r(4 * ROWS, HIDDEN), experts[0], torch.arange(4 * ROWS, dtype=I32).flip(0)),
    "moe_sum": (r(ROWS, 4, HIDDEN), rows()),
    "moe_sorting": (*experts[::-1], 1, 16, BF16, 1),  # rows beyond those with padding are undefined: there are none
    "moe_sorting_fwd": (*experts[::-1], zeros(999, dtype=I32), zeros(999, dtype=F32), zeros(99, dtype=I32), i32(0, 0),
                        rows(), 8, 16),
}
SEQUENCES = {"RoPE": "rope_fwd", "RoPECached": "rope_cached_fwd", "RoPETHD": "rope_thd_fwd", "RoPE2D": "rope_2d_fwd"}
FREQUENCIES = r(ROWS, 1, 1, DIM // 2)
BY_NAME = {**{name: r(ROWS, 1, HEADS, DIM) for name in ("input", "input_x", "input_y", "output_grads", "output_grads_x",
                                                        "output_grads_y")},
           **dict.fromkeys(("freqs", "cos", "sin"), FREQUENCIES),
           "positions": slots[:, None], "offsets": slots[:, None] * 0, "cu_seqlens": starts, "rotate_style": 0,
           "reuse_freqs_front_part": True, "nope_first": False, "img_height": 2, "img_width": 3,
           **dict.fromkeys(("cos_h", "sin_h"), r(1, 2, 1, DIM // 4)),
           **dict.fromkeys(("cos_w", "sin_w"), r(1, 3, 1, DIM // 4))}


def call_of(name):
    """(function, fresh arguments) of a public name."""
    function = getattr(aiter_like, SEQUENCES.get(name, name))
    if name in CALLS:
        args = CALLS[name]
    else:  # the rotary functions, whose parameters have the same names everywhere
        parameters = inspect.signature(function).parameters.values()
        args = [BY_NAME[each.name] for each in parameters if each.default is each.empty]
        if "thd" in function.__name__ or "2d" in function.__name__:
            args[0] = args[0][:, 0] if "thd" in function.__name__ else args[0].transpose(0, 1)
    if name in SEQUENCES:
        function = getattr(aiter_like, name).apply
    elif name == "get_rope":
        function = function(DIM, DIM, ROWS, 10000.0, dtype=BF16)
    return function, copy.deepcopy(list(args))


def tensors(value):
    """All tensors in nested results, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in tensors(each)] if isinstance(value, (list, tuple)) else []
