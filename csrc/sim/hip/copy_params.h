// SPDX-License-Identifier: MIT
// The structures of HIP's public headers that describe two- and three-dimensional copies.
#pragma once
#include "hip/copy.h"

namespace sim::hip {

struct Extent { size_t width, height, depth; };          // hipExtent
struct Position { size_t x, y, z; };                     // hipPos
struct Pitched {                                         // hipPitchedPtr
  void* pointer;
  size_t pitch, width, height;
};

struct Params3D {                                        // hipMemcpy3DParms
  void* from_array;
  Position from_at;
  Pitched from;
  void* to_array;
  Position to_at;
  Pitched to;
  Extent extent;
  int kind;
};
static_assert(sizeof(Params3D) == 160);

struct PeerParams3D {                                    // hipMemcpy3DPeerParms
  void* from_array;
  Position from_at;
  Pitched from;
  int from_device;
  void* to_array;
  Position to_at;
  Pitched to;
  int to_device;
  Extent extent;
};

struct DriverSide3D {
  size_t x_bytes, y, z, lod;
  int kind;                                              // hipMemoryType
  void *host, *device, *array;
  size_t pitch, height;
};
struct DriverParams3D {                                  // HIP_MEMCPY3D
  DriverSide3D from, to;
  size_t width, height, depth;
};
static_assert(sizeof(DriverParams3D) == 184);

struct DriverSide2D {
  size_t x_bytes, y;
  int kind;
  void *host, *device, *array;
  size_t pitch;
};
struct DriverParams2D {                                  // hip_Memcpy2D
  DriverSide2D from, to;
  size_t width, height;
};
static_assert(sizeof(DriverParams2D) == 128);

}  // namespace sim::hip
