// SPDX-License-Identifier: MIT
// What nodes of graphs do, as HIP's public headers say it, and what follows for the graph: the piece of work, and the
// parameters that a program may ask for again.
#pragma once
#include "hip/copy_params.h"
#include "hip/graph.h"

namespace sim::hip {

struct KernelParams {                            // hipKernelNodeParams
  Dim3 block;
  void** extra;
  void* stub;
  Dim3 grid;
  void** params;
  u32 lds_bytes;
};
struct FillParams {                              // hipMemsetParams
  void* to;
  u32 element_bytes;
  size_t height, pitch;
  u32 value;
  size_t width;
};
struct HostParams {                              // hipHostNodeParams
  void (*fn)(void*);
  void* data;
};
struct PoolParams {                              // hipMemPoolProps
  int type, handle_types, location_type, device;
  void* security;
  size_t most;
  char reserved[56];
};
static_assert(sizeof(PoolParams) == 88);
struct AllocateParams {                          // hipMemAllocNodeParams
  PoolParams pool;
  const void* accesses;
  size_t num_accesses, bytes;
  void* pointer;
};
struct ReleaseParams { void* pointer; };         // hipMemFreeNodeParams
struct ChildParams { Graph* graph; };            // hipChildGraphNodeParams
struct ChildNode { std::shared_ptr<Graph> graph; };      // its node's own copy
struct RecordParams { void* event; };            // hipEventRecordNodeParams
struct WaitParams { void* event; };              // hipEventWaitNodeParams
struct SymbolParams {                            // a copy to (`to` is null) or from a variable
  const void *symbol, *from;
  void* to;
  size_t bytes, offset;
};

// An error for parameters that a node lacks, where the call has another error for parameters that are wrong.
struct NodeError : Fault {
  explicit NodeError(Error error) : Fault(error_text(error)), error(error) {}
  Error error;
};

struct Content {
  NodeKind kind;
  Work work;
  std::any params;
};

// They throw Fault of parameters that are null or wrong.
Content content_of(const KernelParams* p);
Content content_of(const Params3D* p);
Content content_of(const DriverParams3D* p);
Content content_of(const FillParams* p);
Content content_of(const HostParams* p);
Content content_of(const ChildParams* p);
Content content_of(const RecordParams* p);
Content content_of(const WaitParams* p);
Content content_of(const SymbolParams* p);
Content content_of(const ReleaseParams* p);
Content content_of(AllocateParams* p);           // `pointer` is written

// Parameters of a captured kernel, copy or fill; the node keeps the arguments' values.
std::any kept_params(const KernelParams& p);
std::any kept_params(void* to, const void* from, const Box& box);
ChildNode child_of(const Graph& graph);          // the graph as it is now

Error add_node(void** out, void* graph, void* const* after, size_t count, Content content);

}  // namespace sim::hip
