// SPDX-License-Identifier: MIT
// When a launch is deadlocked: all its workers say that none of their workgroups can go on.
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>

#include "types.h"

namespace sim {

class DeadlockVote {
 public:
  // One worker's part.
  struct Ballot {
    u64 stuck_turns = 0;                       // in a row, all without progress
    u64 stuck_since = 0;                       // the launch's progress at the first of them
    u64 voted = ~u64{0};                       // the progress at which this worker found itself stuck
  };

  // A worker takes part in the launch, or no longer.
  void enter() { ++workers_; }
  void leave() { --workers_; }

  // A workgroup of this worker went on.
  void progress(Ballot& mine) {
    ++progress_;
    mine.stuck_turns = 0;
  }
  // A workgroup can go on only if somebody else writes memory. The worker votes when that is so for all `resident` ones
  // and it `may_start` no more. The result is true when every worker has voted and nobody has made progress since
  // for a while: the launch is deadlocked.
  bool stuck(Ballot& mine, u64 resident, bool may_start);

 private:
  using Clock = std::chrono::steady_clock;

  std::atomic<u64> progress_{0};
  std::atomic<u32> workers_{0};
  std::mutex mutex_;
  u64 vote_ = ~u64{0};                         // the progress that workers vote about: it is the last
  u32 voters_ = 0;
  Clock::time_point first_vote_;
};

}  // namespace sim
