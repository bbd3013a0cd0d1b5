# SPDX-License-Identifier: MIT
"""unified_attention in Triton: the launcher; the kernel is that of flash_attn_fwd_parts.py, with a block table."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from aiter_like.device import target_of
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.triton.flash_attn_fwd_parts import attend, width
from aiter_like.ops.common.triton.launch import config


def unified_attention(call: PagedCall, **params: int) -> Callable[..., None] | None:
    """Writes `out` and `lse`. What it returns: see Backend.returns_relaunch.

    params: a tuned row's values instead of those of configs/triton/unified_attention.toml.
    """
    attention = call.attention
    kind = "short" if call.max_seqlen_q * (attention.num_heads // attention.num_kv_heads) <= 32 else "long"
    settings = config("unified_attention", target_of(call.q.device).arch, f"{kind}_{width(attention)}")
    launches = attend(attention, {**settings, **params}, call.block_table, call.output_scale)

    def relaunch(*fields: Tensor | float | None) -> None:
        call = PagedCall(*fields)
        launches(call.attention, call.block_table, call.output_scale)

    return None if launches is None else relaunch
