// SPDX-License-Identifier: MIT
// Contexts, and what may be asked or set of a device besides its properties. A context is a device: it owns nothing, as
// on AMD's runtime, where memory and modules belong to the process.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "hip/defer.h"
#include "hip/device.h"
#include "hip/memory.h"

extern "C" {
int hipDeviceEnablePeerAccess(int peer, sim::u32 flags);
int hipDeviceDisablePeerAccess(int peer);
int hipDeviceSynchronize();
int hipRuntimeGetVersion(int* version);
int hipSetDevice(int device);
}

namespace sim::hip {
namespace {

constexpr int kMaxDevices = 64;
constexpr u32 kMapHost = 8, kAllFlags = 0x1f;    // hipDeviceMapHost; all of hipDeviceSchedule*, MapHost, LmemResize
constexpr u32 kNoCache = 0, kFourByteBanks = 1;  // hipFuncCachePreferNone, hipSharedMemBankSizeFourByte
constexpr int kStack = 0, kHeap = 2, kScratchMin = 0x1000, kScratchMax = 0x1001,
              kScratchCurrent = 0x1002;          // hipLimit_t
constexpr size_t kLargestStack = 131056;         // 128 Ki − 16
constexpr int kXgmi = 4;                         // HSA_AMD_LINK_INFO_TYPE_XGMI

struct Context {
  int device;
  u32 flags = kMapHost;
};

struct DeviceState {
  Context primary{0};
  int retained = 0;
  size_t stack, heap, scratch;
  DeviceState() { reset_limits(); }
  void reset_limits() { stack = 1024, heap = 4 << 20, scratch = 64 << 20; }
};

struct State {
  std::mutex mutex;
  std::array<DeviceState, kMaxDevices> devices;
  std::set<Context*> made;                       // hipCtxCreate made these
};

State& state() {
  static State* instance = [] {
    auto* made = new State;
    for (int i = 0; i < kMaxDevices; ++i) made->devices[i].primary.device = i;
    return made;
  }();
  return *instance;
}

thread_local std::vector<Context*> pushed;       // the last one is current, unless hipSetDevice has chosen another

Context* primary_of(int device) { return &state().devices[device].primary; }

bool is_live(const Context* context) {           // needs state().mutex
  const auto& devices = state().devices;
  return state().made.count(const_cast<Context*>(context)) ||
         std::any_of(devices.begin(), devices.end(), [&](const DeviceState& d) { return context == &d.primary; });
}

// drops contexts that another thread has destroyed; needs state().mutex
void drop_dead() {
  while (!pushed.empty() && !is_live(pushed.back())) pushed.pop_back();
}

Context* current_context() {
  const std::lock_guard lock(state().mutex);
  drop_dead();
  if (!pushed.empty() && pushed.back()->device == current_device()) return pushed.back();
  return primary_of(current_device());
}

// Needs state().mutex. Throws Fault.
Context& live(void* handle) {
  auto* context = static_cast<Context*>(handle);
  if (!is_live(context)) throw Fault("this is not a live context");
  return *context;
}

template <class Body>
Error with_context(void* handle, Body&& body) {
  return guarded(kInvalidContext, [&] {
    const std::lock_guard lock(state().mutex);
    return body(live(handle));
  });
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

HIP_API int hipCtxCreate(void** out, u32 flags, int device) {
  if (!out) return set_error(kInvalidValue, "the context's address is null");
  if (const Error error = check_device(device)) return error;
  auto* context = new Context{device, flags | kMapHost};
  {
    const std::lock_guard lock(state().mutex);
    state().made.insert(context);
  }
  pushed.push_back(context);
  *out = context;
  return hipSetDevice(device);
}

HIP_API int hipCtxDestroy(void* handle) {
  return with_context(handle, [&](Context& context) {
    if (!state().made.erase(&context)) return set_error(kInvalidContext, "a primary context is not destroyed");
    std::erase(pushed, &context);
    delete &context;
    return kSuccess;
  });
}

HIP_API int hipCtxSetCurrent(void* handle) {
  if (!handle) {
    if (!pushed.empty()) pushed.pop_back();
    return kSuccess;
  }
  return with_context(handle, [&](Context& context) {
    if (!pushed.empty()) pushed.pop_back();
    pushed.push_back(&context);
    return static_cast<Error>(hipSetDevice(context.device));
  });
}

HIP_API int hipCtxPushCurrent(void* handle) {
  return with_context(handle, [&](Context& context) {
    pushed.push_back(&context);
    return static_cast<Error>(hipSetDevice(context.device));
  });
}

HIP_API int hipCtxPopCurrent(void** out) {
  const std::lock_guard lock(state().mutex);
  drop_dead();
  if (pushed.empty()) return set_error(kInvalidContext, "no context has been pushed by this thread");
  if (out) *out = pushed.back();
  pushed.pop_back();
  drop_dead();
  return pushed.empty() ? kSuccess : static_cast<Error>(hipSetDevice(pushed.back()->device));
}

HIP_API int hipCtxGetCurrent(void** out) { return give<void*>(out, current_context()); }
HIP_API int hipCtxGetDevice(int* device) { return give(device, current_device()); }
HIP_API int hipCtxSynchronize() { return hipDeviceSynchronize(); }
HIP_API int hipCtxGetFlags(u32* flags) { return give(flags, current_context()->flags); }
HIP_API int hipCtxGetCacheConfig(u32* config) { return give(config, kNoCache); }
HIP_API int hipCtxSetCacheConfig(u32) { return kSuccess; }
HIP_API int hipCtxGetSharedMemConfig(u32* config) { return give(config, kFourByteBanks); }
HIP_API int hipCtxSetSharedMemConfig(u32) { return kSuccess; }

HIP_API int hipCtxGetApiVersion(void* handle, u32* version) {
  return with_context(handle, [&](Context&) {
    int number = 0;
    hipRuntimeGetVersion(&number);
    return give(version, static_cast<u32>(number));
  });
}

HIP_API int hipCtxEnablePeerAccess(void* handle, u32 flags) {
  return with_context(handle, [&](Context& peer) {
    return static_cast<Error>(hipDeviceEnablePeerAccess(peer.device, flags));
  });
}

HIP_API int hipCtxDisablePeerAccess(void* handle) {
  return with_context(handle, [&](Context& peer) {
    return static_cast<Error>(hipDeviceDisablePeerAccess(peer.device));
  });
}

HIP_API int hipDevicePrimaryCtxRetain(void** out, int device) {
  if (const Error error = check_device(device)) return error;
  const std::lock_guard lock(state().mutex);
  ++state().devices[device].retained;
  return give<void*>(out, primary_of(device));
}

HIP_API int hipDevicePrimaryCtxRelease(int device) {
  if (const Error error = check_device(device)) return error;
  const std::lock_guard lock(state().mutex);
  if (state().devices[device].retained > 0) --state().devices[device].retained;
  return kSuccess;
}

HIP_API int hipDevicePrimaryCtxReset(int device) { return check_device(device); }

HIP_API int hipDevicePrimaryCtxGetState(int device, u32* flags, int* active) {
  if (const Error error = check_device(device)) return error;
  const std::lock_guard lock(state().mutex);
  if (const Error error = give(flags, primary_of(device)->flags)) return error;
  return give(active, static_cast<int>(state().devices[device].retained > 0 || device == current_device()));
}

HIP_API int hipDevicePrimaryCtxSetFlags(int device, u32 flags) {
  if (const Error error = check_device(device)) return error;
  if (flags & ~kAllFlags) return set_error(kInvalidValue, "these device flags do not exist");
  const std::lock_guard lock(state().mutex);
  primary_of(device)->flags = flags | kMapHost;
  return kSuccess;
}

HIP_API int hipSetDeviceFlags(u32 flags) { return hipDevicePrimaryCtxSetFlags(current_device(), flags); }
HIP_API int hipGetDeviceFlags(u32* flags) { return give(flags, primary_of(current_device())->flags); }

// Only the numbers are checked: a thread may choose any device.
HIP_API int hipSetValidDevices(const int* devices, int count) {
  if (count < 0 || (count && !devices)) return set_error(kInvalidValue, "there is no list of devices");
  for (int i = 0; i < count; ++i) {
    if (const Error error = check_device(devices[i])) return error;
  }
  return kSuccess;
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
  state().devices[device].primary = {device};
  state().devices[device].reset_limits();
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

// The devices are all alike: the current one fits as well as any.
HIP_API int hipChooseDeviceR0600(int* device, const void* properties) {
  if (!properties) return set_error(kInvalidValue, "the properties are null");
  return give(device, current_device());
}

}  // namespace sim::hip
