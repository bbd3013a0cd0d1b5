# SPDX-License-Identifier: MIT
"""The call object of mla_decode, and what it says about a call."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like.dispatch import STRIDED
from aiter_like.ops.attention.call import FLOATS, FP8
from aiter_like.ops.mla import plan
from aiter_like.ops.mla.mla_metadata import MlaMetadataCall
from aiter_like.ops.mla.mla_reduce import MlaReduceCall


class MlaDecodeCall(NamedTuple):
    """One call of mla_decode: its arguments in the order of the function that mla_decode.hip exports.

    Attributes:
        partial_out, partial_lse: memory for the results of parts, as of MlaReduceCall.
        work_indptr … reduce_partial_map: the plan, as of MlaMetadataCall; memory for one unless `is_planned`.
        kv: latents and their rotated parts; the first columns, as many as `out` has, are the values too.
        qo_indptr: where the rows of a sequence begin; kv_indptr: where its pages begin in `kv_indices`.
        kv_last_page_lens: [batch], keys in a sequence's last page; None: all.
        q_scale, kv_scale: one number, of fp8.
        g_kv_indptr: like kv_indptr of pages of 1, but of all ranks together; None: one rank has all.
        num_kv_splits: 0, or parts of each sequence.
        cp_world_size, cp_rank: key j here is key j · cp_world_size + cp_rank of the sequence, with g_kv_indptr.
    """

    out: Annotated[Tensor, "total_q heads columns"]
    lse: Annotated[Tensor | None, "total_q heads", torch.float32, STRIDED]
    partial_out: Annotated[Tensor, "rows heads columns", torch.float32]
    partial_lse: Annotated[Tensor, "rows heads", torch.float32]
    work_indptr: Annotated[Tensor, "parts+1", torch.int32]
    work_info: Annotated[Tensor, "items 8", torch.int32]
    reduce_indptr: Annotated[Tensor, "tiles+1", torch.int32]
    reduce_final_map: Annotated[Tensor, "tiles 2", torch.int32]
    reduce_partial_map: Annotated[Tensor, "slots", torch.int32]
    q: Annotated[Tensor, "total_q heads dim", (*FLOATS, *FP8)]
    kv: Annotated[Tensor, "pages page_size 1 dim", (*FLOATS, *FP8)]
    qo_indptr: Annotated[Tensor, "batch+1", torch.int32]
    kv_indptr: Annotated[Tensor, "batch+1", torch.int32]
    kv_indices: Annotated[Tensor, "entries", torch.int32]
    kv_last_page_lens: Annotated[Tensor | None, "batch", torch.int32] = None
    q_scale: Annotated[Tensor | None, "*q_scale", torch.float32] = None
    kv_scale: Annotated[Tensor | None, "*kv_scale", torch.float32] = None
    g_kv_indptr: Annotated[Tensor | None, "batch+1", torch.int32] = None
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
        """Features that a kernel must have besides lengths and lse: short names, sorted."""
        found = {"cp": self.g_kv_indptr is not None, "full": not self.causal, "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)
