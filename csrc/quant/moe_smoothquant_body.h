// SPDX-License-Identifier: MIT
// Smoothing and dynamic quantisation of each token once per expert that it goes to: row slot · tokens + token of `out`
// is input[token] · x_scale[topk_ids[token, slot]], quantised to fp8 or int8 with a scale of its own by the rule of
// quant.h. HIP (gfx9) and CUDA. moe_smoothquant.hip says what a Config holds.
//
//   1. each lane loads its vectors of the token's row into registers, once for all its experts
//   2. per slot: the expert's factors, largest magnitude over the row's lanes, through LDS beyond a wave
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A slot whose id is no expert becomes a row of zeros. A row longer than the registers' capacity (kIsWhole 0) is taken
// in pieces and read twice per slot. Where there are too few tokens to fill the device, their slots are spread over it.
//
// Tile: kLanes lanes take a row, kVectors · kVec elements each. LDS: 8 bytes per wave.
// Bound: memory. columns · (sizeof(Element) + topk) bytes per token, the factors mostly from cache: 4096 × 4096 bf16 to
// 8 experts = 168 MB, 32 us at 5.3 TB/s.
#pragma once

#include "aiter_like/quant.h"
#include "aiter_like/ffi.h"

namespace aiter_like {

template <class Config>
struct MoeSmoothquantArgs {
  Matrix<typename Config::Out> out;               // [topk · tokens, columns]
  Matrix<const typename Config::Element> input;   // [tokens, columns]
  Matrix<const float> x_scale;   // [experts, columns]
  const int32_t* topk_ids;       // [tokens, topk]
  float* scale;                  // [topk · tokens]
  int64_t tokens;
  int columns, topk;
  uint32_t experts;
};

/// One workgroup's work on its rows.
template <class Config, bool kIsAligned>
struct MoeSmoothquantBody {
  using Element = typename Config::Element;
  using Out = typename Config::Out;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = MoeSmoothquantArgs<Config>;

  static constexpr int kMinGroups = Layout::min_groups(sizeof(Element) + 6);

  __device__ __forceinline__ static void run(const Args& args, int slot_step) {
    // Two in turn: a wave is at most one barrier ahead of another that still reads.
    __shared__ RowScratch<Layout> scratches[2];
    // Lanes of a token that is not there take part in the reductions with zeros.
    const bool is_there = Layout::row() < args.tokens;
    const int64_t token = is_there ? Layout::row() : 0;
    const int columns = is_there ? args.columns : 0;

    RowTile<Layout, Element> x;
    if constexpr (Config::kIsWhole) x.load(args.input.row(token), columns);
    int turn = 0;
    for (int slot = static_cast<int>(workgroup_index().y); slot < args.topk; slot += slot_step, turn ^= 1) {
      const auto expert = static_cast<uint32_t>(args.topk_ids[token * args.topk + slot]);  // -1 is above `experts`
      const bool is_expert = expert < args.experts;
      const int64_t row = slot * args.tokens + token;
      RowTile<Layout, float> y;  // the factors, then the products
      const auto load = [&](int start) {
        if constexpr (!Config::kIsWhole) x.load(args.input.row(token) + start, columns - start);
        y.load(args.x_scale.row(is_expert ? expert : 0) + start, is_expert ? columns - start : 0);
        each_element<Layout>([&](int v, int e) { y.set(v, e, is_expert ? x.at(v, e) * y.at(v, e) : 0.f); });
      };
      const auto value = [&](int v, int e) { return y.at(v, e); };

      float amax = 0.f;
      for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
        load(start);
        amax = larger(amax, lane_amax<Layout>(value));
        if constexpr (Config::kIsWhole) break;
      }
      const QuantScale scale = quant_scale<Out>(row_max<Layout>(amax, scratches[turn]));
      if (Layout::lane() == 0 && is_there) args.scale[row] = scale.scale;
      x.drop_floats();  // for the next slot
      for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
        if constexpr (!Config::kIsWhole) load(start);
        store_by_own_scale<Layout>(args.out.row(row) + start, columns - start, scale, value);
        if constexpr (Config::kIsWhole) break;
      }
    }
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void moe_smoothquant_kernel(
    typename Body::Args args, int slot_step) {
  await_stream();
  Body::run(args, slot_step);
}

template <class Config>
void launch_moe_smoothquant(const MoeSmoothquantArgs<Config>& args, bool is_aligned, Stream stream) {
  using Layout = typename Config::template Layout<true>;
  const uint32_t groups = Layout::workgroups(args.tokens);
#if defined(__HIP__)
  // Workgroups for each expert are better for 2^17 lanes and fewer: 512 tokens of 2048 for 8 experts take 7.7 µs
  // instead of 10.4, 256 of 4096 for 2 experts 3.6 instead of 4.2, twice as many 5 to 30 % more (modelled).
  const int step = int64_t{groups} * Layout::kThreads <= 1 << 17 ? args.topk : 1;
#else
  const int step = int64_t{groups} * Layout::kThreads < 1 << 17 ? args.topk : 1;  // 2^17 lanes fill 64 CUs
#endif
  const dim3 grid(groups, static_cast<uint32_t>(step));
  const auto kernel = is_aligned ? moe_smoothquant_kernel<MoeSmoothquantBody<Config, true>>
                                 : moe_smoothquant_kernel<MoeSmoothquantBody<Config, false>>;
  launch_named("moe_smoothquant_kernel", kernel, grid, Layout::kThreads, stream, args, step);
}

}  // namespace aiter_like
