// SPDX-License-Identifier: MIT
// What programs of others write: vectors and short floats among numbers of other types, C's functions of memory in
// kernels, lists that a kernel makes and another one frees.
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>

#include "check.h"

AITER_LIKE_BOTH inline float2 narrowed(double a, size_t b) { return {a, b}; }

AITER_LIKE_BOTH inline double mixed(double d, size_t n, int i, float x) {
  float4 given{d, x, i, n};
  given = 2 * given + 1;
  given *= 0.5;
  const int2 whole{n, d};
  const bool same = float2{x, x} == x && whole != i && 3.f != given;
  return given.x + given.y + given.z + given.w + whole.x + whole.y + narrowed(d, n).y + float3(d).z + same;
}

AITER_LIKE_BOTH inline double of_half(__half h, float x) {
  const int whole = h;
  const char small = static_cast<char>(h);
  const unsigned long long wide = h;
  double sum = h;
  sum += h;
  float single = x;
  single *= h;
  int count = 7;
  count -= h;
  const __half2 both = half2(3) * __half2{h, h};
  return whole + small + static_cast<double>(wide) + sum + single + count + both.x + static_cast<float>(both.y);
}

// An overload of a program's own, for which a number is no vector.
__device__ inline float4 __shfl_down(float4 value, unsigned delta, unsigned width) {
  return {__shfl_down(value.x, delta, width), __shfl_down(value.y, delta, width), value.z, value.w};
}

__global__ void add_pairs(__hip_bfloat162* of_bf16, __half2* of_half, double* out) {
  unsafeAtomicAdd(of_bf16, __hip_bfloat162(__hip_bfloat16(1), __hip_bfloat16(0.5f)));
  unsafeAtomicAdd(of_half, __half2(2));
  const float4 below = __shfl_down(float4{threadIdx.x, 2, 3, 4}, 3, 64);
  if (threadIdx.x == 5) out[0] = below.x + 100 * below.w;
}

__global__ void among_numbers(double* out, double d, size_t n, int i, float x) {
  out[0] = mixed(d, n, i, x);
  out[1] = of_half(__half(x), x);
  char bytes[12];
  memset(bytes, 3, sizeof bytes);
  memcpy(out + 2, bytes, sizeof(double));
  memmove(bytes + 1, bytes, i);
  out[3] = bytes[i];
}

struct Node {
  Node* next;
  int value;
};

// A list of `length` nodes for each work-item, of which each third is large and the last of C++.
__global__ void make_lists(Node** heads, int length) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  Node* head = nullptr;
  for (int k = 0; k < length; ++k) {
    Node* node = k + 1 == length ? new Node : static_cast<Node*>(malloc(k % 3 == 2 ? 5000 : sizeof(Node)));
    if (!node) return;
    *node = {head, i + k};
    head = node;
  }
  heads[i] = head;
}

__global__ void free_lists(Node** heads, int* sums) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (Node* node = heads[i]; node;) {
    Node* const next = node->next;
    sums[i] += node->value;
    if (node == heads[i]) delete node; else free(node);
    node = next;
  }
}

int run_clients() {
  OnDevice<double> of_numbers(4);
  among_numbers<<<1, 1>>>(of_numbers.data, 2.75, 7, 3, 1.5f);
  const std::vector<double> told = of_numbers.get();
  double threes = 0;
  std::memset(&threes, 3, sizeof threes);
  int count = check_all("clients", told, {mixed(2.75, 7, 3, 1.5f), of_half(__half(1.5f), 1.5f), threes, 3});
  count += check_all("clients on the host", told, {14.25 + 2 + 7 + 2 + 7 + 2.75 + 1, 3 + 3 + 2.25 + 5 + 9, threes, 3});

  OnDevice<__hip_bfloat162> of_bf16(1);
  OnDevice<__half2> of_half(1);
  add_pairs<<<1, 64>>>(of_bf16.data, of_half.data, of_numbers.data);
  const __hip_bfloat162 pair = of_bf16.get()[0];
  count += check_all("pairs", {float(pair.x), float(pair.y), float(of_half.get()[0].y), of_numbers.get()[0]},
                     {64, 32, 128, 408});

  constexpr int kLists = 2 * 96, kLength = 7;
  OnDevice<Node*> heads(kLists);
  OnDevice<int> sums(kLists);
  make_lists<<<2, 96>>>(heads.data, kLength);
  free_lists<<<2, 96>>>(heads.data, sums.data);
  const std::vector<int> sum = sums.get();
  std::vector<double> expected, found(sum.begin(), sum.end());
  for (int i = 0; i < kLists; ++i) expected.push_back(kLength * i + kLength * (kLength - 1) / 2);
  return count + check_all("lists", found, expected);
}

__global__ __launch_bounds__(64) void small_groups() {}

// More work-items than a kernel was compiled for are a launch that fails, and does no harm to the next.
int run_misuse() {
  small_groups<<<1, 65>>>();
  const double refused = hipGetLastError();
  small_groups<<<1, 1025>>>();
  const double impossible = hipGetLastError();
  small_groups<<<1, 64>>>();
  const double after = hipDeviceSynchronize();
  return check_all("misuse", {refused, impossible, after},
                   {hipErrorLaunchFailure, hipErrorInvalidConfiguration, hipSuccess});
}
