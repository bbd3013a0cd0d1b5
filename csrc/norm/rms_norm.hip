// SPDX-License-Identifier: MIT
// RMSNorm: out = x / sqrt(mean(x²) + epsilon) · weight, row by row, in fp32; x = input, or input + residual_in, whose
// rounded sum becomes residual_out. HIP (gfx9) and CUDA. One build per combination of the macros below.
//
//   1. each lane loads its 16-byte vectors of the row (and of the residual's) into registers
//   2. the sum of squares over the row's lanes: within a wave, or through LDS
//   3. scale, multiply with the weight, round, store
// A row longer than the registers' capacity (IS_WHOLE 0) is taken in pieces that are read twice, the second time mostly
// from cache.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 4 bytes per wave.
// Bound: memory. A row moves 2 · hidden · sizeof(ELEMENT) bytes, 4 · with a residual, plus the weight, which stays in
// cache, for 4 flop per element: 1 flop/byte at 16 bit, far left of the ridge. 4096 × 4096 bf16 = 67 MB, 12.7 us at
// 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/rows.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || \
    !defined(IS_WHOLE) || !defined(HAS_RESIDUAL) || !defined(IS_GEMMA) || !defined(IS_MODEL_SENSITIVE)
#error "rms_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC and four flags 0|1"
#endif

namespace aiter_like {

struct RmsNormArgs {
  void* out;                // [rows, hidden]
  void* residual_out;       // [rows, hidden], as all but weight
  const void* input;
  const void* residual_in;
  const void* weight;       // [hidden]
  int64_t out_stride, residual_out_stride, input_stride, residual_in_stride;  // elements from row to row
  int64_t rows;
  int hidden;
  float epsilon;
};

// A row's elements, and those of its residual.
template <class Layout>
struct Row {
  RowTile<Layout, ELEMENT> x, residual;

  // `columns` elements of row `index`, from column `start` on.
  __device__ void load(const RmsNormArgs& args, int64_t index, int start, int columns) {
    x.load(static_cast<const ELEMENT*>(args.input) + index * args.input_stride + start, columns);
    if constexpr (HAS_RESIDUAL)
      residual.load(static_cast<const ELEMENT*>(args.residual_in) + index * args.residual_in_stride + start, columns);
  }
  __device__ float at(int v, int e) const { return HAS_RESIDUAL ? x.at(v, e) + residual.at(v, e) : x.at(v, e); }
  __device__ float squares() const {
    float total = 0.f;
    each_element<Layout>([&](int v, int e) { total += at(v, e) * at(v, e); });
    return total;
  }
  __device__ void drop_floats() {
    x.drop_floats();
    residual.drop_floats();
  }
  __device__ void store(const RmsNormArgs& args, const RowTile<Layout, WEIGHT>& weight, float inverse_rms,
                        int64_t index, int start, int columns) const {
    if constexpr (HAS_RESIDUAL)
      store_row<Layout>(static_cast<ELEMENT*>(args.residual_out) + index * args.residual_out_stride + start, columns,
                        [&](int v, int e) { return at(v, e); });
    store_row<Layout>(static_cast<ELEMENT*>(args.out) + index * args.out_stride + start, columns, [&](int v, int e) {
      float y = at(v, e) * inverse_rms;
      if constexpr (IS_MODEL_SENSITIVE) y = to_float(from_float<ELEMENT>(y));
      return y * (IS_GEMMA ? weight.at(v, e) + 1.f : weight.at(v, e));
    });
  }
};

template <class Layout>
__device__ float inverse_rms(const RmsNormArgs& args, float squares, RowScratch<Layout>& scratch) {
  const float mean = row_sum<Layout>(squares, scratch) / static_cast<float>(args.hidden);
  return reciprocal_square_root(mean + args.epsilon);
}

// A row per group of lanes. kVec elements per access: VEC, or 1 element when an address is not aligned to VEC of them.
template <int kVec, class Layout = RowLayout<LANES, VECTORS * VEC / kVec, kVec>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(1 + HAS_RESIDUAL)) void rms_norm_kernel(
    RmsNormArgs args) {
  __shared__ RowScratch<Layout> scratch;
  // Lanes of a row that is not there take part in the reduction with zeros.
  const int64_t index = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int hidden = Layout::row() < args.rows ? args.hidden : 0;

  Row<Layout> row;
  float squares = 0.f;
  for (int start = 0; start == 0 || start < args.hidden; start += Layout::kCapacity) {
    row.load(args, index, start, hidden - start);
    squares += row.squares();
    if constexpr (IS_WHOLE) break;
  }
  const float scale = inverse_rms<Layout>(args, squares, scratch);
  row.drop_floats();
  RowTile<Layout, WEIGHT> weight;
  for (int start = 0; start < hidden; start += Layout::kCapacity) {
    if constexpr (!IS_WHOLE) row.load(args, index, start, hidden - start);
    weight.load(static_cast<const WEIGHT*>(args.weight) + start, hidden - start);
    row.store(args, weight, scale, index, start, hidden - start);
    if constexpr (IS_WHOLE) break;
  }
}

void launch_rms_norm(const RmsNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    rms_norm_kernel<VEC><<<grid, Layout::kThreads, 0, stream>>>(args);
  else
    rms_norm_kernel<1><<<grid, Layout::kThreads, 0, stream>>>(args);
  check_launch("rms_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void rms_norm(ffi::Tensor out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
              int64_t use_model_sensitive_rmsnorm, ffi::Optional<ffi::Tensor> residual_in,
              ffi::Optional<ffi::Tensor> residual_out, bool gemma_norm) {
  const ffi::Rows x = ffi::rows<ELEMENT>(input, "rms_norm: input"), y = ffi::rows<ELEMENT>(out, "rms_norm: out");
  const ffi::Rows w = ffi::rows<WEIGHT>(weight, "rms_norm: weight");
  ffi::check_value(w.count <= 1 && w.size == x.size, "rms_norm: weight must have shape (hidden,)");
  ffi::check_value(y.count == x.count && y.size == x.size, "rms_norm: out must have the shape of input");
  ffi::check_value(gemma_norm == IS_GEMMA && (use_model_sensitive_rmsnorm != 0) == IS_MODEL_SENSITIVE &&
                       residual_in.has_value() == HAS_RESIDUAL && residual_out.has_value() == HAS_RESIDUAL,
                   "rms_norm: this module was built for other flags");
  if (x.count == 0) return;
  ffi::check_value(x.count < (int64_t{1} << 24) && (!IS_WHOLE || x.size <= LANES * VECTORS * VEC) &&
                       x.size < (int64_t{1} << 31) && x.size % VEC == 0,
                   "rms_norm: this module was built for other row lengths, or there are more than 2^24 - 1 rows");

  RmsNormArgs args{};
  constexpr int64_t kBytes = VEC * sizeof(ELEMENT), kSize = sizeof(ELEMENT);
  bool is_aligned = x.is_aligned(kBytes, kSize) && y.is_aligned(kBytes, kSize) &&
                    w.is_aligned(VEC * sizeof(WEIGHT) < 16 ? VEC * sizeof(WEIGHT) : 16, sizeof(WEIGHT));
  if constexpr (HAS_RESIDUAL) {
    const ffi::Rows from = ffi::rows<ELEMENT>(residual_in.value(), "rms_norm: residual_in");
    const ffi::Rows to = ffi::rows<ELEMENT>(residual_out.value(), "rms_norm: residual_out");
    ffi::check_value(from.count == x.count && from.size == x.size && to.count == x.count && to.size == x.size,
                     "rms_norm: residual_in and residual_out must have the shape of input");
    is_aligned = is_aligned && from.is_aligned(kBytes, kSize) && to.is_aligned(kBytes, kSize);
    args.residual_in = from.data;
    args.residual_in_stride = from.stride;
    args.residual_out = to.data;
    args.residual_out_stride = to.stride;
  }
  args.out = y.data;
  args.input = x.data;
  args.weight = w.data;
  args.out_stride = y.stride;
  args.input_stride = x.stride;
  args.rows = x.count;
  args.hidden = static_cast<int>(x.size);
  args.epsilon = static_cast<float>(epsilon);
  launch_rms_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm, aiter_like::rms_norm);
#endif
