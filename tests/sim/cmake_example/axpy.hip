// SPDX-License-Identifier: MIT
// y = a x + y on the device; what it gives is compared on the host.
#include <hip/hip_runtime.h>

#include <cstdio>
#include <vector>

extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

int main() {
  constexpr int kCount = 1000;
  std::vector<float> x(kCount), y(kCount, 1.f);
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(i);
  float *device_x, *device_y;
  if (hipMalloc(&device_x, sizeof(float) * kCount) || hipMalloc(&device_y, sizeof(float) * kCount)) return 1;
  if (hipMemcpy(device_x, x.data(), sizeof(float) * kCount, hipMemcpyHostToDevice)) return 1;
  if (hipMemcpy(device_y, y.data(), sizeof(float) * kCount, hipMemcpyHostToDevice)) return 1;
  axpy<<<(kCount + 255) / 256, 256>>>(2.f, device_x, device_y, kCount);
  if (const hipError_t error = hipMemcpy(y.data(), device_y, sizeof(float) * kCount, hipMemcpyDeviceToHost)) {
    std::fprintf(stderr, "%s\n", hipGetErrorString(error));
    return 1;
  }
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += y[i] != 2.f * x[i] + 1.f;
  std::printf("axpy: %d of %d wrong\n", wrong, kCount);
  return wrong != 0;
}
