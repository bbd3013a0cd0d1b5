// SPDX-License-Identifier: MIT
// Constants under HIP's names.
#pragma once
#define HIP_INF_F __builtin_inff()
#define HIP_NAN_F __builtin_nanf("")
#define HIP_MIN_DENORM_F 0x1p-149f
#define HIP_MAX_NORMAL_F 0x1.fffffep+127f
#define HIP_NEG_ZERO_F -0.f
#define HIP_ZERO_F 0.f
#define HIP_ONE_F 1.f
#define HIP_SQRT_HALF_F 0.70710678118654752f
#define HIP_SQRT_TWO_F 1.41421356237309505f
#define HIP_PI_F 3.14159265358979324f
#define HIP_LN2_F 0.69314718055994531f
#define HIP_LOG2E_F 1.44269504088896341f
#define HIP_INF __builtin_inf()
#define HIP_NAN __builtin_nan("")
#define HIP_MIN_DENORM 0x1p-1074
#define HIP_NEG_ZERO -0.
#define HIP_ZERO 0.
#define HIP_ONE 1.
#define HIP_SQRT_HALF 0.70710678118654752
#define HIP_SQRT_TWO 1.41421356237309505
#define HIP_PI 3.14159265358979324
#define HIP_LN2 0.69314718055994531
#define HIP_LOG2E 1.44269504088896341
