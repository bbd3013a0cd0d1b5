// SPDX-License-Identifier: MIT
// The forms of calls for which the null stream is the calling thread's own (hipcc's -fgpu-default-stream=per-thread).
// A call without a stream is the one with a stream, and waits for it.
#include "hip/copy_params.h"
#include "hip/defer.h"

namespace sim::hip {

using HostFunction = void (*)(void*);
using Callback = void (*)(void*, int, void*);

extern "C" {
int hipEventRecord(void*, void*);
int hipGraphLaunch(void*, void*);
int hipLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void*);
int hipLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, u32, void*);
int hipLaunchHostFunc(void*, HostFunction, void*);
int hipMemcpyAsync(void*, const void*, size_t, int, void*);
int hipMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, int, void*);
int hipMemcpy2DFromArrayAsync(void*, size_t, const void*, size_t, size_t, size_t, size_t, int, void*);
int hipMemcpy2DToArrayAsync(void*, size_t, size_t, const void*, size_t, size_t, size_t, int, void*);
int hipMemcpy3DAsync(const Params3D*, void*);
int hipMemcpyFromSymbolAsync(void*, const void*, size_t, size_t, int, void*);
int hipMemcpyToSymbolAsync(const void*, const void*, size_t, size_t, int, void*);
int hipMemset2DAsync(void*, size_t, int, size_t, size_t, void*);
int hipMemset3DAsync(Pitched, int, Extent, void*);
int hipMemsetAsync(void*, int, size_t, void*);
int hipStreamAddCallback(void*, Callback, void*, u32);
int hipStreamBeginCapture(void*, int);
int hipStreamEndCapture(void*, void**);
int hipStreamGetCaptureInfo(void*, int*, unsigned long long*);
int hipStreamGetCaptureInfo_v2(void*, int*, unsigned long long*, void**, const void***, size_t*);
int hipStreamGetFlags(void*, u32*);
int hipStreamGetPriority(void*, int*);
int hipStreamIsCapturing(void*, int*);
int hipStreamQuery(void*);
int hipStreamSynchronize(void*);
int hipStreamWaitEvent(void*, void*, u32);
int hipMemcpyFromArray(void*, const void*, size_t, size_t, size_t, int);
int hipGetProcAddress(const char*, void**, int, u64, int*);
}

namespace {

const auto kPerThread = reinterpret_cast<void*>(2);

void* own(void* stream) { return stream ? stream : kPerThread; }

}  // namespace

HIP_API int hipEventRecord_spt(void* event, void* stream) {
  return hipEventRecord(event, own(stream));
}
HIP_API int hipGraphLaunch_spt(void* executable, void* stream) {
  return hipGraphLaunch(executable, own(stream));
}
HIP_API int hipLaunchKernel_spt(const void* stub, Dim3 grid, Dim3 block, void**
                                params, size_t lds_bytes, void* stream) {
  return hipLaunchKernel(stub, grid, block, params, lds_bytes, own(stream));
}
HIP_API int hipLaunchCooperativeKernel_spt(const void* stub, Dim3 grid,
                                           Dim3 block, void** params, u32 lds_bytes, void* stream) {
  return hipLaunchCooperativeKernel(stub, grid, block, params, lds_bytes, own(stream));
}
HIP_API int hipLaunchHostFunc_spt(void* stream, HostFunction fn, void* data) {
  return hipLaunchHostFunc(own(stream), fn, data);
}
HIP_API int hipMemcpyAsync_spt(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return hipMemcpyAsync(to, from, bytes, kind, own(stream));
}
HIP_API int hipMemcpy2DAsync_spt(void* to, size_t to_pitch, const void* from, size_t
                                 from_pitch, size_t width, size_t height, int kind, void* stream) {
  return hipMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, own(stream));
}
HIP_API int hipMemcpy2DFromArrayAsync_spt(void* to, size_t pitch, const
                                          void* array, size_t x, size_t y, size_t width, size_t height, int kind,
                                          void* stream) {
  return hipMemcpy2DFromArrayAsync(to, pitch, array, x, y, width, height, kind, own(stream));
}
HIP_API int hipMemcpy2DToArrayAsync_spt(void* array, size_t x, size_t y, const
                                        void* from, size_t pitch, size_t width, size_t height, int kind, void* stream)
                                        {
  return hipMemcpy2DToArrayAsync(array, x, y, from, pitch, width, height, kind, own(stream));
}
HIP_API int hipMemcpy3DAsync_spt(const Params3D* p, void* stream) {
  return hipMemcpy3DAsync(p, own(stream));
}
HIP_API int hipMemcpyFromSymbolAsync_spt(void* to, const void* symbol, size_t
                                         bytes, size_t offset, int kind, void* stream) {
  return hipMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, own(stream));
}
HIP_API int hipMemcpyToSymbolAsync_spt(const void* symbol, const void* from,
                                       size_t bytes, size_t offset, int kind, void* stream) {
  return hipMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, own(stream));
}
HIP_API int hipMemset2DAsync_spt(void* to, size_t pitch, int value, size_t width, size_t height, void* stream) {
  return hipMemset2DAsync(to, pitch, value, width, height, own(stream));
}
HIP_API int hipMemset3DAsync_spt(Pitched to, int value, Extent extent, void* stream) {
  return hipMemset3DAsync(to, value, extent, own(stream));
}
HIP_API int hipMemsetAsync_spt(void* to, int value, size_t bytes, void* stream) {
  return hipMemsetAsync(to, value, bytes, own(stream));
}
HIP_API int hipStreamAddCallback_spt(void* stream, Callback fn, void* data, u32 flags) {
  return hipStreamAddCallback(own(stream), fn, data, flags);
}
HIP_API int hipStreamBeginCapture_spt(void* stream, int mode) {
  return hipStreamBeginCapture(own(stream), mode);
}
HIP_API int hipStreamEndCapture_spt(void* stream, void** graph) {
  return hipStreamEndCapture(own(stream), graph);
}
HIP_API int hipStreamGetCaptureInfo_spt(void* stream, int* status, unsigned long long* id) {
  return hipStreamGetCaptureInfo(own(stream), status, id);
}
HIP_API int hipStreamGetCaptureInfo_v2_spt(void* stream, int* status,
                                           unsigned long long* id, void** graph, const void*** after, size_t* count) {
  return hipStreamGetCaptureInfo_v2(own(stream), status, id, graph, after, count);
}
HIP_API int hipStreamGetFlags_spt(void* stream, u32* flags) {
  return hipStreamGetFlags(own(stream), flags);
}
HIP_API int hipStreamGetPriority_spt(void* stream, int* priority) {
  return hipStreamGetPriority(own(stream), priority);
}
HIP_API int hipStreamIsCapturing_spt(void* stream, int* status) {
  return hipStreamIsCapturing(own(stream), status);
}
HIP_API int hipStreamQuery_spt(void* stream) {
  return hipStreamQuery(own(stream));
}
HIP_API int hipStreamSynchronize_spt(void* stream) {
  return hipStreamSynchronize(own(stream));
}
HIP_API int hipStreamWaitEvent_spt(void* stream, void* event, u32 flags) {
  return hipStreamWaitEvent(own(stream), event, flags);
}
HIP_API int hipMemcpy_spt(void* to, const void* from, size_t bytes, int kind) {
  if (const int error = hipMemcpyAsync(to, from, bytes, kind, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpy2D_spt(void* to, size_t to_pitch, const void* from, size_t
                            from_pitch, size_t width, size_t height, int kind) {
  if (const int error = hipMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpy2DFromArray_spt(void* to, size_t pitch, const void* array,
                                     size_t x, size_t y, size_t width, size_t height, int kind) {
  const int error = hipMemcpy2DFromArrayAsync(to, pitch, array, x, y, width, height, kind, kPerThread);
  if (error) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpy2DToArray_spt(void* array, size_t x, size_t y, const void*
                                   from, size_t pitch, size_t width, size_t height, int kind) {
  const int error = hipMemcpy2DToArrayAsync(array, x, y, from, pitch, width, height, kind, kPerThread);
  if (error) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpy3D_spt(const Params3D* p) {
  if (const int error = hipMemcpy3DAsync(p, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpyFromSymbol_spt(void* to, const void* symbol, size_t bytes, size_t offset, int kind) {
  if (const int error = hipMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemcpyToSymbol_spt(const void* symbol, const void* from, size_t bytes, size_t offset, int kind) {
  if (const int error = hipMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemset_spt(void* to, int value, size_t bytes) {
  if (const int error = hipMemsetAsync(to, value, bytes, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemset2D_spt(void* to, size_t pitch, int value, size_t width, size_t height) {
  if (const int error = hipMemset2DAsync(to, pitch, value, width, height, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
HIP_API int hipMemset3D_spt(Pitched to, int value, Extent extent) {
  if (const int error = hipMemset3DAsync(to, value, extent, kPerThread)) return error;
  return hipStreamSynchronize(kPerThread);
}
// Both wait on the host.
HIP_API int hipMemcpyFromArray_spt(void* to, const void* array, size_t x, size_t y, size_t bytes, int kind) {
  if (const int error = hipStreamSynchronize(kPerThread)) return error;
  return hipMemcpyFromArray(to, array, x, y, bytes, kind);
}

// Finds a function by name: its form for the thread's own stream where there is one.
HIP_API int hipGetProcAddress_spt(const char* symbol, void** address, int version, u64 flags, int* status) {
  if (!symbol || !address) return set_error(kInvalidValue, "the symbol or the result's address is null");
  if (hipGetProcAddress((std::string(symbol) + "_spt").c_str(), address, version, flags, status) == kSuccess) {
    return kSuccess;
  }
  return hipGetProcAddress(symbol, address, version, flags, status);
}
HIP_API int hipGetDriverEntryPoint(const char* symbol, void** address, unsigned long long flags, int* status) {
  return hipGetProcAddress(symbol, address, 0, flags, status);
}
HIP_API int hipGetDriverEntryPoint_spt(const char* symbol, void** address, unsigned long long flags, int* status) {
  return hipGetProcAddress_spt(symbol, address, 0, flags, status);
}

}  // namespace sim::hip
