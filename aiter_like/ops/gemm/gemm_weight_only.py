# SPDX-License-Identifier: MIT
"""The product of linear layers with 16-bit activations and weights of 8 or 4 bits that have scales.

Kernels: csrc/gemm/gemm_weight_only.hip, ops/gemm/triton/gemm_weight_only.py and, beside it, on Hopper
gemm_weight_only_skinny.py for few rows and gemm_weight_only_hopper.py for some, and gemm_weight_only_wide.py for many.
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
from aiter_like.ops.activation.parts import activated
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.gemm import few_rows, tiles, weight_only
from aiter_like.ops.gemm.parts import (
    ACTIVATIONS,
    depth_refusal,
    matrix,
    mfma_refusal,
    rows_refusal,
    tiles_refusal,
    write_rows,
)

__all__ = ["gemm_a16w4", "gemm_a16w8"]

_OP = "gemm_weight_only"
CK_TILES = tuple(dict.fromkeys((*tiles.TILES, *few_rows.TILES)))
"""Names of the ck kernel's tiles."""
DTYPES = (torch.bfloat16, torch.float16)
GROUP_SIZES = (32, 64, 128)
SCALE_BLOCK = 128
"""Rows and columns of weights that share a scale where blocks of them have one."""


class GemmWeightOnlyCall(NamedTuple):
    """One call of gemm_weight_only: its arguments in the order of the function that gemm_weight_only.hip exports.

    Attributes:
        out: [m, n], written; bf16|fp16|fp32.
        a: [m, k] bf16|fp16, of any strides.
        b: [n, k] int8 or fp8 of the device, or [n, k / 2] with two weights of 4 bits in a byte, as pack_int4 returns
            them; of any strides.
        scale: [ceil(n / scale_rows), ceil(k / group_size)], with `scale_rows` 0 a single row, with `group_size` 0 a
            single column; fp32 or the dtype of `a`; contiguous.
        zero_points: None, or int8 like `scale`, of integers: what is subtracted from a weight before it is scaled.
        bias: [n], added to each row before the activation; dtype of `a`, or fp32; contiguous.
        residual: [m, n], added after the activation; dtype of `out`.
        bits: of a weight: 8 or 4.
        group_size: weights along k that share a scale: one of GROUP_SIZES, or 0 for a row.
        activation: one of ACTIVATIONS.
        scale_rows: rows of `b` that share a scale: 1; 128 of blocks of 128 × 128; 0 for all, with `group_size` 0.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    scale: Tensor
    zero_points: Tensor | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
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
    if call.activation != "none":
        product = activated(product, call.activation)
    if call.residual is not None:
        product = product + call.residual.float()
    call.out.copy_(product)


def _instance(call: GemmWeightOnlyCall, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """The tile and the splits are those that the counts of tiles.py find cheapest, unless a tuned row names them."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if tile is None and splits is None and m <= few_rows.ROWS:
        tile, splits = few_rows.chosen(n, k)
    elif tile is None or splits is None:
        tile, splits = tiles.cheapest(m, n, k, tile=tile, splits=splits)
    sizes = tiles.parse(tile, CK_TILES)
    if splits < 1 or splits > 1 and m * n >= 2**31:
        raise ValueError(f"{_OP}: splits must be at least 1, and 1 where out has 2^31 elements, got {splits}")
    bias_dtype = call.a.dtype if call.bias is None else call.bias.dtype
    kind = "fp8" if is_fp8(call) else f"w{call.bits}"
    parts = [f"{dtypes.name(call.a.dtype)}_{kind}", f"g{call.group_size}", tile, f"s{splits}",
             *([] if call.scale_rows == 1 else ["blocks" if call.scale_rows else "one"]),
             *([] if call.scale.dtype == torch.float32 else ["scale16"]),
             *([] if call.zero_points is None else ["zero"]),
             *([] if call.out.dtype == call.a.dtype else [f"o{dtypes.name(call.out.dtype)}"]),
             *([] if call.activation == "none" else [call.activation]),
             *([] if call.bias is None else [f"bias_{dtypes.name(bias_dtype)}"]),
             *([] if call.residual is None else ["residual"])]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[call.a.dtype], "OUT_ELEMENT": elements.CPP[call.out.dtype],
        "BIAS_ELEMENT": elements.CPP[bias_dtype], "SCALE_ELEMENT": elements.CPP[call.scale.dtype], "BITS": call.bits,
        "IS_FP8": int(is_fp8(call)), "GROUP_SIZE": call.group_size, "SCALE_ROWS": call.scale_rows,
        "BLOCK_M": sizes.block_m, "BLOCK_N": sizes.block_n, "WAVES_M": sizes.waves_m, "WAVES_N": sizes.waves_n,
        "WAVES_K": sizes.waves_k, "SPLITS": splits,
        "HAS_ZERO_POINTS": int(call.zero_points is not None), "HAS_BIAS": int(call.bias is not None),
        "HAS_RESIDUAL": int(call.residual is not None), "HAS_ACTIVATION": int(call.activation != "none"),
        "ACTIVATION": "silu" if call.activation == "none" else call.activation})


@compile_ops("gemm/gemm_weight_only.hip", gen_func=_instance, platforms=("hip",))
def _gemm_weight_only_ck(call: GemmWeightOnlyCall) -> None: ...


def _check(call: GemmWeightOnlyCall) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, b, out = call.a, call.b, call.out
    check.choice(_OP, "bits", call.bits, (8, 4))
    check.choice(_OP, "group_size", call.group_size, (0, *GROUP_SIZES))
    check.choice(_OP, "activation", call.activation, ACTIVATIONS)
    check.choice(_OP, "scale_rows", call.scale_rows, (1, SCALE_BLOCK) if call.group_size == SCALE_BLOCK else
                 (1,) if call.group_size else (1, 0))
    check.tensor(_OP, "a", a, rank=2, dtypes=DTYPES, last_contiguous=False)
    k = a.shape[1]
    if call.bits == 4 and k % 2:
        raise ValueError(f"{_OP}: a must have an even last dimension, as two weights are in a byte, got {k}")
    check.tensor(_OP, "b", b, dtypes=(torch.int8, *(elements.FP8 if call.bits == 8 else ())),
                 shape=(None, k * call.bits // 8), device=a.device, last_contiguous=False)
    target = target_of(a.device)
    if is_fp8(call) and target.platform != "cpu" and (reason := quant_rule.refusal(target, b.dtype)):
        raise TypeError(f"{_OP}: b must have the fp8 of this device, {reason}")
    if is_fp8(call) and call.zero_points is not None:
        raise ValueError(f"{_OP}: zero_points must be None where b has {b.dtype}, got a tensor")
    shape = (a.shape[0], b.shape[0])
    groups = (-(-shape[1] // call.scale_rows) if call.scale_rows else 1,
              -(-k // call.group_size) if call.group_size else 1)
    check.tensor(_OP, "scale", call.scale, dtypes=(torch.float32, a.dtype), shape=groups, device=a.device)
    if call.zero_points is not None:
        check.tensor(_OP, "zero_points", call.zero_points, dtypes=(torch.int8,), shape=groups, device=a.device)
    for name, one in (("scale", call.scale), ("zero_points", call.zero_points)):
        if one is not None and not one.is_contiguous():
            raise ValueError(f"{_OP}: {name} must be contiguous, got strides {one.stride()}")
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, shape=shape, device=a.device, last_contiguous=False)
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=(a.dtype, torch.float32), shape=shape[1:], device=a.device)
    if call.residual is not None:
        check.tensor(_OP, "residual", call.residual, dtypes=(out.dtype,), shape=shape, device=a.device,
                     last_contiguous=False)
    return SKIP if out.numel() == 0 else None


def _ck_refusal(target: Target, call: GemmWeightOnlyCall) -> str | None:
    """What the kernel for gfx942 does not take."""
    return (mfma_refusal(target) or depth_refusal(call.a, call.b.shape[0])
            or rows_refusal(a=call.a, b=call.b, out=call.out, residual=call.residual) or tiles_refusal(*call.out.shape))


def _ck_space(target: Target, call: GemmWeightOnlyCall) -> Iterator[dict[str, Any]]:
    (m, n), k = call.out.shape, call.a.shape[1]
    return few_rows.space(n, k) if m <= few_rows.ROWS else tiles.space(m, n, k)


def _tune_key(call: GemmWeightOnlyCall) -> dict[str, int | str]:
    m, k = call.a.shape
    return {"m": m, "n": call.b.shape[0], "k": k, "bits": call.bits, "is_fp8": int(is_fp8(call)),
            "group_size": call.group_size, "scale_rows": call.scale_rows, "dtype": dtypes.name(call.a.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _cases(device: torch.device) -> dict[str, GemmWeightOnlyCall]:
    """Both widths, with groups and without; what follows a product; few rows over a long depth; operands for Triton."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    def integers(*shape: int, of: int = 128) -> Tensor:
        return torch.randint(-of, of, shape, generator=generator, dtype=torch.int8).to(device)

    eight = GemmWeightOnlyCall(random(70, 132), random(70, 136), integers(132, 136), random(132, 1).abs() / 128)
    four = GemmWeightOnlyCall(random(21, 68), random(21, 264), integers(68, 132), random(68, 3).abs() / 8, bits=4,
                              group_size=128)
    half = GemmWeightOnlyCall(random(3, 40, dtype=torch.float16), random(3, 96, dtype=torch.float16),
                              integers(40, 48), random(40, 3, dtype=torch.float32).abs() / 8, bits=4, group_size=32)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    blocks = eight._replace(b=random(132, 136).to(fp8), scale=random(2, 2, dtype=torch.float32).abs() / 8,
                            group_size=SCALE_BLOCK, scale_rows=SCALE_BLOCK)
    return {"8 bits": eight, "fp8, blocks": blocks,
            "fp8, one scale": blocks._replace(scale=random(1, 1).abs() / 8, group_size=0, scale_rows=0),
            "8 bits, groups": eight._replace(scale=random(132, 3, dtype=torch.float32).abs() / 128, group_size=64),
            "4 bits, groups": four,
            "4 bits, zero points": half._replace(zero_points=integers(40, 3, of=8), bias=random(40).half(),
                                                 activation="gelu"),
            "split depth": four._replace(a=random(5, 2056), out=random(5, 68), b=integers(68, 1028),
                                         scale=random(68, 17).abs() / 8, residual=random(5, 68)),
            "transposed b": eight._replace(b=integers(136, 132).t(), activation="silu", bias=random(132))}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GemmWeightOnlyCall:
    random = tune_shapes.normal(device, seed, key["dtype"])
    m, n, k, bits, group_size = (key[name] for name in ("m", "n", "k", "bits", "group_size"))
    b = torch.randint(-128, 128, (n, k * bits // 8), device=device, dtype=torch.int8,
                      generator=torch.Generator(device).manual_seed(seed))
    if key["is_fp8"]:  # bits of any kind may be NaN
        b = random(n, k).to(dtypes.fp8_of(target_of(device).arch))
    rows = -(-n // key["scale_rows"]) if key["scale_rows"] else 1
    scale = (random(rows, -(-k // group_size) if group_size else 1).abs() + 1) * k**-0.5 / 2**bits
    out = torch.empty(m, n, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return GemmWeightOnlyCall(out, random(m, k), b, scale, bits=bits, group_size=group_size,
                              scale_rows=key["scale_rows"])


def _traffic(call: GemmWeightOnlyCall) -> tuple[int, int]:
    tensors = [one for one in call[:7] if one is not None]
    return sum(one.numel() * one.element_size() for one in tensors), 2 * call.a.numel() * call.b.shape[0]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's products, one GPU's part, with weights as they are mostly published: 4 bits in groups of 128."""
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        if matrices == 1 and k % 2 == 0:
            yield {"m": tokens, "n": n, "k": k, "bits": 4, "is_fp8": 0, "group_size": 128, "scale_rows": 1,
                   "dtype": model.dtype, "out_dtype": model.dtype}


_gemm_weight_only = Op(
    _OP, call=GemmWeightOnlyCall, reference=gemm_weight_only_ref, check=_check, tune_key=_tune_key,
    tune_fields=("m", "n", "k", "bits", "is_fp8", "group_size", "scale_rows", "dtype", "out_dtype"), round_field="m",
    cases=_cases,
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes),
    in_place={"out": ("residual",)},
    backends=(Backend("ck", _gemm_weight_only_ck, refusal=_ck_refusal, space=_ck_space),
              Backend("triton", "ops.gemm.triton.gemm_weight_only:gemm_weight_only", kernels=weight_only.kernels,
                      space=weight_only.space),
              Backend("torch", gemm_weight_only_ref, differentiable=True)))


def gemm_a16w8(A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None, *,
               group_size: int | None = None, zero_points: Tensor | None = None, residual: Tensor | None = None,
               activation: str | None = None, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of a linear layer whose weights are int8 or fp8, and whose activations keep their 16 bits.

    `out = act(A · ((B − zero_points) · scale)ᵀ + bias) + residual`.

    Args:
        A: [..., k] bf16|fp16, of any strides.
        B: [n, k] int8 or fp8 of the device, the weights, of any strides; not shuffled.
        scale: [n, ceil(k / group_size)], or [n] or [n, 1] for one per row of `B`, or a single number; with
            `group_size` 128 also [ceil(n / 128), ceil(k / 128)], one per block of 128 × 128; fp32 or the dtype of `A`,
            contiguous.
        bias: [n], dtype of `A` or fp32, contiguous.
        otype: dtype of the result, bf16|fp16|fp32; default: that of `A`.
        group_size: 32, 64 or 128 weights along k that share a scale, of which the last group may have fewer; default:
            a whole row.
        zero_points: of int8, like `scale` of each row, int8, contiguous; default: zeros.
        residual: [..., n], added after the activation; dtype of the result.
        activation: None, "silu", "gelu" (erf) or "gelu_tanh".
        out: tensor to write, [..., n]; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is act(bias) + residual; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit, or `B` is marked as shuffled.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Weights are multiplied as the numbers that they are, exactly; the sum over a group, in fp32, is scaled, so
        that products of unscaled weights must stay within fp32. Rounded to nearest even once. Backend triton may scale
        the weights of groups first, each rounded to the dtype of `A` once, which takes [n, k] of that dtype as scratch:
        without a tuned row it does so for more than 256 rows on Hopper. Equal calls give equal results; can be captured
        in a graph. Backend ck takes contiguous rows with k a multiple of 8 and n of 4, triton everything. Where `A`
        requires grad, torch serves.

    Source: weight-only quantisation in groups, as GPTQ and AWQ store it; of blocks of fp8 AITER's Triton
        `gemm_a16w8_blockscale`.
    """
    return _product("gemm_a16w8", 8, A, B, scale, bias, otype, group_size or 0, zero_points, residual, activation, out,
                    backend)


def gemm_a16w4(A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None, *,
               group_size: int | None = None, zero_points: Tensor | None = None, residual: Tensor | None = None,
               activation: str | None = None, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of a linear layer whose weights have 4 bits, from −8 to 7.

    `out = act(A · ((unpack_int4(B) − zero_points) · scale)ᵀ + bias) + residual`.

    Args:
        A: [..., k] bf16|fp16, k even, of any strides.
        B: [n, k / 2] int8, the weights as `pack_int4` packs them along k, of any strides; not shuffled.
        scale: [n, ceil(k / group_size)], or [n] or [n, 1] for one per row of `B`; fp32 or the dtype of `A`, contiguous.
        bias: [n], dtype of `A` or fp32, contiguous.
        otype: dtype of the result, bf16|fp16|fp32; default: that of `A`.
        group_size: 32, 64 or 128 weights along k that share a scale, of which the last group may have fewer; default:
            a whole row.
        zero_points: like `scale`, int8, contiguous; default: zeros. Weights and zero points from 0 to 15, as AWQ and
            GPTQ store them, both become these when 8 is taken away.
        residual: [..., n], added after the activation; dtype of the result.
        activation: None, "silu", "gelu" (erf) or "gelu_tanh".
        out: tensor to write, [..., n]; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is act(bias) + residual; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit, or `B` is marked as shuffled.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As for `gemm_a16w8`.

    Source: weight-only quantisation in groups, as GPTQ and AWQ store it; the byte order of `pack_int4`.
    """
    return _product("gemm_a16w4", 4, A, B, scale, bias, otype, group_size or 0, zero_points, residual, activation, out,
                    backend)


def _product(op: str, bits: int, A: Tensor, B: Tensor, scale: Tensor, bias: Tensor | None, otype: torch.dtype | None,
             group_size: int, zero_points: Tensor | None, residual: Tensor | None, activation: str | None,
             out: Tensor | None, backend: str | None) -> Tensor:
    """Checks what the operator cannot know, and hands it matrices."""
    for name, tensor in (("A", A), ("B", B), ("scale", scale)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")
    if getattr(B, "is_shuffled", False):
        raise ValueError(f"{op}: B must not be shuffled, got a result of shuffle_weight")
    if A.ndim == 0:
        raise ValueError(f"{op}: A must have at least 1 dimension, got a scalar")
    if B.ndim != 2:
        raise ValueError(f"{op}: B must have 2 dimensions, got {B.ndim}")
    if otype is not None and not isinstance(otype, torch.dtype):
        raise TypeError(f"{op}: otype must be a dtype, got {type(otype).__name__}")
    check.choice(op, "group_size", group_size or None, (None, *GROUP_SIZES))
    if activation is not None:
        check.choice(op, "activation", activation, ACTIVATIONS[1:])
    n = B.shape[0]
    shape = (*A.shape[:-1], n)
    for name, tensor in (("residual", residual), ("out", out)):
        if isinstance(tensor, Tensor) and tensor.shape != shape:
            raise ValueError(f"{op}: {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if isinstance(out, Tensor) and otype is not None and out.dtype != otype:
        raise TypeError(f"{op}: out must have dtype {otype}, the otype, got {out.dtype}")
    if out is None:
        out = torch.empty(shape, dtype=otype or A.dtype, device=A.device)
    a, residual = matrix(A, A.shape[-1]), None if residual is None else matrix(residual, n)
    scale_rows = 1
    if bits == 8 and not group_size and scale.numel() == 1:
        scale, scale_rows = scale.reshape(1, 1), 0 if zero_points is None else 1
    elif bits == 8 and group_size == SCALE_BLOCK and scale.ndim == 2 and scale.shape[0] == -(-n // SCALE_BLOCK) < n:
        scale_rows = SCALE_BLOCK
    scale, zero_points = (one[:, None] if isinstance(one, Tensor) and one.ndim == 1 and not group_size else one
                          for one in (scale, zero_points))
    return write_rows(out, lambda flat: _gemm_weight_only.run(
        flat, a, B, scale, zero_points, bias, residual, bits, group_size, activation or "none", scale_rows,
        backend=backend))


torch_ops.register(_gemm_weight_only, gemm_a16w4)
_gemm_weight_only.public.append(gemm_a16w8)
