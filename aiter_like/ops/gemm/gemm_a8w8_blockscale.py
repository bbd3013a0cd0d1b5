# SPDX-License-Identifier: MIT
"""The product of fp8 matrices with a scale for each 1 × 128 of the activations and 128 × 128 of the weights.

Kernels: csrc/gemm/gemm_a8w8_blockscale.hip, ops/gemm/triton/gemm_a8w8_blockscale.py and, for Hopper,
gemm_a8w8_blockscale_hopper.py beside it.
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
from aiter_like.ops.gemm.parts import depth_refusal, mfma_refusal, rows_refusal, tiles_refusal
from aiter_like.ops.layout.shuffle_weight import unshuffle_weight
from aiter_like.ops.quant.row_quant import dynamic_per_token_scaled_quant

__all__ = ["gemm_a8w8_blockscale", "gemm_a8w8_blockscale_bpreshuffle"]

_OP = "gemm_a8w8_blockscale"
CK_TILES = tuple(dict.fromkeys((*tiles.SCALED, *tiles.SCALED_SHUFFLED, *few_rows.TILES)))
"""Names of the ck kernel's tiles."""
BLOCK = 128  # so many of the depth, and of the columns, share a scale
BAND, SHUFFLED_DEPTH = 16, 32  # n and k of shuffled weights are multiples of them
_ROW_STRIDE = 2**21  # elements of a_scale; the ck kernel counts the bytes of a tile's scales in 31 bits
HOPPER_NAMES = ("block_m", "block_n", "num_warps", "num_stages", "swap", "splits")
_HOPPER_BYTES = 226 << 10  # an SM has 227 KB of shared memory; a kernel needs a little beside what is counted


class GemmA8w8BlockscaleCall(NamedTuple):
    """One call: its arguments in the order of the function that gemm_a8w8_blockscale.hip exports.

    Attributes:
        out: [m, n], written; bf16|fp16|fp32.
        a: [m, k] fp8 of the device, of any strides.
        b: [n, k], dtype of `a`, of any strides; with is_preshuffled as shuffle_weight stores it.
        a_scale: [m, ceil(k / 128)] fp32, of any strides.
        b_scale: [ceil(n / 128), ceil(k / 128)] fp32, of any strides.
        is_preshuffled: `b` is stored in the layout (16, 16) of shuffle_weight.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    is_preshuffled: bool = False


def blocks(size: int) -> int:
    """How many scales there are along `size` elements."""
    return -(-size // BLOCK)


def gemm_a8w8_blockscale_ref(call: GemmA8w8BlockscaleCall) -> None:
    """The formula in torch, in fp32, block by block of the depth; writes `out`."""
    (m, k), n = call.a.shape, call.b.shape[0]
    a, b = call.a.float(), (unshuffle_weight(call.b) if call.is_preshuffled else call.b).float()
    b_scale = call.b_scale.repeat_interleave(BLOCK, 0)[:n]
    product = torch.zeros(m, n, device=call.out.device, dtype=torch.float32)
    for block in range(blocks(k)):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        product += (a[:, part] @ b[:, part].t()) * (call.a_scale[:, block, None] * b_scale[:, block])
    call.out.copy_(product)


def _sizes(call: GemmA8w8BlockscaleCall) -> tuple[int, int, int]:
    return *call.a.shape, call.b.shape[0]


def _tiles(call: GemmA8w8BlockscaleCall) -> tuple[str, ...]:
    """Of the ck kernel, for the order of the weights."""
    return tiles.SCALED_SHUFFLED if call.is_preshuffled else tiles.SCALED


def _tile(call: GemmA8w8BlockscaleCall, tile: str | None, splits: int | None) -> tuple[str, int]:
    """The given ones, and otherwise what few_rows.py chooses, or for more rows the counts of tiles.py find cheapest."""
    m, k, n = _sizes(call)
    if tile is not None and splits is not None:
        return tile, splits
    if tile is None and splits is None and m <= few_rows.ROWS:
        return few_rows.chosen(n, k, BAND if call.is_preshuffled else 0)
    return tiles.cheapest(m, n, k, tile=tile, splits=splits, element_bytes=1, names=_tiles(call))


def _instance(call: GemmA8w8BlockscaleCall, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """One for each tile, number of splits, order of the weights and dtype of the result."""
    m, k, n = _sizes(call)
    tile, splits = _tile(call, tile, splits)
    sizes = tiles.parse(tile, CK_TILES)
    if splits < 1 or splits > 1 and m * n >= 2**31:
        raise ValueError(f"{_OP}: splits must be at least 1, and 1 where out has 2^31 elements, got {splits}")
    name = f"{tile}_s{splits}_o{dtypes.name(call.out.dtype)}" + ("_preshuffled" if call.is_preshuffled else "")
    return Instance(name, {
        "OUT_ELEMENT": elements.CPP[call.out.dtype], "BLOCK_M": sizes.block_m, "BLOCK_N": sizes.block_n,
        "WAVES_M": sizes.waves_m, "WAVES_N": sizes.waves_n, "WAVES_K": sizes.waves_k, "SPLITS": splits,
        "IS_PRESHUFFLED": int(call.is_preshuffled)})


@compile_ops("gemm/gemm_a8w8_blockscale.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a8w8_blockscale_ck(call: GemmA8w8BlockscaleCall) -> None: ...


def _check(call: GemmA8w8BlockscaleCall) -> object:
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    a, b, out = call.a, call.b, call.out
    check.tensor(_OP, "a", a, rank=2, dtypes=elements.FP8, last_contiguous=False)
    target = target_of(a.device)
    if target.platform != "cpu" and a.dtype != dtypes.fp8_of(target.arch):
        raise TypeError(f"{_OP}: a must have dtype {dtypes.fp8_of(target.arch)}, which {target.arch} computes with, "
                        f"got {a.dtype}")
    m, k = a.shape
    check.tensor(_OP, "b", b, dtypes=(a.dtype,), shape=(None, k), device=a.device, last_contiguous=False)
    check.flag(_OP, "is_preshuffled", call.is_preshuffled)
    n = b.shape[0]
    if call.is_preshuffled and (n % BAND or k % SHUFFLED_DEPTH or not b.is_contiguous()):
        raise ValueError(f"{_OP}: b must be contiguous where it is shuffled, with n divisible by {BAND} and k by "
                         f"{SHUFFLED_DEPTH}, got shape {tuple(b.shape)}, strides {b.stride()}")
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, shape=(m, n), device=a.device, last_contiguous=False)
    for name, scale, rows in (("a_scale", call.a_scale, m), ("b_scale", call.b_scale, blocks(n))):
        shape = (rows, blocks(k))
        check.tensor(_OP, name, scale, dtypes=(torch.float32,), shape=shape, device=a.device, last_contiguous=False)
    return SKIP if out.numel() == 0 else None


def _ck_refusal(target: Target, call: GemmA8w8BlockscaleCall) -> str | None:
    """What the kernel for gfx942 does not take."""
    m, k, n = _sizes(call)
    reason = mfma_refusal(target) or depth_refusal(call.a, n) or rows_refusal(a=call.a, b=call.b, out=call.out)
    if reason is None and m > 1 and call.a_scale.stride(0) >= _ROW_STRIDE:
        return f"rows of a_scale must be less than 2^21 elements apart, got {call.a_scale.stride(0)}"
    return reason or tiles_refusal(m, n)


def _ck_space(target: Target, call: GemmA8w8BlockscaleCall) -> Iterator[dict[str, Any]]:
    m, k, n = _sizes(call)
    if m <= few_rows.ROWS:
        return few_rows.space(n, k, BAND if call.is_preshuffled else 0)
    return tiles.space(m, n, k, _tiles(call), element_bytes=1)


def _ck_cost(target: Target, call: GemmA8w8BlockscaleCall, *, tile: str | None = None,
             splits: int | None = None) -> float:
    m, k, n = _sizes(call)
    tile, splits = _tile(call, tile, splits)
    return tiles.clocks(m, n, k, tiles.parse(tile, CK_TILES), splits, element_bytes=1, names=_tiles(call))


def _hopper_serves(call: GemmA8w8BlockscaleCall) -> bool:
    """Whether triton/gemm_a8w8_blockscale_hopper.py takes the call."""
    return not call.is_preshuffled and hopper.serves(call.a, call.b)


def _triton_kernels(target: Target, call: GemmA8w8BlockscaleCall, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter swap."""
    hopper = ["gemm_a8w8_blockscale_hopper"] if target.arch == "sm_90" and _hopper_serves(call) else []
    if params:
        return hopper if "swap" in params else ["gemm_a8w8_blockscale"]
    return [*hopper, "gemm_a8w8_blockscale"]


def hopper_stages(block_m: int, block_n: int, num_warps: int, splits: int, out_bytes: int) -> int:
    """Steps that shared memory holds, 8 at most, for one program of 8 warps or two of 4, whose registers suffice for as
    many; where loads go on from tile to tile, beside the tile of out that passes through it."""
    goes_on = splits == 1 and block_n <= BLOCK
    left = _HOPPER_BYTES // (8 // num_warps) - (out_bytes * block_m * block_n if goes_on else 0)
    return min(8, left // (BLOCK * (block_m + block_n)))


def _hopper_space(call: GemmA8w8BlockscaleCall, target: Target) -> Iterator[tuple[int, ...]]:
    """(block_m, block_n, num_warps, num_stages, swap, splits) that have work."""
    m, k, n = _sizes(call)
    rows = max(16, 1 << (m - 1).bit_length())
    few = [(rows, block_n, 4, 1) for block_n in (64, 128)] if m <= 64 else []
    many = [(*tile, 0) for tile in ((64, 64, 4), (64, 128, 4), (128, 128, 8), (128, 256, 8)) if tile[0] <= 2 * m]
    for block_m, block_n, num_warps, swap in (*few, *many):
        rest = -(-m // block_m) * -(-n // block_n) % target.cu_num
        for splits in (1, 2, 3, 4, 6, 8):
            if splits == 1 or 0 < splits * rest <= 2 * target.cu_num and k >= 4 * splits * BLOCK:
                most = hopper_stages(block_m, block_n, num_warps, splits, call.out.element_size())
                yield from ((block_m, block_n, num_warps, stages, swap, splits)
                            for stages in sorted({most, max(most // 2, 3)}) if 3 <= stages <= most)


def _triton_space(target: Target, call: GemmA8w8BlockscaleCall) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; a step is always a block of the depth. On Hopper the other kernel is tried for few
    rows alone."""
    m = call.a.shape[0]
    names = HOPPER_NAMES
    if target.arch == "sm_90" and _hopper_serves(call):
        yield from (dict(zip(names, one)) for one in _hopper_space(call, target))
        if m >= 64:
            return
    for block_m, block_n, num_warps in ((16, 32, 4), (16, 64, 4), (16, 128, 4), (32, 64, 4), (64, 64, 4), (64, 128, 4),
                                        (128, 128, 4), (128, 128, 8)):
        if block_m <= max(16, 2 * m) and (block_m >= 64 or m < 512):
            for num_stages in (2, 3, 4):
                yield dict(zip(names, (block_m, block_n, num_warps, num_stages)))


def _tune_key(call: GemmA8w8BlockscaleCall) -> dict[str, int | str]:
    m, k, n = _sizes(call)
    return {"m": m, "n": n, "k": k, "bpreshuffle": int(call.is_preshuffled)}


def _operands(device: torch.device, seed: int, m: int, n: int, k: int, is_preshuffled: bool = False,
              dtype: torch.dtype = torch.bfloat16) -> GemmA8w8BlockscaleCall:
    """A call with normal numbers in fp8, and scales that make the elements of out about 1."""
    generator = torch.Generator(device).manual_seed(seed)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    a, b = (torch.randn(rows, k, generator=generator, device=device).to(fp8) for rows in (m, n))
    a_scale = torch.rand(blocks(k), m, generator=generator, device=device).t() + 0.5
    b_scale = (torch.rand(blocks(n), blocks(k), generator=generator, device=device) + 0.5) * max(k, 1)**-0.5
    return GemmA8w8BlockscaleCall(torch.empty(m, n, dtype=dtype, device=device), a, b, a_scale, b_scale, is_preshuffled)


def _cases(device: torch.device) -> dict[str, GemmA8w8BlockscaleCall]:
    """A last block of the depth that is a part; shuffled weights; few rows over a long depth, which is split; operands
    for Triton alone; tiles of each kernel for Hopper."""
    plain = _operands(device, 0, 70, 132, 272)
    return {"plain": plain, "preshuffled": _operands(device, 1, 37, 144, 288, True),
            "fp16": _operands(device, 2, 130, 264, 128, dtype=torch.float16),
            "split depth": _operands(device, 3, 5, 64, 2320),
            "odd sizes": _operands(device, 4, 3, 35, 133),
            "scales of any strides": plain._replace(a_scale=plain.a_scale.contiguous(),
                                                    b_scale=plain.b_scale.t().contiguous().t())}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GemmA8w8BlockscaleCall:
    return _operands(device, seed, key["m"], key["n"], key["k"], bool(key["bpreshuffle"]))


def _traffic(call: GemmA8w8BlockscaleCall) -> tuple[int, int]:
    return sum(one.numel() * one.element_size() for one in call[:5]), 2 * call.a.numel() * call.b.shape[0]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's products, one GPU's part, with weights as they are and, for gfx942, shuffled."""
    for matrices, n, k in tune_shapes.linear_weights(model, tp):
        for bpreshuffle in (0, 1):
            if matrices == 1 and not (bpreshuffle and (n % BAND or k % SHUFFLED_DEPTH)):
                yield {"m": tokens, "n": n, "k": k, "bpreshuffle": bpreshuffle}


_gemm_a8w8_blockscale = Op(
    _OP, call=GemmA8w8BlockscaleCall, reference=gemm_a8w8_blockscale_ref, check=_check, tune_key=_tune_key,
    prefers=vendor.prefers_scaled,
    tune_fields=("m", "n", "k", "bpreshuffle"), round_field="m", cases=_cases,
    tuning=Tuning(_tune_case, traffic=_traffic, shapes=_tune_shapes), sums_in_fp32=True,
    backends=(Backend("ck", _gemm_a8w8_blockscale_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a8w8_blockscale:gemm_a8w8_blockscale", kernels=_triton_kernels,
                      space=_triton_space),
              Backend("vendor", vendor.block_scaled, refusal=vendor.block_refusal),
              Backend("torch", gemm_a8w8_blockscale_ref)))


def gemm_a8w8_blockscale(XQ: Tensor, WQ: Tensor, x_scale: Tensor | None, w_scale: Tensor,
                         dtype: torch.dtype = torch.bfloat16, isBpreshuffled: bool = False, *,
                         out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of fp8 matrices with block scales: `out = Σ over blocks g of x_scale[:, g] · w_scale[:, g] ·
    (XQ[:, g] · WQ[:, g]ᵀ)`, 128 of the depth at a time.

    Args:
        XQ: [m, k] fp8 of the device, of any strides; or bf16|fp16, last dimension contiguous, which is quantised first.
        WQ: [n, k] fp8, the weights, of any strides.
        x_scale: [m, ceil(k / 128)] fp32, of any strides; None where `XQ` is bf16 or fp16.
        w_scale: [ceil(n / 128), ceil(k / 128)] fp32, of any strides; the last block in either direction may be a part.
        dtype: of the result, bf16|fp16|fp32.
        isBpreshuffled: `WQ` and `x_scale` are as `gemm_a8w8_blockscale_bpreshuffle` takes them.
        out: tensor to write, [m, n], `dtype`; default: a new contiguous one.
        backend: "ck", "triton", "vendor" (cuBLAS) or "torch" instead of the automatic choice.

    Returns:
        `out`. With k = 0 it is zero; an empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype, or of the fp8 of other hardware.
        ValueError: shapes or devices do not fit, or `WQ` is marked as shuffled and isBpreshuffled is False.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results; can be captured in a graph. On
        Hopper the matrix units keep 14 bits of the sums within a block. Backend ck takes contiguous rows with k a
        multiple of 16 and n of 4, triton everything. 16-bit `XQ` is quantised by the rule of per_group_quant_hip, in
        launches of its own that write and read again m · k bytes and the scales: the product reads an element of `XQ`
        once for each tile along n, in half the bytes. A last block that is a part takes a second such launch.

    Source: AITER's `gemm_a8w8_blockscale`.
    """
    check.flag(_OP, "isBpreshuffled", isBpreshuffled)
    if not isBpreshuffled and getattr(WQ, "is_shuffled", False):
        raise ValueError(f"{_OP}: WQ must not be shuffled unless isBpreshuffled is True, got a result of "
                         "shuffle_weight")
    return _product(_OP, XQ, WQ, x_scale, w_scale, dtype, isBpreshuffled, out, backend)


def gemm_a8w8_blockscale_bpreshuffle(XQ: Tensor, WQ: Tensor, x_scale: Tensor | None, w_scale: Tensor,
                                     dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None, *,
                                     backend: str | None = None) -> Tensor:
    """`gemm_a8w8_blockscale` with weights that `shuffle_weight` has put in order, and scales with blocks outermost.

    Args:
        XQ: [m, k] fp8 of the device, of any strides; or bf16|fp16, last dimension contiguous, which is quantised first.
        WQ: [n, k] fp8, contiguous: `shuffle_weight(weights, layout=(16, 16))`, with its mark or without; n a multiple
            of 16, k of 32.
        x_scale: [m, ceil(k / 128)] fp32, that of row m and block g at g · M + m in memory: either contiguous by its
            strides, or with strides (1, M) that say so; None where `XQ` is bf16 or fp16.
        w_scale: [ceil(n / 128), ceil(k / 128)] fp32, of any strides, not shuffled.
        dtype: of the result, bf16|fp16|fp32.
        out: tensor to write, [m, n], `dtype`; default: a new contiguous one.
        backend: "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. An empty result stays empty.

    Raises:
        TypeError: an argument is of another kind or dtype, or of the fp8 of other hardware.
        ValueError: shapes, devices or the layout of `x_scale` do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `gemm_a8w8_blockscale`. Backend ck reads the weights straight to registers; on NVIDIA their order gains
        nothing.

    Source: AITER's `gemm_a8w8_blockscale_bpreshuffle`.
    """
    return _product("gemm_a8w8_blockscale_bpreshuffle", XQ, WQ, x_scale, w_scale, dtype, True, out, backend)


def _product(op: str, x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor, dtype: torch.dtype,
             is_preshuffled: bool, out: Tensor | None, backend: str | None) -> Tensor:
    for name, tensor in (("XQ", x), ("WQ", w), ("x_scale", x_scale), ("w_scale", w_scale), ("out", out)):
        if tensor is not None or name in ("XQ", "WQ", "w_scale"):
            device = None if name == "XQ" else x.device
            check.tensor(op, name, tensor, rank=2, device=device, last_contiguous=False)
    check.choice(op, "dtype", dtype, elements.FLOATS)
    if out is not None and out.dtype != dtype:
        raise TypeError(f"{op}: out must have dtype {dtype}, the argument dtype, got {out.dtype}")
    if x_scale is None:
        x, x_scale = _quantised(op, x, backend)
    elif is_preshuffled:
        x_scale = _block_major(op, x_scale)
    if out is None:
        out = torch.empty(x.shape[0], w.shape[0], dtype=dtype, device=x.device)
    _gemm_a8w8_blockscale.run(out, x, w, x_scale, w_scale, is_preshuffled, backend=backend)
    return out


def _block_major(op: str, scale: Tensor) -> Tensor:
    """The scales of bpreshuffle by strides that say how they lie in memory.

    Raises:
        ValueError: they are neither contiguous nor have rows side by side.
    """
    if not scale.is_contiguous() and scale.stride(0) != 1:
        raise ValueError(f"{op}: x_scale must have blocks outermost in memory, contiguous or with strides (1, "
                         f"{scale.shape[0]}), got strides {scale.stride()}")
    return quant_rule.group_major(scale, True) if scale.numel() else scale


def _quantised(op: str, x: Tensor, backend: str | None) -> tuple[Tensor, Tensor]:
    """`x` in the device's fp8, and its scales with blocks outermost, as the kernels read them in one piece.

    Raises:
        TypeError: `x` is not of 16 bits.
    """
    if x.dtype in elements.FP8:
        raise TypeError(f"{op}: x_scale must be a tensor where XQ is fp8, got NoneType")
    check.tensor(op, "XQ", x, dtypes=(torch.bfloat16, torch.float16))
    m, k = x.shape
    q = torch.empty(m, k, dtype=dtypes.fp8_of(target_of(x.device).arch), device=x.device)
    scale = torch.empty(blocks(k), m, device=x.device, dtype=torch.float32).t()
    whole = k // BLOCK
    for part, groups in ((slice(0, whole * BLOCK), slice(0, whole)), (slice(whole * BLOCK, k), slice(whole, None))):
        if x[:, part].numel():
            dynamic_per_token_scaled_quant(q[:, part], x[:, part], scale[:, groups],
                                           backend=backend if backend in ("triton", "torch") else None)
    return q, scale


torch_ops.register(_gemm_a8w8_blockscale, gemm_a8w8_blockscale)
