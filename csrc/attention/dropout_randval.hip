// SPDX-License-Identifier: MIT
// What attention's dropout drew for each score, as bytes: aiter_like/ops/attention/dropout_randval.py states the rule.
// HIP (gfx9) and CUDA. One build.
//
// A wave takes a row of a head: it looks for the row's sequence, and a lane writes four neighbouring bytes of one
// counter at a time. Bound: the integer units. Four bytes take 40 products of 32 bits, each as long as four other
// instructions. The MI300X writes about 1 TB/s so, less than its memory takes.
#include <cmath>

#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/philox.h"

namespace aiter_like {

struct RandvalArgs {
  uint8_t* out;
  const int64_t* rng_state;
  const int* starts;  // packed sequences' starts; null where each has `seqlen_q` rows
  int64_t batch_stride, head_stride, row_stride;
  uint32_t heads;
  int rows, batch, seqlen_q, columns;
  int threshold;  // a score is dropped if its random number of 24 bits is below
  int last_kept;  // the largest byte of a score that is kept
};

namespace randval {

constexpr int kThreads = 256, kWaves = kThreads / kWaveSize, kVec = 4;

struct Place {
  int sequence, row;  // the row's number in its sequence
  bool is_there;      // false: a row of no sequence
};

/// The place of a row: in the last sequence that begins at it or before it, if that one is long enough.
__device__ inline Place place_of(const RandvalArgs& args, int row) {
  if (args.starts == nullptr) return {row / args.seqlen_q, row % args.seqlen_q, true};
  if (args.batch == 0) return {0, 0, false};
  int low = 0, high = args.batch;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (args.starts[middle] <= row ? low : high) = middle;
  }
  const int first = args.starts[low];
  return {low, row - first, first <= row && row < args.starts[low + 1]};
}

__device__ inline uint8_t byte_of(const RandvalArgs& args, uint32_t word) {
  const int byte = 255 - static_cast<int>(word >> 24), above = args.last_kept + 1;
  const bool is_kept = static_cast<int>(word >> 8) >= args.threshold;
  const int kept = byte < args.last_kept ? byte : args.last_kept, dropped = byte > above ? byte : above;
  return static_cast<uint8_t>(is_kept ? kept : dropped);
}

__device__ inline void write_row(const RandvalArgs& args, int row, uint32_t head) {
  const Place place = place_of(args, row);
  const int64_t line = args.starts == nullptr ? place.row : row;
  uint8_t* out = args.out + head * args.head_stride + line * args.row_stride;
  if (args.starts == nullptr) out += place.sequence * args.batch_stride;
  const uint64_t seed = static_cast<uint64_t>(args.rng_state[0]);
  const uint32_t offset = static_cast<uint32_t>(args.rng_state[1]);
  const uint32_t number = static_cast<uint32_t>(place.sequence) * args.heads + head;
  const bool is_aligned = reinterpret_cast<uintptr_t>(out) % kVec == 0;
  for (int column = lane_index() * kVec; column < args.columns; column += kWaveSize * kVec) {
    const Vec<uint32_t, kVec> random =
        philox(seed, static_cast<uint32_t>(column / kVec), static_cast<uint32_t>(place.row), number, offset);
    Vec<uint8_t, kVec> bytes;
#pragma unroll
    for (int i = 0; i < kVec; ++i) bytes[i] = place.is_there ? byte_of(args, random[i]) : uint8_t{0};
    if (is_aligned && column + kVec <= args.columns) {
      store_vec<kVec>(out + column, bytes);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (column + i < args.columns) out[column + i] = bytes[i];
    }
  }
}

}  // namespace randval

__global__ __launch_bounds__(randval::kThreads, 8) void dropout_randval_kernel(RandvalArgs args) {
  await_stream();
  const int row = static_cast<int>(workgroup_index().x) * randval::kWaves + wave_index();
  if (row < args.rows) randval::write_row(args, row, workgroup_index().y);
}

inline void launch_dropout_randval(const RandvalArgs& args, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.rows + randval::kWaves - 1) / randval::kWaves, args.heads);
  launch_overlapped(dropout_randval_kernel, grid, randval::kThreads, stream, args);
  check_launch("dropout_randval_kernel");
}

#if AITER_LIKE_HOST_PASS

void dropout_randval(ffi::Tensor out, ffi::Tensor rng_state, ffi::OptionalTensor cu_seqlens_q, double dropout_p) {
  const bool is_packed = cu_seqlens_q.has_value();
  ffi::Match match("dropout_randval");
  match.require(dropout_p >= 0 && dropout_p < 1, "dropout_p must be at least 0 and below 1");
  ffi::Size batch{"batch"}, heads{"num_heads", 1 << 16}, length{"seqlen_q"}, starts{"batch + 1"};
  ffi::Size columns{"seqlen_k", (int64_t{1} << 31) - (1 << 12) + 1};
  const auto numbers = is_packed ? match.take<uint8_t>(out, {heads, length, columns}, "out")
                                 : match.take<uint8_t>(out, {batch, heads, length, columns}, "out");
  const int64_t rows = is_packed ? int64_t{length} : batch * length;
  if (out.numel() == 0) return;
  match.require(rows <= (1 << 26) - 4, "at most 2^26 - 4 rows");
  RandvalArgs args{};
  args.out = numbers;
  args.rng_state = match.elements<const int64_t>(rng_state, 2, "rng_state");
  args.starts = match.take<const int>(cu_seqlens_q, {starts}, "cu_seqlens_q");
  match.require(!is_packed || starts > 0, "cu_seqlens_q must have an element more than sequences");
  args.batch = is_packed ? starts - 1 : batch, args.batch_stride = is_packed ? 0 : numbers.stride(0);
  args.head_stride = out.stride(-3), args.row_stride = out.stride(-2);
  args.rows = rows, args.seqlen_q = length, args.columns = columns, args.heads = heads;
  args.threshold = static_cast<int>(dropout_p * (1 << 24));
  args.last_kept = static_cast<int>(std::floor(255.0 * (1.0 - dropout_p)));
  launch_dropout_randval(args, ffi::stream_of(out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(dropout_randval, aiter_like::dropout_randval);
#endif
