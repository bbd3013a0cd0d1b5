// SPDX-License-Identifier: MIT
// What a workgroup of a matrix product a · bᵀ does, composed from the tile library. An operator says where the operands
// come from, how products are added up and what happens to a sum; the loop between is the same.
//
// A workgroup computes kBlockM × kBlockN elements. Its waves are a grid of kWavesM × kWavesN parts of the tile and with
// kWavesK > 1 share the depth of each part: their sums meet in LDS at the end, in a fixed order. The sums are kept
// transposed, [columns of out, rows of out], so that a lane has neighbours of a row of out.
//
//   gemm_shape.h      Shape: the tiles that follow from a Config; WavePlace, Span
//   gemm_operands.h   operand policies: ThroughLds (as it stands in memory), Preshuffled (straight to registers)
//   gemm_loop.h       multiply, and AddProducts: other accumulate policies scale the products of a step first;
//                     gemm_pipeline.h and gemm_scaled_pipeline.h have faster loops for large tiles
//   gemm_store.h      store_sums. A finish, float operator()(Sum x, int64_t row, int64_t column), makes an element of
//                     out of a sum
#pragma once

#include "gemm_loop.h"
#include "gemm_operands.h"
#include "gemm_store.h"

namespace aiter_like::gemm {

/// The kernel of a body. It waits for all lines of its arguments at once where two steps are under way.
template <class Body>
__device__ __forceinline__ void multiply_tile(const typename Body::Args& args) {
  if constexpr (Body::Shape::kAhead > 1) fetch_arguments<typename Body::Args>();
  __shared__ typename Body::Memory lds;
  Body::multiply(args, workgroup_index(), lds);
}

}  // namespace aiter_like::gemm
