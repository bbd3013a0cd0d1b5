// SPDX-License-Identifier: MIT
// Arguments of flash_attn_bwd's kernels, and what one workgroup takes of them.
#pragma once

#include "flash_attn_bwd_layout.h"
#include "flash_attn_bwd_plan.h"

namespace aiter_like::attn_bwd {

/// The arguments of a launch. Scratch has the rows of each head in blocks of kBlockM, of a sequence from a block of its
/// own on (first_block): row_blocks for each head.
struct Args {
  FlashAttnTensor q, k, v, out, dout, dq, dk, dv;  // [batch, rows, heads, dim], packed [rows, heads, dim]
  const float *lse, *dlse;             // [batch, heads, rows], packed [heads, rows]; dlse may be null
  float* row_values;                   // scratch: of each block of rows, see RowValue
  float* dq_sums;                      // scratch: blocks of kDqFloats
  float* partials;                     // scratch: kPartFloats of each part of a divided task
  float* sink_partials;                // scratch: of each block of rows
  float* dsink;                        // [heads], or null
  int* turns;                          // scratch: of each block of rows, how many key blocks have been added
  const int *cu_seqlens_q, *cu_seqlens_k;  // [batch + 1], or null
  int64_t lse_batch, lse_head;         // strides
  int batch, heads, kv_heads, group, dim, dim_v;
  int rows, keys;                      // of the tensors' dimension
  int max_rows, max_keys;              // the longest sequence's
  int row_blocks;
  int most_polls;                      // a turn is given up after so many
  int left, right, sink_size;
  float softmax_scale, scale_log2;     // scale_log2: softmax_scale · log2 e
  Plan plan;
  // What may happen to a score (flash_attn_bwd_scores.h).
  const float *alibi_slopes, *sink;
  const void* bias;
  const int64_t* rng_state;
  int64_t slopes_batch, bias_batch, bias_head, bias_row, bias_key;  // elements
  float softcap, dropout_scale;        // dropout_scale: 1 / (1 - p)
  int dropout_threshold;
};

/// A sequence: where its rows and keys begin, and the blocks of both.
template <class Shape>
struct Sequence {
  int batch, view_batch;     // view_batch: as a dense tensor's index
  int first_row, first_key;  // in the tensors
  int first_block;           // in the scratch of a head
  Blocks<Shape::kBlockM, Shape::kBlockN> blocks;

  /// Whatever cu_seqlens holds, every row that comes out lies inside the tensors.
  __device__ static Sequence of(const Args& args, int batch) {
    const RowRange rows = RowRange::of(args.cu_seqlens_q, nullptr, batch, args.rows);
    const RowRange keys = RowRange::of(args.cu_seqlens_k, nullptr, batch, args.keys);
    const int count = rows.count < args.max_rows ? rows.count : args.max_rows;
    const int key_count = keys.count < args.max_keys ? keys.count : args.max_keys;
    const bool is_dense = args.cu_seqlens_q == nullptr;
    const int own_blocks = args.row_blocks / (args.batch > 0 ? args.batch : 1);
    const int first_block = is_dense ? batch * own_blocks : rows.first / Shape::kBlockM + batch;
    return {batch, is_dense ? batch : 0, rows.first, keys.first, first_block,
            {{count, key_count, args.left, args.right, args.sink_size}}};
  }

  __device__ char* row_of(const FlashAttnTensor& t, int head, int row) const {
    return base(t, head) + (first_row + row) * t.row;
  }
  __device__ char* key_of(const FlashAttnTensor& t, int head, int key) const {
    return base(t, head) + (first_key + key) * t.row;
  }
  /// The number of a head's row block in scratch.
  __device__ int64_t block_of(const Args& args, int head, int block) const {
    return static_cast<int64_t>(head) * args.row_blocks + first_block + block;
  }

 private:
  __device__ char* base(const FlashAttnTensor& t, int head) const {
    return static_cast<char*>(const_cast<void*>(t.data)) + view_batch * t.batch + head * t.head;
  }
};

/// A workgroup's keys, and its steps [step, end_step): step s is block `end - 1 - s % blocks` of head s / blocks of the
/// group.
template <class Shape>
struct Task {
  Place place;
  int kv_head;
  Sequence<Shape> sequence;
  int first, end;  // row blocks
  int step, end_step;

  __device__ static Task of(const Args& args, int number) {
    Task task;
    const Blocks<Shape::kBlockM, Shape::kBlockN> longest{
        {args.max_rows, args.max_keys, args.left, args.right, args.sink_size}};
    task.place = Place::of(args.plan, number,
                           [&](int j) { return (longest.end_block(j) - longest.first_block(j)) * args.group; });
    const int batch = task.place.column / args.kv_heads;
    task.kv_head = task.place.column - batch * args.kv_heads;
    task.sequence = Sequence<Shape>::of(args, batch);
    const auto& blocks = task.sequence.blocks;
    const bool is_there = task.place.j < blocks.key_blocks();
    task.first = is_there ? blocks.first_block(task.place.j) : 0;
    task.end = is_there ? blocks.end_block(task.place.j) : 0;
    const int64_t steps = int64_t{task.end - task.first} * args.group;
    task.step = static_cast<int>(steps * task.place.part / task.place.parts);
    task.end_step = static_cast<int>(steps * (task.place.part + 1) / task.place.parts);
    return task;
  }

  __device__ int first_key() const { return task_key(0); }
  __device__ int task_key(int key) const { return place.j * Shape::kBlockN + key; }
};

}  // namespace aiter_like::attn_bwd
