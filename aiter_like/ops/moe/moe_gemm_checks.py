# SPDX-License-Identifier: MIT
"""Checks of a call of moe_gemm. Read by moe_gemm.py."""

from __future__ import annotations

import torch

from aiter_like import check
from aiter_like.dispatch import SKIP
from aiter_like.ops.common import elements, quant_rule
from aiter_like.ops.gemm import problems
from aiter_like.ops.gemm.parts import ACTIVATIONS, GATED
from aiter_like.ops.moe.moe_formats import FORMATS, INT4, MXFP4_GROUP, SCALE_BLOCK, per_byte
from aiter_like.ops.moe.moe_gemm_call import SWIGLU, MoeGemmCall, blocks, has_block_scales, is_gated, pair_count

_OP = "moe_gemm"
_SHUFFLED_ROWS, _SHUFFLED_BYTES = 16, 32  # shuffle_weight moves so much at a time
_MOST_BLOCK = 256
_PER_WORD = 8  # weights of int4_words


def check_call(call: MoeGemmCall) -> object:
    """Checks what the annotations of a call do not say."""
    a, b, out = call.a, call.b, call.out
    check.choice(_OP, "activation", call.activation, (*ACTIVATIONS, *GATED, SWIGLU))
    check.choice(_OP, "b_format", call.b_format, FORMATS)
    check.real(_OP, "limit", call.limit, low=0)
    check.integer(_OP, "slots", call.slots, low=1, high=127)
    check.integer(_OP, "block", call.block, low=1, high=_MOST_BLOCK)
    problems.check_fp8(_OP, a)
    pairs, columns = pair_count(call), out.shape[1]
    if a.shape[0] != pairs and a.shape[0] * call.slots != pairs:
        raise ValueError(f"{_OP}: a must have {pairs} rows, one for each pair, or {pairs // call.slots}, one for each "
                         f"token, got {a.shape[0]}")
    if any(size >= 2**31 for size in (pairs, a.shape[0])):
        raise ValueError(f"{_OP}: out must have less than 2^31 pairs, got {pairs}")
    _check_weights(call, columns * (2 if is_gated(call.activation) else 1))
    _check_order(call, pairs)
    return SKIP if out.numel() == 0 or b.shape[0] == 0 else None


def _check_weights(call: MoeGemmCall, n: int) -> None:
    """The experts' matrices, their scales and biases."""
    a, b, k = call.a, call.b, call.a.shape[1]
    is_wide = a.dtype in problems.SIXTEEN_BITS
    if call.b_format != "same" and not is_wide and (call.b_format not in INT4 or a.dtype not in elements.FP8):
        accepted = "16 bits or fp8" if call.b_format in INT4 else "16 bits"
        raise TypeError(f"{_OP}: a must have {accepted} where b_format is {call.b_format}, got {a.dtype}")
    if k % per_byte(call.b_format):
        raise ValueError(f"{_OP}: a must have an even last dimension, as two weights are in a byte, got {k}")
    if call.b_format == "int4_words" and k % _PER_WORD:
        raise ValueError(f"{_OP}: a must have a last dimension of whole {_PER_WORD}, which are in a word of b, got {k}")
    dtype = {"same": (a.dtype,), "mxfp4": (torch.uint8,), "fp8": elements.FP8}.get(call.b_format, (torch.int8,))
    check.tensor(_OP, "b", b, dtypes=dtype, shape=(None, n, k // per_byte(call.b_format)), last_contiguous=False)
    if call.b_format == "fp8":
        problems.check_fp8(_OP, b, "b")
    stored = b.shape[2] * b.element_size()
    if call.is_shuffled and (n % _SHUFFLED_ROWS or stored % _SHUFFLED_BYTES or not b.is_contiguous()):
        raise ValueError(f"{_OP}: shuffled, b must be contiguous with n % {_SHUFFLED_ROWS} == 0 and rows of whole "
                         f"{_SHUFFLED_BYTES} bytes, got shape {tuple(b.shape)}, strides {b.stride()}")
    if call.is_interleaved and not is_gated(call.activation):
        raise ValueError(f"{_OP}: is_interleaved must be False without the activation of a gate")
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, shape=(b.shape[0], n))
    _check_scales(call, n)


def _check_scales(call: MoeGemmCall, n: int) -> None:
    a, b, (rows, k) = call.a, call.b, call.a.shape
    is_wide, is_plain = a.dtype in problems.SIXTEEN_BITS, call.b_format == "same"
    has_blocks = (a if is_plain else b).dtype in elements.FP8
    accepted = ((0, SCALE_BLOCK) if has_blocks else (0,) if is_plain or not is_wide
                else (MXFP4_GROUP,) if call.b_format == "mxfp4" else (0, *quant_rule.GROUPS))
    check.choice(_OP, "group_size", call.group_size, accepted)
    for name, scale, is_wanted in (("a_scale", call.a_scale, not is_wide),
                                   ("b_scale", call.b_scale, not (is_wide and is_plain))):
        if (scale is not None) != is_wanted:
            wanted = "a tensor" if is_wanted else "None"
            raise ValueError(f"{_OP}: {name} must be {wanted} where a has {a.dtype} and b_format is {call.b_format}, "
                             f"got {type(scale).__name__}")
    if call.b_scale is None:
        return
    dtypes_of = ((torch.uint8,) if call.b_format == "mxfp4" else (torch.float32, a.dtype) if is_wide
                 else (torch.float32,))
    shape = (b.shape[0], n) if call.group_size == 0 else (b.shape[0], n, -(-k // call.group_size))
    if has_block_scales(call):
        shape = (b.shape[0], blocks(n), blocks(k))
    check.tensor(_OP, "b_scale", call.b_scale, dtypes=dtypes_of, shape=shape, last_contiguous=False)
    if call.a_scale is not None:
        check.tensor(_OP, "a_scale", call.a_scale, shape=(rows, blocks(k)) if call.group_size else (rows,),
                     last_contiguous=False)


def _check_order(call: MoeGemmCall, pairs: int) -> None:
    """Checks the tensors that say which pairs belong to which expert."""
    places = pairs
    if call.sorted_ids is None:
        if call.block != 1 or call.valid is not None or call.experts.shape[0] != pairs:
            raise ValueError(f"{_OP}: without sorted_ids block must be 1, valid None and experts of {pairs} elements, "
                             f"got {call.block}, {type(call.valid).__name__} and {call.experts.shape[0]}")
    else:
        if call.sums_slots:
            raise ValueError(f"{_OP}: sums_slots must be False with sorted_ids")
        check.dense(_OP, "valid", call.valid)
        if call.valid.shape[0] < 1:
            raise ValueError(f"{_OP}: valid must have an element, got none")
        places = call.sorted_ids.shape[0]
    if call.weights is not None and call.weights.shape[0] < places:
        raise ValueError(f"{_OP}: weights must have at least {places} elements, got {call.weights.shape[0]}")
