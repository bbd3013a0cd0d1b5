// SPDX-License-Identifier: MIT
// Two 4-bit numbers to a byte, the first in the low half, and back: packing cuts int8 to its lower 4 bits, unpacking
// extends their sign. HIP (gfx9) and CUDA.
//
// A lane takes kVectors vectors of kBytes packed bytes of the flattened matrix, and the 2 · kBytes numbers beside them,
// four to a register. LDS: none.
// Bound: memory. 3 bytes per packed byte for less than 4 instructions: 16384 × 8192 numbers = 201 MB, 38 us at
// 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(VECTORS)
#error "pack_int4.hip: -DVECTORS"
#endif

namespace aiter_like {

struct Config {
  static constexpr int kVectors = VECTORS;
};

constexpr int kThreads = 256;
constexpr int kPackedBytes = 8;  // bytes of an access, 16 of numbers

struct PackInt4Args {
  uint8_t *out, *input;  // one [rows, columns] of packed bytes, the other [rows, 2 · columns] of numbers
  int64_t out_stride, input_stride;
  uint32_t rows;
};

/// Four numbers, a byte each, as 16 bits.
__device__ inline uint32_t packed_word(uint32_t numbers) {
  uint32_t x = numbers & 0x0F0F0F0Fu;
  x = (x | x >> 4) & 0x00FF00FFu;
  return (x | x >> 8) & 0xFFFFu;
}

/// The inverse, each number with its sign.
__device__ inline uint32_t unpacked_word(uint32_t packed) {
  uint32_t x = (packed | packed << 8) & 0x00FF00FFu;
  x = (x | x << 4) & 0x0F0F0F0Fu;
  return x | (x & 0x08080808u) * 0x1Eu;  // 8 · 0x1E = 0xF0: no byte reaches the next
}

/// kBytes packed bytes and as many numbers again, as words: of one byte, or of four.
template <int kBytes, bool kIsUnpacking>
struct Int4Vector {
  using Word = typename WordOf<kBytes % 4 == 0 ? 4 : 1>::type;
  static constexpr int kFew = kBytes / sizeof(Word), kMany = 2 * kFew;

  Vec<Word, kIsUnpacking ? kFew : kMany> from;

  __device__ void load(const uint8_t* address) {
    constexpr int kCount = kIsUnpacking ? kFew : kMany;
    if constexpr (kBytes == 1) {  // a pair of numbers may begin at an odd address
#pragma unroll
      for (int w = 0; w < kCount; ++w) from[w] = address[w];
    } else {
      from = load_vec<kCount>(reinterpret_cast<const Word*>(address));
    }
  }

  __device__ void store(uint8_t* address) const {
    Vec<Word, kIsUnpacking ? kMany : kFew> to;
    if constexpr (kBytes == 1) {
      const uint32_t pair = from[0] | uint32_t{from[kIsUnpacking ? 0 : 1]} << 8;
      const uint32_t word = kIsUnpacking ? unpacked_word(from[0]) : packed_word(pair);
#pragma unroll
      for (int w = 0; w < (kIsUnpacking ? kMany : kFew); ++w) address[w] = static_cast<uint8_t>(word >> 8 * w);
      return;
    } else if constexpr (kIsUnpacking) {
#pragma unroll
      for (int w = 0; w < kMany; ++w) to[w] = unpacked_word(from[w / 2] >> (w % 2 * 16) & 0xFFFFu);
    } else {
#pragma unroll
      for (int w = 0; w < kFew; ++w) to[w] = packed_word(from[2 * w]) | packed_word(from[2 * w + 1]) << 16;
    }
    store_vec(reinterpret_cast<Word*>(address), to);
  }
};

template <class Config, int kBytes, bool kIsUnpacking>
__global__ __launch_bounds__(kThreads, 8) void pack_int4_kernel(PackInt4Args args, Divider row_vectors) {
  await_stream();
  constexpr int kVectors = Config::kVectors;
  const uint32_t first = workgroup_index().x * (kThreads * kVectors) + thread_index();
  const uint32_t end = args.rows * row_vectors.divisor;
  const auto place = [&](uint8_t* matrix, int64_t stride, int bytes, int v) {
    const uint32_t index = first + v * kThreads, row = row_vectors.divide(index);
    return matrix + row * stride + int64_t{index - row * row_vectors.divisor} * bytes;
  };
  Int4Vector<kBytes, kIsUnpacking> x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (first + v * kThreads < end)
      x[v].load(place(args.input, args.input_stride, kIsUnpacking ? kBytes : 2 * kBytes, v));
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (first + v * kThreads < end)
      x[v].store(place(args.out, args.out_stride, kIsUnpacking ? 2 * kBytes : kBytes, v));
}

template <class Config, int kBytes>
void launch_vectors(const PackInt4Args& args, int64_t columns, bool is_unpacking, Stream stream) {
  const Divider row_vectors(static_cast<uint32_t>(columns / kBytes));
  constexpr int64_t kPerGroup = kThreads * Config::kVectors;
  const dim3 grid(static_cast<uint32_t>((args.rows * (columns / kBytes) + kPerGroup - 1) / kPerGroup));
  if (is_unpacking)
    launch_overlapped(pack_int4_kernel<Config, kBytes, true>, grid, kThreads, stream, args, row_vectors);
  else
    launch_overlapped(pack_int4_kernel<Config, kBytes, false>, grid, kThreads, stream, args, row_vectors);
}

template <class Config>
void launch_pack_int4(const PackInt4Args& args, int64_t columns, bool is_unpacking, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_vectors<Config, kPackedBytes>(args, columns, is_unpacking, stream);
  else
    launch_vectors<Config, 1>(args, columns, is_unpacking, stream);
  check_launch("pack_int4_kernel");
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_pack_int4<Config>(const PackInt4Args&, int64_t, bool, bool, Stream);

#if AITER_LIKE_HOST_PASS

void pack_int4(ffi::Tensor out, ffi::Tensor input, bool is_unpacking) {
  ffi::Match match("pack_int4");
  ffi::Size rows{"rows"}, columns{"columns"}, bytes{"bytes of a row"};
  const auto y = match.rows<int8_t>(out, rows, is_unpacking ? columns : bytes, "out");
  const auto x = match.rows<int8_t>(input, rows, is_unpacking ? bytes : columns, "input");
  match.require(columns == 2 * bytes, "out must be half or twice as long as input");
  if (rows == 0) return;
  const bool is_aligned = ffi::takes_vectors(kPackedBytes, is_unpacking ? input : out) &&
                          ffi::takes_vectors(2 * kPackedBytes, is_unpacking ? out : input);
  match.require(rows * (bytes / (is_aligned ? kPackedBytes : 1)) < (int64_t{1} << 31) - (1 << 16),
                "too many elements for one launch");
  const PackInt4Args args{reinterpret_cast<uint8_t*>(y.data), reinterpret_cast<uint8_t*>(x.data), y.stride, x.stride,
                          static_cast<uint32_t>(rows)};
  launch_pack_int4<Config>(args, bytes, is_unpacking, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(pack_int4, aiter_like::pack_int4);
#endif
