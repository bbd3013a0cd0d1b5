// SPDX-License-Identifier: MIT
// Memory pools. Every pool takes from the device's memory and gives back at once; what it would hold back by its
// release threshold is counted. Memory that a capturing stream allocates is a node's.
#include <algorithm>
#include <array>
#include <cstring>

#include "hip/defer.h"
#include "hip/memory.h"
#include "run/memory.h"

namespace sim::hip {
namespace {

constexpr int kFirstFlag = 1, kLastFlag = 3, kReleaseThreshold = 4, kReserved = 5, kReservedHigh = 6, kUsed = 7,
              kUsedHigh = 8;                     // hipMemPoolAttr
constexpr int kPinned = 1, kUncached = 0x40000000;       // hipMemAllocationType
constexpr int kAtDevice = 1;                     // hipMemLocationTypeDevice
constexpr int kMaxDevices = 64;

struct Pool {
  int device = 0;
  size_t most = 0;                               // 0: no limit
  std::mutex mutex = {};
  std::array<int, kLastFlag + 1> flags{0, 1, 1, 1};      // reuse of memory: allowed, as HIP's default is
  u64 threshold = 0, used = 0, used_high = 0, reserved = 0, reserved_high = 0;

  void keep(u64 bytes) { reserved = std::max(used, std::min(reserved, bytes)); }
};
using PoolPtr = std::shared_ptr<Pool>;

struct PoolParams {                              // hipMemPoolProps
  int type, handle_types, location_type, device;
  void* security;
  size_t most;
  char reserved[56];
};
static_assert(sizeof(PoolParams) == 88);

struct Pools {
  std::mutex mutex;
  std::map<const void*, PoolPtr> live;
  std::array<PoolPtr, kMaxDevices> of_device, current;
};

Pools& pools() {
  static auto* instance = new Pools;
  return *instance;
}

PoolPtr make_pool(int device, size_t most) {     // needs the mutex
  auto pool = std::make_shared<Pool>();
  pool->device = device;
  pool->most = most;
  pools().live.emplace(pool.get(), pool);
  return pool;
}

PoolPtr default_pool(int device) {               // needs the mutex
  PoolPtr& pool = pools().of_device[device];
  if (!pool) pool = make_pool(device, 0);
  return pool;
}

PoolPtr current_pool(int device) {
  const std::lock_guard lock(pools().mutex);
  const PoolPtr& chosen = pools().current[device];
  return chosen ? chosen : default_pool(device);
}

PoolPtr pool_of(const void* handle) {            // throws Fault
  const std::lock_guard lock(pools().mutex);
  const auto found = pools().live.find(handle);
  if (found == pools().live.end()) throw Fault("this is not a live memory pool");
  return found->second;
}

Error give_pool(void** out, int device, bool is_default) {
  if (!out) return set_error(kInvalidValue, "the pool's address is null");
  if (const Error error = check_device(device)) return error;
  if (!is_default) {
    *out = current_pool(device).get();
    return kSuccess;
  }
  const std::lock_guard lock(pools().mutex);
  *out = default_pool(device).get();
  return kSuccess;
}

// The pool counts so many bytes as used until the lease ends; null: it may not hold so many.
Lease lease_of(const PoolPtr& pool, size_t bytes) {
  const std::lock_guard lock(pool->mutex);
  if (pool->most && bytes > pool->most - std::min<u64>(pool->used, pool->most)) return nullptr;
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved = std::max(pool->reserved, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  return {pool.get(), [pool, bytes](void*) {
            const std::lock_guard own(pool->mutex);
            pool->used -= bytes;
            pool->keep(pool->threshold);
          }};
}

// The memory is there from now on, at an address that stays, until graph and executables are gone.
Error allocate_node(void** out, size_t bytes, void* stream) {
  void* pointer = nullptr;
  if (const Error error = allocate_device(&pointer, bytes, "a graph's allocation")) return error;
  const std::string name = memory().find(reinterpret_cast<u64>(pointer))->name;
  const std::shared_ptr<void> block(pointer, [name](void* own) { release_quietly(own, name); });
  const Error error = submit(stream, NodeKind::allocate, [block] { return kSuccess; });
  if (!error) *out = pointer;
  return error;
}

Error allocate_from(const PoolPtr& pool, void** out, size_t bytes, void* stream) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  *out = nullptr;
  if (const Error error = lost()) return error;
  return guarded(kInvalidHandle, [&] {
    const bool in_capture = is_capturing(stream);
    if (bytes == 0) return kSuccess;
    if (in_capture) return allocate_node(out, bytes, stream);
    Lease lease = lease_of(pool, bytes);
    if (!lease) return set_error(kOutOfMemory, "the pool holds at most " + std::to_string(pool->most) + " bytes");
    return allocate_device(out, bytes, "hipMallocAsync", std::move(lease));
  });
}

template <class Body>
Error with_pool(const void* handle, Body&& body) {
  return guarded(kInvalidValue, [&] {
    const PoolPtr pool = pool_of(handle);
    const std::lock_guard lock(pool->mutex);
    return body(*pool);
  });
}

}  // namespace

HIP_API int hipDeviceGetDefaultMemPool(void** out, int device) { return give_pool(out, device, true); }
HIP_API int hipDeviceGetMemPool(void** out, int device) { return give_pool(out, device, false); }

HIP_API int hipDeviceSetMemPool(int device, void* handle) {
  if (const Error error = check_device(device)) return error;
  return guarded(kInvalidValue, [&] {
    PoolPtr pool = pool_of(handle);
    if (pool->device != device) return set_error(kInvalidDevice, "the pool is another device's");
    const std::lock_guard lock(pools().mutex);
    pools().current[device] = std::move(pool);
    return kSuccess;
  });
}

HIP_API int hipMemPoolCreate(void** out, const PoolParams* p) {
  if (!out || !p) return set_error(kInvalidValue, "the pool's address or its properties are null");
  if ((p->type != kPinned && p->type != kUncached) || p->location_type != kAtDevice) {
    return set_error(kInvalidValue, "a pool has pinned memory of a device");
  }
  if (const Error error = check_device(p->device)) return error;
  const std::lock_guard lock(pools().mutex);
  *out = make_pool(p->device, p->most).get();
  return kSuccess;
}

// Allocations from it live on until they are freed.
HIP_API int hipMemPoolDestroy(void* handle) {
  return guarded(kInvalidValue, [&] {
    const PoolPtr pool = pool_of(handle);
    const std::lock_guard lock(pools().mutex);
    if (pool == pools().of_device[pool->device]) throw Fault("the default pool cannot be destroyed");
    if (pools().current[pool->device] == pool) pools().current[pool->device] = nullptr;
    pools().live.erase(handle);
    return kSuccess;
  });
}

HIP_API int hipMemPoolSetAttribute(void* handle, int which, const void* value) {
  return with_pool(handle, [&](Pool& pool) {
    if (!value) throw Fault("the value is null");
    if (which >= kFirstFlag && which <= kLastFlag) {
      std::memcpy(&pool.flags[which], value, sizeof(int));
      return kSuccess;
    }
    u64 number = 0;
    if (which != kReleaseThreshold && which != kReservedHigh && which != kUsedHigh) {
      throw Fault("this pool attribute cannot be set");
    }
    std::memcpy(&number, value, sizeof number);
    if (which != kReleaseThreshold && number) throw Fault("a high mark can be set to 0 only");
    if (which == kReleaseThreshold) pool.threshold = number;
    else if (which == kReservedHigh) pool.reserved_high = pool.reserved;
    else pool.used_high = pool.used;
    return kSuccess;
  });
}

HIP_API int hipMemPoolGetAttribute(void* handle, int which, void* value) {
  return with_pool(handle, [&](const Pool& pool) {
    if (!value) throw Fault("the result's address is null");
    const auto put = [&](auto x) {
      std::memcpy(value, &x, sizeof x);
      return kSuccess;
    };
    if (which >= kFirstFlag && which <= kLastFlag) return put(pool.flags[which]);
    switch (which) {
      case kReleaseThreshold: return put(pool.threshold);
      case kReserved: return put(pool.reserved);
      case kReservedHigh: return put(pool.reserved_high);
      case kUsed: return put(pool.used);
      case kUsedHigh: return put(pool.used_high);
      default: throw Fault("this attribute is none of hipMemPoolAttr");
    }
  });
}

HIP_API int hipMemPoolTrimTo(void* handle, size_t bytes) {
  return with_pool(handle, [&](Pool& pool) {
    pool.keep(bytes);
    return kSuccess;
  });
}

HIP_API int hipMallocAsync(void** out, size_t bytes, void* stream) {
  return allocate_from(current_pool(current_device()), out, bytes, stream);
}
HIP_API int hipMallocFromPoolAsync(void** out, size_t bytes, void* handle, void* stream) {
  return guarded(kInvalidValue, [&] { return allocate_from(pool_of(handle), out, bytes, stream); });
}

HIP_API int hipFreeAsync(void* pointer, void* stream) {
  if (!pointer) return kSuccess;
  return guarded(kInvalidHandle, [&] {
    if (is_capturing(stream)) {
      if (!memory().find(reinterpret_cast<u64>(pointer))) {
        return set_error(kInvalidValue, "the node frees no known memory");
      }
      return submit(stream, NodeKind::release, [] { return kSuccess; });
    }
    if (!deferring()) return release_device(pointer);
    return submit(stream, NodeKind::host, [pointer] { return release_device(pointer); });
  });
}

}  // namespace sim::hip
