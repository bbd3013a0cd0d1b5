// SPDX-License-Identifier: MIT
// The end of what callers_lines_begin.h begins.
#pragma pop_macro("__device__")
