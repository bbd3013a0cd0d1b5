// SPDX-License-Identifier: MIT
// What a workgroup of mla_decode does, composed from the tile library.
//
// A workgroup of 4 or 8 waves takes one part of the plan and one tile of 16, 32 or 64 rows: heads of query tokens. A
// wave has 16 rows; waves that share rows have some columns of the results each. Q stays in registers. Blocks of
// kBlockN keys go through one LDS tile, 36 KiB at 576 columns, which both products read: a key is a latent and its
// rotated part, and the latent is its value too.
//   S = K qᵀ                 [keys, rows]; every wave of a row computes it
//   mask, softmax            running maximum and sum of each row
//   O += Vᵀ P                the same LDS tile, read transposed; P is S rounded, in the registers where it is
#pragma once

#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/global.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/softmax.h"
#include "mla_plan.h"

namespace aiter_like {

struct MlaDecodeArgs {
  const void *q, *kv;
  void* out;
  float *lse, *partial_out, *partial_lse;  // lse may be null
  int64_t q_row, q_head, kv_page, kv_key, out_row, out_head, lse_row, lse_head, part_row, part_head, sum_row, sum_head;
  const int *kv_indptr, *kv_indices, *kv_last_page_lens, *g_kv_indptr;  // the last two may be null
  const int *work_indptr, *work_info;
  const float *q_scale, *kv_scale;  // each may be null
  int batch, total_q, num_entries, num_pages, num_items, num_rows, num_parts, world_size, rank;
  Divider page_size, num_heads;
  float softmax_scale, softcap;
  bool is_causal;
};

namespace mla_tile {

using namespace tile;
using mla_plan::within;

constexpr int kBlockN = 32, kWaveRows = 16;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// A configuration, and what follows from it. A Config has
///   Element                           that products take: bf16 or f16
///   QElement, KvElement, OutElement   in memory: Element or fp8; of out Element
///   kHeadDim, kHeadDimV               columns of a key, and of them those of the value
///   kRowWaves                         1, 2 or 4 times 16 rows of a workgroup
///   kWaves                            of a workgroup: those that share rows have some columns of the results each
///   kHasSoftcap
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using KvElement = typename Config::KvElement;
  static constexpr int kRowWaves = Config::kRowWaves, kColumnWaves = Config::kWaves / kRowWaves;
  static constexpr int kThreads = Config::kWaves * kWaveSize, kRows = kRowWaves * kWaveRows;
  static constexpr int kSlice = 32, kSlices = Config::kHeadDim / kSlice;  // columns that 16 bytes of each lane cover
  static constexpr int kOutSlices = Config::kHeadDimV / kSlice / kColumnWaves;
  static_assert(Config::kHeadDim % kSlice == 0 && Config::kHeadDimV % (kSlice * kColumnWaves) == 0, "whole slices");

  /// Transposed reads find no conflict either: rows r and r + 4 have other halves of 128 bytes.
  using KeyTile = LdsTile<Element, kBlockN, Config::kHeadDim, SwizzledByRow>;
  using QuerySlice = RegTile<Element, kWaveRows, kSlice, OperandByRow<8>>;
  using KeySlice = RegTile<Element, kBlockN, kSlice, OperandByRow<8>>;
  using ValueSlice = RegTile<Element, kBlockN, kSlice, OperandByColumn<4, 2>>;
  using Scores = RegTile<float, kBlockN, kWaveRows, Product<>>;
  using OutSlice = RegTile<float, kSlice, kWaveRows, Product<2>>;  // transposed: [columns, rows]
};

template <class Shape>
struct Lds {
  typename Shape::KeyTile keys;
  int64_t places[2][kBlockN];  // bytes from the cache's first to a block's keys; −1: there is none
  uint32_t there[4];           // the keys of a block that there are
};

/// Four fp8 of a word as two words of Element, exactly.
template <class Element>
__device__ inline Fragment widened(uint32_t word) {
  using Pair = Pack<Element, Rounding::kTowardZero>;
  const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), false);
  const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), true);
  return Fragment{Pair::pack(low[0], low[1]), Pair::pack(high[0], high[1])};
}

/// Eight elements of memory as a run of Element.
template <class Element, class Stored>
__device__ inline Chunk load_run(const Stored* at) {
  if constexpr (sizeof(Stored) == sizeof(Element)) {
    return *reinterpret_cast<const Chunk*>(at);
  } else {
    const Fragment words = *reinterpret_cast<const Fragment*>(at);
    const Fragment first = widened<Element>(words[0]), second = widened<Element>(words[1]);
    return Chunk{first[0], first[1], second[0], second[1]};
  }
}

/// A work-item's share of a block of keys on its way from the pages to LDS: chunks of 16 bytes, neighbours to
/// neighbours. Where no key is there are zeros.
template <class Shape>
struct Gathered {
  using Stored = typename Shape::KvElement;
  static constexpr int kElements = 16 / sizeof(Stored), kPerKey = Shape::kHeadDim / kElements;
  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kChunks = kBlockN * kPerKey, kCount = (kChunks + kThreads - 1) / kThreads;
  static_assert(Shape::kHeadDim % kElements == 0, "keys of whole chunks");

  Chunk chunks[kCount];

  __device__ static int key(int i) { return (thread_index() + i * kThreads) / kPerKey; }
  __device__ static int column(int i) { return (thread_index() + i * kThreads) % kPerKey * kElements; }
  __device__ static bool is_inside(int i) { return kChunks % kThreads == 0 || thread_index() + i * kThreads < kChunks; }

  __device__ void load(const void* cache, const int64_t (&places)[kBlockN]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      chunks[i] = Chunk{0, 0, 0, 0};
      if (!is_inside(i)) continue;
      const int64_t place = places[key(i)], offset = place + static_cast<int64_t>(column(i) * sizeof(Stored));
      if (place >= 0) chunks[i] = *reinterpret_cast<const Chunk*>(static_cast<const char*>(cache) + offset);
    }
  }

  __device__ void store(typename Shape::KeyTile& keys) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!is_inside(i)) continue;
      const int byte = static_cast<int>(column(i) * sizeof(typename Shape::Element));
      if constexpr (sizeof(Stored) == 2) {
        keys.template at<Chunk>(key(i), byte) = chunks[i];
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Fragment first = widened<typename Shape::Element>(chunks[i][2 * half]);
          const Fragment second = widened<typename Shape::Element>(chunks[i][2 * half + 1]);
          keys.template at<Chunk>(key(i), byte + 16 * half) = Chunk{first[0], first[1], second[0], second[1]};
        }
      }
    }
  }
};

/// An item of the plan: a sequence's rows, and a piece of its keys. Inside of the tensors whatever the plan holds.
struct Item {
  int place, q_start, q_len;  // first row of the partial result, or −1
  int entry, count;           // first page in the list, keys from there on
  int last, step, rank;       // token t sees keys up to (last + t − rank) / step

  __device__ Item(const MlaDecodeArgs& args, int index) {
    const int* info = args.work_info + int64_t{index} * 8;
    const int sequence = within(info[0], 0, args.batch - 1), page_size = static_cast<int>(args.page_size.divisor);
    place = info[1];
    q_start = within(info[2], 0, args.total_q);
    q_len = within(info[3], q_start, args.total_q) - q_start;
    entry = within(info[4], 0, args.num_entries);
    const int end = within(info[5], entry, args.num_entries);
    int keys = (end - entry + within(info[6], 0, args.num_entries - end)) * page_size;  // to the sequence's end
    if (args.kv_last_page_lens != nullptr && page_size > 1)
      keys -= page_size - within(args.kv_last_page_lens[sequence], 0, page_size);
    keys = keys > 0 ? keys : 0;
    count = (end - entry) * page_size < keys ? (end - entry) * page_size : keys;
    step = 1, rank = 0, last = count;
    if (!args.is_causal) return;
    last = keys - q_len;  // the queries of a sequence are its last tokens
    if (args.g_kv_indptr != nullptr) {
      step = args.world_size, rank = args.rank;
      const int begin = within(args.g_kv_indptr[sequence], 0, 0x7FFFFFFF);
      last = within(within(args.g_kv_indptr[sequence + 1], begin, 0x7FFFFFFF) - begin, 0, 1 << 30) - q_len;
      const int before = entry - within(args.kv_indptr[sequence], 0, args.num_entries);
      shift = before > 0 ? before * page_size : 0;
    }
    const int highest = seen_by(q_len - 1) + 1;
    count = highest < count ? (highest > 0 ? highest : 0) : count;
    is_causal = true;
  }

  /// The last key of the piece that token `token` sees; below 0: none.
  __device__ int seen_by(int token) const {
    const int seen = last + token - rank;
    return seen < 0 ? -1 : (step == 1 ? seen : seen / step) - shift;
  }

  int shift = 0;
  bool is_causal = false;
};

/// A wave's registers for its rows, and its work on a block of keys.
template <class Shape>
struct WaveRows {
  using Element = typename Shape::Element;
  static constexpr bool kHasScales = sizeof(typename Shape::QElement) == 1 || sizeof(typename Shape::KvElement) == 1;

  typename Shape::QuerySlice queries[Shape::kSlices];
  typename Shape::OutSlice out[Shape::kOutSlices];
  OnlineSoftmax<typename Shape::Scores> softmax;
  float inner, softcap;     // a score's
  int token, head;          // this lane's row's
  bool is_row, any_row;
  int last, everyones_last;  // last key that this lane's row sees, and all rows of the wave

  __device__ WaveRows(const MlaDecodeArgs& args, const Item& item, int first_row, float scale)
      : inner(scale), softcap(args.softcap) {
    const int row = first_row + OperandByRow<8>::owner();
    token = static_cast<int>(args.num_heads.divide(row));
    head = row - token * static_cast<int>(args.num_heads.divisor);
    is_row = token < item.q_len && (item.place < 0 || int64_t{item.place} + token < args.num_rows);
    any_row = first_row < item.q_len * static_cast<int>(args.num_heads.divisor);
    last = item.is_causal ? item.seen_by(token) : item.count;
    everyones_last = item.is_causal ? item.seen_by(static_cast<int>(args.num_heads.divide(first_row))) : item.count;
    const auto* at = static_cast<const typename Shape::QElement*>(args.q) +
                     int64_t{is_row ? item.q_start + token : 0} * args.q_row + int64_t{is_row ? head : 0} * args.q_head;
#pragma unroll
    for (int d = 0; d < Shape::kSlices; ++d) {
      Chunk chunk{0, 0, 0, 0};
      if (is_row) chunk = load_run<Element>(at + d * Shape::kSlice + OperandByRow<8>::first_depth());
      queries[d].pieces[0][0] = chunk.lo, queries[d].pieces[0][1] = chunk.hi;
    }
    if constexpr (kHasScales) inner = positive_scale(inner, queries);
#pragma unroll
    for (int g = 0; g < Shape::kOutSlices; ++g) clear(out[g]);
  }

  __device__ float scale() const { return Shape::kHasSoftcap ? kLog2E : inner * kLog2E; }

  /// use(i, load(i)) for each i. kAhead slices are read ahead of the one in use: with one wave on a SIMD nobody else
  /// covers the latency of LDS.
  template <int COUNT, class LOAD, class USE>
  __device__ static void pipelined(LOAD load, USE use) {
    constexpr int kAhead = COUNT < 2 ? COUNT : 2;
    decltype(load(0)) slices[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) slices[i] = load(i);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      keep_order();
      use(i, slices[i % kAhead]);
      if (i + kAhead < COUNT) slices[i % kAhead] = load(i + kAhead);
    }
    keep_order();
  }

  __device__ void visit(const typename Shape::KeyTile& keys, int first_key, uint32_t there, int first_column) {
    using Scores = typename Shape::Scores;
    using KeySlice = typename Shape::KeySlice;
    using ValueSlice = typename Shape::ValueSlice;
    Scores scores;
    clear(scores);
    pipelined<Shape::kSlices>([&](int d) { return load<KeySlice>(keys, 0, d * Shape::kSlice); },
                              [&](int d, const KeySlice& slice) { mma<Form::ABt>(scores, slice, queries[d]); });
    if constexpr (Shape::kHasSoftcap)
      map(scores, [&](float x) { return softcap * fast_tanh(x * (inner / softcap)); });
    if (there != ~0u || everyones_last - first_key < kBlockN - 1) {
      const int first = Scores::Layout::first_depth(), highest = last - first_key - first;
#pragma unroll
      for (int e = 0; e < Scores::kPerStrip; ++e) {
        const int i = Scores::Layout::depth_after_first(e);
        if (i > highest || !(there >> (first + i) & 1u)) scores.set(0, e, kMasked);
      }
    }
    softmax.raise(scores, scale(), [&](int, float factor) {
#pragma unroll
      for (int g = 0; g < Shape::kOutSlices; ++g) scale_strip(out[g], 0, factor);
    });
    softmax.exponentiate(scores, scale());
    const auto p = convert<Element, Rounding::kNearestEven>(scores);
    pipelined<Shape::kOutSlices>(
        [&](int g) { return load_transposed<ValueSlice>(keys, 0, first_column + g * Shape::kSlice); },
        [&](int g, const ValueSlice& slice) { mma<Form::AtB>(out[g], slice, p); });
  }

  /// Eight neighbouring columns of this lane's row, from `first_column` + 32 g on.
  template <class T>
  __device__ void store(T* row, int first_column, float factor) const {
#pragma unroll
    for (int g = 0; g < Shape::kOutSlices; ++g) {
      using Layout = typename Shape::OutSlice::Layout;
      static_assert(Shape::OutSlice::kPerStrip == 8 && Layout::kSpan == 8, "one span");
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = out[g].get(0, Layout::element_at(0, i)) * factor;
      T* at = row + first_column + g * Shape::kSlice + Layout::first_depth();
      const auto packed = rounded<T>(values);
      __builtin_memcpy(at, &packed, sizeof(packed));
    }
  }

  __device__ void finish(const MlaDecodeArgs& args, const Item& item, int first_column, float value_scale) const {
    const float total = softmax.total(0), maximum = softmax.maximum[0];
    if (!is_row) return;
    const float factor = total == 0.f ? 0.f : value_scale / total;
    const float sum = total == 0.f ? -__builtin_inff() : (maximum + fast_log2(total)) * kLn2;
    const bool has_sum = first_column == 0 && OperandByRow<8>::group() == 0;
    if (item.place < 0) {
      const int64_t row = item.q_start + token;
      auto* const out_row = static_cast<typename Shape::OutElement*>(args.out) + row * args.out_row;
      store(out_row + head * args.out_head, first_column, factor);
      if (has_sum && args.lse != nullptr) args.lse[row * args.lse_row + head * args.lse_head] = sum;
    } else {
      const int64_t row = int64_t{item.place} + token;
      store(args.partial_out + row * args.part_row + head * args.part_head, first_column, factor);
      if (has_sum) args.partial_lse[row * args.sum_row + head * args.sum_head] = sum;
    }
  }
};

/// The page of this work-item's key of a block, or −1; the first kBlockN work-items have one.
__device__ inline int page_of(const MlaDecodeArgs& args, const Item& item, int block) {
  const int key = block * kBlockN + thread_index();
  if (thread_index() >= kBlockN || key >= item.count) return -1;
  return args.kv_indices[item.entry + static_cast<int>(args.page_size.divide(key))];
}

/// Writes where the keys of a block are; an entry that names no page of the cache has none.
template <class Shape>
__device__ void write_places(const MlaDecodeArgs& args, int block, int page, Lds<Shape>& lds) {
  if (wave_index() != 0) return;
  const int key = block * kBlockN + thread_index();
  const bool is_there = page >= 0 && page < args.num_pages;
  const uint64_t there = __builtin_amdgcn_ballot_w64(is_there);
  if (thread_index() < kBlockN) {
    const int inside = key - static_cast<int>(args.page_size.divide(key) * args.page_size.divisor);
    lds.places[block % 2][thread_index()] = is_there ? page * args.kv_page + inside * args.kv_key : -1;
  }
  if (thread_index() == 0) lds.there[block % 4] = static_cast<uint32_t>(there);
}

/// One item: while a block is used the next one travels, and the pages of the one after that.
template <class Shape>
__device__ void attend(const MlaDecodeArgs& args, const Item& item, int first_row, float scale, float value_scale,
                       Lds<Shape>& lds) {
  const int row_wave = wave_index() / Shape::kColumnWaves, column_wave = wave_index() % Shape::kColumnWaves;
  const int first_column = column_wave * Shape::kOutSlices * Shape::kSlice;
  const int blocks = (item.count + kBlockN - 1) / kBlockN;
  int page = page_of(args, item, 0);
  write_places(args, 0, page, lds);
  page = page_of(args, item, 1);
  workgroup_barrier();
  Gathered<Shape> next;
  next.load(args.kv, lds.places[0]);
  WaveRows<Shape> rows(args, item, first_row + row_wave * kWaveRows, scale);
  write_places(args, 1, page, lds);
  next.store(lds.keys);
  workgroup_barrier();
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    page = page_of(args, item, block + 2);
    if (block + 1 < blocks) next.load(args.kv, lds.places[(block + 1) % 2]);
    if (rows.any_row) rows.visit(lds.keys, block * kBlockN, lds.there[block % 4], first_column);
    write_places(args, block + 2, page, lds);
    workgroup_barrier();  // All waves have read the keys.
    if (block + 1 < blocks) next.store(lds.keys);
    workgroup_barrier();  // The next ones are there.
  }
  rows.finish(args, item, first_column, value_scale);
}

/// Runs workgroup `workgroup` of a launch: all items of its part, for its tile of rows.
template <class Config>
__device__ __attribute__((always_inline)) void body(const MlaDecodeArgs& args, uint32_t workgroup,
                                                    Lds<Shape<Config>>& lds) {
  using Shape = mla_tile::Shape<Config>;
  // A part's tiles land on the same XCD, beside the L2 that has its keys, where the parts are a multiple of 8.
  const int part = static_cast<int>(workgroup % args.num_parts);
  const int first_row = static_cast<int>(workgroup / args.num_parts) * Shape::kRows;
  const float q_scale = sizeof(typename Shape::QElement) == 1 && args.q_scale != nullptr ? *args.q_scale : 1.f;
  const float kv_scale = sizeof(typename Shape::KvElement) == 1 && args.kv_scale != nullptr ? *args.kv_scale : 1.f;
  const int first = within(args.work_indptr[part], 0, args.num_items);
  const int last = within(args.work_indptr[part + 1], first, args.num_items);
#pragma unroll 1
  for (int index = first; index < last; ++index) {
    const Item item(args, index);
    if (first_row < item.q_len * static_cast<int>(args.num_heads.divisor))
      attend<Shape>(args, item, first_row, args.softmax_scale * q_scale * kv_scale, kv_scale, lds);
  }
}

}  // namespace mla_tile
}  // namespace aiter_like
