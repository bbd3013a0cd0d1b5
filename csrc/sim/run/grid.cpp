// SPDX-License-Identifier: MIT
// Workgroups on worker threads. A workgroup runs to its end on the worker that took it; when it gives way, the worker
// starts another or returns to one that gave way before.
#include "run/grid.h"

#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "load/loader.h"
#include "run/counters.h"
#include "run/deadlock.h"
#include "run/failure.h"
#include "run/hostcall.h"
#include "run/scheduler.h"
#include "run/traps.h"
#include "run/workers.h"

namespace sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr u32 kMxcsrDefault = 0x1f80;          // nearest-even, denormals kept, exceptions masked

// The memory in which one thread runs workgroups; it outlives launches.
struct Worker {
  Backlog backlog;
  DeadlockVote::Ballot ballot;
  WorkerCounters counters;
  std::unique_ptr<Slot> spare;

  std::unique_ptr<Slot> empty_slot() { return spare ? std::move(spare) : std::make_unique<Slot>(); }
};

Worker& worker() {
  thread_local Worker instance;
  return instance;
}

class Grid {
 public:
  Grid(const Launch& launch, u64 seed, u64 resident_limit)
      : launch_(launch), seed_(seed),
        scheduler_(u64{launch.grid[0]} * launch.grid[1] * launch.grid[2], seed, resident_limit), counters_(launch),
        leaves_out_(launch.observer && !launch.code->any_of(*launch.kernel, [](const Inst& i) {
          return i.op && i.op->name == std::string_view("s_sleep");
        })) {}

  void run(u32 threads) {
    const u64 total = scheduler_.workgroups();
    const auto start = Clock::now();
    work(true);
    const auto first = Clock::now() - start;
    // Waking a thread costs some 20 us: worth it only when enough work is left.
    const bool share = threads > 1 && first * static_cast<i64>(total - 1) > std::chrono::microseconds(100);
    if (share && !failed_) run_on_workers(std::min<u64>(threads, total), [this] { work(false); });
    else work(false);
    if (!failed_) return;
    if (deadlock_) report_ = waiting_.report(launch_);
    if (deadlock_ && left_out_) {
      report_.message += "\n  Workgroups were left out, because the cycle model needs a sample of them only: kernels "
                         "whose workgroups wait for one another run whole (model=\"whole\", sim profile --whole)";
    }
    add_report(report_);
    throw Fault(report_.message);
  }

 private:
  // Turns until nothing is left for this worker, or only one.
  void work(bool one_turn) {
    const u32 saved = _mm_getcsr();
    _mm_setcsr(kMxcsrDefault);
    Worker& me = worker();
    me.counters.begin(*launch_.code);
    Random random{seed_ ^ 0x5eed};
    vote_.enter();
    while (!failed_) {
      std::unique_ptr<Slot> slot = next(me, random);
      if (!slot) break;
      take_turn(me, std::move(slot));
      if (one_turn) break;
    }
    vote_.leave();
    if (!one_turn) clear(me);
    _mm_setcsr(saved);
    counters_.take(me.counters);
  }

  std::unique_ptr<Slot> next(Worker& me, Random& random) {
    std::optional<u64> index = scheduler_.start(me.backlog, random);
    while (index && leaves_out_ && launch_.observer->skips(*index)) {
      left_out_ = true;
      if (launch_.host) launch_.host->output.ended(*index);
      scheduler_.ended(me.backlog);
      index = scheduler_.start(me.backlog, random);
    }
    if (!index) return scheduler_.resume(me.backlog, random, me.ballot.stuck_turns != 0);
    ++me.counters.workgroups;
    std::unique_ptr<Slot> slot = me.empty_slot();
    try {
      slot->begin(launch_, *index, seed_, me.counters.hits.data());
      if (launch_.observer) slot->group.observer = launch_.observer->begin(slot->group);
    } catch (const std::exception& error) {
      fail(*slot, error.what());
    }
    return slot;
  }

  void take_turn(Worker& me, std::unique_ptr<Slot> slot) {
    Turn turn = Turn::preempted;
    try {
      with_traps([&] { turn = run_waves(*slot, scheduler_.quantum(), failed_); });
    } catch (const std::exception& error) {
      if (slot->group.observer && slot->current) slot->group.observer->failed(*slot->current, error.what());
      fail(*slot, error.what());
    }
    me.backlog.last = turn;
    ++me.backlog.turns;
    if (turn == Turn::ended) end(me, std::move(slot));
    else scheduler_.gave_way(me.backlog, std::move(slot));
    if (turn != Turn::stuck) return vote_.progress(me.ballot);
    if (!vote_.stuck(me.ballot, me.backlog.resident.size(), scheduler_.may_start())) return;
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) deadlock_ = true;
  }

  void end(Worker& me, std::unique_ptr<Slot> slot) {
    slot->group.observer.reset();
    if (launch_.host) launch_.host->end(slot->group);
    scheduler_.ended(me.backlog);
    if (!me.spare) me.spare = std::move(slot);
  }

  // Gives up what a launch that failed left behind.
  void clear(Worker& me) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Slot>& slot : me.backlog.resident) {
      if (deadlock_) waiting_.add(slot->group);
      end(me, std::move(slot));
    }
    me.backlog.resident.clear();
    me.ballot = {};
  }

  // The first failure stops the launch.
  void fail(const Slot& slot, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) report_ = failure(slot, why);
  }

  const Launch& launch_;
  const u64 seed_;
  Scheduler scheduler_;
  DeadlockVote vote_;
  LaunchCounters counters_;
  const bool leaves_out_;                      // a kernel that sleeps waits for other workgroups: all of them run
  std::atomic<bool> failed_{false}, left_out_{false};
  std::mutex mutex_;                           // guards what follows
  bool deadlock_ = false;
  WaitingWaves waiting_;
  Report report_;
};

}  // namespace

void run_grid(const Launch& launch, u64 seed, u64 resident_limit, u32 threads) {
  Grid(launch, seed, resident_limit).run(threads);
}

}  // namespace sim
