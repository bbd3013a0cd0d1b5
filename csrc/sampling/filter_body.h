// SPDX-License-Identifier: MIT
// Rows of probabilities of which the largest are kept: fewer than k above the last of them (top-k), a sum below p above
// it (top-p), none below min_p times the largest. renorm_probs writes them divided by their sum, zeros elsewhere;
// sampling_from_probs draws one of them, as the winner of a race: argmax of x / E, E exponential. HIP (gfx9) and CUDA.
//
//   1. a histogram by threshold.h's first level tells in which bin the cut is, and with min_p a maximum the largest
//   2. what is above that bin is kept: it is summed, or takes part in the race, in a walk that lists the bin's elements
//      in LDS, where the further levels are searched. For a bin of more than kListed, these are further walks
//   3. renorm_probs walks the row once more, to write it
//
// Where there are more rows than a workgroup for each CU needs, a workgroup takes a row and does all of it. Fewer rows
// are cut into slices: a launch for each level, whose workgroups add their histograms in memory, in integers, and one
// launch for the result. On sm_90 a cluster holds the row and reads it once (filter_cluster.h). The cut is the same, to
// the bit.
// Tile: kThreads lanes, 4 accesses of 16 bytes in flight each. LDS: 25 KB.
// Bound: memory, 2 reads of the row, 3 and a write for renorm_probs (sliced: up to 5, from a cache), and LDS atomics:
// two per positive element in one read.
#pragma once

#include "draws.h"
#include "threshold.h"

namespace aiter_like {

/// What the workgroups of a row share where it is cut into slices; zeros before the first launch.
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
  uint64_t* best;             // [rows, slices], of slices
  Slices slices;
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
    uint32_t listed;
    SearchScratch<kThreads> search;
    uint64_t best[kThreads / kWaveSize], maxima[kThreads / kWaveSize], sums[kThreads / kWaveSize];
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

  /// The winner of the race of what is kept of the elements that `each` gives to the work-item: single ones in any
  /// order, vectors with rising columns.
  template <class Each>
  __device__ __forceinline__ static uint64_t race(const Args& args, const Row& row, uint32_t first, Each each) {
    const Draw draw(args.seeds, row.index);
    uint64_t best = 0;
    float most = -1.f;  // of the vectors; a comparison of floats is cheaper
    int place = 0;
    each([&](int column, const auto& x) {
      constexpr int kCount = sizeof(x) / sizeof(float);
      bool is_any = false;
#pragma unroll
      for (int e = 0; e < kCount; ++e) is_any = is_any || probability_key(x[e]) >= first;
      if (!is_any) return;
      const auto words = draw.template words<kCount>(column);
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        if (probability_key(x[e]) < first) continue;
        const float score = x[e] * fast_reciprocal(exponential_of(words[e]));
        if constexpr (kCount == 1) {
          const uint64_t one = candidate(ordered_key(score), static_cast<uint32_t>(column));
          best = one > best ? one : best;
        } else {
          place = score > most ? column + e : place;
          most = score > most ? score : most;
        }
      }
    });
    const uint64_t one = candidate(ordered_key(most), static_cast<uint32_t>(place));
    return most >= 0.f && one > best ? one : best;
  }

  /// The result of row[begin, end). `mass`: of what is kept of the row, for renorm_probs.
  __device__ __forceinline__ static void apply(const Args& args, const Row& row, uint32_t first, uint64_t mass,
                                               int begin, int end, Lds& lds) {
    const auto each = [&](auto f) { scan_row<kThreads>(row.data, begin, end, f); };
    if constexpr (Config::kIsRenorm) {
      const RowSplit<Element> split(row.data, begin, end);
      write_kept(args, row, first, mass, begin + split.head, each);
    } else {
      const uint64_t best = workgroup_best<kThreads>(race(args, row, first, each), lds.best);
      if (thread_index() != 0) return;
      if (args.best)
        args.best[row.index * count(args) + workgroup_index().x] = best;
      else
        args.tokens[row.index] = token(best);
    }
  }

  /// Column 0 of a row that has nothing to be drawn.
  __device__ static int32_t token(uint64_t best) {
    return best == 0 ? 0 : static_cast<int32_t>(candidate_column(best));
  }
  __device__ static int64_t count(const Args& args) {
    return (args.slices.size + args.slices.length - 1) / args.slices.length;
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

  /// The result of a whole row, given the lowest key that is kept.
  __device__ __forceinline__ static void finish(const Args& args, const Row& row, uint32_t first, Lds& lds) {
    const uint64_t mass = Config::kIsRenorm ? kept_mass(row, first, 0, args.slices.size, lds) : 0;
    apply(args, row, first, mass, 0, args.slices.size, lds);
  }

  /// The result of a whole row whose cut is among the few elements of a bin.
  __device__ __forceinline__ static void finish_bin(const Args& args, const Row& row, const Cut& cut, uint32_t maximum,
                                                    Lds& lds) {
    const uint32_t bin = cut.first >> cut.shift, sure = lowest(row, Cut{(bin + 1) << cut.shift}, maximum);
    const auto list = [&](int column, float x) {
      const uint32_t key = probability_key(x);
      if (key != 0 && key >> cut.shift == bin)
        lds.list[lds_add(&lds.listed, 1)] = candidate(key, static_cast<uint32_t>(column));
    };
    const auto each_listed = [&](auto f) {
      for (uint32_t i = thread_index(); i < lds.listed; i += kThreads) {
        const uint64_t one = lds.list[i];
        f(static_cast<int>(candidate_column(one)), Vec<float, 1>{{bits_float(candidate_key(one))}});
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
      each_listed([&](int, const auto& x) {
        const uint32_t key = probability_key(x[0]);
        if (key >= first) mass += mass_of_key(key);
      });
      apply(args, row, first, mass_of_workgroup(mass, lds), 0, args.slices.size, lds);
    } else {
      const uint64_t above = race(args, row, sure, [&](auto f) {
        scan_row<kThreads>(row.data, 0, args.slices.size, [&](int column, const auto& x) {
#pragma unroll
          for (int e = 0; e < static_cast<int>(sizeof(x) / sizeof(float)); ++e) list(column + e, x[e]);
          f(column, x);
        });
      });
      workgroup_barrier();
      const uint64_t below = race(args, row, lowest(row, search_list(args, row, cut, lds), maximum), each_listed);
      const uint64_t best = workgroup_best<kThreads>(above > below ? above : below, lds.best);
      if (thread_index() == 0) args.tokens[row.index] = token(best);
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

  /// The last launch for slices: the result of one.
  __device__ __forceinline__ static void run_slice(const Args& args) {
    __shared__ Lds lds;
    Row row;
    if (!find(args, row)) {
      if (!Config::kIsRenorm && thread_index() == 0)
        args.best[row.index * count(args) + workgroup_index().x] = candidate(1, 0xFFFFFFFFu);  // token -1
      return;
    }
    Cut cut = Cut::start();
    if (!row.limits.is_none())
      cut = Config::kIsRenorm ? args.searches[row.index].cuts[kLevels - 1]  // run_mass has left it
                              : search_counted(args, row, kLevels, false, lds);
    const RowSearch* shared = args.searches ? args.searches + row.index : nullptr;
    const uint32_t first = lowest(row, cut, shared ? shared->maximum : 0);
    apply(args, row, first, Config::kIsRenorm ? shared->mass : 0, args.slices.begin(), args.slices.end(), lds);
  }
};

}  // namespace aiter_like
