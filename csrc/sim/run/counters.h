// SPDX-License-Identifier: MIT
// What every launch counts: executions per instruction, summed up per kernel of the process.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "run/wave.h"

namespace sim {

struct KernelCounters {
  u64 launches = 0, workgroups = 0, waves = 0, wave_instructions = 0;
  u64 by_class[kNumClasses] = {};
  std::map<std::string_view, u64> accesses;    // mnemonic → accesses of global, flat, scratch and buffer memory
};

// Kernel name → the sums over its launches.
std::map<std::string, KernelCounters> counters();
void reset_counters();
inline const char* class_name(Class cls) {
  constexpr const char* kNames[kNumClasses] = {"salu", "branch", "wait", "barrier", "end", "smem", "valu", "trans",
                                               "mfma", "ds", "global", "flat", "scratch", "mubuf", "other"};
  return kNames[static_cast<int>(cls)];
}

// The observer that every wave has. The run loop knows its type, so its call is one increment.
class HitCounter final : public Observer {
 public:
  explicit HitCounter(u64* hits) : hits_(hits) {}
  void before(Wave&, const Inst& i) override { ++hits_[i.index]; }

 private:
  u64* hits_;                                  // per Inst::index
};

// The counters of one worker, during one launch after another.
struct WorkerCounters {
  std::vector<u64> hits;                       // per Inst::index; all zero between launches
  u64 workgroups = 0;                          // that it has started

  void begin(const Code& code);
};

// The sum of one launch's workers. It joins the kernel's counters when it is destroyed, also after a failure.
class LaunchCounters {
 public:
  explicit LaunchCounters(const Launch& launch) : launch_(launch) {}
  ~LaunchCounters();
  LaunchCounters(const LaunchCounters&) = delete;
  LaunchCounters& operator=(const LaunchCounters&) = delete;

  void take(WorkerCounters& worker);           // leaves zeros

 private:
  const Launch& launch_;
  std::mutex mutex_;
  KernelCounters sum_;
};

}  // namespace sim
