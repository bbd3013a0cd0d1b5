# SPDX-License-Identifier: MIT
"""Backend "hip" of paged_attention, and of unified_attention where sequences have a few queries each: which build of
csrc/attention/paged_attention.hip serves a call.
"""

from __future__ import annotations

import torch

from aiter_like import dtypes
from aiter_like.device import Target, arch_facts
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import FLOATS, FP8, PagedCall
from aiter_like.ops.attention.checks import MAX_ROWS, mfma_refusal, scale_refusal
from aiter_like.ops.attention.decode_call import MOST_QUERIES, with_scales
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall, splitting

_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fnuz: "fp8", torch.int8: "int8_t"}
_MOST_DIMS = 256
_MOST_ROWS, _WIDE_DIMS = 32, 192  # rows of a block, up to these head dimensions
_MOST_GRID = 2**30 - 1
_MOST_BATCH = 65535


def _rows(call: PagedAttentionCall) -> int:
    """Rows of a block: as many as a call has, or the most that registers hold."""
    is_wide = max(call.head_dim, call.head_dim_v) > _WIDE_DIMS
    return 16 if is_wide or call.max_seqlen_q * call.group <= 16 else _MOST_ROWS


def _form(call: PagedAttentionCall) -> str:
    """The layout in csrc/attention/paged_attention_tiles.h: rows and packs are loaded 16 bytes at a time, elements of
    whatever strides and head dimensions one by one.
    """
    pack, is_whole = 16 // call.k.element_size(), call.head_dim % 32 == call.head_dim_v % 32 == 0
    if call.layout == "rows":
        return "Rows" if is_whole and call.v.stride(3) == 1 else "Elements"
    v_is_packed = call.v.shape[4] == pack if call.v.ndim == 5 else call.v.stride(1) == 1
    is_packed = call.k.shape[4] == pack and call.page_size % pack == 0 and v_is_packed
    return "Packed" if is_whole and is_packed else "Elements"


def _instance(call: PagedAttentionCall) -> Instance:
    query, cache, out = (_ELEMENTS[tensor.dtype] for tensor in (call.q, call.k, call.out))
    element = query if call.q.dtype in FLOATS else "f16" if call.out.dtype == torch.float16 else "bf16"
    has_terms = call.softcap > 0 or call.alibi_slopes is not None or call.tree_mask is not None
    has_token_scales, has_query_scale = call.scales == "token", call.q_scale is not None
    model = splitting(arch_facts("gfx942"))
    dims, rows, form = [-(-dim // 32) * 32 for dim in (call.head_dim, call.head_dim_v)], _rows(call), _form(call)
    name = "_".join((element, f"q{query}", f"c{cache}", f"o{out}", f"d{dims[0]}x{dims[1]}", f"r{rows}", form.lower(),
                     "terms" if has_terms else "nterms", "scales" if has_token_scales else "nscales",
                     "qscale" if has_query_scale else "nqscale"))
    return Instance(name, {
        "ELEMENT": element, "QUERY_ELEMENT": query, "CACHE_ELEMENT": cache, "OUT_ELEMENT": out, "HEAD_DIM": dims[0],
        "HEAD_DIM_V": dims[1], "BLOCK_ROWS": rows, "PAGE_FORM": f"k{form}", "HAS_TERMS": int(has_terms),
        "HAS_TOKEN_SCALES": int(has_token_scales), "HAS_QUERY_SCALE": int(has_query_scale),
        "LEAST_KEYS": model.least_keys, "PARTS_PER_CU": model.parts_per_cu, "PART_COST": model.part_keys,
        "MOST_ROUNDS": model.most_rounds})


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
    """Says why the kernel for decoding does not take a call of unified_attention."""
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
    """Says why the kernel does not take a call."""
    return mfma_refusal(target) or _dtypes_refusal(call) or _shapes_refusal(call) or scale_refusal(call.softmax_scale)


def _dtypes_refusal(call: PagedAttentionCall) -> str | None:
    for name, tensor in (("q", call.q), ("k and v", call.k), ("out", call.out)):
        if tensor.dtype not in _ELEMENTS:
            return f"{name} of bf16, fp16, fp8 of gfx942 or int8, got {dtypes.name(tensor.dtype)}"
    if call.scales == "token" and call.k.dtype == torch.float16:
        return "scales of keys of bf16, fp8 or int8, whose products with probabilities do not fit fp16"
    return None


def _shapes_refusal(call: PagedAttentionCall) -> str | None:
    if max(call.head_dim, call.head_dim_v) > _MOST_DIMS:
        return f"head dimensions at most {_MOST_DIMS}, got {call.head_dim} and {call.head_dim_v}"
    if call.block_table.shape[-1] * call.page_size > MAX_ROWS:
        return f"sequences of at most {MAX_ROWS} keys, got block_table of {call.block_table.shape[-1]} pages of " \
               f"{call.page_size}"
    if call.num_splits > 1024 or call.batch * max(call.num_splits, 1) * call.max_seqlen_q * call.num_heads > _MOST_GRID:
        return f"rows times parts of a launch at most {_MOST_GRID}, and 1024 parts, got num_splits {call.num_splits}"
    return None
