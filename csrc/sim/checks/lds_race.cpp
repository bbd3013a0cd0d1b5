// SPDX-License-Identifier: MIT
// LDS accesses of different waves with no barrier between them, or with a barrier that came before the writer's wait.
// A barrier publishes the writes that their waves have waited for before it opens; it ends every read.
#include <algorithm>
#include <bit>

#include "checks/state.h"

namespace sim {
namespace {

// One access: the bytes of each dword that each lane touches.
struct Visit {
  Wave& w;
  const Inst& inst;
  LdsShadow& shadow;
  const Touch& touch;
  u32 own;                                     // shadow word of this access without its bytes
  u32 stamp() const { return own >> kStampShift; }
};

u32 wave_of(u32 word) { return (word & kWaveBits) >> kWaveShift; }

void report(const Visit& v, const Inst* other, int lane, u32 dword, const std::string& what, const char* check,
            const std::string& fix, bool demanded_only = false) {
  LaunchChecks& checks = launch_checks(v.w);
  const bool note = demanded_only && checks.notes();
  if (!checks.first(check, v.inst, note)) return;
  add_report(v.w, v.inst, check, u64{1} << lane, 4 * u64{dword},
             what + " (LDS byte " + std::to_string(4 * dword) + ", lane " + std::to_string(lane) + "); " + fix, other,
             note);
}

const char* verb(const Visit& v) { return v.touch.access == Access::load ? "reads" : "writes"; }

// `word` is the last write of a dword that this access touches; `word` is not known to be published.
void against_write(const Visit& v, int lane, u32 dword, u32 bytes, u32 word) {
  const u32 stamp = word >> kStampShift;
  if (!(word & bytes & kMaskBits) || !v.shadow.known(stamp)) return;
  const LdsRecord& r = v.shadow.record(stamp);
  const LaunchChecks& checks = launch_checks(v.w);
  const bool mine = r.wave == v.w.id;
  if (r.published || (mine && (!r.dma || r.retired))) return;
  if (r.atomic && v.touch.access == Access::atomic) return;
  const std::string producer = std::string(r.dma ? " what the LDS-DMA of " : " what ") + "wave " +
                               std::to_string(r.wave) + " wrote at " + place_of(v.w, *r.inst);
  const Wave& writer = v.w.group->waves[r.wave];
  if (mine || stamp < v.shadow.epoch) {        // no barrier is missing, a wait is
    if (!checks.on(kCheckWait)) return;
    const std::string late = std::string("fix: s_waitcnt ") + (r.dma ? "vmcnt(0)" : "lgkmcnt(0)");
    const std::string fix = (r.retired ? late : wait_for_record(writer, stamp)) + (mine ? "" : " before the s_barrier");
    // A CU executes its waves' LDS instructions in the order in which they issue, and shipped kernels rely on that.
    const bool in_order = !mine && !r.dma;
    const std::string when = mine ? "" : " before the barrier";
    const std::string whose = in_order ? ", as the CDNA3 ISA document demands" : "";
    report(v, r.inst, lane, dword, verb(v) + producer + " and has not waited for" + when + whose, "wait", fix,
           in_order);
  } else if (checks.on(kCheckLdsRace)) {
    report(v, r.inst, lane, dword, verb(v) + producer + " with no barrier between", "lds_race",
           "fix: s_waitcnt in wave " + std::to_string(r.wave) + ", then s_barrier in all waves");
  }
}

void against_read(const Visit& v, int lane, u32 dword, u32 bytes, u32 word) {
  const u32 stamp = word >> kStampShift;
  if (!launch_checks(v.w).on(kCheckLdsRace)) return;
  if (!(word & bytes & kMaskBits) || stamp < v.shadow.epoch || !v.shadow.known(stamp)) return;
  const bool mine = wave_of(word) == u32(v.w.id);
  if (mine && !(word & kMany)) return;
  if (word & kMany && bytes != kMaskBits) return;   // the bytes of several readers are merged: not certain
  const LdsRecord& r = v.shadow.record(stamp);
  if (r.atomic && v.touch.access == Access::atomic) return;
  report(v, r.inst, lane, dword,
         (mine ? "writes what another wave also read besides " : "writes what wave " + std::to_string(r.wave) +
          " reads at ") + place_of(v.w, *r.inst) + " with no barrier between",
         "lds_race", "fix: s_barrier between the read and the write");
}

// Whether memory already holds the dword that the lane is about to store: two waves may write the same value.
bool stores_same(const Visit& v, int lane, u32 offset) {
  if (v.touch.access != Access::store || (v.touch.data == kNoRow && !v.touch.values)) return false;
  const Stored value = stored_by(v.w, v.touch, lane);
  return std::memcmp(v.w.group->lds + offset, &value, v.touch.bytes) == 0;
}

u32 merged_reader(const LdsShadow& s, u32 own, u32 bytes, u32 old) {
  if (old >> kStampShift < s.epoch) return own | bytes;
  const u32 many = (old ^ own) & kWaveBits ? kMany : old & kMany;
  return own | bytes | (old & kMaskBits) | many;
}

u32 merged_writer(const LdsShadow& s, u32 own, u32 bytes, u32 old) {
  const bool joins = old >> kStampShift >= s.safe && !((old ^ own) & (kWaveBits | kDma));
  return own | bytes | (joins ? old & kMaskBits : 0);
}

// The general case, dword by dword with byte masks.
void visit_lane(const Visit& v, int lane, u32 offset) {
  LdsShadow& s = v.shadow;
  const bool writes = v.touch.access != Access::load, reads = v.touch.access != Access::store;
  const bool same = writes && stores_same(v, lane, offset);
  const u32 end = offset + v.touch.bytes;
  for (u32 dword = offset / 4; dword * 4 < end; ++dword) {
    u32 bytes = kMaskBits;
    if (offset > dword * 4) bytes = bytes << (offset - dword * 4) & kMaskBits;
    if (end < dword * 4 + 4) bytes &= kMaskBits >> (dword * 4 + 4 - end);
    const u32 writer = s.writer[dword];
    if (writer >> kStampShift >= s.safe && !same && writer >> kStampShift != v.stamp())
      against_write(v, lane, dword, bytes, writer);
    if (writes) {
      if (!same) against_read(v, lane, dword, bytes, s.reader[dword]);
      s.writer[dword] = merged_writer(s, v.own, bytes, writer);
    }
    if (reads) s.reader[dword] = merged_reader(s, v.own, bytes, s.reader[dword]);
  }
}

// Whole aligned dwords. The result is false when some lane needs the general case; then nothing has changed.
template <int N>
bool visit_dwords(const Visit& v, const u32* dword) {
  LdsShadow& s = v.shadow;
  const u32 safe = s.safe << kStampShift, epoch = s.epoch << kStampShift, own = v.own;
  u32 *writer = s.writer.data(), *reader = s.reader.data();
  u32 bad = 0;
  if (v.touch.access == Access::load) {
    for (int lane = 0; lane < kLanes; ++lane)
      for (int k = 0; k < N; ++k) {
        const u32 old = writer[dword[lane] + k];
        bad |= u32{old >= safe} & u32{((old ^ own) & (kWaveBits | kDma)) != 0};
      }
    if (bad) return false;
    for (int lane = 0; lane < kLanes; ++lane)
      for (int k = 0; k < N; ++k) {
        const u32 old = reader[dword[lane] + k];
        const u32 many = (old ^ own) & kWaveBits ? kMany : old & kMany;
        reader[dword[lane] + k] = own | kMaskBits | (old >= epoch ? many : 0);
      }
  } else {
    for (int lane = 0; lane < kLanes; ++lane)
      for (int k = 0; k < N; ++k) {
        const u32 old = writer[dword[lane] + k], read = reader[dword[lane] + k];
        bad |= u32{old >= safe} & u32{((old ^ own) & (kWaveBits | kDma)) != 0};
        bad |= u32{read >= epoch} & u32{((read ^ own) & kWaveBits) != 0 || (read & kMany) != 0};
      }
    if (bad) return false;
    for (int lane = 0; lane < kLanes; ++lane)
      for (int k = 0; k < N; ++k) writer[dword[lane] + k] = own | kMaskBits;
  }
  return true;
}

bool visit_fast(const Visit& v, const u32* offset, u64 lanes) {
  if (v.touch.access == Access::atomic || v.touch.bytes % 4 || lanes == 0) return false;
  // Inactive lanes repeat an active one, so that the loops need no mask.
  alignas(64) u32 dword[kLanes];
  const int any = first_lane(lanes);
  u32 unaligned = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const u32 at = lanes >> lane & 1 ? offset[lane] : offset[any];
    unaligned |= at & 3;
    dword[lane] = at / 4;
  }
  if (unaligned) return false;
  switch (v.touch.bytes) {
    case 4: return visit_dwords<1>(v, dword);
    case 8: return visit_dwords<2>(v, dword);
    case 12: return visit_dwords<3>(v, dword);
    case 16: return visit_dwords<4>(v, dword);
    default: return false;
  }
}

void forget(LdsShadow& s) {                    // all stamps are used up, so the shadow starts again without any access
  std::fill(s.writer.begin(), s.writer.end(), 0);
  std::fill(s.reader.begin(), s.reader.end(), 0);
  s.records.clear();
  s.base = s.safe = s.epoch = 1;
}

}  // namespace

void lds_begin(Workgroup& g) {
  LdsShadow& s = g.checks->lds_shadow;
  const size_t dwords = g.launch->lds_bytes / 4 + 1;
  if (s.writer.size() < dwords) s.writer.resize(dwords, 0), s.reader.resize(dwords, 0);
  if (s.next() > kMaxStamp / 2) forget(s);
  s.base = s.safe = s.epoch = s.next();
  s.records.clear();
}

void lds_access(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) {
  LdsShadow& s = w.group->checks->lds_shadow;
  if (s.next() >= kMaxStamp) forget(s);
  const u32 own = s.next() << kStampShift | static_cast<u32>(w.id) << kWaveShift | (touch.dma ? kDma : 0);
  const Visit v{w, i, s, touch, own};
  s.records.push_back({&i, lanes, static_cast<u8>(w.id), touch.access == Access::atomic, touch.dma,
                       touch.access == Access::load});
  if (visit_fast(v, offset, lanes)) return;
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    visit_lane(v, lane, offset[lane]);
  }
}

void lds_barrier(Workgroup& g) {
  LdsShadow& s = g.checks->lds_shadow;
  bool all = true;
  for (u32 stamp = s.safe; stamp < s.next(); ++stamp) {
    LdsRecord& r = s.record(stamp);
    r.published |= r.retired || r.read;
    if (all && r.published) s.safe = stamp + 1;
    else all = false;
  }
  s.epoch = s.next();
  if (all) {                                   // nobody can ask for these records again
    s.base = s.safe = s.epoch;
    s.records.clear();
  }
}

}  // namespace sim
