// SPDX-License-Identifier: MIT
// Rotary position embedding of heads: which elements form a pair, where a pair's angle stands, the rotation itself. The
// kernels of csrc/rope/ are written with it.
#pragma once

#include "aiter_like/ffi.h"
#include "aiter_like/rows/rows.h"
#include "sincos.h"

namespace aiter_like {

/// An integer of 32 or 64 bits as it was loaded: compilers widen a loaded integer at once, and would wait for it before
/// they load anything else.
struct RopeIndex {
  int32_t low = 0, high = 0;

  __device__ uint64_t value(bool is_long) const {
    return is_long ? uint64_t(high) << 32 | uint32_t(low) : uint64_t(int64_t(low));
  }
};

/// Integers of 32 or 64 bits, [s, b].
struct RopeIndices {
  const void* data;
  int64_t stride_s, stride_b;
  bool is_long;

  /// The lower 32 bits: enough for what counts tokens.
  __device__ int32_t at(int64_t offset) const { return static_cast<const int32_t*>(data)[offset << is_long]; }

  __device__ RopeIndex load(int64_t s, int64_t b) const {
    const int64_t place = s * stride_s + b * stride_b;
#if defined(__HIP__)
    const int32_t* words = static_cast<const int32_t*>(data) + (place << is_long);
    return {words[0], words[is_long]};
#else
    if (!is_long) return {static_cast<const int32_t*>(data)[place], 0};
    const int64_t wide = static_cast<const int64_t*>(data)[place];
    return {static_cast<int32_t>(wide), static_cast<int32_t>(wide >> 32)};
#endif
  }
};

/// kVec neighbouring elements as they are in memory.
template <class T, int kVec>
struct RopePack : Packed<T, kVec> {
  using typename Packed<T, kVec>::Word;
  using Packed<T, kVec>::kPerWord, Packed<T, kVec>::kWords, Packed<T, kVec>::words;

  /// Its first half from `low`, its second from `high`.
  __device__ void load_halves(const T* low, const T* high) {
    const auto first = load_vec<kWords / 2>(reinterpret_cast<const Word*>(low));
    const auto second = load_vec<kWords / 2>(reinterpret_cast<const Word*>(high));
#pragma unroll
    for (int w = 0; w < kWords / 2; ++w) {
      words[w] = first[w];
      words[kWords / 2 + w] = second[w];
    }
  }
  __device__ void store(T* address) const { store_vec(reinterpret_cast<Word*>(address), words); }
  /// All bits 1: NaNs, whatever the type.
  __device__ void fill_ones() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = static_cast<Word>(~Word{0});
  }
  __device__ void negate() {
    constexpr uint32_t kSigns = sizeof(T) == 2 && kPerWord == 2 ? 0x80008000u : 1u << (8 * sizeof(T) - 1);
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] ^= static_cast<Word>(kSigns);
  }
};

/// Whether the two packs of a lane's pairs are neighbours: single elements that make one GPT-J pair. All others are
/// half the rotated part apart, so that neighbouring lanes access neighbours; with both packs side by side each access
/// of 16 bytes per lane would touch twice as much memory as it takes.
template <int kVec, bool kIsGptj>
constexpr bool kAreNeighbours = kIsGptj && kVec == 1;

/// kVec pairs of a head: two packs of kVec elements. NeoX: pair e is (low[e], high[e]). GPT-J: pair e is elements 2e
/// and 2e + 1 of both packs, one after the other.
template <class T, int kVec, bool kIsGptj>
struct Pairs {
  RopePack<T, kVec> low, high;

  __device__ float flat(int element) const { return element < kVec ? low.at(element) : high.at(element - kVec); }
  __device__ float first(int pair) const { return kIsGptj ? flat(2 * pair) : low.at(pair); }
  __device__ float second(int pair) const { return kIsGptj ? flat(2 * pair + 1) : high.at(pair); }
};

/// Writes pairs (first(e), second(e)) to the places of a Pairs.
template <bool kIsGptj, int kVec, class T, class First, class Second>
__device__ inline void store_pairs(T* low, T* high, First first, Second second) {
  float x[kVec], y[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    x[e] = !kIsGptj ? first(e) : e % 2 == 0 ? first(e / 2) : second(e / 2);
    const int f = e + kVec;
    y[e] = !kIsGptj ? second(e) : f % 2 == 0 ? first(f / 2) : second(f / 2);
  }
  store_vec<kVec>(low, vec_from_float<T>(x));
  store_vec<kVec>(high, vec_from_float<T>(y));
}

/// The angles of kVec pairs: from a table of cosines and one of sines, or from one of angles (kIsAngle). A table row
/// has a value per pair (kIsShared), or one per element: its first and second need not have the same angle then.
template <class Table, int kVec, bool kIsGptj, bool kIsShared, bool kIsAngle>
struct Turn {
  static constexpr int kCount = kIsShared ? kVec : 2 * kVec;

  Pairs<Table, kVec, kIsGptj> cosines, sines;
  float computed[kIsAngle ? 2 * kCount : 1];  // cosines, then sines; unused where both come from tables
  bool is_transposed = false;

  /// `low`: the low pack's first element among the rotated ones; `distance`: from there to the high pack's.
  __device__ void load(const Table* cosine_row, const Table* sine_row, int low, int distance) {
    load(cosines, cosine_row, low, distance);
    if constexpr (kIsAngle) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        sine_cosine(kIsShared ? cosines.low.at(e) : cosines.first(e), computed[kCount + e], computed[e]);
        if constexpr (!kIsShared)
          sine_cosine(cosines.second(e), computed[kCount + kVec + e], computed[kVec + e]);
      }
    } else {
      load(sines, sine_row, low, distance);
    }
  }

  /// For a token whose row is not in the table: its heads become NaN.
  __device__ void load_nan() {
    if constexpr (kIsAngle) {
#pragma unroll
      for (float& value : computed) value = __builtin_nanf("");
    } else {
      cosines.low.fill_ones(), cosines.high.fill_ones(), sines.low.fill_ones(), sines.high.fill_ones();
    }
  }

  __device__ float cosine(int pair, bool is_second) const {
    if constexpr (kIsAngle) return computed[kIsShared || !is_second ? pair : kVec + pair];
    else return pick(cosines, pair, is_second);
  }
  __device__ float sine(int pair, bool is_second) const {
    if constexpr (kIsShared) return of_element(pair, false);
    const float own = of_element(pair, is_second), other = of_element(pair, !is_second);
    return is_transposed ? other : own;
  }

  /// Keeps the tables as they are in memory, not as floats, from one head to the next.
  __device__ void drop_floats() {
    Pairs<Table, kVec, kIsGptj>* const tables[] = {&cosines, &sines};
    for (auto* table : tables) {
      table->low.drop_floats();
      if constexpr (!kIsShared) table->high.drop_floats();
    }
  }

  /// Turns back: takes each sine from the other element of the pair, negative.
  __device__ void transpose() {
    is_transposed = true;
    if constexpr (kIsAngle) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) computed[kCount + e] = -computed[kCount + e];
    } else {
      sines.low.negate();
      if constexpr (!kIsShared) sines.high.negate();
    }
  }

 private:
  __device__ static void load(Pairs<Table, kVec, kIsGptj>& to, const Table* row, int low, int distance) {
    if constexpr (!kIsShared) {
      to.low.load(row + low);
      to.high.load(row + low + distance);
    } else if constexpr (kIsGptj && !kAreNeighbours<kVec, kIsGptj>) {
      to.low.load_halves(row + low / 2, row + (low + distance) / 2);
    } else {
      to.low.load(row + (kIsGptj ? low / 2 : low));
    }
  }
  __device__ float of_element(int pair, bool is_second) const {
    if constexpr (kIsAngle) return computed[kCount + (kIsShared || !is_second ? pair : kVec + pair)];
    else return pick(sines, pair, is_second);
  }
  __device__ static float pick(const Pairs<Table, kVec, kIsGptj>& from, int pair, bool is_second) {
    if constexpr (kIsShared) return from.low.at(pair);
    else return is_second ? from.second(pair) : from.first(pair);
  }
};

/// x · factor, rounded to T; not fused with what is added to it, for which LLVM would leave the rounding out.
template <class T>
__device__ inline float rounded_product(float x, float factor) {
#pragma clang fp contract(off)
  return to_float(from_float<T>(x * factor));
}

/// Rotates x by its angles and writes it: first·cos - second·sin, second·cos + first·sin; kIsRounded: each product is
/// rounded to T before two of them are added.
template <bool kIsRounded, int kVec, bool kIsGptj, class T, class Turn>
__device__ inline void rotate_pairs(T* low, T* high, const Pairs<T, kVec, kIsGptj>& x, const Turn& turn) {
  if constexpr (kIsRounded)
    store_pairs<kIsGptj, kVec>(
        low, high,
        [&](int e) {
          return rounded_product<T>(x.first(e), turn.cosine(e, false)) -
                 rounded_product<T>(x.second(e), turn.sine(e, false));
        },
        [&](int e) {
          return rounded_product<T>(x.second(e), turn.cosine(e, true)) +
                 rounded_product<T>(x.first(e), turn.sine(e, true));
        });
  else
    store_pairs<kIsGptj, kVec>(
        low, high, [&](int e) { return x.first(e) * turn.cosine(e, false) - x.second(e) * turn.sine(e, false); },
        [&](int e) { return x.second(e) * turn.cosine(e, true) + x.first(e) * turn.sine(e, true); });
}

#if AITER_LIKE_HOST_PASS
namespace ffi {

/// Indices [s, b], or [s], with at least `rows` of them; none where the tensor is absent.
inline RopeIndices rope_indices(Match& match, const OptionalTensor& tensor, int64_t rows, const char* name) {
  if (!tensor.has_value()) return {};
  const bool is_long = match.one_of<int32_t, int64_t>(*tensor, name) == 1, has_batch = (*tensor).ndim() > 1;
  const Shape shape = has_batch ? Shape{at_least(rows), at_least(0)} : Shape{at_least(rows)};
  const auto taken = match.take<const void>(tensor, shape, name, kStrided);
  return {taken.data, taken.strides[0], has_batch ? taken.strides[1] : 0, is_long};
}

/// Tables [rows, width] of T, into a kernel's arguments; rows begin at multiples of an access of `count` elements.
template <class T, class Args>
void take_tables(Match& match, Args& args, const Tensor& cos, const Tensor& sin, Size& rows, Size& width,
                 int64_t count) {
  const auto cosines = match.rows<const T>(cos, rows, width, "cos");
  const auto sines = match.rows<const T>(sin, rows, width, "sin");
  const int64_t bytes = count * sizeof(T) < 16 ? count * sizeof(T) : 16;
  match.require(are_rows_aligned(cos, bytes) && are_rows_aligned(sin, bytes),
                "rows of cos and sin must begin at multiples of an access");
  args.cosines = cosines.data, args.cosine_stride = cosines.stride;
  args.sines = sines.data, args.sine_stride = sines.stride;
}

}  // namespace ffi
#endif

}  // namespace aiter_like
