// SPDX-License-Identifier: MIT
// out[pair] = act((a_scale · (a[row] · b[expert]ᵀ) · b_scale + bias) · weight) on gfx942 for the pairs of token and
// expert that moe_sorting has sorted, in 16 bits, fp8 or int8, scales of rows and columns or of blocks, composed from
// the tile library. One build per elements, tile, order of the weights, and what happens to a sum; moe_gemm_body.h,
// gemm_pipeline.h, gemm_scaled_pipeline.h and gemm_body.h have its steps.
//
// A tile's rows are those of a block of sorted places, or some of them; how many count is on the device. The launch has
// tiles for all places, and those that count are the first ones, spread evenly over the XCDs: workgroups beyond leave.
// Tiles that run together have the same columns of an expert's weights.
// Bound: MFMA, 2 pairs n k flop at 1307 TFLOP/s in 16 bits and twice that in 8; for few pairs of an expert memory, the
// bytes of b at 5.3 TB/s.
#include "../gemm/gemm_host.h"
#include "moe_gemm_body.h"

#if !defined(ELEMENT) || !defined(SUM) || !defined(OUT_ELEMENT) || !defined(BIAS_ELEMENT) || !defined(BLOCK_M) ||     \
    !defined(BLOCK_N) || !defined(WAVES_M) || !defined(WAVES_N) || !defined(WAVES_K) || !defined(HAS_BIAS) ||         \
    !defined(HAS_SCALES) || !defined(HAS_BLOCK_SCALES) || !defined(SPLITS) || !defined(IS_SHUFFLED) ||                \
    !defined(HAS_ACTIVATION) || !defined(ACTIVATION) || !defined(IS_GATED) || !defined(IS_INTERLEAVED)
#error "moe_gemm.hip: the macros that ops/moe/moe_gemm_ck.py gives are missing"
#endif

namespace aiter_like {
namespace {

struct Config {
  using Element = ELEMENT;
  using Sum = SUM;
  using OutElement = OUT_ELEMENT;
  using BiasElement = BIAS_ELEMENT;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr int kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K;
  static constexpr int kSplits = SPLITS;
  static constexpr bool kHasBias = HAS_BIAS, kHasScales = HAS_SCALES, kHasBlockScales = HAS_BLOCK_SCALES;
  static constexpr bool kIsShuffled = IS_SHUFFLED;
  static constexpr bool kHasActivation = HAS_ACTIVATION, kIsGated = IS_GATED, kIsInterleaved = IS_INTERLEAVED;
  static constexpr Activation kActivation = Activation::ACTIVATION;
};
using Body = moe_gemm::Body<Config>;
using Shape = Body::Shape;
using Args = Body::Args;

}  // namespace

#if HAS_BLOCK_SCALES
#define WAVES __attribute__((amdgpu_waves_per_eu(Body::Loop::kWavesPerSimd)))
#else
#define WAVES
#endif

__global__ __launch_bounds__(Shape::kThreads) WAVES void moe_gemm_kernel(Args args) {
  gemm::multiply_tile<Body>(args);
}

void launch_moe_gemm(const Args& args, Stream stream) {
  gemm::launch_tiles<Shape, Args>(moe_gemm_kernel, nullptr, args, "moe_gemm", stream);
}

#if AITER_LIKE_HOST_PASS

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

namespace {

constexpr const char* kOp = "moe_gemm";
constexpr int64_t kMaxBytes = int64_t{1} << 31;

/// Whether `rows` of so many bytes, or scales, lie within 2^31 bytes.
bool is_near(int64_t rows, int64_t row_bytes) { return row_bytes >= 0 && (rows == 0 || row_bytes < kMaxBytes / rows); }

void take_scales(Args& args, const ffi::Tensor& a_scale, const ffi::Tensor& b_scale) {
  constexpr bool kIsOfBlocks = Config::kHasBlockScales;
  constexpr int64_t kUnit = kIsOfBlocks ? gemm::kScaleBlock : 1;
  const int64_t rows = args.a.sizes[0], k = args.a.sizes[1], n = args.b.sizes[1];
  const int64_t blocks = (k + kUnit - 1) / kUnit, row_blocks = (n + kUnit - 1) / kUnit;
  if (!ffi::has_element<float>(a_scale) || !ffi::has_element<float>(b_scale))
    TVM_FFI_THROW(TypeError) << kOp << ": a_scale and b_scale must have dtype float32";
  const int extra = kIsOfBlocks ? 1 : 0;
  check_value(a_scale.ndim() == 1 + extra && a_scale.size(0) == rows && (!kIsOfBlocks || a_scale.size(1) == blocks),
              "moe_gemm: a_scale must have a scale for each row of a, or for each and 128 of the depth");
  check_value(b_scale.ndim() == 2 + extra && b_scale.size(0) == args.b.sizes[0] && b_scale.size(1) == row_blocks &&
                  (!kIsOfBlocks || b_scale.size(2) == blocks),
              "moe_gemm: b_scale must have a scale for each row of b, or for each 128 rows and 128 of the depth");
  args.a_scale = {static_cast<const float*>(a_scale.data_ptr()),
                  {rows > 1 ? a_scale.stride(0) : 1, kIsOfBlocks ? a_scale.stride(1) : 0}};
  check_value(is_near(rows, args.a_scale.strides[0] * static_cast<int64_t>(sizeof(float))),
              "moe_gemm: the scales of all rows of a must lie within 2^31 bytes");
  args.b_scale = static_cast<const float*>(b_scale.data_ptr());
  for (int d = 0; d < 2 + extra; ++d) args.b_scale_strides[d] = b_scale.stride(d);
}

/// The vector of at least `size` elements, contiguous.
template <class T>
const T* vector_from(const ffi::Tensor& tensor, int64_t size, const char* name) {
  if (tensor.ndim() != 1 || tensor.size(0) < size)
    TVM_FFI_THROW(ValueError) << kOp << ": " << name << " must have at least " << size << " elements";
  return gemm::vector_of<T>(tensor, tensor.size(0), kOp, name);
}

}  // namespace

void moe_gemm_ck(ffi::Tensor out, ffi::Tensor a, ffi::Tensor b, ffi::Tensor experts, OptionalTensor sorted_ids,
                 OptionalTensor valid, OptionalTensor weights, OptionalTensor bias, OptionalTensor a_scale,
                 OptionalTensor b_scale, int64_t slots, int64_t block, ffi::String, double limit, ffi::String,
                 int64_t, bool is_shuffled, bool is_interleaved, bool sums_slots) {
  constexpr int kHalves = Config::kIsGated ? 2 : 1;
  Args args{};
  args.a = gemm::matrix_view<const Config::Element>(a, kOp, "a");
  args.b = gemm::batch_view<const Config::Element>(b, kOp, "b");
  args.out = gemm::matrix_view<Config::OutElement>(out, kOp, "out");
  const int64_t pairs = args.out.sizes[0], columns = args.out.sizes[1], rows = args.a.sizes[0], k = args.a.sizes[1];
  const int64_t n = args.b.sizes[1];
  check_value(sorted_ids.has_value() && valid.has_value() && !sums_slots,
              "moe_gemm: sorted_ids and valid must be given, and rows of out be pairs");
  check_value(slots > 0 && slots < 128 && pairs < kMaxBytes && (rows == pairs || rows * slots == pairs) &&
                  n == columns * kHalves && args.b.sizes[2] == k,
              "moe_gemm: a must be [tokens or pairs, k], b [experts, n, k], out [pairs, columns]");
  check_value(k % Shape::kRun == 0 && columns % 4 == 0,
              "moe_gemm: k must be a multiple of 16 bytes of elements, columns of 4");
  check_value(block > 0 && block % Shape::kBlockM == 0, "moe_gemm: block must be a multiple of the tile's rows");
  check_value(is_shuffled == Config::kIsShuffled && is_interleaved == Config::kIsInterleaved,
              "moe_gemm: this module was built for another order of b");
  if (is_shuffled)
    check_value(n % 16 == 0 && k * static_cast<int64_t>(sizeof(Config::Element)) % 32 == 0 && args.b.strides[1] == k,
                "moe_gemm: shuffled, matrices of b must be contiguous, of rows a multiple of 16 and of 32 bytes");
  constexpr int64_t kSize = sizeof(Config::Element);
  check_value(is_near(rows, args.a.strides[0] * kSize) && is_near(n, args.b.strides[1] * kSize),
              "moe_gemm: the rows of a, and of each matrix of b, must lie within 2^31 bytes");
  check_value(bias.has_value() == Config::kHasBias,
              "moe_gemm: this module was built with or without bias, the call is the other");
  constexpr bool kHasAnyScales = Config::kHasScales || Config::kHasBlockScales;
  check_value(a_scale.has_value() == kHasAnyScales && b_scale.has_value() == kHasAnyScales,
              "moe_gemm: this module was built with or without scales, the call is the other");
  if (bias.has_value())
    args.bias = gemm::vectors_of<Config::BiasElement>(bias.value(), args.b.sizes[0], n, kOp, "bias");
  if constexpr (Config::kHasBlockScales && Config::kIsGated && !Config::kIsInterleaved)
    check_value(columns % (Shape::kWaveN / 2) == 0,
                "moe_gemm: half of a wave's rows of b must lie in one block of scales");
  if (kHasAnyScales) take_scales(args, a_scale.value(), b_scale.value());
  args.places = sorted_ids.value().size(0);  // the last block may have fewer
  if (const int64_t of_blocks = experts.size(0) * block; of_blocks < args.places) args.places = of_blocks;
  args.sorted_ids = vector_from<int32_t>(sorted_ids.value(), args.places, "sorted_ids");
  args.experts = vector_from<int32_t>(experts, 0, "experts");
  args.valid = vector_from<int32_t>(valid.value(), 1, "valid");
  if (weights.has_value()) args.weights = vector_from<float>(weights.value(), args.places, "weights");
  args.slots = static_cast<int32_t>(slots);
  args.block = static_cast<int32_t>(block);
  args.is_of_pairs = rows == pairs;
  args.limit = static_cast<float>(limit);
  if (args.places == 0 || pairs == 0 || columns == 0 || args.b.sizes[0] == 0) return;
  args.order = gemm::tiles_of<Shape>(args.places, n, kOp);
  launch_moe_gemm(args, ffi::stream_of(a));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_gemm, aiter_like::moe_gemm_ck);
#endif
