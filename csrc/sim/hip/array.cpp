// SPDX-License-Identifier: MIT
// Arrays, which are plain memory row by row here, and the copies and fills in two and three dimensions that may name
// one. gfx942 has no image instructions: a kernel reads such memory only through a pointer, and no texture.
#include <algorithm>

#include "hip/copy_params.h"
#include "hip/graph.h"
#include "hip/handles.h"

extern "C" {
int hipMalloc(void** out, size_t bytes);
int hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height);
int hipFree(void* pointer);
}

namespace sim::hip {
namespace {

constexpr int kHost = 1, kDevice = 2, kManaged = 3, kArray = 10, kUnified = 11;      // hipMemoryType
constexpr int kSigned = 0, kUnsigned = 1, kFloat = 2;                                // hipChannelFormatKind
constexpr size_t kPitch = 256;

struct Channels { int x, y, z, w, kind; };       // hipChannelFormatDesc

struct Descriptor2D {                            // HIP_ARRAY_DESCRIPTOR
  size_t width, height;
  int format;
  u32 channels;
};
struct Descriptor3D {                            // HIP_ARRAY3D_DESCRIPTOR
  size_t width, height, depth;
  int format;
  u32 channels, flags;
};

struct Array {
  u8* data;
  Extent extent;                                 // in elements; height and depth of a flat one are 0
  Channels channels;
  u32 element_bytes, flags;
  size_t pitch;                                  // bytes per row
  size_t rows() const { return std::max<size_t>(extent.height, 1); }
  size_t slice() const { return pitch * rows(); }
};

Array& array_of(const void* handle) { return live_one<Array>(handle, "array"); }

// hipArray_Format of one channel, and back.
struct Format { int format, kind, bits; };
constexpr Format kFormats[] = {{0x01, kUnsigned, 8}, {0x02, kUnsigned, 16}, {0x03, kUnsigned, 32}, {0x08, kSigned, 8},
                               {0x09, kSigned, 16},  {0x0a, kSigned, 32},   {0x10, kFloat, 16},    {0x20, kFloat, 32}};

Channels channels_of(int format, u32 count) {
  for (const Format& f : kFormats) {
    if (f.format != format || (count != 1 && count != 2 && count != 4)) continue;
    return {f.bits, count > 1 ? f.bits : 0, count > 2 ? f.bits : 0, count > 3 ? f.bits : 0, f.kind};
  }
  throw Fault("an array has 1, 2 or 4 channels of a format of hipArray_Format");
}

int format_of(const Channels& c) {
  for (const Format& f : kFormats) {
    if (f.kind == c.kind && f.bits == c.x) return f.format;
  }
  throw Fault("no format of hipArray_Format has such channels");
}

u32 count_of(const Channels& c) { return (c.x > 0) + (c.y > 0) + (c.z > 0) + (c.w > 0); }

Error create(void** out, const Channels& c, Extent extent, u32 flags) {
  if (!out) return set_error(kInvalidValue, "the array's address is null");
  const int bits = c.x + c.y + c.z + c.w;
  if (c.x <= 0 || c.y < 0 || c.z < 0 || c.w < 0 || bits % 8 || bits > 128) {
    return set_error(kInvalidChannel, "the channels of an array are 8, 16 or 32 bits each, and the first is there");
  }
  if (extent.width == 0) return set_error(kInvalidValue, "an array has at least one element");
  const u32 element = static_cast<u32>(bits) / 8;
  size_t row = 0, bytes = 0;
  const size_t rows = std::max<size_t>(extent.height, 1), slices = std::max<size_t>(extent.depth, 1);
  if (__builtin_mul_overflow(extent.width, element, &row) || row > SIZE_MAX - kPitch) return set_error(kOutOfMemory);
  const size_t pitch = (row + kPitch - 1) / kPitch * kPitch;
  if (__builtin_mul_overflow(pitch, rows, &bytes) || __builtin_mul_overflow(bytes, slices, &bytes)) {
    return set_error(kOutOfMemory, "an array of more than 2^64 bytes");
  }
  void* data = nullptr;
  if (const int error = hipMalloc(&data, bytes)) return static_cast<Error>(error);
  auto* array = new Array{static_cast<u8*>(data), extent, c, element, flags, pitch};
  live<Array>().add(array);
  *out = array;
  return kSuccess;
}

Error destroy(void* handle) {
  return guarded(kInvalidHandle, [&] {
    Array& array = array_of(handle);
    if (const int error = hipFree(array.data)) return static_cast<Error>(error);
    live<Array>().drop(handle);
    delete &array;
    return kSuccess;
  });
}

// One side of a copy: the address of its first byte, and how rows and slices follow.
struct Side {
  u8* at;
  size_t pitch, slice;
};

// The copied box has to lie in the array.
Side in_array(const void* handle, size_t x_bytes, size_t y, size_t z, size_t width, size_t height, size_t depth) {
  const Array& a = array_of(handle);
  const size_t row = a.extent.width * a.element_bytes, slices = std::max<size_t>(a.extent.depth, 1);
  const auto exceeds = [](size_t at, size_t count, size_t limit) { return at > limit || count > limit - at; };
  if (exceeds(x_bytes, width, row) || exceeds(y, height, a.rows()) || exceeds(z, depth, slices)) {
    throw Fault("the copy exceeds the array");
  }
  return {a.data + z * a.slice() + y * a.pitch + x_bytes, a.pitch, a.slice()};
}

Side in_memory(void* pointer, size_t pitch, size_t rows, size_t x_bytes, size_t y, size_t z) {
  if (!pointer) throw Fault("the copy names neither an array nor memory");
  const size_t slice = pitch * rows;
  return {static_cast<u8*>(pointer) + z * slice + y * pitch + x_bytes, pitch, slice};
}

Copy between(const Side& to, const Side& from, size_t width, size_t height, size_t depth) {
  return {to.at, from.at, {to.pitch, from.pitch, width, height, depth, to.slice, from.slice}};
}

Side side_of(const DriverSide3D& s, size_t width, size_t height, size_t depth) {
  if (s.kind == kArray) return in_array(s.array, s.x_bytes, s.y, s.z, width, height, depth);
  if (s.kind != kHost && s.kind != kDevice && s.kind != kUnified && s.kind != kManaged) {
    throw Fault("memory type " + std::to_string(s.kind) + " is none of hipMemoryType");
  }
  const size_t pitch = s.pitch ? s.pitch : width;
  return in_memory(s.kind == kHost ? s.host : s.device, pitch, s.height ? s.height : height, s.x_bytes, s.y, s.z);
}

DriverSide3D wider(const DriverSide2D& s) {
  return {s.x_bytes, s.y, 0, 0, s.kind, s.host, s.device, s.array, s.pitch, 0};
}

template <class Params>
Error copy_params(void* stream, const Params* p, const char* waits) {
  return guarded(kInvalidValue, [&] {
    if (!p) throw Fault("the copy's parameters are null");
    const Copy copy = copy_of(*p);
    return copy_box(stream, copy.to, copy.from, copy.box, waits);
  });
}

Error copy_params(void* stream, const DriverParams2D* p, const char* waits) {
  if (!p) return set_error(kInvalidValue, "the copy's parameters are null");
  const DriverParams3D wide{wider(p->from), wider(p->to), p->width, p->height, 1};
  return copy_params<DriverParams3D>(stream, &wide, waits);
}

Error copy_peer(void* stream, const PeerParams3D* p, const char* waits) {
  if (!p) return set_error(kInvalidValue, "the copy's parameters are null");
  const Params3D same{p->from_array, p->from_at, p->from, p->to_array, p->to_at, p->to, p->extent, 0};
  return copy_params(stream, &same, waits);
}

// Rows of memory and a place in an array: `in` is true of a copy into the array.
Error copy_rows(void* stream, const void* array, size_t x_bytes, size_t y, void* memory, size_t pitch, size_t width,
                size_t height, bool in, const char* waits) {
  if (!array) return set_error(kInvalidHandle, "the copy's array is null");
  return guarded(kInvalidValue, [&] {
    const Side inside = in_array(array, x_bytes, y, 0, width, height, 1);
    const Side outside = in_memory(memory, pitch, height, 0, 0, 0);
    const Copy copy = in ? between(inside, outside, width, height, 1) : between(outside, inside, width, height, 1);
    return copy_box(stream, copy.to, copy.from, copy.box, waits);
  });
}

// Bytes from a place in an array on, over the ends of its rows.
Error copy_run(void* stream, const void* array, size_t offset, void* memory, size_t bytes, bool in, const char* waits) {
  return guarded(kInvalidValue, [&] {
    const Array& a = array_of(array);
    const size_t row = a.extent.width * a.element_bytes;
    if (!memory) throw Fault("the copy's memory is null");
    if (offset > row * a.rows() || bytes > row * a.rows() - offset) throw Fault("the copy exceeds the array");
    for (size_t done = 0; done < bytes;) {
      const size_t at = offset + done, n = std::min(bytes - done, row - at % row);
      u8* inside = a.data + at / row * a.pitch + at % row;
      u8* outside = static_cast<u8*>(memory) + done;
      const Error error = copy_box(stream, in ? inside : outside, in ? outside : inside, Box{.width = n}, waits);
      if (error) return error;
      done += n;
    }
    return kSuccess;
  });
}

void* writable(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

Copy copy_of(const Params3D& p) {
  // Elements of an array where one takes part, else bytes; a place in plain memory is in bytes.
  const void* array = p.from_array ? p.from_array : p.to_array;
  const size_t width = p.extent.width * (array ? array_of(array).element_bytes : 1);
  const auto side = [&](const void* array, const Position& at, const Pitched& memory) {
    if (!array) return in_memory(memory.pointer, memory.pitch, memory.height, at.x, at.y, at.z);
    const size_t x = at.x * array_of(array).element_bytes;
    return in_array(array, x, at.y, at.z, width, p.extent.height, p.extent.depth);
  };
  return between(side(p.to_array, p.to_at, p.to), side(p.from_array, p.from_at, p.from), width, p.extent.height,
                 p.extent.depth);
}

Copy copy_of(const DriverParams3D& p) {
  return between(side_of(p.to, p.width, p.height, p.depth), side_of(p.from, p.width, p.height, p.depth), p.width,
                 p.height, p.depth);
}

HIP_API Channels hipCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }

HIP_API int hipMallocArray(void** out, const Channels* channels, size_t width, size_t height, u32 flags) {
  if (!channels) return set_error(kInvalidValue, "the channels are null");
  return create(out, *channels, {width, height, 0}, flags);
}
HIP_API int hipMalloc3DArray(void** out, const Channels* channels, Extent extent, u32 flags) {
  if (!channels) return set_error(kInvalidValue, "the channels are null");
  return create(out, *channels, extent, flags);
}
HIP_API int hipArrayCreate(void** out, const Descriptor2D* d) {
  if (!d) return set_error(kInvalidValue, "the descriptor is null");
  return guarded(kInvalidValue, [&] {
    return create(out, channels_of(d->format, d->channels), {d->width, d->height, 0}, 0);
  });
}
HIP_API int hipArray3DCreate(void** out, const Descriptor3D* d) {
  if (!d) return set_error(kInvalidValue, "the descriptor is null");
  return guarded(kInvalidValue, [&] {
    return create(out, channels_of(d->format, d->channels), {d->width, d->height, d->depth}, d->flags);
  });
}
HIP_API int hipFreeArray(void* array) { return destroy(array); }
HIP_API int hipArrayDestroy(void* array) { return destroy(array); }

HIP_API int hipArrayGetInfo(Channels* channels, Extent* extent, u32* flags, void* array) {
  return guarded(kInvalidHandle, [&] {
    const Array& a = array_of(array);
    if (channels) *channels = a.channels;
    if (extent) *extent = a.extent;
    if (flags) *flags = a.flags;
    return kSuccess;
  });
}
HIP_API int hipGetChannelDesc(Channels* channels, const void* array) {
  return channels ? hipArrayGetInfo(channels, nullptr, nullptr, writable(array))
                  : set_error(kInvalidValue, "the result's address is null");
}
HIP_API int hipArray3DGetDescriptor(Descriptor3D* out, void* array) {
  return guarded(kInvalidHandle, [&] {
    if (!out) return set_error(kInvalidValue, "the result's address is null");
    const Array& a = array_of(array);
    *out = {a.extent.width, a.extent.height, a.extent.depth, format_of(a.channels), count_of(a.channels), a.flags};
    return kSuccess;
  });
}
HIP_API int hipArrayGetDescriptor(Descriptor2D* out, void* array) {
  return guarded(kInvalidHandle, [&] {
    if (!out) return set_error(kInvalidValue, "the result's address is null");
    const Array& a = array_of(array);
    *out = {a.extent.width, a.extent.height, format_of(a.channels), count_of(a.channels)};
    return kSuccess;
  });
}

HIP_API int hipMalloc3D(Pitched* out, Extent extent) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) return set_error(kOutOfMemory);
  *out = {nullptr, 0, extent.width, extent.height};
  return hipMallocPitch(&out->pointer, &out->pitch, extent.width, rows);
}

HIP_API int hipMemcpy3D(const Params3D* p) { return copy_params(nullptr, p, "hipMemcpy3D"); }
HIP_API int hipMemcpy3DAsync(const Params3D* p, void* stream) { return copy_params(stream, p, nullptr); }
HIP_API int hipMemcpy3DPeer(const PeerParams3D* p) { return copy_peer(nullptr, p, "hipMemcpy3DPeer"); }
HIP_API int hipMemcpy3DPeerAsync(const PeerParams3D* p, void* stream) { return copy_peer(stream, p, nullptr); }
HIP_API int hipDrvMemcpy3D(const DriverParams3D* p) { return copy_params(nullptr, p, "hipDrvMemcpy3D"); }
HIP_API int hipDrvMemcpy3DAsync(const DriverParams3D* p, void* stream) { return copy_params(stream, p, nullptr); }
HIP_API int hipMemcpyParam2D(const DriverParams2D* p) { return copy_params(nullptr, p, "hipMemcpyParam2D"); }
HIP_API int hipMemcpyParam2DAsync(const DriverParams2D* p, void* stream) { return copy_params(stream, p, nullptr); }
HIP_API int hipDrvMemcpy2DUnaligned(const DriverParams2D* p) { return copy_params(nullptr, p, "hipDrvMemcpy2D"); }

HIP_API int hipMemcpy2DToArray(void* array, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                               size_t height, int) {
  return copy_rows(nullptr, array, x, y, writable(from), pitch, width, height, true, "hipMemcpy2DToArray");
}
HIP_API int hipMemcpy2DToArrayAsync(void* array, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                                    size_t height, int, void* stream) {
  return copy_rows(stream, array, x, y, writable(from), pitch, width, height, true, nullptr);
}
HIP_API int hipMemcpy2DFromArray(void* to, size_t pitch, const void* array, size_t x, size_t y, size_t width,
                                 size_t height, int) {
  return copy_rows(nullptr, array, x, y, to, pitch, width, height, false, "hipMemcpy2DFromArray");
}
HIP_API int hipMemcpy2DFromArrayAsync(void* to, size_t pitch, const void* array, size_t x, size_t y, size_t width,
                                      size_t height, int, void* stream) {
  return copy_rows(stream, array, x, y, to, pitch, width, height, false, nullptr);
}
HIP_API int hipMemcpy2DArrayToArray(void* to, size_t to_x, size_t to_y, const void* from, size_t from_x, size_t from_y,
                                    size_t width, size_t height, int) {
  return guarded(kInvalidValue, [&] {
    const Copy copy = between(in_array(to, to_x, to_y, 0, width, height, 1),
                              in_array(from, from_x, from_y, 0, width, height, 1), width, height, 1);
    return copy_box(nullptr, copy.to, copy.from, copy.box, "hipMemcpy2DArrayToArray");
  });
}

HIP_API int hipMemcpyToArray(void* array, size_t x, size_t y, const void* from, size_t bytes, int) {
  return guarded(kInvalidValue, [&] {
    const Array& a = array_of(array);
    const size_t offset = y * a.extent.width * a.element_bytes + x;
    return copy_run(nullptr, array, offset, writable(from), bytes, true, "hipMemcpyToArray");
  });
}
HIP_API int hipMemcpyFromArray(void* to, const void* array, size_t x, size_t y, size_t bytes, int) {
  return guarded(kInvalidValue, [&] {
    const Array& a = array_of(array);
    const size_t offset = y * a.extent.width * a.element_bytes + x;
    return copy_run(nullptr, array, offset, to, bytes, false, "hipMemcpyFromArray");
  });
}
HIP_API int hipMemcpyHtoA(void* array, size_t offset, const void* from, size_t bytes) {
  return copy_run(nullptr, array, offset, writable(from), bytes, true, "hipMemcpyHtoA");
}
HIP_API int hipMemcpyHtoAAsync(void* array, size_t offset, const void* from, size_t bytes, void* stream) {
  return copy_run(stream, array, offset, writable(from), bytes, true, nullptr);
}
HIP_API int hipMemcpyDtoA(void* array, size_t offset, void* from, size_t bytes) {
  return copy_run(nullptr, array, offset, from, bytes, true, "hipMemcpyDtoA");
}
HIP_API int hipMemcpyAtoH(void* to, void* array, size_t offset, size_t bytes) {
  return copy_run(nullptr, array, offset, to, bytes, false, "hipMemcpyAtoH");
}
HIP_API int hipMemcpyAtoHAsync(void* to, void* array, size_t offset, size_t bytes, void* stream) {
  return copy_run(stream, array, offset, to, bytes, false, nullptr);
}
HIP_API int hipMemcpyAtoD(void* to, void* array, size_t offset, size_t bytes) {
  return copy_run(nullptr, array, offset, to, bytes, false, "hipMemcpyAtoD");
}
HIP_API int hipMemcpyAtoA(void* to, size_t to_offset, void* from, size_t from_offset, size_t bytes) {
  return guarded(kInvalidValue, [&] {
    std::string buffer(bytes, '\0');
    const Error error = copy_run(nullptr, from, from_offset, buffer.data(), bytes, false, "hipMemcpyAtoA");
    return error ? error : copy_run(nullptr, to, to_offset, buffer.data(), bytes, true, "hipMemcpyAtoA");
  });
}

HIP_API int hipMemset3D(Pitched to, int value, Extent e) {
  const Box box{to.pitch, 0, e.width, e.height, e.depth, to.pitch * to.height};
  return fill_box(nullptr, to.pointer, static_cast<u8>(value), 1, box, "hipMemset3D");
}
HIP_API int hipMemset3DAsync(Pitched to, int value, Extent e, void* stream) {
  const Box box{to.pitch, 0, e.width, e.height, e.depth, to.pitch * to.height};
  return fill_box(stream, to.pointer, static_cast<u8>(value), 1, box, nullptr);
}
HIP_API int hipMemsetD2D8(void* to, size_t pitch, u8 value, size_t width, size_t height) {
  return fill_box(nullptr, to, value, 1, Box{pitch, 0, width, height}, "hipMemsetD2D8");
}
HIP_API int hipMemsetD2D8Async(void* to, size_t pitch, u8 value, size_t width, size_t height, void* stream) {
  return fill_box(stream, to, value, 1, Box{pitch, 0, width, height}, nullptr);
}
HIP_API int hipMemsetD2D16(void* to, size_t pitch, u16 value, size_t width, size_t height) {
  return fill_box(nullptr, to, value, 2, Box{pitch, 0, 2 * width, height}, "hipMemsetD2D16");
}
HIP_API int hipMemsetD2D16Async(void* to, size_t pitch, u16 value, size_t width, size_t height, void* stream) {
  return fill_box(stream, to, value, 2, Box{pitch, 0, 2 * width, height}, nullptr);
}
HIP_API int hipMemsetD2D32(void* to, size_t pitch, u32 value, size_t width, size_t height) {
  return fill_box(nullptr, to, value, 4, Box{pitch, 0, 4 * width, height}, "hipMemsetD2D32");
}
HIP_API int hipMemsetD2D32Async(void* to, size_t pitch, u32 value, size_t width, size_t height, void* stream) {
  return fill_box(stream, to, value, 4, Box{pitch, 0, 4 * width, height}, nullptr);
}

}  // namespace sim::hip
