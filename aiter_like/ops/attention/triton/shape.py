# SPDX-License-Identifier: MIT
"""The constants that the Triton attention kernel is compiled for, and the number of parts of a call's keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from aiter_like.device import target_of
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.triton.strides import strides_of_bias, strides_of_rows
from aiter_like.ops.common.triton.launch import power_of_2
from aiter_like.traced import exactly

_WIDEST_ROW = 2**22  # elements between rows of which a tile of 256 spans less than 2^30
_MOST_SPLITS = 64
_KEYS_PER_SPLIT = 256  # below, adding the parts costs more than another program gains


@dataclass(frozen=True)
class Shape:
    """The kernel's one constexpr argument. Optional tensors show as None.

    Attributes:
        M, N: rows and keys of a tile of scores.
        HEAD_DIM, HEAD_DIM_V: columns of q and k, of v and out.
        D, D_TAIL: columns of the first and the second product of q and k, padded; D_TAIL 0: there is no second.
        DV: columns of the product with v, padded.
        PACK: rows of a tile that are heads of one group at the same position; 1: a tile has one head.
        XCDS: chiplets to which the hardware deals workgroups in turn; each gets a contiguous chunk of the work.
        PAGE: keys of a page.
        X: elements that lie together: of a key's columns, and of one column of the values; 0: rows do.
        IS_WIDE: offsets inside a tile need 64 bits.
        IS_SPLIT: a program sees a part of the keys only.
        HAS_BOXES: the interior is loaded by tensor descriptors (on NVIDIA: TMA).
        IS_QQ_BIAS: the bias is one matrix for all sequences, between the queries and the keys of the same tokens.
        ROUNDING: of P and out, a value of how_v3_bf16_cvt.
    """

    M: int
    N: int
    HEAD_DIM: int
    HEAD_DIM_V: int
    D: int
    D_TAIL: int
    DV: int
    PACK: int = 1
    XCDS: int = 1
    PAGE: int = 0
    X: int = 0
    IS_WIDE: bool = False
    IS_SPLIT: bool = False
    IS_QQ_BIAS: bool = False
    HAS_LEFT: bool = False
    HAS_RIGHT: bool = False
    HAS_SINK_TOKENS: bool = False
    HAS_SOFTCAP: bool = False
    ROUNDING: int = 0
    HAS_BOXES: bool = False


def shape_of(call: AttentionCall, settings: dict[str, int], block_table: torch.Tensor | None) -> Shape:
    """The shape of a call, without boxes and splits."""
    group, block_m = exactly(call.num_heads) // exactly(call.num_kv_heads), settings["BLOCK_M"]
    is_short = call.max_seqlen_q < block_m or block_table is not None  # a batch with pages has sequences of one query
    pack = group if is_short and call.dropout_p == 0 else 1  # dropout counts by head
    padded, least = power_of_2(call.head_dim), 32 if call.q.element_size() == 1 else 16  # NVIDIA's least K
    rest = max(power_of_2(max(call.head_dim - padded // 2, 1)), least)
    d, tail = (padded // 2, rest) if rest < padded // 2 else (max(padded, least), 0)
    bias_strides = strides_of_bias(call.bias)
    row_strides = [*(strides_of_rows(tensor)[1] for tensor in (call.q, call.k, call.v, call.out)), bias_strides[1]]
    head_strides = [*(strides_of_rows(tensor)[2] for tensor in (call.q, call.out)), bias_strides[2]]
    return exactly(Shape(
        M=min(block_m, max(16, power_of_2(call.max_seqlen_q * pack))), N=settings["BLOCK_N"],
        HEAD_DIM=call.head_dim, HEAD_DIM_V=call.head_dim_v, D=d, D_TAIL=tail, DV=max(power_of_2(call.head_dim_v), 16),
        PACK=pack, XCDS=settings.get("XCDS", 1), PAGE=0 if block_table is None else call.k.shape[1],
        X=call.k.shape[4] if call.k.ndim == 5 else 0,
        IS_WIDE=any(step > _WIDEST_ROW for step in row_strides) or any(pack * step > 2**30 for step in head_strides),
        IS_QQ_BIAS=block_table is not None, HAS_LEFT=0 <= call.window_left < call.max_seqlen_k,
        HAS_RIGHT=0 <= call.window_right < call.max_seqlen_q - 1, HAS_SINK_TOKENS=call.sink_size > 0,
        HAS_SOFTCAP=call.softcap > 0, ROUNDING=call.rounding))


def splits_of(call: AttentionCall, num_blocks: int, programs: int, block_n: int) -> int:
    """Parts of the keys: as asked for, else enough for two programs on each CU where a head has one block of rows."""
    target = target_of(call.q.device)
    wanted = call.num_splits
    if not wanted:
        wanted = min(2 * target.cu_num // programs, call.max_seqlen_k // _KEYS_PER_SPLIT) if num_blocks == 1 else 1
    return max(min(wanted, triton.cdiv(call.max_seqlen_k, block_n), _MOST_SPLITS), 1)
