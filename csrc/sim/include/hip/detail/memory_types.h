// SPDX-License-Identifier: MIT
// What functions of memory take and tell: pools, attributes of pointers. Values and layouts are those of HIP 7.
#pragma once
#include "hip/detail/types.h"

// ---- places of memory
typedef enum hipMemLocationType {
  hipMemLocationTypeInvalid = 0, hipMemLocationTypeNone = 0, hipMemLocationTypeDevice = 1, hipMemLocationTypeHost = 2,
  hipMemLocationTypeHostNuma = 3, hipMemLocationTypeHostNumaCurrent = 4
} hipMemLocationType;
typedef struct hipMemLocation {
  hipMemLocationType type;
  int id;
} hipMemLocation;
typedef enum hipMemAllocationType {
  hipMemAllocationTypeInvalid = 0, hipMemAllocationTypePinned = 1, hipMemAllocationTypeUncached = 0x40000000,
  hipMemAllocationTypeMax = 0x7fffffff
} hipMemAllocationType;
typedef enum hipMemAllocationHandleType {
  hipMemHandleTypeNone = 0, hipMemHandleTypePosixFileDescriptor = 1, hipMemHandleTypeWin32 = 2,
  hipMemHandleTypeWin32Kmt = 4
} hipMemAllocationHandleType;

// ---- pools
typedef struct hipMemPoolProps {
  hipMemAllocationType allocType;
  hipMemAllocationHandleType handleTypes;
  hipMemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
} hipMemPoolProps;

// ---- attributes
typedef enum hipPointer_attribute {
  HIP_POINTER_ATTRIBUTE_CONTEXT = 1, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4, HIP_POINTER_ATTRIBUTE_P2P_TOKENS = 5, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7, HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE = 10, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12, HIP_POINTER_ATTRIBUTE_MAPPED = 13,
  HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14, HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
  HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16, HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17
} hipPointer_attribute;
