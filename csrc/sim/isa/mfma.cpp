// SPDX-License-Identifier: MIT
// Matrix instructions: D = A·B + C over all 64 lanes, EXEC ignored. One template serves every shape, because in each
// the elements of one row of A (k fixed, i running), of B and of D lie in neighbouring lanes of one register.
// Layouts: AMD's matrix instruction calculator. Arithmetic: products and sums of f32 (f64, i32) by one FMA per k, in
// order of k; hardware differs by a few ulp.
#include <algorithm>
#include <bit>

#include "isa/float8.h"
#include "isa/lanes.h"
#include "isa/mfma.h"

// Vectors wider than the host's registers only pass between functions of this file.
#pragma clang diagnostic ignored "-Wpsabi"

namespace sim {
namespace {

template <class T, int N>
using Vec = T __attribute__((ext_vector_type(N)));

template <class T, int N>
Vec<T, N> load_lanes(const u32* row) {
  Vec<T, N> x;
  std::memcpy(&x, row, sizeof x);
  return x;
}

// ---- element types: element e of a lane's registers, for N neighbouring lanes from `lane`, as the accumulator's type.

using Rows = const u32 (*)[kLanes];

struct F16 {
  template <int N>
  static Vec<float, N> get(Rows rows, int e, int lane) {
    const auto bits = load_lanes<u32, N>(rows[e / 2] + lane) >> (16 * (e % 2));
    return __builtin_convertvector(std::bit_cast<Vec<f16, N>>(__builtin_convertvector(bits, Vec<u16, N>)),
                                   Vec<float, N>);
  }
};

struct Bf16 {
  template <int N>
  static Vec<float, N> get(Rows rows, int e, int lane) {
    const auto bits = load_lanes<u32, N>(rows[e / 2] + lane);
    return std::bit_cast<Vec<float, N>>(e % 2 ? bits & 0xffff0000u : bits << 16);
  }
};

struct F32 {
  template <int N>
  static Vec<float, N> get(Rows rows, int e, int lane) { return load_lanes<float, N>(rows[e] + lane); }
};

// The 10-bit mantissa is taken by truncation (MMA-Sim's model of CDNA3).
struct Xf32 {
  template <int N>
  static Vec<float, N> get(Rows rows, int e, int lane) {
    return std::bit_cast<Vec<float, N>>(load_lanes<u32, N>(rows[e] + lane) & 0xffffe000u);
  }
};

struct F64 {
  template <int N>
  static Vec<double, N> get(Rows rows, int, int lane) {
    const auto low = __builtin_convertvector(load_lanes<u32, N>(rows[0] + lane), Vec<u64, N>);
    const auto high = __builtin_convertvector(load_lanes<u32, N>(rows[1] + lane), Vec<u64, N>);
    return std::bit_cast<Vec<double, N>>(high << 32 | low);
  }
};

struct I8 {
  template <int N>
  static Vec<i32, N> get(Rows rows, int e, int lane) {
    return load_lanes<i32, N>(rows[e / 4] + lane) << (24 - 8 * (e % 4)) >> 24;
  }
};

// Like Float8::decode, but without denormals of the host, which can be slow: a denormal gets a leading one, which is
// then subtracted.
template <class Format>
struct Float8Element {
  static constexpr u32 kBias = static_cast<u32>(127 - Format::kBias) << 23, kLeading = kBias + (1u << 23);
  template <int N>
  static Vec<float, N> get(Rows rows, int e, int lane) {
    using Words = Vec<u32, N>;
    using Floats = Vec<float, N>;
    const Words code = load_lanes<u32, N>(rows[e / 4] + lane) >> (8 * (e % 4));
    const Words bits = (code & 0x7f) << Format::kDropped;
    const Floats denormal = std::bit_cast<Floats>(bits + kLeading) - std::bit_cast<float>(kLeading);
    const Words value = bits < 1u << 23 ? std::bit_cast<Words>(denormal) : bits + kBias;
    const Words sign = (code & 0x80) << 24;
    return std::bit_cast<Floats>((code & 0xff) == Format::kNan ? Words(0x7fc00000) : value | sign);
  }
};
using E4m3 = Float8Element<Fp8>;
using E5m2 = Float8Element<Bf8>;

// ---- accumulators

template <class T, int N>
Vec<T, N> fused_multiply_add(T a, Vec<T, N> b, Vec<T, N> c) {
  if constexpr (std::is_same_v<T, i32>) {
    using U = Vec<u32, N>;                       // wraps
    return std::bit_cast<Vec<T, N>>(static_cast<u32>(a) * std::bit_cast<U>(b) + std::bit_cast<U>(c));
  } else {
    return __builtin_elementwise_fma(Vec<T, N>(a), b, c);
  }
}

template <class T, int N>
Vec<T, N> load_accumulator(Rows rows, int r, int lane) {
  if constexpr (sizeof(T) == 8) return F64::get<N>(rows + 2 * r, 0, lane);
  else return load_lanes<T, N>(rows[r] + lane);
}

template <class T, int N>
void store_accumulator(u32 (*rows)[kLanes], int r, int lane, Vec<T, N> x) {
  if constexpr (sizeof(T) == 8) {
    const auto bits = std::bit_cast<Vec<u64, N>>(x);
    const auto low = __builtin_convertvector(bits, Vec<u32, N>);
    const auto high = __builtin_convertvector(bits >> 32, Vec<u32, N>);
    std::memcpy(rows[2 * r] + lane, &low, sizeof low);
    std::memcpy(rows[2 * r + 1] + lane, &high, sizeof high);
  } else {
    std::memcpy(rows[r] + lane, &x, sizeof x);
  }
}

// ---- shapes: BLOCKS independent M×M×K products

template <int M, int K, int BLOCKS, class T>
struct Shape {
  static constexpr int kGroups = kLanes / M;                   // lane groups of M lanes
  static constexpr int kKPerGroup = K * BLOCKS / kGroups;      // a group holds so many neighbouring k of one block
  static constexpr int kAccumulators = M * M * BLOCKS / kLanes;
  static constexpr int input_block(int group) { return group % BLOCKS; }
  static constexpr int input_k(int group) { return group / BLOCKS * kKPerGroup; }
  // Block and row of D in accumulator r of lane group `group`; the column is the lane's place in its group.
  static constexpr int block(int r, int group) {
    if constexpr (M == 4) return group % BLOCKS;
    else return r / (kAccumulators / BLOCKS);
  }
  static constexpr int row(int r, int group) {
    if constexpr (std::is_same_v<T, double>) return M == 4 ? group / BLOCKS : 4 * r + group;
    else if constexpr (M == 4) return r;
    else return r % (kAccumulators / BLOCKS) / 4 * 4 * kGroups + 4 * group + r % 4;
  }
};

template <int M, int K, int BLOCKS, class T>
using Tile = Vec<T, M>[BLOCKS][K];               // [block][k][i or j]

// Inline, or the compiler reads B from memory for each product.
template <class Element, int M, int K, int BLOCKS, class T>
[[gnu::always_inline]] inline void load_tile(Rows rows, Tile<M, K, BLOCKS, T>& tile) {
  using S = Shape<M, K, BLOCKS, T>;
#pragma clang loop unroll(full)
  for (int group = 0; group < S::kGroups; ++group) {
#pragma clang loop unroll(full)
    for (int e = 0; e < S::kKPerGroup; ++e) {
      tile[S::input_block(group)][S::input_k(group) + e] = Element::template get<M>(rows, e, group * M);
    }
  }
}

bool partly_overlap(const Operand& d, const Operand& c) {
  return c.kind == Kind::vgpr && c.reg != d.reg && c.reg < d.reg + d.dwords && d.reg < c.reg + c.dwords;
}

// Four accumulators are read before the first is written, and compilers use that; longer forms are illegal (the
// assembler refuses them too).
void refuse_overlap(const Operand& d, const Operand& c) {
  if (d.dwords > 4 && partly_overlap(d, c)) {
    throw Fault("the accumulators of an MFMA must be one register range or two that do not overlap");
  }
}

template <int M, int K, int BLOCKS, class ElementA, class ElementB, class T>
void product(Wave& w, const Inst& i, Rows a_rows, Rows b_rows, int cbsz, int abid, int negate) {
  using S = Shape<M, K, BLOCKS, T>;
  Tile<M, K, BLOCKS, T> a, b;
  load_tile<ElementA, M, K, BLOCKS, T>(a_rows, a);
  load_tile<ElementB, M, K, BLOCKS, T>(b_rows, b);
  const bool registers = i.src[2].kind == Kind::vgpr;
  const Vec<T, M> constant(registers ? T() : std::bit_cast<T>(static_cast<std::conditional_t<sizeof(T) == 8, u64, u32>>(
                                                 scalar_source(w, i.src[2]))));
  Rows c = w.v + (registers ? i.src[2].reg : 0);
  u32 held[4][kLanes];
  if (partly_overlap(i.dst[0], i.src[2])) {
    std::memcpy(held, c, sizeof held);
    c = held;
  }
  constexpr int kSteps = std::min(K, 16);        // steps of k at a time: so much of B fits the host's registers
#pragma clang loop unroll(full)
  for (int first = 0; first < K; first += kSteps) {
    for (int r = 0; r < S::kAccumulators; ++r) {
#pragma clang loop unroll(full)
      for (int group = 0; group < S::kGroups; ++group) {
        const int block = S::block(r, group), row = S::row(r, group);
        const int a_block = block_of_a(block, cbsz, abid);
        Vec<T, M> sum = first       ? load_accumulator<T, M>(w.v + i.dst[0].reg, r, group * M)
                        : registers ? load_accumulator<T, M>(c, r, group * M)
                                    : constant;
        if constexpr (std::is_same_v<T, double>) {
          if (negate & 4) sum = -sum;
        }
#pragma clang loop unroll(full)
        for (int k = first; k < first + kSteps; ++k) {
          T x = reinterpret_cast<const T*>(&a[a_block][k])[row];
          if constexpr (std::is_same_v<T, double>) {
            if ((negate & 3) == 1 || (negate & 3) == 2) x = -x;
          }
          sum = fused_multiply_add<T, M>(x, b[block][k], sum);
        }
        store_accumulator<T, M>(w.v + i.dst[0].reg, r, group * M, sum);
      }
    }
  }
}

template <int M, int K, int BLOCKS, class ElementA, class ElementB, class T>
void mfma_plain(Wave& w, const Inst& i) {
  refuse_overlap(i.dst[0], i.src[2]);
  product<M, K, BLOCKS, ElementA, ElementB, T>(w, i, w.v + i.src[0].reg, w.v + i.src[1].reg, 0, 0, 0);
}

// With CBSZ, ABID and BLGP; on f64 BLGP's bits negate A, B and C.
template <int M, int K, int BLOCKS, class ElementA, class ElementB, class T>
void mfma_full(Wave& w, const Inst& i) {
  refuse_overlap(i.dst[0], i.src[2]);
  for (const Operand& o : i.src) {
    if (o.neg || o.abs) throw Fault("MFMA operands take no neg or abs");
  }
  const Modifiers& m = i.mod;
  const Rows a = w.v + i.src[0].reg, b = w.v + i.src[1].reg;
  if constexpr (std::is_same_v<T, double>) {
    if (m.cbsz || m.abid) throw Fault("f64 MFMA takes no cbsz or abid");
    product<M, K, BLOCKS, ElementA, ElementB, T>(w, i, a, b, 0, 0, m.blgp);
  } else {
    if (BLOCKS >> m.cbsz == 0) throw Fault("cbsz names more blocks than this MFMA has");
    if (m.abid >> m.cbsz != 0) throw Fault("abid is outside the blocks that cbsz groups");
    u32 permuted[2][kLanes];
    for (int r = 0; r < i.src[1].dwords; ++r) {
      for (int lane = 0; lane < kLanes; ++lane) permuted[r][lane] = b[r][blgp_source(m.blgp, lane)];
    }
    product<M, K, BLOCKS, ElementA, ElementB, T>(w, i, a, permuted, m.cbsz, m.abid, 0);
  }
}

template <int M, int K, int BLOCKS, class ElementA, class ElementB, class T>
constexpr Spec mfma() {
  constexpr Type type = std::is_same_v<T, double> ? Type::f64 : std::is_same_v<T, float> ? Type::f32 : Type::b32;
  constexpr bool modifiers = BLOCKS > 1 || std::is_same_v<T, double> || std::is_same_v<ElementA, F32>;
  Spec spec;
  spec.cls = Class::mfma;
  spec.num_dst = 1;
  spec.dst = {type};
  spec.src = {type, type, type};
  spec.flags = kIgnoresExec;
  spec.plain = mfma_plain<M, K, BLOCKS, ElementA, ElementB, T>;
  if constexpr (modifiers) spec.full = mfma_full<M, K, BLOCKS, ElementA, ElementB, T>;
  return spec;
}

// ---- sparse: of each four neighbouring k, A has two; D += A·B

// A lane's registers hold neighbouring pairs of kept elements; src2 says per element which k of its four it is, in 2
// bits. ABID chooses the set of bits among those that fit into 32, unless CBSZ is set: then it is the first.
template <int M, int K, class T>
struct Sparse {
  static constexpr int kGroups = kLanes / M, kKept = K / 2 / kGroups, kKPerGroup = K / kGroups;
  static constexpr int kSets = 32 / (2 * kKept);
  static int k(u32 index, int group, int e) { return group * kKPerGroup + 4 * (e / 2) + (index >> 2 * e & 3); }
};

template <int M, int K, class ElementA, class ElementB, class T>
void sparse_product(Wave& w, const Inst& i) {
  using S = Shape<M, K, 1, T>;
  using P = Sparse<M, K, T>;
  for (const Operand& o : i.src) {
    if (o.neg || o.abs) throw Fault("matrix operands take no neg or abs");
  }
  if (i.mod.blgp) throw Fault("sparse matrix operations take no blgp");
  if (i.mod.abid >= P::kSets) throw Fault("abid names an index set that does not fit into 32 bits");
  const int set = i.mod.cbsz ? 0 : i.mod.abid;
  const Rows a_rows = w.v + i.src[0].reg, b_rows = w.v + i.src[1].reg;
  Tile<M, K, 1, T> b;
  load_tile<ElementB, M, K, 1, T>(b_rows, b);
  alignas(64) T a[P::kGroups][P::kKept][M];
  u8 at[P::kGroups][P::kKept][M];
  for (int group = 0; group < P::kGroups; ++group) {
    for (int e = 0; e < P::kKept; ++e) {
      const Vec<T, M> row = ElementA::template get<M>(a_rows, e, group * M);
      std::memcpy(a[group][e], &row, sizeof row);
      for (int m = 0; m < M; ++m) {
        const u32 index = w.v[i.src[2].reg][group * M + m] >> (2 * P::kKept * set);
        at[group][e][m] = static_cast<u8>(P::k(index, group, e));
      }
    }
  }
  for (int r = 0; r < S::kAccumulators; ++r) {
    for (int group = 0; group < S::kGroups; ++group) {
      const int row = S::row(r, group);
      Vec<T, M> sum = load_accumulator<T, M>(w.v + i.dst[0].reg, r, group * M);
      for (int part = 0; part < P::kGroups; ++part) {
        for (int e = 0; e < P::kKept; ++e) {
          sum = fused_multiply_add<T, M>(a[part][e][row], b[0][at[part][e][row]], sum);
        }
      }
      store_accumulator<T, M>(w.v + i.dst[0].reg, r, group * M, sum);
    }
  }
}

template <int M, int K, class ElementA, class ElementB, class T>
constexpr Spec smfmac() {
  constexpr Type type = std::is_same_v<T, float> ? Type::f32 : Type::b32;
  Spec spec;
  spec.cls = Class::mfma;
  spec.num_dst = 1;
  spec.dst = {type};
  spec.src = {type, type, Type::b32};
  spec.flags = kIgnoresExec | kReadsDst;
  spec.plain = spec.full = sparse_product<M, K, ElementA, ElementB, T>;
  return spec;
}

// v_accvgpr_read, _write, _mov: moves between the two halves of the register file, under EXEC.
void accvgpr_move(Wave& w, const Inst& i) {
  Lanes<u32> spare;
  write_row(w.v[i.dst[0].reg], source_row(w, i.src[0], spare), w.exec());
}

constexpr Spec accvgpr() {
  Spec spec;
  spec.cls = Class::valu;
  spec.num_dst = 1;
  spec.dst = {Type::b32};
  spec.src = {Type::b32};
  spec.plain = accvgpr_move;
  return spec;
}

const Op kOps[] = {
    {"v_mfma_f32_16x16x16_f16", mfma<16, 16, 1, F16, F16, float>()},
    {"v_mfma_f32_16x16x16_bf16", mfma<16, 16, 1, Bf16, Bf16, float>()},
    {"v_mfma_f32_32x32x8_f16", mfma<32, 8, 1, F16, F16, float>()},
    {"v_mfma_f32_32x32x8_bf16", mfma<32, 8, 1, Bf16, Bf16, float>()},
    {"v_mfma_f32_4x4x4_16b_f16", mfma<4, 4, 16, F16, F16, float>()},
    {"v_mfma_f32_4x4x4_16b_bf16", mfma<4, 4, 16, Bf16, Bf16, float>()},
    {"v_mfma_f32_16x16x4_4b_f16", mfma<16, 4, 4, F16, F16, float>()},
    {"v_mfma_f32_16x16x4_4b_bf16", mfma<16, 4, 4, Bf16, Bf16, float>()},
    {"v_mfma_f32_32x32x4_2b_f16", mfma<32, 4, 2, F16, F16, float>()},
    {"v_mfma_f32_32x32x4_2b_bf16", mfma<32, 4, 2, Bf16, Bf16, float>()},
    {"v_mfma_f32_4x4x1_16b_f32", mfma<4, 1, 16, F32, F32, float>()},
    {"v_mfma_f32_16x16x1_4b_f32", mfma<16, 1, 4, F32, F32, float>()},
    {"v_mfma_f32_32x32x1_2b_f32", mfma<32, 1, 2, F32, F32, float>()},
    {"v_mfma_f32_16x16x4_f32", mfma<16, 4, 1, F32, F32, float>()},
    {"v_mfma_f32_32x32x2_f32", mfma<32, 2, 1, F32, F32, float>()},
    {"v_mfma_f32_16x16x8_xf32", mfma<16, 8, 1, Xf32, Xf32, float>()},
    {"v_mfma_f32_32x32x4_xf32", mfma<32, 4, 1, Xf32, Xf32, float>()},
    {"v_mfma_i32_4x4x4_16b_i8", mfma<4, 4, 16, I8, I8, i32>()},
    {"v_mfma_i32_16x16x4_4b_i8", mfma<16, 4, 4, I8, I8, i32>()},
    {"v_mfma_i32_32x32x4_2b_i8", mfma<32, 4, 2, I8, I8, i32>()},
    {"v_mfma_i32_16x16x32_i8", mfma<16, 32, 1, I8, I8, i32>()},
    {"v_mfma_i32_32x32x16_i8", mfma<32, 16, 1, I8, I8, i32>()},
    {"v_mfma_f32_16x16x32_fp8_fp8", mfma<16, 32, 1, E4m3, E4m3, float>()},
    {"v_mfma_f32_16x16x32_fp8_bf8", mfma<16, 32, 1, E4m3, E5m2, float>()},
    {"v_mfma_f32_16x16x32_bf8_fp8", mfma<16, 32, 1, E5m2, E4m3, float>()},
    {"v_mfma_f32_16x16x32_bf8_bf8", mfma<16, 32, 1, E5m2, E5m2, float>()},
    {"v_mfma_f32_32x32x16_fp8_fp8", mfma<32, 16, 1, E4m3, E4m3, float>()},
    {"v_mfma_f32_32x32x16_fp8_bf8", mfma<32, 16, 1, E4m3, E5m2, float>()},
    {"v_mfma_f32_32x32x16_bf8_fp8", mfma<32, 16, 1, E5m2, E4m3, float>()},
    {"v_mfma_f32_32x32x16_bf8_bf8", mfma<32, 16, 1, E5m2, E5m2, float>()},
    {"v_mfma_f64_16x16x4_f64", mfma<16, 4, 1, F64, F64, double>()},
    {"v_mfma_f64_4x4x4_4b_f64", mfma<4, 4, 4, F64, F64, double>()},
    {"v_smfmac_f32_16x16x32_f16", smfmac<16, 32, F16, F16, float>()},
    {"v_smfmac_f32_32x32x16_f16", smfmac<32, 16, F16, F16, float>()},
    {"v_smfmac_f32_16x16x32_bf16", smfmac<16, 32, Bf16, Bf16, float>()},
    {"v_smfmac_f32_32x32x16_bf16", smfmac<32, 16, Bf16, Bf16, float>()},
    {"v_smfmac_i32_16x16x64_i8", smfmac<16, 64, I8, I8, i32>()},
    {"v_smfmac_i32_32x32x32_i8", smfmac<32, 32, I8, I8, i32>()},
    {"v_smfmac_f32_16x16x64_fp8_fp8", smfmac<16, 64, E4m3, E4m3, float>()},
    {"v_smfmac_f32_16x16x64_fp8_bf8", smfmac<16, 64, E4m3, E5m2, float>()},
    {"v_smfmac_f32_16x16x64_bf8_fp8", smfmac<16, 64, E5m2, E4m3, float>()},
    {"v_smfmac_f32_16x16x64_bf8_bf8", smfmac<16, 64, E5m2, E5m2, float>()},
    {"v_smfmac_f32_32x32x32_fp8_fp8", smfmac<32, 32, E4m3, E4m3, float>()},
    {"v_smfmac_f32_32x32x32_fp8_bf8", smfmac<32, 32, E4m3, E5m2, float>()},
    {"v_smfmac_f32_32x32x32_bf8_fp8", smfmac<32, 32, E5m2, E4m3, float>()},
    {"v_smfmac_f32_32x32x32_bf8_bf8", smfmac<32, 32, E5m2, E5m2, float>()},
    {"v_accvgpr_read_b32", accvgpr()},
    {"v_accvgpr_write_b32", accvgpr()},
    {"v_accvgpr_mov_b32", accvgpr()},
};

}  // namespace

std::span<const Op> mfma_ops() { return kOps; }

}  // namespace sim
