# SPDX-License-Identifier: MIT
"""Backend ck of moe_gemm: csrc/moe/moe_gemm.hip, for many pairs that are sorted. Read by moe_gemm.py."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from aiter_like.device import Facts, Target, arch_facts
from aiter_like.dispatch.rounding import rounded_up
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.gemm import problems, tiles
from aiter_like.ops.gemm.parts import depth_refusal, mfma_refusal, rows_refusal, sum_refusal
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, is_gated
from aiter_like.traced import answered

_OP = "moe_gemm"
_MOST_BYTES = 2**31
_MOST_TILES = 2**22

PLAIN = ("t256x256_w1x4x1", "t128x256_w1x4x1", "t128x128_w1x4x1", "t64x256_w1x4x1", "t64x128_w1x4x1", "t64x64_w2x2x1",
         "t32x128_w1x4x1", "t32x64_w1x2x2", "t16x64_w1x1x4")
"""Names as in tiles.py: the rows of a tile divide a block of sorted places."""
_SCALED_SMALL = ("t64x256_w1x4x1", "t64x128_w1x4x1", "t64x64_w2x2x1", "t32x128_w1x4x1", "t32x64_w1x2x2",
                 "t16x64_w1x1x4")
SCALED, SCALED_SHUFFLED = ("t128x128_w2x2x1", *_SCALED_SMALL), ("t128x128_w1x4x1", *_SCALED_SMALL)
"""Tiles where blocks have scales, for weights as they are and for shuffled ones, as in tiles.py."""


def _is_scaled(call: MoeGemmCall) -> bool:
    """Whether blocks of 128 × 128 have scales."""
    return call.a_scale is not None and call.group_size != 0


def tile_names(call: MoeGemmCall) -> tuple[str, ...]:
    """The tiles whose rows divide a block, and whose waves' columns lie within blocks of scales."""
    names = PLAIN if not _is_scaled(call) else SCALED_SHUFFLED if call.is_shuffled else SCALED
    return tuple(one for one in names if _fits(call, tiles.parse(one, names)))


def _fits(call: MoeGemmCall, tile: tiles.Tile) -> bool:
    if call.block % tile.block_m:
        return False
    is_of_halves = _is_scaled(call) and is_gated(call.activation) and not call.is_interleaved
    return not is_of_halves or call.out.shape[1] % (tile.block_n // tile.waves_n // 2) == 0


def _sizes(call: MoeGemmCall) -> dict[str, Any]:
    """Sizes with the places of an even router, which leaves half of each expert's last block empty, at most those there
    are."""
    n, k = call.b.shape[1:]
    places = min(call.experts.shape[0] * call.block, call.out.shape[0] + call.b.shape[0] * call.block // 2)
    return {"places": places, "n": n, "k": k, "element_bytes": call.a.element_size(), "names": tile_names(call),
            "is_shuffled": call.is_shuffled, "is_scaled": _is_scaled(call)}


def _clocks_of(facts: Facts, name: str, *, places: int, n: int, k: int, element_bytes: int, names: tuple[str, ...],
               is_shuffled: bool, is_scaled: bool) -> float:
    tile = tiles.parse(name, names)
    return tiles.clocks(facts, places, n, k, tile, 1, element_bytes, lds_bytes=_lds_bytes(tile, is_shuffled),
                        names=tiles.SCALED if is_scaled else tiles.PIPELINED)


def _lds_bytes(tile: tiles.Tile, is_shuffled: bool) -> int:
    """LDS of a workgroup: operands, of which shuffled weights need none, then strips of its waves' sums."""
    rows = tile.block_m + (0 if is_shuffled else tile.block_n)
    strips = min(tile.block_m // tile.waves_m, 32) * tile.block_n * tile.waves_m * 4
    return max(rows * tile.waves_k * 128, strips)


def cheapest(call: MoeGemmCall) -> str:
    """The tile that the counts of tiles.py find best for a call that no row was tuned for."""
    return _cheapest(**_sizes(call))


@answered
def _cheapest(*, places: int, **sizes: Any) -> str:
    return _cheapest_of_rounded(places=rounded_up(places), **sizes)


@functools.lru_cache(4096)
def _cheapest_of_rounded(**sizes: Any) -> str:
    facts = arch_facts("gfx942")
    return min(sizes["names"], key=lambda name: _clocks_of(facts, name, **sizes))


def _instance(call: MoeGemmCall, *, tile: str | None = None) -> Instance:
    """The tile is the one that the counts of tiles.py find cheapest, unless a tuned row names it."""
    tile = cheapest(call) if tile is None else tile
    has_gate, is_scaled = is_gated(call.activation), _is_scaled(call)
    activation = call.activation.removesuffix("_and_mul")
    parts = [*(["blocks"] if is_scaled else []), *([] if call.activation == "none" else [call.activation]),
             *(["interleaved"] if call.is_interleaved else []), *(["shuffled"] if call.is_shuffled else [])]
    return problems.products_instance(
        _OP, call, tile, name="_".join(parts), names=tile_names(call), IS_SHUFFLED=int(call.is_shuffled),
        HAS_SCALES=int(call.a_scale is not None and not is_scaled), HAS_BLOCK_SCALES=int(is_scaled),
        HAS_ACTIVATION=int(activation != "none"), ACTIVATION="silu" if activation == "none" else activation,
        IS_GATED=int(has_gate), IS_INTERLEAVED=int(call.is_interleaved))


@compile_ops("moe/moe_gemm.hip", gen_func=_instance, platforms=("hip",))
def moe_gemm_ck(call: MoeGemmCall) -> None: ...


def ck_refusal(target: Target, call: MoeGemmCall) -> str | None:
    """Says why the kernel for gfx942 does not take a call."""
    return (mfma_refusal(target) or sum_refusal(target, call) or form_refusal(call)
            or depth_refusal(call.a, call.out.shape[1]) or rows_refusal(a=call.a, b=call.b, out=call.out)
            or _size_refusal(call) or _tile_refusal(call))


def form_refusal(call: MoeGemmCall) -> str | None:
    """Says why no tile takes a call, whatever the sizes are."""
    if call.sorted_ids is None:
        return "pairs must be sorted: sorted_ids must be given"
    if call.b_format != "same":
        return f"b must have the dtype of a, got b_format {call.b_format}"
    return None


def _size_refusal(call: MoeGemmCall) -> str | None:
    """The bytes that 32 bits count."""
    matrices = {"a": call.a, "each matrix of b": call.b[0] if call.b.shape[0] else None}
    for name, one in matrices.items():
        if one is not None and one.shape[0] * max(one.stride(0), one.shape[1]) * one.element_size() >= _MOST_BYTES:
            return f"the rows of {name} must lie within 2^31 bytes, got shape {tuple(one.shape)}"
    scale = call.a_scale
    if scale is not None and scale.shape[0] > 1 and scale.shape[0] * scale.stride(0) * 4 >= _MOST_BYTES:
        return f"a_scale must lie within 2^31 bytes, got shape {tuple(scale.shape)}, strides {scale.stride()}"
    return None


def _tile_refusal(call: MoeGemmCall) -> str | None:
    if call.block % tiles.SMALLEST.block_m:
        return f"block must be a multiple of {tiles.SMALLEST.block_m}, got {call.block}"
    if not tile_names(call):
        return f"columns of out must be a multiple of 16 where blocks have scales, got {call.out.shape[1]}"
    places, n = call.experts.shape[0] * call.block, call.b.shape[1]
    if tiles.count(places, n, tiles.SMALLEST) >= _MOST_TILES:
        return f"there must be less than 2^22 tiles, got {places} places and n = {n}"
    return None


def ck_space(target: Target, call: MoeGemmCall) -> Iterator[dict[str, Any]]:
    """Every tile whose rows divide a block."""
    return ({"tile": name} for name in tile_names(call))


def ck_cost(call: MoeGemmCall, facts: Facts, *, tile: str | None = None) -> float:
    """The cost by the counts of tiles.py."""
    return _clocks_of(facts, cheapest(call) if tile is None else tile, **_sizes(call))
