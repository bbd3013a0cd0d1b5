// SPDX-License-Identifier: MIT
// What the samples share: a call that must succeed, an array on the device, and a comparison that counts.
#pragma once
#include <hip/hip_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define HIP_CALL(call)                                                                              \
  do {                                                                                              \
    if (const hipError_t error = (call); error != hipSuccess) {                                     \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, hipGetErrorString(error));            \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (0)

template <class T>
struct OnDevice {
  T* data = nullptr;
  size_t count;
  explicit OnDevice(size_t count) : count(count) {
    HIP_CALL(hipMalloc(&data, count * sizeof(T)));
    HIP_CALL(hipMemset(data, 0, count * sizeof(T)));
  }
  explicit OnDevice(const std::vector<T>& from) : count(from.size()) {
    HIP_CALL(hipMalloc(&data, count * sizeof(T)));
    HIP_CALL(hipMemcpy(data, from.data(), count * sizeof(T), hipMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { (void)hipFree(data); }
  std::vector<T> get() const {
    std::vector<T> result(count);
    HIP_CALL(hipMemcpy(result.data(), data, count * sizeof(T), hipMemcpyDeviceToHost));
    return result;
  }
};

// Numbers from -1 to 1, the same in each run.
inline std::vector<float> numbers(size_t count, unsigned seed) {
  std::vector<float> result(count);
  for (float& x : result) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / 8388608.f - 1.f;
  }
  return result;
}

// Prints and returns how many of `found` are further than `bound` from `expected`.
template <class T, class Expected>
int wrong(const char* name, const std::vector<T>& found, Expected expected, double bound) {
  int count = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    count += !(std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected(i))) <= bound);
  }
  std::printf("%s: %d of %zu wrong\n", name, count, found.size());
  return count;
}
