// SPDX-License-Identifier: MIT
// The logits by which sparse attention chooses its keys, on the matrix cores of gfx942; mqa_logits_body.h has the
// steps. One build per heads, head dimension, and rows of a workgroup.
//
// Bound: of decoding, memory: HEAD_DIM + 4 bytes per key, which all rows of a sequence share. Of prompts, the matrix
// cores: 2 · HEADS · HEAD_DIM operations per pair of row and key.
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

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

template <class T>
const T* data_of(const ffi::Tensor& tensor, int ndim, const char* message) {
  ffi::check_type(ffi::has_element<T>(tensor), message);
  check_value(tensor.ndim() == ndim && (tensor.size(ndim - 1) <= 1 || tensor.stride(ndim - 1) == 1), message);
  return static_cast<const T*>(tensor.data_ptr());
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// In elements. That of a single entry is of no account.
int64_t stride_of(const ffi::Tensor& tensor, int dimension) {
  return tensor.size(dimension) > 1 ? tensor.stride(dimension) : 0;
}

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

constexpr const char* kLengths =
    "mqa_logits: lengths and numbers of pages must be int32, contiguous: starts and ends, one for each row; or "
    "block_table with a row for each sequence and context_lens; or page_starts and block_table of one dimension";

/// Which keys each row, or each sequence, has. How many sequences there are.
int64_t set_keys(mqa::Args& args, int64_t rows, const OptionalTensor& starts, const OptionalTensor& ends,
                 const OptionalTensor& context_lens, const OptionalTensor& table, const OptionalTensor& page_starts) {
  const bool is_dense = starts.has_value(), is_ragged = page_starts.has_value();
  check_value(ends.has_value() == is_dense && table.has_value() != is_dense &&
                  context_lens.has_value() == (!is_dense && !is_ragged) && !(is_dense && is_ragged), kLengths);
  if (is_dense) {
    args.starts = data_of<int32_t>(starts.value(), 1, kLengths);
    args.ends = data_of<int32_t>(ends.value(), 1, kLengths);
    check_value(starts.value().size(0) == rows && ends.value().size(0) == rows, kLengths);
    return 1;
  }
  args.table = data_of<int32_t>(table.value(), is_ragged ? 1 : 2, kLengths);
  const int64_t batch = is_ragged ? page_starts.value().size(0) - 1 : table.value().size(0);
  check_value(batch > 0 && rows % batch == 0, kLengths);
  if (is_ragged) {
    args.page_starts = data_of<int32_t>(page_starts.value(), 1, kLengths);
    args.num_entries = static_cast<int>(table.value().size(0));
  } else {
    args.context_lens = data_of<int32_t>(context_lens.value(), 1, kLengths);
    check_value(context_lens.value().size(0) == batch, kLengths);
    args.table_row = stride_of(table.value(), 0);
  }
  return batch;
}

}  // namespace

void mqa_logits(ffi::Tensor logits, ffi::Tensor q, ffi::Tensor keys, ffi::Tensor k_scale, ffi::Tensor weights,
                OptionalTensor starts, OptionalTensor ends, OptionalTensor context_lens, OptionalTensor block_table,
                OptionalTensor page_starts, bool preshuffle, bool clean_logits) {
  mqa::Args args{};
  args.logits = const_cast<float*>(data_of<float>(logits, 2, "mqa_logits: logits must be float32 [rows, columns]"));
  args.q = data_of<fp8>(q, 3, "mqa_logits: q must be fp8 [rows, heads, head_dim]");
  args.keys = reinterpret_cast<const char*>(data_of<fp8>(keys, 3, "mqa_logits: keys must be fp8 [pages, size, dim]"));
  args.weights = data_of<float>(weights, 2, "mqa_logits: weights must be float32 [rows, heads]");
  ffi::check_type(ffi::is_f32(k_scale), "mqa_logits: k_scale must be float32");
  args.scales = static_cast<const float*>(k_scale.data_ptr());
  const int64_t rows = q.size(0), width = logits.size(1), pages = keys.size(0), page_size = keys.size(1);
  check_value(q.size(1) == HEADS && q.size(2) == HEAD_DIM && keys.size(2) == HEAD_DIM,
              "mqa_logits: this module was built for other heads");
  check_value(logits.size(0) == rows && weights.size(0) == rows && weights.size(1) == HEADS && k_scale.ndim() == 2 &&
                  k_scale.size(0) == pages && k_scale.size(1) == page_size,
              "mqa_logits: logits and weights must have the rows of q, k_scale a number for each key");
  const int64_t batch = set_keys(args, rows, starts, ends, context_lens, block_table, page_starts);
  const int64_t entries = block_table.has_value() ? block_table.value().size(page_starts.has_value() ? 0 : 1) : 1;
  const int64_t room = entries * page_size;
  check_value(width < kMost && page_size < kMost && pages < kMost && rows < kMost && room < int64_t{1} << 31 &&
                  (block_table.has_value() || pages <= 1) && (!preshuffle || page_size % mqa::kPack == 0),
              "mqa_logits: less than 2^30 rows, columns and pages, in one page without a table");
  if (rows == 0 || width == 0) return;
  args.logits_row = stride_of(logits, 0);
  args.q_row = stride_of(q, 0), args.q_head = stride_of(q, 1);
  check_value(args.q_head >= 0 && args.q_head * HEADS < kMost, "mqa_logits: a row of q must lie within 2^30 bytes");
  args.page_bytes = stride_of(keys, 0), args.key_bytes = stride_of(keys, 1);
  args.scale_page = stride_of(k_scale, 0), args.scale_key = stride_of(k_scale, 1);
  args.weights_row = stride_of(weights, 0);
  args.page_size = Divider(static_cast<uint32_t>(page_size > 0 ? page_size : 1));
  args.num_pages = static_cast<uint32_t>(room > 0 ? pages : 0);
  args.rows_of_sequence = static_cast<int>(rows / batch), args.width = static_cast<int>(width);
  args.num_keys = static_cast<int>(room);
  args.is_paged = block_table.has_value(), args.is_shuffled = preshuffle, args.is_clean = clean_logits;
  const int64_t tiles_of_sequence = ceil_div(args.rows_of_sequence, Shape::kTileRows);
  const int64_t tiles = batch * tiles_of_sequence;
  args.splits = static_cast<int>(splits_of(tiles, width, num_compute_units(q.device().device_id)));
  check_value(tiles * args.splits < kMost, "mqa_logits: too many rows for one launch");
  args.tiles_of_sequence = Divider(static_cast<uint32_t>(tiles_of_sequence));
  args.tiles = Divider(static_cast<uint32_t>(tiles));
  launch_mqa_logits(args, static_cast<uint32_t>(tiles * args.splits), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(mqa_logits, aiter_like::mqa_logits);
#endif
