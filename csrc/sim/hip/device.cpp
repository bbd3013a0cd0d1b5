// SPDX-License-Identifier: MIT
// The devices: MI300X, all alike, with the numbers of AMD's data sheet (configs/gfx942/device.toml names the sources).
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>

#include "hip/defer.h"
#include "hip/device.h"
#include "run/memory.h"
#include "settings.h"

namespace sim::hip {
namespace {

constexpr const char* kName = "AMD Instinct MI300X (simulated)";
constexpr const char* kArch = "gfx942:sramecc+:xnack-";
constexpr u64 kMemoryBytes = u64{192} << 30;
constexpr int kVersion = 70100000;               // HIP 7.1, as hipRuntimeGetVersion encodes it
constexpr int kClockKhz = 2100000, kMemoryClockKhz = 1300000, kMemoryBusBits = 8192;
constexpr int kWallClockKhz = 100000;
constexpr int kL2Bytes = 4 << 20, kLdsBytes = 65536, kRegisters = 65536, kMaxBlock = 1024, kThreadsPerCu = 2048;
constexpr int kMaxGrid = 0x7fffffff, kBlocksPerCu = 32, kAlignment = 256, kPciChip = 0x74a1;
constexpr u32 kFirstBus = 5;
// Bits of hipDeviceArch_t: all but funnel shifts, __syncthreads_*() of CUDA's kind, surfaces, launches by kernels.
constexpr u32 kArchFeatures = 0x1ffff & ~(1u << 11 | 1u << 13 | 1u << 14 | 1u << 16);
constexpr int kCopyQueues = 8;                   // ROCm says this for any device
constexpr int kPosixFile = 1;                    // hipMemHandleTypePosixFileDescriptor

std::atomic<int> count_of_devices{static_cast<int>(initial_devices())};
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
void fill_properties(u8* p, int device) {
  std::memset(p, 0, kPropertiesBytes);
  std::strcpy(reinterpret_cast<char*>(p), kName);
  std::memcpy(p + 256, uuid_of(device).data(), 16);
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
  put<u64>(p, 368, kAlignment);                  // alignment of textures, and of their rows
  put<u64>(p, 376, kAlignment);
  put<int>(p, 384, 1);                           // copies while a kernel runs
  put<int>(p, 388, kNumCus);
  put<int>(p, 400, 1);                           // maps host memory
  put<u64>(p, 568, kAlignment);                  // alignment of surfaces
  put<int>(p, 576, 1);                           // concurrent kernels
  put<int>(p, 584, static_cast<int>(pci_bus_of(device)));
  put<int>(p, 600, kCopyQueues);
  put<int>(p, 604, 1);                           // unified addresses
  put<int>(p, 608, kMemoryClockKhz);
  put<int>(p, 612, kMemoryBusBits);
  put<int>(p, 616, kL2Bytes);
  put<int>(p, 620, kL2Bytes);                    // … the part that persisting accesses may have
  put<int>(p, 624, kThreadsPerCu);
  put<int>(p, 628, 1);                           // priorities of streams
  put<int>(p, 632, 1);                           // L1 caches global memory, and a work-item's own
  put<int>(p, 636, 1);
  put<u64>(p, 640, kLdsBytes);                   // per CU
  put<int>(p, 648, kRegisters);
  put<int>(p, 652, 1);                           // managed memory
  put<int>(p, 664, 1);                           // atomics in the host's memory
  put<int>(p, 676, 1);                           // managed memory while a kernel uses it
  put<int>(p, 684, 1);                           // registered host memory: its own address
  put<int>(p, 688, 1);                           // cooperative launch
  put<u64>(p, 696, kLdsBytes);                   // per block that opts in
  put<int>(p, 712, kBlocksPerCu);
  put<int>(p, 728, 1);                           // registers host memory
  put<int>(p, 744, 1);                           // memory pools
  put<int>(p, 760, kPosixFile);
  put<int>(p, 768, 1);                           // events of other processes
  std::strcpy(reinterpret_cast<char*>(p + 1160), kArch);
  put<u64>(p, 1416, kLdsBytes);
  put<int>(p, 1424, kWallClockKhz);
  put<u32>(p, 1428, kArchFeatures);
  put<int>(p, 1464, 1);                          // all memory in one window
}

// Numbers of hipDeviceAttribute_t.
int attribute(int which, int device) {
  if (which >= 32 && which <= 54) return 0;      // the largest textures and surfaces: there are none
  switch (which) {
    case 21: case 92: case 93: case 94: case 95: return 0;     // Windows' number, DMA-BUF, RDMA, fabric: none
    case 10005: case 10006: case 10007: case 10008: case 10009: case 10010: case 10012: case 10021:
    case 10022: return 0;
    case 0: case 1: case 6: case 7: case 11: case 13: return 0;  // "no" or "none", as in the properties
    case 16: case 17: case 18: case 22: return 0;
    case 62: case 65: case 66: case 68: case 69: case 73: case 77: case 80: return 0;
    case 2: return kCopyQueues;
    case 12: case 14: case 15: case 20: return 1;  // copies while a kernel runs, L1, atomics in the host's memory
    case 3: case 4: case 24: return 1;           // host memory mapped, at its own address, managed memory
    case 5: return kClockKhz;
    case 8: case 9: return 1;                    // concurrent kernels, and managed memory at the same time
    case 10: return 1;                           // cooperative launch
    case 19: case 70: return kL2Bytes;
    case 23: return 9;
    case 25: return kBlocksPerCu;
    case 26: case 27: case 28: case 55: case 56: return kMaxBlock;
    case 29: return kMaxGrid;
    case 30: case 31: return 65536;
    case 57: return kThreadsPerCu;
    case 58: case 83: case 84: return kMaxGrid;  // pitch, constant memory; of all memory the most that an int holds
    case 59: return kMemoryBusBits;
    case 60: return kMemoryClockKhz;
    case 61: return 4;
    case 63: case 10015: return kNumCus;
    case 71: case 72: return kRegisters;
    case 67: return static_cast<int>(pci_bus_of(device));
    case 74: case 75: case 76: case 10002: return kLdsBytes;
    case 78: return 1;                           // priorities of streams
    case 79: case 81: case 82: return kAlignment;
    case 85: return 1;                           // unified addresses
    case 87: return kLanes;
    case 88: case 89: case 90: return 1;         // memory pools, virtual memory, registered host memory
    case 91: return kPosixFile;
    case 10000: case 10017: return kWallClockKhz;
    case 10011: case 10013: case 10016: return 1;  // one window, hipStreamWaitValue, fine-grained memory
    case 10014: return 0;                        // gfx942 has no image instructions
    case 10018: return 8;                        // XCDs
    case 10019: return 512;
    case 10020: return kPciChip;
    default: throw Fault("device attribute " + std::to_string(which) + " is not known to the simulator");
  }
}

}  // namespace

int current_device() { return current; }
int num_devices() { return count_of_devices; }
u32 pci_bus_of(int device) { return kFirstBus + static_cast<u32>(device); }

std::string uuid_of(int device) {
  char text[17];
  std::snprintf(text, sizeof text, "51b0%012x", device);
  return text;
}

Error check_device(int device) {
  if (device >= 0 && device < num_devices()) return kSuccess;
  return set_error(kInvalidDevice, "device " + std::to_string(device) + " of " + std::to_string(num_devices()));
}

// How many devices the process has; those in use stay in use.
HIP_API void aiter_like_sim_set_devices(u32 count) { count_of_devices = static_cast<int>(count); }

HIP_API int hipInit(u32) { return kSuccess; }

HIP_API int hipGetDeviceCount(int* count) {
  if (!count) return set_error(kInvalidValue, "the result's address is null");
  *count = num_devices();
  return kSuccess;
}

HIP_API int hipGetDevice(int* device) {
  if (!device) return set_error(kInvalidValue, "the result's address is null");
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
  if (!can) return set_error(kInvalidValue, "the result's address is null");
  if (const Error error = check_device(device)) return error;
  if (const Error error = check_device(peer)) return error;
  *can = device != peer;
  return kSuccess;
}

HIP_API int hipDeviceEnablePeerAccess(int peer, u32 flags) {
  if (flags) return set_error(kInvalidValue, "peer access has no flags");
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

void forget_peers(int device) {
  const std::lock_guard lock(peers().mutex);
  std::erase_if(peers().enabled, [&](const auto& pair) { return pair.first == device; });
}

HIP_API int hipDeviceGet(int* handle, int device) {
  if (!handle) return set_error(kInvalidValue, "the result's address is null");
  if (const Error error = check_device(device)) return error;
  *handle = device;
  return kSuccess;
}

HIP_API int hipDeviceGetName(char* name, int bytes, int device) {
  if (!name || bytes <= 0) return set_error(kInvalidValue, "there is no room for the name");
  if (const Error error = check_device(device)) return error;
  std::strncpy(name, kName, static_cast<size_t>(bytes));
  name[bytes - 1] = '\0';
  return kSuccess;
}

HIP_API int hipDeviceTotalMem(size_t* bytes, int device) {
  if (!bytes) return set_error(kInvalidValue, "the result's address is null");
  if (const Error error = check_device(device)) return error;
  *bytes = kMemoryBytes;
  return kSuccess;
}

HIP_API int hipGetDevicePropertiesR0600(void* properties, int device) {
  if (!properties) return set_error(kInvalidValue, "the properties' address is null");
  if (const Error error = check_device(device)) return error;
  fill_properties(static_cast<u8*>(properties), device);
  return kSuccess;
}

HIP_API int hipDeviceGetAttribute(int* value, int which, int device) {
  return guarded(kInvalidValue, [&] {
    if (!value) throw Fault("the result's address is null");
    if (const Error error = check_device(device)) return error;
    *value = attribute(which, device);
    return kSuccess;
  });
}

HIP_API int hipRuntimeGetVersion(int* version) {
  if (!version) return set_error(kInvalidValue, "the result's address is null");
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
    if (!symbol || !address) return set_error(kInvalidValue, "the function's name or the result's address is null");
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
