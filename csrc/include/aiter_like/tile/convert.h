// SPDX-License-Identifier: MIT
// Tiles of floats rounded to 16 or 8 bits, element by element: the layout stays, so a product becomes an operand.
#pragma once

#include "aiter_like/tile/reg_tile.h"

namespace aiter_like::tile {

/// Converts to T: bf16 by any Rounding, f16 to nearest even or towards zero, fp8 (of magnitude at most 240) to nearest
/// even. NaNs as in round_to_upper_half: those of arithmetic are kept.
template <class T, Rounding kMode, class TILE>
__device__ inline auto convert(const TILE& tile) {
  RegTile<T, TILE::kRows, TILE::kColumns, typename TILE::Layout> result;
  constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
  for (int s = 0; s < TILE::kStrips; ++s) {
#pragma unroll
    for (int w = 0; w < TILE::kPerStrip / kPerWord; ++w) {
      const int e = kPerWord * w;
      uint32_t word;
      if constexpr (sizeof(T) == 2)
        word = Pack<T, kMode>::pack(tile.get(s, e), tile.get(s, e + 1));
      else
        word = pack_fp8(tile.get(s, e), tile.get(s, e + 1), tile.get(s, e + 2), tile.get(s, e + 3));
      result.pieces[s][w / 2][w % 2] = word;
    }
  }
  return result;
}

/// Neighbours to nearest even, whatever they are: as from_float, by fewer instructions for bf16.
template <class T, int COUNT>
__device__ inline Vec<T, COUNT> rounded(const float (&values)[COUNT]) {
  Vec<T, COUNT> result;
  if constexpr (std::is_same_v<T, bf16>) {
    const auto upper = [](float x) { return x != x ? 0x7FFF0000u : round_to_upper_half<Rounding::kNearestEven>(x); };
    uint32_t words[COUNT / 2];
#pragma unroll
    for (int w = 0; w < COUNT / 2; ++w) words[w] = pack_upper(upper(values[2 * w]), upper(values[2 * w + 1]));
    __builtin_memcpy(&result, words, sizeof(result));
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) result[i] = from_float<T>(values[i]);
  }
  return result;
}

}  // namespace aiter_like::tile
