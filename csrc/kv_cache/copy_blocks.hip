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
#include <vector>
#endif

namespace aiter_like {

constexpr uint32_t kThreads = 256, kWords = 4;
constexpr int kMostCaches = 256;  // of a launch: keys and values of 128 layers, 2 of the 4 KB of arguments
constexpr int kDims = 4;  // of a block, after merging; the last is contiguous

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
  uint32_t size[kDims];                                        // of the last in words; 1 where there is no dimension
  uint32_t words, parts;                                       // of a block: words, workgroups
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

/// Whether two tensors have one dtype, shape and strides.
bool is_alike(const ffi::Tensor& a, const ffi::Tensor& b) {
  bool result = a.ndim() == b.ndim() && a.dtype().bits == b.dtype().bits;
  for (int d = 0; result && d < a.ndim(); ++d) result = a.size(d) == b.size(d) && a.stride(d) == b.stride(d);
  return result;
}

void copy_blocks(ffi::Tensor to, ffi::Optional<ffi::Tensor> source, ffi::Tensor mapping,
                 ffi::Optional<tvm::ffi::Array<tvm::ffi::Tensor>> others) {
  const ffi::Tensor from = source.has_value() ? source.value() : to;
  const bool is_wide = ffi::has_element<int64_t>(mapping);
  ffi::check_type(is_wide || ffi::has_element<int32_t>(mapping), "copy_blocks: block_mapping must be int64 or int32");
  ffi::check_value(mapping.ndim() == 2 && mapping.size(1) == 2 && mapping.stride(1) == 1 &&
                       (mapping.size(0) < 2 || mapping.stride(0) == 2),
                   "copy_blocks: block_mapping must be contiguous [pairs, 2]");
  ffi::check_value(to.ndim() == from.ndim() && to.ndim() > 0 && to.ndim() <= 7 && to.dtype().bits == from.dtype().bits,
                   "copy_blocks: both caches must have the same dtype and dimensions, at most 7");
  int64_t words = to.dtype().bits / 8;
  for (int d = 1; d < to.ndim(); ++d) {
    ffi::check_value(to.size(d) == from.size(d), "copy_blocks: both caches must have blocks of one shape");
    words *= to.size(d);
  }
  if (words == 0 || mapping.size(0) == 0) return;

  BlockDim dims[8];
  const int count = merged_dims(to, from, dims);
  ffi::check_value(count <= kDims && dims[count - 1].to == 1, "copy_blocks: blocks have too many uneven dimensions");
  const int64_t bytes = to.dtype().bits / 8, to_block = to.stride(0) * bytes, from_block = from.stride(0) * bytes;
  std::vector<void*> caches{to.data_ptr()};
  if (others.has_value()) {
    ffi::check_value(!source.has_value(), "copy_blocks: several caches have no source");
    for (const ffi::Tensor cache : others.value()) {
      ffi::check_value(is_alike(cache, to), "copy_blocks: all caches must have one dtype, shape and strides");
      caches.push_back(cache.data_ptr());
    }
  }
  uint64_t bits = reinterpret_cast<uintptr_t>(from.data_ptr()) | to_block | from_block | dims[count - 1].size;
  for (void* cache : caches) bits |= reinterpret_cast<uintptr_t>(cache);
  for (int i = 0; i < count - 1; ++i) bits |= dims[i].to | dims[i].from;
  const int word_bytes = bits % 16 == 0 ? 16 : bits % 2 == 0 ? 2 : 1;

  CopyBlocksArgs args{source.has_value() ? from.data_ptr() : nullptr, mapping.data_ptr(), to_block / word_bytes,
                      from_block / word_bytes, to.size(0), from.size(0)};
  for (int i = 0; i < kDims; ++i) args.size[i] = 1;
  for (int i = 0; i < count; ++i) {
    const int at = kDims - count + i;
    args.size[at] = static_cast<uint32_t>(i == count - 1 ? dims[i].size / word_bytes : dims[i].size);
    if (i == count - 1) break;
    args.to_stride[at] = dims[i].to / word_bytes;
    args.from_stride[at] = dims[i].from / word_bytes;
  }
  words /= word_bytes;
  const int64_t parts = (words + kThreads * kWords - 1) / (kThreads * kWords);
  ffi::check_value(words < (int64_t{1} << 31) && parts * mapping.size(0) < (int64_t{1} << 24),
                   "copy_blocks: too much for one launch");
  args.words = static_cast<uint32_t>(words);
  args.parts = static_cast<uint32_t>(parts);
  args.is_wide = is_wide;
  const size_t most = std::min<int64_t>(kMostCaches, ((int64_t{1} << 24) - 1) / (parts * mapping.size(0)));
  for (size_t first = 0; first < caches.size(); first += most) {
    const size_t part = std::min(most, caches.size() - first);
    Caches<kMostCaches> some{};
    std::copy_n(caches.begin() + first, part, some.to);
    launch_copy_blocks(args, some, static_cast<uint32_t>(part), static_cast<uint32_t>(mapping.size(0)), word_bytes,
                       ffi::stream_of(to));
  }
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(copy_blocks, aiter_like::copy_blocks);
#endif
