// SPDX-License-Identifier: MIT
// The mask of a grammar, in place: logits become -inf where the bit of their column is 0. HIP (gfx9) and CUDA.
//
// A lane takes 32 columns, one word of the mask, and stores what is masked, 16 bytes at a time where all of them are.
// No logit is read. LDS: none. Bound: memory, sizeof(Element) bytes per masked logit.
#include "sampling_host.h"

#if !defined(ELEMENT)
#error "token_bitmask.hip: -DELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
};

constexpr int kThreads = 256, kBits = 32;

template <class Config>
struct BitmaskArgs {
  ScanRows<typename Config::Element> logits;
  ScanRows<const int32_t> bitmask;
  const int32_t* indices;  // rows that are masked; null: each
  int64_t rows;
  int columns;
};

template <class Config>
__global__ __launch_bounds__(kThreads) void token_bitmask_kernel(BitmaskArgs<Config> args) {
  await_stream();
  using Element = typename Config::Element;
  constexpr int kVec = 16 / sizeof(Element);
  constexpr uint32_t kWhole = (1u << kVec) - 1;
  int64_t row = workgroup_index().y;
  if (args.indices) row = args.indices[row];
  if (row < 0 || row >= args.rows) return;
  const int word = static_cast<int>(workgroup_index().x * kThreads + thread_index()), column = word * kBits;
  if (column >= args.columns) return;
  uint32_t masked = ~static_cast<uint32_t>(args.bitmask.row(row)[word]);
  const int count = args.columns - column;
  if (count < kBits) masked &= (1u << count) - 1;
  Element* logits = args.logits.row(row) + column;
  const Element low = from_float<Element>(-__builtin_inff());
  const bool is_wide = is_wide_at<kVec>(logits);
  Vec<Element, kVec> whole;
#pragma unroll
  for (int e = 0; e < kVec; ++e) whole[e] = low;
#pragma unroll
  for (int first = 0; first < kBits; first += kVec) {
    const uint32_t bits = masked >> first & kWhole;
    if (bits == kWhole && is_wide) {
      store_vec(logits + first, whole);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e)
        if (bits >> e & 1) logits[first + e] = low;
    }
  }
}

template <class Config>
void launch_token_bitmask(const BitmaskArgs<Config>& args, uint32_t rows, Stream stream) {
  const uint32_t groups = (static_cast<uint32_t>(args.columns) + kThreads * kBits - 1) / (kThreads * kBits);
  launch_named("token_bitmask_kernel", token_bitmask_kernel<Config>, dim3(groups, rows), kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_token_bitmask(const BitmaskArgs<Config>&, uint32_t, Stream);

#if AITER_LIKE_HOST_PASS

void token_bitmask(ffi::Tensor logits, ffi::Tensor bitmask, ffi::OptionalTensor indices) {
  ffi::Match match("token_bitmask");
  ffi::Size logits_rows{"rows"}, columns{"columns", (int64_t{1} << 31) - kThreads * kBits}, words{"words"};
  ffi::Size rows{"indices", ffi::kRowLimit};
  BitmaskArgs<Config> args{};
  args.logits = match.rows<ELEMENT>(logits, logits_rows, columns, "logits");
  args.indices = match.elements<const int32_t>(indices, rows, "indices");
  if (!indices.has_value()) rows.value = logits_rows;
  if (rows == 0 || logits_rows == 0) return;
  args.bitmask = match.rows<const int32_t>(bitmask, logits_rows, words, "bitmask");
  match.require(words * kBits >= columns && rows < ffi::kRowLimit,
                "bitmask must have a bit for each column, of at most 65535 rows");
  args.rows = logits_rows, args.columns = columns;
  launch_token_bitmask(args, rows, ffi::stream_of(logits));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(token_bitmask, aiter_like::token_bitmask);
#endif
