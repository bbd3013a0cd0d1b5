// SPDX-License-Identifier: MIT
// RMSNorm: out = x / sqrt(mean(x²) + epsilon) · weight, row by row, in fp32; x = input, or input + residual_in, whose
// rounded sum becomes residual_out. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. each lane loads its 16-byte vectors of the row (and of the residual's, and adds them) into registers
//   2. the sum of squares over the row's lanes: within a wave, or through LDS
//   3. vector by vector: scale, multiply with the weight, round, store
// A row longer than the registers' capacity (IS_WHOLE 0) is taken in pieces that are read twice, the second time mostly
// from cache.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves 2 · hidden · sizeof(ELEMENT) bytes, 4 · with a residual, plus the weight, which stays in
// cache, for 4 flop per element: 1 flop/byte at 16 bit, far left of the ridge. 4096 × 4096 bf16 = 67 MB, 12.7 us at
// 5.3 TB/s.
#include "aiter_like/rows/operands.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || \
    !defined(IS_WHOLE) || !defined(HAS_RESIDUAL) || !defined(IS_GEMMA) || !defined(IS_MODEL_SENSITIVE)
#error "rms_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC and four flags 0|1"
#endif

namespace aiter_like {

struct RmsNormArgs {
  Matrix<ELEMENT> out, residual_out;
  Matrix<const ELEMENT> input, residual_in;
  const WEIGHT* weight;  // [hidden]
  int64_t rows;
  int hidden;
  float epsilon;
};

constexpr int kBytes = HAS_RESIDUAL ? 4 : sizeof(ELEMENT);  // of registers for an element of x
// Weights that fit beside a lane's part of the row are loaded with it, not after the reduction: that saves a short
// launch a wait for memory (64 rows of 8192 bf16 on an H200: 2.3 us, not 2.7).
constexpr bool kKeepsWeights = IS_WHOLE && VECTORS * VEC * (kBytes + sizeof(WEIGHT)) <= 128;

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, kKeepsWeights ? Layout::min_groups(kBytes + sizeof(WEIGHT))
                                                             : Layout::min_groups(kBytes, sizeof(WEIGHT)))
void rms_norm_kernel(RmsNormArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  // Lanes of a row that is not there take part in the reduction with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;

  SumTile<Layout, ELEMENT, HAS_RESIDUAL> x;
  RowTile<Layout, WEIGHT> weight;
  const auto load = [&](int start) {
    x.load(args.input.row(row) + start, hidden - start);
    if constexpr (HAS_RESIDUAL) x.add(args.residual_in.row(row) + start, hidden - start);
  };
  const auto sum = [&](int v, int e) { return x.at(v, e); };

  float squares = 0.f;
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    load(start);
    if constexpr (kKeepsWeights) weight.load(args.weight, hidden);
    squares += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    if constexpr (IS_WHOLE) break;
  }
  const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(args.hidden);
  x.drop_floats();
  const float inverse_rms = reciprocal_square_root(mean + args.epsilon);
  const auto normed = [&](int v, int e) {
    float y = x.at(v, e) * inverse_rms;
    if constexpr (IS_MODEL_SENSITIVE) y = to_float(from_float<ELEMENT>(y));
    return y * (IS_GEMMA ? weight.at(v, e) + 1.f : weight.at(v, e));
  };
  for (int start = 0; start < hidden; start += Layout::kCapacity) {
    if constexpr (!IS_WHOLE) load(start);
    const auto load_weight = [&](int v) {
      if constexpr (!kKeepsWeights) weight.load(args.weight + start, hidden - start, v);
    };
    each_vector<Layout>(load_weight, [&](int v) {
      if constexpr (HAS_RESIDUAL) store_row<Layout>(args.residual_out.row(row) + start, hidden - start, v, sum);
      store_row<Layout>(args.out.row(row) + start, hidden - start, v, normed);
    });
    if constexpr (IS_WHOLE) break;
  }
}

void launch_rms_norm(const RmsNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(rms_norm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(rms_norm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("rms_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void rms_norm(ffi::Tensor out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
              int64_t use_model_sensitive_rmsnorm, ffi::Optional<ffi::Tensor> residual_in,
              ffi::Optional<ffi::Tensor> residual_out, bool gemma_norm) {
  ffi::check_value(gemma_norm == IS_GEMMA && (use_model_sensitive_rmsnorm != 0) == IS_MODEL_SENSITIVE &&
                       residual_in.has_value() == HAS_RESIDUAL && residual_out.has_value() == HAS_RESIDUAL,
                   "rms_norm: this module was built for other flags");
  ffi::RowOperands<VEC> operands("rms_norm", input);
  RmsNormArgs args{};
  args.input = operands.matrix<const ELEMENT>(input, "input");
  args.out = operands.matrix<ELEMENT>(out, "out");
  args.residual_in = operands.matrix<const ELEMENT>(residual_in, "residual_in");
  args.residual_out = operands.matrix<ELEMENT>(residual_out, "residual_out");
  args.weight = operands.vector<const WEIGHT>(weight, "weight");
  args.rows = operands.rows();
  args.hidden = static_cast<int>(operands.size());
  args.epsilon = static_cast<float>(epsilon);
  if (args.rows == 0) return;
  ffi::check_value(!IS_WHOLE || args.hidden <= LANES * VECTORS * VEC,
                   "rms_norm: this module was built for other row lengths");
  launch_rms_norm(args, operands.is_aligned(), ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm, aiter_like::rms_norm);
#endif
