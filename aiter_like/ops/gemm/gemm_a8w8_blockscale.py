# SPDX-License-Identifier: MIT
"""The product of fp8 matrices with a scale for each 1 × 128 of the activations and 128 × 128 of the weights.

Kernels: csrc/gemm/gemm_a8w8_blockscale.hip, ops/gemm/triton/gemm_a8w8_blockscale.py and, for Hopper,
gemm_a8w8_blockscale_hopper.py beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Facts, Target, model_of, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, marks, quant_rule, tune_shapes
from aiter_like.ops.gemm import few_rows, hopper, parts, problems, tiles, vendor
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


class HopperTimes(NamedTuple):
    """Numbers of configs/sm_90/gemm.toml."""

    tiles: tuple[tuple[int, ...], ...]
    second_kernel: int
    summed: int
    stage_bytes: int


def hopper_model() -> HopperTimes:
    """The numbers of the time and memory of the kernel for Hopper."""
    return model_of("sm_90", "gemm.scaled_products", HopperTimes)


class GemmA8w8BlockscaleCall(NamedTuple):
    """One call: its arguments in the order of the function that gemm_a8w8_blockscale.hip exports.

    Attributes:
        a_scale: [m, ceil(k / 128)].
        b_scale: [ceil(n / 128), ceil(k / 128)].
        is_preshuffled: `b` is stored in the layout (16, 16) of shuffle_weight.
    """

    out: Annotated[Tensor, "m n", elements.FLOATS, STRIDED]
    a: Annotated[Tensor, "m k", elements.FP8, STRIDED]
    b: Annotated[Tensor, "n k", "a", STRIDED]
    a_scale: Annotated[Tensor, "_ _", torch.float32, STRIDED]
    b_scale: Annotated[Tensor, "_ _", torch.float32, STRIDED]
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


def _band(call: GemmA8w8BlockscaleCall) -> int:
    return BAND if call.is_preshuffled else 0


def _tiles(call: GemmA8w8BlockscaleCall) -> tuple[str, ...]:
    """Tiles of the ck kernel for the order of the weights."""
    return tiles.SCALED_SHUFFLED if call.is_preshuffled else tiles.SCALED


def _instance(call: GemmA8w8BlockscaleCall, *, tile: str | None = None, splits: int | None = None) -> Instance:
    """One for each tile, number of splits, order of the weights and dtype of the result; tile and splits as those of
    gemm_a8w8."""
    m, k, n = _sizes(call)
    tile, splits = few_rows.or_tiles(m, n, k, tile, splits, _band(call), element_bytes=1, names=_tiles(call))
    name = f"{tile}_s{splits}_o{dtypes.name(call.out.dtype)}" + ("_preshuffled" if call.is_preshuffled else "")
    return Instance(name, {
        "OUT_ELEMENT": elements.CPP[call.out.dtype], **tiles.macros(_OP, m, n, tile, splits, CK_TILES),
        "IS_PRESHUFFLED": int(call.is_preshuffled)})


@compile_ops("gemm/gemm_a8w8_blockscale.hip", gen_func=_instance, platforms=("hip",))
def _gemm_a8w8_blockscale_ck(call: GemmA8w8BlockscaleCall) -> None: ...


def _check(call: GemmA8w8BlockscaleCall) -> object:
    problems.check_fp8(_OP, call.a)
    m, k, n = _sizes(call)
    if call.is_preshuffled:
        parts.check_shuffled(_OP, call.b, n)
    check.tensor(_OP, "a_scale", call.a_scale, shape=(m, blocks(k)), last_contiguous=False)
    check.tensor(_OP, "b_scale", call.b_scale, shape=(blocks(n), blocks(k)), last_contiguous=False)
    return SKIP if call.out.numel() == 0 else None


def _ck_refusal(target: Target, call: GemmA8w8BlockscaleCall) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    if call.a.shape[0] > 1 and call.a_scale.stride(0) >= _ROW_STRIDE:
        return f"rows of a_scale must be less than 2^21 elements apart, got {call.a_scale.stride(0)}"
    return parts.ck_refusal(target, call)


def _ck_space(target: Target, call: GemmA8w8BlockscaleCall) -> Iterator[dict[str, Any]]:
    m, k, n = _sizes(call)
    return few_rows.space(m, n, k, _tiles(call), 1, _band(call))


def _ck_cost(call: GemmA8w8BlockscaleCall, facts: Facts, *, tile: str | None = None,
             splits: int | None = None) -> float:
    m, k, n = _sizes(call)
    return few_rows.cost(facts, m, n, k, tile, splits, _band(call), element_bytes=1, names=_tiles(call))


def _is_for_hopper(target: Target, call: GemmA8w8BlockscaleCall) -> bool:
    return target.arch == "sm_90" and not call.is_preshuffled and hopper.serves(call.a, call.b)


def hopper_stages(block_m: int, block_n: int, num_warps: int, splits: int, out_bytes: int) -> int:
    """Steps that shared memory holds, 8 at most, for one program of 8 warps or two of 4, whose registers suffice for as
    many; where loads go on from tile to tile, beside the tile of out that passes through it."""
    goes_on = splits == 1 and block_n <= BLOCK
    left = hopper_model().stage_bytes // (8 // num_warps) - (out_bytes * block_m * block_n if goes_on else 0)
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
    if _is_for_hopper(target, call):
        yield from (dict(zip(HOPPER_NAMES, one)) for one in _hopper_space(call, target))
        if m >= 64:
            return
    yield from hopper.plain_space(m, ((16, 32, 4), (16, 64, 4), (16, 128, 4), (32, 64, 4), (64, 64, 4), (64, 128, 4),
                                      (128, 128, 4), (128, 128, 8)), HOPPER_NAMES)


class GemmA8w8BlockscaleKey(NamedTuple):
    """The fields that a tuned row of gemm_a8w8_blockscale is chosen by."""

    m: int
    n: int
    k: int
    bpreshuffle: bool = False

    @classmethod
    def of(cls, call: GemmA8w8BlockscaleCall) -> GemmA8w8BlockscaleKey:
        m, k, n = _sizes(call)
        return cls(m, n, k, call.is_preshuffled)

    def make(self, device: torch.device, seed: int, out_dtype: str = "bf16",
             turns_scales: bool = False) -> GemmA8w8BlockscaleCall:
        """Normal numbers in fp8, whose order says nothing, and scales that make the elements of out about 1."""
        m, n, k, is_preshuffled = self
        random, fp8 = tune_shapes.normal(device, seed, "fp32"), dtypes.fp8_of(target_of(device).arch)
        a, b = (random(rows, k).to(fp8) for rows in (m, n))
        a_scale, b_scale = (random(blocks(k), rows).abs().t() + 0.5 for rows in (m, blocks(n)))
        scales = [a_scale, b_scale.contiguous() * max(k, 1)**-0.5]
        if turns_scales:
            scales = [one.t().contiguous().t() if one.is_contiguous() else one.contiguous() for one in scales]
        out = torch.empty(m, n, dtype=dtypes.DTYPES[out_dtype], device=device)
        return GemmA8w8BlockscaleCall(out, a, b, *scales, bool(is_preshuffled))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GemmA8w8BlockscaleKey]:
        """A layer's products, one GPU's part, with weights as they are and, for gfx942, shuffled."""
        for matrices, n, k in tune_shapes.linear_weights(model, tp):
            for bpreshuffle in (False, True):
                if matrices == 1 and not (bpreshuffle and (n % BAND or k % SHUFFLED_DEPTH)):
                    yield cls(tokens, n, k, bpreshuffle)


_gemm_a8w8_blockscale = Op(
    _OP, call=GemmA8w8BlockscaleCall, reference=gemm_a8w8_blockscale_ref, check=_check, key=GemmA8w8BlockscaleKey,
    round_field="m",
    cases={"plain": GemmA8w8BlockscaleKey(70, 132, 272), "preshuffled": GemmA8w8BlockscaleKey(37, 144, 288, True),
           "fp16": (GemmA8w8BlockscaleKey(130, 264, 128), {"out_dtype": "fp16"}),
           "split depth": GemmA8w8BlockscaleKey(5, 64, 2320), "odd sizes": GemmA8w8BlockscaleKey(3, 35, 133),
           "scales of any strides": (GemmA8w8BlockscaleKey(70, 132, 272), {"turns_scales": True})},
    prefers=vendor.prefers_scaled, traffic=parts.traffic, sums_in_fp32=True,
    backends=(Backend("ck", _gemm_a8w8_blockscale_ck, refusal=_ck_refusal, space=_ck_space, cost=_ck_cost),
              Backend("triton", "ops.gemm.triton.gemm_a8w8_blockscale:gemm_a8w8_blockscale", space=_triton_space,
                      kernels=hopper.kernels_of(_OP, _is_for_hopper)),
              Backend("vendor", vendor.block_scaled, refusal=vendor.block_refusal),
              Backend("torch", gemm_a8w8_blockscale_ref)))


def gemm_a8w8_blockscale(XQ: Tensor, WQ: Tensor, x_scale: Tensor | None, w_scale: Tensor,
                         dtype: torch.dtype = torch.bfloat16, isBpreshuffled: bool = False, *,
                         out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of fp8 matrices with block scales: `out = Σ over blocks g of x_scale[:, g] · w_scale[:, g] ·
    (XQ[:, g] · WQ[:, g]ᵀ)`, 128 of the depth at a time.

    Args:
        XQ: [m, k] fp8 of the device, of any strides; or bf16|fp16, last dimension contiguous, which is quantised first.
        WQ: [n, k] fp8, the weights, of any strides; shuffled only with isBpreshuffled.
        x_scale: [m, ceil(k / 128)] fp32, of any strides; None where `XQ` is bf16 or fp16.
        w_scale: [ceil(n / 128), ceil(k / 128)] fp32, of any strides; the last block in either direction may be a part.
        dtype: of the result, bf16|fp16|fp32.
        isBpreshuffled: `WQ` and `x_scale` are as `gemm_a8w8_blockscale_bpreshuffle` takes them.

    Notes:
        Sums in fp32, rounded to nearest even once; equal calls give equal results. On Hopper the matrix units keep 14
        bits of the sums within a block. Backend ck takes contiguous rows with k a multiple of 16 and n of 4, triton
        everything; vendor is cuBLAS. 16-bit `XQ` is quantised by the rule of per_group_quant_hip, in a launch of its
        own, and one for a last block that is a part: the product reads an element once for each tile along n.
    """
    check.flag(_OP, "isBpreshuffled", isBpreshuffled)
    if not isBpreshuffled:
        marks.refuse(_OP, "WQ", WQ, " unless isBpreshuffled is True")
    return _product(_OP, XQ, WQ, x_scale, w_scale, dtype, isBpreshuffled, out, backend)


def gemm_a8w8_blockscale_bpreshuffle(XQ: Tensor, WQ: Tensor, x_scale: Tensor | None, w_scale: Tensor,
                                     dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None, *,
                                     backend: str | None = None) -> Tensor:
    """The product with weights of `shuffle_weight` and scales with blocks outermost. Like `gemm_a8w8_blockscale`.
    Backend ck reads such weights straight to registers; on NVIDIA their order gains nothing.

    Args:
        WQ: [n, k] fp8, contiguous: `shuffle_weight(weights, layout=(16, 16))`, with its mark or without; n a multiple
            of 16, k of 32.
        x_scale: [m, ceil(k / 128)] fp32, that of row m and block g at g · M + m in memory: either contiguous by its
            strides, or with strides (1, M) that say so; None where `XQ` is bf16 or fp16.
        backend: "ck", "triton" or "torch" instead of the automatic choice.
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
