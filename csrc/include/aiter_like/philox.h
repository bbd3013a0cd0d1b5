// SPDX-License-Identifier: MIT
// Random bits from a counter: Philox4x32-10 of Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011). The
// same seed and counter give the same bits on every device, in every order; tl.philox gives them too.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

/// Four words for a counter of four.
__device__ __forceinline__ Vec<uint32_t, 4> philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Four words for a counter of 64 bits.
__device__ inline Vec<uint32_t, 4> philox(uint64_t seed, uint64_t counter) {
  return philox(seed, static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0);
}

}  // namespace aiter_like
