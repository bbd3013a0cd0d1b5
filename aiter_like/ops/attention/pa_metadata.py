# SPDX-License-Identifier: MIT
"""AITER's plan of decoding over listed pages: which part of a persistent launch takes which pages. paged_attention
plans by itself and reads none; the plan is for callers that look at it, and for kernels of their own.

Kernels: csrc/attention/pa_metadata.hip, ops/attention/triton/pa_metadata.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import default_target
from aiter_like.dispatch import Backend, Op
from aiter_like.dispatch.addresses import refuse_overlap
from aiter_like.dtypes import viewed
from aiter_like.errors import UnsupportedError
from aiter_like.jit import compile_ops
from aiter_like.ops.common import contents, plans

__all__ = ["get_pa_metadata_info_v1", "get_pa_metadata_v1"]

_OP = "pa_metadata"
_MOST_HEADS = 2**15 - 1  # numbers of heads have 16 bits, signed in the upper half


class PaMetadataCall(NamedTuple):
    """One call of pa_metadata: its arguments in the order of the function that pa_metadata.hip exports. All int32.

    Attributes:
        work_indptr … reduce_partial_map: as of `get_pa_metadata_v1`, which says what they hold.
        qo_indptr: where the rows of a sequence begin; `kv_indptr`: where its pages do.
        context_lens: [batch], its keys.
        num_heads_k: heads of the keys, each of which has as many parts; `group`: heads of q for each of them.
        page_size: keys of a page; `block_pages`: pages of a block, which no part cuts.
        num_parts: parts in use, at most; a multiple of num_heads_k.
        max_seqlen_q: rows of a sequence, at most.
    """

    work_indptr: Annotated[Tensor, "parts+1", torch.int32]
    work_info: Annotated[Tensor, "items 8", torch.int32]
    reduce_indptr: Annotated[Tensor, "groups+1", torch.int32]
    reduce_final_map: Annotated[Tensor, "groups 2", torch.int32]
    reduce_partial_map: Annotated[Tensor, "slots", torch.int32]
    qo_indptr: Annotated[Tensor, "batch+1", torch.int32]
    kv_indptr: Annotated[Tensor, "batch+1", torch.int32]
    context_lens: Annotated[Tensor, "batch", torch.int32]
    num_heads_k: int = 1
    group: int = 1
    page_size: int = 16
    block_pages: int = 1
    num_parts: int = 1
    max_seqlen_q: int = 2**30

    @property
    def batch(self) -> int:
        return max(self.qo_indptr.shape[0] - 1, 0)


@compile_ops("attention/pa_metadata.hip")
def _pa_metadata_hip(call: PaMetadataCall) -> None: ...


def _sequences(call: PaMetadataCall) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first page, pages) of each sequence, on the host."""
    rows, pages, found = call.qo_indptr.tolist(), call.kv_indptr.tolist(), []
    for index, keys in enumerate(call.context_lens.tolist()):
        first, begin = max(rows[index], 0), max(pages[index], 0)
        count = min(-(-max(keys, 0) // call.page_size), max(pages[index + 1] - begin, 0))
        found.append((first, min(max(rows[index + 1] - first, 0), call.max_seqlen_q), begin, count))
    return found


def pa_metadata_ref(call: PaMetadataCall) -> None:
    """The plan in Python, sequence by sequence; reads the lengths on the host."""
    sequences = _sequences(call)
    parts_of_head = call.num_parts // call.num_heads_k
    blocks = [-(-pages // call.block_pages) if rows else 0 for _, rows, _, pages in sequences]
    share, rest = divmod(sum(blocks), parts_of_head)
    edges = [part * share + min(part, rest) for part in range(parts_of_head + 1)]
    items, slots, groups, tiles = [[] for _ in range(parts_of_head)], [], [], [0]
    line, part, place = 0, 0, 0
    for index, ((first_row, rows, first_page, pages), count) in enumerate(zip(sequences, blocks)):
        pieces = []
        while True:
            while count and edges[part + 1] <= line:
                part += 1
            low = pieces[-1][2] if pieces else 0
            high = min(low + edges[part + 1] - line, count)
            pieces.append((part, low, high))
            line += high - low
            if high == count:
                break
        for nth, (own, low, high) in enumerate(pieces):
            items[own].append([index, place + nth * rows if len(pieces) > 1 else -1, first_row, first_row + rows,
                               first_page + min(low * call.block_pages, pages),
                               first_page + min(high * call.block_pages, pages), 0])
        if len(pieces) > 1:
            slots += [place + nth * rows for nth in range(len(pieces))]
            place += len(pieces) * rows
            groups.append([first_row, first_row + rows])
            tiles.append(len(slots))
    heads = [head * call.group | (head + 1) * call.group << 16 for head in range(call.num_heads_k)]
    plans.write(call, [[[*item, own] for item in part] for own in heads for part in items], tiles, groups, slots)


def _check(call: PaMetadataCall) -> None:
    plans.check_plan(_OP, call)
    check.tensor(_OP, "context_lens", call.context_lens, shape=(call.batch,))
    parts = call.work_indptr.shape[0] - 1
    for name, high in (("page_size", 2**30), ("block_pages", 2**30), ("max_seqlen_q", 2**30),
                       ("num_heads_k", parts), ("group", _MOST_HEADS), ("num_parts", parts)):
        check.integer(_OP, name, getattr(call, name), low=1, high=high)
    check.integer(_OP, "num_heads_k · group", call.num_heads_k * call.group, low=1, high=_MOST_HEADS)
    if call.num_parts % call.num_heads_k:
        raise ValueError(f"{_OP}: num_parts must be a multiple of num_heads_k, got {call.num_parts} and "
                         f"{call.num_heads_k}")


def _case(device: torch.device, lengths: list[tuple[int, int]], parts: int, heads: int = 1,
          **options: int) -> PaMetadataCall:
    """Sequences of (rows, keys)."""
    batch, size = len(lengths), options.get("page_size", 16)
    return PaMetadataCall(*plans.zeros(device, parts, (batch + parts) * heads, batch, batch + parts),
                          plans.starts(device, [rows for rows, _ in lengths]),
                          plans.starts(device, [-(-keys // size) for _, keys in lengths]),
                          torch.tensor([keys for _, keys in lengths], dtype=torch.int32, device=device),
                          num_heads_k=heads, num_parts=parts // heads * heads, **options)


def _cases(device: torch.device) -> dict[str, PaMetadataCall]:
    """Ragged lengths with empty sequences, of several heads; fewer blocks than parts; blocks of pages."""
    ragged = [(1, 900), (2, 0), (0, 70), (4, 64), (1, 1), (3, 3000)]
    return {"ragged": _case(device, ragged, 7, 2, group=5), "few blocks": _case(device, [(1, 40), (1, 20)], 16),
            "blocks of pages": _case(device, ragged, 5, page_size=4, block_pages=8)}


pa_metadata_op = Op(
    _OP, call=PaMetadataCall, reference=pa_metadata_ref, check=_check, cases=_cases, writes=plans.FIELDS,
    backends=(Backend("hip", _pa_metadata_hip, refusal=plans.refusal),
              Backend("triton", "ops.attention.triton.pa_metadata:pa_metadata", refusal=plans.refusal),
              Backend("torch", pa_metadata_ref)))


def get_pa_metadata_info_v1(batch_size: int,
                            num_head_k: int = 1) -> tuple[tuple[int | tuple[int, int], torch.dtype], ...]:
    """Shapes and dtypes of the tensors that `get_pa_metadata_v1` writes.

    Args:
        batch_size: sequences, at most.
        num_head_k: heads of the keys.

    Returns:
        Six pairs of shape and dtype: work_metadata_ptrs (2, uint64), work_indptr (CUs + 1, int32), work_info
        ((items, 8), int32), reduce_indptr (batch_size + 1, int32), reduce_final_map ((batch_size, 2), int32) and
        reduce_partial_map (slots, int32).

    Notes:
        Sizes follow from the current device's CUs and hold for all lengths, so a captured graph can keep the tensors.
    """
    op = "get_pa_metadata_info_v1"
    check.integer(op, "batch_size", batch_size, low=0)
    check.integer(op, "num_head_k", num_head_k, low=1)
    parts = default_target().cu_num
    items = batch_size + parts - 1
    return plans.info(parts, items * num_head_k, batch_size, min(items, 2 * (parts - 1)))


def _check_contents(op: str, rows: Tensor, pages: Tensor, lengths: Tensor, page_size: int, longest: int | None) -> None:
    """Starts and lengths that can be looked at without waiting are in order and fit one another."""
    contents.check_lengths(op, "seqlens_qo_indptr", rows, check.INT32_MAX, longest, "max_seqlen_qo")
    contents.check_starts(op, "pages_kv_indptr", pages, check.INT32_MAX, "pages")
    contents.check_values(op, "context_lens", lengths, 0, check.INT32_MAX, "hold lengths")
    if contents.are_on_host(pages, lengths) and (lengths > pages.diff().long() * page_size).any():
        raise ValueError(f"{op}: context_lens must be at most the keys of the pages that pages_kv_indptr tells, got "
                         f"{lengths.tolist()[:12]}")


def get_pa_metadata_v1(
        seqlens_qo_indptr: Tensor, pages_kv_indptr: Tensor, context_lens: Tensor, num_heads_per_head_k: int,
        num_heads_k: int, is_causal: bool, work_metadata_ptrs: Tensor, work_indptr: Tensor, work_info: Tensor,
        reduce_indptr: Tensor, reduce_final_map: Tensor, reduce_partial_map: Tensor, kv_granularity: int = 16,
        block_size: int = 16, max_seqlen_qo: int = -1, uni_seqlen_qo: int = -1, fast_mode: bool = True, topk: int = -1,
        max_split_per_batch: int = -1, *, backend: str | None = None) -> None:
    """Plans decoding over listed pages from lengths on the device: which part of a launch takes which pages.

    Args:
        seqlens_qo_indptr: [batch + 1] int32, where the query tokens of a sequence begin.
        pages_kv_indptr: [≥ batch + 1] int32, where its pages begin in the list of pages.
        context_lens: [≥ batch] int32, its keys.
        num_heads_per_head_k, num_heads_k: heads of q for each head of the keys, and of these, as many as parts at most.
        work_metadata_ptrs: [2] uint64, written: zeros, as no kernel here reads addresses from memory.
        work_indptr: [parts + 1] int32, written: part p has the items work_indptr[p] … work_indptr[p + 1] − 1; each
            head of the keys has parts of its own, one head's after the other's.
        work_info: [items, 8] int32, written: sequence, first row of its partial result or −1 where it has but one
            piece, first query token and the one behind its last, first place in the list of pages and the one behind
            its last, 0, first head of q and, 16 bits further, the one behind its last.
        reduce_indptr: [batch + 1] int32, written: where the entries of each sequence with several pieces begin in
            `reduce_partial_map`; behind them the number of all entries.
        reduce_final_map: [batch, 2] int32, written for those sequences: first query token, and the one behind its last.
        reduce_partial_map: [slots] int32, written for their pieces: first rows of partial results, of all heads.
        kv_granularity, block_size: keys of which a piece is a multiple, and those of a page, which divide them.
        max_seqlen_qo: query tokens of a sequence, at most; below 1: unknown.
        is_causal, uni_seqlen_qo, fast_mode: of no meaning: the last query token of a sequence sees all its keys.
        topk: -1.
        max_split_per_batch: parts for each sequence, at most; below 1: as many as work_indptr has.

    Notes:
        The sequences' keys are laid on a line, in blocks of kv_granularity, and the line is cut into parts that differ
        by a block at most. No synchronisation. Tensors of the sizes that `get_pa_metadata_info_v1` gives are large
        enough for all lengths; what would lie outside others is left out. Rows of a sequence are not cut, which AITER
        does where there are more than 128 of a head of the keys.
    """
    op = "get_pa_metadata_v1"
    if topk != -1:
        raise UnsupportedError(f"{op}: no backend supports topk {topk}; pages are those of the list", op,
                               {"topk": str(topk)})
    for name, value, low in (("kv_granularity", kv_granularity, 1), ("block_size", block_size, 1),
                             ("max_seqlen_qo", max_seqlen_qo, -2**31), ("num_heads_k", num_heads_k, 1),
                             ("max_split_per_batch", max_split_per_batch, -2**31)):
        check.integer(op, name, value, low=low)
    check.integer(op, "num_heads_per_head_k", num_heads_per_head_k, low=1, high=_MOST_HEADS)
    check.integer(op, "num_heads_k · num_heads_per_head_k", num_heads_k * num_heads_per_head_k, low=1,
                  high=_MOST_HEADS)
    if kv_granularity % block_size:
        raise ValueError(f"{op}: kv_granularity must be a multiple of block_size {block_size}, got {kv_granularity}")
    check.tensor(op, "work_metadata_ptrs", work_metadata_ptrs, dtypes=(torch.uint64,), shape=(2,))
    for name, tensor in (("seqlens_qo_indptr", seqlens_qo_indptr), ("pages_kv_indptr", pages_kv_indptr),
                         ("context_lens", context_lens), ("work_indptr", work_indptr)):
        check.tensor(op, name, tensor, rank=1, dtypes=(torch.int32,), device=work_info.device)
    starts = len(seqlens_qo_indptr)
    for name, tensor, least in (("pages_kv_indptr", pages_kv_indptr, starts),
                                ("context_lens", context_lens, starts - 1)):
        if len(tensor) < least:  # checked here, since the operator is given a part of it
            raise ValueError(f"{op}: {name} must have at least {least} elements, got {len(tensor)}")
    _check_contents(op, seqlens_qo_indptr, pages_kv_indptr[:starts], context_lens[:max(starts - 1, 0)], block_size,
                    max_seqlen_qo if max_seqlen_qo > 0 else None)
    refuse_overlap(op, "work_metadata_ptrs", work_metadata_ptrs, work_indptr=work_indptr, work_info=work_info,
                   reduce_indptr=reduce_indptr, reduce_final_map=reduce_final_map,
                   reduce_partial_map=reduce_partial_map)
    parts = len(work_indptr) - 1
    if max_split_per_batch > 0:
        parts = min(parts, max(max_split_per_batch * (starts - 1), num_heads_k))
    if parts < num_heads_k:
        raise ValueError(f"{op}: work_indptr must have a part for each of {num_heads_k} heads of the keys, got {parts}")
    pa_metadata_op.run(
        work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map, qo_indptr=seqlens_qo_indptr,
        kv_indptr=pages_kv_indptr[:starts], context_lens=context_lens[:max(starts - 1, 0)], num_heads_k=num_heads_k,
        group=num_heads_per_head_k, page_size=block_size, block_pages=kv_granularity // block_size,
        num_parts=parts // num_heads_k * num_heads_k, max_seqlen_q=max_seqlen_qo if max_seqlen_qo > 0 else 2**30,
        backend=backend)
    viewed(work_metadata_ptrs, torch.int64).zero_()


pa_metadata_op.public.append(get_pa_metadata_v1)
