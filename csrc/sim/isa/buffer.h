// SPDX-License-Identifier: MIT
// Buffer descriptors: from operands to each lane's place, with range checks. Read by mubuf.cpp and mtbuf.cpp.
#pragma once
#include "isa/access.h"

namespace sim {

struct Descriptor {
  u64 base;
  u32 stride, num_records;
};

inline Descriptor descriptor(const Wave& w, const Operand& o) {
  const u32* word = &w.s[o.reg];
  if (word[1] >> 31) throw Fault("swizzled buffer descriptors are not supported");
  if (word[3] >> 23 & 1) throw Fault("buffer descriptors with ADD_TID_ENABLE are not supported");
  if (word[3] >> 30) throw Fault("not a buffer descriptor: its type field is " + std::to_string(word[3] >> 30));
  return {(u64{word[1] & 0xffff} << 32) | word[0], word[1] >> 16 & 0x3fff, word[2]};
}

struct BufferPlaces : Places {
  u64 partial = 0;                             // lanes of which only the first dwords are in range …
  u8 dwords[kLanes];                           // … this many
};

// Range rule of gfx9: with idxen and a stride the index must be below num_records. Otherwise the byte offset counts,
// soffset included; x2 to x4 accesses are clamped dword by dword, atomics and formatted ones (`whole_items`) as a
// whole.
template <bool observed>
inline void resolve_here(Wave& w, const Inst& i, int first, u64 exec, const Touch& touch, BufferPlaces& p,
                    bool whole_items = false) {
  const Operand& vaddr = i.src[first];
  const Descriptor d = descriptor(w, i.src[first + 1]);
  const u32 soffset = static_cast<u32>(scalar_source(w, i.src[first + 2])), inst_offset = i.mod.offset;
  const u32* index_row = i.mod.idxen ? w.v[vaddr.reg] : nullptr;
  const u32* offset_row = i.mod.offen ? w.v[vaddr.reg + i.mod.idxen] : nullptr;
  alignas(64) u64 end[kLanes];                 // first byte offset after the access
  for (int lane = 0; lane < kLanes; ++lane) {
    const u64 offset = u64{(offset_row ? offset_row[lane] : 0) + inst_offset} + soffset;
    const u64 index = index_row ? index_row[lane] : 0;
    p.at[lane] = d.base + offset + index * d.stride;
    end[lane] = offset + touch.bytes;
  }
  u64 whole = 0;
  p.partial = 0;
  if (i.mod.idxen && d.stride) {
    for (int lane = 0; lane < kLanes; ++lane) whole |= u64{index_row[lane] < d.num_records} << lane;
  } else {
    for (int lane = 0; lane < kLanes; ++lane) whole |= u64{end[lane] <= d.num_records} << lane;
    if (touch.bytes > 4 && touch.access != Access::atomic && !whole_items) {
      for_lanes(exec & ~whole, [&](int lane) {
        const u64 start = end[lane] - touch.bytes;
        if (start + 4 > d.num_records) return;
        p.dwords[lane] = static_cast<u8>((d.num_records - start) / 4);
        p.partial |= u64{1} << lane;
      });
    }
    if (observed && soffset) {
      u64 differs = 0;
      for_lanes(exec & ~whole, [&](int lane) { differs |= u64{end[lane] - soffset <= d.num_records} << lane; });
      if (differs) observer(w).disputed_range(w, i, differs);
    }
  }
  p.lanes = exec & whole;
  if constexpr (observed) {
    if (exec & ~whole) observer(w).out_of_range(w, touch, exec & ~whole);
    p.lanes = observer(w).global(w, i, p.at, p.lanes, touch);
    for_lanes(p.partial, [&](int lane) {
      Touch part = touch;
      part.bytes = static_cast<u8>(4 * p.dwords[lane]);
      if (!observer(w).global(w, i, p.at, u64{1} << lane, part)) p.partial &= ~(u64{1} << lane);
    });
  }
}

// Out of line: for what is not a plain load or store.
template <bool observed>
[[gnu::noinline]] void resolve(Wave& w, const Inst& i, int first, u64 exec, const Touch& touch, BufferPlaces& p,
                               bool whole_items = false) {
  resolve_here<observed>(w, i, first, exec, touch, p, whole_items);
}

}  // namespace sim
