// SPDX-License-Identifier: MIT
// How a matrix product (gemm_body.h) adds up where a block of the depth has scales of its own.
#pragma once

#include "gemm_body.h"

namespace aiter_like::gemm {

constexpr int kScaleBlock = 128;  // of the depth and of the columns: what shares a scale

/// An fp32 matrix of scales of any strides.
struct ScaleMatrix {
  const float* data;
  int64_t strides[2];  // elements
};

/// Scales the products of a block of the depth, for each row of a and each block of b's rows, and adds them. A wave's
/// share of a step is one block, and its columns of out lie within one.
template <class Shape>
class AddScaledBlocks {
 public:
  static_assert(Shape::kWaveDepth == kScaleBlock && kScaleBlock % Shape::kWaveN == 0, "a wave must stay in a block");

  /// For `rows` rows of a and `depth` of both, of which this wave has those of its part of out.
  __device__ AddScaledBlocks(const ScaleMatrix& a_scale, const ScaleMatrix& b_scale, const WavePlace<Shape>& wave,
                             int64_t rows, int64_t columns, int64_t depth)
      : a_scale_(a_scale.data + wave.row() * a_scale.strides[0]),
        b_scale_(b_scale.data + wave.column() / kScaleBlock * b_scale.strides[0]),
        a_stride_(a_scale.strides[1]),
        b_stride_(b_scale.strides[1]),
        row_bytes_(static_cast<uint32_t>(a_scale.strides[0] * sizeof(float))),
        depth_(wave.column() < columns ? depth : 0),
        wave_depth_(wave.depth * Shape::kWaveDepth) {
    const int64_t left = rows - wave.row();
    const int count = static_cast<int>(left < Shape::kWaveM ? left : Shape::kWaveM);
    a_bytes_ = count > 0 ? (count - 1) * row_bytes_ + sizeof(float) : 0;
  }

  /// Starts the loads of the block of this wave in the step at `k`; past the edges there are zeros.
  __device__ void fetch(int64_t k) {
    const bool is_inside = k + wave_depth_ < depth_;
    const int64_t block = (k + wave_depth_) / kScaleBlock;
    const auto a = make_buffer(a_scale_ + block * a_stride_, is_inside ? a_bytes_ : 0);
    const auto b = make_buffer(b_scale_ + block * b_stride_, is_inside ? sizeof(float) : 0);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) a_factors_[s] = load_float(a, Layout::owned(s) * row_bytes_);
    b_factor_ = load_float(b, 0);
  }

  template <class Products>
  __device__ void add(typename Shape::Sums& sums, Products products) const {
    typename Shape::Sums block;
    clear(block);
    products(block);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const float factor = a_factors_[s] * b_factor_;
#pragma unroll
      for (int p = 0; p < Shape::Sums::kPieces; ++p) sums.pieces[s][p] += block.pieces[s][p] * factor;
    }
  }

 private:
  using Layout = typename Shape::Sums::Layout;
  static constexpr int kStrips = Shape::Sums::kStrips;

  const float *a_scale_, *b_scale_;
  int64_t a_stride_, b_stride_;
  uint32_t row_bytes_, a_bytes_;
  int64_t depth_;
  int wave_depth_;
  float a_factors_[kStrips], b_factor_;
};

}  // namespace aiter_like::gemm
