// SPDX-License-Identifier: MIT
// Memory pools. Every pool takes from the device's memory and gives back at once, so it has nothing to hold or to trim.
// It keeps its attributes as they were set.
#include <array>
#include <cstring>

#include "hip/stream.h"
#include "run/memory.h"

extern "C" int hipMallocAsync(void** out, size_t bytes, void* stream);

namespace sim::hip {
namespace {

constexpr int kFirstFlag = 1, kLastFlag = 3, kReleaseThreshold = 4, kReserved = 5, kUsed = 7;   // hipMemPoolAttr
constexpr int kReadWrite = 3;                    // hipMemAccessFlagsProtReadWrite
constexpr int kMaxDevices = 64;

struct Pool {
  int device = 0;
  std::array<int, kLastFlag + 1> flags{0, 1, 1, 1};    // reuse of memory: allowed, as HIP's default is
  u64 release_threshold = 0;
};

struct Location { int type, id; };               // hipMemLocation
struct Properties {                              // hipMemPoolProps
  int allocation_type, handle_types;
  Location location;
};

Pool& default_pool(int device) {
  static auto* pools = new std::array<Pool, kMaxDevices>;
  (*pools)[device].device = device;
  return (*pools)[device];
}

std::array<Pool*, kMaxDevices> current_pools{};

Error give_pool(void** out, int device, bool is_default) {
  if (!out) return set_error(kInvalidValue, "the pool's address is null");
  if (const Error error = check_device(device)) return error;
  *out = !is_default && current_pools[device] ? current_pools[device] : &default_pool(device);
  return kSuccess;
}

}  // namespace

HIP_API int hipDeviceGetDefaultMemPool(void** out, int device) { return give_pool(out, device, true); }
HIP_API int hipDeviceGetMemPool(void** out, int device) { return give_pool(out, device, false); }

HIP_API int hipDeviceSetMemPool(int device, void* pool) {
  if (const Error error = check_device(device)) return error;
  if (!pool) return set_error(kInvalidValue, "the pool is null");
  current_pools[device] = static_cast<Pool*>(pool);
  return kSuccess;
}

HIP_API int hipMemPoolCreate(void** out, const Properties* properties) {
  if (!out || !properties) return set_error(kInvalidValue, "the pool's address or its properties are null");
  if (const Error error = check_device(properties->location.id)) return error;
  *out = new Pool{properties->location.id};
  return kSuccess;
}

HIP_API int hipMemPoolDestroy(void* handle) {
  auto* pool = static_cast<Pool*>(handle);
  if (!pool) return set_error(kInvalidValue, "the pool is null");
  if (pool == &default_pool(pool->device)) return set_error(kInvalidValue, "the default pool cannot be destroyed");
  if (current_pools[pool->device] == pool) current_pools[pool->device] = nullptr;
  delete pool;
  return kSuccess;
}

HIP_API int hipMemPoolSetAttribute(void* handle, int which, const void* value) {
  auto* pool = static_cast<Pool*>(handle);
  if (!pool || !value) return set_error(kInvalidValue, "the pool or the value is null");
  if (which >= kFirstFlag && which <= kLastFlag) std::memcpy(&pool->flags[which], value, sizeof(int));
  else if (which == kReleaseThreshold) std::memcpy(&pool->release_threshold, value, sizeof(u64));
  else return set_error(kInvalidValue, "this pool attribute cannot be set");
  return kSuccess;
}

HIP_API int hipMemPoolGetAttribute(void* handle, int which, void* value) {
  const auto* pool = static_cast<const Pool*>(handle);
  if (!pool || !value) return set_error(kInvalidValue, "the pool or the value is null");
  const auto put = [&](auto x) {
    std::memcpy(value, &x, sizeof x);
    return kSuccess;
  };
  if (which >= kFirstFlag && which <= kLastFlag) return put(pool->flags[which]);
  if (which == kReleaseThreshold) return put(pool->release_threshold);
  if (which == kReserved || which == kUsed) return put(memory().in_use_bytes());     // of all pools together
  return set_error(kNotSupported, "this pool attribute is not known to the simulator");
}

HIP_API int hipMemPoolTrimTo(void* pool, size_t) {
  return pool ? kSuccess : set_error(kInvalidValue, "the pool is null");
}

// The devices share the host's memory: each has access to all of it.
HIP_API int hipMemPoolSetAccess(void* pool, const void*, size_t) {
  return pool ? kSuccess : set_error(kInvalidValue, "the pool is null");
}
HIP_API int hipMemPoolGetAccess(int* flags, void* pool, const void*) {
  if (!flags || !pool) return set_error(kInvalidValue, "the pool or the result's address is null");
  *flags = kReadWrite;
  return kSuccess;
}

HIP_API int hipMallocFromPoolAsync(void** out, size_t bytes, void* pool, void* stream) {
  return pool ? static_cast<Error>(hipMallocAsync(out, bytes, stream)) : set_error(kInvalidValue, "the pool is null");
}

}  // namespace sim::hip
