// SPDX-License-Identifier: MIT
// A part of HIP under its name in ROCm, which some libraries include: channel_descriptor.h brings it.
#pragma once
#include "hip/channel_descriptor.h"
