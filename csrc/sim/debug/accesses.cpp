// SPDX-License-Identifier: MIT
// An observer that records which lane touches what: the accesses of one workgroup, with what LDS banks and segments of
// memory they make of them, and for reads of LDS who wrote what they read. Read by aiter_like/sim/tracing.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "debug/core.h"
#include "json.h"
#include "timing/access_shape.h"

namespace sim::debug {
namespace {

using json::List, json::Object;
using timing::lds_shape, timing::segment_shape;

constexpr u32 kLdsDwords = 65536 / 4;

struct Recorded {
  u64 clock = 0;                               // instructions of the workgroup before it
  u32 wave = 0, index = 0;
  const char* space = "";
  const char* access = "";
  u32 bytes = 0;
  bool dma = false;
  u64 lanes = 0;
  std::array<u64, kLanes> at{};                // address or offset
  // Who wrote the first dword that a lane reads: wave * 64 + lane, -1 = none
  std::array<i32, kLanes> writers{};
  u32 clk = 0, conflict_clk = 0, segments64 = 0, segments128 = 0;
};

struct RecordedLaunch {
  std::string kernel;
  u32 grid[3], block[3];
  u64 group = 0, lds_bytes = 0, accesses = 0;  // all that there were
  std::vector<u64> arguments;                  // those of 8 bytes, 0 for others
  std::vector<Recorded> recorded;
  std::vector<u64> barriers;                   // clocks
  std::unordered_map<u32, std::array<std::string, 3>> instructions;      // index → text, source, caller
  std::unordered_map<u32, u64> pcs;
};

struct Wanted {
  std::mutex mutex;
  bool on = false;
  u64 group = 0;
  u32 per_instruction = 1, most = 1024, launches = 16;
  std::vector<RecordedLaunch> taken;
};

Wanted& wanted() {
  static Wanted* instance = new Wanted;
  return *instance;
}

class Recorder final : public Observer {
 public:
  Recorder(Workgroup& group, const Wanted& w) : group_(group), per_instruction_(w.per_instruction), most_(w.most) {
    const Launch& l = *group.launch;
    launch_.kernel = l.kernel->name;
    std::copy(std::begin(l.grid), std::end(l.grid), launch_.grid);
    std::copy(std::begin(l.block), std::end(l.block), launch_.block);
    launch_.group = group.number();
    launch_.lds_bytes = l.lds_bytes;
    for (const Arg& a : l.kernel->args) {
      u64 value = 0;
      if (a.size == 8) std::memcpy(&value, l.kernarg + a.offset, 8);
      launch_.arguments.push_back(value);
    }
    writers_.fill(-1);
  }
  ~Recorder() override {
    Wanted& w = wanted();
    const std::lock_guard lock(w.mutex);
    if (w.on && w.taken.size() < w.launches) w.taken.push_back(std::move(launch_));
  }

  void before(Wave&, const Inst&) override { ++clock_; }
  void barrier() override { launch_.barriers.push_back(clock_); }
  u64 global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override {
    if (Recorded* r = add(w, i, "global", address, lanes, touch)) {
      const timing::SegmentShape shape = segment_shape(address, lanes, touch.bytes);
      r->segments64 = shape.segments64;
      r->segments128 = shape.segments128;
    }
    return lanes;
  }
  u64 lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    if (Recorded* r = add(w, i, "LDS", offset, lanes, touch)) {
      const timing::LdsShape shape = lds_shape(offset, lanes, touch.bytes, touch.access == Access::load);
      r->clk = shape.clk;
      r->conflict_clk = shape.conflict_clk;
      for (u64 left = lanes; left; left &= left - 1) {
        const int lane = std::countr_zero(left);
        if (touch.access != Access::store) r->writers[lane] = writers_[offset[lane] / 4 % kLdsDwords];
      }
    }
    for (u64 left = touch.access == Access::load ? 0 : lanes; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      for (u32 at = offset[lane] / 4; at * 4 < offset[lane] + touch.bytes && at < kLdsDwords; ++at) {
        writers_[at] = w.id * kLanes + lane;
      }
    }
    return lanes;
  }
  u64 scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    add(w, i, "scratch", offset, lanes, touch);
    return lanes;
  }

 private:
  template <class Place>
  Recorded* add(const Wave& w, const Inst& i, const char* space, const Place* at, u64 lanes, const Touch& touch) {
    ++launch_.accesses;
    // Both sides of an LDS-DMA, and both accesses of a read2, belong to one execution.
    u32& count = counts_[u64{static_cast<u32>(w.id)} << 32 | i.index];
    if (last_ != clock_) ++count;
    last_ = clock_;
    if (!lanes || count > per_instruction_ || launch_.recorded.size() >= most_) return nullptr;
    constexpr const char* kAccesses[] = {"load", "store", "atomic"};
    Recorded& r = launch_.recorded.emplace_back();
    r.clock = clock_;
    r.wave = static_cast<u32>(w.id);
    r.index = i.index;
    r.space = space;
    r.access = kAccesses[static_cast<int>(touch.access)];
    r.bytes = touch.bytes;
    r.dma = touch.dma;
    r.lanes = lanes;
    r.writers.fill(-1);
    for (int lane = 0; lane < kLanes; ++lane) r.at[lane] = lanes >> lane & 1 ? at[lane] : 0;
    if (!launch_.pcs.contains(i.index)) {
      const Launch& l = *group_.launch;
      launch_.instructions[i.index] = {i.text, taken(aiter_like_sim_source_of(l.code, i.pc)),
                                       taken(aiter_like_sim_caller_of(l.code, i.pc))};
      launch_.pcs[i.index] = i.pc - l.kernel->entry;
    }
    return &r;
  }

  Workgroup& group_;
  const u32 per_instruction_, most_;
  u64 clock_ = 0, last_ = 0;
  std::array<i32, kLdsDwords> writers_;
  std::unordered_map<u64, u32> counts_;        // executions by wave and instruction
  RecordedLaunch launch_;
};

class RecordingLaunch final : public LaunchObserver {
 public:
  std::unique_ptr<Observer> begin(Workgroup& group) override {
    return group.number() == wanted().group ? std::make_unique<Recorder>(group, wanted()) : nullptr;
  }
};

LaunchObserver* make(const Launch& launch) {
  Wanted& w = wanted();
  const std::lock_guard lock(w.mutex);
  if (w.taken.size() >= w.launches) return nullptr;
  return w.group < u64{launch.grid[0]} * launch.grid[1] * launch.grid[2] ? new RecordingLaunch : nullptr;
}

std::string numbers(const auto& all) {
  List list;
  for (const auto& one : all) list.raw(std::to_string(one));
  return list.str();
}

std::string json_of(const RecordedLaunch& launch, const Recorded& r) {
  const auto& [text, source, caller] = launch.instructions.at(r.index);
  Object o;
  o.add("clock", r.clock).add("wave", u64{r.wave}).add("pc", launch.pcs.at(r.index)).add("text", text);
  o.add("source", source).add("caller", caller).add("space", std::string_view(r.space));
  o.add("access", std::string_view(r.access)).add("bytes", u64{r.bytes}).raw("dma", r.dma ? "true" : "false");
  List lanes, at, writers;
  for (u64 left = r.lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    lanes.raw(std::to_string(lane));
    at.raw(std::to_string(r.at[lane]));
    writers.raw(std::to_string(r.writers[lane]));
  }
  o.raw("lanes", lanes.str()).raw("at", at.str()).raw("writers", writers.str());
  o.add("clk", u64{r.clk}).add("conflict_clk", u64{r.conflict_clk});
  return o.add("segments_64", u64{r.segments64}).add("segments_128", u64{r.segments128}).str();
}

std::string json_of(const RecordedLaunch& launch) {
  List recorded;
  for (const Recorded& r : launch.recorded) recorded.raw(json_of(launch, r));
  Object o;
  o.add("kernel", launch.kernel).raw("grid", numbers(launch.grid)).raw("block", numbers(launch.block));
  o.add("group", launch.group).add("lds_bytes", launch.lds_bytes).add("accesses", launch.accesses);
  o.raw("arguments", numbers(launch.arguments)).raw("barriers", numbers(launch.barriers));
  return o.raw("recorded", recorded.str()).str();
}

}  // namespace

#define DEBUG_API extern "C" __attribute__((visibility("default")))

// Records that workgroup of each launch from now on, at most so many executions of an instruction by each wave, so many
// accesses and so many launches.
DEBUG_API void aiter_like_sim_trace_begin(u64 group, u32 per_instruction, u32 most, u32 launches) {
  Wanted& w = wanted();
  {
    const std::lock_guard lock(w.mutex);
    w.taken.clear();
    w.on = true;
    w.group = group;
    w.per_instruction = per_instruction;
    w.most = most;
    w.launches = launches;
  }
  aiter_like_sim_observe(make, 1);
}

// The launches that were recorded; nothing is recorded any more.
DEBUG_API char* aiter_like_sim_trace_end() {
  aiter_like_sim_observe(make, 0);
  Wanted& w = wanted();
  const std::lock_guard lock(w.mutex);
  w.on = false;
  List list;
  for (const RecordedLaunch& launch : std::exchange(w.taken, {})) list.raw(json_of(launch));
  return json::give(list.str());
}

// The phase of the banks that each lane of an LDS access of so many bytes is in.
DEBUG_API char* aiter_like_sim_trace_phases(u32 bytes, int load) {
  List list;
  for (u32 lane = 0; lane < kLanes; ++lane) list.raw(std::to_string(timing::lds_phase(lane, bytes, load != 0)));
  return json::give(list.str());
}

}  // namespace sim::debug
