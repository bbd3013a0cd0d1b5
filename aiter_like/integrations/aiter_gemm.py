# SPDX-License-Identifier: MIT
"""AITER's matrix products that have other parameters than `aiter_like.gemm_a16w16`. Named by aiter_names.txt."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like.errors import UnsupportedError


def mm(inp: Tensor, weights: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None,
       scale_a: Tensor | None = None, scale_b: Tensor | None = None, scale_c: Tensor | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` as `tgemm.mm`."""
    return aiter_like.gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


def gemm_a16w16_triton(x: Tensor, w: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16,
                       y: Tensor | None = None, config: dict | None = None, activation: str | None = None,
                       skip_reduce: bool = False, kernel_type: str = "bandwidth_bound",
                       backend: str | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` as AITER's Triton module has it; `config`, `kernel_type` and `backend`, which choose
    among its own kernels, have no meaning here.

    Raises:
        UnsupportedError: `skip_reduce` asks for the partial sums of its kernel.
    """
    if skip_reduce:
        raise UnsupportedError("gemm_a16w16: skip_reduce must be False, partial sums are not returned, got True",
                               "gemm_a16w16")
    return aiter_like.gemm_a16w16(x, w, bias, dtype if y is None else None, activation=activation, out=y)


def gemm_a16w16_asm(A: Tensor, B: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int | None = None,
                    kernelName: str | None = None, bpreshuffle: bool = False) -> Tensor:
    """`aiter_like.gemm_a16w16` into `out`, with `bpreshuffle` on weights in the order of `shuffle_weight`, marked or
    not; `splitK` and `kernelName`, which choose among AITER's kernels, have no meaning here.

    Raises:
        ValueError: the weights are marked as shuffled and `bpreshuffle` is False.
    """
    if bpreshuffle != bool(getattr(B, "is_shuffled", False)):
        if not bpreshuffle:
            raise ValueError("gemm_a16w16_asm: B must not be shuffled without bpreshuffle, got a result of "
                             "shuffle_weight")
        B = B.detach()  # another tensor of the same memory: the mark is this call's
        B.is_shuffled = True
    return aiter_like.gemm_a16w16(A, B, bias, out=out)


def gemm_a8w8_CK(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                 dtype: torch.dtype = torch.bfloat16, splitK: int | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8`, by whichever backend serves."""
    return aiter_like.gemm_a8w8(XQ, WQ, x_scale, w_scale, bias, dtype, splitK)


def gemm_a8w8_ASM(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None,
                  dtype: torch.dtype = torch.bfloat16, check: bool = False) -> Tensor:
    """`aiter_like.gemm_a8w8_bpreshuffle` in the layout that `shuffle_weight` marked the weights with: AITER documents
    (32, 16) and tests (16, 16).

    Raises:
        ValueError: the weights have lost the mark.
    """
    if getattr(WQ, "shuffle_layout", None) is None:
        raise ValueError("gemm_a8w8_ASM: WQ must be as shuffle_weight returns it, whose attribute shuffle_layout tells "
                         "the layout, got none; gemm_a8w8_bpreshuffle takes weights without it, and layout=")
    return aiter_like.gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, bias, dtype, check)


def batched_gemm_bf16_triton(XQ: Tensor, WQ: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16,
                             splitK: int | None = None, YQ: Tensor | None = None, config: dict | None = None,
                             kernel_type: str = "bandwidth_bound", backend: str | None = None) -> Tensor:
    """`aiter_like.batched_gemm_bf16` as AITER's Triton module has it; `config`, `kernel_type` and `backend`, which
    choose among its own kernels, have no meaning here.
    """
    return aiter_like.batched_gemm_bf16(XQ, WQ, bias, dtype if YQ is None else YQ.dtype, splitK, out=YQ)
