// SPDX-License-Identifier: MIT
// The older name of bfloat16.
#pragma once
#include "hip/hip_bf16.h"
using hip_bfloat16 = __hip_bfloat16;
