// SPDX-License-Identifier: MIT
// Deferred work is a graph of pieces, each of which comes after others. Seed 0 runs only what a synchronisation point
// waits for, in the order of submission, which is as late as possible. Other seeds draw from all pieces that could run.
#include "hip/defer.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "run/slot.h"

namespace sim::hip {

struct Deferred {
  bool is_default, is_blocking;                  // its stream, which may be gone when others look at this
  Work work;
  std::vector<DeferredPtr> after;
  enum { waiting, running, done } state = waiting;
  std::chrono::steady_clock::time_point time;    // when it was done
};

namespace {

constexpr u32 kNonBlocking = 1;                  // hipStreamNonBlocking

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<DeferredPtr> pending;              // in the order of submission
  std::map<const Stream*, DeferredPtr> last;     // last work of each stream; null: the default one
  std::map<const Stream*, std::vector<DeferredPtr>> follows;
  Random random{0};
  u64 seed = 0;
  Error failure = kSuccess;
};

Queue& queue() {
  static Queue* instance = new Queue;
  return *instance;
}

bool is_ready(const DeferredPtr& work) {
  return work->state == Deferred::waiting &&
         std::all_of(work->after.begin(), work->after.end(), [](const DeferredPtr& d) { return d->state == d->done; });
}

bool needs(const DeferredPtr& target, const DeferredPtr& work) {
  if (target == work) return true;
  return std::any_of(target->after.begin(), target->after.end(),
                     [&](const DeferredPtr& d) { return d->state != d->done && needs(d, work); });
}

// The piece to run next for `target` (null = for everything); null when another thread is running it.
DeferredPtr choose(Queue& q, const DeferredPtr& target) {
  std::vector<DeferredPtr> ready;
  for (const DeferredPtr& work : q.pending) {
    if (!is_ready(work)) continue;
    if (!q.seed && (!target || needs(target, work))) return work;
    ready.push_back(work);
  }
  if (ready.empty() || !q.seed) return nullptr;
  return ready[q.random.next() % ready.size()];
}

// Runs one piece, or waits for one that another thread runs.
void step(Queue& q, std::unique_lock<std::mutex>& lock, const DeferredPtr& target) {
  if (q.seed != settings().seed) {
    q.seed = settings().seed;
    q.random = {q.seed};
  }
  const DeferredPtr work = choose(q, target);
  if (!work) {
    q.changed.wait(lock);
    return;
  }
  work->state = Deferred::running;
  lock.unlock();
  const Error error = work->work();
  lock.lock();
  work->state = Deferred::done;
  work->time = std::chrono::steady_clock::now();
  work->work = nullptr;                          // nobody needs its arguments any more, nor what came before it
  work->after.clear();
  std::erase(q.pending, work);
  if (q.failure == kSuccess) q.failure = error;
  q.changed.notify_all();
}

Error run_until(Queue& q, std::unique_lock<std::mutex>& lock, const DeferredPtr& target) {
  while (target ? target->state != Deferred::done : !q.pending.empty()) step(q, lock, target);
  return std::exchange(q.failure, kSuccess);
}

DeferredPtr last_of(Queue& q, const Stream* stream) {
  const auto found = q.last.find(stream);
  return found == q.last.end() ? nullptr : found->second;
}

}  // namespace

DeferredPtr defer(const Stream* stream, Work work) {
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  const bool is_blocking = !(stream && stream->flags & kNonBlocking);
  auto item = std::make_shared<Deferred>(!stream, is_blocking, std::move(work), std::exchange(q.follows[stream], {}));
  for (const auto& [other, last] : q.last) {
    const bool meets = (item->is_default || last->is_default) && item->is_blocking && last->is_blocking;
    const bool ordered = other == stream || meets;
    if (ordered && last->state != Deferred::done) item->after.push_back(last);
  }
  q.last[stream] = item;
  q.pending.push_back(item);
  return item;
}

void follow(const Stream* stream, const DeferredPtr& work) {
  if (!work) return;
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  if (work->state != Deferred::done) q.follows[stream].push_back(work);
}

bool is_done(const DeferredPtr& work) {
  const std::lock_guard lock(queue().mutex);
  return !work || work->state == Deferred::done;
}

std::chrono::steady_clock::time_point done_at(const DeferredPtr& work) {
  const std::lock_guard lock(queue().mutex);
  return work->time;
}

Error finish(const DeferredPtr& work) {
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  return work ? run_until(q, lock, work) : kSuccess;
}

// Whoever waits for the default stream waits for the blocking streams, for which that stream would wait.
Error finish(const Stream* stream) {
  if (!stream) defer(nullptr, [] { return kSuccess; });
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  const DeferredPtr last = last_of(q, stream);
  const Error error = last ? run_until(q, lock, last) : kSuccess;
  if (last == last_of(q, stream)) q.last.erase(stream);
  return error;
}

Error finish_all() {
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  return run_until(q, lock, nullptr);
}

Error advance(const DeferredPtr& work) {
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  if (!work) return kSuccess;
  if (work->state != Deferred::done) step(q, lock, work);
  return work->state == Deferred::done ? std::exchange(q.failure, kSuccess) : kNotReady;
}

Error advance(const Stream* stream) {
  DeferredPtr last;
  {
    const std::lock_guard lock(queue().mutex);
    last = last_of(queue(), stream);
  }
  return advance(last);
}

Error finish_stream(void* handle) {
  if (!deferring()) return kSuccess;
  Stream* stream = nullptr;
  {
    const std::lock_guard lock(stream_mutex());
    stream = find_stream(handle);
  }
  return finish(stream);
}

}  // namespace sim::hip
