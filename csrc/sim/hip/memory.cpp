// SPDX-License-Identifier: MIT
// Memory calls. Host and device share one address space, so every copy is a host copy.
#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "hip/hip.h"
#include "traps.h"

namespace sim::hip {
namespace {

Error allocate(void** out, size_t bytes, const char* kind) {
  static std::atomic<u64> serial{0};
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  *out = nullptr;
  if (bytes == 0) return kSuccess;
  const u64 base = memory().allocate(bytes, std::string(kind) + " #" + std::to_string(++serial));
  if (!base) return set_error(kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
  *out = reinterpret_cast<void*>(base);
  return kSuccess;
}

Error release(void* pointer) {
  if (!pointer || memory().release(reinterpret_cast<u64>(pointer))) return kSuccess;
  return set_error(kInvalidValue, "this pointer is not the start of a live allocation");
}

Error copy(void* to, const void* from, size_t bytes) {
  return guarded(kInvalidValue, [&] {
    if (bytes == 0) return kSuccess;
    install_traps();
    with_traps([&] { std::memmove(to, from, bytes); });
    memory().copy_defined(reinterpret_cast<u64>(to), reinterpret_cast<u64>(from), bytes);
    return kSuccess;
  });
}

template <class T>
Error fill(void* to, T value, size_t count) {
  return guarded(kInvalidValue, [&] {
    if (count == 0) return kSuccess;
    install_traps();
    with_traps([&] { std::fill_n(static_cast<T*>(to), count, value); });
    memory().set_defined(reinterpret_cast<u64>(to), count * sizeof(T));
    return kSuccess;
  });
}

Error copy_2d(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) {
    const Error error = copy(static_cast<u8*>(to) + row * to_pitch, static_cast<const u8*>(from) + row * from_pitch,
                             width);
    if (error) return error;
  }
  return kSuccess;
}

// A place inside a registered variable.
u8* inside(const void* symbol, size_t bytes, size_t offset) {
  const Variable v = registered_variable(symbol);
  if (offset > v.bytes || bytes > v.bytes - offset) throw Fault("the copy exceeds variable " + v.name);
  return reinterpret_cast<u8*>(v.address) + offset;
}

struct PointerAttributes {                       // hipPointerAttribute_t
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  u32 flags;
};

constexpr int kUnregistered = 0, kDevice = 2;    // hipMemoryType

}  // namespace

HIP_API int hipMalloc(void** out, size_t bytes) { return allocate(out, bytes, "hipMalloc"); }
HIP_API int hipMallocAsync(void** out, size_t bytes, void*) { return allocate(out, bytes, "hipMallocAsync"); }
HIP_API int hipMallocManaged(void** out, size_t bytes, u32) { return allocate(out, bytes, "hipMallocManaged"); }
HIP_API int hipHostMalloc(void** out, size_t bytes, u32) { return allocate(out, bytes, "hipHostMalloc"); }
HIP_API int hipFree(void* pointer) { return release(pointer); }
HIP_API int hipFreeAsync(void* pointer, void*) { return release(pointer); }
HIP_API int hipHostFree(void* pointer) { return release(pointer); }

HIP_API int hipHostRegister(void* pointer, size_t bytes, u32) {
  memory().add({reinterpret_cast<u64>(pointer), bytes, "hipHostRegister", true, false, nullptr});
  return kSuccess;
}

HIP_API int hipHostUnregister(void* pointer) {
  memory().remove(reinterpret_cast<u64>(pointer));
  return kSuccess;
}

HIP_API int hipHostGetDevicePointer(void** device, void* host, u32) {
  *device = host;
  return kSuccess;
}

HIP_API int hipMemcpy(void* to, const void* from, size_t bytes, int) { return copy(to, from, bytes); }
HIP_API int hipMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) { return copy(to, from, bytes); }
HIP_API int hipMemcpyWithStream(void* to, const void* from, size_t bytes, int, void*) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoD(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyHtoD(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoH(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoDAsync(void* to, const void* from, size_t bytes, void*) { return copy(to, from, bytes); }
HIP_API int hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, void*) { return copy(to, from, bytes); }
HIP_API int hipMemcpyDtoHAsync(void* to, const void* from, size_t bytes, void*) { return copy(to, from, bytes); }

HIP_API int hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                        int) {
  return copy_2d(to, to_pitch, from, from_pitch, width, height);
}

HIP_API int hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, int, void*) {
  return copy_2d(to, to_pitch, from, from_pitch, width, height);
}

HIP_API int hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int) {
  return guarded(kInvalidSymbol, [&] { return copy(inside(symbol, bytes, offset), from, bytes); });
}

HIP_API int hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int) {
  return guarded(kInvalidSymbol, [&] { return copy(to, inside(symbol, bytes, offset), bytes); });
}

HIP_API int hipMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int kind, void*) {
  return hipMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

HIP_API int hipMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int kind, void*) {
  return hipMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}

HIP_API int hipMemset(void* to, int value, size_t bytes) { return fill(to, static_cast<u8>(value), bytes); }
HIP_API int hipMemsetAsync(void* to, int value, size_t bytes, void*) { return fill(to, static_cast<u8>(value), bytes); }
HIP_API int hipMemsetD8(void* to, u8 value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetD16(void* to, u16 value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetD32(void* to, int value, size_t count) { return fill(to, value, count); }
HIP_API int hipMemsetD8Async(void* to, u8 value, size_t count, void*) { return fill(to, value, count); }
HIP_API int hipMemsetD16Async(void* to, u16 value, size_t count, void*) { return fill(to, value, count); }
HIP_API int hipMemsetD32Async(void* to, int value, size_t count, void*) { return fill(to, value, count); }

HIP_API int hipPointerGetAttributes(PointerAttributes* out, const void* pointer) {
  const auto range = memory().find(reinterpret_cast<u64>(pointer));
  const bool known = range && !range->freed;
  void* p = const_cast<void*>(pointer);
  *out = {known ? kDevice : kUnregistered, 0, known ? p : nullptr, p, 0, 0};
  return kSuccess;
}

// Numbers of hipPointer_attribute: 2 type, 3 device pointer, 4 host pointer, 11 start and 12 size of the allocation.
HIP_API int hipPointerGetAttribute(void* out, int which, void* pointer) {
  return guarded(kInvalidValue, [&] {
    const auto range = memory().find(reinterpret_cast<u64>(pointer));
    const auto put = [&](auto value) {
      std::memcpy(out, &value, sizeof value);
      return kSuccess;
    };
    // Any host address is a device address; only the extent is known for some alone.
    if (which == 3 || which == 4) return put(pointer);
    if (!range || range->freed) throw Fault("the pointer is in no known allocation");
    if (which == 2) return put(kDevice);
    if (which == 11) return put(range->base);
    if (which == 12) return put(range->bytes);
    throw Fault("pointer attribute " + std::to_string(which) + " is not known to the simulator");
  });
}

}  // namespace sim::hip
