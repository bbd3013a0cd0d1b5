// SPDX-License-Identifier: MIT
// Allocations, registered host memory, and what the program may ask about a pointer.
#include "hip/memory.h"

#include <cstring>

#include "hip/defer.h"
#include "run/memory.h"

namespace sim::hip {
namespace {

constexpr u32 kCoherent = 0x40000000, kNonCoherent = 0x80000000;         // hipHostMalloc*
constexpr u32 kHostFlags = 0x7 | 0x10000000 | 0x20000000 | kCoherent | kNonCoherent;
constexpr u32 kAttachGlobal = 1, kAttachHost = 2;                        // hipMemAttach*
constexpr u32 kSignalMemory = 2, kLastDeviceFlag = 4;                    // hipDeviceMalloc*, hipMallocSignalMemory
constexpr u32 kFullAccess = 3;                   // hipMemAccessFlagsProtReadWrite

enum Kind : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };   // hipMemoryType

struct Allocation {
  Kind kind;
  int device;
  u32 flags;
  bool registered = false;                       // hipHostRegister added it: not ours to free
  u64 serial = 0;
  Lease lease = nullptr;
};

struct Allocations {
  std::mutex mutex;
  std::map<u64, Allocation> by_base;
  u64 serial = 0;
};

Allocations& allocations() {
  static Allocations* instance = new Allocations;
  return *instance;
}

u64 address_of(const void* pointer) { return reinterpret_cast<u64>(pointer); }

Error allocate_now(void** out, size_t bytes, const char* call, Kind kind, u32 flags, Lease lease) {
  if (bytes == 0) return kSuccess;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const u64 base = memory().allocate(bytes, std::string(call) + " #" + std::to_string(++all.serial));
  if (!base) return set_error(kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
  // The simulator does not see what the host writes itself, so memory that the host can reach counts as written.
  if (kind != kDevice) memory().set_defined(base, bytes);
  all.by_base[base] = {kind, current_device(), flags, false, all.serial, std::move(lease)};
  *out = reinterpret_cast<void*>(base);
  return kSuccess;
}

Error allocate(void** out, size_t bytes, const char* call, Kind kind = kDevice, u32 flags = 0) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  *out = nullptr;
  if (const Error error = lost()) return error;
  if (const Error error = forbidden_in_capture(call)) return error;
  return allocate_now(out, bytes, call, kind, flags, nullptr);
}

Error allocate_host(void** out, size_t bytes, const char* call, u32 flags) {
  if ((flags & ~kHostFlags) || ((flags & kCoherent) && (flags & kNonCoherent))) {
    return set_error(kInvalidValue, "these flags of host memory do not exist, or exclude each other");
  }
  return allocate(out, bytes, call, kHost, flags);
}

Error release_now(void* pointer, bool host_only) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_base.find(address_of(pointer));
  if (found == all.by_base.end() || found->second.registered) {
    return set_error(kInvalidValue, "this pointer is not the start of a live allocation");
  }
  if (host_only && found->second.kind != kHost) return set_error(kInvalidValue, "this is no host memory");
  memory().release(found->first);
  all.by_base.erase(found);
  return kSuccess;
}

Error release(void* pointer, const char* call, bool host_only = false) {
  if (!pointer) return kSuccess;
  if (const Error error = forbidden_in_capture(call)) return error;
  if (const Error error = deferring() ? finish_all() : kSuccess) return error;     // freeing waits for the device
  return release_now(pointer, host_only);
}

struct Place {
  Range range;
  Allocation allocation;
};

// The known memory around an address; a tensor that the launch layer registered counts as device memory.
std::optional<Place> find(const void* pointer) {
  const std::optional<Range> range = memory().find(address_of(pointer));
  if (!range || range->freed) return std::nullopt;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_base.find(range->base);
  return Place{*range, found == all.by_base.end() ? Allocation{kDevice, current_device(), 0} : found->second};
}

// All of it lies in one known allocation; a negative device is the host.
Error check_range(const void* pointer, size_t bytes, int device) {
  const auto place = find(pointer);
  if (!place || bytes == 0 || bytes > place->range.base + place->range.bytes - address_of(pointer)) {
    return set_error(kInvalidValue, "the memory is not in one known allocation");
  }
  return device < 0 ? kSuccess : check_device(device);
}

struct PointerAttributes {                       // hipPointerAttribute_t
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  u32 flags;
};

}  // namespace

Error allocate_device(void** out, size_t bytes, const char* call, Lease lease) {
  return allocate_now(out, bytes, call, kDevice, 0, std::move(lease));
}

Error release_device(void* pointer) { return release_now(pointer, false); }

void free_memory_of(int device) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_base, [&](const auto& one) {
    const Allocation& a = one.second;
    return a.device == device && a.kind != kHost && !a.registered && memory().release(one.first);
  });
}

void release_quietly(void* pointer, const std::string& name) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const std::optional<Range> range = memory().find(address_of(pointer));
  if (!range || range->freed || range->name != name) return;
  all.by_base.erase(address_of(pointer));
  memory().release(address_of(pointer));
}

HIP_API int hipMalloc(void** out, size_t bytes) { return allocate(out, bytes, "hipMalloc"); }
HIP_API int hipExtMallocWithFlags(void** out, size_t bytes, u32 flags) {
  if (flags > kLastDeviceFlag || (flags == kSignalMemory && bytes != 8)) {
    return set_error(kInvalidValue, "these flags of device memory do not exist, or memory of a signal has not 8 bytes");
  }
  return allocate(out, bytes, "hipExtMallocWithFlags", kDevice, flags);
}
HIP_API int hipMallocManaged(void** out, size_t bytes, u32 flags) {
  if (bytes == 0 || (flags != kAttachGlobal && flags != kAttachHost)) {
    return set_error(kInvalidValue, "managed memory has bytes, and hipMemAttachGlobal or hipMemAttachHost");
  }
  return allocate(out, bytes, "hipMallocManaged", kManaged, flags);
}
HIP_API int hipHostMalloc(void** out, size_t bytes, u32 flags) {
  return allocate_host(out, bytes, "hipHostMalloc", flags);
}

HIP_API int hipMallocHost(void** out, size_t bytes) { return allocate(out, bytes, "hipMallocHost", kHost); }
HIP_API int hipMemAllocHost(void** out, size_t bytes) { return allocate(out, bytes, "hipMemAllocHost", kHost); }
HIP_API int hipHostAlloc(void** out, size_t bytes, u32 flags) {
  return allocate_host(out, bytes, "hipHostAlloc", flags);
}
HIP_API int hipExtHostAlloc(void** out, size_t bytes, u32 flags) {
  return allocate_host(out, bytes, "hipExtHostAlloc", flags);
}

HIP_API int hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  if (!pitch) return set_error(kInvalidValue, "the pitch's address is null");
  size_t bytes = 0;
  if (width > SIZE_MAX - 255 || __builtin_mul_overflow((width + 255) / 256 * 256, height, &bytes)) {
    return set_error(kOutOfMemory, "hipMallocPitch of more than 2^64 bytes");
  }
  *pitch = (width + 255) / 256 * 256;
  return allocate(out, bytes, "hipMallocPitch");
}

HIP_API int hipFree(void* pointer) { return release(pointer, "hipFree"); }
HIP_API int hipHostFree(void* pointer) { return release(pointer, "hipHostFree", true); }
HIP_API int hipFreeHost(void* pointer) { return release(pointer, "hipFreeHost", true); }

HIP_API int hipHostRegister(void* pointer, size_t bytes, u32 flags) {
  if (!pointer || bytes == 0) return set_error(kInvalidValue, "there is no memory to register");
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (!all.by_base.try_emplace(address_of(pointer), Allocation{kHost, current_device(), flags, true}).second) {
    return set_error(kHostMemoryRegistered);
  }
  memory().add({address_of(pointer), bytes, "hipHostRegister", true, false, nullptr});
  return kSuccess;
}

HIP_API int hipHostUnregister(void* pointer) {
  if (const Error error = deferring() ? finish_all() : kSuccess) return error;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_base.find(address_of(pointer));
  if (found == all.by_base.end() || !found->second.registered) return set_error(kHostMemoryNotRegistered);
  all.by_base.erase(found);
  memory().remove(address_of(pointer));
  return kSuccess;
}

HIP_API int hipHostGetDevicePointer(void** device, void* host, u32) {
  if (!device || !find(host)) return set_error(kInvalidValue, "this is no memory that the device knows");
  *device = host;
  return kSuccess;
}

HIP_API int hipHostGetFlags(u32* flags, void* host) {
  const auto place = find(host);
  if (!flags || !place || place->allocation.kind != kHost) return set_error(kInvalidValue, "this is no host memory");
  *flags = place->allocation.flags;
  return kSuccess;
}

HIP_API int hipMemGetAddressRange(void** base, size_t* bytes, void* pointer) {
  const auto place = find(pointer);
  if (!place) return set_error(kNotFound, "the pointer is in no known allocation");
  if (base) *base = reinterpret_cast<void*>(place->range.base);
  if (bytes) *bytes = place->range.bytes;
  return kSuccess;
}

HIP_API int hipMemPtrGetInfo(void* pointer, size_t* bytes) {
  const auto place = find(pointer);
  if (!bytes || !place) return set_error(kInvalidValue, "the pointer is in no known allocation");
  *bytes = place->range.bytes;
  return kSuccess;
}

// Advice and prefetches change nothing where host and device share their memory.
HIP_API int hipMemAdvise(const void* pointer, size_t bytes, int advice, int device) {
  if (const Error error = check_range(pointer, bytes, device)) return error;
  const bool is_known = (advice >= 1 && advice <= 6) || advice == 100 || advice == 101;
  return is_known ? kSuccess : set_error(kInvalidValue, "this advice is none of hipMemoryAdvise");
}
HIP_API int hipMemPrefetchAsync(const void* pointer, size_t bytes, int device, void* stream) {
  if (const Error error = check_range(pointer, bytes, device)) return error;
  return guarded(kInvalidHandle, [&] { return submit(stream, NodeKind::empty, [] { return kSuccess; }); });
}

HIP_API int hipPointerGetAttributes(PointerAttributes* out, const void* pointer) {
  if (!out || !pointer) return set_error(kInvalidValue, "the pointer or the result's address is null");
  void* p = const_cast<void*>(pointer);
  const auto place = find(pointer);
  if (!place) {
    *out = {kUnregistered, 0, nullptr, p, 0, 0};
    return kSuccess;
  }
  const Allocation& a = place->allocation;
  *out = {a.kind, a.device, p, a.kind == kDevice ? nullptr : p, a.kind == kManaged, a.flags};
  return kSuccess;
}

// Numbers of hipPointer_attribute.
HIP_API int hipPointerGetAttribute(void* out, int which, void* pointer) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    const auto put = [&](auto value) {
      std::memcpy(out, &value, sizeof value);
      return kSuccess;
    };
    // Any host address is a device address, so this part of the answer is there even for memory that nobody registered.
    if (which == 3 || which == 4) return put(pointer);
    const auto place = find(pointer);
    if (!place) throw Fault("the pointer is in no known allocation");
    const Allocation& a = place->allocation;
    switch (which) {
      case 2: return put(static_cast<int>(a.kind));
      case 6: case 13: return put(u32{1});       // copies wait for it, and it is mapped: always
      case 7: return put(a.serial ? a.serial : place->range.base);
      case 8: return put(static_cast<u32>(a.kind == kManaged));
      case 9: return put(a.device);
      case 10: return put(static_cast<u32>(a.kind == kDevice && a.serial && !a.lease));
      case 14: return put(u64{0});               // handles of another kind than hipIpc*: none
      case 15: return put(u32{0});               // direct access of a network
      case 16: return put(kFullAccess);
      case 17: return put(a.lease.get());
      case 11: return put(place->range.base);
      case 12: return put(place->range.bytes);
      default: throw Fault("pointer attribute " + std::to_string(which) + " is not known to the simulator");
    }
  });
}

}  // namespace sim::hip
