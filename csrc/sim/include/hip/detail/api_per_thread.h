// SPDX-License-Identifier: MIT
// The forms of functions whose default stream is the thread's own. A part of hip_runtime_api.h.
#pragma once

hipError_t hipEventRecord_spt(hipEvent_t event, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipGetDriverEntryPoint_spt(const char* symbol, void** address, unsigned long long flags,
                                      hipDriverEntryPointQueryResult* status);
hipError_t hipGetProcAddress_spt(const char* symbol, void** address, int version, uint64_t flags,
                                 hipDriverProcAddressQueryResult* status);
hipError_t hipGraphLaunch_spt(hipGraphExec_t executable, hipStream_t stream);
hipError_t hipLaunchCooperativeKernel_spt(const void* stub, dim3 grid, dim3 block, void** params, unsigned lds_bytes,
                                          hipStream_t stream);
hipError_t hipLaunchHostFunc_spt(hipStream_t stream, hipHostFn_t fn, void* data);
hipError_t hipLaunchKernel_spt(const void* stub, dim3 grid, dim3 block, void** params,
                               size_t lds_bytes AITER_LIKE_DEFAULT(0), hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2DAsync_spt(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, hipMemcpyKind kind, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2DFromArrayAsync_spt(void* to, size_t pitch, hipArray_const_t array, size_t x, size_t y,
                                         size_t width, size_t height, hipMemcpyKind kind,
                                         hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2DFromArray_spt(void* to, size_t pitch, hipArray_const_t array, size_t x, size_t y, size_t width,
                                    size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2DToArrayAsync_spt(hipArray_t array, size_t x, size_t y, const void* from, size_t pitch,
                                       size_t width, size_t height, hipMemcpyKind kind,
                                       hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2DToArray_spt(hipArray_t array, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                                  size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2D_spt(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                           hipMemcpyKind kind);
hipError_t hipMemcpy3DAsync_spt(const hipMemcpy3DParms* params, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy3D_spt(const hipMemcpy3DParms* params);
hipError_t hipMemcpyAsync_spt(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                              hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyFromArray_spt(void* to, hipArray_const_t array, size_t x, size_t y, size_t bytes,
                                  hipMemcpyKind kind);
hipError_t hipMemcpyFromSymbolAsync_spt(void* to, const void* symbol, size_t bytes, size_t offset, hipMemcpyKind kind,
                                        hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyFromSymbol_spt(void* to, const void* symbol, size_t bytes, size_t offset AITER_LIKE_DEFAULT(0),
                                   hipMemcpyKind kind AITER_LIKE_DEFAULT(hipMemcpyDeviceToHost));
hipError_t hipMemcpyToSymbolAsync_spt(const void* symbol, const void* from, size_t bytes, size_t offset,
                                      hipMemcpyKind kind, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyToSymbol_spt(const void* symbol, const void* from, size_t bytes,
                                 size_t offset AITER_LIKE_DEFAULT(0),
                                 hipMemcpyKind kind AITER_LIKE_DEFAULT(hipMemcpyHostToDevice));
hipError_t hipMemcpy_spt(void* to, const void* from, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemset2DAsync_spt(void* to, size_t pitch, int value, size_t width, size_t height,
                                hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemset2D_spt(void* to, size_t pitch, int value, size_t width, size_t height);
hipError_t hipMemset3DAsync_spt(hipPitchedPtr to, int value, hipExtent extent,
                                hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemset3D_spt(hipPitchedPtr to, int value, hipExtent extent);
hipError_t hipMemsetAsync_spt(void* to, int value, size_t bytes, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemset_spt(void* to, int value, size_t bytes);
hipError_t hipStreamAddCallback_spt(hipStream_t stream, hipStreamCallback_t fn, void* data, unsigned flags);
hipError_t hipStreamBeginCapture_spt(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture_spt(hipStream_t stream, hipGraph_t* graph);
hipError_t hipStreamGetCaptureInfo_spt(hipStream_t stream, hipStreamCaptureStatus* status, unsigned long long* id);
hipError_t hipStreamGetCaptureInfo_v2_spt(hipStream_t stream, hipStreamCaptureStatus* status,
                                          unsigned long long* id AITER_LIKE_DEFAULT(0),
                                          hipGraph_t* graph AITER_LIKE_DEFAULT(nullptr),
                                          const hipGraphNode_t** after AITER_LIKE_DEFAULT(nullptr),
                                          size_t* count AITER_LIKE_DEFAULT(0));
hipError_t hipStreamGetFlags_spt(hipStream_t stream, unsigned* flags);
hipError_t hipStreamGetPriority_spt(hipStream_t stream, int* priority);
hipError_t hipStreamIsCapturing_spt(hipStream_t stream, hipStreamCaptureStatus* status);
hipError_t hipStreamQuery_spt(hipStream_t stream);
hipError_t hipStreamSynchronize_spt(hipStream_t stream);
hipError_t hipStreamWaitEvent_spt(hipStream_t stream, hipEvent_t event, unsigned flags AITER_LIKE_DEFAULT(0));
