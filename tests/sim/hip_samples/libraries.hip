// SPDX-License-Identifier: MIT
// What header-only libraries take from HIP's own headers: parts of them by the names that they have in ROCm, what they
// bring of the standard library, and vectors as a base with `data`, which libraries specialise for elements and counts
// of their own.
#include <hip/amd_detail/amd_device_functions.h>
#include <hip/amd_detail/amd_hip_bf16.h>
#include <hip/amd_detail/amd_hip_fp16.h>
#include <hip/amd_detail/amd_hip_runtime.h>
#include <hip/amd_detail/amd_hip_vector_types.h>
#include <hip/amd_detail/host_defines.h>

#include "check.h"

// A number that nothing but a float makes.
struct Steps {
  float value;
  Steps() = default;
  AITER_LIKE_BOTH explicit Steps(float value) : value(value) {}
};
AITER_LIKE_BOTH inline Steps operator+(Steps a, Steps b) { return Steps(a.value + b.value); }

template <>
struct HIP_vector_base<_Float16, 8> {
  typedef _Float16 Native_vec_ __attribute__((ext_vector_type(8)));
  using value_type = _Float16;
  Native_vec_ data;
  HIP_vector_base() = default;
  AITER_LIKE_BOTH explicit HIP_vector_base(_Float16 all) : data(all) {}
  template <class... Given>
  AITER_LIKE_BOTH HIP_vector_base(_Float16 first, _Float16 second, Given... others) : data{first, second, others...} {}
};

template <>
AITER_LIKE_BOTH inline HIP_vector_type<Steps, 2>& HIP_vector_type<Steps, 2>::operator++() noexcept {
  return *this += HIP_vector_type<Steps, 2>(Steps(0.25f));
}

using Half8 = HIP_vector_type<_Float16, 8>;
static_assert(std::tuple_size<std::array<float4::Native_vec_, 3>>::value == 3 && sizeof(Half8) == 16);
static_assert(std::numeric_limits<float2::value_type>::digits == 24 && alignof(float3) == 4 && sizeof(float3) == 12);

__global__ void wide_vectors(Half8* wide, HIP_vector_type<Steps, 2>* steps, float4* product) {
  wide[0] = wide[0] * Half8(_Float16(2)) + wide[1];
  wide[1] -= 1;
  ++steps[0];
  const HIP_vector_type<_Float16, 4> a(1, 2, 3, 4);
  product[threadIdx.x].data = __builtin_amdgcn_mfma_f32_16x16x16f16(a.data, a.data, float4(0.5f).data, 0, 0, 0);
}

int run_libraries() {
  const std::chrono::steady_clock::time_point never{};
  OnDevice<Half8> wide(std::vector<Half8>{{1, 2, 3, 4, 5, 6, 7, 8}, Half8(3)});
  OnDevice<HIP_vector_type<Steps, 2>> steps(std::vector<HIP_vector_type<Steps, 2>>{{Steps(1), Steps(2)}});
  OnDevice<float4> product(64);
  wide_vectors<<<1, 64>>>(wide.data, steps.data, product.data);
  const Half8 sums = wide.get()[0], less = wide.get()[1];
  const HIP_vector_type<Steps, 2> two = steps.get()[0];
  const float4 last = product.get()[63];
  return check_all("libraries",
                   {double(sums.data[0]), double(sums.data[7]), less == Half8(2) && less != sums ? 1. : 0., two.x.value,
                    two.y.value, last.x, last.data[3], never == std::chrono::steady_clock::time_point() ? 1. : 0.},
                   {5, 19, 1, 1.25, 2.25, 120.5, 120.5, 1});
}
