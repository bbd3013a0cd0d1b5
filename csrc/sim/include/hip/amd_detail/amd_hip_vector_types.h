// SPDX-License-Identifier: MIT
// A part of HIP under its name in ROCm, which some libraries include: hip_vector_types.h brings it.
#pragma once
#include "hip/hip_vector_types.h"
