// SPDX-License-Identifier: MIT
// Life of the shadow state, and the calls that run.cpp makes around each instruction.
#include "checks/checks.h"

#include <bit>

#include "checks/state.h"

namespace sim {
namespace {

// Each thread keeps the state of a workgroup that has ended: a new one would cost more than the workgroup.
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
  const Launch& launch = *w.group->launch;
  return place_text(i.pc - launch.kernel->entry, launch.code->source_of(i.pc), i.text);
}

std::string name_of(const RegRange& r, u32 index) {
  const u32 reg = r.first + index;
  if (r.file == RegRange::vector) return (reg < kFirstAgpr ? "v" : "a") + std::to_string(reg % kFirstAgpr);
  if (reg == kVcc || reg == kVcc + 1) return reg == kVcc ? "vcc_lo" : "vcc_hi";
  if (reg == kExec || reg == kExec + 1) return reg == kExec ? "exec_lo" : "exec_hi";
  return reg == kM0 ? "m0" : "s" + std::to_string(reg);
}

bool LaunchChecks::first(const char* check, const Inst& i) {
  const std::lock_guard lock(mutex_);
  return seen_[{check, i.pc}]++ == 0;
}

LaunchChecks::~LaunchChecks() {
  for (const auto& [key, count] : seen_) {
    if (count < 2) continue;
    Report r;
    r.check = key.first;
    r.kernel = launch->kernel->name;
    r.pc = key.second - launch->kernel->entry;
    r.count = count - 1;
    add_report(std::move(r));                  // the full one is there: this only counts
  }
}

std::shared_ptr<LaunchChecks> make_launch_checks(const Launch& launch, u32 checks) {
  auto c = std::make_shared<LaunchChecks>();
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

void begin_workgroup(Workgroup& group) {
  const LaunchChecks& c = *group.launch->checks;
  group.checks = kept() ? kept().release() : new WorkgroupChecks;
  WorkgroupChecks& g = *group.checks;
  const size_t num_waves = group.waves.size();
  while (g.waves.size() < num_waves) g.waves.push_back(std::make_unique<WaveChecks>());
  if (tracks_waits(c)) lds_begin(group);
  if (c.on(kCheckGlobalRace)) race_begin(group);
  if (c.on(kCheckUninit)) {
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
    if (!c.on(kCheckUninit)) continue;
    wave.undefined.bits = reinterpret_cast<u32(*)[kLanes]>(g.bits.data()) + k * kNumRows;
    uninit_begin(group.waves[k]);
  }
  if (c.on(kCheckSanity)) sanity_begin(group);
}

void end_workgroup(Workgroup& group) {
  if (group.launch->checks->on(kCheckSanity)) sanity_end(group);
  for (Wave& w : group.waves) w.checks = nullptr;
  kept().reset(group.checks);
  group.checks = nullptr;
}

void check_before(Wave& w, const Inst& i) {
  WaveChecks& c = *w.checks;
  const LaunchChecks& launch = launch_checks(w);
  ++c.executed;
  if (!i.op) return;                           // run_checked throws
  if (tracks_waits(launch)) {
    c.first_record = w.group->checks->lds_shadow.next();
    wait_before(w, i);
  }
  if (launch.on(kCheckWaitState)) waitstate_before(w, i);
  if (launch.on(kCheckSanity)) sanity_before(w, i);
  if (launch.on(kCheckGlobalRace)) race_before(w, i);
  if (launch.on(kCheckUninit)) uninit_before(w, i);
}

void check_after(Wave& w, const Inst& i) {
  if (i.op && tracks_waits(launch_checks(w))) wait_after(w, i);
}

void check_barrier(Workgroup& group) {
  const LaunchChecks& c = *group.launch->checks;
  if (tracks_waits(c)) lds_barrier(group);
  if (c.on(kCheckSanity)) sanity_barrier(group);
  if (c.on(kCheckGlobalRace)) race_barrier(group);
}

}  // namespace sim
