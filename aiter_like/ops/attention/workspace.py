# SPDX-License-Identifier: MIT
"""How flash_attn_fwd on gfx942 splits keys between workgroups, and the memory that this takes. The same arithmetic as
csrc/attention/flash_attn_plan.h: shapes and the number of CUs decide, nothing is measured or looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from aiter_like import check
from aiter_like.device import target_of
from aiter_like.ops.attention.checks import read_window

__all__ = ["attention_workspace_bytes"]

_BLOCK_M = {64: 512, 128: 384}  # head dimension → query rows of a workgroup
_BLOCK_N = 64  # keys of a block
_MOST_PARTS_PER_CU = 2  # bounds the workspace
_LEAST_SPLIT_BLOCKS = 48  # key blocks below which a query block is not worth the merge
_LEAST_PART_BLOCKS = 4  # key blocks of a part
_BLOCK_OVERHEAD = 3  # of prologue and epilogue, in key blocks
_MERGE_OVERHEAD = 3  # of a part's merge


class KeySplit(NamedTuple):
    """The workgroups of a launch.

    Attributes:
        whole: query blocks whose keys one workgroup takes.
        tail: the others, which are split.
        parts: workgroups of each of those; 1: none is split.
    """

    whole: int
    tail: int
    parts: int


class CausalLaunch(NamedTuple):
    """The query blocks of a dense launch that limits keys on the right, under a causal mask that is: later slots see
    more keys.

    Attributes:
        slots: query blocks of a column.
        columns: heads, or packed ones, of all sequences.
        queries: of a sequence.
        keys: of a sequence.
        pack: heads that share a query block.
        rows: of a query block.
        window_right: keys behind a query's own that it sees.
    """

    slots: int
    columns: int
    queries: int
    keys: int
    pack: int
    rows: int
    window_right: int

    def seen_blocks(self, slot: int) -> int:
        """How many key blocks a slot sees any of."""
        last_query = (min((slot + 1) * self.rows, self.queries * self.pack) - 1) // self.pack
        last_key = max(last_query + self.keys - self.queries + self.window_right, -1)
        return min(last_key // _BLOCK_N + 1, -(-self.keys // _BLOCK_N))


def packed_heads(group: int, seqlen_q: int, block: int) -> int:
    """How many of the `group` query heads of a KV head share the rows of a workgroup: all of them, where they fit."""
    return max(group, 1) if seqlen_q * group <= block else 1


def split_keys(query_blocks: int, key_blocks: int, num_cus: int, num_splits: int = 0) -> KeySplit:
    """Splits the tail, the last and partly filled round of query blocks over the CUs, where that ends sooner.

    The time of `parts` parts, in key blocks: rounds over the CUs · blocks of a part, and a constant for its prologue
    and epilogue. The least wins, the smaller number of parts among equals.

    Args:
        query_blocks: of the launch.
        key_blocks: of each of them.
        num_splits: most parts; 0: as many as pay.
    """
    tail = query_blocks % num_cus
    whole = KeySplit(query_blocks, 0, 1)
    if tail == 0 or 20 * tail > 19 * num_cus or key_blocks < _LEAST_SPLIT_BLOCKS:
        return whole
    limit = _MOST_PARTS_PER_CU * num_cus // tail
    limit = min(limit, num_splits) if num_splits else limit
    parts, least = 1, key_blocks
    for count in range(2, min(limit, key_blocks // _LEAST_PART_BLOCKS) + 1):
        cost = -(-tail * count // num_cus) * -(-key_blocks // count)
        if cost < least:
            parts, least = count, cost
    return KeySplit(query_blocks - tail, tail, parts) if parts > 1 else whole


def split_causal_keys(launch: CausalLaunch, num_cus: int, num_splits: int = 0) -> KeySplit:
    """Splits the longest query blocks where that ends sooner: of the last slots of each column, down to the one that is
    not longer than half of the longest part, as many as two parts per CU allow. The least `_end_time` wins, the smaller
    number of parts among equals.

    Args:
        num_splits: most parts; 0: as many as pay.
    """
    best = KeySplit(launch.slots * launch.columns, 0, 1)
    limit = _MOST_PARTS_PER_CU * num_cus // max(launch.columns, 1)
    seen = [launch.seen_blocks(slot) for slot in range(launch.slots)]
    longest = max(seen, default=0)
    if limit < 2 or longest < _LEAST_SPLIT_BLOCKS:
        return best
    least, first = _end_time(seen, launch.columns, 0, 1, num_cus), launch.slots
    for parts in range(2, min(limit, num_splits or limit, longest // _LEAST_PART_BLOCKS) + 1):
        while first > 0 and seen[first - 1] > -(-longest // parts) // 2:
            first -= 1
        split = min(launch.slots - first, limit // parts)
        end = _end_time(seen, launch.columns, split, parts, num_cus)
        if split > 0 and end < least:
            best, least = KeySplit((launch.slots - split) * launch.columns, split * launch.columns, parts), end
    return best


def _end_time(seen: Sequence[int], columns: int, split: int, parts: int, num_cus: int) -> int:
    """When a launch has ended that divides the keys of the last `split` slots, in key blocks: no sooner than after each
    CU's share; and of the first r · num_cus + 1 workgroups, whole ones and parts each longest first, r + 1 have one CU.
    """
    longest_first = seen[::-1]
    whole_ids, part_ids = (len(seen) - split) * columns, split * columns * parts
    times = [-(-(sum(seen) * columns + _BLOCK_OVERHEAD * (whole_ids + part_ids)) // num_cus)]
    for round_, index in enumerate(range(0, whole_ids, num_cus), 1):
        times.append(round_ * (longest_first[split + index // columns] + _BLOCK_OVERHEAD))
    for round_, index in enumerate(range(0, part_ids, num_cus), 1):
        times.append(round_ * (-(-longest_first[index // (columns * parts)] // parts) + _BLOCK_OVERHEAD))
    return max(times) - (-_MERGE_OVERHEAD * part_ids // num_cus)


def attention_workspace_bytes(q: Tensor, k: Tensor, *, causal: bool = False,
                              window_size: Sequence[int] | None = (-1, -1, 0), num_splits: int = 0,
                              layout: str = "bshd") -> int:
    """The size of `workspace` with which `flash_attn_func` allocates nothing beside its results.

    `tail · parts · block_rows · (head_dim + 2) · 4`: fp32 results, maxima and sums of the query blocks whose keys are
    split: the last ones of a launch without a mask, the longest ones under a causal mask; at most two parts per CU.
    Any other call, one with a left limit or packed sequences too, needs 0.

    Args:
        q, k: as for `flash_attn_func`; only shape and device count.
        causal, window_size, num_splits, layout: as there.

    Returns:
        Bytes.

    Raises:
        TypeError: `q` or `k` is no tensor, `num_splits` no integer.
        ValueError: they have another number of dimensions than 4; no such layout.

    Notes:
        A function of shapes and of the device's number of CUs: the same for each call of a captured graph.

    Source: this project; csrc/attention/flash_attn_plan.h.
    """
    op = "attention_workspace_bytes"
    check.tensor(op, "q", q, rank=4, last_contiguous=False)
    check.tensor(op, "k", k, rank=4, last_contiguous=False)
    check.choice(op, "layout", layout, ("bshd", "bhsd"))
    check.integer(op, "num_splits", num_splits, low=0)
    target = target_of(q.device)
    batch, seqlen_q, num_heads, head_dim = q.shape if layout == "bshd" else q.transpose(1, 2).shape
    seqlen_k = k.shape[1 if layout == "bshd" else 2]
    left, right, _ = read_window(op, window_size, causal)
    if target.arch != "gfx942" or head_dim not in _BLOCK_M or left >= 0 or num_splits == 1:
        return 0
    rows, kv_heads = _BLOCK_M[head_dim], k.shape[2 if layout == "bshd" else 1]
    pack = packed_heads(num_heads // max(kv_heads, 1), seqlen_q, rows)
    slots, columns = -(-seqlen_q * pack // rows), batch * num_heads // pack
    if 0 <= right < seqlen_q - 1:
        launch = CausalLaunch(slots, columns, seqlen_q, seqlen_k, pack, rows, right)
        split = split_causal_keys(launch, target.cu_num, num_splits)
    else:
        split = split_keys(slots * columns, -(-seqlen_k // _BLOCK_N), target.cu_num, num_splits)
    return split.tail * split.parts * rows * (head_dim + 2) * 4
