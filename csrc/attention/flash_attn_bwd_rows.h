// SPDX-License-Identifier: MIT
// How blocks of Q or of dout come to LDS: through registers, once as they are and once transposed.
#pragma once

#include "flash_attn_bwd_layout.h"

namespace aiter_like::attn_bwd {

/// What a block is loaded from: the buffer begins `skipped` bytes behind the block.
struct Moves {
  tile::BufferDescriptor buffer;
  uint32_t skipped;
};

/// A work-item's part of a block of ROWS × DIM elements: kWords words of four rows, kRounds times.
template <int ROWS, int DIM>
struct BlockMover {
  using Rows = ByRow<ROWS, DIM>;
  using Columns = Transposed<ROWS, DIM>;
  static constexpr int kQuads = ROWS / 4;
  static constexpr int kWords = kQuads * DIM / 4 >= 3 * kThreads / 4 ? 2 : 1;
  static constexpr int kUnitsPerQuad = DIM / 2 / kWords, kUnits = kQuads * kUnitsPerQuad;
  static constexpr int kRounds = (kUnits + kThreads - 1) / kThreads;
  static constexpr int kLoads = 4 * kRounds;
  using Words = std::conditional_t<kWords == 2, Fragment, uint32_t>;

  uint32_t sources[kRounds];  // this lane's first row in a block, in bytes
  int by_row[kRounds], transposed[kRounds];
  Words words[kRounds][4];  // on their way
  uint32_t row_bytes, used_bytes;

  /// columns: of the tensor; those from there on become zeros.
  __device__ void start(int64_t row_stride, int columns) {
    row_bytes = static_cast<uint32_t>(row_stride), used_bytes = 2 * columns;
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int unit = thread_index() + n * kThreads, quad = unit / kUnitsPerQuad, place = unit % kUnitsPerQuad;
      const bool is_there = has_unit(n) && 2 * kWords * place < columns;
      sources[n] = is_there ? 4 * quad * row_bytes + 4 * kWords * place : tile::kOutOfRange;
      by_row[n] = 4 * quad * Rows::kRowBytes + 4 * kWords * place;
      transposed[n] = Columns::place(quad, kWords * place);
    }
  }

  /// Loads of rows [first, end) of the block that begins at `block`; others become zeros.
  __device__ Moves moves_of(const char* block, int first, int end) const {
    const uint32_t skipped = first * row_bytes, bytes = end > first ? (end - first - 1) * row_bytes + used_bytes : 0;
    return {tile::make_buffer(block + skipped, bytes), skipped};
  }
  /// Begins load i of kLoads.
  __device__ void load(const Moves& moves, int i) {
    words[i / 4][i % 4] = load_words(moves.buffer, sources[i / 4] + (i % 4 * row_bytes - moves.skipped));
  }

  /// Writes row i of kLoads to the image by row.
  __device__ void land_row(char* lds, int i) const {
    if (has_unit(i / 4)) *reinterpret_cast<Words*>(lds + by_row[i / 4] + i % 4 * Rows::kRowBytes) = words[i / 4][i % 4];
  }

  /// Writes word i of kColumns to the transposed image: four rows of an even column, then of an odd one.
  static constexpr int kColumns = kRounds * kWords;
  __device__ void land_column(char* lds, int i) const {
    const int n = i / kWords, w = i % kWords;
    if (!has_unit(n)) return;
    const uint32_t w0 = word(n, 0, w), w1 = word(n, 1, w), w2 = word(n, 2, w), w3 = word(n, 3, w);
    const Chunk chunk = {pack_lower(w0, w1), pack_lower(w2, w3), pack_upper(w0, w1), pack_upper(w2, w3)};
    *reinterpret_cast<Chunk*>(lds + (transposed[n] ^ 16 * w)) = chunk;
  }

 private:
  __device__ static bool has_unit(int n) {
    return kUnits % kThreads == 0 || n < kRounds - 1 || n * kThreads + wave_index() * kWaveSize < kUnits;
  }
  __device__ static Words load_words(const tile::BufferDescriptor& buffer, uint32_t offset) {
    if constexpr (kWords == 2)
      return __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, 0, 0);
    else
      return __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, 0, 0);
  }
  __device__ uint32_t word(int n, int row, int w) const {
    if constexpr (kWords == 2)
      return words[n][row][w];
    else
      return words[n][row];
  }
};

}  // namespace aiter_like::attn_bwd
