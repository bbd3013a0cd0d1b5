// SPDX-License-Identifier: MIT
// What graphs, their nodes, captures and launches with attributes take and tell. Values and layouts are those of HIP 7.
#pragma once
#include "hip/detail/external_types.h"
#include "hip/detail/memory_types.h"

// ---- attributes of launches, streams and kernel nodes
typedef enum hipAccessProperty {
  hipAccessPropertyNormal, hipAccessPropertyStreaming, hipAccessPropertyPersisting
} hipAccessProperty;
typedef struct hipAccessPolicyWindow {
  void* base_ptr;
  hipAccessProperty hitProp;
  float hitRatio;
  hipAccessProperty missProp;
  size_t num_bytes;
} hipAccessPolicyWindow;
typedef enum hipSynchronizationPolicy {
  hipSyncPolicyAuto = 1, hipSyncPolicySpin = 2, hipSyncPolicyYield = 3, hipSyncPolicyBlockingSync = 4
} hipSynchronizationPolicy;
typedef struct hipLaunchMemSyncDomainMap { unsigned char default_, remote; } hipLaunchMemSyncDomainMap;
typedef enum hipLaunchMemSyncDomain {
  hipLaunchMemSyncDomainDefault, hipLaunchMemSyncDomainRemote
} hipLaunchMemSyncDomain;
typedef enum hipLaunchAttributeID {
  hipLaunchAttributeAccessPolicyWindow = 1, hipLaunchAttributeCooperative = 2,
  hipLaunchAttributeSynchronizationPolicy = 3, hipLaunchAttributePriority = 8, hipLaunchAttributeMemSyncDomainMap = 9,
  hipLaunchAttributeMemSyncDomain = 10, hipLaunchAttributeMax
} hipLaunchAttributeID;
typedef union hipLaunchAttributeValue {
  char pad[64];
  hipAccessPolicyWindow accessPolicyWindow;
  int cooperative, priority;
  hipSynchronizationPolicy syncPolicy;
  hipLaunchMemSyncDomainMap memSyncDomainMap;
  hipLaunchMemSyncDomain memSyncDomain;
} hipLaunchAttributeValue;
typedef struct hipLaunchAttribute_st {
  hipLaunchAttributeID id;
  char pad[8 - sizeof(hipLaunchAttributeID)];
  union { hipLaunchAttributeValue val, value; };
} hipLaunchAttribute;
#define hipStreamAttrID hipLaunchAttributeID
#define hipStreamAttrValue hipLaunchAttributeValue
#define hipStreamAttributeAccessPolicyWindow hipLaunchAttributeAccessPolicyWindow
#define hipStreamAttributeSynchronizationPolicy hipLaunchAttributeSynchronizationPolicy
#define hipStreamAttributeMemSyncDomainMap hipLaunchAttributeMemSyncDomainMap
#define hipStreamAttributeMemSyncDomain hipLaunchAttributeMemSyncDomain
#define hipStreamAttributePriority hipLaunchAttributePriority
#define hipKernelNodeAttrID hipLaunchAttributeID
#define hipKernelNodeAttrValue hipLaunchAttributeValue
#define hipKernelNodeAttributeAccessPolicyWindow hipLaunchAttributeAccessPolicyWindow
#define hipKernelNodeAttributeCooperative hipLaunchAttributeCooperative
#define hipKernelNodeAttributePriority hipLaunchAttributePriority
#define hipDrvLaunchAttribute hipLaunchAttribute
#define hipDrvLaunchAttributeID hipLaunchAttributeID
#define hipDrvLaunchAttributeValue hipLaunchAttributeValue
#define hipDrvLaunchAttributeCooperative hipLaunchAttributeCooperative

typedef struct hipLaunchConfig_st {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  hipStream_t stream;
  hipLaunchAttribute* attrs;
  unsigned numAttrs;
} hipLaunchConfig_t;
typedef struct HIP_LAUNCH_CONFIG_st {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  hipStream_t hStream;
  hipLaunchAttribute* attrs;
  unsigned numAttrs;
} HIP_LAUNCH_CONFIG;
typedef struct hipFunctionLaunchParams_t {
  hipFunction_t function;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  hipStream_t hStream;
  void** kernelParams;
} hipFunctionLaunchParams;

// ---- work of streams on places in memory
typedef enum hipStreamBatchMemOpType {
  hipStreamMemOpWaitValue32 = 1, hipStreamMemOpWriteValue32 = 2, hipStreamMemOpFlushRemoteWrites = 3,
  hipStreamMemOpWaitValue64 = 4, hipStreamMemOpWriteValue64 = 5, hipStreamMemOpBarrier = 6
} hipStreamBatchMemOpType;
typedef union hipStreamBatchMemOpParams_union {
  hipStreamBatchMemOpType operation;
  struct hipStreamMemOpWaitValueParams_t {
    hipStreamBatchMemOpType operation;
    hipDeviceptr_t address;
    union { uint32_t value; uint64_t value64; };
    unsigned flags;
    hipDeviceptr_t alias;
  } waitValue;
  struct hipStreamMemOpWriteValueParams_t {
    hipStreamBatchMemOpType operation;
    hipDeviceptr_t address;
    union { uint32_t value; uint64_t value64; };
    unsigned flags;
    hipDeviceptr_t alias;
  } writeValue;
  struct hipStreamMemOpFlushRemoteWritesParams_t {
    hipStreamBatchMemOpType operation;
    unsigned flags;
  } flushRemoteWrites;
  struct hipStreamMemOpMemoryBarrierParams_t {
    hipStreamBatchMemOpType operation;
    unsigned flags;
  } memoryBarrier;
  uint64_t pad[6];
} hipStreamBatchMemOpParams;

// ---- nodes
typedef struct hipMemcpyNodeParams {
  int flags, reserved[3];
  hipMemcpy3DParms copyParams;
} hipMemcpyNodeParams;
typedef struct hipChildGraphNodeParams { hipGraph_t graph; } hipChildGraphNodeParams;
typedef struct hipEventWaitNodeParams { hipEvent_t event; } hipEventWaitNodeParams;
typedef struct hipEventRecordNodeParams { hipEvent_t event; } hipEventRecordNodeParams;
typedef struct hipMemFreeNodeParams { void* dptr; } hipMemFreeNodeParams;
typedef struct hipMemAllocNodeParams {
  hipMemPoolProps poolProps;
  const hipMemAccessDesc* accessDescs;
  size_t accessDescCount, bytesize;
  void* dptr;
} hipMemAllocNodeParams;
typedef struct hipBatchMemOpNodeParams {
  hipCtx_t ctx;
  unsigned count;
  hipStreamBatchMemOpParams* paramArray;
  unsigned flags;
} hipBatchMemOpNodeParams;
typedef struct hipGraphNodeParams {
  hipGraphNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    hipKernelNodeParams kernel;
    hipMemcpyNodeParams memcpy;
    hipMemsetParams memset;
    hipHostNodeParams host;
    hipChildGraphNodeParams graph;
    hipEventWaitNodeParams eventWait;
    hipEventRecordNodeParams eventRecord;
    hipExternalSemaphoreSignalNodeParams extSemSignal;
    hipExternalSemaphoreWaitNodeParams extSemWait;
    hipMemAllocNodeParams alloc;
    hipMemFreeNodeParams free;
  };
  long long reserved2;
} hipGraphNodeParams;
typedef enum hipGraphDependencyType {
  hipGraphDependencyTypeDefault = 0, hipGraphDependencyTypeProgrammatic = 1
} hipGraphDependencyType;
typedef struct hipGraphEdgeData { unsigned char from_port, reserved[5], to_port, type; } hipGraphEdgeData;
#define hipGraphKernelNodePortDefault 0
#define hipGraphKernelNodePortProgrammatic 1
#define hipGraphKernelNodePortLaunchCompletion 2

// ---- graphs and captures
typedef enum hipStreamUpdateCaptureDependenciesFlags {
  hipStreamAddCaptureDependencies = 0, hipStreamSetCaptureDependencies = 1
} hipStreamUpdateCaptureDependenciesFlags;
typedef enum hipGraphMemAttributeType {
  hipGraphMemAttrUsedMemCurrent, hipGraphMemAttrUsedMemHigh, hipGraphMemAttrReservedMemCurrent,
  hipGraphMemAttrReservedMemHigh
} hipGraphMemAttributeType;
typedef enum hipUserObjectFlags { hipUserObjectNoDestructorSync = 1 } hipUserObjectFlags;
typedef enum hipUserObjectRetainFlags { hipGraphUserObjectMove = 1 } hipUserObjectRetainFlags;
typedef enum hipGraphInstantiateFlags {
  hipGraphInstantiateFlagAutoFreeOnLaunch = 1, hipGraphInstantiateFlagUpload = 2,
  hipGraphInstantiateFlagDeviceLaunch = 4, hipGraphInstantiateFlagUseNodePriority = 8
} hipGraphInstantiateFlags;
typedef enum hipGraphInstantiateResult {
  hipGraphInstantiateSuccess, hipGraphInstantiateError, hipGraphInstantiateInvalidStructure,
  hipGraphInstantiateNodeOperationNotSupported, hipGraphInstantiateMultipleDevicesNotSupported
} hipGraphInstantiateResult;
typedef struct hipGraphInstantiateParams {
  hipGraphNode_t errNode_out;
  unsigned long long flags;
  hipGraphInstantiateResult result_out;
  hipStream_t uploadStream;
} hipGraphInstantiateParams;
typedef enum hipGraphDebugDotFlags {
  hipGraphDebugDotFlagsVerbose = 1, hipGraphDebugDotFlagsKernelNodeParams = 4,
  hipGraphDebugDotFlagsMemcpyNodeParams = 8, hipGraphDebugDotFlagsMemsetNodeParams = 16,
  hipGraphDebugDotFlagsHostNodeParams = 32, hipGraphDebugDotFlagsEventNodeParams = 64,
  hipGraphDebugDotFlagsExtSemasSignalNodeParams = 128, hipGraphDebugDotFlagsExtSemasWaitNodeParams = 256,
  hipGraphDebugDotFlagsKernelNodeAttributes = 512, hipGraphDebugDotFlagsHandles = 1024
} hipGraphDebugDotFlags;

// ---- names of functions, and modules
typedef enum hipDriverProcAddressQueryResult {
  HIP_GET_PROC_ADDRESS_SUCCESS, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
} hipDriverProcAddressQueryResult;
typedef enum hipDriverEntryPointQueryResult {
  hipDriverEntryPointSuccess, hipDriverEntryPointSymbolNotFound, hipDriverEntryPointVersionNotSufficent
} hipDriverEntryPointQueryResult;
typedef enum hipLibraryOption_e {
  hipLibraryHostUniversalFunctionAndDataTable = 0, hipLibraryBinaryIsPreserved = 1
} hipLibraryOption;
typedef struct ihipLinkState_t* hipLinkState_t;
typedef enum hipJitInputType {
  hipJitInputCubin, hipJitInputPtx, hipJitInputFatBinary, hipJitInputObject, hipJitInputLibrary, hipJitInputNvvm,
  hipJitNumLegacyInputTypes, hipJitNumInputTypes = 10, hipJitInputLLVMBitcode = 100,
  hipJitInputLLVMBundledBitcode = 101, hipJitInputLLVMArchivesOfBundledBitcode = 102, hipJitInputSpirv = 103
} hipJitInputType;
