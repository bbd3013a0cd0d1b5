// SPDX-License-Identifier: MIT
// group_norm of long rows of channels last, which are no rows in memory. A slice is some positions of a sample with all
// their channels, and a lane keeps to its channels. Three launches: the moments of each channel in each slice; from
// them the moments of each group; then each slice again, with the moments of its groups. HIP (gfx9) and CUDA.
// group_norm.hip says what a Config holds.
//
// Tile: kLanes lanes take the channels of as many positions as they cover, kVec channels each, kVectors accesses at a
// time. LDS: 8 bytes per element of an access of all lanes.
// Bound: memory, 3 · sizeof(Element) bytes per element; 2 · sizeof(Element) of slices that stay in a cache.
#pragma once

#include "group_norm_body.h"

namespace aiter_like {

/// Some positions of a sample, with the channels that a workgroup takes. A lane takes kVec neighbouring channels, and a
/// workgroup kLanes / `width` positions at once, with kVectors accesses of each lane in flight.
template <class Config, int kVec>
struct Positions {
  using Element = typename Config::Element;
  using Args = GroupNormArgs<Config>;
  using Layout = typename Config::template Layout<true>;
  static constexpr int kLanes = Layout::kLanes, kVectors = Layout::kVectors;

  const Args& args;
  int sample, slice;
  int width, row, rows;   // lanes of a position; the lane's position among the `rows` that are taken at once
  int channel, channels;  // the lane's first channel; channels of the tensor
  int first, count;       // the slice's first position, and how many it has
  bool is_there;          // lanes that a position needs no more are not

  __device__ Positions(const Args& args, uint32_t index) : args(args) {
    const uint32_t slices = args.slices.divisor;
    sample = static_cast<int>(args.slices.divide(index));
    slice = static_cast<int>(index - sample * slices);
    channels = static_cast<int>(args.groups.divisor) * args.channels;
    const int vectors = channels / kVec, start = static_cast<int>(workgroup_index().y) * kLanes;
    width = vectors - start < kLanes ? vectors - start : kLanes;
    rows = kLanes / width;
    row = thread_index() / width;
    channel = (start + thread_index() - row * width) * kVec;
    is_there = row < rows;
    const int positions = args.size / args.channels, length = (positions + slices - 1) / slices;
    first = slice * length < positions ? slice * length : positions;
    count = positions - first < length ? positions - first : length;
  }
  /// How many positions of the slice row `row` of lanes takes.
  __device__ int count_of(int row) const { return row < count ? (count - row + rows - 1) / rows : 0; }
  __device__ int64_t place(int position) const {
    return (int64_t{sample} * (args.size / args.channels) + first + position) * channels + channel;
  }

  /// Calls f(position, access) for each position of the lane. kVectors of them are loaded before the first is used.
  template <class F>
  __device__ void each(F f) const {
    if (!is_there) return;
    for (int position = row; position < count; position += kVectors * rows) {
      Packed<Element, kVec> x[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool is_inside = position + v * rows < count;
        x[v].load_if(is_inside, args.input + place(position + (is_inside ? v * rows : 0)), args.input + place(row));
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (position + v * rows < count) f(position + v * rows, x[v]);
    }
  }
  __device__ float* part(int channel) const {
    return args.parts + 2 * ((int64_t{sample} * (args.slices.divisor + 1) + slice) * channels + channel);
  }
};

/// The first launch: mean and squared deviations of each channel in a slice. A lane sums differences from its first
/// value: the further that is from the mean, in standard deviations, the more digits are lost.
template <class Config, int kVec>
struct GroupNormChannelsBody {
  using Element = typename Config::Element;
  using Args = GroupNormArgs<Config>;
  static constexpr int kLanes = Config::template Layout<true>::kLanes;

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ float means[kLanes * kVec], deviations[kLanes * kVec];
    const Positions<Config, kVec> positions(args, workgroup_index().x);
    float shift[kVec]{}, sum[kVec]{}, squares[kVec]{};
    if (positions.is_there && positions.row < positions.count) {
      Packed<Element, kVec> x;
      x.load(args.input + positions.place(positions.row));
#pragma unroll
      for (int e = 0; e < kVec; ++e) shift[e] = x.at(e);
    }
    positions.each([&](int, const Packed<Element, kVec>& x) {
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
    for (int c = thread_index(); c < taken; c += kLanes) {  // like `combined`, over the rows of lanes
      float mean = 0.f, deviation = 0.f;
      for (int row = 0; row < positions.rows; ++row)
        mean += static_cast<float>(positions.count_of(row)) * means[row * taken + c];
      mean = total > 0 ? mean / static_cast<float>(total) : 0.f;
      for (int row = 0; row < positions.rows; ++row) {
        const float between = means[row * taken + c] - mean;
        deviation += deviations[row * taken + c] + static_cast<float>(positions.count_of(row)) * between * between;
      }
      float* part = positions.part(static_cast<int>(workgroup_index().y) * kLanes * kVec + c);
      part[0] = mean;
      part[1] = deviation;
    }
  }
};

/// The second launch: a workgroup makes a group's mean and variance from those of its channels in all slices.
template <class Config>
struct GroupNormMomentsBody {
  using Args = GroupNormArgs<Config>;
  static constexpr int kLanes = Config::template Layout<true>::kLanes;
  using Layout = RowLayout<kLanes, 1, 1>;

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ RowScratch<Layout> means_scratch, deviations_scratch;
    const uint32_t groups = args.groups.divisor, row = workgroup_index().x, sample = args.groups.divide(row);
    const uint32_t group = row - sample * groups;
    const int slices = static_cast<int>(args.slices.divisor), channels = static_cast<int>(groups) * args.channels;
    const int positions = args.size / args.channels, length = (positions + slices - 1) / slices;
    float* parts = args.parts + 2 * int64_t{sample} * (slices + 1) * channels;
    const float* of_group = parts + 2 * group * args.channels;
    const auto each = [&](auto f) {
      for (int i = thread_index(); i < slices * args.channels; i += kLanes) {
        const int slice = static_cast<int>(args.run.divide(i)), rest = positions - slice * length;
        const float* part = of_group + 2 * (int64_t{slice} * channels + (i - slice * args.channels));
        f(static_cast<float>(rest < 0 ? 0 : rest < length ? rest : length), part[0], part[1]);
      }
    };
    const Moments moments = combined<Layout>(each, args.size, means_scratch, deviations_scratch);
    if (thread_index() != 0) return;
    float* of_groups = parts + 2 * (int64_t{slices} * channels + group);
    of_groups[0] = moments.mean;
    of_groups[1] = moments.variance;
  }
};

/// The third launch: the result of a slice, for the moments of its groups.
template <class Config, int kVec>
struct GroupNormPositionsBody {
  using Element = typename Config::Element;
  using Args = GroupNormArgs<Config>;
  static constexpr int kLanes = Config::template Layout<true>::kLanes;

  __device__ __forceinline__ static void run(const Args& args) {
    const uint32_t all = static_cast<uint32_t>(args.rows) / args.groups.divisor * args.slices.divisor;
    const Positions<Config, kVec> positions(args, all - 1 - workgroup_index().x);
    const int64_t slices = args.slices.divisor;
    const float* moments = args.parts + 2 * (positions.sample * (slices + 1) + slices) * positions.channels;
    float mean[kVec], scale[kVec], bias[kVec]{};
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const int channel = positions.is_there ? positions.channel + e : 0;
      const uint32_t group = args.run.divide(channel);
      mean[e] = moments[2 * group];
      scale[e] = reciprocal_square_root(moments[2 * group + 1] + args.epsilon);
      if constexpr (Config::kHasWeight) scale[e] *= to_float(args.weight[channel]);
      if constexpr (Config::kHasBias) bias[e] = to_float(args.bias[channel]);
    }
    positions.each([&](int position, const Packed<Element, kVec>& x) {
      float y[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] = (x.at(e) - mean[e]) * scale[e] + bias[e];
      if (args.is_silu)
#pragma unroll
        for (int e = 0; e < kVec; ++e) y[e] *= sigmoid(y[e]);
      store_vec<kVec>(args.out + positions.place(position), vec_from_float<Element>(y));
    });
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kLanes) void group_norm_channels_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kLanes) void group_norm_moments_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kLanes) void group_norm_positions_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Config, bool kIsAligned>
void launch_group_norm_positions(const GroupNormArgs<Config>& args, Stream stream) {
  using Layout = typename Config::template Layout<kIsAligned>;
  constexpr int kVec = kIsAligned ? Layout::kVec : 1, kLanes = Layout::kLanes;
  const uint32_t samples = static_cast<uint32_t>(args.rows) / args.groups.divisor;
  const uint32_t vectors = args.groups.divisor * args.channels / kVec;
  const dim3 grid(samples * args.slices.divisor, (vectors + kLanes - 1) / kLanes);
  launch_named("group_norm_channels_kernel", group_norm_channels_kernel<GroupNormChannelsBody<Config, kVec>>, grid,
               kLanes, stream, args);
  launch_named("group_norm_moments_kernel", group_norm_moments_kernel<GroupNormMomentsBody<Config>>,
               static_cast<uint32_t>(args.rows), kLanes, stream, args);
  launch_named("group_norm_positions_kernel", group_norm_positions_kernel<GroupNormPositionsBody<Config, kVec>>, grid,
               kLanes, stream, args);
}

}  // namespace aiter_like
