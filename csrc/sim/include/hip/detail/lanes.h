// SPDX-License-Identifier: MIT
// What the lanes of a wave of 64 tell one another: votes and shuffles, of any type, within groups of `width` lanes. The
// …_sync forms name their lanes; as on hardware, lanes of a wave run together, so that the mask waits for nobody.
#pragma once
#include "hip/detail/integers.h"

AITER_LIKE_DEVICE unsigned __lane_id() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
AITER_LIKE_DEVICE unsigned long long __ballot64(int condition) { return __builtin_amdgcn_ballot_w64(condition != 0); }
AITER_LIKE_DEVICE unsigned long long __ballot(int condition) { return __ballot64(condition); }
AITER_LIKE_DEVICE unsigned long long __activemask() { return __ballot64(1); }
AITER_LIKE_DEVICE int __any(int condition) { return __ballot64(condition) != 0; }
AITER_LIKE_DEVICE int __all(int condition) { return __ballot64(condition == 0) == 0; }
AITER_LIKE_DEVICE unsigned long long __lanemask_lt() { return (1ull << __lane_id()) - 1; }
AITER_LIKE_DEVICE unsigned long long __lanemask_le() { return (2ull << __lane_id()) - 1; }
AITER_LIKE_DEVICE unsigned long long __lanemask_eq() { return 1ull << __lane_id(); }
AITER_LIKE_DEVICE unsigned long long __lanemask_ge() { return ~__lanemask_lt(); }
AITER_LIKE_DEVICE unsigned long long __lanemask_gt() { return ~__lanemask_le(); }
AITER_LIKE_DEVICE void __syncwarp(unsigned long long = ~0ull) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

namespace hip_detail {

// The bytes of lane `from`'s `value`, four at a time.
template <class T>
__device__ inline T of_lane(const T& value, unsigned from) {
  constexpr unsigned kWords = (sizeof(T) + 3) / 4;
  int words[kWords] = {};
  __builtin_memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned w = 0; w < kWords; ++w) {
    words[w] = __builtin_amdgcn_ds_bpermute(static_cast<int>(from << 2), words[w]);
  }
  T result;
  __builtin_memcpy(&result, words, sizeof(T));
  return result;
}

}  // namespace hip_detail

// A lane whose source would lie outside its group keeps its own value.
template <class T>
AITER_LIKE_DEVICE T __shfl(T value, int lane, int width = 64) {
  const unsigned own = __lane_id(), group = own & ~(static_cast<unsigned>(width) - 1);
  return hip_detail::of_lane(value, group | (static_cast<unsigned>(lane) & (static_cast<unsigned>(width) - 1)));
}
template <class T>
AITER_LIKE_DEVICE T __shfl_up(T value, unsigned delta, int width = 64) {
  const unsigned own = __lane_id(), group = own & ~(static_cast<unsigned>(width) - 1);
  const int from = static_cast<int>(own) - static_cast<int>(delta);
  return hip_detail::of_lane(value, from < static_cast<int>(group) ? own : static_cast<unsigned>(from));
}
template <class T>
AITER_LIKE_DEVICE T __shfl_down(T value, unsigned delta, int width = 64) {
  const unsigned own = __lane_id(), place = own & (static_cast<unsigned>(width) - 1);
  return hip_detail::of_lane(value, place + delta >= static_cast<unsigned>(width) ? own : own + delta);
}
template <class T>
AITER_LIKE_DEVICE T __shfl_xor(T value, int mask, int width = 64) {
  const unsigned own = __lane_id(), other = own ^ static_cast<unsigned>(mask);
  const unsigned end = (own + static_cast<unsigned>(width)) & ~(static_cast<unsigned>(width) - 1);
  return hip_detail::of_lane(value, other >= end ? own : other);
}

template <class Mask, class T>
AITER_LIKE_DEVICE T __shfl_sync(Mask, T value, int lane, int width = 64) {
  return __shfl(value, lane, width);
}
template <class Mask, class T>
AITER_LIKE_DEVICE T __shfl_up_sync(Mask, T value, unsigned delta, int width = 64) {
  return __shfl_up(value, delta, width);
}
template <class Mask, class T>
AITER_LIKE_DEVICE T __shfl_down_sync(Mask, T value, unsigned delta, int width = 64) {
  return __shfl_down(value, delta, width);
}
template <class Mask, class T>
AITER_LIKE_DEVICE T __shfl_xor_sync(Mask, T value, int mask, int width = 64) {
  return __shfl_xor(value, mask, width);
}
template <class Mask>
AITER_LIKE_DEVICE unsigned long long __ballot_sync(Mask mask, int condition) {
  return __ballot64(condition) & mask;
}
template <class Mask>
AITER_LIKE_DEVICE int __any_sync(Mask mask, int condition) {
  return __ballot_sync(mask, condition) != 0;
}
template <class Mask>
AITER_LIKE_DEVICE int __all_sync(Mask mask, int condition) {
  return __ballot_sync(mask, condition == 0) == 0;
}

// The lanes of `mask` whose value is this lane's.
template <class Mask, class T>
__device__ inline unsigned long long __match_any_sync(Mask mask, T value) {
  unsigned long long result = 0;
  for (unsigned long long left = mask & __activemask(); left != 0; left &= left - 1) {
    const unsigned lane = static_cast<unsigned>(__builtin_ctzll(left));
    if (hip_detail::of_lane(value, lane) == value) result |= 1ull << lane;
  }
  return result;
}
// `mask` when all of its lanes have the same value, else 0; *all_same says which.
template <class Mask, class T>
__device__ inline unsigned long long __match_all_sync(Mask mask, T value, int* all_same) {
  const T first = hip_detail::of_lane(value, static_cast<unsigned>(__builtin_ctzll(mask)));
  *all_same = __all_sync(mask, first == value);
  return *all_same ? static_cast<unsigned long long>(mask) : 0;
}

// One result of all lanes of `mask`, in each of them.
#define AITER_LIKE_REDUCE(name, expression)                                                     \
  template <class Mask, class T>                                                                \
  __device__ inline T name(Mask mask, T value) {                                                \
    unsigned long long left = mask;                                                             \
    T a = hip_detail::of_lane(value, static_cast<unsigned>(__builtin_ctzll(left)));             \
    for (left &= left - 1; left != 0; left &= left - 1) {                                       \
      const T b = hip_detail::of_lane(value, static_cast<unsigned>(__builtin_ctzll(left)));     \
      a = expression;                                                                           \
    }                                                                                           \
    return a;                                                                                   \
  }
AITER_LIKE_REDUCE(__reduce_add_sync, a + b)
AITER_LIKE_REDUCE(__reduce_min_sync, b < a ? b : a)
AITER_LIKE_REDUCE(__reduce_max_sync, a < b ? b : a)
AITER_LIKE_REDUCE(__reduce_and_sync, a & b)
AITER_LIKE_REDUCE(__reduce_or_sync, a | b)
AITER_LIKE_REDUCE(__reduce_xor_sync, a ^ b)
#undef AITER_LIKE_REDUCE
