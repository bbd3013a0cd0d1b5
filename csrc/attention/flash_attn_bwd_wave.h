// SPDX-License-Identifier: MIT
// One wave of flash_attn_bwd: its registers, the stream of its products, and the arithmetic that stands beside them.
//
// A block of rows takes five products. Their left operands come from LDS as one stream of steps, 16 bytes of each lane
// at a time, requested Shape::kAhead steps before their use. A wave is alone on its SIMD: every instruction beside a
// product takes 4 clk, and a product of 16 clk leaves room for three of them. So the products carry everything else,
// spread as evenly as its data allow (flash_attn_bwd_schedule.h):
//
//   steps      product                     beside it                                        from LDS
//   S          S = Q K^T                   the next block's loads; P of the first rows      Q by row
//   dP         dP = dout V^T - delta       P of the last rows, dS of the first              dout by row
//   dV         dV^T += dout^T P            dS of the last rows, to LDS; dQ so far           dout transposed
//   dK         dK^T += Q^T dS              the next block's rows, to LDS                    Q transposed
//   dQ         dQ^T += K^T dS              where the block after that is                    dS
//
// The workgroup meets twice in a block. Before the first dK step is requested: dS and Q transposed are there, and all
// images by row, and dout transposed, have been read. Before the next block's first S step is: its rows are there, and
// dS and Q transposed have been read.
#pragma once

#include "flash_attn_bwd_rows.h"
#include "flash_attn_bwd_schedule.h"
#include "flash_attn_bwd_scores.h"

namespace aiter_like::attn_bwd {

/// x · y, and 0 where one of them is 0, whatever the other one is. The compiler has no builtin for the instruction.
__device__ float multiply_legacy(float x, float y) __asm("llvm.amdgcn.fmul.legacy");

/// `x`, which the compiler must have here: it would compute it beside its use.
template <class T>
__device__ inline T here(T x) {
  asm volatile("" : "+v"(x));
  return x;
}

template <class Shape>
struct WaveState {
  using Element = typename Shape::Element;
  using S = Steps<Shape>;
  using Lds = Places<Shape>;
  using Map = ScoreMap<typename Shape::Scores>;
  static constexpr bool kIsPlain = attn_bwd::kIsPlain<typename Shape::Scores>, kDrops = Shape::Scores::kDrops;
  static constexpr int kKeyTiles = Shape::kKeyTiles, kRowTiles = Shape::kRowTiles, kM = Shape::kBlockM;

  Accumulator dk[kKeyTiles][Shape::kDim / 16], dv[kKeyTiles][Shape::kDimV / 16];
  Chunk k[kKeyTiles][Shape::kDim / 32], v[kKeyTiles][Shape::kDimV / 32];
  Fragment k_columns[Shape::kDqTiles][Shape::kBlockN / 16];
  Accumulator s[kRowTiles][kKeyTiles], dp[kRowTiles][kKeyTiles];  // s becomes p, times a softcap's derivative
  Accumulator dq[Shape::kDqRowTiles][Shape::kDqTiles];
  Fragment p[kRowTiles][kKeyTiles], ds[kRowTiles][kKeyTiles];
  Accumulator minus_lse[kRowTiles], minus_delta[kRowTiles], minus_rest[kRowTiles];
  Chunk stream[S::kSlots];
  float kept_scale;  // of dropout
  uint32_t half;     // 0x8000, in a register
  char* lds;
  int q_place, grad_place, columns_place, gradients_places[2], write_places[kKeyTiles];

  __device__ void start(char* tiles) {
    lds = tiles;
    q_place = Lds::QRows::read_place(), grad_place = Lds::GradRows::read_place();
    columns_place = Lds::QColumns::read_place();
    const int wave = wave_index();
    for (int odd = 0; odd < 2; ++odd)
      gradients_places[odd] = Lds::Gradients::read_place(odd) + Lds::Gradients::step(Shape::dq_row_tile(wave), 0);
    half = 0x8000;
    asm("" : "+s"(half));
#pragma unroll
    for (int kt = 0; kt < kKeyTiles; ++kt) {
      write_places[kt] = Lds::kGradients + Lds::Gradients::write_place(wave * kKeyTiles + kt);
#pragma unroll
      for (auto& sum : dk[kt]) sum = {};
#pragma unroll
      for (auto& sum : dv[kt]) sum = {};
    }
  }

  /// Begins to load a value of each row of row tile rt of a block.
  __device__ void load_row_value(const Args& args, int scratch_block, RowValue value, int rt) {
    const float* const values =
        args.row_values + (static_cast<int64_t>(scratch_block) * kRowValueCount<Shape> + static_cast<int>(value)) * kM;
    const auto loaded = *reinterpret_cast<const Accumulator*>(values + 16 * rt + lane_index() / 16 * 4);
    if (value == RowValue::minus_lse) minus_lse[rt] = loaded;
    if (value == RowValue::minus_delta) minus_delta[rt] = loaded;
    if (value == RowValue::minus_rest) minus_rest[rt] = loaded;
  }

  /// Begins to read the left operand of `step`, a step of the next block from kCount on.
  __device__ void request(int step) {
    const int at = step % S::kCount;
    int place;
    if (at < S::kDp)
      place = Lds::kQRows + q_place + Lds::QRows::step(at / S::kRowSteps, at % S::kRowSteps);
    else if (at < S::kDv)
      place = Lds::kGradRows + grad_place +
              Lds::GradRows::step((at - S::kDp) / S::kGradSteps, (at - S::kDp) % S::kGradSteps);
    else if (at < S::kDk)
      place = Lds::kGradColumns + columns_place + Lds::GradColumns::step(0, at - S::kDv);
    else if (at < S::kDq)
      place = Lds::kQColumns + columns_place + Lds::QColumns::step(0, at - S::kDk);
    else
      place = Lds::kGradients + gradients_places[(at - S::kDq) / Shape::kDqRowTiles % 2] +
              Lds::Gradients::step((at - S::kDq) % Shape::kDqRowTiles, (at - S::kDq) / Shape::kDqRowTiles);
    stream[at % S::kSlots] = *reinterpret_cast<const Chunk*>(lds + place);
  }

  /// Product `number` of a step: of the first half of its 16 bytes, then of the second.
  template <int step, int number>
  __device__ void multiply() {
    using Product = Mfma<Element, 16>;
    constexpr int kTiles = S::products(step) / 2, half = number / kTiles, tile = number % kTiles;
    const Chunk& chunk = stream[step % S::kSlots];
    const Fragment left = half == 0 ? chunk.lo : chunk.hi;
    if constexpr (step < S::kDp) {
      constexpr int rt = step / S::kRowSteps, j = step % S::kRowSteps;
      const Fragment right = half == 0 ? k[tile][j].lo : k[tile][j].hi;
      s[rt][tile] = Product::multiply(left, right, j + half == 0 ? Accumulator{} : s[rt][tile]);
    } else if constexpr (step < S::kDv) {
      constexpr int rt = (step - S::kDp) / S::kGradSteps, j = (step - S::kDp) % S::kGradSteps;
      const Fragment right = half == 0 ? v[tile][j].lo : v[tile][j].hi;
      const Accumulator start = kDrops ? Accumulator{} : minus_delta[rt];
      dp[rt][tile] = Product::multiply(left, right, j + half == 0 ? start : dp[rt][tile]);
    } else if constexpr (step < S::kDk) {
      constexpr int rt = (step - S::kDv) / S::kGradSteps, column = (step - S::kDv) % S::kGradSteps * 2 + half;
      dv[tile][column] = Product::multiply(left, p[rt][tile], dv[tile][column]);
    } else if constexpr (step < S::kDq) {
      constexpr int rt = (step - S::kDk) / S::kRowSteps, column = (step - S::kDk) % S::kRowSteps * 2 + half;
      dk[tile][column] = Product::multiply(left, ds[rt][tile], dk[tile][column]);
    } else {
      constexpr int rt = (step - S::kDq) % Shape::kDqRowTiles, t = (step - S::kDq) / Shape::kDqRowTiles;
      dq[rt][tile] = Product::multiply(k_columns[tile][2 * t + half], left, dq[rt][tile]);
    }
  }

  /// The scores on their way to P: element e of a row tile is key tile e / 4, row e % 4 of the lane's.
  struct Element16 {
    int rt, kt, i;
    __device__ constexpr Element16(int rt, int e) : rt(rt), kt(e / 4), i(e % 4) {}
  };

  /// What an exponential is taken of.
  template <class PLACES>
  __device__ void scale(Element16 at, const Map& map, const PLACES& places) {
    const float score = s[at.rt][at.kt][at.i];
    if constexpr (kIsPlain) {
      s[at.rt][at.kt][at.i] = here(__builtin_fmaf(score, map.inner, minus_lse[at.rt][at.i]));
    } else {
      const auto found = map.score(score, places.row(at.rt, at.i), places.key(at.kt));
      s[at.rt][at.kt][at.i] = found.value + minus_lse[at.rt][at.i] + minus_rest[at.rt][at.i];
      slopes[at.rt][at.kt][at.i] = found.slope;
    }
  }
  __device__ void exponentiate(Element16 at) {
    s[at.rt][at.kt][at.i] = here(fast_exp2(s[at.rt][at.kt][at.i]));
  }

  /// P without keys that a row does not see, and in 16 bits, once both elements of a dword are there.
  template <bool IS_MASKED, class PLACES>
  __device__ void finish_p(Element16 at, const Map& map, const PLACES& places) {
    float p = s[at.rt][at.kt][at.i];
    if ((IS_MASKED || !kIsPlain) && places.hides(at.rt, at.kt, at.i)) p = 0.f;
    float survivor = p;
    if constexpr (kDrops) {
      const bool is_kept = map.keeps(places.row(at.rt, at.i), places.key(at.kt));
      survivor = is_kept ? p * kept_scale : 0.f;
      p = is_kept ? p : -p;  // dS needs to know
    }
    if constexpr (!kIsPlain) p = multiply_legacy(p, slopes[at.rt][at.kt][at.i]);
    s[at.rt][at.kt][at.i] = p;
    put(this->p[at.rt][at.kt], at.i, survivor);
  }

  /// dS, and in 16 bits to registers and to LDS once both elements of a dword are there.
  template <bool IS_MASKED>
  __device__ void differentiate(Element16 at) {
    float weight = s[at.rt][at.kt][at.i], slope = dp[at.rt][at.kt][at.i];
    if constexpr (kDrops) {
      slope = (__builtin_signbitf(weight) ? 0.f : slope * kept_scale) + minus_delta[at.rt][at.i];
      weight = __builtin_fabsf(weight);
    }
    // A key that is not seen has the weight 0, and what it is multiplied by may be NaN.
    put(ds[at.rt][at.kt], at.i, IS_MASKED || !kIsPlain ? multiply_legacy(weight, slope) : weight * slope);
  }
  /// Rows i and i + 1 of dS, to LDS; i is even.
  __device__ void write_gradients(Element16 at) {
    const uint32_t both = ds[at.rt][at.kt][at.i / 2];
    char* const place = lds + write_places[at.kt] + (16 * at.rt + at.i) * Lds::Gradients::kRowBytes;
    *reinterpret_cast<uint16_t*>(place) = static_cast<uint16_t>(both);
    *reinterpret_cast<uint16_t*>(place + Lds::Gradients::kRowBytes) = static_cast<uint16_t>(both >> 16);
  }

 private:
  Accumulator slopes[kIsPlain ? 1 : kRowTiles][kKeyTiles];  // of scores that are no plain ones
  uint32_t first;  // element i - 1, rounded, while i is not there

  /// Element i of a fragment, in 16 bits, to nearest; bf16 with ties away from zero, by one instruction less.
  __device__ void put(Fragment& fragment, int i, float x) {
    uint32_t rounded;
    if constexpr (!kIsPlain)
      rounded = from_float<Element>(x).bits;  // what a call adds to its scores may hold any NaN
    else if constexpr (std::is_same_v<Element, bf16>)
      rounded = float_bits(x) + half;
    else
      rounded = from_float<f16>(x).bits;
    if (i % 2 == 0)
      first = here(rounded);
    else if constexpr (kIsPlain && std::is_same_v<Element, bf16>)
      fragment[i / 2] = here(pack_upper(first, rounded));
    else
      fragment[i / 2] = here(pack_lower(first, rounded));
  }
};

}  // namespace aiter_like::attn_bwd
