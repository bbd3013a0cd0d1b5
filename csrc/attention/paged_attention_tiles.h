// SPDX-License-Identifier: MIT
// How a wave of paged_attention has the keys and values of a tile, for each layout of pages: what its lanes load, which
// of both turns through LDS, and which head dimension an accumulator's lanes have. The loop over tiles, in
// paged_attention_body.h, is the same for all.
#pragma once

#include "aiter_like/tile/lds_tile.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/paged.h"

namespace aiter_like::paged {

using namespace tile;

/// The layouts of pages, and what has whatever strides.
enum class Form { kRows, kPacked, kElements };

/// Strides of pages beside those of rows: bytes from pack to pack of a key, from column to column of V, from key to key
/// within a pack of V; the log2 of elements of a pack, of K and of keys of V; and head dimensions. FORM kPacked uses
/// the first two, kElements all.
struct Packs {
  int64_t k_pack, v_column, v_key;
  int k_shift, v_shift, head_dim, head_dim_v;
};

/// The pages of a sequence that a wave reads, and K and V of one head in them.
struct Source {
  PageTable table;
  PagedHead k, v;
  Packs packs;
};

/// Pages of rows. Both K and V are loaded by whole rows. V stays in registers, since its rows are what a matrix
/// instruction takes as depth; K turns through LDS.
template <class Shape>
struct RowTiles {
  using T = typename Shape::CacheElement;
  using Lds = LdsTile<T, Shape::kKeys, Shape::kHeadDim, SwizzledByRow>;
  using Places = KeyPlaces<Shape::kKeyStrips>;
  using P = Pieces<Shape::kHeadDimV / 16>;
  static constexpr bool kKeysTurn = true;

  GatheredRows<T, Shape::kHeadDim / 16, Shape::kKeyStrips> keys;
  GatheredRows<T, Shape::kHeadDimV / 16, Shape::kKeyStrips> values;

  __device__ void load_keys(const Source& from, const Places& places) {
    keys.load(from.k.data, places.offset(from.table, from.k));
  }
  __device__ void load_values(const Source& from, const Places& places) {
    values.load(from.v.data, places.offset(from.table, from.v));
  }
  __device__ void store(Lds& lds) const { keys.store(lds); }

  __device__ typename Shape::KeySlice slice(const Lds& lds, int d) const {
    if constexpr (sizeof(T) == 2) return load<typename Shape::KeySlice>(lds, 0, Shape::kDepth * d);
    else return load_widened<typename Shape::KeySlice>(lds, Shape::kDepth * d);
  }

  /// Zeros in the values of the keys outside first … end − 1, counted from the tile's first one.
  __device__ void keep(int first, int end) { values.keep(first, end); }

  /// The values of the lane's four keys of a strip, in the column_of its place among 16 and element e of piece p.
  template <class R>
  __device__ Fragment column(const Lds&, int key_strip, int p, int e) const {
    return {values.template pair<R>(key_strip, 0, p, e), values.template pair<R>(key_strip, 2, p, e)};
  }

  /// Element e of piece p at place `owner` of 8, among the 8 len(p) of half a piece; and which column of V the half's
  /// element `index` is.
  static constexpr __host__ __device__ int index_of(int p, int e, int owner) { return owner * P::len(p) + e; }
  static constexpr __host__ __device__ int column_of(int p, int half, int index) {
    return 16 * P::first(p) + half * 8 * P::len(p) + index;
  }
};

/// Pages of packs of 16 bytes: K [.., head_dim / x, key, x], V [.., key / x, column, x] or [.., column, key]. A pack of
/// K is what a lane of a matrix instruction has: K stays in registers. A pack of V has the same column of x keys, more
/// than a lane takes of it: V turns through LDS.
template <class Shape>
struct PackedTiles {
  using T = typename Shape::CacheElement;
  static constexpr int kSize = sizeof(T), kPack = 16 / kSize;  // elements of a pack
  static constexpr int kKeyStrips = Shape::kKeyStrips, kColumns = Shape::kHeadDimV;
  static constexpr int kBlocks = Shape::kKeys / kPack;  // blocks of keys, a pack of each column
  static constexpr int kBlocksAtOnce = kBlocks < 4 ? kBlocks : 4, kColumnsAtOnce = kWaveSize / kBlocksAtOnce;
  static constexpr int kBlocksOfLane = kBlocks / kBlocksAtOnce, kColumnsOfLane = kColumns / kColumnsAtOnce;
  static_assert(kBlocks % kBlocksAtOnce == 0, "whole packs of keys");
  static constexpr int kLeft = kColumns % kColumnsAtOnce;  // columns behind the last whole load of a wave
  static constexpr int kLoads = kColumnsOfLane + (kLeft > 0);
  using P = Pieces<kColumns / 16>;
  static constexpr bool kKeysTurn = false;
  static constexpr int kRun = Shape::kKeyRun;
  using Run = std::conditional_t<kRun * kSize == 16, Chunk, Fragment>;
  using Places = KeyPlaces<kKeyStrips>;

  struct Lds {
    Chunk packs[kBlocks][kColumns];
  };

  Run keys[kKeyStrips][Shape::kSlices];
  Chunk values[kBlocksOfLane][kLoads];

  __device__ static int own_block() { return lane_index() / 16 % kBlocksAtOnce; }
  __device__ static int own_column() { return lane_index() % 16 + lane_index() / 16 / kBlocksAtOnce * 16; }
  __device__ static bool is_inside(int load) { return load < kColumnsOfLane || own_column() < kLeft; }

  __device__ void load_keys(const Source& from, const Places& places) {
    const int first = kRun * (lane_index() / 16);  // element of the key's
    const char* data = from.k.data + first / kPack * from.packs.k_pack + first % kPack * kSize;
#pragma unroll
    for (int s = 0; s < kKeyStrips; ++s) {
      const auto at = places.of(from.table, 16 * s + lane_index() % 16);
      const char* key = data + at.page * from.k.page_bytes + at.place * from.k.place_bytes;
#pragma unroll
      for (int d = 0; d < Shape::kSlices; ++d)
        keys[s][d] = *reinterpret_cast<const Run*>(key + Shape::kDepth / kPack * d * from.packs.k_pack);
    }
  }

  /// Places of V are blocks of a pack of keys.
  __device__ void load_values(const Source& from, const Places& places) {
    const char* data = from.v.data + own_column() * from.packs.v_column;
#pragma unroll
    for (int b = 0; b < kBlocksOfLane; ++b) {
      const auto at = places.of(from.table, kPack * (own_block() + kBlocksAtOnce * b));
      const char* block = data + at.page * from.v.page_bytes + at.place / kPack * from.v.place_bytes;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (is_inside(i))
          values[b][i] = *reinterpret_cast<const Chunk*>(block + kColumnsAtOnce * i * from.packs.v_column);
      }
    }
  }

  __device__ void store(Lds& lds) const {
#pragma unroll
    for (int b = 0; b < kBlocksOfLane; ++b) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (is_inside(i)) lds.packs[own_block() + kBlocksAtOnce * b][own_column() + kColumnsAtOnce * i] = values[b][i];
      }
    }
  }

  __device__ typename Shape::KeySlice slice(const Lds&, int d) const {
    typename Shape::KeySlice result;
#pragma unroll
    for (int s = 0; s < kKeyStrips; ++s) {
      if constexpr (kSize == 2) {
        result.pieces[s][0] = keys[s][d].lo;
        result.pieces[s][1] = keys[s][d].hi;
      } else {
        uint32_t words[kRun / 4];
#pragma unroll
        for (int w = 0; w < kRun / 4; ++w) words[w] = keys[s][d][w];
        widen<T, typename Shape::Element, kRun>(words, result.pieces[s]);
      }
    }
    return result;
  }

  __device__ void keep(int first, int end) {
#pragma unroll
    for (int b = 0; b < kBlocksOfLane; ++b) {
      Chunk mask;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        mask[w] = 0;
#pragma unroll
        for (int i = 0; i < 4 / kSize; ++i) {
          const int at = kPack * (own_block() + kBlocksAtOnce * b) + 4 / kSize * w + i;
          if (at >= first && at < end) mask[w] |= (kSize == 2 ? 0xFFFFu : 0xFFu) << (8 * kSize * i);
        }
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) values[b][i] &= mask;
    }
  }

  template <class R>
  __device__ Fragment column(const Lds& lds, int key_strip, int p, int e) const {
    const int key = 16 * key_strip + lane_index() / 16 * 4, column = 16 * (P::first(p) + e) + lane_index() % 16;
    const char* from = reinterpret_cast<const char*>(&lds.packs[key / kPack][column]) + key % kPack * kSize;
    if constexpr (kSize == 2) {
      return *reinterpret_cast<const Fragment*>(from);
    } else {
      const uint32_t words[1] = {*reinterpret_cast<const uint32_t*>(from)};
      Fragment result[1];
      widen<T, R, 4>(words, result);
      return result[0];
    }
  }

  static constexpr __host__ __device__ int index_of(int, int e, int owner) { return 8 * e + owner; }
  static constexpr __host__ __device__ int column_of(int p, int half, int index) {
    return 16 * (P::first(p) + index / 8) + 8 * half + index % 8;
  }
};

/// Like RowTiles, for pages of whatever strides and head dimensions: element by element, zeros behind the last.
template <class Shape>
struct ElementTiles : RowTiles<Shape> {
  using Base = RowTiles<Shape>;
  using T = typename Base::T;
  using Places = typename Base::Places;
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;

  /// OFFSET: from an element's number to its bytes from the row's first one.
  template <int E, class OFFSET>
  __device__ static void gather(GatheredRows<T, E, Shape::kKeyStrips>& rows, const char* data, int64_t own_offset,
                                int dim, OFFSET offset_of) {
    using P = Pieces<E>;
    constexpr int kPerWord = 4 / sizeof(T);
    for_constants<4 * Shape::kKeyStrips>([&]<int ROW>() {
      const uint64_t row = reinterpret_cast<uint64_t>(data) + lane_of_16<ROW>(own_offset);
      auto& words = rows.words[ROW / 4][ROW % 4];
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) {
#pragma unroll
        for (int e = 0; e < P::len(p); ++e) {
          const int element = 16 * P::first(p) + lane_index() % 16 * P::len(p) + e;
          const uint32_t bits = element < dim ? load_global<Bits>(row + offset_of(element)) : 0;
          uint32_t& word = words[(P::first(p) + e) / kPerWord];
          word = e % kPerWord == 0 ? bits : word | bits << (8 * sizeof(T) * (e % kPerWord));
        }
      }
    });
  }
  __device__ void load_keys(const Source& from, const Places& places) {
    const int shift = from.packs.k_shift;
    gather(this->keys, from.k.data, places.offset(from.table, from.k), from.packs.head_dim, [&](int element) {
      return (element >> shift) * from.packs.k_pack + (element & ((1 << shift) - 1)) * static_cast<int>(sizeof(T));
    });
  }
  __device__ void load_values(const Source& from, const Places& places) {
    Places blocks = places;
    blocks.place = places.place >> from.packs.v_shift;
    const int64_t in_block = (places.place - (blocks.place << from.packs.v_shift)) * from.packs.v_key;
    gather(this->values, from.v.data, blocks.offset(from.table, from.v) + in_block, from.packs.head_dim_v,
           [&](int element) { return element * from.packs.v_column; });
  }
};

template <class Shape, Form FORM>
using TilesOf =
    std::conditional_t<FORM == Form::kRows, RowTiles<Shape>,
                       std::conditional_t<FORM == Form::kPacked, PackedTiles<Shape>, ElementTiles<Shape>>>;

}  // namespace aiter_like::paged
