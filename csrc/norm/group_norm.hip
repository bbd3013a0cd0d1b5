// SPDX-License-Identifier: MIT
// GroupNorm: y = (x - mean) / sqrt(var + epsilon) · weight[c] + bias[c], mean and variance over a group of channels and
// all positions of a sample, in fp32; out = y or silu(y). HIP (gfx9) and CUDA. One build per combination of the macros
// below.
//
//   1. a group is a row: its positions, channel after channel as NCHW has them in memory; or (IS_CHANNELS_LAST) its
//      channels, position after position
//   2. load the row into registers; mean and variance over the row's lanes, at once where that is exact (row_pairs.h)
//   3. scale, multiply with the weight, add the bias, silu, round, store
// A row longer than the registers' capacity (IS_WHOLE 0) is read again for step 3, mostly from cache.
//
// Tile: LANES lanes take a row, VECTORS · VEC elements each. LDS: 12 bytes per wave.
// Bound: memory, 2 · sizeof(ELEMENT) bytes per element, where there are groups for all CUs: a workgroup takes a group.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"
#include "aiter_like/row_pairs.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(HAS_WEIGHT) || !defined(HAS_BIAS) || \
    !defined(IS_CHANNELS_LAST) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || !defined(IS_WHOLE)
#error "group_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float, sizes and flags"
#endif

namespace aiter_like {

struct GroupNormArgs {
  ELEMENT* out;
  const ELEMENT* input;
  const WEIGHT* weight;  // [channels], as bias
  const WEIGHT* bias;
  int64_t rows;
  int size;      // of a row: channels of a group · positions
  int groups;    // of a sample
  int channels;  // of a group
  Divider run;   // by the elements of one channel in a row; IS_CHANNELS_LAST: of one position
  float epsilon;
  bool is_silu;
};

template <bool kIsAligned, class Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, Layout::min_groups(4)) void group_norm_kernel(GroupNormArgs args) {
  await_stream();
  __shared__ PairScratch<Layout> sums_scratch;
  __shared__ RowScratch<Layout> deviations_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const int64_t row = Layout::row() < args.rows ? Layout::row() : args.rows - 1;
  const int size = Layout::row() < args.rows ? args.size : 0;
  const int group = static_cast<int>(row % args.groups);
  const int64_t first = IS_CHANNELS_LAST ? row / args.groups * args.groups * args.size + group * args.channels
                                         : row * args.size;

  const auto offset = [&](int column) {  // of an element of the row, in memory
    if constexpr (!IS_CHANNELS_LAST) return int64_t{column};
    const int64_t position = args.run.divide(column);
    return position * args.groups * args.channels + (column - position * args.channels);
  };
  const auto channel = [&](int column) {
    const int quotient = static_cast<int>(args.run.divide(column));
    return group * args.channels + (IS_CHANNELS_LAST ? column - quotient * args.channels : quotient);
  };
  RowTile<Layout, ELEMENT> x;
  const auto load = [&](int start) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const int column = start + Layout::column(v);
      if constexpr (kIsAligned) {
        x.data[v].load_if(column < size, args.input + first + offset(column), args.input + first);
      } else {
        x.data[v] = {};
#pragma unroll
        for (int e = 0; e < VEC; ++e)
          if (column + e < size) x.data[v].insert(e, args.input[first + offset(column + e)]);
      }
    }
  };

  Pair sums{};
  for (int start = 0; start == 0 || start < args.size; start += Layout::kCapacity) {
    load(start);
    sums.first += lane_sum<Layout>([&](int v, int e) { return x.at(v, e); });  // zeros beyond the row
    sums.second += lane_sum<Layout>([&](int v, int e) { return x.at(v, e) * x.at(v, e); });
    if constexpr (IS_WHOLE) break;
  }
  const auto deviations = [&](float mean) {
    float squares = 0.f;
    for (int start = 0; start == 0 || start < args.size; start += Layout::kCapacity) {
      if constexpr (!IS_WHOLE) load(start);
      squares += lane_sum<Layout>([&](int v, int e) {
        const float deviation = x.at(v, e) - mean;
        const bool is_inside = Layout::column(v) + (kIsAligned ? 0 : e) < size - start;
        return is_inside ? deviation * deviation : 0.f;
      });
      if constexpr (IS_WHOLE) break;
    }
    return squares;
  };
  const Moments moments = row_moments<Layout>(sums, static_cast<float>(args.size), deviations, sums_scratch,
                                              deviations_scratch);
  x.drop_floats();
  const float inverse_deviation = reciprocal_square_root(moments.variance + args.epsilon);

  // Aligned, an access stays within a channel's positions or a position's channels.
  const auto apply = [&](const WEIGHT* factors, int column, float(&y)[VEC], auto operation) {
    if constexpr (kIsAligned && IS_CHANNELS_LAST) {
      Packed<WEIGHT, VEC> packed;
      packed.load(factors + channel(column));
#pragma unroll
      for (int e = 0; e < VEC; ++e) y[e] = operation(y[e], packed.at(e));
    } else if constexpr (kIsAligned) {
      const float factor = to_float(factors[channel(column)]);
#pragma unroll
      for (int e = 0; e < VEC; ++e) y[e] = operation(y[e], factor);
    } else {
#pragma unroll
      for (int e = 0; e < VEC; ++e)
        if (column + e < size) y[e] = operation(y[e], to_float(factors[channel(column + e)]));
    }
  };
  for (int start = 0; start < size; start += Layout::kCapacity) {
    if constexpr (!IS_WHOLE) load(start);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const int column = start + Layout::column(v);
      if (column >= size) continue;
      float y[VEC];
#pragma unroll
      for (int e = 0; e < VEC; ++e) y[e] = (x.at(v, e) - moments.mean) * inverse_deviation;
      if constexpr (HAS_WEIGHT) apply(args.weight, column, y, [](float a, float b) { return a * b; });
      if constexpr (HAS_BIAS) apply(args.bias, column, y, [](float a, float b) { return a + b; });
      if (args.is_silu)
#pragma unroll
        for (int e = 0; e < VEC; ++e) y[e] *= sigmoid(y[e]);
      if constexpr (kIsAligned) {
        store_vec<VEC>(args.out + first + offset(column), vec_from_float<ELEMENT>(y));
      } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e)
          if (column + e < size) args.out[first + offset(column + e)] = from_float<ELEMENT>(y[e]);
      }
    }
    if constexpr (IS_WHOLE) break;
  }
}

void launch_group_norm(const GroupNormArgs& args, bool is_aligned, Stream stream) {
  using Layout = RowLayout<LANES, VECTORS, VEC>;
  const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
  if (is_aligned)
    launch_overlapped(group_norm_kernel<true>, grid, Layout::kThreads, stream, args);
  else
    launch_overlapped(group_norm_kernel<false>, grid, Layout::kThreads, stream, args);
  check_launch("group_norm_kernel");
}

#if AITER_LIKE_HOST_PASS

void group_norm(ffi::Tensor out, ffi::Tensor input, ffi::Optional<ffi::Tensor> weight,
                ffi::Optional<ffi::Tensor> bias, int64_t num_groups, double epsilon, bool is_silu) {
  ffi::check_type(ffi::has_element<ELEMENT>(input) && ffi::has_element<ELEMENT>(out),
                  "group_norm: input and out must have the dtype that this module was built for");
  ffi::check_value(weight.has_value() == HAS_WEIGHT && bias.has_value() == HAS_BIAS,
                   "group_norm: this module was built for other flags");
  ffi::check_value(input.ndim() >= 2 && input.numel() == out.numel(), "group_norm: out must have the shape of input");
  if (input.numel() == 0) return;
  const int64_t samples = input.size(0), channels = input.size(1);
  ffi::check_value(num_groups > 0 && channels % num_groups == 0, "group_norm: num_groups must divide the channels");
  GroupNormArgs args{};
  args.rows = samples * num_groups;
  const int64_t size = input.numel() / args.rows;
  ffi::check_value(args.rows < (int64_t{1} << 24) && size < (int64_t{1} << 30),
                   "group_norm: at most 2^24 - 1 groups of 2^30 - 1 elements");
  args.size = static_cast<int>(size);
  args.groups = static_cast<int>(num_groups);
  args.channels = static_cast<int>(channels / num_groups);
  const int64_t run = IS_CHANNELS_LAST ? args.channels : size / args.channels;
  args.run = Divider(static_cast<uint32_t>(run));
  args.out = static_cast<ELEMENT*>(out.data_ptr());
  args.input = static_cast<const ELEMENT*>(input.data_ptr());
  bool is_aligned = run % VEC == 0;
  for (const void* data : {input.data_ptr(), out.data_ptr()})
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const auto factors = [&](const ffi::Optional<ffi::Tensor>& tensor) -> const WEIGHT* {
    if (!tensor.has_value()) return nullptr;
    ffi::check_type(ffi::has_element<WEIGHT>(tensor.value()), "group_norm: weight and bias must share their dtype");
    ffi::check_value(tensor.value().numel() == channels && tensor.value().IsContiguous(),
                     "group_norm: weight and bias must have a contiguous element per channel");
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(tensor.value().data_ptr()) % 16 == 0;
    return static_cast<const WEIGHT*>(tensor.value().data_ptr());
  };
  args.weight = factors(weight);
  args.bias = factors(bias);
  args.epsilon = static_cast<float>(epsilon);
  args.is_silu = is_silu;
  ffi::check_value(!IS_WHOLE || args.size <= LANES * VECTORS * VEC,
                   "group_norm: this module was built for other row lengths");
  launch_group_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(group_norm, aiter_like::group_norm);
#endif
