// SPDX-License-Identifier: MIT
// What may be asked or set of a device besides its properties.
#include <array>
#include <cstdio>
#include <cstring>

#include "hip/defer.h"
#include "hip/device.h"
#include "hip/memory.h"

extern "C" int hipDeviceSynchronize();

namespace sim::hip {
namespace {

constexpr int kMaxDevices = 64;
constexpr u32 kMapHost = 8, kAllFlags = 0x1f;    // hipDeviceMapHost; all of hipDeviceSchedule*, MapHost, LmemResize
constexpr u32 kNoCache = 0, kFourByteBanks = 1;  // hipFuncCachePreferNone, hipSharedMemBankSizeFourByte
constexpr int kStack = 0, kHeap = 2, kScratchMin = 0x1000, kScratchMax = 0x1001,
              kScratchCurrent = 0x1002;          // hipLimit_t
constexpr size_t kLargestStack = 131056;         // 128 Ki − 16
constexpr int kXgmi = 4;                         // HSA_AMD_LINK_INFO_TYPE_XGMI

struct DeviceState {
  u32 flags = kMapHost;
  size_t stack = 1024, heap = 4 << 20, scratch = 64 << 20;
};

struct State {
  std::mutex mutex;
  std::array<DeviceState, kMaxDevices> devices;
};

State& state() {
  static State* instance = new State;
  return *instance;
}

template <class T>
Error give(T* out, T value) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  *out = value;
  return kSuccess;
}

template <class T>
Error give_of_device(T* out, T value, int device) {
  if (const Error error = check_device(device)) return error;
  return give(out, value);
}

size_t* limit_of(DeviceState& d, int which) {
  switch (which) {
    case kStack: return &d.stack;
    case kHeap: return &d.heap;
    case kScratchCurrent: return &d.scratch;
    default: return nullptr;
  }
}

}  // namespace

size_t stack_limit() {
  const std::lock_guard lock(state().mutex);
  return state().devices[current_device()].stack;
}

HIP_API int hipSetDeviceFlags(u32 flags) {
  if (flags & ~kAllFlags) return set_error(kInvalidValue, "these device flags do not exist");
  const std::lock_guard lock(state().mutex);
  state().devices[current_device()].flags = flags | kMapHost;
  return kSuccess;
}
HIP_API int hipGetDeviceFlags(u32* flags) {
  const std::lock_guard lock(state().mutex);
  return give(flags, state().devices[current_device()].flags);
}

// The current device as it was at first: its streams are gone, its memory is freed, what was set of it is unset.
// Modules stay, which belong to the process, and so does memory of the host.
HIP_API int hipDeviceReset() {
  if (const int error = hipDeviceSynchronize()) return error;
  const int device = current_device();
  if (const Error error = destroy_streams(device)) return error;
  free_memory_of(device);
  forget_peers(device);
  const std::lock_guard lock(state().mutex);
  state().devices[device] = {};
  return kSuccess;
}

HIP_API int hipDeviceGetCacheConfig(u32* config) { return give(config, kNoCache); }
HIP_API int hipDeviceSetCacheConfig(u32) { return kSuccess; }
HIP_API int hipDeviceGetSharedMemConfig(u32* config) { return give(config, kFourByteBanks); }
HIP_API int hipDeviceSetSharedMemConfig(u32) { return kSuccess; }
HIP_API int hipFuncSetSharedMemConfig(const void*, u32) { return kSuccess; }
HIP_API int hipProfilerStart() { return kSuccess; }
HIP_API int hipProfilerStop() { return kSuccess; }

HIP_API int hipDeviceGetLimit(size_t* out, int which) {
  const std::lock_guard lock(state().mutex);
  if (which == kScratchMin) return give<size_t>(out, 0);
  if (which == kScratchMax) return give<size_t>(out, size_t{1} << 32);
  const size_t* limit = limit_of(state().devices[current_device()], which);
  return limit ? give(out, *limit) : set_error(kUnsupportedLimit, "this limit is not one of the device");
}

// Scratch memory is as large as a kernel asks for: limits are remembered, and change nothing but the stack of kernels
// that call what their compiler does not know (launch_state.cpp).
HIP_API int hipDeviceSetLimit(int which, size_t value) {
  const std::lock_guard lock(state().mutex);
  size_t* limit = limit_of(state().devices[current_device()], which);
  if (!limit) return set_error(kUnsupportedLimit, "this limit cannot be set");
  if (which == kStack && value > kLargestStack) return set_error(kInvalidValue, "a stack has at most 131056 bytes");
  *limit = value;
  return kSuccess;
}

HIP_API int hipDeviceComputeCapability(int* major, int* minor, int device) {
  if (const Error error = give_of_device(major, 9, device)) return error;
  return give(minor, 4);
}

HIP_API int hipDeviceGetUuid(void* uuid, int device) {
  if (!uuid) return set_error(kInvalidValue, "the UUID's address is null");
  if (const Error error = check_device(device)) return error;
  const std::string text = uuid_of(device);
  std::memcpy(uuid, text.data(), 16);
  return kSuccess;
}

HIP_API int hipDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!text || bytes <= 0) return set_error(kInvalidValue, "there is no room for the bus ID");
  if (const Error error = check_device(device)) return error;
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", pci_bus_of(device));
  return kSuccess;
}

HIP_API int hipDeviceGetByPCIBusId(int* device, const char* text) {
  if (!device || !text) return set_error(kInvalidValue, "the bus ID or the device's address is null");
  u32 domain = 0, bus = 0, slot = 0, function = 0;
  if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    return set_error(kInvalidValue, "this is no bus ID such as 0000:05:00.0");
  }
  for (int i = 0; i < num_devices(); ++i) {
    if (domain == 0 && slot == 0 && function == 0 && pci_bus_of(i) == bus) return give(device, i);
  }
  return set_error(kInvalidValue, std::string("no device has the bus ID ") + text);
}

// Numbers of hipDeviceP2PAttr: performance rank, access, atomics, arrays. All devices share the host's memory.
HIP_API int hipDeviceGetP2PAttribute(int* value, int which, int from, int to) {
  if (const Error error = check_device(from)) return error;
  if (const Error error = check_device(to)) return error;
  if (from == to) return set_error(kInvalidDevice, "a device is not its own peer");
  if (which < 0 || which > 3) return set_error(kInvalidValue, "this attribute of two devices does not exist");
  return give(value, which == 0 ? 0 : 1);
}

HIP_API int hipExtGetLinkTypeAndHopCount(int from, int to, u32* type, u32* hops) {
  if (const Error error = check_device(from)) return error;
  if (const Error error = check_device(to)) return error;
  if (from == to) return set_error(kInvalidValue, "there is no link from a device to itself");
  if (const Error error = give<u32>(type, kXgmi)) return error;
  return give<u32>(hops, 1);
}

}  // namespace sim::hip
