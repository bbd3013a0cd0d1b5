// SPDX-License-Identifier: MIT
// The run loop. It looks at a wave that has used up its share or sleeps: a wave that comes back to the same instruction
// with the same registers waits for memory that others write, and will wait for ever if they wait too.
#include "run/waves.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "isa/mode.h"
#include "load/loader.h"
#include "run/counters.h"

namespace sim {
namespace {

constexpr u64 kShare = 1 << 20;                // instructions of a wave before another workgroup gets its turn
constexpr int kLongestSpin = 512;              // instructions of a waiting loop

template <bool kObserved, bool kLate>
class Runner {
 public:
  Runner(Slot& slot, u64 quantum, const std::atomic<bool>& failed)
      : slot_(slot), group_(slot.group), limit_(slot.group.launch->instruction_limit), quantum_(quantum),
        failed_(failed) {}

  // Rounds over the waves. A barrier opens when every wave that has not ended waits at it.
  Turn run() {
    const int n = static_cast<int>(group_.waves.size());
    int order[kMaxWaves];
    std::iota(order, order + n, 0);
    u64 share = kShare;
    while (!failed_) {
      if (kLate) shuffle(order, n);
      // A look for loops leaves other waves less room in between, so under fuzzing only a turn's last round looks.
      const bool last = kLate ? slot_.random.next() % 16 == 0 : share <= quantum_, looks = !kLate || last;
      bool running = false, waiting = true, stuck = true;
      for (int i = 0; i < n; ++i) {
        Wave& w = group_.waves[order[i]];
        if (w.stop == Stop::ended || w.stop == Stop::barrier) continue;
        slot_.current = &w;
        w.stop = Stop::running;
        run_wave(w, kLate ? 1 + slot_.random.next() % 256 : quantum_);
        if (w.stop != Stop::running && w.stop != Stop::yield) {
          waiting = false;
          continue;
        }
        const bool sleeps = w.stop == Stop::yield && !reads_clock(w);
        const bool spins = looks && this->spins(w);
        running |= w.stop != Stop::ended && w.stop != Stop::barrier;
        waiting &= sleeps || spins;
        stuck &= spins;
      }
      if (running) {
        if (waiting) return stuck ? Turn::stuck : Turn::waiting;
        if (last) return Turn::preempted;
        share -= quantum_;
      } else if (!open_barrier()) {
        return Turn::ended;
      }
    }
    return Turn::preempted;
  }

 private:
  void shuffle(int* order, int n) {
    for (int i = n - 1; i > 0; --i) std::swap(order[i], order[slot_.random.next() % (i + 1)]);
  }

  bool open_barrier() {
    bool waiting = false;
    for (Wave& w : group_.waves) waiting |= w.stop == Stop::barrier;
    if (!waiting) return false;
    if constexpr (kObserved) group_.observer->barrier();
    for (Wave& w : group_.waves) {
      if (w.stop == Stop::barrier) w.stop = Stop::running;
    }
    return true;
  }

  void run_wave(Wave& w, u64 budget) { w.mode.unusual() ? run_wave<true>(w, budget) : run_wave<false>(w, budget); }

  template <bool kUnusualMode>
  void run_wave(Wave& w, u64 budget) {
    HitCounter counter(group_.hits);
    Observer* const observer = group_.observer.get();
    u64 n = 0;
    while (n < budget) {
      const Inst& next = *w.ip;
      counter.before(w, next);
      ++n;
      w.ip = &next + 1;
      const Inst& inst = kUnusualMode ? enter_mode(w, next) : next;
      if constexpr (kLate) slot_.late[w.id].before(w, inst);
      if constexpr (kObserved) {
        observer->before(w, inst);
        inst.run_observed(w, inst);
        observer->after(w, inst);
      } else {
        inst.run(w, inst);
      }
      if constexpr (kUnusualMode) leave_mode(w, inst);
      if constexpr (kLate) slot_.late[w.id].after(w, inst);
      if (w.stop != Stop::running) break;
    }
    w.executed += n;
    if (limit_ && w.executed > limit_) {
      throw Fault("a wave executed more than " + std::to_string(limit_) +
                  " instructions: an endless loop, or a wait for another workgroup that never comes");
    }
  }

  // A wave that reads a clock pauses too (isa/smem.cpp), but it does not wait.
  static bool reads_clock(const Wave& w) {
    const Inst& last = *(w.ip - 1);
    return last.op && last.op->spec.cls == Class::smem;
  }

  // True when the wave, running on, comes back to where it is with every register as it is. Most loops count in a
  // scalar register, so these are compared first.
  bool spins(Wave& w) {
    if (!returns(w)) return false;
    const Kernel& k = *group_.launch->kernel;
    const size_t arch = k.arch_rows() * kLanes, accum = k.accum_rows() * kLanes;
    std::vector<u32>& saved = slot_.saved;
    saved.resize(arch + accum);
    std::copy_n(&w.v[0][0], arch, saved.data());
    std::copy_n(&w.v[kFirstAgpr][0], accum, saved.data() + arch);
    return returns(w) && std::equal(saved.begin(), saved.begin() + static_cast<i64>(arch), &w.v[0][0]) &&
           std::equal(saved.begin() + static_cast<i64>(arch), saved.end(), &w.v[kFirstAgpr][0]);
  }

  bool returns(Wave& w) {
    const Inst* at = w.ip;
    u32 scalars[kNumScalars];
    std::copy_n(w.s, kNumScalars, scalars);
    const bool scc = w.scc;
    for (int n = 0; n < kLongestSpin; ++n) {
      w.stop = Stop::running;
      run_wave(w, 1);
      if (w.stop == Stop::ended || w.stop == Stop::barrier) return false;
      if (w.ip == at) return w.scc == scc && std::equal(w.s, w.s + kNumScalars, scalars);
    }
    return false;
  }

  Slot& slot_;
  Workgroup& group_;
  const u64 limit_, quantum_;
  const std::atomic<bool>& failed_;
};

}  // namespace

Turn run_waves(Slot& slot, u64 quantum, const std::atomic<bool>& failed) {
  if (slot.group.observer) {
    return slot.fuzzed() ? Runner<true, true>(slot, quantum, failed).run()
                         : Runner<true, false>(slot, quantum, failed).run();
  }
  return slot.fuzzed() ? Runner<false, true>(slot, quantum, failed).run()
                       : Runner<false, false>(slot, quantum, failed).run();
}

}  // namespace sim
