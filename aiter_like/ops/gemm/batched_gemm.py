# SPDX-License-Identifier: MIT
"""Products of a batch of matrices: in 16 bits, and of fp8 or int8 with scales per row and column.

Kernels: csrc/gemm/batched_gemm.hip, ops/gemm/triton/batched_gemm.py and, for Hopper, problems_hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.gemm import problems, tiles, vendor
from aiter_like.ops.gemm.hopper import serves
from aiter_like.ops.gemm.parts import (
    depth_refusal,
    mfma_refusal,
    rows_refusal,
    sum_refusal,
    tiles_refusal,
)

__all__ = ["batched_gemm_a8w8", "batched_gemm_bf16"]

_OP = "batched_gemm"


class BatchedGemmCall(NamedTuple):
    """One call of batched_gemm: its arguments in the order of the function that batched_gemm.hip exports.

    Attributes:
        out: [batch, m, n], written; bf16|fp16|fp32.
        a: [batch, m, k] bf16|fp16|fp8|int8, of any strides.
        b: [batch, n, k], dtype of `a`, of any strides.
        bias: [batch, n], added to each row; bf16|fp16|fp32, last dimension contiguous.
        a_scale: [batch, m] fp32, a factor per row, last dimension contiguous; given with fp8 and int8 alone.
        b_scale: [batch, n] fp32, a factor per column, likewise.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    a_scale: Tensor | None = None
    b_scale: Tensor | None = None


def batched_gemm_ref(call: BatchedGemmCall) -> None:
    """The formula in torch, in fp32, of int8 in fp64, where sums are exact; writes `out`."""
    wide = torch.float64 if call.a.dtype == torch.int8 else torch.float32
    product = (call.a.to(wide) @ call.b.to(wide).mT).float()
    if call.a_scale is not None:
        product = product * call.a_scale[:, :, None]
    if call.b_scale is not None:
        product = product * call.b_scale[:, None, :]
    if call.bias is not None:
        product = product + call.bias[:, None, :].float()
    call.out.copy_(product)


def _instance(call: BatchedGemmCall, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """The tile and the splits are those that the counts of tiles.py find cheapest, unless a tuned row names them."""
    if tile is None or splits is None:
        tile, splits = tiles.cheapest(**_sizes(call), tile=tile, splits=splits)
    return problems.products_instance(_OP, call, tile, splits, names=tiles.PIPELINED)


@compile_ops("gemm/batched_gemm.hip", gen_func=_instance, platforms=("hip",))
def _batched_gemm_ck(call: BatchedGemmCall) -> None: ...


def _sizes(call: BatchedGemmCall) -> dict[str, Any]:
    """What tiles.py counts with."""
    batch, m, k = call.a.shape
    return {"m": m, "n": call.b.shape[1], "k": k, "element_bytes": call.a.element_size(), "batch": batch,
            "names": tiles.PIPELINED}


def _check(call: BatchedGemmCall) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, out = call.a, call.out
    check.tensor(_OP, "a", a, rank=3, dtypes=(*problems.SIXTEEN_BITS, *quant_rule.DTYPES), last_contiguous=False)
    problems.check_fp8(_OP, a)
    check.tensor(_OP, "b", call.b, dtypes=(a.dtype,), shape=(a.shape[0], None, a.shape[2]), device=a.device,
                 last_contiguous=False)
    batch, m, n = *a.shape[:2], call.b.shape[1]
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, shape=(batch, m, n), device=a.device, last_contiguous=False)
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=elements.FLOATS, shape=(batch, n), device=a.device)
    for name, scale, size in (("a_scale", call.a_scale, m), ("b_scale", call.b_scale, n)):
        if (scale is None) != (a.dtype in problems.SIXTEEN_BITS):
            wanted = "None with 16-bit operands" if scale is not None else f"given with operands of {a.dtype}"
            raise ValueError(f"{_OP}: {name} must be {wanted}, got {type(scale).__name__}")
        if scale is not None:
            check.tensor(_OP, name, scale, dtypes=(torch.float32,), shape=(batch, size), device=a.device)
    return SKIP if out.numel() == 0 else None


def _triton_refusal(target: Target, call: BatchedGemmCall) -> str | None:
    """What no kernel takes."""
    return sum_refusal(call.a)


def _ck_refusal(target: Target, call: BatchedGemmCall) -> str | None:
    """What the kernel for gfx942 does not take."""
    return (mfma_refusal(target) or _triton_refusal(target, call) or depth_refusal(call.a, call.b.shape[1])
            or rows_refusal(a=call.a, b=call.b, out=call.out) or tiles_refusal(*call.out.shape))


def _ck_space(target: Target, call: BatchedGemmCall) -> Iterator[dict[str, Any]]:
    (_, m, k), n = call.a.shape, call.b.shape[1]
    return tiles.space(m, n, k, tiles.PIPELINED, call.a.element_size())


def _ck_cost(target: Target, call: BatchedGemmCall, *, tile: str | None = None, splits: int | None = None) -> float:
    sizes = _sizes(call)
    if tile is None or splits is None:
        tile, splits = tiles.cheapest(**sizes, tile=tile, splits=splits)
    return tiles.clocks(**sizes, tile=tiles.parse(tile, tiles.PIPELINED), splits=splits)


def _tune_key(call: BatchedGemmCall) -> dict[str, int | str]:
    batch, m, k = call.a.shape
    return {"batch": batch, "m": m, "n": call.b.shape[1], "k": k, "dtype": dtypes.name(call.a.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _cases(device: torch.device) -> dict[str, BatchedGemmCall]:
    """Odd sizes in 16 bits, with a bias and with an operand that Triton alone takes; 8 bits with scales."""
    random = tune_shapes.normal(device, 0, "bf16")
    plain = BatchedGemmCall(random(2, 35, 68), random(2, 35, 72), random(2, 68, 72))
    scales = {"a_scale": random(2, 35).float().abs() + 0.1, "b_scale": random(2, 68).float().abs() + 0.1}
    fp8, int8 = (plain._replace(**dict(zip("ab", problems.operands(random, dtype, (2, 35, 144), (2, 68, 144)))),
                                **scales)
                 for dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8))
    return {"plain": plain,
            "fp16, bias": BatchedGemmCall(*(one.half() for one in plain[:3]), bias=random(2, 68).float()),
            "transposed b": plain._replace(b=random(2, 72, 68).mT),
            "fp8": fp8, "int8, bias": int8._replace(bias=random(2, 68), out=random(2, 35, 68).float())}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> BatchedGemmCall:
    random = tune_shapes.normal(device, seed, "bf16")
    batch, m, n, k = (key[name] for name in ("batch", "m", "n", "k"))
    dtype = dtypes.DTYPES[key["dtype"]]
    a, b = problems.operands(random, dtype, (batch, m, k), (batch, n, k))
    out = torch.empty(batch, m, n, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    if dtype in problems.SIXTEEN_BITS:
        return BatchedGemmCall(out, a, b)
    return BatchedGemmCall(out, a, b, None, torch.rand(batch, m, device=device), torch.rand(batch, n, device=device))


def _traffic(call: BatchedGemmCall) -> tuple[int, int]:
    tensors = [one for one in call if one is not None]
    return sum(one.numel() * one.element_size() for one in tensors), 2 * call.a.numel() * call.b.shape[1]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Of models with latent K and V: queries into the latent space and its values out of it, a matrix per head."""
    if model.kv_lora_rank:
        for n, k in ((model.kv_lora_rank, model.qk_nope_head_dim), (model.v_head_dim, model.kv_lora_rank)):
            yield {"batch": model.num_heads // tp, "m": tokens, "n": n, "k": k, "dtype": model.dtype,
                   "out_dtype": model.dtype}


def _triton_kernels(target: Target, call: BatchedGemmCall, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter swap."""
    hopper = ["batched_gemm_hopper"] if target.arch == "sm_90" and serves(call.a, call.b) else []
    if params:
        return hopper if "swap" in params else ["batched_gemm"]
    return [*hopper, "batched_gemm"]


def _triton_space(target: Target, call: BatchedGemmCall) -> Iterator[dict[str, int]]:
    """On Hopper the kernel for it is alone where it serves."""
    (_, m, k), n = call.a.shape, call.b.shape[1]
    if "batched_gemm_hopper" in _triton_kernels(target, call):
        return problems.hopper_space(m, n, k, call.a, target)
    return problems.plain_space(m, call.a.element_size())


def _vendor(call: BatchedGemmCall) -> None:
    vendor.bmm(call.out, call.a, call.b, call.bias)


def _vendor_refusal(target: Target, call: BatchedGemmCall) -> str | None:
    if call.a.dtype not in problems.SIXTEEN_BITS:
        return "the vendor's library has no products of a batch in 8 bits with scales"
    return vendor.refusal(call.a, call.out, call.bias)


_batched_gemm = Op(
    _OP, call=BatchedGemmCall, reference=batched_gemm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("batch", "m", "n", "k", "dtype", "out_dtype"), round_field="m", cases=_cases,
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes), sums_in_fp32=True,
    backends=(Backend("ck", _batched_gemm_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.batched_gemm:batched_gemm", refusal=_triton_refusal,
                      kernels=_triton_kernels, space=_triton_space),
              Backend("vendor", _vendor, refusal=_vendor_refusal),
              Backend("torch", batched_gemm_ref, differentiable=True)))


class _BatchedLinear(torch.autograd.Function):
    """a · bᵀ + bias of each matrix and its derivative: two products by the same operator, whose operands are views."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype, backend: str | None) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.bias_dtype = None if bias is None else bias.dtype
        out = torch.empty(*a.shape[:2], b.shape[1], dtype=dtype, device=a.device)
        _batched_gemm.run(out, a, b, bias, backend=backend)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        rounded, grad_a, grad_b, grad_bias = grad.to(a.dtype), None, None, None
        if needs_a:
            _batched_gemm.run(grad_a := torch.empty_like(a), rounded, b.mT)
        if needs_b:
            _batched_gemm.run(grad_b := torch.empty_like(b), rounded.mT, a.mT)
        if needs_bias:
            grad_bias = grad.float().sum(1).to(ctx.bias_dtype)
        return grad_a, grad_b, grad_bias, None, None


def batched_gemm_bf16(XQ: Tensor, WQ: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16,
                      splitK: int | None = None, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The products of a batch of matrices in 16 bits: `out[i] = XQ[i] · WQ[i]ᵀ + bias[i]`.

    Args:
        XQ: [batch, m, k] bf16|fp16, of any strides.
        WQ: [batch, n, k], dtype of `XQ`, of any strides; not shuffled.
        bias: [batch, n], [batch, 1, n] or, for all matrices, [n]; bf16|fp16|fp32, contiguous in n.
        dtype: of the result, bf16|fp16|fp32.
        splitK: None or an integer ≥ 0, a hint to AITER's kernels; here the sizes decide how the depth is split.
        out: tensor to write, [batch, m, n] of `dtype`, of any strides; default: a new contiguous one.
        backend: "ck", "triton", "vendor" (hipBLASLt or cuBLAS) or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is the bias; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit, or `WQ` is marked as shuffled.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results; can be captured in a graph.
        Backend ck takes matrices of contiguous rows with k a multiple of 8 and n of 4, triton everything. Where an
        argument requires grad, the derivative is two products of this operator.

    Source: AITER's `batched_gemm_bf16_CK`.
    """
    _check_operands(XQ, WQ, dtype, splitK, out)
    bias = _per_column("bias", bias, XQ)
    if out is None and backend != "torch" and torch_ops.needs_grad(XQ, WQ, bias):
        return _BatchedLinear.apply(XQ, WQ, bias, dtype, backend)
    if out is None:
        out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    _batched_gemm.run(out, XQ, WQ, bias, backend=backend)
    return out


def batched_gemm_a8w8(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                      dtype: torch.dtype = torch.bfloat16, splitK: int | None = None, *, out: Tensor | None = None,
                      backend: str | None = None) -> Tensor:
    """The products of a batch of quantised matrices: `out[i] = x_scale[i] · (XQ[i] · WQ[i]ᵀ) · w_scale[i] + bias[i]`.

    Args:
        XQ: [batch, m, k] int8, or the hardware's fp8 (FNUZ on gfx942), of any strides.
        WQ: [batch, n, k], dtype of `XQ`, of any strides; not shuffled.
        x_scale: [batch, m, 1] or [batch, m] fp32: a factor per row of `XQ`.
        w_scale: [batch, 1, n] or [batch, n] fp32: a factor per row of `WQ`.
        bias: [batch, n], [batch, 1, n] or, for all matrices, [n]; bf16|fp16|fp32, contiguous in n.
        dtype: of the result, bf16|fp16|fp32.
        splitK: None or an integer ≥ 0, a hint to AITER's kernels; here the sizes decide how the depth is split.
        out: tensor to write, [batch, m, n] of `dtype`, of any strides; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is the bias; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype, also the fp8 of another device.
        ValueError: shapes or devices do not fit, or `WQ` is marked as shuffled.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums of int8 are exact in int32, of fp8 in fp32; the result is rounded to nearest even once. Equal calls give
        equal results; can be captured in a graph. Backend ck takes matrices of contiguous rows with k a multiple of 16
        and n of 4, triton everything. No derivative.

    Source: AITER's `batched_gemm_a8w8_CK`.
    """
    _check_operands(XQ, WQ, dtype, splitK, out)
    if XQ.dtype in problems.SIXTEEN_BITS:
        raise TypeError(f"{_OP}: XQ must have dtype {', '.join(map(str, quant_rule.DTYPES))}, got {XQ.dtype}")
    for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
        if not isinstance(scale, Tensor):
            raise TypeError(f"{_OP}: {name} must be a tensor, got {type(scale).__name__}")
    bias, w_scale = _per_column("bias", bias, XQ), _per_column("w_scale", w_scale, XQ)
    if x_scale.ndim == 3 and x_scale.shape[2] == 1:
        x_scale = x_scale[:, :, 0]
    for name, scale, size in (("x_scale", x_scale, XQ.shape[1]), ("w_scale", w_scale, WQ.shape[1])):
        check.tensor(_OP, name, scale, shape=(XQ.shape[0], size), device=XQ.device, last_contiguous=False)
    if out is None:
        out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    _batched_gemm.run(out, XQ, WQ, bias, x_scale, w_scale, backend=backend)
    return out


def _check_operands(XQ: Any, WQ: Any, dtype: Any, splitK: Any, out: Any) -> None:
    """What has to hold before a result can be made."""
    problems.check_matrices(_OP, XQ=XQ, WQ=WQ)
    for name, matrices in (("XQ", XQ), ("WQ", WQ)):
        if matrices.ndim != 3:
            raise ValueError(f"{_OP}: {name} must have 3 dimensions, got shape {tuple(matrices.shape)}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{_OP}: dtype must be a dtype, got {type(dtype).__name__}")
    if splitK is not None:
        check.integer(_OP, "splitK", splitK, low=0)
    if isinstance(out, Tensor) and out.dtype != dtype:
        raise TypeError(f"{_OP}: out must have dtype {dtype}, the argument dtype, got {out.dtype}")


def _per_column(name: str, values: Tensor | None, x: Tensor) -> Tensor | None:
    """[n] or [batch, 1, n] as [batch, n]."""
    if not isinstance(values, Tensor):
        return values
    if values.ndim == 1 and name == "bias":
        return values.expand(x.shape[0], -1)
    return values[:, 0] if values.ndim == 3 and values.shape[1] == 1 else values


torch_ops.register(_batched_gemm, batched_gemm_bf16)
