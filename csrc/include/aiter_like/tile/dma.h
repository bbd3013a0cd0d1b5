// SPDX-License-Identifier: MIT
// Moving a tile from global memory to LDS without registers: buffer_load_dword … lds. A wave's instruction moves 64
// dwords to 256 consecutive bytes of LDS, so the swizzle is applied to the source address.
//
// The compiler sees neither the write to LDS nor the load: wait_vector_memory and meet (fence.h) publish it.
#pragma once

#include "aiter_like/tile/global.h"

namespace aiter_like::tile {

__device__ inline uint32_t lds_address(const void* pointer) {
  using LdsPointer = const __attribute__((address_space(3))) char*;
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>((LdsPointer)pointer));
}

/// One dword per lane from `buffer` at its `offset` to LDS at lds + kOffset + 4 · lane; `lds` is the same in all lanes.
/// M0, which holds it, is set in the same block: no other code comes between. One wait state is due after that.
template <int kOffset = 0>
__device__ inline void dma_dwords(BufferDescriptor buffer, uint32_t offset, uint32_t lds) {
  asm volatile("s_add_u32 m0, %0, %1\n\ts_nop 0\n\tbuffer_load_dword %2, %3, 0 offen lds" ::"s"(lds), "i"(kOffset),
               "v"(offset), "s"(buffer)
               : "memory", "scc");
}

/// Vector memory instructions of each of WAVES waves that copy to such a tile.
template <class LDS, int WAVES>
constexpr int kDmaAccesses = LDS::kBytes / (4 * kWaveSize) / WAVES;

/// Starts the copy of the window to `lds`, by WAVES waves of which this is wave `wave`. Outside there are zeros.
template <int WAVES, class LDS, class WINDOW>
__device__ inline void dma(LDS& lds, const WINDOW& window, int wave) {
  static_assert(WINDOW::kRows == LDS::kRows && WINDOW::kColumns == LDS::kColumns, "the window of this tile");
  constexpr int kStepBytes = 4 * kWaveSize, kSteps = kDmaAccesses<LDS, WAVES>;
  static_assert(LDS::kBytes == WAVES * kSteps * kStepBytes, "every wave copies as much");
  using T = typename LDS::Element;
  const BufferDescriptor buffer = window.descriptor();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int step = wave * kSteps + i;
    const int source = LDS::unswizzled(step * kStepBytes + 4 * lane_index());
    const int row = source / LDS::kRowBytes, byte = source % LDS::kRowBytes;
    const bool is_used = byte < LDS::kUsedBytes;
    dma_dwords(buffer, is_used ? window.offset(row, byte / static_cast<int>(sizeof(T))) : kOutOfRange,
               lds_address(lds.bytes) + step * kStepBytes);
  }
}

}  // namespace aiter_like::tile
