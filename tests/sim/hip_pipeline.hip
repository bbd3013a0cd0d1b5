// SPDX-License-Identifier: MIT
// A HIP program as applications are: chunks through two streams with pinned memory and events, a captured graph that
// another capture changes, memory of a pool. With -DFORGETS_TO_WAIT a stream does not wait for the others' events.
// test_hip_process.py runs it with the simulator alone, at once and with the work of streams deferred.
#include <cstdio>
#include <cstdlib>
#include <vector>

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#include <hip/hip_runtime_api.h>

extern "C" hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds_bytes, hipStream_t stream);

#define HIP(call)                                                                                       \
  do {                                                                                                  \
    const hipError_t error_ = (call);                                                                   \
    if (error_ != hipSuccess) {                                                                         \
      std::printf("line %d: %s: %s\n", __LINE__, #call, hipGetErrorString(error_));                     \
      std::exit(1);                                                                                     \
    }                                                                                                   \
  } while (0)

__device__ float factor = 1;

__device__ int index() { return __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x(); }

__global__ void scale(const float* in, float* out, int n) {
  if (const int i = index(); i < n) out[i] = in[i] * factor;
}

__global__ void add_all(const float* x, float* sum, int n) {
  if (const int i = index(); i < n) __hip_atomic_fetch_add(sum, x[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

__global__ void increment(int* x, int by) {
  x[index()] += by;
}

constexpr int kChunk = 1000, kNumChunks = 6, kStreams = 2;
constexpr size_t kChunkBytes = sizeof(float) * kChunk;

template <class T>
static T* allocate(hipError_t (*call)(void**, size_t), size_t count) {
  void* p;
  HIP(call(&p, sizeof(T) * count));
  return static_cast<T*>(p);
}

// Every chunk is copied in, scaled and copied out on one of two streams; a third adds up what all have made.
static int run_pipeline() {
  hipStream_t streams[kStreams], adder;
  hipEvent_t done[kNumChunks];
  for (hipStream_t& s : streams) HIP(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
  HIP(hipStreamCreateWithPriority(&adder, hipStreamNonBlocking, -1));
  float* in = allocate<float>(hipMallocHost, kChunk * kNumChunks);
  float* out = allocate<float>(hipMallocHost, kChunk * kNumChunks);
  float* sum = allocate<float>(hipMalloc, 1);
  for (int i = 0; i < kChunk * kNumChunks; ++i) in[i] = static_cast<float>(i % 16), out[i] = -1;
  const float two = 2;
  HIP(hipMemcpyToSymbol(factor, &two, sizeof two, 0, hipMemcpyHostToDevice));
  int groups = 0, block = 0;
  HIP(hipOccupancyMaxPotentialBlockSize(&groups, &block, reinterpret_cast<const void*>(scale), 0, 256));
  if (block != 256) return 1;

  HIP(hipMemsetAsync(sum, 0, sizeof *sum, adder));
  for (int c = 0; c < kNumChunks; ++c) {
    hipStream_t stream = streams[c % kStreams];
    void *device_in, *device_out;
    HIP(hipMallocAsync(&device_in, kChunkBytes, stream));
    HIP(hipMallocAsync(&device_out, kChunkBytes, stream));
    HIP(hipEventCreateWithFlags(&done[c], hipEventDisableTiming));
    HIP(hipMemcpyAsync(device_in, in + c * kChunk, kChunkBytes, hipMemcpyHostToDevice, stream));
    scale<<<dim3((kChunk + 255) / 256), dim3(block), 0, stream>>>(static_cast<float*>(device_in),
                                                                 static_cast<float*>(device_out), kChunk);
    HIP(hipGetLastError());
    HIP(hipMemcpyAsync(out + c * kChunk, device_out, kChunkBytes, hipMemcpyDeviceToHost, stream));
    HIP(hipEventRecord(done[c], stream));
#ifndef FORGETS_TO_WAIT
    HIP(hipStreamWaitEvent(adder, done[c], 0));
#endif
    add_all<<<dim3((kChunk + 255) / 256), dim3(256), 0, adder>>>(out + c * kChunk, sum, kChunk);
    HIP(hipFreeAsync(device_in, stream));
    HIP(hipFreeAsync(device_out, stream));
  }
  float total = 0, expected = 0;
  HIP(hipMemcpyAsync(&total, sum, sizeof total, hipMemcpyDeviceToHost, adder));
  HIP(hipStreamSynchronize(adder));
  for (int i = 0; i < kChunk * kNumChunks; ++i) expected += 2 * in[i];
  for (hipEvent_t event : done) HIP(hipEventDestroy(event));
  for (hipStream_t s : streams) HIP(hipStreamDestroy(s));
  HIP(hipStreamDestroy(adder));
  HIP(hipFreeHost(in));
  HIP(hipHostFree(out));
  HIP(hipFree(sum));
  return total == expected ? 0 : 2;
}

static void count(void* calls) { ++*static_cast<int*>(calls); }

// x = 5; x += by, twice; y = x.
static hipGraph_t captured(hipStream_t stream, int* x, int* y, int by, int* calls) {
  hipGraph_t graph;
  HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  HIP(hipMemsetD32Async(x, 5, 256, stream));
  for (int i = 0; i < 2; ++i) {
    increment<<<dim3(1), dim3(256), 0, stream>>>(x, by);
    HIP(hipGetLastError());
  }
  HIP(hipMemcpyAsync(y, x, 1024, hipMemcpyDeviceToHost, stream));
  HIP(hipLaunchHostFunc(stream, count, calls));
  HIP(hipStreamEndCapture(stream, &graph));
  return graph;
}

static int run_graph() {
  hipStream_t stream;
  HIP(hipStreamCreate(&stream));
  int *x = allocate<int>(hipMalloc, 256), *y = allocate<int>(hipMallocHost, 256), calls = 0;
  hipGraph_t graph = captured(stream, x, y, 3, &calls), changed = captured(stream, x, y, 10, &calls);
  size_t nodes = 0;
  HIP(hipGraphGetNodes(graph, nullptr, &nodes));
  if (nodes != 5 || calls != 0) return 3;
  hipGraphExec_t executable;
  hipGraphExecUpdateResult result;
  HIP(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
  HIP(hipGraphLaunch(executable, stream));
  HIP(hipStreamSynchronize(stream));
  if (y[0] != 11 || y[255] != 11 || calls != 1) return 4;
  HIP(hipGraphExecUpdate(executable, changed, nullptr, &result));
  HIP(hipGraphLaunch(executable, stream));
  HIP(hipStreamSynchronize(stream));
  if (y[0] != 25 || calls != 2 || result != hipGraphExecUpdateSuccess) return 5;
  HIP(hipGraphExecDestroy(executable));
  increment<<<dim3(1), dim3(2048), 0, stream>>>(x, 1);
  if (hipGetLastError() != hipErrorInvalidConfiguration) return 6;
  HIP(hipGraphDestroy(changed));
  HIP(hipGraphDestroy(graph));
  HIP(hipStreamDestroy(stream));
  HIP(hipFree(x));
  HIP(hipHostFree(y));
  return 0;
}

static int run_pools() {
  hipMemPool_t pool, own;
  HIP(hipDeviceGetDefaultMemPool(&pool, 0));
  unsigned long long threshold = 1 << 20, got = 0;
  HIP(hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &threshold));
  HIP(hipMemPoolGetAttribute(pool, hipMemPoolAttrReleaseThreshold, &got));
  hipMemPoolProps properties{};
  properties.allocType = hipMemAllocationTypePinned;
  properties.location.type = hipMemLocationTypeDevice;
  HIP(hipMemPoolCreate(&own, &properties));
  void *block, *base;
  size_t bytes = 0;
  HIP(hipMallocFromPoolAsync(&block, 4096, own, nullptr));
  HIP(hipMemGetAddressRange(&base, &bytes, static_cast<char*>(block) + 100));
  HIP(hipFreeAsync(block, nullptr));
  HIP(hipStreamSynchronize(nullptr));
  HIP(hipMemPoolTrimTo(own, 0));
  HIP(hipMemPoolDestroy(own));
  if (hipMemPoolDestroy(pool) != hipErrorInvalidValue) return 8;
  return got == threshold && base == block && bytes == 4096 ? 0 : 9;
}

int main() {
  int result = run_pipeline();
  if (!result) result = run_graph();
  if (!result) result = run_pools();
  if (!result) std::printf("all of it works\n");
  return result;
}
