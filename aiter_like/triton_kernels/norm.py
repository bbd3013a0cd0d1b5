# SPDX-License-Identifier: MIT
"""Normalisation in Triton: bodies and launchers, named by the operators of ops/norm.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.triton_kernels.launch import launch

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64


@triton.jit
def _rms_norm_kernel(out, x, weight, out_stride, x_stride, hidden, epsilon, BLOCK: tl.constexpr,
                     IS_SINGLE_BLOCK: tl.constexpr, IS_MODEL_SENSITIVE: tl.constexpr):
    """out = x / sqrt(mean(x²) + epsilon) · weight for one row per program; bound: memory."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * x_stride
    out_row = out + row * out_stride
    columns = tl.arange(0, BLOCK)
    if IS_SINGLE_BLOCK:
        values = tl.load(x_row + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        total = tl.sum(values * values, 0)
    else:
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            inside = start + columns < hidden
            part = tl.load(x_row + start + columns, mask=inside, other=0.0).to(tl.float32)
            squares += part * part
        total = tl.sum(squares, 0)
    inverse_rms = tl.rsqrt(total / hidden + epsilon)
    if IS_SINGLE_BLOCK:
        scaled = values * inverse_rms
        if IS_MODEL_SENSITIVE:
            scaled = scaled.to(x.dtype.element_ty).to(tl.float32)
        w = tl.load(weight + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        tl.store(out_row + columns, (scaled * w).to(out.dtype.element_ty), mask=columns < hidden)
    else:
        for start in range(0, hidden, BLOCK):
            inside = start + columns < hidden
            scaled = tl.load(x_row + start + columns, mask=inside, other=0.0).to(tl.float32) * inverse_rms
            if IS_MODEL_SENSITIVE:
                scaled = scaled.to(x.dtype.element_ty).to(tl.float32)
            w = tl.load(weight + start + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(out_row + start + columns, (scaled * w).to(out.dtype.element_ty), mask=inside)


def rms_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float,
             use_model_sensitive_rmsnorm: int) -> None:
    """Same arguments as the operator's other backends; writes `out`."""
    hidden = input.shape[-1]
    block = min(triton.next_power_of_2(hidden), _MAX_BLOCK)
    num_warps = min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    x_rows, out_rows = input.view(-1, hidden), out.view(-1, hidden)
    launch(_rms_norm_kernel, (x_rows.shape[0],), out_rows, x_rows, weight, out_rows.stride(0), x_rows.stride(0), hidden,
           float(epsilon), BLOCK=block, IS_SINGLE_BLOCK=hidden <= block,
           IS_MODEL_SENSITIVE=bool(use_model_sensitive_rmsnorm), options={"num_warps": num_warps})
