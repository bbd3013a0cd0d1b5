# SPDX-License-Identifier: MIT
"""What tensors of indices hold, on both sides of every bound, in all public functions: what is outside is an error that
says so before anything is written, or is left out as the docstring has it. test_contents.py has paged attention.
"""

import inspect

import public_calls
import pytest
import torch
from test_contents import LAST

INT_MIN, INT_MAX = -2**31, 2**31 - 1
FAR = (INT_MIN, INT_MAX, 2**32, 2**32 + 1, -2**32)
ROWS, PLACES = public_calls.ROWS, public_calls.BLOCKS * public_calls.PAGE
POSITIONS = {"positions": ((0, ROWS - 1), (-1, ROWS))}  # The last one is ROWS - 1.
OFFSETS = ((1 - ROWS, 0), (-ROWS, 1))
ROPE = {name: {**POSITIONS, **({"offsets": OFFSETS} if "offsets" in name else {})}
        for name in public_calls.public_names() if "positions" in name and name.startswith("rope_cached")}
STARTS = ((2, ROWS), (-1, 1, ROWS + 1))
REFUSED = {  # function → argument: numbers that its last element may be, and may not be beside those of FAR
    **ROPE, "rope_rounded": {**POSITIONS, "offsets": OFFSETS},
    "batched_rotary_embedding": {**POSITIONS, "cos_sin_cache_offsets": OFFSETS},
    **dict.fromkeys(("rotary_embedding_fwd", "fused_qk_rope_concat_and_cache_mla",
                     "fused_kv_norm_rope_group_quant", "fused_qk_norm_rope_group_quant",
                     "fused_qk_norm_rope_cache_pts_quant_shuffle"), POSITIONS),
    "fused_qk_rope_reshape_and_cache": {"pos": POSITIONS["positions"], "offs": OFFSETS},
    "mha_batch_prefill_func: table": {"block_table": ((0, 2), (-1, 3))},
    "flash_attn_func": {name: ((0, ROWS), (-1, ROWS + 1)) for name in ("cu_seqlens_q", "cu_seqlens_kv")},
    "flash_attn_varlen_func: padded": {"cu_seqlens_q_padded": ((ROWS,), (ROWS - 1, ROWS + 1))},
    "paged_attention: starts": {"cu_seqlens_q": ((ROWS,), (ROWS - 2, ROWS + 1))},
    "paged_attention_v1: starts": {"cu_query_lens": ((ROWS,), (ROWS - 2, ROWS + 1))},
    "pa_fwd_asm: starts": {"qo_indptr": ((ROWS,), (ROWS - 2, ROWS + 1))},
    **dict.fromkeys(("rope_thd_fwd", "rope_thd_bwd", "rope_thd_fwd_inplace", "rope_thd_bwd_inplace"),
                    {"cu_seqlens": ((2, ROWS), (-1, 1))}),
    **dict.fromkeys(("flash_attn_varlen_func", "flash_attn_varlen_fp8_pertensor_func"),
                    {name: STARTS for name in ("cu_seqlens_q", "cu_seqlens_k")}),
    "mla_prefill_ps_fwd": {"kv_indptr": STARTS},
    "mla_prefill_ps_asm_fwd": {"qo_indptr": STARTS, "kv_indptr": STARTS, "kv_page_indices": ((0, 5), (-1, 6))},
    "grouped_gemm": {"group_offsets": ((2, ROWS), (1, ROWS + 1))},
    "causal_conv1d_split_qkv": {"query_start_loc": ((2, ROWS), (1, ROWS + 1)), "cache_indices": ((0, -1, 2), (1,))},
    "cp_gather_indexer_k_quant_cache": {"cu_seq_lens": ((2, ROWS), (1, ROWS + 1))},
    "moe_unpermute": {"expert_first_token_offset": ((9, 4 * ROWS), (-1, 8, 4 * ROWS + 1))},
    "mla_reduce_v1": {"reduce_indptr": ((2, 4), (1, 5)), "reduce_final_map": ((2, 4), (1, ROWS + 1))},
    "get_mla_metadata_v1": {"seqlens_qo_indptr": ((2, 9), (-1, 1)), "seqlens_kv_indptr": ((2, 9), (-1, 1))},
    "get_pa_metadata_v1": {"seqlens_qo_indptr": ((2, 9), (-1, 1)), "pages_kv_indptr": ((3, 9), (-1, 1, 2)),
                           "context_lens": ((0, 16), (-1, 17))},
    "paged_mqa_logits": {"context_lens": ((0, 16), (-1,))},
    **dict.fromkeys(("moe_sorting", "moe_sorting_fwd", "fused_moe"), {"num_local_tokens": ((0, ROWS), (-1, ROWS + 1))}),
    "flash_attn_with_kvcache: pages": {
        "cache_seqlens": ((1, 32), (-1, 33)), "page_table": ((0,), (-1, 1, 2, 3)), "cache_leftpad": ((0, 21), (-1, 22)),
        "rotary_seqlens": ((0, 19), (-1, 20))},
    "flash_attn_with_kvcache: indices": {"cache_seqlens": ((0, 16), (-1, 17)), "cache_batch_idx": ((1, 2), (-1, 0, 3))},
    "flash_attn_with_kvcache: rotated": {"cache_seqlens": ((0, 9), (-1, 10, 16))},
    "flash_attn_with_kvcache: packed": {name: ((1, 2), (0, 3)) for name in ("cu_seqlens_q", "cu_seqlens_k_new")},
    "verify_tree_greedy": {"retrive_index": ((ROWS - 1, 9, -1), (0, 2)),
                           **{name: ((0, 9), ()) for name in ("candidates", "target_predict")}},
    "tree_speculative_sampling_target_only": {"retrive_index": ((ROWS - 1, 9, -1), (0, 2)), "candidates": ((0, 9), ())},
}
BOUNDLESS = {  # those that are right where they have 32 bits, and beside them those from 0 on that are
    "candidates": FAR[:2], "retrive_index": FAR[:2], "target_predict": FAR[:2],
    "cache_indices": FAR[:2], **dict.fromkeys(
        ("seqlens_qo_indptr", "seqlens_kv_indptr", "pages_kv_indptr"), (INT_MAX,)), "context_lens": (INT_MAX,)}
SLOTS = {"slot_mapping": (-1, PLACES, *FAR)}
EXPERTS = {"topk_ids": (-1, 8, INT_MIN, INT_MAX)}
LEFT_OUT = {  # function → argument: numbers that all mean what the first of them does, as the docstring says
    **dict.fromkeys(("reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla",
                     "indexer_k_quant_and_cache", "reshape_and_cache_with_block_quant",
                     "reshape_and_cache_with_block_quant_for_asm_pa", "reshape_and_cache_with_pertoken_quant",
                     "fused_qk_rope_concat_and_cache_mla", "fused_kv_norm_rope_group_quant",
                     "fused_qk_norm_rope_cache_pts_quant_shuffle", "fused_qk_rope_reshape_and_cache"), SLOTS),
    **dict.fromkeys(("copy_blocks", "swap_blocks"), {"block_mapping": (-1, public_calls.BLOCKS, *FAR)}),
    "cp_gather_indexer_k_quant_cache": {"block_table": (-1, public_calls.BLOCKS, INT_MIN, INT_MAX)},
    **dict.fromkeys(("moe_align_block_size", "moe_permute"), {"topk_ids": (-1, 8, *FAR)}),
    **dict.fromkeys(("moe_sorting", "moe_sorting_fwd", "fused_moe"), EXPERTS),
    **dict.fromkeys(("mla_decode_fwd", "mla_prefill_fwd"), {"kv_indices": (-1, public_calls.BLOCKS, INT_MIN, INT_MAX)}),
    "moe_smoothquant_fwd": {"topk_ids": (-1, 2, INT_MIN, INT_MAX)},
    "moe_unpermute": {"inv_permuted_idx": (-1, 4 * ROWS, INT_MIN, INT_MAX)},
    **dict.fromkeys(("silu_and_mul_bias", "swiglu_and_mul_bias", "gelu_and_mul_bias"),
                    {"expert_ids": (-1, 2, INT_MIN, INT_MAX)}),
    "apply_penalties": {"prompt_tokens": (-1, public_calls.HIDDEN, *FAR),
                        "output_tokens": (-1, public_calls.HIDDEN, *FAR)},
    "causal_conv1d_split_qkv": {"cache_indices": (-1, 2, INT_MIN, INT_MAX)},
    "mla_reduce_v1": {"reduce_partial_map": (-2, 8, INT_MIN, INT_MAX)},
    "paged_mqa_logits": {"block_table": (-1, public_calls.BLOCKS, INT_MIN, INT_MAX)},
    "mqa_logits": {"ends": (-1, 0, INT_MIN), "starts": (ROWS, INT_MAX)},
    "top_k_per_row_prefill": {"rowStarts": (0, -1, INT_MIN), "rowEnds": (public_calls.HIDDEN, 999, INT_MAX)},
    "top_k_per_row_decode": {"seqLens": (public_calls.HIDDEN, 999, INT_MAX)},
    "verify_tree_greedy": {"retrive_next_token": (-1, 1, *FAR), "retrive_next_sibling": (-1, 1, *FAR)},
    "tree_speculative_sampling_target_only": {"retrive_next_token": (-1, 1, *FAR),
                                              "retrive_next_sibling": (-1, 1, *FAR)},
}
DIM, r, i32 = public_calls.DIM, public_calls.r, public_calls.i32
CACHE = {"q": r(2, 1, 2, DIM), "k": r(2, 1, 1, DIM), "v": r(2, 1, 1, DIM), "k_cache": public_calls.pages,
         "v_cache": public_calls.pages, "cache_seqlens": i32(3, 5), "rotary_cos": r(20, DIM // 2),
         "rotary_sin": r(20, DIM // 2)}
FURTHER = {  # arguments that a small call does without
    "flash_attn_with_kvcache: pages": {
        **CACHE, "cache_seqlens": i32(3, 20), "page_table": i32([1, 9], [2, 0]), "cache_leftpad": i32(1, 2),
        "rotary_seqlens": i32(0, 4)},
    "flash_attn_with_kvcache: indices": {**CACHE, "cache_batch_idx": i32(0, 2)},
    "flash_attn_with_kvcache: rotated": {
        **CACHE, **{name: public_calls.pages[:2] for name in ("k_cache", "v_cache")}, "rotary_cos": r(10, DIM // 2),
        "rotary_sin": r(10, DIM // 2)},
    "flash_attn_with_kvcache: packed": {
        **CACHE, **{name: CACHE[name][:, 0] for name in "qkv"}, "cache_batch_idx": i32(0, 2), "max_seqlen_q": 1,
        "cu_seqlens_q": i32(0, 1, 2), "cu_seqlens_k_new": i32(0, 1, 2)},
    "rope_rounded": {"offsets": torch.zeros(ROWS, dtype=torch.int64)},
    "fused_qk_rope_reshape_and_cache": {"offs": torch.zeros(ROWS, dtype=torch.int64)},
    "mha_batch_prefill_func: table": {"block_table": i32([0], [2]), "seqlen_k": i32(2, 9), "kv_indptr": None,
                                      "kv_page_indices": None},
    "flash_attn_func": {"cu_seqlens_q": i32(0, ROWS), "cu_seqlens_kv": i32(0, ROWS)},
    "flash_attn_varlen_func: padded": {"cu_seqlens_q_padded": public_calls.starts},
    "paged_attention: starts": {"cu_seqlens_q": i32(*range(ROWS + 1))},
    "paged_attention_v1: starts": {"cu_query_lens": i32(*range(ROWS + 1))},
    "pa_fwd_asm: starts": {"qo_indptr": i32(*range(ROWS + 1))},
    "moe_unpermute": {"expert_first_token_offset": torch.tensor([0, 9, 4 * ROWS])},
    **dict.fromkeys(("moe_sorting", "moe_sorting_fwd", "fused_moe"), {"num_local_tokens": public_calls.i32(ROWS)}),
    "causal_conv1d_split_qkv": {"cache_indices": i32(1, 0)},
}
VALUES = {  # function → argument: why it may hold any number
    "apply_token_bitmask_inplace": {"bitmask": "its bits mean columns"},
    "dropout_randval": {"rng_state": "any seed is one"},
    "get_mla_metadata_v1": {"kv_last_page_lens": "not read: a plan is of whole pages"},
    "get_ps_metadata_v1": dict.fromkeys(("seqlens_qo_indptr", "pages_kv_indptr", "context_lens"), "not read"),
    **dict.fromkeys(("biased_grouped_topk", "grouped_topk", "moe_fused_gate", "topk_plain"), {"topk_ids": "written"}),
}
WRITTEN = ("out", "topk_indices", "indices", "predicts", "accept_index", "accept_token_num", "sorted_token_ids",
           "experts_ids", "token_nums", "num_tokens_post_pad", "sorted_expert_ids", "num_valid_ids", "work_indptr",
           "work_info", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def arguments_of(name):
    """Those of a small call of a function; behind its name may stand which of its ways is meant."""
    function, args = public_calls.call_of(name.partition(":")[0])
    found = {**inspect.signature(function).bind(*args).arguments, **FURTHER.get(name, {})}
    return function, {key: _copied(value) for key, value in found.items()}


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.contiguous().view(-1).view(torch.uint8)
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def with_last(name, argument, number):
    """A call whose argument's last element is `number`."""
    function, call = arguments_of(name)
    if not INT_MIN <= number <= INT_MAX:
        call[argument] = call[argument].long()
    call[argument].view(-1)[-1] = number
    return function, call


def results(name, argument, number):
    function, call = with_last(name, argument, number)
    returned = function(**call, backend="torch")
    return [each.clone() for each in _tensors((*(value for key, value in call.items() if key != argument), returned))]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    for argument, (inside, outside) in REFUSED[name].items():
        for number in inside:
            function, call = with_last(name, argument, number)
            function(**call, backend="torch")
        far = [each for each in FAR if each not in BOUNDLESS.get(argument, ())]
        for number in (*outside, *far):
            function, call = with_last(name, argument, number)
            before = [each.clone() for each in _tensors(call.values())]
            with pytest.raises((ValueError, TypeError), match=f"^{name.partition(':')[0]}: .*{argument}"):
                function(**call, backend="torch")
            assert all(map(torch.equal, before, _tensors(call.values())))


@pytest.fixture
def memory_begins_alike():
    """Rows that a docstring calls undefined hold what their memory held."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out(name, memory_begins_alike):
    for argument, numbers in LEFT_OUT[name].items():
        wanted = results(name, argument, numbers[0])
        for number in numbers[1:]:
            assert all(map(torch.equal, wanted, results(name, argument, number))), (argument, number)


def test_every_argument_is_known():
    """Each of integers stands in one of the lists, and those in VALUES and WRITTEN take any number indeed."""
    free = {(name, argument) for name, reasons in VALUES.items() for argument in reasons}
    for name in public_calls.public_names():
        limited = [argument for table in (REFUSED, LEFT_OUT, LAST) for argument in table.get(name, ())]
        function, call = arguments_of(name)
        for argument, value in call.items():
            if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64) or (
                    argument in limited):
                continue
            assert argument in WRITTEN or (name, argument) in free, (name, argument)
            free.discard((name, argument))
            given = {"backend": "torch"} if "backend" in inspect.signature(function).parameters else {}
            for number in (-1, INT_MIN, INT_MAX):
                function(**with_last(name, argument, number)[1], **given)
    assert not free, "no arguments of integers, or such as stand in another list, too"


@pytest.mark.parametrize("name", ["rope_cached_positions_offsets_fwd",
                                  "rope_cached_thd_positions_offsets_2c_fwd_inplace"])
def test_sums_of_positions_and_offsets_do_not_wrap(name):
    for dtype, number in ((torch.int32, INT_MIN), (torch.int64, -2**63)):
        function, call = arguments_of(name)
        call.update({each: torch.full_like(call[each], number, dtype=dtype) for each in ("positions", "offsets")})
        with pytest.raises(ValueError, match="positions plus offsets must be rows of the table"):
            function(**call, backend="torch")


def test_masks_have_as_many_experts_as_there_are_matrices():
    function, call = arguments_of("fused_moe")
    for mask in ((1, 1, 1, 1), (0, 1, -2, 7, 0, 1, 0)):
        function(**call, expert_mask=public_calls.i32(*mask), backend="torch")
    for mask in ((), (1, 1, 1), (1, 1, 1, 0), (1, 1, 1, 0, 1, 1), (0,) * 9):
        with pytest.raises(ValueError, match="fused_moe: expert_mask must have 4 elements that are not 0"):
            function(**call, expert_mask=torch.tensor(mask, dtype=torch.int32), backend="torch")


@pytest.mark.parametrize(("name", "argument", "right", "wrong"), [
    ("copy_blocks", "block_mapping", ([0, 1], [0, 2], [3, 3], [9, 1], [0, -1]), ([0, 1], [2, 1])),
    ("copy_blocks", "block_mapping", ([0, 1], [3, 2]), ([0, 1], [1, 2])),
    ("swap_blocks", "block_mapping", ([0, 1], [1, 2], [2, 0]), ([0, 1], [2, 0], [1, 1])),
    ("mla_reduce_v1", "reduce_final_map", ([2, 4], [0, 2]), ([0, 3], [2, 4])),
    ("mla_reduce_v1", "reduce_final_map", ([1, 1], [0, 2]), ([1, 2], [0, 2]))])
def test_what_must_differ(name, argument, right, wrong):
    function, call = arguments_of(name)
    function(**{**call, argument: i32(*right)}, backend="torch")
    before = [each.clone() for each in _tensors(call.values())]
    for dtype in (torch.int32, torch.int64)[:1 + (argument == "block_mapping")]:
        with pytest.raises(ValueError, match=f"^{name}: {argument} must .*, got \\d"):
            function(**{**call, argument: i32(*wrong).to(dtype)}, backend="torch")
    assert all(map(torch.equal, before, _tensors(call.values())))


def test_starts_are_looked_at_in_every_call():
    function, call = arguments_of("causal_conv1d_split_qkv")
    for _ in range(3):
        function(**call, backend="torch")
    call["query_start_loc"][-1] = 99
    with pytest.raises(ValueError, match="query_start_loc must rise"):
        function(**call, backend="torch")


def test_longest_queries_of_plans():
    for name in ("get_mla_metadata_v1", "get_pa_metadata_v1"):
        function, call = arguments_of(name)
        with pytest.raises(ValueError, match=f"{name}: max_seqlen_qo must be at least 4"):
            function(**call, max_seqlen_qo=3, backend="torch")
    function, call = arguments_of("mla_reduce_v1")
    with pytest.raises(ValueError, match="mla_reduce_v1: max_seqlen_q must be at least 2"):
        function(**{**call, "max_seqlen_q": 1}, backend="torch")
