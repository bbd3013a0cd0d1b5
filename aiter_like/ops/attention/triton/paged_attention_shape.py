# SPDX-License-Identifier: MIT
"""The constants that the Triton kernels of paged_attention are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aiter_like.device import Target, facts_of
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall, Parts, splitting
from aiter_like.ops.common.triton.launch import power_of_2
from aiter_like.traced import exactly

_MOST_SUMS = 4096  # sums of a tile of rows, in the registers of one wave
_BRIEF = 2048  # keys of a part
_SEQUENCES = (64, 256, 1024)  # a program looks at so many together: the fewest that are all, or the most


@dataclass(frozen=True)
class Shape:
    """The constants that the kernels are compiled for. Optional tensors show as None.

    Attributes:
        M, N: rows and keys of a tile of scores.
        W: waves of which each has N / W of the keys, and sums of its own until the end; 1: all have all keys.
        AXES: of a tile.
        HEAD_DIM, HEAD_DIM_V, D, D_TAIL, DV: as of shape.py.
        GROUP: query heads of a KV head; rows of a tile are those of one position, then of the next one.
        PAGE: keys of a page.
        X, Y: elements of a key that lie together, and keys of a column of V; 0: none do.
        IS_ALIKE: K and V have the same strides, so that a key and its value have the same offset.
        IN_PAIRS: columns of V are loaded two by two, as one element of 16 bits: transposing loads have no others.
        BATCH: sequences that a program looks at together; IS_ONE_BLOCK: that is all.
        LEAST: keys of a part, see Parts.
        IS_SPLIT: a sequence may have several parts.
        IS_SHARED: their number follows from the lengths.
        IS_CAUSAL: a sequence may have several rows.
        K_BY_TOKEN, V_BY_TOKEN: each key and head has a scale of its own.
    """

    M: int
    N: int
    W: int
    AXES: int
    HEAD_DIM: int
    HEAD_DIM_V: int
    D: int
    D_TAIL: int
    DV: int
    GROUP: int
    PAGE: int
    X: int
    Y: int
    IS_ALIKE: bool
    IN_PAIRS: bool
    BATCH: int
    IS_ONE_BLOCK: bool
    LEAST: int
    IS_SPLIT: bool
    IS_SHARED: bool
    IS_CAUSAL: bool
    HAS_LEFT: bool
    HAS_SOFTCAP: bool
    K_BY_TOKEN: bool
    V_BY_TOKEN: bool


def width(call: PagedAttentionCall) -> str:
    """The name of a configuration: padded head dimensions."""
    return f"d{max(power_of_2(max(exactly((call.head_dim, call.head_dim_v)))), 32)}"


def variant(call: PagedAttentionCall, target: Target, parts: Parts) -> str:
    """The name of a configuration: `width`, and on NVIDIA how an SM's programs share it.

    "brief": an SM has several programs of few keys each, of which one begins while another ends. "single": parts of
    sequences are no more than SMs, and each has an SM's memory for its tiles. "short": such of a few tiles.
    """
    name = width(call)
    each = max(parts.share // max(call.batch, 1), 1) if parts.share else parts.most
    is_known = name == "d128" and call.k.dtype.itemsize == 2 and call.max_seqlen_q * call.group <= 32
    if target.platform != "cuda" or not is_known or call.max_seqlen_k > _BRIEF * each:
        return name
    if call.batch * call.num_kv_heads * each > target.cu_num:
        return f"{name}_brief"
    if not parts.slots:
        return name
    return f"{name}_short" if call.max_seqlen_k <= splitting(facts_of(target)).least_keys * each else f"{name}_single"


def shape_of(call: PagedAttentionCall, settings: dict[str, int], parts: Parts) -> Shape:
    padded = max(power_of_2(call.head_dim), 16)
    rest = max(power_of_2(max(call.head_dim - padded // 2, 1)), 16)
    d, tail = (padded // 2, rest) if rest < padded // 2 else (padded, 0)
    rows = max(16, power_of_2(call.max_seqlen_q * call.group))
    block = next((size for size in _SEQUENCES if call.batch <= size), _SEQUENCES[-1])
    m, dv = min(settings["BLOCK_M"], rows), max(power_of_2(call.head_dim_v), 16)
    waves = settings["num_warps"] if m * dv <= _MOST_SUMS and settings["BLOCK_N"] >= 16 * settings["num_warps"] else 1
    return exactly(Shape(
        M=m, N=settings["BLOCK_N"], W=waves, AXES=2 if waves == 1 else 3, HEAD_DIM=call.head_dim,
        HEAD_DIM_V=call.head_dim_v, D=d, D_TAIL=tail, DV=dv, GROUP=call.group, PAGE=call.page_size,
        X=call.k.shape[4] if call.k.ndim == 5 else 0, Y=call.v.shape[4] if call.v.ndim == 5 else 0,
        IS_ALIKE=call.k.ndim == 4 and call.k.stride() == call.v.stride() and call.k.dtype.itemsize == 2,
        IN_PAIRS=_is_in_pairs(call),
        BATCH=block, IS_ONE_BLOCK=call.batch <= block, LEAST=parts.least,
        IS_SPLIT=parts.slots > 0, IS_SHARED=call.num_splits == 0, IS_CAUSAL=call.max_seqlen_q > 1,
        HAS_LEFT=call.window_left >= 0, HAS_SOFTCAP=call.softcap > 0,
        K_BY_TOKEN=_is_by_token(call.k_scale), V_BY_TOKEN=_is_by_token(call.v_scale)))


def scale_strides(scale: torch.Tensor | None) -> tuple[int, ...]:
    """Strides of page, place and head, or row and head; zeros for one number."""
    return (0, 0, 0) if scale is None or scale.numel() == 1 else scale.stride()


def _is_by_token(scale: torch.Tensor | None) -> bool:
    return scale is not None and scale.numel() > 1


def _is_in_pairs(call: PagedAttentionCall) -> bool:
    v = call.v
    rows = v.ndim == 4 and v.dtype.itemsize == 1 and v.stride(3) == 1 and call.head_dim_v % 2 == 0
    return rows and call.head_dim_v >= 32 and not any(stride % 2 for stride in v.stride()[:3]) and not v.data_ptr() % 2
