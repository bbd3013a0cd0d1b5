// SPDX-License-Identifier: MIT
// The words that HIP adds to C++, under the name of their header in ROCm.
#pragma once
#include "hip/detail/language.h"
