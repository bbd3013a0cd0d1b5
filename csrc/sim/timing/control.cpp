// SPDX-License-Identifier: MIT
// The C interface that aiter_like/sim/counting.py and modelling.py use. Strings returned are JSON, freed by
// aiter_like_sim_free.
#include <algorithm>
#include <cmath>

#include "json.h"
#include "names.h"
#include "run/counters.h"
#include "timing/counts.h"
#include "timing/model.h"
#include "timing/roofs.h"

namespace sim::timing {
namespace {

using json::List, json::Object, json::quoted;

std::string sizes(const u32 (&three)[3]) {
  List list;
  for (u32 size : three) list.raw(std::to_string(size));
  return list.str();
}

std::string numbers(const std::array<u64, kBanks>& all) {
  List list;
  for (u64 one : all) list.raw(std::to_string(one));
  return list.str();
}

std::string json_of(const LaunchCounts::Line& line) {
  const InstCounts& c = line.counts;
  Object o;
  o.add("pc", line.pc).add("text", line.text).add("source", line.source).add("caller", line.caller);
  o.add("class", std::string_view(class_name(line.cls))).add("executed", c.executed);
  o.some("straddles", line.straddles).some("active_lanes", c.active_lanes);
  if (line.cls == Class::wait) o.some("waits_vmcnt", line.vmcnt < 63).some("waits_lgkmcnt", line.lgkmcnt < 15);
  if (line.cls == Class::mfma) o.add("flops", line.flops).add("passes", line.passes).add("type", line.type);
  o.some("global_bytes", c.global_bytes).some("segments_64", c.segments64).some("segments_128", c.segments128);
  o.some("lds_bytes", c.lds_bytes).some("lds_clk", c.lds_clk).some("lds_conflict_clk", c.lds_conflict_clk);
  if (c.lds_clk) o.raw("lds_bank_clk", numbers(line.banks.clk));
  if (c.lds_conflict_clk) o.raw("lds_bank_extra_clk", numbers(line.banks.extra_clk));
  o.some("scratch_bytes", c.scratch_bytes);
  return o.some("atomic_lanes", c.atomic_lanes).some("atomic_collisions", c.atomic_collisions).str();
}

std::string json_of(const Occupancy& o) {
  Object limits, result;
  limits.add("vector registers", u64{o.by_registers}).add("scalar registers", u64{o.by_scalars});
  limits.add("LDS", u64{o.by_lds}).add("waves", u64{o.by_waves}).add("workgroups", u64{o.by_groups});
  result.add("workgroups_per_cu", u64{o.groups}).add("waves_per_simd", u64{o.waves_per_simd()});
  return result.add("limiter", std::string_view(o.limiter)).raw("limits", limits.str()).str();
}

std::string json_of(const LaunchCounts& launch) {
  List lines;
  for (const LaunchCounts::Line& line : launch.lines) lines.raw(json_of(line));
  Object registers, o;
  registers.add("vgprs", u64{launch.vgprs}).add("agprs", u64{launch.agprs}).add("sgprs", u64{launch.sgprs});
  registers.add("vgpr_spills", u64{launch.vgpr_spills}).add("sgpr_spills", u64{launch.sgpr_spills});
  o.add("kernel", launch.kernel).raw("grid", sizes(launch.grid)).raw("block", sizes(launch.block));
  o.add("code", launch.code).add("workgroups", launch.workgroups);
  o.add("waves", launch.waves).add("lds_bytes", u64{launch.lds_bytes});
  o.add("private_bytes", u64{launch.private_bytes}).raw("registers", registers.str());
  return o.raw("occupancy", json_of(launch.occupancy)).raw("instructions", lines.str()).str();
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

constexpr std::pair<const char*, u64 Traffic::*> kTraffic[] = {
    {"l1_lines", &Traffic::l1_lines},           {"l1_hits", &Traffic::l1_hits},
    {"scalar_lines", &Traffic::scalar_lines},   {"scalar_hits", &Traffic::scalar_hits},
    {"l2_lines", &Traffic::l2_lines},           {"l2_hits", &Traffic::l2_hits},
    {"stored_lines", &Traffic::stored_lines},   {"stored_hits", &Traffic::stored_hits},
    {"l2_read_bytes", &Traffic::l2_read_bytes}, {"l2_written_bytes", &Traffic::l2_written_bytes},
    {"mall_hits", &Traffic::mall_hits},         {"hbm_lines", &Traffic::hbm_lines},
    {"written_lines", &Traffic::written_lines}};

std::string json_of(const Traffic& t) {
  Object o;
  for (const auto& [name, field] : kTraffic) o.add(name, t.*field);
  return o.str();
}

// The same without what is 0; "" when all is.
std::string some_of(const Traffic& t) {
  Object o;
  for (const auto& [name, field] : kTraffic) o.some(name, t.*field);
  return o.str() == "{}" ? "" : o.str();
}

// Inst::index → place in the list of those that were replayed.
std::vector<u32> places_of(const ModelledLaunch& m) {
  std::vector<u32> places(m.replayed.insts.size());
  u32 count = 0;
  for (size_t n = 0; n < places.size(); ++n) {
    places[n] = count;
    count += m.replayed.insts[n].issued != 0;
  }
  return places;
}

std::string json_of(const ModelledLaunch::Line& line, const std::vector<u32>& places) {
  Object o, stalls;
  for (int k = 1; k < kNumStalls; ++k) {
    if (line.time.stall[k] > 0) stalls.raw(stall_name(static_cast<Stall>(k)), number(line.time.stall[k]));
  }
  o.add("pc", line.pc).add("text", line.text).add("source", line.source).add("caller", line.caller);
  o.add("issued", line.time.issued);
  o.raw("busy_clk", number(line.time.busy)).raw("latency_clk", number(line.time.latency));
  o.raw("hidden_clk", number(std::max(line.time.latency - line.time.exposed, 0.0)));
  o.raw("stall_clk", stalls.str()).raw("covered_clk", number(line.time.covered));
  if (const std::string traffic = some_of(line.time.traffic); !traffic.empty()) o.raw("traffic", traffic);
  if (line.time.retired.empty()) return o.str();
  List retired;
  for (const Retired& one : line.time.retired) {
    List list;
    list.raw(std::to_string(places[one.inst])).raw(std::to_string(one.times)).raw(number(one.exposed));
    retired.raw(list.str());
  }
  return o.raw("retires", retired.str()).str();
}

// Times are from when the first event began to wait. csrc/sim/MODEL.md, "Profiles", has the columns.
std::string timeline_of(const ModelledLaunch& m, const std::vector<u32>& places) {
  const double start = m.replayed.timeline.empty() ? 0 : m.replayed.timeline.front().waited;
  const auto time = [&](double at) { return std::to_string(std::lround(at - start)); };
  List reasons, waves, events;
  for (int k = 0; k < kNumStalls; ++k) reasons.raw(quoted(stall_name(static_cast<Stall>(k))));
  for (const WaveLife& w : m.replayed.waves) {
    List one;
    one.raw(std::to_string(w.wave)).raw(std::to_string(w.simd)).raw(std::to_string(w.slot));
    waves.raw(one.raw(std::to_string(w.workgroup)).raw(time(w.begin)).raw(time(w.end)).str());
  }
  for (const Event& e : m.replayed.timeline) {
    List one;
    one.raw(std::to_string(e.wave)).raw(std::to_string(places[e.inst]));
    one.raw(std::to_string(e.waited < e.at ? static_cast<int>(e.why) : 0));
    for (double at : {e.waited, e.at, e.until, e.unit_from, e.unit_until}) one.raw(time(at));
    events.raw(one.raw(e.done > e.at ? time(e.done) : "null").str());
  }
  return Object().raw("reasons", reasons.str()).raw("waves", waves.str()).raw("events", events.str()).str();
}

std::string json_of(const ModelledLaunch& m) {
  List lines;
  const std::vector<u32> places = places_of(m);
  for (const ModelledLaunch::Line& line : m.lines) lines.raw(json_of(line, places));
  const EngineResult& r = m.replayed;
  const double cus = m.cus * m.xcds, simds = 4 * cus;
  // Of the launch's time, in which all of its workgroups do what the replayed ones did.
  const double clk = std::max(m.clk, 1.0) * static_cast<double>(m.recorded) / cus / std::max(m.workgroups_of_cu, 1e-9);
  const auto share = [&](double busy_clk) { return number(std::min(busy_clk / clk, 1.0)); };
  Object o, busy;
  busy.raw("matrix", share(r.mfma_busy / simds)).raw("vector", share(r.valu_busy / simds));
  busy.raw("LDS", share(r.lds_busy / cus)).raw("address", share(r.address_busy / cus));
  busy.raw("L2", share(r.l2_busy)).raw("beyond L2", share(r.beyond_busy));
  o.add("model", std::string_view(kModelVersion)).add("kernel", m.kernel).add("name", demangled(m.kernel));
  o.raw("grid", sizes(m.grid)).raw("block", sizes(m.block)).add("lds_bytes", u64{m.lds_bytes});
  o.raw("occupancy", json_of(m.occupancy)).raw("modelled_clk", number(m.clk)).raw("clock_mhz", number(m.clock_mhz));
  o.raw("mfma_flops", number(m.mfma_flops)).add("workgroups_of_xcd", m.workgroups).add("recorded", m.recorded);
  const GroupTime first = r.groups.empty() ? GroupTime{} : r.groups.front();
  o.add("xcds", u64{m.xcds}).some("met", r.met).some("unmet", r.unmet);
  o.raw("first_workgroup_clk", number(first.end - first.begin));
  o.raw("sample_error", number(m.sample_error));
  o.add("cus_of_xcd", u64{m.cus}).raw("replayed_clk", number(r.clk)).add("replayed_instructions", r.issued);
  o.raw("busy", busy.str()).raw("traffic", json_of(r.traffic)).raw("instructions", lines.str());
  return o.raw("timeline", timeline_of(m, places)).str();
}

}  // namespace

#define TIMING_API extern "C" __attribute__((visibility("default")))

// sample: count so many workgroups of a launch, 0 = all. leaves_out: the others do not run.
TIMING_API void aiter_like_sim_count(int on, u32 sample, int leaves_out) {
  on ? begin_counting({sample, leaves_out != 0}) : end_counting();
}

TIMING_API char* aiter_like_sim_take_counts() {
  List list;
  for (const LaunchCounts& launch : take_counts()) list.raw(json_of(launch));
  return json::give(list.str());
}

// sample: only workgroups that the model needs run. budget: see ModelSettings.
TIMING_API void aiter_like_sim_model(int on, int sample, double clock_mhz, u32 timeline_events, u64 budget) {
  if (!on) return end_modelling();
  ModelSettings settings;
  settings.timeline_events = timeline_events;
  settings.sample = sample != 0;
  settings.clock_mhz = clock_mhz;
  settings.budget = budget;
  begin_modelling(settings);
}

// Those of the model's numbers that an estimate without a replay needs (aiter_like/tuning/screening.py).
TIMING_API char* aiter_like_sim_model_parameters() {
  const Parameters p;
  Object o;
  o.add("xcds", u64{p.xcds}).add("cus", u64{p.cus}).add("simds", u64{p.simds}).add("issue_clk", u64{p.issue_clk});
  o.add("trans_clk", u64{p.trans_clk}).add("pass_clk", u64{p.pass_clk}).add("barrier_clk", u64{p.barrier_clk});
  o.add("branch_taken_clk", u64{p.branch_taken_clk}).add("lds_latency_clk", u64{p.lds_latency_clk});
  o.add("l2_latency_clk", u64{p.l2_latency_clk}).add("hbm_latency_clk", u64{p.hbm_latency_clk});
  o.add("dispatch_clk", u64{p.dispatch_clk}).add("l2_channels", u64{p.l2_channels});
  o.raw("l1_fill_bytes", number(p.l1_fill_bytes)).raw("channel_clk", number(p.channel_clk));
  o.raw("hbm_read_tb_per_s", number(p.hbm_read_tb_per_s)).raw("clock_mhz", number(p.clock_mhz));
  return json::give(o.str());
}

// A list of {name, unit, per_second}.
TIMING_API char* aiter_like_sim_model_roofs(double clock_mhz) {
  Parameters parameters;
  parameters.clock_mhz = clock_mhz;
  List list;
  for (const Roof& roof : roofs(parameters)) {
    Object o;
    o.add("name", roof.name).add("unit", std::string_view(roof.is_flops ? "flop" : "B"));
    list.raw(o.raw("per_second", number(roof.per_second)).str());
  }
  return json::give(list.str());
}

TIMING_API char* aiter_like_sim_take_modelled() {
  List list;
  for (const ModelledLaunch& launch : take_modelled()) list.raw(json_of(launch));
  return json::give(list.str());
}

}  // namespace sim::timing
