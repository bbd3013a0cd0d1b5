// SPDX-License-Identifier: MIT
#include "run/deadlock.h"

#include <sched.h>

#include <utility>

namespace sim {
namespace {

constexpr u64 kStuckRounds = 3;
constexpr auto kStuckTime = std::chrono::seconds(1);   // other threads of the process may still write memory

}  // namespace

bool DeadlockVote::stuck(Ballot& mine, u64 resident, bool may_start) {
  if (mine.stuck_turns++ == 0) mine.stuck_since = progress_;
  if (may_start || mine.stuck_turns < kStuckRounds * resident) return false;
  bool decided = false;
  {
    const std::lock_guard lock(mutex_);
    const u64 progress = progress_;
    mine.stuck_turns = 0;
    if (mine.stuck_since != progress) return false;
    if (vote_ != progress) {
      vote_ = progress;
      voters_ = 0;
      first_vote_ = Clock::now();
    }
    if (std::exchange(mine.voted, progress) != progress) ++voters_;
    decided = voters_ >= workers_ && Clock::now() - first_vote_ > kStuckTime;
  }
  sched_yield();
  return decided;
}

}  // namespace sim
