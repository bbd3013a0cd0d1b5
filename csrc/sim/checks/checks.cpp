// SPDX-License-Identifier: MIT
// Life of the shadow state, and who is called around each instruction.
#include "checks/checks.h"

#include <bit>
#include <utility>

#include "checks/state.h"

namespace sim {
namespace {

// Each thread keeps the state of a workgroup that has ended, because a new one would cost more than the workgroup.
std::unique_ptr<WorkgroupChecks>& kept() {
  thread_local std::unique_ptr<WorkgroupChecks> instance;
  return instance;
}

bool tracks_waits(const LaunchChecks& c) { return c.on(kCheckWait) || c.on(kCheckLdsRace); }

}  // namespace

std::string hex(u64 x) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(x));
  return text;
}

int first_lane(u64 lanes) { return std::countr_zero(lanes); }

std::string place_of(const Wave& w, const Inst& i) {
  return place_text(*w.group->launch, i);
}

std::string name_of(const Wave& w, const RegRange& r, u32 index) {
  const u32 reg = r.first + index;
  if (r.file == RegRange::vector) {
    const Kernel& k = *w.group->launch->kernel;
    const u32 first_accumulator = k.one_file ? k.accum_offset : u32{kFirstAgpr};
    const std::string v = "v" + std::to_string(reg), a = "a" + std::to_string(reg - first_accumulator);
    if (reg < first_accumulator) return v;
    return k.one_file && reg < kFirstAgpr ? v + " (" + a + ")" : a;
  }
  if (reg == kVcc || reg == kVcc + 1) return reg == kVcc ? "vcc_lo" : "vcc_hi";
  if (reg == kExec || reg == kExec + 1) return reg == kExec ? "exec_lo" : "exec_hi";
  return reg == kM0 ? "m0" : "s" + std::to_string(reg);
}

bool LaunchChecks::first(const char* check, const Inst& i, bool note) {
  const std::lock_guard lock(mutex_);
  return seen_[{check, i.pc, note}]++ == 0;
}

LaunchChecks::~LaunchChecks() {
  for (const auto& [key, count] : seen_) {
    if (count < 2) continue;
    Report r;
    const auto& [check, pc, note] = key;
    r.check = check;
    r.note = note;
    r.kernel = launch->kernel->name;
    r.pc = pc - launch->kernel->entry;
    if (const Inst* inst = launch->code->at(pc)) r.text = inst->text;
    r.source = launch->code->source_of(pc);
    r.caller = launch->code->caller_of(pc);
    r.count = count - 1;
    add_report(std::move(r));                  // the list has the full report, and this adds to its count
  }
}

std::unique_ptr<LaunchObserver> make_checkers(const Launch& launch, u32 checks) {
  auto c = std::make_unique<LaunchChecks>();
  c->launch = &launch;
  c->checks = checks;
  bounds_begin(*c);
  if (c->on(kCheckGlobalRace)) race_begin(*c);
  if (c->on(kCheckWaitState)) {
    const Code& code = *launch.code;
    std::call_once(code.issue_once, [&] { fill(code.issue, code); });
    c->issue = &code.issue;
  }
  return c;
}

std::unique_ptr<Observer> LaunchChecks::begin(Workgroup& group) { return std::make_unique<Checkers>(group, *this); }

Checkers::Checkers(Workgroup& group, LaunchChecks& launch)
    : group_(group), launch_(launch),
      state_(kept() ? std::move(kept()) : std::make_unique<WorkgroupChecks>()) {
  WorkgroupChecks& g = *state_;
  group.checks = &g;
  g.launch = &launch;
  const size_t num_waves = group.waves.size();
  while (g.waves.size() < num_waves) g.waves.push_back(std::make_unique<WaveChecks>());
  if (tracks_waits(launch)) lds_begin(group);
  if (launch.on(kCheckGlobalRace)) race_begin(group);
  if (launch.on(kCheckUninit)) {
    g.lds.assign(group.launch->lds_bytes, 0);
    const size_t words = num_waves * kNumRows * kLanes;
    if (g.bits.size() < words) g.bits.resize(words);
  }
  for (size_t k = 0; k < num_waves; ++k) {
    WaveChecks& wave = *g.waves[k];
    group.waves[k].checks = &wave;
    wave.executed = 0;
    wave.flat_spaces = 0;
    wait_begin(wave);
    waitstate_begin(wave);
    if (!launch.on(kCheckUninit)) continue;
    wave.undefined.bits = reinterpret_cast<u32(*)[kLanes]>(g.bits.data()) + k * kNumRows;
    uninit_begin(group.waves[k]);
  }
  if (launch.on(kCheckSanity)) sanity_begin(group);
}

Checkers::~Checkers() {
  if (launch_.on(kCheckSanity)) sanity_end(group_);
  for (Wave& w : group_.waves) w.checks = nullptr;
  group_.checks = nullptr;
  kept() = std::move(state_);
}

void Checkers::before(Wave& w, const Inst& i) {
  WaveChecks& c = *w.checks;
  ++c.executed;
  if (!i.op) return;                           // run_observed throws
  if (tracks_waits(launch_)) {
    c.first_record = state_->lds_shadow.next();
    wait_before(w, i);
  }
  if (launch_.on(kCheckWaitState)) waitstate_before(w, i);
  if (launch_.on(kCheckSanity)) sanity_before(w, i);
  if (launch_.on(kCheckGlobalRace)) race_before(w, i);
  if (launch_.on(kCheckUninit)) uninit_before(w, i);
}

void Checkers::after(Wave& w, const Inst& i) {
  if (i.op && tracks_waits(launch_)) wait_after(w, i);
}

void Checkers::barrier() {
  if (tracks_waits(launch_)) lds_barrier(group_);
  if (launch_.on(kCheckSanity)) sanity_barrier(group_);
  if (launch_.on(kCheckGlobalRace)) race_barrier(group_);
}

}  // namespace sim
