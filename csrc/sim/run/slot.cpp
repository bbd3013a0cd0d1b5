// SPDX-License-Identifier: MIT
// Memory of resident workgroups and how many of them there may be.
#include "run/slot.h"

#include <sys/mman.h>

#include <algorithm>

#include "run/hostcall.h"
#include "run/launch_state.h"
#include "run/occupancy.h"

namespace sim {
namespace {

constexpr u64 kFileBytes = u64{kNumRows} * kLanes * sizeof(u32);
constexpr u64 kFileStride = kFileBytes + 5 * 4096;     // no power of two: rows of the waves in different cache sets
constexpr u64 kLdsBytes = 65536;
constexpr u64 kNumCus = 304;
constexpr u64 kResidentBytes = u64{2} << 30;           // host memory for resident workgroups of a plain launch
constexpr u64 kCooperativeBytes = u64{16} << 30;

u8* map(u64 bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Fault("out of memory for the simulated registers");
  return static_cast<u8*>(p);
}

void unmap(u8* p, u64 bytes) {
  if (p) munmap(p, bytes);
}

u32 num_waves(const Launch& l) { return (l.block[0] * l.block[1] * l.block[2] + kLanes - 1) / kLanes; }

void fill(u8* at, u64 bytes, u32 poison) {
  for (u64 i = 0; i + 4 <= bytes; i += 4) std::memcpy(at + i, &poison, 4);
}

}  // namespace

Slot::~Slot() {
  unmap(files_, kMaxWaves * kFileStride);
  unmap(lds_, kLdsBytes);
  unmap(scratch_, scratch_bytes_);
}

void Slot::begin(const Launch& launch, u64 index, u64 seed, u64* hits) {
  seed_ = seed;
  current = nullptr;
  group.launch = &launch;
  group.hits = hits;
  group.id[0] = static_cast<u32>(index % launch.grid[0]);
  group.id[1] = static_cast<u32>(index / launch.grid[0] % launch.grid[1]);
  group.id[2] = static_cast<u32>(index / launch.grid[0] / launch.grid[1]);
  random = {seed + 1 + index * 0x9e3779b9};
  // Every workgroup of a launch has the same undefined state, so results that depend on it differ between seeds only.
  const u32 poison = seed ? static_cast<u32>(Random{seed}.next()) : kPoison;

  const u64 count = num_waves(launch), lane_bytes = launch.private_bytes, scratch_bytes = lane_bytes * kLanes;
  if (!files_) files_ = map(kMaxWaves * kFileStride);
  if (!lds_) lds_ = map(kLdsBytes);
  if (scratch_bytes * count > scratch_bytes_) {
    unmap(scratch_, scratch_bytes_);
    scratch_ = nullptr;
    scratch_ = map(scratch_bytes * count);
    scratch_bytes_ = scratch_bytes * count;
  }
  group.lds = lds_;
  fill(lds_, launch.lds_bytes, poison);
  if (scratch_bytes) fill(scratch_, scratch_bytes * count, poison);
  group.waves.resize(count);
  watches.resize(kMaxWaves);
  if (seed) late.resize(kMaxWaves);
  for (u64 i = 0; i < count; ++i) {
    Wave& w = group.waves[i];
    w.v = reinterpret_cast<u32(*)[kLanes]>(files_ + i * kFileStride);
    w.group = &group;
    w.id = static_cast<int>(i);
    w.scratch = scratch_bytes ? scratch_ + i * scratch_bytes : nullptr;
    w.checks = nullptr;
    w.host = nullptr;
  }
  if (launch.host) launch.host->begin(group);
  for (u64 i = 0; i < count; ++i) {
    init_wave(group.waves[i], poison);
    if (seed) late[i].begin(seed ^ random.next());
  }
}

u64 resident_limit(const Launch& launch, bool cooperative) {
  const Kernel& k = *launch.kernel;
  const u64 per_wave = (k.arch_rows() + k.accum_rows()) * kLanes * sizeof(u32) + u64{launch.private_bytes} * kLanes;
  const u64 shadow = launch.observer ? 2 : 1;            // the checkers' state of a workgroup is about as large
  const u64 bytes = (num_waves(launch) * per_wave + launch.lds_bytes) * shadow + kLdsBytes;
  const u64 block = launch.block[0] * launch.block[1] * launch.block[2];
  const u64 device = occupancy(k, block, launch.lds_bytes).groups * kNumCus;
  if (!device) {
    throw Fault("no CU holds a workgroup of " + std::to_string(block) + " work-items with " +
                std::to_string(k.rows()) + " registers each: it has 512 per lane on each of 4 SIMDs");
  }
  if (!cooperative) return std::clamp<u64>(kResidentBytes / bytes, 1, device);
  const u64 total = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  if (total > device) {
    throw Fault("a cooperative launch of " + std::to_string(total) + " workgroups: the device holds " +
                std::to_string(device) + " of this kernel at once");
  }
  if (total > kCooperativeBytes / bytes) throw Fault("a cooperative launch needs more memory than the simulator takes");
  return total;
}

}  // namespace sim
