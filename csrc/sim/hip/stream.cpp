// SPDX-License-Identifier: MIT
// Streams and events. Work is done when it is submitted, so that waiting for it is immediate; events measure host time.
#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "hip/defer.h"

namespace sim::hip {
namespace {

using Time = std::chrono::steady_clock;
constexpr u32 kNonBlocking = 1;                  // hipStreamNonBlocking
constexpr u32 kBlockingSync = 1, kNoTiming = 2, kInterprocess = 4;                   // hipEvent*
constexpr u32 kNoFence = 0x20000000, kToDevice = 0x40000000, kToSystem = 0x80000000;  // at most one of these
constexpr int kLowest = 1, kHighest = -1;        // priorities of streams
// Handles that are numbers: the default stream by name, and the calling thread's own.
const auto kLegacy = reinterpret_cast<void*>(1), kPerThread = reinterpret_cast<void*>(2);

struct Event {
  u32 flags;
  bool recorded = false;
  Time::time_point time;
  CapturedPoint point;                           // when it was recorded last by a capturing stream
  DeferredPtr deferred;                          // … on a stream whose work is deferred
};

struct Handles {
  std::unordered_set<void*> streams, events;
};

Handles& handles() {
  static Handles* instance = new Handles;
  return *instance;
}

Event& find_event(void* handle) {                // needs stream_mutex()
  if (!handles().events.count(handle)) throw Fault("this is not a live event");
  return *static_cast<Event*>(handle);
}

Error create_stream(void** out, u32 flags, int priority) {
  if (!out) return set_error(kInvalidValue, "the stream's address is null");
  if (flags & ~kNonBlocking) return set_error(kInvalidValue, "a stream has no flag but hipStreamNonBlocking");
  auto* stream = new Stream{flags, std::clamp(priority, kHighest, kLowest), current_device(), nullptr, {}};
  const std::lock_guard lock(stream_mutex());
  handles().streams.insert(stream);
  *out = stream;
  return kSuccess;
}

enum class Wait { to_the_end, ask };

// Waiting for a stream or event that is part of a capture ends the capture.
Error wait(void* handle, const char* call, Wait how = Wait::to_the_end) {
  if (const Error error = lost()) return error;
  return guarded(kInvalidHandle, [&] {
    const Stream* stream = nullptr;
    {
      const std::lock_guard lock(stream_mutex());
      stream = find_stream(handle);
      if (stream && stream->capture) {
        stream->capture->broken = std::string(call) + " was called on a capturing stream";
        return set_error(kCaptureUnsupported, stream->capture->broken);
      }
    }
    if (!deferring()) return kSuccess;
    return how == Wait::ask ? advance(stream) : finish(stream);
  });
}

Error wait_for_event(void* handle, Wait how = Wait::to_the_end) {
  if (const Error error = lost()) return error;
  return guarded(kInvalidHandle, [&] {
    DeferredPtr deferred;
    {
      const std::lock_guard lock(stream_mutex());
      const Event& event = find_event(handle);
      if (event.point.capture) {
        return set_error(kCapturedEvent, "the event was recorded in a capture: it only happens inside the graph");
      }
      deferred = event.deferred;
    }
    return how == Wait::ask ? advance(deferred) : finish(deferred);
  });
}

}  // namespace

std::mutex& stream_mutex() {
  static std::mutex* instance = new std::mutex;
  return *instance;
}

Stream* find_stream(void* handle) {
  if (!handle || handle == kLegacy) return nullptr;
  if (handle == kPerThread) {
    thread_local Stream own;
    return &own;
  }
  if (!handles().streams.count(handle)) throw Fault("this is not a live stream");
  return static_cast<Stream*>(handle);
}

int device_of(void* handle) {
  if (!handle || handle == kLegacy || handle == kPerThread) return current_device();
  const std::lock_guard lock(stream_mutex());
  return find_stream(handle)->device;
}

HIP_API int hipStreamCreate(void** stream) { return create_stream(stream, 0, 0); }
HIP_API int hipStreamCreateWithFlags(void** stream, u32 flags) { return create_stream(stream, flags, 0); }
HIP_API int hipStreamCreateWithPriority(void** stream, u32 flags, int priority) {
  return create_stream(stream, flags, priority);
}

HIP_API int hipStreamDestroy(void* handle) {
  return guarded(kInvalidHandle, [&] {
    if (!is_capturing(handle)) {
      if (const Error error = finish_stream(handle)) return error;
    }
    const std::lock_guard lock(stream_mutex());
    Stream* stream = find_stream(handle);
    if (!stream || handle == kPerThread) return set_error(kInvalidHandle, "the default stream cannot be destroyed");
    if (stream->capture) abandon(stream);
    handles().streams.erase(stream);
    delete stream;
    return kSuccess;
  });
}

// Those of the device that capture nothing are gone, with what they have to do done.
Error destroy_streams(int device) {
  std::vector<Stream*> own;
  {
    const std::lock_guard lock(stream_mutex());
    for (void* handle : handles().streams) {
      auto* stream = static_cast<Stream*>(handle);
      if (stream->device == device && !stream->capture) own.push_back(stream);
    }
  }
  for (Stream* stream : own) {
    if (const int error = hipStreamDestroy(stream)) return static_cast<Error>(error);
  }
  return kSuccess;
}

HIP_API int hipStreamSynchronize(void* stream) { return wait(stream, "hipStreamSynchronize"); }
HIP_API int hipStreamQuery(void* stream) { return wait(stream, "hipStreamQuery", Wait::ask); }

HIP_API int hipStreamWaitEvent(void* handle, void* event, u32 flags) {
  return guarded(kInvalidHandle, [&] {
    if (flags > 1) return set_error(kInvalidValue, "waiting has no flag but hipEventWaitExternal");
    const std::lock_guard lock(stream_mutex());
    Stream* stream = find_stream(handle);
    const Event& waited = find_event(event);
    const CapturedPoint& point = waited.point;
    if (!point.capture) {
      if (!stream || !stream->capture) {
        follow(stream, waited.deferred);
        return kSuccess;
      }
      stream->capture->broken = "a capturing stream waits for an event from outside its capture";
      return set_error(kCaptureIsolation, stream->capture->broken);
    }
    if (point.capture->ended) return set_error(kCapturedEvent, "the event was recorded in a capture that has ended");
    if (stream) return wait_for(stream, point);
    point.capture->broken = "the default stream waits for an event of a capture";
    return set_error(kCaptureImplicit, point.capture->broken);
  });
}

HIP_API int hipStreamGetFlags(void* handle, u32* flags) {
  return guarded(kInvalidHandle, [&] {
    if (!flags) return set_error(kInvalidValue, "the result's address is null");
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    *flags = stream ? stream->flags : 0;
    return kSuccess;
  });
}

HIP_API int hipStreamGetPriority(void* handle, int* priority) {
  return guarded(kInvalidHandle, [&] {
    if (!priority) return set_error(kInvalidValue, "the result's address is null");
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    *priority = stream ? stream->priority : 0;
    return kSuccess;
  });
}

HIP_API int hipStreamGetDevice(void* handle, int* device) {
  return guarded(kInvalidHandle, [&] {
    if (!device) return set_error(kInvalidValue, "the result's address is null");
    *device = device_of(handle);
    return kSuccess;
  });
}

// Every stream has all compute units.
HIP_API int hipExtStreamGetCUMask(void* handle, u32 words, u32* mask) {
  if (!mask || words == 0) return set_error(kInvalidValue, "there is no room for the mask");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    find_stream(handle);
    for (u32 i = 0; i < words; ++i) {
      const int left = kNumCus - 32 * static_cast<int>(i);
      mask[i] = left >= 32 ? ~u32{0} : left > 0 ? (u32{1} << left) - 1 : 0;
    }
    return kSuccess;
  });
}

HIP_API int hipGetStreamDeviceId(void* handle) {
  int device = -1;
  guarded(kInvalidHandle, [&] {
    device = device_of(handle);
    return kSuccess;
  });
  return device;
}

HIP_API int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = kLowest;
  if (greatest) *greatest = kHighest;
  return kSuccess;
}

HIP_API int hipLaunchHostFunc(void* stream, void (*fn)(void*), void* data) {
  if (!fn) return set_error(kInvalidValue, "the host function is null");
  return guarded(kInvalidHandle, [&] {
    const auto call = [fn, data] {
      fn(data);
      return kSuccess;
    };
    return submit(stream, NodeKind::host, call);
  });
}

HIP_API int hipStreamAddCallback(void* stream, void (*fn)(void*, int, void*), void* data, u32 flags) {
  if (!fn || flags) return set_error(kInvalidValue, "the callback is null, or has flags");
  if (const Error error = wait(stream, "hipStreamAddCallback")) return error;
  fn(stream, kSuccess, data);
  return kSuccess;
}

HIP_API int hipEventCreateWithFlags(void** out, u32 flags) {
  if (!out) return set_error(kInvalidValue, "the event's address is null");
  const u32 fence = flags & (kNoFence | kToDevice | kToSystem);
  if ((flags & ~fence & ~(kBlockingSync | kNoTiming | kInterprocess)) || (fence & (fence - 1))) {
    return set_error(kInvalidValue, "these flags of an event do not exist, or exclude each other");
  }
  if ((flags & kInterprocess) && !(flags & kNoTiming)) {
    return set_error(kInvalidValue, "an event of several processes has hipEventDisableTiming");
  }
  auto* event = new Event{flags, false, {}, {}, {}};
  const std::lock_guard lock(stream_mutex());
  handles().events.insert(event);
  *out = event;
  return kSuccess;
}

HIP_API int hipEventCreate(void** event) { return hipEventCreateWithFlags(event, 0); }

HIP_API int hipEventDestroy(void* handle) {
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    Event* event = &find_event(handle);
    handles().events.erase(event);
    delete event;
    return kSuccess;
  });
}

u32 event_flags(void* handle) {
  const std::lock_guard lock(stream_mutex());
  return find_event(handle).flags;
}

Error record_event(void* handle, void* stream_handle) {
  if (const Error error = lost()) return error;
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    Event& event = find_event(handle);
    const Stream* stream = find_stream(stream_handle);
    event.point = {};
    event.deferred = nullptr;
    if (stream && stream->capture) event.point = {stream->capture, stream->clock, stream->last};
    else if (deferring()) event.deferred = defer(stream, [] { return kSuccess; });
    event.time = Time::now();
    event.recorded = true;
    return kSuccess;
  });
}

HIP_API int hipEventRecord(void* event, void* stream) { return record_event(event, stream); }
HIP_API int hipEventRecordWithFlags(void* event, void* stream, u32) { return hipEventRecord(event, stream); }
HIP_API int hipEventSynchronize(void* event) { return wait_for_event(event); }
HIP_API int hipEventQuery(void* event) { return wait_for_event(event, Wait::ask); }

HIP_API int hipEventElapsedTime(float* ms, void* start, void* stop) {
  if (!ms) return set_error(kInvalidValue, "the result's address is null");
  return guarded(kInvalidHandle, [&] {
    const std::lock_guard lock(stream_mutex());
    const Event &a = find_event(start), &b = find_event(stop);
    if (!a.recorded || !b.recorded) return set_error(kInvalidHandle, "an event was not recorded");
    if ((a.flags | b.flags) & kNoTiming) return set_error(kInvalidHandle, "an event was created without timing");
    if (a.point.capture || b.point.capture) return set_error(kCapturedEvent, "an event was recorded in a capture");
    if (!is_done(a.deferred) || !is_done(b.deferred)) return kNotReady;
    const Time::time_point from = a.deferred ? done_at(a.deferred) : a.time;
    const Time::time_point to = b.deferred ? done_at(b.deferred) : b.time;
    *ms = std::chrono::duration<float, std::milli>(to - from).count();
    return kSuccess;
  });
}

}  // namespace sim::hip
