// SPDX-License-Identifier: MIT
// Matrix instructions of gfx942 on bf16 and f16 fragments, and the packing of floats into them. No other target.
//
// v_mfma_f32_16x16x16: D = C + A · B, each 16 × 16, by one wave. With lane = 16 · quad + col:
//   A: element e of a lane is A[col][4 quad + e]      B: element e is B[4 quad + e][col]      (e = 0…3, 8 bytes)
//   C, D: element r of a lane is D[4 quad + r][col]                                           (r = 0…3, 16 bytes)
// (CDNA3 ISA, section 7; AMD's matrix instruction calculator prints the same maps.)
#pragma once

#include "aiter_like/dtype.h"

#if !defined(__HIP__)
#error "mfma.h: this source is for gfx942 only; there is no NVIDIA form of it"
#endif

namespace aiter_like {

using Accumulator = __attribute__((ext_vector_type(4))) float;
/// Four 16-bit elements of one lane, low half first.
using Fragment = __attribute__((ext_vector_type(2))) uint32_t;

template <class T>
__device__ inline Accumulator mfma_16x16x16(Fragment a, Fragment b, Accumulator c);

template <>
__device__ inline Accumulator mfma_16x16x16<bf16>(Fragment a, Fragment b, Accumulator c) {
  using Operand = __attribute__((ext_vector_type(4))) short;
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                                   0, 0, 0);
}

template <>
__device__ inline Accumulator mfma_16x16x16<f16>(Fragment a, Fragment b, Accumulator c) {
  using Operand = __attribute__((ext_vector_type(4))) _Float16;
  return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                               0, 0, 0);
}

/// Lower halves of two dwords: low's in bits 0-15, high's in bits 16-31.
__device__ inline uint32_t pack_lower(uint32_t low, uint32_t high) {
  return __builtin_amdgcn_perm(high, low, 0x05040100u);
}

/// Upper halves of two dwords, in the same order.
__device__ inline uint32_t pack_upper(uint32_t low, uint32_t high) {
  return __builtin_amdgcn_perm(high, low, 0x07060302u);
}

/// Two floats as 16-bit elements of one dword. NaNs as in round_to_upper_half.
template <class T, Rounding kMode>
struct Pack;

template <Rounding kMode>
struct Pack<bf16, kMode> {
  __device__ static uint32_t pack(float low, float high) {
    return pack_upper(round_to_upper_half<kMode>(low), round_to_upper_half<kMode>(high));
  }
};

template <>
struct Pack<f16, Rounding::kNearestEven> {
  __device__ static uint32_t pack(float low, float high) {
    return pack_lower(from_float<f16>(low).bits, from_float<f16>(high).bits);
  }
};

}  // namespace aiter_like
