// SPDX-License-Identifier: MIT
// The headers of device code, which stand before each program of hipRTC or may be included by one. Those of the runtime
// are for the host.
#pragma once

constexpr const char* kNames[] = {
    "hip/detail/atomics.h", "hip/detail/callers_lines_begin.h", "hip/detail/callers_lines_end.h",
    "hip/detail/conversions.h", "hip/detail/coordinates.h", "hip/detail/device_library.h", "hip/detail/half.h",
    "hip/detail/half_more.h", "hip/detail/integers.h", "hip/detail/lanes.h", "hip/detail/language.h",
    "hip/detail/printf.h", "hip/detail/short_floats.h", "hip/detail/synchronisation.h", "hip/detail/traits.h",
    "hip/detail/vectors.h", "hip/detail/wave.h", "hip/device_functions.h", "hip/hip_bf16.h", "hip/hip_bfloat16.h",
    "hip/hip_common.h", "hip/hip_complex.h", "hip/hip_cooperative_groups.h", "hip/hip_fp16.h", "hip/hip_fp8.h",
    "hip/hip_math_constants.h", "hip/hip_runtime.h", "hip/hip_vector_types.h", "hip/hip_version.h",
    "hip/library_types.h", "hip/math_functions.h",
};

// The texts in the order of their names, each with a zero behind it.
constexpr char kTexts[] = {
#embed "../include/hip/detail/atomics.h" suffix(, 0,)
#embed "../include/hip/detail/callers_lines_begin.h" suffix(, 0,)
#embed "../include/hip/detail/callers_lines_end.h" suffix(, 0,)
#embed "../include/hip/detail/conversions.h" suffix(, 0,)
#embed "../include/hip/detail/coordinates.h" suffix(, 0,)
#embed "../include/hip/detail/device_library.h" suffix(, 0,)
#embed "../include/hip/detail/half.h" suffix(, 0,)
#embed "../include/hip/detail/half_more.h" suffix(, 0,)
#embed "../include/hip/detail/integers.h" suffix(, 0,)
#embed "../include/hip/detail/lanes.h" suffix(, 0,)
#embed "../include/hip/detail/language.h" suffix(, 0,)
#embed "../include/hip/detail/printf.h" suffix(, 0,)
#embed "../include/hip/detail/short_floats.h" suffix(, 0,)
#embed "../include/hip/detail/synchronisation.h" suffix(, 0,)
#embed "../include/hip/detail/traits.h" suffix(, 0,)
#embed "../include/hip/detail/vectors.h" suffix(, 0,)
#embed "../include/hip/detail/wave.h" suffix(, 0,)
#embed "../include/hip/device_functions.h" suffix(, 0,)
#embed "../include/hip/hip_bf16.h" suffix(, 0,)
#embed "../include/hip/hip_bfloat16.h" suffix(, 0,)
#embed "../include/hip/hip_common.h" suffix(, 0,)
#embed "../include/hip/hip_complex.h" suffix(, 0,)
#embed "../include/hip/hip_cooperative_groups.h" suffix(, 0,)
#embed "../include/hip/hip_fp16.h" suffix(, 0,)
#embed "../include/hip/hip_fp8.h" suffix(, 0,)
#embed "../include/hip/hip_math_constants.h" suffix(, 0,)
#embed "../include/hip/hip_runtime.h" suffix(, 0,)
#embed "../include/hip/hip_vector_types.h" suffix(, 0,)
#embed "../include/hip/hip_version.h" suffix(, 0,)
#embed "../include/hip/library_types.h" suffix(, 0,)
#embed "../include/hip/math_functions.h" suffix(, 0,)
};
