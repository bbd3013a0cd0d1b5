// SPDX-License-Identifier: MIT
// out = Σ a_scale[:, g] · b_scale[:, g] · (a[:, g] · b[:, g]ᵀ) over blocks g of 128 of the depth, for gfx942, in fp8
// with sums in fp32, composed from the tile library. One build per tile, order of the weights and element of out;
// gemm_a8w8_blockscale_body.h, gemm_scaled_pipeline.h, block_scales.h and gemm_body.h have its steps.
//
// `a` goes through LDS, 128 of the depth for each wave along it; the weights as well, or, shuffled, straight to
// registers. While a step is multiplied the next one and its scales are under way in registers. A block's products have
// registers of their own, from which they are scaled and added: one fused multiply-add for 128 multiplications. Waves
// with 64 rows or more do that by the pipelined loop, while the next products are under way; what memory bounds, waves
// with fewer rows or that share the depth, by the plain one.
// Bound: MFMA, 2 m n k flop at 2615 TFLOP/s; for few rows memory, n k bytes at 5.3 TB/s.
#include "gemm_a8w8_blockscale_body.h"
#include "gemm_host.h"
#include "turned_scales.h"

#if !defined(OUT_ELEMENT) || !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || \
    !defined(WAVES_K) || !defined(SPLITS) || !defined(IS_PRESHUFFLED)
#error "gemm_a8w8_blockscale.hip: the macros that ops/gemm/gemm_a8w8_blockscale.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = fp8;
  using Sum = float;
  using OutElement = OUT_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS;
  static constexpr bool kIsPreshuffled = IS_PRESHUFFLED;
};
using Body = gemm_a8w8_blockscale::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

__global__ __launch_bounds__(Shape::kThreads) __attribute__((amdgpu_waves_per_eu(Body::kWavesPerSimd)))
void gemm_a8w8_blockscale_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

__global__ __launch_bounds__(gemm::kSumThreads) void gemm_a8w8_blockscale_sum_kernel(Args args) {
  Body::sum(args, workgroup_index().x);
}

__global__ __launch_bounds__(gemm::kTurnThreads) void gemm_a8w8_blockscale_turn_kernel(gemm::TurnArgs args) {
  gemm::turn_scales(args, workgroup_index());
}

/// Scales by rows are turned beforehand for the loop that multiplies without a pause, from so many rows on: modelled
/// (version 2 of the cycle model, 2100 MHz) 166 us become 128 for 4096 × 4608 × 7168, 47.2 become 45.9 for 1024 rows,
/// which the time of another launch would use up.
constexpr bool kMayTurn = Body::Loop::kIsPipelined;
constexpr int64_t kLeastTurned = 2048;

void launch_turn(const gemm::TurnArgs& args, Stream stream) {
  if constexpr (kMayTurn) {
    constexpr int kTile = gemm::kTurnedTile;
    const dim3 grid(static_cast<uint32_t>((args.rows + kTile - 1) / kTile),
                    static_cast<uint32_t>((args.blocks + kTile - 1) / kTile));
    gemm_a8w8_blockscale_turn_kernel<<<grid, gemm::kTurnThreads, 0, stream>>>(args);
    check_launch("gemm_a8w8_blockscale_turn_kernel");
  }
}

void launch_gemm_a8w8_blockscale(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape>(gemm_a8w8_blockscale_kernel, gemm_a8w8_blockscale_sum_kernel, args, "gemm_a8w8_blockscale",
                            stream);
}

#if AITER_LIKE_HOST_PASS

void gemm_a8w8_blockscale_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor a_scale, ffi::Tensor b_scale,
                             bool is_preshuffled) {
  ffi::Match match("gemm_a8w8_blockscale");
  match.built(is_preshuffled == Config::kIsPreshuffled, "orders of the weights");
  ffi::Size m{"m"}, n{"n"}, k{"k"};
  Args args{};
  args.out = gemm::view_of<Config::OutElement>(match, out, {m, n}, "out");
  args.a = gemm::view_of<const fp8>(match, a, {m, k}, "a");
  args.b = gemm::view_of<const fp8>(match, b, {n, k}, "b");
  match.require(!is_preshuffled || (n % 16 == 0 && args.b.strides[0] == k),
                "shuffled weights must be contiguous, with n a multiple of 16");
  const int64_t blocks = (k + gemm::kScaleBlock - 1) / gemm::kScaleBlock;
  const int64_t column_blocks = (n + gemm::kScaleBlock - 1) / gemm::kScaleBlock;
  const auto row_scales = match.take<const float>(a_scale, {m, blocks}, "a_scale", ffi::kStrided);
  const auto block_scales = match.take<const float>(b_scale, {column_blocks, blocks}, "b_scale", ffi::kStrided);
  args.a_scale = {row_scales, {m == 1 ? 1 : row_scales.strides[0], row_scales.strides[1]}};
  args.b_scale = {block_scales, {block_scales.strides[0], block_scales.strides[1]}};
  constexpr int64_t kMaxStride = int64_t{1} << 21;  // the scales of 256 rows within 31 bits
  match.require(args.a_scale.strides[0] >= 0 && args.a_scale.strides[0] < kMaxStride,
                "rows of a_scale must be less than 2^21 elements apart");
  gemm::run<Shape>(match, args, m, n, k, out.device(), [&] {
    const Stream stream = ffi::stream_of(a);
    const bool is_turned = kMayTurn && m >= kLeastTurned && blocks > 1 && args.a_scale.strides[1] == 1;
    const ffi::Scratch turned(is_turned ? m * blocks * int64_t{sizeof(float)} : 0, out.device());
    if (is_turned) {
      launch_turn({args.a_scale, turned.data<float>(), static_cast<int>(m), static_cast<int>(blocks)}, stream);
      args.a_scale = {turned.data<float>(), {1, m}};
    }
    launch_gemm_a8w8_blockscale(args, stream);
  });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a8w8_blockscale, aiter_like::gemm_a8w8_blockscale_ck);
#endif
