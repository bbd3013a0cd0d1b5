// SPDX-License-Identifier: MIT
// How K and V come from memory to LDS in flash_attn_fwd: group A moves K, group B moves V, and each wave moves 16 rows
// of a block, through registers: V turns there into the form that steps take, once for all waves, and both need fewer
// instructions than by loads to LDS, which are of 4 bytes a lane. The buffers of LDS are rings of two stages whose
// barriers are those of the groups' slots, two for each block.
#pragma once

#include <type_traits>

#include "aiter_like/tile/global.h"
#include "flash_attn_task.h"

namespace aiter_like::flash_attn {

/// The places of a wave's rows of K or of V: row behind row, block after block.
template <class Shape>
struct RowsOfBlocks {
  const char* block;     // first row of the next block; a 64-bit address, so that no span of keys is too long
  int64_t block_bytes;   // from one block to the next
  int rows, block_rows;  // rows from the next block to the end of the sequence; rows from one block to the next
  int bytes;             // that the next block's rows inside the sequence span
  int row_bytes;         // from row to row
  int first_row;         // the wave's first row in each block

  __device__ void start(const Task<Shape>& task, const FlashAttnArgs&, const FlashAttnTensor& tensor, int first_block,
                        int wave_row) {
    row_bytes = static_cast<int>(tensor.row);
    block = task.keys_of(tensor) + first_block * (kBlockN * tensor.row);
    block_bytes = task.parts * (kBlockN * tensor.row);
    rows = task.keys - kBlockN * first_block;
    block_rows = kBlockN * task.parts;
    bytes = bytes_inside();
    first_row = wave_row;
  }
  __device__ tile::BufferDescriptor buffer() const { return tile::make_buffer(block, bytes); }
  /// Without so many bytes at its beginning.
  __device__ tile::BufferDescriptor buffer_from(int skipped) const {
    return tile::make_buffer(block + skipped, bytes > skipped ? bytes - skipped : 0);
  }
  __device__ int offset() const { return 0; }
  __device__ void look_ahead() {}
  __device__ void take_ahead() {}
  __device__ void advance() {
    block += block_bytes;
    rows -= block_rows;
    bytes = bytes_inside();
  }

 private:
  __device__ int bytes_inside() const {
    const int inside = rows < kBlockN ? rows : kBlockN;
    return inside <= 0 ? 0 : (inside - 1) * row_bytes + Shape::kRowBytes;
  }
};

/// … in pages, of which a wave's rows of a block have one: pages hold a multiple of as many keys. The number of the
/// page after next is read while the next one's rows travel, by a vector load: a scalar one would come in no order
/// with reads of LDS, and each wait for these would wait for it.
template <class Shape, int ROWS>
struct RowsOfPages {
  const char* pages;
  int64_t page_bytes;
  const int* entries;
  Divider page_size;
  int last_page;         // the cache's last one
  int row_bytes;
  int first_row;         // 0: an address is that of the wave's own first row
  int key, block_rows;   // the wave's first key of the next block; keys from one block to the next
  int keys, lowest;      // how many the sequence has; the first that a row of the workgroup sees
  int page;              // the next block's keys are there
  int entry;             // the page after it, as it is loaded: to look at it is to wait for it

  __device__ void start(const Task<Shape>& task, const PagedFlashAttnArgs& args, const FlashAttnTensor& tensor,
                        int first_block, int wave_row) {
    pages = static_cast<const char*>(tensor.data) + task.kv_head * tensor.head;
    page_bytes = tensor.batch;
    entries = args.block_table + task.sequence * args.table_row + task.first_entry;
    page_size = args.page_size;
    last_page = args.num_pages - 1;
    row_bytes = static_cast<int>(tensor.row);
    first_row = 0;
    key = kBlockN * first_block + wave_row;
    block_rows = kBlockN * task.parts;
    keys = task.keys;
    lowest = 0;
    if (Shape::kLimitsLeft) {
      const int first_query = static_cast<int>(args.pack.divide(task.row));
      lowest = first_query + task.keys - task.queries - args.window_left;
    }
    entry = entries[page_size.divide(inside(key))];
    take_ahead();
  }

  /// A buffer of the rows that the sequence has and a row of the workgroup sees. The rest of their page may hold
  /// anything, and a weight of zero does not hide a NaN.
  __device__ tile::BufferDescriptor buffer() const {
    const int at = inside(key), place = at - static_cast<int>(page_size.divide(at) * page_size.divisor);
    const int skipped = hidden_rows(), end = clamped(keys - key, 0, ROWS);
    return tile::make_buffer(pages + page * page_bytes + (place + skipped) * row_bytes,
                             end <= skipped ? 0 : (end - skipped - 1) * row_bytes + Shape::kRowBytes);
  }
  /// The distance of the wave's first row from the buffer's beginning: negative where that row is hidden, and so beyond
  /// its end.
  __device__ int offset() const { return -hidden_rows() * row_bytes; }

  __device__ void look_ahead() {
    int index = static_cast<int>(page_size.divide(inside(key + block_rows)));
    asm("" : "+v"(index));
    entry = entries[index];
  }
  __device__ void take_ahead() { page = clamped(__builtin_amdgcn_readfirstlane(entry), 0, last_page); }
  __device__ void advance() { key += block_rows; }

 private:
  __device__ int inside(int at) const { return at < keys ? at : keys - 1; }
  __device__ int hidden_rows() const { return Shape::kLimitsLeft ? clamped(lowest - key, 0, ROWS) : 0; }
};

/// One wave's share of the blocks of K or of V. Lane 16 u + c holds columns kWords · 2 c … of four rows, one load each:
/// of K rows u, u + 4, u + 8, u + 12, which go to LDS as they are; of V rows 4 u … 4 u + 3, the keys of a fragment.
template <class Shape>
struct BlockMover {
  using Places = Blocks<Shape>;
  static constexpr int kRows = kBlockN / Groups::kGroupWaves;
  static constexpr int kLoads = 4;
  static constexpr int kWords = Shape::kRowBytes / 64;  // words of a lane in a row
  static_assert(kRows == 16 && (kWords == 2 || kWords == 4));
  using Words = __attribute__((ext_vector_type(kWords))) uint32_t;

  std::conditional_t<Shape::kIsPaged, RowsOfPages<Shape, kRows>, RowsOfBlocks<Shape>> rows;
  int load_bytes;        // from load to load
  int key_mask;          // all ones in group A, 0 in group B
  int source;            // this lane's place in a block
  int lds;               // this lane writes the next block there
  Words words[kLoads];   // on their way

  __device__ bool is_group_b() const { return key_mask == 0; }

  /// Begins with block `first_block`; every task.parts-th block follows.
  __device__ void start(const Task<Shape>& task, const ArgsOf<Shape>& args, int first_block) {
    const int wave = wave_index(), group = wave / Groups::kGroupWaves, member = wave % Groups::kGroupWaves;
    key_mask = group - 1;
    rows.start(task, args, group == 0 ? args.k : args.v, first_block, kRows * member);
    const int u = lane_index() / 16, c = lane_index() % 16;
    source = (rows.first_row + (group == 0 ? u : 4 * u)) * rows.row_bytes + 4 * kWords * c;
    load_bytes = group == 0 ? 4 * rows.row_bytes : rows.row_bytes;
    lds = group == 0 ? Places::key_place(kRows * member + u, 4 * kWords * c)
                     : Places::value_place(kRows / 4 * member + u, kWords * c);
  }

  /// Begins to load the next block. Rows past the end become zeros.
  __device__ void move() {
    const tile::BufferDescriptor buffer = rows.buffer();
    const int first = source + rows.offset();
    rows.look_ahead();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words[i] = load(buffer, first + i * load_bytes);
  }

  /// move() of a task's first block: its rows before `first`, which no row of the workgroup sees, become zeros, as a
  /// weight of zero does not hide a NaN. A negative offset is beyond the buffer's end.
  __device__ void move_from(int first) {
    const int skipped = clamped(first, 0, kBlockN - 1) * rows.row_bytes;
    const tile::BufferDescriptor buffer = rows.buffer_from(skipped);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words[i] = load(buffer, source - skipped + i * load_bytes);
  }

  /// Goes on to the block behind the one that has been loaded.
  __device__ void advance() { rows.advance(); }

  /// Writes to LDS what move() has begun to load.
  __device__ void land(char* tiles) {
    if (is_group_b())
      write_values(tiles);
    else
      write_keys(tiles);
    rows.take_ahead();
    lds ^= Places::kOtherBuffer;
  }

 private:
  __device__ static Words load(const tile::BufferDescriptor& buffer, int offset) {
    if constexpr (kWords == 4)
      return __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, 0, 0);
    else
      return __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, 0, 0);
  }

  __device__ void write_keys(char* tiles) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) *reinterpret_cast<Words*>(tiles + Places::key_place_below(lds, i)) = words[i];
  }

  /// Word w of the four rows becomes 16 bytes of a lane of a step: the four keys of an even column, then of an odd one.
  __device__ void write_values(char* tiles) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const Chunk chunk = {pack_lower(words[0][w], words[1][w]), pack_lower(words[2][w], words[3][w]),
                           pack_upper(words[0][w], words[1][w]), pack_upper(words[2][w], words[3][w])};
      *reinterpret_cast<Chunk*>(tiles + Places::next_value_place(lds, w)) = chunk;
    }
  }
};

}  // namespace aiter_like::flash_attn
