// SPDX-License-Identifier: MIT
// Surfaces, as the host knows them: a part of the runtime's functions.
#pragma once
#include "hip/hip_runtime_api.h"
