// SPDX-License-Identifier: MIT
// A decoded instruction and the description (Op) of what a mnemonic does. load/ makes Insts, isa/*.cpp define Ops.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "types.h"

namespace sim {

struct Wave;
struct Inst;
using Handler = void (*)(Wave&, const Inst&);

// The kind of value in a source or destination. Decides how a constant in the text becomes bits, nothing else.
enum class Type : u8 { none, b16, b32, b64, f16, f32, f64, pk16, pkf16, pkf32 };

enum class Kind : u8 {
  none,     // absent, or "off"
  vgpr,     // reg = row of the wave's file: v0-v255 are 0-255, a0-a255 are 256-511 (but see load/registers.cpp)
  sgpr,     // reg = scalar file index: s0-s101, flat_scratch 102, xnack_mask 104, vcc 106, ttmp 108, m0 124, exec 126
  literal,  // value
  special,  // reg = hardware source code: 235 shared_base, 236 shared_limit, 237 private_base, 238 private_limit,
            //       251 vccz, 252 execz, 253 scc
};

inline constexpr u16 kVcc = 106, kM0 = 124, kExec = 126, kFirstAgpr = 256, kNumRows = 512, kNumScalars = 128;

struct Operand {
  Kind kind = Kind::none;
  u8 dwords = 1;           // registers named: v[4:7] → 4
  u16 reg = 0;
  bool neg = false, abs = false, sext = false;
  u8 sel = 6;              // SDWA select: BYTE_0..3 = 0-3, WORD_0/1 = 4/5, DWORD = 6
  u64 value = 0;           // literal bits, already in the operand's type
};

enum class DppCtrl : u8 {
  none, quad_perm, row_shl, row_shr, row_ror, wave_shl, wave_rol, wave_shr, wave_ror,
  row_mirror, row_half_mirror, row_bcast15, row_bcast31, row_newbcast
};

// Everything after the operands. A modifier that load/parse.cpp does not know is a Fault when the instruction executes.
struct Modifiers {
  bool clamp = false;
  u8 omod = 0;                                             // 0 none, 1 mul:2, 2 mul:4, 3 div:2
  u8 op_sel = 0, op_sel_hi = 0, neg_lo = 0, neg_hi = 0;    // bit i = i-th element of the list; op_sel bit 3 may be dst
  bool has_op_sel_hi = false;                              // it was printed; without it all are ones
  DppCtrl dpp = DppCtrl::none;
  u8 dpp_arg = 0, row_mask = 15, bank_mask = 15;           // dpp_arg: shift count, or quad_perm packed 2 bits per lane
  bool bound_ctrl = false;
  bool sdwa = false;
  u8 dst_sel = 6, dst_unused = 0;                          // dst_unused: PAD 0, SEXT 1, PRESERVE 2
  i32 offset = 0;                                          // memory: byte offset; ds read2/write2: offset0
  u32 offset1 = 0;                                         // ds read2/write2: offset1
  bool sc0 = false, sc1 = false, nt = false, lds = false, gds = false;
  bool idxen = false, offen = false;
  u8 format = 1;                                           // MTBUF: data format in [3:0], number format in [6:4]
  u8 cbsz = 0, abid = 0, blgp = 0;                         // MFMA; blgp carries neg:[..] on f64 forms
};

enum class Class : u8 {
  salu, branch, wait, barrier, end, smem, valu, trans, mfma, ds, global, flat, scratch, mubuf, other
};
inline constexpr int kNumClasses = 15;

inline bool is_vector_alu(Class c) { return c == Class::valu || c == Class::trans || c == Class::mfma; }
inline bool is_vector_memory(Class c) {
  return c == Class::global || c == Class::flat || c == Class::scratch || c == Class::mubuf;
}
inline bool is_vector(Class c) { return is_vector_alu(c) || is_vector_memory(c) || c == Class::ds; }

// Register facts beyond the printed operands.
enum Flag : u32 {
  kReadsScc = 1 << 0, kWritesScc = 1 << 1,
  kReadsVcc = 1 << 2, kWritesVcc = 1 << 3,     // implicit only; a printed vcc is an operand
  kReadsExec = 1 << 4, kWritesExec = 1 << 5,   // scalar use of EXEC (saveexec, cmpx, execz branches)
  kReadsM0 = 1 << 6,
  kReadsDst = 1 << 7,                          // fmac, d16, op_sel destinations: the old value matters
  kIgnoresExec = 1 << 8,                       // readlane, writelane, MFMA
  kLoad = 1 << 9, kStore = 1 << 10, kAtomic = 1 << 11,
};

// How a mnemonic behaves, as a typed row of isa/<encoding>.cpp.
struct Spec {
  Class cls = Class::other;
  u8 num_dst = 0;                              // leading printed operands that are written
  std::array<Type, 2> dst{};
  std::array<Type, 5> src{};
  u32 flags = 0;
  Handler plain = nullptr;                     // no modifiers beyond memory offsets
  Handler full = nullptr;                      // any modifier this operation takes; nullptr: modifiers are a Fault
  Handler plain_observed = nullptr;            // memory operations only: tells the observers of each access
};

struct Op {
  std::string_view name;                       // without _e32 _e64 _dpp _sdwa
  Spec spec;
};

// The rows of each isa/<encoding>.cpp. load/decode.cpp joins them, and checks that no two tables share a name.
std::span<const Op> sop_ops();
std::span<const Op> sopp_ops();
std::span<const Op> smem_ops();
std::span<const Op> vop1_ops();
std::span<const Op> vop2_ops();
std::span<const Op> vopc_ops();
std::span<const Op> vop3_int_ops();
std::span<const Op> vop3_float_ops();
std::span<const Op> vop3p_ops();
std::span<const Op> mfma_ops();
std::span<const Op> ds_ops();
std::span<const Op> flat_ops();
std::span<const Op> mubuf_ops();
std::span<const Op> mtbuf_ops();

struct RegRange {
  enum File : u8 { vector, scalar } file;
  u8 count;
  u16 first;
};

inline constexpr std::string_view kGuardText = "<end of function>";    // after the last instruction of each function

// Fields are in the order of how often executing reads them: the first cache lines serve the run loop and handlers.
struct alignas(64) Inst {
  Handler run = nullptr;                       // chosen at decode: plain, full or fail
  Handler run_observed = nullptr;
  u32 index = 0;                               // position in the code's Inst array (for counters)
  i32 imm = 0;                                 // SOPP and SOPK: the 16-bit immediate, sign-extended
  i64 target = 0;                              // branch: absolute pc
  std::array<Operand, 2> dst{};
  std::array<Operand, 5> src{};
  Modifiers mod;
  u8 num_src = 0;
  u8 size = 4;                                 // bytes
  bool e64 = false;
  u8 vmcnt = 63, lgkmcnt = 15, expcnt = 7;     // s_waitcnt
  u8 num_reads = 0, num_writes = 0;
  std::array<RegRange, 10> regs{};             // reads first, then writes; implicit registers included
  u64 pc = 0;                                  // address in the loaded image
  const Op* op = nullptr;
  std::string text;                            // disassembly, for reports
  std::string error;                           // why this cannot execute ("" = it can)

  bool is_guard() const { return !op && text == kGuardText; }
  std::span<const RegRange> reads() const { return {regs.data(), num_reads}; }
  std::span<const RegRange> writes() const { return {regs.data() + num_reads, num_writes}; }
  std::span<const RegRange> registers() const { return {regs.data(), size_t{num_reads} + num_writes}; }
};

// Whether the instruction, which has an operation, loads memory to LDS, at M0.
inline bool is_lds_dma(const Inst& i) {
  const Spec& s = i.op->spec;
  return i.mod.lds || (s.flags & kReadsM0 && (s.cls == Class::global || s.cls == Class::scratch));
}

}  // namespace sim
