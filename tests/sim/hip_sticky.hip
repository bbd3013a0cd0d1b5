// SPDX-License-Identifier: MIT
// A HIP program whose kernel fails: every later call says so, as on hardware. test_hip_process.py runs it.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#include <hip/hip_runtime_api.h>

extern "C" __global__ void store(int* x) {
#pragma unroll
  for (int value = 0; value < 3; ++value) const_cast<volatile int*>(x)[__builtin_amdgcn_workitem_id_x()] = value;
}

static int faults = 0;

static void expect(const char* call, hipError_t got, hipError_t wanted) {
  if (got == wanted) return;
  std::printf("%s: %d instead of %d\n", call, got, wanted);
  ++faults;
}
#define EXPECT(call, wanted) expect(#call, (call), (wanted))

int main(int, char** arguments) {
  const void* stub = reinterpret_cast<const void*>(store);
  int *x, *y, host[64];
  hipStream_t stream;
  hipEvent_t event;
  EXPECT(hipMalloc(reinterpret_cast<void**>(&x), sizeof host), hipSuccess);
  EXPECT(hipStreamCreate(&stream), hipSuccess);
  EXPECT(hipEventCreate(&event), hipSuccess);
  void* params[] = {&x};

  // What does not start does no harm.
  EXPECT(hipLaunchKernel(stub, dim3(1), dim3(2048), params, 0, stream), hipErrorInvalidConfiguration);
  EXPECT(hipLaunchKernel(stub, dim3(1), dim3(64), params, (1ull << 32) + 256, stream), hipErrorInvalidConfiguration);
  EXPECT(hipLaunchKernel(stub, dim3(1u << 31), dim3(64), params, 0, stream), hipErrorInvalidConfiguration);
  EXPECT(hipGetLastError(), hipErrorInvalidConfiguration);
  EXPECT(hipLaunchKernel(stub, dim3(1), dim3(64), params, 0, stream), hipSuccess);
  EXPECT(hipDeviceSynchronize(), hipSuccess);
  EXPECT(hipGetLastError(), hipSuccess);

  int* wild = reinterpret_cast<int*>(0x1000);
  if (std::string(arguments[1]) == "wild") params[0] = &wild;
  (void)hipLaunchKernel(stub, dim3(1), dim3(std::string(arguments[1]) == "wild" ? 64 : 128), params, 0, stream);
  (void)hipStreamSynchronize(stream);  // where streams are deferred, it runs here
  for (int round = 0; round < 2; ++round) {
    EXPECT(hipGetLastError(), hipErrorLaunchFailure);
    EXPECT(hipPeekAtLastError(), hipErrorLaunchFailure);
    EXPECT(hipDeviceSynchronize(), hipErrorLaunchFailure);
    EXPECT(hipStreamSynchronize(stream), hipErrorLaunchFailure);
    EXPECT(hipStreamSynchronize(nullptr), hipErrorLaunchFailure);
    EXPECT(hipStreamQuery(stream), hipErrorLaunchFailure);
    EXPECT(hipEventRecord(event, stream), hipErrorLaunchFailure);
    EXPECT(hipEventSynchronize(event), hipErrorLaunchFailure);
    EXPECT(hipEventQuery(event), hipErrorLaunchFailure);
    EXPECT(hipMemcpy(host, x, sizeof host, hipMemcpyDeviceToHost), hipErrorLaunchFailure);
    EXPECT(hipMemcpyAsync(host, x, sizeof host, hipMemcpyDeviceToHost, stream), hipErrorLaunchFailure);
    EXPECT(hipMemset(x, 0, sizeof host), hipErrorLaunchFailure);
    EXPECT(hipMalloc(reinterpret_cast<void**>(&y), 64), hipErrorLaunchFailure);
    EXPECT(hipLaunchKernel(stub, dim3(1), dim3(64), params, 0, stream), hipErrorLaunchFailure);
  }
  std::thread([] { EXPECT(hipDeviceSynchronize(), hipErrorLaunchFailure); }).join();
  if (std::string(hipGetErrorString(hipGetLastError())).find("kernel store") == std::string::npos) {
    std::printf("the text is %s\n", hipGetErrorString(hipGetLastError()));
    ++faults;
  }
  std::printf(faults ? "not all of it\n" : "all of it works\n");
  return faults ? 1 : 0;
}
