// SPDX-License-Identifier: MIT
// How often each byte occurs: counts of a workgroup in LDS, then into memory, all by atomics.
#include "check.h"

__global__ void histogram(const uchar4* bytes, int n, unsigned* counts) {
  __shared__ unsigned own[256];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uchar4 four = bytes[i];
    atomicAdd(&own[four.x], 1);
    atomicAdd(&own[four.y], 1);
    atomicAdd(&own[four.z], 1);
    atomicAdd(&own[four.w], 1);
  }
  __syncthreads();
  if (own[threadIdx.x] != 0) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

int run_histogram() {
  std::vector<uchar4> bytes;
  std::vector<unsigned> expected(256);
  for (unsigned i = 0, x = 7; i < 1500; ++i) {
    x = x * 1664525u + 1013904223u;
    bytes.push_back(make_uchar4(x >> 24, x >> 16 & 15, x >> 8 & 255, 200));
    for (const unsigned byte : {x >> 24, x >> 16 & 15, x >> 8 & 255, 200u}) ++expected[byte];
  }
  OnDevice<uchar4> device_bytes(bytes);
  OnDevice<unsigned> counts(256);
  histogram<<<3, 256>>>(device_bytes.data, static_cast<int>(bytes.size()), counts.data);
  HIP_CALL(hipGetLastError());
  return wrong("histogram", counts.get(), [&](size_t i) { return expected[i]; }, 0);
}
