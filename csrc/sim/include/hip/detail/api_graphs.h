// SPDX-License-Identifier: MIT
// Graphs node by node, captures, and the lives of what graphs use. A part of hip_runtime_api.h.
#pragma once

hipError_t hipDeviceGetGraphMemAttribute(int device, hipGraphMemAttributeType which, void* value);
hipError_t hipDeviceGraphMemTrim(int device);
hipError_t hipDeviceSetGraphMemAttribute(int device, hipGraphMemAttributeType which, void* value);
hipError_t hipDrvGraphAddMemFreeNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                     hipDeviceptr_t pointer);
hipError_t hipDrvGraphAddMemcpyNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                    const HIP_MEMCPY3D* params, hipCtx_t ctx);
hipError_t hipDrvGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                    const hipMemsetParams* params, hipCtx_t ctx);
hipError_t hipDrvGraphExecMemcpyNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                              const HIP_MEMCPY3D* params, hipCtx_t ctx);
hipError_t hipDrvGraphExecMemsetNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                              const hipMemsetParams* params, hipCtx_t ctx);
hipError_t hipDrvGraphMemcpyNodeGetParams(hipGraphNode_t node, HIP_MEMCPY3D* out);
hipError_t hipDrvGraphMemcpyNodeSetParams(hipGraphNode_t node, const HIP_MEMCPY3D* params);
hipError_t hipGraphAddEventRecordNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                      hipEvent_t event);
hipError_t hipGraphAddEventWaitNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                    hipEvent_t event);
hipError_t hipGraphAddMemAllocNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                   hipMemAllocNodeParams* params);
hipError_t hipGraphAddMemFreeNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                                  void* pointer);
hipError_t hipGraphAddMemcpyNodeFromSymbol(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after,
                                           size_t count, void* to, const void* symbol, size_t bytes, size_t offset,
                                           hipMemcpyKind kind);
hipError_t hipGraphAddMemcpyNodeToSymbol(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after,
                                         size_t count, const void* symbol, const void* from, size_t bytes,
                                         size_t offset, hipMemcpyKind kind);
hipError_t hipGraphAddNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
                           hipGraphNodeParams* params);
hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t node, hipGraph_t* graph);
hipError_t hipGraphDebugDotPrint(hipGraph_t graph, const char* path, unsigned flags);
hipError_t hipGraphDestroyNode(hipGraphNode_t handle);
hipError_t hipGraphEventRecordNodeGetEvent(hipGraphNode_t node, hipEvent_t* event);
hipError_t hipGraphEventRecordNodeSetEvent(hipGraphNode_t node, hipEvent_t event);
hipError_t hipGraphEventWaitNodeGetEvent(hipGraphNode_t node, hipEvent_t* event);
hipError_t hipGraphEventWaitNodeSetEvent(hipGraphNode_t node, hipEvent_t event);
hipError_t hipGraphExecChildGraphNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node, hipGraph_t child);
hipError_t hipGraphExecEventRecordNodeSetEvent(hipGraphExec_t executable, hipGraphNode_t node, hipEvent_t event);
hipError_t hipGraphExecEventWaitNodeSetEvent(hipGraphExec_t executable, hipGraphNode_t node, hipEvent_t event);
hipError_t hipGraphExecGetFlags(hipGraphExec_t executable, unsigned long long* flags);
hipError_t hipGraphExecHostNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                         const hipHostNodeParams* params);
hipError_t hipGraphExecMemcpyNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node, hipMemcpy3DParms* params);
hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t executable, hipGraphNode_t node, void* to, const void* from,
                                             size_t bytes, hipMemcpyKind kind);
hipError_t hipGraphExecMemcpyNodeSetParamsFromSymbol(hipGraphExec_t executable, hipGraphNode_t node, void* to,
                                                     const void* symbol, size_t bytes, size_t offset,
                                                     hipMemcpyKind kind);
hipError_t hipGraphExecMemcpyNodeSetParamsToSymbol(hipGraphExec_t executable, hipGraphNode_t node, const void* symbol,
                                                   const void* from, size_t bytes, size_t offset, hipMemcpyKind kind);
hipError_t hipGraphExecMemsetNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                           const hipMemsetParams* params);
hipError_t hipGraphExecNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node, hipGraphNodeParams* params);
hipError_t hipGraphHostNodeGetParams(hipGraphNode_t node, hipHostNodeParams* out);
hipError_t hipGraphHostNodeSetParams(hipGraphNode_t node, const hipHostNodeParams* params);
hipError_t hipGraphInstantiateWithParams(hipGraphExec_t* out, hipGraph_t graph, hipGraphInstantiateParams* params);
hipError_t hipGraphKernelNodeCopyAttributes(hipGraphNode_t from, hipGraphNode_t to);
hipError_t hipGraphKernelNodeGetAttribute(hipGraphNode_t node, hipKernelNodeAttrID which,
                                          hipKernelNodeAttrValue* value);
hipError_t hipGraphKernelNodeSetAttribute(hipGraphNode_t node, hipKernelNodeAttrID which,
                                          const hipKernelNodeAttrValue* value);
hipError_t hipGraphMemAllocNodeGetParams(hipGraphNode_t node, hipMemAllocNodeParams* out);
hipError_t hipGraphMemFreeNodeGetParams(hipGraphNode_t node, void* out);
hipError_t hipGraphMemcpyNodeGetParams(hipGraphNode_t node, hipMemcpy3DParms* out);
hipError_t hipGraphMemcpyNodeSetParams(hipGraphNode_t node, const hipMemcpy3DParms* params);
hipError_t hipGraphMemcpyNodeSetParams1D(hipGraphNode_t node, void* to, const void* from, size_t bytes,
                                         hipMemcpyKind kind);
hipError_t hipGraphMemcpyNodeSetParamsFromSymbol(hipGraphNode_t node, void* to, const void* symbol, size_t bytes,
                                                 size_t offset, hipMemcpyKind kind);
hipError_t hipGraphMemcpyNodeSetParamsToSymbol(hipGraphNode_t node, const void* symbol, const void* from, size_t bytes,
                                               size_t offset, hipMemcpyKind kind);
hipError_t hipGraphMemsetNodeGetParams(hipGraphNode_t node, hipMemsetParams* out);
hipError_t hipGraphMemsetNodeSetParams(hipGraphNode_t node, const hipMemsetParams* params);
hipError_t hipGraphNodeFindInClone(hipGraphNode_t* out, hipGraphNode_t node, hipGraph_t clone);
hipError_t hipGraphNodeGetDependencies(hipGraphNode_t node, hipGraphNode_t* out, size_t* count);
hipError_t hipGraphNodeGetDependentNodes(hipGraphNode_t node, hipGraphNode_t* out, size_t* count);
hipError_t hipGraphNodeGetEnabled(hipGraphExec_t executable, hipGraphNode_t node, unsigned* enabled);
hipError_t hipGraphNodeSetEnabled(hipGraphExec_t executable, hipGraphNode_t node, unsigned enabled);
hipError_t hipGraphNodeSetParams(hipGraphNode_t node, hipGraphNodeParams* params);
hipError_t hipGraphReleaseUserObject(hipGraph_t graph, hipUserObject_t object, unsigned count AITER_LIKE_DEFAULT(1));
hipError_t hipGraphRemoveDependencies(hipGraph_t graph, const hipGraphNode_t* from, const hipGraphNode_t* to,
                                      size_t count);
hipError_t hipGraphRetainUserObject(hipGraph_t graph, hipUserObject_t object, unsigned count AITER_LIKE_DEFAULT(1),
                                    unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipStreamBeginCaptureToGraph(hipStream_t handle, hipGraph_t graph, const hipGraphNode_t* after,
                                        const hipGraphEdgeData* dependency_data, size_t count,
                                        hipStreamCaptureMode mode);
hipError_t hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus* status, unsigned long long* id);
hipError_t hipStreamGetCaptureInfo_v2(hipStream_t handle, hipStreamCaptureStatus* status,
                                      unsigned long long* id AITER_LIKE_DEFAULT(0),
                                      hipGraph_t* graph AITER_LIKE_DEFAULT(nullptr),
                                      const hipGraphNode_t** dependencies AITER_LIKE_DEFAULT(nullptr),
                                      size_t* num_dependencies AITER_LIKE_DEFAULT(nullptr));
hipError_t hipStreamUpdateCaptureDependencies(hipStream_t handle, hipGraphNode_t* nodes, size_t count,
                                              unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode);
hipError_t hipUserObjectCreate(hipUserObject_t* out, void* data, hipHostFn_t destroy, unsigned uses, unsigned flags);
hipError_t hipUserObjectRelease(hipUserObject_t object, unsigned count AITER_LIKE_DEFAULT(1));
hipError_t hipUserObjectRetain(hipUserObject_t object, unsigned count AITER_LIKE_DEFAULT(1));
