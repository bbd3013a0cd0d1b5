// SPDX-License-Identifier: MIT
// Parameters of nodes: what a node does by them, reading them again, and changing them in a graph or an executable one.
#include "hip/graph_params.h"

#include <array>
#include <atomic>
#include <cstring>

#include "hip/memory.h"
#include "run/memory.h"

namespace sim::hip {
namespace {

constexpr int kUsed = 0, kUsedHigh = 1, kReserved = 2, kReservedHigh = 3;     // hipGraphMemAttributeType
constexpr int kCooperative = 2, kPriority = 8, kWindow = 1;                  // hipLaunchAttributeID

// Markers of the `extra` argument list.
const auto kParamBuffer = reinterpret_cast<void*>(1), kParamSize = reinterpret_cast<void*>(2),
           kParamEnd = reinterpret_cast<void*>(3);

std::atomic<u64> graph_bytes{0}, graph_bytes_high{0};

// The arguments' values are the node's own, and `params` points at them.
struct KernelNode {
  KernelParams given;
  std::vector<std::string> values;
  std::vector<void*> pointers;
  std::string buffer;                            // arguments of a launch by `extra`
  size_t buffer_bytes = 0;
  std::array<void*, 5> extra{};
  std::map<int, std::array<char, 64>> attributes;
};
using KernelNodePtr = std::shared_ptr<KernelNode>;

// The argument segment as the program has it in `extra`, copied, with a list of its own that says where it is.
void keep_extra(KernelNode& node, void* const* extra) {
  const void* buffer = nullptr;
  for (; extra && *extra != kParamEnd; extra += 2) {
    if (*extra == kParamBuffer) buffer = extra[1];
    else if (*extra == kParamSize) node.buffer_bytes = *static_cast<const size_t*>(extra[1]);
    else throw Fault("the list of extra launch parameters has an unknown marker");
  }
  if (!buffer) return;
  node.buffer.assign(static_cast<const char*>(buffer), node.buffer_bytes);
  node.extra = {kParamBuffer, node.buffer.data(), kParamSize, &node.buffer_bytes, kParamEnd};
  node.given.extra = node.extra.data();
}

KernelNodePtr kernel_node(const KernelParams& p) {
  auto node = std::make_shared<KernelNode>();
  node->given = p;
  if (!p.params) {
    keep_extra(*node, p.extra);
    return node;
  }
  for (const Arg& arg : kernel_of(p.stub).kernel->args) {
    const auto* value = static_cast<const char*>(p.params[node->values.size()]);
    node->values.emplace_back(value, arg.size);
  }
  for (std::string& value : node->values) node->pointers.push_back(value.data());
  node->given.params = node->pointers.data();
  return node;
}

void* graph_memory(size_t bytes) {
  void* pointer = nullptr;
  if (allocate_device(&pointer, bytes, "a graph's allocation") != kSuccess) throw std::bad_alloc();
  const u64 now = graph_bytes += bytes;
  u64 high = graph_bytes_high;
  while (now > high && !graph_bytes_high.compare_exchange_weak(high, now)) {}
  return pointer;
}

template <class T>
const T& params_of(const void* node) {
  const T* params = std::any_cast<T>(&node_of(node).params);
  if (!params) throw Fault("the node is of another kind, or keeps its parameters in another form");
  return *params;
}

template <class T>
Error give_params(T* out, const void* node) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    *out = params_of<T>(node);
    return kSuccess;
  });
}

void check_kind(const void* node, const Content& content) {
  if (node_of(node).kind != content.kind) throw Fault("the node is of another kind");
}

template <class Params>
Error change(void* node, Params* p) {
  return guarded(kInvalidValue, [&] {
    Content content = content_of(p);
    check_kind(node, content);
    Node& changed = node_of(node);
    changed.work = std::move(content.work);
    changed.params = std::move(content.params);
    return kSuccess;
  });
}

// The next launches of the executable graph do this; the graph stays as it is.
template <class Params>
Error change_executable(void* executable, void* node, Params* p) {
  return guarded(kInvalidValue, [&] {
    Content content = content_of(p);
    check_kind(node, content);
    const auto* child = std::any_cast<ChildNode>(&content.params);
    const auto* own = std::any_cast<ChildNode>(&node_of(node).params);
    if (child && own && !same_shape(*child->graph, *own->graph)) throw Fault("the child graph has other nodes");
    replace_work(executable, &node_of(node), std::move(content.work));
    return kSuccess;
  });
}

Params3D linear(void* to, const void* from, size_t bytes) {
  const Pitched source{const_cast<void*>(from), bytes, bytes, 1}, target{to, bytes, bytes, 1};
  return {nullptr, {}, source, nullptr, {}, target, {bytes, 1, 1}, 4};
}

struct AnyParams {                               // hipGraphNodeParams
  int kind, reserved[3];
  union {
    char bytes[232];
    KernelParams kernel;
    struct { int flags, reserved[3]; Params3D copy; } copy;
    FillParams fill;
    HostParams host;
    ChildParams child;
    WaitParams wait;
    RecordParams record;
    AllocateParams allocate;
    ReleaseParams release;
  };
  long long last;
};
static_assert(sizeof(AnyParams) == 256);

template <class Body>
Error with_params(AnyParams* p, Body&& body) {
  if (!p) return set_error(kInvalidValue, "the node's parameters are null");
  switch (static_cast<NodeKind>(p->kind)) {
    case NodeKind::kernel: return body(&p->kernel);
    case NodeKind::copy: return body(&p->copy.copy);
    case NodeKind::fill: return body(&p->fill);
    case NodeKind::host: return body(&p->host);
    case NodeKind::graph: return body(&p->child);
    case NodeKind::wait_event: return body(&p->wait);
    case NodeKind::record_event: return body(&p->record);
    case NodeKind::allocate: return body(&p->allocate);
    case NodeKind::release: return body(&p->release);
    default: return set_error(kNotSupported, "nodes of type " + std::to_string(p->kind) + " are not simulated");
  }
}

template <class Params>
Error add(void** node, void* graph, void* const* after, size_t count, Params* p) {
  return guarded(kInvalidValue, [&] { return add_node(node, graph, after, count, content_of(p)); });
}

}  // namespace

std::any kept_params(const KernelParams& p) { return kernel_node(p); }

std::any kept_params(void* to, const void* from, const Box& b) {
  const auto rows = [&](size_t slice, size_t pitch) { return pitch ? slice / pitch : b.height; };
  const Pitched source{const_cast<void*>(from), b.from_pitch ? b.from_pitch : b.width, b.width,
                       b.depth > 1 ? rows(b.from_slice, b.from_pitch) : b.height};
  const Pitched target{to, b.to_pitch ? b.to_pitch : b.width, b.width,
                       b.depth > 1 ? rows(b.to_slice, b.to_pitch) : b.height};
  return Params3D{nullptr, {}, source, nullptr, {}, target, {b.width, b.height, b.depth}, 4};
}

Content content_of(const KernelParams* p) {
  if (!p) throw Fault("the kernel node's parameters are null");
  Work work = launch_work(p->stub, p->grid, p->block, p->lds_bytes, p->params, p->extra);
  return {NodeKind::kernel, std::move(work), kernel_node(*p)};
}

Content content_of(const Params3D* p) {
  if (!p) throw Fault("the copy node's parameters are null");
  const Copy copy = copy_of(*p);
  return {NodeKind::copy, box_work(copy.to, copy.from, copy.box), *p};
}

Content content_of(const DriverParams3D* p) {
  if (!p) throw Fault("the copy node's parameters are null");
  const Copy copy = copy_of(*p);
  return {NodeKind::copy, box_work(copy.to, copy.from, copy.box), *p};
}

Content content_of(const FillParams* p) {
  if (!p) throw Fault("the fill node's parameters are null");
  return {NodeKind::fill, fill_work(p->to, p->value, p->element_bytes, p->width, p->pitch, p->height), *p};
}

Content content_of(const HostParams* p) {
  if (!p || !p->fn) throw Fault("the host function is null");
  return {NodeKind::host, [p = *p] {
            p.fn(p.data);
            return kSuccess;
          }, *p};
}

// The child is copied as it is now.
Content content_of(const ChildParams* p) {
  if (!p) throw Fault("the child graph is null");
  ChildNode child = child_of(graph_of(p->graph));
  Work work = graph_work(*child.graph);
  return {NodeKind::graph, std::move(work), std::move(child)};
}

Content content_of(const RecordParams* p) {
  if (!p) throw Fault("the event node's parameters are null");
  event_flags(p->event);
  return {NodeKind::record_event, [event = p->event] { return record_event(event, nullptr); }, *p};
}

// The work that the event stands for was done when it was recorded.
Content content_of(const WaitParams* p) {
  if (!p) throw Fault("the event node's parameters are null");
  event_flags(p->event);
  return {NodeKind::wait_event, [] { return kSuccess; }, *p};
}

Content content_of(const SymbolParams* p) {
  return {NodeKind::copy, symbol_work(p->symbol, p->from, p->to, p->bytes, p->offset), *p};
}

// The memory is there from now on, at an address that stays, until graph and executables are gone.
Content content_of(AllocateParams* p) {
  if (!p || p->bytes == 0) throw Fault("the allocation node has no parameters, or no bytes");
  const size_t bytes = p->bytes;
  void* memory_of_node = graph_memory(bytes);
  const std::string name = memory().find(reinterpret_cast<u64>(memory_of_node))->name;
  const std::shared_ptr<void> block(memory_of_node, [bytes, name](void* pointer) {
    graph_bytes -= bytes;
    release_quietly(pointer, name);
  });
  p->pointer = block.get();
  return {NodeKind::allocate, [block] { return kSuccess; }, *p};
}

Content content_of(const ReleaseParams* p) {
  if (!p || !memory().find(reinterpret_cast<u64>(p->pointer))) throw Fault("the node frees no known memory");
  return {NodeKind::release, [] { return kSuccess; }, *p};
}

HIP_API int hipGraphAddNode(void** node, void* graph, void* const* after, size_t count, AnyParams* p) {
  return with_params(p, [&](auto* own) { return add(node, graph, after, count, own); });
}
HIP_API int hipGraphNodeSetParams(void* node, AnyParams* p) {
  return with_params(p, [&](auto* own) { return change(node, own); });
}
HIP_API int hipGraphExecNodeSetParams(void* executable, void* node, AnyParams* p) {
  return with_params(p, [&](auto* own) { return change_executable(executable, node, own); });
}

HIP_API int hipGraphAddKernelNode(void** node, void* graph, void* const* after, size_t count, const KernelParams* p) {
  if (!p || !live<Graph>().has(graph)) return set_error(kInvalidValue, "no live graph, or the parameters are null");
  return guarded(kInvalidDeviceFunction, [&] {
    try {
      return add_node(node, graph, after, count, content_of(p));
    } catch (const NodeError& missing) {
      return missing.error;
    }
  });
}
HIP_API int hipGraphKernelNodeGetParams(void* node, KernelParams* out) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    *out = params_of<KernelNodePtr>(node)->given;
    return kSuccess;
  });
}
HIP_API int hipGraphKernelNodeSetParams(void* node, const KernelParams* p) { return change(node, p); }
HIP_API int hipGraphExecKernelNodeSetParams(void* executable, void* node, const KernelParams* p) {
  return change_executable(executable, node, p);
}
HIP_API int hipGraphKernelNodeSetAttribute(void* node, int which, const void* value) {
  return guarded(kInvalidValue, [&] {
    if (!value) throw Fault("the value is null");
    const bool is_known = which == kCooperative || which == kPriority || which == kWindow;
    if (!is_known) throw Fault("kernel nodes have no such attribute");
    auto& kept = params_of<KernelNodePtr>(node)->attributes[which];
    std::memcpy(kept.data(), value, kept.size());
    return kSuccess;
  });
}
HIP_API int hipGraphKernelNodeGetAttribute(void* node, int which, void* value) {
  return guarded(kInvalidValue, [&] {
    if (!value) throw Fault("the result's address is null");
    const auto& all = params_of<KernelNodePtr>(node)->attributes;
    const auto kept = all.find(which);
    const std::array<char, 64> found = kept == all.end() ? std::array<char, 64>{} : kept->second;
    std::memcpy(value, found.data(), found.size());
    return kSuccess;
  });
}
HIP_API int hipGraphKernelNodeCopyAttributes(void* from, void* to) {
  return guarded(kInvalidValue, [&] {
    params_of<KernelNodePtr>(to)->attributes = params_of<KernelNodePtr>(from)->attributes;
    return kSuccess;
  });
}

HIP_API int hipGraphAddMemcpyNode(void** node, void* graph, void* const* after, size_t count, const Params3D* p) {
  return add(node, graph, after, count, p);
}
HIP_API int hipGraphAddMemcpyNode1D(void** node, void* graph, void* const* after, size_t count, void* to,
                                    const void* from, size_t bytes, int) {
  const Params3D p = linear(to, from, bytes);
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphMemcpyNodeGetParams(void* node, Params3D* out) { return give_params(out, node); }
HIP_API int hipGraphMemcpyNodeSetParams(void* node, const Params3D* p) { return change(node, p); }
HIP_API int hipGraphMemcpyNodeSetParams1D(void* node, void* to, const void* from, size_t bytes, int) {
  const Params3D p = linear(to, from, bytes);
  return change(node, &p);
}
HIP_API int hipGraphExecMemcpyNodeSetParams(void* executable, void* node, const Params3D* p) {
  return change_executable(executable, node, p);
}
HIP_API int hipGraphExecMemcpyNodeSetParams1D(void* executable, void* node, void* to, const void* from, size_t bytes,
                                              int) {
  const Params3D p = linear(to, from, bytes);
  return change_executable(executable, node, &p);
}
namespace {
Error check_symbol(const void* symbol) {
  return guarded(kInvalidSymbol, [&] {
    registered_variable(symbol);
    return kSuccess;
  });
}
}  // namespace

HIP_API int hipGraphAddMemcpyNodeToSymbol(void** node, void* graph, void* const* after, size_t count,
                                          const void* symbol, const void* from, size_t bytes, size_t offset, int) {
  const SymbolParams p{symbol, from, nullptr, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphAddMemcpyNodeFromSymbol(void** node, void* graph, void* const* after, size_t count, void* to,
                                            const void* symbol, size_t bytes, size_t offset, int) {
  const SymbolParams p{symbol, nullptr, to, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphMemcpyNodeSetParamsToSymbol(void* node, const void* symbol, const void* from, size_t bytes,
                                                size_t offset, int) {
  const SymbolParams p{symbol, from, nullptr, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return change(node, &p);
}
HIP_API int hipGraphMemcpyNodeSetParamsFromSymbol(void* node, void* to, const void* symbol, size_t bytes,
                                                  size_t offset, int) {
  const SymbolParams p{symbol, nullptr, to, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return change(node, &p);
}
HIP_API int hipGraphExecMemcpyNodeSetParamsToSymbol(void* executable, void* node, const void* symbol, const void* from,
                                                    size_t bytes, size_t offset, int) {
  const SymbolParams p{symbol, from, nullptr, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return change_executable(executable, node, &p);
}
HIP_API int hipGraphExecMemcpyNodeSetParamsFromSymbol(void* executable, void* node, void* to, const void* symbol,
                                                      size_t bytes, size_t offset, int) {
  const SymbolParams p{symbol, nullptr, to, bytes, offset};
  if (const Error error = check_symbol(symbol)) return error;
  return change_executable(executable, node, &p);
}

HIP_API int hipDrvGraphAddMemcpyNode(void** node, void* graph, void* const* after, size_t count,
                                     const DriverParams3D* p, void*) {
  return add(node, graph, after, count, p);
}
HIP_API int hipDrvGraphMemcpyNodeGetParams(void* node, DriverParams3D* out) { return give_params(out, node); }
HIP_API int hipDrvGraphMemcpyNodeSetParams(void* node, const DriverParams3D* p) { return change(node, p); }
HIP_API int hipDrvGraphExecMemcpyNodeSetParams(void* executable, void* node, const DriverParams3D* p, void*) {
  return change_executable(executable, node, p);
}

HIP_API int hipGraphAddMemsetNode(void** node, void* graph, void* const* after, size_t count, const FillParams* p) {
  return add(node, graph, after, count, p);
}
HIP_API int hipGraphMemsetNodeGetParams(void* node, FillParams* out) { return give_params(out, node); }
HIP_API int hipGraphMemsetNodeSetParams(void* node, const FillParams* p) { return change(node, p); }
HIP_API int hipGraphExecMemsetNodeSetParams(void* executable, void* node, const FillParams* p) {
  return change_executable(executable, node, p);
}
HIP_API int hipDrvGraphAddMemsetNode(void** node, void* graph, void* const* after, size_t count, const FillParams* p,
                                     void*) {
  return add(node, graph, after, count, p);
}
HIP_API int hipDrvGraphExecMemsetNodeSetParams(void* executable, void* node, const FillParams* p, void*) {
  return change_executable(executable, node, p);
}

HIP_API int hipGraphAddHostNode(void** node, void* graph, void* const* after, size_t count, const HostParams* p) {
  return add(node, graph, after, count, p);
}
HIP_API int hipGraphHostNodeGetParams(void* node, HostParams* out) { return give_params(out, node); }
HIP_API int hipGraphHostNodeSetParams(void* node, const HostParams* p) { return change(node, p); }
HIP_API int hipGraphExecHostNodeSetParams(void* executable, void* node, const HostParams* p) {
  return change_executable(executable, node, p);
}

HIP_API int hipGraphAddChildGraphNode(void** node, void* graph, void* const* after, size_t count, void* child) {
  const ChildParams p{static_cast<Graph*>(child)};
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphChildGraphNodeGetGraph(void* node, void** graph) {
  return guarded(kInvalidValue, [&] {
    if (!graph) throw Fault("the result's address is null");
    *graph = params_of<ChildNode>(node).graph.get();
    return kSuccess;
  });
}
HIP_API int hipGraphExecChildGraphNodeSetParams(void* executable, void* node, void* child) {
  const ChildParams p{static_cast<Graph*>(child)};
  return change_executable(executable, node, &p);
}

HIP_API int hipGraphAddEventRecordNode(void** node, void* graph, void* const* after, size_t count, void* event) {
  const RecordParams p{event};
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphAddEventWaitNode(void** node, void* graph, void* const* after, size_t count, void* event) {
  const WaitParams p{event};
  return add(node, graph, after, count, &p);
}
HIP_API int hipGraphEventRecordNodeGetEvent(void* node, void** event) {
  return give_params(reinterpret_cast<RecordParams*>(event), node);
}
HIP_API int hipGraphEventWaitNodeGetEvent(void* node, void** event) {
  return give_params(reinterpret_cast<WaitParams*>(event), node);
}
HIP_API int hipGraphEventRecordNodeSetEvent(void* node, void* event) {
  const RecordParams p{event};
  return change(node, &p);
}
HIP_API int hipGraphEventWaitNodeSetEvent(void* node, void* event) {
  const WaitParams p{event};
  return change(node, &p);
}
HIP_API int hipGraphExecEventRecordNodeSetEvent(void* executable, void* node, void* event) {
  const RecordParams p{event};
  return change_executable(executable, node, &p);
}
HIP_API int hipGraphExecEventWaitNodeSetEvent(void* executable, void* node, void* event) {
  const WaitParams p{event};
  return change_executable(executable, node, &p);
}

HIP_API int hipGraphAddMemAllocNode(void** node, void* graph, void* const* after, size_t count, AllocateParams* p) {
  return add(node, graph, after, count, p);
}
HIP_API int hipGraphMemAllocNodeGetParams(void* node, AllocateParams* out) { return give_params(out, node); }
HIP_API int hipGraphAddMemFreeNode(void** node, void* graph, void* const* after, size_t count, void* pointer) {
  const ReleaseParams p{pointer};
  return add(node, graph, after, count, &p);
}
HIP_API int hipDrvGraphAddMemFreeNode(void** node, void* graph, void* const* after, size_t count, void* pointer) {
  return hipGraphAddMemFreeNode(node, graph, after, count, pointer);
}
HIP_API int hipGraphMemFreeNodeGetParams(void* node, void* out) {
  return give_params(static_cast<ReleaseParams*>(out), node);
}

HIP_API int hipDeviceGetGraphMemAttribute(int device, int which, void* value) {
  if (const Error error = check_device(device)) return error;
  if (!value || which < kUsed || which > kReservedHigh) return set_error(kInvalidValue, "no address, or no attribute");
  const u64 found = which == kUsed || which == kReserved ? graph_bytes : graph_bytes_high;
  std::memcpy(value, &found, sizeof found);
  return kSuccess;
}
HIP_API int hipDeviceSetGraphMemAttribute(int device, int which, const void* value) {
  if (const Error error = check_device(device)) return error;
  u64 wanted = 1;
  if (value) std::memcpy(&wanted, value, sizeof wanted);
  if (wanted != 0 || (which != kUsedHigh && which != kReservedHigh)) {
    return set_error(kInvalidValue, "only the high marks can be set, to 0");
  }
  graph_bytes_high = graph_bytes.load();
  return kSuccess;
}
HIP_API int hipDeviceGraphMemTrim(int device) { return check_device(device); }

}  // namespace sim::hip
