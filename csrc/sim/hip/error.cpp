// SPDX-License-Identifier: MIT
// Errors: the calling thread's last one, with the simulator's own words for it.
#include "hip/hip.h"

#include <atomic>

namespace sim::hip {
namespace {

struct Last {
  Error error = kSuccess;                        // what hipGetLastError returns
  Error described = kSuccess;                    // the error that `message` is about
  std::string message;
};
thread_local Last last;

std::atomic<bool> is_lost{false};
std::mutex lost_mutex;
std::string* why_lost = new std::string;         // needs lost_mutex; threads may ask while the process ends

struct Name {
  Error error;
  const char *name, *text;
};
constexpr Name kNames[] = {
    {kSuccess, "hipSuccess", "no error"},
    {kInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {kInvalidConfiguration, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {kInvalidSymbol, "hipErrorInvalidSymbol", "invalid device symbol"},
    {kMissingConfiguration, "hipErrorMissingConfiguration", "__global__ function call is not configured"},
    {kInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {kInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {kInvalidContext, "hipErrorInvalidContext", "invalid device context"},
    {kUnsupportedLimit, "hipErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {kFileNotFound, "hipErrorFileNotFound", "file not found"},
    {kInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {kNotFound, "hipErrorNotFound", "named symbol not found"},
    {kNotReady, "hipErrorNotReady", "device not ready"},
    {kIllegalState, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {kPeerAccessEnabled, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {kPeerAccessNotEnabled, "hipErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {kHostMemoryRegistered, "hipErrorHostMemoryAlreadyRegistered", "memory is already registered"},
    {kHostMemoryNotRegistered, "hipErrorHostMemoryNotRegistered", "memory is not registered"},
    {kCooperativeTooLarge, "hipErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {kCaptureUnsupported, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "hipErrorStreamCaptureInvalidated", "operation failed due to an earlier capture error"},
    {kCaptureMerge, "hipErrorStreamCaptureMerge", "operation would merge two captures"},
    {kCaptureUnmatched, "hipErrorStreamCaptureUnmatched", "capture was not ended in the stream it began in"},
    {kCaptureUnjoined, "hipErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {kCaptureIsolation, "hipErrorStreamCaptureIsolation", "dependency on work outside the capture"},
    {kCaptureImplicit, "hipErrorStreamCaptureImplicit", "operation would make the default stream wait for a capture"},
    {kCapturedEvent, "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capture"},
    {kCaptureWrongThread, "hipErrorStreamCaptureWrongThread", "capture was begun by another thread"},
    {kExecUpdateFailure, "hipErrorGraphExecUpdateFailure", "the graph update was not performed"},
    {kInvalidChannel, "hipErrorInvalidChannelDescriptor", "invalid channel descriptor"},
    {kLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {kNotSupported, "hipErrorNotSupported", "operation not supported"},
};

const Name* find(int error) {
  for (const Name& n : kNames) {
    if (n.error == error) return &n;
  }
  return nullptr;
}

}  // namespace

void describe_error(Error error, std::string message) {
  last.described = error;
  last.message = std::move(message);
}

Error set_error(Error error, std::string message) {
  if (error == kSuccess) return error;
  last.error = error;
  describe_error(error, std::move(message));
  return error;
}

const char* error_text(Error error) {
  if (error != kSuccess && error == last.described && !last.message.empty()) return last.message.c_str();
  const Name* n = find(error);
  return n ? n->text : "unknown error";
}

void lose_device(std::string why) {
  const std::lock_guard lock(lost_mutex);
  if (is_lost.exchange(true)) return;
  *why_lost = std::move(why);
}

Error lost() {
  if (!is_lost) return kSuccess;
  const std::lock_guard lock(lost_mutex);
  return set_error(kLaunchFailure, *why_lost);
}

HIP_API int hipGetLastError() {
  if (const Error error = lost()) return error;
  const int error = last.error;
  last.error = kSuccess;
  return error;
}

HIP_API int hipPeekAtLastError() {
  const Error error = lost();
  return error ? error : last.error;
}

HIP_API int hipExtGetLastError() { return hipGetLastError(); }

HIP_API const char* hipGetErrorName(int error) {
  const Name* n = find(error);
  return n ? n->name : "hipErrorUnknown";
}

// The text is the simulator's own for this thread's last failure, and valid until the thread's next one.
HIP_API const char* hipGetErrorString(int error) { return error_text(static_cast<Error>(error)); }

HIP_API int hipDrvGetErrorName(int error, const char** name) {
  *name = hipGetErrorName(error);
  return kSuccess;
}

HIP_API int hipDrvGetErrorString(int error, const char** text) {
  *text = hipGetErrorString(error);
  return kSuccess;
}

}  // namespace sim::hip
