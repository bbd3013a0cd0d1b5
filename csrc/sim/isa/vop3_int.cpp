// SPDX-License-Identifier: MIT
// VOP3 on integers and bits, and the cross-lane operations of that encoding.
#include "isa/math.h"
#include "isa/valu.h"

namespace sim {
namespace {

// |a - b| of each byte. With `masked`, bytes whose reference b is 0 do not count.
u32 byte_differences(u32 a, u32 b, bool masked) {
  u32 sum = 0;
  for (int at = 0; at < 32; at += 8) {
    const i32 x = a >> at & 0xff, y = b >> at & 0xff;
    const u32 difference = static_cast<u32>(x > y ? x - y : y - x);
    sum += masked && y == 0 ? 0 : difference;
  }
  return sum;
}

u32 word_differences(u32 a, u32 b) {
  u32 sum = 0;
  for (int at = 0; at < 32; at += 16) {
    const i32 x = a >> at & 0xffff, y = b >> at & 0xffff;
    sum += static_cast<u32>(x > y ? x - y : y - x);
  }
  return sum;
}

u32 lerp_bytes(u32 a, u32 b, u32 round) {
  u32 r = 0;
  for (int at = 0; at < 32; at += 8) {
    r |= ((a >> at & 0xff) + (b >> at & 0xff) + (round >> at & 1)) >> 1 << at;
  }
  return r;
}

// Byte selectors: 0-7 a byte of {a, b} (b is the low half), 8-11 the sign of byte 1, 3, 5, 7, 12 zero, above 0xff.
u32 permute_bytes(u32 a, u32 b, u32 selectors) {
  const u64 data = u64{a} << 32 | b;
  u32 r = 0;
  for (int at = 0; at < 32; at += 8) {
    const u32 sel = selectors >> at & 0xff;
    const u32 byte = static_cast<u32>(data >> 8 * (sel & 7)) & 0xff;
    const u32 sign = data >> (16 * (sel & 3) + 15) & 1 ? 0xff : 0;
    r |= (sel < 8 ? byte : sel < 12 ? sign : sel == 12 ? 0 : 0xff) << at;
  }
  return r;
}

// The bytes that a selector takes from one source and moves by one distance: ((source << left) >> right) & mask.
struct ByteMove {
  int source = 0;
  u32 left = 0, right = 0, mask = 0;
};

// Compilers keep the selector in an SGPR or a literal: then few moves serve all lanes (4 times as fast).
void permute_uniform(Wave& w, const Inst& i) {
  if (i.src[2].kind == Kind::vgpr) return i.op->spec.full(w, i);
  const u32 selectors = static_cast<u32>(scalar_source(w, i.src[2]));
  ByteMove moves[4];
  int count = 0;
  u32 ones = 0;
  for (int at = 0; at < 4; ++at) {
    const int sel = selectors >> 8 * at & 0xff;
    if (sel >= 8 && sel < 12) return i.op->spec.full(w, i);
    if (sel > 12) ones |= 0xffu << 8 * at;
    if (sel >= 8) continue;
    const int source = sel < 4 ? 1 : 0, distance = 8 * (at - sel % 4);
    const u32 left = distance > 0 ? distance : 0, right = distance < 0 ? -distance : 0;
    int m = 0;
    while (m < count && (moves[m].source != source || moves[m].left != left || moves[m].right != right)) ++m;
    if (m == count) moves[count++] = {source, left, right, 0};
    moves[m].mask |= 0xffu << 8 * at;
  }
  Lanes<u32> spare[2], out;
  const u32* const rows[2] = {source_row(w, i.src[0], spare[0]), source_row(w, i.src[1], spare[1])};
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = ones;
  for (int m = 0; m < count; ++m) {
    const ByteMove move = moves[m];
    const u32* const row = rows[move.source];
    for (int lane = 0; lane < kLanes; ++lane) out[lane] |= row[lane] << move.left >> move.right & move.mask;
  }
  write_row(w.v[i.dst[0].reg], out.at, w.exec());
}

constexpr Spec permute_spec() {
  Spec s = valu([](u32 a, u32 b, u32 selectors) { return permute_bytes(a, b, selectors); });
  s.plain = permute_uniform;
  return s;
}

WithBit<u64> mad_unsigned(u32 a, u32 b, u64 c) {
  const u64 product = u64{a} * b, sum = product + c;
  return {sum, sum < product};
}

// The flag is bit 64 of the exact sum: its sign.
WithBit<u64> mad_signed(i32 a, i32 b, i64 c) {
  const u64 product = static_cast<u64>(i64{a} * b), addend = static_cast<u64>(c), sum = product + addend;
  const u64 overflow = (product ^ sum) & (addend ^ sum);         // at bit 63
  return {sum, ((sum ^ overflow) >> 63) != 0};
}

// Four sums of byte differences: four bytes of `a` from byte n on against the bytes of b, on top of word n of c.
template <bool kMasked, bool kSaturate>
struct QuadSad {
  u64 operator()(u64 a, u32 b, u64 c) const {
    u64 r = 0;
    for (int n = 0; n < 4; ++n) {
      const u32 old = static_cast<u32>(c >> 16 * n & 0xffff);
      const u32 sum = byte_differences(static_cast<u32>(a >> 8 * n), b, kMasked) + old;
      r |= u64{kSaturate ? std::min(sum, 0xffffu) : sum & 0xffff} << 16 * n;
    }
    return r;
  }
};
template <bool kMasked>
constexpr Spec quad_sad() {
  return Valu<QuadSad<kMasked, false>, QuadSad<kMasked, true>, Last::operand, false, false, u64, u64, u32, u64>::spec(
      Class::valu);
}

// The same with four 32-bit sums: 128-bit accumulator and result, which may be one register range.
void quad_sad_32(Wave& w, const Inst& i) {
  Lanes<u64> a;
  Lanes<u32> b, sums[4];
  read_lanes(w, i.src[0], a);
  read_lanes(w, i.src[1], b);
  for (int n = 0; n < 4; ++n) {
    const u32* const c = w.v[i.src[2].reg + n];
    for (int lane = 0; lane < kLanes; ++lane) {
      const u64 sum = u64{byte_differences(static_cast<u32>(a[lane] >> 8 * n), b[lane], true)} + c[lane];
      sums[n][lane] = i.mod.clamp && sum > 0xffffffffu ? 0xffffffffu : static_cast<u32>(sum);
    }
  }
  for (int n = 0; n < 4; ++n) write_row(w.v[i.dst[0].reg + n], sums[n].at, w.exec());
}

constexpr Spec quad_sad_32_spec() {
  Spec s;
  s.cls = Class::valu;
  s.num_dst = 1;
  s.dst = {Type::b32};
  s.src = {Type::b64, Type::b32, Type::b32};
  s.plain = s.full = quad_sad_32;
  return s;
}

// ---- across lanes; EXEC is ignored

void read_lane(Wave& w, const Inst& i) {
  const u32 lane = static_cast<u32>(scalar_source(w, i.src[1])) & 63;
  const Operand& source = i.src[0];
  const u32 x = source.kind == Kind::vgpr ? w.v[source.reg][lane] : static_cast<u32>(scalar_source(w, source));
  write_scalar(w, i.dst[0], x);
}

void write_lane(Wave& w, const Inst& i) {
  const u32 x = static_cast<u32>(scalar_source(w, i.src[0]));
  w.v[i.dst[0].reg][static_cast<u32>(scalar_source(w, i.src[1])) & 63] = x;
}

constexpr Spec cross_lane(Handler plain, u32 flags) {
  Spec s;
  s.cls = Class::valu;
  s.num_dst = 1;
  s.dst = {Type::b32};
  s.src = {Type::b32, Type::b32};
  s.flags = kIgnoresExec | flags;
  s.plain = plain;
  return s;
}

// popcount of the mask's bits below this lane, plus the second source. The masks are rows, so that the loop vectorises.
template <int kFirst>
void count_below(const Source* in, Result& out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int below = lane - kFirst;
    const u32 mask = below <= 0 ? 0 : below >= 32 ? ~0u : (1u << below) - 1;
    out.lo[lane] = static_cast<u32>(std::popcount(in[0].lo[lane] & mask)) + in[1].lo[lane];
  }
}

template <int kFirst>
constexpr Form kCountForm = [] {
  Form form;
  form.num_src = 2;
  form.src = {Lane::b32, Lane::b32};
  form.dst = Lane::b32;
  form.body = count_below<kFirst>;
  return form;
}();

template <int kFirst>
void count_below_handler(Wave& w, const Inst& i) { run_full(w, i, kCountForm<kFirst>); }

template <int kFirst>
constexpr Spec count_below_spec() {
  Spec s = cross_lane(count_below_handler<kFirst>, 0);
  s.flags = 0;
  s.full = count_below_handler<kFirst>;
  return s;
}

const Op kOps[] = {
    {"v_readlane_b32", cross_lane(read_lane, 0)},
    {"v_writelane_b32", cross_lane(write_lane, kReadsDst)},
    {"v_mbcnt_lo_u32_b32", count_below_spec<0>()},
    {"v_mbcnt_hi_u32_b32", count_below_spec<32>()},

    {"v_add_i32", saturating<i32, i32, i32>([](i64 a, i64 b) { return a + b; })},
    {"v_sub_i32", saturating<i32, i32, i32>([](i64 a, i64 b) { return a - b; })},
    {"v_add_i16", saturating<i16, i16, i16>([](i64 a, i64 b) { return a + b; })},
    {"v_sub_i16", saturating<i16, i16, i16>([](i64 a, i64 b) { return a - b; })},
    {"v_add3_u32", valu([](u32 a, u32 b, u32 c) { return a + b + c; })},
    {"v_lshl_add_u32", valu([](u32 a, u32 n, u32 b) { return (a << (n & 31)) + b; })},
    {"v_add_lshl_u32", valu([](u32 a, u32 b, u32 n) { return (a + b) << (n & 31); })},
    {"v_lshl_or_b32", valu([](u32 a, u32 n, u32 b) { return (a << (n & 31)) | b; })},
    {"v_and_or_b32", valu([](u32 a, u32 b, u32 c) { return (a & b) | c; })},
    {"v_or3_b32", valu([](u32 a, u32 b, u32 c) { return a | b | c; })},
    {"v_xad_u32", valu([](u32 a, u32 b, u32 c) { return (a ^ b) + c; })},
    {"v_lshl_add_u64", valu([](u64 a, u32 n, u64 b) { return (a << (n & 7)) + b; })},

    {"v_mul_lo_u32", valu([](u32 a, u32 b) { return a * b; })},
    {"v_mul_hi_u32", valu([](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); })},
    {"v_mul_hi_i32", valu([](i32 a, i32 b) { return static_cast<u32>(i64{a} * b >> 32); })},
    {"v_mad_i32_i24", saturating<i32, i32, i32, i32>([](i64 a, i64 b, i64 c) {
       return low24_signed(a) * low24_signed(b) + c;
     })},
    {"v_mad_u32_u24", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) { return low24(a) * low24(b) + c; })},
    {"v_mad_u32_u16", saturating<u32, u16, u16, u32>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_i32_i16", saturating<i32, i16, i16, i32>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_u16", saturating_keep_high<u16, u16, u16, u16>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_i16", saturating_keep_high<i16, i16, i16, i16>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_legacy_u16", saturating<u16, u16, u16, u16>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_legacy_i16", saturating<i16, i16, i16, i16>([](i64 a, i64 b, i64 c) { return a * b + c; })},
    {"v_mad_u64_u32", valu([](u32 a, u32 b, u64 c) { return mad_unsigned(a, b, c); })},
    {"v_mad_i64_i32", valu([](i32 a, i32 b, i64 c) { return mad_signed(a, b, c); })},

    {"v_min3_i32", valu([](i32 a, i32 b, i32 c) { return std::min(std::min(a, b), c); })},
    {"v_max3_i32", valu([](i32 a, i32 b, i32 c) { return std::max(std::max(a, b), c); })},
    {"v_med3_i32", valu([](i32 a, i32 b, i32 c) { return integer_median(a, b, c); })},
    {"v_min3_u32", valu([](u32 a, u32 b, u32 c) { return std::min(std::min(a, b), c); })},
    {"v_max3_u32", valu([](u32 a, u32 b, u32 c) { return std::max(std::max(a, b), c); })},
    {"v_med3_u32", valu([](u32 a, u32 b, u32 c) { return integer_median(a, b, c); })},
    {"v_min3_i16", valu([](i16 a, i16 b, i16 c) { return std::min(std::min(a, b), c); })},
    {"v_max3_i16", valu([](i16 a, i16 b, i16 c) { return std::max(std::max(a, b), c); })},
    {"v_med3_i16", valu([](i16 a, i16 b, i16 c) { return integer_median(a, b, c); })},
    {"v_min3_u16", valu([](u16 a, u16 b, u16 c) { return std::min(std::min(a, b), c); })},
    {"v_max3_u16", valu([](u16 a, u16 b, u16 c) { return std::max(std::max(a, b), c); })},
    {"v_med3_u16", valu([](u16 a, u16 b, u16 c) { return integer_median(a, b, c); })},

    {"v_bfe_u32", valu([](u32 x, u32 offset, u32 width) { return bit_field(x, offset, width); })},
    {"v_bfe_i32", valu([](u32 x, u32 offset, u32 width) { return signed_bit_field(x, offset, width); })},
    {"v_bfi_b32", valu([](u32 mask, u32 a, u32 b) { return (mask & a) | (~mask & b); })},
    {"v_bfm_b32", valu([](u32 width, u32 offset) { return ((1u << (width & 31)) - 1) << (offset & 31); })},
    {"v_alignbit_b32", valu([](u32 a, u32 b, u32 n) { return static_cast<u32>((u64{a} << 32 | b) >> (n & 31)); })},
    {"v_alignbyte_b32", valu([](u32 a, u32 b, u32 n) { return static_cast<u32>((u64{a} << 32 | b) >> 8 * (n & 3)); })},
    {"v_perm_b32", permute_spec()},
    {"v_bcnt_u32_b32", valu([](u32 a, u32 b) { return static_cast<u32>(std::popcount(a)) + b; })},
    {"v_lshlrev_b64", valu([](u32 n, u64 x) { return x << (n & 63); })},
    {"v_lshrrev_b64", valu([](u32 n, u64 x) { return x >> (n & 63); })},
    {"v_ashrrev_i64", valu([](u32 n, i64 x) { return x >> (n & 63); })},

    {"v_sad_u8", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) {
       return byte_differences(static_cast<u32>(a), static_cast<u32>(b), false) + c;
     })},
    {"v_msad_u8", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) {
       return byte_differences(static_cast<u32>(a), static_cast<u32>(b), true) + c;
     })},
    {"v_sad_hi_u8", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) {
       return (i64{byte_differences(static_cast<u32>(a), static_cast<u32>(b), false)} << 16) + c;
     })},
    {"v_sad_u16", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) {
       return word_differences(static_cast<u32>(a), static_cast<u32>(b)) + c;
     })},
    {"v_sad_u32", saturating<u32, u32, u32, u32>([](i64 a, i64 b, i64 c) { return (a > b ? a - b : b - a) + c; })},
    {"v_qsad_pk_u16_u8", quad_sad<false>()},
    {"v_mqsad_pk_u16_u8", quad_sad<true>()},
    {"v_mqsad_u32_u8", quad_sad_32_spec()},
    {"v_lerp_u8", valu([](u32 a, u32 b, u32 round) { return lerp_bytes(a, b, round); })},

    {"v_cvt_pk_u16_u32", valu([](u32 a, u32 b) { return std::min(a, 0xffffu) | std::min(b, 0xffffu) << 16; })},
    {"v_cvt_pk_i16_i32", valu([](i32 a, i32 b) {
       const u16 low = static_cast<u16>(std::clamp(a, -32768, 32767));
       return low | static_cast<u32>(std::clamp(b, -32768, 32767)) << 16;
     })},
};

}  // namespace

std::span<const Op> vop3_int_ops() { return kOps; }

}  // namespace sim
