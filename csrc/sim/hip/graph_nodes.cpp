// SPDX-License-Identifier: MIT
// Graphs made node by node, and their order: any that the dependencies allow, the one of insertion where they do.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>

#include "hip/graph_params.h"

namespace sim::hip {

void check_nodes(const Graph& graph, void* const* nodes, size_t count) {
  if (count && !nodes) throw Fault("the nodes are null");
  std::set<const void*> seen;
  for (size_t i = 0; i < count; ++i) {
    if (node_of(nodes[i]).graph != &graph) throw Fault("a node is another graph's");
    if (!seen.insert(nodes[i]).second) throw Fault("a node is there twice");
  }
}

Error add_node(void** out, void* graph, void* const* after, size_t count, Content content) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the node's address is null");
    Graph& owner = graph_of(graph);
    check_nodes(owner, after, count);
    Node node{content.kind, std::move(content.work), {}, std::move(content.params)};
    for (size_t i = 0; i < count; ++i) node.after.push_back(&node_of(after[i]));
    *out = &owner.add(std::move(node));
    return kSuccess;
  });
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

namespace {

struct Edge {
  Node *from, *to;
};

std::vector<Edge> edges_of(void* graph, void* const* from, void* const* to, size_t count) {
  const Graph& own = graph_of(graph);
  if (count && (!from || !to)) throw Fault("the nodes are null");
  std::vector<Edge> edges;
  for (size_t i = 0; i < count; ++i) {
    edges.push_back({&node_of(from[i]), &node_of(to[i])});
    if (edges[i].from->graph != &own || edges[i].to->graph != &own) throw Fault("a node is another graph's");
  }
  return edges;
}

bool has(const std::vector<const Node*>& nodes, const Node* one) {
  return std::find(nodes.begin(), nodes.end(), one) != nodes.end();
}

}  // namespace

HIP_API int hipGraphCreate(void** graph, u32 flags) {
  if (flags) return set_error(kInvalidValue, "a graph has no flags");
  if (!graph) return set_error(kInvalidValue, "the graph's address is null");
  *graph = new Graph;
  return kSuccess;
}

HIP_API int hipGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  return guarded(kInvalidValue, [&] {
    const std::vector<Edge> edges = edges_of(graph, from, to, count);
    for (const Edge& e : edges) {
      if (e.from == e.to) throw Fault("a node does not depend on itself");
      if (has(e.to->after, e.from)) throw Fault("there is such a dependency already");
    }
    for (const Edge& e : edges) e.to->after.push_back(e.from);
    return kSuccess;
  });
}

HIP_API int hipGraphGetRootNodes(void* graph, void** roots, size_t* count) {
  return guarded(kInvalidValue, [&] {
    if (!count) throw Fault("the count's address is null");
    size_t found = 0;
    for (Node& node : graph_of(graph).nodes) {
      if (!node.after.empty()) continue;
      if (roots && found < *count) roots[found] = &node;
      ++found;
    }
    *count = roots ? std::min(*count, found) : found;
    return kSuccess;
  });
}

HIP_API int hipGraphAddEmptyNode(void** node, void* graph, void* const* after, size_t count) {
  return add_node(node, graph, after, count, {NodeKind::empty, [] { return kSuccess; }, {}});
}

HIP_API int hipGraphRemoveDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  return guarded(kInvalidValue, [&] {
    const std::vector<Edge> edges = edges_of(graph, from, to, count);
    for (const Edge& e : edges) {
      if (!has(e.to->after, e.from)) throw Fault("there is no such dependency");
    }
    for (const Edge& e : edges) std::erase(e.to->after, e.from);
    return kSuccess;
  });
}

namespace {

// Gives as many of `found` as there is room for, or their number when `out` is null.
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
    Node& own = copy->add(node);
    copy->copies[&node] = &own;
    if (const auto* child = std::any_cast<ChildNode>(&node.params)) own.params = child_of(*child->graph);
  }
  for (Node& node : copy->nodes) {
    for (const Node*& before : node.after) {
      const auto own = copy->copies.find(before);
      if (own != copy->copies.end()) before = own->second;
    }
  }
  copy->owned = share_objects(graph);
  return copy;
}

}  // namespace

ChildNode child_of(const Graph& graph) {
  std::shared_ptr<Graph> own = copy_of(graph);
  own->is_child = true;
  return {std::move(own)};
}

namespace {

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

// References of a graph to one object.
struct Held {
  UserObject* object;
  u32 count;
  Held(UserObject* object, u32 count) : object(object), count(count) {}
  Held(const Held&) = delete;
  ~Held();
};

UserObject& object_of(void* handle) { return live_one<UserObject>(handle, "user object"); }

void let_go(UserObject* object, u32 count) {
  // A program may have given back more than it had: what a graph holds is gone then.
  if (!live<UserObject>().has(object) || object->uses.fetch_sub(count) > count) return;
  live<UserObject>().drop(object);
  object->destroy(object->data);
  delete object;
}
Held::~Held() {
  if (count) let_go(object, count);
}

}  // namespace

std::vector<std::shared_ptr<void>> share_objects(const Graph& graph) {
  std::vector<std::shared_ptr<void>> shared;
  for (const auto& one : graph.owned) {
    UserObject* object = static_cast<Held*>(one.get())->object;
    if (!live<UserObject>().has(object)) continue;
    object->uses += 1;
    shared.push_back(std::make_shared<Held>(object, 1));
  }
  return shared;
}

HIP_API int hipGraphGetEdges(void* graph, void** from, void** to, size_t* count) {
  return guarded(kInvalidValue, [&] {
    if (!count || !from != !to) throw Fault("the count or one list is null");
    std::vector<void*> begins, ends;
    for (Node& node : graph_of(graph).nodes) {
      for (const Node* before : node.after) {
        begins.push_back(handle_of(before));
        ends.push_back(&node);
      }
    }
    size_t same = *count;
    give_nodes(begins, from, &same);
    return give_nodes(ends, to, count);
  });
}

HIP_API int hipGraphNodeGetDependencies(void* node, void** out, size_t* count) {
  return guarded(kInvalidValue, [&] {
    if (!count) throw Fault("the count's address is null");
    std::vector<void*> found;
    for (const Node* before : node_of(node).after) found.push_back(handle_of(before));
    return give_nodes(found, out, count);
  });
}

HIP_API int hipGraphNodeGetDependentNodes(void* node, void** out, size_t* count) {
  return guarded(kInvalidValue, [&] {
    if (!count) throw Fault("the count's address is null");
    std::vector<void*> found;
    const Node& own = node_of(node);
    for (Node& other : own.graph->nodes) {
      if (has(other.after, &own)) found.push_back(&other);
    }
    return give_nodes(found, out, count);
  });
}

HIP_API int hipGraphDestroyNode(void* handle) {
  return guarded(kInvalidValue, [&] {
    const Node* node = &node_of(handle);
    auto& nodes = node->graph->nodes;
    for (Node& other : nodes) std::erase(other.after, node);
    live<Node>().drop(node);
    nodes.remove_if([&](const Node& other) { return &other == node; });
    return kSuccess;
  });
}

HIP_API int hipGraphClone(void** out, void* graph) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    *out = copy_of(graph_of(graph)).release();
    return kSuccess;
  });
}

HIP_API int hipGraphNodeFindInClone(void** out, void* node, void* clone) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    const auto& copies = graph_of(clone).copies;
    const auto found = copies.find(static_cast<Node*>(node));
    if (found == copies.end() || !live<Node>().has(found->second)) throw Fault("the graph is no clone of the node's");
    *out = found->second;
    return kSuccess;
  });
}

HIP_API int hipGraphDebugDotPrint(void* graph, const char* path, u32) {
  if (!live<Graph>().has(graph) || !path) return set_error(kInvalidValue, "no live graph, or the path is null");
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
  auto* object = new UserObject{data, destroy, uses};
  live<UserObject>().add(object);
  *out = object;
  return kSuccess;
}
HIP_API int hipUserObjectRetain(void* object, u32 count) {
  return guarded(kInvalidValue, [&] {
    if (count == 0) throw Fault("there are no references");
    object_of(object).uses += count;
    return kSuccess;
  });
}
HIP_API int hipUserObjectRelease(void* object, u32 count) {
  return guarded(kInvalidValue, [&] {
    if (!object || count == 0) throw Fault("there is no object, or there are no references");
    let_go(static_cast<UserObject*>(object), count);     // one that is gone has none
    return kSuccess;
  });
}
// flags 1: the caller's references become the graph's.
HIP_API int hipGraphRetainUserObject(void* graph, void* object, u32 count, u32 flags) {
  return guarded(kInvalidValue, [&] {
    if (count == 0 || flags > 1) throw Fault("there are no references, or these flags do not exist");
    Graph& owner = graph_of(graph);
    UserObject* own = &object_of(object);
    if (flags == 0) own->uses += count;
    owner.owned.push_back(std::make_shared<Held>(own, count));
    return kSuccess;
  });
}
HIP_API int hipGraphReleaseUserObject(void* graph, void* object, u32 count) {
  if (!live<Graph>().has(graph)) return set_error(kInvalidValue, "this is not a live graph");
  if (!object || count == 0) return set_error(kInvalidValue, "there is no object, or there are no references");
  auto& owned = graph_of(graph).owned;
  for (const auto& one : owned) {                // a graph that holds fewer, or none, is no error
    Held& held = *static_cast<Held*>(one.get());
    if (held.object != object) continue;
    const u32 gone = std::min(held.count, count);
    held.count -= gone;
    count -= gone;
    if (gone) let_go(held.object, gone);
  }
  std::erase_if(owned, [](const auto& one) { return static_cast<Held*>(one.get())->count == 0; });
  return kSuccess;
}

}  // namespace sim::hip
