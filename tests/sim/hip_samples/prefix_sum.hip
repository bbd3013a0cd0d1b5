// SPDX-License-Identifier: MIT
// Inclusive prefix sums in three launches: within workgroups, of their totals, and both together.
#include "check.h"

constexpr int kScanBlock = 128;

__global__ void scan_blocks(const int* in, int* out, int* totals, int n) {
  __shared__ int sums[2][kScanBlock];
  const int lane = threadIdx.x, i = blockIdx.x * kScanBlock + lane;
  int now = 0;
  sums[now][lane] = i < n ? in[i] : 0;
  for (int step = 1; step < kScanBlock; step *= 2) {
    __syncthreads();
    sums[1 - now][lane] = sums[now][lane] + (lane >= step ? sums[now][lane - step] : 0);
    now = 1 - now;
  }
  if (i < n) out[i] = sums[now][lane];
  if (totals && lane == kScanBlock - 1) totals[blockIdx.x] = sums[now][lane];
}

__global__ void add_totals(int* out, const int* totals, int n) {
  const int i = blockIdx.x * kScanBlock + threadIdx.x;
  if (i < n && blockIdx.x > 0) out[i] += totals[blockIdx.x - 1];
}

int run_prefix_sum() {
  constexpr int kCount = 1111, kBlocks = (kCount + kScanBlock - 1) / kScanBlock;
  std::vector<int> in(kCount), expected(kCount);
  for (int i = 0, total = 0; i < kCount; ++i) {
    in[i] = i * 37 % 101 - 50;
    expected[i] = total += in[i];
  }
  OnDevice<int> device_in(in), out(kCount), totals(kBlocks), scanned(kBlocks);
  hipStream_t stream;
  HIP_CALL(hipStreamCreate(&stream));
  scan_blocks<<<kBlocks, kScanBlock, 0, stream>>>(device_in.data, out.data, totals.data, kCount);
  scan_blocks<<<1, kScanBlock, 0, stream>>>(totals.data, scanned.data, nullptr, kBlocks);
  add_totals<<<kBlocks, kScanBlock, 0, stream>>>(out.data, scanned.data, kCount);
  HIP_CALL(hipStreamSynchronize(stream));
  HIP_CALL(hipStreamDestroy(stream));
  return wrong("prefix_sum", out.get(), [&](size_t i) { return expected[i]; }, 0);
}
