// SPDX-License-Identifier: MIT
// HIP programs for the simulated MI300X by clang alone: the language, what device code may call, and the runtime's
// functions. clang's own headers bring the mathematical functions. Names and meanings are those of HIP 7.
#pragma once
#if defined(__HIP__) && !defined(__CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__)
#include <__clang_hip_runtime_wrapper.h>
#endif
#include "hip/hip_version.h"
#include "hip/hip_common.h"

#include "hip/detail/language.h"
#if defined(__HIP__)
#include "hip/detail/callers_lines_begin.h"
#endif
#include "hip/detail/vectors.h"
#if defined(__HIP__)
#include "hip/detail/callers_lines_end.h"
#endif
#if !defined(__HIPCC_RTC__)
#include <assert.h>
// HIP's own header includes these: programs use std::chrono or std::tuple without including them
#if defined(__cplusplus)
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <tuple>
#include <type_traits>
#else
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#endif
#include "hip/hip_runtime_api.h"
#include "hip/library_types.h"
#endif
#if defined(__HIP__)
#include "hip/detail/callers_lines_begin.h"
#include "hip/detail/coordinates.h"
#include "hip/detail/integers.h"
#include "hip/detail/conversions.h"
#include "hip/detail/synchronisation.h"
#include "hip/detail/lanes.h"
#include "hip/detail/wave.h"
#include "hip/detail/atomics.h"
#include "hip/detail/device_library.h"
#include "hip/detail/callers_lines_end.h"
#include "hip/detail/printf.h"
#endif
