// SPDX-License-Identifier: MIT
// Which keys the rows of a wave of flash_attn_fwd see: element by element at the edges of a mask, and by tiles of
// kWidth rows and keys. Hidden tiles are not multiplied, and a row tile that sees no key of a block is not
// exponentiated. The row tiles of a wave lie kWaves tiles apart, so that at the diagonal every wave has about as many
// that see something.
#pragma once

#include "flash_attn_softmax.h"
#include "flash_attn_task.h"

namespace aiter_like::flash_attn {

/// The row of tile t of this wave within the query block, for a lane's column.
template <class Shape>
__device__ inline int tile_row(int t, int column) { return Shape::kWidth * (wave_index() + kWaves * t) + column; }

/// The keys that the rows of a wave see.
template <class Shape>
struct WaveVisibility {
  const Divider& pack;
  int first_row;     // in tile 0
  int keys;          // the sequence's
  int below, above;  // query i sees keys i + below … i + above
  int lowest[Shape::kRowTiles], highest[Shape::kRowTiles];  // keys that any row of a tile sees, the same in all lanes

  __device__ WaveVisibility(const FlashAttnArgs& args, const Task<Shape>& task)
      : pack(args.pack), first_row(task.row + tile_row<Shape>(0, 0)), keys(task.keys) {
    const int delta = task.keys - task.queries;
    below = delta - args.window_left;
    above = delta + args.window_right;
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      lowest[t] = Shape::kLimitsLeft ? query_of(t, 0) + below : 0;
      highest[t] = Shape::kLimitsRight ? smaller(query_of(t, Shape::kWidth - 1) + above, keys - 1) : keys - 1;
      if (Shape::kSkipsTiles && first_row + Shape::kWidth * kWaves * t >= task.rows) highest[t] = -1;
    }
  }

  /// Whether the wave has rows at all.
  __device__ bool has_rows(const Task<Shape>& task) const { return first_row < task.rows; }

  /// Whether row tile t sees any key of a block.
  __device__ bool sees_block(int t, int block) const { return sees(t, kBlockN * block, kBlockN); }

  /// Whether row tile t sees any key of the key tile that a step of a matrix phase takes of a block.
  __device__ bool sees_step(int t, int block, int step) const {
    int first = kBlockN * block;
    asm("" : "+s"(first));  // one register for the block, not one for each row tile's limit less each step's place
    return sees(t, first + Shape::kWidth * (step % Shape::kSteps / Shape::kTileSteps), Shape::kWidth);
  }

  /// Hides the scores of row tile t in a block that their rows do not see.
  __device__ void mask(WaveState<Shape>& wave, int t, int block) const {
    if (is_whole(t, block)) return;
    const int lane = fresh_lane();
    const int key = kBlockN * block + 4 * group_of<Shape>(lane);  // element 0's
    const int query = query_of(t, column_of<Shape>(lane));
    const int last = Shape::kLimitsRight ? smaller(query + above, keys - 1) : keys - 1;
#pragma unroll
    for (int i = 0; i < 4 * Shape::kFragments; ++i) {
      const int ahead = 4 * Shape::kGroups * (i / 4) + i % 4;
      const bool is_hidden = ahead > last - key || (Shape::kLimitsLeft && ahead < query + below - key);
      set_score(wave, t, i, is_hidden ? kMaskedScore : score_of(wave, t, i));
    }
  }

 private:
  __device__ static int smaller(int a, int b) { return a < b ? a : b; }

  __device__ int query_of(int t, int column) const {
    return static_cast<int>(pack.divide(first_row + Shape::kWidth * kWaves * t + column));
  }

  __device__ bool sees(int t, int first, int count) const { return first <= highest[t] && lowest[t] < first + count; }

  /// Whether all rows of tile t see all keys of the block.
  __device__ bool is_whole(int t, int block) const {
    const int first = kBlockN * block, last = first + kBlockN - 1;
    return last < keys && (!Shape::kLimitsRight || last <= query_of(t, 0) + above) &&
           (!Shape::kLimitsLeft || query_of(t, Shape::kWidth - 1) + below <= first);
  }
};

}  // namespace aiter_like::flash_attn
