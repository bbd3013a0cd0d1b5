# SPDX-License-Identifier: MIT
"""The product of linear layers in 16 bits, with bias, activation and residual.

Kernels: csrc/gemm/gemm_a16w16.hip and, for few rows, gemm_a16w16_skinny.hip; ops/gemm/triton/gemm_a16w16.py and, for
Hopper, hopper.py beside it.
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
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.gemm import builds, hopper, skinny, tiles, vendor
from aiter_like.ops.gemm.parts import (
    ACTIVATIONS,
    GATED,
    after_product,
    matrix,
    mfma_refusal,
    rows_refusal,
    tiles_refusal,
    write_rows,
)
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight

__all__ = ["gemm_a16w16"]

_OP = "gemm_a16w16"
DTYPES = (torch.bfloat16, torch.float16)
_LAYOUT = (16, 16)  # the one of shuffle_weight that the kernels read


class GemmA16w16Call(NamedTuple):
    """One call of gemm_a16w16: its arguments in the order of the function that gemm_a16w16.hip exports.

    Attributes:
        out: [m, n], written; bf16|fp16|fp32.
        a: [m, k] bf16|fp16, of any strides.
        b: [n, k], with an activation of GATED [2n, k]; dtype of `a`, of any strides.
        bias: an element for each row of `b`, added before the activation; dtype of `a`, or fp32; contiguous.
        residual: [m, n], added after the activation; dtype of `out`.
        activation: one of ACTIVATIONS and GATED.
        is_shuffled: whether `b` is in the order of shuffle_weight, layout (16, 16); it is contiguous then.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
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
    if tile is None or splits is None:
        tile, splits = tiles.cheapest(m, n, k, tile=tile, splits=splits, names=names)
    sizes = tiles.parse(tile, names)
    if splits < 1 or splits > 1 and m * n >= 2**31:
        raise ValueError(f"{_OP}: splits must be at least 1, and 1 where out has 2^31 elements, got {splits}")
    return builds.of(call, f"{tile}_s{splits}", {
        "BLOCK_M": sizes.block_m, "BLOCK_N": sizes.block_n, "WAVES_M": sizes.waves_m, "WAVES_N": sizes.waves_n,
        "WAVES_K": sizes.waves_k, "SPLITS": splits, "IS_SHUFFLED": int(call.is_shuffled)})


def _skinny_instance(call: GemmA16w16Call, **given: int) -> Instance:
    """The block is that of skinny.py, but for what a tuned row names."""
    m, n = call.out.shape
    target = target_of(call.b.device)  # adapters of engines decide on an `a` without memory, of no device
    block = skinny.suited(n, call.a.shape[1], target)._replace(**given)
    return builds.of(call, *skinny.build(m, block))


@compile_ops("gemm/gemm_a16w16.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a16w16_ck(call: GemmA16w16Call) -> None: ...


@compile_ops("gemm/gemm_a16w16_skinny.hip", "gemm_a16w16_skinny", gen_func=_skinny_instance)
def _gemm_a16w16_hip(call: GemmA16w16Call) -> None: ...


def _check(call: GemmA16w16Call) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, out = call.a, call.out
    check.tensor(_OP, "a", a, rank=2, dtypes=DTYPES, last_contiguous=False)
    check.tensor(_OP, "b", call.b, dtypes=(a.dtype,), shape=(None, a.shape[1]), device=a.device, last_contiguous=False)
    check.choice(_OP, "activation", call.activation, (*ACTIVATIONS, *GATED))
    b_rows = call.b.shape[0]
    if call.activation in GATED and b_rows % 2:
        raise ValueError(f"{_OP}: b must have an even number of rows, gate and up, got {b_rows}")
    shape = (a.shape[0], _columns(b_rows, call.activation))
    if call.is_shuffled and (shape[1] % 16 or b_rows % 16 or call.b.shape[1] % 32 or not call.b.is_contiguous()):
        raise ValueError(f"{_OP}: shuffled, b must be contiguous with n % 16 == 0 and k % 32 == 0, got shape "
                         f"{tuple(call.b.shape)}, strides {call.b.stride()}")
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, shape=shape, device=a.device, last_contiguous=False)
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=(a.dtype, torch.float32), shape=(b_rows,), device=a.device)
    if call.residual is not None:
        check.tensor(_OP, "residual", call.residual, dtypes=(out.dtype,), shape=shape, device=a.device,
                     last_contiguous=False)
    return SKIP if out.numel() == 0 else None


def _columns(b_rows: int, activation: str | None) -> int:
    """Of the result."""
    return b_rows // 2 if activation in GATED else b_rows


def _hip_refusal(target: Target, call: GemmA16w16Call) -> str | None:
    return skinny.refusal(target, call.a, call.b, call.is_shuffled)


def _hip_space(target: Target, call: GemmA16w16Call) -> Iterator[dict[str, int]]:
    if _hip_refusal(target, call) is None:
        yield from (block._asdict() for block in skinny.trials(call.a.shape[1], target))


def _ck_refusal(target: Target, call: GemmA16w16Call) -> str | None:
    """What the kernel for gfx942 does not take."""
    k, columns = call.a.shape[1], call.out.shape[1]
    if (reason := mfma_refusal(target)) is not None:
        return reason
    if k % 8 or columns % 4:
        return f"k must be a multiple of 8 and out's columns of 4, got k = {k} and {columns} columns"
    if call.is_shuffled and call.activation in GATED:
        return "gate and up of shuffled weights have no kernel of this backend"
    return (rows_refusal(a=call.a, b=call.b, out=call.out, residual=call.residual)
            or tiles_refusal(call.a.shape[0], call.b.shape[0]))


def _ck_space(target: Target, call: GemmA16w16Call) -> Iterator[dict[str, Any]]:
    (m, k), n = call.a.shape, call.b.shape[0]
    return tiles.space(m, n, k, _tiles(call))


def _ck_cost(target: Target, call: GemmA16w16Call, *, tile: str | None = None, splits: int | None = None) -> float:
    (m, k), n, names = call.a.shape, call.b.shape[0], _tiles(call)
    if tile is None or splits is None:
        tile, splits = tiles.cheapest(m, n, k, tile=tile, splits=splits, names=names)
    return tiles.clocks(m, n, k, tiles.parse(tile, names), splits, names=names)


def _is_for_hopper(target: Target, call: GemmA16w16Call) -> bool:
    return target.arch == "sm_90" and not call.is_shuffled and hopper.serves(call.a, call.b)


def _triton_kernels(target: Target, call: GemmA16w16Call, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter swap."""
    own = ["gemm_a16w16_hopper"] if _is_for_hopper(target, call) else []
    if params:
        return own if "swap" in params else ["gemm_a16w16"]
    return [*own, "gemm_a16w16"]


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
    """Where no row says what is fastest."""
    m = call.a.shape[0]
    if vendor.is_ahead(m, call.b.shape[0], target):
        return "vendor"
    return "hip" if target.arch == "gfx942" and m <= skinny.MAX_ROWS else None


def _tune_key(call: GemmA16w16Call) -> dict[str, int | str]:
    m, k = call.a.shape
    return {"m": m, "n": call.b.shape[0], "k": k, "dtype": dtypes.name(call.a.dtype),
            "out_dtype": dtypes.name(call.out.dtype), "is_shuffled": int(call.is_shuffled),
            "is_gated": int(call.activation in GATED)}


def _vendor(call: GemmA16w16Call) -> None:
    vendor.linear(call.out, call.a, call.b, call.bias)


def _vendor_refusal(target: Target, call: GemmA16w16Call) -> str | None:
    if call.is_shuffled:
        return "the vendor's library takes weights in rows, b is shuffled"
    return vendor.refusal(call.a, call.out, call.bias, call.residual, activation=call.activation)


def _cases(device: torch.device) -> dict[str, GemmA16w16Call]:
    """Odd sizes; what follows a product; few rows over a long depth, which is split; operands for Triton alone."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    plain = GemmA16w16Call(random(70, 132), random(70, 136), random(132, 136))
    half = GemmA16w16Call(random(3, 40, dtype=torch.float16), random(3, 72, dtype=torch.float16),
                          random(40, 72, dtype=torch.float16))
    return {"plain": plain,
            "bias, activation, residual": plain._replace(bias=random(132), residual=random(70, 132), activation="silu"),
            "fp16": half._replace(bias=random(40, dtype=torch.float32), activation="gelu"),
            "gated": plain._replace(out=random(70, 68), b=random(136, 136), activation="silu_and_mul"),
            "few rows, gated": GemmA16w16Call(random(9, 20), random(9, 133), random(40, 133), residual=random(9, 20),
                                              activation="gelu_and_mul"),
            "split depth": GemmA16w16Call(random(5, 64), random(5, 4104), random(64, 4104), residual=random(5, 64)),
            "fp32 out": plain._replace(out=random(70, 132, dtype=torch.float32), activation="gelu_tanh"),
            "transposed b": plain._replace(b=random(136, 132).t()),
            "shuffled": GemmA16w16Call(random(70, 144), random(70, 160), shuffle_weight(random(144, 160)),
                                       is_shuffled=True)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GemmA16w16Call:
    random = tune_shapes.normal(device, seed, key["dtype"])
    activation = "silu_and_mul" if key["is_gated"] else "none"
    out = torch.empty(key["m"], _columns(key["n"], activation), dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    a, b = random(key["m"], key["k"]), random(key["n"], key["k"]) * key["k"]**-0.5
    is_shuffled = bool(key["is_shuffled"])
    return GemmA16w16Call(out, a, shuffle_weight(b) if is_shuffled else b, activation=activation,
                          is_shuffled=is_shuffled)


def _traffic(call: GemmA16w16Call) -> tuple[int, int]:
    tensors = [one for one in call[:5] if one is not None]
    return sum(one.numel() * one.element_size() for one in tensors), 2 * call.a.numel() * call.b.shape[0]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's products, one GPU's part, and the logits; those of experts are another operator's."""
    logits = (1, -(-model.vocab_size // tp), model.hidden_size)
    for matrices, n, k in (*tune_shapes.linear_weights(model, tp), logits):
        if matrices == 1:
            yield {"m": tokens, "n": n, "k": k, "dtype": model.dtype, "out_dtype": model.dtype, "is_shuffled": 0,
                   "is_gated": 0}


_gemm_a16w16 = Op(
    _OP, call=GemmA16w16Call, reference=gemm_a16w16_ref, check=_check, tune_key=_tune_key,
    tune_fields=("m", "n", "k", "dtype", "out_dtype", "is_shuffled", "is_gated"), round_field="m", cases=_cases,
    prefers=_prefers, in_place={"out": ("residual",)},
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes),
    backends=(Backend("ck", _gemm_a16w16_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a16w16:gemm_a16w16", kernels=_triton_kernels,
                      space=_triton_space),
              Backend("hip", _gemm_a16w16_hip, refusal=_hip_refusal, space=_hip_space),
              Backend("vendor", _vendor, refusal=_vendor_refusal),
              Backend("torch", gemm_a16w16_ref, differentiable=True)))


class _Linear(torch.autograd.Function):
    """a · bᵀ + bias and its derivative: two products by the same operator, whose operands are views."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype, backend: str | None) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.bias_dtype, ctx.backend = None if bias is None else bias.dtype, backend
        return _run(a, b, bias, None, "none", a.new_empty(a.shape[0], b.shape[0], dtype=dtype), backend)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        rounded = grad.to(a.dtype)
        grad_a = _run(rounded, b.t(), None, None, "none", torch.empty_like(a), None) if needs_a else None
        grad_b = _run(rounded.t(), a.t(), None, None, "none", torch.empty_like(b), None) if needs_b else None
        grad_bias = grad.float().sum(0).to(ctx.bias_dtype) if needs_bias else None
        return grad_a, grad_b, grad_bias, None, None


def gemm_a16w16(A: Tensor, B: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None,
                scale_a: Tensor | None = None, scale_b: Tensor | None = None, scale_c: Tensor | None = None, *,
                residual: Tensor | None = None, activation: str | None = None, out: Tensor | None = None,
                backend: str | None = None) -> Tensor:
    """The product of a linear layer: `out = act(A · Bᵀ + bias) + residual`.

    With a gated activation the first half of `B`'s rows are those of gate, the second half those of up:
    `out = act(A · gateᵀ + bias) · (A · upᵀ + bias) + residual`, each with its half of the bias.

    Args:
        A: [..., k] bf16|fp16, of any strides.
        B: [n, k], with a gated activation [2n, k]: the weights, dtype of `A`, of any strides; or with the mark of
            `shuffle_weight`, layout (16, 16).
        bias: one for each row of `B`, dtype of `A` or fp32, contiguous.
        otype: dtype of the result, bf16|fp16|fp32; default: that of `A`.
        scale_a, scale_b, scale_c: None; 16-bit operands have no scales.
        residual: [..., n], added after the activation; dtype of the result.
        activation: None, "silu", "gelu" (erf), "gelu_tanh", or one of these with "_and_mul": gated.
        out: tensor to write, [..., n]; default: a new contiguous one.
        backend: "ck", "hip", "triton", "vendor" (hipBLASLt or cuBLAS) or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is act(bias) + residual; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit, a scale is given, or shuffled `B` has another layout or padding, or
            is asked for a derivative.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results; can be captured in a graph.
        Backend ck takes contiguous rows with k a multiple of 8 and n of 4, hip contiguous rows of `A` and `B`, at most
        16 of `A`, triton everything. Where an argument requires grad, the derivative is two products of this operator;
        the activation's and residual's are torch's.

    Source: AITER's `gemm_a16w16` and `tgemm.mm`.
    """
    if not scale_a is scale_b is scale_c is None:
        got = ", ".join(type(scale).__name__ for scale in (scale_a, scale_b, scale_c))
        raise ValueError(f"{_OP}: scale_a, scale_b, scale_c must be None, 16-bit operands have no scales, got {got}")
    if not isinstance(A, Tensor) or not isinstance(B, Tensor):
        name, tensor = ("B", B) if isinstance(A, Tensor) else ("A", A)
        raise TypeError(f"{_OP}: {name} must be a tensor, got {type(tensor).__name__}")
    if A.ndim == 0:
        raise ValueError(f"{_OP}: A must have at least 1 dimension, got a scalar")
    if otype is not None and not isinstance(otype, torch.dtype):
        raise TypeError(f"{_OP}: otype must be a dtype, got {type(otype).__name__}")
    if activation is not None:
        check.choice(_OP, "activation", activation, (*ACTIVATIONS[1:], *GATED))
    if B.ndim != 2:
        raise ValueError(f"{_OP}: B must have 2 dimensions, got {B.ndim}")
    shape = (*A.shape[:-1], _columns(B.shape[0], activation))
    for name, tensor in () if residual is out is None else (("residual", residual), ("out", out)):
        if isinstance(tensor, Tensor) and tensor.shape != shape:
            raise ValueError(f"{_OP}: {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
    dtype = A.dtype if otype is None else otype
    if isinstance(out, Tensor) and otype is not None and out.dtype != otype:
        raise TypeError(f"{_OP}: out must have dtype {otype}, the otype, got {out.dtype}")
    a = matrix(A, A.shape[-1])
    is_shuffled = bool(getattr(B, "is_shuffled", False))
    if is_shuffled and (layout := getattr(B, "shuffle_layout", _LAYOUT)) != _LAYOUT:
        raise ValueError(f"{_OP}: B must be shuffled by layout {_LAYOUT}, got {layout}")
    if is_shuffled and torch_ops.needs_grad(A, B, bias, residual):
        raise ValueError(f"{_OP}: B must not be shuffled where a derivative is asked for: pass the weights that "
                         "shuffle_weight was given, or call under torch.no_grad()")
    if out is None and backend != "torch" and torch_ops.needs_grad(A, B, bias, residual):
        return _differentiable(a, B, bias, residual, activation, dtype, backend).view(shape)
    if out is None:
        out = A.new_empty(*shape, dtype=dtype)
    _run(a, B, bias, matrix(residual, shape[-1]), activation or "none", out, backend, is_shuffled)
    return out


def _run(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, out: Tensor,
         backend: str | None, is_shuffled: bool = False) -> Tensor:
    if isinstance(out, Tensor) and out.ndim == 2:
        _gemm_a16w16.run(out, a, b, bias, residual, activation, is_shuffled, backend=backend)
        return out
    return write_rows(out, lambda flat: _gemm_a16w16.run(flat, a, b, bias, residual, activation, is_shuffled,
                                                         backend=backend))


def _differentiable(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None,
                    dtype: torch.dtype, backend: str | None) -> Tensor:
    """The product by `_Linear`; what follows it by torch, in fp32."""
    if activation is None and residual is None:
        return _Linear.apply(a, b, bias, dtype, backend)
    y = _Linear.apply(a, b, bias, torch.float32, backend)
    y = after_product(y, activation or "none")
    if residual is not None:
        y = y + matrix(residual, y.shape[1]).float()
    return y.to(dtype)


torch_ops.register(_gemm_a16w16, gemm_a16w16)
