// SPDX-License-Identifier: MIT
// Logits of the index that chooses keys for sparse attention, on the matrix cores of gfx942:
//
//   logits[i, j] = k_scale[j] · Σ_h weights[i, h] · max(q[i, h] · k[j], 0)
//
// A workgroup has kTileRows rows of one sequence and a part of their keys. A wave has kRows of these rows, all heads in
// registers, and takes 64 keys at a time. A product [heads, 16 keys] has four heads of each strip of 16 in a lane, so
// the weighted sum over heads stays within the lane, and two exchanges give each lane the logit of one of the 64 keys.
//
// Memory is read by whole rows, which neighbouring lanes share; operands of the matrix cores, whose neighbouring lanes
// have different rows, are made of them in a part of the LDS that each wave has for itself, so that no wave waits for
// another. While 64 keys are multiplied the next 64 are on their way to registers, and so are the entries of the table
// for those behind them.
#pragma once

#include "aiter_like/lanes.h"
#include "aiter_like/math.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/global.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/paged.h"
#include "aiter_like/tile/spread.h"

namespace aiter_like::mqa {

constexpr int kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr int kKeys = 64, kKeyStrips = kKeys / 16;  // A wave multiplies so many at a time.
constexpr int kPack = 16;  // shuffled keys: tokens of a tile, and bytes of a key that are consecutive

struct Args {
  float* logits;
  int64_t logits_row;
  const fp8* q;
  int64_t q_row, q_head;
  const char* keys;
  int64_t page_bytes, key_bytes;
  const float* scales;
  int64_t scale_page, scale_key;
  const float* weights;
  int64_t weights_row;
  const int32_t *starts, *ends;  // Each row has its own; they are null with a table.
  const int32_t* context_lens;   // Each sequence has its own.
  const int32_t* table;          // a paged call's; else all keys are one page
  int64_t table_row;
  const int32_t* page_starts;    // beginnings of the sequences' entries in the table; null: multiples of table_row
  int num_entries;               // such a table's
  Divider page_size, tiles_of_sequence, tiles;
  uint32_t num_pages;
  int rows_of_sequence, width, num_keys;  // num_keys: that a row of the table, or the one page, has room for
  int splits;
  bool is_paged, is_shuffled, is_clean;
};

/// A sequence's part of the table, and the keys for which it has room; without a table those of the one page.
struct Entries {
  const int32_t* entries;
  int num_keys;
};

__device__ inline Entries entries_of(const Args& args, int sequence) {
  if (!args.is_paged) return {nullptr, args.num_keys};
  if (args.page_starts == nullptr) return {args.table + sequence * args.table_row, args.num_keys};
  const auto clamped = [&](int entry) { return entry < 0 ? 0 : entry < args.num_entries ? entry : args.num_entries; };
  const int first = clamped(args.page_starts[sequence]), end = clamped(args.page_starts[sequence + 1]);
  return {args.table + first, end > first ? static_cast<int>((end - first) * args.page_size.divisor) : 0};
}

/// Columns of a row that it sees: first … end − 1; none: INT_MAX … 0.
struct Range {
  int first, end;
};

template <class Config>
struct Shape {
  static constexpr int kHeads = Config::kHeads, kDim = Config::kDim;
  static constexpr int kRows = Config::kRows, kRowWaves = Config::kRowWaves;
  static constexpr int kTileRows = kRows * kRowWaves, kKeyWaves = kWaves / kRowWaves;
  static_assert(kHeads % 16 == 0 && (kHeads <= 64 || kHeads % 64 == 0), "whole strips, and whole blocks of 64 of them");
  static_assert((kDim == 64 || kDim == 128) && kWaves % kRowWaves == 0, "rows that lanes can share");
  using Queries = tile::RegTile<fp8, kHeads, kDim, tile::OperandByRow<16>>;
  using Strip = tile::RegTile<fp8, 16, kDim, tile::OperandByRow<16>>;
  using Scores = tile::RegTile<float, kHeads, 16, tile::Product<>>;
  static constexpr int kHeadsOfLane = Scores::kPerStrip;
  static constexpr int kChunks = kDim / 16;                       // chunks of 16 bytes in a row
  static constexpr int kRowsAtOnce = kWaveSize / kChunks, kLoads = kKeys / kRowsAtOnce;
  using WaveLds = tile::LdsTile<fp8, kKeys, kDim, tile::SwizzledByRow>;
};

/// 64 rows of kDim bytes on their way from memory to a wave's LDS, 16 bytes of a lane at a time. Rows are contiguous,
/// or tiles are that have the first 16 bytes of 16 rows, then their next 16 bytes.
template <class S>
struct Rows {
  tile::Chunk chunks[S::kLoads];

  __device__ static int row(int i, bool is_shuffled) {
    return is_shuffled ? 16 * (i / (S::kChunks / 4)) + lane_index() % 16
                       : S::kRowsAtOnce * i + lane_index() / S::kChunks;
  }
  __device__ static int chunk(int i, bool is_shuffled) {
    return is_shuffled ? 4 * (i % (S::kChunks / 4)) + lane_index() / 16 : lane_index() % S::kChunks;
  }

  /// begin_of(row): the address of its first 16 bytes; `step`: from there to the next 16.
  template <class F>
  __device__ void load(F begin_of, int step, bool is_shuffled) {
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i)
      chunks[i] = tile::load_global<tile::Chunk>(begin_of(row(i, is_shuffled)) + chunk(i, is_shuffled) * step);
  }
  __device__ void store(typename S::WaveLds& lds, bool is_shuffled) const {
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i)
      lds.template at<tile::Chunk>(row(i, is_shuffled), 16 * chunk(i, is_shuffled)) = chunks[i];
  }
};

/// The place of this lane's key of a block: the table's entry stays as it was loaded until it is used.
struct Place {
  uint32_t entry, place;
  bool is_listed;  // the table has a column for it
};

/// The sequence's keys, as a wave takes them.
template <class S>
struct KeyStream {
  const Args& args;
  const int32_t* entries;
  int num_keys;  // at least 1

  /// 64 keys on their way, and what this lane has to know of its own.
  struct Block {
    Rows<S> rows;
    float scale;
    bool is_there;
  };
  /// The same as operands.
  struct Operands {
    typename S::Strip strips[kKeyStrips];
    float scale;
    bool is_there;
  };

  __device__ Place find(int first) const {
    const int own = first + lane_index(), key = own < num_keys ? own : num_keys - 1;
    if (entries == nullptr) return {0, static_cast<uint32_t>(key), own < num_keys};
    const uint32_t column = args.page_size.divide(key);
    return {static_cast<uint32_t>(entries[column]), key - column * args.page_size.divisor, own < num_keys};
  }

  __device__ void load(Block& block, const Place& at) const {
    block.is_there = at.is_listed && at.entry < args.num_pages;
    const uint32_t page = at.entry < args.num_pages ? at.entry : 0;
    const uint32_t tile = at.place / kPack * kPack;
    const int64_t in_page = args.is_shuffled ? int64_t{tile} * S::kDim + (at.place - tile) * kPack
                                             : at.place * args.key_bytes;
    const auto own = __builtin_bit_cast(Fragment, page * args.page_bytes + in_page);
    const auto base = reinterpret_cast<uint64_t>(args.keys);
    const auto begin_of = [&](int row) {
      return base + __builtin_bit_cast(uint64_t, Fragment{from_lane(own[0], row), from_lane(own[1], row)});
    };
    block.rows.load(begin_of, args.is_shuffled ? kPack * kPack : kPack, args.is_shuffled);
    block.scale = args.scales[page * args.scale_page + at.place * args.scale_key];
  }

  __device__ Operands operands(const Block& block, typename S::WaveLds& lds) const {
    Operands result{{}, block.scale, block.is_there};
    block.rows.store(lds, args.is_shuffled);
    tile::share_with_wave();
#pragma unroll
    for (int s = 0; s < kKeyStrips; ++s) result.strips[s] = tile::load<typename S::Strip>(lds, 16 * s, 0);
    tile::share_with_wave();
    return result;
  }
};

/// A row of a wave: its heads, their weights, and what it sees.
template <class S>
struct Row {
  typename S::Queries q;
  float weights[S::kHeadsOfLane];
  Range range;
  float* logits;
  bool is_there;

  __device__ bool sees(int column) const { return column >= range.first && column < range.end; }

  __device__ typename S::Scores products(const typename S::Strip& keys) const {
    typename S::Scores scores;
    tile::clear(scores);
    tile::mma<tile::Form::ABt>(scores, q, keys);
    return scores;
  }

  /// Σ_h weights · max(q · k, 0) of this lane's heads, for its key of a strip. A product that is NaN counts as 0. There
  /// is one sum: two would be packed, and packed arithmetic waits for the matrix pipe.
  __device__ float weighted(const typename S::Scores& scores) const {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < S::kHeadsOfLane; ++e) sum = __builtin_fmaf(weights[e], positive_of(scores.get(0, e)), sum);
    return sum;
  }

 private:
  __device__ static float positive_of(float x) {
    // A maximum would be two instructions, the first of which quiets NaNs. No sum of fp8 products reaches the bound.
    return __builtin_amdgcn_fmed3f(x, 0.f, 3e38f);
  }
};

/// Chooses by value: between two elements of an array the compiler would choose the index, and registers have none.
__device__ inline float either(bool condition, float yes, float no) { return condition ? yes : no; }

/// The sums over groups of lanes, of four strips: each lane has that of its own key among the 64.
__device__ inline float own_sum(const float (&sums)[kKeyStrips]) {
  const bool is_upper = lane_index() & 32, is_odd = lane_index() & 16;
  float halves[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    halves[i] = either(is_upper, sums[2 + i], sums[i]) + lane_xor<32>(either(is_upper, sums[i], sums[2 + i]));
  return either(is_odd, halves[1], halves[0]) + lane_xor<16>(either(is_odd, halves[0], halves[1]));
}

template <class S>
struct Tile {
  const Args& args;
  int sequence, first_row;  // in the sequence
  const int32_t* entries;   // the sequence's, with room for so many keys
  int num_keys, context;    // context: its length, with a table
  int fill_end;             // columns before it that a row does not see become −inf

  __device__ Tile(const Args& args, uint32_t index)
      : args(args),
        sequence(static_cast<int>(args.tiles_of_sequence.divide(index))),
        first_row(static_cast<int>(index - sequence * args.tiles_of_sequence.divisor) * S::kTileRows) {
    const Entries own = entries_of(args, sequence);
    entries = own.entries, num_keys = own.num_keys;
    context = args.context_lens != nullptr ? args.context_lens[sequence] : args.is_paged ? num_keys : 0;
    fill_end = args.is_clean ? args.width : context < 0 ? 0 : context < args.width ? context : args.width;
  }

  __device__ int64_t row_of(int row) const { return int64_t{sequence} * args.rows_of_sequence + first_row + row; }
  __device__ bool has(int row) const { return first_row + row < args.rows_of_sequence; }

  /// The keys that row `row` of the tile sees. A wrong length, such as one below the rows' number, leaves early rows
  /// nothing.
  __device__ Range range_of(int row) const {
    if (!has(row)) return {0x7FFFFFFF, 0};
    int64_t first = 0, end = 0;
    if (args.is_paged) {
      end = int64_t{context} - args.rows_of_sequence + first_row + row + 1;
    } else {
      first = args.starts[row_of(row)], end = args.ends[row_of(row)];
      if (first < 0) first = 0;
    }
    if (end > args.width) end = args.width;
    if (args.num_pages == 0 || num_keys == 0 || end <= first) return {0x7FFFFFFF, 0};
    return {static_cast<int>(first), static_cast<int>(end)};
  }

  /// −inf in columns `from` … `end` − 1 of all rows, each of the tile's workgroups a part of them.
  __device__ void fill(int from, int end, int split) const {
    for (int row = 0; row < S::kTileRows && has(row); ++row) {
      float* const logits = args.logits + row_of(row) * args.logits_row;
      for (int64_t c = int64_t{from} + split * kThreads + thread_index(); c < end; c += args.splits * kThreads)
        logits[c] = -__builtin_inff();
    }
  }

  __device__ Row<S> load_row(int row, typename S::WaveLds& lds) const {
    Row<S> result;
    const int64_t at = row_of(has(row) ? row : 0);
    const auto begin = reinterpret_cast<uint64_t>(args.q + at * args.q_row);
    constexpr int kAtOnce = S::kHeads < kKeys ? S::kHeads : kKeys;  // heads, in the room for 64
#pragma unroll
    for (int first = 0; first < S::kHeads; first += kAtOnce) {
      Rows<S> heads;
      heads.load([&](int i) { return begin + (first + (i < kAtOnce ? i : 0)) * args.q_head; }, kPack, false);
      heads.store(lds, false);
      tile::share_with_wave();
      using Part = tile::RegTile<fp8, kAtOnce, S::kDim, tile::OperandByRow<16>>;
      const auto part = tile::load<Part>(lds, 0, 0);
      tile::share_with_wave();
#pragma unroll
      for (int s = 0; s < Part::kStrips; ++s) {
#pragma unroll
        for (int p = 0; p < Part::kPieces; ++p) result.q.pieces[first / 16 + s][p] = part.pieces[s][p];
      }
    }
#pragma unroll
    for (int e = 0; e < S::kHeadsOfLane; ++e)
      result.weights[e] = args.weights[at * args.weights_row + S::Scores::Layout::depth(e)];
    result.range = range_of(row);
    result.logits = args.logits + at * args.logits_row;
    result.is_there = has(row);
    return result;
  }

  /// The logits of this lane's key of a block from `first` on. A strip of a row is multiplied while the one before it
  /// is weighed: the matrix unit leaves its wave time for that.
  __device__ void multiply(const Row<S> (&rows)[S::kRows], const typename KeyStream<S>::Operands& keys, int first,
                           float (&logits)[S::kRows]) const {
    constexpr int kUnits = S::kRows * kKeyStrips, kProducts = kUnits * S::Scores::kPieces * S::Strip::kPieces;
    tile::keep_order();
    float sums[S::kRows][kKeyStrips];
    typename S::Scores scores[2];
    scores[0] = rows[0].products(keys.strips[0]);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int next = u + 1;
      if (next < kUnits) scores[next % 2] = rows[next / kKeyStrips].products(keys.strips[next % kKeyStrips]);
      sums[u / kKeyStrips][u % kKeyStrips] = rows[u / kKeyStrips].weighted(scores[u % 2]);
    }
    using tile::Pipe;
    if constexpr (S::kDim == 128) tile::spread_between_products<kProducts, Pipe::valu, Pipe::valu>();
    else tile::spread_between_products<kProducts, Pipe::valu, Pipe::valu, Pipe::valu, Pipe::valu>();
    tile::keep_order();
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      // Opaque: for a row that sees none of these keys the compiler would jump over what weighs its products.
      const float logit = bits_float(opaque(float_bits(own_sum(sums[i])))) * keys.scale;
      logits[i] = keys.is_there && rows[i].sees(first + lane_index()) ? logit : -__builtin_inff();
    }
  }

  __device__ void store(const Row<S>& row, float logit, int first) const {
    const int column = first + lane_index();
    if (row.is_there && (row.sees(column) || column < fill_end)) row.logits[column] = logit;
  }
};

template <class S>
struct Lds {
  typename S::WaveLds of_wave[kWaves];
};

/// One workgroup: the last tiles, which see most in a causal call, begin first.
template <class Config>
__device__ inline void logits_body(const Args& args, uint32_t workgroup, Lds<Shape<Config>>& lds) {
  using S = Shape<Config>;
  const uint32_t nth = args.tiles.divide(workgroup), index = workgroup - nth * args.tiles.divisor;
  const int split = static_cast<int>(nth);
  const Tile<S> tile(args, args.tiles.divisor - 1 - index);
  Range seen{0x7FFFFFFF, 0};
#pragma unroll
  for (int i = 0; i < S::kTileRows; ++i) {
    const Range one = tile.range_of(i);
    seen.first = one.first < seen.first ? one.first : seen.first;
    seen.end = one.end > seen.end ? one.end : seen.end;
  }
  const int first_block = seen.end > 0 ? seen.first / kKeys : 0, end_block = (seen.end + kKeys - 1) / kKeys;
  tile.fill(0, first_block * kKeys < tile.fill_end ? first_block * kKeys : tile.fill_end, split);
  tile.fill(end_block * kKeys, tile.fill_end, split);

  const int64_t blocks = end_block - first_block, parts = int64_t{args.splits} * S::kKeyWaves;
  const int64_t part = int64_t{split} * S::kKeyWaves + wave_index() / S::kRowWaves;
  int at = kKeys * (first_block + static_cast<int>(blocks * part / parts));
  const int end = kKeys * (first_block + static_cast<int>(blocks * (part + 1) / parts));
  if (at >= end) return;
  const KeyStream<S> stream{args, tile.entries, tile.num_keys};
  const int first_row = wave_index() % S::kRowWaves * S::kRows;
  auto& own_lds = lds.of_wave[wave_index()];
  typename KeyStream<S>::Block block;
  const Place place = stream.find(at);
  Place next = stream.find(at + kKeys);
  Row<S> rows[S::kRows];
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) rows[i] = tile.load_row(first_row + i, own_lds);
  stream.load(block, place);
  // A block's logits are stored after the next loads: those are waited for together with what was asked for before.
  float logits[S::kRows];
  const auto store = [&] {
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) tile.store(rows[i], logits[i], at - kKeys);
  };
  for (bool is_first = true; at < end; at += kKeys, is_first = false) {
    const auto keys = stream.operands(block, own_lds);
    if (at + kKeys < end) {
      stream.load(block, next);
      next = stream.find(at + 2 * kKeys);
    }
    if (!is_first) store();
    tile.multiply(rows, keys, at, logits);
  }
  store();
}

}  // namespace aiter_like::mqa
