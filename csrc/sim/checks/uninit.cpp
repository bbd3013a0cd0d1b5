// SPDX-License-Identifier: MIT
// Use of values that nobody wrote: definedness bits of registers, LDS, scratch and hipMalloc memory. Undefined values
// may be moved and computed with; the checker reports them in an address, a branch, EXEC, or a store that others can
// see.
#include <algorithm>
#include <bit>

#include "checks/state.h"
#include "isa/dpp.h"

namespace sim {
namespace {

bool is_memory(Class c) {
  return c == Class::ds || c == Class::global || c == Class::flat || c == Class::scratch || c == Class::mubuf;
}

// Operands [first, last) of `src` are data; the rest form the address.
std::pair<int, int> data_operands(const Inst& i) {
  const Spec& s = i.op->spec;
  if (s.cls == Class::ds) return {s.flags & kReadsM0 ? 0 : 1, i.num_src};   // with M0: addtid forms, no address operand
  if (!(s.flags & (kStore | kAtomic))) return {0, 0};
  return s.cls == Class::mubuf ? std::pair{0, 1} : std::pair{1, 2};
}

void define(Undefined& u, u16 row, u64 lanes) { u.lanes[row] &= ~lanes; }

// Reports undefined lanes of a vector operand, once: afterwards they count as defined.
void use_vector(Wave& w, const Inst& i, const Operand& o, u64 exec, const char* as) {
  Undefined& u = w.checks->undefined;
  for (u32 k = 0; k < o.dwords; ++k) {
    const u16 row = static_cast<u16>(o.reg + k);
    const u64 lanes = u.lanes[row] & exec;
    if (!lanes) continue;
    uninit_report(w, i, lanes, std::string(as) + " " + name_of(w, {RegRange::vector, 1, row}), u.origin[row]);
    define(u, row, lanes);
  }
}

void use_scalar(Wave& w, const Inst& i, u16 first, u32 count, const char* as) {
  Undefined& u = w.checks->undefined;
  for (u16 reg = first; reg < first + count; ++reg) {
    if (!u.scalar[reg]) continue;
    uninit_report(w, i, w.exec(), std::string(as) + " " + name_of(w, {RegRange::scalar, 1, reg}), u.scalar_origin[reg]);
    u.scalar[reg] = 0;
  }
}

void use_address(Wave& w, const Inst& i, const Operand& o) {
  if (o.kind == Kind::vgpr) use_vector(w, i, o, w.exec(), "takes its address from");
  if (o.kind == Kind::sgpr) use_scalar(w, i, o.reg, o.dwords, "takes its address from");
}

void check_address(Wave& w, const Inst& i) {
  const Spec& s = i.op->spec;
  const bool exchange = s.cls == Class::ds && !(s.flags & (kLoad | kStore | kAtomic));   // permutes: lanes, not memory
  if (exchange || !w.exec()) return;
  const auto [first, last] = data_operands(i);
  for (int k = 0; k < i.num_src; ++k) {
    if (k < first || k >= last) use_address(w, i, i.src[k]);
  }
  if (s.flags & kReadsM0 || i.mod.lds) use_scalar(w, i, kM0, 1, "takes its LDS address from");
}

// vccz is known when some defined bit is set.
bool zero_unknown(const Wave& w, u16 pair) {
  const Undefined& u = w.checks->undefined;
  const u64 unknown = u64{u.scalar[pair + 1]} << 32 | u.scalar[pair];
  return unknown && !(w.pair(pair) & ~unknown);
}

void check_branch(Wave& w, const Inst& i) {
  Undefined& u = w.checks->undefined;
  const u32 flags = i.op->spec.flags;
  if (flags & kReadsScc && u.scc) {
    uninit_report(w, i, w.exec(), "branches on SCC", u.scc_origin);
    u.scc = false;
  }
  if (flags & kReadsVcc && zero_unknown(w, kVcc)) use_scalar(w, i, kVcc, 2, "branches on");
  for (int k = 0; k < i.num_src; ++k) {
    if (i.src[k].kind == Kind::sgpr) use_scalar(w, i, i.src[k].reg, i.src[k].dwords, "jumps to");
  }
  for (const RegRange& r : i.writes()) {
    if (r.file == RegRange::scalar) std::fill_n(&u.scalar[r.first], r.count, 0);
  }
}

struct Sources { u64 lanes = 0; u32 scalar = 0; const Origin* origin = nullptr; };

Sources undefined_sources(const Undefined& u, const Inst& i) {
  Sources s;
  for (const RegRange& r : i.reads()) {
    for (u32 reg = r.first; reg < u32{r.first} + r.count; ++reg) {
      const bool vector = r.file == RegRange::vector;
      const bool undefined = vector ? u.lanes[reg] != 0 : u.scalar[reg] != 0;
      if (!undefined) continue;
      if (vector) s.lanes |= u.lanes[reg];
      else s.scalar |= u.scalar[reg];
      if (!s.origin) s.origin = vector ? &u.origin[reg] : &u.scalar_origin[reg];
    }
  }
  if (i.op->spec.flags & kReadsScc && u.scc) {
    s.scalar |= 1;
    if (!s.origin) s.origin = &u.scc_origin;
  }
  return s;
}

// s_movrels and s_movreld: one register number comes from M0, so what the text names says nothing.
void compute_indirect(Wave& w, const Inst& i) {
  Undefined& u = w.checks->undefined;
  use_scalar(w, i, kM0, 1, "indexes registers with");
  const u32 first = i.dst[0].reg + (i.op->name.find("movreld") != std::string_view::npos ? w.s[kM0] : 0);
  for (u32 reg = first; reg < first + i.dst[0].dwords && reg < kNumScalars; ++reg) u.scalar[reg] = 0;
}

void compute(Wave& w, const Inst& i) {
  Undefined& u = w.checks->undefined;
  const Spec& spec = i.op->spec;
  if (spec.cls == Class::salu && spec.flags & kReadsM0) return compute_indirect(w, i);
  const bool ignores_exec = spec.flags & kIgnoresExec;
  const u64 exec = ignores_exec ? kAllLanes : w.exec();
  const Sources s = undefined_sources(u, i);
  const bool one_lane = ignores_exec && spec.cls != Class::mfma && spec.num_dst && i.dst[0].kind == Kind::vgpr;
  if ((s.lanes & exec) || s.scalar || one_lane) {
    uninit_propagate(w, i, exec, s.origin ? *s.origin : Origin{});
  } else {
    const u64 written =
        i.mod.dpp == DppCtrl::none ? exec : dpp_lanes(i.mod, dpp_row(i.mod.dpp, i.mod.dpp_arg), exec);
    for (const RegRange& r : i.writes()) {
      for (u32 reg = r.first; reg < u32{r.first} + r.count; ++reg) {
        if (r.file == RegRange::vector) u.lanes[reg] &= ~written;
        else u.scalar[reg] = 0;
      }
    }
    if (spec.flags & kWritesScc) u.scc = false;
  }
  if (u.scalar[kExec] | u.scalar[kExec + 1]) use_scalar(w, i, kExec, 2, "writes undefined lanes to");
}

// Undefined bits of a register row that an access of this form stores.
u32 stored_bits(const Touch& touch) {
  const u32 bits = touch.bytes == 1 ? 0xff : touch.bytes == 2 ? 0xffff : ~0u;
  return touch.half == Half::high ? bits << 16 : bits;
}

u32 rows_of(const Touch& touch) { return (touch.bytes + 3u) / 4; }

// Lanes with an undefined bit among those stored.
u64 undefined_data(const Undefined& u, const Touch& touch, u64 lanes) {
  if (touch.data == kNoRow) return 0;
  u64 found = 0;
  for (u32 k = 0; k < rows_of(touch); ++k) {
    const u16 row = static_cast<u16>(touch.data + k);
    for (u64 left = u.lanes[row] & lanes; left; left &= left - 1) {
      const int lane = first_lane(left);
      if (undefined_bits(u, row, lane) & stored_bits(touch)) found |= u64{1} << lane;
    }
  }
  return found;
}

// Lanes that store all that one load has read from memory, with holes in it, be it with fields changed: an object whose
// padding nobody has written. The holes move along; who uses them is told.
u64 copied_objects(const Undefined& u, const Touch& touch, u64 undefined, const Shadow* bytes) {
  const u32 rows = undefined && bytes && touch.bytes >= 8 && touch.half == Half::none ? rows_of(touch) : 0;
  const Inst* load = nullptr;
  u64 whole = undefined;                                       // lanes without any defined bit
  for (u32 k = 0; k < rows; ++k) {
    const u16 row = static_cast<u16>(touch.data + k);
    whole &= u.lanes[row] & ~u.partial[row];
    if (!(u.lanes[row] & undefined)) continue;
    if (load && load != u.origin[row].inst) return 0;
    load = u.origin[row].inst;
  }
  if (!load || load->op->spec.cls == Class::ds || !(load->op->spec.flags & kLoad)) return 0;
  const Operand& result = load->dst[0];
  if (result.kind != Kind::vgpr || result.reg != touch.data || result.dwords != rows) return 0;
  u64 copied = 0;
  for (u64 left = undefined & ~whole; left; left &= left - 1) {
    const int lane = first_lane(left);
    if (bytes->written[lane]) copied |= u64{1} << lane;
  }
  return copied;
}

void store_bytes(Wave& w, const Inst& i, u64 lanes, const Touch& touch, const Shadow* bytes, bool escapes) {
  Undefined& u = w.checks->undefined;
  const u64 undefined = undefined_data(u, touch, lanes);
  const u64 copied = escapes ? copied_objects(u, touch, undefined, bytes) : undefined;
  if (bytes) {
    for (u64 left = lanes; left; left &= left - 1) {
      const int lane = first_lane(left);
      u8* written = bytes->written[lane];
      if (!written) continue;
      std::memset(written, 1, touch.bytes);
      for (u32 missing = touch.dma ? w.checks->dma_undefined[lane] : 0; missing; missing &= missing - 1) {
        written[std::countr_zero(missing)] = 0;
      }
    }
  }
  if (!undefined) return;
  for (u32 k = 0; k < rows_of(touch); ++k) {
    const u16 row = static_cast<u16>(touch.data + k);
    if (const u64 here = u.lanes[row] & undefined & ~copied) {
      uninit_report(w, i, here, "stores " + name_of(w, {RegRange::vector, 1, row}), u.origin[row]);
      define(u, row, here);
    }
    for (u64 left = u.lanes[row] & copied; left; left &= left - 1) {
      const int lane = first_lane(left);
      u32 bits = undefined_bits(u, row, lane);
      if (touch.half == Half::high) bits >>= 16;
      for (u32 byte = 0; byte < 4 && 4 * k + byte < touch.bytes; ++byte) {
        // Memory has no shadow of bits. Unoptimised code spills masks of lanes, of which only EXEC's bits are defined.
        if ((bits >> 8 * byte & 0xff) == 0xff) bytes->written[lane][4 * k + byte] = 0;
      }
    }
  }
}

template <int N>
bool all_written(const u8* flags) {
  using Small = std::conditional_t<N == 2, u16, u8>;
  using Word = std::conditional_t<N % 8 == 0, u64, std::conditional_t<N % 4 == 0, u32, Small>>;
  constexpr Word kOnes = static_cast<Word>(0x0101010101010101);
  Word all = kOnes;
  for (u32 k = 0; k < N; k += sizeof(Word)) {
    Word word;
    std::memcpy(&word, flags + k, sizeof word);
    all &= word;
  }
  return all == kOnes;
}

template <int N>
u64 partly_written(const Shadow& bytes, u64 lanes) {
  u64 found = 0;
  for (; lanes; lanes &= lanes - 1) {
    const int lane = first_lane(lanes);
    if (bytes.written[lane] && !all_written<N>(bytes.written[lane])) found |= u64{1} << lane;
  }
  return found;
}

u64 undefined_lanes(const Shadow& bytes, u64 lanes, u32 size) {
  switch (size) {
    case 1: return partly_written<1>(bytes, lanes);
    case 2: return partly_written<2>(bytes, lanes);
    case 4: return partly_written<4>(bytes, lanes);
    case 8: return partly_written<8>(bytes, lanes);
    case 12: return partly_written<12>(bytes, lanes);
    default: return partly_written<16>(bytes, lanes);
  }
}

// The LDS offset of the first byte that is not written; 0 outside LDS, where the load's address says enough.
u64 undefined_address(const Wave& w, const u8* written, u32 bytes) {
  const u8* lds = w.group->checks->lds.data();
  if (written < lds || written >= lds + w.group->launch->lds_bytes) return 0;
  return static_cast<u64>(std::find(written, written + bytes, 0) - lds);
}

// The access gives `lanes` of its result rows defined bits.
void define_results(Undefined& u, const Touch& touch, u64 lanes) {
  for (u32 k = 0; k < rows_of(touch); ++k) {
    const u16 row = static_cast<u16>(touch.result + k);
    if (touch.half == Half::none) {
      define(u, row, lanes);
      continue;
    }
    const u32 keep = touch.half == Half::low ? 0xffff0000u : 0xffffu;
    for (u64 left = u.lanes[row] & lanes; left; left &= left - 1) {
      const int lane = first_lane(left);
      set_undefined(u, row, lane, undefined_bits(u, row, lane) & keep, u.origin[row]);
    }
  }
}

void load_rows(Wave& w, const Inst& i, u64 exec, u64 undefined, const Touch& touch, const Shadow* bytes) {
  Undefined& u = w.checks->undefined;
  define_results(u, touch, exec);
  Origin origin{&i, 0};
  if (undefined) origin.address = undefined_address(w, bytes->written[first_lane(undefined)], touch.bytes);
  for (u32 k = 0; undefined && k < rows_of(touch); ++k) {
    const u16 row = static_cast<u16>(touch.result + k);
    for (u64 left = undefined; left; left &= left - 1) {
      const int lane = first_lane(left);
      const u8* written = bytes->written[lane];
      u32 bits = 0;
      for (u32 byte = 0; byte < 4 && 4 * k + byte < touch.bytes; ++byte) {
        if (!written[4 * k + byte]) bits |= 0xffu << 8 * byte;
      }
      if (touch.half == Half::high) bits <<= 16;
      set_undefined(u, row, lane, undefined_bits(u, row, lane) | bits, origin);
    }
  }
}

// The memory side of an LDS-DMA: what is undefined in the dword that each lane will write to LDS.
void load_dma(Wave& w, const Inst& i, u64 undefined, const Touch& touch, const Shadow* bytes) {
  const bool extends = i.op->name.find("_sbyte") != std::string_view::npos ||
                       i.op->name.find("_sshort") != std::string_view::npos;
  for (u64 left = undefined; left; left &= left - 1) {
    const int lane = first_lane(left);
    u32 missing = 0;
    for (u32 byte = 0; byte < touch.bytes; ++byte) missing |= u32{!bytes->written[lane][byte]} << byte;
    if (extends && missing >> (touch.bytes - 1)) missing |= 15u << touch.bytes & 15;
    w.checks->dma_undefined[lane] = static_cast<u8>(missing);
  }
}

}  // namespace

u32 undefined_bits(const Undefined& u, u16 row, int lane) {
  if (!(u.lanes[row] >> lane & 1)) return 0;
  return u.partial[row] >> lane & 1 ? u.bits[row][lane] : ~0u;
}

void set_undefined(Undefined& u, u16 row, int lane, u32 bits, const Origin& origin) {
  const u64 bit = u64{1} << lane;
  u.lanes[row] &= ~bit;
  u.partial[row] &= ~bit;
  if (!bits) return;
  u.lanes[row] |= bit;
  u.origin[row] = origin;
  if (bits == ~0u) return;
  u.partial[row] |= bit;
  u.bits[row][lane] = bits;
}

void uninit_report(Wave& w, const Inst& i, u64 lanes, const std::string& what, const Origin& origin) {
  if (!launch_checks(w).first("uninit", i)) return;
  std::string from = "a register that was never written";
  std::string fix = "fix: initialise it";
  if (origin.inst) {
    const Class c = origin.inst->op->spec.cls;
    from = place_of(w, *origin.inst) + ", which read ";
    if (c == Class::ds) from += "LDS byte " + std::to_string(origin.address) + ", which has no defined value";
    else from += c == Class::scratch ? "scratch without a defined value" : "memory that nobody wrote";
    fix = "fix: write it before the read, or mask the lanes";
  }
  add_report(w, i, "uninit", lanes, origin.address,
             what + ", undefined in lane " + std::to_string(first_lane(lanes)) + "; the value comes from " + from +
                 "; " + fix,
             origin.inst);
}

void uninit_begin(Wave& w) {
  Undefined& u = w.checks->undefined;
  const Launch& l = *w.group->launch;
  const Kernel& k = *l.kernel;
  std::fill(std::begin(u.lanes), std::end(u.lanes), kAllLanes);
  std::fill(std::begin(u.partial), std::end(u.partial), 0);
  std::fill(std::begin(u.origin), std::end(u.origin), Origin{});
  std::fill(std::begin(u.scalar), std::end(u.scalar), ~0u);
  std::fill(std::begin(u.scalar_origin), std::end(u.scalar_origin), Origin{});
  u.scc = true;
  u.scc_origin = {};
  // The dispatcher sets the user SGPRs, the workgroup ids that follow them, EXEC and v0 (launch_state.cpp).
  u32 scalars = k.rsrc2 >> 1 & 31;
  for (int bit = 7; bit <= 10; ++bit) scalars += k.rsrc2 >> bit & 1;
  std::fill_n(u.scalar, scalars, 0);
  for (u16 reg : {102, 103, 104, 105, int{kExec}, kExec + 1}) u.scalar[reg] = 0;
  std::fill_n(&u.scalar[108], 16, 0);          // trap temporaries
  u.lanes[0] = 0;
  w.checks->scratch.assign(u64{l.private_bytes} * kLanes, 0);
}

void uninit_before(Wave& w, const Inst& i) {
  const Class c = i.op->spec.cls;
  if (c == Class::branch) {
    check_branch(w, i);
  } else if (c == Class::smem) {
    Undefined& u = w.checks->undefined;
    for (int k = 0; k < i.num_src; ++k) use_address(w, i, i.src[k]);
    for (const RegRange& r : i.writes()) std::fill_n(&u.scalar[r.first], r.count, 0);
  } else if (is_memory(c)) {
    if (is_lds_dma(i)) std::fill_n(w.checks->dma_undefined, kLanes, 0);
    check_address(w, i);
  } else {
    compute(w, i);
  }
}

void uninit_memory(Wave& w, const Inst& i, u64 exec, u64 lanes, const Touch& touch, const Shadow* bytes, bool escapes) {
  if (touch.access == Access::store) {
    store_bytes(w, i, lanes, touch, bytes, escapes);
    return;
  }
  const u64 undefined = bytes ? undefined_lanes(*bytes, lanes, touch.bytes) : 0;
  if (touch.access == Access::atomic) {
    Undefined& u = w.checks->undefined;
    if (escapes && undefined)
      uninit_report(w, i, undefined, "combines with memory", Origin{&i, 0});
    const u64 data = undefined_data(u, touch, lanes);
    if (escapes && data) {
      uninit_report(w, i, data, "combines memory with " + name_of(w, {RegRange::vector, 1, touch.data}),
                    u.origin[touch.data]);
    }
    // A swap defines what it writes; other operations leave undefined bytes undefined.
    const bool swaps = i.op->name.find("swap") != std::string_view::npos ||
                       i.op->name.find("xchg") != std::string_view::npos;
    if (touch.result != kNoRow) load_rows(w, i, exec, undefined, touch, bytes);
    if (swaps || !bytes) return;
    for (u64 left = data & ~undefined; left && !escapes; left &= left - 1)
      std::memset(bytes->written[first_lane(left)], 0, touch.bytes);
    return;
  }
  if (touch.result != kNoRow) load_rows(w, i, exec, undefined, touch, bytes);
  else if (is_lds_dma(i)) load_dma(w, i, undefined, touch, bytes);
}

void Checkers::out_of_range(Wave& w, const Touch& touch, u64 lanes) {
  if (!launch_.on(kCheckUninit) || touch.result == kNoRow) return;
  define_results(w.checks->undefined, touch, lanes);
}

void Checkers::shuffle(Wave& w, u16 result, u16 data, const i8* from, u64 exec) {
  if (!launch_.on(kCheckUninit)) return;
  Undefined& u = w.checks->undefined;
  if (!u.lanes[data]) {
    define(u, result, exec);
    return;
  }
  u32 bits[kLanes];
  const Origin origin = u.origin[data];
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = from[lane] < 0 ? 0 : undefined_bits(u, data, from[lane]);
  for (u64 left = exec; left; left &= left - 1) {
    const int lane = first_lane(left);
    set_undefined(u, result, lane, bits[lane], origin);
  }
}

}  // namespace sim
