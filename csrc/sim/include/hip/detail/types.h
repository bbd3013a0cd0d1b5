// SPDX-License-Identifier: MIT
// Numbers, flags, handles and structures of the runtime's functions. Values and layouts are those of HIP 7: the library
// is called by programs that were compiled with ROCm's headers, too.
#pragma once
#include "hip/detail/language.h"

// In the order of their values; two names of one value stand together.
typedef enum
#if __cplusplus >= 201703L
    [[nodiscard]]
#endif
    hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2, hipErrorMemoryAllocation = 2,
  hipErrorNotInitialized = 3, hipErrorInitializationError = 3,
  hipErrorDeinitialized = 4,
  hipErrorProfilerDisabled = 5, hipErrorProfilerNotInitialized = 6,
  hipErrorProfilerAlreadyStarted = 7, hipErrorProfilerAlreadyStopped = 8,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidPitchValue = 12,
  hipErrorInvalidSymbol = 13,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInsufficientDriver = 35,
  hipErrorMissingConfiguration = 52,
  hipErrorPriorLaunchFailure = 53,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100, hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorInvalidContext = 201, hipErrorContextAlreadyCurrent = 202,
  hipErrorMapFailed = 205, hipErrorMapBufferObjectFailed = 205, hipErrorUnmapFailed = 206,
  hipErrorArrayIsMapped = 207, hipErrorAlreadyMapped = 208,
  hipErrorNoBinaryForGpu = 209,
  hipErrorAlreadyAcquired = 210, hipErrorNotMapped = 211, hipErrorNotMappedAsArray = 212,
  hipErrorNotMappedAsPointer = 213,
  hipErrorECCNotCorrectable = 214,
  hipErrorUnsupportedLimit = 215,
  hipErrorContextAlreadyInUse = 216, hipErrorPeerAccessUnsupported = 217,
  hipErrorInvalidKernelFile = 218, hipErrorInvalidGraphicsContext = 219,
  hipErrorInvalidSource = 300, hipErrorFileNotFound = 301,
  hipErrorSharedObjectSymbolNotFound = 302, hipErrorSharedObjectInitFailed = 303,
  hipErrorOperatingSystem = 304,
  hipErrorInvalidHandle = 400, hipErrorInvalidResourceHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700, hipErrorLaunchOutOfResources = 701, hipErrorLaunchTimeOut = 702,
  hipErrorPeerAccessAlreadyEnabled = 704, hipErrorPeerAccessNotEnabled = 705,
  hipErrorSetOnActiveProcess = 708, hipErrorContextIsDestroyed = 709,
  hipErrorAssert = 710,
  hipErrorHostMemoryAlreadyRegistered = 712, hipErrorHostMemoryNotRegistered = 713,
  hipErrorLaunchFailure = 719, hipErrorCooperativeLaunchTooLarge = 720,
  hipErrorNotSupported = 801,
  hipErrorStreamCaptureUnsupported = 900, hipErrorStreamCaptureInvalidated = 901, hipErrorStreamCaptureMerge = 902,
  hipErrorStreamCaptureUnmatched = 903, hipErrorStreamCaptureUnjoined = 904, hipErrorStreamCaptureIsolation = 905,
  hipErrorStreamCaptureImplicit = 906, hipErrorCapturedEvent = 907, hipErrorStreamCaptureWrongThread = 908,
  hipErrorGraphExecUpdateFailure = 910,
  hipErrorInvalidChannelDescriptor = 911, hipErrorInvalidTexture = 912,
  hipErrorUnknown = 999, hipErrorRuntimeMemory = 1052, hipErrorRuntimeOther = 1053, hipErrorTbd
} hipError_t;

// The older names that a few programs still compare with.
enum { HIP_SUCCESS, HIP_ERROR_INVALID_VALUE, HIP_ERROR_NOT_INITIALIZED, HIP_ERROR_LAUNCH_OUT_OF_RESOURCES };

// ---- handles

typedef void* hipDeviceptr_t;
typedef int hipDevice_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;
typedef struct ihipMemPoolHandle_t* hipMemPool_t;
typedef struct ihipGraph* hipGraph_t;
typedef struct hipGraphNode* hipGraphNode_t;
typedef struct hipGraphExec* hipGraphExec_t;
typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void* data);
typedef void (*hipHostFn_t)(void* data);
#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)

// ---- flags

// Macros and not enumerators: a plain 0 is also a null stream, and some programs pass one for the other.
#define hipStreamDefault 0
#define hipStreamNonBlocking 1
#define hipEventDefault 0
#define hipEventBlockingSync 1
#define hipEventDisableTiming 2
#define hipEventInterprocess 4
#define hipEventRecordDefault 0
#define hipEventRecordExternal 1
#define hipEventWaitDefault 0
#define hipEventWaitExternal 1
#define hipHostMallocDefault 0
#define hipHostMallocPortable 1
#define hipHostMallocMapped 2
#define hipHostMallocWriteCombined 4
#define hipHostAllocDefault 0
#define hipHostAllocPortable 1
#define hipHostAllocMapped 2
#define hipHostAllocWriteCombined 4
#define hipHostMallocNumaUser 0x20000000
#define hipHostMallocCoherent 0x40000000
#define hipHostRegisterDefault 0
#define hipHostRegisterPortable 1
#define hipHostRegisterMapped 2
#define hipHostRegisterIoMemory 4
#define hipHostRegisterReadOnly 8
#define hipMemAttachGlobal 1
#define hipMemAttachHost 2
#define hipMemAttachSingle 4
#define hipDeviceMallocDefault 0
#define hipDeviceMallocFinegrained 1
#define hipMallocSignalMemory 2
#define hipDeviceMallocUncached 3
#define hipDeviceScheduleAuto 0
#define hipDeviceScheduleSpin 1
#define hipDeviceScheduleYield 2
#define hipDeviceScheduleBlockingSync 4
#define hipDeviceScheduleMask 7
#define hipDeviceMapHost 8
#define hipDeviceLmemResizeToMax 16
#define hipOccupancyDefault 0
#define hipOccupancyDisableCachingOverride 1
#define hipCpuDeviceId (-1)
#define hipInvalidDeviceId (-2)
#define hipIpcMemLazyEnablePeerAccess 1
#define hipEventReleaseToDevice 0x40000000u
#define hipEventReleaseToSystem 0x80000000u
#define hipEventDisableSystemFence 0x20000000u
#define hipHostMallocNonCoherent 0x80000000u
#define hipExtHostAllocNumaUser 0x20000000
#define hipExtHostAllocCoherent 0x40000000
#define hipExtHostAllocNonCoherent 0x80000000u
#define hipHostMallocUncached 0x10000000u
#define hipHostAllocUncached hipHostMallocUncached
#define hipExtHostRegisterCoarseGrained 8
#define hipExtHostRegisterUncached 0x80000000u
#define hipDeviceMallocContiguous 4
#define hipExtAnyOrderLaunch 1
#define HIP_IPC_HANDLE_SIZE 64
#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void*)1)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE ((void*)2)
#define HIP_LAUNCH_PARAM_END ((void*)3)

typedef enum hipMemcpyKind {
  hipMemcpyHostToHost = 0, hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2, hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4, hipMemcpyDeviceToDeviceNoCU = 1024
} hipMemcpyKind;
typedef enum hipMemoryType {
  hipMemoryTypeUnregistered = 0, hipMemoryTypeHost = 1, hipMemoryTypeDevice = 2, hipMemoryTypeManaged = 3,
  hipMemoryTypeArray = 10, hipMemoryTypeUnified = 11
} hipMemoryType;
typedef enum hipFuncAttribute {
  hipFuncAttributeMaxDynamicSharedMemorySize = 8, hipFuncAttributePreferredSharedMemoryCarveout = 9,
  hipFuncAttributeMax
} hipFuncAttribute;
typedef enum hipFuncCache_t {
  hipFuncCachePreferNone, hipFuncCachePreferShared, hipFuncCachePreferL1, hipFuncCachePreferEqual
} hipFuncCache_t;
typedef enum hipSharedMemConfig {
  hipSharedMemBankSizeDefault, hipSharedMemBankSizeFourByte, hipSharedMemBankSizeEightByte
} hipSharedMemConfig;
typedef enum hipLimit_t {
  hipLimitStackSize = 0, hipLimitPrintfFifoSize = 1, hipLimitMallocHeapSize = 2, hipExtLimitScratchMin = 0x1000,
  hipExtLimitScratchMax = 0x1001, hipExtLimitScratchCurrent = 0x1002, hipLimitRange
} hipLimit_t;
typedef enum hipFunction_attribute {
  HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, HIP_FUNC_ATTRIBUTE_NUM_REGS, HIP_FUNC_ATTRIBUTE_PTX_VERSION,
  HIP_FUNC_ATTRIBUTE_BINARY_VERSION, HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA, HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, HIP_FUNC_ATTRIBUTE_MAX
} hipFunction_attribute;
typedef enum hipMemoryAdvise {
  hipMemAdviseSetReadMostly = 1, hipMemAdviseUnsetReadMostly = 2, hipMemAdviseSetPreferredLocation = 3,
  hipMemAdviseUnsetPreferredLocation = 4, hipMemAdviseSetAccessedBy = 5, hipMemAdviseUnsetAccessedBy = 6,
  hipMemAdviseSetCoarseGrain = 100, hipMemAdviseUnsetCoarseGrain = 101
} hipMemoryAdvise;
typedef enum hipMemPoolAttr {
  hipMemPoolReuseFollowEventDependencies = 1, hipMemPoolReuseAllowOpportunistic = 2,
  hipMemPoolReuseAllowInternalDependencies = 3, hipMemPoolAttrReleaseThreshold = 4,
  hipMemPoolAttrReservedMemCurrent = 5, hipMemPoolAttrReservedMemHigh = 6, hipMemPoolAttrUsedMemCurrent = 7,
  hipMemPoolAttrUsedMemHigh = 8
} hipMemPoolAttr;
typedef enum hipDeviceP2PAttr {
  hipDevP2PAttrPerformanceRank, hipDevP2PAttrAccessSupported, hipDevP2PAttrNativeAtomicSupported,
  hipDevP2PAttrHipArrayAccessSupported
} hipDeviceP2PAttr;
typedef enum hipStreamCaptureMode {
  hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed
} hipStreamCaptureMode;
typedef enum hipStreamCaptureStatus {
  hipStreamCaptureStatusNone, hipStreamCaptureStatusActive, hipStreamCaptureStatusInvalidated
} hipStreamCaptureStatus;
typedef enum hipGraphNodeType {
  hipGraphNodeTypeKernel, hipGraphNodeTypeMemcpy, hipGraphNodeTypeMemset, hipGraphNodeTypeHost, hipGraphNodeTypeGraph,
  hipGraphNodeTypeEmpty, hipGraphNodeTypeWaitEvent, hipGraphNodeTypeEventRecord, hipGraphNodeTypeExtSemaphoreSignal,
  hipGraphNodeTypeExtSemaphoreWait, hipGraphNodeTypeMemAlloc, hipGraphNodeTypeMemFree,
  hipGraphNodeTypeMemcpyFromSymbol, hipGraphNodeTypeMemcpyToSymbol, hipGraphNodeTypeBatchMemOp, hipGraphNodeTypeCount
} hipGraphNodeType;
typedef enum hipGraphExecUpdateResult {
  hipGraphExecUpdateSuccess, hipGraphExecUpdateError, hipGraphExecUpdateErrorTopologyChanged,
  hipGraphExecUpdateErrorNodeTypeChanged, hipGraphExecUpdateErrorFunctionChanged,
  hipGraphExecUpdateErrorParametersChanged, hipGraphExecUpdateErrorNotSupported,
  hipGraphExecUpdateErrorUnsupportedFunctionChange
} hipGraphExecUpdateResult;
typedef enum hipJitOption {
  hipJitOptionMaxRegisters, hipJitOptionThreadsPerBlock, hipJitOptionWallTime, hipJitOptionInfoLogBuffer,
  hipJitOptionInfoLogBufferSizeBytes, hipJitOptionErrorLogBuffer, hipJitOptionErrorLogBufferSizeBytes,
  hipJitOptionOptimizationLevel, hipJitOptionTargetFromContext, hipJitOptionTarget, hipJitOptionFallbackStrategy,
  hipJitOptionGenerateDebugInfo, hipJitOptionLogVerbose, hipJitOptionGenerateLineInfo, hipJitOptionCacheMode,
  hipJitOptionSm3xOpt, hipJitOptionFastCompile, hipJitOptionGlobalSymbolNames, hipJitOptionGlobalSymbolAddresses,
  hipJitOptionGlobalSymbolCount, hipJitOptionLto, hipJitOptionFtz, hipJitOptionPrecDiv, hipJitOptionPrecSqrt,
  hipJitOptionFma, hipJitOptionPositionIndependentCode, hipJitOptionMinCTAPerSM, hipJitOptionMaxThreadsPerBlock,
  hipJitOptionOverrideDirectiveValues, hipJitOptionNumOptions, hipJitOptionIRtoISAOptExt = 10000,
  hipJitOptionIRtoISAOptCountExt
} hipJitOption;

// ---- structures

typedef struct hipUUID_t { char bytes[16]; } hipUUID;
typedef struct hipIpcMemHandle_st { char reserved[64]; } hipIpcMemHandle_t;
typedef struct hipIpcEventHandle_st { char reserved[64]; } hipIpcEventHandle_t;

typedef struct hipPointerAttribute_t {
  hipMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
  int isManaged;
  unsigned allocationFlags;
} hipPointerAttribute_t;

typedef struct hipFuncAttributes {
  int binaryVersion, cacheModeCA;
  size_t constSizeBytes, localSizeBytes;
  int maxDynamicSharedSizeBytes, maxThreadsPerBlock, numRegs, preferredShmemCarveout, ptxVersion;
  size_t sharedSizeBytes;
} hipFuncAttributes;
