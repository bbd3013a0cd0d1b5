# SPDX-License-Identifier: MIT
"""The plan of latent attention, AITER's persistent-work metadata: which part of a launch takes which pages.

Kernels: csrc/mla/mla_metadata.hip, ops/mla/triton/mla_metadata.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import default_target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.addresses import refuse_overlap
from aiter_like.errors import UnsupportedError
from aiter_like.jit import compile_ops
from aiter_like.ops.common import plans
from aiter_like.ops.common.contents import check_lengths, check_starts
from aiter_like.ops.mla import plan

__all__ = ["get_mla_metadata_info_v1", "get_mla_metadata_v1", "get_ps_metadata_info_v1", "get_ps_metadata_v1"]

_OP = "mla_metadata"
_ANY = 2**30  # stands for a count that nobody knows


class MlaMetadataCall(NamedTuple):
    """One call of mla_metadata: its arguments in the order of the function that mla_metadata.hip exports. All int32.

    Attributes:
        work_indptr … reduce_partial_map: as of `get_mla_metadata_v1`, which says what they hold.
        qo_indptr: where the rows of a sequence begin; `kv_indptr`: where its pages do.
        num_entries: pages in the list; `total_q`: rows of q.
        max_seqlen_q: rows of a sequence, at most.
        block_pages: pages of a block; `least_blocks`: blocks of a part, `overhead`: what a sequence costs besides.
        num_kv_splits: 0, or parts of a sequence, at most; `is_even`: of each sequence, all equally long.
        topk: −1, or each token is a sequence of at most so many of its sequence's pages, in a list of [tokens, topk].
    """

    work_indptr: Annotated[Tensor, "parts+1", torch.int32]
    work_info: Annotated[Tensor, "items 8", torch.int32]
    reduce_indptr: Annotated[Tensor, "sequences+1", torch.int32]
    reduce_final_map: Annotated[Tensor, "sequences 2", torch.int32]
    reduce_partial_map: Annotated[Tensor, "slots", torch.int32]
    qo_indptr: Annotated[Tensor, "batch+1", torch.int32]
    kv_indptr: Annotated[Tensor, "batch+1", torch.int32]
    num_entries: int = _ANY
    total_q: int = _ANY
    max_seqlen_q: int = _ANY
    block_pages: int = plan.BLOCK_KEYS
    least_blocks: int = plan.LEAST_BLOCKS
    overhead: int = plan.OVERHEAD
    num_kv_splits: int = 0
    is_even: bool = False
    topk: int = -1


@compile_ops("mla/mla_metadata.hip")
def _mla_metadata_hip(call: MlaMetadataCall) -> None: ...


def _sequences(call: MlaMetadataCall) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first page, pages) of each sequence, on the host."""
    starts = call.qo_indptr.long().clamp(0, call.total_q).tolist()
    pages = call.kv_indptr.long().clamp(0, call.num_entries).tolist()
    counts = [max(end - start, 0) for start, end in zip(pages, pages[1:])]
    if call.topk < 0:
        rows = [min(max(end - start, 0), call.max_seqlen_q) for start, end in zip(starts, starts[1:])]
        return list(zip(starts, rows, pages, counts))
    tokens = _tokens_of(call)
    return [(index, 1, index * call.topk, min(counts[index // tokens], call.topk))
            for index in range(min(len(counts) * tokens, call.total_q))]


def _tokens_of(call: MlaMetadataCall) -> int:
    """Sequences of the plan for each one of the lengths."""
    if call.topk < 0:
        return 1
    start, end = call.qo_indptr[:2].clamp(0, call.total_q).tolist()
    return max(end - start, 1)


def mla_metadata_ref(call: MlaMetadataCall) -> None:
    """The plan in Python, sequence by sequence; reads the lengths on the host."""
    sequences, num_parts, tokens = _sequences(call), len(call.work_indptr) - 1, _tokens_of(call)
    blocks = [max(-(-pages // call.block_pages), 1) if rows else 0 for _, rows, _, pages in sequences]
    total = sum(count + call.overhead for count in blocks if count)
    share = max(-(-total // num_parts), call.least_blocks, 1)
    if call.num_kv_splits:
        share = max(share, -(-max(blocks, default=0) // call.num_kv_splits))
    sizes = [count + call.overhead if count else 0 for count in blocks]
    shares = () if call.is_even else (share, share + share // 16, share + share // 8)
    whole = next((one for one in shares if sum(-(-size // one) for size in sizes) <= num_parts), 0)
    if whole:  # parts a little longer, each of one sequence only: fewer rows to add up
        share, sizes = whole, [-(-size // whole) * whole for size in sizes]
    items, slots, tiles, line, place = [[] for _ in range(num_parts)], [], [0], 0, 0
    for index, ((first_row, rows, first_page, pages), count, size) in enumerate(zip(sequences, blocks, sizes)):
        chunk = max(-(-count // call.num_kv_splits), 1) if call.is_even else share
        origin, part = (0, index * call.num_kv_splits) if call.is_even else (line % share, line // share)
        pieces = -(-(origin + count) // chunk) if count else 0
        for nth in range(pieces):
            low, high = (min(max(edge * chunk - origin, 0), count) * call.block_pages for edge in (nth, nth + 1))
            end = first_page + min(high, pages)
            items[part + nth].append([index // tokens, place if pieces > 1 else -1, first_row, first_row + rows,
                                      first_page + min(low, pages), end, first_page + pages - end, 0])
            if pieces > 1:
                slots.append(place)
                place += rows
        tiles.append(len(slots))
        line += size
    call.reduce_final_map.zero_()
    plans.write(call, items, tiles, [[row, row + rows] for row, rows, *_ in sequences], slots)


def _check(call: MlaMetadataCall) -> object:
    plans.check_plan(_OP, call)
    for name, low in (("num_entries", 0), ("total_q", 0), ("max_seqlen_q", 0), ("block_pages", 1), ("least_blocks", 1),
                      ("overhead", 0), ("num_kv_splits", 0), ("topk", -1)):
        check.integer(_OP, name, getattr(call, name), low=low)
    batch, parts = call.qo_indptr.shape[0] - 1, call.work_indptr.shape[0] - 1
    if call.is_even and (call.num_kv_splits < 1 or parts < batch * call.num_kv_splits):
        raise ValueError(f"{_OP}: with is_even, work_indptr must have num_kv_splits parts for each of {batch} "
                         f"sequences, got {parts} parts and num_kv_splits {call.num_kv_splits}")
    return SKIP if batch == 0 else None


def _case(device: torch.device, lengths: list[tuple[int, int]], parts: int, **options: int) -> MlaMetadataCall:
    """Sequences of (rows, pages)."""
    batch, topk = len(lengths), options.get("topk", -1)
    parts = batch * options["num_kv_splits"] if options.get("is_even") else parts
    tiles = batch * lengths[0][0] if topk >= 0 else batch
    return MlaMetadataCall(*plans.zeros(device, parts, tiles + parts, tiles, tiles + parts),
                           plans.starts(device, [rows for rows, _ in lengths]),
                           plans.starts(device, [pages for _, pages in lengths]),
                           total_q=sum(rows for rows, _ in lengths), **options)


def _cases(device: torch.device) -> dict[str, MlaMetadataCall]:
    """Ragged lengths with empty sequences; equal parts of each; tokens as sequences."""
    ragged = [(1, 900), (2, 0), (0, 70), (4, 64), (1, 1), (3, 3000)]
    return {"ragged": _case(device, ragged, 7),
            "one part": _case(device, ragged, 1, block_pages=4),
            "even": _case(device, ragged, 0, num_kv_splits=3, is_even=True),
            "tokens": _case(device, [(3, 300), (3, 5)], 5, topk=200)}


mla_metadata_op = Op(
    _OP, call=MlaMetadataCall, reference=mla_metadata_ref, check=_check, cases=_cases, writes=plans.FIELDS,
    backends=(Backend("hip", _mla_metadata_hip, refusal=plans.refusal),
              Backend("triton", "ops.mla.triton.mla_metadata:mla_metadata", refusal=plans.refusal),
              Backend("torch", mla_metadata_ref)))


def get_mla_metadata_info_v1(
        batch_size: int, max_seqlen_qo: int, num_head_qo: int, q_dtype: torch.dtype, kv_dtype: torch.dtype,
        is_sparse: bool, fast_mode: bool = True, num_kv_splits: int = 32, intra_batch_mode: bool = False,
        max_split_per_batch: int = -1) -> tuple[tuple[int | tuple[int, int], torch.dtype], ...]:
    """Shapes and dtypes of the tensors that `get_mla_metadata_v1` writes. Like `get_pa_metadata_info_v1`.

    Args:
        max_seqlen_qo: query tokens of a sequence, at most.
        num_head_qo: any number of heads.
        is_sparse: each query token has pages of its own.
        q_dtype, kv_dtype, fast_mode, num_kv_splits, intra_batch_mode, max_split_per_batch: AITER's hints; no meaning.

    Returns:
        Six pairs of shape and dtype: work_metadata_ptrs (2, uint64), work_indptr (parts + 1, int32), work_info_set
        ((items, 8), int32), reduce_indptr (tiles + 1, int32), reduce_final_map ((tiles, 2), int32) and
        reduce_partial_map (slots, int32).
    """
    op = "get_mla_metadata_info_v1"
    for name, value, low in (("batch_size", batch_size, 0), ("max_seqlen_qo", max_seqlen_qo, 1),
                             ("num_head_qo", num_head_qo, 1)):
        check.integer(op, name, value, low=low)
    tokens = max_seqlen_qo if is_sparse else 1
    rows = num_head_qo * (1 if is_sparse else max_seqlen_qo)
    return _info(plan.balanced(default_target(), batch_size * tokens, rows, 1))


def _info(sizes: plan.Sizes) -> tuple[tuple[int | tuple[int, int], torch.dtype], ...]:
    return plans.info(sizes.num_parts, sizes.num_items, sizes.num_tiles, sizes.num_slots)


def get_mla_metadata_v1(
        seqlens_qo_indptr: Tensor, seqlens_kv_indptr: Tensor, kv_last_page_lens: Tensor | None,
        num_heads_per_head_k: int, num_heads_k: int, is_causal: bool, work_metadata_ptrs: Tensor, work_info_set: Tensor,
        work_indptr: Tensor, reduce_indptr: Tensor, reduce_final_map: Tensor, reduce_partial_map: Tensor,
        page_size: int = 1, kv_granularity: int = 16, max_seqlen_qo: int = -1, uni_seqlen_qo: int = -1,
        fast_mode: bool = True, topk: int = -1, max_split_per_batch: int = -1, intra_batch_mode: bool = False,
        is_cp_round_robin: bool = False, mla_version: int = 0, dtype_q_nope: torch.dtype | None = None,
        dtype_q_rope: torch.dtype | None = None, dtype_kv_nope: torch.dtype | None = None,
        dtype_kv_rope: torch.dtype | None = None, dtype_q: torch.dtype | None = None,
        dtype_kv: torch.dtype | None = None, *, backend: str | None = None) -> None:
    """Plans `mla_decode_fwd` from lengths on the device. Like `get_pa_metadata_v1`, with parts that have all heads.

    Args:
        seqlens_kv_indptr: [≥ batch + 1] int32, where the pages of a sequence begin.
        num_heads_k, mla_version: 1 and 0.
        work_info_set: [items, 8] int32, written: sequence, first row of its partial result or −1 where it has but one
            piece, first query token and the one behind its last, first page and the one behind its last, pages of the
            sequence behind that, 0.
        work_indptr: [parts + 1] int32, written: part p has the items work_indptr[p] … work_indptr[p + 1] − 1.
        reduce_indptr: [tiles + 1] int32, written: where a sequence's entries begin in `reduce_partial_map`.
        reduce_final_map: [tiles, 2] int32, written: its first query token, and the one behind its last.
        reduce_partial_map: [slots] int32, written: first rows of partial results.
        page_size, kv_granularity: keys of a page, and pages of which a piece is a multiple.
        topk: each query token has pages of its own, in a list [tokens, topk] of which it uses as many as its sequence
            has, at most `topk`; −1: no.
        max_split_per_batch: pieces of a sequence, at most, or one more where it begins inside of a part; below 1: any
            number.
        kv_last_page_lens, num_heads_per_head_k, is_causal: of no meaning for the plan.
        uni_seqlen_qo, fast_mode, intra_batch_mode, is_cp_round_robin: AITER's hints; of no meaning here.
        dtype_q_nope, dtype_q_rope, dtype_kv_nope, dtype_kv_rope, dtype_q, dtype_kv: AITER's hints, as well.

    Notes:
        The sequences' pages are laid on a line, in blocks, and the line is cut into equal parts: no length makes a part
        longer than others. No synchronisation. Tensors of the sizes that `get_mla_metadata_info_v1` gives are large
        enough for all lengths; what would lie outside others is left out.
    """
    op = "get_mla_metadata_v1"
    if num_heads_k != 1 or mla_version != 0:
        reason = f"num_heads_k {num_heads_k}" if num_heads_k != 1 else f"mla_version {mla_version}"
        raise UnsupportedError(f"{op}: no backend supports {reason}", op, {"num_heads_k": reason})
    for name, value, low in (("page_size", page_size, 1), ("kv_granularity", kv_granularity, 1),
                             ("max_seqlen_qo", max_seqlen_qo, -2**31), ("topk", topk, -1),
                             ("max_split_per_batch", max_split_per_batch, -2**31)):
        check.integer(op, name, value, low=low)
    check.tensor(op, "work_metadata_ptrs", work_metadata_ptrs, dtypes=(torch.uint64,), shape=(2,))
    for name, tensor in (("seqlens_qo_indptr", seqlens_qo_indptr), ("seqlens_kv_indptr", seqlens_kv_indptr)):
        check.tensor(op, name, tensor, rank=1, dtypes=(torch.int32,), device=work_indptr.device)
    if len(seqlens_kv_indptr) < len(seqlens_qo_indptr):  # checked here, since the operator is given a part of it
        raise ValueError(f"{op}: seqlens_kv_indptr must have as many elements as seqlens_qo_indptr, "
                         f"{len(seqlens_qo_indptr)}, got {len(seqlens_kv_indptr)}")
    check_lengths(op, "seqlens_qo_indptr", seqlens_qo_indptr, check.INT32_MAX,
                  max_seqlen_qo if max_seqlen_qo > 0 and topk < 0 else None, "max_seqlen_qo")
    check_starts(op, "seqlens_kv_indptr", seqlens_kv_indptr[:len(seqlens_qo_indptr)], check.INT32_MAX, "pages")
    check.tensor(op, "reduce_final_map", reduce_final_map, rank=2)
    refuse_overlap(op, "work_metadata_ptrs", work_metadata_ptrs, work_indptr=work_indptr, work_info_set=work_info_set,
                   reduce_indptr=reduce_indptr, reduce_final_map=reduce_final_map,
                   reduce_partial_map=reduce_partial_map)
    pages = -(-plan.block_pages_of(page_size) // kv_granularity) * kv_granularity
    mla_metadata_op.run(
        work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map, qo_indptr=seqlens_qo_indptr,
        kv_indptr=seqlens_kv_indptr[:len(seqlens_qo_indptr)], max_seqlen_q=max_seqlen_qo if max_seqlen_qo > 0 else _ANY,
        block_pages=pages, num_kv_splits=max(max_split_per_batch, 0), topk=topk,
        total_q=_ANY if topk < 0 else len(reduce_final_map), backend=backend)  # each of such tokens has a tile
    dtypes.viewed(work_metadata_ptrs, torch.int64).zero_()


mla_metadata_op.public.append(get_mla_metadata_v1)


def get_ps_metadata_info_v1(batch_size: int, num_head_k: int, max_qlen: int,
                            qlen_granularity: int = 256) -> tuple[tuple[int | tuple[int, int], torch.dtype], ...]:
    """Shapes and dtypes of the tensors that `get_ps_metadata_v1` writes. Like `get_mla_metadata_info_v1`.

    Args:
        num_head_k: heads of the keys.
        max_qlen: query tokens of a sequence, at most.
        qlen_granularity: query tokens of a tile.

    Notes:
        The attention that serves `mla_prefill_ps_asm_fwd` shares its work out itself: there is one part, and a tile of
        the sum for each tile of query tokens.
    """
    op = "get_ps_metadata_info_v1"
    for name, value, low in (("batch_size", batch_size, 0), ("num_head_k", num_head_k, 1), ("max_qlen", max_qlen, 0),
                             ("qlen_granularity", qlen_granularity, 1)):
        check.integer(op, name, value, low=low)
    tiles = batch_size * max(-(-max_qlen // qlen_granularity), 1)
    return _info(plan.Sizes(1, max(batch_size, 1), 1, tiles, 1, True))


def get_ps_metadata_v1(
        seqlens_qo_indptr: Tensor, pages_kv_indptr: Tensor, context_lens: Tensor, gqa_ratio: int, num_heads_k: int,
        work_metadata_ptrs: Tensor, work_indptr: Tensor, work_info: Tensor, reduce_indptr: Tensor,
        reduce_final_map: Tensor, reduce_partial_map: Tensor, qhead_granularity: int = 1, qlen_granularity: int = 256,
        kvlen_granularity: int = 16, block_size: int = 16, is_causal: bool = True, need_lse: bool = False) -> None:
    """The plan of `mla_prefill_ps_asm_fwd`, whose attention shares its work out itself: nothing is left to add up.

    Args:
        seqlens_qo_indptr, pages_kv_indptr, context_lens: int32, on any device; not read.
        work_metadata_ptrs: [2] uint64, written: zeros.
        work_indptr: [parts + 1] int32, written: zeros, as no part has an item.
        reduce_indptr: [tiles + 1] int32, written: zeros, as no tile has parts, so that `mla_reduce_v1` with them leaves
            the attention's rows as they are.
        work_info, reduce_final_map, reduce_partial_map: int32, left as they are.
        gqa_ratio, num_heads_k, qhead_granularity, qlen_granularity, kvlen_granularity, block_size, is_causal: AITER's
            hints; of no meaning.
        need_lse: False: `mla_reduce_v1`, which has nothing to add up, would leave the log-sum-exps unwritten.

    Raises:
        UnsupportedError: need_lse.
    """
    op = "get_ps_metadata_v1"
    if need_lse:
        raise UnsupportedError(f"{op}: no backend supports need_lse; flash_attn_varlen_func returns log-sum-exps", op,
                               {"need_lse": "the attention has no parts"})
    check.tensor(op, "work_metadata_ptrs", work_metadata_ptrs, dtypes=(torch.uint64,))
    for name, tensor in (("work_indptr", work_indptr), ("work_info", work_info), ("reduce_indptr", reduce_indptr),
                         ("reduce_final_map", reduce_final_map), ("reduce_partial_map", reduce_partial_map)):
        check.tensor(op, name, tensor, dtypes=(torch.int32,))
    for tensor in (dtypes.viewed(work_metadata_ptrs, torch.int64), work_indptr, reduce_indptr):
        tensor.zero_()
