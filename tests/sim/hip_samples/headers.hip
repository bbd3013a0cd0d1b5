// SPDX-License-Identifier: MIT
// More of what the headers offer: numbers of 8 and 16 bits, directed conversions, parts of waves, variables that the
// host and the device share.
#include <hip/hip_bfloat16.h>
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>
#include <hip/hip_fp8.h>
#include <hip/hip_math_constants.h>

#include "check.h"

// One work-item. 16777217 lies between two floats, 2049 between two halves.
__global__ void short_numbers(double* out, int integer, float x) {
  int i = 0;
  const auto tell = [&](double value) { out[i++] = value; };
  tell(__int2float_rd(integer) - 16777216.);
  tell(__int2float_ru(integer) - 16777216.);
  tell(__int2float_rz(-integer) + 16777216.);
  tell(double(__ll2float_ru(integer)) + __ull2float_rd(integer) - 2 * 16777216.);
  tell(__double2float_ru(1. + 1e-12) > 1.f && __double2float_rd(1. + 1e-12) == 1.f);
  tell(__half2float(__float2half_rd(2049)) + 10000. * __half2float(__float2half_ru(2049)));
  tell(__half2float(__float2half_rz(-2049)) + 10000. * __half2float(__float2half_rd(1e9f)));
  tell(__half2ll_ru(__half(x)) + 10 * __half2short_rd(__half(x)));
  const __half nan = __ushort_as_half(0x7FFF), two = __half(2);
  tell(__hltu(nan, two) + 10 * __hlt(nan, two) + 100 * __hisnan(__hmax_nan(two, nan)));
  tell(static_cast<float>(__hfma_sat(two, two, two)) + __hbgeu2(__half2{nan, two}, __half2{two, two}));
  const __hip_bfloat16 seven(7);
  tell(hrint(seven * __hip_bfloat16(x)) + 100.f * static_cast<float>(hsqrt(__hip_bfloat16(16))));
  tell(__hbgtu2(__hip_bfloat162{seven, seven}, __hip_bfloat162{seven, __ushort_as_bfloat16(0x7FFF)}));
  tell(float(__hip_fp8_e4m3_fnuz(17.f)) + 1000. * float(__hip_fp8_e4m3_fnuz(1e9f)));
  tell(float(__hip_fp8_e5m2(1e9)) + float(__hip_fp8_e4m3(0.001953125f)) + float(__hip_fp8_e4m3(448)));
  const float2 both = __hip_fp8x2_e5m2_fnuz(float2{-3.f, 0.3f});
  tell(both.x * 10 + both.y);
  tell(__hip_cvt_float_to_fp8(1e9f, __HIP_NOSAT, __HIP_E4M3_FNUZ) +
       1000 * __hip_cvt_float_to_fp8(-HIP_INF_F, __HIP_NOSAT, __HIP_E5M2));
  tell(__fns64(0xF0, 0, 2) + 100 * __fns64(0xF0, 63, -1) + 10000 * __lastbit_u32_u64(0xF0));
  struct __align__(16) Wide { char a, b; };
  tell(sizeof(Wide) + 100 * __ockl_clz_u32(integer) + 10000 * __ockl_lane_u32() + 1e6 * __ockl_mul24_i32(-3, 7));
  assert(integer > 0);
  tell(amd_mixed_dot(short2{-3, 4}, short2{5, 6}, 1, false) + 100. * amd_mixed_dot(-1, 0x77777777, 0, false) +
       1e5 * amd_mixed_dot(char4{1, 2, 3, -4}, char4{5, 6, 7, 8}, 0, true));
  tell(amd_mixed_dot(ushort2{65535, 1}, ushort2{65535, 1}, 0xFFFFFFFFu, true) + 1. *
       amd_mixed_dot(uchar4{1, 2, 3, 255}, uchar4{5, 6, 7, 2}, 1u, false) + amd_mixed_dot(~0u, 0x22222222u, 0u, false));
  atomicAddNoRet(reinterpret_cast<float*>(out + i), 0.5f);
}

// One wave of which lane 6 reports: the even lanes, parts of them, and those of one answer.
__global__ void parts(double* out) {
  namespace cg = cooperative_groups;
  const int lane = threadIdx.x;
  if (lane % 2) return;
  const cg::coalesced_group even = cg::coalesced_threads(), four = cg::tiled_partition<4>(even);
  const cg::coalesced_group half = cg::binary_partition(even, lane < 16);
  int same = 0;
  const double told[] = {
      even.size() + 100. * four.meta_group_rank() + 1000. * four.meta_group_size() + 100000. * four.thread_rank(),
      double(four.shfl(lane, 1)), half.size() + 100. * half.meta_group_rank(), double(even.match_any(lane / 8)),
      double(even.match_all(7, same)) + same, double(__hip_ds_swizzle(lane, 0x081F)),
      double(__popcll(__match_any(lane % 4)))};
  if (lane != 6) return;
  for (int i = 0; i < 7; ++i) out[i] = told[i];
}

__managed__ int shared_count = 5;
__managed__ float shared_table[4] = {1, 2, 3, 4};
__global__ void share() {
  atomicAdd(&shared_count, 10);
  shared_table[threadIdx.x] *= 2;
}

int run_headers() {
  OnDevice<double> of_numbers(21), of_parts(7);
  short_numbers<<<1, 1>>>(of_numbers.data, 16777217, 3.5f);
  parts<<<1, 64>>>(of_parts.data);
  int count = check_all("numbers", of_numbers.get(), {
      0, 2, 0, 2, 1, 2048 + 20500000., -2048 + 655040000., 4 + 30, 1 + 100, 1 + 1, 24 + 400, 0, 16 + 240000,
      57344 + 0.001953125 + 448, -30 + 0.3125, 0x80 + 1000. * 0xFC, 5 + 700 + 40000,
      16 + 700 - 21e6, 10 - 5600 + 6e5, 4294967295. + 549 + 240, 5.21861529e-315});
  count += check_all("parts", of_parts.get(), {32 + 8000 + 300000., 2, 8 + 100, 15, 4294967295. + 1, 4, 16});

  shared_count += 1;
  share<<<1, 4>>>();
  HIP_CALL(hipDeviceSynchronize());
  void* place = nullptr;
  HIP_CALL(hipGetSymbolAddress(&place, HIP_SYMBOL(shared_count)));
  const int after = shared_count, given = 77;
  HIP_CALL(hipMemcpyToSymbol(HIP_SYMBOL(shared_count), &given, sizeof given));
  hipPointerAttribute_t told;
  HIP_CALL(hipPointerGetAttributes(&told, &shared_count));
  count += check_all("managed", {double(after), shared_table[0], shared_table[3], double(place == &shared_count),
                                 double(shared_count), double(told.isManaged)}, {46, 2, 8, 1, 77, 1});

  int grid = 0, block = 0;
  HIP_CALL(hipOccupancyMaxPotentialBlockSizeVariableSMem(&grid, &block, short_numbers,
                                                         [](int threads) { return threads * 64; }));
  float* pinned = nullptr;
  HIP_CALL(hipExtHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(float), hipExtHostAllocCoherent));
  HIP_CALL(hipHostFree(pinned));
  int rate = 0;
  HIP_CALL(hipDeviceGetAttribute(&rate, hipDeviceAttributeAmdSpecificBegin, 0));
  const hipError_t refused = hipLaunchKernel(reinterpret_cast<const void*>(short_numbers), 1, 1, nullptr);
  const hipChannelFormatDesc pair = hipCreateChannelDesc<short2>(), one = hipCreateChannelDesc<float>();
  return count + check_all("host", {double(pair.x + pair.y + 100 * pair.f), double(one.x + one.y + 100 * one.f),
                                    double(grid / 304 * block), double(refused), double(HIP_R_16BF), double(rate)},
                           {32, 232, 1024, hipErrorInvalidValue, 14, 100000});
}
