// SPDX-License-Identifier: MIT
// The search of filter_body.h by the workgroups of a cluster, which hold a row in their LDS (held_slice.h): it is read
// from memory once, and there is one launch. Only where kHasClusters is true.
//
//   1. a walk for the largest element and the sum of all, and from these a bound: a key that is not above the cut.
//      - top-k: k lanes have an element each that is at least the k-th largest of the lanes' maxima, in any workgroup
//      - top-p: what is below ε sums to less than ε times the columns; is that half of what p leaves of the sum, then
//        the elements from ε on, too, sum to more than p. Half, since the search's sums are rounded
//   2. with few elements expected from the bound on, all of them are listed in the first workgroup's LDS: it finds the
//      cut alone, and the sum of what is kept, or the token, among these
//   3. else histograms of them, which the first workgroup has added up in its own, and a list of one bin; then a walk
//      for the sum, of a draw in chunks
//   4. a walk that writes what is kept, or one of the chunk that has the token, by its workgroup
//
// The bound is rounded down to a bin of the first level: the bins from the cut's on hold all of their elements, and the
// search never looks at those below. So the cut is that of filter_body.h, bit for bit.
// Barriers of the cluster come after what others' LDS was read for has arrived: those with own would not wait for it.
// LDS: 33 KB and the slice. Bound: memory, one read of the row, and one write for renorm_probs.
#pragma once

#include "filter_body.h"
#include "held_slice.h"

namespace aiter_like {

template <class Config>
struct FilterClusterBody {
  using Base = FilterBody<Config>;
  using Element = typename Config::Element;
  using Args = FilterArgs<Config>;
  using Row = typename Base::Row;
  static constexpr int kThreads = Base::kThreads, kListed = 2048, kWaves = kThreads / kWaveSize;
  static constexpr uint32_t kFew = 256;  // k of top-k, of which a workgroup's lanes give a bound
  using Slice = HeldSlice<Element, kThreads>;

  /// A draw's data, in the place of the histogram.
  struct Inversion {
    alignas(16) uint64_t chunks[kMostChunks];  // the workgroup's slice's; a list's, of as many columns each
    uint32_t members[kListed], count;  // places in the list of what a chunk has
    ChunkPlace place;
  };
  struct Lds {
    union {
      Histogram histogram;
      Inversion inversion;
    };
    SearchScratch<kThreads> search;
    uint64_t maxima[kWaves], masses[kWaves];
    float sums[kWaves];
    // The workgroup's, for all:
    uint64_t bound_and_maximum, sum, mass;
    // The first workgroup's, from all:
    uint64_t list[kListed];  // key and complemented column
    uint64_t listed, bests[kMostOfCluster];
    // From the first workgroup:
    uint64_t first_and_count, shift_and_done, kept_mass;
  };

  __device__ static bool is_first() { return workgroup_index().x == 0; }

  __device__ __forceinline__ static void run(const Args& args) {
    __shared__ Lds lds;
    Row row;
    if (!Base::find(args, row)) {
      if (!Config::kIsRenorm && is_first() && thread_index() == 0) args.tokens[row.index] = -1;
      return;
    }
    const Slice slice(row.data, args.slices, dynamic_lds());
    slice.read();
    if (thread_index() == 0) lds.listed = 0;
    clear<kThreads>(lds.histogram);
    await_copies();
    const bool is_limited = !row.limits.is_none();
    uint32_t bound = 0, maximum = 0;
    if (is_limited || row.min_p > 0.f)
      survey(args, row, slice, bound, maximum, lds);
    else
      cluster_barrier();  // all have begun
    if (row.limits.count <= kFew) {
      const uint32_t listed = gather(slice, [&](uint32_t key) { return key != 0 && key >= bound; }, lds);
      cluster_barrier();  // all have read how many there are
      if (listed <= kListed) {
        finish_list(args, row, slice, maximum, listed, lds);
        return;
      }
      if (is_first() && thread_index() == 0) lds.listed = 0;
    }
    Cut cut = Cut::start();
    if (is_limited) cut = search(args, row, slice, bound, lds);
    const uint32_t first = Base::lowest(row, cut, maximum);
    if constexpr (Config::kIsRenorm) {
      const uint64_t mass = mass_of_row(args, slice, first, lds);
      cluster_arrive();
      Base::write_kept(args, row, first, mass, slice.split.column(0), [&](auto f) { slice.each(f); });
      cluster_wait();
    } else {
      draw(args, row, slice, first, lds);
    }
  }

 private:
  /// The key of the row's largest element, and a key that is not above the cut; ends with a barrier of the cluster.
  __device__ __forceinline__ static void survey(const Args& args, const Row& row, const Slice& slice, uint32_t& bound,
                                                uint32_t& maximum, Lds& lds) {
    uint32_t most = 0;
    float sum = 0.f;
    slice.each_element([&](int, float x) {
      const uint32_t key = probability_key(x);
      most = key > most ? key : most;
      sum += key != 0 ? x : 0.f;
    });
    if (row.limits.count <= kFew) bound = bound_of_lanes(args, row, most, lds);
    const uint32_t of_slice = static_cast<uint32_t>(workgroup_best<kThreads>(most, lds.maxima));
    const float sum_of_slice = workgroup_sum<kThreads>(sum, lds.sums);
    if (thread_index() == 0) {
      lds.bound_and_maximum = uint64_t{bound} << 32 | of_slice;
      lds.sum = float_bits(sum_of_slice);
    }
    cluster_barrier();
    float total = 0.f;
    for (uint32_t rank = 0; rank < args.cluster; ++rank) {
      const uint64_t one = load_of_peer(&lds.bound_and_maximum, rank);
      const uint32_t its_bound = static_cast<uint32_t>(one >> 32), its_maximum = static_cast<uint32_t>(one);
      bound = its_bound > bound ? its_bound : bound;
      maximum = its_maximum > maximum ? its_maximum : maximum;
      total += bits_float(static_cast<uint32_t>(load_of_peer(&lds.sum, rank)));
    }
    if (row.limits.mass == kNoMass) return;
    const float rest = total - static_cast<float>(row.limits.mass) * (1.f / kMassUnits);
    if (!(rest > 0x1p-10f && total < 2.f)) return;  // sums of rows that are no probabilities are left to the search
    const uint32_t of_sum = float_bits(0.5f * rest / static_cast<float>(args.slices.size)) & ~0xFFFFFu;
    bound = of_sum > bound ? of_sum : bound;
  }

  /// The bin of the k-th largest of the lanes' maxima; 0 where fewer lanes have one. The histogram is clear before and
  /// after.
  __device__ __forceinline__ static uint32_t bound_of_lanes(const Args& args, const Row& row, uint32_t most, Lds& lds) {
    const Level level(0, args.slices.size);
    if (most != 0) lds_add(&lds.histogram.counts[level.bin(most)], 1);
    workgroup_barrier();
    const Cut cut =
        next_cut<kThreads>(lds.histogram, level, Cut::start(), Limits{row.limits.count, kNoMass}, lds.search);
    clear<kThreads>(lds.histogram);
    return cut.count_above + cut.count >= row.limits.count ? cut.first : 0;
  }

  /// Has f's elements listed by the first workgroup; ends with a barrier of the cluster. Returns how many there are: no
  /// more than kListed are kept.
  template <class F>
  __device__ __forceinline__ static uint32_t gather(const Slice& slice, F is_wanted, Lds& lds) {
    uint32_t* const listed = reinterpret_cast<uint32_t*>(&lds.listed);
    slice.each_element([&](int column, float x) {
      const uint32_t key = probability_key(x);
      if (!is_wanted(key)) return;
      const uint32_t place = fetch_add_of_peer(listed, 0, 1);
      if (place < kListed) store_of_peer(&lds.list[place], 0, candidate(key, static_cast<uint32_t>(column)));
    });
    cluster_barrier();
    return static_cast<uint32_t>(load_of_peer(&lds.listed, 0));
  }

  /// Tells all what the first workgroup has found; ends with a barrier of the cluster.
  __device__ __forceinline__ static Cut shared_cut(const Args& args, const Cut& found, Lds& lds) {
    if (is_first() && thread_index() < static_cast<int>(args.cluster)) {
      const uint32_t rank = thread_index();
      store_of_peer(&lds.first_and_count, rank, uint64_t{found.first} << 32 | found.count);
      store_of_peer(&lds.shift_and_done, rank, uint64_t{found.shift} << 32 | found.is_done);
    }
    cluster_barrier();
    Cut cut = found;
    cut.first = static_cast<uint32_t>(lds.first_and_count >> 32);
    cut.count = static_cast<uint32_t>(lds.first_and_count);
    cut.shift = static_cast<uint32_t>(lds.shift_and_done >> 32);
    cut.is_done = static_cast<uint32_t>(lds.shift_and_done) != 0;
    return cut;
  }

  /// The cut, in the first workgroup, of a list that holds all that it may be among.
  __device__ __forceinline__ static Cut search_list(const Args& args, const Row& row, Cut cut, int number,
                                                    uint32_t listed, Lds& lds) {
#pragma unroll 1
    for (; number < kLevels && !cut.is_done; ++number) {
      const Level level(number, args.slices.size);
      clear<kThreads>(lds.histogram);
      for (uint32_t i = thread_index(); i < listed; i += kThreads)
        count_key(lds.histogram, level, cut, candidate_key(lds.list[i]));
      workgroup_barrier();
      cut = next_cut<kThreads>(lds.histogram, level, cut, row.limits, lds.search);
    }
    return cut;
  }

  /// The cut of the row, whose first three fields are right in all workgroups.
  __device__ __forceinline__ static Cut search(const Args& args, const Row& row, const Slice& slice, uint32_t bound,
                                               Lds& lds) {
    Cut cut = Cut::start();
#pragma unroll 1
    for (int number = 0; number < kLevels && !cut.is_done; ++number) {
      const Level level(number, args.slices.size);
      slice.each_element([&](int, float x) {
        const uint32_t key = probability_key(x);
        if (key >= bound) count_key(lds.histogram, level, cut, key);
      });
      workgroup_barrier();
      if (!is_first()) {
        for (int i = thread_index(); i < level.bins; i += kThreads) {
          const uint32_t count = lds.histogram.counts[i], low = lds.histogram.lows[i];
          if (count != 0) add_of_peer(&lds.histogram.counts[i], 0, count);
          if (low != 0) add_of_peer(&lds.histogram.lows[i], 0, low);
        }
      }
      cluster_barrier();
      if (is_first()) cut = next_cut<kThreads>(lds.histogram, level, cut, row.limits, lds.search);
      clear<kThreads>(lds.histogram);
      cut = shared_cut(args, cut, lds);
      if (cut.is_done || cut.count > kListed) continue;
      const uint32_t listed =
          gather(slice, [&](uint32_t key) { return key != 0 && key >> cut.shift == cut.first >> cut.shift; }, lds);
      if (is_first()) cut = search_list(args, row, cut, number + 1, listed, lds);
      return shared_cut(args, cut, lds);
    }
    return cut;
  }

  /// The result of a row of which the first workgroup has listed all that may be kept.
  __device__ __forceinline__ static void finish_list(const Args& args, const Row& row, const Slice& slice,
                                                     uint32_t maximum, uint32_t listed, Lds& lds) {
    uint32_t first = 0;
    if (is_first()) first = Base::lowest(row, search_list(args, row, Cut::start(), 0, listed, lds), maximum);
    if constexpr (Config::kIsRenorm) {
      if (is_first()) {
        uint64_t mass = 0;
        for (uint32_t i = thread_index(); i < listed; i += kThreads) {
          const uint32_t key = candidate_key(lds.list[i]);
          if (key >= first) mass += mass_of_key(key);
        }
        mass = workgroup_mass(mass, lds);
        if (thread_index() < static_cast<int>(args.cluster)) {
          store_of_peer(&lds.first_and_count, thread_index(), first);
          store_of_peer(&lds.kept_mass, thread_index(), mass);
        }
      }
      cluster_barrier();
      Base::write_kept(args, row, static_cast<uint32_t>(lds.first_and_count), lds.kept_mass, slice.split.column(0),
                       [&](auto f) { slice.each(f); });
    } else {
      if (is_first()) draw_listed(args, row, first, listed, lds);
    }
  }

  /// Writes the token: by the workgroup whose slice has it. All have passed a barrier of the cluster since the search.
  __device__ __forceinline__ static void draw(const Args& args, const Row& row, const Slice& slice, uint32_t first,
                                              Lds& lds) {
    Chunks<Element> chunks(slice.split, args.chunk_shift);
    chunks.vectors = slice.vectors;
    Base::sum_chunks(chunks, first, lds.inversion.chunks);
    Base::clear_sums(lds.inversion.chunks, chunks.count, ChunkSums::rounded(chunks.count));
    workgroup_barrier();
    const ChunkSums sums(lds.inversion.chunks, ChunkSums::rounded(chunks.count));
    const uint64_t mass = wave_total(sums.own);
    if (thread_index() == 0) lds.mass = mass;
    cluster_barrier();
    uint64_t total = 0, before = 0;
    for (uint32_t rank = 0; rank < args.cluster; ++rank) {
      if (rank == workgroup_index().x) before = total;
      total += load_of_peer(&lds.mass, rank);
    }
    cluster_arrive();
    if (total == 0) {
      draw_largest(args, row, slice, lds);
      return;
    }
    const uint64_t wanted = share_of(total, Draw(args.seeds, row.index).number());
    if (wave_index() == 0 && before <= wanted && wanted - before < mass) {
      const ChunkPlace place = sums.find([&](uint64_t) { return wanted - before; });
      const int token = chunks.find(place.chunk, bits_float(first), place.rest);
      if (lane_index() == 0) args.tokens[row.index] = token;
    }
    cluster_wait();
  }

  /// The token of a row of which nothing that is kept has a mass; ends the barrier of the cluster that has begun.
  __device__ __forceinline__ static void draw_largest(const Args& args, const Row& row, const Slice& slice, Lds& lds) {
    uint64_t best = 0;
    slice.each_element([&](int column, float x) {
      const uint64_t one = x > 0.f ? candidate(float_bits(x), static_cast<uint32_t>(column)) : 0;
      best = one > best ? one : best;
    });
    best = workgroup_best<kThreads>(best, lds.maxima);
    cluster_wait();
    if (thread_index() == 0) store_of_peer(&lds.bests[workgroup_index().x], 0, best);
    cluster_barrier();
    if (!is_first() || thread_index() != 0) return;
    for (uint32_t rank = 0; rank < args.cluster; ++rank) best = lds.bests[rank] > best ? lds.bests[rank] : best;
    args.tokens[row.index] = Base::token(best);
  }

  /// Writes the token, one of the kept elements of the list.
  __device__ __forceinline__ static void draw_listed(const Args& args, const Row& row, uint32_t first, uint32_t listed,
                                                     Lds& lds) {
    const auto each_kept = [&](auto f) {
      for (uint32_t i = thread_index(); i < listed; i += kThreads)
        if (candidate_key(lds.list[i]) >= first) f(i, candidate_column(lds.list[i]), mass_at(lds, i));
    };
    int log2 = 0;  // logarithm of the columns of a chunk
    while (args.slices.size > kMostChunks << log2) ++log2;
    Base::clear_sums(lds.inversion.chunks, 0, kMostChunks);
    if (thread_index() == 0) lds.inversion.count = 0;
    workgroup_barrier();
    each_kept([&](uint32_t, uint32_t column, uint64_t mass) { lds_add(&lds.inversion.chunks[column >> log2], mass); });
    workgroup_barrier();
    const ChunkSums sums(lds.inversion.chunks, kMostChunks);
    if (sums.are_zero()) {
      uint64_t best = 0;
      each_kept([&](uint32_t i, uint32_t, uint64_t) { best = lds.list[i] > best ? lds.list[i] : best; });
      best = workgroup_best<kThreads>(best, lds.maxima);
      if (thread_index() == 0) args.tokens[row.index] = Base::token(best);
      return;
    }
    if (wave_index() == 0) {
      const uint64_t number = Draw(args.seeds, row.index).number();
      const ChunkPlace place = sums.find([&](uint64_t total) { return share_of(total, number); });
      if (lane_index() == 0) lds.inversion.place = place;
    }
    workgroup_barrier();
    const ChunkPlace place = lds.inversion.place;
    each_kept([&](uint32_t i, uint32_t column, uint64_t) {
      if (static_cast<int>(column >> log2) == place.chunk) lds.inversion.members[lds_add(&lds.inversion.count, 1)] = i;
    });
    workgroup_barrier();
    const uint32_t count = lds.inversion.count;
    for (uint32_t i = thread_index(); i < count; i += kThreads) {
      const uint32_t own = lds.inversion.members[i], column = candidate_column(lds.list[own]);
      uint64_t before = 0;
      for (uint32_t k = 0; k < count; ++k) {
        const uint32_t other = lds.inversion.members[k];
        if (candidate_column(lds.list[other]) < column) before += mass_at(lds, other);
      }
      if (before <= place.rest && place.rest - before < mass_at(lds, own))
        args.tokens[row.index] = static_cast<int32_t>(column);
    }
  }
  __device__ static uint64_t mass_at(const Lds& lds, uint32_t place) {
    return mass_of_key(candidate_key(lds.list[place]));
  }

  /// The sum over the workgroup, in every work-item.
  __device__ __forceinline__ static uint64_t workgroup_mass(uint64_t mass, Lds& lds) {
    wave_sum_before(mass);
    if (lane_index() == 0) lds.masses[wave_index()] = mass;
    workgroup_barrier();
    uint64_t total = 0;
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) total += lds.masses[wave];
    return total;
  }

  /// The sum of what is kept of the row, in units of 2^-44, in all workgroups; the caller's next barrier of the cluster
  /// must come before it ends.
  __device__ __forceinline__ static uint64_t mass_of_row(const Args& args, const Slice& slice, uint32_t first,
                                                         Lds& lds) {
    uint64_t mass = 0;
    slice.each_element([&](int, float x) {
      const uint32_t key = probability_key(x);
      if (key >= first) mass += mass_of_key(key);
    });
    mass = workgroup_mass(mass, lds);
    if (thread_index() == 0) lds.mass = mass;
    cluster_barrier();
    uint64_t whole = 0;
    for (uint32_t rank = 0; rank < args.cluster; ++rank) whole += load_of_peer(&lds.mass, rank);
    return whole;
  }
};

}  // namespace aiter_like
