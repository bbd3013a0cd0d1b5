// SPDX-License-Identifier: MIT
// Streams, and the one door through which work on a stream passes: it runs at once, or a graph that is captured keeps
// it.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hip/hip.h"

namespace sim::hip {

enum class NodeKind : int { kernel = 0, copy = 1, fill = 2, host = 3, graph = 4, empty = 5, allocate = 10,
                            release = 11 };      // hipGraphNodeType
using Work = std::function<Error()>;

struct Node {
  NodeKind kind;
  Work work;
  std::vector<const Node*> after;                // it depends on these, which were captured before it
};

struct Graph {
  std::list<Node> nodes = {};                    // in the order of their capture; their addresses are handles
  std::weak_ptr<void> executable = {};           // the last that was made of it

  Graph() { live<Graph>().add(this); }
  Graph(const Graph&) = delete;
  ~Graph() {
    for (const Node& node : nodes) live<Node>().drop(&node);
    live<Graph>().drop(this);
  }
  Node& add(Node node) {
    nodes.push_back(std::move(node));
    live<Node>().add(&nodes.back());
    return nodes.back();
  }
};

struct Stream;
using Clock = std::map<const Stream*, u64>;      // per stream: how much of its captured work comes before

// One capture: the stream that began it, and those that have joined it by waiting for its events.
struct Capture {
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  const Stream* origin;
  int mode;                                      // a hipStreamCaptureMode
  std::thread::id thread;
  u64 id;
  std::vector<Stream*> streams;
  bool ended = false;
  std::string broken;                            // why it can only fail; empty = it has not
};

struct Stream {
  u32 flags = 0;
  int priority = 0, device = 0;
  std::shared_ptr<Capture> capture;
  Clock clock;
  std::vector<const Node*> last = {};            // while it captures: its next node comes after these
};

// Runs `work`, or adds it to the graph that the stream is capturing.
Error submit(void* stream, NodeKind kind, Work work);
bool is_capturing(void* stream);
// A capturing stream is destroyed: its capture can only fail, and ends at once when it is the one that began it. Needs
// stream_mutex().
void abandon(Stream* stream);
// For calls that wait or allocate: kSuccess, or the error and the end of the captures that forbid them.
Error forbidden_in_capture(const char* call, bool by_default_stream = false);
Error destroy_streams(int device);
// The device whose queue it is: the current one's for the default stream.
int device_of(void* stream);

std::mutex& stream_mutex();                      // guards every Stream and Capture
// A live stream, null for the default one; throws Fault. Needs stream_mutex().
Stream* find_stream(void* handle);
// Captures in progress. Needs stream_mutex().
std::vector<std::shared_ptr<Capture>>& captures();

// The event's part in a capture; called with stream_mutex() held, by a stream that captures.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  Clock clock;
  std::vector<const Node*> last;
};
Error wait_for(Stream* stream, const CapturedPoint& point);
Error record_event(void* event, void* stream);
u32 event_flags(void* event);                    // throws Fault when it is none

}  // namespace sim::hip
