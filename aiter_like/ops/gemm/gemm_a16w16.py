# SPDX-License-Identifier: MIT
"""The product of linear layers in 16 bits, with bias, activation and residual.

Kernels: csrc/gemm/gemm_a16w16.hip and, for few rows, gemm_a16w16_skinny.hip; ops/gemm/triton/gemm_a16w16.py and, for
Hopper, hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Facts, Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, marks, tune_shapes
from aiter_like.ops.gemm import builds, derivative, hopper, parts, skinny, tiles, vendor
from aiter_like.ops.gemm.parts import ACTIVATIONS, GATED, after_product, matrix
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight

__all__ = ["gemm_a16w16"]

_OP = "gemm_a16w16"
DTYPES = (torch.bfloat16, torch.float16)


class GemmA16w16Call(NamedTuple):
    """One call of gemm_a16w16: its arguments in the order of the function that gemm_a16w16.hip exports.

    Attributes:
        out, residual: [m, n], or with an activation of GATED half as many columns; the residual is added last.
        bias: added before the activation.
        activation: one of ACTIVATIONS and GATED.
        is_shuffled: whether `b` is in the order of shuffle_weight, layout (16, 16); it is contiguous then.
    """

    out: Annotated[Tensor, "_ _", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "m k", DTYPES, STRIDED]
    b: Annotated[Tensor, "n k", "a", STRIDED]
    bias: Annotated[Tensor | None, "n", ("a", torch.float32)] = None
    residual: Annotated[Tensor | None, "_ _", "out", STRIDED] = None
    activation: str = "none"
    is_shuffled: bool = False


def gemm_a16w16_ref(call: GemmA16w16Call) -> None:
    """The formula in torch, in fp32; writes `out`."""
    b = unshuffle_weight(call.b) if call.is_shuffled else call.b
    product = call.a.float() @ b.float().t()
    if call.bias is not None:
        product = product + call.bias.float()
    product = after_product(product, call.activation)
    if call.residual is not None:
        product = product + call.residual.float()
    call.out.copy_(product)


def _tiles(call: GemmA16w16Call) -> tuple[str, ...]:
    """Gate and up meet in the sums of the plain loop."""
    return tiles.TILES if call.activation in GATED else tiles.PIPELINED


def _instance(call: GemmA16w16Call, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """The tile and the splits are those that the counts of tiles.py find cheapest, unless a tuned row names them."""
    (m, k), n = call.a.shape, call.b.shape[0]
    names = _tiles(call)
    if tile in tiles.PIPELINED and tile not in names:  # a row of the same weights without gates
        tile = None
    tile, splits = tiles.chosen(m, n, k, tile, splits, names=names)
    return builds.of(call, f"{tile}_s{splits}", {
        **tiles.macros(_OP, m, n, tile, splits, names), "IS_SHUFFLED": int(call.is_shuffled),
        "IS_GATED": int(call.activation in GATED)})


def _skinny_instance(call: GemmA16w16Call, **given: int) -> Instance:
    """The block is that of skinny.py, but for what a tuned row names."""
    m, n = call.out.shape
    target = target_of(call.b.device)  # adapters of engines decide on an `a` without memory, of no device
    block = skinny.suited(n, call.a.shape[1], target)._replace(**given)
    name, macros = skinny.build(m, block)
    return builds.of(call, name, {**macros, "IS_GATED": int(call.activation in GATED)})


@compile_ops("gemm/gemm_a16w16.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a16w16_ck(call: GemmA16w16Call) -> None: ...


@compile_ops("gemm/gemm_a16w16_skinny.hip", "gemm_a16w16_skinny", gen_func=_skinny_instance)
def _gemm_a16w16_hip(call: GemmA16w16Call) -> None: ...


def _check(call: GemmA16w16Call) -> object:
    check.choice(_OP, "activation", call.activation, (*ACTIVATIONS, *GATED))
    n = call.b.shape[0]
    if call.activation in GATED and n % 2:
        raise ValueError(f"{_OP}: b must have an even number of rows, gate and up, got {n}")
    shape = (call.a.shape[0], _columns(n, call.activation))
    if call.is_shuffled:
        parts.check_shuffled(_OP, call.b, shape[1])
    for name, tensor in (("out", call.out), ("residual", call.residual)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, shape=shape, last_contiguous=False)
    return SKIP if call.out.numel() == 0 else None


def _columns(b_rows: int, activation: str | None) -> int:
    """Columns of the result."""
    return b_rows // 2 if activation in GATED else b_rows


def _hip_space(target: Target, call: GemmA16w16Call) -> Iterator[dict[str, int]]:
    if skinny.refusal(target, call) is None:
        yield from (block._asdict() for block in skinny.trials(call.a.shape[1], target))


def _ck_refusal(target: Target, call: GemmA16w16Call) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    if call.is_shuffled and call.activation in GATED:
        return "gate and up of shuffled weights have no kernel of this backend"
    return parts.ck_refusal(target, call)


def _ck_space(target: Target, call: GemmA16w16Call) -> Iterator[dict[str, Any]]:
    (m, k), n = call.a.shape, call.b.shape[0]
    return tiles.space(m, n, k, _tiles(call))


def _ck_cost(call: GemmA16w16Call, facts: Facts, *, tile: str | None = None, splits: int | None = None) -> float:
    (m, k), n, names = call.a.shape, call.b.shape[0], _tiles(call)
    tile, splits = tiles.chosen(m, n, k, tile, splits, names=names)
    return tiles.clocks(facts, m, n, k, tiles.parse(tile, names), splits, names=names)


def _is_for_hopper(target: Target, call: GemmA16w16Call) -> bool:
    return target.arch == "sm_90" and not call.is_shuffled and hopper.serves(call.a, call.b)


def _triton_space(target: Target, call: GemmA16w16Call) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; deep ones for few rows, which are bound by memory.

    On Hopper the kernel of triton/hopper.py is alone from 64 rows on: the other one took 1.2 to 1.7 times as long
    at 64 to 4096 rows (H200).
    """
    m = call.a.shape[0]
    if _is_for_hopper(target, call):
        yield from hopper.space(m, call.b.shape[0], call.a.shape[1], 2, target)
        if m >= 64:
            return
    yield from hopper.plain_space(m)


def _prefers(target: Target, call: GemmA16w16Call) -> str | None:
    """The backend that comes first where no row says what is fastest."""
    m = call.a.shape[0]
    if vendor.is_ahead(m, target):
        return "vendor"
    return "hip" if target.arch == "gfx942" and m <= skinny.MAX_ROWS else None


def _vendor_refusal(target: Target, call: GemmA16w16Call) -> str | None:
    if call.is_shuffled:
        return "the vendor's library takes weights in rows, b is shuffled"
    return vendor.refusal(call.a, call.out, call.bias, call.residual, activation=call.activation)


class GemmA16w16Key(NamedTuple):
    """The fields that a tuned row of gemm_a16w16 is chosen by: n counts the rows of `b`."""

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    is_shuffled: bool = False
    is_gated: bool = False

    @classmethod
    def of(cls, call: GemmA16w16Call) -> GemmA16w16Key:
        (m, k), n = call.a.shape, call.b.shape[0]
        return cls(m, n, k, dtypes.name(call.a.dtype), dtypes.name(call.out.dtype), call.is_shuffled,
                   call.activation in GATED)

    def make(self, device: torch.device, seed: int, activation: str = "", bias: str = "", has_residual: bool = False,
             is_transposed: bool = False) -> GemmA16w16Call:
        random = tune_shapes.normal(device, seed, self.dtype)
        activation = activation or ("silu_and_mul" if self.is_gated else "none")
        a, b = random(self.m, self.k), random(self.n, self.k) * self.k**-0.5
        if is_transposed:
            b = b.t().contiguous().t()
        out = random(self.m, _columns(self.n, activation)).to(dtypes.DTYPES[self.out_dtype])
        return GemmA16w16Call(
            torch.empty_like(out), a, shuffle_weight(b) if self.is_shuffled else b,
            random(self.n).to(dtypes.DTYPES[bias]) if bias else None, out if has_residual else None, activation,
            bool(self.is_shuffled))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GemmA16w16Key]:
        """A layer's products, one GPU's part, and the logits; those of experts are another operator's."""
        logits = (1, -(-model.vocab_size // tp), model.hidden_size)
        return (cls(tokens, n, k, model.dtype, model.dtype)
                for matrices, n, k in (*tune_shapes.linear_weights(model, tp), logits) if matrices == 1)


_PLAIN = GemmA16w16Key(70, 132, 136, "bf16", "bf16")

_gemm_a16w16 = Op(
    _OP, call=GemmA16w16Call, reference=gemm_a16w16_ref, check=_check, key=GemmA16w16Key, round_field="m",
    cases={"plain": _PLAIN,
           "bias, activation, residual": (_PLAIN, {"bias": "bf16", "has_residual": True, "activation": "silu"}),
           "fp16": (GemmA16w16Key(3, 40, 72, "fp16", "fp16"), {"bias": "fp32", "activation": "gelu"}),
           "gated": _PLAIN._replace(n=136, is_gated=True),
           "few rows, gated": (GemmA16w16Key(9, 40, 133, "bf16", "bf16", is_gated=True),
                               {"activation": "gelu_and_mul", "has_residual": True}),
           "split depth": (GemmA16w16Key(5, 64, 4104, "bf16", "bf16"), {"has_residual": True}),
           "fp32 out": (_PLAIN._replace(out_dtype="fp32"), {"activation": "gelu_tanh"}),
           "transposed b": (_PLAIN, {"is_transposed": True}),
           "shuffled": GemmA16w16Key(70, 144, 160, "bf16", "bf16", is_shuffled=True)},
    prefers=_prefers, in_place={"out": ("residual",)}, traffic=parts.traffic,
    backends=(Backend("ck", _gemm_a16w16_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a16w16:gemm_a16w16", space=_triton_space,
                      kernels=hopper.kernels_of(_OP, _is_for_hopper)),
              Backend("hip", _gemm_a16w16_hip, refusal=skinny.refusal, space=_hip_space),
              Backend("vendor", vendor.linear, refusal=_vendor_refusal),
              Backend("torch", gemm_a16w16_ref, differentiable=True)))


def gemm_a16w16(A: Tensor, B: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None,
                scale_a: Tensor | None = None, scale_b: Tensor | None = None, scale_c: Tensor | None = None, *,
                residual: Tensor | None = None, activation: str | None = None, out: Tensor | None = None,
                backend: str | None = None) -> Tensor:
    """The product of a linear layer: `out = act(A · Bᵀ + bias) + residual`.

    A gated activation is `act(A · gateᵀ + bias) · (A · upᵀ + bias)`: the first half of `B`'s rows, and of the
    bias, is gate's, the second half up's.

    Args:
        A: [..., k] bf16|fp16, of any strides.
        B: [n, k], or gated [2n, k], dtype of `A`, of any strides; or marked by `shuffle_weight`, layout (16, 16).
        bias: one for each row of `B`, dtype of `A` or fp32, contiguous.
        otype: dtype of the result, bf16|fp16|fp32; default: that of `A`.
        scale_a, scale_b, scale_c: None; 16-bit operands have no scales.
        residual: [..., n], added after the activation; dtype of the result.
        activation: None, "silu", "gelu" (erf), "gelu_tanh", or one of these with "_and_mul": gated.

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results. Backend ck takes contiguous rows
        with k a multiple of 8 and n of 4, hip contiguous rows of `A` and `B`, at most 16 of `A`, triton everything;
        vendor is hipBLASLt or cuBLAS. Where an argument requires grad, the derivative is two products of this operator;
        the activation's and residual's are torch's. Shuffled weights have none.

    Source: AITER's `gemm_a16w16` and `tgemm.mm`.
    """
    if not scale_a is scale_b is scale_c is None:
        got = ", ".join(type(scale).__name__ for scale in (scale_a, scale_b, scale_c))
        raise ValueError(f"{_OP}: scale_a, scale_b, scale_c must be None, 16-bit operands have no scales, got {got}")
    parts.check_linear(_OP, A, B, otype)
    if activation is not None:
        check.choice(_OP, "activation", activation, (*ACTIVATIONS[1:], *GATED))
    shape = (*A.shape[:-1], _columns(B.shape[0], activation))
    if not (residual is None and out is None):  # most calls have both None
        parts.check_results(_OP, shape, otype, residual, out)
    dtype = A.dtype if otype is None else otype
    a = matrix(A, A.shape[-1])
    is_shuffled = marks.is_shuffled(_OP, "B", B)
    if is_shuffled and torch_ops.needs_grad(A, B, bias, residual):
        raise ValueError(f"{_OP}: B must not be shuffled where a derivative is asked for: pass the weights that "
                         "shuffle_weight was given, or call under torch.no_grad()")
    if out is None and backend != "torch" and torch_ops.needs_grad(A, B, bias, residual):
        return _differentiable(a, B, bias, residual, activation, dtype, backend).view(shape)
    if out is None:
        out = A.new_empty(*shape, dtype=dtype)
    residual = matrix(residual, shape[-1])
    return parts.write_rows(out, lambda rows: _gemm_a16w16.run(
        rows, a, B, bias, residual, activation or "none", is_shuffled, backend=backend))


def _differentiable(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None,
                    dtype: torch.dtype, backend: str | None) -> Tensor:
    """The product by `_Linear`; what follows it by torch, in fp32."""
    product = _gemm_a16w16.run
    if activation is None and residual is None:
        return derivative.Linear.apply(a, b, bias, dtype, backend, product)
    y = derivative.Linear.apply(a, b, bias, torch.float32, backend, product)
    y = after_product(y, activation or "none")
    if residual is not None:
        y = y + matrix(residual, y.shape[1]).float()
    return y.to(dtype)


torch_ops.register(_gemm_a16w16, gemm_a16w16)
