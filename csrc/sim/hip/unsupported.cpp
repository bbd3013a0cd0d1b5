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

#define AITER_LIKE_UNSUPPORTED(function, subject) \
  HIP_API int function() {                        \
    static std::atomic<bool> told{false};         \
    return refuse(#function, subject, told);      \
  }

constexpr const char* kTextures = "textures, surfaces and mipmaps: gfx942 has no image instructions";
AITER_LIKE_UNSUPPORTED(hipBindTexture, kTextures)
AITER_LIKE_UNSUPPORTED(hipBindTexture2D, kTextures)
AITER_LIKE_UNSUPPORTED(hipBindTextureToArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipBindTextureToMipmappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipCreateSurfaceObject, kTextures)
AITER_LIKE_UNSUPPORTED(hipCreateTextureObject, kTextures)
AITER_LIKE_UNSUPPORTED(hipDestroySurfaceObject, kTextures)
AITER_LIKE_UNSUPPORTED(hipDestroyTextureObject, kTextures)
AITER_LIKE_UNSUPPORTED(hipDeviceGetTexture1DLinearMaxWidth, kTextures)
AITER_LIKE_UNSUPPORTED(hipExternalMemoryGetMappedMipmappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipFreeMipmappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetMipmappedArrayLevel, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetTextureAlignmentOffset, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetTextureObjectResourceDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetTextureObjectResourceViewDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetTextureObjectTextureDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipGetTextureReference, kTextures)
AITER_LIKE_UNSUPPORTED(hipMallocMipmappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipMemMapArrayAsync, kTextures)
AITER_LIKE_UNSUPPORTED(hipMipmappedArrayCreate, kTextures)
AITER_LIKE_UNSUPPORTED(hipMipmappedArrayDestroy, kTextures)
AITER_LIKE_UNSUPPORTED(hipMipmappedArrayGetLevel, kTextures)
AITER_LIKE_UNSUPPORTED(hipMipmappedArrayGetMemoryRequirements, kTextures)
AITER_LIKE_UNSUPPORTED(hipModuleGetTexRef, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexObjectCreate, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexObjectDestroy, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexObjectGetResourceDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexObjectGetResourceViewDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexObjectGetTextureDesc, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetAddress, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetAddressMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetBorderColor, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetFilterMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetFlags, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetFormat, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetMaxAnisotropy, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetMipMappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetMipmapFilterMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetMipmapLevelBias, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefGetMipmapLevelClamp, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetAddress, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetAddress2D, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetAddressMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetBorderColor, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetFilterMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetFlags, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetFormat, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetMaxAnisotropy, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetMipmapFilterMode, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetMipmapLevelBias, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetMipmapLevelClamp, kTextures)
AITER_LIKE_UNSUPPORTED(hipTexRefSetMipmappedArray, kTextures)
AITER_LIKE_UNSUPPORTED(hipUnbindTexture, kTextures)

constexpr const char* kOldStructure = "the structure of ROCm 5 (the headers of ROCm 6 and later call …R0600)";
AITER_LIKE_UNSUPPORTED(hipChooseDevice, kOldStructure)
AITER_LIKE_UNSUPPORTED(hipGetDeviceProperties, kOldStructure)

constexpr const char* kForeign = "memory and semaphores of other interfaces";
AITER_LIKE_UNSUPPORTED(hipDestroyExternalMemory, kForeign)
AITER_LIKE_UNSUPPORTED(hipDestroyExternalSemaphore, kForeign)
AITER_LIKE_UNSUPPORTED(hipExternalMemoryGetMappedBuffer, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphAddExternalSemaphoresSignalNode, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphAddExternalSemaphoresWaitNode, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExecExternalSemaphoresSignalNodeSetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExecExternalSemaphoresWaitNodeSetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExternalSemaphoresSignalNodeGetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExternalSemaphoresSignalNodeSetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExternalSemaphoresWaitNodeGetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipGraphExternalSemaphoresWaitNodeSetParams, kForeign)
AITER_LIKE_UNSUPPORTED(hipImportExternalMemory, kForeign)
AITER_LIKE_UNSUPPORTED(hipImportExternalSemaphore, kForeign)
AITER_LIKE_UNSUPPORTED(hipSignalExternalSemaphoresAsync, kForeign)
AITER_LIKE_UNSUPPORTED(hipWaitExternalSemaphoresAsync, kForeign)

constexpr const char* kParts = "parts of a device as a context";
AITER_LIKE_UNSUPPORTED(hipDevResourceGenerateDesc, kParts)
AITER_LIKE_UNSUPPORTED(hipDevSmResourceSplit, kParts)
AITER_LIKE_UNSUPPORTED(hipDevSmResourceSplitByCount, kParts)
AITER_LIKE_UNSUPPORTED(hipDeviceGetDevResource, kParts)
AITER_LIKE_UNSUPPORTED(hipDeviceGetExecutionCtx, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxDestroy, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxGetDevResource, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxGetDevice, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxGetId, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxRecordEvent, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxStreamCreate, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxSynchronize, kParts)
AITER_LIKE_UNSUPPORTED(hipExecutionCtxWaitEvent, kParts)
AITER_LIKE_UNSUPPORTED(hipGreenCtxCreate, kParts)
AITER_LIKE_UNSUPPORTED(hipStreamGetDevResource, kParts)

constexpr const char* kBatches = "many at a time";
AITER_LIKE_UNSUPPORTED(hipDrvMemDiscardAndPrefetchBatchAsync, kBatches)
AITER_LIKE_UNSUPPORTED(hipDrvMemDiscardBatchAsync, kBatches)
AITER_LIKE_UNSUPPORTED(hipMemDiscardAndPrefetchBatchAsync, kBatches)
AITER_LIKE_UNSUPPORTED(hipMemDiscardBatchAsync, kBatches)
AITER_LIKE_UNSUPPORTED(hipMemcpy3DBatchAsync, kBatches)

constexpr const char* kLog = "the runtime's own log";
AITER_LIKE_UNSUPPORTED(hipExtDisableLogging, kLog)
AITER_LIKE_UNSUPPORTED(hipExtEnableLogging, kLog)
AITER_LIKE_UNSUPPORTED(hipExtSetLoggingParams, kLog)

constexpr const char* kNodes = "nodes of memory operations (hipStreamBatchMemOp is there)";
AITER_LIKE_UNSUPPORTED(hipGraphAddBatchMemOpNode, kNodes)
AITER_LIKE_UNSUPPORTED(hipGraphBatchMemOpNodeGetParams, kNodes)
AITER_LIKE_UNSUPPORTED(hipGraphBatchMemOpNodeSetParams, kNodes)
AITER_LIKE_UNSUPPORTED(hipGraphExecBatchMemOpNodeSetParams, kNodes)

constexpr const char* kGraphics = "resources of graphics interfaces";
AITER_LIKE_UNSUPPORTED(hipGraphicsMapResources, kGraphics)
AITER_LIKE_UNSUPPORTED(hipGraphicsResourceGetMappedPointer, kGraphics)
AITER_LIKE_UNSUPPORTED(hipGraphicsSubResourceGetMappedArray, kGraphics)
AITER_LIKE_UNSUPPORTED(hipGraphicsUnmapResources, kGraphics)
AITER_LIKE_UNSUPPORTED(hipGraphicsUnregisterResource, kGraphics)

constexpr const char* kOther = "of no use here";
AITER_LIKE_UNSUPPORTED(hipLibraryGetManaged, kOther)

constexpr const char* kPools =
    "memory of a pool in another process (hipIpc* and hipMemExportToShareableHandle are there)";
AITER_LIKE_UNSUPPORTED(hipMemGetHandleForAddressRange, kPools)
AITER_LIKE_UNSUPPORTED(hipMemPoolExportPointer, kPools)
AITER_LIKE_UNSUPPORTED(hipMemPoolExportToShareableHandle, kPools)
AITER_LIKE_UNSUPPORTED(hipMemPoolImportFromShareableHandle, kPools)
AITER_LIKE_UNSUPPORTED(hipMemPoolImportPointer, kPools)

constexpr const char* kClusters = "clusters of workgroups: gfx942 has none";
AITER_LIKE_UNSUPPORTED(hipOccupancyMaxActiveClusters, kClusters)
AITER_LIKE_UNSUPPORTED(hipOccupancyMaxPotentialClusterSize, kClusters)

// A name for each number of a call, for tracers: there are none here.
HIP_API const char* hipApiName(u32) { return "unknown"; }

}  // namespace sim::hip
