// SPDX-License-Identifier: MIT
// Loads retire as late as the waits allow. vmcnt retires in issue order, and so does lgkmcnt for LDS; scalar loads come
// in any order, which the seed draws.
#include "run/late.h"

#include <algorithm>

namespace sim {
namespace {

constexpr u32 kVmMax = 63, kLgkmMax = 15;      // an issue beyond these stalls until the oldest is done
constexpr u32 kSharedAperture = 1 << 16;       // high dword of LDS addresses in FLAT instructions

bool is_memory(Class c) {
  return c == Class::smem || c == Class::ds || c == Class::global || c == Class::flat || c == Class::scratch ||
         c == Class::mubuf;
}

// Whether the instruction loads into LDS: such forms have no destination.
bool is_dma(const Inst& i) {
  const Class c = i.op->spec.cls;
  const bool may = c == Class::global || c == Class::mubuf || c == Class::scratch;
  return may && i.op->spec.flags & kLoad && (i.mod.lds || i.num_writes == 0);
}

// The bits of a destination register that a d16 form loads.
u32 loaded_bits(const Inst& i) {
  if (i.op->name.ends_with("_d16_hi")) return 0xffff0000;
  return i.op->name.ends_with("_d16") ? 0x0000ffff : ~0u;
}

// Destinations that arrive: all of a scalar load, the vector ones of the others.
bool arrives(const Inst& i, const RegRange& r) {
  return r.file == RegRange::vector || i.op->spec.cls == Class::smem;
}

// Calls f(reg, is_vector) for each register that arrives.
template <class F>
void for_arriving(const Inst& i, F f) {
  for (const RegRange& r : i.writes()) {
    if (!arrives(i, r)) continue;
    for (u32 reg = r.first; reg < u32{r.first} + r.count; ++reg) f(reg, r.file == RegRange::vector);
  }
}

}  // namespace

void LateLoads::begin(u64 seed) {
  random_ = {seed};
  poison_ = static_cast<u32>(random_.next());
  flights_.clear();
}

u32 LateLoads::count(bool Flight::*counter) const {
  return static_cast<u32>(std::count_if(flights_.begin(), flights_.end(), [&](const Flight& f) { return f.*counter; }));
}

void LateLoads::before(Wave& w, const Inst& i) {
  if (!i.op) return;
  const Class c = i.op->spec.cls;
  if (c == Class::wait) {
    retire(w, i.vmcnt < kVmMax ? i.vmcnt : kVmMax, i.lgkmcnt < kLgkmMax ? i.lgkmcnt : kLgkmMax);
  } else if (c == Class::end) {
    retire(w, 0, 0);
  } else if (c == Class::flat) {
    flat_spaces_ = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (w.exec() >> lane & 1) flat_spaces_ |= w.v[i.src[0].reg + 1][lane] == kSharedAperture ? 2 : 1;
    }
  } else if (is_memory(c) && is_dma(i)) {
    lds_before_.assign(w.group->lds, w.group->lds + w.group->launch->lds_bytes);
  }
}

void LateLoads::after(Wave& w, const Inst& i) {
  if (!i.op || !is_memory(i.op->spec.cls)) return;
  Flight f;
  f.inst = &i;
  f.exec = w.exec();
  switch (i.op->spec.cls) {
    case Class::smem: f.lgkm = i.num_writes != 0; break;
    case Class::ds: f.lgkm = true; break;
    case Class::mubuf: f.vm = i.op->name != "buffer_inv"; break;
    case Class::flat:                          // compilers wait only for the spaces that they cannot exclude
      f.lgkm = flat_spaces_ & 2;
      f.vm = !f.lgkm || flat_spaces_ & 1;
      break;
    default: f.vm = true;
  }
  if (!f.vm && !f.lgkm) return;
  hold(w, f);
  flights_.push_back(std::move(f));
  retire(w, kVmMax, kLgkmMax);
}

void LateLoads::hold(Wave& w, Flight& f) {
  const u32 bits = loaded_bits(*f.inst);
  for_arriving(*f.inst, [&](u32 reg, bool vector) {
    if (!vector) {
      f.values.push_back(std::exchange(w.s[reg], poison_));
      return;
    }
    f.values.insert(f.values.end(), w.v[reg], w.v[reg] + kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (f.exec >> lane & 1) w.v[reg][lane] = (w.v[reg][lane] & ~bits) | (poison_ & bits);
    }
  });
  if (!is_dma(*f.inst)) return;
  u8* lds = w.group->lds;
  for (u32 at = 0; at < lds_before_.size(); at += 4) {
    u32 dword;
    std::memcpy(&dword, lds + at, 4);
    if (std::memcmp(lds_before_.data() + at, &dword, 4) == 0) continue;
    f.lds.emplace_back(at, dword);
    std::memcpy(lds + at, &poison_, 4);
  }
}

void LateLoads::deliver(Wave& w, const Flight& f) {
  const u32 bits = loaded_bits(*f.inst);
  const u32* value = f.values.data();
  for_arriving(*f.inst, [&](u32 reg, bool vector) {
    if (!vector) {
      w.s[reg] = *value++;
      return;
    }
    for (int lane = 0; lane < kLanes; ++lane, ++value) {
      if (f.exec >> lane & 1) w.v[reg][lane] = (w.v[reg][lane] & ~bits) | (*value & bits);
    }
  });
  for (const auto& [at, dword] : f.lds) std::memcpy(w.group->lds + at, &dword, 4);
}

// Takes one instruction off a counter and delivers it when no other counter holds it. False when none is outstanding.
bool LateLoads::retire_one(Wave& w, bool Flight::*counter) {
  std::vector<size_t> candidates;              // the oldest of those that return in order, and every scalar load
  bool ordered = false;
  for (size_t k = 0; k < flights_.size(); ++k) {
    if (!(flights_[k].*counter)) continue;
    const bool any_order = flights_[k].inst->op->spec.cls == Class::smem;
    if (any_order || !ordered) candidates.push_back(k);
    ordered |= !any_order;
  }
  if (candidates.empty()) return false;
  const size_t k = candidates[random_.next() % candidates.size()];
  flights_[k].*counter = false;
  if (flights_[k].vm || flights_[k].lgkm) return true;
  deliver(w, flights_[k]);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(k));
  return true;
}

void LateLoads::retire(Wave& w, u32 vm_left, u32 lgkm_left) {
  for (u32 n = count(&Flight::vm); n > vm_left; --n) retire_one(w, &Flight::vm);
  for (u32 n = count(&Flight::lgkm); n > lgkm_left; --n) retire_one(w, &Flight::lgkm);
}

}  // namespace sim
