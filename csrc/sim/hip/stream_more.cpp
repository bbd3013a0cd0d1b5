// SPDX-License-Identifier: MIT
// Attributes of streams, and work of a stream that waits for a value in memory or writes one.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "hip/defer.h"
#include "run/memory.h"

namespace sim::hip {
namespace {

constexpr int kWindow = 1, kSyncPolicy = 3, kPriority = 8, kDomainMap = 9, kDomain = 10;     // hipLaunchAttributeID
constexpr int kAutomatic = 1;                    // hipSyncPolicyAuto
constexpr u32 kGreaterOrEqual = 0, kEqual = 1, kAnd = 2, kNor = 3;                           // hipStreamWaitValue*
constexpr int kWait32 = 1, kWrite32 = 2, kFlush = 3, kWait64 = 4, kWrite64 = 5, kBarrier = 6; // hipStreamMemOp*
constexpr auto kPatience = std::chrono::seconds(5);

bool is_attribute(int which) {
  return which == kWindow || which == kSyncPolicy || which == kPriority || which == kDomainMap || which == kDomain;
}

struct MemoryOperation {                         // hipStreamBatchMemOpParams: a wait and a write look alike
  int operation, padding;
  void* address;
  u64 value;
  u32 flags;
  void* alias;
};
static_assert(sizeof(MemoryOperation) <= 48);

template <class T>
bool holds(T found, T value, u32 how) {
  switch (how) {
    case kGreaterOrEqual: return static_cast<std::make_signed_t<T>>(found - value) >= 0;
    case kEqual: return found == value;
    case kAnd: return (found & value) != 0;
    default: return static_cast<T>(~(found | value)) != 0;
  }
}

// Work of streams is done when it is submitted: what is waited for has been written before, or another host thread
// writes it. A program that submits the write afterwards is told, instead of waiting for ever.
template <class T>
Error wait_value(void* stream, void* address, T value, u32 how, T mask) {
  if (!address || reinterpret_cast<u64>(address) % sizeof(T)) {
    return set_error(kInvalidValue, "the address of the value is null or not aligned");
  }
  if (how > kNor) return set_error(kInvalidValue, "this condition is none of hipStreamWaitValue*");
  return guarded(kInvalidHandle, [&] {
    return submit(stream, NodeKind::memory_operation, [=] {
      const auto end = std::chrono::steady_clock::now() + kPatience;
      const std::atomic_ref<T> place(*static_cast<T*>(address));
      while (!holds<T>(place.load() & mask, value, how)) {
        if (std::chrono::steady_clock::now() > end) {
          return set_error(kLaunchFailure, "hipStreamWaitValue: the value does not come. The simulator does work when "
                                           "it is submitted: submit the write before the wait");
        }
        std::this_thread::yield();
      }
      return kSuccess;
    });
  });
}

template <class T>
Error write_value(void* stream, void* address, T value) {
  if (!address || reinterpret_cast<u64>(address) % sizeof(T)) {
    return set_error(kInvalidValue, "the address of the value is null or not aligned");
  }
  return guarded(kInvalidHandle, [&] {
    return submit(stream, NodeKind::memory_operation, [=] {
      std::atomic_ref<T>(*static_cast<T*>(address)).store(value);
      memory().set_defined(reinterpret_cast<u64>(address), sizeof(T));
      return kSuccess;
    });
  });
}

}  // namespace

HIP_API int hipStreamSetAttribute(void* handle, int which, const void* value) {
  if (!value || !is_attribute(which)) return set_error(kInvalidValue, "no value, or no attribute of a stream");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    Attributes& all = attributes_of(find_stream(handle));
    std::memcpy(all[which].data(), value, all[which].size());
    return kSuccess;
  });
}

HIP_API int hipStreamGetAttribute(void* handle, int which, void* value) {
  if (!value || !is_attribute(which)) return set_error(kInvalidValue, "no address, or no attribute of a stream");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    const Attributes& all = attributes_of(find_stream(handle));
    const auto set = all.find(which);
    std::array<char, 64> found{};
    const int unset = which == kSyncPolicy ? kAutomatic : which == kPriority && stream ? stream->priority : 0;
    std::memcpy(found.data(), &unset, sizeof unset);
    if (set != all.end()) found = set->second;
    std::memcpy(value, found.data(), found.size());
    return kSuccess;
  });
}

HIP_API int hipStreamCopyAttributes(void* to, void* from) {
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    const Attributes all = attributes_of(find_stream(from));
    attributes_of(find_stream(to)) = all;
    return kSuccess;
  });
}

HIP_API int hipStreamGetId(void* handle, unsigned long long* id) {
  if (!id) return set_error(kInvalidValue, "the result's address is null");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    *id = stream ? stream->id : 0;
    return kSuccess;
  });
}

HIP_API int hipGetStreamDeviceId(void* stream) {
  int device = -1;
  guarded(kInvalidHandle, [&] {
    device = device_of(stream);
    return kSuccess;
  });
  return device;
}

HIP_API int hipExtStreamGetCUMask(void* handle, u32 words, u32* mask) {
  if (!mask || words == 0) return set_error(kInvalidValue, "there is no room for the mask");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    for (u32 i = 0; i < words; ++i) {
      const int left = kNumCus - 32 * static_cast<int>(i);
      const u32 all = left >= 32 ? ~u32{0} : left > 0 ? (u32{1} << left) - 1 : 0;
      const bool is_masked = stream && !stream->cu_mask.empty();
      mask[i] = !is_masked ? all : i < stream->cu_mask.size() ? stream->cu_mask[i] & all : 0;
    }
    return kSuccess;
  });
}

// Managed memory is visible to every stream.
HIP_API int hipStreamAttachMemAsync(void* stream, void* memory, size_t, u32) {
  if (!memory) return set_error(kInvalidValue, "the memory is null");
  return guarded(kInvalidHandle, [&] { return submit(stream, NodeKind::empty, [] { return kSuccess; }); });
}

HIP_API int hipStreamWaitValue32(void* stream, void* address, u32 value, u32 how, u32 mask) {
  return wait_value<u32>(stream, address, value, how, mask);
}
HIP_API int hipStreamWaitValue64(void* stream, void* address, u64 value, u32 how, u64 mask) {
  return wait_value<u64>(stream, address, value, how, mask);
}
HIP_API int hipStreamWriteValue32(void* stream, void* address, u32 value, u32) {
  return write_value<u32>(stream, address, value);
}
HIP_API int hipStreamWriteValue64(void* stream, void* address, u64 value, u32) {
  return write_value<u64>(stream, address, value);
}

HIP_API int hipStreamBatchMemOp(void* stream, u32 count, const void* operations, u32) {
  if (count && !operations) return set_error(kInvalidValue, "the operations are null");
  for (u32 i = 0; i < count; ++i) {
    MemoryOperation o;
    std::memcpy(&o, static_cast<const u8*>(operations) + 48 * i, sizeof o);
    Error error = kSuccess;
    switch (o.operation) {
      case kWait32: error = wait_value<u32>(stream, o.address, static_cast<u32>(o.value), o.flags, ~u32{0}); break;
      case kWait64: error = wait_value<u64>(stream, o.address, o.value, o.flags, ~u64{0}); break;
      case kWrite32: error = write_value<u32>(stream, o.address, static_cast<u32>(o.value)); break;
      case kWrite64: error = write_value<u64>(stream, o.address, o.value); break;
      case kFlush: case kBarrier: break;         // memory is one and coherent
      default: error = set_error(kInvalidValue, "this operation is none of hipStreamMemOp*");
    }
    if (error) return error;
  }
  return kSuccess;
}

}  // namespace sim::hip
