// SPDX-License-Identifier: MIT
// What a workgroup of paged_attention does, composed from the tile library: one part of the keys of a KV head of a
// sequence, for a block of its rows.
//
// Rows are the sequence's queries times the heads of the group, 16 or 32 of them; four waves share the keys out, every
// fourth tile each. A wave loads K and V from the pages to registers, as the layout of pages asks for it
// (paged_attention_tiles.h), the next tile's while it works on one. One of both turns through LDS that is the wave's
// own, without a barrier:
//
//   tile   pages of rows             packed pages              matrix unit
//   n      K[n] → LDS, load K[n+1]                             S = K[n] qᵀ            [keys, rows]
//                                    load K[n+1]
//                                    V[n] → LDS, load V[n+1]   O += V[n]ᵀ P           after the softmax
//          load V[n+1]
//
// In the end the waves' maxima, sums and values meet in LDS, and leave as results or, where the sequence has several
// parts, as partial sums.
#pragma once

#include <type_traits>

#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/split_merge.h"
#include "paged_attention_plan.h"
#include "paged_attention_tiles.h"
#include "score_policies.h"

namespace aiter_like {

/// A scale of a cache: one number, one per page, place and head, or one per sequence and head (strides in elements, 0
/// for what it does not depend on); null for none.
struct PagedScale {
  const float* data;
  int64_t page, place, head, sequence;

  __device__ float of(int sequence_index, int kv_head) const {
    return data[sequence_index * sequence + kv_head * head];
  }
};

/// A score of each head that has no value, in the form that the caller has it; null for none.
struct PagedSinks {
  enum Form { kFloat, kBf16, kF16 };
  const void* data;
  int form;

  __device__ float of(int head) const {
    if (form == kFloat) return static_cast<const float*>(data)[head];
    if (form == kBf16) return to_float(static_cast<const bf16*>(data)[head]);
    return to_float(static_cast<const f16*>(data)[head]);
  }
};

template <class QueryElement, class CacheElement, class OutElement>
struct PagedAttentionArgs {
  paged::Plan plan;
  const QueryElement* q;
  OutElement* out;
  float *lse, *parts;  // each may be null
  paged::Split* splits;  // one per sequence; null where none is split
  int64_t q_row, q_head, out_row, out_head, lse_head, lse_row;
  const CacheElement *k, *v;
  int64_t k_page, k_place, k_head, v_page, v_place, v_head;  // elements
  const int* block_table;
  int64_t table_row;
  Divider page_size, group, blocks, kv_heads;  // blocks: of rows, of a KV head
  Divider queries, merged_rows;  // max_seqlen_q, and so many rows of each head
  int num_pages, num_heads, merge_shift;  // log2 of the waves that share the parts of a row: 1, or all of a workgroup
  PagedScale k_scale, v_scale;
  PagedSinks sink;
  const float *out_scale, *alibi_slopes;  // each may be null
  int64_t alibi_batch, tree_batch, tree_row, tree_column;
  const uint8_t* tree;  // or null
  int64_t sums;  // elements of `parts` before weights and maxima
  float softmax_scale, softcap;
  paged::Packs packs;  // if V has them, v_place is that of a block of keys
  const float* q_scale;  // or null
  int64_t q_scale_row, q_scale_head;  // 0 of one number
};

namespace paged {

constexpr int kWaves = 4;

/// A configuration, and what follows from it. A Config has
///   Element                              of products: bf16 or f16
///   QueryElement, CacheElement           of q, and of K and V: the same, or fp8 or int8_t
///   OutElement                           of out
///   kHeadDim, kHeadDimV                  multiples of 32; of kElements what is not less
///   kRows                                of a block: 16 or 32
///   kHasTerms                            softcap, ALiBi, a mask of queries: run-time options of one build
///   kHasTokenScales                      a scale per key
///   kHasQueryScale                       scales of q, or one
///   kForm                                of pages
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using QueryElement = typename Config::QueryElement;
  using CacheElement = typename Config::CacheElement;
  using OutElement = typename Config::OutElement;
  using Args = PagedAttentionArgs<QueryElement, CacheElement, OutElement>;
  /// The element of P and of V in registers. Scales of keys count as factors of P, which may leave the range of fp16.
  using ValueElement = std::conditional_t<Config::kHasTokenScales, bf16, Element>;
  static constexpr int kHeadDim = Config::kHeadDim, kHeadDimV = Config::kHeadDimV, kRows = Config::kRows;
  static constexpr int kLargest = kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV;
  /// Twice the rows take registers that half a tile gives back. A tile of bytes has as many keys as one of 16 bits:
  /// half of the bytes under way of a wave, of which then three fit a SIMD.
  static constexpr int kFit = 4096 / kLargest / (kRows / 16);
  static constexpr int kKeys = kFit >= 64 ? 64 : kFit >= 32 ? 32 : 16;  // keys of a tile
  static constexpr int kKeyStrips = kKeys / 16, kStrips = kRows / 16, kThreads = kWaves * kWaveSize;
  static constexpr int kStep = kWaves * kKeys;
  /// Elements of a key that a lane has at a time: 16 bytes, with bytes 8 where the dimensions are no multiple of 64.
  static constexpr int kKeyRun = sizeof(CacheElement) == 1 && kHeadDim % 64 == 0 ? 16 : 8, kDepth = 4 * kKeyRun;
  static constexpr int kSlices = kHeadDim / kDepth, kRun = kHeadDimV / 16;
  static_assert(kHeadDim % 32 == 0 && kHeadDimV % 32 == 0, "head dimensions of whole slices");

  using KeySlice = RegTile<Element, kKeys, kDepth, OperandByRow<kKeyRun>>;
  using QuerySlice = RegTile<Element, kRows, kDepth, OperandByRow<kKeyRun>>;
  using Scores = RegTile<float, kKeys, kRows, Product<>>;
  using Softmax = OnlineSoftmax<Scores>;
  static constexpr int kWidth = 8 * Pieces<kRun>::len(0);  // width of half a piece of rows of V
  using Merge = SplitMerge<kWaves, kRows, kWidth>;
  using Tiles = TilesOf<Shape, Config::kForm>;
  static constexpr bool kIsPadded = Config::kForm == Form::kElements;

  union Lds {
    typename Tiles::Lds tiles[kWaves];
    Merge merge;
    __device__ Lds() {}
  };

  /// Columns of the results.
  __device__ static int width(const Args& args) { return kIsPadded ? args.packs.head_dim_v : kHeadDimV; }
};

/// The place of a block of rows in the call.
struct RowBlock {
  int first, count;  // counted in the sequence's rows times heads of the group
  int sequence, kv_head;
  Lengths::Sequence lengths;
  int first_own;  // key of the sequence's first query

  /// The query and the head of a row.
  __device__ int query(const Divider& group, int row) const { return static_cast<int>(group.divide(first + row)); }
  __device__ int head(const Divider& group, int row) const {
    const int at = first + row;
    return kv_head * static_cast<int>(group.divisor) + at - query(group, row) * static_cast<int>(group.divisor);
  }
};

template <class Shape>
struct Wave {
  using Args = typename Shape::Args;
  using Scores = typename Shape::Scores;
  using Layout = typename Scores::Layout;
  using ValueElement = typename Shape::ValueElement;
  static constexpr int kStrips = Shape::kStrips, kKeyStrips = Shape::kKeyStrips, kRun = Shape::kRun;
  using Tiles = typename Shape::Tiles;
  using Lds = typename Tiles::Lds;
  using Places = typename Tiles::Places;
  static constexpr int kQuerySize = sizeof(typename Shape::QueryElement);
  static constexpr uint32_t kAllSeen = 0xFFFFFFFFu;
  using QueryBits = std::conditional_t<kQuerySize == 2, uint16_t, uint8_t>;

  const Args& args;
  const RowBlock& rows;
  Source source;
  typename Shape::QuerySlice queries[Shape::kSlices];
  Accumulator out[kStrips][kRun];  // element e of piece p: 16 head dimensions by 16 rows, number first(p) + e
  typename Shape::Softmax softmax;
  int position[kStrips], query[kStrips];  // this lane's rows'
  float slope[kStrips], q_scale[kStrips];
  float scale;
  int end, first_visible;  // keys of the part; first key that any row sees

  __device__ Wave(const Args& args, const RowBlock& rows, int end) : args(args), rows(rows), end(end) {
    using Cache = typename Shape::CacheElement;
    constexpr int kBytes = sizeof(Cache);
    source.table = {args.block_table + rows.sequence * args.table_row + rows.lengths.first_entry, args.page_size,
                    static_cast<uint32_t>(args.num_pages - 1), end - 1};
    source.k = {reinterpret_cast<const char*>(args.k + rows.kv_head * args.k_head), args.k_page * kBytes,
                args.k_place * kBytes};
    source.v = {reinterpret_cast<const char*>(args.v + rows.kv_head * args.v_head), args.v_page * kBytes,
                args.v_place * kBytes};
    source.packs = args.packs;
    scale = args.softmax_scale;
    if (!Shape::kHasTokenScales && args.k_scale.data != nullptr)
      scale *= args.k_scale.of(rows.sequence, rows.kv_head);
    first_visible = args.plan.window_left < 0 ? 0 : rows.first_own - args.plan.window_left;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int row = Layout::owned(s);
      query[s] = rows.query(args.group, row);
      position[s] = rows.first_own + query[s];
      slope[s] = 0.f;
      const int head = rows.head(args.group, row);
      if (Shape::kHasTerms && args.alibi_slopes != nullptr && row < rows.count)
        slope[s] = alibi_slope(args.alibi_slopes[rows.sequence * args.alibi_batch + head]);
      const int q_row = rows.lengths.first_row + query[s];
      if (Shape::kHasQueryScale)
        q_scale[s] = row < rows.count ? args.q_scale[q_row * args.q_scale_row + head * args.q_scale_head] : 1.f;
      load_queries(s, row < rows.count, q_row, head);
#pragma unroll
      for (int e = 0; e < kRun; ++e) out[s][e] = Accumulator{0.f, 0.f, 0.f, 0.f};
    }
    if constexpr (!Shape::kHasTokenScales && !Shape::kHasTerms) scale = positive_scale(scale, queries);
  }

  __device__ void load_queries(int s, bool is_row, int row, int head) {
    using Operand = typename Shape::QuerySlice::Layout;
    const auto* from = args.q + (is_row ? row * args.q_row + head * args.q_head : 0);
#pragma unroll
    for (int d = 0; d < Shape::kSlices; ++d) {
#pragma unroll
      for (int r = 0; r < Shape::kKeyRun / 8; ++r) {
        const int first = Shape::kDepth * d + Operand::first_depth() + 8 * r;
        uint32_t words[2 * kQuerySize] = {};  // 8 elements
        if (!Shape::kIsPadded && is_row) __builtin_memcpy(words, from + first, sizeof(words));
        if (Shape::kIsPadded && is_row) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (first + i >= args.packs.head_dim) break;
            words[i * kQuerySize / 4] |= uint32_t{reinterpret_cast<const QueryBits*>(from)[first + i]}
                                         << (i * kQuerySize % 4 * 8);
          }
        }
        auto* pieces = &queries[d].pieces[s][2 * r];
        if constexpr (kQuerySize == 2) {
          pieces[0] = Fragment{words[0], words[1]};
          pieces[1] = Fragment{words[2], words[3]};
        } else {
          Fragment widened[2];
          widen<typename Shape::QueryElement, typename Shape::Element, 8>(words, widened);
          pieces[0] = widened[0], pieces[1] = widened[1];
        }
      }
    }
  }

  /// Scales of this lane's own key, factors of scores and probabilities. One of K and V may have none: then the other's
  /// data are read and not used.
  struct KeyScales {
    float k, v;
  };
  __device__ float load_scale(const PagedScale& scale, const PagedScale& other, const Places& places) const {
    const float* data = scale.data != nullptr ? scale.data : other.data;
    return data[rows.kv_head * scale.head + places.offset(source.table, scale.page, scale.place)];
  }
  __device__ KeyScales load_scales(const Places& places) const {
    if constexpr (!Shape::kHasTokenScales) return {1.f, 1.f};
    return {load_scale(args.k_scale, args.v_scale, places), load_scale(args.v_scale, args.k_scale, places)};
  }

  __device__ void products(Scores& scores, const Tiles& tiles, const Lds& lds) const {
    clear(scores);
#pragma unroll
    for (int d = 0; d < Shape::kSlices; ++d) mma<tile::Form::ABt>(scores, tiles.slice(lds, d), queries[d]);
    if constexpr (Shape::kHasQueryScale) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int e = 0; e < Scores::kPerStrip; ++e) scores.set(s, e, scores.get(s, e) * q_scale[s]);
      }
    }
  }

  /// The terms of scores, in units of log 2, where there may be any.
  __device__ void add_terms(Scores& scores, int first_key) const {
    const Softcap<true> cap(scale, args.softcap > 0.f ? args.softcap : 1.f);
    const bool has_cap = args.softcap > 0.f;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const float distance = static_cast<float>(position[s] - first_key - Layout::first_depth());
#pragma unroll
      for (int e = 0; e < Scores::kPerStrip; ++e) {
        const float x = scores.get(s, e);
        const float capped = has_cap ? cap(x) : x * (scale * kLog2E);
        const float away = __builtin_fabsf(distance - static_cast<float>(Layout::depth_after_first(e)));
        scores.set(s, e, __builtin_fmaf(-slope[s], away, capped));
      }
    }
  }

  /// Hides what rows do not see. Nothing needs hiding where every row sees every key. Returns which of this lane's keys
  /// any row of the block sees, a bit for each element, as far as a mask of queries decides it.
  __device__ uint32_t mask(Scores& scores, int first_key) const {
    static_assert(Scores::kPerStrip < 32, "a bit for each element of a lane");
    uint32_t seen = 0;
    const bool has_tree = Shape::kHasTerms && args.tree != nullptr;
    const uint8_t* tree = args.tree + rows.sequence * args.tree_batch;
    const int key = first_key + Layout::first_depth();
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int last = has_tree || position[s] > end - 1 ? end - 1 : position[s];
      const int lowest = args.plan.window_left < 0 ? 0 : position[s] - args.plan.window_left;
#pragma unroll
      for (int e = 0; e < Scores::kPerStrip; ++e) {
        const int at = key + Layout::depth_after_first(e), own = at - rows.first_own;
        bool is_hidden = at > last || at < lowest;
        if (has_tree && own >= 0 && own < rows.lengths.rows && query[s] < rows.lengths.rows)
          is_hidden |= tree[query[s] * args.tree_row + own * args.tree_column] == 0;
        if (is_hidden) scores.set(s, e, kMasked);
        else if (has_tree && query[s] < rows.lengths.rows) seen |= 1u << e;
      }
    }
    if (!has_tree) return kAllSeen;
    for_constants<4>([&]<int STEP>() {  // the 16 lanes that have the same keys
      seen |= __builtin_bit_cast(uint32_t, lane_xor<(1 << STEP)>(__builtin_bit_cast(float, seen)));
    });
    return seen;
  }

  /// Softmax of a tile's scores, and what that does to the sums so far. Returns what mask does.
  __device__ uint32_t weigh(Scores& scores, int first_key) {
    uint32_t seen = kAllSeen;
    if constexpr (Shape::kHasTerms) add_terms(scores, first_key);
    if (first_key + Shape::kKeys > (rows.first_own < end ? rows.first_own : end) || args.plan.window_left >= 0)
      seen = mask(scores, first_key);
    const float factor = Shape::kHasTerms ? 1.f : scale * kLog2E;
    softmax.raise(scores, factor, [&](int strip, float by) {
#pragma unroll
      for (int e = 0; e < kRun; ++e) out[strip][e] *= by;
    });
    softmax.exponentiate(scores, factor);
    return seen;
  }

  /// Adds P V, without the values and scales of keys that no row sees, whatever they are: 0 · NaN is no 0.
  __device__ void accumulate(const Tiles& tiles, const Lds& lds, Scores& scores, uint32_t seen) {
    if constexpr (Shape::kHasTerms && Shape::kHasTokenScales) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int e = 0; e < Scores::kPerStrip; ++e)
          if ((seen >> e & 1) == 0) scores.set(s, e, 0.f);
      }
    }
    const auto p = convert<ValueElement, Rounding::kNearestEven>(scores);
#pragma unroll
    for (int key_strip = 0; key_strip < kKeyStrips; ++key_strip) {
      const uint32_t own = seen >> (4 * key_strip);
      const Fragment kept = {(own & 1 ? 0xFFFFu : 0u) | (own & 2 ? 0xFFFF0000u : 0u),
                             (own & 4 ? 0xFFFFu : 0u) | (own & 8 ? 0xFFFF0000u : 0u)};
#pragma unroll
      for (int piece = 0; piece < Pieces<kRun>::kCount; ++piece) {
#pragma unroll
        for (int e = 0; e < Pieces<kRun>::len(piece); ++e) {
          Fragment column = tiles.template column<ValueElement>(lds, key_strip, piece, e);
          if constexpr (Shape::kHasTerms) column &= kept;
#pragma unroll
          for (int s = 0; s < kStrips; ++s) {
            Accumulator& sum = out[s][Pieces<kRun>::first(piece) + e];
            sum = mfma_16x16x16<ValueElement>(column, p.pieces[s][key_strip], sum);
          }
        }
      }
    }
  }

  /// Loads under way: K and V of a tile, and the places of the next one's keys.
  struct UnderWay {
    Tiles tiles;
    KeyScales scales;
    Places next;
  };

  /// One tile. IS_LAST: there is no next one to be loaded.
  template <bool IS_LAST>
  __device__ void step(Lds& lds, UnderWay& now, int key) {
    Scores scores;
    Places after_next;
    KeyScales scales = now.scales;
    const auto load_next_keys = [&] {
      if constexpr (IS_LAST) return;
      now.tiles.load_keys(source, now.next);
      now.scales = load_scales(now.next);
      keep_order();
      after_next.load(source.table, key + 2 * Shape::kStep);
      keep_order();
    };
    const auto load_next_values = [&] {
      if constexpr (IS_LAST) return;
      keep_order();
      now.tiles.load_values(source, now.next);
      keep_order();
    };

    if constexpr (Tiles::kKeysTurn) {
      now.tiles.store(lds);
      share_with_wave();
      load_next_keys();
    }
    products(scores, now.tiles, lds);
    share_with_wave();
    if constexpr (!Tiles::kKeysTurn) load_next_keys();
    if constexpr (Shape::kHasTokenScales) multiply(scores, args.k_scale.data != nullptr ? scales.k : 1.f);
    const uint32_t seen = weigh(scores, key);
    if ((IS_LAST && key + Shape::kKeys > end) || key < first_visible) {
      now.tiles.keep(first_visible - key, end - key);
      if (Places::own_key() < first_visible - key) scales.v = 0.f;  // it may be NaN, as the values may
    }
    if constexpr (Shape::kHasTokenScales) multiply(scores, args.v_scale.data != nullptr ? scales.v : 1.f);
    if constexpr (!Tiles::kKeysTurn) {
      now.tiles.store(lds);
      share_with_wave();
      load_next_values();
    }
    accumulate(now.tiles, lds, scores, seen);
    if constexpr (Tiles::kKeysTurn) load_next_values();
    else share_with_wave();
    if constexpr (!IS_LAST) now.next = after_next;
  }

  /// All tiles of this wave of the keys first … end − 1, `first` a multiple of a tile.
  __device__ void run(Lds& lds, int first) {
    int key = first + wave_index() * Shape::kKeys;
    if (key >= end) return;
    UnderWay now;
    Places places;
    places.load(source.table, key);
    // Accesses end in the order that they began in: K, the next keys' pages, V. Only so a wait for one of them is none
    // for what comes behind it.
    keep_order();
    now.tiles.load_keys(source, places);
    now.scales = load_scales(places);
    keep_order();
    now.next.load(source.table, key + Shape::kStep);
    keep_order();
    now.tiles.load_values(source, places);
    keep_order();
    for (; key + Shape::kStep < end; key += Shape::kStep) step<false>(lds, now, key);
    step<true>(lds, now, key);
  }

  /// Multiplies scores by each key's factor, which lanes have as KeyPlaces says.
  __device__ static void multiply(Scores& scores, float own) {
    for_constants<Scores::kPerStrip>([&]<int E>() {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) scores.set(s, E, scores.get(s, E) * lane_of_16<E>(own));
    });
  }
};

/// The factor of the sums in the end.
template <class Shape>
__device__ float value_scale(const typename Shape::Args& args, int sequence, int kv_head) {
  float scale = 1.f;
  if (!Shape::kHasTokenScales && args.v_scale.data != nullptr) scale = args.v_scale.of(sequence, kv_head);
  return args.out_scale != nullptr ? scale / *args.out_scale : scale;
}

/// The factor of a row's sum of values, after a sink; writes its log-sum-exp.
template <class Args>
__device__ float finish_row(const Args& args, float maximum, float sum, float value_scale, int row, int head,
                            bool is_first) {
  float factor = 1.f;
  if (args.sink.data != nullptr) {
    const float sink = args.sink.of(head) * kLog2E, highest = __builtin_fmaxf(maximum, sink);
    factor = fast_exp2(maximum - highest);
    sum = __builtin_fmaf(sum, factor, fast_exp2(sink - highest));
    maximum = highest;
  }
  if (args.lse != nullptr && is_first)
    args.lse[head * args.lse_head + row * args.lse_row] =
        sum == 0.f ? -__builtin_inff() : (maximum + fast_log2(sum)) * kLn2;
  return sum == 0.f ? 0.f : factor * value_scale / sum;
}

/// The waves' sums become results, or partial sums from `slot` on where that is not negative.
template <class Shape>
__device__ void merge(Wave<Shape>& wave, typename Shape::Merge& lds, int slot) {
  using P = Pieces<Shape::kRun>;
  using Layout = typename Wave<Shape>::Layout;
  using Tiles = typename Shape::Tiles;
  const auto& args = wave.args;
  const RowBlock& rows = wave.rows;
  workgroup_barrier();  // The tiles are done with.
  lds.tell(wave.softmax, wave_index());
  const int thread = thread_index(), index = thread / 16, lane = thread % 16;
#pragma unroll
  for (int s = 0; s < Shape::kStrips; ++s) {
#pragma unroll
    for (int half = 0; half < 2 * P::kCount; ++half) {
      if (s + half > 0) workgroup_barrier();  // The values before have been read.
      // In element e of piece p a lane has 4 of 16 head dimensions. Half of the lanes at a time: so LDS holds no more
      // than the tiles did.
      const int p = half / 2, len = P::len(p);
      if (Layout::group() / 2 == half % 2) {
#pragma unroll
        for (int e = 0; e < len; ++e) {
#pragma unroll
          for (int r = 0; r < 4; ++r)
            lds.values[wave_index()][Layout::owner()][Tiles::index_of(p, e, Layout::first_depth() % 8 + r)] =
                wave.out[s][P::first(p) + e][r];
        }
      }
      workgroup_barrier();
      const int row = 16 * s + index, count = len / 2;
      if (row >= rows.count) continue;
      const auto state = lds.row(row);
      const int query = rows.query(args.group, row), head = rows.head(args.group, row);
      const int column = Tiles::column_of(p, half % 2, lane * count);
      const bool is_first = half == 0 && lane == 0;
      if (slot >= 0) {
        const int64_t place = int64_t{slot} * args.num_heads * args.plan.lengths.max_seqlen_q +
                              int64_t{head} * args.plan.lengths.max_seqlen_q + query;
#pragma unroll
        for (int i = 0; i < count; ++i)
          if (column + i < Shape::width(args))
            args.parts[place * Shape::width(args) + column + i] = lds.value(state, index, lane * count + i);
        if (is_first) {
          args.parts[args.sums + 2 * place] = state.sum;
          args.parts[args.sums + 2 * place + 1] = state.maximum;
        }
        continue;
      }
      const int out_row = rows.lengths.first_row + query;
      const float factor = finish_row(args, state.maximum, state.sum,
                                      value_scale<Shape>(args, rows.sequence, rows.kv_head), out_row, head, is_first);
      auto* to = args.out + out_row * args.out_row + head * args.out_head + column;
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (column + i < Shape::width(args))
          to[i] = from_float<typename Shape::OutElement>(lds.value(state, index, lane * count + i) * factor);
    }
  }
}

template <class Config>
__device__ __attribute__((always_inline)) void attend_body(const typename Shape<Config>::Args& args,
                                                           typename Shape<Config>::Lds& lds) {
  using S = Shape<Config>;
  // One wait for all that the first load of a length or page needs.
  asm volatile("" ::"s"(args.blocks.factor), "s"(args.kv_heads.factor), "s"(args.plan.is_split), "s"(args.plan.share),
               "s"(args.plan.by_share.factor), "s"(args.plan.lengths.batch), "s"(args.plan.lengths.seqlens_k),
               "s"(args.k), "s"(args.q_row), "s"(args.group.factor), "s"(args.splits));
  const uint32_t id = workgroup_index().x;
  const uint32_t head_and_part = args.blocks.divide(id), number = args.kv_heads.divide(head_and_part);
  Found found{static_cast<int>(number), static_cast<int>(number), 0, 1, {}};
  if (args.plan.is_split) found = find<S::kKeys>(args.plan, static_cast<int>(number));
  if (found.sequence >= args.plan.lengths.batch) return;
  if (!args.plan.is_split) found.lengths = args.plan.lengths.of(found.sequence);
  RowBlock rows;
  rows.sequence = found.sequence;
  rows.kv_head = static_cast<int>(head_and_part - number * args.kv_heads.divisor);
  rows.lengths = found.lengths;
  const int split = static_cast<int>(number) - found.parts_before;
  const bool is_first = split == 0 && rows.kv_head == 0 && id == head_and_part * args.blocks.divisor;
  if (args.splits != nullptr && is_first && thread_index() == 0)
    args.splits[found.sequence] = {found.slots_before, found.parts};
  rows.first = static_cast<int>(id - head_and_part * args.blocks.divisor) * S::kRows;
  const int most = args.plan.lengths.max_seqlen_q;
  const int computed = rows.lengths.rows < most ? rows.lengths.rows : most;
  rows.count = computed * static_cast<int>(args.group.divisor) - rows.first;
  if (rows.count <= 0) return;
  rows.first_own = rows.lengths.keys - rows.lengths.rows;

  const int begin = args.plan.template first_key<S::kKeys>(rows.lengths), seen = rows.lengths.keys - begin;
  const int length = ((seen + found.parts - 1) / found.parts + S::kKeys - 1) / S::kKeys * S::kKeys;
  const int first = begin + split * length;
  const int end = first + length < rows.lengths.keys ? first + length : rows.lengths.keys;
  Wave<S> wave(args, rows, end);
  wave.run(lds.tiles[wave_index()], first);
  merge<S>(wave, lds.merge, found.parts > 1 ? found.slots_before + split : -1);
}

}  // namespace paged
}  // namespace aiter_like
