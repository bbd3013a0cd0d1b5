# SPDX-License-Identifier: MIT
"""Backend "ck" of unified_attention, for sequences of many queries: which build of csrc/attention/
unified_attention.hip serves a call, and in which of its two pipelines.
"""

from __future__ import annotations

import torch

from aiter_like import dtypes
from aiter_like.device import Target
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.checks import ALIGNMENT, MAX_ROWS, mfma_refusal, scale_refusal
from aiter_like.ops.attention.flash_attn_fwd_hip import HEAD_DIMS, MASKS

_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16"}
_HEAD_DIMS = (64, 128, 256)
_MAX_ROW_STRIDE = 2**23 - 1  # 64 rows within 31 bits of bytes
_MAX_PAGE_BYTES = 2**31 - 1  # from page to page, and within one
_MAX_GRID = 65535
_TURNS_PAGE = 16  # keys that a wave of these moves at once
_MAX_PLACE_STRIDE = 2**24  # elements, as flash_attn_fwd's rows


def takes_turns(call: PagedCall) -> bool:
    """Whether the pipeline whose groups of waves take turns can serve a call."""
    head_dim = call.q.shape[2]
    if head_dim not in HEAD_DIMS or call.page_size % _TURNS_PAGE or call.features or call.sink_size > 0:
        return False
    for tensor in (call.q, call.k, call.v, call.out):
        strides = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
        if any(tensor.element_size() * stride % ALIGNMENT for stride in strides):
            return False
    places = (call.k.stride(1), call.v.stride(1))
    return head_dim <= min(places) and max(places) < _MAX_PLACE_STRIDE


def _instance(call: PagedCall) -> Instance:
    if takes_turns(call):
        mask = "both" if call.window_left >= 0 else "right" if call.window_right >= 0 else "none"
        element, head_dim = _ELEMENTS[call.q.dtype], call.q.shape[2]
        return Instance(f"{element}_d{head_dim}_turns_{mask}", {
            "ELEMENT": element, "HEAD_DIM": head_dim, "MASK": MASKS.index(mask)})
    return _tile_instance(call)


def _tile_instance(call: PagedCall) -> Instance:
    element, head_dim, is_masked = _ELEMENTS[call.q.dtype], call.q.shape[2], call.mask != "none"
    has_alibi, has_softcap = call.alibi_slopes is not None, call.softcap > 0
    waves = 4 if head_dim <= 128 else 8  # O and the scores of 32 rows, or of 16, fit half of the registers
    name = "_".join((element, f"d{head_dim}", f"w{waves}", "mask" if is_masked else "nmask",
                     "alibi" if has_alibi else "nalibi", "cap" if has_softcap else "ncap"))
    return Instance(name, {
        "ELEMENT": element, "HEAD_DIM": head_dim, "NUM_WAVES": waves, "IS_MASKED": is_masked, "HAS_ALIBI": has_alibi,
        "HAS_SOFTCAP": has_softcap})


@compile_ops("attention/unified_attention.hip", gen_func=_instance, platforms=("hip",))
def unified_attention_ck(call: PagedCall) -> None: ...


def unified_ck_refusal(target: Target, call: PagedCall) -> str | None:
    """Says why the kernel does not take a call."""
    return mfma_refusal(target) or _dtypes_refusal(call) or _shapes_refusal(call) or scale_refusal(call.softmax_scale)


def _dtypes_refusal(call: PagedCall) -> str | None:
    for name, tensor in (("q", call.q), ("k and v", call.k), ("out", call.out)):
        if tensor.dtype not in _ELEMENTS:
            return f"{name} of bf16 or fp16, got {dtypes.name(tensor.dtype)}"
    if call.sink is not None and call.sink.dtype != torch.float32:
        return f"sinks of float32, got {dtypes.name(call.sink.dtype)}"
    return "no qq_bias" if call.qq_bias is not None else None


def _shapes_refusal(call: PagedCall) -> str | None:
    if call.is_shuffled:
        return "pages of rows"
    if call.q.shape[2] not in _HEAD_DIMS or call.v.shape[3] != call.q.shape[2]:
        return f"one head dimension of {', '.join(map(str, _HEAD_DIMS))}, got {call.q.shape[2]} and {call.v.shape[3]}"
    if any(size > _MAX_GRID for size in (call.batch, call.q.shape[1])):
        return f"at most {_MAX_GRID} sequences and heads, got {call.batch} and {call.q.shape[1]}"
    if any(size > MAX_ROWS for size in (call.q.shape[0], call.block_table.shape[-1] * call.page_size)):
        return f"sequences of at most {MAX_ROWS}, got {call.q.shape[0]} rows of q, block_table of " \
               f"{call.block_table.shape[-1]} pages of {call.page_size}"
    for name, pages in (("k", call.k), ("v", call.v)):
        apart = pages.stride(0) if pages.shape[0] > 1 else 0
        span = sum((size - 1) * stride for size, stride in zip(pages.shape[1:], pages.stride()[1:])) + 1
        if max(apart, span) * pages.element_size() > _MAX_PAGE_BYTES:
            return f"pages of {name} at most {_MAX_PAGE_BYTES} bytes apart, and spanning no more, got strides " \
                   f"{pages.stride()}"
    for name, tensor in (("q", call.q), ("out", call.out)):
        if tensor.shape[0] > 1 and not tensor.shape[2] <= tensor.stride(0) <= _MAX_ROW_STRIDE:
            return f"row stride of {name} from {tensor.shape[2]} to {_MAX_ROW_STRIDE} elements, got {tensor.stride(0)}"
    return None
