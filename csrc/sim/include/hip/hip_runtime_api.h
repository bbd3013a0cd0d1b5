// SPDX-License-Identifier: MIT
// The runtime's functions, as programs call them on the host, from C or C++: those that the simulator has. What it
// refuses is not declared, so that a program which calls it does not compile.
#pragma once
#include "hip/hip_version.h"
#include "hip/hip_common.h"

#include "hip/detail/vectors.h"
#include "hip/detail/types.h"
#include "hip/detail/device.h"
#include "hip/detail/memory_types.h"
#include "hip/detail/graph_types.h"

#if defined(__cplusplus)
#define AITER_LIKE_DEFAULT(value) = value
extern "C" {
#else
#define AITER_LIKE_DEFAULT(value)
#endif

// ---- errors
hipError_t hipGetLastError(void);
hipError_t hipExtGetLastError(void);
hipError_t hipPeekAtLastError(void);
const char* hipGetErrorName(hipError_t error);
const char* hipGetErrorString(hipError_t error);
hipError_t hipDrvGetErrorName(hipError_t error, const char** name);
hipError_t hipDrvGetErrorString(hipError_t error, const char** text);

// ---- devices
hipError_t hipInit(unsigned flags);
hipError_t hipDriverGetVersion(int* version);
hipError_t hipRuntimeGetVersion(int* version);
hipError_t hipGetDeviceCount(int* count);
hipError_t hipGetDevice(int* device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceReset(void);
hipError_t hipDeviceSynchronize(void);
hipError_t hipDeviceGet(hipDevice_t* device, int ordinal);
hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device);
hipError_t hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device);
hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device);
hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device);
hipError_t hipDeviceGetPCIBusId(char* id, int length, int device);
hipError_t hipDeviceGetByPCIBusId(int* device, const char* id);
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
hipError_t hipGetDeviceFlags(unsigned* flags);
hipError_t hipSetDeviceFlags(unsigned flags);
hipError_t hipDeviceGetLimit(size_t* value, hipLimit_t limit);
hipError_t hipDeviceSetLimit(hipLimit_t limit, size_t value);
hipError_t hipDeviceGetCacheConfig(hipFuncCache_t* config);
hipError_t hipDeviceSetCacheConfig(hipFuncCache_t config);
hipError_t hipDeviceGetSharedMemConfig(hipSharedMemConfig* config);
hipError_t hipDeviceSetSharedMemConfig(hipSharedMemConfig config);
hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest);
hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer);
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags);
hipError_t hipDeviceDisablePeerAccess(int peer);
const char* hipApiName(uint32_t id);
hipError_t hipExtGetLinkTypeAndHopCount(int from, int to, uint32_t* type, uint32_t* hops);
hipError_t hipGetProcAddress(const char* symbol, void** address, int hip_version, uint64_t flags,
                             hipDriverProcAddressQueryResult* status);
hipError_t hipDeviceGetP2PAttribute(int* value, hipDeviceP2PAttr attribute, int source, int destination);

// ---- memory
hipError_t hipMalloc(void** out, size_t bytes);
hipError_t hipExtMallocWithFlags(void** out, size_t bytes, unsigned flags);
hipError_t hipMallocManaged(void** out, size_t bytes, unsigned flags AITER_LIKE_DEFAULT(hipMemAttachGlobal));
hipError_t hipMallocHost(void** out, size_t bytes);
hipError_t hipHostMalloc(void** out, size_t bytes, unsigned flags AITER_LIKE_DEFAULT(hipHostMallocDefault));
hipError_t hipHostAlloc(void** out, size_t bytes, unsigned flags);
hipError_t hipExtHostAlloc(void** out, size_t bytes, unsigned flags);
hipError_t hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height);
hipError_t hipFree(void* block);
hipError_t hipHostFree(void* block);
hipError_t hipFreeHost(void* block);
hipError_t hipHostRegister(void* block, size_t bytes, unsigned flags);
hipError_t hipHostUnregister(void* block);
hipError_t hipHostGetDevicePointer(void** out, void* block, unsigned flags);
hipError_t hipHostGetFlags(unsigned* flags, void* block);
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total);
hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* bytes, hipDeviceptr_t address);
hipError_t hipMemPtrGetInfo(void* address, size_t* bytes);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* address);
hipError_t hipMemPrefetchAsync(const void* block, size_t bytes, int device,
                               hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemAdvise(const void* block, size_t bytes, hipMemoryAdvise advice, int device);
hipError_t hipMallocAsync(void** out, size_t bytes, hipStream_t stream);
hipError_t hipFreeAsync(void* block, hipStream_t stream);
hipError_t hipMallocFromPoolAsync(void** out, size_t bytes, hipMemPool_t pool, hipStream_t stream);
hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device);
hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device);
hipError_t hipDeviceSetMemPool(int device, hipMemPool_t pool);
hipError_t hipMemPoolDestroy(hipMemPool_t pool);
hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t bytes);
hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value);
hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value);
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* block);
hipError_t hipIpcOpenMemHandle(void** block, hipIpcMemHandle_t handle, unsigned flags);
hipError_t hipIpcCloseMemHandle(void* block);
hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t* out, hipEvent_t event);
hipError_t hipIpcOpenEventHandle(hipEvent_t* out, hipIpcEventHandle_t handle);
hipError_t hipMemAllocHost(void** out, size_t bytes);
hipError_t hipMemPoolCreate(hipMemPool_t* out, const hipMemPoolProps* params);
hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                             hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipPointerGetAttribute(void* out, hipPointer_attribute which, hipDeviceptr_t pointer);

// ---- copies and fills
hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t bytes);
hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes);
hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes);
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes);
hipError_t hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                              hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                       hipMemcpyKind kind);
hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemset(void* block, int value, size_t bytes);
hipError_t hipMemsetAsync(void* block, int value, size_t bytes, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemset2D(void* block, size_t pitch, int value, size_t width, size_t height);
hipError_t hipMemset2DAsync(void* block, size_t pitch, int value, size_t width, size_t height,
                            hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD8(hipDeviceptr_t block, unsigned char value, size_t count);
hipError_t hipMemsetD16(hipDeviceptr_t block, unsigned short value, size_t count);
hipError_t hipMemsetD32(hipDeviceptr_t block, int value, size_t count);
hipError_t hipMemsetD8Async(hipDeviceptr_t block, unsigned char value, size_t count,
                            hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD32Async(hipDeviceptr_t block, int value, size_t count,
                             hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipGetSymbolAddress(void** address, const void* symbol);
hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol);
hipError_t hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset AITER_LIKE_DEFAULT(0),
                             hipMemcpyKind kind AITER_LIKE_DEFAULT(hipMemcpyHostToDevice));
hipError_t hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset AITER_LIKE_DEFAULT(0),
                               hipMemcpyKind kind AITER_LIKE_DEFAULT(hipMemcpyDeviceToHost));
hipError_t hipMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, hipMemcpyKind kind,
                                  hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, hipMemcpyKind kind,
                                    hipStream_t stream AITER_LIKE_DEFAULT(nullptr));

// ---- streams and events; a stream's work has finished when its call returns, unless AITER_LIKE_SIM has `defer`
hipError_t hipStreamCreate(hipStream_t* stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags);
hipError_t hipStreamGetPriority(hipStream_t stream, int* priority);
hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device);
hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void* data, unsigned flags);
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data);
hipError_t hipEventCreate(hipEvent_t* event);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop);
hipError_t hipEventDestroy(hipEvent_t event);
hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream AITER_LIKE_DEFAULT(nullptr),
                                   unsigned flags AITER_LIKE_DEFAULT(0));
int hipGetStreamDeviceId(hipStream_t stream);
hipError_t hipExtStreamGetCUMask(hipStream_t stream, uint32_t words, uint32_t* mask);
hipError_t hipProfilerStart(void);
hipError_t hipProfilerStop(void);

// ---- kernels and modules
hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                           size_t lds_bytes AITER_LIKE_DEFAULT(0), hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, unsigned lds_bytes,
                                      hipStream_t stream);
hipError_t hipExtLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t lds_bytes,
                              hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags);
hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* kernel);
hipError_t hipFuncSetAttribute(const void* kernel, hipFuncAttribute attribute, int value);
hipError_t hipFuncSetCacheConfig(const void* kernel, hipFuncCache_t config);
hipError_t hipFuncSetSharedMemConfig(const void* kernel, hipSharedMemConfig config);
hipError_t hipModuleLoad(hipModule_t* module, const char* path);
hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned count, hipJitOption* options,
                               void** values);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t module, const char* name);
hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute, hipFunction_t function);
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                                 hipStream_t stream, void** arguments, void** extra);
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                                            hipStream_t stream, void** arguments);
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, hipFunction_t function, int block,
                                                              size_t lds_bytes);
hipError_t hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block, hipFunction_t function, size_t lds_bytes,
                                                   int most);
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int block, size_t lds_bytes);
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel, int block,
                                                                 size_t lds_bytes,
                                                                 unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* kernel, size_t lds_bytes, int most);
// The compiler makes kernel<<<grid, block, lds_bytes, stream>>>(...) of these two.
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds_bytes AITER_LIKE_DEFAULT(0),
                                      hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* lds_bytes, hipStream_t* stream);
hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* config, hipFunction_t function, void** params, void** extra);
const char* hipKernelNameRef(const hipFunction_t function);
const char* hipKernelNameRefByPtr(const void* stub, hipStream_t stream);
hipError_t hipLaunchKernelExC(const hipLaunchConfig_t* config, const void* stub, void** params);
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* groups, hipFunction_t function, int block,
                                                                       size_t lds_bytes, unsigned flags);
hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, hipFunction_t function,
                                                            size_t lds_bytes, int limit, unsigned flags);
hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t size_x, uint32_t size_y, uint32_t size_z,
                                    uint32_t block_x, uint32_t block_y, uint32_t block_z, size_t lds_bytes,
                                    hipStream_t stream, void** params, void** extra,
                                    hipEvent_t start AITER_LIKE_DEFAULT(nullptr),
                                    hipEvent_t stop AITER_LIKE_DEFAULT(nullptr),
                                    uint32_t flags AITER_LIKE_DEFAULT(0));

// ---- graphs
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status);
hipError_t hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus* status, unsigned long long* id);
hipError_t hipStreamGetCaptureInfo_v2(hipStream_t handle, hipStreamCaptureStatus* status,
                                      unsigned long long* id AITER_LIKE_DEFAULT(0),
                                      hipGraph_t* graph AITER_LIKE_DEFAULT(nullptr),
                                      const hipGraphNode_t** dependencies AITER_LIKE_DEFAULT(nullptr),
                                      size_t* num_dependencies AITER_LIKE_DEFAULT(nullptr));
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count);
hipError_t hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType* type);
hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph, hipGraphNode_t* failed, char* log,
                               size_t log_bytes);
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph, unsigned long long flags);
hipError_t hipGraphExecUpdate(hipGraphExec_t executable, hipGraph_t graph, hipGraphNode_t* failed,
                              hipGraphExecUpdateResult* result);
hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream);
hipError_t hipGraphUpload(hipGraphExec_t executable, hipStream_t stream);
hipError_t hipGraphExecDestroy(hipGraphExec_t executable);

#include "hip/detail/textures.h"

#if defined(__cplusplus)
}  // extern "C"
#include "hip/detail/typed_api.h"
#endif
#undef AITER_LIKE_DEFAULT
