# SPDX-License-Identifier: MIT
"""The call object of mla_decode, and what it says about a call."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from aiter_like.ops.mla import plan
from aiter_like.ops.mla.mla_metadata import MlaMetadataCall
from aiter_like.ops.mla.mla_reduce import MlaReduceCall


class MlaDecodeCall(NamedTuple):
    """One call of mla_decode: its arguments in the order of the function that mla_decode.hip exports.

    Attributes:
        out: [total_q, num_heads, v_dim], written; `lse` [total_q, num_heads] fp32 too, or None.
        partial_out, partial_lse: memory for the results of parts, as of MlaReduceCall.
        work_indptr … reduce_partial_map: the plan, as of MlaMetadataCall; memory for one unless `is_planned`.
        q: [total_q, num_heads, dim]; kv [num_pages, page_size, 1, dim], whose first v_dim columns are the values too.
        qo_indptr: [batch + 1], where the rows of a sequence begin; kv_indptr [batch + 1], where its pages begin in
            `kv_indices`.
        kv_last_page_lens: [batch], keys in a sequence's last page; None: all.
        q_scale, kv_scale: fp32 [1], of fp8.
        g_kv_indptr: [batch + 1], like kv_indptr of pages of 1, but of all ranks together; None: one rank has all.
        num_kv_splits: 0, or parts of each sequence.
        cp_world_size, cp_rank: key j here is key j · cp_world_size + cp_rank of the sequence, with g_kv_indptr.
    """

    out: Tensor
    lse: Tensor | None
    partial_out: Tensor
    partial_lse: Tensor
    work_indptr: Tensor
    work_info: Tensor
    reduce_indptr: Tensor
    reduce_final_map: Tensor
    reduce_partial_map: Tensor
    q: Tensor
    kv: Tensor
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_last_page_lens: Tensor | None = None
    q_scale: Tensor | None = None
    kv_scale: Tensor | None = None
    g_kv_indptr: Tensor | None = None
    is_planned: bool = False
    max_seqlen_q: int = 1
    num_kv_splits: int = 0
    softmax_scale: float = 1.0
    softcap: float = 0.0
    causal: bool = True
    cp_world_size: int = 1
    cp_rank: int = 0

    @property
    def batch(self) -> int:
        return self.qo_indptr.shape[0] - 1

    @property
    def page_size(self) -> int:
        return self.kv.shape[1]

    @property
    def has_parts(self) -> bool:
        """Whether there can be sequences of more than one part."""
        return self.is_planned or self.num_kv_splits != 1 and self.work_indptr.shape[0] > 2

    @property
    def plan(self) -> MlaMetadataCall:
        """The call that writes the plan."""
        return MlaMetadataCall(
            *self[4:9], self.qo_indptr, self.kv_indptr, num_entries=self.kv_indices.shape[0], total_q=self.q.shape[0],
            max_seqlen_q=self.max_seqlen_q, block_pages=plan.block_pages_of(self.page_size),
            num_kv_splits=self.num_kv_splits, is_even=self.num_kv_splits > 0)

    @property
    def sum(self) -> MlaReduceCall:
        """The call that adds up the parts."""
        return MlaReduceCall(*self[:4], *self[6:9], self.max_seqlen_q)

    @property
    def features(self) -> tuple[str, ...]:
        """What a kernel must have besides lengths and lse, by short names, sorted."""
        found = {"cp": self.g_kv_indptr is not None, "full": not self.causal, "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)
