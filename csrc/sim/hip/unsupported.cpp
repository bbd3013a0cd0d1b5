// SPDX-License-Identifier: MIT
// What exists so that no program dies of a missing symbol: each function says once on stderr that it is not simulated,
// and returns hipErrorNotSupported. Its arguments are not read, so none is declared.
#include <atomic>
#include <cstdio>

#include "hip/hip.h"

namespace sim::hip {
namespace {

Error refuse(const char* function, const char* subject, std::atomic<bool>& told) {
  const std::string why = std::string(function) + " is not simulated: " + subject;
  if (!told.exchange(true)) std::fprintf(stderr, "simulated MI300X: %s\n", why.c_str());
  return set_error(kNotSupported, why);
}

}  // namespace

#define AITER_LIKE_REFUSE(subject, function)   \
  HIP_API int function() {                     \
    static std::atomic<bool> told{false};      \
    return refuse(#function, subject, told);   \
  }
// Each of the functions refuses. A macro does not expand itself, so the next one is named by another macro, which the
// rescans of AITER_LIKE_RESCAN come across.
#define AITER_LIKE_RESCAN(...) AITER_LIKE_RESCAN3(AITER_LIKE_RESCAN3(AITER_LIKE_RESCAN3(__VA_ARGS__)))
#define AITER_LIKE_RESCAN3(...) AITER_LIKE_RESCAN2(AITER_LIKE_RESCAN2(AITER_LIKE_RESCAN2(__VA_ARGS__)))
#define AITER_LIKE_RESCAN2(...) AITER_LIKE_RESCAN1(AITER_LIKE_RESCAN1(AITER_LIKE_RESCAN1(__VA_ARGS__)))
#define AITER_LIKE_RESCAN1(...) AITER_LIKE_RESCAN0(AITER_LIKE_RESCAN0(AITER_LIKE_RESCAN0(__VA_ARGS__)))
#define AITER_LIKE_RESCAN0(...) __VA_ARGS__
#define AITER_LIKE_NO_ARGUMENTS ()
#define AITER_LIKE_NEXT() AITER_LIKE_REFUSE_EACH
#define AITER_LIKE_REFUSE_EACH(subject, function, ...) \
  AITER_LIKE_REFUSE(subject, function)                 \
  __VA_OPT__(AITER_LIKE_NEXT AITER_LIKE_NO_ARGUMENTS(subject, __VA_ARGS__))
#define AITER_LIKE_UNSUPPORTED(subject, ...) AITER_LIKE_RESCAN(AITER_LIKE_REFUSE_EACH(subject, __VA_ARGS__))

AITER_LIKE_UNSUPPORTED(
    "textures, surfaces and mipmaps: gfx942 has no image instructions",
    hipBindTexture, hipBindTexture2D, hipBindTextureToArray, hipBindTextureToMipmappedArray, hipCreateSurfaceObject,
    hipCreateTextureObject, hipDestroySurfaceObject, hipDestroyTextureObject, hipDeviceGetTexture1DLinearMaxWidth,
    hipExternalMemoryGetMappedMipmappedArray, hipFreeMipmappedArray, hipGetMipmappedArrayLevel,
    hipGetTextureAlignmentOffset, hipGetTextureObjectResourceDesc, hipGetTextureObjectResourceViewDesc,
    hipGetTextureObjectTextureDesc, hipGetTextureReference, hipMallocMipmappedArray, hipMemMapArrayAsync,
    hipMipmappedArrayCreate, hipMipmappedArrayDestroy, hipMipmappedArrayGetLevel,
    hipMipmappedArrayGetMemoryRequirements, hipModuleGetTexRef, hipTexObjectCreate, hipTexObjectDestroy,
    hipTexObjectGetResourceDesc, hipTexObjectGetResourceViewDesc, hipTexObjectGetTextureDesc, hipTexRefGetAddress,
    hipTexRefGetAddressMode, hipTexRefGetArray, hipTexRefGetBorderColor, hipTexRefGetFilterMode, hipTexRefGetFlags,
    hipTexRefGetFormat, hipTexRefGetMaxAnisotropy, hipTexRefGetMipMappedArray, hipTexRefGetMipmapFilterMode,
    hipTexRefGetMipmapLevelBias, hipTexRefGetMipmapLevelClamp, hipTexRefSetAddress, hipTexRefSetAddress2D,
    hipTexRefSetAddressMode, hipTexRefSetArray, hipTexRefSetBorderColor, hipTexRefSetFilterMode, hipTexRefSetFlags,
    hipTexRefSetFormat, hipTexRefSetMaxAnisotropy, hipTexRefSetMipmapFilterMode, hipTexRefSetMipmapLevelBias,
    hipTexRefSetMipmapLevelClamp, hipTexRefSetMipmappedArray, hipUnbindTexture)

AITER_LIKE_UNSUPPORTED(
    "the structure of ROCm 5 (the headers of ROCm 6 and later call …R0600)",
    hipChooseDevice, hipGetDeviceProperties)

AITER_LIKE_UNSUPPORTED(
    "memory and semaphores of other interfaces",
    hipDestroyExternalMemory, hipDestroyExternalSemaphore, hipExternalMemoryGetMappedBuffer,
    hipGraphAddExternalSemaphoresSignalNode, hipGraphAddExternalSemaphoresWaitNode,
    hipGraphExecExternalSemaphoresSignalNodeSetParams, hipGraphExecExternalSemaphoresWaitNodeSetParams,
    hipGraphExternalSemaphoresSignalNodeGetParams, hipGraphExternalSemaphoresSignalNodeSetParams,
    hipGraphExternalSemaphoresWaitNodeGetParams, hipGraphExternalSemaphoresWaitNodeSetParams, hipImportExternalMemory,
    hipImportExternalSemaphore, hipSignalExternalSemaphoresAsync, hipWaitExternalSemaphoresAsync)

AITER_LIKE_UNSUPPORTED(
    "parts of a device as a context",
    hipDevResourceGenerateDesc, hipDevSmResourceSplit, hipDevSmResourceSplitByCount, hipDeviceGetDevResource,
    hipDeviceGetExecutionCtx, hipExecutionCtxDestroy, hipExecutionCtxGetDevResource, hipExecutionCtxGetDevice,
    hipExecutionCtxGetId, hipExecutionCtxRecordEvent, hipExecutionCtxStreamCreate, hipExecutionCtxSynchronize,
    hipExecutionCtxWaitEvent, hipGreenCtxCreate, hipStreamGetDevResource)

AITER_LIKE_UNSUPPORTED(
    "many at a time",
    hipDrvMemDiscardAndPrefetchBatchAsync, hipDrvMemDiscardBatchAsync, hipMemDiscardAndPrefetchBatchAsync,
    hipMemDiscardBatchAsync, hipMemPrefetchBatchAsync, hipMemcpy3DBatchAsync, hipMemcpyBatchAsync)

AITER_LIKE_UNSUPPORTED(
    "the runtime's own log",
    hipExtDisableLogging, hipExtEnableLogging, hipExtSetLoggingParams)

AITER_LIKE_UNSUPPORTED(
    "graphs made or changed node by node: hipStreamBeginCapture and hipGraphExecUpdate are there",
    hipDeviceGetGraphMemAttribute, hipDeviceGraphMemTrim, hipDeviceSetGraphMemAttribute, hipDrvGraphAddMemFreeNode,
    hipDrvGraphAddMemcpyNode, hipDrvGraphAddMemsetNode, hipDrvGraphExecMemcpyNodeSetParams,
    hipDrvGraphExecMemsetNodeSetParams, hipDrvGraphMemcpyNodeGetParams, hipDrvGraphMemcpyNodeSetParams,
    hipGraphAddBatchMemOpNode, hipGraphAddChildGraphNode, hipGraphAddDependencies, hipGraphAddEmptyNode,
    hipGraphAddEventRecordNode, hipGraphAddEventWaitNode, hipGraphAddHostNode, hipGraphAddKernelNode,
    hipGraphAddMemAllocNode, hipGraphAddMemFreeNode, hipGraphAddMemcpyNode, hipGraphAddMemcpyNode1D,
    hipGraphAddMemcpyNodeFromSymbol, hipGraphAddMemcpyNodeToSymbol, hipGraphAddMemsetNode, hipGraphAddNode,
    hipGraphBatchMemOpNodeGetParams, hipGraphBatchMemOpNodeSetParams, hipGraphChildGraphNodeGetGraph, hipGraphClone,
    hipGraphCreate, hipGraphDebugDotPrint, hipGraphDestroyNode, hipGraphEventRecordNodeGetEvent,
    hipGraphEventRecordNodeSetEvent, hipGraphEventWaitNodeGetEvent, hipGraphEventWaitNodeSetEvent,
    hipGraphExecBatchMemOpNodeSetParams, hipGraphExecChildGraphNodeSetParams, hipGraphExecEventRecordNodeSetEvent,
    hipGraphExecEventWaitNodeSetEvent, hipGraphExecGetFlags, hipGraphExecHostNodeSetParams,
    hipGraphExecKernelNodeSetParams, hipGraphExecMemcpyNodeSetParams, hipGraphExecMemcpyNodeSetParams1D,
    hipGraphExecMemcpyNodeSetParamsFromSymbol, hipGraphExecMemcpyNodeSetParamsToSymbol,
    hipGraphExecMemsetNodeSetParams, hipGraphExecNodeSetParams, hipGraphGetEdges, hipGraphGetRootNodes,
    hipGraphHostNodeGetParams, hipGraphHostNodeSetParams, hipGraphInstantiateWithParams,
    hipGraphKernelNodeCopyAttributes, hipGraphKernelNodeGetAttribute, hipGraphKernelNodeGetParams,
    hipGraphKernelNodeSetAttribute, hipGraphKernelNodeSetParams, hipGraphMemAllocNodeGetParams,
    hipGraphMemFreeNodeGetParams, hipGraphMemcpyNodeGetParams, hipGraphMemcpyNodeSetParams,
    hipGraphMemcpyNodeSetParams1D, hipGraphMemcpyNodeSetParamsFromSymbol, hipGraphMemcpyNodeSetParamsToSymbol,
    hipGraphMemsetNodeGetParams, hipGraphMemsetNodeSetParams, hipGraphNodeFindInClone, hipGraphNodeGetDependencies,
    hipGraphNodeGetDependentNodes, hipGraphNodeGetEnabled, hipGraphNodeSetEnabled, hipGraphNodeSetParams,
    hipGraphReleaseUserObject, hipGraphRemoveDependencies, hipGraphRetainUserObject, hipStreamBeginCaptureToGraph,
    hipStreamUpdateCaptureDependencies, hipUserObjectCreate, hipUserObjectRelease, hipUserObjectRetain)

AITER_LIKE_UNSUPPORTED(
    "resources of graphics interfaces",
    hipGraphicsMapResources, hipGraphicsResourceGetMappedPointer, hipGraphicsSubResourceGetMappedArray,
    hipGraphicsUnmapResources, hipGraphicsUnregisterResource)

AITER_LIKE_UNSUPPORTED(
    "of no use here",
    hipLibraryGetManaged, hipOccupancyAvailableDynamicSMemPerBlock)

AITER_LIKE_UNSUPPORTED(
    "memory of a pool in another process (hipIpc* is there)",
    hipMemGetHandleForAddressRange, hipMemPoolExportPointer, hipMemPoolExportToShareableHandle,
    hipMemPoolImportFromShareableHandle, hipMemPoolImportPointer)

AITER_LIKE_UNSUPPORTED(
    "clusters of workgroups: gfx942 has none",
    hipOccupancyMaxActiveClusters, hipOccupancyMaxPotentialClusterSize)

AITER_LIKE_UNSUPPORTED(
    "arrays, and copies and fills that a structure describes",
    hipArray3DCreate, hipArray3DGetDescriptor, hipArrayCreate, hipArrayDestroy, hipArrayGetDescriptor, hipArrayGetInfo,
    hipDrvMemcpy2DUnaligned, hipDrvMemcpy3D, hipDrvMemcpy3DAsync, hipFreeArray, hipGetChannelDesc, hipMalloc3D,
    hipMalloc3DArray, hipMallocArray, hipMemAllocPitch, hipMemcpy2DArrayToArray, hipMemcpy2DFromArray,
    hipMemcpy2DFromArrayAsync, hipMemcpy2DToArray, hipMemcpy2DToArrayAsync, hipMemcpy3D, hipMemcpy3DAsync,
    hipMemcpy3DPeer, hipMemcpy3DPeerAsync, hipMemcpyAtoA, hipMemcpyAtoD, hipMemcpyAtoH, hipMemcpyAtoHAsync,
    hipMemcpyDtoA, hipMemcpyFromArray, hipMemcpyHtoA, hipMemcpyHtoAAsync, hipMemcpyParam2D, hipMemcpyParam2DAsync,
    hipMemcpyToArray, hipMemset3D, hipMemset3DAsync, hipMemsetD2D16, hipMemsetD2D16Async, hipMemsetD2D32,
    hipMemsetD2D32Async, hipMemsetD2D8, hipMemsetD2D8Async)

AITER_LIKE_UNSUPPORTED(
    "contexts: hipSetDevice chooses a device",
    hipChooseDeviceR0600, hipCtxCreate, hipCtxDestroy, hipCtxDisablePeerAccess, hipCtxEnablePeerAccess,
    hipCtxGetApiVersion, hipCtxGetCacheConfig, hipCtxGetCurrent, hipCtxGetDevice, hipCtxGetFlags,
    hipCtxGetSharedMemConfig, hipCtxPopCurrent, hipCtxPushCurrent, hipCtxSetCacheConfig, hipCtxSetCurrent,
    hipCtxSetSharedMemConfig, hipCtxSynchronize, hipDevicePrimaryCtxGetState, hipDevicePrimaryCtxRelease,
    hipDevicePrimaryCtxReset, hipDevicePrimaryCtxRetain, hipDevicePrimaryCtxSetFlags, hipSetValidDevices)

AITER_LIKE_UNSUPPORTED(
    "launches argument by argument, or on several devices by one call",
    hipConfigureCall, hipExtLaunchMultiKernelMultiDevice, hipLaunchByPtr, hipLaunchCooperativeKernelMultiDevice,
    hipModuleLaunchCooperativeKernelMultiDevice, hipSetupArgument)

AITER_LIKE_UNSUPPORTED(
    "what is remembered of memory",
    hipDrvPointerGetAttributes, hipMemAdvise_v2, hipMemGetDefaultMemPool, hipMemGetMemPool, hipMemPoolGetAccess,
    hipMemPoolSetAccess, hipMemPrefetchAsync_v2, hipMemRangeGetAttribute, hipMemRangeGetAttributes, hipMemSetMemPool,
    hipPointerSetAttribute)

AITER_LIKE_UNSUPPORTED(
    "calls of their own for a thread's stream: the others take hipStreamPerThread",
    hipEventRecord_spt, hipGetProcAddress_spt, hipGraphLaunch_spt, hipLaunchCooperativeKernel_spt,
    hipLaunchHostFunc_spt, hipLaunchKernel_spt, hipMemcpy2DAsync_spt, hipMemcpy2DFromArrayAsync_spt,
    hipMemcpy2DFromArray_spt, hipMemcpy2DToArrayAsync_spt, hipMemcpy2DToArray_spt, hipMemcpy2D_spt,
    hipMemcpy3DAsync_spt, hipMemcpy3D_spt, hipMemcpyAsync_spt, hipMemcpyFromArray_spt, hipMemcpyFromSymbolAsync_spt,
    hipMemcpyFromSymbol_spt, hipMemcpyToSymbolAsync_spt, hipMemcpyToSymbol_spt, hipMemcpy_spt, hipMemset2DAsync_spt,
    hipMemset2D_spt, hipMemset3DAsync_spt, hipMemset3D_spt, hipMemsetAsync_spt, hipMemset_spt,
    hipStreamAddCallback_spt, hipStreamBeginCapture_spt, hipStreamEndCapture_spt, hipStreamGetCaptureInfo_spt,
    hipStreamGetCaptureInfo_v2_spt, hipStreamGetFlags_spt, hipStreamGetPriority_spt, hipStreamIsCapturing_spt,
    hipStreamQuery_spt, hipStreamSynchronize_spt, hipStreamWaitEvent_spt)

AITER_LIKE_UNSUPPORTED(
    "attributes and masks of streams, and their waits for values in memory",
    hipExtStreamCreateWithCUMask, hipStreamAttachMemAsync, hipStreamBatchMemOp, hipStreamCopyAttributes,
    hipStreamGetAttribute, hipStreamGetId, hipStreamSetAttribute, hipStreamWaitValue32, hipStreamWaitValue64,
    hipStreamWriteValue32, hipStreamWriteValue64)

AITER_LIKE_UNSUPPORTED(
    "kernels as libraries: hipModule* is there",
    hipGetDriverEntryPoint, hipGetDriverEntryPoint_spt, hipGetFuncBySymbol, hipKernelGetAttribute,
    hipKernelGetFunction, hipKernelGetLibrary, hipKernelGetName, hipKernelGetParamInfo, hipKernelSetAttribute,
    hipLibraryEnumerateKernels, hipLibraryGetGlobal, hipLibraryGetKernel, hipLibraryGetKernelCount, hipLibraryLoadData,
    hipLibraryLoadFromFile, hipLibraryUnload, hipModuleGetFunctionCount, hipModuleLoadFatBinary)

AITER_LIKE_UNSUPPORTED(
    "links of bitcode",
    hipLinkAddData, hipLinkAddFile, hipLinkComplete, hipLinkCreate, hipLinkDestroy)

AITER_LIKE_UNSUPPORTED(
    "virtual memory: hipMalloc and hipIpc* are there",
    hipMemAddressFree, hipMemAddressReserve, hipMemCreate, hipMemExportToShareableHandle, hipMemGetAccess,
    hipMemGetAllocationGranularity, hipMemGetAllocationPropertiesFromHandle, hipMemImportFromShareableHandle,
    hipMemMap, hipMemRelease, hipMemRetainAllocationHandle, hipMemSetAccess, hipMemUnmap)

// What a texture's elements are. It is a value: no error can be its answer.
struct Channels {                                // hipChannelFormatDesc
  int x, y, z, w, kind;
};
HIP_API Channels hipCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }

// A name for each number of a call, for tracers: there are none here.
HIP_API const char* hipApiName(u32) { return "unknown"; }

}  // namespace sim::hip
