# SPDX-License-Identifier: MIT
"""flash_attn_fwd in Triton: one launcher, which chooses the kernel of flash_attn_fwd_parts.py or that for Hopper."""

from __future__ import annotations

from aiter_like.device import target_of
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.checks import is_aligned
from aiter_like.ops.attention.triton.flash_attn_fwd_parts import attend, width
from aiter_like.ops.common.triton.launch import Launch, config

# With this scale at most, only q and k in the thousands have scores beyond 2^31 in base 2, where the exponential of the
# kernel for Hopper overflows. What prevents it elsewhere would make that kernel 2 to 5 % slower (measured on an H200).
_MOST_HOPPER_SCALE = 1.0


def flash_attn_fwd(call: AttentionCall, kernel: str = "flash_attn_fwd", **params: int) -> tuple[Launch, ...]:
    """Writes `out` and `lse`.

    kernel: "flash_attn_fwd_hopper" is that of flash_attn_fwd_hopper.py; where an address or the scale forbids it the
    other takes over. params: a tuned row's values instead of those of configs/triton/<kernel>.toml.
    """
    target = target_of(call.q.device)
    if kernel == "flash_attn_fwd_hopper":
        if call.softmax_scale <= _MOST_HOPPER_SCALE and all(map(is_aligned, (call.q, call.k, call.v))):
            from aiter_like.ops.attention.triton.flash_attn_fwd_hopper import attend as attend_on_hopper  # wants Gluon

            return attend_on_hopper(call, {**config(kernel, target.arch, width(call)), **params}, target)
        params = {}
    return attend(call, {**config("flash_attn_fwd", target.arch, width(call)), **params})
