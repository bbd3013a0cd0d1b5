# SPDX-License-Identifier: MIT
"""The product of linear layers with 16-bit activations and weights of 8 or 4 bits that have scales.

Kernels: csrc/gemm/gemm_weight_only.hip, ops/gemm/triton/gemm_weight_only.py and, beside it, on Hopper
gemm_weight_only_skinny.py for few rows and gemm_weight_only_hopper.py for some, and gemm_weight_only_wide.py for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, marks, quant_rule, tune_shapes
from aiter_like.ops.gemm import builds, few_rows, parts, problems, tiles, weight_only
from aiter_like.ops.gemm.parts import ACTIVATIONS, after_product, matrix

__all__ = ["gemm_a16w4", "gemm_a16w8"]

_OP = "gemm_weight_only"
CK_TILES = tuple(dict.fromkeys((*tiles.TILES, *few_rows.TILES)))
"""Names of the ck kernel's tiles."""
SCALE_BLOCK = 128
"""Rows and columns of weights that share a scale where blocks of them have one."""


class GemmWeightOnlyCall(NamedTuple):
    """One call of gemm_weight_only: its arguments in the order of the function that gemm_weight_only.hip exports.

    Attributes:
        b: [n, k], or [n, k / 2] with two weights of 4 bits in a byte, as pack_int4 returns them.
        scale: [ceil(n / scale_rows), ceil(k / group_size)], with `scale_rows` 0 a single row, with `group_size` 0 a
            single column; contiguous.
        zero_points: like `scale`, for integers: what is subtracted from a weight before it is scaled.
        bias: added to each row before the activation.
        residual: added after the activation.
        bits: of a weight: 8 or 4.
        group_size: weights along k that share a scale: one of quant_rule.GROUPS, or 0 for a row.
        activation: one of ACTIVATIONS.
        scale_rows: rows of `b` that share a scale: 1; 128 of blocks of 128 × 128; 0 for all, with `group_size` 0.
    """

    out: Annotated[Tensor, "m n", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "m k", problems.SIXTEEN_BITS, STRIDED]
    b: Annotated[Tensor, "n _", quant_rule.DTYPES, STRIDED]
    scale: Annotated[Tensor, "_ _", ("a", torch.float32)]
    zero_points: Annotated[Tensor | None, "_ _", torch.int8] = None
    bias: Annotated[Tensor | None, "n", ("a", torch.float32)] = None
    residual: Annotated[Tensor | None, "m n", "out", STRIDED] = None
    bits: int = 8
    group_size: int = 0
    activation: str = "none"
    scale_rows: int = 1


def is_fp8(call: GemmWeightOnlyCall) -> bool:
    """Whether weights are no integers."""
    return call.b.dtype in elements.FP8


def gemm_weight_only_ref(call: GemmWeightOnlyCall) -> None:
    """The formula in torch, in fp32; writes `out`."""
    b, n, k = call.b, call.b.shape[0], call.a.shape[1]
    if call.bits == 4:
        b = torch.stack(((b << 4) >> 4, b >> 4), -1).flatten(-2)

    def of_weights(x: Tensor) -> Tensor:
        x = x.float().repeat_interleave(call.scale_rows, 0)[:n] if call.scale_rows > 1 else x.float()
        return x.repeat_interleave(call.group_size, 1)[:, :k] if call.group_size else x

    weights = b.float() if call.zero_points is None else b.float() - of_weights(call.zero_points)
    product = call.a.float() @ (weights * of_weights(call.scale)).t()
    if call.bias is not None:
        product = product + call.bias.float()
    product = after_product(product, call.activation)
    if call.residual is not None:
        product = product + call.residual.float()
    call.out.copy_(product)


def _instance(call: GemmWeightOnlyCall, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """The tile and the splits are those that the counts of tiles.py find cheapest, unless a tuned row names them."""
    (m, k), n = call.a.shape, call.b.shape[0]
    tile, splits = few_rows.or_tiles(m, n, k, tile, splits)
    block = ["fp8" if is_fp8(call) else f"w{call.bits}", f"g{call.group_size}", tile, f"s{splits}",
             *([] if call.scale_rows == 1 else ["blocks" if call.scale_rows else "one"]),
             *([] if call.scale.dtype == torch.float32 else ["scale16"]),
             *([] if call.zero_points is None else ["zero"])]
    return builds.of(call, "_".join(block), {
        **tiles.macros(_OP, m, n, tile, splits, CK_TILES), "SCALE_ELEMENT": elements.CPP[call.scale.dtype],
        "BITS": call.bits, "IS_FP8": int(is_fp8(call)), "GROUP_SIZE": call.group_size, "SCALE_ROWS": call.scale_rows,
        "HAS_ZERO_POINTS": int(call.zero_points is not None)})


@compile_ops("gemm/gemm_weight_only.hip", gen_func=_instance, platforms=("hip",))
def _gemm_weight_only_ck(call: GemmWeightOnlyCall) -> None: ...


def _check(call: GemmWeightOnlyCall) -> object:
    a, b = call.a, call.b
    check.choice(_OP, "bits", call.bits, (8, 4))
    check.choice(_OP, "group_size", call.group_size, (0, *quant_rule.GROUPS))
    check.choice(_OP, "activation", call.activation, ACTIVATIONS)
    check.choice(_OP, "scale_rows", call.scale_rows, (1, SCALE_BLOCK) if call.group_size == SCALE_BLOCK else
                 (1,) if call.group_size else (1, 0))
    k, n = a.shape[1], b.shape[0]
    if call.bits == 4 and k % 2:
        raise ValueError(f"{_OP}: a must have an even last dimension, as two weights are in a byte, got {k}")
    check.tensor(_OP, "b", b, dtypes=(torch.int8, *(elements.FP8 if call.bits == 8 else ())),
                 shape=(n, k * call.bits // 8), last_contiguous=False)
    problems.check_fp8(_OP, b, "b")
    if is_fp8(call) and call.zero_points is not None:
        raise ValueError(f"{_OP}: zero_points must be None where b has {b.dtype}, got a tensor")
    groups = (-(-n // call.scale_rows) if call.scale_rows else 1, -(-k // call.group_size) if call.group_size else 1)
    for name, one in (("scale", call.scale), ("zero_points", call.zero_points)):
        if one is not None:
            check.tensor(_OP, name, one, shape=groups)
            if not one.is_contiguous():
                raise ValueError(f"{_OP}: {name} must be contiguous, got strides {one.stride()}")
    return SKIP if call.out.numel() == 0 else None


def _ck_space(target: Target, call: GemmWeightOnlyCall) -> Iterator[dict[str, Any]]:
    (m, n), k = call.out.shape, call.a.shape[1]
    return few_rows.space(m, n, k, tiles.TILES)


class GemmWeightOnlyKey(NamedTuple):
    """The fields that a tuned row of gemm_weight_only is chosen by."""

    m: int
    n: int
    k: int
    bits: int = 8
    is_fp8: bool = False
    group_size: int = 0
    scale_rows: int = 1
    dtype: str = "bf16"
    out_dtype: str = "bf16"

    @classmethod
    def of(cls, call: GemmWeightOnlyCall) -> GemmWeightOnlyKey:
        (m, k), n = call.a.shape, call.b.shape[0]
        return cls(m, n, k, call.bits, is_fp8(call), call.group_size, call.scale_rows, dtypes.name(call.a.dtype),
                   dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int, scale_dtype: str = "", activation: str = "none", bias: str = "",
             has_zero_points: bool = False, has_residual: bool = False,
             is_transposed: bool = False) -> GemmWeightOnlyCall:
        m, n, k, bits = self[:4]
        random, generator = tune_shapes.normal(device, seed, self.dtype), torch.Generator(device).manual_seed(seed)

        def integers(*shape: int, of: int = 128) -> Tensor:
            return torch.randint(-of, of, shape, device=device, dtype=torch.int8, generator=generator)

        b = integers(n, k * bits // 8)
        if self.is_fp8:  # bits of any kind may be NaN
            b = random(n, k).to(dtypes.fp8_of(target_of(device).arch))
        if is_transposed:
            b = b.t().contiguous().t()
        scale = random(-(-n // self.scale_rows) if self.scale_rows else 1,
                       -(-k // self.group_size) if self.group_size else 1)
        scale = ((scale.abs() + 1) * k**-0.5 / 2**bits).to(dtypes.DTYPES[scale_dtype or self.dtype])
        out = random(m, n).to(dtypes.DTYPES[self.out_dtype])
        return GemmWeightOnlyCall(
            torch.empty_like(out), random(m, k), b, scale, integers(*scale.shape, of=8) if has_zero_points else None,
            random(n).to(dtypes.DTYPES[bias]) if bias else None, out if has_residual else None, bits, self.group_size,
            activation, self.scale_rows)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GemmWeightOnlyKey]:
        """A layer's products, one GPU's part, with weights as they are mostly published: 4 bits in groups of 128."""
        return (cls(tokens, n, k, 4, group_size=128, dtype=model.dtype, out_dtype=model.dtype)
                for matrices, n, k in tune_shapes.linear_weights(model, tp) if matrices == 1 and k % 2 == 0)


_EIGHT, _FOUR = GemmWeightOnlyKey(70, 132, 136), GemmWeightOnlyKey(21, 68, 264, 4, group_size=128)

_gemm_weight_only = Op(
    _OP, call=GemmWeightOnlyCall, reference=gemm_weight_only_ref, check=_check, key=GemmWeightOnlyKey, round_field="m",
    cases={"8 bits": _EIGHT,
           "fp8, blocks": (_EIGHT._replace(is_fp8=True, group_size=SCALE_BLOCK, scale_rows=SCALE_BLOCK),
                           {"scale_dtype": "fp32"}),
           "fp8, one scale": _EIGHT._replace(is_fp8=True, scale_rows=0),
           "8 bits, groups": (_EIGHT._replace(group_size=64), {"scale_dtype": "fp32"}),
           "4 bits, groups": _FOUR,
           "4 bits, zero points": (
               GemmWeightOnlyKey(3, 40, 96, 4, group_size=32, dtype="fp16", out_dtype="fp16"),
               {"scale_dtype": "fp32", "has_zero_points": True, "bias": "fp16", "activation": "gelu"}),
           "split depth": (_FOUR._replace(m=5, k=2056), {"has_residual": True}),
           "transposed b": (_EIGHT, {"is_transposed": True, "activation": "silu", "bias": "bf16"})},
    traffic=parts.traffic,
    in_place={"out": ("residual",)},
    backends=(Backend("ck", _gemm_weight_only_ck, refusal=parts.ck_refusal, space=_ck_space),
              Backend("triton", "ops.gemm.triton.gemm_weight_only:gemm_weight_only", kernels=weight_only.kernels,
                      space=weight_only.space),
              Backend("torch", gemm_weight_only_ref, differentiable=True)))


def gemm_a16w8(A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None, *,
               group_size: int | None = None, zero_points: Tensor | None = None, residual: Tensor | None = None,
               activation: str | None = None, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Weights of int8 or fp8: `out = act(A · ((B − zero_points) · scale)ᵀ + bias) + residual`. Like `gemm_a16w16`.

    Args:
        B: [n, k] int8 or fp8 of the device, the weights, of any strides; not shuffled.
        scale: [n, ceil(k / group_size)], or [n] or [n, 1] for one per row of `B`, or a single number; with
            `group_size` 128 also [ceil(n / 128), ceil(k / 128)], one per block of 128 × 128; fp32 or the dtype of `A`,
            contiguous.
        group_size: 32, 64 or 128 weights along k that share a scale, of which the last group may have fewer; default:
            a whole row.
        zero_points: of int8 weights, like `scale` of each row, int8, contiguous; default: zeros.
        activation: None, "silu", "gelu" (erf) or "gelu_tanh".

    Notes:
        Weights are multiplied as the numbers that they are, exactly; the sum over a group, in fp32, is scaled, so
        that products of unscaled weights must stay within fp32. Rounded to nearest even once; equal calls give equal
        results. Backend triton may scale weights first, each rounded to the dtype of `A`, with [n, k] of it as scratch:
        without a tuned row for more than 256 rows on Hopper. Backend ck takes contiguous rows with k a multiple of 8
        and n of 4, triton everything. Where `A` requires grad, torch serves.

    Source: groups as GPTQ and AWQ store them; of blocks of fp8 AITER's Triton `gemm_a16w8_blockscale`.
    """
    marks.refuse("gemm_a16w8", "B", B)
    return _product("gemm_a16w8", 8, A, B, scale, bias, otype, group_size or 0, zero_points, residual, activation, out,
                    backend)


def gemm_a16w4(A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None, *,
               group_size: int | None = None, zero_points: Tensor | None = None, residual: Tensor | None = None,
               activation: str | None = None, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of a linear layer with weights of 4 bits, from −8 to 7. Like `gemm_a16w8` otherwise:
    `out = act(A · ((unpack_int4(B) − zero_points) · scale)ᵀ + bias) + residual`.

    Args:
        A: [..., k] bf16|fp16, k even, of any strides.
        B: [n, k / 2] int8, the weights as `pack_int4` packs them along k, of any strides; not shuffled.
        scale: [n, ceil(k / group_size)], or [n] or [n, 1] for one per row of `B`; fp32 or the dtype of `A`, contiguous.
        zero_points: like `scale`, int8, contiguous; default: zeros. Weights and zero points from 0 to 15, as AWQ and
            GPTQ store them, both become these when 8 is taken away.

    Source: groups as GPTQ and AWQ store them; the byte order of `pack_int4`.
    """
    marks.refuse("gemm_a16w4", "B", B)
    return _product("gemm_a16w4", 4, A, B, scale, bias, otype, group_size or 0, zero_points, residual, activation, out,
                    backend)


def _product(op: str, bits: int, A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None, otype: torch.dtype | None,
             group_size: int, zero_points: Tensor | None, residual: Tensor | None, activation: str | None,
             out: Tensor | None, backend: str | None) -> Tensor:
    """Checks what the operator cannot know, and hands it matrices."""
    parts.check_linear(op, A, B, otype)
    check.dense(op, "scale", scale)
    check.choice(op, "group_size", group_size or None, (None, *quant_rule.GROUPS))
    if activation is not None:
        check.choice(op, "activation", activation, ACTIVATIONS[1:])
    n = B.shape[0]
    shape = (*A.shape[:-1], n)
    parts.check_results(op, shape, otype, residual, out)
    if out is None:
        out = torch.empty(shape, dtype=otype or A.dtype, device=A.device)
    a, residual = matrix(A, A.shape[-1]), matrix(residual, n)
    scale_rows = 1
    if bits == 8 and not group_size and scale.numel() == 1:
        scale, scale_rows = scale.reshape(1, 1), 0 if zero_points is None else 1
    elif bits == 8 and group_size == SCALE_BLOCK and scale.ndim == 2 and scale.shape[0] == -(-n // SCALE_BLOCK) < n:
        scale_rows = SCALE_BLOCK
    scale, zero_points = (one[:, None] if isinstance(one, Tensor) and one.ndim == 1 and not group_size else one
                          for one in (scale, zero_points))
    return parts.write_rows(out, lambda flat: _gemm_weight_only.run(
        flat, a, B, scale, zero_points, bias, residual, bits, group_size, activation or "none", scale_rows,
        backend=backend))


torch_ops.register(_gemm_weight_only, gemm_a16w4)
_gemm_weight_only.public.append(gemm_a16w8)
