// SPDX-License-Identifier: MIT
// Streams and events. Work is done when it is submitted, so that waiting for it is immediate; events measure host time.
#include <chrono>

#include "hip/hip.h"

namespace sim::hip {
namespace {

using Clock = std::chrono::steady_clock;

struct Stream { u32 flags; int priority; };
struct Event { Clock::time_point time; bool recorded = false; };

Error create_stream(void** stream, u32 flags, int priority) {
  if (!stream) return set_error(kInvalidValue, "the stream's address is null");
  *stream = new Stream{flags, priority};
  return kSuccess;
}

}  // namespace

HIP_API int hipStreamCreate(void** stream) { return create_stream(stream, 0, 0); }
HIP_API int hipStreamCreateWithFlags(void** stream, u32 flags) { return create_stream(stream, flags, 0); }
HIP_API int hipStreamCreateWithPriority(void** stream, u32 flags, int priority) {
  return create_stream(stream, flags, priority);
}

HIP_API int hipStreamDestroy(void* stream) {
  if (!stream) return set_error(kInvalidHandle, "the default stream cannot be destroyed");
  delete static_cast<Stream*>(stream);
  return kSuccess;
}

HIP_API int hipStreamSynchronize(void*) { return kSuccess; }
HIP_API int hipStreamQuery(void*) { return kSuccess; }

HIP_API int hipStreamWaitEvent(void*, void* event, u32) {
  return event ? kSuccess : set_error(kInvalidHandle, "the event is null");
}

HIP_API int hipStreamGetFlags(void* stream, u32* flags) {
  *flags = stream ? static_cast<Stream*>(stream)->flags : 0;
  return kSuccess;
}

HIP_API int hipStreamGetPriority(void* stream, int* priority) {
  *priority = stream ? static_cast<Stream*>(stream)->priority : 0;
  return kSuccess;
}

HIP_API int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 1;
  if (greatest) *greatest = -1;
  return kSuccess;
}

// Graph capture is not simulated: no stream is ever capturing.
HIP_API int hipStreamIsCapturing(void*, int* status) {
  *status = 0;
  return kSuccess;
}

HIP_API int hipEventCreateWithFlags(void** event, u32) {
  *event = new Event;
  return kSuccess;
}

HIP_API int hipEventCreate(void** event) { return hipEventCreateWithFlags(event, 0); }

HIP_API int hipEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}

HIP_API int hipEventRecord(void* event, void*) {
  if (!event) return set_error(kInvalidHandle, "the event is null");
  *static_cast<Event*>(event) = {Clock::now(), true};
  return kSuccess;
}

HIP_API int hipEventSynchronize(void*) { return kSuccess; }
HIP_API int hipEventQuery(void*) { return kSuccess; }

HIP_API int hipEventElapsedTime(float* ms, void* start, void* stop) {
  const auto *a = static_cast<Event*>(start), *b = static_cast<Event*>(stop);
  if (!a || !b || !a->recorded || !b->recorded) return set_error(kInvalidHandle, "an event was not recorded");
  *ms = std::chrono::duration<float, std::milli>(b->time - a->time).count();
  return kSuccess;
}

}  // namespace sim::hip
