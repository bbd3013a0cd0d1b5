// SPDX-License-Identifier: MIT
// Sums of the rows that a token has among the experts' results, weighted, in the order of its slots, in fp32, rounded
// once. HIP (gfx9) and CUDA. moe_sum.hip says what a Config holds.
//
//   1. each lane of a wave looks at one slot of the wave's token: whether it counts, its row and its weight
//   2. the lanes take 16 bytes each, side by side, of every row that counts, kMost rows at a time; rows that do not
//      count are not read
//
// A wave has one token and kWaveSize · kVec of its columns; what it decides about slots is the same in all its lanes.
// LDS: none. Bound: memory, slots + 1 rows for each token: 4096 tokens with 8 slots of 7168 bf16 are 528 MB, 128 us at
// 4.14 TB/s.
#pragma once

#include "aiter_like/lanes.h"
#include "aiter_like/math.h"

namespace aiter_like {

template <class Config>
struct MoeSumArgs {
  typename Config::Out* out;             // [tokens, columns]
  const typename Config::Element* input;  // [tokens, slots, columns], or with index [rows, columns]
  const float* weights;                  // [tokens, slots]; null: 1
  const int32_t* ids;                    // [tokens, slots]: experts; null: every slot counts
  const int32_t* mask;                   // [experts]: 0 where an expert's slots do not count; null: all count
  const int32_t* index;                  // [tokens, slots]: rows of the input; null: rows lie in the slots' order
  const int32_t* local_tokens;           // [1]: as many of the first tokens count; null: all
  const int64_t* used;                   // [1]: with index: as many of the first rows count; null: all
  int64_t out_stride, token_stride, row_stride, weights_stride, ids_stride, index_stride;
  int64_t tokens, begin, rows;            // begin: tokens of earlier launches
  int32_t slots, experts;
  uint32_t columns;
};

/// kMost rows are under way at a time. Four take 40 VGPRs; eight take 76, for 6 waves of a SIMD: modelled 4 % slower
/// where waves fill the device, and 10 % faster where they do not and wait for memory once instead of twice.
template <class Config, int kVec, int kMost>
struct MoeSumBody {
  using Element = typename Config::Element;
  using Args = MoeSumArgs<Config>;
  static constexpr int kThreads = 256, kWaves = kThreads / kWaveSize, kColumns = kWaveSize * kVec;

  /// Whether a slot of a token counts, with its row and its weight.
  __device__ static bool look(const Args& args, int64_t token, int slot, int32_t& row, float& weight) {
    row = slot;
    weight = 1.f;
    if (slot >= args.slots) return false;
    if (args.ids) {
      const int32_t expert = args.ids[token * args.ids_stride + slot];
      if (expert < 0 || expert >= args.experts || (args.mask && args.mask[expert] == 0)) return false;
    }
    if (args.index) {
      row = args.index[token * args.index_stride + slot];
      if (row < 0 || row >= args.rows || (args.used && row >= *args.used)) return false;
    }
    if (args.weights) weight = args.weights[token * args.weights_stride + slot];
    return true;
  }

  /// Adds the rows of the kCount lowest lanes of a set, which then has them no more.
  template <int kCount>
  __device__ static void add(const Args& args, const Element* column, uint64_t& lanes, int32_t row, float weight,
                             float (&sum)[kVec]) {
    Packed<Element, kVec> x[kCount];
    float factor[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int lane = lowest_lane(lanes);
      lanes &= lanes - 1;
      factor[i] = of_lane(weight, lane);
      x[i].load(column + of_lane(row, lane) * args.row_stride);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < kVec; ++e) sum[e] = __builtin_fmaf(factor[i], x[i].at(e), sum[e]);
  }

  /// Like add, for all lanes of a set of at most kCount.
  template <int kCount>
  __device__ static void add_rest(const Args& args, const Element* column, uint64_t lanes, int32_t row, float weight,
                                  float (&sum)[kVec]) {
    if constexpr (kCount > 0) {
      if (lane_count(lanes) == kCount)
        add<kCount>(args, column, lanes, row, weight, sum);
      else
        add_rest<kCount - 1>(args, column, lanes, row, weight, sum);
    }
  }

  __device__ __forceinline__ static void run(const Args& args, Divider chunks) {
    const uint32_t work = workgroup_index().x * kWaves + wave_index();
    const uint32_t token = chunks.divide(work);
    if (token >= args.tokens) return;
    const uint32_t first = (work - token * chunks.divisor) * kColumns + lane_index() * kVec;
    const bool is_inside = first < args.columns;  // a lane beyond the row reads its beginning, and stores nothing
    const Element* column = args.input + token * args.token_stride + (is_inside ? first : 0);
    float sum[kVec] = {};
    const int slots = args.local_tokens && args.begin + token >= *args.local_tokens ? 0 : args.slots;
    for (int slot = 0; slot < slots; slot += kWaveSize) {
      int32_t row;
      float weight;
      uint64_t lanes = lanes_with(look(args, token, slot + lane_index(), row, weight));
      while (lane_count(lanes) > kMost) add<kMost>(args, column, lanes, row, weight, sum);
      add_rest<kMost>(args, column, lanes, row, weight, sum);
    }
    if (is_inside)
      store_vec<kVec>(args.out + token * args.out_stride + first, vec_from_float<typename Config::Out>(sum));
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 4) void moe_sum_kernel(typename Body::Args args, Divider chunks) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<typename Body::Args>();
#endif
  Body::run(args, chunks);
}

template <class Body>
void launch_moe_sum_body(typename Body::Args args, Stream stream) {
  const int64_t total = args.tokens, chunks = (int64_t{args.columns} + Body::kColumns - 1) / Body::kColumns;
  const int64_t most = (int64_t{1} << 25) / chunks;  // tokens of a launch, which has less than 2^32 work-items
  for (args.begin = 0; args.begin < total; args.begin += args.tokens) {
    args.tokens = total - args.begin < most ? total - args.begin : most;
    const int64_t groups = (args.tokens * chunks + Body::kWaves - 1) / Body::kWaves;
    launch_overlapped(moe_sum_kernel<Body>, dim3(static_cast<uint32_t>(groups)), Body::kThreads, stream, args,
                      Divider(static_cast<uint32_t>(chunks)));
    check_launch("moe_sum_kernel");
    args.out += args.tokens * args.out_stride;
    args.input += args.tokens * args.token_stride;
    if (args.weights) args.weights += args.tokens * args.weights_stride;
    if (args.ids) args.ids += args.tokens * args.ids_stride;
    if (args.index) args.index += args.tokens * args.index_stride;
  }
}

/// With accesses of 16 bytes of the input, or of single elements.
template <class Config>
void launch_moe_sum(const MoeSumArgs<Config>& args, bool is_aligned, Stream stream) {
  constexpr int kVec = 16 / sizeof(typename Config::Element);
#if defined(__HIP__)
  constexpr int64_t kWavesOfFew = 304 * 4;  // one for each SIMD of an MI300X
  if (is_aligned && args.tokens * args.columns <= kWavesOfFew * kWaveSize * kVec)
    return launch_moe_sum_body<MoeSumBody<Config, kVec, 8>>(args, stream);
#endif
  if (is_aligned)
    launch_moe_sum_body<MoeSumBody<Config, kVec, 4>>(args, stream);
  else
    launch_moe_sum_body<MoeSumBody<Config, 1, 4>>(args, stream);
}

}  // namespace aiter_like
