// SPDX-License-Identifier: MIT
// Host helpers of the exported functions of attention: tensors of rows and heads, slopes, windows. Host pass only.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// A tensor [batch, rows, heads, dim], or without the batch, as a GlobalView<T, 4>. A single row is as far from the
/// next one as it is long.
template <class View4>
View4 view_of_heads(Match& match, const Tensor& tensor, const Shape& shape, const char* name) {
  const auto taken = match.take<std::remove_pointer_t<decltype(View4::data)>>(tensor, shape, name);
  View4 view{taken, {1, 0, 0, 0}, {0, 0, 0, 1}};
  for (int d = 0; d < shape.rank; ++d) {
    view.sizes[4 - shape.rank + d] = taken.sizes[d];
    view.strides[4 - shape.rank + d] = taken.step(d);
  }
  if (view.sizes[1] <= 1) view.strides[1] = view.sizes[3];
  match.require(view.sizes[3] <= view.strides[1] && view.strides[1] < (1 << 23), name,
                "must have rows that do not overlap and are less than 2^23 elements apart");
  return view;
}

/// The same of 16-bit elements as a FlashAttnTensor, with strides in bytes. What a lane reads at once begins at a
/// multiple of 16 bytes, or AddressError is thrown.
template <class FlashTensor, class T>
FlashTensor bytes_of_heads(Match& match, const Tensor& tensor, const Shape& shape, const char* name) {
  const auto taken = match.take<T>(tensor, shape, name);
  const int row = shape.rank - 3;
  const auto bytes = [&](int d) { return taken.step(d) * int64_t{sizeof(T)}; };
  FlashTensor result{taken.data, row > 0 ? bytes(0) : 0, bytes(row), bytes(row + 1)};
  if (taken.sizes[row] <= 1) result.row = taken.sizes[row + 2] * int64_t{sizeof(T)};
  match.require((result.batch | result.row | result.head) % 16 == 0, name,
                "must have rows and heads that are multiples of 16 bytes apart");
  match.require_aligned(result.data, name);
  return result;
}

/// The lengths of `batch` sequences into a kernel's arguments.
template <class Args>
void take_lengths(Match& match, Args& args, int64_t batch, const OptionalTensor& cu_seqlens_q,
                  const OptionalTensor& cu_seqlens_k) {
  args.cu_seqlens_q = match.take<const int32_t>(cu_seqlens_q, {batch + 1}, "cu_seqlens_q");
  args.cu_seqlens_k = match.take<const int32_t>(cu_seqlens_k, {batch + 1}, "cu_seqlens_k");
}
template <class Args>
void take_lengths(Match& match, Args& args, int64_t batch, const OptionalTensor& cu_seqlens_q,
                  const OptionalTensor& cu_seqlens_k, const OptionalTensor& seqlens_k) {
  take_lengths(match, args, batch, cu_seqlens_q, cu_seqlens_k);
  args.seqlens_k = match.take<const int32_t>(seqlens_k, {batch}, "seqlens_k");
}

/// Slopes of ALiBi, subtracted by distance: [heads], or [batch, heads].
struct Slopes {
  const float* data;
  int64_t batch;  // elements from sequence to sequence
};
inline Slopes slopes_of(Match& match, const OptionalTensor& slopes, Size& batch, Size& heads) {
  if (!slopes.has_value() || (*slopes).ndim() != 2)
    return {match.take<const float>(slopes, {heads}, "alibi_slopes"), 0};
  const auto taken = match.take<const float>(slopes, {batch, heads}, "alibi_slopes");
  return {taken, taken.stride(0)};
}

/// Keys that a window shows on one side; -1: all.
inline int window_of(int64_t size) { return static_cast<int>(size < 0 ? -1 : size < (1 << 30) ? size : 1 << 30); }

inline void check_scale(const Match& match, double softmax_scale) {
  match.require(softmax_scale >= 1e-8 && softmax_scale < 1e30, "softmax_scale must be finite and at least 1e-8");
}

}  // namespace aiter_like::ffi
#endif
