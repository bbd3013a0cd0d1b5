// SPDX-License-Identifier: MIT
// How a matrix product (gemm_body.h) adds up where a block of the depth has scales of its own.
#pragma once

#include "gemm_body.h"

namespace aiter_like::gemm {

constexpr int kScaleBlock = 128;  // elements of the depth, and columns, that share a scale

/// An fp32 matrix of scales of any strides.
struct ScaleMatrix {
  const float* data;
  int64_t strides[2];  // elements
};

/// In which block of b's rows the columns(i) are that a wave has, or one half of them: of gates and what they let
/// through in bands of 16 by turns.
template <class Shape, class Columns>
__device__ int64_t block_of(const Columns& columns, const WavePlace<Shape>& wave, int half) {
  return columns(wave.tile_column + 16 * half) / kScaleBlock;
}

/// Scales the products of a block of the depth, for each row of a and each block of b's rows, and adds them. A wave's
/// share of a step is one block, and its columns of out lie within one, or with HALVES 2, gates and what they let
/// through by turns, in one for each half.
template <class Shape, int HALVES = 1>
class AddScaledBlocks {
 public:
  static_assert(Shape::kWaveDepth == kScaleBlock && kScaleBlock % Shape::kWaveN == 0, "a wave must stay in a block");

  /// For `rows` rows of a and `depth` of both, of which this wave has those of its part of out.
  __device__ AddScaledBlocks(const ScaleMatrix& a_scale, const ScaleMatrix& b_scale, const WavePlace<Shape>& wave,
                             int64_t rows, int64_t columns, int64_t depth)
      : a_scale_(a_scale.data + wave.row() * a_scale.strides[0]),
        b_scale_{b_scale.data + wave.column() / kScaleBlock * b_scale.strides[0]},
        a_stride_(a_scale.strides[1]),
        b_stride_(b_scale.strides[1]),
        depth_(wave.column() < columns ? depth : 0),
        wave_depth_(wave.depth * Shape::kWaveDepth) {
    const auto row_bytes = static_cast<uint32_t>(a_scale.strides[0] * sizeof(float));
    const int64_t left = rows - wave.row();
    const int count = static_cast<int>(left < Shape::kWaveM ? left : Shape::kWaveM);
    a_bytes_ = count > 0 ? (count - 1) * row_bytes + sizeof(float) : 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) offsets_[s] = Layout::owned(s) * row_bytes;
  }
  /// Reads rows(i) of a's scales, which have a_rows and lie within 2^31 bytes, for rows i of the tile, and columns(i)
  /// of b's rows.
  template <class Rows, class Columns>
  __device__ AddScaledBlocks(const ScaleMatrix& a_scale, int64_t a_rows, const Rows& rows, const ScaleMatrix& b_scale,
                             const Columns& columns, const WavePlace<Shape>& wave, int64_t depth)
      : a_scale_(a_scale.data),
        a_stride_(a_scale.strides[1]),
        b_stride_(b_scale.strides[1]),
        depth_(depth),
        wave_depth_(wave.depth * Shape::kWaveDepth) {
    const auto row_bytes = static_cast<uint32_t>(a_scale.strides[0] * sizeof(float));
    a_bytes_ = static_cast<uint32_t>(a_rows - 1) * row_bytes + sizeof(float);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      b_scale_[half] = b_scale.data + block_of<Shape>(columns, wave, half) * b_scale.strides[0];
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int64_t row = rows(wave.tile_row + Layout::owned(s));
      offsets_[s] = row < 0 ? kOutOfRange : static_cast<uint32_t>(row) * row_bytes;
    }
  }

  /// Starts the loads of the block of this wave in the step at `k`; past the edges there are zeros.
  __device__ void fetch(int64_t k) {
    const bool is_inside = k + wave_depth_ < depth_;
    const int64_t block = (k + wave_depth_) / kScaleBlock;
    const auto a = make_buffer(a_scale_ + block * a_stride_, is_inside ? a_bytes_ : 0);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) next_a_[s] = load_float(a, offsets_[s]);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      next_b_[half] = load_float(make_buffer(b_scale_[half] + block * b_stride_, is_inside ? sizeof(float) : 0), 0);
  }

  /// Makes the fetched scales the current step's. Opaque: the compiler would copy them to where the former step's were
  /// as soon as these are used up, and wait for the loads there. Twice: it makes packed instructions of two elements,
  /// which read two registers, and the next loads may go to the other one.
  __device__ void publish() {
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
        factors_[s][half][0] = bits_float(opaque(float_bits(next_a_[s] * next_b_[half])));
        factors_[s][half][1] = bits_float(opaque(float_bits(next_a_[s] * next_b_[half])));
      }
    }
  }

  /// Half of the rows at a time, where there are as many: the other half is multiplied while one is scaled.
  template <class Products>
  __device__ void add(typename Shape::Sums& sums, Products products) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      RegTile<float, Shape::kWaveN, Shape::kWaveM / kParts, Layout> block;
      clear(block);
      products(block, 0, Shape::kSlices, part * block.kColumns);
#pragma unroll
      for (int s = 0; s < block.kStrips; ++s) {
        const int strip = part * block.kStrips + s;
#pragma unroll
        for (int e = 0; e < block.kPerStrip; ++e) {
          const float factor = factors_[strip][e / block.kPieceElements % HALVES][e % 2];
          sums.set(strip, e, __builtin_fmaf(block.get(s, e), factor, sums.get(strip, e)));
        }
      }
    }
  }

 private:
  using Layout = typename Shape::Sums::Layout;
  static constexpr int kStrips = Shape::Sums::kStrips, kParts = kStrips > 1 ? 2 : 1;

  const float *a_scale_, *b_scale_[HALVES];
  int64_t a_stride_, b_stride_;
  uint32_t offsets_[kStrips], a_bytes_;
  int64_t depth_;
  int wave_depth_;
  float next_a_[kStrips], next_b_[HALVES], factors_[kStrips][HALVES][2];
};

}  // namespace aiter_like::gemm
