// SPDX-License-Identifier: MIT
// Occupancy queries: how many workgroups a compute unit holds (run/occupancy.h), and the block size that fills it best.
#include <algorithm>

#include "hip/hip.h"
#include "run/occupancy.h"

namespace sim::hip {
namespace {

constexpr u64 kMaxBlock = 1024;

Error potential(int* grid, int* block, const Kernel& k, u64 lds_bytes, int limit) {
  if (!grid || !block) return set_error(kInvalidValue, "a result's address is null");
  const u64 most = std::min<u64>({kMaxBlock, k.max_block ? k.max_block : kMaxBlock, limit > 0 ? limit : kMaxBlock});
  // The largest block among those that keep most work-items resident.
  u64 best = 0;
  *grid = *block = 0;
  for (u64 size = std::min<u64>(most, kLanes); size <= most; size += kLanes) {
    const u64 groups = static_cast<u64>(max_groups_per_cu(k, size, lds_bytes));
    if (groups * size < best || groups == 0) continue;
    best = groups * size;
    *block = static_cast<int>(size);
    *grid = static_cast<int>(groups * kNumCus);
  }
  return kSuccess;
}

Error groups_into(int* groups, const Kernel& k, int block, u64 lds_bytes) {
  if (!groups || block <= 0) return set_error(kInvalidValue, "no block, or no address for the result");
  *groups = max_groups_per_cu(k, static_cast<u64>(block), lds_bytes);
  return kSuccess;
}

}  // namespace

int max_groups_per_cu(const Kernel& k, u64 block, u64 dynamic_lds_bytes) {
  if (dynamic_lds_bytes > kLdsPerCu) return 0;
  return static_cast<int>(occupancy(k, block, k.lds_bytes + dynamic_lds_bytes).groups);
}

HIP_API int hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* groups, const void* stub, int block,
                                                                  size_t lds_bytes, u32) {
  return guarded(kInvalidDeviceFunction,
                 [&] { return groups_into(groups, *kernel_of(stub).kernel, block, lds_bytes); });
}

HIP_API int hipOccupancyMaxActiveBlocksPerMultiprocessor(int* groups, const void* stub, int block, size_t lds_bytes) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(groups, stub, block, lds_bytes, 0);
}

HIP_API int hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* groups, void* f, int block,
                                                                        size_t lds_bytes, u32) {
  return guarded(kInvalidHandle, [&] { return groups_into(groups, *function_of(f).kernel, block, lds_bytes); });
}

HIP_API int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* groups, void* f, int block, size_t lds_bytes) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(groups, f, block, lds_bytes, 0);
}

HIP_API int hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* stub, size_t lds_bytes, int limit) {
  return guarded(kInvalidDeviceFunction,
                 [&] { return potential(grid, block, *kernel_of(stub).kernel, lds_bytes, limit); });
}

HIP_API int hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block, void* f, size_t lds_bytes, int limit) {
  return guarded(kInvalidHandle, [&] { return potential(grid, block, *function_of(f).kernel, lds_bytes, limit); });
}

HIP_API int hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, void* f, size_t lds_bytes,
                                                             int limit, u32) {
  return hipModuleOccupancyMaxPotentialBlockSize(grid, block, f, lds_bytes, limit);
}

}  // namespace sim::hip
