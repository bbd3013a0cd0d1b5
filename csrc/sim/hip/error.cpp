// SPDX-License-Identifier: MIT
// Errors: the calling thread's last one, with the simulator's own words for it.
#include <atomic>

#include "hip/hip.h"

namespace sim::hip {
namespace {

struct ErrorName {
  int error;
  const char *name, *text;
};
constexpr ErrorName kErrorNames[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "hip/error_names.def"
#undef ERROR
};

struct Last {
  Error error = kSuccess;                        // hipGetLastError returns this
  Error described = kSuccess;                    // the error that `message` is about
  std::string message;
};
thread_local Last last;

std::atomic<bool> is_lost{false};
std::mutex lost_mutex;
std::string* why_lost = new std::string;         // needs lost_mutex; threads may ask while the process ends

const ErrorName* find(int error) {
  for (const ErrorName& n : kErrorNames) {
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
  const ErrorName* n = find(error);
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
  const ErrorName* n = find(error);
  return n ? n->name : "hipErrorUnknown";
}

// The text is the simulator's own for this thread's last failure, and valid until the thread's next one.
HIP_API const char* hipGetErrorString(int error) { return error_text(static_cast<Error>(error)); }

// These tell a number that is no error's from the others.
HIP_API int hipDrvGetErrorName(int error, const char** name) {
  if (!name || !find(error)) return set_error(kInvalidValue, "no error's number, or no address for the result");
  *name = hipGetErrorName(error);
  return kSuccess;
}

HIP_API int hipDrvGetErrorString(int error, const char** text) {
  if (!text || !find(error)) return set_error(kInvalidValue, "no error's number, or no address for the result");
  *text = hipGetErrorString(error);
  return kSuccess;
}

}  // namespace sim::hip
