# SPDX-License-Identifier: MIT
"""unified_attention in Triton: the launcher. The kernel is that of flash_attn_fwd_parts.py, with a block table, or that
of paged_attention.py.
"""

from __future__ import annotations

from aiter_like.device import target_of
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.decode_call import decode_call
from aiter_like.ops.attention.triton.flash_attn_fwd_parts import attend, width
from aiter_like.ops.attention.triton.paged_attention import paged_attention
from aiter_like.ops.attention.unified_attention_choice import is_few
from aiter_like.ops.common.triton.launch import Launch, config


def unified_attention(call: PagedCall, kernel: str = "unified_attention", **params: int) -> tuple[Launch, ...]:
    """Writes `out` and `lse`.

    kernel: "paged_attention" for what decode_call takes. params: a tuned row's values instead of those of
    configs/triton/<kernel>.toml.
    """
    if kernel == "paged_attention":
        return paged_attention(decode_call(call), **params)
    attention = call.attention
    target = target_of(call.q.device)
    if call.max_seqlen_q * (attention.num_heads // attention.num_kv_heads) <= 32:
        kind = "short"
    else:
        kind = "few" if target.arch == "gfx942" and is_few(call, target.cu_num) else "long"
    settings = config("unified_attention", target.arch, f"{kind}_{width(attention)}")
    return attend(attention, {**settings, **params}, call.block_table, call.output_scale)
