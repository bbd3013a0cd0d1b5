// SPDX-License-Identifier: MIT
// A wave issues in order. When its next instruction can issue is known as soon as the one before has issued, except at
// a barrier: memory tells at issue when it will have answered. So each SIMD looks at its waves only when one of them
// can go on. At one time a SIMD issues at most one instruction to each unit, of the wave with the highest priority,
// then of the one that has waited longest: hardware takes them in turns, as shipped kernels need that rely on waves
// which keep close together.
#include "timing/resident.h"

#include <bit>
#include <queue>
#include <tuple>

namespace sim::timing {
namespace {

constexpr u32 kBankRowBytes = 128;             // of all banks in a cycle

// Matrix operations and vector arithmetic share the port that issues them.
size_t port_of(Unit unit) { return static_cast<size_t>(unit == Unit::mfma ? Unit::valu : unit); }

struct Chance {
  double at;
  Stall why;
};

class Engine {
 public:
  Engine(const Parameters& p, const EngineShape& shape, const Code& code, const std::vector<IssueFacts>& facts,
         const std::vector<WorkgroupTrace>& traces)
      : p_(p), code_(code), facts_(facts), traces_(traces), memory_(p, shape.xcds, shape.active),
        cus_(shape.cus * shape.xcds, Cu{{}, {}, Queue(p.vmem_queue), Queue(p.lds_queue), shape.groups_per_cu}),
        simds_(cus_.size() * p.simds), groups_(traces.size()), waiting_(shape.xcds), meetings_(shape.meetings),
        places_(meetings_ ? meetings_->size() : 0) {
    result_.insts.resize(code.insts.size());
    result_.groups.resize(traces.size());
    timeline_events_ = shape.timeline_events;
    u64 total = 0;
    for (const WorkgroupTrace& group : traces) {
      for (const WaveTrace& wave : group.waves) total += wave.code.size();
    }
    const u64 of_cu = total / cus_.size();
    timeline_from_ = of_cu > 2 * timeline_events_ ? of_cu * 2 / 5 : 0;
    for (u32 n = 0; n < traces.size(); ++n) waiting_[traces[n].number % shape.xcds].push_back(n);
    for (u32 round = 0; round < shape.groups_per_cu; ++round) {
      for (u32 cu = 0; cu < cus_.size(); ++cu) dispatch(cu, 0);
    }
  }

  EngineResult run() {
    while (!events_.empty() || give_up()) {
      const auto [at, simd] = events_.top();
      events_.pop();
      if (simds_[simd].next != at) continue;   // it has been called for an earlier time
      now_ = at;
      step(simd, at);
    }
    for (const Cu& cu : cus_) {
      result_.lds_busy += cu.banks.busy();
      result_.address_busy += cu.address.busy();
    }
    result_.l2_busy = memory_.l2_busy();
    result_.beyond_busy = memory_.beyond_busy();
    for (const InstTime& inst : result_.insts) result_.traffic.add(inst.traffic);
    return std::move(result_);
  }

 private:
  void wake(u32 simd, double at) {
    if (at >= simds_[simd].next) return;
    simds_[simd].next = at;
    events_.push({at, simd});
  }

  /// The SIMD at which a workgroup's waves begin to go round the unit: the one with the fewest waves. The start does
  /// not matter to a multiple of the SIMDs' number: every SIMD then gets equally many.
  u32 first_simd(u32 cu, size_t waves) const {
    if (waves % p_.simds == 0) return 0;
    const auto simds = simds_.begin() + cu * p_.simds;
    const auto fewer = [](const Simd& a, const Simd& b) { return a.waves.size() < b.waves.size(); };
    return static_cast<u32>(std::min_element(simds, simds + p_.simds, fewer) - simds);
  }

  void dispatch(u32 cu, double at) {
    std::deque<u32>& waiting = waiting_[cu / p_.cus];
    if (waiting.empty() || cus_[cu].free_groups == 0) return;
    --cus_[cu].free_groups;
    const u32 number = waiting.front();
    waiting.pop_front();
    Group& group = groups_[number];
    result_.groups[number].begin = at;
    const u32 first = first_simd(cu, traces_[number].waves.size());
    for (const WaveTrace& trace : traces_[number].waves) {
      const u32 id = static_cast<u32>(waves_.size());
      const u32 simd = cu * p_.simds + (first + group.waves) % p_.simds;
      WaveRun& w = waves_.emplace_back();
      w.trace = &trace;
      w.cu = cu, w.simd = simd, w.group = number, w.age = id;
      w.ready = w.base = at;
      w.slot = free_slot(simds_[simd]);
      simds_[simd].waves.push_back(id);
      if (cu == 0 && timeline_events_) {
        w.life = static_cast<u32>(result_.waves.size());
        result_.waves.push_back({id, simd, w.slot, traces_[number].number, at, at});
      }
      group.members.push_back(id);
      ++group.waves;
      prepare(w);
      wake(simd, at);
    }
  }

  u32 free_slot(const Simd& simd) const {
    for (u32 slot = 0;; ++slot) {
      const auto takes = [&](u32 id) { return waves_[id].slot == slot; };
      if (std::none_of(simd.waves.begin(), simd.waves.end(), takes)) return slot;
    }
  }

  // The instruction that comes next has to be fetched.
  void prepare(WaveRun& w) {
    if (w.at >= w.trace->code.size()) return;
    const u64 line = (code_.insts[w.trace->code[w.at] & kIndexBits].pc - code_.text_begin) / 128;
    if (line == w.fetched) return;
    const double there = memory_.fetch(w.cu, w.ready, line);
    w.fetched = line;
    if (there <= w.ready) return;
    w.ready = there;
    w.why = Stall::fetch;
  }

  void step(u32 number, double now) {
    Simd& simd = simds_[number];
    simd.next = kNever;
    double next = kNever;
    std::array<WaveRun*, kNumUnits> best{};
    for (const u32 id : simd.waves) {
      WaveRun& w = waves_[id];
      if (w.busy_at_base < 0 && w.base <= now) w.busy_at_base = simd.busy_before(w.base);
      if (w.opened > 0 && w.busy_at_opened < 0 && w.opened <= now) w.busy_at_opened = simd.busy_before(w.opened);
      const Chance chance = earliest(w, simd);
      if (chance.at > now) {
        next = std::min(next, chance.at);
        continue;
      }
      const IssueFacts& f = facts_[w.trace->code[w.at] & kIndexBits];
      if (f.unit >= Unit::internal) {
        ready_.push_back(id);
        continue;
      }
      WaveRun*& chosen = best[port_of(f.unit)];
      const auto before = [](const WaveRun& a, const WaveRun& b) {
        return std::tuple(-a.priority, a.base, a.age) < std::tuple(-b.priority, b.base, b.age);
      };
      if (chosen) next = std::min(next, now + 1);
      if (!chosen || before(w, *chosen)) chosen = &w;
    }
    for (WaveRun* w : best) {
      if (w) issue(*w, simd, now);
    }
    for (const u32 id : ready_) issue(waves_[id], simd, now);
    ready_.clear();
    for (const u32 id : simd.waves) {          // waves of what issued now, and those that it lets wait longer
      next = std::min(next, std::max(earliest(waves_[id], simd).at, now + 1));
    }
    if (next < kNever) wake(number, next);
  }

  // When registers that a matrix operation writes can be read.
  double results_ready(const WaveRun& w, const IssueFacts& f, double at) const {
    if (w.last_result <= at) return at;
    for (const Result& r : w.results) {
      if (r.ready <= at) continue;
      for (int k = 0; k < 4; ++k) {
        const auto& s = f.sources[k];
        const u32 end = s.first + s.count, result_end = r.registers.first + r.registers.count;
        if (s.count == 0 || s.first >= result_end || r.registers.first >= end) continue;
        // The sum goes straight into the next one: it need only be started in time.
        const bool same_sum = f.unit == Unit::mfma && s.first == r.registers.first && end == result_end;
        at = std::max(at, same_sum ? r.pipe_end : r.ready);
      }
    }
    return at;
  }

  Chance earliest(const WaveRun& w, const Simd& simd) const {
    if (w.at >= w.trace->code.size()) return {kNever, Stall::none};
    const IssueFacts& f = facts_[w.trace->code[w.at] & kIndexBits];
    Chance c{w.ready, w.why};
    const auto not_before = [&](double at, Stall why) {
      if (at > c.at) c = {at, why};
    };
    switch (f.unit) {
      case Unit::valu:
        not_before(simd.port[port_of(f.unit)], Stall::valu);
        not_before(f.packed ? simd.mfma_free + (simd.mfma_free > 0 ? p_.packed_after_mfma_clk : 0) : simd.valu_blocked,
                   Stall::mfma);
        break;
      case Unit::mfma:
        not_before(simd.port[port_of(f.unit)], Stall::valu);
        not_before(simd.mfma_free, Stall::mfma);
        break;
      case Unit::vmem:
        not_before(simd.port[port_of(f.unit)], Stall::port);
        not_before(cus_[w.cu].vmem.open(), Stall::memory_queue);
        not_before(w.vm.until(62), Stall::vmcnt);
        break;
      case Unit::lds:
        not_before(simd.port[port_of(f.unit)], Stall::port);
        not_before(cus_[w.cu].lds.open(), Stall::lds_queue);
        not_before(w.lgkm.until(15), Stall::lgkmcnt);
        break;
      case Unit::salu:
      case Unit::smem:
      case Unit::branch: not_before(simd.port[port_of(f.unit)], Stall::port); break;
      case Unit::wait:
        if (f.vmcnt < 63) not_before(w.vm.until(f.vmcnt), Stall::vmcnt);
        if (f.lgkmcnt < 15) not_before(w.lgkm.until(f.lgkmcnt), Stall::lgkmcnt);
        break;
      default: break;
    }
    if (f.unit <= Unit::lds) not_before(results_ready(w, f, c.at), Stall::result);
    return c;
  }

  // The payload of the next instruction behind its lines.
  const u64* behind_lines(const WaveRun& w) const {
    const u64* const payload = w.trace->payload.data() + w.payload;
    return payload + 1 + std::bit_cast<GlobalHeader>(*payload).lines;
  }

  // Whether what the next instruction has to see of other workgroups is not there at `now`. The wave then looks again
  // and again, and goes on at the look that finds it: half of its loop after that was there, on average.
  bool waits(WaveRun& w, u32 word, double now) {
    const u64* at = behind_lines(w);
    double there = 0;
    u32 clk = 0;
    const auto is_open = [&](u64 one, u32 writes) {
      Place& place = places_[one >> 32];
      if (place.arrived < writes) {
        park(place, w, writes, clk);
        return true;
      }
      there = std::max(there, place.since);
      return false;
    };
    if (word & kWaits) {
      clk = static_cast<u32>(*at);
      const u64* const end = at + 1 + (*at >> 32);
      while (++at != end) {
        if (is_open(*at, static_cast<u32>(*at) >> 1)) return true;
      }
    }
    if (word & kTells) {
      for (const u64 *one = at + 1, *end = one + *at; one != end; ++one) {
        const u32 number = static_cast<u32>(*one) >> 1;
        const std::vector<u32>& ends = (*meetings_)[*one >> 32];
        if (!(*one & 1) || !std::binary_search(ends.begin(), ends.end(), number)) continue;
        if (is_open(*one, number - 1)) return true;
      }
    }
    if (there <= now + one_way()) return false;
    resume(w, there, clk, now);
    return true;
  }

  double one_way() const { return p_.l2_latency_clk / 2.0; }

  void resume(WaveRun& w, double there, u32 clk, double now) {
    const double pass = clk + p_.l2_latency_clk + p_.bypass_clk;
    w.ready = std::max(there - one_way() + pass / 2, now + 1);
    w.why = Stall::meeting;
  }

  void park(Place& place, WaveRun& w, u32 writes, u32 clk) {
    place.waiters.push_back({static_cast<u32>(w.age), writes, clk});
    w.ready = kNever;
    w.why = Stall::meeting;
    ++result_.met;
  }

  // A write of a place has arrived where others see it. What has seen several saw all before the last.
  void arrive_at(u64 one, double at, double now) {
    Place& place = places_[one >> 32];
    const u32 number = static_cast<u32>(one) >> 1;
    if (place.writes.size() < number) place.writes.resize(number, kNever);
    place.writes[number - 1] = at;
    const u32 before = place.arrived;
    for (; place.arrived < place.writes.size() && place.writes[place.arrived] != kNever; ++place.arrived) {
      place.since = std::max(place.since, place.writes[place.arrived]);
    }
    if (place.arrived == before) return;
    std::erase_if(place.waiters, [&](const Waiter& waiter) {
      if (waiter.writes > place.arrived) return false;
      WaveRun& w = waves_[waiter.wave];
      resume(w, place.since, waiter.clk, now);
      wake(w.simd, w.ready);
      return true;
    });
  }

  // Nothing goes on, though waves wait for others: from now on none does. True when there were such waves.
  bool give_up() {
    if (!meetings_) return false;
    meetings_ = nullptr;
    for (Place& place : places_) {
      for (const Waiter& waiter : place.waiters) {
        WaveRun& w = waves_[waiter.wave];
        w.ready = now_ + 1;
        wake(w.simd, w.ready);
        ++result_.unmet;
      }
      place.waiters.clear();
    }
    return !events_.empty();
  }

  void issue(WaveRun& w, Simd& simd, double now) {
    const u32 word = w.trace->code[w.at], index = word & kIndexBits;
    const IssueFacts& f = facts_[index];
    if (meetings_ && word & (kWaits | kTells) && waits(w, word, now)) return;
    InstTime& time = result_.insts[index];
    const Chance why = earliest(w, simd);
    if (w.opened > 0) {
      InstTime& barrier = result_.insts[w.barrier];
      barrier.stall[static_cast<size_t>(Stall::barrier)] += w.opened - w.base;
      barrier.covered += w.busy_at_opened - w.busy_at_base;
    }
    const double since = std::max(w.base, w.opened);
    const Stall reason = why.why == Stall::none || why.why == Stall::barrier ? Stall::port : why.why;
    if (now > since) {
      time.stall[static_cast<size_t>(reason)] += now - since;
      time.covered += simd.busy_before(now) - (w.opened > 0 ? w.busy_at_opened : w.busy_at_base);
    }
    if (f.unit == Unit::wait) retire(w, f, index, now);
    ++time.issued;
    ++result_.issued;
    // A wait that had to wait costs no more than that: the next instruction stands ready.
    double go_on = f.unit == Unit::wait && now > w.base ? now : now + f.wave_clk;
    if (word & kTaken) go_on += p_.branch_taken_clk;
    simd.port[port_of(f.unit)] = now + f.port_clk;
    memory_.account(time.traffic);
    unit_from_ = now, unit_until_ = now + f.port_clk;
    const double done = execute(w, simd, f, word, now);
    if (done > now) time.latency += done - now;
    if (w.cu == 0 && timeline_seen_++ >= timeline_from_ && result_.timeline.size() < timeline_events_) {
      const Event event{static_cast<u32>(w.age), index, reason, since, now, go_on, unit_from_, unit_until_, done};
      if (f.unit == Unit::barrier) w.barrier_event = event;
      else result_.timeline.push_back(event);
      w.tells_barrier = f.unit == Unit::barrier;
    }
    if (f.priority != 0xff) w.priority = f.priority;
    time.busy += go_on - now;
    ++w.at;
    w.base = w.ready = go_on;
    w.busy_at_base = w.busy_at_opened = -1;
    w.opened = 0;
    w.why = Stall::none;
    if (f.unit == Unit::barrier) {
      w.barrier = index;
      return arrive(w, now);
    }
    if (f.unit == Unit::end || w.at >= w.trace->code.size()) return end(w, go_on);
    prepare(w);
  }

  // A wait that the wave passes: what it has retired, and how long it waited for each.
  void retire(WaveRun& w, const IssueFacts& f, u32 index, double now) {
    std::vector<Retired>& all = result_.insts[index].retired;
    const auto tell = [&](const Outstanding::Operation& one) {
      if (one.latency == 0) return;
      auto of = std::find_if(all.begin(), all.end(), [&](const Retired& r) { return r.inst == one.inst; });
      if (of == all.end()) of = all.insert(all.end(), Retired{one.inst});
      const double exposed = std::clamp(std::min(one.done, now) - w.base, 0.0, one.latency);
      ++of->times;
      of->exposed += exposed;
      result_.insts[one.inst].exposed += exposed;
    };
    if (f.vmcnt < 63) w.vm.retire(f.vmcnt, tell);
    if (f.lgkmcnt < 15) w.lgkm.retire(f.lgkmcnt, tell);
  }

  // Occupies the units of the instruction. Returns the time at which memory has answered, else 0.
  double execute(WaveRun& w, Simd& simd, const IssueFacts& f, u32 word, double now) {
    const u64* payload = w.trace->payload.data() + w.payload;
    switch (f.unit) {
      case Unit::valu:
        result_.valu_busy += f.port_clk;
        simd.work(now, now + f.port_clk);
        return 0;
      case Unit::mfma: {
        result_.mfma_busy += f.pipe_clk;
        simd.mfma_free = unit_until_ = now + f.pipe_clk;
        simd.work(now, now + f.pipe_clk);
        if (f.blocks_valu) simd.valu_blocked = simd.mfma_free;
        w.results[w.next_result++ % w.results.size()] = {f.result, now + f.result_clk, now + f.pipe_clk};
        w.last_result = std::max(w.last_result, now + f.result_clk);
        return 0;
      }
      case Unit::lds: {
        if (!(word & kHasLds)) return 0;
        ++w.payload;
        const double done = lds(w, simd, now, static_cast<u32>(*payload), static_cast<u32>(*payload >> 32));
        if (f.on_lgkm) w.lgkm.push(done, done - now, word & kIndexBits);
        return done;
      }
      case Unit::smem:
        if (!(word & kHasGlobal)) return 0;
        return scalar(w, word, now, payload);
      case Unit::vmem: return vmem(w, simd, f, word, now, payload);
      default: return 0;
    }
  }

  double lds(const WaveRun& w, Simd& simd, double now, u32 clk, u32 bytes) {
    Cu& cu = cus_[w.cu];
    const double through = cu.banks.take(now, clk);
    unit_from_ = through - clk, unit_until_ = through;
    cu.lds.add(through - clk);
    const double path = simd.lds_path.take(through - clk, static_cast<double>(bytes) / p_.lds_return_bytes);
    const double first = p_.lds_latency_clk - 256.0 / p_.lds_return_bytes;
    const bool meet = clk >= 4 * std::max(bytes / kBankRowBytes, 1u);
    const double met = meet ? p_.lds_latency_clk + p_.lds_conflict_clk : 0;
    return std::max(std::max(through, path) + first, through - clk + met);
  }

  double scalar(WaveRun& w, u32 word, double now, const u64* payload) {
    const auto header = std::bit_cast<GlobalHeader>(payload[0]);
    w.payload += 1u + header.lines;
    const double done = memory_.scalar(w.cu, now, payload + 1, header.lines);
    w.lgkm.push(done, done - now, word & kIndexBits);
    return done;
  }

  double vmem(WaveRun& w, Simd& simd, const IssueFacts& f, u32 word, double now, const u64* payload) {
    Cu& cu = cus_[w.cu];
    double done = now + p_.issue_clk;
    if (f.forgets) memory_.forget(w.cu);
    if (f.writes_back) done = memory_.written_back(w.cu, now);
    if (word & kHasGlobal) {
      const auto header = std::bit_cast<GlobalHeader>(payload[0]);
      w.payload += 1u + header.lines;
      ++payload;
      double clk = std::max<double>(header.address_clk, 1);
      if (f.to_lds) clk = std::max<double>(clk, p_.lds_dma_clk);
      if (f.stores || f.atomic) clk = std::max(clk, 4.0 * header.dwords / p_.store_data_bytes);
      const double end = cu.address.take(now, clk), start = end - clk;
      unit_from_ = start, unit_until_ = end;
      cu.vmem.add(start);
      const Request request{w.cu, start, clk, payload, header.lines, f.passes_l1, f.is_shared};
      if (f.atomic) done = memory_.atomic(request, header.collisions);
      else if (f.stores) done = memory_.store(request);
      else done = memory_.load(request);
      payload += header.lines;
      if (word & kWaits) w.payload += 1 + (*payload >> 32), payload += 1 + (*payload >> 32);
      if (word & kTells) {
        w.payload += 1 + *payload;
        const double there = done - (f.atomic ? p_.atomic_latency_clk : p_.l2_latency_clk) + one_way();
        for (u64 n = 1; meetings_ && n <= *payload; ++n) arrive_at(payload[n], there, now);
        payload += 1 + *payload;
      }
    }
    if (word & kHasLds) {                      // the LDS side of an LDS-DMA, or a FLAT access of LDS
      ++w.payload;
      // Data of an LDS-DMA take cycles of the banks when they arrive, and must not keep them from others before.
      if (f.to_lds) {
        cu.banks.add_later(static_cast<u32>(*payload));
      } else {
        const double there = lds(w, simd, now, static_cast<u32>(*payload), static_cast<u32>(*payload >> 32));
        if (f.on_lgkm) w.lgkm.push(there, 0, word & kIndexBits);
        done = std::max(done, there);
      }
    }
    if (!f.forgets) w.vm.push(done, done - now, word & kIndexBits);
    if (f.on_lgkm && !(word & kHasLds)) w.lgkm.push(done, 0, word & kIndexBits);
    return done;
  }

  void arrive(WaveRun& w, double now) {
    w.ready = kNever;
    Group& group = groups_[w.group];
    ++group.arrived;
    open(group, now);
  }

  // A barrier opens when every wave that has not ended is at it.
  void open(Group& group, double now) {
    if (group.arrived == 0 || group.arrived + group.ended < group.waves) return;
    group.arrived = 0;
    for (const u32 id : group.members) {
      WaveRun& w = waves_[id];
      if (w.ready != kNever || w.at >= w.trace->code.size()) continue;
      w.ready = w.opened = std::max(w.base, now + p_.barrier_clk);
      w.why = Stall::barrier;
      if (w.tells_barrier) tell_barrier(w);
      prepare(w);
      wake(w.simd, w.ready);
    }
  }

  // In a timeline a barrier is issued when it lets its wave go on, as other waits are.
  void tell_barrier(WaveRun& w) {
    Event& event = w.barrier_event;
    event.why = Stall::barrier;
    event.at = event.until = event.unit_from = event.unit_until = w.opened;
    result_.timeline.push_back(event);
    w.tells_barrier = false;
  }

  void end(WaveRun& w, double now) {
    w.at = w.trace->code.size();
    w.ready = kNever;
    Group& group = groups_[w.group];
    ++group.ended;
    GroupTime& time = result_.groups[w.group];
    time.end = std::max(time.end, now);        // stores go on without their wave
    if (w.cu == 0 && timeline_events_) result_.waves[w.life].end = now;
    result_.clk = std::max({result_.clk, now, w.vm.last()});
    std::erase(simds_[w.simd].waves, static_cast<u32>(w.age));
    if (group.ended < group.waves) return open(group, now);
    ++cus_[w.cu].free_groups;
    dispatch(w.cu, time.end + p_.dispatch_clk);
  }

  struct Call {
    double at;
    u32 simd;
    bool operator<(const Call& other) const {
      return at != other.at ? at > other.at : simd > other.simd;       // the earliest is on top
    }
  };

  const Parameters& p_;
  const Code& code_;
  const std::vector<IssueFacts>& facts_;
  const std::vector<WorkgroupTrace>& traces_;
  Memory memory_;
  std::vector<Cu> cus_;
  std::vector<Simd> simds_;
  std::deque<WaveRun> waves_;                  // in dispatch order; they stay where they are
  std::vector<Group> groups_;
  std::vector<u32> ready_;                     // waves that issue beside the units
  double unit_from_ = 0, unit_until_ = 0;      // when a unit works for the instruction that issues
  std::priority_queue<Call> events_;
  std::vector<std::deque<u32>> waiting_;       // of each XCD: workgroups, places in traces_, that have not begun
  const std::vector<std::vector<u32>>* meetings_;      // null: nothing waits for other workgroups
  std::vector<Place> places_;
  double now_ = 0;
  u64 timeline_events_ = 0, timeline_from_ = 0, timeline_seen_ = 0;
  EngineResult result_;
};

}  // namespace

const char* stall_name(Stall stall) {
  constexpr const char* kNames[kNumStalls] = {"none", "matrix result", "vector port", "matrix pipe", "issue port",
                                              "memory queue", "LDS queue", "vmcnt", "lgkmcnt", "barrier", "fetch",
                                              "another workgroup"};
  return kNames[static_cast<int>(stall)];
}

EngineResult replay(const Parameters& parameters, const EngineShape& shape, const Code& code,
                    const std::vector<IssueFacts>& facts, const std::vector<WorkgroupTrace>& groups) {
  return Engine(parameters, shape, code, facts, groups).run();
}

}  // namespace sim::timing
