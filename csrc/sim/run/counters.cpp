// SPDX-License-Identifier: MIT
// From executions per instruction to counts by class and by mnemonic.
#include "run/counters.h"

#include <algorithm>
#include <utility>

#include "load/loader.h"

namespace sim {
namespace {

constexpr size_t kBlock = 16;                  // hit counters looked at together

struct AllCounters {
  std::mutex mutex;
  std::map<std::string, KernelCounters> by_kernel;
};

AllCounters& all_counters() {
  static AllCounters* instance = new AllCounters;
  return *instance;
}

}  // namespace

// Whole blocks only, so that take() needs no remainder loop.
void WorkerCounters::begin(const Code& code) { hits.resize((code.insts.size() + kBlock - 1) / kBlock * kBlock); }

// A library has many kernels: most blocks are zero and passed over.
void LaunchCounters::take(WorkerCounters& worker) {
  const Code& code = *launch_.code;
  const std::lock_guard lock(mutex_);
  sum_.workgroups += std::exchange(worker.workgroups, 0);
  std::vector<u64>& hits = worker.hits;
  for (size_t first = 0; first < hits.size(); first += kBlock) {
    u64 any = 0;
    for (size_t i = 0; i < kBlock; ++i) any |= hits[first + i];
    if (!any) continue;
    for (size_t i = first; i < std::min(first + kBlock, code.classes.size()); ++i) {
      const Class cls = code.classes[i];
      if (hits[i] && is_vector_memory(cls)) sum_.accesses[code.insts[i].op->name] += hits[i];
      sum_.by_class[static_cast<int>(cls)] += std::exchange(hits[i], 0);
    }
  }
}

LaunchCounters::~LaunchCounters() {
  AllCounters& all = all_counters();
  const u32 size = launch_.block[0] * launch_.block[1] * launch_.block[2];
  const std::lock_guard lock(all.mutex);
  KernelCounters& k = all.by_kernel[launch_.kernel->name];
  ++k.launches;
  k.workgroups += sum_.workgroups;
  k.waves += sum_.workgroups * ((size + kLanes - 1) / kLanes);
  for (int i = 0; i < kNumClasses; ++i) {
    k.by_class[i] += sum_.by_class[i];
    k.wave_instructions += sum_.by_class[i];
  }
  for (const auto& [name, count] : sum_.accesses) k.accesses[name] += count;
}

std::map<std::string, KernelCounters> counters() {
  AllCounters& all = all_counters();
  const std::lock_guard lock(all.mutex);
  return all.by_kernel;
}

void reset_counters() {
  AllCounters& all = all_counters();
  const std::lock_guard lock(all.mutex);
  all.by_kernel.clear();
}

}  // namespace sim
