# SPDX-License-Identifier: MIT
"""The device bodies of attention are templates: configurations of both share a translation unit, and even a kernel."""

import functools

import hip_program
import pytest

from aiter_like import paths, sim

PROGRAM = """
#include "flash_attn_fwd_body.h"
#include "flash_attn_fwd_tile_body.h"

struct Causal128 {
  using Element = bf16;
  static constexpr int kHeadDim = 128;
  static constexpr Rounding kRounding = Rounding::kNearestAway;
  static constexpr bool kLimitsRight = true, kLimitsLeft = false, kIsPaged = false;
};
struct Dense64 {
  using Element = f16;
  static constexpr int kHeadDim = 64;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
  static constexpr bool kLimitsRight = false, kLimitsLeft = false, kIsPaged = false;
};
template <class ELEMENT, int WAVES>
struct Tile64 {
  using Element = ELEMENT;
  using OutElement = bf16;
  using BiasElement = void;
  static constexpr int kHeadDim = 64, kHeadDimV = 64, kWaves = WAVES;
  static constexpr bool kIsMasked = false, kHasAlibi = false, kHasSoftcap = false;
  static constexpr Rounding kRounding = Rounding::kNearestEven;
};

template <class Config>
constexpr int kLdsBytes = flash_attn::Blocks<flash_attn::Shape<Config>>::kLdsBytes;
template <class Config>
using TileArgs = typename flash_attn_tile::Shape<Config>::Args;

__global__ __launch_bounds__(512) void causal(FlashAttnArgs args) {
  __shared__ __attribute__((aligned(1024))) char tiles[kLdsBytes<Causal128>];
  flash_attn::forward_body<Causal128>(args, workgroup_index().x, tiles);
}
__global__ __launch_bounds__(512) void dense(FlashAttnArgs args) {
  __shared__ __attribute__((aligned(1024))) char tiles[kLdsBytes<Dense64>];
  flash_attn::forward_body<Dense64>(args, workgroup_index().x, tiles);
}
__global__ __launch_bounds__(512) void causal_then_dense(FlashAttnArgs first, FlashAttnArgs second, int workgroups) {
  __shared__ __attribute__((aligned(1024))) char tiles[kLdsBytes<Causal128>];
  const int id = workgroup_index().x;
  if (id < workgroups)
    flash_attn::forward_body<Causal128>(first, id, tiles);
  else
    flash_attn::forward_body<Dense64>(second, id - workgroups, tiles);
}
__global__ __launch_bounds__(256) void tiles_bf16(TileArgs<Tile64<bf16, 4>> args) {
  __shared__ flash_attn_tile::QrKsVs<flash_attn_tile::Shape<Tile64<bf16, 4>>> pipeline;
  flash_attn_tile::forward_body<Tile64<bf16, 4>>(args, workgroup_index(), pipeline);
}
__global__ __launch_bounds__(512) void tiles_fp8(TileArgs<Tile64<fp8, 8>> args) {
  __shared__ flash_attn_tile::QrAsync<flash_attn_tile::Shape<Tile64<fp8, 8>>> pipeline;
  flash_attn_tile::forward_body<Tile64<fp8, 8>>(args, workgroup_index(), pipeline);
}
"""


@functools.cache
def kernels() -> dict[str, dict[str, int]]:
    """Kernel → what it takes of a CU."""
    elf = hip_program.code_object(PROGRAM, "--no-gpu-bundle-output", f"-I{paths.csrc() / 'attention'}")
    names = ("causal_then_dense", "causal", "dense", "tiles_bf16", "tiles_fp8")
    return {next(name for name in names if name in symbol): used for symbol, used in sim.inspect(elf).items()}


@pytest.mark.parametrize(("name", "lds_bytes"), [
    ("causal", 65536), ("dense", 50176), ("tiles_bf16", 16384), ("tiles_fp8", 16384)])
def test_configurations_share_a_translation_unit(name, lds_bytes):
    used = kernels()[name]
    assert used["lds_bytes"] == lds_bytes
    assert used["private_bytes"] == used["agprs"] == used["vgpr_spills"] == used["sgpr_spills"] == 0


def test_configurations_share_a_kernel():
    """LDS is the caller's and registers are free between the bodies: the kernel takes what the larger one takes."""
    both, causal, dense = (kernels()[name] for name in ("causal_then_dense", "causal", "dense"))
    assert both["lds_bytes"] == causal["lds_bytes"] and both["vgprs"] == max(causal["vgprs"], dense["vgprs"])
    assert both["private_bytes"] == both["vgpr_spills"] == both["sgpr_spills"] == 0
