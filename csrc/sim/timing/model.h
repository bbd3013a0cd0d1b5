// SPDX-License-Identifier: MIT
// From a launch to its modelled cycles: which workgroups are recorded, and what their replay says of all of them.
#pragma once
#include <string>
#include <vector>

#include "run/occupancy.h"
#include "timing/engine.h"

namespace sim::timing {

struct ModelSettings {
  bool sample = false;                         // only the recorded workgroups run: memory is not what the launch leaves
  double clock_mhz = 2100;
  u64 budget = 0;                              // wave instructions to record beyond the first window; 0: all
  u32 timeline_events = 0;
};

// A launch that has ended, as the model sees it. Everything here is modelled.
struct ModelledLaunch {
  std::string kernel;
  u32 grid[3], block[3], lds_bytes = 0;
  Occupancy occupancy{};
  u64 workgroups = 0, recorded = 0;            // one XCD's, and those that were replayed
  double workgroups_of_cu = 0;                 // of a CU of the chip, on average
  u32 cus = 0, xcds = 1;                       // CUs of an XCD that took part; XCDs that were replayed
  double clk = 0, clock_mhz = 0;
  double sample_error = 0;                     // by how much rounds of a sample differ, of clk
  double mfma_flops = 0;                       // the whole launch's
  EngineResult replayed;
  struct Line {
    u64 pc;
    std::string text, source, caller;
    InstTime time;
  };
  std::vector<Line> lines;
};

void begin_modelling(const ModelSettings& settings);
void end_modelling();
std::vector<ModelledLaunch> take_modelled();

}  // namespace sim::timing
