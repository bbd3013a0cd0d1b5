// SPDX-License-Identifier: MIT
// What the replay keeps of waves, SIMDs, compute units, workgroups and the places through which these meet.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "timing/engine.h"

namespace sim::timing {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// A wave's operations on one counter, in issue order.
class Outstanding {
 public:
  struct Operation {
    double done = 0;                           // when it and those before it are complete
    double latency = 0;                        // 0: the other counter has it, too, and tells of it
    u32 inst = 0;
  };

  void push(double done, double latency, u32 inst) {
    last_ = std::max(last_, done);
    if (count_ - retired_ == ring_.size()) ++retired_;
    ring_[count_++ % ring_.size()] = {last_, latency, inst};
  }
  // When at most `left` are outstanding.
  double until(u32 left) const { return count_ > left ? ring_[(count_ - left - 1) % ring_.size()].done : 0; }
  double last() const { return last_; }
  // Takes out those that a wait for `left` waits for and no wait before did.
  template <class Tell>
  void retire(u32 left, Tell tell) {
    while (count_ - retired_ > left) tell(ring_[retired_++ % ring_.size()]);
  }

 private:
  std::array<Operation, 64> ring_{};
  u32 count_ = 0, retired_ = 0;
  double last_ = 0;
};

// The destination of a matrix operation in flight.
struct Result {
  IssueFacts::Range registers;
  double ready = 0, pipe_end = 0;
};

struct WaveRun {
  const WaveTrace* trace = nullptr;
  size_t at = 0, payload = 0;
  u32 cu = 0, simd = 0, slot = 0, group = 0;
  u64 age = 0;                                 // its place in Engine::waves_
  int priority = 0;
  double ready = 0;
  Stall why = Stall::none;                     // the reason for `ready`, beyond the instruction before
  double base = 0;                             // when the instruction before let it go on
  double busy_at_base = -1;                    // Simd::busy_before(base), once that time has come
  // The instruction before was a barrier, which opened then: waiting for it is the barrier's, what comes after is not.
  double opened = 0, busy_at_opened = -1;
  u32 barrier = 0;
  Event barrier_event{};
  bool tells_barrier = false;                  // the event belongs to the timeline
  Outstanding vm, lgkm;
  std::array<Result, 8> results;
  u32 next_result = 0;
  double last_result = 0;                      // latest `ready` of them
  u64 fetched = ~u64{0};
  u32 life = 0;                                // its place in EngineResult::waves
};

struct Simd {
  std::vector<u32> waves;
  std::array<double, kNumUnits> port{};        // when a unit takes another instruction
  double mfma_free = 0, valu_blocked = 0;
  Server lds_path;
  double next = kNever;
  double busy = 0, busy_until = 0;             // clk that the vector or the matrix unit works, and until when

  void work(double from, double until) {
    busy += std::max(until - std::max(from, busy_until), 0.0);
    busy_until = std::max(busy_until, until);
  }
  // How much of the time before `at` one of them has worked; work that begins later must not have been told yet.
  double busy_before(double at) const { return busy - std::max(busy_until - at, 0.0); }
};

// Holds so many instructions that have issued and that their unit has not begun yet.
class Queue {
 public:
  explicit Queue(u32 places) : starts_(places, 0) {}

  // When it has a place: the unit has begun the one that came as many instructions ago as there are places.
  double open() const { return starts_[count_ % starts_.size()]; }
  void add(double start) { starts_[count_++ % starts_.size()] = start; }

 private:
  std::vector<double> starts_;
  u64 count_ = 0;
};

struct Cu {
  Server address, banks;
  Queue vmem, lds;
  u32 free_groups;
};

struct Group {
  u32 waves = 0, arrived = 0, ended = 0;
  std::vector<u32> members;
};

// A wave that waits until so many writes of a place have arrived; the clk of its loop.
struct Waiter {
  u32 wave, writes, clk;
};

// A place through which workgroups meet.
struct Place {
  std::vector<double> writes;                  // when each arrived, in the order of the recording
  u32 arrived = 0;                             // so many of the first ones have
  double since = 0;                            // … all of them
  std::vector<Waiter> waiters;
};

}  // namespace sim::timing
