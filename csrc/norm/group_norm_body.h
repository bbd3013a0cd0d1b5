// SPDX-License-Identifier: MIT
// GroupNorm: y = (x - mean) / sqrt(var + epsilon) · weight[c] + bias[c], mean and variance over a group of channels and
// all positions of a sample, in fp32; out is y or silu(y). HIP (gfx9) and CUDA. group_norm.hip says what a Config
// holds. A group is a row: its positions, channel after channel as NCHW has them in memory; or (kIsChannelsLast) its
// channels, position after position.
//
//   1. load the row into registers; mean and variance over the row's lanes, at once where that is exact (rows/pairs.h)
//   2. scale, multiply with the weight, add the bias, silu, round, store
//
// A row longer than one workgroup should take (kIsSliced) is cut into slices of what a workgroup's registers hold, in
// two launches. The first does step 1 for each slice, whose moments go to memory. The second loads each slice again,
// makes the moments of its row from those of all slices, and does step 2; it begins where the first one ended, with
// what is still in a cache. On sm_90 up to kMostOfCluster workgroups of a row are a cluster, which keeps the slices in
// registers and reads them once, in one launch. Long rows of channels last are no rows in memory:
// group_norm_positions_body.h has their kernels.
//
// Tile: kLanes lanes take a row or slice, kVectors · kVec elements each. LDS: 12 bytes per wave.
// Bound: memory, 2 · sizeof(Element) bytes per element; of slices that do not stay in a cache, 3 · sizeof(Element).
#pragma once

#include "aiter_like/cluster.h"
#include "aiter_like/math.h"
#include "aiter_like/rows/pairs.h"

namespace aiter_like {

template <class Config>
struct GroupNormArgs {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;

  Element* out;
  const Element* input;
  const Weight* weight;  // [channels], like bias
  const Weight* bias;
  float* parts;  // [rows, slices, 2]: mean of a slice and sum of the squared deviations from it. kIsChannelsLast:
                 // [samples, slices + 1, channels, 2]; the last slice holds mean and variance of the groups instead
  int64_t rows;
  int size;        // elements of a row: channels of a group · positions
  int channels;    // channels of a group
  Divider groups;  // divides by the groups of a sample
  Divider slices;  // divides by the slices of a row, or of a sample if kIsChannelsLast
  Divider run;     // divides by the elements of one channel in a row, or of one position if kIsChannelsLast
  float epsilon;
  bool is_silu;
};

/// `size` elements of a row, from element `start` on, in the registers of the lanes. A row that is not there has none.
template <class Config, bool kIsAligned>
struct GroupSlice {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = GroupNormArgs<Config>;

  // Factors of an access: an aligned one stays within a channel's positions or a position's channels.
  static constexpr int kFactors = kIsAligned && !Config::kIsChannelsLast ? 1 : Layout::kVec;

  const Args& args;
  int64_t first;  // index of the row's first element in the tensor
  int channel;    // the row's first channel
  int start, size;
  RowTile<Layout, Element> x;

  __device__ GroupSlice(const Args& args, uint32_t row, int start, int size)
      : args(args), start(start), size(size) {
    const uint32_t sample = args.groups.divide(row), group = row - sample * args.groups.divisor;
    channel = static_cast<int>(group) * args.channels;
    first = Config::kIsChannelsLast ? int64_t{sample} * args.groups.divisor * args.size + channel
                                    : int64_t{row} * args.size;
  }

  /// How far an element of the slice is from the row's first, in elements.
  __device__ int64_t offset(int column) const {
    if constexpr (!Config::kIsChannelsLast) return start + column;
    const int64_t position = args.run.divide(start + column);
    return position * args.groups.divisor * args.channels + (start + column - position * args.channels);
  }
  __device__ int channel_of(int column) const {
    const int quotient = static_cast<int>(args.run.divide(start + column));
    return channel + (Config::kIsChannelsLast ? start + column - quotient * args.channels : quotient);
  }

  __device__ void load() {
    if constexpr (!Config::kIsChannelsLast) {
      x.load(args.input + first + start, size);
    } else {
#pragma unroll
      for (int v = 0; v < Layout::kVectors; ++v) {
        const int column = Layout::column(v);
        if constexpr (kIsAligned) {
#if defined(__HIP__)
          x.data[v].load_if(column < size, args.input + first + offset(column), address_of_no_element<Element>());
#else
          x.data[v].load_if(column < size, args.input + first + offset(column), args.input + first);
#endif
        } else {
          x.data[v] = {};
#pragma unroll
          for (int e = 0; e < Layout::kVec; ++e)
            if (column + e < size) x.data[v].insert(e, args.input[first + offset(column + e)]);
        }
      }
    }
  }

  /// Moments of the `count` elements that the lanes of the row hold together.
  __device__ Moments moments(int count, PairScratch<Layout>& sums_scratch, RowScratch<Layout>& deviations_scratch) {
    Pair sums{};
#pragma unroll
    for (int v = 0; v < Layout::kVectors; ++v) {
      Pair of_vector{};
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) {
        const float value = x.at(v, e);  // zero beyond the slice
        of_vector = {of_vector.first + value, of_vector.second + value * value};
      }
      sums = {sums.first + of_vector.first, sums.second + of_vector.second};
    }
    x.drop_floats();
    const auto deviations = [&](float mean) {
      return lane_sum<Layout>([&](int v, int e) {
        const float deviation = x.at(v, e) - mean;
        return Layout::column(v) + (kIsAligned ? 0 : e) < size ? deviation * deviation : 0.f;
      });
    };
    return row_moments<Layout>(sums, static_cast<float>(count), deviations, sums_scratch, deviations_scratch);
  }

  using Factors = Packed<Weight, kFactors>;
  /// Loads the factors of an aligned access. In an unaligned one `factor` reads each by itself.
  __device__ void load_factors(Factors& factors, const Weight* of_channels, int column) const {
    if constexpr (!kIsAligned) return;
    factors.load_if(column < size, of_channels + channel_of(column), of_channels);
  }
  __device__ float factor(const Factors& factors, const Weight* of_channels, int column, int e) const {
    if constexpr (kIsAligned) return factors.at(e % kFactors);
    return column + e < size ? to_float(of_channels[channel_of(column + e)]) : 0.f;
  }

  /// Writes the result, for the moments of the row.
  __device__ void store(Moments moments) {
    x.drop_floats();
    if constexpr (Config::kIsChannelsLast || !kIsAligned) {  // computes offsets again instead of keeping them
      start = static_cast<int>(opaque(static_cast<uint32_t>(start)));
      size = static_cast<int>(opaque(static_cast<uint32_t>(size)));
    }
    const float inverse_deviation = reciprocal_square_root(moments.variance + args.epsilon);
    Factors weight[Layout::kVectors], bias[Layout::kVectors];
    const auto load = [&](int v) {
      if constexpr (Config::kHasWeight) load_factors(weight[v], args.weight, Layout::column(v));
      if constexpr (Config::kHasBias) load_factors(bias[v], args.bias, Layout::column(v));
    };
    each_vector<Layout>(load, [&](int v) {
      const int column = Layout::column(v);
      if (column >= size) return;
      float y[Layout::kVec];
#pragma unroll
      for (int e = 0; e < Layout::kVec; ++e) {
        float scale = inverse_deviation;
        if constexpr (Config::kHasWeight) scale *= factor(weight[v], args.weight, column, e);
        y[e] = (x.at(v, e) - moments.mean) * scale;
        if constexpr (Config::kHasBias) y[e] += factor(bias[v], args.bias, column, e);
      }
      if (args.is_silu)
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e) y[e] *= sigmoid(y[e]);
      if constexpr (!Config::kIsChannelsLast) {
        store_vector<Layout>(args.out + first + start, size, v, y);
      } else if constexpr (kIsAligned) {
        store_vec<Layout::kVec>(args.out + first + offset(column), vec_from_float<Element>(y));
      } else {
#pragma unroll
        for (int e = 0; e < Layout::kVec; ++e)
          if (column + e < size) args.out[first + offset(column + e)] = from_float<Element>(y[e]);
      }
    });
  }
};

/// Mean and variance of `size` elements from those of parts. each(f) calls f(elements, mean, squared deviations) for
/// the lane's parts. The squared deviations from the mean of all are those from a part's mean, and its elements times
/// the square of the difference between the two means (Chan et al. 1979).
template <class Layout, class E>
__device__ inline Moments combined(E each, int size, RowScratch<Layout>& means_scratch,
                                   RowScratch<Layout>& deviations_scratch) {
  float sum = 0.f, squares = 0.f;
  each([&](float count, float mean, float) { sum += count * mean; });
  const float mean = row_sum<Layout>(sum, means_scratch) / static_cast<float>(size);
  each([&](float count, float of_part, float deviations) {
    squares += deviations + count * (of_part - mean) * (of_part - mean);
  });
  return {mean, row_sum<Layout>(squares, deviations_scratch) / static_cast<float>(size)};
}

/// The slice and the row that a workgroup takes.
struct SliceIndex {
  uint32_t row, slice;

  __device__ SliceIndex(const Divider& slices, uint32_t index)
      : row(slices.divide(index)), slice(index - row * slices.divisor) {}
  __device__ int64_t part(const Divider& slices) const { return int64_t{row} * slices.divisor + slice; }
};

/// One workgroup's work on its rows, or on its slice of a row.
template <class Config, bool kIsAligned>
struct GroupNormBody {
  using Element = typename Config::Element;
  using Weight = typename Config::Weight;
  using Layout = typename Config::template Layout<kIsAligned>;
  using Args = GroupNormArgs<Config>;
  using Slice = GroupSlice<Config, kIsAligned>;

  /// Workgroups that a CUDA multiprocessor is to hold, by the registers that nvcc 13 needs not to spill: for the
  /// elements, for the factors of two accesses where each element has its own, and for the places of elements that are
  /// accessed one by one.
  static constexpr int kMinGroups = [] {
    constexpr int kVectors = Layout::kVectors;
    constexpr int kElements = kVectors * Layout::kVec * int{sizeof(Element)} / 4 + (kVectors > 8 ? kVectors : 0);
    constexpr int kOthers = !kIsAligned ? 56 : Config::kIsChannelsLast ? 6 * int{sizeof(Weight)} : 0;
    constexpr int kThreads = 65536 / (24 + kElements + kOthers);
    return kThreads < Layout::kThreads ? 1 : kThreads / Layout::kThreads;
  }();

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ PairScratch<Layout> sums_scratch;
    __shared__ RowScratch<Layout> deviations_scratch;
    // Lanes of a row that is not there take part in the reductions with zeros.
    const bool is_there = Layout::row() < args.rows;
    const uint32_t index = static_cast<uint32_t>(is_there ? Layout::row() : args.rows - 1);
    Slice row(args, index, 0, is_there ? args.size : 0);
    row.load();
    const Moments moments = row.moments(args.size, sums_scratch, deviations_scratch);
    row.store(moments);
  }

  /// The first launch for slices: the moments of a slice.
  __device__ __forceinline__ static void run_parts(const Args& args) {
    __shared__ PairScratch<Layout> sums_scratch;
    __shared__ RowScratch<Layout> deviations_scratch;
    const SliceIndex index(args.slices, workgroup_index().x);
    Slice slice = slice_of(args, index);
    slice.load();
    const Moments moments = slice.moments(slice.size, sums_scratch, deviations_scratch);
    if (thread_index() != 0) return;
    float* part = args.parts + 2 * index.part(args.slices);
    part[0] = moments.mean;
    part[1] = moments.variance * static_cast<float>(slice.size);
  }

  /// The second launch: the result of a slice, for the moments of its row.
  __device__ __forceinline__ static void run_slices(const Args& args) {
    __shared__ RowScratch<Layout> means_scratch, deviations_scratch;
    const SliceIndex index(args.slices,
                           static_cast<uint32_t>(args.rows) * args.slices.divisor - 1 - workgroup_index().x);
    Slice slice = slice_of(args, index);
    slice.load();
    const float* parts = args.parts + 2 * (index.part(args.slices) - index.slice);
    const auto each = each_part(args, [&](int i, float& mean, float& deviations) {
      mean = parts[2 * i], deviations = parts[2 * i + 1];
    });
    slice.store(combined<Layout>(each, args.size, means_scratch, deviations_scratch));
  }

  /// The one launch for slices whose workgroups are a cluster.
  __device__ __forceinline__ static void run_cluster(const Args& args) {
    __shared__ PairScratch<Layout> sums_scratch;
    __shared__ RowScratch<Layout> deviations_scratch, means_scratch, squares_scratch;
    __shared__ uint64_t part;  // like one of Args::parts
    Slice slice = slice_of(args, SliceIndex(args.slices, workgroup_index().y * args.slices.divisor +
                                                             workgroup_index().x));
    slice.load();
    const Moments moments = slice.moments(slice.size, sums_scratch, deviations_scratch);
    if (thread_index() == 0)
      part = uint64_t{float_bits(moments.variance * static_cast<float>(slice.size))} << 32 | float_bits(moments.mean);
    cluster_barrier_with_own();
    const auto each = each_part(args, [&](int i, float& mean, float& deviations) {
      const uint64_t one = load_of_peer(&part, static_cast<uint32_t>(i));
      mean = bits_float(static_cast<uint32_t>(one)), deviations = bits_float(static_cast<uint32_t>(one >> 32));
    });
    const Moments of_row = combined<Layout>(each, args.size, means_scratch, squares_scratch);
    cluster_arrive();
    slice.store(of_row);
    cluster_wait();  // others may still read this workgroup's part
  }

 private:
  /// The argument of `combined`: read(i, mean, squared deviations) reads a slice's.
  template <class Read>
  __device__ static auto each_part(const Args& args, Read read) {
    return [&args, read](auto f) {
      const int last = static_cast<int>(args.slices.divisor) - 1;
#pragma unroll 1
      for (int i = thread_index(); i <= last; i += Layout::kThreads) {
        const int count = i < last ? Layout::kCapacity : args.size - i * Layout::kCapacity;
        float mean, deviations;
        read(i, mean, deviations);
        f(static_cast<float>(count), mean, deviations);
      }
    };
  }

  __device__ static Slice slice_of(const Args& args, SliceIndex index) {
    static_assert(Layout::kRows == 1, "a workgroup takes one slice");
    const int start = static_cast<int>(index.slice) * Layout::kCapacity, rest = args.size - start;
    return Slice(args, index.row, start, rest < Layout::kCapacity ? rest : Layout::kCapacity);
  }
};

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void group_norm_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void group_norm_parts_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run_parts(args);
}

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void group_norm_slices_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run_slices(args);
}

template <class Body>
__global__ __launch_bounds__(Body::Layout::kThreads, Body::kMinGroups) void group_norm_cluster_kernel(
    typename Body::Args args) {
  await_stream();
  Body::run_cluster(args);
}

template <class Config, bool kIsAligned>
void launch_group_norm(const GroupNormArgs<Config>& args, Stream stream) {
  using Body = GroupNormBody<Config, kIsAligned>;
  using Layout = typename Body::Layout;
  if constexpr (Config::kIsSliced) {
    if constexpr (kHasClusters) {
      if (args.slices.divisor <= kMostOfCluster && args.rows < 65536) {
        launch_clusters(group_norm_cluster_kernel<Body>, args.slices.divisor, static_cast<uint32_t>(args.rows),
                        Layout::kThreads, 0, stream, args);
        check_launch("group_norm_cluster_kernel");
        return;
      }
    }
    const dim3 grid(static_cast<uint32_t>(args.rows) * args.slices.divisor);
    launch_named("group_norm_parts_kernel", group_norm_parts_kernel<Body>, grid, Layout::kThreads, stream, args);
    launch_named("group_norm_slices_kernel", group_norm_slices_kernel<Body>, grid, Layout::kThreads, stream, args);
  } else {
    launch_named("group_norm_kernel", group_norm_kernel<Body>, Layout::workgroups(args.rows), Layout::kThreads, stream,
                 args);
  }
}

}  // namespace aiter_like
