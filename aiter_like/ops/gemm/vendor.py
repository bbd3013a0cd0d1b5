# SPDX-License-Identifier: MIT
"""Products by the library of the GPU's vendor (hipBLASLt, cuBLAS), by way of torch: a candidate of the dispatcher."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.device import Target, model_of


class Sizes(NamedTuple):
    """Numbers of configs/gfx942/gemm.toml and configs/sm_90/gemm.toml."""

    least_rows: int


class ScaledSizes(NamedTuple):
    """Numbers of configs/sm_90/gemm.toml."""

    least_rows: int
    tile: int
    least_tiles: int


def is_ahead(m: int, target: Target) -> bool:
    """Whether the library is expected to be the fastest for a product of 16 bits with `m` rows."""
    return target.arch in ("gfx942", "sm_90") and m >= model_of(target.arch, "gemm.vendor", Sizes).least_rows


def prefers_scaled(target: Target, call: Any) -> str | None:
    """The backend of a product of fp8 that no row was tuned for: the library with one scale for each operand always,
    else where its tiles fill enough SMs; kernels of ours that split the depth are faster before."""
    if target.arch != "sm_90":
        return None
    (m, n), sizes = call.out.shape, model_of("sm_90", "gemm.vendor_scaled", ScaledSizes)
    has_tiles = m >= sizes.least_rows and -(-m // sizes.tile) * -(-n // sizes.tile) >= sizes.least_tiles
    return "vendor" if call.a_scale.numel() == 1 or has_tiles else None


def refusal(a: Tensor, out: Tensor, bias: Tensor | None, *rest: Tensor | None, activation: str = "none") -> str | None:
    """Why the library does not serve a product of 16 bits: it rounds before anything that follows but a bias."""
    if activation != "none" or any(one is not None for one in rest):
        return "the vendor's library has no activation and no residual"
    if out.dtype != a.dtype or bias is not None and bias.dtype != a.dtype:
        return "the vendor's library has out and bias in the dtype of a"
    return None


def linear(call: Any) -> None:
    """Writes out [m, n] = a [m, k] · b [n, k]ᵀ + bias [n]."""
    if call.bias is None:
        torch.mm(call.a, call.b.t(), out=call.out)
    else:
        torch.addmm(call.bias, call.a, call.b.t(), out=call.out)


def bmm(call: Any) -> None:
    """Writes out [batch, m, n] = a [batch, m, k] · b [batch, n, k]ᵀ + bias [batch, n]."""
    if call.bias is None:
        torch.bmm(call.a, call.b.mT, out=call.out)
    else:
        torch.baddbmm(call.bias[:, None], call.a, call.b.mT, out=call.out)


def block_refusal(target: Target, call: Any) -> str | None:
    """Why the library does not serve a product of fp8 with scales of blocks: it is asked on Hopper alone."""
    operands, out = (call.a, call.b, call.out), call.out
    if target.arch != "sm_90" or call.is_preshuffled:
        return "the vendor's library is asked for scales of blocks on Hopper alone, and for weights in rows"
    if call.a.shape[0] % 8 or call.a.shape[1] % 512 or out.shape[1] % 128 or not all(
            one.is_contiguous() for one in operands):
        return ("the vendor's library has contiguous operands in whole blocks, of the depth four of them, and a number "
                "of rows that is a multiple of 8")
    return None if out.dtype == torch.bfloat16 else "the vendor's library is asked for out in bf16"


def block_scaled(call: Any) -> None:
    """Writes out [m, n] = a [m, k] · b [n, k]ᵀ of fp8, blocks of 1 × 128 and 128 × 128 times their scales. It reads the
    scales of `a` a block of the depth after the other, and those of `b` in rows: others are copied.
    """
    torch._scaled_mm(call.a, call.b.t(), call.a_scale.t().contiguous().t(), call.b_scale.contiguous().t(),
                     out_dtype=call.out.dtype, out=call.out)


def scaled_refusal(target: Target, call: Any) -> str | None:
    """Why the library does not serve a product of 8 bits with scales: it is asked for fp8 on Hopper and later alone."""
    a, b, out, bias = call.a, call.b, call.out, call.bias
    if call.band:
        return "the vendor's library has no shuffled weights"
    if target.platform != "cuda" or int(target.arch.removeprefix("sm_").rstrip("af")) < 90 or a.dtype == torch.int8:
        return "the vendor's library is asked for fp8 with scales on Hopper and later alone"
    if a.shape[1] % 16 or b.shape[0] % 16 or not all(one.is_contiguous() for one in (a, b, out)):
        return "the vendor's library has contiguous fp8 operands whose n and k are multiples of 16"
    if out.dtype != torch.bfloat16 or bias is not None and bias.dtype != torch.bfloat16:
        return "the vendor's library is asked for out and bias in bf16"
    if (call.a_scale.numel() > 1) != (call.b_scale.numel() > 1):
        return "the vendor's library has scales of rows and columns, or one each"
    return None


def scaled(call: Any) -> None:
    """Writes out [m, n] = (a [m, k] · b [n, k]ᵀ) · a_scale · b_scale + bias [n], of fp8."""
    a_scale, b_scale = call.a_scale, call.b_scale
    if a_scale.numel() > 1:
        a_scale, b_scale = a_scale[:, None], b_scale[None]
    torch._scaled_mm(call.a, call.b.t(), a_scale, b_scale, call.bias, out_dtype=call.out.dtype,
                     use_fast_accum=call.use_fast_accum, out=call.out)
