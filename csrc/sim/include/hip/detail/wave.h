// SPDX-License-Identifier: MIT
// Lanes by the instructions' own names, where a wave runs, and a wave's n-th lane.
#pragma once
#include "hip/detail/lanes.h"

AITER_LIKE_DEVICE unsigned __mbcnt_lo(unsigned mask, unsigned sum) { return __builtin_amdgcn_mbcnt_lo(mask, sum); }
AITER_LIKE_DEVICE unsigned __mbcnt_hi(unsigned mask, unsigned sum) { return __builtin_amdgcn_mbcnt_hi(mask, sum); }
AITER_LIKE_DEVICE int __hip_ds_bpermute(int index, int value) { return __builtin_amdgcn_ds_bpermute(index, value); }
AITER_LIKE_DEVICE float __hip_ds_bpermutef(int index, float value) {
  return __int_as_float(__builtin_amdgcn_ds_bpermute(index, __float_as_int(value)));
}
AITER_LIKE_DEVICE int __hip_ds_permute(int index, int value) { return __builtin_amdgcn_ds_permute(index, value); }
AITER_LIKE_DEVICE float __hip_ds_permutef(int index, float value) {
  return __int_as_float(__builtin_amdgcn_ds_permute(index, __float_as_int(value)));
}
// The pattern and the modifiers are parts of the instruction, and so arguments of a template.
template <int kPattern>
AITER_LIKE_DEVICE int __hip_ds_swizzle_N(int value) {
  return __builtin_amdgcn_ds_swizzle(value, kPattern);
}
template <int kPattern>
AITER_LIKE_DEVICE float __hip_ds_swizzlef_N(float value) {
  return __int_as_float(__builtin_amdgcn_ds_swizzle(__float_as_int(value), kPattern));
}
template <int kControl, int kRows, int kBanks, bool kZero>
AITER_LIKE_DEVICE int __hip_move_dpp_N(int value) {
  return __builtin_amdgcn_mov_dpp(value, kControl, kRows, kBanks, kZero);
}
#define __hip_ds_swizzle(value, pattern) __hip_ds_swizzle_N<(pattern)>((value))
#define __hip_ds_swizzlef(value, pattern) __hip_ds_swizzlef_N<(pattern)>((value))
#define __hip_move_dpp(value, control, rows, banks, zero) \
  __hip_move_dpp_N<(control), (rows), (banks), (zero)>((value))

template <class T>
__device__ inline unsigned long long __match_any(T value) {
  return __match_any_sync(__activemask(), value);
}
template <class T>
__device__ inline unsigned long long __match_all(T value, int* all_same) {
  return __match_all_sync(__activemask(), value, all_same);
}

// The place of the `count`-th set bit at or after `start`, or, of a negative count, before it; -1 where there is none.
__device__ inline int __fns64(unsigned long long mask, unsigned start, int count) {
  if (count == 0) return mask >> start & 1 ? static_cast<int>(start) : -1;
  const int step = count > 0 ? 1 : -1;
  for (int at = static_cast<int>(start), left = count * step; at >= 0 && at < 64; at += step) {
    if (mask >> at & 1 && --left == 0) return at;
  }
  return -1;
}
__device__ inline int __fns32(unsigned long long mask, unsigned start, int count) {
  return start < 32 ? __fns64(mask & 0xFFFFFFFFu, start, count) : -1;
}
__device__ inline int __fns(unsigned mask, unsigned start, int count) { return __fns32(mask, start, count); }
AITER_LIKE_DEVICE unsigned __lastbit_u32_u64(unsigned long long x) {
  return x ? static_cast<unsigned>(__builtin_ctzll(x)) : ~0u;
}

// The compute unit: of the XCD's number, the shader engine's of two bits, and the compute unit's of four.
AITER_LIKE_DEVICE unsigned __smid() {
  constexpr int kHwId = 4, kXccId = 20;
  const unsigned cu = __builtin_amdgcn_s_getreg(kHwId | 8 << 6 | 3 << 11);
  const unsigned engine = __builtin_amdgcn_s_getreg(kHwId | 13 << 6 | 1 << 11);
  const unsigned die = __builtin_amdgcn_s_getreg(kXccId | 0 << 6 | 3 << 11);
  return (die << 2 | engine) << 4 | cu;
}
