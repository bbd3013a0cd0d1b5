// SPDX-License-Identifier: MIT
// Grid → workgroups → waves. Workgroups run to completion on the worker that took them; waves of a workgroup take turns
// at barriers, at s_sleep and after a quantum.
#include "run.h"

#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "checks/checks.h"
#include "isa/mode.h"
#include "launch_state.h"
#include "report.h"
#include "settings.h"
#include "traps.h"
#include "workers.h"

namespace sim {
namespace {

constexpr int kMaxWaves = 16;
constexpr u64 kQuantum = 1 << 16;              // instructions of a wave before another gets its turn
constexpr u32 kMxcsrDefault = 0x1f80;          // nearest-even, denormals kept, exceptions masked
constexpr u64 kFileBytes = u64{kNumRows} * kLanes * sizeof(u32);
constexpr u64 kFileStride = kFileBytes + 5 * 4096;     // no power of two: rows of the waves in different cache sets
constexpr size_t kBlock = 16;                  // hit counters looked at together

// One thread's memory for waves, kept between launches.
class Arena {
 public:
  Arena() { lds_ = map(65536); }
  ~Arena() {
    unmap(files_, kMaxWaves * kFileStride);
    unmap(lds_, 65536);
    unmap(scratch_, scratch_bytes_);
  }
  u32 (*file(int wave))[kLanes] {
    if (!files_) files_ = map(kMaxWaves * kFileStride);
    return reinterpret_cast<u32(*)[kLanes]>(files_ + wave * kFileStride);
  }
  u8* lds() { return lds_; }
  u8* scratch(u64 bytes) {
    if (bytes > scratch_bytes_) {
      unmap(scratch_, scratch_bytes_);
      scratch_bytes_ = bytes;
      scratch_ = map(bytes);
    }
    return scratch_;
  }
  Workgroup group;
  Wave* current = nullptr;                     // not a local variable: those are lost when a trap jumps
  std::vector<u64> hits;

 private:
  static u8* map(u64 bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Fault("out of memory for the simulated registers");
    return static_cast<u8*>(p);
  }
  static void unmap(u8* p, u64 bytes) {
    if (p) munmap(p, bytes);
  }
  u8 *files_ = nullptr, *lds_ = nullptr, *scratch_ = nullptr;
  u64 scratch_bytes_ = 0;
};

Arena& arena() {
  thread_local Arena instance;
  return instance;
}

struct Random {                                // splitmix64
  u64 state;
  u64 next() {
    u64 x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
};

// One grid being executed by several workers.
class Grid {
 public:
  Grid(const Launch& launch, u64 seed)
      : launch_(launch), seed_(seed), total_(u64{launch.grid[0]} * launch.grid[1] * launch.grid[2]) {
    // Under fuzzing the order of workgroups is i → a*i + b mod n, with a coprime to n.
    Random random{seed};
    if (seed == 0) return;
    do {
      stride_ = random.next() % total_ + 1;
    } while (std::gcd(stride_, total_) != 1);
    offset_ = random.next() % total_;
  }

  void run(u32 threads, bool cooperative) {
    if (cooperative) run_together();
    else run_in_turn(threads);
    if (failed_) {
      add_report(report_);
      throw Fault(report_.message);
    }
  }

  KernelCounters counted() const { return counted_; }

 private:
  // A thread for each workgroup, so that those who wait for others do not keep them from running.
  void run_together() {
    std::vector<std::jthread> others;
    try {
      for (u64 i = 1; i < total_; ++i) others.emplace_back([this] { work(1); });
    } catch (...) {
      failed_ = true;                            // ends the workgroups that wait for those without a thread
      throw;
    }
    work(1);
  }

  void run_in_turn(u32 threads) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    work(1);
    const auto first = Clock::now() - start;
    // Waking a thread costs some 20 us: worth it only when enough work is left.
    const bool share = threads > 1 && first * static_cast<i64>(total_ - 1) > std::chrono::microseconds(100);
    if (share && !failed_) run_on_workers(std::min<u64>(threads, total_ - 1), [this] { work(total_); });
    else work(total_);
  }

  void work(u64 most) {
    const u32 saved = _mm_getcsr();
    _mm_setcsr(kMxcsrDefault);
    Arena& memory = arena();
    // count() leaves every entry zero; whole blocks only, so that it needs no remainder loop.
    memory.hits.resize((launch_.code->insts.size() + kBlock - 1) / kBlock * kBlock);
    u64 done = 0;
    while (done < most && !failed_) {
      const u64 index = next_.fetch_add(1);
      if (index >= total_) break;
      ++done;
      run_group((index * stride_ + offset_) % total_, memory);
    }
    _mm_setcsr(saved);
    count(memory.hits, done);
  }

  void run_group(u64 index, Arena& memory) {
    Workgroup& g = memory.group;
    g.launch = &launch_;
    g.id[0] = static_cast<u32>(index % launch_.grid[0]);
    g.id[1] = static_cast<u32>(index / launch_.grid[0] % launch_.grid[1]);
    g.id[2] = static_cast<u32>(index / launch_.grid[0] / launch_.grid[1]);
    g.hits = memory.hits.data();
    memory.current = nullptr;
    try {
      begin(g, memory);
      if (launch_.checks) begin_workgroup(g);
      with_traps([&] { launch_.checks ? run_waves<true>(g, memory) : run_waves<false>(g, memory); });
    } catch (const std::exception& error) {
      fail(g, memory.current, error.what());
    }
    if (launch_.checks) end_workgroup(g);
  }

  void begin(Workgroup& g, Arena& memory) const {
    const u32 size = launch_.block[0] * launch_.block[1] * launch_.block[2];
    const u64 scratch_bytes = u64{launch_.kernel->private_bytes} * kLanes;
    g.waves.resize((size + kLanes - 1) / kLanes);
    g.lds = memory.lds();
    std::memset(g.lds, static_cast<u8>(kPoison), launch_.lds_bytes);
    u8* scratch = scratch_bytes ? memory.scratch(scratch_bytes * g.waves.size()) : nullptr;
    for (size_t i = 0; i < g.waves.size(); ++i) {
      Wave& w = g.waves[i];
      w.v = memory.file(static_cast<int>(i));
      w.group = &g;
      w.id = static_cast<int>(i);
      w.scratch = scratch ? scratch + i * scratch_bytes : nullptr;
      if (scratch) std::memset(w.scratch, static_cast<u8>(kPoison), scratch_bytes);
      w.checks = nullptr;
      init_wave(w);
    }
  }

  // Rounds over the waves until all have ended. A barrier opens when every wave that has not ended waits at it.
  template <bool Checked>
  void run_waves(Workgroup& g, Arena& memory) {
    Random random{seed_ + 1 + g.id[0] + (u64{g.id[1]} << 20) + (u64{g.id[2]} << 40)};
    int order[kMaxWaves];
    const int n = static_cast<int>(g.waves.size());
    std::iota(order, order + n, 0);
    while (!failed_) {
      if (seed_) shuffle(order, n, random);
      bool running = false;
      for (int i = 0; i < n; ++i) {
        Wave& w = g.waves[order[i]];
        if (w.stop == Stop::ended || w.stop == Stop::barrier) continue;
        memory.current = &w;
        w.stop = Stop::running;
        const u64 budget = seed_ ? 1 + random.next() % 256 : kQuantum;
        w.mode.unusual() ? run_wave<Checked, true>(w, budget) : run_wave<Checked, false>(w, budget);
        running |= w.stop == Stop::running || w.stop == Stop::yield;
      }
      if (running) continue;
      bool waiting = false;
      for (Wave& w : g.waves) waiting |= w.stop == Stop::barrier;
      if (!waiting) return;
      if constexpr (Checked) check_barrier(g);
      for (Wave& w : g.waves) {
        if (w.stop == Stop::barrier) w.stop = Stop::running;
      }
    }
  }

  static void shuffle(int* order, int n, Random& random) {
    for (int i = n - 1; i > 0; --i) std::swap(order[i], order[random.next() % (i + 1)]);
  }

  template <bool Checked, bool UnusualMode>
  void run_wave(Wave& w, u64 budget) const {
    u64* hits = w.group->hits;
    u64 n = 0;
    while (n < budget) {
      const Inst& next = *w.ip;
      ++hits[next.index];
      ++n;
      w.ip = &next + 1;
      const Inst& inst = UnusualMode ? enter_mode(w, next) : next;
      if constexpr (Checked) {
        check_before(w, inst);
        inst.run_checked(w, inst);
        check_after(w, inst);
      } else {
        inst.run(w, inst);
      }
      if constexpr (UnusualMode) leave_mode(w, inst);
      if (w.stop != Stop::running) break;
    }
    w.executed += n;
    if (launch_.instruction_limit && w.executed > launch_.instruction_limit) {
      throw Fault("a wave executed more than " + std::to_string(launch_.instruction_limit) +
                  " instructions: an endless loop, or a wait for another workgroup that never comes");
    }
  }

  // The first failure stops the launch; `current` is the wave that was running.
  void fail(const Workgroup& g, const Wave* current, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failed_.exchange(true)) return;
    Report& r = report_;
    r.check = "launch";
    r.kernel = launch_.kernel->name;
    std::copy(std::begin(g.id), std::end(g.id), r.workgroup);
    char where[160];
    std::snprintf(where, sizeof where, " wg(%u,%u,%u)", g.id[0], g.id[1], g.id[2]);
    r.message = "kernel " + r.kernel + where;
    if (current) {
      const Inst* inst = running_inst(*current);
      r.wave = current->id;
      r.lanes = current->exec();
      r.pc = inst->pc - launch_.kernel->entry;
      r.text = inst->text;
      std::snprintf(where, sizeof where, " wave %d pc 0x%llx: ", r.wave, static_cast<unsigned long long>(r.pc));
      r.message += where + r.text;
    }
    r.message += ": " + why;
  }

  // ip is one past the instruction that failed, unless a jump to a bad place left it there: the same holds.
  const Inst* running_inst(const Wave& w) const {
    const Inst* first = launch_.code->insts.data();
    return w.ip > first ? w.ip - 1 : first;
  }

  // Adds the hits to the counters and clears them. A library has many kernels: most blocks are zero and passed over.
  void count(std::vector<u64>& hits, u64 groups) {
    const std::lock_guard lock(mutex_);
    counted_.workgroups += groups;
    for (size_t first = 0; first < hits.size(); first += kBlock) {
      u64 any = 0;
      for (size_t i = 0; i < kBlock; ++i) any |= hits[first + i];
      if (!any) continue;
      for (size_t i = first; i < std::min(first + kBlock, launch_.code->classes.size()); ++i) {
        counted_.by_class[static_cast<int>(launch_.code->classes[i])] += std::exchange(hits[i], 0);
      }
    }
  }

  const Launch& launch_;
  const u64 seed_, total_;
  u64 stride_ = 1, offset_ = 0;
  std::atomic<u64> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Report report_;
  KernelCounters counted_;
};

struct AllCounters {
  std::mutex mutex;
  std::map<std::string, KernelCounters> by_kernel;
};

AllCounters& all_counters() {
  static AllCounters* instance = new AllCounters;
  return *instance;
}

void add_counters(const Launch& launch, const KernelCounters& counted) {
  AllCounters& all = all_counters();
  const u32 size = launch.block[0] * launch.block[1] * launch.block[2];
  const std::lock_guard lock(all.mutex);
  KernelCounters& k = all.by_kernel[launch.kernel->name];
  ++k.launches;
  k.workgroups += counted.workgroups;
  k.waves += counted.workgroups * ((size + kLanes - 1) / kLanes);
  for (int i = 0; i < kNumClasses; ++i) {
    k.by_class[i] += counted.by_class[i];
    k.wave_instructions += counted.by_class[i];
  }
}

// A launch that is refused before it starts is reported like one that fails.
[[noreturn]] void refuse(const Kernel& kernel, const std::string& why) {
  Report r;
  r.check = "launch";
  r.kernel = kernel.name;
  r.message = "kernel " + kernel.name + ": " + why;
  add_report(r);
  throw Fault(r.message);
}

}  // namespace

void run_kernel(const LaunchRequest& request) {
  const Settings now = settings();
  std::unique_ptr<LaunchState> state;
  try {
    state = std::make_unique<LaunchState>(request);
  } catch (const Fault& fault) {
    refuse(*request.kernel, fault.what());
  }
  if (now.dry) return;
  state->launch.instruction_limit = now.instruction_limit;
  std::shared_ptr<LaunchChecks> checks;
  if (now.checks) checks = make_launch_checks(state->launch, now.checks);
  state->launch.checks = checks.get();
  install_traps();
  Grid grid(state->launch, now.seed);
  try {
    grid.run(num_threads(), request.cooperative);
  } catch (...) {
    add_counters(state->launch, grid.counted());
    throw;
  }
  add_counters(state->launch, grid.counted());
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

const char* class_name(Class cls) {
  constexpr const char* kNames[kNumClasses] = {"salu", "branch", "wait", "barrier", "end", "smem", "valu", "trans",
                                               "mfma", "ds", "global", "flat", "scratch", "mubuf", "other"};
  return kNames[static_cast<int>(cls)];
}

}  // namespace sim
