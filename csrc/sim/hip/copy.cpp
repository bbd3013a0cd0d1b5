// SPDX-License-Identifier: MIT
// Copies and fills. Host and device share one address space, so every copy is a host copy.
#include <algorithm>
#include <cstring>

#include "hip/copy.h"
#include "hip/defer.h"
#include "hip/graph.h"
#include "run/memory.h"
#include "run/traps.h"

namespace sim::hip {
namespace {

Error copy_now(void* to, const void* from, Box b) {
  return guarded(kInvalidValue, [&] {
    if (b.width == 0) return kSuccess;
    install_traps();
    for (size_t row = 0; row < b.height * b.depth; ++row) {
      const size_t slice = row / b.height, line = row % b.height;
      u8* target = static_cast<u8*>(to) + slice * b.to_slice + line * b.to_pitch;
      const u8* source = static_cast<const u8*>(from) + slice * b.from_slice + line * b.from_pitch;
      with_traps([&] { std::memmove(target, source, b.width); });
      memory().copy_defined(reinterpret_cast<u64>(target), reinterpret_cast<u64>(source), b.width);
    }
    return kSuccess;
  });
}

template <class T>
Error fill_now(void* to, T value, size_t pitch, size_t count, size_t height) {
  return guarded(kInvalidValue, [&] {
    if (count == 0) return kSuccess;
    install_traps();
    for (size_t row = 0; row < height; ++row) {
      u8* target = static_cast<u8*>(to) + row * pitch;
      with_traps([&] { std::fill_n(reinterpret_cast<T*>(target), count, value); });
      memory().set_defined(reinterpret_cast<u64>(target), count * sizeof(T));
    }
    return kSuccess;
  });
}

bool is_known(const void* pointer) { return memory().find(reinterpret_cast<u64>(pointer)).has_value(); }

// The copy keeps its place among the stream's other work. The runtime copies host memory that is not pinned through a
// buffer of its own, and waits for that.
Error copy_on(void* stream, void* to, const void* from, Box b) {
  return guarded(kInvalidHandle, [&] {
    const Error error = submit(stream, NodeKind::copy, [=] { return copy_now(to, from, b); });
    if (error || !deferring() || (is_known(to) && is_known(from)) || is_capturing(stream)) return error;
    return finish_stream(stream);
  });
}

Error copy_on(void* stream, void* to, const void* from, size_t bytes) {
  return copy_on(stream, to, from, Box{.width = bytes});
}

template <class T>
Error fill_on(void* stream, void* to, T value, size_t count, size_t pitch = 0, size_t height = 1) {
  return guarded(kInvalidHandle, [&] {
    return submit(stream, NodeKind::fill, [=] { return fill_now(to, value, pitch, count, height); });
  });
}

// The host waits for these copies, which no capture allows.
Error copy(void* to, const void* from, size_t bytes) {
  if (const Error error = forbidden_in_capture("a copy that waits")) return error;
  if (const Error error = copy_on(nullptr, to, from, bytes)) return error;
  return finish_stream(nullptr);
}

template <class T>
Error fill(void* to, T value, size_t count) {
  if (const Error error = forbidden_in_capture("a fill that waits")) return error;
  return fill_on(nullptr, to, value, count);
}

Error check_devices(int first, int second) {
  if (const Error error = check_device(first)) return error;
  return check_device(second);
}

// A place inside a registered variable.
u8* inside(const void* symbol, size_t bytes, size_t offset) {
  const Variable v = registered_variable(symbol);
  if (offset > v.bytes || bytes > v.bytes - offset) throw Fault("the copy exceeds variable " + v.name);
  return reinterpret_cast<u8*>(v.address) + offset;
}

}  // namespace

Work copy_work(void* to, const void* from, size_t bytes) {
  return [=] { return copy_now(to, from, Box{.width = bytes}); };
}

Work box_work(void* to, const void* from, Box b) {
  return [=] { return copy_now(to, from, b); };
}

Error copy_box(void* stream, void* to, const void* from, Box b, const char* waits) {
  if (const Error error = waits ? forbidden_in_capture(waits) : kSuccess) return error;
  if (const Error error = copy_on(stream, to, from, b)) return error;
  return waits ? finish_stream(stream) : kSuccess;
}

Error fill_box(void* stream, void* to, u32 value, u32 element_bytes, Box b, const char* waits) {
  if (const Error error = waits ? forbidden_in_capture(waits) : kSuccess) return error;
  return guarded(kInvalidHandle, [&] {
    for (size_t slice = 0; slice < b.depth; ++slice) {
      const Work work = fill_work(static_cast<u8*>(to) + slice * b.to_slice, value, element_bytes,
                                  b.width / element_bytes, b.to_pitch, b.height);
      if (const Error error = submit(stream, NodeKind::fill, work)) return error;
    }
    return kSuccess;
  });
}

Work symbol_work(const void* symbol, const void* from, void* to, size_t bytes, size_t offset) {
  u8* place = inside(symbol, bytes, offset);
  return to ? copy_work(to, place, bytes) : copy_work(place, from, bytes);
}

Work fill_work(void* to, u32 value, u32 element_bytes, size_t count, size_t pitch, size_t height) {
  switch (element_bytes) {
    case 1: return [=] { return fill_now(to, static_cast<u8>(value), pitch, count, height); };
    case 2: return [=] { return fill_now(to, static_cast<u16>(value), pitch, count, height); };
    case 4: return [=] { return fill_now(to, value, pitch, count, height); };
    default: throw Fault("elements of " + std::to_string(element_bytes) + " bytes cannot be filled, only 1, 2 and 4");
  }
}

HIP_API int hipMemcpy(void* to, const void* from, size_t bytes, int) { return copy(to, from, bytes); }
HIP_API int hipMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return copy_on(stream, to, from, bytes);
}
HIP_API int hipMemcpyWithStream(void* to, const void* from, size_t bytes, int, void* stream) {
  if (const Error error = forbidden_in_capture("hipMemcpyWithStream")) return error;
  if (const Error error = copy_on(stream, to, from, bytes)) return error;
  return finish_stream(stream);
}
HIP_API int hipMemcpyDtoD(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyHtoD(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoH(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoDAsync(void* to, const void* from, size_t bytes, void* stream) {
  return copy_on(stream, to, from, bytes);
}
HIP_API int hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, void* stream) {
  return copy_on(stream, to, from, bytes);
}
HIP_API int hipMemcpyDtoHAsync(void* to, const void* from, size_t bytes, void* stream) {
  return copy_on(stream, to, from, bytes);
}

HIP_API int hipMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  if (const Error error = check_devices(to_device, from_device)) return error;
  return copy(to, from, bytes);
}

HIP_API int hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                               void* stream) {
  if (const Error error = check_devices(to_device, from_device)) return error;
  return copy_on(stream, to, from, bytes);
}

HIP_API int hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                        int) {
  return copy_box(nullptr, to, from, Box{to_pitch, from_pitch, width, height}, "hipMemcpy2D");
}

HIP_API int hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, int, void* stream) {
  return copy_on(stream, to, from, Box{to_pitch, from_pitch, width, height});
}

HIP_API int hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int) {
  return guarded(kInvalidSymbol, [&] { return copy(inside(symbol, bytes, offset), from, bytes); });
}

HIP_API int hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int) {
  return guarded(kInvalidSymbol, [&] { return copy(to, inside(symbol, bytes, offset), bytes); });
}

HIP_API int hipMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int,
                                   void* stream) {
  return guarded(kInvalidSymbol, [&] { return copy_on(stream, inside(symbol, bytes, offset), from, bytes); });
}

HIP_API int hipMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int, void* stream) {
  return guarded(kInvalidSymbol, [&] { return copy_on(stream, to, inside(symbol, bytes, offset), bytes); });
}

HIP_API int hipMemset(void* to, int value, size_t bytes) { return fill(to, static_cast<u8>(value), bytes); }
HIP_API int hipMemsetD8(void* to, u8 value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetD16(void* to, u16 value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetD32(void* to, int value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  return fill_on(stream, to, static_cast<u8>(value), bytes);
}
HIP_API int hipMemsetD8Async(void* to, u8 value, size_t count, void* stream) {
  return fill_on(stream, to, value, count);
}
HIP_API int hipMemsetD16Async(void* to, u16 value, size_t count, void* stream) {
  return fill_on(stream, to, value, count);
}
HIP_API int hipMemsetD32Async(void* to, int value, size_t count, void* stream) {
  return fill_on(stream, to, value, count);
}

HIP_API int hipMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  if (const Error error = forbidden_in_capture("hipMemset2D")) return error;
  return fill_on(nullptr, to, static_cast<u8>(value), width, pitch, height);
}

HIP_API int hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, void* stream) {
  return fill_on(stream, to, static_cast<u8>(value), width, pitch, height);
}

}  // namespace sim::hip
