// SPDX-License-Identifier: MIT
// Plain C++: axpy of a code object (aiter-like sim compile axpy.hip -o axpy.co), launched through the module interface.
#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <vector>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: load_axpy axpy.co\n");
    return 2;
  }
  constexpr int kCount = 1000;
  std::vector<float> y(kCount, 3.f);
  hipModule_t module;
  hipFunction_t function;
  if (hipModuleLoad(&module, arguments[1]) || hipModuleGetFunction(&function, module, "axpy")) {
    std::fprintf(stderr, "%s\n", hipGetErrorString(hipGetLastError()));
    return 1;
  }
  void* device_y;
  if (hipMalloc(&device_y, sizeof(float) * kCount)) return 1;
  if (hipMemcpy(device_y, y.data(), sizeof(float) * kCount, hipMemcpyHostToDevice)) return 1;
  float a = 4.f;
  int n = kCount;
  void* parameters[] = {&a, &device_y, &device_y, &n};  // y = a y + y
  if (hipModuleLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr)) return 1;
  if (hipMemcpy(y.data(), device_y, sizeof(float) * kCount, hipMemcpyDeviceToHost)) return 1;
  int wrong = 0;
  for (const float value : y) wrong += value != 15.f;
  std::printf("load_axpy: %d of %d wrong\n", wrong, kCount);
  return hipModuleUnload(module) || wrong != 0;
}
