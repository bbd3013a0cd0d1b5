// SPDX-License-Identifier: MIT
// The older name of what AMD has beyond the common functions.
#pragma once
#include "hip/hip_ext.h"
