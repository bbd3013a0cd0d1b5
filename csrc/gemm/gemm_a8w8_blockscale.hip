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
#include <optional>

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

using ffi::check_value;

namespace {

constexpr const char* kOp = "gemm_a8w8_blockscale";

/// The matrix of scales of [rows, blocks of `depth`].
gemm::ScaleMatrix scales_of(const ffi::Tensor& scale, int64_t rows, int64_t depth, const char* name) {
  if (!ffi::has_element<float>(scale)) TVM_FFI_THROW(TypeError) << kOp << ": " << name << " must have dtype float32";
  if (scale.ndim() != 2 || scale.size(0) != rows ||
      scale.size(1) != (depth + gemm::kScaleBlock - 1) / gemm::kScaleBlock)
    TVM_FFI_THROW(ValueError) << kOp << ": " << name << " must have a scale for each of " << rows
                              << " and each 128 of the depth";
  return {static_cast<const float*>(scale.data_ptr()), {scale.stride(0), scale.stride(1)}};
}

}  // namespace

void gemm_a8w8_blockscale_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor a_scale, ffi::Tensor b_scale,
                             bool is_preshuffled) {
  Args args{};
  args.a = gemm::matrix_view<const fp8>(a, kOp, "a");
  args.b = gemm::matrix_view<const fp8>(b, kOp, "b");
  args.out = gemm::matrix_view<Config::OutElement>(out, kOp, "out");
  const int64_t m = args.out.sizes[0], n = args.out.sizes[1], k = args.a.sizes[1];
  check_value(args.a.sizes[0] == m && args.b.sizes[0] == n && args.b.sizes[1] == k,
              "gemm_a8w8_blockscale: a must be [m, k], b [n, k], out [m, n]");
  check_value(k % Shape::kRun == 0 && n % 4 == 0, "gemm_a8w8_blockscale: k must be a multiple of 16, n of 4");
  check_value(is_preshuffled == Config::kIsPreshuffled,
              "gemm_a8w8_blockscale: this module was built for the other order of the weights");
  check_value(!is_preshuffled || (n % 16 == 0 && b.IsContiguous()),
              "gemm_a8w8_blockscale: shuffled weights must be contiguous, with n a multiple of 16");
  args.a_scale = scales_of(a_scale, m, k, "a_scale");
  args.b_scale = scales_of(b_scale, (n + gemm::kScaleBlock - 1) / gemm::kScaleBlock, k, "b_scale");
  if (m == 1) args.a_scale.strides[0] = 1;  // there is no next row, whatever the stride says
  constexpr int64_t kMaxStride = int64_t{1} << 21;  // the scales of 256 rows within 31 bits
  check_value(args.a_scale.strides[0] >= 0 && args.a_scale.strides[0] < kMaxStride,
              "gemm_a8w8_blockscale: rows of a_scale must be less than 2^21 elements apart");
  if (m == 0 || n == 0) return;
  args.order = gemm::tiles_of<Shape>(m, n, kOp);
  args.split_depth = gemm::split_depth_of<Shape>(k);
  const Stream stream = ffi::stream_of(a);
  std::optional<ffi::Scratch> turned;
  if (kMayTurn && m >= kLeastTurned && a_scale.size(1) > 1 && args.a_scale.strides[1] == 1) {
    const int64_t blocks = a_scale.size(1), bytes = m * blocks * static_cast<int64_t>(sizeof(float));
    auto* const memory = static_cast<float*>(turned.emplace(bytes, out.device()).data());
    launch_turn({args.a_scale, memory, static_cast<int>(m), static_cast<int>(blocks)}, stream);
    args.a_scale = {memory, {1, m}};
  }
  gemm::with_partials<Shape>(args, m, n, out.device(), [&] { launch_gemm_a8w8_blockscale(args, stream); });
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(gemm_a8w8_blockscale, aiter_like::gemm_a8w8_blockscale_ck);
#endif
