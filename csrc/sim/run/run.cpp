// SPDX-License-Identifier: MIT
// Grid → workgroups on worker threads: who runs next, forward progress between workgroups, deadlocks, counters.
#include "run/run.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <mutex>
#include <numeric>
#include <utility>

#include "checks/checks.h"
#include "report.h"
#include "run/launch_state.h"
#include "run/traps.h"
#include "run/waves.h"
#include "run/workers.h"
#include "settings.h"

namespace sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr u64 kQuantum = 1 << 16;              // instructions of a wave before another gets its turn
constexpr u64 kSpinQuantum = 1 << 11;          // … in launches whose workgroups wait for one another
constexpr u64 kFuzzedResidents = 8;            // workgroups that fuzzing interleaves, unless they need more
constexpr u64 kBusyResidents = 64;             // workgroups that give way though they do not wait, in memory at once
constexpr int kStuckRounds = 3;
constexpr auto kStuckTime = std::chrono::seconds(1);   // other threads of the process may still write memory
constexpr u32 kMxcsrDefault = 0x1f80;          // nearest-even, denormals kept, exceptions masked
constexpr size_t kBlock = 16;                  // hit counters looked at together

// One thread's part of a launch: the workgroups that it has started and not finished. The first slot outlives launches.
struct Worker {
  std::vector<u64> hits;
  std::vector<std::unique_ptr<Slot>> free;
  std::deque<std::unique_ptr<Slot>> resident;  // the one that has waited longest first
  u64 stuck_turns = 0, stuck_since = 0;        // turns in a row without progress; the launch's progress at the first
  u64 voted = ~u64{0};                         // progress at which this worker found itself stuck
  u64 turns = 0;                               // since it started or ended a workgroup
  Turn last = Turn::ended;

  std::unique_ptr<Slot> take_free() {
    if (free.empty()) return std::make_unique<Slot>();
    std::unique_ptr<Slot> slot = std::move(free.back());
    free.pop_back();
    return slot;
  }
};

Worker& worker() {
  thread_local Worker instance;
  return instance;
}

// One grid being executed by several workers. A workgroup runs to its end on the worker that took it; when it gives
// way, the worker starts another or returns to one that gave way before.
class Grid {
 public:
  Grid(const Launch& launch, u64 seed, u64 resident_limit)
      : launch_(launch), seed_(seed), total_(u64{launch.grid[0]} * launch.grid[1] * launch.grid[2]),
        limit_(resident_limit) {
    // Under fuzzing the order of workgroups is i → a*i + b mod n, with a coprime to n.
    Random random{seed};
    if (seed == 0) return;
    do {
      stride_ = random.next() % total_ + 1;
    } while (std::gcd(stride_, total_) != 1);
    offset_ = random.next() % total_;
  }

  void run(u32 threads) {
    const auto start = Clock::now();
    work(true);
    const auto first = Clock::now() - start;
    // Waking a thread costs some 20 us: worth it only when enough work is left.
    const bool share = threads > 1 && first * static_cast<i64>(total_ - 1) > std::chrono::microseconds(100);
    if (share && !failed_) run_on_workers(std::min<u64>(threads, total_), [this] { work(false); });
    else work(false);
    if (!failed_) return;
    if (deadlock_) describe_deadlock();
    add_report(report_);
    throw Fault(report_.message);
  }

  KernelCounters counted() const { return counted_; }

 private:
  // Turns until nothing is left for this worker, or only one.
  void work(bool one_turn) {
    const u32 saved = _mm_getcsr();
    _mm_setcsr(kMxcsrDefault);
    Worker& me = worker();
    // count() leaves every entry zero; whole blocks only, so that it needs no remainder loop.
    me.hits.resize((launch_.code->insts.size() + kBlock - 1) / kBlock * kBlock);
    Random random{seed_ ^ 0x5eed};
    u64 started = 0;
    ++workers_;
    while (!failed_) {
      std::unique_ptr<Slot> slot = next(me, random, started);
      if (!slot) break;
      take_turn(me, std::move(slot));
      if (one_turn) break;
    }
    --workers_;
    if (!one_turn) clear(me);
    _mm_setcsr(saved);
    count(me.hits, started);
  }

  // The workgroup whose turn it is: a new one if the last gave way or none waits; null when there is nothing to do.
  std::unique_ptr<Slot> next(Worker& me, Random& random, u64& started) {
    // Those that fuzzing interleaves may need others to go on: after some turns without an end they get them.
    const bool needs_more = me.turns > 2 * me.resident.size();
    const u64 limit = seed_ && !needs_more ? std::min(limit_, kFuzzedResidents) : limit_;
    if (me.resident.empty() || (resident_ < limit && wants_new(me, seed_ ? &random : nullptr))) {
      const u64 index = next_.fetch_add(1);
      if (index < total_) {
        ++resident_;
        ++started;
        me.turns = 0;
        std::unique_ptr<Slot> slot = me.take_free();
        begin(*slot, (index * stride_ + offset_) % total_, me);
        return slot;
      }
    }
    if (me.resident.empty()) return nullptr;
    if (seed_ && me.stuck_turns == 0) std::swap(me.resident.front(), me.resident[random.next() % me.resident.size()]);
    std::unique_ptr<Slot> slot = std::move(me.resident.front());
    me.resident.pop_front();
    return slot;
  }

  bool wants_new(const Worker& me, Random* random) const {
    if (random) return random->next() % 2 == 0;
    if (me.last != Turn::preempted) return me.last != Turn::ended;
    return resident_ < kBusyResidents || me.turns > 4 * me.resident.size();
  }

  void begin(Slot& slot, u64 index, Worker& me) {
    try {
      slot.begin(launch_, index, seed_, me.hits.data());
      if (launch_.checks) begin_workgroup(slot.group);
    } catch (const std::exception& error) {
      fail(slot, error.what());
    }
  }

  void take_turn(Worker& me, std::unique_ptr<Slot> slot) {
    Turn turn = Turn::preempted;
    try {
      with_traps([&] { turn = run_waves(*slot, quantum_, failed_); });
    } catch (const std::exception& error) {
      fail(*slot, error.what());
    }
    me.last = turn;
    ++me.turns;
    if (turn == Turn::ended) {
      end(me, std::move(slot));
    } else {
      if (turn != Turn::preempted) quantum_ = kSpinQuantum;
      me.resident.push_back(std::move(slot));
    }
    if (turn == Turn::stuck) return stuck(me);
    ++progress_;
    me.stuck_turns = 0;
  }

  void end(Worker& me, std::unique_ptr<Slot> slot) {
    if (slot->group.checks) end_workgroup(slot->group);
    me.turns = 0;
    --resident_;
    if (me.free.empty()) me.free.push_back(std::move(slot));
  }

  void clear(Worker& me) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Slot>& slot : me.resident) {
      if (deadlock_) list_waiting(slot->group);
      end(me, std::move(slot));
    }
    me.resident.clear();
    me.stuck_turns = 0;
    me.voted = ~u64{0};
  }

  // A workgroup can go on only if somebody else writes memory. When that is so for all that this worker has, and it may
  // start no more, it votes; when every worker has voted, nobody has made progress since, and it stays so for a while,
  // the launch is deadlocked.
  void stuck(Worker& me) {
    if (me.stuck_turns++ == 0) me.stuck_since = progress_;
    const bool can_start = next_ < total_ && resident_ < limit_;
    if (can_start || me.stuck_turns < kStuckRounds * me.resident.size()) return;
    {
      const std::lock_guard lock(mutex_);
      const u64 progress = progress_;
      const bool valid = me.stuck_since == progress;
      me.stuck_turns = 0;
      if (!valid) return;
      if (vote_ != progress) {
        vote_ = progress;
        voters_ = 0;
        first_vote_ = Clock::now();
      }
      if (std::exchange(me.voted, progress) != progress) ++voters_;
      if (voters_ >= workers_ && Clock::now() - first_vote_ > kStuckTime && !failed_.exchange(true)) deadlock_ = true;
    }
    sched_yield();
  }

  // The first failure stops the launch; `current` is the wave that was running.
  void fail(const Slot& slot, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failed_.exchange(true)) return;
    const Workgroup& g = slot.group;
    const Wave* current = slot.current;
    Report& r = report_;
    r.check = "launch";
    r.kernel = launch_.kernel->name;
    std::copy(std::begin(g.id), std::end(g.id), r.workgroup);
    char where[48];
    std::snprintf(where, sizeof where, " wg(%u,%u,%u)", g.id[0], g.id[1], g.id[2]);
    r.message = "kernel " + r.kernel + where;
    if (current) {
      const Inst* inst = running_inst(*current);
      r.wave = current->id;
      r.lanes = current->exec();
      r.pc = inst->pc - launch_.kernel->entry;
      r.text = inst->text;
      r.source = launch_.code->source_of(inst->pc);
      r.message += " wave " + std::to_string(r.wave) + " " + place_text(r.pc, r.source, r.text);
    }
    r.message += ": " + why;
  }

  // ip is one past the instruction that failed, unless a jump to a bad place left it there: the same holds.
  const Inst* running_inst(const Wave& w) const {
    const Inst* first = launch_.code->insts.data();
    return w.ip > first ? w.ip - 1 : first;
  }

  // Notes where the waves of a deadlocked workgroup are.
  void list_waiting(const Workgroup& g) {
    for (const Wave& w : g.waves) {
      if (w.stop == Stop::ended) continue;
      const Inst* inst = running_inst(w);
      char where[64];
      std::snprintf(where, sizeof where, "wg(%u,%u,%u) wave %d", g.id[0], g.id[1], g.id[2], w.id);
      waiting_[{inst->pc, w.stop == Stop::barrier}].push_back(where);
    }
  }

  void describe_deadlock() {
    constexpr size_t kNamed = 8;
    Report& r = report_;
    r.check = "launch";
    r.kernel = launch_.kernel->name;
    r.message = "kernel " + r.kernel + ": deadlock, or an endless loop: no wave can go on. Waiting:";
    for (const auto& [place, waves] : waiting_) {
      const Inst* inst = launch_.code->at(place.first);
      const u64 pc = place.first - launch_.kernel->entry;
      const std::string source = launch_.code->source_of(place.first);
      if (r.text.empty()) {
        r.pc = pc;
        r.text = inst->text;
        r.source = source;
      }
      r.message += std::string("\n  ") + (place.second ? "at the barrier" : "in the loop") + " at " +
                   place_text(pc, source, inst->text) + ": ";
      for (size_t i = 0; i < std::min(waves.size(), kNamed); ++i) r.message += (i ? ", " : "") + waves[i];
      if (waves.size() > kNamed) r.message += " and " + std::to_string(waves.size() - kNamed) + " more";
    }
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
        const Class cls = launch_.code->classes[i];
        const bool is_access =
            cls == Class::global || cls == Class::flat || cls == Class::scratch || cls == Class::mubuf;
        if (is_access && hits[i]) counted_.accesses[launch_.code->insts[i].op->name] += hits[i];
        counted_.by_class[static_cast<int>(cls)] += std::exchange(hits[i], 0);
      }
    }
  }

  const Launch& launch_;
  const u64 seed_, total_, limit_;             // limit_: workgroups resident at once
  u64 stride_ = 1, offset_ = 0;
  std::atomic<u64> next_{0}, resident_{0}, progress_{0}, quantum_{kQuantum};
  std::atomic<u32> workers_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  u64 vote_ = ~u64{0};                         // the progress that workers vote about: it is the last
  u32 voters_ = 0;
  Clock::time_point first_vote_;
  bool deadlock_ = false;
  std::map<std::pair<u64, bool>, std::vector<std::string>> waiting_;   // pc, at a barrier → waves
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
  for (const auto& [name, count] : counted.accesses) k.accesses[name] += count;
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

std::unique_ptr<LaunchState> make_state(const LaunchRequest& request) {
  try {
    return std::make_unique<LaunchState>(request);
  } catch (const Fault& fault) {
    refuse(*request.kernel, fault.what());
  }
}

}  // namespace

void check_launch(const LaunchRequest& request) { make_state(request); }

void run_kernel(const LaunchRequest& request) {
  const Settings now = settings();
  if (!now.error.empty()) refuse(*request.kernel, now.error);
  const std::unique_ptr<LaunchState> state = make_state(request);
  if (now.dry) return;
  state->launch.instruction_limit = now.instruction_limit;
  std::shared_ptr<LaunchChecks> checks;
  if (now.checks) checks = make_launch_checks(state->launch, now.checks);
  state->launch.checks = checks.get();
  u64 limit = 0;
  try {
    limit = resident_limit(state->launch, request.cooperative);
  } catch (const Fault& fault) {
    refuse(*request.kernel, fault.what());
  }
  install_traps();
  Grid grid(state->launch, now.seed, limit);
  try {
    // Global races are judged in the order of execution, which is known only on one thread.
    grid.run(now.checks & kCheckGlobalRace ? 1 : num_threads());
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
