// SPDX-License-Identifier: MIT
// Heat in two dimensions, five points, several steps; the weights lie in constant memory.
#include <utility>

#include "check.h"

__constant__ float weights[2];

__global__ void heat(const float* in, float* out, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const int at = y * width + x;
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    out[at] = in[at];
    return;
  }
  out[at] = weights[0] * in[at] + weights[1] * (in[at - 1] + in[at + 1] + in[at - width] + in[at + width]);
}

int run_stencil() {
  constexpr int kWidth = 50, kHeight = 21, kSteps = 4;
  const float chosen[2] = {0.6f, 0.1f};
  HIP_CALL(hipMemcpyToSymbol(HIP_SYMBOL(weights), chosen, sizeof(chosen)));
  std::vector<float> first = numbers(kWidth * kHeight, 8);
  std::vector<double> now(first.begin(), first.end()), next(now);
  OnDevice<float> a(first), b(first.size());
  float *from = a.data, *to = b.data;
  const dim3 block(16, 8), grid((kWidth + 15) / 16, (kHeight + 7) / 8);
  for (int step = 0; step < kSteps; ++step) {
    heat<<<grid, block>>>(from, to, kWidth, kHeight);
    std::swap(from, to);
    for (int y = 1; y < kHeight - 1; ++y) {
      for (int x = 1; x < kWidth - 1; ++x) {
        const int at = y * kWidth + x;
        next[at] = double(chosen[0]) * now[at] +
                   double(chosen[1]) * (now[at - 1] + now[at + 1] + now[at - kWidth] + now[at + kWidth]);
      }
    }
    std::swap(now, next);
  }
  HIP_CALL(hipGetLastError());
  return wrong("stencil", (from == a.data ? a : b).get(), [&](size_t i) { return now[i]; }, 1e-5);
}
