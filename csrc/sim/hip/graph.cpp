// SPDX-License-Identifier: MIT
// Graphs by stream capture, and how graphs run: node after node, as they were captured. A captured call keeps its
// arguments' values.
#include <algorithm>
#include <atomic>

#include "hip/defer.h"

namespace sim::hip {
namespace {

constexpr int kGlobal = 0, kThreadLocal = 1, kRelaxed = 2;       // hipStreamCaptureMode
constexpr int kNone = 0, kActive = 1, kInvalidated = 2;          // hipStreamCaptureStatus
constexpr u32 kNonBlocking = 1;                  // hipStreamNonBlocking
thread_local int thread_mode = kGlobal;
std::atomic<int> num_captures{0};                // so that work outside captures takes no lock

int status_of(const Stream* stream) {
  if (!stream || !stream->capture) return kNone;
  return stream->capture->broken.empty() ? kActive : kInvalidated;
}

using Works = std::vector<Work>;

constexpr int kOtherTopology = 2, kOtherKind = 3;                // hipGraphExecUpdateResult

Error run(const Works& works) {
  for (const Work& work : works) {
    if (const Error error = work()) return error;
  }
  return kSuccess;
}

Graph& graph_of(const void* handle) { return live_one<Graph>(handle, "graph"); }

Works works_of(const Graph& graph) {
  Works works;
  for (const Node& node : graph.nodes) works.push_back(node.work);
  return works;
}

// For each node the nodes that it comes after, as places in the graph.
std::vector<std::vector<size_t>> shape_of(const Graph& graph) {
  std::map<const Node*, size_t> places;
  std::vector<std::vector<size_t>> shape;
  for (const Node& node : graph.nodes) {
    std::vector<size_t>& after = shape.emplace_back();
    for (const Node* before : node.after) after.push_back(places.at(before));
    std::sort(after.begin(), after.end());
    places.emplace(&node, places.size());
  }
  return shape;
}

// An executable graph stays as it is when the graph that it was made from is destroyed.
struct Executable {
  std::shared_ptr<const Works> works;
  std::vector<NodeKind> kinds;
  std::vector<std::vector<size_t>> shape;
  std::shared_ptr<void> only;                    // a graph with memory: Graph::executable
};

Executable& executable_of(const void* handle) { return live_one<Executable>(handle, "executable graph"); }

Error instantiate(void** out, void* graph) {
  return guarded(kInvalidValue, [&] {
    if (!out) throw Fault("the result's address is null");
    Graph& from = graph_of(graph);
    auto made = std::make_unique<Executable>();
    made->works = std::make_shared<const Works>(works_of(from));
    made->shape = shape_of(from);
    bool holds_memory = false;
    for (const Node& node : from.nodes) {
      made->kinds.push_back(node.kind);
      holds_memory |= node.kind == NodeKind::allocate || node.kind == NodeKind::release;
    }
    if (holds_memory) {
      if (!from.executable.expired()) {
        return set_error(kNotSupported, "a graph that allocates or frees memory has one executable graph at a time");
      }
      made->only = std::make_shared<char>();
      from.executable = made->only;
    }
    live<Executable>().add(made.get());
    *out = made.release();
    return kSuccess;
  });
}

// `more` comes before a stream's next node, too.
void join(std::vector<const Node*>& last, const std::vector<const Node*>& more) {
  for (const Node* node : more) {
    if (std::find(last.begin(), last.end(), node) == last.end()) last.push_back(node);
  }
}

// The default stream waits for those that block it, which cannot be told while one of them captures.
Error asked_of_default(const Stream* stream) {
  for (const auto& c : captures()) {
    if (stream || (c->origin->flags & kNonBlocking)) continue;
    return set_error(kCaptureImplicit, "the default stream was asked while a stream was capturing that blocks it");
  }
  return kSuccess;
}

bool all_joined(const Capture& c) {
  for (const Stream* s : c.streams) {
    const auto own = s->clock.find(s), seen = c.origin->clock.find(s);
    if (own != s->clock.end() && (seen == c.origin->clock.end() || seen->second < own->second)) return false;
  }
  return true;
}

}  // namespace

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* instance = new std::vector<std::shared_ptr<Capture>>;
  return *instance;
}

Error submit(void* handle, NodeKind kind, Work work) {
  if (const Error error = lost()) return error;
  Stream* stream = nullptr;
  if (handle || num_captures) {
    const std::lock_guard lock(stream_mutex());
    stream = find_stream(handle);
    if (stream && stream->capture) {
      Capture& c = *stream->capture;
      if (!c.broken.empty()) return set_error(kCaptureInvalidated, c.broken);
      stream->last = {&c.graph->add({kind, std::move(work), stream->last})};
      ++stream->clock[stream];
      return kSuccess;
    }
    for (const auto& c : captures()) {
      if (stream || (c->origin->flags & kNonBlocking)) continue;
      c->broken = "work on the default stream, which a capturing stream would have to wait for";
      return set_error(kCaptureImplicit, c->broken);
    }
  }
  if (!deferring()) return work();
  defer(stream, std::move(work));
  return kSuccess;
}

namespace {

void end_capture(const std::shared_ptr<Capture>& c) {
  for (Stream* s : c->streams) {
    s->capture.reset();
    s->clock.clear();
    s->last.clear();
  }
  std::erase(captures(), c);
  c->ended = true;
  --num_captures;
}

}  // namespace

void abandon(Stream* stream) {
  const std::shared_ptr<Capture> c = stream->capture;
  if (c->origin == stream) return end_capture(c);
  c->broken = "a stream of the capture was destroyed";
  std::erase(c->streams, stream);
}

bool is_capturing(void* handle) {
  const std::lock_guard lock(stream_mutex());
  const Stream* stream = find_stream(handle);
  return stream && stream->capture;
}

Error forbidden_in_capture(const char* call, bool by_default_stream) {
  if (!num_captures || thread_mode == kRelaxed) return kSuccess;
  const std::lock_guard lock(stream_mutex());
  for (const auto& c : captures()) {
    const bool concerned = c->thread == std::this_thread::get_id() ? c->mode != kRelaxed : c->mode == kGlobal;
    if (!concerned || (thread_mode == kThreadLocal && c->thread != std::this_thread::get_id())) continue;
    c->broken = std::string(call) + " was called while a stream was capturing";
    const bool implies = by_default_stream && !(c->origin->flags & kNonBlocking);
    return set_error(implies ? kCaptureImplicit : kCaptureUnsupported, c->broken);
  }
  return kSuccess;
}

Error wait_for(Stream* stream, const CapturedPoint& point) {
  if (stream->capture && stream->capture != point.capture) {
    point.capture->broken = stream->capture->broken = "an event of one capture was waited for in another";
    return set_error(kCaptureMerge, point.capture->broken);
  }
  if (!stream->capture) {
    stream->capture = point.capture;
    point.capture->streams.push_back(stream);
  }
  for (const auto& [other, count] : point.clock) stream->clock[other] = std::max(stream->clock[other], count);
  join(stream->last, point.last);
  return kSuccess;
}

HIP_API int hipStreamBeginCapture(void* handle, int mode) {
  return guarded(kContextIsDestroyed, [&] {      // the runtime's error for a stream that is none
    if (mode < kGlobal || mode > kRelaxed) return set_error(kInvalidValue, "this capture mode does not exist");
    const std::lock_guard lock(stream_mutex());
    Stream* stream = find_stream(handle);
    if (!stream) return set_error(kCaptureUnsupported, "the default stream cannot be captured");
    if (stream->capture) return set_error(kIllegalState, "the stream is capturing already");
    static u64 serial = 0;
    stream->capture = std::make_shared<Capture>();
    Capture& c = *stream->capture;
    c.origin = stream;
    c.mode = mode;
    c.thread = std::this_thread::get_id();
    c.id = ++serial;
    c.streams.push_back(stream);
    stream->clock.clear();
    stream->last.clear();
    captures().push_back(stream->capture);
    ++num_captures;
    return kSuccess;
  });
}

HIP_API int hipStreamEndCapture(void* handle, void** graph) {
  return guarded(kContextIsDestroyed, [&] {      // the runtime's error for a stream that is none
    if (!graph) return set_error(kInvalidValue, "the graph's address is null");
    *graph = nullptr;
    const std::lock_guard lock(stream_mutex());
    Stream* stream = find_stream(handle);
    if (!stream || !stream->capture) return set_error(kIllegalState, "the stream is not capturing");
    const std::shared_ptr<Capture> c = stream->capture;
    if (c->origin != stream) return set_error(kCaptureUnmatched, "another stream began this capture");
    if (c->mode != kRelaxed && c->thread != std::this_thread::get_id()) {
      return set_error(kCaptureWrongThread, "another thread began this capture");
    }
    const bool joined = all_joined(*c);
    end_capture(c);
    if (!c->broken.empty()) return set_error(kCaptureInvalidated, c->broken);
    if (!joined) return set_error(kCaptureUnjoined, "the origin does not wait for the last work of a forked stream");
    *graph = c->graph.release();
    return kSuccess;
  });
}

HIP_API int hipStreamIsCapturing(void* handle, int* status) {
  return guarded(kInvalidHandle, [&] {
    if (!status) return set_error(kInvalidValue, "the result's address is null");
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    if (const Error error = asked_of_default(stream)) return error;
    *status = status_of(stream);
    return kSuccess;
  });
}

HIP_API int hipStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, void** graph,
                                       const Node* const** dependencies, size_t* num_dependencies) {
  return guarded(kInvalidHandle, [&] {
    if (!status) return set_error(kInvalidValue, "the result's address is null");
    const std::lock_guard lock(stream_mutex());
    const Stream* stream = find_stream(handle);
    if (const Error error = asked_of_default(stream)) return error;
    *status = status_of(stream);
    if (*status != kActive) return kSuccess;
    const Capture& c = *stream->capture;
    if (id) *id = c.id;
    if (graph) *graph = c.graph.get();
    if (dependencies) *dependencies = stream->last.data();
    if (num_dependencies) *num_dependencies = stream->last.size();
    return kSuccess;
  });
}

HIP_API int hipStreamGetCaptureInfo(void* handle, int* status, unsigned long long* id) {
  return hipStreamGetCaptureInfo_v2(handle, status, id, nullptr, nullptr, nullptr);
}

HIP_API int hipThreadExchangeStreamCaptureMode(int* mode) {
  if (!mode || *mode < kGlobal || *mode > kRelaxed) return set_error(kInvalidValue, "this mode does not exist");
  std::swap(*mode, thread_mode);
  return kSuccess;
}

// Handles of nodes are addresses inside the graph.
HIP_API int hipGraphGetNodes(void* graph, void** nodes, size_t* count) {
  return guarded(kInvalidValue, [&] {
    if (!count) throw Fault("the count's address is null");
    auto& all = graph_of(graph).nodes;
    if (nodes) {
      auto next = all.begin();
      for (size_t i = 0; i < *count; ++i) nodes[i] = next == all.end() ? nullptr : &*next++;
    }
    *count = nodes ? std::min(*count, all.size()) : all.size();
    return kSuccess;
  });
}

HIP_API int hipGraphNodeGetType(void* node, int* kind) {
  return guarded(kInvalidValue, [&] {
    if (!kind) throw Fault("the result's address is null");
    *kind = static_cast<int>(live_one<Node>(node, "node").kind);
    return kSuccess;
  });
}

HIP_API int hipGraphInstantiate(void** out, void* graph, void*, char*, size_t) { return instantiate(out, graph); }
HIP_API int hipGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
  return instantiate(out, graph);
}

// The works of a graph of the same shape: nodes of the same kinds in the same order, after the same ones. Launches that
// have not run yet keep the old ones.
HIP_API int hipGraphExecUpdate(void* executable, void* graph, void** failed, int* result) {
  return guarded(kInvalidValue, [&] {
    Executable& e = executable_of(executable);
    Graph& from = graph_of(graph);
    if (failed) *failed = nullptr;
    const auto refuse = [&](int why, Node* node) {
      if (result) *result = why;
      if (failed) *failed = node;
      return set_error(kExecUpdateFailure, "the graph has another shape than the executable one");
    };
    if (from.nodes.size() != e.kinds.size()) return refuse(kOtherTopology, nullptr);
    const auto shape = shape_of(from);
    size_t i = 0;
    for (Node& node : from.nodes) {
      if (node.kind != e.kinds[i]) return refuse(kOtherKind, &node);
      if (shape[i] != e.shape[i]) return refuse(kOtherTopology, &node);
      ++i;
    }
    e.works = std::make_shared<const Works>(works_of(from));
    if (result) *result = 0;
    return kSuccess;
  });
}

HIP_API int hipGraphLaunch(void* executable, void* stream) {
  if (!live<Executable>().has(executable)) return set_error(kInvalidValue, "this is not a live executable graph");
  return guarded(kInvalidHandle, [&] {
    const auto works = executable_of(executable).works;
    return submit(stream, NodeKind::graph, [works] { return run(*works); });
  });
}

HIP_API int hipGraphUpload(void* executable, void*) {
  if (live<Executable>().has(executable)) return kSuccess;
  return set_error(kInvalidValue, "this is not a live executable graph");
}

HIP_API int hipGraphDestroy(void* graph) {
  return guarded(kInvalidValue, [&] {
    delete &graph_of(graph);
    return kSuccess;
  });
}

HIP_API int hipGraphExecDestroy(void* executable) {
  if (!live<Executable>().drop(executable)) return set_error(kInvalidValue, "this is not a live executable graph");
  delete static_cast<Executable*>(executable);
  return kSuccess;
}

}  // namespace sim::hip
