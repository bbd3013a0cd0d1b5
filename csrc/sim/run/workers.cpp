// SPDX-License-Identifier: MIT
// A pool of one job at a time.
#include "run/workers.h"

#include <sched.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "settings.h"

namespace sim {
namespace {

class Pool {
 public:
  void run(u32 helpers, const std::function<void()>& body) {
    const std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return body();
    {
      const std::lock_guard lock(mutex_);
      for (; num_threads_ < helpers; ++num_threads_) std::thread([this] { serve(); }).detach();
      job_ = &body;
      wanted_ = helpers;
    }
    wake_.notify_all();
    body();
    std::unique_lock lock(mutex_);
    job_ = nullptr;                              // a thread that wakes now finds no job
    wanted_ = 0;
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return job_ && wanted_ > 0; });
      const std::function<void()>& job = *job_;
      --wanted_;
      ++active_;
      lock.unlock();
      job();
      lock.lock();
      if (--active_ == 0) done_.notify_all();
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* job_ = nullptr;
  u32 num_threads_ = 0, wanted_ = 0, active_ = 0;
};

// After fork() the child has none of the threads, so it gets a pool of its own. Pools are never destroyed, because
// threads may sleep on them at exit.
Pool& pool() {
  static std::mutex mutex;
  static Pool* instance = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    instance = new Pool;
    owner = getpid();
  }
  return *instance;
}

}  // namespace

u32 num_threads() {
  if (settings().threads) return settings().threads;
  static const u32 cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<u32>(CPU_COUNT(&set))
                                                       : std::thread::hardware_concurrency();
  }();
  return cores ? cores : 1;
}

void run_on_workers(u32 threads, const std::function<void()>& body) {
  if (threads <= 1) return body();
  pool().run(threads - 1, body);
}

}  // namespace sim
