// SPDX-License-Identifier: MIT
// Stops and steps of a launch under the debugger.
#include "debug/debugger.h"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

namespace sim::debug {
namespace {

constexpr u32 kMxcsrDefault = 0x1f80;          // Python expects this, whatever the wave's mode is
std::atomic<bool> interrupted{false};

struct sigaction before_interrupts;

// Ctrl-C during a launch stops it; at other times it is whoever's it was.
void catch_interrupts(bool on) {
  if (!on) {
    sigaction(SIGINT, &before_interrupts, nullptr);
    return;
  }
  struct sigaction ours = {};
  ours.sa_handler = [](int) { interrupted = true; };
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGINT, &ours, &before_interrupts);
}

struct Quit : Fault {
  Quit() : Fault("stopped by the debugger") {}
};

std::vector<u8> flags_of(const Code& code) {
  std::vector<u8> flags(code.insts.size());
  for (const Inst& i : code.insts) {
    if (!i.op) continue;
    if (i.op->name == "s_swappc_b64" || i.op->name == "s_call_b64") flags[i.index] = kCall;
    if (i.op->name == "s_setpc_b64") flags[i.index] = kReturn;
  }
  return flags;
}

class WatchedLaunch final : public LaunchObserver {
 public:
  explicit WatchedLaunch(const Launch& launch) : launch_(launch) {
    Control& c = control();
    const Control::OnStop on_stop = c.on_stop;
    const bool at_reports = c.stops_at_reports, at_failures = c.stops_at_failures, at_signals = c.stops_at_signals;
    c = Control{};
    c.on_stop = on_stop;
    c.stops_at_reports = at_reports;
    c.stops_at_failures = at_failures;
    c.stops_at_signals = at_signals;
    c.launch = &launch;
    c.flags = flags_of(*launch.code);
    c.seen_reports = aiter_like_sim_report_count();
    c.on_stop(static_cast<u32>(Reason::launch));               // sets breakpoints, lines and watches
    if (at_signals) catch_interrupts(true);
  }
  ~WatchedLaunch() override {
    Control& c = control();
    if (c.launch != &launch_) return;          // a launch within a launch cannot be; but nothing may dangle
    if (c.stops_at_signals) catch_interrupts(false);
    if (c.on_stop) c.on_stop(static_cast<u32>(Reason::finished));
    c.launch = nullptr;
  }
  std::unique_ptr<Observer> begin(Workgroup& group) override { return std::make_unique<WatchedGroup>(group); }
  bool needs_one_thread() const override { return true; }

 private:
  const Launch& launch_;
};

LaunchObserver* make(const Launch& launch) {
  if (!control().on_stop || control().launch) return nullptr;
  return new WatchedLaunch(launch);
}

u64 depth_of(const Control& c, size_t calls, u32 index) {
  return u64{calls} << 32 | (c.depths.empty() ? 0 : c.depths[index]);
}

}  // namespace

Control& control() {
  static Control instance;
  return instance;
}

void interrupt() { interrupted = true; }

void attach(Control::OnStop on_stop) {
  Control& c = control();
  const bool was_attached = c.on_stop != nullptr;
  c.on_stop = on_stop;
  if (on_stop && !was_attached) aiter_like_sim_observe(make, 1);
  if (!on_stop && was_attached) aiter_like_sim_observe(make, 0);
  interrupted = false;
}

u64 read_memory(u64 address, u8* out, u64 bytes) {
  const iovec local{out, bytes}, remote{reinterpret_cast<void*>(address), bytes};
  const ssize_t done = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  return done < 0 ? 0 : static_cast<u64>(done);
}

u64 write_memory(u64 address, const u8* data, u64 bytes) {
  const iovec local{const_cast<u8*>(data), bytes}, remote{reinterpret_cast<void*>(address), bytes};
  const ssize_t done = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
  return done < 0 ? 0 : static_cast<u64>(done);
}

WatchedGroup::WatchedGroup(Workgroup& group)
    : group_(group), calls_(group.waves.size()), executed_(group.waves.size()) {
  control().groups.push_back(this);
}

WatchedGroup::~WatchedGroup() { std::erase(control().groups, this); }

void WatchedGroup::stop(Wave& w, const Inst& i, Reason reason, bool executed) {
  Control& c = control();
  c.stop.reason = reason;
  c.stop.group = group_.number();
  c.stop.wave = static_cast<u32>(w.id);
  c.stop.index = i.index;
  c.stop.executed = executed;
  c.step = {};
  interrupted = false;
  const u32 saved = _mm_getcsr();
  _mm_setcsr(kMxcsrDefault);
  c.on_stop(static_cast<u32>(reason));
  _mm_setcsr(saved);
  c.stop = {};
  if (c.step.go == Go::quit && reason != Reason::failure) throw Quit();
}

bool WatchedGroup::steps_here(const Wave& w, const Inst& i) const {
  const Control& c = control();
  const Step& s = c.step;
  if (s.go == Go::on || s.wave != static_cast<u32>(w.id) || s.group != group_.number()) return false;
  if (s.go == Go::instruction) return true;
  const u64 depth = depth_of(c, calls_[w.id].size(), i.index);
  if (s.go == Go::out) return depth <= s.most_depth;
  if (c.lines.empty() || c.lines[i.index] == 0 || c.lines[i.index] == s.line) return false;
  return depth <= s.most_depth;
}

void WatchedGroup::before(Wave& w, const Inst& i) {
  Control& c = control();
  if (c.step.go == Go::quit) throw Quit();       // since the launch began
  ++c.executed;
  hits_.clear();
  if (c.stops_at_reports && aiter_like_sim_report_count() != c.seen_reports) {
    c.seen_reports = aiter_like_sim_report_count();
    stop(w, i, Reason::report, false);
  } else if (interrupted) {
    stop(w, i, Reason::interrupt, false);
  } else if (c.flags[i.index] & kBreak) {
    meet_breakpoints(w, i);
  } else if (steps_here(w, i)) {
    stop(w, i, Reason::step, false);
  }
  if (!c.watches.empty()) note_registers(w);
}

void WatchedGroup::meet_breakpoints(Wave& w, const Inst& i) {
  Control& c = control();
  const bool steps = steps_here(w, i);
  for (const auto& [index, b] : c.breakpoints) {
    if (index != i.index || (b.group != kAnyGroup && b.group != group_.number())) continue;
    if (b.wave != kAnyWave && b.wave != static_cast<u32>(w.id)) continue;
    if (b.lane >= 0 && !(w.exec() >> b.lane & 1)) continue;
    u64 lanes = w.exec();
    if (!b.terms.empty() && !(lanes = lanes_where(w, b.terms))) continue;
    c.stop.number = b.number;
    c.stop.lanes = lanes;
    return stop(w, i, Reason::breakpoint, false);              // it may change the breakpoints
  }
  if (steps) stop(w, i, Reason::step, false);
}

void WatchedGroup::follow_calls(const Wave& w, const Inst& i) {
  std::vector<u32>& calls = calls_[w.id];
  const u8 flags = control().flags[i.index];
  if (flags & kCall) calls.push_back(i.index);
  // A jump through registers returns when it goes to the instruction behind the call.
  if (flags & kReturn && !calls.empty() && w.ip->index == calls.back() + 1) calls.pop_back();
}

void WatchedGroup::after(Wave& w, const Inst& i) {
  Control& c = control();
  ++executed_[w.id];
  if (c.flags[i.index] & (kCall | kReturn)) follow_calls(w, i);
  for (Hit& hit : std::exchange(hits_, {})) {
    std::vector<u8> now = contents(w, hit.watch);
    const bool is_register = hit.watch.space == Space::vector || hit.watch.space == Space::scalar;
    if (is_register && now == hit.before) continue;
    c.stop.number = hit.watch.number;
    c.stop.lanes = hit.lanes;
    c.stop.is_write = hit.is_write;
    c.stop.address = hit.address;
    c.stop.before = std::move(hit.before);
    c.stop.after = std::move(now);
    stop(w, i, Reason::watch, true);
  }
  if (c.stops_at_reports && aiter_like_sim_report_count() != c.seen_reports) {
    c.seen_reports = aiter_like_sim_report_count();
    stop(w, i, Reason::report, true);
  }
  const Step& s = c.step;
  if (w.stop == sim::Stop::ended && s.go != Go::on && s.wave == static_cast<u32>(w.id) && s.group == group_.number()) {
    stop(w, i, Reason::ended, true);
  }
}

void WatchedGroup::failed(Wave& w, const char* why) {
  Control& c = control();
  if (!c.on_stop || !c.stops_at_failures || c.step.go == Go::quit) return;
  const Inst* first = group_.launch->code->insts.data();
  c.stop.text = why;
  stop(w, w.ip > first ? w.ip[-1] : *first, Reason::failure, false);
}

std::vector<u8> WatchedGroup::contents(const Wave& w, const Watch& watch) const {
  std::vector<u8> bytes(watch.bytes);
  if (watch.space == Space::global) {
    bytes.resize(read_memory(watch.begin, bytes.data(), watch.bytes));
  } else if (watch.space == Space::lds) {
    std::memcpy(bytes.data(), group_.lds + watch.begin, watch.bytes);
  } else if (watch.space == Space::scalar) {
    std::memcpy(bytes.data(), &w.s[watch.begin], 4);
  } else {                                     // a dword per lane; lanes that are not watched are zeros
    bytes.assign(watch.bytes * kLanes, 0);
    const u64 lane_bytes = group_.launch->private_bytes;
    for (u64 left = watch.lanes; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      const void* from = watch.space == Space::vector ? static_cast<const void*>(&w.v[watch.begin][lane])
                                                      : w.scratch + lane * lane_bytes + watch.begin;
      std::memcpy(bytes.data() + lane * watch.bytes, from, watch.bytes);
    }
  }
  return bytes;
}

void WatchedGroup::note_registers(Wave& w) {
  for (const Watch& watch : control().watches) {
    if (watch.space != Space::vector && watch.space != Space::scalar) continue;
    if (watch.group != kAnyGroup && watch.group != group_.number()) continue;
    if (watch.wave != kAnyWave && watch.wave != static_cast<u32>(w.id)) continue;
    hits_.push_back({watch, watch.lanes, 0, true, contents(w, watch)});
  }
}

template <class Place>
void WatchedGroup::meet(Wave& w, Space space, const Place* at, u64 lanes, const Touch& touch) {
  for (const Watch& watch : control().watches) {
    const bool is_write = touch.access != Access::load;
    const u32 kinds = (is_write ? Watch::kWrites : 0) | (touch.access != Access::store ? Watch::kReads : 0);
    if (watch.space != space || !(watch.kinds & kinds)) continue;
    if (space != Space::global && watch.group != kAnyGroup && watch.group != group_.number()) continue;
    if (space == Space::scratch && watch.wave != kAnyWave && watch.wave != static_cast<u32>(w.id)) continue;
    u64 found = 0, first = 0;
    for (u64 left = space == Space::scratch ? lanes & watch.lanes : lanes; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (u64{at[lane]} >= watch.begin + watch.bytes || u64{at[lane]} + touch.bytes <= watch.begin) continue;
      if (!found) first = at[lane];
      found |= u64{1} << lane;
    }
    if (found) hits_.push_back({watch, found, first, is_write, contents(w, watch)});
  }
}

u64 WatchedGroup::global(Wave& w, const Inst&, const u64* address, u64 lanes, const Touch& touch) {
  if (!control().watches.empty()) meet(w, Space::global, address, lanes, touch);
  return lanes;
}

u64 WatchedGroup::lds(Wave& w, const Inst&, const u32* offset, u64 lanes, const Touch& touch) {
  if (!control().watches.empty()) meet(w, Space::lds, offset, lanes, touch);
  return lanes;
}

u64 WatchedGroup::scratch(Wave& w, const Inst&, const u32* offset, u64 lanes, const Touch& touch) {
  if (!control().watches.empty()) meet(w, Space::scratch, offset, lanes, touch);
  return lanes;
}

bool WatchedGroup::scalar(Wave& w, const Inst&, u64 address, u32 bytes) {
  Touch touch;
  touch.bytes = static_cast<u8>(bytes);
  if (!control().watches.empty()) meet(w, Space::global, &address, 1, touch);
  return true;
}

}  // namespace sim::debug
