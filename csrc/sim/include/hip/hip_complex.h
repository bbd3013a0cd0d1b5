// SPDX-License-Identifier: MIT
// Complex numbers as pairs, under HIP's names.
#pragma once
#include "hip/hip_runtime.h"
#include "hip/detail/callers_lines_begin.h"

using hipFloatComplex = float2;
using hipDoubleComplex = double2;
using hipComplex = hipFloatComplex;

#define AITER_LIKE_COMPLEX(Complex, Real, suffix, f, Made)                                                           \
  __host__ __device__ static inline Complex Made(Real re, Real im) { return {re, im}; }                              \
  __host__ __device__ static inline Real hipCreal##suffix(Complex z) { return z.x; }                                 \
  __host__ __device__ static inline Real hipCimag##suffix(Complex z) { return z.y; }                                 \
  __host__ __device__ static inline Complex hipConj##suffix(Complex z) { return {z.x, -z.y}; }                       \
  __host__ __device__ static inline Real hipCsqabs##suffix(Complex z) { return z.x * z.x + z.y * z.y; }              \
  __host__ __device__ static inline Real hipCabs##suffix(Complex z) {                                                \
    return __builtin_sqrt##f(hipCsqabs##suffix(z));                                                                  \
  }                                                                                                                  \
  __host__ __device__ static inline Complex hipCadd##suffix(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; } \
  __host__ __device__ static inline Complex hipCsub##suffix(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; } \
  __host__ __device__ static inline Complex hipCmul##suffix(Complex a, Complex b) {                                  \
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};                                                           \
  }                                                                                                                  \
  __host__ __device__ static inline Complex hipCdiv##suffix(Complex a, Complex b) {                                  \
    const Real size = hipCsqabs##suffix(b);                                                                          \
    return {(a.x * b.x + a.y * b.y) / size, (a.y * b.x - a.x * b.y) / size};                                         \
  }                                                                                                                  \
  __host__ __device__ static inline Complex hipCfma##suffix(Complex a, Complex b, Complex c) {                       \
    return hipCadd##suffix(hipCmul##suffix(a, b), c);                                                                \
  }
AITER_LIKE_COMPLEX(hipFloatComplex, float, f, f, make_hipFloatComplex)
AITER_LIKE_COMPLEX(hipDoubleComplex, double, , , make_hipDoubleComplex)
#undef AITER_LIKE_COMPLEX
__host__ __device__ static inline hipComplex make_hipComplex(float re, float im) { return {re, im}; }
__host__ __device__ static inline hipFloatComplex hipComplexDoubleToFloat(hipDoubleComplex z) {
  return {static_cast<float>(z.x), static_cast<float>(z.y)};
}
__host__ __device__ static inline hipDoubleComplex hipComplexFloatToDouble(hipFloatComplex z) { return {z.x, z.y}; }
#include "hip/detail/callers_lines_end.h"
