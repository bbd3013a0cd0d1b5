// SPDX-License-Identifier: MIT
// The k largest elements of each row, or smallest, of equal ones those of the lowest columns; exactly k. HIP (gfx9) and
// CUDA. topk.hip says what a Config holds.
//
// An element is a 64-bit number of key and complemented column, so that no two are equal (row_scan.h).
//   1. histograms of its bits from the top, 11 + 11 + 10 of the key, 11 + 11 + 10 of the column, each of the elements
//      that agree with the k-th largest in those above, until no more than kListed are left at or above it: usually one
//   2. a list of these in LDS, shortened by further histograms where it is much longer than k
//   3. bitonic sort of the list; the first k are the result, or the first k sorted again by their columns
//
// Few long rows are cut into slices, whose k largest are the rows of a second launch.
// Tile: kThreads lanes, 4 accesses of 16 bytes in flight each. LDS: 41 KB, of which the list has 32.
// Bound: memory, 2 reads of the row where one histogram is enough, and an LDS atomic per element.
#pragma once

#include "row_scan.h"

namespace aiter_like {

template <class Config>
struct TopkArgs {
  using Element = typename Config::Element;

  void* indices;  // [rows, k] int32 or int64; -1 where a row has fewer
  ScanRows<Element> values;  // [rows, k], or null; 0 where a row has fewer
  ScanRows<const Element> input;
  const int32_t *row_starts, *row_ends;  // [rows]: the columns that count; null: all
  const int32_t* lengths;                // [rows / next_n]: a row's end is this, but for the rows of one that follow
  uint64_t* candidates;                  // [rows, slices, k]: the largest of each slice; null: not cut
  int64_t indices_stride;
  Slices slices;
  int k, next_n;
  bool is_64bit, is_largest, is_by_column;
};

template <class Config>
struct TopkBody {
  using Element = typename Config::Element;
  using Args = TopkArgs<Config>;
  static constexpr int kThreads = 512, kWaves = kThreads / kWaveSize, kBins = 2048, kListed = 4096, kLevels = 6;
  static constexpr int kShort = 256;  // a list that is not worth another histogram

  struct Lds {
    union {  // the histograms come before the list
      uint64_t list[kListed];
      uint32_t histogram[kBins];
    };
    uint32_t counts[kBins];  // histogram while there is a list
    uint64_t sums[kWaves];
    uint32_t listed, winner, count_above, count;
    uint64_t first;
  };

  /// Counts among the numbers of at least `first`: those above the ones whose bits from `shift` on are its own, and
  /// these.
  struct Range {
    uint64_t first;
    int shift;
    uint32_t count_above, count;

    __device__ bool holds(uint64_t x) const { return shift >= 64 || (x >> shift) == (first >> shift); }
  };

  struct Bounds {
    int begin, end;
  };
  __device__ static Bounds bounds(const Args& args, int64_t row) {
    int begin = 0, end = args.slices.size;
    if (args.row_starts) begin = args.row_starts[row] > 0 ? args.row_starts[row] : 0;
    if (args.row_ends) end = args.row_ends[row];
    if (args.lengths) {
      const int request = static_cast<int>(row) / args.next_n;
      const int length = args.lengths[request] > 0 ? args.lengths[request] : 0;  // the least one wraps around
      end = length - args.next_n + (static_cast<int>(row) - request * args.next_n) + 1;
    }
    if (end > args.slices.size) end = args.slices.size;
    return {begin, end > begin ? end : begin};
  }
  __device__ static uint64_t number(const Args& args, int column, float x) {
    const uint32_t key = x == 0.f && float_bits(x) != 0 ? 0x7FFFFFFFu : ordered_key(x);  // -0 is below 0
    return candidate(args.is_largest || key == 0 ? key : ~key, static_cast<uint32_t>(column));
  }
  __device__ static int shift_of(int level) {
    const int of_half = level % 3 == 0 ? 21 : level % 3 == 1 ? 10 : 0;
    return level < 3 ? 32 + of_half : of_half;
  }
  __device__ static int bins_of(int level) { return level % 3 == 2 ? kBins / 2 : kBins; }

  __device__ static void clear(uint32_t* histogram) {
    for (int i = thread_index(); i < kBins; i += kThreads) histogram[i] = 0;
    workgroup_barrier();
  }

  /// The range by one more level, the same in every work-item; ends with a barrier.
  __device__ static Range next_range(const uint32_t* histogram, int level, const Range& range, uint32_t wanted,
                                     Lds& lds) {
    const int bins = bins_of(level), shift = shift_of(level), each = bins / kThreads, thread = thread_index();
    const int top = bins - 1 - thread * each;
    uint64_t total = 0;
    for (int i = 0; i < each; ++i) total += histogram[top - i];
    uint64_t of_wave = total;
    uint64_t above = range.count_above + wave_sum_before(of_wave);
    if (lane_index() == 0) lds.sums[wave_index()] = of_wave;
    if (thread == 0) lds.winner = 0;
    workgroup_barrier();
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave)
      if (wave < wave_index()) above += lds.sums[wave];
    Range found{0, shift, 0, 0};
    for (int i = 0; i < each; ++i) {
      const uint32_t count = histogram[top - i];
      if (count != 0 && above < wanted)
        found = {range.first | static_cast<uint64_t>(top - i) << shift, shift, static_cast<uint32_t>(above), count};
      above += count;
    }
    if (found.count != 0) lds_max(&lds.winner, static_cast<uint32_t>(thread) + 1);
    workgroup_barrier();
    if (lds.winner == static_cast<uint32_t>(thread) + 1) {
      lds.first = found.first;
      lds.count_above = found.count_above;
      lds.count = found.count;
    }
    workgroup_barrier();
    return {lds.first, shift, lds.count_above, lds.count};
  }

  /// Makes lds.list the numbers of `each(f)`, which calls f for all of them, that are among the `wanted` largest, and
  /// few others, in any order; returns how many. There are `total`, at least `wanted`.
  template <class Each>
  __device__ __forceinline__ static uint32_t select(Each each, uint32_t total, uint32_t wanted, Lds& lds) {
    Range range{0, 64, 0, total};
    int level = 0;
#pragma unroll 1
    for (; range.count_above + range.count > kListed; ++level) {
      clear(lds.histogram);
      const int shift = shift_of(level);
      const uint32_t mask = static_cast<uint32_t>(bins_of(level) - 1);
      each([&](uint64_t x) {
        if (range.holds(x)) lds_add(&lds.histogram[static_cast<uint32_t>(x >> shift) & mask], 1);
      });
      workgroup_barrier();
      range = next_range(lds.histogram, level, range, wanted, lds);
    }
    if (thread_index() == 0) lds.listed = 0;
    workgroup_barrier();
    each([&](uint64_t x) {
      if (x >= range.first) lds.list[lds_add(&lds.listed, 1)] = x;
    });
    workgroup_barrier();
    uint32_t listed = range.count_above + range.count;
    const uint32_t enough = wanted > kShort ? wanted : kShort;
    if (listed <= 2 * enough) return listed;
#pragma unroll 1
    for (; range.count_above + range.count > enough && level < kLevels; ++level) {
      clear(lds.counts);
      const int shift = shift_of(level);
      const uint32_t mask = static_cast<uint32_t>(bins_of(level) - 1);
      for (uint32_t i = thread_index(); i < listed; i += kThreads)
        if (range.holds(lds.list[i])) lds_add(&lds.counts[static_cast<uint32_t>(lds.list[i] >> shift) & mask], 1);
      workgroup_barrier();
      range = next_range(lds.counts, level, range, wanted, lds);
    }
    constexpr int kEach = kListed / kThreads;
    uint64_t kept[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t place = i * kThreads + thread_index();
      kept[i] = place < listed ? lds.list[place] : 0;
    }
    if (thread_index() == 0) lds.listed = 0;
    workgroup_barrier();
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (static_cast<uint32_t>(i * kThreads + thread_index()) < listed && kept[i] >= range.first)
        lds.list[lds_add(&lds.listed, 1)] = kept[i];
    workgroup_barrier();
    return range.count_above + range.count;
  }

  /// Sorts the first `count` numbers of the list, the largest first.
  __device__ static void sort(uint32_t count, Lds& lds) {
    uint32_t size = 2;
    while (size < count) size *= 2;
    for (uint32_t i = count + thread_index(); i < size; i += kThreads) lds.list[i] = 0;
    workgroup_barrier();
#pragma unroll 1
    for (uint32_t run = 2; run <= size; run *= 2) {
#pragma unroll 1
      for (uint32_t step = run / 2; step > 0; step /= 2) {
        for (uint32_t pair = thread_index(); pair < size / 2; pair += kThreads) {
          const uint32_t low = (pair & ~(step - 1)) * 2 | (pair & (step - 1)), high = low | step;
          const uint64_t a = lds.list[low], b = lds.list[high];
          if (((low & run) == 0) == (a < b)) {
            lds.list[low] = b;
            lds.list[high] = a;
          }
        }
        workgroup_barrier();
      }
    }
  }

  /// Writes the `wanted` largest of the list, of `listed`.
  __device__ static void write(const Args& args, int64_t row, uint32_t listed, uint32_t wanted, Lds& lds) {
    sort(listed, lds);
    if (args.is_by_column) {  // the complemented column first: the largest number has the lowest column
      for (uint32_t i = thread_index(); i < wanted; i += kThreads) {
        const uint64_t x = lds.list[i];
        lds.list[i] = x << 32 | x >> 32;
      }
      workgroup_barrier();
      sort(wanted, lds);
    }
    const int64_t place = row * args.indices_stride;
    for (uint32_t i = thread_index(); i < static_cast<uint32_t>(args.k); i += kThreads) {
      int32_t column = -1;
      if (i < wanted) {
        const uint64_t x = args.is_by_column ? lds.list[i] << 32 | lds.list[i] >> 32 : lds.list[i];
        column = static_cast<int32_t>(candidate_column(x));
      }
      if (args.is_64bit)
        static_cast<int64_t*>(args.indices)[place + i] = column;
      else
        static_cast<int32_t*>(args.indices)[place + i] = column;
      if (args.values.data)
        args.values.row(row)[i] = column < 0 ? from_float<Element>(0.f) : args.input.row(row)[column];
    }
  }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ Lds lds;
    const int64_t row = workgroup_index().y;
    const Bounds all = bounds(args, row);
    Bounds mine = all;
    if (args.candidates) {
      mine.begin = all.begin > args.slices.begin() ? all.begin : args.slices.begin();
      mine.end = all.end < args.slices.end() ? all.end : args.slices.end();
      if (mine.end < mine.begin) mine.end = mine.begin;
    }
    const uint32_t total = static_cast<uint32_t>(mine.end - mine.begin);
    const uint32_t wanted = total < static_cast<uint32_t>(args.k) ? total : static_cast<uint32_t>(args.k);
    const Element* data = args.input.row(row);
    const auto each = [&](auto f) {
      scan_elements<kThreads>(data, mine.begin, mine.end, [&](int column, float x) { f(number(args, column, x)); });
    };
    const uint32_t listed = wanted == 0 ? 0 : select(each, total, wanted, lds);
    if (!args.candidates) {
      write(args, row, listed, wanted, lds);
      return;
    }
    sort(listed, lds);
    uint64_t* candidates = args.candidates + (row * count(args) + workgroup_index().x) * args.k;
    for (uint32_t i = thread_index(); i < static_cast<uint32_t>(args.k); i += kThreads)
      candidates[i] = i < wanted ? lds.list[i] : 0;
  }

  /// The second launch for slices: the largest of a row's candidates. What is no candidate is 0 and never among them.
  __device__ __forceinline__ static void run_merge(const Args& args) {
    __shared__ Lds lds;
    const int64_t row = workgroup_index().x;
    const Bounds all = bounds(args, row);
    const uint32_t length = static_cast<uint32_t>(all.end - all.begin);
    const uint32_t wanted = length < static_cast<uint32_t>(args.k) ? length : static_cast<uint32_t>(args.k);
    const int64_t total = count(args) * args.k;
    const uint64_t* candidates = args.candidates + row * total;
    const auto each = [&](auto f) {
      for (int64_t i = thread_index(); i < total; i += kThreads) f(candidates[i]);
    };
    const uint32_t listed = wanted == 0 ? 0 : select(each, static_cast<uint32_t>(total), wanted, lds);
    write(args, row, listed, wanted, lds);
  }

  __device__ static int64_t count(const Args& args) {
    return (args.slices.size + args.slices.length - 1) / args.slices.length;
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void topk_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void topk_merge_kernel(typename Body::Args args) {
  await_stream();
  Body::run_merge(args);
}

template <class Config>
void launch_topk(const TopkArgs<Config>& args, uint32_t rows, uint32_t slices, Stream stream) {
  using Body = TopkBody<Config>;
  launch_named("topk_kernel", topk_kernel<Body>, dim3(slices, rows), Body::kThreads, stream, args);
  if (slices == 1) return;
  launch_named("topk_merge_kernel", topk_merge_kernel<Body>, dim3(rows), Body::kThreads, stream, args);
}

}  // namespace aiter_like
