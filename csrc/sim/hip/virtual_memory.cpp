// SPDX-License-Identifier: MIT
// Virtual memory: addresses are reserved, physical memory is a file without a name, and mapping is mmap. A page that is
// not mapped, or to which no access was set, faults as on hardware; the checkers know what is mapped.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "hip/defer.h"
#include "run/memory.h"

namespace sim::hip {
namespace {

constexpr u64 kGranularity = u64{2} << 20;       // MI300X's page tables have it, and the runtime reports it
constexpr int kPinned = 1, kUncached = 0x40000000;                           // hipMemAllocationType
constexpr int kPosixFile = 1;                    // hipMemAllocationHandleType
constexpr int kNone = 0, kRead = 1, kReadWrite = 3;                          // hipMemAccessFlags
constexpr int kAtDevice = 1;                     // hipMemLocationTypeDevice

struct Location { int type, id; };               // hipMemLocation
struct Access {                                  // hipMemAccessDesc
  Location location;
  int flags;
};
struct Properties {                              // hipMemAllocationProp
  int type, handle_types;
  Location location;
  void* metadata;
  u8 compression, rdma;
  u16 usage;
};
static_assert(sizeof(Properties) == 32);

struct Physical {
  int file;
  u64 bytes;
  Properties properties;
  ~Physical() { close(file); }
};
using PhysicalPtr = std::shared_ptr<Physical>;

struct Mapping {
  u64 bytes, offset;
  PhysicalPtr physical;
  int access = kNone;
};

struct Spaces {
  std::mutex mutex;
  std::map<u64, u64> reserved;                   // base → bytes
  std::map<u64, Mapping> mapped;
  std::map<void*, std::pair<PhysicalPtr, u32>> handles;        // and how often each is retained
};

Spaces& spaces() {
  static Spaces* instance = new Spaces;
  return *instance;
}

bool is_whole(u64 bytes) { return bytes && bytes % kGranularity == 0; }

Error give_handle(void** out, int file, u64 bytes, const Properties& properties) {
  auto physical = std::make_shared<Physical>(file, bytes, properties);
  const std::lock_guard lock(spaces().mutex);
  void* handle = physical.get();
  spaces().handles[handle] = {std::move(physical), 1};
  *out = handle;
  return kSuccess;
}

// Needs the mutex; throws Fault.
const PhysicalPtr& physical_of(void* handle) {
  const auto found = spaces().handles.find(handle);
  if (found == spaces().handles.end()) throw Fault("this is not a live handle of hipMemCreate");
  return found->second.first;
}

bool is_reserved(u64 base, u64 bytes) {          // needs the mutex
  auto found = spaces().reserved.upper_bound(base);
  if (found == spaces().reserved.begin()) return false;
  --found;
  return base - found->first < found->second && bytes <= found->second - (base - found->first);
}

// The mapping that holds the address; null = none. Needs the mutex.
std::pair<const u64, Mapping>* mapping_at(u64 address) {
  auto found = spaces().mapped.upper_bound(address);
  if (found == spaces().mapped.begin()) return nullptr;
  --found;
  return address - found->first < found->second.bytes ? &*found : nullptr;
}

bool close_mapping(u64 base, u64 bytes) {        // back to reserved addresses
  return mmap(reinterpret_cast<void*>(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
              -1, 0) != MAP_FAILED;
}

void set_access(u64 base, Mapping& m, int flags) {
  const int protection = flags == kReadWrite ? PROT_READ | PROT_WRITE : flags == kRead ? PROT_READ : PROT_NONE;
  if (mprotect(reinterpret_cast<void*>(base), m.bytes, protection) != 0) throw Fault("the access cannot be set");
  if (m.access != kNone) memory().remove(base);
  m.access = flags;
  if (flags != kNone) memory().add({base, m.bytes, "hipMemMap", flags == kReadWrite, false, nullptr});
}

}  // namespace

HIP_API int hipMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int) {
  if (!bytes || !properties) return set_error(kInvalidValue, "the properties or the result's address are null");
  *bytes = kGranularity;
  return properties->location.type == kAtDevice ? check_device(properties->location.id) : kSuccess;
}

HIP_API int hipMemAddressReserve(void** out, size_t bytes, size_t alignment, void*, unsigned long long flags) {
  if (!out || !is_whole(bytes) || flags) {
    return set_error(kInvalidValue, "addresses are reserved in multiples of 2 MiB, without flags");
  }
  if (alignment & (alignment - 1)) return set_error(kInvalidValue, "the alignment is no power of two");
  const u64 align = std::max<u64>(alignment, kGranularity);
  if (bytes > SIZE_MAX - align) return set_error(kOutOfMemory);
  void* all = mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return set_error(kOutOfMemory, "there are not so many addresses");
  const u64 first = reinterpret_cast<u64>(all), base = (first + align - 1) / align * align;
  if (base != first) munmap(all, base - first);
  munmap(reinterpret_cast<void*>(base + bytes), first + align - base);
  const std::lock_guard lock(spaces().mutex);
  spaces().reserved[base] = bytes;
  *out = reinterpret_cast<void*>(base);
  return kSuccess;
}

HIP_API int hipMemAddressFree(void* pointer, size_t bytes) {
  const std::lock_guard lock(spaces().mutex);
  const auto found = spaces().reserved.find(reinterpret_cast<u64>(pointer));
  if (found == spaces().reserved.end() || found->second != bytes) {
    return set_error(kInvalidValue, "these addresses were not reserved in one piece");
  }
  const auto next = spaces().mapped.lower_bound(found->first);
  if (next != spaces().mapped.end() && next->first < found->first + bytes) {
    return set_error(kInvalidValue, "memory is still mapped at these addresses");
  }
  munmap(pointer, bytes);
  spaces().reserved.erase(found);
  return kSuccess;
}

HIP_API int hipMemCreate(void** out, size_t bytes, const Properties* p, unsigned long long flags) {
  if (!out || !p || !is_whole(bytes) || flags) {
    return set_error(kInvalidValue, "physical memory comes in multiples of 2 MiB, without flags");
  }
  if (p->type != kPinned && p->type != kUncached) return set_error(kInvalidValue, "this type of memory does not exist");
  if (p->handle_types & ~kPosixFile) return set_error(kNotSupported, "memory is handed on as a file descriptor only");
  if (p->location.type == kAtDevice) {
    if (const Error error = check_device(p->location.id)) return error;
  }
  const int file = memfd_create("physical memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) close(file);
    return set_error(kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  return give_handle(out, file, bytes, *p);
}

// Mapped memory lives on until it is unmapped.
HIP_API int hipMemRelease(void* handle) {
  return guarded(kInvalidValue, [&] {
    const std::lock_guard lock(spaces().mutex);
    physical_of(handle);
    if (--spaces().handles[handle].second == 0) spaces().handles.erase(handle);
    return kSuccess;
  });
}

HIP_API int hipMemRetainAllocationHandle(void** out, void* pointer) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  const std::lock_guard lock(spaces().mutex);
  const auto* mapping = mapping_at(reinterpret_cast<u64>(pointer));
  if (!mapping) return set_error(kInvalidValue, "nothing is mapped at this address");
  *out = mapping->second.physical.get();
  auto& [physical, uses] = spaces().handles[*out];
  physical = mapping->second.physical;
  ++uses;
  return kSuccess;
}

HIP_API int hipMemGetAllocationPropertiesFromHandle(Properties* out, void* handle) {
  return guarded(kInvalidValue, [&] {
    if (!out) return set_error(kInvalidValue, "the result's address is null");
    const std::lock_guard lock(spaces().mutex);
    *out = physical_of(handle)->properties;
    return kSuccess;
  });
}

HIP_API int hipMemMap(void* pointer, size_t bytes, size_t offset, void* handle, unsigned long long flags) {
  return guarded(kInvalidValue, [&] {
    const u64 base = reinterpret_cast<u64>(pointer);
    if (!is_whole(bytes) || base % kGranularity || offset || flags) {
      return set_error(kInvalidValue, "memory is mapped from its beginning, in multiples of 2 MiB, without flags");
    }
    const std::lock_guard lock(spaces().mutex);
    const PhysicalPtr& physical = physical_of(handle);
    if (bytes > physical->bytes) return set_error(kInvalidValue, "the physical memory is smaller");
    if (!is_reserved(base, bytes)) return set_error(kInvalidValue, "these addresses are not reserved");
    const auto next = spaces().mapped.lower_bound(base);
    if (mapping_at(base) || (next != spaces().mapped.end() && next->first < base + bytes)) {
      return set_error(kInvalidValue, "memory is mapped at these addresses already");
    }
    if (mmap(pointer, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, 0) == MAP_FAILED) {
      return set_error(kOutOfMemory, "the memory cannot be mapped");
    }
    spaces().mapped[base] = {bytes, offset, physical};
    return kSuccess;
  });
}

HIP_API int hipMemUnmap(void* pointer, size_t bytes) {
  if (const Error error = deferring() ? finish_all() : kSuccess) return error;
  const std::lock_guard lock(spaces().mutex);
  u64 base = reinterpret_cast<u64>(pointer);
  const u64 end = base + bytes;
  if (!spaces().mapped.count(base)) return set_error(kInvalidValue, "nothing is mapped at this address");
  while (base < end) {
    const auto found = spaces().mapped.find(base);
    if (found == spaces().mapped.end() || found->second.bytes > end - base) {
      return set_error(kInvalidValue, "the addresses are not those of whole mappings");
    }
    if (found->second.access != kNone) memory().remove(base);
    if (!close_mapping(base, found->second.bytes)) return set_error(kUnknown, "the memory cannot be unmapped");
    base += found->second.bytes;
    spaces().mapped.erase(found);
  }
  return kSuccess;
}

// The devices share the host's memory, and so does the access to it: the widest of those that are set.
HIP_API int hipMemSetAccess(void* pointer, size_t bytes, const Access* accesses, size_t count) {
  return guarded(kInvalidValue, [&] {
    if (!accesses || count == 0) return set_error(kInvalidValue, "there is no access to set");
    int widest = kNone;
    for (size_t i = 0; i < count; ++i) {
      const Access& a = accesses[i];
      if (a.flags != kNone && a.flags != kRead && a.flags != kReadWrite) throw Fault("this access does not exist");
      if (a.location.type == kAtDevice) {
        if (const Error error = check_device(a.location.id)) return error;
      }
      widest = std::max(widest, a.flags);
    }
    const std::lock_guard lock(spaces().mutex);
    const u64 first = reinterpret_cast<u64>(pointer), end = first + bytes;
    for (u64 base = first; base < end;) {
      const auto found = spaces().mapped.find(base);
      if (found == spaces().mapped.end() || found->second.bytes > end - base) {
        throw Fault("the addresses are not those of whole mappings");
      }
      base += found->second.bytes;
    }
    for (u64 base = first; base < end;) {
      Mapping& mapping = spaces().mapped.at(base);
      set_access(base, mapping, widest);
      base += mapping.bytes;
    }
    return kSuccess;
  });
}

HIP_API int hipMemGetAccess(unsigned long long* flags, const Location* location, void* pointer) {
  if (!flags || !location) return set_error(kInvalidValue, "the location or the result's address is null");
  const std::lock_guard lock(spaces().mutex);
  const auto* mapping = mapping_at(reinterpret_cast<u64>(pointer));
  if (!mapping) return set_error(kInvalidValue, "nothing is mapped at this address");
  *flags = static_cast<unsigned long long>(mapping->second.access);
  return kSuccess;
}

HIP_API int hipMemExportToShareableHandle(void* out, void* handle, int type, unsigned long long flags) {
  return guarded(kInvalidValue, [&] {
    if (!out || type != kPosixFile || flags) {
      return set_error(kInvalidValue, "memory is handed on as a file descriptor, without flags");
    }
    const std::lock_guard lock(spaces().mutex);
    const PhysicalPtr& physical = physical_of(handle);
    if (!(physical->properties.handle_types & kPosixFile)) {
      return set_error(kInvalidValue, "the memory was not created to be handed on");
    }
    const int file = dup(physical->file);
    if (file < 0) return set_error(kOutOfMemory, "there is no further file descriptor");
    std::memcpy(out, &file, sizeof file);
    return kSuccess;
  });
}

// The file descriptor is the value of `os_handle`, as ROCm's runtime takes it, and stays the caller's.
HIP_API int hipMemImportFromShareableHandle(void** out, void* os_handle, int type) {
  if (!out || type != kPosixFile) return set_error(kInvalidValue, "memory is taken over as a file descriptor only");
  const int file = dup(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)));
  if (file < 0) return set_error(kInvalidValue, "this is not an open file descriptor");
  const off_t bytes = lseek(file, 0, SEEK_END);
  if (bytes <= 0 || !is_whole(static_cast<u64>(bytes))) {
    close(file);
    return set_error(kInvalidValue, "this file is no physical memory");
  }
  return give_handle(out, file, static_cast<u64>(bytes), {kPinned, kPosixFile, {kAtDevice, current_device()}, nullptr,
                                                          0, 0, 0});
}

}  // namespace sim::hip
