// SPDX-License-Identifier: MIT
// Graphs made node by node, and their order: any that the dependencies allow, the one of insertion where they do.
#include <algorithm>
#include <set>

#include "hip/graph.h"

namespace sim::hip {
namespace {

Error add_node(void** out, void* graph, void* const* after, size_t count, NodeKind kind, Work work) {
  if (!out || !graph || (count && !after)) {
    return set_error(kInvalidValue, "the graph, its node's address or the dependencies are null");
  }
  std::deque<Node>& nodes = static_cast<Graph*>(graph)->nodes;
  Node node{kind, std::move(work), {}};
  for (size_t i = 0; i < count; ++i) node.after.push_back(static_cast<Node*>(after[i]));
  nodes.push_back(std::move(node));
  *out = &nodes.back();
  return kSuccess;
}

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

Work work_of(const KernelParams* p) {
  if (!p) throw Fault("the kernel node's parameters are null");
  return launch_work(p->stub, p->grid, p->block, p->lds_bytes, p->params, p->extra);
}

}  // namespace

std::vector<const Node*> run_order(const Graph& graph) {
  std::map<const Node*, size_t> index;
  for (const Node& node : graph.nodes) index.emplace(&node, index.size());
  std::vector<std::vector<size_t>> next(graph.nodes.size());
  std::vector<size_t> missing(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    for (const Node* before : node.after) {
      const auto found = index.find(before);
      if (found == index.end()) throw Fault("a node of the graph depends on one of another graph");
      next[found->second].push_back(index[&node]);
      ++missing[index[&node]];
    }
  }
  std::set<size_t> ready;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (!missing[i]) ready.insert(i);
  }
  std::vector<const Node*> order;
  while (!ready.empty()) {
    const size_t i = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(&graph.nodes[i]);
    for (size_t n : next[i]) {
      if (--missing[n] == 0) ready.insert(n);
    }
  }
  if (order.size() != graph.nodes.size()) throw Fault("the dependencies of the graph's nodes are a circle");
  return order;
}

HIP_API int hipGraphCreate(void** graph, u32) {
  if (!graph) return set_error(kInvalidValue, "the graph's address is null");
  *graph = new Graph;
  return kSuccess;
}

HIP_API int hipGraphAddDependencies(void*, void* const* from, void* const* to, size_t count) {
  if (count && (!from || !to)) return set_error(kInvalidValue, "the nodes are null");
  for (size_t i = 0; i < count; ++i) static_cast<Node*>(to[i])->after.push_back(static_cast<Node*>(from[i]));
  return kSuccess;
}

HIP_API int hipGraphGetRootNodes(void* graph, void** roots, size_t* count) {
  if (!graph || !count) return set_error(kInvalidValue, "the graph or the count's address is null");
  size_t found = 0;
  for (Node& node : static_cast<Graph*>(graph)->nodes) {
    if (!node.after.empty()) continue;
    if (roots && found < *count) roots[found] = &node;
    ++found;
  }
  *count = roots ? std::min(*count, found) : found;
  return kSuccess;
}

HIP_API int hipGraphAddEmptyNode(void** node, void* graph, void* const* after, size_t count) {
  return add_node(node, graph, after, count, NodeKind::empty, [] { return kSuccess; });
}

HIP_API int hipGraphAddKernelNode(void** node, void* graph, void* const* after, size_t count, const KernelParams* p) {
  return guarded(kInvalidDeviceFunction,
                 [&] { return add_node(node, graph, after, count, NodeKind::kernel, work_of(p)); });
}

HIP_API int hipGraphAddMemcpyNode1D(void** node, void* graph, void* const* after, size_t count, void* to,
                                    const void* from, size_t bytes, int) {
  return add_node(node, graph, after, count, NodeKind::copy, copy_work(to, from, bytes));
}

HIP_API int hipGraphAddMemsetNode(void** node, void* graph, void* const* after, size_t count, const FillParams* p) {
  return guarded(kInvalidValue, [&] {
    if (!p) throw Fault("the fill node's parameters are null");
    return add_node(node, graph, after, count, NodeKind::fill,
                    fill_work(p->to, p->value, p->element_bytes, p->width, p->pitch, p->height));
  });
}

HIP_API int hipGraphAddHostNode(void** node, void* graph, void* const* after, size_t count, const HostParams* p) {
  if (!p || !p->fn) return set_error(kInvalidValue, "the host function is null");
  return add_node(node, graph, after, count, NodeKind::host, [p = *p] {
    p.fn(p.data);
    return kSuccess;
  });
}

// The child is copied as it is now.
HIP_API int hipGraphAddChildGraphNode(void** node, void* graph, void* const* after, size_t count, void* child) {
  return guarded(kInvalidValue, [&] {
    if (!child) throw Fault("the child graph is null");
    return add_node(node, graph, after, count, NodeKind::graph, graph_work(*static_cast<Graph*>(child)));
  });
}

// The next launches of the executable graph run the node's kernel with these parameters.
HIP_API int hipGraphExecKernelNodeSetParams(void* executable, void* node, const KernelParams* p) {
  return guarded(kInvalidValue, [&] {
    if (!executable) throw Fault("the executable graph is null");
    replace_work(executable, static_cast<const Node*>(node), work_of(p));
    return kSuccess;
  });
}

}  // namespace sim::hip
