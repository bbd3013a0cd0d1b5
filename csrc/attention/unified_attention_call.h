// SPDX-License-Identifier: MIT
// What the host looks at in a call of unified_attention, for both pipelines of its prefill. It takes `Element` and
// HEAD_DIM of the module that includes it.
#pragma once

#include "aiter_like/ffi.h"
#include "paged_lengths.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like::unified {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

constexpr int64_t kMost = int64_t{1} << 30, kMostGrid = 65535;

/// The shapes of a call whose tensors fit each other.
struct Sizes {
  int64_t rows, heads, kv_heads, pages, page_size, batch;
  int64_t longest;        // sequence of queries
  int64_t table_columns;  // of the block table; with page_starts entries of all sequences
  bool is_ragged;         // whether there are page_starts

  int64_t most_keys() const { return table_columns * page_size; }  // of a sequence
  bool is_empty() const { return batch <= 0 || longest == 0 || heads == 0 || pages == 0; }
};

inline Sizes sizes_of(const ffi::Tensor& out, const ffi::Tensor& q, const ffi::Tensor& k, const ffi::Tensor& v,
                      const ffi::Tensor& cu_seqlens_q, const OptionalTensor& seqlens_k, const ffi::Tensor& block_table,
                      const OptionalTensor& page_starts, int64_t max_seqlen_q) {
  check_value(q.ndim() == 3 && out.ndim() == 3 && k.ndim() == 4 && v.ndim() == 4,
              "unified_attention: q and out must be [rows, heads, dim], k and v [pages, page_size, heads, dim]");
  Sizes sizes{q.size(0), q.size(1), k.size(2), k.size(0), k.size(1), cu_seqlens_q.size(0) - 1, 0, 0,
              page_starts.has_value()};
  const bool is_ragged = sizes.is_ragged;
  check_value(out.size(0) == sizes.rows && out.size(1) == sizes.heads && v.size(0) == sizes.pages &&
                  v.size(1) == sizes.page_size && v.size(2) == sizes.kv_heads && sizes.kv_heads > 0 &&
                  sizes.heads % sizes.kv_heads == 0 && sizes.page_size > 0,
              "unified_attention: q, k, v and out do not fit each other");
  check_value(block_table.ndim() == (is_ragged ? 1 : 2) && ffi::has_element<int32_t>(block_table) &&
                  (is_ragged || block_table.size(0) == sizes.batch) && (is_ragged || seqlens_k.has_value()) &&
                  (block_table.numel() <= 1 || block_table.stride(is_ragged ? 0 : 1) == 1),
              "unified_attention: numbers of pages must be int32, a row per sequence or one for all");
  sizes.table_columns = block_table.size(is_ragged ? 0 : 1);
  sizes.longest = max_seqlen_q < sizes.rows ? max_seqlen_q : sizes.rows;
  check_value(sizes.rows < kMost && sizes.most_keys() < kMost && sizes.batch <= kMostGrid &&
                  sizes.heads <= kMostGrid && max_seqlen_q >= 0,
              "unified_attention: at most 2^30 - 1 rows and keys, 65535 sequences and 65535 heads fit one launch");
  return sizes;
}

inline const int* indices(const OptionalTensor& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::has_element<int32_t>(value), "unified_attention: lengths must be int32");
  check_value(value.ndim() == 1 && value.size(0) == count && (count <= 1 || value.stride(0) == 1),
              "unified_attention: lengths must be those of the batch, contiguous");
  return static_cast<const int*>(value.data_ptr());
}

/// The lengths of sequences and where their keys are, into a pipeline's arguments.
template <class Args>
void set_pages(Args& args, const Sizes& sizes, const ffi::Tensor& cu_seqlens_q, const OptionalTensor& seqlens_k,
               const ffi::Tensor& block_table, const OptionalTensor& page_starts) {
  const auto whole = [](int64_t size) { return static_cast<int>(size); };
  args.lengths = {indices(cu_seqlens_q, sizes.batch + 1), indices(seqlens_k, sizes.batch),
                  indices(page_starts, sizes.batch + 1), whole(sizes.batch), whole(sizes.batch + 1), whole(sizes.rows),
                  whole(sizes.longest), whole(sizes.page_size),
                  whole(sizes.is_ragged ? sizes.table_columns : sizes.most_keys())};
  args.block_table = static_cast<const int*>(block_table.data_ptr());
  args.table_row = sizes.is_ragged ? 0 : block_table.stride(0);
  args.page_size = Divider(static_cast<uint32_t>(sizes.page_size));
  args.num_pages = whole(sizes.pages);
}

inline float* lse_of(const ffi::Tensor& lse, const Sizes& sizes) {
  ffi::check_type(ffi::is_f32(lse), "unified_attention: lse must be float32");
  check_value(lse.ndim() == 2 && lse.size(0) == sizes.heads && lse.size(1) == sizes.rows &&
                  (sizes.rows <= 1 || lse.stride(1) == 1),
              "unified_attention: lse must be [num_heads, total_q], the last one contiguous");
  return static_cast<float*>(lse.data_ptr());
}

/// Strides of rows [rows, heads, dim], in elements.
struct RowStrides {
  int64_t row, head;
};
template <class Element, int HEAD_DIMS>
RowStrides strides_of_rows(const ffi::Tensor& tensor) {
  ffi::check_type(ffi::has_element<Element>(tensor),
                  "unified_attention: q and out must have the dtype that this module was built for");
  const int64_t row = tensor.size(0) > 1 ? tensor.stride(0) : HEAD_DIMS;
  constexpr int64_t kMaxRowStride = int64_t{1} << 23;
  check_value(tensor.size(2) == HEAD_DIMS && tensor.stride(2) == 1 && HEAD_DIMS <= row && row < kMaxRowStride,
              "unified_attention: q and out must be [rows, heads, dim] of this module's dim, the last one contiguous, "
              "rows apart and less than 2^23 elements");
  return {row, tensor.size(1) > 1 ? tensor.stride(1) : 0};
}

/// Strides of pages [pages, page_size, heads, dim], in elements.
struct PageStrides {
  int64_t page, place, head;
};
template <class Element, int HEAD_DIMS>
PageStrides strides_of_pages(const ffi::Tensor& tensor) {
  ffi::check_type(ffi::has_element<Element>(tensor),
                  "unified_attention: k and v must have the dtype that this module was built for");
  check_value(tensor.size(3) == HEAD_DIMS && tensor.stride(3) == 1,
              "unified_attention: k and v must be [pages, page_size, heads, dim] of this module's dim, the last one "
              "contiguous");
  constexpr int64_t kMostElements = (int64_t{1} << 31) / sizeof(Element);
  int64_t strides[3], span = HEAD_DIMS;
  for (int d = 0; d < 3; ++d) {
    strides[d] = tensor.size(d) > 1 ? tensor.stride(d) : 0;
    if (d > 0) span += (tensor.size(d) - 1) * strides[d];
  }
  check_value(strides[0] < kMostElements && span < kMostElements,
              "unified_attention: pages must be less than 2^31 bytes apart, and span less");
  return {strides[0], strides[1], strides[2]};
}

}  // namespace aiter_like::unified

#endif
