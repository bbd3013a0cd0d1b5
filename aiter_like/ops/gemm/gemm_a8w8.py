# SPDX-License-Identifier: MIT
"""The product of linear layers in 8 bits, FP8 or INT8, with scales and bias; weights in rows or shuffled.

Kernels: csrc/gemm/gemm_a8w8.hip, ops/gemm/triton/gemm_a8w8.py and, for Hopper, hopper.py beside it.
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
from aiter_like.ops.gemm import few_rows, hopper, parts, problems, tiles, vendor
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight

__all__ = ["gemm_a8w8", "gemm_a8w8_bpreshuffle"]

_OP = "gemm_a8w8"
CK_TILES = tuple(dict.fromkeys((*tiles.PIPELINED, *few_rows.TILES)))
"""Names of the ck kernel's tiles."""
_LAYOUTS = ((16, 16), (32, 16))
_BANDS = (0, *(rows for rows, _ in _LAYOUTS))
_PACK = 32  # K of a shuffled weight is a multiple of it


class GemmA8w8Call(NamedTuple):
    """One call of gemm_a8w8: its arguments in the order of the function that gemm_a8w8.hip exports.

    Attributes:
        b: [n, k]; with a band [n, at least k], contiguous.
        a_scale, b_scale: [m] or [1], and [n] or [1]; an element counts as value · a_scale · b_scale.
        band: rows of a band of the layout that `b` is shuffled in, 16 or 32; 0: it is not.
        use_fast_accum: sums of fp8 may lose bits where the hardware is faster so.
    """

    out: Annotated[Tensor, "m n", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "m k", quant_rule.DTYPES, STRIDED]
    b: Annotated[Tensor, "n _", "a", STRIDED]
    a_scale: Annotated[Tensor, "_", torch.float32]
    b_scale: Annotated[Tensor, "_", torch.float32]
    bias: Annotated[Tensor | None, "n", elements.FLOATS] = None
    band: int = 0
    use_fast_accum: bool = False


def gemm_a8w8_ref(call: GemmA8w8Call) -> None:
    """The formula in torch: sums in fp32, those of int8 exact; writes `out`."""
    a, b = call.a, call.b
    if call.band:
        b = unshuffle_weight(b, (call.band, 16))[:, :a.shape[1]]
    wide = torch.float64 if a.dtype == torch.int8 else torch.float32
    product = (a.to(wide) @ b.to(wide).t()).float() * call.a_scale[:, None] * call.b_scale
    call.out.copy_(product if call.bias is None else product + call.bias.float())


def _instance(call: GemmA8w8Call, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """One for each tile, number of splits, and form of operands and result; tile and splits by few_rows.py, or for more
    rows by the counts of tiles.py, unless they are given."""
    (m, k), n = call.a.shape, call.b.shape[0]
    tile, splits = few_rows.or_tiles(m, n, k, tile, splits, call.band, element_bytes=1, names=tiles.PIPELINED)
    bias_dtype = torch.float32 if call.bias is None else call.bias.dtype
    names = [elements.short(call.a.dtype), tile, f"s{splits}", dtypes.name(call.out.dtype),
             *([f"band{call.band}"] if call.band else []),
             *([] if call.bias is None else [f"bias_{dtypes.name(bias_dtype)}"])]
    return Instance("_".join(names), {
        "ELEMENT": elements.CPP[call.a.dtype], "OUT_ELEMENT": elements.CPP[call.out.dtype],
        "BIAS_ELEMENT": elements.CPP[bias_dtype], **tiles.macros(_OP, *call.out.shape, tile, splits, CK_TILES),
        "B_BAND": call.band, "HAS_BIAS": int(call.bias is not None)})


@compile_ops("gemm/gemm_a8w8.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a8w8_ck(call: GemmA8w8Call) -> None: ...


def _check(call: GemmA8w8Call) -> object:
    problems.check_fp8(_OP, call.a)
    check.choice(_OP, "band", call.band, _BANDS)
    (m, k), b, n = call.a.shape, call.b, call.b.shape[0]
    if not call.band:
        check.tensor(_OP, "b", b, shape=(n, k), last_contiguous=False)
    elif n % call.band or b.shape[1] % _PACK or b.shape[1] < k or not b.is_contiguous():
        raise ValueError(f"{_OP}: shuffled, b must be contiguous, its rows in multiples of {call.band}, its columns in "
                         f"multiples of {_PACK} and at least {k}, got shape {tuple(b.shape)} with strides {b.stride()}")
    for name, scale, count in (("a_scale", call.a_scale, m), ("b_scale", call.b_scale, n)):
        if scale.shape[0] not in (1, count):
            raise ValueError(f"{_OP}: {name} must have 1 or {count} elements, got {scale.shape[0]}")
    return SKIP if call.out.numel() == 0 else None


def _ck_space(target: Target, call: GemmA8w8Call) -> Iterator[dict[str, Any]]:
    (m, n), k = call.out.shape, call.a.shape[1]
    return few_rows.space(m, n, k, tiles.PIPELINED, 1, call.band)


def _ck_cost(call: GemmA8w8Call, facts: Facts, *, tile: str | None = None, splits: int | None = None) -> float:
    (m, k), n = call.a.shape, call.b.shape[0]
    return few_rows.cost(facts, m, n, k, tile, splits, call.band, element_bytes=1, names=tiles.PIPELINED)


def keeps_sums_apart(call: GemmA8w8Call, target: Target) -> bool:
    """Whether sums must leave the matrix unit, which alone would keep too few bits of them."""
    return parts.is_rough(call.a, target) and not call.use_fast_accum


def _is_for_hopper(target: Target, call: GemmA8w8Call) -> bool:
    return target.arch == "sm_90" and not call.band and hopper.serves(call.a, call.b)


def _triton_space(target: Target, call: GemmA8w8Call) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; deep ones for few rows, which are bound by memory. On Hopper the kernel for it is
    alone where it serves."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if _is_for_hopper(target, call):
        return hopper.space(m, n, k, 1, target, keeps_sums_apart(call, target))
    return hopper.plain_space(m, ((16, 32, 512, 4), (16, 64, 256, 4), (32, 64, 256, 4), (64, 64, 128, 4),
                                  (64, 128, 128, 4), (128, 128, 128, 4), (128, 128, 128, 8), (128, 256, 128, 8),
                                  (256, 128, 128, 8)))


class GemmA8w8Key(NamedTuple):
    """The fields that a tuned row of gemm_a8w8 is chosen by."""

    m: int
    n: int
    k: int
    weight_dtype: str
    band: int = 0
    use_fast_accum: bool = False

    @classmethod
    def of(cls, call: GemmA8w8Call) -> GemmA8w8Key:
        (m, k), n = call.a.shape, call.b.shape[0]
        return cls(m, n, k, dtypes.name(call.b.dtype), call.band, call.use_fast_accum)

    def make(self, device: torch.device, seed: int, out_dtype: str = "bf16", bias: str = "",
             has_one_scale: bool = False) -> GemmA8w8Call:
        """Makes operands of magnitude 1 in fp8 and 40 in int8, as a quantiser leaves numbers, and 1 in the result."""
        m, n, k, band = self.m, self.n, self.k, self.band
        random, dtype = tune_shapes.normal(device, seed, "fp32"), dtypes.DTYPES[self.weight_dtype]
        size = 40 if dtype == torch.int8 else 1
        a, b = (quant_rule.rounded(random(rows, k) * size, dtype) for rows in (m, n))
        a_scale, b_scale = ((random(1 if has_one_scale else rows).abs() + 0.5) * k**-0.25 / size for rows in (m, n))
        if band:
            b = shuffle_weight(b, (band, 16), pad_k_to=_PACK)
        return GemmA8w8Call(torch.empty(m, n, dtype=dtypes.DTYPES[out_dtype], device=device), a, b, a_scale, b_scale,
                            random(n).to(dtypes.DTYPES[bias]) if bias else None, band, bool(self.use_fast_accum))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GemmA8w8Key]:
        """A layer's products in fp8, one GPU's part; those of experts are another operator's."""
        return (cls(tokens, n, k, tune_shapes.fp8_name())
                for matrices, n, k in tune_shapes.linear_weights(model, tp) if matrices == 1)


_gemm_a8w8 = Op(
    _OP, call=GemmA8w8Call, reference=gemm_a8w8_ref, check=_check, key=GemmA8w8Key, round_field="m",
    cases={"fp8": GemmA8w8Key(70, 132, 144, "fp8"),
           "fp8, fast sums": GemmA8w8Key(70, 132, 144, "fp8", use_fast_accum=True),
           "int8, bias": (GemmA8w8Key(70, 132, 144, "i8"), {"bias": "bf16"}),
           "one scale each, fp16": (GemmA8w8Key(3, 40, 80, "i8"), {"out_dtype": "fp16", "has_one_scale": True}),
           "split depth": GemmA8w8Key(5, 64, 4112, "i8"),
           "fp8, split depth, bias": (GemmA8w8Key(5, 132, 4112, "fp8"), {"bias": "fp32"}),
           "shuffled": GemmA8w8Key(70, 144, 176, "fp8", 16),
           "shuffled, int8, fp32": (GemmA8w8Key(17, 64, 192, "i8", 16), {"out_dtype": "fp32"}),
           "shuffled in bands of 32": GemmA8w8Key(9, 96, 64, "i8", 32),
           "odd depth": GemmA8w8Key(7, 24, 65, "fp8")},
    prefers=vendor.prefers_scaled, traffic=parts.traffic, sums_in_fp32=True,
    backends=(Backend("ck", _gemm_a8w8_ck, refusal=parts.ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a8w8:gemm_a8w8", refusal=parts.sum_refusal,
                      kernels=hopper.kernels_of(_OP, _is_for_hopper), space=_triton_space),
              Backend("vendor", vendor.scaled, refusal=vendor.scaled_refusal), Backend("torch", gemm_a8w8_ref)))


def gemm_a8w8(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
              dtype: torch.dtype = torch.bfloat16, splitK: int | None = None, *, use_fast_accum: bool = False,
              out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of a linear layer in 8 bits: `out = (XQ · WQᵀ) · x_scale · w_scale + bias`.

    Args:
        XQ: [..., k], fp8 (FNUZ on gfx942, OCP on NVIDIA) or int8, of any strides.
        WQ: [n, k], the weights, dtype of `XQ`, of any strides; not shuffled.
        x_scale: fp32, one per row of `XQ` ([..., 1], [...] or [rows]) or a single one.
        w_scale: fp32, one per row of `WQ` ([n, 1], [n] or [1, n]) or a single one.
        bias: [n] or [1, n] bf16|fp16|fp32, contiguous.
        dtype: of the result, bf16|fp16|fp32.
        splitK: AITER's hint for its own kernels; of no meaning here, where tuned rows or the sizes decide.
        use_fast_accum: on NVIDIA, sums of fp8 stay in the matrix unit, faster and of about 14 bits. Else, there, at
            most 128 products are added up so and then in fp32. Of no meaning for int8 and on AMD.

    Notes:
        Sums in fp32 (int8: exact, in int32), scaled in fp32, rounded to nearest even once; equal calls give equal
        results. Scales that are not dense in memory are copied. Backend ck takes contiguous rows with k a multiple of
        16 and n of 4, triton everything; vendor is cuBLAS, of fp8 alone; int8 with k of 2^17 and more goes to torch.
    """
    marks.refuse(_OP, "WQ", WQ, ", which gemm_a8w8_bpreshuffle takes")
    return _product(XQ, WQ, x_scale, w_scale, bias, dtype, splitK, 0, use_fast_accum, out, backend)


def gemm_a8w8_bpreshuffle(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                          dtype: torch.dtype = torch.bfloat16, check: bool = False, *,
                          layout: tuple[int, int] | None = None, use_fast_accum: bool = False,
                          out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product with weights in the order of `shuffle_weight`. Like `gemm_a8w8`, and equal to it bit by bit on the
    weights before they were shuffled, by the same backend and tile.

    Args:
        WQ: [n, k or more], dtype of `XQ`, contiguous, as `shuffle_weight` returns it; columns beyond k are not read,
            or read as zeros. The mark `is_shuffled` is not asked for, since nn.Parameter and .to lose it.
        check: AITER's request to compare kernels; of no meaning here.
        layout: what `shuffle_weight` was given, (16, 16) or (32, 16); default: that of the mark, else (16, 16).
        backend: "ck", "triton" or "torch" instead of the automatic choice.
    """
    marked = marks.layout_named(WQ)
    layout = layout or marked or _LAYOUTS[0]
    if layout not in _LAYOUTS:
        raise ValueError(f"gemm_a8w8_bpreshuffle: layout must be (16, 16) or (32, 16), got {layout!r}")
    if marked not in (None, layout):
        raise ValueError(f"gemm_a8w8_bpreshuffle: layout must be {marked}, as WQ is marked, got {layout}")
    return _product(XQ, WQ, x_scale, w_scale, bias, dtype, None, layout[0], use_fast_accum, out, backend)


def _product(x: Tensor, weight: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, dtype: torch.dtype,
             splitK: int | None, band: int, use_fast_accum: bool, out: Tensor | None, backend: str | None) -> Tensor:
    """Both public functions; what the operator does not see of their arguments is checked here."""
    for name, tensor in (("XQ", x), ("WQ", weight), ("x_scale", x_scale), ("w_scale", w_scale)):
        check.dense(_OP, name, tensor)
        check.tensor(_OP, name, tensor, device=x.device, last_contiguous=False)
    if x.ndim == 0:
        raise ValueError(f"{_OP}: XQ must have at least 1 dimension, got a scalar")
    if weight.ndim != 2:
        raise ValueError(f"{_OP}: WQ must have 2 dimensions, got {weight.ndim}")
    if dtype not in elements.FLOATS:
        raise TypeError(f"{_OP}: dtype must be torch.bfloat16, torch.float16 or torch.float32, got {dtype}")
    if splitK is not None:
        check.integer(_OP, "splitK", splitK, low=0)
    rows, n = x.shape[:-1].numel(), weight.shape[0]
    shape = (*x.shape[:-1], n)
    if isinstance(out, Tensor) and (out.shape != shape or out.dtype != dtype):
        raise (ValueError if out.shape != shape else TypeError)(
            f"{_OP}: out must have shape {shape} and dtype {dtype}, got {tuple(out.shape)} and {out.dtype}")
    a_scale = _scales("x_scale", x_scale, (rows, 1), (*x.shape[:-1], 1), (rows,), x.shape[:-1])
    b_scale = _scales("w_scale", w_scale, (n, 1), (n,), (1, n))
    if isinstance(bias, Tensor) and bias.shape == (1, n):
        bias = bias[0]
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    a = parts.matrix(x, x.shape[-1])
    return parts.write_rows(out, lambda flat: _gemm_a8w8.run(
        flat, a, weight, a_scale, b_scale, bias, band, use_fast_accum, backend=backend))


def _scales(name: str, scale: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """`scale` as a vector.

    Raises:
        ValueError: it has several elements in another shape.
    """
    if scale.numel() != 1 and tuple(scale.shape) not in map(tuple, shapes):
        raise ValueError(f"{_OP}: {name} must have 1 element or shape {tuple(shapes[0])}, got {tuple(scale.shape)}")
    return scale.reshape(-1).contiguous()


torch_ops.register(_gemm_a8w8, gemm_a8w8)
