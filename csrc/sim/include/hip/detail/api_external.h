// SPDX-License-Identifier: MIT
// Memory and semaphores of other interfaces, and nodes of many memory operations: what refuses, apart from textures. A
// part of hip_runtime_api.h.
#pragma once

hipError_t hipImportExternalMemory(hipExternalMemory_t* memory, const hipExternalMemoryHandleDesc* description);
hipError_t hipExternalMemoryGetMappedBuffer(void** address, hipExternalMemory_t memory,
                                            const hipExternalMemoryBufferDesc* description);
hipError_t hipDestroyExternalMemory(hipExternalMemory_t memory);
hipError_t hipImportExternalSemaphore(hipExternalSemaphore_t* semaphore,
                                      const hipExternalSemaphoreHandleDesc* description);
hipError_t hipSignalExternalSemaphoresAsync(const hipExternalSemaphore_t* semaphores,
                                            const hipExternalSemaphoreSignalParams* params, unsigned count,
                                            hipStream_t stream);
hipError_t hipWaitExternalSemaphoresAsync(const hipExternalSemaphore_t* semaphores,
                                          const hipExternalSemaphoreWaitParams* params, unsigned count,
                                          hipStream_t stream);
hipError_t hipDestroyExternalSemaphore(hipExternalSemaphore_t semaphore);
hipError_t hipGraphAddExternalSemaphoresSignalNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after,
                                                   size_t count, const hipExternalSemaphoreSignalNodeParams* params);
hipError_t hipGraphAddExternalSemaphoresWaitNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after,
                                                 size_t count, const hipExternalSemaphoreWaitNodeParams* params);
hipError_t hipGraphExternalSemaphoresSignalNodeGetParams(hipGraphNode_t node,
                                                         hipExternalSemaphoreSignalNodeParams* out);
hipError_t hipGraphExternalSemaphoresSignalNodeSetParams(hipGraphNode_t node,
                                                         const hipExternalSemaphoreSignalNodeParams* params);
hipError_t hipGraphExternalSemaphoresWaitNodeGetParams(hipGraphNode_t node, hipExternalSemaphoreWaitNodeParams* out);
hipError_t hipGraphExternalSemaphoresWaitNodeSetParams(hipGraphNode_t node,
                                                       const hipExternalSemaphoreWaitNodeParams* params);
hipError_t hipGraphExecExternalSemaphoresSignalNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                                             const hipExternalSemaphoreSignalNodeParams* params);
hipError_t hipGraphExecExternalSemaphoresWaitNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                                           const hipExternalSemaphoreWaitNodeParams* params);
hipError_t hipGraphAddBatchMemOpNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                     const hipBatchMemOpNodeParams* params);
hipError_t hipGraphBatchMemOpNodeGetParams(hipGraphNode_t node, hipBatchMemOpNodeParams* out);
hipError_t hipGraphBatchMemOpNodeSetParams(hipGraphNode_t node, hipBatchMemOpNodeParams* params);
hipError_t hipGraphExecBatchMemOpNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                               const hipBatchMemOpNodeParams* params);
