// SPDX-License-Identifier: MIT
// Contexts, libraries of kernels, launches with attributes, links, and what streams do with places in memory. A part of
// hip_runtime_api.h.
#pragma once

const char* hipApiName(uint32_t id);
hipError_t hipConfigureCall(dim3 grid, dim3 block, size_t lds_bytes AITER_LIKE_DEFAULT(0),
                            hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipCtxDisablePeerAccess(hipCtx_t handle);
hipError_t hipCtxEnablePeerAccess(hipCtx_t handle, unsigned flags);
hipError_t hipCtxGetApiVersion(hipCtx_t handle, unsigned* version);
hipError_t hipCtxGetCacheConfig(hipFuncCache_t* config);
hipError_t hipCtxGetFlags(unsigned* flags);
hipError_t hipCtxGetSharedMemConfig(hipSharedMemConfig* config);
hipError_t hipCtxSetCacheConfig(hipFuncCache_t cache_config);
hipError_t hipCtxSetSharedMemConfig(hipSharedMemConfig config);
hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned* flags, int* active);
hipError_t hipDevicePrimaryCtxReset(hipDevice_t device);
hipError_t hipDevicePrimaryCtxSetFlags(hipDevice_t device, unsigned flags);
hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* config, hipFunction_t function, void** params, void** extra);
hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream AITER_LIKE_DEFAULT(nullptr),
                                   unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipExtGetLinkTypeAndHopCount(int from, int to, uint32_t* type, uint32_t* hops);
hipError_t hipExtLaunchMultiKernelMultiDevice(hipLaunchParams* launches, int count, unsigned flags);
hipError_t hipExtStreamCreateWithCUMask(hipStream_t* stream, uint32_t words, const uint32_t* mask);
hipError_t hipExtStreamGetCUMask(hipStream_t handle, uint32_t words, uint32_t* mask);
hipError_t hipGetProcAddress(const char* symbol, void** address, int hip_version, uint64_t flags,
                             hipDriverProcAddressQueryResult* status);
int hipGetStreamDeviceId(hipStream_t stream);
const char* hipKernelNameRef(const hipFunction_t function);
const char* hipKernelNameRefByPtr(const void* stub, hipStream_t stream);
hipError_t hipLaunchByPtr(const void* stub);
hipError_t hipLaunchCooperativeKernelMultiDevice(hipLaunchParams* launches, int count, unsigned flags);
hipError_t hipLaunchKernelExC(const hipLaunchConfig_t* config, const void* stub, void** params);
hipError_t hipLibraryGetKernel(hipKernel_t* kernel, hipLibrary_t library, const char* name);
hipError_t hipLibraryGetKernelCount(unsigned* count, hipLibrary_t library);
hipError_t hipLibraryLoadData(hipLibrary_t* library, const void* image, hipJitOption** jit_options,
                              void** jit_options_values, unsigned num_jit_options, hipLibraryOption** library_options,
                              void** library_option_values, unsigned num_library_options);
hipError_t hipLibraryLoadFromFile(hipLibrary_t* library, const char* path, hipJitOption** jit_options,
                                  void** jit_options_values, unsigned num_jit_options,
                                  hipLibraryOption** library_options, void** library_option_values,
                                  unsigned num_library_options);
hipError_t hipLibraryUnload(hipLibrary_t library);
hipError_t hipModuleGetFunctionCount(unsigned* count, hipModule_t module);
hipError_t hipModuleLaunchCooperativeKernelMultiDevice(hipFunctionLaunchParams* launches, unsigned count,
                                                       unsigned flags);
hipError_t hipModuleLoadFatBinary(hipModule_t* module, const void* image);
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* groups, hipFunction_t function, int block,
                                                                       size_t lds_bytes, unsigned flags);
hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, hipFunction_t function,
                                                            size_t lds_bytes, int limit, unsigned flags);
hipError_t hipSetValidDevices(int* devices, int count);
hipError_t hipSetupArgument(const void* argument, size_t bytes, size_t offset);
hipError_t hipStreamAttachMemAsync(hipStream_t stream, void* memory, size_t length AITER_LIKE_DEFAULT(0),
                                   unsigned flags AITER_LIKE_DEFAULT(hipMemAttachSingle));
hipError_t hipStreamBatchMemOp(hipStream_t stream, unsigned count, hipStreamBatchMemOpParams* operations,
                               unsigned flags);
hipError_t hipStreamGetAttribute(hipStream_t handle, hipStreamAttrID which, hipStreamAttrValue* value);
hipError_t hipStreamGetId(hipStream_t handle, unsigned long long* id);
hipError_t hipStreamSetAttribute(hipStream_t handle, hipStreamAttrID which, const hipStreamAttrValue* value);
hipError_t hipStreamWaitValue64(hipStream_t stream, void* address, uint64_t value, unsigned how,
                                uint64_t mask AITER_LIKE_DEFAULT(0xFFFFFFFFFFFFFFFF));
hipError_t hipStreamWriteValue64(hipStream_t stream, void* address, uint64_t value, unsigned flags);
hipError_t hipGetDriverEntryPoint(const char* symbol, void** address, unsigned long long flags,
                                  hipDriverEntryPointQueryResult* status);
hipError_t hipKernelGetAttribute(int* value, hipFunction_attribute which, hipKernel_t kernel, hipDevice_t device);
hipError_t hipKernelSetAttribute(hipFunction_attribute which, int value, hipKernel_t kernel, hipDevice_t device);
hipError_t hipKernelGetFunction(hipFunction_t* function, hipKernel_t kernel);
hipError_t hipKernelGetLibrary(hipLibrary_t* library, hipKernel_t kernel);
hipError_t hipKernelGetName(const char** name, hipKernel_t kernel);
hipError_t hipKernelGetParamInfo(hipKernel_t kernel, size_t index, size_t* offset, size_t* bytes);
hipError_t hipLibraryEnumerateKernels(hipKernel_t* kernels, unsigned count, hipLibrary_t library);
hipError_t hipLibraryGetGlobal(void** address, size_t* bytes, hipLibrary_t library, const char* name);
hipError_t hipMemGetDefaultMemPool(hipMemPool_t* pool, hipMemLocation* location, hipMemAllocationType type);
hipError_t hipMemGetMemPool(hipMemPool_t* pool, hipMemLocation* location, hipMemAllocationType type);
hipError_t hipMemSetMemPool(hipMemLocation* location, hipMemAllocationType type, hipMemPool_t pool);
hipError_t hipMemPrefetchBatchAsync(void** pointers, size_t* bytes, size_t count, hipMemLocation* locations,
                                    size_t* indices, size_t num_locations, unsigned long long flags,
                                    hipStream_t stream);
hipError_t hipOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* kernel, int groups, int block);
hipError_t hipStreamCopyAttributes(hipStream_t to, hipStream_t from);
hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t size_x, uint32_t size_y, uint32_t size_z,
                                    uint32_t block_x, uint32_t block_y, uint32_t block_z, size_t lds_bytes,
                                    hipStream_t stream, void** params, void** extra,
                                    hipEvent_t start AITER_LIKE_DEFAULT(nullptr),
                                    hipEvent_t stop AITER_LIKE_DEFAULT(nullptr),
                                    uint32_t flags AITER_LIKE_DEFAULT(0));

// ---- links
hipError_t hipLinkAddData(hipLinkState_t state, hipJitInputType type, void* data, size_t size, const char* name,
                          unsigned num_options, hipJitOption* options, void** option_values);
hipError_t hipLinkAddFile(hipLinkState_t state, hipJitInputType type, const char* path, unsigned num_options,
                          hipJitOption* options, void** option_values);
hipError_t hipLinkComplete(hipLinkState_t state, void** hip_bin_out, size_t* size_out);
hipError_t hipLinkCreate(unsigned num_options, hipJitOption* options, void** option_values, hipLinkState_t* state_out);
hipError_t hipLinkDestroy(hipLinkState_t state);
