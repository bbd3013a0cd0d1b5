// SPDX-License-Identifier: MIT
// The mathematical functions: clang's headers bring them with hip_runtime.h.
#pragma once
#include "hip/hip_runtime.h"
