// SPDX-License-Identifier: MIT
// What a workgroup of unified_attention's prefill does: as in flash_attn_fwd_tile_body.h, with keys that lie in pages.
#pragma once

#include "aiter_like/tile/paged.h"
#include "flash_attn_fwd_tile_body.h"
#include "paged_attention_plan.h"

namespace aiter_like {

template <class Element, class OutElement>
struct UnifiedAttentionArgs : FlashAttnTileArgs<Element, OutElement, void> {  // whose k, v and lengths are not used
  paged::Lengths lengths;
  const int* block_table;
  int64_t table_row;
  Divider page_size;
  int num_pages, num_kv_heads;
  const Element *k_pages, *v_pages;
  int64_t k_page, k_place, k_head, v_page, v_place, v_head;  // elements
};

namespace flash_attn_tile {

/// QrKsVs over pages. The numbers of the next block's pages are read while this one's scores are computed, so that its
/// keys wait for memory once.
template <class Shape>
struct QrKsVsPaged {
  using StagedKeys = Staged<typename Shape::KeyTile, Shape::kThreads>;
  using StagedValues = Staged<typename Shape::ValueTile, Shape::kThreads>;
  static_assert(Shape::kHeadDim == Shape::kHeadDimV, "a work-item's rows of K are those of V");

  typename Shape::KeyTile keys;
  typename Shape::ValueTile values;

  /// Slots as in QrKsVs. Rows of V that no row of the workgroup sees become zeros: their pages may hold anything, and a
  /// weight of zero does not hide a NaN.
  __device__ void run(WaveRows<Shape>& rows, const KeyBlocks<kBlockN>& blocks, const PageTable& table,
                      const PagedHead& k, const PagedHead& v, int lowest) {
    StagedKeys next_keys;
    StagedValues next_values;
    PagedWindow<StagedKeys> pages, next_pages;
    int block = blocks.begin();
    if (block < blocks.end) {
      pages.find(table, block * kBlockN);
      pages.load(next_keys, table, k);
      next_keys.store(keys);
    }
    workgroup_barrier();
    while (block < blocks.end) {
      const int first_key = block * kBlockN, next_block = blocks.next(block), last_key = table.last_key;
      const bool is_seen = rows.sees(first_key);
      typename Shape::P p;
      pages.load(next_values, table, v);
      if (next_block < blocks.end) next_pages.find(table, next_block * kBlockN);
      if (is_seen) p = rows.probabilities(keys, first_key);
      if (first_key + kBlockN > last_key + 1 || first_key < lowest) {
        const int sink = rows.visible.sink;
        pages.keep(next_values, [=](int key) { return key <= last_key && (key >= lowest || key < sink); });
      }
      next_values.store(values);
      workgroup_barrier();  // V is there, and all waves have read K.

      if (next_block < blocks.end) next_pages.load(next_keys, table, k);
      if (is_seen) rows.accumulate(values, p);
      if (next_block < blocks.end) next_keys.store(keys);
      workgroup_barrier();  // K is there, and all waves have read V.
      block = next_block;
      pages = next_pages;
    }
  }
};

/// Like forward_body.
template <class Config>
__device__ __attribute__((always_inline)) void unified_body(
    const UnifiedAttentionArgs<typename Config::Element, typename Config::OutElement>& args, WorkgroupIndex workgroup,
    QrKsVsPaged<Shape<Config>>& pipeline) {
  using Shape = flash_attn_tile::Shape<Config>;
  using Element = typename Config::Element;
  const int head = static_cast<int>(workgroup.y), kv_head = head / args.group_size;
  const int sequence = static_cast<int>(workgroup.z);
  const auto lengths = args.lengths.of(sequence);
  const RowRange q_rows{lengths.first_row, lengths.rows};
  const int block_row = (args.num_blocks_m - 1 - static_cast<int>(workgroup.x)) * kBlockM;
  if (block_row >= q_rows.count) return;

  const auto matrix = [&](const auto& view) {
    return view.template select<0>(0).template select<1>(head).slice(q_rows.first, q_rows.count);
  };
  const auto last_of = [&](int first, int rows) {
    return (first + rows < q_rows.count ? first + rows : q_rows.count) - 1;
  };
  const int first_row = block_row + wave_index() * Shape::kWaveRows, delta = lengths.keys - q_rows.count;
  const Visibility<Shape::kIsMasked> visible{lengths.keys, delta, args.window_left, args.window_right, args.sink_size};
  const KeyBlocks<kBlockN> blocks(visible, block_row, last_of(block_row, kBlockM));
  WaveRows<Shape> rows(matrix(args.q), score_map<Shape>(args, sequence, head, q_rows, first_row, delta), visible,
                       first_row, last_of(first_row, Shape::kWaveRows));
  const PageTable table{args.block_table + sequence * args.table_row + lengths.first_entry, args.page_size,
                        static_cast<uint32_t>(args.num_pages - 1), lengths.keys - 1};
  constexpr int64_t kBytes = sizeof(Element);
  const PagedHead k{reinterpret_cast<const char*>(args.k_pages + kv_head * args.k_head), args.k_page * kBytes,
                    args.k_place * kBytes};
  const PagedHead v{reinterpret_cast<const char*>(args.v_pages + kv_head * args.v_head), args.v_page * kBytes,
                    args.v_place * kBytes};
  pipeline.run(rows, blocks, table, k, v, visible.lowest(block_row));

  float* lse = args.lse;
  if (lse != nullptr) lse += head * args.lse_head_stride + q_rows.first;
  finish(args, rows, matrix(args.out), lse, head);
}

}  // namespace flash_attn_tile
}  // namespace aiter_like
