# SPDX-License-Identifier: MIT
"""Backend "hip" of paged_attention, and of unified_attention where sequences have a few queries each: which build of
csrc/attention/paged_attention.hip serves a call.
"""

from __future__ import annotations

import torch

from aiter_like import dtypes
from aiter_like.device import Target
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import FLOATS, FP8, PagedCall
from aiter_like.ops.attention.checks import MAX_ROWS, scale_refusal
from aiter_like.ops.attention.decode_call import MOST_QUERIES, with_scales
from aiter_like.ops.attention.paged_attention_call import (
    LEAST_KEYS,
    MOST_ROUNDS,
    PART_COST,
    PARTS_PER_CU,
    PagedAttentionCall,
)

_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fnuz: "fp8", torch.int8: "int8_t"}
_MOST_DIMS = 256
_MOST_ROWS, _WIDE_DIMS = 32, 192  # rows of a block, up to these head dimensions
_MOST_GRID = 2**30 - 1
_MOST_BATCH = 65535


def _rows(call: PagedAttentionCall) -> int:
    """Of a block: what a call has, or the most that registers hold."""
    is_wide = max(call.head_dim, call.head_dim_v) > _WIDE_DIMS
    return 16 if is_wide or call.max_seqlen_q * call.group <= 16 else _MOST_ROWS


def _instance(call: PagedAttentionCall) -> Instance:
    element, cache, out = (_ELEMENTS[tensor.dtype] for tensor in (call.q, call.k, call.out))
    has_terms = call.softcap > 0 or call.alibi_slopes is not None or call.tree_mask is not None
    has_token_scales, is_packed, rows = call.scales == "token", call.layout != "rows", _rows(call)
    name = "_".join((element, f"c{cache}", f"o{out}", f"d{call.head_dim}x{call.head_dim_v}", f"r{rows}", "packed" if is_packed else "rows",
                     "terms" if has_terms else "nterms", "scales" if has_token_scales else "nscales"))
    return Instance(name, {
        "ELEMENT": element, "CACHE_ELEMENT": cache, "OUT_ELEMENT": out, "HEAD_DIM": call.head_dim,
        "HEAD_DIM_V": call.head_dim_v, "BLOCK_ROWS": rows, "IS_PACKED": int(is_packed), "HAS_TERMS": int(has_terms),
        "HAS_TOKEN_SCALES": int(has_token_scales), "LEAST_KEYS": LEAST_KEYS, "PARTS_PER_CU": PARTS_PER_CU,
        "PART_COST": PART_COST, "MOST_ROUNDS": MOST_ROUNDS})


@compile_ops("attention/paged_attention.hip", gen_func=_instance, platforms=("hip",))
def paged_attention_hip(call: PagedAttentionCall) -> None: ...


def _decoding(call: PagedCall) -> PagedAttentionCall:
    """A call of unified_attention whose sequences have a few queries each, as one of paged_attention. Scales have one
    element, or [batch, num_kv_heads].
    """
    return with_scales(call, *((call.k_descale, call.v_descale) if call.k.dtype in FP8 else (None, None)))


def _unified_instance(call: PagedCall) -> Instance:
    return _instance(_decoding(call))


@compile_ops("attention/paged_attention.hip", gen_func=_unified_instance, platforms=("hip",))
def unified_attention_hip(call: PagedCall) -> None: ...


def unified_hip_refusal(target: Target, call: PagedCall) -> str | None:
    """What the kernel of decoding does not take of unified_attention's calls."""
    if call.max_seqlen_q > MOST_QUERIES:
        return f"a kernel for decoding: at most {MOST_QUERIES} queries of a sequence, got max_seqlen_q " \
               f"{call.max_seqlen_q}"
    if call.window_right != 0 and call.max_seqlen_q > 1:
        return f"causal where a sequence has several queries, got window_right {call.window_right}"
    if call.qq_bias is not None or call.sink_size > 0:
        return "no qq_bias and no sink tokens"
    if call.batch > _MOST_BATCH:
        return f"at most {_MOST_BATCH} sequences, got {call.batch}"
    return hip_refusal(target, _decoding(call))


def hip_refusal(target: Target, call: PagedAttentionCall) -> str | None:
    """What the kernel does not take."""
    if target.platform != "hip" or target.arch != "gfx942":
        return f"an MFMA kernel for gfx942, not for {target.arch}"
    return _dtypes_refusal(call) or _shapes_refusal(call) or scale_refusal(call.softmax_scale)


def _dtypes_refusal(call: PagedAttentionCall) -> str | None:
    if call.q.dtype not in FLOATS or call.q_scale is not None:
        return f"q of bf16 or fp16 without q_scale, got {dtypes.name(call.q.dtype)}"
    for name, tensor in (("k and v", call.k), ("out", call.out)):
        if tensor.dtype not in _ELEMENTS:
            return f"{name} of bf16, fp16, fp8 of gfx942 or int8, got {dtypes.name(tensor.dtype)}"
    return None


def _shapes_refusal(call: PagedAttentionCall) -> str | None:
    if call.layout == "rows" and call.v.stride(3) != 1:
        return f"rows of v whose last dimension is contiguous, got strides {call.v.stride()}"
    if call.layout != "rows" and (reason := _packs_refusal(call)):
        return reason
    for dim in (call.head_dim, call.head_dim_v):
        if dim % 32 or dim > _MOST_DIMS:
            return f"head dimensions must be multiples of 32, at most {_MOST_DIMS}, got {dim}"
    if call.block_table.shape[-1] * call.page_size > MAX_ROWS:
        return f"sequences of at most {MAX_ROWS} keys, got block_table of {call.block_table.shape[-1]} pages of " \
               f"{call.page_size}"
    if call.num_splits > 1024 or call.batch * max(call.num_splits, 1) * call.max_seqlen_q * call.num_heads > _MOST_GRID:
        return f"rows times parts of a launch at most {_MOST_GRID}, and 1024 parts, got num_splits {call.num_splits}"
    return None


def _packs_refusal(call: PagedAttentionCall) -> str | None:
    """What keeps packs of 16 bytes from being loaded whole."""
    pack = 16 // call.k.element_size()
    packs = {call.k.shape[4], call.v.shape[4] if call.v.ndim == 5 else pack}
    if packs != {pack} or call.v.ndim == 4 and call.v.stride(1) != 1:
        return f"packs of 16 bytes, {pack} elements of a key and {pack} keys of a column, got shapes " \
               f"{tuple(call.k.shape)} and {tuple(call.v.shape)}, strides of v {call.v.stride()}"
    if call.page_size % pack:
        return f"packed pages of a multiple of {pack} keys, got {call.page_size}"
    return None
