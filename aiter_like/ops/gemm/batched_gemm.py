# SPDX-License-Identifier: MIT
"""Products of a batch of matrices: in 16 bits, and of fp8 or int8 with scales per row and column.

Kernels: csrc/gemm/batched_gemm.hip, ops/gemm/triton/batched_gemm.py and, for Hopper, problems_hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Facts, Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, marks, quant_rule, tune_shapes
from aiter_like.ops.gemm import derivative, hopper, parts, problems, tiles, vendor

__all__ = ["batched_gemm_a8w8", "batched_gemm_bf16"]

_OP = "batched_gemm"


class BatchedGemmCall(NamedTuple):
    """One call of batched_gemm: its arguments in the order of the function that batched_gemm.hip exports. The scales
    are given with fp8 and int8 alone."""

    out: Annotated[Tensor, "batch m n", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "batch m k", problems.DTYPES, STRIDED]
    b: Annotated[Tensor, "batch n k", "a", STRIDED]
    bias: Annotated[Tensor | None, "batch n", elements.FLOATS] = None
    a_scale: Annotated[Tensor | None, "batch m", torch.float32] = None
    b_scale: Annotated[Tensor | None, "batch n", torch.float32] = None


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
    tile, splits = tiles.chosen(**_sizes(call), tile=tile, splits=splits)
    return problems.products_instance(_OP, call, tile, splits, names=tiles.PIPELINED)


@compile_ops("gemm/batched_gemm.hip", gen_func=_instance, platforms=("hip",))
def _batched_gemm_ck(call: BatchedGemmCall) -> None: ...


def _sizes(call: BatchedGemmCall) -> dict[str, Any]:
    """Sizes in the form that tiles.py counts with."""
    batch, m, k = call.a.shape
    return {"m": m, "n": call.b.shape[1], "k": k, "element_bytes": call.a.element_size(), "batch": batch,
            "names": tiles.PIPELINED}


def _check(call: BatchedGemmCall) -> object:
    problems.check_scales(_OP, call)
    return SKIP if call.out.numel() == 0 else None


def _ck_space(target: Target, call: BatchedGemmCall) -> Iterator[dict[str, Any]]:
    (_, m, k), n = call.a.shape, call.b.shape[1]
    return tiles.space(m, n, k, tiles.PIPELINED, call.a.element_size())


def _ck_cost(call: BatchedGemmCall, facts: Facts, *, tile: str | None = None, splits: int | None = None) -> float:
    sizes = _sizes(call)
    tile, splits = tiles.chosen(**sizes, tile=tile, splits=splits)
    return tiles.clocks(facts, **sizes, tile=tiles.parse(tile, tiles.PIPELINED), splits=splits)


def _is_for_hopper(target: Target, call: BatchedGemmCall) -> bool:
    return target.arch == "sm_90" and hopper.serves(call.a, call.b)


def _triton_space(target: Target, call: BatchedGemmCall) -> Iterator[dict[str, int]]:
    (_, m, k), n = call.a.shape, call.b.shape[1]
    return problems.triton_space(m, n, k, call.a, target, _is_for_hopper(target, call))


def _vendor_refusal(target: Target, call: BatchedGemmCall) -> str | None:
    if call.a.dtype not in problems.SIXTEEN_BITS:
        return "the vendor's library has no products of a batch in 8 bits with scales"
    return vendor.refusal(call.a, call.out, call.bias)


class BatchedGemmKey(NamedTuple):
    """The fields that a tuned row of batched_gemm is chosen by."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str = "bf16"

    @classmethod
    def of(cls, call: BatchedGemmCall) -> BatchedGemmKey:
        (batch, m, k), n = call.a.shape, call.b.shape[1]
        return cls(batch, m, n, k, dtypes.name(call.a.dtype), dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int, bias: str = "", is_transposed: bool = False) -> BatchedGemmCall:
        random = tune_shapes.normal(device, seed, "bf16")
        batch, m, n, k = self[:4]
        a, b = problems.operands(random, dtypes.DTYPES[self.dtype], (batch, m, k), (batch, n, k))
        if is_transposed:
            b = b.mT.contiguous().mT
        call = BatchedGemmCall(torch.empty(batch, m, n, dtype=dtypes.DTYPES[self.out_dtype], device=device), a, b,
                               random(batch, n).to(dtypes.DTYPES[bias]) if bias else None)
        if a.dtype in problems.SIXTEEN_BITS:
            return call
        a_scale, b_scale = (random(batch, size).float().abs() + 0.1 for size in (m, n))
        return call._replace(a_scale=a_scale, b_scale=b_scale)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[BatchedGemmKey]:
        """The keys of models with latent K and V: queries into the latent space and its values out of it, a matrix per
        head."""
        if model.kv_lora_rank:
            for n, k in ((model.kv_lora_rank, model.qk_nope_head_dim), (model.v_head_dim, model.kv_lora_rank)):
                yield cls(model.num_heads // tp, tokens, n, k, model.dtype, model.dtype)


_batched_gemm = Op(
    _OP, call=BatchedGemmCall, reference=batched_gemm_ref, check=_check, key=BatchedGemmKey, round_field="m",
    cases={"plain": BatchedGemmKey(2, 35, 68, 72, "bf16"),
           "fp16, bias": (BatchedGemmKey(2, 35, 68, 72, "fp16", "fp16"), {"bias": "fp32"}),
           "transposed b": (BatchedGemmKey(2, 35, 68, 72, "bf16"), {"is_transposed": True}),
           "fp8": BatchedGemmKey(2, 35, 68, 144, "fp8"),
           "int8, bias": (BatchedGemmKey(2, 35, 68, 144, "i8", "fp32"), {"bias": "bf16"})},
    traffic=parts.traffic, sums_in_fp32=True,
    backends=(Backend("ck", _batched_gemm_ck, refusal=parts.ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.batched_gemm:batched_gemm", refusal=parts.sum_refusal,
                      kernels=hopper.kernels_of(_OP, _is_for_hopper), space=_triton_space),
              Backend("vendor", vendor.bmm, refusal=_vendor_refusal),
              Backend("torch", batched_gemm_ref, differentiable=True)))


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

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results. Backend ck takes matrices of
        contiguous rows with k a multiple of 8 and n of 4, triton everything; vendor is hipBLASLt or cuBLAS. Where an
        argument requires grad, the derivative is two products of this operator.

    Source: AITER's `batched_gemm_bf16_CK`.
    """
    marks.refuse(_OP, "XQ", XQ)
    marks.refuse(_OP, "WQ", WQ)
    _check_operands(XQ, WQ, dtype, splitK, out)
    bias = _per_column("bias", bias, XQ)
    if out is None and backend != "torch" and torch_ops.needs_grad(XQ, WQ, bias):
        return derivative.Linear.apply(XQ, WQ, bias, dtype, backend, _batched_gemm.run)
    if out is None:
        out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    _batched_gemm.run(out, XQ, WQ, bias, backend=backend)
    return out


def batched_gemm_a8w8(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                      dtype: torch.dtype = torch.bfloat16, splitK: int | None = None, *, out: Tensor | None = None,
                      backend: str | None = None) -> Tensor:
    """Products in 8 bits: `out[i] = x_scale[i] · (XQ[i] · WQ[i]ᵀ) · w_scale[i] + bias[i]`. Like `batched_gemm_bf16`.

    Args:
        XQ: [batch, m, k] int8, or the hardware's fp8 (FNUZ on gfx942), of any strides.
        x_scale: [batch, m, 1] or [batch, m] fp32: a factor per row of `XQ`.
        w_scale: [batch, 1, n] or [batch, n] fp32: a factor per row of `WQ`.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Notes:
        Sums of int8 are exact in int32, of fp8 in fp32; the result is rounded to nearest even once. Equal calls give
        equal results. Backend ck takes matrices of contiguous rows with k a multiple of 16 and n of 4, triton
        everything. No derivative.

    Source: AITER's `batched_gemm_a8w8_CK`.
    """
    marks.refuse(_OP, "XQ", XQ)
    marks.refuse(_OP, "WQ", WQ)
    _check_operands(XQ, WQ, dtype, splitK, out)
    if XQ.dtype in problems.SIXTEEN_BITS:
        raise TypeError(f"{_OP}: XQ must have dtype {', '.join(map(str, quant_rule.DTYPES))}, got {XQ.dtype}")
    for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
        check.tensor(_OP, name, scale, device=XQ.device, last_contiguous=False)
    bias, w_scale = _per_column("bias", bias, XQ), _per_column("w_scale", w_scale, XQ)
    if x_scale.ndim == 3 and x_scale.shape[2] == 1:
        x_scale = x_scale[:, :, 0]
    if out is None:
        out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    _batched_gemm.run(out, XQ, WQ, bias, x_scale, w_scale, backend=backend)
    return out


def _check_operands(XQ: Any, WQ: Any, dtype: Any, splitK: Any, out: Any) -> None:
    """Checks what has to hold before a result can be made."""
    for name, matrices in (("XQ", XQ), ("WQ", WQ)):
        check.tensor(_OP, name, matrices, rank=3, last_contiguous=False)
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
