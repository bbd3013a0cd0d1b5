// SPDX-License-Identifier: MIT
// GroupNorm: y = (x - mean) / sqrt(var + epsilon) · weight[c] + bias[c], mean and variance over a group of channels and
// all positions of a sample, in fp32; out = y or silu(y). HIP (gfx9) and CUDA. One build per combination of the macros
// below. A group is a row: its positions, channel after channel as NCHW has them in memory; or (IS_CHANNELS_LAST) its
// channels, position after position.
//
//   1. load the row into registers; mean and variance over the row's lanes, at once where that is exact (rows/pairs.h)
//   2. scale, multiply with the weight, add the bias, silu, round, store
//
// A row longer than one workgroup should take (IS_SLICED) is cut into slices of what a workgroup's registers hold, in
// two launches: step 1 for each slice, whose moments go to memory; then each slice again, the moments of its row from
// those of all slices, and step 2. The second launch begins where the first one ended, with what is still in a cache.
// Long rows of channels last are no rows in memory: a slice is then some positions of a sample with all their channels,
// a lane keeps to its channels, and a launch between the two makes the groups' moments of those of channels.
//
// Tile: LANES lanes take a row or slice, VECTORS · VEC elements each; of positions, VECTORS accesses at a time. LDS: 12
// bytes per wave; for slices of positions 8 bytes per element of an access of all lanes.
// Bound: memory, 2 · sizeof(ELEMENT) bytes per element; of slices that do not stay in a cache, 3 · sizeof(ELEMENT).
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"
#include "aiter_like/rows/pairs.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(HAS_WEIGHT) || !defined(HAS_BIAS) || \
    !defined(IS_CHANNELS_LAST) || !defined(IS_SLICED) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "group_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float, sizes and flags"
#endif

namespace aiter_like {

struct GroupNormArgs {
  ELEMENT* out;
  const ELEMENT* input;
  const WEIGHT* weight;  // [channels], as bias
  const WEIGHT* bias;
  float* parts;  // [rows, slices, 2]: mean of a slice and sum of the squared deviations from it; of channels last
                 // [samples, slices + 1, channels, 2], behind the slices mean and variance of groups instead
  int64_t rows;
  int size;        // of a row: channels of a group · positions
  int channels;    // of a group
  Divider groups;  // by those of a sample
  Divider slices;  // by those of a row
  Divider run;     // by the elements of one channel in a row; IS_CHANNELS_LAST: of one position
  float epsilon;
  bool is_silu;
};

/// `size` elements of a row from `start` on, in the registers of the lanes; none of a row that is not there.
template <class Layout>
struct Slice {
  // Aligned, an access stays within a channel's positions or a position's channels.
  static constexpr int kFactors = Layout::kIsAligned && !IS_CHANNELS_LAST ? 1 : VEC;  // of an access

  const GroupNormArgs& args;
  int64_t first;  // of the row's elements, in the tensor
  int channel;    // the row's first
  int start, size;
  RowTile<Layout, ELEMENT> x;

  __device__ Slice(const GroupNormArgs& args, uint32_t row, int start, int size)
      : args(args), start(start), size(size) {
    const uint32_t sample = args.groups.divide(row), group = row - sample * args.groups.divisor;
    channel = static_cast<int>(group) * args.channels;
    first = IS_CHANNELS_LAST ? int64_t{sample} * args.groups.divisor * args.size + channel : int64_t{row} * args.size;
  }

  /// Of an element of the slice, from the row's first.
  __device__ int64_t offset(int column) const {
    if constexpr (!IS_CHANNELS_LAST) return start + column;
    const int64_t position = args.run.divide(start + column);
    return position * args.groups.divisor * args.channels + (start + column - position * args.channels);
  }
  __device__ int channel_of(int column) const {
    const int quotient = static_cast<int>(args.run.divide(start + column));
    return channel + (IS_CHANNELS_LAST ? start + column - quotient * args.channels : quotient);
  }

  __device__ void load() {
    if constexpr (!IS_CHANNELS_LAST) {
      x.load(args.input + first + start, size);
    } else {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const int column = Layout::column(v);
        if constexpr (Layout::kIsAligned) {
          x.data[v].load_if(column < size, args.input + first + offset(column), args.input + first);
        } else {
          x.data[v] = {};
#pragma unroll
          for (int e = 0; e < VEC; ++e)
            if (column + e < size) x.data[v].insert(e, args.input[first + offset(column + e)]);
        }
      }
    }
  }

  /// Over the slice's lanes, of `count` elements.
  __device__ Moments moments(int count, PairScratch<Layout>& sums_scratch, RowScratch<Layout>& deviations_scratch) {
    Pair sums{};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      Pair of_vector{};
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        const float value = x.at(v, e);  // zero beyond the slice
        of_vector = {of_vector.first + value, of_vector.second + value * value};
      }
      sums = {sums.first + of_vector.first, sums.second + of_vector.second};
    }
    x.drop_floats();
    const auto deviations = [&](float mean) {
      return lane_sum<Layout>([&](int v, int e) {
        const float deviation = x.at(v, e) - mean;
        return Layout::column(v) + (Layout::kIsAligned ? 0 : e) < size ? deviation * deviation : 0.f;
      });
    };
    return row_moments<Layout>(sums, static_cast<float>(count), deviations, sums_scratch, deviations_scratch);
  }

  using Factors = Packed<WEIGHT, kFactors>;
  /// Of an aligned access; of an unaligned one `factor` reads each itself.
  __device__ void load_factors(Factors& factors, const WEIGHT* of_channels, int column) const {
    if constexpr (!Layout::kIsAligned) return;
    factors.load_if(column < size, of_channels + channel_of(column), of_channels);
  }
  __device__ float factor(const Factors& factors, const WEIGHT* of_channels, int column, int e) const {
    if constexpr (Layout::kIsAligned) return factors.at(e % kFactors);
    return column + e < size ? to_float(of_channels[channel_of(column + e)]) : 0.f;
  }

  /// Writes the result, with the moments of the row.
  __device__ void store(Moments moments) {
    x.drop_floats();
    if constexpr (IS_CHANNELS_LAST || !Layout::kIsAligned) {  // offsets are found again instead of kept since load()
      start = static_cast<int>(opaque(static_cast<uint32_t>(start)));
      size = static_cast<int>(opaque(static_cast<uint32_t>(size)));
    }
    const float inverse_deviation = reciprocal_square_root(moments.variance + args.epsilon);
    Factors weight[VECTORS], bias[VECTORS];
    const auto load = [&](int v) {
      if constexpr (HAS_WEIGHT) load_factors(weight[v], args.weight, Layout::column(v));
      if constexpr (HAS_BIAS) load_factors(bias[v], args.bias, Layout::column(v));
    };
    each_vector<Layout>(load, [&](int v) {
      const int column = Layout::column(v);
      if (column >= size) return;
      float y[VEC];
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        float scale = inverse_deviation;
        if constexpr (HAS_WEIGHT) scale *= factor(weight[v], args.weight, column, e);
        y[e] = (x.at(v, e) - moments.mean) * scale;
        if constexpr (HAS_BIAS) y[e] += factor(bias[v], args.bias, column, e);
      }
      if (args.is_silu)
#pragma unroll
        for (int e = 0; e < VEC; ++e) y[e] *= sigmoid(y[e]);
      if constexpr (!IS_CHANNELS_LAST) {
        store_vector<Layout>(args.out + first + start, size, v, y);
      } else if constexpr (Layout::kIsAligned) {
        store_vec<VEC>(args.out + first + offset(column), vec_from_float<ELEMENT>(y));
      } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e)
          if (column + e < size) args.out[first + offset(column + e)] = from_float<ELEMENT>(y[e]);
      }
    });
  }
};

template <bool kIsAligned>
using GroupLayout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;

/// Workgroups that a CUDA multiprocessor shall hold, by the registers that nvcc 13 needs not to spill: those of the
/// elements, of two accesses' factors where each element has its own, of the places of elements accessed one by one.
template <class Layout>
constexpr int kMinGroups = [] {
  constexpr int kElements = VECTORS * VEC * int{sizeof(ELEMENT)} / 4 + (VECTORS > 8 ? VECTORS : 0);
  constexpr int kOthers = !Layout::kIsAligned ? 56 : IS_CHANNELS_LAST ? 6 * int{sizeof(WEIGHT)} : 0;
  constexpr int kThreads = 65536 / (24 + kElements + kOthers);
  return kThreads < Layout::kThreads ? 1 : kThreads / Layout::kThreads;
}();

template <bool kIsAligned, class Layout = GroupLayout<kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, kMinGroups<Layout>) void group_norm_kernel(GroupNormArgs args) {
  await_stream();
  __shared__ PairScratch<Layout> sums_scratch;
  __shared__ RowScratch<Layout> deviations_scratch;
  // Lanes of a row that is not there take part in the reductions with zeros.
  const bool is_there = Layout::row() < args.rows;
  Slice<Layout> row(args, static_cast<uint32_t>(is_there ? Layout::row() : args.rows - 1), 0, is_there ? args.size : 0);
  row.load();
  const Moments moments = row.moments(args.size, sums_scratch, deviations_scratch);
  row.store(moments);
}

struct SliceIndex {
  uint32_t row, slice;

  __device__ SliceIndex(const GroupNormArgs& args, uint32_t index)
      : row(args.slices.divide(index)), slice(index - row * args.slices.divisor) {}
  __device__ int64_t part(const GroupNormArgs& args) const { return int64_t{row} * args.slices.divisor + slice; }
};

template <class Layout>
__device__ inline Slice<Layout> slice_of(const GroupNormArgs& args, SliceIndex index) {
  static_assert(Layout::kRows == 1, "a workgroup takes one slice");
  const int start = static_cast<int>(index.slice) * Layout::kCapacity, rest = args.size - start;
  return Slice<Layout>(args, index.row, start, rest < Layout::kCapacity ? rest : Layout::kCapacity);
}

template <bool kIsAligned, class Layout = GroupLayout<kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, kMinGroups<Layout>) void group_norm_parts_kernel(GroupNormArgs args) {
  await_stream();
  __shared__ PairScratch<Layout> sums_scratch;
  __shared__ RowScratch<Layout> deviations_scratch;
  const SliceIndex index(args, workgroup_index().x);
  Slice<Layout> slice = slice_of<Layout>(args, index);
  slice.load();
  const Moments moments = slice.moments(slice.size, sums_scratch, deviations_scratch);
  if (thread_index() != 0) return;
  float* part = args.parts + 2 * index.part(args);
  part[0] = moments.mean;
  part[1] = moments.variance * static_cast<float>(slice.size);
}

/// Mean and variance of a row of `size` elements from its parts [slices, 2]: the squared deviations from the row's mean
/// are those from each slice's, and its elements times the square of what is between the means (Chan et al. 1979).
template <class Layout>
__device__ inline Moments combined(const float* parts, int slices, int size, RowScratch<Layout>& means_scratch,
                                   RowScratch<Layout>& deviations_scratch) {
  const auto count = [&](int slice) {
    return static_cast<float>(slice < slices - 1 ? Layout::kCapacity : size - slice * Layout::kCapacity);
  };
  float sum = 0.f, squares = 0.f;
#pragma unroll 1
  for (int slice = thread_index(); slice < slices; slice += Layout::kThreads) sum += count(slice) * parts[2 * slice];
  const float mean = row_sum<Layout>(sum, means_scratch) / static_cast<float>(size);
#pragma unroll 1
  for (int slice = thread_index(); slice < slices; slice += Layout::kThreads) {
    const float deviation = parts[2 * slice] - mean;
    squares += parts[2 * slice + 1] + count(slice) * deviation * deviation;
  }
  return {mean, row_sum<Layout>(squares, deviations_scratch) / static_cast<float>(size)};
}

template <bool kIsAligned, class Layout = GroupLayout<kIsAligned>>
__global__ __launch_bounds__(Layout::kThreads, kMinGroups<Layout>) void group_norm_slices_kernel(GroupNormArgs args) {
  await_stream();
  __shared__ RowScratch<Layout> means_scratch, deviations_scratch;
  const uint32_t slices = args.slices.divisor;
  const SliceIndex index(args, static_cast<uint32_t>(args.rows) * slices - 1 - workgroup_index().x);
  Slice<Layout> slice = slice_of<Layout>(args, index);
  slice.load();
  const float* parts = args.parts + 2 * (index.part(args) - index.slice);
  slice.store(combined<Layout>(parts, static_cast<int>(slices), args.size, means_scratch, deviations_scratch));
}

/// Some positions of a sample, with the channels that a workgroup takes, kVec neighbours per lane: LANES / `width`
/// positions at once, VECTORS accesses of a lane in flight.
template <int kVec>
struct Positions {
  const GroupNormArgs& args;
  int sample, slice, width, row, rows;  // lanes of a position; the lane's place among the positions taken at once
  int channel, channels;                // the lane's first; of the tensor
  int first, count;                     // positions of the slice
  bool is_there;

  __device__ Positions(const GroupNormArgs& args, uint32_t index) : args(args) {
    const uint32_t slices = args.slices.divisor;
    sample = static_cast<int>(args.slices.divide(index));
    slice = static_cast<int>(index - sample * slices);
    channels = static_cast<int>(args.groups.divisor) * args.channels;
    const int vectors = channels / kVec, start = static_cast<int>(workgroup_index().y) * LANES;
    width = vectors - start < LANES ? vectors - start : LANES;
    rows = LANES / width;
    row = thread_index() / width;
    channel = (start + thread_index() - row * width) * kVec;
    is_there = row < rows;
    const int positions = args.size / args.channels, length = (positions + slices - 1) / slices;
    first = slice * length < positions ? slice * length : positions;
    count = positions - first < length ? positions - first : length;
  }
  /// Positions of the slice that row `row` of lanes takes.
  __device__ int count_of(int row) const { return row < count ? (count - row + rows - 1) / rows : 0; }
  __device__ int64_t place(int position) const {
    return (int64_t{sample} * (args.size / args.channels) + first + position) * channels + channel;
  }

  /// f(position, access) for each position of the lane, VECTORS of which are loaded before the first is used.
  template <class F>
  __device__ void each(F f) const {
    if (!is_there) return;
    for (int position = row; position < count; position += VECTORS * rows) {
      Packed<ELEMENT, kVec> x[VECTORS];
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const bool is_inside = position + v * rows < count;
        x[v].load_if(is_inside, args.input + place(position + (is_inside ? v * rows : 0)), args.input + place(row));
      }
#pragma unroll
      for (int v = 0; v < VECTORS; ++v)
        if (position + v * rows < count) f(position + v * rows, x[v]);
    }
  }
  __device__ float* part(int channel) const {
    return args.parts + 2 * ((int64_t{sample} * (args.slices.divisor + 1) + slice) * channels + channel);
  }
};

/// Mean and squared deviations of each channel in a slice. A lane's are of differences from its first value, which cost
/// no more digits than that is standard deviations away from their mean.
template <int kVec>
__global__ __launch_bounds__(LANES) void group_norm_channels_kernel(GroupNormArgs args) {
  await_stream();
  __shared__ float means[LANES * kVec], deviations[LANES * kVec];
  const Positions<kVec> positions(args, workgroup_index().x);
  float shift[kVec]{}, sum[kVec]{}, squares[kVec]{};
  if (positions.is_there && positions.row < positions.count) {
    Packed<ELEMENT, kVec> x;
    x.load(args.input + positions.place(positions.row));
#pragma unroll
    for (int e = 0; e < kVec; ++e) shift[e] = x.at(e);
  }
  positions.each([&](int, const Packed<ELEMENT, kVec>& x) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const float difference = x.at(e) - shift[e];
      sum[e] += difference;
      squares[e] += difference * difference;
    }
  });
  const float count = static_cast<float>(positions.count_of(positions.row));
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    const float mean = count > 0.f ? sum[e] / count : 0.f;
    means[thread_index() * kVec + e] = shift[e] + mean;
    deviations[thread_index() * kVec + e] = squares[e] - sum[e] * mean;
  }
  workgroup_barrier();
  const int taken = positions.width * kVec, total = positions.count;
  for (int c = thread_index(); c < taken; c += LANES) {  // as `combined` does, over the rows of lanes
    float mean = 0.f, deviation = 0.f;
    for (int row = 0; row < positions.rows; ++row)
      mean += static_cast<float>(positions.count_of(row)) * means[row * taken + c];
    mean = total > 0 ? mean / static_cast<float>(total) : 0.f;
    for (int row = 0; row < positions.rows; ++row) {
      const float between = means[row * taken + c] - mean;
      deviation += deviations[row * taken + c] + static_cast<float>(positions.count_of(row)) * between * between;
    }
    float* part = positions.part(static_cast<int>(workgroup_index().y) * LANES * kVec + c);
    part[0] = mean;
    part[1] = deviation;
  }
}

/// Mean and variance of a group per workgroup, from those of its channels in all slices.
__global__ __launch_bounds__(LANES) void group_norm_moments_kernel(GroupNormArgs args) {
  await_stream();
  using Layout = RowLayout<LANES, 1, 1>;
  __shared__ RowScratch<Layout> means_scratch, deviations_scratch;
  const uint32_t groups = args.groups.divisor, row = workgroup_index().x, sample = args.groups.divide(row);
  const uint32_t group = row - sample * groups;
  const int slices = static_cast<int>(args.slices.divisor), channels = static_cast<int>(groups) * args.channels;
  const int positions = args.size / args.channels, length = (positions + slices - 1) / slices;
  float* parts = args.parts + 2 * int64_t{sample} * (slices + 1) * channels;
  const float* of_group = parts + 2 * group * args.channels;
  const auto each = [&](auto f) {
    for (int i = thread_index(); i < slices * args.channels; i += LANES) {
      const int slice = static_cast<int>(args.run.divide(i)), rest = positions - slice * length;
      const float* part = of_group + 2 * (int64_t{slice} * channels + (i - slice * args.channels));
      f(static_cast<float>(rest < 0 ? 0 : rest < length ? rest : length), part[0], part[1]);
    }
  };
  float sum = 0.f, squares = 0.f;
  each([&](float count, float mean, float) { sum += count * mean; });
  const float mean = row_sum<Layout>(sum, means_scratch) / static_cast<float>(args.size);
  each([&](float count, float of_slice, float deviations) {
    squares += deviations + count * (of_slice - mean) * (of_slice - mean);
  });
  const float variance = row_sum<Layout>(squares, deviations_scratch) / static_cast<float>(args.size);
  if (thread_index() != 0) return;
  float* moments = parts + 2 * (int64_t{slices} * channels + group);
  moments[0] = mean;
  moments[1] = variance;
}

template <int kVec>
__global__ __launch_bounds__(LANES) void group_norm_positions_kernel(GroupNormArgs args) {
  await_stream();
  const uint32_t all = static_cast<uint32_t>(args.rows) / args.groups.divisor * args.slices.divisor;
  const Positions<kVec> positions(args, all - 1 - workgroup_index().x);
  const int64_t slices = args.slices.divisor;
  const float* moments = args.parts + 2 * (positions.sample * (slices + 1) + slices) * positions.channels;
  float mean[kVec], scale[kVec], bias[kVec]{};
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    const int channel = positions.is_there ? positions.channel + e : 0;
    const uint32_t group = args.run.divide(channel);
    mean[e] = moments[2 * group];
    scale[e] = reciprocal_square_root(moments[2 * group + 1] + args.epsilon);
    if constexpr (HAS_WEIGHT) scale[e] *= to_float(args.weight[channel]);
    if constexpr (HAS_BIAS) bias[e] = to_float(args.bias[channel]);
  }
  positions.each([&](int position, const Packed<ELEMENT, kVec>& x) {
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) y[e] = (x.at(e) - mean[e]) * scale[e] + bias[e];
    if (args.is_silu)
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] *= sigmoid(y[e]);
    store_vec<kVec>(args.out + positions.place(position), vec_from_float<ELEMENT>(y));
  });
}

template <int kVec>
void launch_positions(const GroupNormArgs& args, Stream stream) {
  const uint32_t samples = static_cast<uint32_t>(args.rows) / args.groups.divisor;
  const uint32_t vectors = args.groups.divisor * args.channels / kVec;
  const dim3 grid(samples * args.slices.divisor, (vectors + LANES - 1) / LANES);
  launch_overlapped(group_norm_channels_kernel<kVec>, grid, LANES, stream, args);
  check_launch("group_norm_channels_kernel");
  launch_overlapped(group_norm_moments_kernel, dim3(static_cast<uint32_t>(args.rows)), LANES, stream, args);
  check_launch("group_norm_moments_kernel");
  launch_overlapped(group_norm_positions_kernel<kVec>, grid, LANES, stream, args);
  check_launch("group_norm_positions_kernel");
}

template <bool kIsAligned>
void launch_aligned(const GroupNormArgs& args, Stream stream) {
  using Layout = GroupLayout<kIsAligned>;
  if constexpr (IS_SLICED && IS_CHANNELS_LAST) {
    launch_positions<kIsAligned ? VEC : 1>(args, stream);
  } else if constexpr (IS_SLICED) {
    const dim3 grid(static_cast<uint32_t>(args.rows) * args.slices.divisor);
    launch_overlapped(group_norm_parts_kernel<kIsAligned>, grid, Layout::kThreads, stream, args);
    check_launch("group_norm_parts_kernel");
    launch_overlapped(group_norm_slices_kernel<kIsAligned>, grid, Layout::kThreads, stream, args);
    check_launch("group_norm_slices_kernel");
  } else {
    const dim3 grid(static_cast<uint32_t>((args.rows + Layout::kRows - 1) / Layout::kRows));
    launch_overlapped(group_norm_kernel<kIsAligned>, grid, Layout::kThreads, stream, args);
    check_launch("group_norm_kernel");
  }
}

void launch_group_norm(const GroupNormArgs& args, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_aligned<true>(args, stream);
  else
    launch_aligned<false>(args, stream);
}

#if AITER_LIKE_HOST_PASS

/// Sets what slices need, and checks that `parts` has room for them.
void set_slices(GroupNormArgs& args, const ffi::Optional<ffi::Tensor>& parts) {
  constexpr int kCapacity = GroupLayout<true>::kCapacity;
  args.slices = Divider(1);
  ffi::check_value(IS_SLICED || kCapacity >= args.size, "group_norm: this module was built for other row lengths");
  if (!IS_SLICED) return;
  ffi::check_value(parts.has_value() && parts.value().IsContiguous(), "group_norm: parts must be contiguous");
  ffi::check_type(ffi::has_element<float>(parts.value()), "group_norm: parts must have dtype float32");
  args.parts = static_cast<float*>(parts.value().data_ptr());
  int64_t slices = (int64_t{args.size} + kCapacity - 1) / kCapacity, room = 2 * args.rows * slices;
  int64_t workgroups = args.rows * slices;
  if (IS_CHANNELS_LAST) {
    const int64_t samples = args.rows / args.groups.divisor, channels = int64_t{args.groups.divisor} * args.channels;
    slices = parts.value().ndim() == 4 ? parts.value().size(1) - 1 : 0;
    ffi::check_value(slices > 0, "group_norm: parts must be [samples, slices + 1, channels, 2]");
    room = 2 * samples * (slices + 1) * channels;
    workgroups = samples * slices;
    ffi::check_value(slices * args.channels < int64_t{1} << 31, "group_norm: more slices than a launch can have");
  }
  ffi::check_value(workgroups < (int64_t{1} << 31) && workgroups * LANES < (int64_t{1} << 32),
                   "group_norm: more slices than a launch can have");
  ffi::check_value(parts.value().numel() >= room, "group_norm: parts must have two elements for each slice");
  args.slices = Divider(static_cast<uint32_t>(slices));
}

void group_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> parts, ffi::Tensor input,
                ffi::Optional<ffi::Tensor> weight, ffi::Optional<ffi::Tensor> bias, int64_t num_groups, double epsilon,
                bool is_silu) {
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
  args.groups = Divider(static_cast<uint32_t>(num_groups));
  args.channels = static_cast<int>(channels / num_groups);
  const int64_t run = IS_CHANNELS_LAST ? args.channels : size / args.channels;
  args.run = Divider(static_cast<uint32_t>(run));
  args.out = static_cast<ELEMENT*>(out.data_ptr());
  args.input = static_cast<const ELEMENT*>(input.data_ptr());
  bool is_aligned = (IS_CHANNELS_LAST && IS_SLICED ? channels : run) % VEC == 0;
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
  set_slices(args, parts);
  launch_group_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(group_norm, aiter_like::group_norm);
#endif
