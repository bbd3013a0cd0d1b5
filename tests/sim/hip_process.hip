// SPDX-License-Identifier: MIT
// A HIP program without Python: streams, events, a module, a graph by capture, symbols, peers, a cooperative launch.
// test_hip_process.py compiles it, links the simulator's libamdhip64.so alone, and runs it as a process of its own.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#include <hip/hip_runtime_api.h>

#define HIP(call)                                                                                       \
  do {                                                                                                  \
    const hipError_t error_ = (call);                                                                   \
    if (error_ != hipSuccess) {                                                                         \
      std::printf("line %d: %s: %s\n", __LINE__, #call, hipGetErrorString(error_));                     \
      std::exit(1);                                                                                     \
    }                                                                                                   \
  } while (0)
#define EXPECT(condition)                                                                               \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      std::printf("line %d: %s does not hold\n", __LINE__, #condition);                                 \
      std::exit(1);                                                                                     \
    }                                                                                                   \
  } while (0)

__device__ int offset = 5;

// In a module by itself too, so by its own name.
extern "C" __global__ void scale(int* x, int factor, int n) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) x[i] = x[i] * factor + offset;
}

// Every workgroup waits for all others.
__global__ void meet(int* arrived, int* seen, int groups) {
  if (__builtin_amdgcn_workitem_id_x() != 0) return;
  __scoped_atomic_fetch_add(arrived, 1, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
  while (__scoped_atomic_load_n(arrived, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) < groups) __builtin_amdgcn_s_sleep(1);
  seen[__builtin_amdgcn_workgroup_id_x()] = groups;
}

constexpr int kNumElements = 1000, kGroups = 16;

static void add(void* counter) { ++*static_cast<int*>(counter); }

static std::vector<int> download(const int* device) {
  std::vector<int> host(kNumElements);
  HIP(hipMemcpy(host.data(), device, sizeof(int) * kNumElements, hipMemcpyDeviceToHost));
  return host;
}

/// What a capture does not allow ends it.
static void end_captures(int* y, hipStream_t stream, hipStream_t side, hipEvent_t fork) {
  hipGraph_t graph;
  HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT(hipStreamSynchronize(stream) == hipErrorStreamCaptureUnsupported);
  EXPECT(hipStreamEndCapture(stream, &graph) == hipErrorStreamCaptureInvalidated && graph == nullptr);
  HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  void* block;
  EXPECT(hipMalloc(&block, 64) == hipErrorStreamCaptureUnsupported);
  EXPECT(hipStreamEndCapture(stream, &graph) == hipErrorStreamCaptureInvalidated);
  HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
  HIP(hipEventRecord(fork, stream));
  HIP(hipStreamWaitEvent(side, fork, 0));
  HIP(hipMemsetAsync(y, 0, 4, side));
  EXPECT(hipStreamEndCapture(stream, &graph) == hipErrorStreamCaptureUnjoined);
  EXPECT(hipStreamWaitEvent(side, fork, 0) == hipErrorCapturedEvent);
  EXPECT(hipStreamBeginCapture(nullptr, hipStreamCaptureModeGlobal) == hipErrorStreamCaptureUnsupported);
  HIP(hipStreamBeginCapture(side, hipStreamCaptureModeRelaxed));
  EXPECT(hipMemsetAsync(y, 0, 4, nullptr) == hipErrorStreamCaptureImplicit);
  EXPECT(hipStreamEndCapture(side, &graph) == hipErrorStreamCaptureInvalidated);
  HIP(hipMemsetAsync(y, 0, 4, side));
  HIP(hipStreamDestroy(stream));
  EXPECT(hipStreamSynchronize(stream) == hipErrorInvalidHandle);
}

static void use_graph(int* x, hipFunction_t function) {
  hipStream_t stream, side;
  hipEvent_t fork, join;
  HIP(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  HIP(hipStreamCreate(&side));
  HIP(hipEventCreateWithFlags(&fork, hipEventDisableTiming));
  HIP(hipEventCreate(&join));
  int* y;
  HIP(hipMalloc(reinterpret_cast<void**>(&y), sizeof(int) * kNumElements));
  int factor = 3, n = kNumElements, calls = 0;
  void* params[] = {&x, &factor, &n};
  const unsigned groups = (kNumElements + 63) / 64;

  HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  HIP(hipMemsetAsync(x, 0, sizeof(int) * kNumElements, stream));
  HIP(hipModuleLaunchKernel(function, groups, 1, 1, 64, 1, 1, 0, stream, params, nullptr));
  HIP(hipEventRecord(fork, stream));
  HIP(hipStreamWaitEvent(side, fork, 0));
  hipStreamCaptureStatus status;
  HIP(hipStreamIsCapturing(side, &status));
  EXPECT(status == hipStreamCaptureStatusActive);
  HIP(hipMemcpyAsync(y, x, sizeof(int) * kNumElements, hipMemcpyDeviceToDevice, side));
  HIP(hipEventRecord(join, side));
  HIP(hipStreamWaitEvent(stream, join, 0));
  HIP(hipLaunchKernel(reinterpret_cast<const void*>(scale), dim3(groups), dim3(64), params, 0, stream));
  HIP(hipLaunchHostFunc(stream, add, &calls));
  factor = 1000;                                  // the captured launches keep their own copy
  hipGraph_t graph;
  HIP(hipStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  HIP(hipGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 5 && calls == 0);

  hipGraphExec_t executable;
  HIP(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
  HIP(hipGraphDestroy(graph));
  for (int round = 1; round <= 3; ++round) {
    HIP(hipGraphLaunch(executable, stream));
    HIP(hipStreamSynchronize(stream));
    EXPECT(calls == round);
    EXPECT(download(y) == std::vector<int>(kNumElements, 5) && download(x) == std::vector<int>(kNumElements, 20));
  }
  HIP(hipGraphExecDestroy(executable));
  end_captures(y, stream, side, fork);
  HIP(hipEventDestroy(fork));
  HIP(hipFree(y));
}

static void use_module(int* x, const char* path) {
  hipModule_t module;
  hipFunction_t function;
  HIP(hipModuleLoad(&module, path));
  HIP(hipModuleGetFunction(&function, module, "scale"));
  int registers = 0, factor = 2, n = kNumElements;
  HIP(hipFuncGetAttribute(&registers, HIP_FUNC_ATTRIBUTE_NUM_REGS, function));
  EXPECT(registers > 0);
  void* params[] = {&x, &factor, &n};
  std::vector<int> ones(kNumElements, 1);
  HIP(hipMemcpy(x, ones.data(), sizeof(int) * kNumElements, hipMemcpyHostToDevice));
  hipEvent_t start, stop;
  HIP(hipEventCreate(&start));
  HIP(hipEventCreate(&stop));
  hipLaunchAttribute cooperative{};
  cooperative.id = hipLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  HIP_LAUNCH_CONFIG config = {16, 1, 1, 64, 1, 1, 0, nullptr, &cooperative, 1};
  HIP(hipEventRecord(start, nullptr));
  HIP(hipDrvLaunchKernelEx(&config, function, params, nullptr));
  HIP(hipModuleLaunchCooperativeKernel(function, 16, 1, 1, 64, 1, 1, 0, nullptr, params));
  HIP(hipEventRecord(stop, nullptr));
  HIP(hipEventSynchronize(stop));
  float ms = -1;
  HIP(hipEventElapsedTime(&ms, start, stop));
  EXPECT(ms >= 0 && download(x) == std::vector<int>(kNumElements, (1 * 2 + 5) * 2 + 5));
  use_graph(x, function);
  HIP(hipModuleUnload(module));
}

static void use_cooperative_launch(const void* stub) {
  int* arrived;
  HIP(hipMallocManaged(reinterpret_cast<void**>(&arrived), sizeof(int) * (kGroups + 1)));
  for (int i = 0; i <= kGroups; ++i) arrived[i] = 0;
  int *seen = arrived + 1, groups = kGroups;
  void* params[] = {&arrived, &seen, &groups};
  HIP(hipLaunchCooperativeKernel(stub, dim3(kGroups), dim3(64), params, 0, nullptr));
  for (int i = 0; i < kGroups; ++i) EXPECT(seen[i] == kGroups);
  int per_cu = 0, grid = 0, block = 0;
  HIP(hipOccupancyMaxActiveBlocksPerMultiprocessor(&per_cu, stub, 64, 0));
  HIP(hipOccupancyMaxPotentialBlockSize(&grid, &block, stub, 0, 0));
  EXPECT(per_cu == 32 && block >= 64 && block % 64 == 0 && grid % 304 == 0);
  EXPECT(hipLaunchCooperativeKernel(stub, dim3(304 * 32 + 1), dim3(64), params, 0, nullptr) ==
         hipErrorCooperativeLaunchTooLarge);
  HIP(hipFree(arrived));
}

static void use_memory_kinds() {
  void *device, *host, *alias;
  hipPointerAttribute_t attributes;
  unsigned flags = 0;
  HIP(hipMalloc(&device, 4096));
  HIP(hipHostMalloc(&host, 4096, hipHostMallocPortable));
  HIP(hipPointerGetAttributes(&attributes, static_cast<char*>(device) + 8));
  EXPECT(attributes.type == hipMemoryTypeDevice && attributes.hostPointer == nullptr && attributes.device == 0);
  HIP(hipPointerGetAttributes(&attributes, host));
  EXPECT(attributes.type == hipMemoryTypeHost && attributes.hostPointer == host);
  HIP(hipHostGetFlags(&flags, host));
  EXPECT(flags == hipHostMallocPortable);
  std::vector<int> own(64);
  HIP(hipPointerGetAttributes(&attributes, own.data()));
  EXPECT(attributes.type == hipMemoryTypeUnregistered);
  HIP(hipHostRegister(own.data(), 256, 0));
  EXPECT(hipHostRegister(own.data(), 256, 0) == hipErrorHostMemoryAlreadyRegistered);
  HIP(hipHostGetDevicePointer(&alias, own.data(), 0));
  EXPECT(alias == own.data());
  HIP(hipHostUnregister(own.data()));
  EXPECT(hipHostUnregister(own.data()) == hipErrorHostMemoryNotRegistered);
  EXPECT(hipHostFree(own.data()) == hipErrorInvalidValue);
  HIP(hipHostFree(host));
  HIP(hipFree(device));
}

static void use_symbols() {
  int value = 0;
  size_t bytes = 0;
  HIP(hipMemcpyFromSymbol(&value, offset, 4, 0, hipMemcpyDeviceToHost));
  EXPECT(value == 5);
  value = 9;
  HIP(hipMemcpyToSymbol(offset, &value, 4, 0, hipMemcpyHostToDevice));
  HIP(hipGetSymbolSize(&bytes, offset));
  void* address;
  HIP(hipGetSymbolAddress(&address, offset));
  EXPECT(bytes == 4 && *static_cast<int*>(address) == 9);
  EXPECT(hipMemcpyToSymbol(offset, &value, 4, 4, hipMemcpyHostToDevice) == hipErrorInvalidSymbol);
}

int main(int, char** arguments) {
  int count = 0, *x;
  HIP(hipInit(0));
  HIP(hipGetDeviceCount(&count));
  EXPECT(count == 1 && hipSetDevice(1) == hipErrorInvalidDevice);
  hipDeviceProp_t properties;
  HIP(hipGetDeviceProperties(&properties, 0));
  EXPECT(std::string(properties.gcnArchName).rfind("gfx942", 0) == 0 && properties.cooperativeLaunch == 1);
  HIP(hipMalloc(reinterpret_cast<void**>(&x), sizeof(int) * kNumElements));
  use_module(x, arguments[1]);
  use_cooperative_launch(reinterpret_cast<const void*>(meet));
  use_memory_kinds();
  use_symbols();
  HIP(hipFree(x));
  std::printf("all of it works\n");
}
