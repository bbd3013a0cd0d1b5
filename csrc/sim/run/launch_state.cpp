// SPDX-License-Identifier: MIT
// Argument segment, dispatch packet and initial registers, as LLVM's AMDGPU usage guide describes them for gfx942.
#include "run/launch_state.h"

#include <algorithm>
#include <cstring>

#include "run/device_heap.h"

namespace sim {
namespace {

constexpr u32 kMaxLds = 65536, kLdsGranule = 512, kMaxBlock = 1024;

template <class T>
void put(u8* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// The value of a hidden argument. HIP has no partial workgroups, so remainders are 0; services that the simulator does
// not have (queues) are null, as they are for code that does not use them. Buffers for what kernels print are
// each wave's own (run/hostcall.cpp).
u64 hidden_value(const Launch& l, std::string_view kind, u64 dynamic_lds) {
  for (int axis = 0; axis < 3; ++axis) {
    const char letter = static_cast<char>('x' + axis);
    if (kind == std::string("hidden_block_count_") + letter) return l.grid[axis];
    if (kind == std::string("hidden_group_size_") + letter) return l.block[axis];
  }
  if (kind == "hidden_grid_dims") {
    return l.grid[2] * l.block[2] > 1 ? 3 : l.grid[1] * l.block[1] > 1 ? 2 : 1;
  }
  if (kind == "hidden_dynamic_lds_size") return dynamic_lds;
  if (kind == "hidden_heap_v1") return device_heap().head();
  if (kind == "hidden_private_base") return 0x20000;             // high dwords of the apertures, as in isa/lanes.h
  if (kind == "hidden_shared_base") return 0x10000;
  for (std::string_view zero : {"hidden_remainder_", "hidden_global_offset_", "hidden_none", "hidden_hostcall_buffer",
                                "hidden_multigrid_sync_arg", "hidden_default_queue", "hidden_completion_action",
                                "hidden_queue_ptr", "hidden_printf_buffer"}) {
    if (kind.starts_with(zero)) return 0;
  }
  throw Fault("the kernel wants the hidden argument " + std::string(kind) + ", which is not supported");
}

void check_shape(const LaunchRequest& r) {
  const u64 block = u64{r.block[0]} * r.block[1] * r.block[2];
  const auto shape = [](const u32 (&x)[3]) {
    return std::to_string(x[0]) + "x" + std::to_string(x[1]) + "x" + std::to_string(x[2]);
  };
  for (u32 n : r.block) {
    if (n == 0 || n > kMaxBlock) throw BadShape("block " + shape(r.block) + " is not between 1 and 1024");
  }
  if (block > kMaxBlock) throw BadShape("block " + shape(r.block) + " has more than 1024 work-items");
  if (block > r.kernel->max_block) {             // a shape that a device can have: HIP says that the launch failed
    throw Fault("block " + shape(r.block) + " has more work-items than the kernel was compiled for (" +
                std::to_string(r.kernel->max_block) + ")");
  }
  for (int i = 0; i < 3; ++i) {
    if (u64{r.grid[i]} * r.block[i] > 0xffffffff || r.grid[i] == 0) {
      throw BadShape("grid " + shape(r.grid) + " times block " + shape(r.block) +
                     " is empty or beyond 2^32 work-items");
    }
  }
  u64 groups = 0;
  if (__builtin_mul_overflow(u64{r.grid[0]} * r.grid[1], u64{r.grid[2]}, &groups)) {
    throw BadShape("grid " + shape(r.grid) + " has more than 2^64 workgroups");
  }
  if (r.kernel->lds_bytes > kMaxLds || r.dynamic_lds_bytes > kMaxLds - r.kernel->lds_bytes) {
    throw BadShape("the launch wants " + std::to_string(r.dynamic_lds_bytes) + " bytes of LDS beside the kernel's " +
                   std::to_string(r.kernel->lds_bytes) + ", a workgroup has 65536");
  }
  if (!r.kernarg && !r.kernel->args.empty()) throw Fault("the launch has no arguments, the kernel takes some");
}

// Fields of the HSA AQL kernel dispatch packet that compiled code reads.
void fill_packet(const Launch& l, u8* packet) {
  put<u16>(packet + 0, 2);                     // header: kernel dispatch
  put<u16>(packet + 2, 3);                     // dimensions
  for (int i = 0; i < 3; ++i) {
    put<u16>(packet + 4 + 2 * i, static_cast<u16>(l.block[i]));
    put<u32>(packet + 12 + 4 * i, l.grid[i] * l.block[i]);
  }
  put<u32>(packet + 24, l.private_bytes);
  put<u32>(packet + 28, l.lds_bytes);
  put<u64>(packet + 40, reinterpret_cast<u64>(l.kernarg));
}

}  // namespace

LaunchState::LaunchState(const LaunchRequest& r) {
  check_shape(r);
  const Kernel& k = *r.kernel;
  launch.code = r.code;
  launch.kernel = r.kernel;
  std::copy(std::begin(r.grid), std::end(r.grid), launch.grid);
  std::copy(std::begin(r.block), std::end(r.block), launch.block);
  launch.lds_bytes =
      static_cast<u32>((k.lds_bytes + r.dynamic_lds_bytes + kLdsGranule - 1) / kLdsGranule * kLdsGranule);
  launch.private_bytes = k.private_bytes;
  if (k.has_dynamic_stack()) launch.private_bytes = std::max(k.private_bytes, static_cast<u32>(r.stack_bytes));

  kernarg_storage.assign(k.kernarg_bytes + kGuardBytes + 64, static_cast<u8>(kPoison));
  const u64 raw = reinterpret_cast<u64>(kernarg_storage.data());
  launch.kernarg = kernarg_storage.data() + ((raw + 63) / 64 * 64 - raw);
  // HIP copies what the kernel's metadata lists and knows no size. What the buffer leaves out stays undefined, as for
  // AITER's I8gemm 112x256, whose metadata lists three words more than its host. Half an argument is a mistake.
  for (const Arg& arg : k.args) {
    if (arg.offset < r.kernarg_bytes && arg.offset + arg.size > r.kernarg_bytes) {
      throw Fault("the launch gives " + std::to_string(r.kernarg_bytes) + " bytes of arguments, the kernel takes " +
                  std::to_string(arg.offset + arg.size));
    }
  }
  if (r.kernarg) std::memcpy(launch.kernarg, r.kernarg, std::min<u64>(r.kernarg_bytes, k.kernarg_bytes));
  for (const HiddenArg& h : k.hidden) {
    const u64 value = hidden_value(launch, h.kind, r.dynamic_lds_bytes);
    std::memset(launch.kernarg + h.offset, 0, h.size);
    std::memcpy(launch.kernarg + h.offset, &value, std::min<u32>(h.size, 8));
  }
  fill_packet(launch, packet.data());
  launch.packet = packet.data();
}

void LaunchState::open_host(u64 resident_workgroups) {
  if (!HostCalls::needed_by(*launch.kernel)) return;
  host = std::make_unique<HostCalls>(launch, resident_workgroups);
  launch.host = host.get();
}

namespace {

// User SGPRs in the order that the descriptor's property bits give them; returns how many.
u32 user_sgprs(Wave& w, const Launch& l) {
  static const std::array<u8, 256> queue{};    // compiled code finds what it reads of a queue in the hidden arguments
  const Kernel& k = *l.kernel;
  const u8* kernarg = w.host ? w.host->kernarg : l.kernarg;
  u32 n = 0;
  const auto pointer = [&](const void* p) {
    w.set_pair(static_cast<u16>(n), reinterpret_cast<u64>(p));
    n += 2;
  };
  if (k.properties & 1 << 0) throw Fault("the kernel wants a scratch buffer descriptor, which gfx942 does not have");
  if (k.properties & 1 << 1) pointer(l.packet);
  if (k.properties & 1 << 2) pointer(queue.data());
  if (k.properties & 1 << 3) pointer(kernarg);
  if (k.properties & 1 << 4) pointer(nullptr);                   // dispatch id
  if (k.properties & 1 << 5) throw Fault("the kernel wants flat_scratch_init, which gfx942 does not have");
  if (k.properties & 1 << 6) w.s[n++] = l.private_bytes;
  for (u32 i = 0; i < k.preload_dwords && n < 32; ++i, ++n) {
    std::memcpy(&w.s[n], kernarg + 4 * (k.preload_offset + i), 4);
  }
  return n;
}

void init_sgprs(Wave& w, u32 poison) {
  const Launch& l = *w.group->launch;
  const Kernel& k = *l.kernel;
  std::fill(std::begin(w.s), std::end(w.s), poison);
  // The count in rsrc2 covers the preloaded ones; the workgroup's ids follow it.
  u32 n = std::max(user_sgprs(w, l), k.rsrc2 >> 1 & 31);
  for (int i = 0; i < 3; ++i) {
    if (k.rsrc2 >> (7 + i) & 1) w.s[n++] = w.group->id[i];
  }
  if (k.rsrc2 >> 10 & 1) w.s[n++] = 0;
}

void init_vgprs(Wave& w, u32 poison) {
  const Launch& l = *w.group->launch;
  const Kernel& k = *l.kernel;
  std::fill_n(&w.v[0][0], k.arch_rows() * kLanes, poison);
  std::fill_n(&w.v[kFirstAgpr][0], k.accum_rows() * kLanes, poison);
  // v0 holds the ids of the enabled components, 10 bits each.
  const u32 components = k.rsrc2 >> 11 & 3, size = l.block[0] * l.block[1] * l.block[2];
  u64 exec = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 flat = static_cast<u32>(w.id) * kLanes + lane;
    if (flat >= size) break;
    exec |= u64{1} << lane;
    u32 ids = flat % l.block[0];
    if (components >= 1) ids |= flat / l.block[0] % l.block[1] << 10;
    if (components >= 2) ids |= flat / l.block[0] / l.block[1] << 20;
    w.v[0][lane] = ids;
  }
  w.set_pair(kExec, exec);
}

}  // namespace

void init_wave(Wave& w, u32 poison) {
  const Kernel& k = *w.group->launch->kernel;
  init_sgprs(w, poison);
  init_vgprs(w, poison);
  w.scc = true;
  w.stop = Stop::running;
  w.executed = w.waited = 0;
  const u32 r = k.rsrc1;                         // rounding and denormals, DX10_CLAMP, IEEE, FP16_OVFL
  w.mode.bits = (r >> 12 & 0xff) | (r >> 21 & 1) << 8 | (r >> 23 & 1) << 9 | (r >> 26 & 1) << 23;
  // With preloaded arguments the first 256 bytes are a prologue for hardware that cannot preload.
  w.jump(static_cast<i64>(k.entry + (k.preload_dwords ? 256 : 0)));
}

}  // namespace sim
