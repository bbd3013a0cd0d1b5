// SPDX-License-Identifier: MIT
// What an array's element is made of: a part of the runtime's functions.
#pragma once
#include "hip/hip_runtime_api.h"
