// SPDX-License-Identifier: MIT
// c = a + b, timed by events.
#include "check.h"

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int run_vector_add() {
  constexpr int kCount = 1001;
  const std::vector<float> a = numbers(kCount, 1), b = numbers(kCount, 2);
  OnDevice<float> device_a(a), device_b(b), device_c(kCount);
  hipEvent_t start, stop;
  HIP_CALL(hipEventCreate(&start));
  HIP_CALL(hipEventCreate(&stop));
  HIP_CALL(hipEventRecord(start));
  vector_add<<<(kCount + 255) / 256, 256>>>(device_a.data, device_b.data, device_c.data, kCount);
  HIP_CALL(hipGetLastError());
  HIP_CALL(hipEventRecord(stop));
  HIP_CALL(hipEventSynchronize(stop));
  float ms = -1;
  HIP_CALL(hipEventElapsedTime(&ms, start, stop));
  HIP_CALL(hipEventDestroy(start));
  HIP_CALL(hipEventDestroy(stop));
  return wrong("vector_add", device_c.get(), [&](size_t i) { return a[i] + b[i]; }, 0) + (ms < 0);
}
