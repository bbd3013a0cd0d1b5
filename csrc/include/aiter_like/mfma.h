// SPDX-License-Identifier: MIT
// Matrix instructions of gfx942 on bf16, f16, fp8 and int8 fragments, and the packing of floats into them. No other
// target.
//
// D = C + A · B by one wave, WIDTH × WIDTH, WIDTH 16 or 32. With lane = WIDTH · group + col and n elements in 8 bytes
// (4 of 16 bits, 8 of 8 bits):
//   A: element e of a lane is A[col][n group + e]     B: element e is B[n group + e][col]
//   C, D: element r of a lane is D[4 groups · (r / 4) + 4 group + r % 4][col]   (r < WIDTH² / 64; groups = 64 / WIDTH)
// (CDNA3 ISA, section 7; AMD's matrix instruction calculator prints the same maps.)
#pragma once

#include "aiter_like/dtype.h"

#if !defined(__HIP__)
#error "mfma.h: this source is for gfx942 only; there is no NVIDIA form of it"
#endif

namespace aiter_like {

using Accumulator = __attribute__((ext_vector_type(4))) float;
using WideAccumulator = __attribute__((ext_vector_type(16))) float;
using IntAccumulator = __attribute__((ext_vector_type(4))) int32_t;
using WideIntAccumulator = __attribute__((ext_vector_type(16))) int32_t;
/// 8 bytes of one lane: four 16-bit or eight 8-bit elements, the first in the lowest bits.
using Fragment = __attribute__((ext_vector_type(2))) uint32_t;

template <class T, int WIDTH>
struct Mfma;

template <>
struct Mfma<bf16, 16> {
  __device__ static Accumulator multiply(Fragment a, Fragment b, Accumulator c) {
    using Operand = __attribute__((ext_vector_type(4))) short;
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                                     0, 0, 0);
  }
};

template <>
struct Mfma<bf16, 32> {
  __device__ static WideAccumulator multiply(Fragment a, Fragment b, WideAccumulator c) {
    using Operand = __attribute__((ext_vector_type(4))) short;
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                                    0, 0, 0);
  }
};

template <>
struct Mfma<f16, 16> {
  __device__ static Accumulator multiply(Fragment a, Fragment b, Accumulator c) {
    using Operand = __attribute__((ext_vector_type(4))) _Float16;
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                                 0, 0, 0);
  }
};

template <>
struct Mfma<f16, 32> {
  __device__ static WideAccumulator multiply(Fragment a, Fragment b, WideAccumulator c) {
    using Operand = __attribute__((ext_vector_type(4))) _Float16;
    return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c,
                                                0, 0, 0);
  }
};

template <>
struct Mfma<fp8, 16> {
  __device__ static Accumulator multiply(Fragment a, Fragment b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c,
                                                      0, 0, 0);
  }
};

template <>
struct Mfma<fp8, 32> {
  __device__ static WideAccumulator multiply(Fragment a, Fragment b, WideAccumulator c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c,
                                                      0, 0, 0);
  }
};

/// Sums of 32 bits that wrap: exact below 2^17 products of one element.
template <>
struct Mfma<int8_t, 16> {
  __device__ static IntAccumulator multiply(Fragment a, Fragment b, IntAccumulator c) {
    return __builtin_amdgcn_mfma_i32_16x16x32_i8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c, 0, 0, 0);
  }
};

template <>
struct Mfma<int8_t, 32> {
  __device__ static WideIntAccumulator multiply(Fragment a, Fragment b, WideIntAccumulator c) {
    return __builtin_amdgcn_mfma_i32_32x32x16_i8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c, 0, 0, 0);
  }
};

template <class T>
__device__ inline Accumulator mfma_16x16x16(Fragment a, Fragment b, Accumulator c) {
  static_assert(sizeof(T) == 2, "16 deep is the instruction for 16-bit elements");
  return Mfma<T, 16>::multiply(a, b, c);
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

template <>
struct Pack<f16, Rounding::kTowardZero> {
  __device__ static uint32_t pack(float low, float high) {
    return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(low, high));
  }
};

/// Four floats of magnitude at most 240 as fp8, the first in the lowest byte; NaN stays NaN.
__device__ inline uint32_t pack_fp8(float x0, float x1, float x2, float x3) {
  const int low = __builtin_amdgcn_cvt_pk_fp8_f32(x0, x1, 0, false);
  return static_cast<uint32_t>(__builtin_amdgcn_cvt_pk_fp8_f32(x2, x3, low, true));
}

}  // namespace aiter_like
