// SPDX-License-Identifier: MIT
// Which workgroup a worker runs next: in dispatch order each to its end, unless it gives way; under fuzzing at random.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "run/waves.h"

namespace sim {

// The workgroups that one worker has started, that are not finished and do not run now.
struct Backlog {
  std::deque<std::unique_ptr<Slot>> resident;  // the one that has waited longest first
  u64 turns = 0;                               // since the worker started or ended a workgroup
  Turn last = Turn::ended;
};

// The workgroups of one launch, shared by its workers.
class Scheduler {
 public:
  Scheduler(u64 workgroups, u64 seed, u64 resident_limit);

  u64 workgroups() const { return total_; }
  // Instructions of a wave between two looks whether its workgroup only waits.
  u64 quantum() const { return quantum_; }
  bool may_start() const { return next_ < total_ && resident_ < limit_; }

  // The number in the grid of a workgroup that the worker starts now; without one it goes on with one of its own.
  std::optional<u64> start(Backlog& mine, Random& random);
  // The worker's own workgroup whose turn it is; null when it has none left. `stuck`: its last turn made no progress.
  std::unique_ptr<Slot> resume(Backlog& mine, Random& random, bool stuck);
  // How a turn ended: the workgroup has ended, or gives way.
  void ended(Backlog& mine);
  void gave_way(Backlog& mine, std::unique_ptr<Slot> slot);

 private:
  bool wants_new(const Backlog& mine, Random& random) const;

  const u64 total_, seed_, limit_;             // limit_: workgroups resident at once
  u64 stride_ = 1, offset_ = 0;                // the order of workgroups: i → stride * i + offset mod total
  std::atomic<u64> next_{0}, resident_{0}, quantum_;
};

}  // namespace sim
