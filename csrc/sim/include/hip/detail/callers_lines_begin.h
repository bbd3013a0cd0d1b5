// SPDX-License-Identifier: MIT
// Until callers_lines_end.h, functions have no lines of their own: in reports, profiles and the debugger, the line of
// what is inlined from them is the one that calls it.
#pragma push_macro("__device__")
#undef __device__
#define __device__ __attribute__((device, nodebug))
