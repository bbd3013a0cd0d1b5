// SPDX-License-Identifier: MIT
// Late loads are a part of schedule fuzzing: a load's data arrive only at the wait that retires it. Its destination
// registers, and the LDS bytes of an LDS-DMA, hold poison until then.
#pragma once
#include <utility>
#include <vector>

#include "run/wave.h"

namespace sim {

struct Random {                                // splitmix64
  u64 state;
  u64 next() {
    u64 x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
};

// One wave's memory instructions in flight. run_wave calls before() and after() around each instruction.
class LateLoads {
 public:
  void begin(u64 seed);
  void before(Wave& w, const Inst& i);         // a wait delivers, the end of the wave too
  void after(Wave& w, const Inst& i);          // takes what a memory instruction loaded, and leaves poison

 private:
  struct Flight {
    const Inst* inst = nullptr;
    u64 exec = 0;
    bool vm = false, lgkm = false;             // counters that must still retire it
    std::vector<u32> values;                   // for its destination registers: a row of 64, or one scalar
    std::vector<std::pair<u32, u32>> lds;      // LDS-DMA: offset, dword
  };
  void hold(Wave& w, Flight& f);
  void deliver(Wave& w, const Flight& f);
  void retire(Wave& w, u32 vm_left, u32 lgkm_left);
  bool retire_one(Wave& w, bool Flight::*counter);
  u32 count(bool Flight::*counter) const;

  Random random_{0};
  u32 poison_ = 0;
  std::vector<Flight> flights_;                // in issue order
  std::vector<u8> lds_before_;                 // LDS-DMA: to see what it wrote
  u8 flat_spaces_ = 0;                         // the running FLAT instruction touches: 1 memory, 2 LDS
};

}  // namespace sim
