# SPDX-License-Identifier: MIT
"""The product of linear layers in 8 bits, FP8 or INT8, with scales and bias; weights in rows or shuffled.

Kernels: csrc/gemm/gemm_a8w8.hip, ops/gemm/triton/gemm_a8w8.py and, for Hopper, hopper.py beside it.
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
from aiter_like.ops.gemm import few_rows, hopper, tiles, vendor
from aiter_like.ops.gemm.parts import (
    depth_refusal,
    is_rough,
    matrix,
    mfma_refusal,
    rows_refusal,
    sum_refusal,
    tiles_refusal,
    write_rows,
)
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
        out: [m, n], written; bf16|fp16|fp32.
        a: [m, k], the device's fp8 or int8, of any strides.
        b: [n, k], dtype of `a`, of any strides; with a band [n, at least k], contiguous.
        a_scale: [m] or [1] fp32, contiguous; an element counts as value · a_scale · b_scale.
        b_scale: [n] or [1] fp32, contiguous.
        bias: [n] bf16|fp16|fp32, contiguous.
        band: rows of a band of the layout that `b` is shuffled in, 16 or 32; 0: it is not.
        use_fast_accum: sums of fp8 may lose bits where the hardware is faster so.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    bias: Tensor | None = None
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


def _tile(call: GemmA8w8Call, tile: str | None, splits: int | None) -> tuple[str, int]:
    """The given ones, and otherwise what few_rows.py chooses, or for more rows the counts of tiles.py find cheapest."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if tile is not None and splits is not None:
        return tile, splits
    if tile is None and splits is None and m <= few_rows.ROWS:
        return few_rows.chosen(n, k, call.band)
    return tiles.cheapest(m, n, k, tile=tile, splits=splits, element_bytes=1, names=tiles.PIPELINED)


def _instance(call: GemmA8w8Call, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """One for each tile, number of splits, and form of operands and result."""
    m, n = call.a.shape[0], call.b.shape[0]
    tile, splits = _tile(call, tile, splits)
    sizes = tiles.parse(tile, CK_TILES)
    if splits < 1 or splits > 1 and m * n >= 2**31:
        raise ValueError(f"{_OP}: splits must be at least 1, and 1 where out has 2^31 elements, got {splits}")
    bias_dtype = torch.float32 if call.bias is None else call.bias.dtype
    parts = [elements.short(call.a.dtype), tile, f"s{splits}", dtypes.name(call.out.dtype),
             *([f"band{call.band}"] if call.band else []),
             *([] if call.bias is None else [f"bias_{dtypes.name(bias_dtype)}"])]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[call.a.dtype], "OUT_ELEMENT": elements.CPP[call.out.dtype],
        "BIAS_ELEMENT": elements.CPP[bias_dtype], "BLOCK_M": sizes.block_m, "BLOCK_N": sizes.block_n,
        "WAVES_M": sizes.waves_m, "WAVES_N": sizes.waves_n, "WAVES_K": sizes.waves_k, "SPLITS": splits,
        "B_BAND": call.band, "HAS_BIAS": int(call.bias is not None)})


@compile_ops("gemm/gemm_a8w8.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a8w8_ck(call: GemmA8w8Call) -> None: ...


def _check(call: GemmA8w8Call) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, b = call.a, call.b
    check.tensor(_OP, "a", a, rank=2, dtypes=(*elements.FP8, torch.int8), last_contiguous=False)
    target = target_of(a.device)
    if target.platform != "cpu" and (reason := quant_rule.refusal(target, a.dtype)) is not None:
        raise TypeError(f"{_OP}: a must have the fp8 that this device computes with, {reason}")
    (m, k), device = a.shape, a.device
    check.choice(_OP, "band", call.band, _BANDS)
    check.tensor(_OP, "b", b, rank=2, dtypes=(a.dtype,), shape=(None, None if call.band else k), device=device,
                 last_contiguous=False)
    n = b.shape[0]
    if call.band and (n % call.band or b.shape[1] % _PACK or b.shape[1] < k or not b.is_contiguous()):
        raise ValueError(f"{_OP}: shuffled, b must be contiguous, its rows in multiples of {call.band}, its columns in "
                         f"multiples of {_PACK} and at least {k}, got shape {tuple(b.shape)} with strides {b.stride()}")
    check.tensor(_OP, "out", call.out, dtypes=elements.FLOATS, shape=(m, n), device=device, last_contiguous=False)
    for name, scale, count in (("a_scale", call.a_scale, m), ("b_scale", call.b_scale, n)):
        check.tensor(_OP, name, scale, rank=1, dtypes=(torch.float32,), device=device)
        if scale.shape[0] not in (1, count):
            raise ValueError(f"{_OP}: {name} must have 1 or {count} elements, got {scale.shape[0]}")
    if call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=elements.FLOATS, shape=(n,), device=device)
    return SKIP if call.out.numel() == 0 else None


def _triton_refusal(target: Target, call: GemmA8w8Call) -> str | None:
    """What no kernel takes."""
    return sum_refusal(call.a)


def _ck_refusal(target: Target, call: GemmA8w8Call) -> str | None:
    """What the kernel for gfx942 does not take."""
    return (mfma_refusal(target) or depth_refusal(call.a, call.b.shape[0]) or _triton_refusal(target, call)
            or rows_refusal(a=call.a, b=call.b, out=call.out) or tiles_refusal(*call.out.shape))


def _ck_space(target: Target, call: GemmA8w8Call) -> Iterator[dict[str, Any]]:
    (m, n), k = call.out.shape, call.a.shape[1]
    if m <= few_rows.ROWS:
        return few_rows.space(n, k, call.band)
    return tiles.space(m, n, k, tiles.PIPELINED, element_bytes=1)


def _ck_cost(target: Target, call: GemmA8w8Call, *, tile: str | None = None, splits: int | None = None) -> float:
    (m, k), n = call.a.shape, call.b.shape[0]
    tile, splits = _tile(call, tile, splits)
    return tiles.clocks(m, n, k, tiles.parse(tile, CK_TILES), splits, element_bytes=1, names=tiles.PIPELINED)


def keeps_sums_apart(call: GemmA8w8Call, target: Target) -> bool:
    """Whether sums must leave the matrix unit, which alone would keep too few bits of them."""
    return is_rough(call.a, target) and not call.use_fast_accum


def _is_for_hopper(target: Target, call: GemmA8w8Call) -> bool:
    return target.arch == "sm_90" and not call.band and hopper.serves(call.a, call.b)


def _triton_kernels(target: Target, call: GemmA8w8Call, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter swap."""
    own = ["gemm_a8w8_hopper"] if _is_for_hopper(target, call) else []
    if params:
        return own if "swap" in params else ["gemm_a8w8"]
    return [*own, "gemm_a8w8"]


def _triton_space(target: Target, call: GemmA8w8Call) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; deep ones for few rows, which are bound by memory. On Hopper the kernel for it is
    alone where it serves."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if _is_for_hopper(target, call):
        yield from hopper.space(m, n, k, 1, target, keeps_sums_apart(call, target))
        return
    for block_m, block_n, block_k, num_warps in ((16, 32, 512, 4), (16, 64, 256, 4), (32, 64, 256, 4), (64, 64, 128, 4),
                                                 (64, 128, 128, 4), (128, 128, 128, 4), (128, 128, 128, 8),
                                                 (128, 256, 128, 8), (256, 128, 128, 8)):
        if block_m <= max(16, 2 * m) and (block_m >= 64 or m < 512):
            for num_stages in (2, 3, 4):
                yield dict(zip(hopper.Blocks._fields, (block_m, block_n, block_k, num_warps, num_stages)))


def _tune_key(call: GemmA8w8Call) -> dict[str, int | str]:
    m, k = call.a.shape
    return {"m": m, "n": call.b.shape[0], "k": k, "weight_dtype": dtypes.name(call.b.dtype), "band": call.band,
            "use_fast_accum": int(call.use_fast_accum)}


def _random(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Normal numbers as a quantiser leaves them: of a magnitude of 1 in fp8, of 40 in int8."""
    values = torch.randn(shape, generator=generator, device=generator.device)
    return quant_rule.rounded(values * 40 if dtype == torch.int8 else values, dtype)


def _call(generator: torch.Generator, m: int, n: int, k: int, dtype: torch.dtype, *, device: torch.device,
          out_dtype: torch.dtype = torch.bfloat16, band: int = 0, pad_k_to: int = 0) -> GemmA8w8Call:
    """A call on random numbers, with a scale for each row and each column: the result's magnitude is 1."""
    a, b = (_random(generator, dtype, rows, k).to(device) for rows in (m, n))
    unit = k**-0.25 / (40 if dtype == torch.int8 else 1)
    a_scale, b_scale = ((torch.rand(rows, generator=generator, device=generator.device) + 0.5).to(device) * unit
                        for rows in (m, n))
    if band:
        b = shuffle_weight(b, (band, 16), pad_k_to=pad_k_to)
    return GemmA8w8Call(torch.empty(m, n, dtype=out_dtype, device=device), a, b, a_scale, b_scale, band=band)


def _cases(device: torch.device) -> dict[str, GemmA8w8Call]:
    """Odd sizes in fp8 and int8; both forms of scales; few rows over a long depth, which is split; shuffled weights."""
    target = target_of(device)
    fp8, generator = dtypes.fp8_of(target.arch), torch.Generator().manual_seed(0)

    def case(m: int, n: int, k: int, dtype: torch.dtype, **options: Any) -> GemmA8w8Call:
        return _call(generator, m, n, k, dtype, device=device, **options)

    bias = torch.randn(132, generator=generator).to(device)
    half = case(3, 40, 80, torch.int8, out_dtype=torch.float16)
    return {"fp8": case(70, 132, 144, fp8),
            "fp8, fast sums": case(70, 132, 144, fp8)._replace(use_fast_accum=True),
            "int8, bias": case(70, 132, 144, torch.int8)._replace(bias=bias.bfloat16()),
            "one scale each, fp16": half._replace(a_scale=half.a_scale[:1], b_scale=half.b_scale[:1]),
            "split depth": case(5, 64, 4112, torch.int8),
            "fp8, split depth, bias": case(5, 132, 4112, fp8)._replace(bias=bias),
            "shuffled": case(70, 144, 176, fp8, band=16, pad_k_to=32),
            "shuffled, int8, fp32": case(17, 64, 192, torch.int8, band=16, out_dtype=torch.float32),
            "shuffled in bands of 32": case(9, 96, 64, torch.int8, band=32),
            "odd depth": case(7, 24, 65, fp8)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GemmA8w8Call:
    pad_k_to = _PACK if key["band"] else 0
    call = _call(torch.Generator(device).manual_seed(seed), key["m"], key["n"], key["k"],
                 dtypes.DTYPES[key["weight_dtype"]], device=device, band=key["band"], pad_k_to=pad_k_to)
    return call._replace(use_fast_accum=bool(key["use_fast_accum"]))


def _traffic(call: GemmA8w8Call) -> tuple[int, int]:
    tensors = [one for one in call[:6] if one is not None]
    return sum(one.numel() * one.element_size() for one in tensors), 2 * call.a.numel() * call.b.shape[0]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's products in fp8, one GPU's part; those of experts are another operator's."""
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        if matrices == 1:
            yield {"m": tokens, "n": n, "k": k, "weight_dtype": tune_shapes.fp8_name(), "band": 0, "use_fast_accum": 0}


def _vendor(call: GemmA8w8Call) -> None:
    vendor.scaled(*call[:6], use_fast_accum=call.use_fast_accum)


def _vendor_refusal(target: Target, call: GemmA8w8Call) -> str | None:
    return "the vendor's library has no shuffled weights" if call.band else vendor.scaled_refusal(target, *call[:6])


_gemm_a8w8 = Op(
    _OP, call=GemmA8w8Call, reference=gemm_a8w8_ref, check=_check, tune_key=_tune_key,
    prefers=vendor.prefers_scaled,
    tune_fields=("m", "n", "k", "weight_dtype", "band", "use_fast_accum"), round_field="m", cases=_cases,
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes), sums_in_fp32=True,
    backends=(Backend("ck", _gemm_a8w8_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a8w8:gemm_a8w8", refusal=_triton_refusal,
                      kernels=_triton_kernels, space=_triton_space),
              Backend("vendor", _vendor, refusal=_vendor_refusal), Backend("torch", gemm_a8w8_ref)))


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
        out: tensor to write, [..., n] of `dtype`; default: a new contiguous one.
        backend: "ck", "triton", "vendor" (cuBLAS: fp8 alone) or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is the bias, or zeros; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype, also the fp8 of another device.
        ValueError: shapes or devices do not fit, or `WQ` is marked as shuffled.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32 (int8: exact, in int32), scaled in fp32, rounded to nearest even once; equal calls give equal
        results; can be captured in a graph. Scales that are not dense in memory are copied. Backend ck takes contiguous
        rows with k a multiple of 16 and n of 4, triton everything; int8 with k of 2^17 and more goes to torch.

    Source: AITER's `gemm_a8w8`.
    """
    if getattr(WQ, "is_shuffled", False):
        raise ValueError(f"{_OP}: WQ must not be shuffled, got a result of shuffle_weight, which gemm_a8w8_bpreshuffle "
                         "takes")
    return _product(XQ, WQ, x_scale, w_scale, bias, dtype, splitK, 0, use_fast_accum, out, backend)


def gemm_a8w8_bpreshuffle(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                          dtype: torch.dtype = torch.bfloat16, check: bool = False, *,
                          layout: tuple[int, int] | None = None, use_fast_accum: bool = False,
                          out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """`gemm_a8w8` with weights in the order of `shuffle_weight`: `out = (XQ · WQᵀ) · x_scale · w_scale + bias`.

    Args:
        XQ: [..., k], fp8 (FNUZ on gfx942, OCP on NVIDIA) or int8, of any strides.
        WQ: [n, k or more], dtype of `XQ`, contiguous, as `shuffle_weight` returns it; columns beyond k are not read,
            or read as zeros. The mark `is_shuffled` is not asked for, since nn.Parameter and .to lose it.
        x_scale: fp32, one per row of `XQ` ([..., 1], [...] or [rows]) or a single one.
        w_scale: fp32, one per row of `WQ` ([n, 1], [n] or [1, n]) or a single one.
        bias: [n] or [1, n] bf16|fp16|fp32, contiguous.
        dtype: of the result, bf16|fp16|fp32.
        check: AITER's request to compare kernels; of no meaning here.
        layout: what `shuffle_weight` was given, (16, 16) or (32, 16); default: that of the mark, else (16, 16).
        use_fast_accum: as for `gemm_a8w8`.
        out: tensor to write, [..., n] of `dtype`; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`, as `gemm_a8w8`.

    Raises:
        TypeError: an argument is of another kind or dtype, also the fp8 of another device.
        ValueError: shapes or devices do not fit, n or the columns of `WQ` are no multiples of the layout's, or `WQ` is
            marked as of another layout.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `gemm_a8w8`; equal bit by bit to it on the weights before they were shuffled, by the same backend and tile.

    Source: AITER's `gemm_a8w8_bpreshuffle`.
    """
    marked = getattr(WQ, "shuffle_layout", None)
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
    for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
        check.tensor(_OP, name, scale, device=x.device, last_contiguous=False)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    a = matrix(x, x.shape[-1])
    return write_rows(out, lambda flat: _gemm_a8w8.run(flat, a, weight, a_scale, b_scale, bias, band, use_fast_accum,
                                                       backend=backend))


def _scales(name: str, scale: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """`scale` as a vector.

    Raises:
        ValueError: it has several elements in another shape.
    """
    if scale.numel() != 1 and tuple(scale.shape) not in map(tuple, shapes):
        raise ValueError(f"{_OP}: {name} must have 1 element or shape {tuple(shapes[0])}, got {tuple(scale.shape)}")
    return scale.reshape(-1).contiguous()


torch_ops.register(_gemm_a8w8, gemm_a8w8)
