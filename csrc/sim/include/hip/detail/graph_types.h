// SPDX-License-Identifier: MIT
// What launches with attributes and graphs take. Values and layouts are those of HIP 7.
#pragma once
#include "hip/detail/types.h"

// ---- attributes of launches
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

// ---- graphs
typedef enum hipGraphInstantiateFlags {
  hipGraphInstantiateFlagAutoFreeOnLaunch = 1, hipGraphInstantiateFlagUpload = 2,
  hipGraphInstantiateFlagDeviceLaunch = 4, hipGraphInstantiateFlagUseNodePriority = 8
} hipGraphInstantiateFlags;

// ---- names of functions
typedef enum hipDriverProcAddressQueryResult {
  HIP_GET_PROC_ADDRESS_SUCCESS, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
} hipDriverProcAddressQueryResult;
