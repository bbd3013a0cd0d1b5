// SPDX-License-Identifier: MIT
// C = A B, in half precision with sums in single, by tiles of both in LDS.
#include <hip/hip_fp16.h>

#include "check.h"

template <int kTile>
__global__ __launch_bounds__(kTile * kTile) void matrix_multiply(const __half* a, const __half* b, float* c, int m,
                                                                 int n, int k) {
  __shared__ __half tile_a[kTile][kTile], tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float total = 0;
  for (int step = 0; step < k; step += kTile) {
    const int k_of_a = step + threadIdx.x, k_of_b = step + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && k_of_a < k ? a[row * k + k_of_a] : __half(0);
    tile_b[threadIdx.y][threadIdx.x] = column < n && k_of_b < k ? b[k_of_b * n + column] : __half(0);
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      total += __half2float(tile_a[threadIdx.y][i]) * __half2float(tile_b[i][threadIdx.x]);
    }
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = total;
}

int run_matrix_multiply() {
  constexpr int kM = 33, kN = 18, kK = 50, kTile = 16;
  std::vector<__half> a, b;
  for (const float x : numbers(kM * kK, 5)) a.push_back(__float2half(x));
  for (const float x : numbers(kK * kN, 6)) b.push_back(__float2half(x));
  OnDevice<__half> device_a(a), device_b(b);
  OnDevice<float> c(kM * kN);
  const dim3 grid((kN + kTile - 1) / kTile, (kM + kTile - 1) / kTile);
  matrix_multiply<kTile><<<grid, dim3(kTile, kTile)>>>(device_a.data, device_b.data, c.data, kM, kN, kK);
  HIP_CALL(hipGetLastError());
  const auto expected = [&](size_t i) {
    double total = 0;
    for (int k = 0; k < kK; ++k) {
      total += static_cast<double>(a[i / kN * kK + k]) * static_cast<double>(b[k * kN + i % kN]);
    }
    return total;
  };
  return wrong("matrix_multiply", c.get(), expected, 1e-5);
}
