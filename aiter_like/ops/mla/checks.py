# SPDX-License-Identifier: MIT
"""Checks of mla_decode, and refusals of its kernels."""

from __future__ import annotations

from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP
from aiter_like.ops.attention.call import FLOATS, FP8
from aiter_like.ops.attention.checks import MAX_ROWS, MIN_SCALE, fp8_refusal, mfma_refusal, scale_refusal
from aiter_like.ops.common import contents, plans
from aiter_like.ops.mla import plan
from aiter_like.ops.mla.call import MlaDecodeCall

OP = "mla_decode"
MOST_SPLITS = 1024

_WIDEST = 512, 128  # columns of the latent and of the rotated part that a tile holds


def check_call(call: MlaDecodeCall) -> object:
    """Checks a call by metadata, beyond annotations, before anything is written."""
    q, kv = call.q, call.kv
    dim, v_dim = q.shape[2], call.out.shape[2]
    if kv.dtype not in (q.dtype, *FP8) or q.dtype in FP8 and kv.dtype not in FP8:
        raise TypeError(f"{OP}: kv must have dtype {q.dtype} or fp8, got {kv.dtype}")
    if 0 in kv.shape[1:]:
        raise ValueError(f"{OP}: kv must not be empty, got shape {tuple(kv.shape)}")
    check.tensor(OP, "out", call.out, dtypes=FLOATS if q.dtype in FP8 else (q.dtype,))
    if not 0 < v_dim < dim:
        raise ValueError(f"{OP}: out must have fewer columns than q, whose last ones are rotated, got {v_dim} and "
                         f"{dim}")
    plans.check_plan(OP, call)
    if call.kv_last_page_lens is not None:
        check.tensor(OP, "kv_last_page_lens", call.kv_last_page_lens, shape=(call.batch,))
    for name, scale in (("q_scale", call.q_scale), ("kv_scale", call.kv_scale)):
        if scale is not None and scale.numel() != 1:
            raise ValueError(f"{OP}: {name} must have 1 element, got shape {tuple(scale.shape)}")
    _check_numbers(call)
    return SKIP if 0 in (q.numel(), call.batch, call.max_seqlen_q) else None


def _check_numbers(call: MlaDecodeCall) -> None:
    check.integer(OP, "max_seqlen_q", call.max_seqlen_q, low=0, high=MAX_ROWS)
    check.integer(OP, "num_kv_splits", call.num_kv_splits, low=0, high=MOST_SPLITS)
    check.integer(OP, "cp_world_size", call.cp_world_size, low=1)
    check.integer(OP, "cp_rank", call.cp_rank, low=0, high=call.cp_world_size - 1)
    check.real(OP, "softmax_scale", call.softmax_scale, low=MIN_SCALE)
    check.real(OP, "softcap", call.softcap, low=0.0)
    if call.cp_world_size > 1 and call.causal and call.g_kv_indptr is None:
        raise ValueError(f"{OP}: with cp_world_size {call.cp_world_size}, g_kv_indptr must be given")


def check_contents(op: str, q: Tensor, kv: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
                   last: Tensor | None, max_seqlen_q: int) -> None:
    """Rows and pages of sequences, where they are on the CPU, are within their tensors; in the words of function `op`.
    """
    for name, tensor in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr), ("kv_indices", kv_indices)):
        check.tensor(op, name, tensor, rank=1)
    contents.check_lengths(op, "qo_indptr", qo_indptr, len(q), max_seqlen_q, "max_seqlen_q")
    names = ("kv_indptr", "kv_indices", "kv_last_page_lens", "")
    contents.check_page_list(op, kv_indptr[:len(qo_indptr)], kv_indices, last if kv.shape[1] > 1 else None, kv, None,
                             names, has_holes=True)


def triton_refusal(target: Target, call: MlaDecodeCall) -> str | None:
    v_dim, rope_dim = call.out.shape[2], call.q.shape[2] - call.out.shape[2]
    if v_dim > _WIDEST[0] or rope_dim > _WIDEST[1]:
        return f"a latent of at most {_WIDEST[0]} columns and {_WIDEST[1]} rotated ones, got {v_dim} and {rope_dim}"
    return fp8_refusal(target, q=call.q, kv_buffer=call.kv) or scale_refusal(call.softmax_scale) or size_refusal(call)


def size_refusal(call: MlaDecodeCall) -> str | None:
    """Why no kernel can count the rows or keys of a call; None: each can."""
    if call.kv_indices.shape[0] * call.page_size > MAX_ROWS:
        return f"at most {MAX_ROWS} keys, got {call.kv_indices.shape[0]} pages of {call.page_size}"
    rows = call.max_seqlen_q * call.q.shape[1]
    programs = (call.work_indptr.shape[0] - 1) * plan.tiles_of(rows)
    if rows > MAX_ROWS or programs >= 2**31:
        return f"less than 2^31 workgroups, got {programs} for max_seqlen_q {call.max_seqlen_q}"
    return None


def ck_refusal(target: Target, call: MlaDecodeCall) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    if reason := mfma_refusal(target):
        return reason
    dim, v_dim = call.q.shape[2], call.out.shape[2]
    if dim % 32 or v_dim % 128 or dim > sum(_WIDEST) or v_dim > _WIDEST[0]:
        return (f"a latent of a multiple of 128 columns, {_WIDEST[0]} at most, and a multiple of 32 with the rotated "
                f"ones, {sum(_WIDEST)} at most, got {v_dim} and {dim}")
    for name, tensor, run in (("q", call.q, 8 * call.q.element_size()), ("kv_buffer", call.kv, 16)):
        steps = [step for size, step in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
        if any(step * tensor.element_size() % run for step in steps):
            return f"rows of {name} that begin at multiples of {run} bytes, got strides {tensor.stride()}"
    return triton_refusal(target, call)
