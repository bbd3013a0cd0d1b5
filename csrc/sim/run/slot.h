// SPDX-License-Identifier: MIT
// The place of one resident workgroup: its waves, register files, LDS and scratch, and where it stands in its schedule.
#pragma once
#include <vector>

#include "run/late.h"
#include "run/spin.h"
#include "run/wave.h"

namespace sim {

inline constexpr int kMaxWaves = 16;

class Slot {
 public:
  Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot();

  // Puts the workgroup with this linear index at its first instruction, in the memory of the workgroup before.
  void begin(const Launch& launch, u64 index, u64 seed, u64* hits);
  bool fuzzed() const { return seed_ != 0; }

  Workgroup group;
  Wave* current = nullptr;                     // the running wave; a trap would lose a local variable
  Random random{0};                            // fuzzing: this workgroup's own decisions
  std::vector<LateLoads> late;                 // per wave; used under fuzzing
  std::vector<SpinWatch> watches;              // kMaxWaves (waves.cpp)

 private:
  u64 seed_ = 0;
  u8 *files_ = nullptr, *lds_ = nullptr, *scratch_ = nullptr;
  u64 scratch_bytes_ = 0;
};

// How many workgroups of this launch may be resident at once. The hardware's CUs hold so many; host memory bounds it
// too, except for cooperative launches, which are refused when they do not fit (Fault).
u64 resident_limit(const Launch& launch, bool cooperative);

}  // namespace sim
