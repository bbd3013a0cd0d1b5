// SPDX-License-Identifier: MIT
// What the host looks at in a call of unified_attention, for both pipelines of its prefill.
#pragma once

#include "attention_host.h"
#include "paged_lengths.h"

#if AITER_LIKE_HOST_PASS

namespace aiter_like::unified {

constexpr int64_t kMost = int64_t{1} << 30, kGridLimit = 65536;

/// The tensors of a call, which fit each other; dim: HEAD_DIM of the module.
struct Call {
  ffi::Match match{"unified_attention"};
  ffi::Size rows{"total_q", kMost}, heads{"num_heads", kGridLimit}, kv_heads{"num_kv_heads"};
  ffi::Size pages{"pages"}, page_size{"page_size"}, batch{"batch", kGridLimit};
  ffi::Size entries{"entries"};  // entries of a row of the block table; with page_starts of the table
  bool is_ragged;                // whether there are page_starts
  int64_t longest;               // sequence of queries
  const int* block_table;
  int64_t table_row;

  Call(const ffi::Tensor& out, const ffi::Tensor& q, const ffi::Tensor& k, const ffi::Tensor& v,
       const ffi::Tensor& cu_seqlens_q, const ffi::OptionalTensor& seqlens_k, const ffi::Tensor& table,
       const ffi::OptionalTensor& page_starts, int64_t max_seqlen_q, int64_t dim, double softmax_scale)
      : is_ragged(page_starts.has_value()) {
    match.take<const void>(q, {rows, heads, dim}, "q");
    match.take<const void>(out, {rows, heads, dim}, "out");
    match.take<const void>(k, {pages, page_size, kv_heads, dim}, "k");
    match.take<const void>(v, {pages, page_size, kv_heads, dim}, "v");
    batch.value = cu_seqlens_q.numel() - 1;
    const auto taken = is_ragged ? match.take<const int32_t>(table, {entries}, "block_table")
                                 : match.take<const int32_t>(table, {batch, entries}, "block_table");
    block_table = taken, table_row = is_ragged ? 0 : taken.stride(0);
    longest = max_seqlen_q < rows ? max_seqlen_q : int64_t{rows};
    match.require(kv_heads > 0 && heads % kv_heads == 0 && page_size > 0 && (is_ragged || seqlens_k.has_value()),
                  "num_heads must be a multiple of num_kv_heads, and seqlens_k come with a row per sequence");
    match.require(most_keys() < kMost && batch < kGridLimit && max_seqlen_q >= 0,
                  "at most 2^30 - 1 keys of a sequence, and 65535 sequences, fit one launch");
    ffi::check_scale(match, softmax_scale);
  }

  int64_t most_keys() const { return entries * page_size; }  // a sequence's
  bool is_empty() const { return batch <= 0 || longest == 0 || heads == 0 || pages == 0; }

  /// The lengths of sequences and where their keys are, into a pipeline's arguments.
  template <class Args>
  void set_pages(Args& args, const ffi::Tensor& cu_seqlens_q, const ffi::OptionalTensor& seqlens_k,
                 const ffi::OptionalTensor& page_starts) {
    const auto whole = [](int64_t size) { return static_cast<int>(size); };
    args.lengths = {match.take<const int32_t>(cu_seqlens_q, {batch + 1}, "cu_seqlens_q"),
                    match.take<const int32_t>(seqlens_k, {batch}, "seqlens_k"),
                    match.take<const int32_t>(page_starts, {batch + 1}, "page_starts"), whole(batch), whole(batch + 1),
                    whole(rows), whole(longest), whole(page_size), whole(is_ragged ? int64_t{entries} : most_keys())};
    args.block_table = block_table, args.table_row = table_row;
    args.page_size = Divider(page_size), args.num_pages = pages;
  }

  ffi::View<float> lse_of(const ffi::OptionalTensor& lse) { return match.take<float>(lse, {heads, rows}, "lse"); }

  /// Pages are less than 2^31 bytes apart, and span less.
  template <class T>
  ffi::View<T> take_pages(const ffi::Tensor& tensor, int64_t dim, const char* name) {
    const auto taken = match.take<T>(tensor, {pages, page_size, kv_heads, dim}, name);
    constexpr int64_t kMostElements = (int64_t{1} << 31) / sizeof(T);
    const int64_t span = dim + (page_size - 1) * taken.step(1) + (kv_heads - 1) * taken.step(2);
    match.require(taken.step(0) < kMostElements && span < kMostElements, name,
                  "must have pages that are less than 2^31 bytes apart, and span less");
    return taken;
  }
};

}  // namespace aiter_like::unified

#endif
