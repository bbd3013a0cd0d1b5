# SPDX-License-Identifier: MIT
"""AITER's kernel that adds up the parts of a decode, launched as Triton's are, and its choice between two kernels of
decode. Named by names.txt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.ops.common import elements

_NAME = "_fwd_kernel_stage2_asm"
_INT32, _FP32 = (torch.int32,), (torch.float32,)


@functools.lru_cache
def persistent_mla_decode_max_batch() -> int:
    """The batch from which on AITER would leave its persistent kernel: 0, for none is too large."""
    return 0


def use_persistent_mla_decode(bs: int, nhead: int, max_seqlen_q: int, q_dtype: torch.dtype,
                              kv_dtype: torch.dtype) -> bool:
    """Whether a decode that was given a plan follows it: always; AITER leaves it on gfx950 alone."""
    return True


class StageTwo:
    """`_fwd_kernel_stage2_asm[grid](…)`: `mla_reduce_v1` of parts that lie as AITER's decode writes them."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """The launch; `grid` is [sequences, heads]."""
        return functools.partial(_merge, grid)


def _merge(grid: tuple[int, ...], Mid_O: Tensor, Mid_lse: Tensor, out: Tensor, Final_lse: Tensor | None,
           qo_indptr: Tensor, kv_indptr: Tensor, kv_last_page_lens: Tensor, num_kv_splits_indptr: Tensor,
           valid_split_count: Tensor | None, *strides: int, page_size: int, KV_INDPTR_IS_PAGE_LEVEL: bool,
           MAYBE_FINAL_OUT: bool, HAS_FINAL_LSE: bool, USE_VALID_SPLIT_COUNT_REDUCE: bool, BATCH_NUM: int, Lv: int,
           mgc: int, **of_triton: Any) -> None:
    """Writes `out` and `Final_lse` of tokens that belong to a sequence.

    Args:
        Mid_O, Mid_lse: [tokens, splits, heads, Lv] and [tokens, splits, heads, 1] fp32, dense.
        out: [tokens, heads, Lv] bf16|fp16|fp32.
        Final_lse: [tokens, heads] fp32, where HAS_FINAL_LSE.
        qo_indptr, kv_indptr, num_kv_splits_indptr: [BATCH_NUM + 1] int32: where the tokens, keys (or pages) and splits
            of a sequence begin. A sequence has as many parts as splits, but one for each `mgc` of its keys at most,
            and `valid_split_count` of them at most where that is used; without parts its results are zeros.
        strides: of `Mid_lse` and `out`, in AITER's order.
        MAYBE_FINAL_OUT: where no sequence has two splits, `Mid_O` has the results themselves, in the dtype of `out`; to
            know, the host waits.
        of_triton: BLOCK_DV and options of a launch, of no meaning.
    """
    tokens, splits, heads = _check(Mid_O, Mid_lse, out, strides, Lv)
    for name, tensor, size, is_used in (
            ("qo_indptr", qo_indptr, BATCH_NUM + 1, True), ("kv_indptr", kv_indptr, BATCH_NUM + 1, True),
            ("num_kv_splits_indptr", num_kv_splits_indptr, BATCH_NUM + 1, True),
            ("kv_last_page_lens", kv_last_page_lens, BATCH_NUM, KV_INDPTR_IS_PAGE_LEVEL),
            ("valid_split_count", valid_split_count, BATCH_NUM, USE_VALID_SPLIT_COUNT_REDUCE)):
        if is_used:
            check.tensor(_NAME, name, tensor, dtypes=_INT32, shape=(size,), device=out.device)
    if tuple(grid[:2]) != (BATCH_NUM, heads):
        raise ValueError(f"{_NAME}: the grid must be {(BATCH_NUM, heads)}, got {tuple(grid)}")
    lengths = kv_indptr.diff()
    if KV_INDPTR_IS_PAGE_LEVEL:
        lengths = (lengths - 1) * page_size + kv_last_page_lens
    parts = num_kv_splits_indptr.diff().minimum((lengths + mgc - 1) // mgc)
    if USE_VALID_SPLIT_COUNT_REDUCE:
        parts = parts.minimum(valid_split_count)
    if HAS_FINAL_LSE:
        check.tensor(_NAME, "Final_lse", Final_lse, dtypes=_FP32, shape=(tokens, heads), device=out.device)
    if not tokens or not BATCH_NUM:
        return
    token = torch.arange(tokens, dtype=torch.int32, device=out.device)
    sequence = torch.searchsorted(qo_indptr, token, right=True) - 1
    is_there = (sequence >= 0) & (sequence < BATCH_NUM)
    if MAYBE_FINAL_OUT and int(num_kv_splits_indptr[BATCH_NUM]) == BATCH_NUM:
        results = Mid_O.flatten().view(out.dtype)[:out.numel()].view(out.shape)
        out.copy_(torch.where(is_there[:, None, None], results, out))
        return
    split = torch.arange(splits, dtype=torch.int32, device=out.device)
    count = torch.where(is_there, parts[sequence.clamp(0, BATCH_NUM - 1)], 0)
    places = torch.where(split < count[:, None], token[:, None] * splits + split, -1)
    rows = torch.stack((token, token + is_there), 1).int()  # a token of no sequence is no row
    aiter_like.mla_reduce_v1(
        Mid_O.view(tokens * splits, heads, Lv), Mid_lse.view(tokens * splits, heads),
        torch.arange(tokens + 1, dtype=torch.int32, device=out.device) * splits, rows, places.flatten(), 1, splits, out,
        Final_lse if HAS_FINAL_LSE else None)


def _check(parts: Tensor, sums: Tensor, out: Tensor, strides: tuple[int, ...], width: int) -> tuple[int, int, int]:
    """(tokens, splits, heads) of tensors that lie as AITER's decode leaves them."""
    check.tensor(_NAME, "Mid_O", parts, rank=4, dtypes=_FP32)
    tokens, splits, heads, _ = parts.shape
    check.tensor(_NAME, "Mid_O", parts, shape=(tokens, splits, heads, width))
    check.tensor(_NAME, "Mid_lse", sums, dtypes=_FP32, shape=(tokens, splits, heads, 1), device=parts.device)
    check.tensor(_NAME, "O", out, dtypes=elements.FLOATS, shape=(tokens, heads, width), device=parts.device)
    if not parts.is_contiguous() or not sums.is_contiguous():
        raise ValueError(f"{_NAME}: Mid_O and Mid_lse must be contiguous, got strides {parts.stride()} and "
                         f"{sums.stride()}")
    wanted = (sums.stride(0), sums.stride(2), sums.stride(1), out.stride(0), out.stride(1))
    if strides[:5] != wanted or len(strides) != 6:
        raise ValueError(f"{_NAME}: strides must be {wanted}, those of Mid_lse and O, and that of Final_lse, got "
                         f"{strides}")
    return tokens, splits, heads


stage_two = StageTwo()
