// SPDX-License-Identifier: MIT
// RMSNorm of two matrices in one launch, the queries' and the keys' rows: y = x / sqrt(mean(x²) + epsilon) · weight, in
// fp32, each side with its own row length, weight and epsilon. HIP (gfx9) and CUDA. One build per combination of the
// macros below; LANES · VECTORS · VEC elements cover the longer rows.
//
//   1. the first workgroups take the rows of q, the others those of k: each loads its row into registers
//   2. the sum of squares over the row's lanes
//   3. scale, multiply with the weight, round, store
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave.
// Bound: at decode sizes the launch, which is why there is one; beyond, memory: 2 · sizeof(ELEMENT) bytes per element.
#include "aiter_like/rows/operands.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "fused_qk_rmsnorm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC"
#endif

namespace aiter_like {

struct Side {
  Matrix<ELEMENT> out;
  Matrix<const ELEMENT> input;
  const WEIGHT* weight;
  int64_t rows;
  int hidden;
  float epsilon;
};

struct QkRmsNormArgs {
  Side q, k;
  int64_t q_rows;  // rounded up to whole workgroups
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(sizeof(ELEMENT), sizeof(WEIGHT))) void
fused_qk_rmsnorm_kernel(QkRmsNormArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> scratch;
  const bool is_q = int64_t{workgroup_index().x} * Layout::kRows < args.q_rows;
  const Side side = is_q ? args.q : args.k;
  const int64_t index = Layout::row() - (is_q ? 0 : args.q_rows);
  // Lanes of a row that is not there take part in the reduction with zeros.
  const int64_t row = index < side.rows ? index : side.rows - 1;
  const int hidden = index < side.rows ? side.hidden : 0;

  RowTile<Layout, ELEMENT> x;
  x.load(side.input.row(row), hidden);
  const float squares = lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
  const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(side.hidden);
  x.drop_floats();
  const float inverse_rms = 1.f / square_root(mean + side.epsilon);
  RowTile<Layout, WEIGHT> weight;
  each_vector<Layout>([&](int v) { weight.load(side.weight, hidden, v); }, [&](int v) {
    store_row<Layout>(side.out.row(row), hidden, v,
                      [&](int v, int e) { return x.at(v, e) * inverse_rms * weight.at(v, e); });
  });
}

void launch_fused_qk_rmsnorm(QkRmsNormArgs args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const auto groups = [](int64_t rows) { return static_cast<uint32_t>((rows + Layout::kRows - 1) / Layout::kRows); };
  args.q_rows = int64_t{groups(args.q.rows)} * Layout::kRows;
  const dim3 grid(groups(args.q.rows) + groups(args.k.rows));
  if (is_aligned)
    launch_overlapped(fused_qk_rmsnorm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(fused_qk_rmsnorm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("fused_qk_rmsnorm_kernel");
}

#if AITER_LIKE_HOST_PASS

Side side_of(const ffi::Tensor& out, const ffi::Tensor& input, const ffi::Tensor& weight, double epsilon,
             const char* name, bool& is_aligned) {
  ffi::RowOperands<VEC> operands(name, input);
  Side side{operands.matrix<ELEMENT>(out, "out"), operands.matrix<const ELEMENT>(input, "input"),
            operands.vector<const WEIGHT>(weight, "weight"), operands.rows(), static_cast<int>(operands.size()),
            static_cast<float>(epsilon)};
  ffi::check_value(side.hidden <= LANES * VECTORS * VEC,
                   "fused_qk_rmsnorm: this module was built for other row lengths");
  is_aligned = is_aligned && operands.is_aligned();
  return side;
}

void fused_qk_rmsnorm(ffi::Tensor q_out, ffi::Tensor k_out, ffi::Tensor q, ffi::Tensor q_weight, double q_eps,
                      ffi::Tensor k, ffi::Tensor k_weight, double k_eps) {
  bool is_aligned = true;
  QkRmsNormArgs args{};
  args.q = side_of(q_out, q, q_weight, q_eps, "fused_qk_rmsnorm: q", is_aligned);
  args.k = side_of(k_out, k, k_weight, k_eps, "fused_qk_rmsnorm: k", is_aligned);
  ffi::check_value(args.q.rows + args.k.rows < (int64_t{1} << 24),
                   "fused_qk_rmsnorm: q and k must have at most 2^24 - 1 rows together");
  if (args.q.rows + args.k.rows > 0) launch_fused_qk_rmsnorm(args, is_aligned, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rmsnorm, aiter_like::fused_qk_rmsnorm);
#endif
