// SPDX-License-Identifier: MIT
// The setting `defer`: what is submitted to a stream runs at a synchronisation point. The seed decides whether work of
// other streams runs in between. A program that does not synchronise sees old data, as it may on hardware.
#pragma once
#include <chrono>

#include "hip/stream.h"
#include "settings.h"

namespace sim::hip {

struct Deferred;                                 // one piece of work, and what comes before it
using DeferredPtr = std::shared_ptr<Deferred>;

inline bool deferring() { return settings().defer; }

// Adds work to a stream, null for the default one. The default stream waits for all blocking streams, and they for it.
DeferredPtr defer(const Stream* stream, Work work);
// Makes the stream's next work come after `work` too.
void follow(const Stream* stream, const DeferredPtr& work);
bool is_done(const DeferredPtr& work);
std::chrono::steady_clock::time_point done_at(const DeferredPtr& work);

// These run what has to be done before they return; the result is that of the first work that failed.
Error finish(const DeferredPtr& work);
Error finish(const Stream* stream);
Error finish_all();
// For queries, which a program may repeat until they are true: runs one piece of work; kNotReady when more is left.
Error advance(const DeferredPtr& work);
Error advance(const Stream* stream);

// The same on a handle, and nothing when nothing is deferred.
Error finish_stream(void* handle);

}  // namespace sim::hip
