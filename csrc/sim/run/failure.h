// SPDX-License-Identifier: MIT
// The reports of launches that fail.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "report.h"
#include "run/slot.h"

namespace sim {

// The launch did not start.
Report refusal(const Kernel& kernel, const std::string& why);

// The slot's running wave cannot go on.
Report failure(const Slot& slot, const std::string& why);

// The places at which the waves of a deadlocked launch wait.
class WaitingWaves {
 public:
  void add(const Workgroup& group);
  Report report(const Launch& launch) const;

 private:
  std::map<std::pair<u64, bool>, std::vector<std::string>> waves_;   // pc, at a barrier → names
};

}  // namespace sim
