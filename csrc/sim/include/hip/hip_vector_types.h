// SPDX-License-Identifier: MIT
#pragma once
#include "hip/detail/vectors.h"
