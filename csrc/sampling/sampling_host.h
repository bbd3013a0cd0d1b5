// SPDX-License-Identifier: MIT
// What the samplers' host parts share: how rows are cut for the machine, and numbers of rows. Host pass only.
#pragma once

#include "aiter_like/cluster.h"
#include "aiter_like/ffi.h"
#include "draws.h"
#include "row_scan.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

constexpr int64_t kRowLimit = 65536;  // the limit of a grid's second dimension on CUDA

/// CUs of a tensor's device.
inline int units_of(const Tensor& tensor) {
  const DLDevice device = tensor.device();
  return num_compute_units(device.device_type == kDLCPU ? 0 : device.device_id);
}

/// Workgroups of a cluster that share a row, a power of two; 0 where the device has none, or they could not hold
/// the row, `most_bytes` each. `groups`: how many a tuned row says; 0: as few as hold 72 KB each, of which there is
/// room for two or three in a multiprocessor, and more where they would leave multiprocessors idle.
inline uint32_t cluster_of(uint32_t groups, int64_t rows, int64_t row_bytes, int64_t most_bytes, const Tensor& tensor) {
  constexpr int64_t kComfortable = 72 << 10, kLeast = 16 << 10;
  if (!kHasClusters || groups > kMostOfCluster || (groups & (groups - 1)) != 0) return 0;
  if (groups == 0) {
    groups = 1;
    while (groups < kMostOfCluster && row_bytes > groups * kComfortable) groups *= 2;
    while (groups < kMostOfCluster && rows * groups < 3 * int64_t{units_of(tensor)} && row_bytes >= 2 * groups * kLeast)
      groups *= 2;
  }
  return groups > 1 && row_bytes + 16 * 16 <= groups * most_bytes ? groups : 0;
}

/// Workgroups of a cluster that read a row and hold nothing: two for each multiprocessor, at least two for a long row.
inline uint32_t readers_of(int64_t rows, int64_t row_bytes, const Tensor& tensor) {
  uint32_t groups = row_bytes >= (128 << 10) ? 2 : 1;
  const int64_t most = 2 * int64_t{units_of(tensor)};
  while (groups < kMostOfCluster && 2 * groups * rows <= most && row_bytes >= groups * (32 << 10)) groups *= 2;
  return groups;
}

/// Slices of a row, so that each CU has up to two workgroups, and none has less than 16 KB.
inline uint32_t count_slices(int64_t rows, int64_t row_bytes, const Tensor& tensor) {
  const int64_t wanted = 2 * int64_t{units_of(tensor)} / rows, most = row_bytes / 16384;
  const int64_t slices = wanted < most ? wanted : most;
  return static_cast<uint32_t>(slices < 1 ? 1 : slices);
}

/// A row of `size` elements in `slices` slices, each a multiple of 16 elements; `slices` becomes how many there are.
inline Slices plan_slices(int64_t size, uint32_t& slices) {
  const int64_t length = ((size + slices - 1) / slices + 15) / 16 * 16;
  slices = static_cast<uint32_t>((size + length - 1) / length);
  return {static_cast<int>(size), static_cast<int>(length)};
}

inline Seeds seeds_of(Match& match, int64_t seed, int64_t offset, const OptionalTensor& seeds,
                      const OptionalTensor& offsets, int64_t rows) {
  return {match.elements<const int64_t>(seeds, rows, "seed"), match.elements<const int64_t>(offsets, rows, "offset"),
          static_cast<uint64_t>(seed), static_cast<uint64_t>(offset)};
}

/// A number for all rows, or a tensor with one for each.
template <class T>
RowNumber<T> row_number(Match& match, const OptionalTensor& tensor, T value, int64_t rows, const char* name) {
  if (!tensor.has_value()) return {nullptr, false, value};
  if constexpr (__is_same(T, int64_t)) {
    const bool is_64bit = match.one_of<int32_t, int64_t>(*tensor, name) == 1;
    return {match.elements<const void>(tensor, rows, name), is_64bit, value};
  } else {
    return {match.elements<const T>(tensor, rows, name), false, value};
  }
}

}  // namespace aiter_like::ffi
#endif
