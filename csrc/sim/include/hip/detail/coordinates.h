// SPDX-License-Identifier: MIT
// Where a work-item is: threadIdx, blockIdx, blockDim, gridDim, warpSize.
#pragma once
#include "hip/detail/language.h"

#define AITER_LIKE_COORDINATES(type, of_x, of_y, of_z)                                          \
  struct type {                                                                                 \
    __declspec(property(get = get_x)) unsigned x;                                               \
    __declspec(property(get = get_y)) unsigned y;                                               \
    __declspec(property(get = get_z)) unsigned z;                                               \
    __device__ static unsigned get_x() { return of_x; }                                         \
    __device__ static unsigned get_y() { return of_y; }                                         \
    __device__ static unsigned get_z() { return of_z; }                                         \
    __device__ operator dim3() const { return {get_x(), get_y(), get_z()}; }                    \
    __device__ operator uint3() const { return {get_x(), get_y(), get_z()}; }                   \
  };
AITER_LIKE_COORDINATES(hip_thread_index, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                       __builtin_amdgcn_workitem_id_z())
AITER_LIKE_COORDINATES(hip_block_index, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                       __builtin_amdgcn_workgroup_id_z())
AITER_LIKE_COORDINATES(hip_block_size, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                       __builtin_amdgcn_workgroup_size_z())
AITER_LIKE_COORDINATES(hip_grid_size, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
                       __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
                       __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z())
#undef AITER_LIKE_COORDINATES
__device__ static constexpr hip_thread_index threadIdx{};
__device__ static constexpr hip_block_index blockIdx{};
__device__ static constexpr hip_block_size blockDim{};
__device__ static constexpr hip_grid_size gridDim{};
static constexpr int warpSize = 64;  // every gfx9 target

#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z
