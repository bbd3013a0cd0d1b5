// SPDX-License-Identifier: MIT
// Copies and fills. Host and device share one address space, so every copy is a host copy.
#include <algorithm>
#include <cstring>

#include "hip/defer.h"
#include "run/memory.h"
#include "run/traps.h"

namespace sim::hip {
namespace {

// Rows of `width` bytes.
struct Box {
  size_t to_pitch = 0, from_pitch = 0, width = 0, height = 1;
};

Error copy_now(void* to, const void* from, Box b) {
  return guarded(kInvalidValue, [&] {
    if (b.width == 0) return kSuccess;
    install_traps();
    for (size_t row = 0; row < b.height; ++row) {
      u8* target = static_cast<u8*>(to) + row * b.to_pitch;
      const u8* source = static_cast<const u8*>(from) + row * b.from_pitch;
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

constexpr int kDefault = 4, kDeviceToDeviceNoCu = 1024;          // hipMemcpyKind

// From the first byte to the last one of a box.
size_t span(const Box& b, size_t pitch) { return (b.height - 1) * pitch + b.width; }

// A copy that begins in an allocation must end in it, and none begins in one that is freed. Memory that is not known is
// the host's own.
Error check_memory(const void* pointer, size_t bytes, const char* what) {
  if (!pointer) return set_error(kInvalidValue, std::string(what) + " is null");
  const std::optional<Range> range = memory().find(reinterpret_cast<u64>(pointer));
  if (!range || (!range->freed && !range->defined)) return kSuccess;
  if (range->freed) return set_error(kInvalidValue, std::string(what) + " is in " + range->name + ", which is freed");
  const u64 room = range->base + range->bytes - reinterpret_cast<u64>(pointer);
  if (bytes <= room) return kSuccess;
  return set_error(kInvalidValue, std::string(what) + " has " + std::to_string(bytes) + " bytes, and " + range->name +
                                      " ends after " + std::to_string(room));
}

Error check_copy(const void* to, const void* from, const Box& b, int kind) {
  if (kind < 0 || (kind > kDefault && kind != kDeviceToDeviceNoCu)) {
    return set_error(kInvalidDirection, std::to_string(kind) + " is none of hipMemcpyKind");
  }
  if (!b.width || !b.height) return kSuccess;
  if (b.height > 1 && (b.to_pitch < b.width || b.from_pitch < b.width)) {
    return set_error(kInvalidPitch, "a pitch is smaller than the row of " + std::to_string(b.width) + " bytes");
  }
  if (const Error error = check_memory(to, span(b, b.to_pitch), "the copy's target")) return error;
  return check_memory(from, span(b, b.from_pitch), "the copy's source");
}

bool is_known(const void* pointer) { return memory().find(reinterpret_cast<u64>(pointer)).has_value(); }

// The copy keeps its place among the stream's other work. The runtime copies host memory that is not pinned through a
// buffer of its own, and waits for that.
Error copy_on(void* stream, void* to, const void* from, Box b, int kind = kDefault) {
  if (const Error error = check_copy(to, from, b, kind)) return error;
  return guarded(kInvalidHandle, [&] {
    const Error error = submit(stream, NodeKind::copy, [=] { return copy_now(to, from, b); });
    if (error || !deferring() || (is_known(to) && is_known(from)) || is_capturing(stream)) return error;
    return finish_stream(stream);
  });
}

Error copy_on(void* stream, void* to, const void* from, size_t bytes, int kind = kDefault) {
  return copy_on(stream, to, from, Box{.width = bytes}, kind);
}

template <class T>
Error fill_on(void* stream, void* to, T value, size_t count, size_t pitch = 0, size_t height = 1) {
  const size_t row = count * sizeof(T);
  if (row && height) {
    if (height > 1 && pitch < row) return set_error(kInvalidValue, "the pitch is smaller than the row");
    if (const Error error = check_memory(to, (height - 1) * pitch + row, "what is filled")) return error;
  }
  return guarded(kInvalidHandle, [&] {
    return submit(stream, NodeKind::fill, [=] { return fill_now(to, value, pitch, count, height); });
  });
}

// The host waits for these copies, which no capture allows.
Error copy(void* to, const void* from, size_t bytes, int kind = kDefault) {
  if (const Error error = forbidden_in_capture("a copy that waits", true)) return error;
  if (const Error error = copy_on(nullptr, to, from, bytes, kind)) return error;
  return finish_stream(nullptr);
}

template <class T>
Error fill(void* to, T value, size_t count) {
  if (const Error error = forbidden_in_capture("a fill that waits", true)) return error;
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

HIP_API int hipMemcpy(void* to, const void* from, size_t bytes, int kind) { return copy(to, from, bytes, kind); }
HIP_API int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return copy_on(stream, to, from, bytes, kind);
}
HIP_API int hipMemcpyWithStream(void* to, const void* from, size_t bytes, int kind, void* stream) {
  if (const Error error = forbidden_in_capture("hipMemcpyWithStream")) return error;
  if (const Error error = copy_on(stream, to, from, bytes, kind)) return error;
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
                        int kind) {
  if (const Error error = forbidden_in_capture("hipMemcpy2D")) return error;
  if (const Error error = copy_on(nullptr, to, from, Box{to_pitch, from_pitch, width, height}, kind)) return error;
  return finish_stream(nullptr);
}

HIP_API int hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, int kind, void* stream) {
  return copy_on(stream, to, from, Box{to_pitch, from_pitch, width, height}, kind);
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
