// SPDX-License-Identifier: MIT
// Copies whole blocks within each of some caches, or from one to another: to[mapping[i][1]] = from[mapping[i][0]].
// HIP (gfx9) and CUDA.
//
//   1. a workgroup takes a part of one block of a cache, whose address is among the kernel's arguments: no table has to
//      reach the device before; kWords words of each lane are in flight before the first is stored
//   2. a word is the widest of 16, 2 and 1 bytes that addresses and strides allow
// The dimensions of a block are merged as far as both sides allow: usually into one. Blocks outside the cache are
// skipped. No LDS. Bound: memory, each byte read and written once.
#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
#include <tvm/ffi/container/array.h>

#include <algorithm>
#endif

namespace aiter_like {

constexpr uint32_t kThreads = 256, kWords = 4;
constexpr int kMostCaches = 256;  // caches of a launch: keys and values of 128 layers, 2 of the 4 KB of arguments
constexpr int kDims = 4;  // dimensions of a block, after merging; the last is contiguous

/// Caches of one layout.
template <int kCount>
struct Caches {
  void* to[kCount];
};

struct CopyBlocksArgs {
  const void* from;  // null: each cache is its own source
  const void* mapping;  // [pairs, 2] int64_t or int32_t: from, to
  int64_t to_block, from_block, to_blocks, from_blocks;        // words from block to block; blocks
  int64_t to_stride[kDims - 1], from_stride[kDims - 1];        // words
  uint32_t size[kDims];                                        // the last one's in words; 1 where there is no dimension
  uint32_t words, parts;                                       // a block's words, workgroups
  bool is_wide;
};

__device__ inline int64_t block_number(const CopyBlocksArgs& args, int64_t index) {
  return args.is_wide ? static_cast<const int64_t*>(args.mapping)[index]
                      : int64_t{static_cast<const int32_t*>(args.mapping)[index]};
}

template <class Word, int kCount>
__global__ __launch_bounds__(kThreads) void copy_blocks_kernel(CopyBlocksArgs args, Caches<kCount> caches) {
  await_stream();
  const uint32_t pair = workgroup_index().x / args.parts, part = workgroup_index().x - pair * args.parts;
  const int64_t from_block = block_number(args, 2 * int64_t{pair});
  const int64_t to_block = block_number(args, 2 * int64_t{pair} + 1);
  if (from_block < 0 || from_block >= args.from_blocks || to_block < 0 || to_block >= args.to_blocks) return;
  void* cache = caches.to[kCount > 1 ? workgroup_index().y : 0];
  const Word* from = static_cast<const Word*>(args.from != nullptr ? args.from : cache) + from_block * args.from_block;
  Word* to = static_cast<Word*>(cache) + to_block * args.to_block;

  const auto place = [&](uint32_t word, const int64_t(&stride)[kDims - 1]) {
    if (args.size[3] == args.words) return int64_t{word};  // one dimension: no division
    const uint32_t row = word / args.size[3], plane = row / args.size[2], cube = plane / args.size[1];
    return (word - row * args.size[3]) + (row - plane * args.size[2]) * stride[2] +
           (plane - cube * args.size[1]) * stride[1] + cube * stride[0];
  };
  Word held[kWords];
#pragma unroll
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t word = (part * kWords + i) * kThreads + thread_index();
    held[i] = from[place(word < args.words ? word : args.words - 1, args.from_stride)];
  }
#pragma unroll
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t word = (part * kWords + i) * kThreads + thread_index();
    if (word < args.words) to[place(word, args.to_stride)] = held[i];
  }
}

template <int kCount>
void launch_caches(const CopyBlocksArgs& args, const Caches<kCount>& caches, dim3 grid, int word_bytes,
                   Stream stream) {
  if (word_bytes == 16)  // an integer: of structs, the compiler keeps the words in scratch memory
    launch_overlapped(copy_blocks_kernel<unsigned __int128, kCount>, grid, kThreads, stream, args, caches);
  else if (word_bytes == 2)
    launch_overlapped(copy_blocks_kernel<uint16_t, kCount>, grid, kThreads, stream, args, caches);
  else
    launch_overlapped(copy_blocks_kernel<uint8_t, kCount>, grid, kThreads, stream, args, caches);
  check_launch("copy_blocks_kernel");
}

void launch_copy_blocks(const CopyBlocksArgs& args, const Caches<kMostCaches>& caches, uint32_t count, uint32_t pairs,
                        int word_bytes, Stream stream) {
  const dim3 grid(pairs * args.parts, count);
  if (count == 1)
    launch_caches(args, Caches<1>{{caches.to[0]}}, grid, word_bytes, stream);
  else
    launch_caches(args, caches, grid, word_bytes, stream);
}

#if AITER_LIKE_HOST_PASS

/// A dimension of a block in bytes.
struct BlockDim {
  int64_t size, to, from;
};

/// Dimensions 1… of both tensors, the bytes of an element as the last, in descending order of the target's strides,
/// with neighbours merged where both sides allow. Returns how many; `dims` has place for 8.
int merged_dims(const ffi::Tensor& to, const ffi::Tensor& from, BlockDim* dims) {
  const int64_t bytes = to.dtype().bits / 8;
  int count = 0;
  for (int d = 1; d < to.ndim(); ++d)
    if (to.size(d) > 1) dims[count++] = {to.size(d), to.stride(d) * bytes, from.stride(d) * bytes};
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && dims[j].to > dims[j - 1].to; --j) {
      const BlockDim other = dims[j];
      dims[j] = dims[j - 1];
      dims[j - 1] = other;
    }
  dims[count++] = {bytes, 1, 1};
  for (int i = count - 2; i >= 0; --i) {
    const BlockDim inner = dims[i + 1];
    if (dims[i].to != inner.size * inner.to || dims[i].from != inner.size * inner.from) continue;
    dims[i] = {dims[i].size * inner.size, inner.to, inner.from};
    --count;
    for (int j = i + 1; j < count; ++j) dims[j] = dims[j + 1];
  }
  return count;
}

/// Whether two tensors have one width of elements, one shape and the same strides, or at least blocks of one shape.
bool is_alike(const ffi::Tensor& a, const ffi::Tensor& b, bool is_of_blocks) {
  bool result = a.ndim() == b.ndim() && a.dtype().bits == b.dtype().bits;
  for (int d = is_of_blocks ? 1 : 0; result && d < a.ndim(); ++d)
    result = a.size(d) == b.size(d) && (is_of_blocks || a.stride(d) == b.stride(d));
  return result;
}

void copy_blocks(ffi::Tensor to, ffi::OptionalTensor source, ffi::Tensor mapping,
                 ffi::Optional<tvm::ffi::Array<tvm::ffi::Tensor>> others) {
  constexpr int64_t kMostParts = (1 << 24) - 1;
  const ffi::Tensor from = source.has_value() ? *source : to;
  const int64_t num_caches = 1 + (others.has_value() ? static_cast<int64_t>(others.value().size()) : 0);
  const auto cache_of = [&](int64_t i) { return i == 0 ? to : ffi::Tensor(others.value()[i - 1]); };
  ffi::Match match("copy_blocks");
  ffi::Size pairs{"pairs"};
  const bool is_wide = match.one_of<int32_t, int64_t>(mapping, "block_mapping") == 1;
  const auto numbers = match.take<const void>(mapping, {pairs, 2}, "block_mapping", ffi::kDense);
  match.require(to.ndim() > 0 && to.ndim() <= 7 && is_alike(to, from, true),
                "both caches must have the same dtype, and blocks of one shape and at most 6 dimensions");
  match.require(num_caches == 1 || !source.has_value(), "several caches have no source");
  const int64_t bytes = to.dtype().bits / 8, to_block = to.stride(0) * bytes, from_block = from.stride(0) * bytes;
  int64_t words = bytes;
  for (int d = 1; d < to.ndim(); ++d) words *= to.size(d);
  if (words == 0 || pairs == 0) return;
  BlockDim dims[8];
  const int count = merged_dims(to, from, dims);
  match.require(count <= kDims && dims[count - 1].to == 1, "blocks have too many uneven dimensions");
  uint64_t bits = to_block | from_block | dims[count - 1].size;
  bits |= reinterpret_cast<uintptr_t>(match.elements<void>(from, ffi::at_least(0), "src", ffi::kStrided));
  for (int64_t i = 0; i < num_caches; ++i) {
    match.require(is_alike(cache_of(i), to, false), "all caches must have one dtype, shape and strides");
    bits |= reinterpret_cast<uintptr_t>(match.elements<void>(cache_of(i), ffi::at_least(0), "dst", ffi::kStrided));
  }
  for (int i = 0; i < count - 1; ++i) bits |= dims[i].to | dims[i].from;
  const int word_bytes = bits % 16 == 0 ? 16 : bits % 2 == 0 ? 2 : 1;
  CopyBlocksArgs args{source.has_value() ? from.data_ptr() : nullptr, numbers, to_block / word_bytes,
                      from_block / word_bytes, to.size(0), from.size(0)};
  for (int i = 0; i < kDims; ++i) args.size[i] = 1;
  for (int i = 0; i < count; ++i) {
    const int at = kDims - count + i;
    args.size[at] = static_cast<uint32_t>(i == count - 1 ? dims[i].size / word_bytes : dims[i].size);
    if (i == count - 1) break;
    args.to_stride[at] = dims[i].to / word_bytes, args.from_stride[at] = dims[i].from / word_bytes;
  }
  words /= word_bytes;
  const int64_t parts = (words + kThreads * kWords - 1) / (kThreads * kWords);
  match.require(words < int64_t{1} << 31 && parts * pairs <= kMostParts, "too much for one launch");
  args.words = words, args.parts = parts, args.is_wide = is_wide;
  const int64_t most = std::min<int64_t>(kMostCaches, kMostParts / (parts * pairs));
  for (int64_t first = 0; first < num_caches; first += most) {
    const int64_t part = std::min(most, num_caches - first);
    Caches<kMostCaches> some{};
    for (int64_t i = 0; i < part; ++i) some.to[i] = cache_of(first + i).data_ptr();
    launch_copy_blocks(args, some, static_cast<uint32_t>(part), pairs, word_bytes, ffi::stream_of(to));
  }
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(copy_blocks, aiter_like::copy_blocks);
#endif
