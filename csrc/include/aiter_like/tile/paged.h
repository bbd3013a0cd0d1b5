// SPDX-License-Identifier: MIT
// Rows of keys that lie in pages, gathered to the registers of one wave by whole rows: 16 lanes have a row, group g of
// them rows 4 g … 4 g + 3 of a strip of 16, one load each. So a load reads 4 rows from end to end, which memory likes
// best, and a lane has 4 rows that follow one another: what the depth of a matrix instruction takes from it.
//
// PagedWindow is for the tiles that all waves of a workgroup share: what Staged moves, gathered row by row.
//
// A lane's part of a row of 16 E elements comes in pieces of 8, 4 or 2 elements: piece p of lane c of its group is
// elements 16 first(p) + c len(p) … of the row.
#pragma once

#include <utility>

#include "aiter_like/math.h"
#include "aiter_like/tile/staging.h"

namespace aiter_like::tile {

/// How E elements of a lane, an even number, come in pieces.
template <int E>
struct Pieces {
  static_assert(E > 0 && E % 2 == 0, "rows of 32 elements, or a multiple");
  static constexpr int kCount = E / 8 + E % 8 / 4 + E % 4 / 2;
  static constexpr __host__ __device__ int len(int p) { return p < E / 8 ? 8 : p == E / 8 && E % 8 >= 4 ? 4 : 2; }
  static constexpr __host__ __device__ int first(int p) {
    return p <= E / 8 ? 8 * p : 8 * (E / 8) + 4;
  }
};

/// The places of one sequence's keys. It finds a page of the cache whatever the table and a key are, and reads no entry
/// behind that of the last key.
struct PageTable {
  const int* entries;
  Divider page_size;
  uint32_t last_page;  // the cache's
  int last_key;        // the sequence's, not negative

  __device__ int clamped(int key) const { return key < last_key ? key : last_key; }
  __device__ uint32_t entry(uint32_t index) const { return static_cast<uint32_t>(entries[index]); }
  __device__ uint32_t page_of(uint32_t entry) const { return entry < last_page ? entry : last_page; }

  /// A key's entry, as it is loaded, and its place in the page. Keys behind the last one are found where that one is.
  __device__ void find(int key, uint32_t& found, uint32_t& place) const {
    const int at = clamped(key);
    const uint32_t index = page_size.divide(at);
    found = entry(index);
    place = at - index * page_size.divisor;
  }
};

/// Elements of one head in pages: bytes from page to page and from place to place.
struct PagedHead {
  const char* data;
  int64_t page_bytes, place_bytes;
};

/// The value of lane LANE of this lane's 16, as part of the instruction that uses it (ISA, DPP_CTRL, row_newbcast).
template <int LANE>
__device__ inline uint32_t lane_of_16(uint32_t x) {
  constexpr int kRowNewBroadcast = 0x150;
  return static_cast<uint32_t>(
      __builtin_amdgcn_update_dpp(0, static_cast<int>(x), kRowNewBroadcast + LANE, 0xF, 0xF, true));
}
template <int LANE>
__device__ inline float lane_of_16(float x) {
  return bits_float(lane_of_16<LANE>(float_bits(x)));
}
template <int LANE>
__device__ inline int64_t lane_of_16(int64_t x) {
  const auto halves = __builtin_bit_cast(Fragment, x);
  return __builtin_bit_cast(int64_t, Fragment{lane_of_16<LANE>(halves[0]), lane_of_16<LANE>(halves[1])});
}

/// The value at an address of global memory.
template <class T>
__device__ inline T load_global(uint64_t address) {
  return *reinterpret_cast<const __attribute__((address_space(1))) T*>(address);
}

/// f.operator()<0>() … f.operator()<COUNT − 1>().
template <int COUNT, class F>
__device__ inline void for_constants(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f.template operator()<I>(), ...); }
  (std::make_integer_sequence<int, COUNT>{});
}

/// The places of the keys of STRIPS strips of 16, each lane one of them: lane 4 s + i of group g has key 16 s + 4 g +
/// i, so that what a lane has to know of its four rows of each strip is within its own 16 lanes. An entry stays as it
/// was loaded until it is used: to look at it is to wait for it.
template <int STRIPS>
struct KeyPlaces {
  static_assert(STRIPS == 1 || STRIPS == 2 || STRIPS == 4, "16 lanes have four keys of each strip");
  uint32_t entry, place;  // place: in the page

  /// This lane's key, counted from the tile's first one.
  __device__ static int own_key() {
    const int lane = lane_index();
    return lane / 4 % STRIPS * 16 + lane / 16 * 4 + lane % 4;
  }
  __device__ void load(const PageTable& table, int first_key) { table.find(first_key + own_key(), entry, place); }
  /// Page and place of any key of the tile, counted from its first one, from the lane that has it.
  struct Place {
    uint32_t page, place;
  };
  __device__ Place of(const PageTable& table, int key) const {
    const int lane = key % 16 / 4 * 16 + key / 16 * 4 + key % 4;
    const auto from = [=](uint32_t x) {
      return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(4 * lane, static_cast<int>(x)));
    };
    return {table.page_of(from(entry)), from(place)};
  }
  /// The offset in a plane with these strides from page to page and from place to place.
  __device__ int64_t offset(const PageTable& table, int64_t page_stride, int64_t place_stride) const {
    return table.page_of(entry) * page_stride + place * place_stride;
  }
  __device__ int64_t offset(const PageTable& table, const PagedHead& head) const {
    return offset(table, head.page_bytes, head.place_bytes);
  }
};

/// A tile of keys that lie in pages, as STAGED (staging.h) moves one to LDS: each work-item has whole chunks of rows.
/// The pages of a tile are asked for first, at best a tile ahead; K and V of the same keys share them.
template <class STAGED>
struct PagedWindow {
  uint32_t entries[STAGED::kCount];  // kept as they were loaded: to look at one is to wait for it
  uint32_t places[STAGED::kCount];   // in the page
  int first_key;

  __device__ void find(const PageTable& table, int key) {
    first_key = key;
#pragma unroll
    for (int i = 0; i < STAGED::kCount; ++i) table.find(key + STAGED::row(i), entries[i], places[i]);
  }

  /// Starts the loads of a tile of the same shape. Pages are less than 2^31 bytes apart, and span less.
  template <class OTHER>
  __device__ void load(OTHER& staged, const PageTable& table, const PagedHead& head) const {
    static_assert(OTHER::kCount == STAGED::kCount && OTHER::kChunksPerRow == STAGED::kChunksPerRow, "the same rows");
    const auto page_bytes = static_cast<uint32_t>(head.page_bytes);
    const auto place_bytes = static_cast<uint32_t>(head.place_bytes);
#pragma unroll
    for (int i = 0; i < STAGED::kCount; ++i) {
      const uint32_t page = table.page_of(entries[i]);
      const uint32_t in_page = places[i] * place_bytes + STAGED::column(i) * sizeof(typename OTHER::T);
      const char* from = head.data + (uint64_t{page} * page_bytes + in_page);
      if (STAGED::is_inside(i)) staged.chunks[i] = *reinterpret_cast<const Chunk*>(from);
    }
  }

  /// Zeros in the rows of keys that `is_kept` says no of.
  template <class OTHER, class IS_KEPT>
  __device__ void keep(OTHER& staged, IS_KEPT is_kept) const {
#pragma unroll
    for (int i = 0; i < STAGED::kCount; ++i) {
      const uint32_t mask = is_kept(first_key + STAGED::row(i)) ? 0xFFFFFFFFu : 0u;
      staged.chunks[i] &= Chunk{mask, mask, mask, mask};
    }
  }
};

/// STRIPS strips of 16 rows of 16 E elements of T, as they are in memory.
template <class T, int E, int STRIPS>
struct GatheredRows {
  using P = Pieces<E>;
  static constexpr int kSize = sizeof(T);
  static constexpr int kWords = (E * kSize + 3) / 4;  // words of a row; a last half word has its own
  uint32_t words[STRIPS][4][kWords];

  static constexpr __host__ __device__ int word(int p) { return P::first(p) * static_cast<int>(sizeof(T)) / 4; }

  /// From `data`, and from there the offsets of rows that lanes have as KeyPlaces says.
  __device__ void load(const char* data, int64_t own_offset) {
    const uint64_t column = reinterpret_cast<uint64_t>(data) + lane_index() % 16 * P::len(0) * kSize;
    for_constants<4 * STRIPS>([&]<int ROW>() {
      const uint64_t row = column + lane_of_16<ROW>(own_offset);
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) {
        const uint64_t from = row + 16 * P::first(p) * kSize - lane_index() % 16 * (P::len(0) - P::len(p)) * kSize;
        uint32_t* to = &words[ROW / 4][ROW % 4][word(p)];
        const int bytes = P::len(p) * kSize;
        if (bytes == 16) {
          const auto chunk = load_global<Chunk>(from);
          to[0] = chunk[0], to[1] = chunk[1], to[2] = chunk[2], to[3] = chunk[3];
        } else if (bytes == 8) {
          const auto pair = load_global<Fragment>(from);
          to[0] = pair[0], to[1] = pair[1];
        } else if (bytes == 4) {
          to[0] = load_global<uint32_t>(from);
        } else {
          to[0] = load_global<uint16_t>(from);
        }
      }
    });
  }

  /// Zeros in the rows outside first … end − 1, counted from the tile's first one.
  __device__ void keep(int first, int end) {
    const int row = lane_index() / 16 * 4;
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * s + row + i;
        const uint32_t mask = at >= first && at < end ? 0xFFFFFFFFu : 0u;
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[s][i][w] &= mask;
      }
    }
  }

  /// To rows of an LDS tile of this wave alone.
  template <class LDS>
  __device__ void store(LDS& lds) const {
    const int column = lane_index() % 16, row = lane_index() / 16 * 4;
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int p = 0; p < P::kCount; ++p) {
          const int bytes = P::len(p) * static_cast<int>(sizeof(T));
          const int byte = 16 * P::first(p) * static_cast<int>(sizeof(T)) + column * bytes, at = 16 * s + row + i;
          const uint32_t* from = &words[s][i][word(p)];
          if (bytes == 16) lds.template at<Chunk>(at, byte) = Chunk{from[0], from[1], from[2], from[3]};
          else if (bytes == 8) lds.template at<Fragment>(at, byte) = Fragment{from[0], from[1]};
          else if (bytes == 4) lds.template at<uint32_t>(at, byte) = from[0];
          else lds.template at<uint16_t>(at, byte) = static_cast<uint16_t>(from[0]);
        }
      }
    }
  }

  /// Element e of piece p of rows i and i + 1 of a strip, as one word of R: the first in the lower half.
  template <class R>
  __device__ uint32_t pair(int s, int i, int p, int e) const;
};

/// Four bytes as floats, exactly.
template <class T>
__device__ inline void floats_of(uint32_t word, float (&values)[4]) {
  if constexpr (std::is_same_v<T, fp8>) {
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), true);
    values[0] = low[0], values[1] = low[1], values[2] = high[0], values[3] = high[1];
  } else {
    const uint32_t raised = word ^ 0x80808080u;  // unsigned bytes have conversions of their own
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = static_cast<float>((raised >> (8 * i)) & 0xFF) - 128.f;
  }
}

/// Two floats that 16 bits hold exactly, as one word of R; NaN stays NaN.
template <class R>
__device__ inline uint32_t pair_of(float low, float high) {
  if constexpr (std::is_same_v<R, bf16>) return pack_upper(float_bits(low), float_bits(high));
  else return Pack<f16, Rounding::kTowardZero>::pack(low, high);
}

template <class T, int E, int STRIPS>
template <class R>
__device__ uint32_t GatheredRows<T, E, STRIPS>::pair(int s, int i, int p, int e) const {
  if constexpr (sizeof(T) == 2) {
    const uint32_t low = words[s][i][word(p) + e / 2], high = words[s][i + 1][word(p) + e / 2];
    return e % 2 ? pack_upper(low, high) : pack_lower(low, high);
  } else {
    float low[4], high[4];
    floats_of<T>(words[s][i][word(p) + e / 4], low);
    floats_of<T>(words[s][i + 1][word(p) + e / 4], high);
    return pair_of<R>(low[e % 4], high[e % 4]);
  }
}

/// RUN bytes as 16 bits, in the pieces of an operand.
template <class T, class R, int RUN>
__device__ inline void widen(const uint32_t (&words)[RUN / 4], Fragment (&pieces)[RUN / 4]) {
#pragma unroll
  for (int w = 0; w < RUN / 4; ++w) {
    float values[4];
    floats_of<T>(words[w], values);
    pieces[w] = Fragment{pair_of<R>(values[0], values[1]), pair_of<R>(values[2], values[3])};
  }
}

/// The operand by row at (0, first_column) of an LDS tile of bytes, as 16 bits: one run of 8 or 16 of them.
template <class TILE, class LDS>
__device__ inline TILE load_widened(const LDS& lds, int first_column) {
  using Layout = typename TILE::Layout;
  constexpr int kRun = Layout::kRun;
  using Raw = std::conditional_t<kRun == 16, Chunk, Fragment>;
  static_assert(TILE::kOwnsRows && TILE::kPerStrip == kRun && sizeof(Raw) == kRun &&
                    sizeof(typename LDS::Element) == 1, "an operand by row of one run");
  TILE tile;
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
    const Raw raw = lds.template at<Raw>(Layout::owned(s), first_column + Layout::first_depth());
    uint32_t words[kRun / 4];
#pragma unroll
    for (int w = 0; w < kRun / 4; ++w) words[w] = raw[w];
    widen<typename LDS::Element, typename TILE::Element, kRun>(words, tile.pieces[s]);
  }
  return tile;
}

/// Lets the lanes of this wave read from here on what its other lanes have written to LDS. LDS serves a wave in order:
/// no instruction, but the compiler knows of one lane at a time.
__device__ inline void share_with_wave() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

}  // namespace aiter_like::tile
