# SPDX-License-Identifier: MIT
"""The memory that flash_attn_fwd on gfx942 takes for keys that it splits between workgroups."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from aiter_like import check
from aiter_like.device import target_of
from aiter_like.errors import BuildError
from aiter_like.jit import compile_ops
from aiter_like.ops.attention.checks import read_window

__all__ = ["attention_workspace_bytes"]


@compile_ops("attention/attention_workspace.hip", platforms=("hip",))
def attention_workspace(q: Tensor, k: Tensor, window_right: int, num_splits: int) -> int: ...


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

    Notes:
        A function of shapes and of the device's number of CUs: the same for each call of a captured graph.

    Source: this project.
    """
    op = "attention_workspace_bytes"
    check.tensor(op, "q", q, rank=4, last_contiguous=False)
    check.tensor(op, "k", k, rank=4, last_contiguous=False)
    check.choice(op, "layout", layout, ("bshd", "bhsd"))
    check.integer(op, "num_splits", num_splits, low=0)
    target = target_of(q.device)
    if layout == "bhsd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    left, right, _ = read_window(op, window_size, causal)
    if target.arch != "gfx942" or left >= 0 or num_splits == 1:
        return 0
    seqlen_q = q.shape[1]
    try:
        return attention_workspace(q.detach(), k.detach(), right if right < seqlen_q - 1 else -1, num_splits)
    except BuildError:
        return 0  # The kernel cannot be built either, and the backend that then serves the call needs none.
