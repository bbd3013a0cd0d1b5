// SPDX-License-Identifier: MIT
// Streams, and the one door through which work on a stream passes: it runs at once, or a graph that is captured keeps
// it.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hip/hip.h"

namespace sim::hip {

enum class NodeKind : int { kernel = 0, copy = 1, fill = 2, host = 3, graph = 4, empty = 5 };  // hipGraphNodeType
using Work = std::function<Error()>;

struct Node {
  NodeKind kind;
  Work work;
  std::vector<const Node*> after;                // what it depends on
};

// A captured graph depends as it was submitted, each node on the one before: one of the orders that hardware may take.
struct Graph {
  std::deque<Node> nodes;                        // their addresses are handles
};

struct Stream;
using Clock = std::map<const Stream*, u64>;      // per stream: how much of its captured work comes before

// One capture: the stream that began it, and those that have joined it by waiting for its events.
struct Capture {
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  const Stream* origin;
  int mode;                                      // of hipStreamCaptureMode
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
};

// Runs `work`, or adds it to the graph that the stream is capturing.
Error submit(void* stream, NodeKind kind, Work work);
bool is_capturing(void* stream);
// For calls that wait or allocate: kSuccess, or the error and the end of the captures that forbid them.
Error forbidden_in_capture(const char* call);
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
};
Error wait_for(Stream* stream, const CapturedPoint& point);
Error record_event(void* event, void* stream);

}  // namespace sim::hip
