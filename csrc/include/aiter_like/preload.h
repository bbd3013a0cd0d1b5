// SPDX-License-Identifier: MIT
// Arguments that a kernel finds in scalar registers when it starts, on AMD's GPUs. A struct that a kernel takes lies in
// memory, and a kernel of few rows waits for its first fields half as long as for a row: 400 ns on the MI300X. Words
// that stand before the struct as parameters of their own are preloaded (modules/recipe.py has the compiler's flag).
// The struct says which of its words these are, those that the first loads need; the kernel takes them in the place of
// what is in memory:
//
//   struct Args { ...; static constexpr Preload preload() { return {offsetof(Args, rows), offsetof(Args, input)}; } };
//   __global__ void some_kernel(AITER_LIKE_PRELOADED(Args)) { take_preloaded(args, AITER_LIKE_PRELOADED_NAMES); }
//
// launch_overlapped(some_kernel, grid, threads, stream, args) launches it as if it took the struct alone. CUDA has the
// arguments of a kernel in its constant cache: there the kernel does take the struct alone, and all of this is nothing.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

/// 8 bytes of a struct. A pointer, since the compiler knows of a kernel's pointers that they are to global memory: of
/// integers made pointers it does not, and then its loads count as LDS's, too.
struct Word {
  void* bits;
};

/// A wave starts with at most 16 scalar registers that the host fills; two hold the address of the arguments.
constexpr int kPreloadedWords = 7;

#if defined(__HIP__)
#define AITER_LIKE_PRELOADED(...)                                                                 \
  aiter_like::Word word0, aiter_like::Word word1, aiter_like::Word word2, aiter_like::Word word3, \
      aiter_like::Word word4, aiter_like::Word word5, aiter_like::Word word6, __VA_ARGS__ args
#define AITER_LIKE_PRELOADED_NAMES word0, word1, word2, word3, word4, word5, word6
#else
#define AITER_LIKE_PRELOADED(...) __VA_ARGS__ args
#define AITER_LIKE_PRELOADED_NAMES 0
#endif

/// Offsets in a struct, in bytes, of the words to be preloaded: multiples of 8, at most kPreloadedWords.
struct Preload {
  size_t offsets[kPreloadedWords];
  int count;

  template <class... Offsets>
  constexpr Preload(Offsets... offsets) : offsets{offsets...}, count(sizeof...(offsets)) {}

  /// Whether they are words of a struct of so many bytes.
  constexpr bool is_within(size_t bytes) const {
    for (int i = 0; i < count; ++i)
      if (offsets[i] % sizeof(Word) != 0 || offsets[i] + sizeof(Word) > bytes) return false;
    return true;
  }
};

#if defined(__HIP__)
/// Puts the words that a kernel was given where they belong in its copy of `args`.
template <class Args, class... Words>
__device__ __forceinline__ void take_preloaded(Args& args, Words... words) {
  constexpr Preload preload = Args::preload();
  static_assert(preload.is_within(sizeof(Args)) && alignof(Args) == sizeof(Word), "offsets of the struct's words");
  const Word given[kPreloadedWords] = {words...};
#pragma unroll
  for (int i = 0; i < preload.count; ++i)
    __builtin_memcpy(reinterpret_cast<char*>(&args) + preload.offsets[i], &given[i], sizeof(Word));
}

/// Other arguments are then loaded before what comes next is. At the start of a launch that fills the device, those
/// behind the first loads of rows would come behind these from memory, too.
__device__ __forceinline__ void load_arguments_first() { __builtin_amdgcn_sched_barrier(0); }

/// A field of the struct of a kernel with AITER_LIKE_PRELOADED as the host has written it, for an offset that the
/// kernel computes.
template <class Field>
__device__ __forceinline__ const __attribute__((address_space(4))) Field* argument_in_memory(size_t offset) {
  const auto* bytes = (const __attribute__((address_space(4))) char*)__builtin_amdgcn_kernarg_segment_ptr();
  return (const __attribute__((address_space(4))) Field*)(bytes + kPreloadedWords * sizeof(Word) + offset);
}

/// `address`, which the compiler then knows to be in global memory.
template <class T>
__device__ __forceinline__ T* global(T* address) {
  return (T*)(__attribute__((address_space(1))) T*)address;
}

/// Here the kernel waits for `arguments` that were not preloaded, if they have not come meanwhile. Without it the
/// compiler loads them where they are used, and that late a kernel would wait for them alone.
template <class... Arguments>
__device__ __forceinline__ void await_arguments(const Arguments&... arguments) {
  (..., [](auto argument) { asm volatile("" ::"s"(argument)); }(arguments));
}

template <class Args>
inline void launch_overlapped(void (*kernel)(Word, Word, Word, Word, Word, Word, Word, Args), dim3 grid, int threads,
                              Stream stream, const Args& args) {
  constexpr Preload preload = Args::preload();
  Word words[kPreloadedWords] = {};
  for (int i = 0; i < preload.count; ++i)
    __builtin_memcpy(&words[i], reinterpret_cast<const char*>(&args) + preload.offsets[i], sizeof(Word));
  kernel<<<grid, threads, 0, stream>>>(words[0], words[1], words[2], words[3], words[4], words[5], words[6], args);
}
#else
template <class Args>
__device__ __forceinline__ void take_preloaded(Args&, int) {}
__device__ __forceinline__ void load_arguments_first() {}
template <class... Arguments>
__device__ __forceinline__ void await_arguments(const Arguments&...) {}
#endif

}  // namespace aiter_like
