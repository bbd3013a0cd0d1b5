// SPDX-License-Identifier: MIT
// Smoothing and dynamic quantisation of each token once per expert that it goes to: row slot · tokens + token of `out`
// is input[token] · x_scale[topk_ids[token, slot]], quantised to fp8 or int8 with a scale of its own by the rule of
// quant.h. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. each lane loads its vectors of the token's row into registers, once for all its experts
//   2. per slot: the expert's factors, largest magnitude over the row's lanes, through LDS beyond a wave
//   3. multiply with 1 / scale, round, store; one lane stores the scale
// A slot whose id is no expert becomes a row of zeros. A row longer than the registers' capacity (IS_WHOLE 0) is taken
// in pieces and read twice per slot. Where there are too few tokens to fill the device, their slots are spread over it.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 8 bytes per wave.
// Bound: memory. columns · (sizeof(ELEMENT) + topk) bytes per token, the factors mostly from cache: 4096 × 4096 bf16 to
// 8 experts = 168 MB, 32 us at 5.3 TB/s.
#include "aiter_like/quant.h"
#include "aiter_like/ffi.h"

#if !defined(ELEMENT) || !defined(OUT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || !defined(IS_WHOLE)
#error "moe_smoothquant.hip: -DELEMENT=bf16|f16|float -DOUT=fp8|int8_t and sizes"
#endif

namespace aiter_like {

struct MoeSmoothquantArgs {
  Matrix<OUT> out;               // [topk · tokens, columns]
  Matrix<const ELEMENT> input;   // [tokens, columns]
  Matrix<const float> x_scale;   // [experts, columns]
  const int32_t* topk_ids;       // [tokens, topk]
  float* scale;                  // [topk · tokens]
  int64_t tokens;
  int columns, topk;
  uint32_t experts;
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(sizeof(ELEMENT) + 6)) void moe_smoothquant_kernel(
    MoeSmoothquantArgs args, int slot_step) {
  await_stream();
  // Two in turn: a wave is at most one barrier ahead of another that still reads.
  __shared__ RowScratch<Layout> scratches[2];
  // Lanes of a token that is not there take part in the reductions with zeros.
  const bool is_there = Layout::row() < args.tokens;
  const int64_t token = is_there ? Layout::row() : 0;
  const int columns = is_there ? args.columns : 0;

  RowTile<Layout, ELEMENT> x;
  if constexpr (IS_WHOLE) x.load(args.input.row(token), columns);
  int turn = 0;
  for (int slot = static_cast<int>(workgroup_index().y); slot < args.topk; slot += slot_step, turn ^= 1) {
    const auto expert = static_cast<uint32_t>(args.topk_ids[token * args.topk + slot]);  // -1 is above `experts`
    const bool is_expert = expert < args.experts;
    const int64_t row = slot * args.tokens + token;
    RowTile<Layout, float> y;  // the factors, then the products
    const auto load = [&](int start) {
      if constexpr (!IS_WHOLE) x.load(args.input.row(token) + start, columns - start);
      y.load(args.x_scale.row(is_expert ? expert : 0) + start, is_expert ? columns - start : 0);
      each_element<Layout>([&](int v, int e) { y.set(v, e, is_expert ? x.at(v, e) * y.at(v, e) : 0.f); });
    };
    const auto value = [&](int v, int e) { return y.at(v, e); };

    float amax = 0.f;
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      load(start);
      amax = larger(amax, lane_amax<Layout>(value));
      if constexpr (IS_WHOLE) break;
    }
    const QuantScale scale = quant_scale<OUT>(row_max<Layout>(amax, scratches[turn]));
    if (Layout::lane() == 0 && is_there) args.scale[row] = scale.scale;
    x.drop_floats();  // for the next slot
    for (int start = 0; start == 0 || start < args.columns; start += Layout::kCapacity) {
      if constexpr (!IS_WHOLE) load(start);
      store_by_own_scale<Layout>(args.out.row(row) + start, columns - start, scale, value);
      if constexpr (IS_WHOLE) break;
    }
  }
}

void launch_moe_smoothquant(const MoeSmoothquantArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const uint32_t groups = Layout::workgroups(args.tokens);
#if defined(__HIP__)
  // Workgroups for each expert are better for 2^17 lanes and fewer: 512 tokens of 2048 for 8 experts take 7.7 µs
  // instead of 10.4, 256 of 4096 for 2 experts 3.6 instead of 4.2, twice as many 5 to 30 % more (modelled).
  const int step = int64_t{groups} * Layout::kThreads <= 1 << 17 ? args.topk : 1;
#else
  const int step = int64_t{groups} * Layout::kThreads < 1 << 17 ? args.topk : 1;  // 2^17 lanes fill 64 CUs
#endif
  const dim3 grid(groups, static_cast<uint32_t>(step));
  launch_named("moe_smoothquant_kernel", is_aligned ? moe_smoothquant_kernel<true> : moe_smoothquant_kernel<false>,
               grid, Layout::kThreads, stream, args, step);
}

#if AITER_LIKE_HOST_PASS

void moe_smoothquant(ffi::Tensor out, ffi::Tensor scale, ffi::Tensor input, ffi::Tensor x_scale,
                     ffi::Tensor topk_ids) {
  ffi::Match match("moe_smoothquant");
  ffi::Size tokens{"tokens", 1 << 24}, columns{"columns"}, experts{"experts"}, topk{"topk", 1 << 16};
  ffi::Size rows{"tokens * topk", 1 << 24};
  MoeSmoothquantArgs args{};
  args.input = match.rows<const ELEMENT>(input, tokens, columns, "input");
  args.topk_ids = match.take<const int32_t>(topk_ids, {tokens, topk}, "topk_ids", ffi::kDense);
  if (tokens == 0 || topk == 0) return;
  args.out = match.rows<OUT>(out, rows, columns, "out");
  args.x_scale = match.rows<const float>(x_scale, experts, columns, "x_scale");
  match.require(rows == tokens * topk, "out must have a row per token and expert");
  args.scale = match.elements<float>(scale, rows, "y_scale");
  args.experts = experts, args.tokens = tokens, args.columns = columns, args.topk = topk;
  match.built(!IS_WHOLE || columns <= LANES * VECTORS * VEC, "row lengths");
  const bool is_aligned = ffi::takes_vectors(VEC, input, out) && ffi::takes_vectors(4, x_scale);
  launch_moe_smoothquant(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_smoothquant, aiter_like::moe_smoothquant);
#endif
