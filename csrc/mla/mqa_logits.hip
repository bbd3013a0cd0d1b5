// SPDX-License-Identifier: MIT
// The logits by which sparse attention chooses its keys, on the matrix cores of gfx942; mqa_logits_body.h has the
// steps. One build per heads, head dimension, and rows of a workgroup.
// Bound: memory in decoding, HEAD_DIM + 4 bytes per key, which all rows of a sequence share; the matrix cores in
// prompts, 2 · HEADS · HEAD_DIM operations per pair of row and key.
#include "aiter_like/ffi.h"
#include "mqa_logits_body.h"

#if !defined(HEADS) || !defined(HEAD_DIM) || !defined(WAVE_ROWS) || !defined(ROW_WAVES)
#error "mqa_logits.hip: -DHEADS=16|32|… -DHEAD_DIM=64|128|… -DWAVE_ROWS=1|2 -DROW_WAVES=1|2|4"
#endif

namespace aiter_like {
namespace {

struct Config {
  static constexpr int kHeads = HEADS, kDim = HEAD_DIM, kRows = WAVE_ROWS, kRowWaves = ROW_WAVES;
};
using Shape = mqa::Shape<Config>;

}  // namespace

__global__ __launch_bounds__(mqa::kThreads) __attribute__((amdgpu_waves_per_eu(2)))
void mqa_logits_kernel(mqa::Args args) {
  __shared__ mqa::Lds<Shape> lds;
  mqa::logits_body<Config>(args, workgroup_index().x, lds);
}

void launch_mqa_logits(const mqa::Args& args, uint32_t workgroups, Stream stream) {
  mqa_logits_kernel<<<workgroups, mqa::kThreads, 0, stream>>>(args);
  check_launch("mqa_logits_kernel");
}

#if AITER_LIKE_HOST_PASS

constexpr int64_t kMost = int64_t{1} << 30;
/// Workgroups among which the keys of a tile are shared out, so that they fill the device: of decoding two on each CU,
/// which begin at once, and of prompts, whose tiles see different numbers of keys, several times as many. A wave has to
/// load its rows' heads first, which takes as long as some blocks of keys.
int64_t splits_of(int64_t tiles, int64_t keys, int64_t compute_units) {
  constexpr bool kIsPrompt = Shape::kTileRows > 4;
  constexpr int64_t kPerCu = kIsPrompt ? 16 : 2, kLeastBlocks = kIsPrompt ? 8 : 1;
  const int64_t wanted = kPerCu * compute_units / tiles, most = keys / (mqa::kKeys * Shape::kKeyWaves * kLeastBlocks);
  const int64_t splits = wanted < most ? wanted : most;
  return splits > 1 ? splits : 1;
}

/// Sets the keys of each row, or of each sequence.
void set_keys(ffi::Match& match, mqa::Args& args, ffi::Size& rows, ffi::Size& batch, ffi::Size& entries,
              const ffi::OptionalTensor& starts, const ffi::OptionalTensor& ends,
              const ffi::OptionalTensor& context_lens, const ffi::OptionalTensor& block_table,
              const ffi::OptionalTensor& page_starts) {
  const bool is_dense = starts.has_value(), is_ragged = page_starts.has_value();
  match.require(ends.has_value() == is_dense && block_table.has_value() != is_dense &&
                    context_lens.has_value() == (!is_dense && !is_ragged) && !(is_dense && is_ragged),
                "starts and ends must be given, or block_table with context_lens or page_starts");
  args.starts = match.take<const int32_t>(starts, {rows}, "starts");
  args.ends = match.take<const int32_t>(ends, {rows}, "ends");
  if (is_dense) batch.value = entries.value = 1;
  if (is_ragged) batch.value = (*page_starts).numel() - 1;
  const auto table = is_ragged ? match.take<const int32_t>(block_table, {entries}, "block_table")
                               : match.take<const int32_t>(block_table, {batch, entries}, "block_table");
  match.require(batch > 0 && rows % batch == 0, "q must have equally many rows for each sequence");
  args.context_lens = match.take<const int32_t>(context_lens, {batch}, "context_lens");
  args.page_starts = match.take<const int32_t>(page_starts, {batch + 1}, "page_starts");
  args.table = table, args.table_row = is_ragged ? 0 : table.step(0);
  args.num_entries = is_ragged ? static_cast<int>(entries) : 0;
  args.is_paged = !is_dense;
}

void mqa_logits(ffi::Tensor logits, ffi::Tensor q, ffi::Tensor keys, ffi::Tensor k_scale, ffi::Tensor weights,
                ffi::OptionalTensor starts, ffi::OptionalTensor ends, ffi::OptionalTensor context_lens,
                ffi::OptionalTensor block_table, ffi::OptionalTensor page_starts, bool preshuffle, bool clean_logits) {
  ffi::Match match("mqa_logits");
  ffi::Size rows{"rows", kMost}, width{"columns", kMost}, pages{"pages", kMost}, page_size{"page_size", kMost};
  ffi::Size batch{"batch"}, entries{"entries"};
  mqa::Args args{};
  const auto queries = match.take<const fp8>(q, {rows, HEADS, HEAD_DIM}, "q");
  const auto scores = match.take<float>(logits, {rows, width}, "logits");
  const auto vectors = match.take<const fp8>(keys, {pages, page_size, HEAD_DIM}, "keys");
  const auto scales = match.take<const float>(k_scale, {pages, page_size}, "k_scale", ffi::kStrided);
  const auto factors = match.take<const float>(weights, {rows, HEADS}, "weights");
  set_keys(match, args, rows, batch, entries, starts, ends, context_lens, block_table, page_starts);
  const int64_t room = entries * page_size;
  match.require(room < 2 * kMost && (args.is_paged || pages <= 1) && (!preshuffle || page_size % mqa::kPack == 0),
                "less than 2^31 keys, in whole packs, and in one page without a table");
  if (rows == 0 || width == 0) return;
  args.logits = scores, args.logits_row = scores.step(0);
  args.q = queries, args.q_row = queries.step(0), args.q_head = queries.step(1);
  match.require(args.q_head >= 0 && args.q_head * HEADS < kMost, "a row of q must lie within 2^30 bytes");
  args.keys = reinterpret_cast<const char*>(vectors.data);
  args.page_bytes = vectors.step(0), args.key_bytes = vectors.step(1);
  args.scales = scales, args.scale_page = scales.step(0), args.scale_key = scales.step(1);
  args.weights = factors, args.weights_row = factors.step(0);
  args.page_size = Divider(page_size > 0 ? page_size : 1);
  args.num_pages = room > 0 ? pages : 0, args.num_keys = room;
  args.rows_of_sequence = rows / batch, args.width = width;
  args.is_shuffled = preshuffle, args.is_clean = clean_logits;
  const int64_t tiles_of_sequence = (args.rows_of_sequence + Shape::kTileRows - 1) / Shape::kTileRows;
  const int64_t tiles = batch * tiles_of_sequence;
  args.splits = splits_of(tiles, width, num_compute_units(q.device().device_id));
  match.require(tiles * args.splits < kMost, "too many rows for one launch");
  args.tiles_of_sequence = Divider(tiles_of_sequence), args.tiles = Divider(tiles);
  launch_mqa_logits(args, static_cast<uint32_t>(tiles * args.splits), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mqa_logits, aiter_like::mqa_logits);
#endif
