// SPDX-License-Identifier: MIT
// One small vocabulary over HIP (gfx9, waves of 64) and CUDA (waves of 32), so that kernels carry no #ifdef: lanes,
// waves, barrier, stream, launch check, vector access, the few math functions. It declares the HIP runtime calls that a
// launch needs itself: neither HIP headers nor device libraries have to be installed, and compilation stays short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(__HIP__)

#ifndef __global__
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
// For the bodies of kernels. When the optimiser chooses the moment to inline them, some of layer_norm's take a tenth
// more instructions (clang 22, gfx942).
#define __forceinline__ inline __attribute__((always_inline))
#endif
// clang ignores CUDA's launch bounds for AMD targets: without this attribute it assumes 1024 work-items, 128 VGPRs. The
// second bound, workgroups per multiprocessor, is for CUDA's register allocation alone.
#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(threads, threads)))

#if !defined(HIP_INCLUDE_HIP_HIP_RUNTIME_API_H)
struct ihipStream_t;
using hipStream_t = ihipStream_t*;
using hipError_t = int;
struct dim3 {
  uint32_t x, y, z;
  constexpr __host__ __device__ dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};
extern "C" {
hipError_t hipGetLastError();
const char* hipGetErrorString(hipError_t error);
hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** args, size_t lds_bytes,
                           hipStream_t stream);
hipError_t hipDeviceGetAttribute(int* value, int attribute, int device);
// The compiler expands kernel<<<grid, block, lds_bytes, stream>>>(...) into these two.
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds_bytes, hipStream_t stream);
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* lds_bytes, hipStream_t* stream);
}
#endif

#elif !defined(__CUDACC__)
#error "gpu.h needs clang in HIP mode (-x hip) or nvcc"
#endif

#if !defined(__HIP__) && __CUDA_ARCH_LIST__ >= 900
#define AITER_LIKE_OVERLAPS_LAUNCHES 1
#else
#define AITER_LIKE_OVERLAPS_LAUNCHES 0
#endif

namespace aiter_like {

#if defined(__HIP__)
constexpr int kWaveSize = 64;  // every gfx9 target
using Stream = hipStream_t;
#else
constexpr int kWaveSize = 32;
using Stream = cudaStream_t;
#endif

/// Throws std::runtime_error when the launch just made was refused; `kernel` names it in the message.
inline void check_launch(const char* kernel) {
#if defined(__HIP__)
  if (auto error = hipGetLastError())
    throw std::runtime_error(std::string(kernel) + ": launch failed: " + hipGetErrorString(error));
#else
  if (auto error = cudaGetLastError())
    throw std::runtime_error(std::string(kernel) + ": launch failed: " + cudaGetErrorString(error));
#endif
}

/// kernel<<<grid, threads, 0, stream>>>(args...). Hopper starts its workgroups where those of the stream's previous
/// kernel leave room, which hides the launch: 0.3 to 1.2 us of each. Such a kernel begins with await_stream().
template <class... Parameters, class... Args>
inline void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
                              const Args&... args) {
#if AITER_LIKE_OVERLAPS_LAUNCHES
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, args...);  // check_launch asks what came of it
#else
  kernel<<<grid, threads, 0, stream>>>(args...);
#endif
}

/// launch_overlapped; `name` is the kernel's, for the error of a launch that was refused.
template <class Kernel, class... Args>
inline void launch_named(const char* name, Kernel* kernel, dim3 grid, int threads, Stream stream, const Args&... args) {
  launch_overlapped(kernel, grid, threads, stream, args...);
  check_launch(name);
}

/// Lets the stream's next kernel start its workgroups, should it be one of launch_overlapped, then waits until the
/// previous one has ended and its stores can be read. Before it a kernel reads and writes no global memory.
__device__ inline void await_stream() {
#if AITER_LIKE_OVERLAPS_LAUNCHES
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

#if defined(__HIP__)
/// Asks for every cache line of the kernel's one argument at once: the compiler loads its fields where they are used,
/// and each line of 64 bytes would be waited for in turn, 400 ns on the MI300X.
template <class Args>
__device__ inline void fetch_arguments() {
  constexpr int kLines = (sizeof(Args) + 63) / 64;
  const auto* words = (const uint32_t*)__builtin_amdgcn_kernarg_segment_ptr();  // no named cast leaves its space
  uint32_t line[kLines];
#pragma unroll
  for (int i = 0; i < kLines; ++i) line[i] = words[16 * i];
#pragma unroll
  for (int i = 0; i < kLines; ++i) asm volatile("" ::"s"(line[i]));
}
#endif

/// Compute units, or multiprocessors, of a device.
inline int num_compute_units(int device) {
  int count = 0;
#if defined(__HIP__)
  constexpr int kMultiprocessorCount = 63;  // hipDeviceAttributeMultiprocessorCount, ROCm 6 and 7
  const auto error = hipDeviceGetAttribute(&count, kMultiprocessorCount, device);
#else
  const auto error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
#endif
  if (error) throw std::runtime_error("device " + std::to_string(device) + " does not say how many CUs it has");
  return count;
}

/// Index of this work-item in its one-dimensional workgroup.
__device__ inline int thread_index() {
#if defined(__HIP__)
  return static_cast<int>(__builtin_amdgcn_workitem_id_x());
#else
  return static_cast<int>(threadIdx.x);
#endif
}

/// Index of this wave in its workgroup; the same value in all lanes, and known to the compiler to be so.
__device__ inline int wave_index() {
#if defined(__HIP__)
  return __builtin_amdgcn_readfirstlane(thread_index() / kWaveSize);
#else
  return thread_index() / kWaveSize;
#endif
}

/// Index of this lane in its wave, for one-dimensional workgroups.
__device__ inline int lane_index() { return thread_index() % kWaveSize; }

struct WorkgroupIndex {
  uint32_t x, y, z;
};

__device__ inline WorkgroupIndex workgroup_index() {
#if defined(__HIP__)
  return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
#else
  return {blockIdx.x, blockIdx.y, blockIdx.z};
#endif
}

/// Workgroup barrier that also orders LDS accesses. The compiler places the s_waitcnt before it.
__device__ inline void workgroup_barrier() {
#if defined(__HIP__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
  __syncthreads();
#endif
}

#if defined(__HIP__)
/// DPP controls: what lane an operand of an instruction comes from.
constexpr int kRowHalfMirror = 0x141, kRowMirror = 0x140;           // lane XOR 7, lane XOR 15
constexpr int kRowBroadcast15 = 0x142, kRowBroadcast31 = 0x143;     // a row's last lane, for the next row; lane 31
constexpr int row_rotate(int lanes) { return 0x120 | lanes; }
constexpr int row_shift(int lanes) { return 0x110 | lanes; }  // lane l takes that of l − lanes, within its row of 16
constexpr int quad_permute(int a, int b, int c, int d) { return a | b << 2 | c << 4 | d << 6; }

/// The word of the lane that kControl names, or 0 where there is none, on its way into the instruction that uses it:
/// the LDS's permutations take over 50 cycles of latency each. All lanes must be active.
template <int kControl>
__device__ inline uint32_t dpp(uint32_t word) {
  constexpr int kAllRows = 0xF, kAllBanks = 0xF;
  return static_cast<uint32_t>(
      __builtin_amdgcn_update_dpp(0, static_cast<int>(word), kControl, kAllRows, kAllBanks, true));
}
template <int kControl>
__device__ inline float dpp(float x) {
  return __builtin_bit_cast(float, dpp<kControl>(__builtin_bit_cast(uint32_t, x)));
}

/// The control that gives a lane the value of the other half of its 2 · kMask lanes, where each half has one value.
template <int kMask>
constexpr int kOtherHalf = kMask == 1   ? quad_permute(1, 0, 3, 2)
                           : kMask == 2 ? quad_permute(2, 3, 0, 1)
                           : kMask == 4 ? kRowHalfMirror
                                        : kRowMirror;
#endif

/// The value of `x` in lane (own lane XOR kMask); kMask is below the wave size.
template <int kMask>
__device__ inline float lane_xor(float x) {
  static_assert(0 < kMask && kMask < kWaveSize, "the partner lane must be in the wave");
#if defined(__HIP__)
  const int bits = __builtin_bit_cast(int, x);
  if constexpr (kMask == 1 || kMask == 2)
    return dpp<kOtherHalf<kMask>>(x);
  else if constexpr (kMask == 4)
    return dpp<kRowHalfMirror>(dpp<quad_permute(3, 2, 1, 0)>(x));
  else if constexpr (kMask == 8)
    return dpp<row_rotate(8)>(x);
  else if constexpr (kMask < 32)  // ds_swizzle works within 32 lanes: offset = xor mask << 10 | and mask
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(bits, (kMask << 10) | 0x1F));
  else
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane_index() ^ kMask) * 4, bits));
#else
  return __shfl_xor_sync(0xFFFFFFFFu, x, kMask);
#endif
}

/// The largest `word` of the wave, in every lane, by one instruction where there is one. All lanes must be active.
#if defined(__HIP__)
constexpr bool kHasWaveMax = false;
__device__ uint32_t wave_max_word(uint32_t word);
#else
constexpr bool kHasWaveMax = true;
__device__ inline uint32_t wave_max_word(uint32_t word) { return __reduce_max_sync(0xFFFFFFFFu, word); }
#endif

/// True in every lane when `condition` holds in any active lane.
__device__ inline bool wave_any(bool condition) {
#if defined(__HIP__)
  return __builtin_amdgcn_ballot_w64(condition) != 0;
#else
  return __any_sync(0xFFFFFFFFu, condition);
#endif
}

/// Makes *address, in global memory, the maximum of itself and `value`, at once for all workgroups of the launch.
__device__ inline void atomic_max(uint32_t* address, uint32_t value) {
#if defined(__HIP__)
  __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  atomicMax(address, value);
#endif
}

__device__ inline float square_root(float x) {
#if defined(__HIP__)
  return __builtin_sqrtf(x);
#else
  return sqrtf(x);
#endif
}

/// 1 / sqrt(x) within 2 units in the last place.
__device__ inline float reciprocal_square_root(float x) {
#if defined(__HIP__)
  const bool is_small = x < 0x1p-96f;  // v_rsq_f32 takes no denormals
  const float root = __builtin_amdgcn_rsqf(is_small ? x * 0x1p64f : x);
  return is_small ? root * 0x1p32f : root;
#else
  return rsqrtf(x);
#endif
}

/// kCount consecutive elements, moved by accesses of at most 16 bytes; the address is aligned to min(16, size) bytes.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vec {
  T data[kCount];
  __device__ T& operator[](int i) { return data[i]; }
  __device__ const T& operator[](int i) const { return data[i]; }
};

/// Stops a kernel that op_tests/test_alignment.py has built at an address that CUDA faults on and gfx942 takes.
template <class T>
__device__ inline void check_aligned([[maybe_unused]] const void* address) {
#if defined(CHECK_ALIGNMENT)
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) != 0) __builtin_trap();
#endif
}

template <int kCount, class T>
__device__ inline Vec<T, kCount> load_vec(const T* address) {
  check_aligned<Vec<T, kCount>>(address);
  return *reinterpret_cast<const Vec<T, kCount>*>(address);
}

template <int kCount, class T>
__device__ inline void store_vec(T* address, const Vec<T, kCount>& value) {
  check_aligned<Vec<T, kCount>>(address);
  *reinterpret_cast<Vec<T, kCount>*>(address) = value;
}

/// `word`, of which the compiler does not know that it is the same as before.
__device__ inline uint32_t opaque(uint32_t word) {
#if defined(__HIP__)
  asm volatile("" : "+v"(word));
#else
  asm volatile("" : "+r"(word));
#endif
  return word;
}

/// load_vec(address) where `is_there`, zeros elsewhere, of an unsigned type. `readable` is what gfx942 reads instead:
/// of a branch, the compiler waits for the value at its end, before it issues the next load.
template <int kCount, class T>
__device__ inline Vec<T, kCount> load_vec_if(bool is_there, const T* address, [[maybe_unused]] const T* readable) {
#if defined(__HIP__)
  Vec<T, kCount> result = load_vec<kCount>(is_there ? address : readable);
  const uint32_t mask = opaque(is_there ? 0xFFFFFFFFu : 0u);  // a select would be made a branch
#pragma unroll
  for (int i = 0; i < kCount; ++i) result[i] &= static_cast<T>(mask);
#else
  Vec<T, kCount> result{};
  if (is_there) result = load_vec<kCount>(address);
#endif
  return result;
}

}  // namespace aiter_like
