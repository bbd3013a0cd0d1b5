# SPDX-License-Identifier: MIT
"""How flash_attn_fwd on gfx942 splits keys between workgroups, and the memory that this takes. The same arithmetic as
csrc/attention/flash_attn_plan.h: shapes and the number of CUs decide, nothing is measured or looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from aiter_like import check
from aiter_like.attention_call import read_window
from aiter_like.device import target_of

__all__ = ["attention_workspace_bytes"]

_BLOCK_M = {64: 512, 128: 384}  # head dimension → query rows of a workgroup
_BLOCK_N = 64  # keys of a block
_MOST_PARTS_PER_CU = 2  # of a tail: bounds the workspace
_LEAST_SPLIT_BLOCKS = 48  # key blocks below which a tail is not worth the merge
_LEAST_PART_BLOCKS = 4  # key blocks of a part
_BLOCK_OVERHEAD = 3  # of prologue and epilogue, in key blocks


class KeySplit(NamedTuple):
    """The workgroups of a launch.

    Attributes:
        whole: query blocks whose keys one workgroup takes; those behind them are split.
        tail: the others.
        parts: workgroups of each of those; 1: none is split.
    """

    whole: int
    tail: int
    parts: int


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


def attention_workspace_bytes(q: Tensor, k: Tensor, *, causal: bool = False,
                              window_size: Sequence[int] | None = (-1, -1, 0), num_splits: int = 0,
                              layout: str = "bshd") -> int:
    """The size of `workspace` with which `flash_attn_func` allocates nothing beside its results.

    `tail · parts · block_rows · (head_dim + 2) · 4`: fp32 results, maxima and sums of the query blocks whose keys are
    split, the last ones of a launch without a mask. Any other call, packed sequences too, needs 0.

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
    is_masked = left >= 0 or 0 <= right < seqlen_q - 1
    if target.arch != "gfx942" or head_dim not in _BLOCK_M or is_masked or num_splits == 1:
        return 0
    rows, kv_heads = _BLOCK_M[head_dim], k.shape[2 if layout == "bshd" else 1]
    pack = packed_heads(num_heads // max(kv_heads, 1), seqlen_q, rows)
    split = split_keys(-(-seqlen_q * pack // rows) * batch * num_heads // pack, -(-seqlen_k // _BLOCK_N),
                       target.cu_num, num_splits)
    return split.tail * split.parts * rows * (head_dim + 2) * 4
