// SPDX-License-Identifier: MIT
// What a program of hipRTC may use without including anything, as far as no device library is needed for it. It stands
// before each program; rtc.cpp reads it as text.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __HIPCC_RTC__ 1

using size_t = decltype(sizeof(0));
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

#define AITER_LIKE_COORDINATES(type, X, Y, Z)                                                   \
  struct type {                                                                                 \
    __declspec(property(get = get_x)) unsigned x;                                               \
    __declspec(property(get = get_y)) unsigned y;                                               \
    __declspec(property(get = get_z)) unsigned z;                                               \
    __device__ static unsigned get_x() { return X; }                                            \
    __device__ static unsigned get_y() { return Y; }                                            \
    __device__ static unsigned get_z() { return Z; }                                            \
    __device__ operator dim3() const { return {get_x(), get_y(), get_z()}; }                    \
  };
AITER_LIKE_COORDINATES(hiprtc_thread_index, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                       __builtin_amdgcn_workitem_id_z())
AITER_LIKE_COORDINATES(hiprtc_block_index, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                       __builtin_amdgcn_workgroup_id_z())
AITER_LIKE_COORDINATES(hiprtc_block_size, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                       __builtin_amdgcn_workgroup_size_z())
AITER_LIKE_COORDINATES(hiprtc_grid_size, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
                       __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
                       __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z())
#undef AITER_LIKE_COORDINATES
__device__ static constexpr hiprtc_thread_index threadIdx{};
__device__ static constexpr hiprtc_block_index blockIdx{};
__device__ static constexpr hiprtc_block_size blockDim{};
__device__ static constexpr hiprtc_grid_size gridDim{};
__device__ static constexpr int warpSize = 64;

#define AITER_LIKE_VECTORS(type, name)         \
  struct name##2 { type x, y; };               \
  struct name##3 { type x, y, z; };            \
  struct name##4 { type x, y, z, w; };
AITER_LIKE_VECTORS(float, float)
AITER_LIKE_VECTORS(double, double)
AITER_LIKE_VECTORS(int, int)
AITER_LIKE_VECTORS(unsigned, uint)
#undef AITER_LIKE_VECTORS

__device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__device__ inline void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }

#define AITER_LIKE_ATOMIC(name, operation)                                                       \
  template <class T>                                                                             \
  __device__ inline T name(T* place, T value) {                                                  \
    return operation(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);                  \
  }
AITER_LIKE_ATOMIC(atomicAdd, __hip_atomic_fetch_add)
AITER_LIKE_ATOMIC(atomicMin, __hip_atomic_fetch_min)
AITER_LIKE_ATOMIC(atomicMax, __hip_atomic_fetch_max)
AITER_LIKE_ATOMIC(atomicAnd, __hip_atomic_fetch_and)
AITER_LIKE_ATOMIC(atomicOr, __hip_atomic_fetch_or)
AITER_LIKE_ATOMIC(atomicXor, __hip_atomic_fetch_xor)
AITER_LIKE_ATOMIC(atomicExch, __hip_atomic_exchange)
#undef AITER_LIKE_ATOMIC
template <class T>
__device__ inline T atomicCAS(T* place, T expected, T value) {
  __hip_atomic_compare_exchange_strong(place, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

__device__ inline int hiprtc_shuffle(int value, unsigned lane) {
  return __builtin_amdgcn_ds_bpermute(static_cast<int>(lane << 2), value);
}
__device__ inline unsigned hiprtc_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <class T>
__device__ inline T __shfl(T value, int lane, int width = 64) {
  static_assert(sizeof(T) == 4, "__shfl without HIP's headers moves four bytes");
  const unsigned own = hiprtc_lane();
  const unsigned from = (own & ~(width - 1u)) | (static_cast<unsigned>(lane) & (width - 1u));
  return __builtin_bit_cast(T, hiprtc_shuffle(__builtin_bit_cast(int, value), from));
}
template <class T>
__device__ inline T __shfl_xor(T value, int mask, int width = 64) {
  const unsigned own = hiprtc_lane(), other = own ^ static_cast<unsigned>(mask);
  return __shfl(value, static_cast<int>((other ^ own) & ~(width - 1u) ? own : other) & 63, 64);
}
template <class T>
__device__ inline T __shfl_down(T value, unsigned delta, int width = 64) {
  const unsigned own = hiprtc_lane(), other = own + delta;
  return __shfl(value, static_cast<int>((other ^ own) & ~(width - 1u) ? own : other), 64);
}

#define AITER_LIKE_MATH(name)                                                      \
  __device__ inline float name##f(float x) { return __builtin_##name##f(x); }      \
  __device__ inline double name(double x) { return __builtin_##name(x); }
AITER_LIKE_MATH(sqrt)
AITER_LIKE_MATH(fabs)
AITER_LIKE_MATH(floor)
AITER_LIKE_MATH(ceil)
AITER_LIKE_MATH(trunc)
AITER_LIKE_MATH(rint)
#undef AITER_LIKE_MATH
__device__ inline float expf(float x) { return __builtin_expf(x); }
__device__ inline float exp2f(float x) { return __builtin_exp2f(x); }
__device__ inline float logf(float x) { return __builtin_logf(x); }
__device__ inline float log2f(float x) { return __builtin_log2f(x); }
__device__ inline float rsqrtf(float x) { return 1.f / __builtin_sqrtf(x); }
__device__ inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
__device__ inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
__device__ inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
template <class T>
__device__ inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
__device__ inline T max(T a, T b) { return a < b ? b : a; }
