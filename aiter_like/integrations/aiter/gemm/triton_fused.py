# SPDX-License-Identifier: MIT
"""AITER's products in Triton with something before or behind them: gates, feed-forward blocks, two products of one
call, and a product that is split and put together. Named by names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.integrations.aiter.gemm.gemm import gemm_a8w8_blockscale_preshuffle_triton, result_dtype
from aiter_like.ops.common import elements

_NAMES = {"silu_exp2": "silu"}  # AITER's ways to compute the same function
_BY_KERNEL = ("silu", "gelu", "gelu_tanh")
_BY_TORCH = {None: lambda x: x, "relu": torch.relu}


def gemm_a16w16_atomic(x: Tensor, w: Tensor, dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None,
                       config: dict | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` into `y` or a new tensor. Where `y` is given, AITER adds to it with a split depth alone;
    here it is written in every case. `config` is of no meaning.
    """
    return aiter_like.gemm_a16w16(x, w, None, result_dtype(dtype, y), out=y)


def gemm_a16w16_gated(x: Tensor, w: Tensor, dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None,
                      config: dict | None = None, activation: str | None = None) -> Tensor:
    """`act(x · gateᵀ) · (x · upᵀ)` of the halves of `w`'s rows: `aiter_like.gemm_a16w16` with a gated activation; with
    "relu" or none the product alone is its, and what follows torch's.

    Args:
        x: [m, k] bf16|fp16.
        w: [2n, k].
        dtype: of the result, where there is no `y`.
        y: [m, n] to write.
        config: of no meaning.
        activation: None, "silu", "silu_exp2", "gelu", "gelu_tanh" or "relu".
    """
    op = "gemm_a16w16_gated"
    activation = _activation(op, activation)
    check.tensor(op, "w", w, rank=2, last_contiguous=False)
    if w.shape[0] % 2:
        raise ValueError(f"{op}: w must have an even number of rows, gate and up, got {w.shape[0]}")
    dtype = result_dtype(dtype, y)
    if activation in _BY_KERNEL:
        return aiter_like.gemm_a16w16(x, w, None, dtype, activation=f"{activation}_and_mul", out=y)
    gate, up = aiter_like.gemm_a16w16(x, w, None, torch.float32).chunk(2, -1)
    found = (_BY_TORCH[activation](gate) * up).to(dtype)
    return found if y is None else y.copy_(found)


def ff_a16w16_nogate(x: Tensor, w_up: Tensor, w_down: Tensor, dtype: torch.dtype | None = torch.bfloat16,
                     intermediate: Tensor | None = None, y: Tensor | None = None, config: dict | None = None,
                     activation: str | None = None) -> Tensor:
    """`act(x · w_upᵀ) · w_down`: two products, the first rounded to the dtype of `x`.

    Args:
        x: [m, k] bf16|fp16.
        w_up, w_down: [n, k].
        dtype: of the result, where there is no `y`.
        intermediate: [m, n] to write.
        y: [m, k] to write.
        config: of no meaning.
        activation: as of `gemm_a16w16_gated`.
    """
    op = "ff_a16w16_nogate"
    name = _activation(op, activation)
    inner = x.dtype if intermediate is None else intermediate.dtype
    if name in _BY_KERNEL:
        hidden = aiter_like.gemm_a16w16(x, w_up, None, inner, activation=name, out=intermediate)
    else:
        product = aiter_like.gemm_a16w16(x, w_up, None, inner, out=intermediate)
        hidden = product if name is None else product.relu_()
    return _down(op, hidden, w_down, dtype, y)


def ff_a16w16_gated(x: Tensor, w_up: Tensor, w_down: Tensor, dtype: torch.dtype | None = torch.bfloat16,
                    intermediate: Tensor | None = None, y: Tensor | None = None, config: dict | None = None,
                    activation: str | None = None) -> Tensor:
    """`ff_a16w16_nogate` with `gemm_a16w16_gated` first: `w_up` is [2n, k], gate and up."""
    hidden = gemm_a16w16_gated(x, w_up, x.dtype, intermediate, config, activation)
    return _down("ff_a16w16_gated", hidden, w_down, dtype, y)


def ff_a16w16_fused_ungated(x: Tensor, w_up: Tensor, w_down: Tensor, dtype: torch.dtype | None = torch.bfloat16,
                            y: Tensor | None = None, config: dict | None = None,
                            activation: str | None = None) -> Tensor:
    """`ff_a16w16_nogate` here; `y` is written, not added to, as AITER asks for zeros in it."""
    return ff_a16w16_nogate(x, w_up, w_down, dtype, None, y, config, activation)


def ff_a16w16_fused_gated(x: Tensor, w_up: Tensor, w_down: Tensor, dtype: torch.dtype | None = torch.bfloat16,
                          y: Tensor | None = None, config: dict | None = None,
                          activation: str | None = None) -> Tensor:
    """`ff_a16w16_gated` here; `y` is written, not added to, as AITER asks for zeros in it."""
    return ff_a16w16_gated(x, w_up, w_down, dtype, None, y, config, activation)


def fused_gemm_a8w8_blockscale_a16w16(
        x_fp8: Tensor, w_fp8: Tensor, x_fp8_scale: Tensor, w_fp8_scale: Tensor, x_bf16: Tensor, w_bf16: Tensor,
        bias_fp8: Tensor | None = None, bias_bf16: Tensor | None = None, dtype: torch.dtype | None = torch.bfloat16,
        y_fp8: Tensor | None = None, y_bf16: Tensor | None = None, skip_reduce: bool | None = False,
        config: dict | None = None) -> tuple[Tensor, Tensor]:
    """`aiter_like.gemm_a8w8_blockscale` and `aiter_like.gemm_a16w16`, one after the other.

    Args:
        x_fp8, w_fp8, x_fp8_scale, w_fp8_scale: of the first.
        x_bf16, w_bf16, bias_bf16: of the second.
        bias_fp8: [n], added to the first in fp32.
        dtype: of the results, where they are not given.
        y_fp8, y_bf16: tensors to write.
        skip_reduce: of no meaning, with config: a depth that is split is added up in each case.

    Returns:
        Both products, [m, n] each.
    """
    op = "fused_gemm_a8w8_blockscale_a16w16"
    wide = result_dtype(dtype, y_fp8)
    if bias_fp8 is None:
        first = aiter_like.gemm_a8w8_blockscale(x_fp8, w_fp8, x_fp8_scale, w_fp8_scale, wide, out=y_fp8)
    else:
        check.tensor(op, "bias_fp8", bias_fp8, dtypes=elements.FLOATS, shape=w_fp8.shape[:1], device=x_fp8.device)
        product = aiter_like.gemm_a8w8_blockscale(x_fp8, w_fp8, x_fp8_scale, w_fp8_scale, torch.float32)
        product += bias_fp8
        first = product.to(wide) if y_fp8 is None else y_fp8.copy_(product)
    return first, aiter_like.gemm_a16w16(x_bf16, w_bf16, bias_bf16, result_dtype(dtype, y_bf16), out=y_bf16)


def fused_mul_add(x: Tensor, a: Tensor | float, b: Tensor | float, out: Tensor | None = None) -> Tensor:
    """`x · a + b` by `aiter_like.mul` and `aiter_like.add`, in fp32 between them.

    Args:
        x: bf16|fp16|fp32.
        a, b: numbers, or tensors of one element or of as many as `x`.
        out: tensor to write, of as many elements; default: `x`.
    """
    op = "fused_mul_add"
    check.tensor(op, "x", x, dtypes=elements.FLOATS, last_contiguous=False)
    out = x if out is None else out
    check.tensor(op, "out", out, dtypes=elements.FLOATS, device=x.device, last_contiguous=False)
    if out.shape != x.shape and (out.numel() != x.numel() or not out.is_contiguous()):
        raise ValueError(f"{op}: out must have the shape {tuple(x.shape)}, or as many elements side by side, got "
                         f"{tuple(out.shape)}, strides {out.stride()}")
    a, b = (_operand(op, name, value, x) for name, value in (("a", a), ("b", b)))
    product = torch.empty(x.shape, device=x.device, dtype=torch.float32)
    aiter_like.add(aiter_like.mul(x, a, out=product), b, out=out if out.shape == x.shape else out.view(x.shape))
    return out


def fused_gemm_a8w8_blockscale_mul_add(
        x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, a: Tensor | float, b: Tensor | float,
        dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None, config: dict | None = None,
        fuse_type: int | None = 0) -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale` in fp32, and `fused_mul_add` of it.

    Args:
        x, w, x_scales, w_scales: of the product p.
        a, b: numbers, or tensors of one element or of as many as the result.
        dtype: of the result, where there is no `y`.
        y: [m, n] to write.
        config: of no meaning.
        fuse_type: 0: p · a + b; 1: a · b + p.
    """
    op = "fused_gemm_a8w8_blockscale_mul_add"
    check.choice(op, "fuse_type", fuse_type, (0, 1))
    product = aiter_like.gemm_a8w8_blockscale(x, w, x_scales, w_scales, torch.float32)
    if y is None:
        y = torch.empty(product.shape, dtype=dtype, device=product.device)
    if fuse_type == 0:
        return fused_mul_add(product, a, b, y)
    a, b = (_operand(op, name, value, product) for name, value in (("a", a), ("b", b)))
    both = torch.empty(product.shape, device=product.device, dtype=torch.float32)
    aiter_like.mul(a.float().expand(product.shape), b, out=both)
    return aiter_like.add(both, product, out=y)


def fused_gemm_a8w8_blockscale_split_cat(
        x: Tensor, w: Tensor, y: Tensor, x_scale: Tensor, w_scale: Tensor, S1: int, S2: int,
        dtype: torch.dtype | None = torch.bfloat16, config: dict | None = None) -> tuple[Tensor, Tensor]:
    """`aiter_like.gemm_a8w8_blockscale`, whose columns are heads of S1 + S2 elements, and copies of them.

    Args:
        x, w, x_scale, w_scale: of the product; `w` has D · (S1 + S2) rows.
        y: [m, D, S3], or [m, 1, S3] for all heads.
        S1, S2: elements of each head that go before `y`, and that stand alone.
        dtype: of the result.
        config: of no meaning.

    Returns:
        [m, D, S1 + S3], a head's first elements and `y`; [m, D, S2], its others.
    """
    product = aiter_like.gemm_a8w8_blockscale(x, w, x_scale, w_scale, result_dtype(dtype, None))
    return _split("fused_gemm_a8w8_blockscale_split_cat", product, y, S1, S2)


def fused_gemm_a8w8_blockscale_preshuffle_split_cat(
        x: Tensor, w: Tensor, y: Tensor, x_scale: Tensor, w_scale: Tensor, S1: int, S2: int,
        dtype: torch.dtype | None = torch.bfloat16, config: dict | None = None,
        is_x_scale_transposed: bool = True) -> tuple[Tensor, Tensor]:
    """`fused_gemm_a8w8_blockscale_split_cat` with the product of `gemm_a8w8_blockscale_preshuffle`, of weights as bands
    of 16 rows, [n / 16, 16 · k]; `is_x_scale_transposed` as there.
    """
    product = gemm_a8w8_blockscale_preshuffle_triton(x, w, x_scale, w_scale, result_dtype(dtype, None),
                                                     is_x_scale_tranposed=is_x_scale_transposed)
    return _split("fused_gemm_a8w8_blockscale_preshuffle_split_cat", product, y, S1, S2)


def _split(op: str, product: Tensor, y: Tensor, first: int, second: int) -> tuple[Tensor, Tensor]:
    check.tensor(op, "y", y, rank=3, last_contiguous=False)
    (m, n), width = product.shape, first + second
    if first < 0 or second < 0 or not width or n % width:
        raise ValueError(f"{op}: S1 + S2 must divide the {n} columns of the product, got {first} and {second}")
    heads = product.view(m, n // width, width)
    y = y.expand(m, n // width, y.shape[2])
    return torch.cat((heads[..., :first], y.to(product.dtype)), -1), heads[..., first:].contiguous()


def _activation(op: str, activation: str | None) -> str | None:
    activation = _NAMES.get(activation, activation)
    check.choice(op, "activation", activation, (*_BY_KERNEL, *_BY_TORCH))
    return activation


def _operand(op: str, name: str, value: Tensor | float, x: Tensor) -> Tensor:
    """A tensor of one element, or of the shape of `x`."""
    if isinstance(value, int | float):
        return torch.full((1,), float(value), device=x.device, dtype=torch.float32)
    check.tensor(op, name, value, dtypes=elements.FLOATS, device=x.device, last_contiguous=False)
    if value.numel() not in (1, x.numel()):
        raise ValueError(f"{op}: {name} must have 1 or {x.numel()} elements, got shape {tuple(value.shape)}")
    return value.reshape(1) if value.numel() == 1 else value.reshape(x.shape)


def _down(op: str, hidden: Tensor, w_down: Tensor, dtype: torch.dtype | None, y: Tensor | None) -> Tensor:
    check.tensor(op, "w_down", w_down, rank=2, last_contiguous=False)
    return aiter_like.gemm_a16w16(hidden, w_down.t(), None, result_dtype(dtype, y), out=y)
