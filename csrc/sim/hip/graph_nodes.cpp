// SPDX-License-Identifier: MIT
// Graphs made node by node, and their order: any that the dependencies allow, the one of insertion where they do.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>

#include "hip/graph_params.h"

namespace sim::hip {

Error add_node(void** out, void* graph, void* const* after, size_t count, Content content) {
  if (!out || !graph || (count && !after)) {
    return set_error(kInvalidValue, "the graph, its node's address or the dependencies are null");
  }
  auto* owner = static_cast<Graph*>(graph);
  Node node{content.kind, std::move(content.work), {}, std::move(content.params), owner};
  for (size_t i = 0; i < count; ++i) node.after.push_back(static_cast<Node*>(after[i]));
  owner->nodes.push_back(std::move(node));
  *out = &owner->nodes.back();
  return kSuccess;
}

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
  std::vector<const Node*> at;
  for (const Node& node : graph.nodes) at.push_back(&node);
  std::set<size_t> ready;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (!missing[i]) ready.insert(i);
  }
  std::vector<const Node*> order;
  while (!ready.empty()) {
    const size_t i = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(at[i]);
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
  return add_node(node, graph, after, count, {NodeKind::empty, [] { return kSuccess; }, {}});
}

HIP_API int hipGraphRemoveDependencies(void*, void* const* from, void* const* to, size_t count) {
  if (count && (!from || !to)) return set_error(kInvalidValue, "the nodes are null");
  for (size_t i = 0; i < count; ++i) {
    auto& after = static_cast<Node*>(to[i])->after;
    const auto found = std::find(after.begin(), after.end(), static_cast<const Node*>(from[i]));
    if (found == after.end()) return set_error(kInvalidValue, "there is no such dependency");
    after.erase(found);
  }
  return kSuccess;
}

namespace {

// As many of `found` as there is room for; without room, how many there are.
Error give_nodes(const std::vector<void*>& found, void** out, size_t* count) {
  if (out) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < found.size() ? found[i] : nullptr;
  }
  *count = out ? std::min(*count, found.size()) : found.size();
  return kSuccess;
}

void* handle_of(const Node* node) { return const_cast<Node*>(node); }

std::unique_ptr<Graph> copy_of(const Graph& graph) {
  auto copy = std::make_unique<Graph>();
  for (const Node& node : graph.nodes) {
    copy->nodes.push_back(node);
    copy->nodes.back().graph = copy.get();
    copy->copies[&node] = &copy->nodes.back();
  }
  for (Node& node : copy->nodes) {
    for (const Node*& before : node.after) {
      const auto own = copy->copies.find(before);
      if (own != copy->copies.end()) before = own->second;
    }
  }
  copy->owned = graph.owned;
  return copy;
}

const char* name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kernel: return "kernel";
    case NodeKind::copy: return "memcpy";
    case NodeKind::fill: return "memset";
    case NodeKind::host: return "host";
    case NodeKind::graph: return "graph";
    case NodeKind::wait_event: return "wait event";
    case NodeKind::record_event: return "record event";
    case NodeKind::allocate: return "mem alloc";
    case NodeKind::release: return "mem free";
    case NodeKind::memory_operation: return "memory operation";
    case NodeKind::empty: break;
  }
  return "empty";
}

struct UserObject {
  void* data;
  void (*destroy)(void*);
  std::atomic<u32> uses;
};

void let_go(UserObject* object, u32 count) {
  if (object->uses.fetch_sub(count) > count) return;
  object->destroy(object->data);
  delete object;
}

}  // namespace

HIP_API int hipGraphGetEdges(void* graph, void** from, void** to, size_t* count) {
  if (!graph || !count || !from != !to) return set_error(kInvalidValue, "the graph, the count or one list is null");
  std::vector<void*> begins, ends;
  for (Node& node : static_cast<Graph*>(graph)->nodes) {
    for (const Node* before : node.after) {
      begins.push_back(handle_of(before));
      ends.push_back(&node);
    }
  }
  size_t same = *count;
  give_nodes(begins, from, &same);
  return give_nodes(ends, to, count);
}

HIP_API int hipGraphNodeGetDependencies(void* node, void** out, size_t* count) {
  if (!node || !count) return set_error(kInvalidValue, "the node or the count's address is null");
  std::vector<void*> found;
  for (const Node* before : static_cast<Node*>(node)->after) found.push_back(handle_of(before));
  return give_nodes(found, out, count);
}

HIP_API int hipGraphNodeGetDependentNodes(void* node, void** out, size_t* count) {
  if (!node || !count) return set_error(kInvalidValue, "the node or the count's address is null");
  std::vector<void*> found;
  const auto* own = static_cast<Node*>(node);
  for (Node& other : own->graph->nodes) {
    if (std::find(other.after.begin(), other.after.end(), own) != other.after.end()) found.push_back(&other);
  }
  return give_nodes(found, out, count);
}

HIP_API int hipGraphDestroyNode(void* handle) {
  if (!handle) return set_error(kInvalidValue, "the node is null");
  auto* node = static_cast<Node*>(handle);
  auto& nodes = node->graph->nodes;
  for (Node& other : nodes) std::erase(other.after, node);
  nodes.remove_if([&](const Node& other) { return &other == node; });
  return kSuccess;
}

HIP_API int hipGraphClone(void** out, void* graph) {
  if (!out || !graph) return set_error(kInvalidValue, "the graph or the result's address is null");
  *out = copy_of(*static_cast<Graph*>(graph)).release();
  return kSuccess;
}

HIP_API int hipGraphNodeFindInClone(void** out, void* node, void* clone) {
  if (!out || !node || !clone) return set_error(kInvalidValue, "the node, the clone or the result's address is null");
  const auto& copies = static_cast<Graph*>(clone)->copies;
  const auto found = copies.find(static_cast<Node*>(node));
  if (found == copies.end()) return set_error(kInvalidValue, "the graph is no clone of the node's");
  *out = found->second;
  return kSuccess;
}

HIP_API int hipGraphDebugDotPrint(void* graph, const char* path, u32) {
  if (!graph || !path) return set_error(kInvalidValue, "the graph or the path is null");
  std::ofstream file(path);
  std::map<const Node*, size_t> index;
  file << "digraph graph_1 {\n";
  for (const Node& node : static_cast<Graph*>(graph)->nodes) {
    const size_t number = index.emplace(&node, index.size()).first->second;
    file << "  n" << number << " [label=\"" << number << ": " << name_of(node.kind) << "\"];\n";
  }
  for (const Node& node : static_cast<Graph*>(graph)->nodes) {
    for (const Node* before : node.after) file << "  n" << index[before] << " -> n" << index[&node] << ";\n";
  }
  file << "}\n";
  return file.flush() ? kSuccess : set_error(kInvalidValue, std::string("cannot write ") + path);
}

HIP_API int hipUserObjectCreate(void** out, void* data, void (*destroy)(void*), u32 uses, u32 flags) {
  if (!out || !destroy || uses == 0 || flags != 1) {
    return set_error(kInvalidValue, "a user object has a destructor, references and hipUserObjectNoDestructorSync");
  }
  *out = new UserObject{data, destroy, uses};
  return kSuccess;
}
HIP_API int hipUserObjectRetain(void* object, u32 count) {
  if (!object || count == 0) return set_error(kInvalidValue, "no object, or no references");
  static_cast<UserObject*>(object)->uses += count;
  return kSuccess;
}
HIP_API int hipUserObjectRelease(void* object, u32 count) {
  if (!object || count == 0) return set_error(kInvalidValue, "no object, or no references");
  let_go(static_cast<UserObject*>(object), count);
  return kSuccess;
}
// flags 1: the caller's references become the graph's.
HIP_API int hipGraphRetainUserObject(void* graph, void* object, u32 count, u32 flags) {
  if (!graph || !object || count == 0 || flags > 1) return set_error(kInvalidValue, "no graph, object or reference");
  auto* own = static_cast<UserObject*>(object);
  if (flags == 0) own->uses += count;
  for (u32 i = 0; i < count; ++i) {
    static_cast<Graph*>(graph)->owned.emplace_back(own, [](UserObject* gone) { let_go(gone, 1); });
  }
  return kSuccess;
}
HIP_API int hipGraphReleaseUserObject(void* graph, void* object, u32 count) {
  if (!graph || !object) return set_error(kInvalidValue, "the graph or the object is null");
  auto& owned = static_cast<Graph*>(graph)->owned;
  for (u32 i = 0; i < count; ++i) {
    const auto found = std::find_if(owned.begin(), owned.end(), [&](const auto& one) { return one.get() == object; });
    if (found == owned.end()) return set_error(kInvalidValue, "the graph has not so many references");
    owned.erase(found);
  }
  return kSuccess;
}

}  // namespace sim::hip
