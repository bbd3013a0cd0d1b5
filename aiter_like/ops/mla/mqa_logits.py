# SPDX-License-Identifier: MIT
"""Logits of the index by which sparse attention chooses its keys (DeepSeek-V3.2's lightning indexer): mqa_logits and
paged_mqa_logits.

Kernels: csrc/mla/mqa_logits.hip, ops/mla/triton/mqa_logits.py; the cache: ops/kv_cache/indexer_cache.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.checks import fp8_refusal, mfma_refusal
from aiter_like.ops.common import contents, elements, paged_cache, tune_shapes
from aiter_like.ops.kv_cache import indexer_cache

__all__ = ["mqa_logits", "paged_mqa_logits"]

_OP = "mqa_logits"
_MOST = 2**30 - 1  # rows, columns, pages: kernels count them with 32 bits
_HEADS = (16, 32, 48, 64, 128)  # A wave of the kernel for gfx942 has those of a row in registers.
_WIDE = 8192  # elements of a row's heads: with more, a wave has one row
_COLUMN_STEP = 256  # rows of new logits begin at multiples of it


class MqaLogitsCall(NamedTuple):
    """One call of mqa_logits: its arguments in the order of the function that mqa_logits.hip exports.

    Attributes:
        q: with a table the rows of a sequence follow one another, equally many of each.
        keys: without a table one page, of all keys.
        starts, ends: the keys that a row sees; None with a table.
        context_lens: [batch]; block_table [batch, max_pages], the pages of a sequence's keys.
        page_starts: [batch + 1], instead of context_lens: sequence b has all keys of the pages
            block_table[page_starts[b] … page_starts[b + 1] − 1], a table of one dimension.
        preshuffle: the keys of a page are in tiles (ops/kv_cache/indexer_cache.py).
        clean_logits: columns that a row does not see become −inf; else only those of its sequence's later tokens.
    """

    logits: Annotated[Tensor, "rows columns", torch.float32]
    q: Annotated[Tensor, "rows heads dim", elements.FP8]
    keys: Annotated[Tensor, "pages page_size dim", "q"]
    k_scale: Annotated[Tensor, "pages page_size", torch.float32, STRIDED]
    weights: Annotated[Tensor, "rows heads", torch.float32]
    starts: Annotated[Tensor | None, "rows", torch.int32] = None
    ends: Annotated[Tensor | None, "rows", torch.int32] = None
    context_lens: Annotated[Tensor | None, "batch", torch.int32] = None
    block_table: Annotated[Tensor | None, "*batch entries", torch.int32] = None
    page_starts: Annotated[Tensor | None, "batch+1", torch.int32] = None
    preshuffle: bool = False
    clean_logits: bool = True

    @property
    def batch(self) -> int:
        """Sequences; without a table all rows are those of one."""
        if self.block_table is None:
            return 1
        return self.block_table.shape[0] if self.page_starts is None else self.page_starts.shape[0] - 1

    @property
    def rows_of_sequence(self) -> int:
        return self.q.shape[0] // max(self.batch, 1)

    @property
    def max_keys(self) -> int:
        """That the table, or the one page, has room for in one sequence."""
        return self.keys.shape[1] * (1 if self.block_table is None else self.block_table.shape[-1])


def mqa_logits_ref(call: MqaLogitsCall) -> None:
    """The formula in torch, sequence by sequence, in fp32; products that are NaN count as 0."""
    rows, columns, device = call.rows_of_sequence, call.logits.shape[1], call.q.device
    column, nth = torch.arange(columns, device=device), torch.arange(rows, device=device)[:, None]
    keys = _unshuffled(call.keys) if call.preshuffle else call.keys.flatten(0, 1)
    for index in range(call.q.shape[0] // max(rows, 1)):
        own = slice(index * rows, (index + 1) * rows)
        if call.block_table is None:
            first, end, fill = call.starts[own, None], call.ends[own, None], 0
            is_there, key = column < keys.shape[0], column
        else:
            entries, length = _entries(call, index)
            first, end, fill = 0, length - rows + nth + 1, length
            is_there, key = _places(call, entries, column)
        is_seen = (column >= first) & (column < end)
        found = torch.full((rows, columns), -torch.inf, device=device, dtype=torch.float32)
        if is_there.any():
            products = torch.einsum("rhd,cd->rhc", call.q[own].float(), keys[key[is_there]].float())
            sums = (products.nan_to_num(nan=0.0).relu() * call.weights[own, :, None]).sum(1)
            found[:, is_there] = sums * call.k_scale.reshape(-1)[key[is_there]]
        outside = torch.where(call.clean_logits | (column < fill), -torch.inf, call.logits[own])
        call.logits[own] = torch.where(is_seen, found, outside)


def _entries(call: MqaLogitsCall, index: int) -> tuple[Tensor, Tensor]:
    """A sequence's part of the table, and its keys."""
    if call.page_starts is None:
        return call.block_table[index].long(), call.context_lens[index].long()
    first, end = call.page_starts[index:index + 2].clamp(0, call.block_table.shape[0]).tolist()
    entries = call.block_table[first:max(end, first)].long()
    return entries, torch.tensor(len(entries) * call.keys.shape[1], device=entries.device)


def _places(call: MqaLogitsCall, entries: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a sequence's key of each column is in the cache, and its place among all keys."""
    pages, page_size, _ = call.keys.shape
    nth = column // page_size
    if len(entries) == 0:
        return torch.zeros_like(column, dtype=torch.bool), column
    entry = entries[nth.clamp(max=len(entries) - 1)]
    is_there = (nth < len(entries)) & (entry >= 0) & (entry < pages)
    return is_there, entry * page_size + column % page_size


def _unshuffled(keys: Tensor) -> Tensor:
    """The keys of shuffled pages, one below the other."""
    (pages, page_size, dim), tile = keys.shape, indexer_cache.TILE
    return keys.reshape(pages, page_size // tile, dim // tile, tile, tile).transpose(2, 3).reshape(-1, dim)


def _row_waves(call: MqaLogitsCall) -> tuple[int, int]:
    """The rows of a wave, and how many of a workgroup's four waves have rows of their own: as few as hold a sequence's
    queries when decoding, so that the other waves share its keys.
    """
    _, heads, dim = call.q.shape
    rows = 1 if call.rows_of_sequence == 1 or heads * dim > _WIDE else 2
    tiles = -(-call.rows_of_sequence // rows)
    return rows, 1 if tiles <= 1 else 2 if tiles == 2 else 4


def _instance(call: MqaLogitsCall) -> Instance:
    _, heads, dim = call.q.shape
    rows, row_waves = _row_waves(call)
    return Instance(f"h{heads}_d{dim}_r{rows}x{row_waves}",
                    {"HEADS": heads, "HEAD_DIM": dim, "WAVE_ROWS": rows, "ROW_WAVES": row_waves})


@compile_ops("mla/mqa_logits.hip", gen_func=_instance, platforms=("hip",))
def _mqa_logits_ck(call: MqaLogitsCall) -> None: ...


def _check(call: MqaLogitsCall) -> object:
    (rows, heads, dim), (pages, page_size, _) = call.q.shape, call.keys.shape
    if 0 in (heads, dim):
        raise ValueError(f"{_OP}: q must have heads and elements, got shape {tuple(call.q.shape)}")
    sizes = rows, call.logits.shape[1], pages, page_size
    if any(size > _MOST for size in sizes):
        raise ValueError(f"{_OP}: rows, columns, pages and their keys must be at most {_MOST}, got {sizes}")
    _check_keys(call)
    return SKIP if 0 in (rows, call.logits.shape[1]) else None


def _check_keys(call: MqaLogitsCall) -> None:
    """Checks that the keys of a row are given in one way only, and that the table has room that can be counted."""
    rows, (pages, page_size, dim) = call.q.shape[0], call.keys.shape
    given = [name for name in ("starts", "ends", "context_lens", "block_table", "page_starts")
             if getattr(call, name) is not None]
    if given not in (["starts", "ends"], ["context_lens", "block_table"], ["block_table", "page_starts"]):
        raise ValueError(f"{_OP}: starts and ends must be given, or block_table with context_lens or page_starts, got "
                         f"{given}")
    if call.preshuffle and (page_size % indexer_cache.TILE or dim % indexer_cache.TILE):
        raise ValueError(f"{_OP}: preshuffle needs a page size and head_dim that are multiples of "
                         f"{indexer_cache.TILE}, got {page_size} and {dim}")
    if call.block_table is None:
        if pages > 1:
            raise ValueError(f"{_OP}: keys must be one page without block_table, got {pages}")
        return
    check.tensor(_OP, "block_table", call.block_table, rank=2 if call.page_starts is None else 1)
    if call.page_starts is None:
        check.tensor(_OP, "context_lens", call.context_lens, shape=(call.batch,))
    if call.batch < 0 or rows % max(call.batch, 1) or rows and not call.batch:
        raise ValueError(f"{_OP}: q must have equally many rows for each of {call.batch} sequences, got {rows}")
    if page_size == 0 or call.max_keys >= 2**31:
        raise ValueError(f"{_OP}: block_table must have room for less than 2^31 keys, in pages of at least 1, got "
                         f"{call.block_table.shape[-1]} pages of {page_size}")


def _ck_refusal(target: Target, call: MqaLogitsCall) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    if reason := mfma_refusal(target):
        return reason
    _, heads, dim = call.q.shape
    if heads not in _HEADS or dim not in (64, 128):
        return f"heads in multiples of 16 up to 64, or 128, of 64 or 128 elements, got {heads} of {dim}"
    if call.q.stride(1) * heads > _MOST:
        return f"heads of a row within {_MOST} bytes, got strides {call.q.stride()}"
    return fp8_refusal(target, q=call.q)


def _triton_refusal(target: Target, call: MqaLogitsCall) -> str | None:
    _, heads, dim = call.q.shape
    if heads > 128 or dim > 256:
        return f"at most 128 heads of at most 256 elements, got {heads} of {dim}"
    return fp8_refusal(target, q=call.q)


class MqaLogitsKey(NamedTuple):
    """The fields that a tuned row of mqa_logits is chosen by; `page_size` is 0 without a table."""

    rows: int
    seqlen_q: int
    columns: int
    num_heads: int
    head_dim: int
    page_size: int
    layout: str
    dtype: str

    @classmethod
    def of(cls, call: MqaLogitsCall) -> MqaLogitsKey:
        return cls(call.q.shape[0], call.rows_of_sequence, call.logits.shape[1], *call.q.shape[1:],
                   0 if call.block_table is None else call.keys.shape[1], "shuffled" if call.preshuffle else "rows",
                   dtypes.name(call.q.dtype))

    def make(self, device: torch.device, seed: int) -> MqaLogitsCall:
        """Prompts that are causal, or sequences of equal lengths on pages in random order."""
        rows, columns, integers = self.rows, self.columns, {"dtype": torch.int32, "device": device}
        random, random_fp8 = (tune_shapes.normal(device, seed, dtype) for dtype in ("fp32", self.dtype))
        batch, size = (rows // self.seqlen_q, self.page_size) if self.page_size else (1, columns)
        pages = -(-columns // size)
        call = MqaLogitsCall(
            torch.empty(rows, columns, device=device), random_fp8(rows, self.num_heads, self.head_dim),
            random_fp8(batch * pages, size, self.head_dim), random(batch * pages, size).abs(),
            random(rows, self.num_heads), preshuffle=self.layout == "shuffled")
        if not self.page_size:
            ends = (torch.arange(rows, **integers) + columns - rows + 1).clamp(min=0)
            return call._replace(starts=torch.zeros_like(ends), ends=ends)
        return call._replace(context_lens=torch.full((batch,), columns, **integers),
                             block_table=tune_shapes.page_table(device, seed, batch, pages))


def _cases(device: torch.device) -> dict[str, MqaLogitsCall]:
    """Prompts of odd lengths; decoding of one row, of several, and of more heads, in each order of keys."""
    prompt = MqaLogitsKey(9, 9, 150, 16, 64, 0, "rows", dtypes.name(dtypes.fp8_of(target_of(device).arch)))
    paged = prompt._replace(rows=4, seqlen_q=2, page_size=16)
    keys = {"prompt": prompt, "decoding": prompt._replace(rows=2, seqlen_q=1, page_size=1),
            "tokens": paged._replace(head_dim=128, layout="shuffled"),
            "four tokens": paged._replace(seqlen_q=4, num_heads=32)}
    return {name: key.make(device, 0) for name, key in keys.items()}


def _traffic(call: MqaLogitsCall) -> tuple[int, int]:
    """Keys and scales of each sequence once, queries, weights and logits; the products of what rows see."""
    rows, heads, dim = call.q.shape
    columns, seqlen_q = call.logits.shape[1], max(call.rows_of_sequence, 1)
    moved = rows // seqlen_q * columns * (dim + 4)
    moved += sum(tensor.numel() * tensor.element_size() for tensor in (call.logits, call.q, call.weights))
    unseen = min(seqlen_q, columns)
    pairs = rows // seqlen_q * (seqlen_q * columns - unseen * (unseen - 1) // 2)
    return moved, 2 * pairs * heads * dim


def _triton_space(target: Target, call: MqaLogitsCall) -> Iterator[dict[str, int]]:
    for block, warps, stages in itertools.product((32, 64, 128, 256), (2, 4, 8), (1, 2, 3)):
        yield {"BLOCK_KEYS": block, "num_warps": warps, "num_stages": stages}


mqa_logits_op = Op(
    _OP, call=MqaLogitsCall, reference=mqa_logits_ref, check=_check, key=MqaLogitsKey, round_field="columns",
    writes=("logits",), cases=_cases, traffic=_traffic, sums_in_fp32=True,
    backends=(Backend("ck", _mqa_logits_ck, refusal=_ck_refusal),
              Backend("triton", "ops.mla.triton.mqa_logits:mqa_logits", refusal=_triton_refusal,
                      space=_triton_space),
              Backend("torch", mqa_logits_ref)))


def mqa_logits(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, starts: Tensor, ends: Tensor,
               clean_logits: bool = True, *, logits: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Scores each key for each query token, as DeepSeek-V3.2's sparse attention does to choose its keys.

    `logits[i, j] = k_scale[j] · Σ_h weights[i, h] · max(q[i, h] · k[j], 0)` where starts[i] ≤ j < ends[i].

    Args:
        q: [rows, num_heads, head_dim] fp8 (e4m3 of the target), last dimension contiguous.
        k: [num_keys, head_dim], dtype of `q`, last dimension contiguous.
        k_scale: [num_keys] fp32, not negative.
        weights: [rows, num_heads] fp32, in which scales of `q` are.
        starts, ends: [rows] int32. Beyond the keys they are cut off; ends[i] ≤ starts[i]: row i sees none.
        clean_logits: columns that a row does not see become −inf; False: they stay as they are.
        logits: [rows, num_keys] fp32, written; None: new memory, whose rows begin at multiples of 256 elements.

    Returns:
        `logits`.

    Notes:
        Sums in fp32: equal calls give equal bits. A product q · k that is NaN counts as 0, as in AITER's kernel; a
        scale or weight that is NaN makes its logits NaN.

    Source: AITER's `fp8_mqa_logits`; DeepSeek-V3.2-Exp (2025), lightning indexer.
    """
    check.tensor(_OP, "q", q, rank=3, dtypes=elements.FP8)
    check.tensor(_OP, "k", k, rank=2, dtypes=(q.dtype,), shape=(None, q.shape[2]), device=q.device)
    check.tensor(_OP, "k_scale", k_scale, shape=(k.shape[0],), last_contiguous=False)
    if logits is None:
        width = -(-k.shape[0] // _COLUMN_STEP) * _COLUMN_STEP
        logits = torch.empty(q.shape[0], width, dtype=torch.float32, device=q.device)[:, :k.shape[0]]
    check.tensor(_OP, "logits", logits, shape=(q.shape[0], k.shape[0]))
    mqa_logits_op.run(logits, q, k.unsqueeze(0), k_scale.unsqueeze(0), weights, starts=starts, ends=ends,
                      clean_logits=clean_logits, backend=backend)
    return logits


def paged_mqa_logits(q: Tensor, kv_cache: Tensor, weights: Tensor, logits: Tensor, context_lens: Tensor | None,
                     block_table: Tensor, preshuffle: bool = False, clean_logits: bool = True, *,
                     page_starts: Tensor | None = None, backend: str | None = None) -> None:
    """Scores keys in the indexer's cache for the last tokens of sequences. Like `mqa_logits` otherwise.

    Token t of sequence b, of next_n, sees its keys 0 … context_lens[b] − next_n + t; key j is in page
    block_table[b, j // page_size].

    Args:
        q: [batch, next_n, num_heads, head_dim] fp8 (e4m3 of the target), last dimension contiguous.
        kv_cache: [num_pages, page_size, width] or [num_pages, page_size, 1, width], dtype of `q` or uint8, as
            `indexer_k_quant_and_cache` writes it with one scale per key: a page holds [page_size, head_dim] keys, then
            [page_size] fp32; width ≥ head_dim + 4. Slots that no sequence has may hold anything.
        weights: [batch · next_n, num_heads] fp32, in which scales of `q` are.
        logits: [batch · next_n, columns] fp32, written; keys beyond its columns are left out.
        context_lens: [batch] int32, with the tokens of `q`; None with `page_starts`.
        block_table: [batch, max_pages] int32, or [entries] with `page_starts`. A key whose page is not in the table or
            not in the cache gets −inf.
        preshuffle: keys in tiles of 16 tokens by 16 elements, as `indexer_k_quant_and_cache` writes them with it.
        clean_logits: columns that a row does not see become −inf; False: only those of its sequence's later tokens do,
            and columns from context_lens[b] on stay as they are.
        page_starts: [batch + 1] int32: sequence b has all keys of the pages block_table[page_starts[b] …
            page_starts[b + 1] − 1].

    Source: AITER's `deepgemm_fp8_paged_mqa_logits`; DeepGEMM's `fp8_paged_mqa_logits`; DeepSeek-V3.2-Exp (2025).
    """
    op = "paged_mqa_logits"
    check.tensor(op, "q", q, rank=4, dtypes=elements.FP8)
    check.tensor(op, "kv_cache", kv_cache)
    kv_cache = kv_cache.squeeze(2) if kv_cache.ndim == 4 and kv_cache.shape[2] == 1 else kv_cache
    indexer_cache.check_cache(op, kv_cache, q.shape[3], 1, preshuffle, q.device)
    check.tensor(op, "kv_cache", kv_cache, dtypes=(q.dtype, torch.uint8))
    if page_starts is None:
        check.tensor(op, "block_table", block_table, shape=(q.shape[0], None))
        contents.check_values(op, "context_lens", context_lens, 0, check.INT32_MAX, "hold lengths")
    else:
        check.tensor(op, "page_starts", page_starts, shape=(q.shape[0] + 1,))
        check.tensor(op, "block_table", block_table, rank=1)
        contents.check_starts(op, "page_starts", page_starts, len(block_table), "entries of block_table")
    page_size, dim, blocks = kv_cache.shape[1], q.shape[3], indexer_cache.blocks_of(paged_cache.as_bytes(kv_cache))
    keys, scales = blocks[:, :page_size * dim], blocks[:, page_size * dim:page_size * (dim + 4)]
    is_odd = not torch.compiler.is_compiling() and scales.storage_offset() % 4  # no view of fp32 begins there
    scales = (scales.clone() if is_odd else scales).view(torch.float32)
    mqa_logits_op.run(logits, q.flatten(0, 1), keys.view(q.dtype).unflatten(1, (page_size, dim)),
                      scales, weights, context_lens=context_lens, block_table=block_table, page_starts=page_starts,
                      preshuffle=preshuffle, clean_logits=clean_logits, backend=backend)


mqa_logits_op.public.extend((mqa_logits, paged_mqa_logits))
