# SPDX-License-Identifier: MIT
"""Latent attention of prompts: over the paged latents, by mla_decode's kernels with whole sequences; and with keys of
192 and values of 128 columns, by unified_attention's.
"""

from __future__ import annotations

from torch import Tensor

from aiter_like import check
from aiter_like.ops.attention.checks import MAX_ROWS
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.ops.common.contents import check_lengths, check_page_list
from aiter_like.ops.mla.checks import check_contents
from aiter_like.ops.mla.mla_decode import mla_decode_fwd

__all__ = ["mla_prefill_fwd", "mla_prefill_ps_asm_fwd", "mla_prefill_ps_fwd"]


def mla_prefill_fwd(
        q: Tensor, kv_buffer: Tensor, o: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
        kv_last_page_lens: Tensor | None, max_seqlen_q: int, sm_scale: float | None = None, logit_cap: float = 0.0,
        num_kv_splits: int | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Multi-head latent attention of whole prompts. Like `mla_decode_fwd`, causal, with one part per sequence: rows
    enough to fill the device come from the prompts.

    Args:
        num_kv_splits: AITER's hint; of no meaning here: keys are not split.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        (`o`, log-sum-exp [total_q, 1, num_heads, 1] fp32, natural logarithm). A row of a sequence without keys is 0 and
        −inf; rows of no sequence, behind qo_indptr's last, are not written, and their log-sum-exps may be anything.
    """
    op = "mla_prefill_fwd"
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "kv_buffer", kv_buffer, rank=4)
    check.integer(op, "max_seqlen_q", max_seqlen_q, low=0, high=MAX_ROWS)
    check_contents(op, q, kv_buffer, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q)
    _, lse = mla_decode_fwd(q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q,
                            max(kv_buffer.shape[1], 1), 1, sm_scale, logit_cap, 1, return_lse=True, backend=backend)
    return o, lse.view(lse.shape[0], 1, lse.shape[1], 1)


def mla_prefill_ps_asm_fwd(
        Q: Tensor, K: Tensor, V: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor,
        work_indptr: Tensor | None, work_info_set: Tensor | None, max_seqlen_q: int, softmax_scale: float,
        is_causal: bool, splitData: Tensor | None, splitLse: Tensor | None, output: Tensor,
        q_scale: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None, *,
        backend: str | None = None) -> None:
    """Attention of prompts with keys of more columns than values, as latent attention has them once it is expanded.

    Args:
        Q: [total_q, num_heads, head_dim] bf16|fp16|fp8, last dimension contiguous; head_dim is 192.
        K: [num_keys, num_kv_heads, head_dim], or pages [num_pages, page_size, num_kv_heads, head_dim]; dtype of `Q`, or
            fp8.
        V: likewise with head_dim_v columns, dtype of `K`; head_dim_v is 128.
        qo_indptr: [batch + 1] int32: sequence i has the rows qo_indptr[i] … qo_indptr[i + 1] − 1 of `Q`.
        kv_indptr, kv_page_indices: [batch + 1] and [entries] int32: its keys (or pages) are
            kv_page_indices[kv_indptr[i] … kv_indptr[i + 1] − 1].
        work_indptr, work_info_set: the plan of `get_ps_metadata_v1`; not read, as the attention has its own.
        max_seqlen_q: not less than the longest sequence of queries.
        softmax_scale: finite, ≥ 1e-8.
        is_causal: query i sees key j iff j ≤ i + keys − queries.
        splitData, splitLse: memory for partial results; left as it is.
        output: [total_q, num_heads, head_dim_v], dtype of `Q` (bf16|fp16 for fp8), written.
        q_scale, k_scale, v_scale: 1 fp32 element each, for fp8; ignored for others. None: 1.
        backend: "triton" or "torch" instead of the automatic choice.

    Notes:
        `unified_attention` over a list of pages. All rows of each sequence are written, 0 for one without keys, and
        `mla_reduce_v1` with the same plan finds nothing to add up; rows of no sequence, behind qo_indptr's last, are
        not written.
    """
    _check_expanded("mla_prefill_ps_asm_fwd", Q, K, V, output)
    _attend_expanded("mla_prefill_ps_asm_fwd", Q, K, V, qo_indptr, kv_indptr, kv_page_indices, max_seqlen_q,
                     softmax_scale, is_causal, output, q_scale, k_scale, v_scale, backend)


def _attend_expanded(op: str, Q: Tensor, K: Tensor, V: Tensor, qo_indptr: Tensor, kv_indptr: Tensor,
                     kv_page_indices: Tensor, max_seqlen_q: int, softmax_scale: float, is_causal: bool, output: Tensor,
                     q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None,
                     backend: str | None) -> None:
    """Serves both functions, with tensors that `_check_expanded` has seen."""
    check.flag(op, "is_causal", is_causal)
    for name, tensor in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr), ("kv_page_indices", kv_page_indices)):
        check.tensor(op, name, tensor, rank=1)
    k, v = (tensor.unsqueeze(1) if tensor.ndim == 3 else tensor for tensor in (K, V))
    check_lengths(op, "qo_indptr", qo_indptr, len(Q), max_seqlen_q, "max_seqlen_q")
    check_page_list(op, kv_indptr, kv_page_indices, None, k, None)
    unified_attention_op.run(
        output, None, q=Q, k=k, v=v, cu_seqlens_q=qo_indptr, seqlens_k=None, block_table=kv_page_indices,
        page_starts=kv_indptr, q_descale=q_scale, k_descale=k_scale, v_descale=v_scale, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=kv_page_indices.shape[0] * k.shape[1], softmax_scale=softmax_scale,
        window_right=0 if is_causal else -1, backend=backend)


def _check_expanded(op: str, Q: Tensor, K: Tensor, V: Tensor, output: Tensor) -> None:
    """Checks what can be told of keys and values before they are pages."""
    check.tensor(op, "Q", Q, rank=3, last_contiguous=False)
    check.tensor(op, "output", output, rank=3, device=Q.device, last_contiguous=False)
    for name, tensor in (("K", K), ("V", V)):
        check.dense(op, name, tensor)
        if tensor.ndim != 3:
            check.tensor(op, name, tensor, rank=4, last_contiguous=False)
        check.tensor(op, name, tensor, shape=(*K.shape[:-1], None), device=Q.device, last_contiguous=False)


unified_attention_op.public.append(mla_prefill_ps_asm_fwd)


def mla_prefill_ps_fwd(
        Q: Tensor, K: Tensor, V: Tensor, output: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor,
        work_indptr: Tensor | None, work_info_set: Tensor | None, max_seqlen_q: int, is_causal: bool,
        reduce_indptr: Tensor | None = None, reduce_final_map: Tensor | None = None,
        reduce_partial_map: Tensor | None = None, softmax_scale: float | None = None, q_scale: Tensor | None = None,
        k_scale: Tensor | None = None, v_scale: Tensor | None = None, *,
        backend: str | None = None) -> tuple[Tensor, None]:
    """Attention of prompts, and the sum of its parts, of which there are none. Like `mla_prefill_ps_asm_fwd` otherwise.

    Args:
        reduce_indptr, reduce_final_map, reduce_partial_map: the plan's; not read.
        softmax_scale: of the scores; None: 1 / sqrt(head_dim_v), as AITER has it.

    Returns:
        (`output`, None): there are no partial log-sum-exps.

    Source: AITER's `aiter.mla.mla_prefill_ps_fwd`.
    """
    _check_expanded("mla_prefill_ps_fwd", Q, K, V, output)
    if softmax_scale is None:
        softmax_scale = max(output.shape[2], 1) ** -0.5
    _attend_expanded("mla_prefill_ps_fwd", Q, K, V, qo_indptr, kv_indptr, kv_page_indices, max_seqlen_q, softmax_scale,
                     is_causal, output, q_scale, k_scale, v_scale, backend)
    return output, None
