// SPDX-License-Identifier: MIT
// A transposed matrix through a padded tile in LDS; sizes that tiles do not divide.
#include "check.h"

constexpr int kTile = 32, kRowsPerPass = 8;

__global__ void transpose(const float* in, float* out, int rows, int columns) {
  __shared__ float tile[kTile][kTile + 1];
  int x = blockIdx.x * kTile + threadIdx.x, y = blockIdx.y * kTile + threadIdx.y;
  for (int pass = 0; pass < kTile; pass += kRowsPerPass) {
    if (x < columns && y + pass < rows) tile[threadIdx.y + pass][threadIdx.x] = in[(y + pass) * columns + x];
  }
  __syncthreads();
  x = blockIdx.y * kTile + threadIdx.x, y = blockIdx.x * kTile + threadIdx.y;
  for (int pass = 0; pass < kTile; pass += kRowsPerPass) {
    if (x < rows && y + pass < columns) out[(y + pass) * rows + x] = tile[threadIdx.x][threadIdx.y + pass];
  }
}

int run_transpose() {
  constexpr int kRows = 70, kColumns = 45;
  const std::vector<float> in = numbers(kRows * kColumns, 4);
  OnDevice<float> device_in(in), out(in.size());
  const dim3 grid((kColumns + kTile - 1) / kTile, (kRows + kTile - 1) / kTile);
  hipLaunchKernelGGL(transpose, grid, dim3(kTile, kRowsPerPass), 0, 0, device_in.data, out.data, kRows, kColumns);
  HIP_CALL(hipGetLastError());
  return wrong("transpose", out.get(), [&](size_t i) { return in[i % kRows * kColumns + i / kRows]; }, 0);
}
