// SPDX-License-Identifier: MIT
// Copies and fills of boxes, for the files that know what a box of theirs is: copy.cpp does them.
#pragma once
#include "hip/stream.h"

namespace sim::hip {

// Rows of `width` bytes, `height` of them in each of `depth` slices.
struct Box {
  size_t to_pitch = 0, from_pitch = 0, width = 0, height = 1, depth = 1, to_slice = 0, from_slice = 0;
};

// `waits`: the call's name, of one that waits until it is done and that no capture allows; null of one that does not.
Error copy_box(void* stream, void* to, const void* from, Box b, const char* waits, int kind = 4);
Error fill_box(void* stream, void* to, u32 value, u32 element_bytes, Box b, const char* waits);
// Throws Fault when an allocation does not hold a side.
Work box_work(void* to, const void* from, Box b);

struct Copy {                                    // a copy as a piece of work
  void* to = nullptr;
  const void* from = nullptr;
  Box box;
};
// hipMemcpy3DParms and HIP_MEMCPY3D, whose sides may be arrays; throws Fault when they name no memory.
struct Params3D;
struct DriverParams3D;
Copy copy_of(const Params3D& p);
Copy copy_of(const DriverParams3D& p);

}  // namespace sim::hip
