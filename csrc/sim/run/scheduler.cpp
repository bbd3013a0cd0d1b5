// SPDX-License-Identifier: MIT
// The order of workgroups, and when a worker starts another one though it has some that wait.
#include "run/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sim {
namespace {

constexpr u64 kQuantum = 1 << 16;              // instructions of a wave between two looks whether all wait
constexpr u64 kSpinQuantum = 1 << 11;          // … in launches whose workgroups wait for one another
constexpr u64 kFuzzedResidents = 8;            // workgroups that fuzzing interleaves, unless they need more
constexpr u64 kBusyResidents = 64;             // workgroups that give way though they do not wait, in memory at once

}  // namespace

Scheduler::Scheduler(u64 workgroups, u64 seed, u64 resident_limit)
    : total_(workgroups), seed_(seed), limit_(resident_limit), quantum_(kQuantum) {
  if (seed == 0) return;
  Random random{seed};
  do {
    stride_ = random.next() % total_ + 1;
  } while (std::gcd(stride_, total_) != 1);
  offset_ = random.next() % total_;
}

std::optional<u64> Scheduler::start(Backlog& mine, Random& random) {
  // The workgroups that fuzzing interleaves may need others to go on, and get them after some turns without an end.
  const bool needs_more = mine.turns > 2 * mine.resident.size();
  const u64 limit = seed_ && !needs_more ? std::min(limit_, kFuzzedResidents) : limit_;
  if (!mine.resident.empty() && (resident_ >= limit || !wants_new(mine, random))) return std::nullopt;
  const u64 index = next_.fetch_add(1);
  if (index >= total_) return std::nullopt;
  ++resident_;
  mine.turns = 0;
  return (index * stride_ + offset_) % total_;
}

bool Scheduler::wants_new(const Backlog& mine, Random& random) const {
  if (seed_) return random.next() % 2 == 0;
  if (mine.last != Turn::preempted) return mine.last != Turn::ended;
  return resident_ < kBusyResidents || mine.turns > 4 * mine.resident.size();
}

std::unique_ptr<Slot> Scheduler::resume(Backlog& mine, Random& random, bool stuck) {
  if (mine.resident.empty()) return nullptr;
  if (seed_ && !stuck) std::swap(mine.resident.front(), mine.resident[random.next() % mine.resident.size()]);
  std::unique_ptr<Slot> slot = std::move(mine.resident.front());
  mine.resident.pop_front();
  return slot;
}

void Scheduler::ended(Backlog& mine) {
  mine.turns = 0;
  --resident_;
}

void Scheduler::gave_way(Backlog& mine, std::unique_ptr<Slot> slot) {
  if (mine.last != Turn::preempted) quantum_ = kSpinQuantum;
  mine.resident.push_back(std::move(slot));
}

}  // namespace sim
