// SPDX-License-Identifier: MIT
// What device code may call: hip_runtime.h brings it.
#pragma once
#include "hip/hip_runtime.h"
