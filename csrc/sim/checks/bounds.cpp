// SPDX-License-Identifier: MIT
// Bounds: every lane's access must lie in one known allocation that is alive and, for stores, writable; in the
// workgroup's LDS; in the lane's scratch. The table is a snapshot taken when the launch starts.
#include <algorithm>
#include <bit>

#include "checks/state.h"
#include "run/hostcall.h"

namespace sim {
namespace {

constexpr u32 kNoRange = ~0u;

// The end of an access at the top of the address space wraps and lies before its begin.
bool covers(const Range& r, u64 begin, u64 end) {
  return begin >= r.base && begin <= end && end <= r.base + r.bytes;
}

struct Span { u64 begin, end; };               // bytes of one access, or of all lanes of one

// Calls f(index) for the ranges that hold `address`, innermost first, until it returns true.
template <class F>
void for_ranges_at(const LaunchChecks& c, u64 address, F f) {
  const auto after = std::upper_bound(c.ranges.begin(), c.ranges.end(), address,
                                      [](u64 a, const Range& r) { return a < r.base; });
  for (i64 k = after - c.ranges.begin() - 1; k >= 0 && c.reach[k] > address; --k) {
    if (address < c.ranges[k].base + c.ranges[k].bytes && f(static_cast<u32>(k))) return;
  }
}

u32 find_range(const LaunchChecks& c, Span s, bool store) {
  u32 found = kNoRange;
  for_ranges_at(c, s.begin, [&](u32 k) {
    const Range& r = c.ranges[k];
    if (!covers(r, s.begin, s.end) || r.freed || (store && !r.writable)) return false;
    found = k;
    return true;
  });
  return found;
}

// Memory is allocated in dwords, so a dword that holds a byte of a range may be touched as long as only that counts.
bool holds_any(const LaunchChecks& c, u64 address, bool store) {
  if (address % 4) return false;
  for (u64 at = address; at < address + 4; ++at) {
    if (find_range(c, {at, at + 1}, store) != kNoRange) return true;
  }
  return false;
}

// Compilers make an atomic of 8 or 16 bits of a dword's: they load the dword that has the value, and write back what is
// beside it by compare-and-swap, at the same place and soon afterwards.
bool is_narrow_atomic(const LaunchChecks& c, const Inst& i) {
  constexpr u32 kNear = 32;
  const auto swaps = [](const Inst& one) {
    return one.op && (one.op->name == "global_atomic_cmpswap" || one.op->name == "flat_atomic_cmpswap");
  };
  if (swaps(i)) return true;
  if (!i.op || (i.op->name != "global_load_dword" && i.op->name != "flat_load_dword")) return false;
  const auto same = [](const Operand& a, const Operand& b) { return a.kind == b.kind && a.reg == b.reg; };
  const bool based = i.num_src > 1;             // GLOBAL has a base, which comes after the data of an atomic
  const std::vector<Inst>& all = c.launch->code->insts;
  for (u32 n = i.index + 1; n < all.size() && n <= i.index + kNear; ++n) {
    const Inst& other = all[n];
    if (swaps(other) && same(other.src[0], i.src[0]) && other.mod.offset == i.mod.offset &&
        (other.num_src > 2) == based && (!based || same(other.src[2], i.src[1])))
      return true;
  }
  return false;
}

std::string bytes_text(u64 n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

// Why no range allows the access, in words, and how to repair it.
std::string reason(const LaunchChecks& c, Span s) {
  const Range* hit = nullptr;
  for_ranges_at(c, s.begin, [&](u32 k) {
    const Range& r = c.ranges[k];
    if (!hit || hit->freed) hit = &r;
    return !r.freed;
  });
  const std::string at = "address " + hex(s.begin);
  if (hit && hit->freed) return at + " = `" + hit->name + "` + " + std::to_string(s.begin - hit->base) +
                                ", which has been freed; fix: free after the last kernel that uses it";
  if (hit && s.end > hit->base + hit->bytes)
    return at + " = `" + hit->name + "` + " + std::to_string(s.begin - hit->base) + " runs " +
           bytes_text(s.end - hit->base - hit->bytes) + " past its end (" + bytes_text(hit->bytes) +
           "); fix: mask the lanes beyond the end";
  if (hit) return at + " = `" + hit->name + "` + " + std::to_string(s.begin - hit->base) +
                  ", which is read-only for this kernel; fix: pass it as an output";
  const Range *below = nullptr, *above = nullptr;
  for (const Range& r : c.ranges) {
    if (r.base + r.bytes <= s.begin && (!below || r.base + r.bytes > below->base + below->bytes)) below = &r;
    if (r.base > s.begin && (!above || r.base < above->base)) above = &r;
  }
  const u64 past = below ? s.begin - below->base - below->bytes : ~u64{0};
  const u64 before = above ? above->base - s.begin : ~u64{0};
  constexpr u64 kNear = 1 << 20;
  if (std::min(past, before) > kNear) return at + " is in no known allocation; fix: check the pointer";
  const Range& near = past <= before ? *below : *above;
  return at + " is " + bytes_text(std::min(past, before)) + (past <= before ? " past the end of `" : " before `") +
         near.name + "` (" + bytes_text(near.bytes) + (near.freed ? ", freed" : "") +
         "); fix: mask the lanes outside it";
}

const char* verb(Access a) { return a == Access::load ? "loads" : a == Access::store ? "stores" : "updates"; }

void report_lanes(Wave& w, const Inst& i, u64 lanes, u64 address, const std::string& what, bool note = false) {
  if (launch_checks(w).first("bounds", i, note)) add_report(w, i, "bounds", lanes, address, what, nullptr, note);
}

Span span_of(const u64* address, u64 lanes, u32 bytes) {
  u64 low = ~u64{0}, high = 0;
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      low = std::min(low, address[lane]);
      high = std::max(high, address[lane]);
    }
  } else {
    for (u64 left = lanes; left; left &= left - 1) {
      const u64 a = address[std::countr_zero(left)];
      low = std::min(low, a);
      high = std::max(high, a);
    }
  }
  return {low, high + bytes};
}

// The slow way looks at each lane by itself. It returns the lanes that may go on, and sets range[lane] to their ranges.
u64 check_lanes(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch, u32* range) {
  const LaunchChecks& c = launch_checks(w);
  u64 bad = 0;
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    range[lane] = find_range(c, {address[lane], address[lane] + touch.bytes}, touch.access != Access::load);
    if (range[lane] == kNoRange) bad |= u64{1} << lane;  // or a narrow atomic's, whose dword is not tracked
    else w.checks->range_cache[i.index % 32] = range[lane];
  }
  if (bad && touch.bytes == 4 && is_narrow_atomic(c, i)) {
    for (u64 left = bad; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (holds_any(c, address[lane], touch.access != Access::load)) bad &= ~(u64{1} << lane);
    }
  }
  if (!bad || !c.on(kCheckBounds)) return lanes;
  const u64 at = address[first_lane(bad)];
  report_lanes(w, i, bad, at, std::string(verb(touch.access)) + " " + bytes_text(touch.bytes) + " in lane " +
                                  std::to_string(first_lane(bad)) + ": " + reason(c, {at, at + touch.bytes}));
  return lanes & ~bad;
}

u64 within(const u32* offset, u64 lanes, u32 bytes, u32 size) {
  u64 inside = 0;
  for (int lane = 0; lane < kLanes; ++lane) inside |= u64{u64{offset[lane]} + bytes <= size} << lane;
  return lanes & inside;
}

void report_offset(Wave& w, const Inst& i, u64 bad, const u32* offset, const Touch& touch, const std::string& where) {
  const u32 at = offset[first_lane(bad)];
  report_lanes(w, i, bad, at, std::string(verb(touch.access)) + " " + bytes_text(touch.bytes) + " in lane " +
                                  std::to_string(first_lane(bad)) + " at " + where + ": byte " + std::to_string(at));
}

u64 check_ranges(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) {
  const LaunchChecks& c = launch_checks(w);
  if (!lanes || !(c.on(kCheckBounds) || c.on(kCheckUninit))) return lanes;
  const bool store = touch.access != Access::load;
  const Span all = span_of(address, lanes, touch.bytes);
  u32 one = w.checks->range_cache[i.index % 32];
  const bool hit = one < c.ranges.size() && covers(c.ranges[one], all.begin, all.end) && !c.ranges[one].freed &&
                   (c.ranges[one].writable || !store);
  u32 range[kLanes];
  u64 allowed = lanes;
  bool tracked = hit && c.ranges[one].defined;
  if (!hit) {
    allowed = check_lanes(w, i, address, lanes, touch, range);
    for (u64 left = allowed; left; left &= left - 1) {
      const u32 k = range[std::countr_zero(left)];
      tracked |= k != kNoRange && c.ranges[k].defined;
    }
  }
  if (!c.on(kCheckUninit)) return allowed;
  if (!tracked) {
    uninit_memory(w, i, lanes, allowed, touch, nullptr, true);
    return allowed;
  }
  Shadow bytes;
  for (u64 left = allowed; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 k = hit ? one : range[lane];
    u8* defined = k == kNoRange ? nullptr : c.ranges[k].defined;
    bytes.written[lane] = defined ? defined + (address[lane] - c.ranges[k].base) : nullptr;
  }
  uninit_memory(w, i, lanes, allowed, touch, &bytes, true);
  return allowed;
}

bool check_scalar_range(Wave& w, const Inst& i, u64 address, u32 bytes) {
  const LaunchChecks& c = launch_checks(w);
  if (!c.on(kCheckBounds)) return true;
  u32& cached = w.checks->range_cache[i.index % 32];
  if (cached < c.ranges.size() && covers(c.ranges[cached], address, address + bytes) && !c.ranges[cached].freed)
    return true;
  // Compilers widen a scalar load whose start is aligned. They never use what such a load reads beyond the end.
  const u32 found = find_range(c, {address, address + (address % 16 == 0 ? 4 : bytes)}, false);
  if (found != kNoRange) {
    cached = found;
    return true;
  }
  if (bytes == 4 && holds_any(c, address, false)) return true;  // there are no scalar loads of less
  report_lanes(w, i, 1, address, "loads " + bytes_text(bytes) + ": " + reason(c, {address, address + bytes}));
  return false;
}

}  // namespace

void bounds_begin(LaunchChecks& c) {
  const Launch& l = *c.launch;
  c.ranges = memory().snapshot();
  const auto add = [&](const void* base, u64 bytes, const char* name, bool writable) {
    if (base && bytes) c.ranges.push_back({reinterpret_cast<u64>(base), bytes, name, writable});
  };
  // Scalar loads may fetch a few dwords beyond the last argument.
  add(l.kernarg, (u64{l.kernel->kernarg_bytes} + 63) / 64 * 64, "kernel arguments", false);
  add(l.packet, 64, "dispatch packet", false);
  if (l.host) {
    const HostCalls::Place arguments = l.host->arguments(), buffers = l.host->buffers();
    add(reinterpret_cast<const void*>(arguments.base), arguments.bytes, "kernel arguments", false);
    add(reinterpret_cast<const void*>(buffers.base), buffers.bytes, "hostcall buffer", true);
  }
  add(l.code->image, l.code->image_bytes, "code object", true);
  std::sort(c.ranges.begin(), c.ranges.end(), [](const Range& a, const Range& b) {
    return a.base != b.base ? a.base < b.base : a.bytes > b.bytes;
  });
  u64 reach = 0;
  for (const Range& r : c.ranges) c.reach.push_back(reach = std::max(reach, r.base + r.bytes));
}

std::string describe(const LaunchChecks& c, u64 address) {
  std::string text = "no known allocation";
  for_ranges_at(c, address, [&](u32 k) {
    text = "`" + c.ranges[k].name + "` + " + std::to_string(address - c.ranges[k].base);
    return !c.ranges[k].freed;
  });
  return text;
}

u64 Checkers::global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) {
  w.checks->flat_spaces |= 1;
  if (launch_.on(kCheckSanity)) lanes = sanity_memory(w, i, address, lanes, touch);
  lanes = check_ranges(w, i, address, lanes, touch);
  if (launch_.on(kCheckGlobalRace)) race_access(w, i, address, lanes, touch);
  return lanes;
}

u64 Checkers::lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) {
  w.checks->flat_spaces |= 2;
  const u32 size = w.group->launch->lds_bytes;
  const u64 inside = within(offset, lanes, touch.bytes, size);
  if (inside != lanes && launch_.on(kCheckBounds)) {
    report_offset(w, i, lanes & ~inside, offset, touch,
                  "LDS beyond the workgroup's " + bytes_text(size) + " (reads give 0, writes are lost)");
  }
  if (inside && launch_.on(kCheckSanity)) sanity_lds(w, i, offset, inside, touch);
  if (inside && (launch_.on(kCheckWait) || launch_.on(kCheckLdsRace))) lds_access(w, i, offset, inside, touch);
  if (launch_.on(kCheckUninit)) {
    Shadow bytes;
    WorkgroupChecks& g = *state_;
    for (int lane = 0; lane < kLanes; ++lane) bytes.written[lane] = g.lds.data() + offset[lane];
    uninit_memory(w, i, lanes, inside, touch, &bytes, false);
  }
  return inside;
}

u64 Checkers::scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) {
  w.checks->flat_spaces |= 1;
  const u32 size = w.group->launch->private_bytes;
  const u64 inside = within(offset, lanes, touch.bytes, size);
  if (inside != lanes && launch_.on(kCheckBounds)) {
    report_offset(w, i, lanes & ~inside, offset, touch, "scratch beyond the lane's " + bytes_text(size));
  }
  if (launch_.on(kCheckUninit)) {
    Shadow bytes;
    for (u64 lane = 0; lane < kLanes; ++lane)
      bytes.written[lane] = w.checks->scratch.data() + lane * size + offset[lane];
    uninit_memory(w, i, lanes, inside, touch, &bytes, false);
  }
  return inside;
}

bool Checkers::scalar(Wave& w, const Inst& i, u64 address, u32 bytes) {
  if (!check_scalar_range(w, i, address, bytes)) return false;
  if (launch_.on(kCheckGlobalRace)) {
    const u32 flags = i.op->spec.flags;
    const Access access = flags & kAtomic ? Access::atomic : flags & kStore ? Access::store : Access::load;
    race_access(w, i, &address, 1, {.access = access, .bytes = static_cast<u8>(bytes)});
  }
  return true;
}

void Checkers::disputed_range(Wave& w, const Inst& i, u64 lanes) {
  if (!launch_.on(kCheckBounds)) return;
  report_lanes(w, i, lanes, 0,
               "is out of the descriptor's range only because soffset counts, as it does on the hardware; the CDNA3 "
               "ISA document's text checks without it; fix: put the whole offset into voffset", launch_.notes());
}

}  // namespace sim
