// SPDX-License-Identifier: MIT
// The devices: MI300X, all alike, with the numbers of AMD's data sheet (configs/arch/gfx942.toml names the sources).
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <set>

#include "hip/defer.h"
#include "run/memory.h"
#include "settings.h"

namespace sim::hip {
namespace {

constexpr const char* kName = "AMD Instinct MI300X (simulated)";
constexpr const char* kArch = "gfx942:sramecc+:xnack-";
constexpr u64 kMemoryBytes = u64{192} << 30;
constexpr int kVersion = 70100000;               // HIP 7.1, as hipRuntimeGetVersion encodes it
constexpr int kClockKhz = 2100000, kMemoryClockKhz = 1300000, kMemoryBusBits = 8192;
constexpr int kL2Bytes = 4 << 20, kLdsBytes = 65536, kRegisters = 65536, kMaxBlock = 1024, kThreadsPerCu = 2048;
constexpr int kMaxGrid = 0x7fffffff;

std::atomic<int> num_devices{static_cast<int>(initial_devices())};
thread_local int current = 0;

struct Peers {
  std::mutex mutex;
  std::set<std::pair<int, int>> enabled;         // (who accesses, whose memory)
};

Peers& peers() {
  static Peers* instance = new Peers;
  return *instance;
}

template <class T>
void put(u8* base, size_t offset, T value) {
  std::memcpy(base + offset, &value, sizeof value);
}

// hipDeviceProp_tR0600: byte offsets of the public structure's fields; fields not listed are zero.
constexpr size_t kPropertiesBytes = 1472;
void fill_properties(u8* p) {
  std::memset(p, 0, kPropertiesBytes);
  std::strcpy(reinterpret_cast<char*>(p), kName);
  put<u64>(p, 288, kMemoryBytes);
  put<u64>(p, 296, kLdsBytes);                   // per block
  put<int>(p, 304, kRegisters);
  put<int>(p, 308, kLanes);
  put<u64>(p, 312, kMaxGrid);                    // pitch
  put<int>(p, 320, kMaxBlock);
  for (int i = 0; i < 3; ++i) {
    put<int>(p, 324 + 4 * i, kMaxBlock);
    put<int>(p, 336 + 4 * i, i == 0 ? kMaxGrid : 65536);
  }
  put<int>(p, 348, kClockKhz);
  put<u64>(p, 352, kMaxGrid);                    // constant memory
  put<int>(p, 360, 9);
  put<int>(p, 364, 4);
  put<int>(p, 388, kNumCus);
  put<int>(p, 400, 1);                           // maps host memory
  put<int>(p, 576, 1);                           // concurrent kernels
  put<int>(p, 604, 1);                           // unified addresses
  put<int>(p, 608, kMemoryClockKhz);
  put<int>(p, 612, kMemoryBusBits);
  put<int>(p, 616, kL2Bytes);
  put<int>(p, 624, kThreadsPerCu);
  put<u64>(p, 640, kLdsBytes);                   // per CU
  put<int>(p, 648, kRegisters);
  put<int>(p, 652, 1);                           // managed memory
  put<int>(p, 688, 1);                           // cooperative launch
  std::strcpy(reinterpret_cast<char*>(p + 1160), kArch);
  put<u64>(p, 1416, kLdsBytes);
}

// Numbers of hipDeviceAttribute_t.
int attribute(int which) {
  switch (which) {
    case 5: return kClockKhz;
    case 8: return 1;                            // concurrent kernels
    case 10: return 1;                           // cooperative launch
    case 16: return 0;                           // integrated
    case 19: return kL2Bytes;
    case 23: return 9;
    case 25: return 32;                          // blocks per CU
    case 26: case 27: case 28: case 56: return kMaxBlock;
    case 29: return kMaxGrid;
    case 30: case 31: return 65536;
    case 57: return kThreadsPerCu;
    case 59: return kMemoryBusBits;
    case 60: return kMemoryClockKhz;
    case 61: return 4;
    case 63: case 10015: return kNumCus;
    case 71: case 72: return kRegisters;
    case 74: case 75: case 10002: return kLdsBytes;
    case 85: return 1;                           // unified addresses
    case 87: return kLanes;
    case 10017: return 100000;                   // wall clock, kHz
    default: throw Fault("device attribute " + std::to_string(which) + " is not known to the simulator");
  }
}

}  // namespace

int current_device() { return current; }

Error check_device(int device) {
  if (device >= 0 && device < num_devices) return kSuccess;
  return set_error(kInvalidDevice, "device " + std::to_string(device) + " of " + std::to_string(num_devices));
}

// How many devices the process has; those in use stay in use.
HIP_API void aiter_like_sim_set_devices(u32 count) { num_devices = static_cast<int>(count); }

HIP_API int hipInit(u32) { return kSuccess; }

HIP_API int hipGetDeviceCount(int* count) {
  *count = num_devices;
  return kSuccess;
}

HIP_API int hipGetDevice(int* device) {
  *device = current;
  return kSuccess;
}

HIP_API int hipSetDevice(int device) {
  if (const Error error = check_device(device)) return error;
  current = device;
  return kSuccess;
}

HIP_API int hipDeviceSynchronize() {
  if (const Error error = lost()) return error;
  if (const Error error = forbidden_in_capture("hipDeviceSynchronize")) return error;
  return deferring() ? finish_all() : kSuccess;
}

HIP_API int hipDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const Error error = check_device(device)) return error;
  if (const Error error = check_device(peer)) return error;
  *can = device != peer;
  return kSuccess;
}

HIP_API int hipDeviceEnablePeerAccess(int peer, u32) {
  if (const Error error = check_device(peer)) return error;
  if (peer == current) return set_error(kInvalidDevice, "a device is not its own peer");
  const std::lock_guard lock(peers().mutex);
  return peers().enabled.insert({current, peer}).second ? kSuccess : set_error(kPeerAccessEnabled);
}

HIP_API int hipDeviceDisablePeerAccess(int peer) {
  if (const Error error = check_device(peer)) return error;
  const std::lock_guard lock(peers().mutex);
  return peers().enabled.erase({current, peer}) ? kSuccess : set_error(kPeerAccessNotEnabled);
}

HIP_API int hipDeviceGet(int* handle, int device) {
  *handle = device;
  return check_device(device);
}

HIP_API int hipDeviceGetName(char* name, int bytes, int device) {
  if (bytes > 0) {
    std::strncpy(name, kName, static_cast<size_t>(bytes));
    name[bytes - 1] = '\0';
  }
  return check_device(device);
}

HIP_API int hipDeviceTotalMem(size_t* bytes, int device) {
  *bytes = kMemoryBytes;
  return check_device(device);
}

HIP_API int hipGetDevicePropertiesR0600(void* properties, int device) {
  if (!properties) return set_error(kInvalidValue, "the properties' address is null");
  fill_properties(static_cast<u8*>(properties));
  return check_device(device);
}

HIP_API int hipDeviceGetAttribute(int* value, int which, int device) {
  return guarded(kInvalidValue, [&] {
    *value = attribute(which);
    return check_device(device);
  });
}

HIP_API int hipRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

HIP_API int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

HIP_API int hipMemGetInfo(size_t* free_bytes, size_t* total) {
  if (free_bytes) *free_bytes = kMemoryBytes - memory().in_use_bytes();
  if (total) *total = kMemoryBytes;
  return kSuccess;
}

// A function of this library by name. `status` 1 = not found. hipGetDeviceProperties is a macro in HIP's headers.
HIP_API int hipGetProcAddress(const char* symbol, void** address, int, u64, int* status) {
  return guarded(kNotFound, [&] {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&hipInit), &self);
    void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library) throw Fault("the simulator's library cannot be opened by its own name");
    const bool properties = std::strcmp(symbol, "hipGetDeviceProperties") == 0;
    *address = dlsym(library, properties ? "hipGetDevicePropertiesR0600" : symbol);
    dlclose(library);
    if (status) *status = *address ? 0 : 1;
    if (!*address) throw Fault(std::string("the simulator has no function ") + symbol);
    return kSuccess;
  });
}

}  // namespace sim::hip
