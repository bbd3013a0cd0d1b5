// SPDX-License-Identifier: MIT
// Sine and cosine of one angle, for the kernels that are given angles instead of tables of both.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

__device__ inline double round_even(double x) {
#if defined(__HIP__)
  return __builtin_rint(x);
#else
  return rint(x);
#endif
}

__device__ inline double multiply_add(double a, double b, double c) {
#if defined(__HIP__)
  return __builtin_fma(a, b, c);
#else
  return fma(a, b, c);
#endif
}

/// Both within 2^-23 of the exact value for |angle| ≤ 2^30; NaN for infinities and NaN.
///
/// The multiple of π/2 is taken off in double: positions reach millions of radians, where a reduction in float has no
/// correct digit. What is left, at most π/4, goes to the polynomials of Cephes' sinf and cosf (Moshier, 1984).
__device__ inline void sine_cosine(float angle, float& sine, float& cosine) {
  const double quarters = round_even(double{angle} * 0x1.45f306dc9c883p-1);                 // 2/π
  double rest = multiply_add(quarters, -0x1.921fb54442d18p+0, double{angle});               // π/2, upper 53 bits
  rest = multiply_add(quarters, -0x1.1a62633145c07p-54, rest);                              // and the next 53
  const float y = static_cast<float>(rest), z = y * y;
  const float s = y + y * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
  const float c = 1.f - 0.5f * z +
                  z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const int turn = static_cast<int>(quarters - 4. * round_even(quarters * 0.25)) & 3;  // -2 … 2 before the mask
  sine = turn & 1 ? c : s;
  cosine = turn & 1 ? s : c;
  sine = turn & 2 ? -sine : sine;
  cosine = (turn + 1) & 2 ? -cosine : cosine;
}

}  // namespace aiter_like
