// SPDX-License-Identifier: MIT
// An observer in a library of its own, as test_observer.py loads it: one line of text per call.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "load/loader.h"
#include "run/placement.h"

using namespace sim;

namespace {

std::mutex mutex;
std::string text;
u32 watched_of = 1;                            // every how many-th workgroup is watched
u64 (*ranges_of)(u64*, u64) = nullptr;         // aiter_like_sim_ranges
u64 kept_lanes = kAllLanes;                    // the lanes whose accesses to memory go on

class Trace final : public Observer {
 public:
  explicit Trace(Workgroup& group) : group_(group) {
    for (const Wave& w : group.waves) {
      const Placement p = placement(w);
      line(w, "wave", {p.xcd, p.cu, p.simd, p.slot});
    }
  }
  ~Trace() override {
    const std::lock_guard lock(mutex);
    text += lines_;
  }

  void before(Wave& w, const Inst& i) override { line(w, i.op->name.data(), {i.pc, w.exec(), w.v[0][0]}); }
  void after(Wave& w, const Inst& i) override {
    if (w.stop == Stop::ended) line(w, "ended", {i.pc});
  }
  void barrier() override { line(group_.waves[0], "barrier", {}); }
  u64 global(Wave& w, const Inst&, const u64* address, u64 lanes, const Touch& touch) override {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lanes >> lane & 1) line(w, touch.access == Access::load ? "load" : "store", {address[lane], touch.bytes});
    }
    return lanes & kept_lanes;
  }
  u64 lds(Wave& w, const Inst&, const u32* offset, u64 lanes, const Touch& touch) override {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lanes >> lane & 1) line(w, touch.access == Access::load ? "ds_load" : "ds_store", {offset[lane]});
    }
    return lanes;
  }
  bool scalar(Wave& w, const Inst&, u64 address, u32 bytes) override {
    line(w, "scalar", {address, bytes});
    return true;
  }

 private:
  void line(const Wave& w, const char* event, std::initializer_list<u64> values) {
    lines_ += std::to_string(group_.number()) + " " + std::to_string(w.id) + " " + event;
    for (u64 value : values) lines_ += " " + std::to_string(value);
    lines_ += "\n";
  }

  Workgroup& group_;
  std::string lines_;
};

std::string hexadecimal(const u8* data, u64 bytes) {
  std::string digits;
  for (u64 i = 0; i < bytes; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", data[i]);
    digits += two;
  }
  return digits;
}

// The known ranges of memory that the arguments have the addresses of: " base contents" each, as they are now.
std::string pointed_at(const u8* arguments, u32 bytes) {
  if (ranges_of == nullptr) return "";
  std::vector<u64> ranges(2 * ranges_of(nullptr, 0));
  ranges_of(ranges.data(), ranges.size() / 2);
  std::string found;
  for (u32 offset = 0; offset + 8 <= bytes; offset += 8) {
    u64 word;
    std::memcpy(&word, arguments + offset, 8);
    for (size_t i = 0; i < ranges.size(); i += 2) {
      if (word != 0 && word == ranges[i]) {
        found += " " + std::to_string(word) + " " + hexadecimal(reinterpret_cast<const u8*>(word), ranges[i + 1]);
      }
    }
  }
  return found;
}

// A line per launch: kernel, grid, block, LDS bytes, explicit arguments in hexadecimal digits, what they point at.
void record(const Launch& launch) {
  u32 bytes = 0;
  for (const Arg& arg : launch.kernel->args) bytes = std::max(bytes, arg.offset + arg.size);
  std::string line = launch.kernel->name;
  for (u32 number : {launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], launch.lds_bytes}) {
    line += " " + std::to_string(number);
  }
  line += " " + hexadecimal(launch.kernarg, bytes) + pointed_at(launch.kernarg, bytes);
  const std::lock_guard lock(mutex);
  text += line + "\n";
}

struct TraceLaunch final : LaunchObserver {
  std::unique_ptr<Observer> begin(Workgroup& group) override {
    return group.number() % watched_of ? nullptr : std::make_unique<Trace>(group);
  }
};

}  // namespace

extern "C" {

LaunchObserver* trace_launch(const Launch&) { return new TraceLaunch; }

LaunchObserver* record_launch(const Launch& launch) {
  record(launch);
  return nullptr;                              // nobody watches it
}

void trace_begin(u32 every, u64 lanes) {
  text.clear();
  watched_of = every;
  kept_lanes = lanes;
}

void trace_ranges(u64 (*ranges)(u64*, u64)) { ranges_of = ranges; }

const char* trace_text() { return text.c_str(); }

}  // extern "C"
