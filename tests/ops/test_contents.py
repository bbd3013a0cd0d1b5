# SPDX-License-Identifier: MIT
"""What tensors of lengths, starts and pages hold, on both sides of every bound: an error in the called function's words
before anything is written, in every entry of paged attention alike.
"""

import inspect

import public_calls
import pytest
import torch

import aiter_like

INT_MIN = -2**31
LAST = {  # function → its arguments whose last number counts, and the numbers around what each accepts
    "paged_attention": {"block_table": (-1, 3), "seq_lens": (-1, 17)},
    "cascade_attention": {"block_table": (-1, 3), "seq_lens": (-1, 17)},
    "paged_attention_v1": {"block_tables": (-1, 3), "context_lens": (-1, 17)},
    "paged_attention_ragged": {"kv_indptr": (-1, 4, 7), "kv_page_indices": (-1, 3), "kv_last_page_lens": (-1, 17)},
    "paged_attention_decode": {"block_tables": (-1, 3), "seq_lens": (-1, 17)},
    "paged_attention_rocm": {"block_tables": (-1, 3), "context_lens": (-1, 17)},
    "pa_fwd_asm": {"block_tables": (-1, 3), "context_lens": (-1, 17)},
    "paged_attention_common": {"block_tables": (-1, 3), "context_lens": (-1, 17)},
    "mha_batch_prefill_func": {"cu_seqlens_q": (1, 7), "kv_indptr": (0, 3), "kv_page_indices": (-1, 3)},
    "unified_attention": {"block_table": (-1, 3), "seqused_k": (-1, 17), "cu_seqlens_q": (1, 7)},
    "mla_decode_fwd": {"qo_indptr": (1, 7), "kv_indptr": (1, 4), "kv_last_page_lens": (-1, 17)},
    "mla_prefill_fwd": {"qo_indptr": (1, 7), "kv_indptr": (1, 4), "kv_last_page_lens": (-1, 17)},
    "mla_prefill_ps_fwd": {"qo_indptr": (1, 7), "kv_page_indices": (-1, 6)},
}


def arguments_of(name):
    function, args = public_calls.call_of(name)
    found = inspect.signature(function).bind(*args).arguments
    if name == "paged_attention_common":
        found["max_seq_len"] = public_calls.PAGE
    return function, {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in found.items()}


@pytest.mark.parametrize("name", LAST)
def test_contents(name):
    for argument, numbers in LAST[name].items():
        for number in (numbers[-2] + 1, numbers[-1] - 1):  # the last that are right
            function, call = arguments_of(name)
            call[argument].view(-1)[-1] = number
            function(**call, backend="torch")
        for number in (*numbers, INT_MIN, 2**32, 2**32 + 1):
            function, call = arguments_of(name)
            call[argument] = call[argument].long() if number >= 2**31 else call[argument]
            call[argument].view(-1)[-1] = number
            before = {key: value.clone() for key, value in call.items() if isinstance(value, torch.Tensor)}
            with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
                function(**call, backend="torch")
            assert all(torch.equal(value.view(torch.uint8), call[key].view(torch.uint8))
                       for key, value in before.items() if value.numel())


@pytest.mark.parametrize("name", ["mla_decode_fwd", "mla_prefill_fwd", "mla_prefill_ps_fwd"])
def test_longest_sequence_of_queries(name):
    function, call = arguments_of(name)
    call["max_seqlen_q"] = 3  # the second sequence has 4
    with pytest.raises(ValueError, match=f"^{name}: max_seqlen_q must be at least 4, the longest"):
        function(**call, backend="torch")


def test_pages_of_64_bits():
    """What the modulus of 2^32 makes a page is none."""
    function, call = arguments_of("paged_attention_decode")
    wanted = call["output"].clone()
    aiter_like.paged_attention_decode(**{**call, "output": wanted, "block_tables": call["block_tables"].long()})
    function(**call)
    assert torch.equal(wanted, call["output"])
