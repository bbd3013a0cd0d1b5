// SPDX-License-Identifier: MIT
// The sum of an array: grid-stride loads, lanes by shuffles, waves through LDS, workgroups by an atomic.
#include "check.h"

__global__ void sum(const float* x, int n, float* out) {
  extern __shared__ float of_wave[];
  float total = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) total += x[i];
  for (int step = warpSize / 2; step > 0; step /= 2) total += __shfl_down(total, step);
  if (threadIdx.x % warpSize == 0) of_wave[threadIdx.x / warpSize] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned wave = 1; wave < blockDim.x / warpSize; ++wave) total += of_wave[wave];
    atomicAdd(out, total);
  }
}

int run_reduction() {
  const std::vector<float> x = numbers(5003, 3);
  OnDevice<float> device_x(x), out(1);
  sum<<<5, 256, 256 / 64 * sizeof(float)>>>(device_x.data, static_cast<int>(x.size()), out.data);
  HIP_CALL(hipGetLastError());
  double expected = 0;
  for (const float value : x) expected += value;
  return wrong("reduction", out.get(), [&](size_t) { return expected; }, 1e-4);
}
