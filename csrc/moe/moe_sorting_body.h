// SPDX-License-Identifier: MIT
// Pairs of token and expert, sorted by experts and within an expert by tokens; each expert's are padded to whole
// blocks. HIP (gfx9) and CUDA. A Config holds the size of the tables, the type of experts' numbers and the form of what
// is written: moe_sorting.hip has packed pairs with their weights, moe_align_block_size.hip and moe_permute.hip have
// the pairs' flat numbers.
//
//   1. where there are many pairs: each workgroup counts those of its chunk, expert by expert
//   2. each adds up the counts of all chunks, or of few pairs counts all of them, and so knows where its own pairs go.
//      Its waves have a part of the chunk each, in order, and counters of their own; the pairs of a wave find their
//      ranks by ballots on the bits of their experts.
//
// Workgroups beyond the chunks set the buffer of results to zero at the same time.
// LDS: 4 bytes for each expert and wave, and 12 for each expert. Bound: latency, few microseconds; with the buffer, its
// bytes.
#pragma once

#include "aiter_like/atomics.h"
#include "aiter_like/lanes.h"

namespace aiter_like {

/// The form of a pair in the results: slot << 24 | token with its weight, or its number token · slots + slot.
enum class PairForm { kPacked, kNumber };

template <class Config>
struct MoeSortingArgs {
  int32_t* sorted_ids;             // [capacity]: pairs, in padding slots << 24 | tokens, or the number of all pairs
  int32_t* sorted_experts;         // [capacity / block]: the local expert of each block; may be null for kNumber
  int32_t* valid;                  // [2] of kPacked: padded pairs, tokens that count; [1] of kNumber, may be null
  const typename Config::Id* ids;  // [tokens, slots]
  uint32_t* counts;                // [chunks, experts]; null for one chunk
  int64_t ids_stride;
  uint32_t pairs, chunk;  // all tokens', and a workgroup's: a multiple of kThreads
  int tokens, slots, experts, block, chunks;

  // For kPacked.
  float* sorted_weights;        // [capacity], 0 in padding
  const float* weights;         // [tokens, slots]
  const int32_t* mask;          // [experts]: 0 where an expert is another device's; null: all are here
  const int32_t* local_tokens;  // [1]: tokens that count; null: all
  int32_t* local_ids;           // [tokens, slots]: the local expert of each pair, -1 where it does not count; or null
  uint32_t* buffer;             // words to be set to zero, or null
  int64_t weights_stride, buffer_words;
  uint32_t weighted;  // pairs of tokens that have weights; those of others do not count
  int clearing;       // workgroups beyond the chunks

  // For kNumber; each may be null.
  int32_t* block_pairs;  // [capacity / block]: pairs of the block's expert from this block on
  int32_t* inverse;      // [pairs]: where each pair is, or -1
  int64_t* first;        // [experts + 1]: where an expert's pairs begin
  const int32_t* map;    // [mapped]: the expert here of each number in ids; null: they are the same
  int mapped;
  int64_t places;  // places of sorted_ids that are written: those beyond the padded pairs as if padding
};

template <class Config>
struct MoeSortingBody {
  using Args = MoeSortingArgs<Config>;
  static constexpr int kExperts = Config::kExperts;
  static constexpr bool kIsPacked = Config::kForm == PairForm::kPacked;
  static constexpr int kThreads = 256, kWaves = kThreads / kWaveSize, kEach = (kExperts + kThreads - 1) / kThreads;
  static constexpr int kBits = kExperts > 256 ? 10 : 8;
  static_assert(kExperts <= 1 << kBits, "lanes with equal experts are found by their bits");

  struct Lds {
    uint32_t next[kWaves][kExperts];  // pairs of a wave, then where its next one goes
    uint32_t total[kExperts];
    uint32_t first[kExperts];         // the beginning of an expert's pairs
    uint32_t local[kExperts];         // experts that are here before it
    uint32_t sums[2][kWaves];         // a wave's experts' padded pairs, and experts that are here
  };

  __device__ static uint32_t valid_pairs(const Args& args) {
    if (!kIsPacked) return args.pairs;
    if (!args.local_tokens) return args.weighted;
    const int tokens = *args.local_tokens;
    if (tokens <= 0) return 0;
    const uint32_t pairs = tokens < args.tokens ? static_cast<uint32_t>(tokens) * static_cast<uint32_t>(args.slots)
                                                : args.pairs;
    return pairs < args.weighted ? pairs : args.weighted;
  }
  __device__ static bool is_here(const Args& args, int expert) {
    return !kIsPacked || !args.mask || args.mask[expert] != 0;
  }

  /// The expert of a pair, or -1 where it does not count: beyond the last one, of a bad number, or not here.
  __device__ static int expert_of(const Args& args, uint32_t pair, uint32_t end) {
    if (pair >= end) return -1;
    const uint32_t token = pair / static_cast<uint32_t>(args.slots), slot = pair - token * args.slots;
    typename Config::Id expert = args.ids[token * args.ids_stride + slot];
    if (!kIsPacked && args.map) expert = expert >= 0 && expert < args.mapped ? args.map[expert] : -1;
    return expert >= 0 && expert < args.experts && is_here(args, static_cast<int>(expert)) ? static_cast<int>(expert)
                                                                                         : -1;
  }

  /// The first launch: counts of a chunk.
  __device__ __forceinline__ static void run_count(const Args& args) {
    __shared__ uint32_t histogram[kExperts];
    for (int e = thread_index(); e < args.experts; e += kThreads) histogram[e] = 0;
    workgroup_barrier();
    const uint32_t begin = workgroup_index().x * args.chunk, end = valid_pairs(args);
    for (uint32_t i = thread_index(); i < args.chunk; i += kThreads) {
      const int expert = expert_of(args, begin + i, end);
      if (expert >= 0) lds_add(&histogram[expert], 1);
    }
    workgroup_barrier();
    uint32_t* counts = args.counts + int64_t{workgroup_index().x} * args.experts;
    for (int e = thread_index(); e < args.experts; e += kThreads) counts[e] = histogram[e];
  }

  /// From pairs of experts to where they begin, padded, and to numbers of experts that are here.
  __device__ static void place_experts(const Args& args, Lds& lds) {
    const int thread = thread_index();
    uint32_t padded = 0, here = 0;
    for (int i = 0; i < kEach; ++i) {
      const int e = thread * kEach + i;
      if (e >= args.experts) continue;
      lds.first[e] = padded;
      lds.local[e] = here;
      padded += (lds.total[e] + args.block - 1) / args.block * args.block;
      here += is_here(args, e);
    }
    uint32_t before = sum_up_to_lane(padded), here_before = sum_up_to_lane(here);
    if (lane_index() == kWaveSize - 1) {
      lds.sums[0][wave_index()] = before;
      lds.sums[1][wave_index()] = here_before;
    }
    before -= padded;
    here_before -= here;
    workgroup_barrier();
    for (int wave = 0; wave < wave_index(); ++wave) {
      before += lds.sums[0][wave];
      here_before += lds.sums[1][wave];
    }
    for (int i = 0; i < kEach; ++i) {
      const int e = thread * kEach + i;
      if (e >= args.experts) continue;
      lds.first[e] += before;
      lds.local[e] += here_before;
    }
    workgroup_barrier();
  }

  /// Padding and blocks of this workgroup's share of the experts, and the two numbers. Lanes look at an expert each;
  /// then the wave writes for one after the other that has pairs.
  __device__ static void write_blocks(const Args& args, Lds& lds, int chunk) {
    const int32_t none = kIsPacked ? args.slots << 24 | args.tokens : static_cast<int32_t>(args.pairs);
    const int waves = args.chunks * kWaves, lane = lane_index();
    for (int begin = chunk * kWaves + wave_index(); begin < args.experts; begin += waves * kWaveSize) {
      const int e = begin + lane * waves;
      const bool is_expert = e < args.experts;
      const int32_t own_total = is_expert ? lds.total[e] : 0, own_first = is_expert ? lds.first[e] : 0;
      const int32_t own_local = is_expert ? lds.local[e] : 0;
      const int32_t own_blocks = (own_total + args.block - 1) / args.block, own_block = own_first / args.block;
      if (!kIsPacked && args.first && is_expert) args.first[e] = own_first;
      for (uint64_t left = lanes_with(own_total > 0); left != 0; left &= left - 1) {
        const int from = lowest_lane(left);
        const int32_t total = of_lane(own_total, from), first = of_lane(own_first, from);
        const int32_t blocks = of_lane(own_blocks, from), block = of_lane(own_block, from);
        const int32_t local = of_lane(own_local, from);
        for (int32_t i = total + lane; i < blocks * args.block; i += kWaveSize) {
          args.sorted_ids[first + i] = none;
          if constexpr (kIsPacked) args.sorted_weights[first + i] = 0.f;
        }
        if (!kIsPacked && !args.sorted_experts) continue;
        for (int32_t i = lane; i < blocks; i += kWaveSize) {
          args.sorted_experts[block + i] = local;
          if (!kIsPacked && args.block_pairs) args.block_pairs[block + i] = total - i * args.block;
        }
      }
    }
    uint32_t end = 0;
    for (int wave = 0; wave < kWaves; ++wave) end += lds.sums[0][wave];
    if constexpr (!kIsPacked) {
      for (int64_t i = end + int64_t{chunk} * kThreads + thread_index(); i < args.places; i += args.chunks * kThreads)
        args.sorted_ids[i] = none;
    }
    if (chunk != 0 || thread_index() != 0) return;
    if (kIsPacked || args.valid) args.valid[0] = static_cast<int32_t>(end);
    if constexpr (kIsPacked)
      args.valid[1] = static_cast<int32_t>(valid_pairs(args) / static_cast<uint32_t>(args.slots));
    else if (args.first)
      args.first[args.experts] = end;
  }

  /// Counts the pairs of the other chunks, and those of the chunks before this one.
  __device__ static void count_others(const Args& args, Lds& lds, int chunk, uint32_t end) {
    const uint32_t begin = static_cast<uint32_t>(chunk) * args.chunk;
    for (uint32_t pair = thread_index(); pair < end; pair += kThreads) {
      if (pair - begin < args.chunk) continue;
      const int expert = expert_of(args, pair, end);
      if (expert < 0) continue;
      lds_add(&lds.total[expert], 1);
      if (pair < begin) lds_add(&lds.first[expert], 1);
    }
  }

  /// Counts the pairs of each wave's part of the chunk; then `next` is how many pairs of an expert come before those of
  /// the wave, and `total` how many it has.
  __device__ __forceinline__ static void count_pairs(const Args& args, Lds& lds, int chunk, uint32_t begin,
                                                     uint32_t end) {
    const int thread = thread_index(), wave = wave_index();
    const uint32_t part = args.chunk / kWaves;
    for (int e = thread; e < args.experts; e += kThreads) {
      for (int w = 0; w < kWaves; ++w) lds.next[w][e] = 0;
      lds.total[e] = lds.first[e] = 0;
    }
    workgroup_barrier();
    for (uint32_t i = lane_index(); i < part; i += kWaveSize) {
      const int expert = expert_of(args, begin + i, end);
      if (expert >= 0) lds_add(&lds.next[wave][expert], 1);
    }
    if (!args.counts && args.chunks > 1) count_others(args, lds, chunk, end);
    workgroup_barrier();
    for (int e = thread; e < args.experts; e += kThreads) {
      uint32_t own = 0, before = lds.first[e], total = 0;  // before: as count_others has it
      for (int w = 0; w < kWaves; ++w) {  // counts become what is before them
        const uint32_t count = lds.next[w][e];
        lds.next[w][e] = own;
        own += count;
      }
      if (args.counts) {
#pragma unroll 8
        for (int c = 0; c < args.chunks; ++c) {
          const uint32_t count = args.counts[int64_t{c} * args.experts + e];
          before += c < chunk ? count : 0;
          total += count;
        }
      } else {
        total = own + lds.total[e];
      }
      lds.total[e] = total;
      for (int w = 0; w < kWaves; ++w) lds.next[w][e] += before;
    }
    workgroup_barrier();
  }

  /// Writes the pairs of this wave's part, which begins at `begin`, to their places.
  __device__ __forceinline__ static void write_pairs(const Args& args, Lds& lds, uint32_t begin, uint32_t end) {
    const int wave = wave_index(), lane = lane_index();
    for (uint32_t step = 0; step < args.chunk / kWaves; step += kWaveSize) {
      const uint32_t pair = begin + step + lane;
      const int expert = expert_of(args, pair, end);
      const uint64_t same = lanes_like<kBits>(static_cast<uint32_t>(expert)) & lanes_with(expert >= 0);
      uint32_t place = 0;
      if (expert >= 0) place = lds.next[wave][expert] + lane_count(same & ((uint64_t{1} << lane) - 1));
      wave_barrier();
      if (expert >= 0) {
        if (same >> lane == 1) lds.next[wave][expert] = place + 1;  // the last one
        place += lds.first[expert];
        if constexpr (kIsPacked) {
          const uint32_t token = pair / static_cast<uint32_t>(args.slots), slot = pair - token * args.slots;
          args.sorted_ids[place] = static_cast<int32_t>(slot << 24 | token);
          args.sorted_weights[place] = args.weights[token * args.weights_stride + slot];
        } else {
          args.sorted_ids[place] = static_cast<int32_t>(pair);
        }
      }
      if (kIsPacked && args.local_ids && pair < args.pairs)
        args.local_ids[pair] = expert >= 0 ? static_cast<int32_t>(lds.local[expert]) : -1;
      if (!kIsPacked && args.inverse && pair < end) args.inverse[pair] = expert >= 0 ? static_cast<int32_t>(place) : -1;
      wave_barrier();
    }
  }

  /// The second launch, or the only one.
  __device__ __forceinline__ static void run_place(const Args& args) {
    __shared__ Lds lds;
    const int chunk = static_cast<int>(workgroup_index().x);
    if (kIsPacked && chunk >= args.chunks) {
      for (int64_t i = int64_t{chunk - args.chunks} * kThreads + thread_index(); i < args.buffer_words;
           i += int64_t{args.clearing} * kThreads)
        args.buffer[i] = 0;
      return;
    }
    const uint32_t end = valid_pairs(args);
    const uint32_t begin = static_cast<uint32_t>(chunk) * args.chunk + wave_index() * (args.chunk / kWaves);
    count_pairs(args, lds, chunk, begin, end);
    place_experts(args, lds);
    write_blocks(args, lds, chunk);
    write_pairs(args, lds, begin, end);
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void moe_sorting_count_kernel(typename Body::Args args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<typename Body::Args>();
#endif
  Body::run_count(args);
}

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void moe_sorting_kernel(typename Body::Args args) {
  await_stream();
#if defined(__HIP__)
  fetch_arguments<typename Body::Args>();
#endif
  Body::run_place(args);
}

/// How the pairs are shared out among workgroups, and the words of `counts` that they need. Few pairs get more
/// workgroups than they need, since these share the experts' padding and blocks.
template <class Config>
int64_t share_pairs(MoeSortingArgs<Config>& args) {
  constexpr int64_t kThreads = MoeSortingBody<Config>::kThreads, kFew = 2048, kChunk = 4 * kThreads, kMostChunks = 256;
  const auto up = [](int64_t x, int64_t step) { return (x + step - 1) / step * step; };
  const int64_t pairs = args.pairs, used = pairs < args.experts ? pairs : args.experts;
  if (pairs <= kFew) {
    const int64_t chunks = used / 16 < 1 ? 1 : used / 16 < 16 ? used / 16 : 16;
    args.chunk = static_cast<uint32_t>(up(pairs > chunks ? (pairs + chunks - 1) / chunks : 1, kThreads));
    args.chunks = static_cast<int>(chunks);
    return 0;
  }
  int64_t chunk = kChunk;
  if (pairs > chunk * kMostChunks) chunk = up(up(pairs, kMostChunks) / kMostChunks, kThreads);
  args.chunk = static_cast<uint32_t>(chunk);
  args.chunks = static_cast<int>((pairs + chunk - 1) / chunk);
  return int64_t{args.chunks} * args.experts;
}

template <class Config>
void launch_moe_sorting(const MoeSortingArgs<Config>& args, Stream stream) {
  using Body = MoeSortingBody<Config>;
  if (args.counts) {
    launch_overlapped(moe_sorting_count_kernel<Body>, dim3(static_cast<uint32_t>(args.chunks)), Body::kThreads, stream,
                      args);
    check_launch("moe_sorting_count_kernel");
  }
  launch_overlapped(moe_sorting_kernel<Body>, dim3(static_cast<uint32_t>(args.chunks + args.clearing)), Body::kThreads,
                    stream, args);
  check_launch("moe_sorting_kernel");
}

}  // namespace aiter_like
