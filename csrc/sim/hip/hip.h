// SPDX-License-Identifier: MIT
// What the files of hip/ share: error codes, handles, and how a Fault becomes an error. The library exports exactly the
// functions marked HIP_API; names, signatures and values are those of HIP 7's public headers.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "hip/handles.h"
#include "load/loader.h"
#include "run/run.h"

#define HIP_API extern "C" __attribute__((visibility("default")))

namespace sim::hip {

enum Error : int {
  kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidConfiguration = 9, kInvalidPitch = 12,
  kInvalidSymbol = 13, kInvalidDirection = 21, kMissingConfiguration = 52, kInvalidDeviceFunction = 98,
  kInvalidDevice = 101, kInvalidImage = 200,
  kInvalidContext = 201, kUnsupportedLimit = 215, kFileNotFound = 301, kInvalidHandle = 400, kIllegalState = 401,
  kNotFound = 500, kNotReady = 600, kPeerAccessEnabled = 704, kPeerAccessNotEnabled = 705,
  kContextIsDestroyed = 709, kHostMemoryRegistered = 712, kHostMemoryNotRegistered = 713, kLaunchFailure = 719,
  kCooperativeTooLarge = 720,
  kNotSupported = 801, kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCaptureMerge = 902,
  kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905, kCaptureImplicit = 906,
  kCapturedEvent = 907, kCaptureWrongThread = 908, kExecUpdateFailure = 910, kInvalidChannel = 911, kUnknown = 999,
};

struct Dim3 { u32 x, y, z; };

// A registered code object. It is loaded at its first use, because most kernels of a library are never used. Each
// device has its own copy with its own variables.
class Module {
 public:
  Module(const void* image, u64 bytes, std::string name) : image_(image), bytes_(bytes), name_(std::move(name)) {}
  const Code& code(int device);

 private:
  const void* image_;
  u64 bytes_;
  std::string name_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Code>> code_;
  std::string failure_;                          // a module that does not load is not tried again
};

struct Function {
  const Code* code;
  const Kernel* kernel;
};

Error set_error(Error error, std::string message = "");
void describe_error(Error error, std::string message);    // text only: hipGetLastError does not see it
const char* error_text(Error error);
// After a kernel has failed, as hardware has it: later calls that launch, wait, copy or allocate fail with its error.
// Only where nobody takes the reports (settings().prints_reports): a Python program goes on after its exception.
void lose_device(std::string why);
Error lost();                                              // kSuccess, or the error, which it sets

// Runs body(), which returns an Error that it has set; an exception becomes `otherwise` with its text.
template <class Body>
Error guarded(Error otherwise, Body&& body) {
  try {
    return body();
  } catch (const BadShape& error) {
    return set_error(kInvalidConfiguration, error.what());
  } catch (const std::bad_alloc&) {
    return set_error(kOutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return set_error(otherwise, error.what());
  }
}

// The calling thread's device.
int current_device();
size_t stack_limit();                          // its hipLimitStackSize
Error check_device(int device);

// The kernel behind a host stub; throws Fault when none is registered there.
Function registered_function(const void* stub, int device = current_device());
// The pointers of a code object's __managed__ variables get their values: those of `at` by their names, and otherwise
// the code object's own memory.
void bind_managed(const Code& code, const std::map<std::string, u64>& at = {});
// A registered __device__ or __managed__ variable of the current device.
Variable registered_variable(const void* host);
// The kernel behind a hipFunction_t, and behind what may be one or a host stub; both throw Fault when it is neither.
const Function& function_of(const void* handle);
Function kernel_of(const void* stub_or_handle);

// Workgroups of one size that a compute unit holds at a time.
int max_groups_per_cu(const Kernel& kernel, u64 block, u64 dynamic_lds_bytes);
inline constexpr int kNumCus = 304;
inline constexpr u32 kLdsPerCu = 65536;

}  // namespace sim::hip
