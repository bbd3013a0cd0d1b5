// SPDX-License-Identifier: MIT
// What graph.cpp and graph_nodes.cpp share, and the pieces of work that a node may be.
#pragma once
#include "hip/stream.h"

namespace sim::hip {

// The objects behind handles; these throw Fault when one is not live.
inline Graph& graph_of(const void* handle) { return live_one<Graph>(handle, "graph"); }
inline Node& node_of(const void* handle) { return live_one<Node>(handle, "node"); }
// Throws Fault when one of `count` handles is no node of the graph, or is there twice.
void check_nodes(const Graph& graph, void* const* nodes, size_t count);
// Every node in an order that the dependencies allow; throws Fault when there is none.
std::vector<const Node*> run_order(const Graph& graph);
// Whether both have equally many nodes, of the same kinds, with the same dependencies.
bool same_shape(const Graph& a, const Graph& b);
// References of an executable graph to what the graph holds; graph_nodes.cpp.
std::vector<std::shared_ptr<void>> share_objects(const Graph& graph);
// All nodes of the graph as it is now, as one piece of work.
Work graph_work(const Graph& graph);
// These throw Fault when the executable graph has no such node.
void replace_work(void* executable, const Node* node, Work work);

// launch.cpp, copy.cpp. Arguments are copied now.
Work launch_work(const void* stub, Dim3 grid, Dim3 block, u64 lds_bytes, void* const* params, void* const* extra);
Work symbol_work(const void* symbol, const void* from, void* to, size_t bytes, size_t offset);
Work copy_work(void* to, const void* from, size_t bytes);
Work fill_work(void* to, u32 value, u32 element_bytes, size_t count, size_t pitch, size_t height);

}  // namespace sim::hip
