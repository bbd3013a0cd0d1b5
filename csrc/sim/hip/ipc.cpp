// SPDX-License-Identifier: MIT
// Memory and events of other processes. A handle names a process and one of its file descriptors. Memory moves into an
// unnamed file, at the address where it is, when its handle is asked for; whoever opens the handle maps that file. A
// process cannot open its own handles, as on hardware.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "hip/defer.h"
#include "run/memory.h"

extern "C" int hipEventCreateWithFlags(void** out, sim::u32 flags);

namespace sim::hip {
namespace {

constexpr u64 kMemory = 0x6d656d206d697321, kEvent = 0x7665206d69732120;     // the first bytes of a handle
constexpr u32 kInterprocess = 4, kNoTiming = 2;  // hipEventInterprocess, hipEventDisableTiming

struct Handle {                                  // hipIpcMemHandle_t, hipIpcEventHandle_t
  u64 kind;
  int process, file;
  u64 offset, bytes, mapping_bytes;
  u64 inode;                                     // the file's: its descriptor may be another's later
  char rest[16];
};
static_assert(sizeof(Handle) == 64);

struct Opened { void* mapping; u64 mapping_bytes; u32 uses; int process; u64 inode; };

struct All {
  std::mutex mutex;
  std::map<u64, Opened> by_base;
};

All& opened() {
  static All* instance = new All;
  return *instance;
}

u64 inode_of(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 ? static_cast<u64>(status.st_ino) : 0;
}

Error open_memory(void** out, const Handle& h) {
  const std::lock_guard lock(opened().mutex);
  for (auto& [base, one] : opened().by_base) {   // a second time: the same address
    if (one.process != h.process || one.inode != h.inode) continue;
    ++one.uses;
    *out = reinterpret_cast<void*>(base);
    return kSuccess;
  }
  const std::string path = "/proc/" + std::to_string(h.process) + "/fd/" + std::to_string(h.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || inode_of(file) != h.inode) {
    if (file >= 0) close(file);
    return set_error(kInvalidValue, "the memory behind this handle is gone, or another user's: " + path);
  }
  void* mapping = mmap(nullptr, h.mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapping == MAP_FAILED) return set_error(kOutOfMemory, "the memory behind this handle cannot be mapped");
  const u64 base = reinterpret_cast<u64>(mapping) + h.offset;
  opened().by_base[base] = {mapping, h.mapping_bytes, 1, h.process, h.inode};
  memory().add({base, h.bytes, "hipIpcOpenMemHandle", true, false, nullptr});
  *out = reinterpret_cast<void*>(base);
  return kSuccess;
}

}  // namespace

HIP_API int hipIpcGetMemHandle(Handle* out, void* pointer) {
  if (!out || !pointer) return set_error(kInvalidValue, "the handle's address or the memory is null");
  if (const Error error = deferring() ? finish_all() : kSuccess) return error;
  const std::optional<Range> range = memory().find(reinterpret_cast<u64>(pointer));
  const auto shared = range && !range->freed ? memory().share(range->base) : std::nullopt;
  if (!shared) return set_error(kInvalidValue, "the pointer is in no memory of hipMalloc, or it cannot be shared");
  *out = {kMemory, static_cast<int>(getpid()), shared->file, shared->offset, shared->bytes, shared->mapping_bytes,
          inode_of(shared->file), {}};
  return kSuccess;
}

HIP_API int hipIpcOpenMemHandle(void** out, Handle handle, u32) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  if (handle.kind != kMemory) return set_error(kInvalidValue, "this is no handle of hipIpcGetMemHandle");
  if (handle.process == getpid()) return set_error(kInvalidContext, "a process does not open its own handles");
  if (const Error error = forbidden_in_capture("hipIpcOpenMemHandle")) return error;
  return open_memory(out, handle);
}

HIP_API int hipIpcCloseMemHandle(void* pointer) {
  if (const Error error = deferring() ? finish_all() : kSuccess) return error;
  const std::lock_guard lock(opened().mutex);
  const auto found = opened().by_base.find(reinterpret_cast<u64>(pointer));
  if (found == opened().by_base.end()) return set_error(kInvalidValue, "this is no memory of hipIpcOpenMemHandle");
  if (--found->second.uses) return kSuccess;
  memory().remove(found->first);
  munmap(found->second.mapping, found->second.mapping_bytes);
  opened().by_base.erase(found);
  return kSuccess;
}

// Work is done when it is submitted, so what an event of another process stands for has happened once it is recorded.
HIP_API int hipIpcGetEventHandle(Handle* out, void* event) {
  if (!out) return set_error(kInvalidValue, "the handle's address is null");
  return guarded(kInvalidHandle, [&] {
    if (deferring()) return set_error(kNotSupported, "with the setting `defer` events stay in their process");
    const u32 flags = event_flags(event);
    if ((flags & kInterprocess) == 0 || (flags & kNoTiming) == 0) {
      return set_error(kInvalidValue, "the event needs hipEventInterprocess and hipEventDisableTiming");
    }
    *out = {kEvent, static_cast<int>(getpid()), -1, reinterpret_cast<u64>(event), 0, 0, 0, {}};
    return kSuccess;
  });
}

HIP_API int hipIpcOpenEventHandle(void** out, Handle handle) {
  if (handle.kind != kEvent) return set_error(kInvalidValue, "this is no handle of hipIpcGetEventHandle");
  if (handle.process == getpid()) return set_error(kInvalidContext, "a process does not open its own handles");
  return hipEventCreateWithFlags(out, kInterprocess | kNoTiming);
}

}  // namespace sim::hip
