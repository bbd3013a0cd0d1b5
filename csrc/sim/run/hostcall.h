// SPDX-License-Identifier: MIT
// What kernels ask of the host while they run, by ROCm's hostcall protocol: device printf, what an assert says, memory
// for malloc. On a device all waves of a queue share one buffer of packets; here each wave has its own, with its own
// copy of the arguments that lead to it, so that the host knows who asks, and no wave waits for a packet. Code compiled
// with -mprintf-kind=buffered leaves what it prints in a buffer instead, which the host reads when the wave has ended.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "run/output.h"
#include "run/wave.h"

namespace sim {

// The memory that one wave shares with the host.
struct HostChannel {
  u8* kernarg = nullptr;                       // the wave's copy of the arguments
  u8* buffer = nullptr;                        // hostcall.cpp has its layout
  u8* printed = nullptr;                       // null: the kernel does not print into a buffer
  std::vector<std::vector<u64>> messages;      // printf's messages that have not ended, by number; no cells = free
  std::string error;                           // the last text for stderr
};

// The host's side of one launch.
class HostCalls {
 public:
  // Whether the kernel can ask anything of the host: by its metadata.
  static bool needed_by(const Kernel& kernel);

  // Memory for so many workgroups at a time. Throws Fault when there is none.
  HostCalls(const Launch& launch, u64 resident_workgroups);
  ~HostCalls();
  HostCalls(const HostCalls&) = delete;

  // A workgroup's waves get their channels, before their registers are set; it has ended.
  void begin(Workgroup& group);
  void end(Workgroup& group);
  // The wave has told the host that a packet is ready. It is answered when this returns. Throws Fault for a request
  // that the simulator does not serve.
  void serve(Wave& w);

  // Memory that kernels may read, and may write, too.
  struct Place { u64 base, bytes; };
  Place arguments() const { return {reinterpret_cast<u64>(memory_), kernarg_stride_ * waves_}; }
  Place buffers() const { return {arguments().base + arguments().bytes, bytes_ - arguments().bytes}; }
  bool holds(u64 address) const { return address - reinterpret_cast<u64>(memory_) < bytes_; }

  LaunchOutput output;

 private:
  void reset(HostChannel& channel, u64 number);
  u64 answer(HostChannel& channel, u64* cells, std::string (&text)[2]);
  void read_printed(const Wave& w);

  const Launch& launch_;
  const u64 kernarg_stride_, printed_stride_;  // bytes of a wave
  u64 waves_, bytes_;                          // all resident workgroups' together
  u8* memory_ = nullptr;                       // every wave's arguments, then its buffer, then what it has printed
  std::vector<HostChannel> channels_;          // one per wave
  std::mutex mutex_;
  std::vector<u32> free_;                      // places of workgroups; needs mutex_
};

}  // namespace sim
