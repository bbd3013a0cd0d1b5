// SPDX-License-Identifier: MIT
// The run loop. Waves take short turns, as hardware's issue takes them round robin: shipped kernels rewrite LDS behind
// a barrier that slower waves have passed but not left far behind. From time to time, and when all sleep, it looks
// whether they only wait for other workgroups.
#include "run/waves.h"

#include <algorithm>
#include <utility>

#include "isa/mode.h"
#include "load/loader.h"
#include "run/counters.h"

namespace sim {
namespace {

constexpr u64 kShare = 1 << 20;                // instructions of a wave before another workgroup gets its turn
constexpr u64 kStep = 8;                       // … before the next wave of its workgroup

template <bool kObserved, bool kLate>
class Runner {
 public:
  Runner(Slot& slot, u64 quantum, const std::atomic<bool>& failed)
      : slot_(slot), group_(slot.group), limit_(slot.group.launch->instruction_limit), quantum_(quantum),
        failed_(failed) {}

  // Rounds over the waves. A barrier opens when every wave that has not ended waits at it.
  Turn run() {
    for (u64 share = 0, next_look = quantum_; !failed_;) {
      gather();
      if (num_ready_ == 0) {
        if (!open_barrier()) return Turn::ended;
        continue;
      }
      if (kLate) shuffle();
      // A look lets waves go on by small steps only, so under fuzzing only a turn's last round looks.
      const bool last = kLate ? slot_.random.next() % 16 == 0 : share >= kShare;
      if (kLate ? last : share >= next_look) {
        const Turn found = look();
        if (found != Turn::preempted || last) return found;
        next_look = share + quantum_;
        continue;
      }
      // A wave that is alone has nobody to keep close to.
      const u64 step = num_ready_ > 1 ? kStep : next_look - share;
      if (round(step)) return kLate ? Turn::waiting : std::max(look(), Turn::waiting);
      share += step;
    }
    return Turn::preempted;
  }

 private:
  // The waves that can go on.
  void gather() {
    num_ready_ = 0;
    for (Wave& w : group_.waves) {
      if (w.stop != Stop::ended && w.stop != Stop::barrier) ready_[num_ready_++] = &w;
    }
  }

  void shuffle() {
    for (int i = num_ready_ - 1; i > 0; --i) std::swap(ready_[i], ready_[slot_.random.next() % (i + 1)]);
  }

  // Every wave that can go on does, by `step` instructions or a random number. True when all of them sleep now.
  bool round(u64 step) {
    bool sleeping = true;
    for (int i = 0; i < num_ready_; ++i) {
      Wave& w = *ready_[i];
      go_on(w, kLate ? 1 + slot_.random.next() % 256 : step);
      sleeping &= sleeps(w);
    }
    return sleeping;
  }

  // Watches all waves for loops. Turn::preempted: one of them does not wait.
  Turn look() {
    std::vector<SpinWatch>& watches = slot_.watches;
    gather();
    for (int i = 0; i < num_ready_; ++i) watches[i].begin(*ready_[i]);
    for (bool decided = false; !decided;) {
      bool waiting = decided = true;
      for (int i = 0; i < num_ready_; ++i) {
        waiting &= watch(*ready_[i], watches[i]);
        decided &= watches[i].decided();
      }
      if (!waiting) return Turn::preempted;
    }
    const auto spins = [](const SpinWatch& watch) { return watch.spins(); };
    return std::all_of(watches.begin(), watches.begin() + num_ready_, spins) ? Turn::stuck : Turn::waiting;
  }

  // A step under watch. False when the wave is seen not to wait.
  bool watch(Wave& w, SpinWatch& watch) {
    for (u64 n = 0; n < kStep; ++n) {
      go_on(w, 1);
      if (w.stop == Stop::ended || w.stop == Stop::barrier) return false;
      watch.slept |= sleeps(w);
      watch.step(w);
    }
    return !watch.decided() || watch.spins() || watch.slept;
  }

  void go_on(Wave& w, u64 budget) {
    slot_.current = &w;
    w.stop = Stop::running;
    run_wave(w, budget);
  }

  // A wave that reads a clock (isa/smem.cpp) or sets its mode (isa/sopp.cpp) pauses too, but it does not wait.
  static bool sleeps(const Wave& w) { return w.stop == Stop::yield && (w.ip - 1)->op->spec.cls == Class::other; }

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
      if (kUnusualMode && is_skipped(w, next)) continue;
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

  Slot& slot_;
  Workgroup& group_;
  const u64 limit_, quantum_;
  const std::atomic<bool>& failed_;
  Wave* ready_[kMaxWaves];
  int num_ready_ = 0;
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
