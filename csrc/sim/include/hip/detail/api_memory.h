// SPDX-License-Identifier: MIT
// Functions of memory beyond malloc, copy and fill: arrays, copies by one structure, pools, virtual memory, attributes.
// A part of hip_runtime_api.h.
#pragma once

hipError_t hipArray3DCreate(hipArray_t* out, const HIP_ARRAY3D_DESCRIPTOR* description);
hipError_t hipArray3DGetDescriptor(HIP_ARRAY3D_DESCRIPTOR* out, hipArray_t array);
hipError_t hipArrayCreate(hipArray_t* out, const HIP_ARRAY_DESCRIPTOR* description);
hipError_t hipArrayDestroy(hipArray_t array);
hipError_t hipArrayGetDescriptor(HIP_ARRAY_DESCRIPTOR* out, hipArray_t array);
hipError_t hipArrayGetInfo(hipChannelFormatDesc* channels, hipExtent* extent, unsigned* flags, hipArray_t array);
hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* params);
hipError_t hipDrvMemcpy3D(const HIP_MEMCPY3D* params);
hipError_t hipDrvMemcpy3DAsync(const HIP_MEMCPY3D* params, hipStream_t stream);
hipError_t hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute* which, void** data, hipDeviceptr_t pointer);
hipError_t hipFreeArray(hipArray_t array);
hipError_t hipGetChannelDesc(hipChannelFormatDesc* channels, hipArray_const_t array);
hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t* out, hipEvent_t event);
hipError_t hipIpcOpenEventHandle(hipEvent_t* out, hipIpcEventHandle_t handle);
hipError_t hipMalloc3DArray(hipArray_t* out, const hipChannelFormatDesc* channels, hipExtent extent, unsigned flags);
hipError_t hipMallocArray(hipArray_t* out, const hipChannelFormatDesc* channels, size_t width,
                          size_t height AITER_LIKE_DEFAULT(0), unsigned flags AITER_LIKE_DEFAULT(hipArrayDefault));
hipError_t hipMemAddressFree(void* pointer, size_t bytes);
hipError_t hipMemAddressReserve(void** out, size_t bytes, size_t alignment, void* addr, unsigned long long flags);
hipError_t hipMemAdvise_v2(const void* pointer, size_t bytes, hipMemoryAdvise advice, hipMemLocation location);
hipError_t hipMemAllocHost(void** out, size_t bytes);
hipError_t hipMemAllocPitch(hipDeviceptr_t* out, size_t* pitch, size_t width, size_t height, unsigned element_bytes);
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* out, size_t bytes, const hipMemAllocationProp* params,
                        unsigned long long flags);
hipError_t hipMemExportToShareableHandle(void* out, hipMemGenericAllocationHandle_t handle,
                                         hipMemAllocationHandleType type, unsigned long long flags);
hipError_t hipMemGetAccess(unsigned long long* flags, const hipMemLocation* location, void* pointer);
hipError_t hipMemGetAllocationGranularity(size_t* bytes, const hipMemAllocationProp* properties,
                                          hipMemAllocationGranularity_flags option);
hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* out, hipMemGenericAllocationHandle_t handle);
hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* out, void* os_handle,
                                           hipMemAllocationHandleType type);
hipError_t hipMemMap(void* pointer, size_t bytes, size_t offset, hipMemGenericAllocationHandle_t handle,
                     unsigned long long flags);
hipError_t hipMemPoolCreate(hipMemPool_t* out, const hipMemPoolProps* params);
hipError_t hipMemPoolGetAccess(hipMemAccessFlags* flags, hipMemPool_t handle, hipMemLocation* location);
hipError_t hipMemPoolSetAccess(hipMemPool_t handle, const hipMemAccessDesc* accesses, size_t count);
hipError_t hipMemPrefetchAsync_v2(const void* pointer, size_t bytes, hipMemLocation location, unsigned flags,
                                  hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemRangeGetAttribute(void* data, size_t bytes, hipMemRangeAttribute which, const void* pointer,
                                   size_t count);
hipError_t hipMemRangeGetAttributes(void** data, size_t* bytes, hipMemRangeAttribute* which, size_t num,
                                    const void* pointer, size_t count);
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle);
hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* out, void* pointer);
hipError_t hipMemSetAccess(void* pointer, size_t bytes, const hipMemAccessDesc* accesses, size_t count);
hipError_t hipMemUnmap(void* pointer, size_t bytes);
hipError_t hipMemcpy2DArrayToArray(hipArray_t to, size_t to_x, size_t to_y, hipArray_const_t from, size_t from_x,
                                   size_t from_y, size_t width, size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2DFromArray(void* to, size_t pitch, hipArray_const_t array, size_t x, size_t y, size_t width,
                                size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2DFromArrayAsync(void* to, size_t pitch, hipArray_const_t array, size_t x, size_t y, size_t width,
                                     size_t height, hipMemcpyKind kind, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy2DToArray(hipArray_t array, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                              size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2DToArrayAsync(hipArray_t array, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                                   size_t height, hipMemcpyKind kind, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpy3DPeer(hipMemcpy3DPeerParms* params);
hipError_t hipMemcpy3DPeerAsync(hipMemcpy3DPeerParms* params, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyAtoA(hipArray_t to, size_t to_offset, hipArray_t from, size_t from_offset, size_t bytes);
hipError_t hipMemcpyAtoD(hipDeviceptr_t to, hipArray_t array, size_t offset, size_t bytes);
hipError_t hipMemcpyAtoH(void* to, hipArray_t array, size_t offset, size_t bytes);
hipError_t hipMemcpyAtoHAsync(void* to, hipArray_t array, size_t offset, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyBatchAsync(void** to, void** from, size_t* bytes, size_t count, hipMemcpyAttributes* attrs,
                               size_t* attrs_idxs, size_t num_attrs, size_t* failed,
                               hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyDtoA(hipArray_t array, size_t offset, hipDeviceptr_t from, size_t bytes);
hipError_t hipMemcpyFromArray(void* to, hipArray_const_t array, size_t x, size_t y, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemcpyHtoA(hipArray_t array, size_t offset, const void* from, size_t bytes);
hipError_t hipMemcpyHtoAAsync(hipArray_t array, size_t offset, const void* from, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyParam2D(const hip_Memcpy2D* params);
hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* params, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemcpyToArray(hipArray_t array, size_t x, size_t y, const void* from, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemset3DAsync(hipPitchedPtr to, int value, hipExtent e, hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                             hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD2D16(hipDeviceptr_t to, size_t pitch, unsigned short value, size_t width, size_t height);
hipError_t hipMemsetD2D16Async(hipDeviceptr_t to, size_t pitch, unsigned short value, size_t width, size_t height,
                               hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD2D32(hipDeviceptr_t to, size_t pitch, unsigned value, size_t width, size_t height);
hipError_t hipMemsetD2D32Async(hipDeviceptr_t to, size_t pitch, unsigned value, size_t width, size_t height,
                               hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipMemsetD2D8(hipDeviceptr_t to, size_t pitch, unsigned char value, size_t width, size_t height);
hipError_t hipMemsetD2D8Async(hipDeviceptr_t to, size_t pitch, unsigned char value, size_t width, size_t height,
                              hipStream_t stream AITER_LIKE_DEFAULT(nullptr));
hipError_t hipPointerGetAttribute(void* out, hipPointer_attribute which, hipDeviceptr_t pointer);
hipError_t hipPointerSetAttribute(const void* value, hipPointer_attribute which, hipDeviceptr_t pointer);

// ---- refused
hipError_t hipMemGetHandleForAddressRange(void* handle, hipDeviceptr_t dptr, size_t size,
                                          hipMemRangeHandleType handle_type, unsigned long long flags);
hipError_t hipMemPoolExportPointer(hipMemPoolPtrExportData* export_data, void* dev_ptr);
hipError_t hipMemPoolExportToShareableHandle(void* shared_handle, hipMemPool_t mem_pool,
                                             hipMemAllocationHandleType handle_type, unsigned flags);
hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t* mem_pool, void* shared_handle,
                                               hipMemAllocationHandleType handle_type, unsigned flags);
hipError_t hipMemPoolImportPointer(void** dev_ptr, hipMemPool_t mem_pool, hipMemPoolPtrExportData* export_data);
