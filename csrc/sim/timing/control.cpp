// SPDX-License-Identifier: MIT
// The C interface that aiter_like/sim/counting.py uses. Strings returned are JSON, freed by aiter_like_sim_free.
#include "json.h"
#include "run/counters.h"
#include "timing/counts.h"

namespace sim::timing {
namespace {

using json::List, json::Object;

std::string sizes(const u32 (&three)[3]) {
  List list;
  for (u32 size : three) list.raw(std::to_string(size));
  return list.str();
}

std::string json_of(const LaunchCounts::Line& line) {
  const InstCounts& c = line.counts;
  Object o;
  o.add("pc", line.pc).add("text", line.text).add("source", line.source);
  o.add("class", std::string_view(class_name(line.cls))).add("executed", c.executed);
  o.some("straddles", line.straddles).some("active_lanes", c.active_lanes);
  if (line.cls == Class::wait) o.some("waits_vmcnt", line.vmcnt < 63).some("waits_lgkmcnt", line.lgkmcnt < 15);
  if (line.cls == Class::mfma) o.add("flops", line.flops).add("passes", line.passes).add("type", line.type);
  o.some("global_bytes", c.global_bytes).some("segments_64", c.segments64).some("segments_128", c.segments128);
  o.some("lds_bytes", c.lds_bytes).some("lds_clk", c.lds_clk).some("lds_conflict_clk", c.lds_conflict_clk);
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
  o.add("workgroups", launch.workgroups).add("waves", launch.waves).add("lds_bytes", u64{launch.lds_bytes});
  o.add("private_bytes", u64{launch.private_bytes}).raw("registers", registers.str());
  return o.raw("occupancy", json_of(launch.occupancy)).raw("instructions", lines.str()).str();
}

}  // namespace

#define TIMING_API extern "C" __attribute__((visibility("default")))

TIMING_API void aiter_like_sim_count(int on) { on ? begin_counting() : end_counting(); }

TIMING_API char* aiter_like_sim_take_counts() {
  List list;
  for (const LaunchCounts& launch : take_counts()) list.raw(json_of(launch));
  return json::give(list.str());
}

}  // namespace sim::timing
