// SPDX-License-Identifier: MIT
// What the headers offer beside the samples: each kernel writes one number per check, which the host compares.
#include <hip/hip_bf16.h>
#include <hip/hip_complex.h>
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>

#include "check.h"

namespace cg = cooperative_groups;

// One wave: what lanes tell one another. Lane 5 reports.
__global__ void lanes(double* out) {
  const int lane = threadIdx.x;
  int i = 0;
  const auto tell = [&](double value) {
    if (lane == 5) out[i] = value;
    ++i;
  };
  tell(__shfl(lane * 2, 7));
  tell(__shfl(1.5 * lane, 3, 8));                      // eight bytes; lane 3 of the group of eight
  tell(__shfl_up(lane, 2));
  tell(__shfl_up(lane, 6));                            // nobody below: its own
  tell(__shfl_down(lane, 60));
  tell(__shfl_xor(lane, 8, 16));
  tell(__popcll(__ballot(lane % 3 == 0)));
  tell(__any(lane == 63) && !__any(lane == 64));
  tell(__all(lane < 64) && !__all(lane < 63));
  tell(__ffsll(__match_any_sync(~0ull, lane / 4)));
  tell(__reduce_add_sync(0xFFull, lane));
  const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  tell(tile.shfl_down(lane, 3) + 100 * tile.thread_rank() + 1000 * tile.meta_group_size());
  if (lane % 2 == 1) {
    const auto odd = cg::coalesced_threads();
    tell(odd.size() + 100 * odd.thread_rank() + 1000 * odd.shfl(lane, 1));
  } else {
    ++i;
  }
  tell(__syncthreads_count(lane < 10) + 100 * __syncthreads_or(lane == 9) + 1000 * __syncthreads_and(lane == 9));
}

// One work-item: integers, vectors, types of 16 bits, complex numbers, and mathematical functions of x.
__global__ void values(double* out, float x) {
  int i = 0;
  const auto tell = [&](double value) { out[i++] = value; };
  tell(__popc(0xF0u) + 10 * __clz(1) + 1000 * __ffs(8) + 10000 * __clzll(1));
  tell(__brev(1u));
  tell(__byte_perm(0x03020100, 0x07060504, 0x7531));
  tell(static_cast<int>(__umulhi(0x80000000u, 6u)) + __mul24(-3, 5));
  tell(__funnelshift_l(0x80000000u, 1u, 1));
  tell(__bitextract_u32(0xABCDu, 4, 8));
  tell(__float2int_rd(-1.5f) * 100 + __float2int_rn(2.5f) * 10 + __float2int_ru(1.2f));
  tell(__hiloint2double(__double2hiint(x * 1.0), __double2loint(x * 1.0)) - x);
  float4 v = make_float4(1, 2, 3, 4) * 2.f + float4(1.f);
  v += make_float4(0, 0, 0, 1);
  tell(v.x + 10 * v.y + 100 * v.z + 1000 * v.w);
  tell(make_int3(1, 2, 3) == make_int3(1, 2, 3) && (make_int2(1, 2) != make_int2(2, 1)));
  const __half half = __half(1.5f) * __half(2) + __half(0.25);
  tell(half * 2.f + __hfma(half, half, __half(1)) + (half > 3.f));
  const __half2 pair = __hmul2(__floats2half2_rn(1.5f, 2.f), __half2half2(__half(3)));
  tell(__low2float(pair) + 100 * __high2float(pair));
  tell(__hip_bfloat16(1.00390625f) + 10.f * static_cast<float>(__hip_bfloat16(3.f) * __hip_bfloat16(0.5f)));
  const hipFloatComplex z = hipCmulf(make_hipFloatComplex(1, 2), make_hipFloatComplex(3, -1));
  tell(z.x + 10 * z.y);
  tell(sinf(x) * 2 + cosf(x));
  tell(expf(x) + logf(x) + powf(x, 1.5f));
  tell(tanhf(x) + erff(x) + rsqrtf(x) + cbrtf(x));
  tell(sin(double(x)) + tgamma(double(x)) + std::exp(double(x)));
  tell(fminf(x, 2.f) + max(1, 2) + fabsf(-x) + __fdividef(x, 2.f));
}

__device__ int counter = 5;

// Several waves at one place, by every kind of atomic.
__global__ void atomics(int* ints, float* floats, unsigned long long* longs, __half2* halves) {
  atomicAdd(&ints[0], 2);
  atomicSub(&ints[1], 1);
  atomicMax(&ints[2], static_cast<int>(threadIdx.x));
  atomicMin(&ints[3], -static_cast<int>(threadIdx.x));
  atomicOr(&ints[4], 1 << threadIdx.x % 16);
  atomicXor(&ints[5], 3);
  atomicInc(reinterpret_cast<unsigned*>(&ints[6]), 9);
  atomicAdd(&counter, 1);
  for (int seen = 0, old; (old = atomicCAS(&ints[7], seen, seen + 1)) != seen; seen = old) {}
  atomicAdd(floats, 0.5f);
  atomicAdd(longs, 1ull << 33);
  unsafeAtomicAdd(halves, __floats2half2_rn(1.f, 2.f));
}

// Each workgroup adds up what all have written before the barrier of the grid.
__global__ void whole_grid(int* written, int* sums) {
  const auto grid = cg::this_grid();
  for (int round = 1; round < 3; ++round) {
    if (threadIdx.x == 0) written[blockIdx.x] = round * (blockIdx.x + 1);
    grid.sync();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += written[i];
    if (threadIdx.x == 0) sums[blockIdx.x] = sums[blockIdx.x] * 100 + sum;
    grid.sync();
  }
}

int check_all(const char* name, const std::vector<double>& found, const std::vector<double>& expected) {
  int count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(found[i] - expected[i]) <= 2e-6 * (1 + std::fabs(expected[i]))) continue;
    std::printf("%s[%zu] is %.9g, not %.9g\n", name, i, found[i], expected[i]);
    ++count;
  }
  std::printf("%s: %d of %zu wrong\n", name, count, expected.size());
  return count;
}

int run_features() {
  const double x = 0.75f;
  OnDevice<double> of_lanes(14), of_values(19);
  lanes<<<1, 64>>>(of_lanes.data);
  values<<<1, 1>>>(of_values.data, static_cast<float>(x));
  int count = check_all("lanes", of_lanes.get(), {14, 4.5, 3, 5, 5, 13, 22, 1, 1, 5, 28, 4508, 3232, 110});
  count += check_all("values", of_values.get(), {
      634314, 2147483648., 0x07050301, 3 - 15, 3, 0xBC, -200 + 20 + 2, 0, 3 + 50 + 700 + 10000, 1,
      6.5 + 11.5625 + 1, 4.5 + 600, 1 + 15, 5 + 50, 2 * std::sin(x) + std::cos(x),
      std::exp(x) + std::log(x) + std::pow(x, 1.5), std::tanh(x) + std::erf(x) + 1 / std::sqrt(x) + std::cbrt(x),
      std::sin(x) + std::tgamma(x) + std::exp(x), x + 2 + x + x / 2});

  OnDevice<int> ints(8), written(7), sums(7);
  OnDevice<float> floats(1);
  OnDevice<unsigned long long> longs(1);
  OnDevice<__half2> halves(1);
  atomics<<<2, 128>>>(ints.data, floats.data, longs.data, halves.data);
  int on_device = 0;
  HIP_CALL(hipMemcpyFromSymbol(&on_device, counter, sizeof(int)));
  std::vector<double> found;
  for (const int value : ints.get()) found.push_back(value);
  found.insert(found.end(), {double(on_device), floats.get()[0], std::ldexp(double(longs.get()[0]), -33),
                             double(__low2float(halves.get()[0])), double(__high2float(halves.get()[0]))});
  count += check_all("atomics", found, {512, -256, 127, -127, 0xFFFF, 0, 6, 256, 261, 128, 256, 256, 512});

  void* arguments[] = {&written.data, &sums.data};
  HIP_CALL(hipLaunchCooperativeKernel(whole_grid, dim3(7), dim3(64), arguments, 0, nullptr));
  found.clear();
  for (const int value : sums.get()) found.push_back(value);
  return count + check_all("whole_grid", found, std::vector<double>(7, 2856));
}
