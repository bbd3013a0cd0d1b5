// SPDX-License-Identifier: MIT
// Cooperative groups: the grid, a workgroup, tiles of it, and the lanes that are active.
#pragma once
#include "hip/hip_runtime.h"
#include "hip/detail/callers_lines_begin.h"

namespace cooperative_groups {

// A place of a work-item in its workgroup, and of a workgroup in its grid, x first.
namespace detail {

__device__ inline unsigned rank_in_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
__device__ inline unsigned size_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__device__ inline unsigned rank_of_block() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
__device__ inline unsigned count_of_blocks() { return gridDim.x * gridDim.y * gridDim.z; }

// Workgroups that have arrived, over all barriers of all launches: each barrier waits for a multiple of the grid's.
__device__ inline unsigned arrived = 0;

__device__ inline void grid_barrier() {
  __syncthreads();
  if (rank_in_block() == 0) {
    __threadfence();
    const unsigned blocks = count_of_blocks();
    const unsigned before = __hip_atomic_fetch_add(&arrived, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
    const unsigned target = before - before % blocks + blocks;
    while (static_cast<int>(__hip_atomic_load(&arrived, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) - target) < 0) {
      __builtin_amdgcn_s_sleep(1);
    }
    __threadfence();
  }
  __syncthreads();
}

}  // namespace detail

class grid_group {
 public:
  __device__ void sync() const { detail::grid_barrier(); }
  __device__ bool is_valid() const { return true; }
  __device__ unsigned long long size() const {
    return static_cast<unsigned long long>(detail::count_of_blocks()) * detail::size_of_block();
  }
  __device__ unsigned long long num_threads() const { return size(); }
  __device__ unsigned long long thread_rank() const {
    return static_cast<unsigned long long>(detail::rank_of_block()) * detail::size_of_block() + detail::rank_in_block();
  }
  __device__ unsigned block_rank() const { return detail::rank_of_block(); }
  __device__ unsigned num_blocks() const { return detail::count_of_blocks(); }
  __device__ dim3 group_dim() const { return gridDim; }
  __device__ dim3 block_index() const { return blockIdx; }
  __device__ dim3 dim_blocks() const { return gridDim; }
};
__device__ inline grid_group this_grid() { return {}; }

// The grids of a launch on several devices; here, each device's grid is one of its own.
class multi_grid_group : public grid_group {
 public:
  __device__ unsigned num_grids() const { return 1; }
  __device__ unsigned grid_rank() const { return 0; }
};
__device__ inline multi_grid_group this_multi_grid() { return {}; }

class thread_block {
 public:
  __device__ static void sync() { __syncthreads(); }
  __device__ static unsigned thread_rank() { return detail::rank_in_block(); }
  __device__ static unsigned size() { return detail::size_of_block(); }
  __device__ static unsigned num_threads() { return size(); }
  __device__ static dim3 group_index() { return blockIdx; }
  __device__ static dim3 thread_index() { return threadIdx; }
  __device__ static dim3 group_dim() { return blockDim; }
  __device__ static dim3 dim_threads() { return blockDim; }
  __device__ static bool is_valid() { return true; }
};
__device__ inline thread_block this_thread_block() { return {}; }

// A group whose kind and size are known at run time only: a part of a wave, or the whole workgroup.
class thread_group {
 public:
  __device__ thread_group(const thread_block& block) : size_(block.size()), rank_(block.thread_rank()) {}
  __device__ thread_group(unsigned size, unsigned rank) : size_(size), rank_(rank), is_tile_(true) {}
  __device__ unsigned size() const { return size_; }
  __device__ unsigned num_threads() const { return size_; }
  __device__ unsigned thread_rank() const { return rank_; }
  __device__ bool is_valid() const { return true; }
  __device__ void sync() const {
    if (is_tile_) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

 private:
  unsigned size_, rank_;
  bool is_tile_ = false;
};
__device__ inline thread_group tiled_partition(const thread_group& parent, unsigned size) {
  return {size, parent.thread_rank() % size};
}

template <unsigned kSize, class Parent = thread_block>
class thread_block_tile {
  static_assert(kSize > 0 && kSize <= 64 && (kSize & (kSize - 1)) == 0, "a tile has 1, 2, 4, … 64 lanes");

 public:
  __device__ static void sync() { __syncwarp(); }
  __device__ static constexpr unsigned size() { return kSize; }
  __device__ static constexpr unsigned num_threads() { return kSize; }
  __device__ static unsigned thread_rank() { return detail::rank_in_block() % kSize; }
  __device__ static unsigned meta_group_rank() { return detail::rank_in_block() / kSize; }
  __device__ static unsigned meta_group_size() { return (detail::size_of_block() + kSize - 1) / kSize; }
  __device__ static bool is_valid() { return true; }
  __device__ operator thread_group() const { return {kSize, thread_rank()}; }
  // The tile's lanes in its wave.
  __device__ static unsigned long long lanes() {
    return (~0ull >> (64 - kSize)) << (__lane_id() & ~(kSize - 1));
  }

  template <class T>
  __device__ T shfl(T value, int lane) const { return __shfl(value, lane, kSize); }
  template <class T>
  __device__ T shfl_up(T value, unsigned delta) const { return __shfl_up(value, delta, kSize); }
  template <class T>
  __device__ T shfl_down(T value, unsigned delta) const { return __shfl_down(value, delta, kSize); }
  template <class T>
  __device__ T shfl_xor(T value, unsigned mask) const { return __shfl_xor(value, static_cast<int>(mask), kSize); }
  __device__ unsigned long long ballot(int condition) const {
    const unsigned first = __lane_id() & ~(kSize - 1);
    return __ballot64(condition) >> first & (~0ull >> (64 - kSize));
  }
  __device__ int any(int condition) const { return ballot(condition) != 0; }
  __device__ int all(int condition) const { return ballot(condition == 0) == 0; }
  template <class T>
  __device__ unsigned long long match_any(T value) const {
    return __match_any_sync(lanes(), value) >> (__lane_id() & ~(kSize - 1));
  }
  template <class T>
  __device__ unsigned long long match_all(T value, int& all_same) const {
    return __match_all_sync(lanes(), value, &all_same) >> (__lane_id() & ~(kSize - 1));
  }
};
template <unsigned kSize, class Parent>
__device__ inline thread_block_tile<kSize, Parent> tiled_partition(const Parent&) {
  return {};
}

// Some lanes of a wave: those that are active where it is made, or a part of such, one of `parts` of its parent.
class coalesced_group {
 public:
  __device__ explicit coalesced_group(unsigned long long mask, unsigned part = 0, unsigned parts = 1)
      : mask_(mask), part_(part), parts_(parts) {}
  __device__ unsigned meta_group_rank() const { return part_; }
  __device__ unsigned meta_group_size() const { return parts_; }
  __device__ unsigned long long lanes() const { return mask_; }
  __device__ unsigned size() const { return static_cast<unsigned>(__popcll(mask_)); }
  __device__ unsigned num_threads() const { return size(); }
  __device__ unsigned thread_rank() const { return static_cast<unsigned>(__popcll(mask_ & __lanemask_lt())); }
  __device__ void sync() const { __syncwarp(); }
  __device__ bool is_valid() const { return true; }
  template <class T>
  __device__ T shfl(T value, int rank) const {
    return hip_detail::of_lane(value, lane_of(static_cast<unsigned>(rank) % size()));
  }
  template <class T>
  __device__ T shfl_down(T value, unsigned delta) const {
    const unsigned rank = thread_rank(), from = rank + delta;
    return hip_detail::of_lane(value, from < size() ? lane_of(from) : __lane_id());
  }
  template <class T>
  __device__ T shfl_up(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return hip_detail::of_lane(value, rank >= delta ? lane_of(rank - delta) : __lane_id());
  }
  // Bit r is the condition of the lane of rank r.
  __device__ unsigned long long ballot(int condition) const {
    return by_rank(__ballot64(condition) & mask_);
  }
  __device__ int any(int condition) const { return (__ballot64(condition) & mask_) != 0; }
  __device__ int all(int condition) const { return (__ballot64(condition == 0) & mask_) == 0; }

  template <class T>
  __device__ unsigned long long match_any(T value) const {
    return by_rank(__match_any_sync(mask_, value));
  }
  template <class T>
  __device__ unsigned long long match_all(T value, int& all_same) const {
    return by_rank(__match_all_sync(mask_, value, &all_same));
  }
  // `size` neighbours each; the last may be fewer.
  __device__ coalesced_group tiles(unsigned size) const {
    const unsigned part = thread_rank() / size, parts = (this->size() + size - 1) / size;
    unsigned long long mask = 0;
    for (unsigned rank = part * size; rank < (part + 1) * size && rank < this->size(); ++rank) {
      mask |= 1ull << lane_of(rank);
    }
    return coalesced_group(mask, part, parts);
  }

 private:
  __device__ unsigned long long by_rank(unsigned long long lanes) const {
    unsigned long long result = 0;
    for (unsigned rank = 0; rank < size(); ++rank) result |= (lanes >> lane_of(rank) & 1) << rank;
    return result;
  }
  __device__ unsigned lane_of(unsigned rank) const {
    unsigned long long left = mask_;
    for (unsigned i = 0; i < rank; ++i) left &= left - 1;
    return static_cast<unsigned>(__builtin_ctzll(left));
  }
  unsigned long long mask_;
  unsigned part_, parts_;
};
__device__ inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }
__device__ inline coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
  return parent.tiles(size);
}
template <unsigned kSize>
__device__ inline coalesced_group tiled_partition(const coalesced_group& parent) {
  return parent.tiles(kSize);
}

// The lanes of the group with the same condition as this one: part 1 where it holds.
template <class Group>
__device__ inline coalesced_group binary_partition(const Group& group, bool condition) {
  const unsigned long long lanes = group.lanes(), holds = __ballot64(condition) & lanes;
  return condition ? coalesced_group(holds, 1, 2) : coalesced_group(lanes & ~holds, 0, 2);
}

template <class Group>
__device__ inline void sync(const Group& group) {
  group.sync();
}
template <class Group>
__device__ inline unsigned long long thread_rank(const Group& group) {
  return group.thread_rank();
}
template <class Group>
__device__ inline unsigned long long group_size(const Group& group) {
  return group.size();
}

}  // namespace cooperative_groups
#include "hip/detail/callers_lines_end.h"
