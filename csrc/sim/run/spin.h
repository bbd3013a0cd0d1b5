// SPDX-License-Identifier: MIT
// Finds waves that wait for memory that others write: such a wave comes back to the same instruction with every
// register as it was, and will do so for ever if nobody writes.
#pragma once
#include <vector>

#include "run/wave.h"

namespace sim {

// Watches one wave from an instruction until it is back there twice, or has gone on too far for a waiting loop.
class SpinWatch {
 public:
  enum class State : u8 { first_pass, second_pass, spins, runs };

  void begin(const Wave& w);
  // The wave has executed one instruction.
  void step(const Wave& w) {
    if (state_ >= State::spins) return;
    if (w.ip == at_) returned(w);
    else if (++steps_ > kLongestLoop) state_ = State::runs;
  }
  bool decided() const { return state_ >= State::spins; }
  bool spins() const { return state_ == State::spins; }

  bool slept = false;                          // while it was watched

 private:
  static constexpr int kLongestLoop = 512;     // instructions of a waiting loop

  void returned(const Wave& w);

  State state_ = State::runs;
  bool scc_ = false;
  int steps_ = 0;
  const Inst* at_ = nullptr;
  u32 scalars_[kNumScalars];
  std::vector<u32> vectors_;
};

}  // namespace sim
