// SPDX-License-Identifier: MIT
// Rows of probabilities of which the largest are kept: fewer than k above the last of them (top-k), a sum below p above
// it (top-p), none below min_p times the largest. renorm_probs writes them divided by their sum, zeros elsewhere;
// sampling_from_probs draws one of them by one random number (inversion.h). HIP (gfx9) and CUDA.
//
//   1. a histogram by threshold.h's first level tells in which bin the cut is, and with min_p a maximum the largest
//   2. what is above that bin is kept: it is summed, for a draw in chunks, in a walk that lists the bin's elements in
//      LDS, where the further levels are searched. For a bin of more than kListed, these are further walks
//   3. renorm_probs walks the row once more, to write it; a wave of sampling_from_probs walks one chunk
//
// Where there are more rows than a workgroup for each CU needs, a workgroup takes a row and does all of it. Fewer rows
// are cut into slices: a launch for each level, whose workgroups add their histograms in memory, in integers, and one
// launch for the result. renorm_probs has one more before it, for the sum, sampling_from_probs one after it, where a
// wave draws by the sums of all chunks. On sm_90 a cluster holds the row and reads it once (filter_cluster.h). The cut
// is the same, to the bit, and so is the token.
// Tile: kThreads lanes, 4 accesses of 16 bytes in flight each. LDS: 25 KB, 29 KB of sampling_from_probs.
// Bound: memory, 2 reads of the row (1 without limits; sliced: up to 4, from a cache) and of a chunk of 4 KB or, in
// long rows, 1/256 of them; 3 reads and a write for renorm_probs (sliced: up to 5). With top-k or top-p also LDS
// atomics: two per positive element in one read.
#pragma once

#include "inversion.h"

namespace aiter_like {

/// Memory that the workgroups of a row share where it is cut into slices; zeros before the first launch.
struct RowSearch {
  Histogram levels[kLevels];
  uint64_t mass;     // kept
  uint32_t maximum;  // key of the largest element
  uint32_t padding[3];
  Cut cuts[kLevels];  // after 1, 2 and 3 levels, each written by the launch that comes after the level's
};

template <class Config>
struct FilterArgs {
  using Element = typename Config::Element;

  ScanRows<Element> out;      // renorm_probs
  int32_t* tokens;            // sampling_from_probs: [rows]
  ScanRows<const Element> probs;
  const int32_t* indices;     // [rows]: which row of probs; null: the same
  RowNumber<int64_t> top_k;   // not positive, or at least the columns: no limit
  RowNumber<float> top_p;     // at least 1: no limit
  RowNumber<float> min_p;     // not positive: no limit
  RowSearch* searches;        // [rows], of slices
  uint64_t* sums;             // [rows, 2 + sums_of_row], of slices: the lowest key that is kept, the row's random
                              // number, sums of the chunks
  Slices slices;
  int sums_of_row, log2_chunks, chunk_shift;  // room for 2^log2_chunks chunks of each slice; Chunks::shift
  Seeds seeds;
  int64_t probs_rows;
  uint32_t cluster;  // workgroups that share a row in one launch; 0: none do
};

template <class Config>
struct FilterBody {
  using Element = typename Config::Element;
  using Args = FilterArgs<Config>;
  static constexpr int kThreads = 512, kListed = 1024, kVec = 16 / sizeof(Element);

  struct Lds {
    Histogram histogram;
    uint64_t list[kListed];  // key and complemented column
    alignas(16) uint64_t chunks[Config::kIsRenorm ? 2 : kMostChunks];  // their sums
    uint32_t listed;
    SearchScratch<kThreads> search;
    uint64_t maxima[kThreads / kWaveSize], sums[kThreads / kWaveSize];
  };

  /// A row as a workgroup sees it.
  struct Row {
    const Element* data;
    int64_t index;
    Limits limits;
    float min_p;
  };

  /// Whether there is such a row; then its limits.
  __device__ static bool find(const Args& args, Row& row) {
    row.index = workgroup_index().y;
    const int64_t source = args.indices ? args.indices[row.index] : row.index;
    if (source < 0 || source >= args.probs_rows) return false;
    row.data = args.probs.row(source);
    const int64_t k = args.top_k.at(row.index);
    row.limits.count = k <= 0 || k >= args.slices.size ? kNoCount : static_cast<uint32_t>(k);
    row.limits.mass = Limits::mass_of(args.top_p.at(row.index));
    const float min_p = args.min_p.at(row.index);
    row.min_p = min_p > 0.f ? min_p < 1.f ? min_p : 1.f : 0.f;
    return true;
  }

  /// Adds row[begin, end) to the histogram of a level, which is clear; ends with a barrier.
  __device__ __forceinline__ static void count_row(const Args& args, const Row& row, const Level& level, const Cut& cut,
                                                   int begin, int end, Histogram& histogram) {
    scan_elements<kThreads>(row.data, begin, end,
                            [&](int, float x) { count_key(histogram, level, cut, probability_key(x)); });
    workgroup_barrier();
  }

  /// The key of the largest element of row[begin, end), in every work-item.
  __device__ __forceinline__ static uint32_t largest(const Row& row, int begin, int end, Lds& lds) {
    uint32_t maximum = 0;
    scan_elements<kThreads>(row.data, begin, end, [&](int, float x) {
      const uint32_t key = probability_key(x);
      maximum = key > maximum ? key : maximum;
    });
    return static_cast<uint32_t>(workgroup_best<kThreads>(maximum, lds.maxima));
  }

  /// The cut of a whole row, from a cut by the first level on, by walks of the row.
  __device__ __forceinline__ static Cut search_row(const Args& args, const Row& row, Cut cut, Lds& lds) {
#pragma unroll 1
    for (int number = 1; number < kLevels && !cut.is_done; ++number) {
      const Level level(number, args.slices.size);
      clear<kThreads>(lds.histogram);
      count_row(args, row, level, cut, 0, args.slices.size, lds.histogram);
      cut = next_cut<kThreads>(lds.histogram, level, cut, row.limits, lds.search);
    }
    return cut;
  }

  /// The same by walks of a list, which holds all that the cut may be among.
  __device__ __forceinline__ static Cut search_list(const Args& args, const Row& row, Cut cut, Lds& lds) {
#pragma unroll 1
    for (int number = 1; number < kLevels && !cut.is_done; ++number) {
      const Level level(number, args.slices.size);
      clear<kThreads>(lds.histogram);
      for (uint32_t i = thread_index(); i < lds.listed; i += kThreads)
        count_key(lds.histogram, level, cut, candidate_key(lds.list[i]));
      workgroup_barrier();
      cut = next_cut<kThreads>(lds.histogram, level, cut, row.limits, lds.search);
    }
    return cut;
  }

  /// The cut of a row of which `levels` launches have counted. The last level is searched by each workgroup; what the
  /// earlier ones gave, the launch before has left, and the first slice leaves this one where `is_kept`.
  __device__ __forceinline__ static Cut search_counted(const Args& args, const Row& row, int levels, bool is_kept,
                                                       Lds& lds) {
    if (levels == 0) return Cut::start();
    RowSearch& shared = args.searches[row.index];
    const Level level(levels - 1, args.slices.size);
    const Histogram& counted = shared.levels[levels - 1];
    constexpr int kEach = kBins / kThreads;
    uint32_t counts[kEach], lows[kEach];  // all under way at once
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int bin = thread_index() + i * kThreads;
      counts[i] = counted.counts[bin], lows[i] = counted.lows[bin];
    }
    Cut cut = levels > 1 ? shared.cuts[levels - 2] : Cut::start();
    if (!cut.is_done) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int bin = thread_index() + i * kThreads;
        lds.histogram.counts[bin] = counts[i], lds.histogram.lows[bin] = lows[i];
      }
      workgroup_barrier();
      cut = next_cut<kThreads>(lds.histogram, level, cut, row.limits, lds.search);
    }
    if (is_kept && workgroup_index().x == 0 && thread_index() == 0) shared.cuts[levels - 1] = cut;
    return cut;
  }

  /// The lowest key that is kept, given the cut and the largest key.
  __device__ static uint32_t lowest(const Row& row, const Cut& cut, uint32_t maximum) {
    const uint32_t relative = row.min_p > 0.f ? probability_key(row.min_p * bits_float(maximum)) : 0;
    const uint32_t first = cut.first > relative ? cut.first : relative;
    return first > 0 ? first : 1;
  }

  /// The sum of what is kept of row[begin, end), in units of 2^-44, in every work-item.
  __device__ __forceinline__ static uint64_t kept_mass(const Row& row, uint32_t first, int begin, int end, Lds& lds) {
    uint64_t mass = 0;
    scan_elements<kThreads>(row.data, begin, end, [&](int, float x) {
      const uint32_t key = probability_key(x);
      if (key >= first) mass += mass_of_key(key);
    });
    return mass_of_workgroup(mass, lds);
  }

  /// The sum over the workgroup, in every work-item.
  __device__ __forceinline__ static uint64_t mass_of_workgroup(uint64_t mass, Lds& lds) {
    wave_sum_before(mass);
    if (lane_index() == 0) lds.sums[wave_index()] = mass;
    workgroup_barrier();
    uint64_t total = 0;
#pragma unroll
    for (int wave = 0; wave < kThreads / kWaveSize; ++wave) total += lds.sums[wave];
    return total;
  }

  /// Writes the elements that `each` calls its argument with, as (column, Vec), for renorm_probs. `mass`: of what is
  /// kept of the row; `wide_from`: a column from which accesses are wide, if any.
  template <class Each>
  __device__ __forceinline__ static void write_kept(const Args& args, const Row& row, uint32_t first, uint64_t mass,
                                                    int wide_from, Each each) {
    Element* out = args.out.row(row.index);
    const bool is_wide = is_wide_at<kVec>(out + wide_from);
    const float scale = mass == 0 ? 0.f : kMassUnits / static_cast<float>(mass);
    each([&](int column, const auto& x) {
      float y[sizeof(x) / sizeof(float)];
#pragma unroll
      for (int e = 0; e < static_cast<int>(sizeof(x) / sizeof(float)); ++e)
        y[e] = probability_key(x[e]) >= first ? x[e] * scale : 0.f;
      store_elements(out + column, y, is_wide);
    });
  }

  /// The chunks of slice `index`; a row that a workgroup takes whole is slice 0.
  __device__ static Chunks<Element> chunks_of(const Args& args, const Row& row, int index) {
    const int begin = index * args.slices.length, left = args.slices.size - begin;
    const int end = left < args.slices.length ? args.slices.size : begin + args.slices.length;
    return {RowSplit<Element>(row.data, begin, end), args.chunk_shift};
  }

  /// Writes the token of a row by its random number and the sums of its chunks, 2^log2_chunks for each slice. For a
  /// wave.
  __device__ __forceinline__ static void draw(const Args& args, const Row& row, uint32_t first, uint64_t number,
                                              const ChunkSums& sums) {
    const ChunkPlace place = sums.find([&](uint64_t total) { return share_of(total, number); });
    const int slice = place.chunk >> args.log2_chunks, chunk = place.chunk - (slice << args.log2_chunks);
    const int token = chunks_of(args, row, slice).find(chunk, bits_float(first), place.rest);
    if (lane_index() == 0) args.tokens[row.index] = token;
  }

  /// Writes the column of the largest of the elements that `each` calls its argument with, as (column, x): the token of
  /// a row of which nothing that is kept has a mass, and which therefore keeps its largest.
  template <int kWorkItems, class Each>
  __device__ __forceinline__ static void draw_largest(const Args& args, const Row& row, Each each,
                                                      uint64_t (&scratch)[kWorkItems / kWaveSize]) {
    uint64_t best = 0;
    each([&](int column, float x) {
      const uint64_t one = x > 0.f ? candidate(float_bits(x), static_cast<uint32_t>(column)) : 0;
      best = one > best ? one : best;
    });
    best = workgroup_best<kWorkItems>(best, scratch);
    if (thread_index() == 0) args.tokens[row.index] = token(best);
  }
  /// Column 0 of a row that has nothing to be drawn.
  __device__ static int32_t token(uint64_t best) {
    return best == 0 ? 0 : static_cast<int32_t>(candidate_column(best));
  }

  /// Writes row[begin, end) of renorm_probs. `mass`: of what is kept of the row.
  __device__ __forceinline__ static void write_part(const Args& args, const Row& row, uint32_t first, uint64_t mass,
                                                    int begin, int end) {
    const RowSplit<Element> split(row.data, begin, end);
    write_kept(args, row, first, mass, begin + split.head,
               [&](auto f) { scan_row<kThreads>(row.data, begin, end, f); });
  }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ Lds lds;
    Row row;
    if (!find(args, row)) {
      if (!Config::kIsRenorm && thread_index() == 0) args.tokens[row.index] = -1;
      return;
    }
    if (row.limits.is_none()) {
      const uint32_t maximum = row.min_p > 0.f ? largest(row, 0, args.slices.size, lds) : 0;
      finish(args, row, lowest(row, Cut::start(), maximum), lds);
      return;
    }
    clear<kThreads>(lds.histogram);
    if (thread_index() == 0) lds.listed = 0;
    uint32_t maximum = 0;
    const Level level(0, args.slices.size);
    scan_elements<kThreads>(row.data, 0, args.slices.size, [&](int, float x) {
      const uint32_t key = probability_key(x);
      maximum = key > maximum ? key : maximum;
      count_key(lds.histogram, level, Cut::start(), key);
    });
    if (row.min_p > 0.f) maximum = static_cast<uint32_t>(workgroup_best<kThreads>(maximum, lds.maxima));
    workgroup_barrier();
    const Cut cut = next_cut<kThreads>(lds.histogram, level, Cut::start(), row.limits, lds.search);
    if (cut.is_done || cut.count > kListed)
      finish(args, row, lowest(row, search_row(args, row, cut, lds), maximum), lds);
    else
      finish_bin(args, row, cut, maximum, lds);
  }

  /// The sums of what is kept of chunks, which others see after a barrier.
  __device__ __forceinline__ static void sum_chunks(const Chunks<Element>& chunks, uint32_t first, uint64_t* sums) {
    const float lowest = bits_float(first);
    chunks.template sum<kThreads>([&](int, const auto& x) { return kept_mass_of(x, lowest); },
                                  [&](int chunk, uint64_t sum) { sums[chunk] = sum; });
  }
  /// Makes sums[from, to) zeros.
  __device__ static void clear_sums(uint64_t* sums, int from, int to) {
    for (int chunk = from + thread_index(); chunk < to; chunk += kThreads) sums[chunk] = 0;
  }

  /// The result of a whole row, given the lowest key that is kept.
  __device__ __forceinline__ static void finish(const Args& args, const Row& row, uint32_t first, Lds& lds) {
    if constexpr (Config::kIsRenorm) {
      write_part(args, row, first, kept_mass(row, first, 0, args.slices.size, lds), 0, args.slices.size);
    } else {
      const Chunks<Element> chunks = chunks_of(args, row, 0);
      sum_chunks(chunks, first, lds.chunks);
      clear_sums(lds.chunks, chunks.count, ChunkSums::rounded(chunks.count));
      workgroup_barrier();
      draw_whole(args, row, first, chunks.count, lds);
    }
  }

  /// Writes the token of a row by the sums of its chunks in LDS, which all work-items see.
  __device__ __forceinline__ static void draw_whole(const Args& args, const Row& row, uint32_t first, int count,
                                                    Lds& lds) {
    const ChunkSums sums(lds.chunks, ChunkSums::rounded(count));
    if (sums.are_zero())
      draw_largest<kThreads>(
          args, row, [&](auto f) { scan_elements<kThreads>(row.data, 0, args.slices.size, f); }, lds.maxima);
    else if (wave_index() == 0)
      draw(args, row, first, Draw(args.seeds, row.index).number(), sums);
  }

  /// The result of a whole row whose cut is among the few elements of a bin.
  __device__ __forceinline__ static void finish_bin(const Args& args, const Row& row, const Cut& cut, uint32_t maximum,
                                                    Lds& lds) {
    constexpr uint32_t kInfinity = 0x7F800000u;
    const uint32_t bin = cut.first >> cut.shift, low = bin == 0 ? 1 : bin << cut.shift, above = (bin + 1) << cut.shift;
    const uint32_t sure = lowest(row, Cut{above}, maximum), keys = low == kInfinity ? 1 : above - low;
    const auto list = [&](int column, float x) {
      const uint32_t key = float_bits(x);
      if (key - low < keys) lds.list[lds_add(&lds.listed, 1)] = candidate(key, static_cast<uint32_t>(column));
    };
    const auto each_listed = [&](uint32_t first, auto f) {
      for (uint32_t i = thread_index(); i < lds.listed; i += kThreads) {
        const uint64_t one = lds.list[i];
        if (candidate_key(one) >= first)
          f(static_cast<int>(candidate_column(one)), mass_of_key(candidate_key(one)));
      }
    };
    if constexpr (Config::kIsRenorm) {
      uint64_t mass = 0;
      scan_elements<kThreads>(row.data, 0, args.slices.size, [&](int column, float x) {
        list(column, x);
        const uint32_t key = probability_key(x);
        if (key >= sure) mass += mass_of_key(key);
      });
      workgroup_barrier();
      const uint32_t first = lowest(row, search_list(args, row, cut, lds), maximum);
      each_listed(first, [&](int, uint64_t one) { mass += one; });
      write_part(args, row, first, mass_of_workgroup(mass, lds), 0, args.slices.size);
    } else {
      const Chunks<Element> chunks = chunks_of(args, row, 0);
      const float sure_one = bits_float(sure), low_one = bits_float(low);
      chunks.template sum<kThreads>(
          [&](int column, const auto& x) {
            constexpr int kCount = sizeof(x) / sizeof(float);
            if (!is_any_from(low_one, x)) return uint64_t{0};
#pragma unroll
            for (int e = 0; e < kCount; ++e) list(column + e, x[e]);
            return kept_mass_of(x, sure_one);
          },
          [&](int chunk, uint64_t sum) { lds.chunks[chunk] = sum; });
      clear_sums(lds.chunks, chunks.count, ChunkSums::rounded(chunks.count));
      workgroup_barrier();
      const uint32_t first = lowest(row, search_list(args, row, cut, lds), maximum);
      each_listed(first, [&](int column, uint64_t one) { lds_add(&lds.chunks[chunks.chunk_of(column)], one); });
      workgroup_barrier();
      draw_whole(args, row, first, chunks.count, lds);
    }
  }

  /// A launch for slices: level `number` of the search, and with the first the largest element.
  __device__ __forceinline__ static void run_level(const Args& args, int number) {
    __shared__ Lds lds;
    Row row;
    if (!find(args, row)) return;
    const int begin = args.slices.begin(), end = args.slices.end();
    RowSearch& shared = args.searches[row.index];
    if (number == 0 && row.min_p > 0.f) {
      const uint32_t maximum = largest(row, begin, end, lds);
      if (thread_index() == 0) atomic_max(&shared.maximum, maximum);
    }
    if (row.limits.is_none()) return;
    const Cut cut = search_counted(args, row, number, true, lds);
    if (cut.is_done) return;
    clear<kThreads>(lds.histogram);
    count_row(args, row, Level(number, args.slices.size), cut, begin, end, lds.histogram);
    Histogram& level = shared.levels[number];
    for (int i = thread_index(); i < kBins; i += kThreads) {
      if (lds.histogram.counts[i] != 0) global_add(&level.counts[i], lds.histogram.counts[i]);
      if (lds.histogram.lows[i] != 0) global_add(&level.lows[i], lds.histogram.lows[i]);
    }
  }

  /// A launch for slices of renorm_probs: the sum of what is kept.
  __device__ __forceinline__ static void run_mass(const Args& args) {
    __shared__ Lds lds;
    Row row;
    if (!find(args, row)) return;
    Cut cut = Cut::start();
    if (!row.limits.is_none()) cut = search_counted(args, row, kLevels, true, lds);
    const uint32_t first = lowest(row, cut, args.searches[row.index].maximum);
    const uint64_t mass = kept_mass(row, first, args.slices.begin(), args.slices.end(), lds);
    if (thread_index() == 0) global_add(&args.searches[row.index].mass, mass);
  }

  /// A launch for slices: the result of one; of sampling_from_probs the sums of its chunks.
  __device__ __forceinline__ static void run_slice(const Args& args) {
    __shared__ Lds lds;
    Row row;
    if (!find(args, row)) return;
    Cut cut = Cut::start();
    if (!row.limits.is_none())
      cut = Config::kIsRenorm ? args.searches[row.index].cuts[kLevels - 1]  // run_mass has left it
                              : search_counted(args, row, kLevels, false, lds);
    const RowSearch* shared = args.searches ? args.searches + row.index : nullptr;
    const uint32_t first = lowest(row, cut, shared ? shared->maximum : 0);
    if constexpr (Config::kIsRenorm) {
      write_part(args, row, first, shared->mass, args.slices.begin(), args.slices.end());
    } else {
      const int slice = workgroup_index().x, first_chunk = slice << args.log2_chunks;
      uint64_t* const of_row = args.sums + row.index * (2 + args.sums_of_row);
      const Chunks<Element> chunks = chunks_of(args, row, slice);
      sum_chunks(chunks, first, of_row + 2 + first_chunk);
      const bool is_last = args.slices.end() == args.slices.size;
      clear_sums(of_row + 2, first_chunk + chunks.count,
                 is_last ? args.sums_of_row : first_chunk + (1 << args.log2_chunks));
      if (slice != 0 || thread_index() != kThreads - 1) return;  // its wave has no chunk more than others
      of_row[0] = first;
      of_row[1] = Draw(args.seeds, row.index).number();
    }
  }

  /// The last launch for slices of sampling_from_probs: the token of a row, by a wave.
  __device__ __forceinline__ static void run_draw(const Args& args) {
    __shared__ uint64_t scratch[1];
    Row row;
    if (!find(args, row)) {
      if (thread_index() == 0) args.tokens[row.index] = -1;
      return;
    }
    const uint64_t* const of_row = args.sums + row.index * (2 + args.sums_of_row);
    const ChunkSums sums(of_row + 2, args.sums_of_row);
    if (sums.are_zero())
      draw_largest<kWaveSize>(
          args, row, [&](auto f) { scan_elements<kWaveSize>(row.data, 0, args.slices.size, f); }, scratch);
    else
      draw(args, row, static_cast<uint32_t>(of_row[0]), of_row[1], sums);
  }
};

}  // namespace aiter_like
