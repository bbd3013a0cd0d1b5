// SPDX-License-Identifier: MIT
// Copies of tokens' rows to where sorting has put their pairs with experts. HIP (gfx9) and CUDA.
//
// A wave has one token and kVectors · kWaveSize units of its row: it reads them once and writes them once for each slot
// that counts; of a token none of whose slots counts nothing is read. The wave of a row's beginning copies the token's
// scales, too. Rows are copied as they are, in units of 16 bytes or of an element.
// LDS: none. Bound: memory, slots + 1 rows for each token: 4096 tokens with 8 slots of 7168 bf16 are 528 MB, 128 us at
// 4.14 TB/s.
#pragma once

#include "aiter_like/lanes.h"
#include "aiter_like/math.h"

namespace aiter_like {

struct MoePermuteArgs {
  void* output;            // [rows, units]
  const void* input;       // [tokens, units]
  float* output_scales;    // [rows, groups], or null
  const float* scales;     // [tokens, groups], or null
  const int32_t* inverse;  // [tokens, slots]: rows of the output; below 0: the slot does not count
  int64_t output_stride, input_stride;  // in units
  int64_t output_scales_stride, token_scales_stride, group_scales_stride;
  int64_t tokens;
  int32_t slots, groups;
  uint32_t units;  // a row's
};

template <class Unit_>
struct MoePermuteBody {
  using Unit = Unit_;
  static constexpr int kThreads = 256, kWaves = kThreads / kWaveSize, kVectors = 2, kUnits = kVectors * kWaveSize;

  /// f(row) for each row among those of the lanes that is one.
  template <class F>
  __device__ static void each_row(uint64_t lanes, int32_t row, F f) {
    for (; lanes != 0; lanes &= lanes - 1) f(of_lane(row, lowest_lane(lanes)));
  }

  __device__ static void copy_scales(const MoePermuteArgs& args, int64_t token, uint64_t lanes, int32_t row) {
    for (int begin = 0; begin < args.groups; begin += kWaveSize) {
      const int group = begin + lane_index();
      const bool is_inside = group < args.groups;
      const int64_t place = token * args.token_scales_stride + (is_inside ? group : 0) * args.group_scales_stride;
      const float scale = args.scales[place];
      each_row(lanes, row, [&](int32_t to) {
        if (is_inside) args.output_scales[to * args.output_scales_stride + group] = scale;
      });
    }
  }

  __device__ __forceinline__ static void run(const MoePermuteArgs& args, Divider chunks) {
    const uint32_t work = workgroup_index().x * kWaves + wave_index();
    const uint32_t token = chunks.divide(work), chunk = work - token * chunks.divisor;
    if (token >= args.tokens) return;
    const uint32_t first = chunk * kUnits + lane_index();
    const Unit* input = static_cast<const Unit*>(args.input) + token * args.input_stride;
    Unit x[kVectors];
    bool is_read = false;
    for (int slot = lane_index(); slot - lane_index() < args.slots; slot += kWaveSize) {
      const int32_t row = slot < args.slots ? args.inverse[int64_t{token} * args.slots + slot] : -1;
      const uint64_t lanes = lanes_with(row >= 0);
      if (lanes == 0) continue;
      if (!is_read) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint32_t unit = first + v * kWaveSize;
          x[v] = input[unit < args.units ? unit : 0];  // a lane beyond the row reads its beginning, and stores nothing
        }
        is_read = true;
      }
      each_row(lanes, row, [&](int32_t to) {
        Unit* output = static_cast<Unit*>(args.output) + to * args.output_stride;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint32_t unit = first + v * kWaveSize;
          if (unit < args.units) output[unit] = x[v];
        }
      });
      if (chunk == 0 && args.scales) copy_scales(args, token, lanes, row);
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 8) void moe_permute_kernel(MoePermuteArgs args, Divider chunks) {
  await_stream();
  Body::run(args, chunks);
}

template <class Unit>
void launch_moe_permute_units(MoePermuteArgs args, Stream stream) {
  using Body = MoePermuteBody<Unit>;
  const int64_t total = args.tokens, chunks = (int64_t{args.units} + Body::kUnits - 1) / Body::kUnits;
  const int64_t most = (int64_t{1} << 25) / chunks;  // tokens of a launch, which has less than 2^32 work-items
  for (int64_t begin = 0; begin < total; begin += args.tokens) {
    args.tokens = total - begin < most ? total - begin : most;
    const int64_t groups = (args.tokens * chunks + Body::kWaves - 1) / Body::kWaves;
    launch_overlapped(moe_permute_kernel<Body>, dim3(static_cast<uint32_t>(groups)), Body::kThreads, stream, args,
                      Divider(static_cast<uint32_t>(chunks)));
    check_launch("moe_permute_kernel");
    args.input = static_cast<const Unit*>(args.input) + args.tokens * args.input_stride;
    args.inverse += args.tokens * args.slots;
    if (args.scales) args.scales += args.tokens * args.token_scales_stride;
  }
}

/// In units of 16, 4, 2 or 1 bytes.
inline void launch_moe_permute(const MoePermuteArgs& args, int unit_bytes, Stream stream) {
  if (unit_bytes == 16)
    launch_moe_permute_units<Vec<uint32_t, 4>>(args, stream);
  else if (unit_bytes == 4)
    launch_moe_permute_units<uint32_t>(args, stream);
  else if (unit_bytes == 2)
    launch_moe_permute_units<uint16_t>(args, stream);
  else
    launch_moe_permute_units<uint8_t>(args, stream);
}

}  // namespace aiter_like
