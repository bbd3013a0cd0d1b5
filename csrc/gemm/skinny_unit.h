// SPDX-License-Identifier: MIT
// The matrix instruction of products with few rows, on gfx942 and on NVIDIA (sm_80 and later). A lane's share of either
// operand is an access of 16 bytes along the depth. Which element of the depth meets which place of the instruction is
// free as long as both operands agree, so the order of the depth is that of the accesses.
#pragma once

#include "aiter_like/dtype.h"
#include "aiter_like/lanes.h"
#if defined(__HIP__)
#include "aiter_like/mfma.h"
#endif

namespace aiter_like::skinny {

/// 16 bytes of elements that follow one another along the depth.
#if defined(__HIP__)
using Run = __attribute__((ext_vector_type(4))) uint32_t;  // One value to clang, which a loop needs not copy.
#else
using Run = Vec<uint32_t, 4>;
#endif
constexpr int kRunBytes = 16;

/// Four sums in fp32.
#if defined(__HIP__)
using FloatSums = Accumulator;
#else
using FloatSums = Vec<float, 4>;
#endif

/// 16 bytes from an address that is a multiple of 16, or of an element of type Element.
template <bool kIsAligned, class Element>
__device__ Run load_run(const char* address) {
  if constexpr (kIsAligned) {
    return __builtin_bit_cast(Run, load_vec<4>(reinterpret_cast<const uint32_t*>(address)));
  } else {
    constexpr int kElements = kRunBytes / sizeof(Element);
    Vec<Element, kElements> run;
#pragma unroll
    for (int e = 0; e < kElements; ++e) run[e] = reinterpret_cast<const Element*>(address)[e];
    return __builtin_bit_cast(Run, run);
  }
}

/// The first of the kSize columns, of `count`, of a unit that has those from `first` on: earlier where not as many are
/// left, so that a unit's place is the same for all lanes.
template <int kSize>
__device__ uint32_t unit_begin(uint32_t first, uint32_t count) {
  const uint32_t last = count > kSize ? count - kSize : 0;
  return first < last ? first : last;
}

/// The last index of `count` instead of what is beyond it.
__device__ inline uint32_t within(uint32_t index, uint32_t count) { return index < count ? index : count - 1; }

/// A value that all lanes have alike, so that the compiler knows it.
__device__ inline uint32_t uniform(uint32_t x) {
#if defined(__HIP__)
  return static_cast<uint32_t>(__builtin_amdgcn_readfirstlane(static_cast<int>(x)));
#else
  return x;
#endif
}

/// How many of the lowest `count` lanes are in a set.
__device__ inline uint32_t lanes_below(uint64_t lanes, uint32_t count) {
  return static_cast<uint32_t>(lane_count(count < 64 ? lanes & ((uint64_t{1} << count) - 1) : lanes));
}

/// The compiler moves no instruction across, so that loads are issued in the order in which they are waited for.
__device__ inline void keep_order() {
#if defined(__HIP__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

/// Stands between products and a branch: LLVM counts one that is not taken as a wait state before what overwrites the
/// products' registers behind it, and is one short.
__device__ inline void settle_before_branch() {
#if defined(__HIP__)
  keep_order();
  asm volatile("s_nop 0");
  keep_order();
#endif
}

// A Unit multiplies kColumns rows of the weights [columns of out, depth] and kRows rows of a, kDepth deep.
//   in memory  a lane reads, from depth() on, column(run) of the weights for each of kColumnRuns, and row(run) of a, a
//              run for kRunRows of them
//   columns(), rows()  from these runs to the instruction's operands, by way of an Exchange of the wave's own in LDS
//   direct()   from runs that a lane has read at direct_column() of the weights, direct_depth(run) on: where these lie
//              in memory such that lanes' runs follow one another, and need no exchange
//   multiply() adds a product to Sums, whose float i of this lane belongs to sum_column(lane, i) and sum_row(lane, i);
//              with template arguments, that of a part of the depth alone
//   sum_place() is lane · 4 + i of an element of the sums

#if defined(__HIP__)

/// v_mfma_f32_16x16x16, or 16x16x32 of 8 bits. A compute unit takes 64 bytes of neighbouring lanes a cycle only if they
/// lie in one line, and the instruction wants neighbouring lanes in different rows: 16 lanes read 256 bytes in a row,
/// and the runs change lanes.
template <class Element>
struct Unit {
  static constexpr int kRun = kRunBytes / sizeof(Element);  // elements
  static constexpr int kColumns = 16, kRows = 16, kDepth = 16 * kRun, kColumnRuns = 4, kRunRows = 4;
  static constexpr int kSteps = 4;  // pairs of instructions for the depth
  using Sums = decltype(Mfma<Element, 16>::multiply({}, {}, {}));
  struct Operand {
    Run runs[kSteps];
  };
  struct Exchange {
    Run rows[16][kDepth / kRun];
    /// Run `run` of a row, such that neither 8 of a row nor those of 8 rows that lanes read together share banks.
    __device__ Run& at(int row, int run) { return rows[row][run ^ row % 8]; }
  };

  __device__ static int depth() { return lane_index() % 16 * kRun; }
  __device__ static int column(int run) { return run * kRunRows + lane_index() / 16; }
  __device__ static int row(int run) { return column(run); }

  __device__ static Operand columns(const Run (&runs)[kColumnRuns], Exchange& lds) { return exchanged(runs, lds); }
  template <int kRuns>
  __device__ static Operand rows(const Run (&runs)[kRuns], Exchange& lds) {
    return exchanged(runs, lds);
  }

  __device__ static int direct_column(int) { return lane_index() % 16; }
  __device__ static int direct_depth(int run) { return (run * 4 + lane_index() / 16) * kRun; }
  __device__ static Operand direct(const Run (&runs)[kColumnRuns]) {
    return {{runs[0], runs[1], runs[2], runs[3]}};
  }

  template <int kPart = 0, int kParts = 1>
  __device__ static void multiply(Sums& sums, const Operand& columns, const Operand& rows) {
    constexpr int kPartSteps = kSteps / kParts;
#pragma unroll
    for (int s = kPart * kPartSteps; s < (kPart + 1) * kPartSteps; ++s) {
#pragma unroll
      for (int half = 0; half < 4; half += 2)
        sums = Mfma<Element, 16>::multiply(Fragment{columns.runs[s][half], columns.runs[s][half + 1]},
                                           Fragment{rows.runs[s][half], rows.runs[s][half + 1]}, sums);
    }
  }

  __device__ static int sum_column(int lane, int i) { return lane / 16 * 4 + i; }
  __device__ static int sum_row(int lane, int) { return lane % 16; }
  __device__ static int sum_place(int column, int row) { return (column / 4 * 16 + row) * 4 + column % 4; }

  /// Lays the runs out by rows. Rows that no run was read for hold what was there; they only reach sums that nobody
  /// asks for.
  template <int kRuns>
  __device__ static void put(const Run (&runs)[kRuns], Exchange& lds) {
    const int lane = lane_index();
    wave_barrier();
#pragma unroll
    for (int run = 0; run < kRuns; ++run) lds.at(run * kRunRows + lane / 16, lane % 16) = runs[run];
    wave_barrier();
  }
  /// Takes four runs that lie `apart` of the lane's row.
  __device__ static Operand taken(Exchange& lds, int first, int apart) {
    Operand result;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) result.runs[s] = lds.at(lane_index() % 16, first + s * apart);
    return result;
  }

 private:
  template <int kRuns>
  __device__ static Operand exchanged(const Run (&runs)[kRuns], Exchange& lds) {
    put(runs, lds);
    return taken(lds, lane_index() / 16, 4);
  }
};

#else

/// mma.sync m16n8k16, whose operands are read as they are: 4 lanes along the depth have 64 bytes in a row.
template <class Element>
struct Unit {
  static_assert(sizeof(Element) == 2, "the form for NVIDIA is of 16-bit elements");
  static constexpr int kRun = kRunBytes / sizeof(Element);
  static constexpr int kColumns = 16, kRows = 8, kDepth = 4 * kRun, kColumnRuns = 2, kRunRows = 8;
  using Sums = Vec<float, 4>;
  struct Exchange {};

  __device__ static int depth() { return lane_index() % 4 * kRun; }
  __device__ static int column(int run) { return run * 8 + lane_index() / 4; }
  __device__ static int row(int run) { return column(run); }

  struct Columns {
    Run runs[kColumnRuns];
  };
  __device__ static Columns columns(const Run (&runs)[kColumnRuns], Exchange&) { return {{runs[0], runs[1]}}; }
  __device__ static Run rows(const Run (&runs)[1], Exchange&) { return runs[0]; }

  __device__ static int direct_column(int run) { return column(run); }
  __device__ static int direct_depth(int) { return depth(); }
  __device__ static Columns direct(const Run (&runs)[kColumnRuns]) { return {{runs[0], runs[1]}}; }

  template <int kPart = 0, int kParts = 1>
  __device__ static void multiply(Sums& sums, const Columns& columns, const Run& rows) {
    const Run &lower = columns.runs[0], &upper = columns.runs[1];
#pragma unroll
    for (int half = 0; half < 4; half += 2) {
      if constexpr (__is_same(Element, bf16))
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(lower[half]), "r"(upper[half]), "r"(lower[half + 1]), "r"(upper[half + 1]), "r"(rows[half]),
              "r"(rows[half + 1]));
      else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(lower[half]), "r"(upper[half]), "r"(lower[half + 1]), "r"(upper[half + 1]), "r"(rows[half]),
              "r"(rows[half + 1]));
    }
  }

  __device__ static int sum_column(int lane, int i) { return lane / 4 + i / 2 * 8; }
  __device__ static int sum_row(int lane, int i) { return lane % 4 * 2 + i % 2; }
  __device__ static int sum_place(int column, int row) {
    return (column % 8 * 4 + row / 2) * 4 + column / 8 * 2 + row % 2;
  }
};

#endif

}  // namespace aiter_like::skinny
