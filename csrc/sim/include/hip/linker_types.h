// SPDX-License-Identifier: MIT
// Options and inputs of links: a part of the runtime's functions.
#pragma once
#include "hip/hip_runtime_api.h"
