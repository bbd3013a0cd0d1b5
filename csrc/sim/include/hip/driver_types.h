// SPDX-License-Identifier: MIT
// Types of the runtime's functions, under the file's older name.
#pragma once
#include "hip/hip_runtime_api.h"
