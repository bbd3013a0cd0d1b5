// SPDX-License-Identifier: MIT
// Marks of a profiler, which nobody reads here.
#pragma once
#define HIP_SCOPED_MARKER(name, group)
#define HIP_BEGIN_MARKER(name, group)
#define HIP_END_MARKER()
