// SPDX-License-Identifier: MIT
// What a program may say of memory, and ask: advice, prefetches, attributes of ranges and of pointers, many at a time.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "hip/copy.h"
#include "run/memory.h"

extern "C" {
int hipDeviceGetDefaultMemPool(void** pool, int device);
int hipDeviceGetMemPool(void** pool, int device);
int hipDeviceSetMemPool(int device, void* pool);
int hipHostMalloc(void** out, size_t bytes, sim::u32 flags);
int hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height);
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);
int hipPointerGetAttribute(void* out, int which, void* pointer);
}

namespace sim::hip {
namespace {

constexpr int kSetReadMostly = 1, kUnsetReadMostly = 2, kSetPreferred = 3, kUnsetPreferred = 4, kSetAccessed = 5,
              kUnsetAccessed = 6, kSetCoarse = 100, kUnsetCoarse = 101;      // hipMemoryAdvise
constexpr int kReadMostly = 1, kPreferred = 2, kAccessedBy = 3, kLastPrefetch = 4, kCoherency = 100;
constexpr int kNobody = -2;                      // hipInvalidDeviceId
constexpr int kSyncMemoryOperations = 6;         // HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS
constexpr int kAtDevice = 1;        // hipMemLocationType

struct Location { int type, id; };               // hipMemLocation

// Advice for the known range that the memory lies in. It is remembered and changes nothing.
struct Advice {
  std::string allocation;                        // its name: another one may lie at the same address later
  bool read_mostly = false, coarse = false;
  int preferred = kNobody, last_prefetch = kNobody;
  std::set<int> accessed_by = {};
};

struct Advices {
  std::mutex mutex;
  std::map<u64, Advice> by_base;
};

Advices& advices() {
  static Advices* instance = new Advices;
  return *instance;
}

// The remembered advice for the range with this base. Needs the mutex.
Advice& advice_of(u64 base) {
  Advice& a = advices().by_base[base];
  const std::optional<Range> range = memory().find(base);
  if (range && range->name != a.allocation) a = {.allocation = range->name};
  return a;
}

// The range around all of the memory, or an error.
Error base_of(const void* pointer, size_t bytes, u64& base) {
  const u64 address = reinterpret_cast<u64>(pointer);
  const std::optional<Range> range = memory().find(address);
  if (!range || range->freed || bytes == 0 || bytes > range->base + range->bytes - address) {
    return set_error(kInvalidValue, "the memory is not in one known allocation");
  }
  base = range->base;
  return kSuccess;
}

Error advise(const void* pointer, size_t bytes, int advice, int device) {
  u64 base = 0;
  if (const Error error = base_of(pointer, bytes, base)) return error;
  if (device >= 0) {
    if (const Error error = check_device(device)) return error;
  }
  const std::lock_guard lock(advices().mutex);
  Advice& a = advice_of(base);
  switch (advice) {
    case kSetReadMostly: case kUnsetReadMostly: a.read_mostly = advice == kSetReadMostly; break;
    case kSetPreferred: a.preferred = device; break;
    case kUnsetPreferred: a.preferred = kNobody; break;
    case kSetAccessed: a.accessed_by.insert(device); break;
    case kUnsetAccessed: a.accessed_by.erase(device); break;
    case kSetCoarse: case kUnsetCoarse: a.coarse = advice == kSetCoarse; break;
    default: return set_error(kInvalidValue, "this advice is none of hipMemoryAdvise");
  }
  return kSuccess;
}

Error prefetch(const void* pointer, size_t bytes, int device, void* stream) {
  u64 base = 0;
  if (const Error error = base_of(pointer, bytes, base)) return error;
  if (device >= 0) {
    if (const Error error = check_device(device)) return error;
  }
  {
    const std::lock_guard lock(advices().mutex);
    advice_of(base).last_prefetch = device;
  }
  return guarded(kInvalidHandle, [&] { return submit(stream, NodeKind::empty, [] { return kSuccess; }); });
}

int device_at(const Location& location) { return location.type == kAtDevice ? location.id : -1; }

Error range_attribute(void* data, size_t bytes, int which, u64 base) {
  const std::lock_guard lock(advices().mutex);
  const Advice& a = advice_of(base);
  if (which == kAccessedBy) {
    std::fill_n(static_cast<int*>(data), bytes / sizeof(int), kNobody);
    size_t i = 0;
    for (int device : a.accessed_by) {
      if (i < bytes / sizeof(int)) static_cast<int*>(data)[i++] = device;
    }
    return kSuccess;
  }
  int value = 0;
  switch (which) {
    case kReadMostly: value = a.read_mostly; break;
    case kPreferred: value = a.preferred; break;
    case kLastPrefetch: value = a.last_prefetch; break;
    case kCoherency: value = a.coarse; break;
    default: return set_error(kInvalidValue, "this attribute is none of hipMemRangeAttribute");
  }
  if (bytes != sizeof value) return set_error(kInvalidValue, "this attribute has four bytes");
  std::memcpy(data, &value, sizeof value);
  return kSuccess;
}

Error pool_of(void** pool, const Location* location, bool is_default) {
  if (!location) return set_error(kInvalidValue, "the location is null");
  if (location->type != kAtDevice) return set_error(kNotSupported, "only devices have memory pools here");
  return static_cast<Error>(is_default ? hipDeviceGetDefaultMemPool(pool, location->id)
                                       : hipDeviceGetMemPool(pool, location->id));
}

}  // namespace

HIP_API int hipMemAllocHost(void** out, size_t bytes) { return hipHostMalloc(out, bytes, 0); }
HIP_API int hipMemAllocPitch(void** out, size_t* pitch, size_t width, size_t height, u32 element_bytes) {
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) {
    return set_error(kInvalidValue, "elements have 4, 8 or 16 bytes");
  }
  return hipMallocPitch(out, pitch, width, height);
}

HIP_API int hipMemPtrGetInfo(void* pointer, size_t* bytes) {
  if (!bytes) return set_error(kInvalidValue, "the result's address is null");
  const std::optional<Range> range = memory().find(reinterpret_cast<u64>(pointer));
  if (!range || range->freed) return set_error(kInvalidValue, "the pointer is in no known allocation");
  *bytes = range->bytes;
  return kSuccess;
}

HIP_API int hipMemAdvise(const void* pointer, size_t bytes, int advice, int device) {
  return advise(pointer, bytes, advice, device);
}
HIP_API int hipMemAdvise_v2(const void* pointer, size_t bytes, int advice, Location location) {
  return advise(pointer, bytes, advice, device_at(location));
}
HIP_API int hipMemPrefetchAsync(const void* pointer, size_t bytes, int device, void* stream) {
  return prefetch(pointer, bytes, device, stream);
}
HIP_API int hipMemPrefetchAsync_v2(const void* pointer, size_t bytes, Location location, u32, void* stream) {
  return prefetch(pointer, bytes, device_at(location), stream);
}
HIP_API int hipMemPrefetchBatchAsync(void** pointers, size_t* bytes, size_t count, Location* locations,
                                     size_t* indices, size_t num_locations, unsigned long long, void* stream) {
  if (!pointers || !bytes || !locations || !indices || !num_locations) {
    return set_error(kInvalidValue, "the memory or its locations are null");
  }
  for (size_t i = 0, at = 0; i < count; ++i) {
    while (at + 1 < num_locations && indices[at + 1] <= i) ++at;
    if (const Error error = prefetch(pointers[i], bytes[i], device_at(locations[at]), stream)) return error;
  }
  return kSuccess;
}

HIP_API int hipMemRangeGetAttribute(void* data, size_t bytes, int which, const void* pointer, size_t count) {
  u64 base = 0;
  if (!data) return set_error(kInvalidValue, "the result's address is null");
  if (const Error error = base_of(pointer, count, base)) return error;
  return range_attribute(data, bytes, which, base);
}
HIP_API int hipMemRangeGetAttributes(void** data, size_t* bytes, int* which, size_t num, const void* pointer,
                                     size_t count) {
  if (!data || !bytes || !which) return set_error(kInvalidValue, "the results or the attributes are null");
  for (size_t i = 0; i < num; ++i) {
    if (const int error = hipMemRangeGetAttribute(data[i], bytes[i], which[i], pointer, count)) return error;
  }
  return kSuccess;
}

// Every answer is 0 for memory that is not known.
HIP_API int hipDrvPointerGetAttributes(u32 count, int* which, void** data, void* pointer) {
  if (!which || !data) return set_error(kInvalidValue, "the attributes or the results are null");
  const std::optional<Range> range = memory().find(reinterpret_cast<u64>(pointer));
  for (u32 i = 0; i < count; ++i) {
    if (!data[i]) return set_error(kInvalidValue, "a result's address is null");
    if (!range || range->freed) std::memset(data[i], 0, which[i] == 8 || which[i] == 2 || which[i] == 9 ? 4 : 8);
    else if (const int error = hipPointerGetAttribute(data[i], which[i], pointer)) return error;
  }
  return kSuccess;
}
// Every call that copies waits for what was submitted before it: the one attribute that can be set is always so.
HIP_API int hipPointerSetAttribute(const void* value, int which, void* pointer) {
  u64 base = 0;
  if (!value || which != kSyncMemoryOperations) return set_error(kInvalidValue, "this attribute cannot be set");
  return base_of(pointer, 1, base);
}

HIP_API int hipMemcpyBatchAsync(void** to, void** from, size_t* bytes, size_t count, void*, size_t*, size_t,
                                size_t* failed, void* stream) {
  if (count && (!to || !from || !bytes)) return set_error(kInvalidValue, "the copies are null");
  for (size_t i = 0; i < count; ++i) {
    const int error = hipMemcpyAsync(to[i], from[i], bytes[i], 4, stream);
    if (!error) continue;
    if (failed) *failed = i;
    return error;
  }
  return kSuccess;
}

HIP_API int hipMemGetDefaultMemPool(void** pool, Location* location, int) { return pool_of(pool, location, true); }
HIP_API int hipMemGetMemPool(void** pool, Location* location, int) { return pool_of(pool, location, false); }
HIP_API int hipMemSetMemPool(Location* location, int, void* pool) {
  if (!location || location->type != kAtDevice) return set_error(kNotSupported, "only devices have memory pools here");
  return hipDeviceSetMemPool(location->id, pool);
}

}  // namespace sim::hip
