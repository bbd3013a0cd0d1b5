// SPDX-License-Identifier: MIT
// As skinny_unit.h, for gfx942, where the weights have fewer bits than a: lanes read and exchange them as they are
// stored, and widen them to elements of a on the way to the instruction.
//
// A lane's four runs of the weights follow one another along the depth, so that a lane needs the scales of four
// neighbouring groups at most. a, which is longer by the factor of the bits, is exchanged part by part of the depth.
#pragma once

#include "skinny_unit.h"

namespace aiter_like::skinny {

/// How a weight is stored: as an element of a; in 8 bits, as an integer or e4m3; in 4 bits, -8 to 7; in 4 bits as e2m1,
/// with a power of two for each 32 of the depth (OCP Microscaling Formats, 1.0).
enum class Format { same, int8, fp8, int4, mxfp4 };

#if defined(__HIP__)

/// Bytes of two registers by v_perm_b32: a selector's byte 0 to 3 means one of `low`, 4 to 7 one of `high`.
__device__ inline uint32_t chosen_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

/// The upper halves of two floats, which are exact in bf16, the first in the lower bits.
__device__ inline uint32_t upper_halves(float first, float second) {
  return chosen_bytes(float_bits(second), float_bits(first), 0x07060302);
}

/// Two floats that are exact in an Element.
template <class Element>
__device__ inline uint32_t pair_of(float first, float second) {
  if constexpr (__is_same(Element, bf16)) return upper_halves(first, second);
  else return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(first, second));
}

/// Values of e2m1 by its three lower bits, times a power of two, in bf16: the bytes of eight values.
class ScaledFp4 {
 public:
  /// `exponent`: of the power of two, biased by 127; 255 means NaN.
  __device__ ScaledFp4(uint32_t exponent, bool is_normal) {
    if (is_normal) start_normal(exponent);
    else start(exponent);
  }

  /// Eight values, as their even ones and their odd ones follow one another.
  __device__ Run widened(uint32_t x) const {
    constexpr uint32_t kMagnitude = 0x07070707, kSign = 0x80808080;
    const uint32_t even = x & kMagnitude, odd = x >> 4 & kMagnitude;
    const uint32_t even_high = chosen_bytes(high_[1], high_[0], even) | (x << 4 & kSign);
    const uint32_t odd_high = chosen_bytes(high_[1], high_[0], odd) | (x & kSign);
    const uint32_t even_low = chosen_bytes(low_[1], low_[0], even), odd_low = chosen_bytes(low_[1], low_[0], odd);
    constexpr uint32_t kFirst = 0x05010400, kSecond = 0x07030602;
    return {chosen_bytes(even_high, even_low, kFirst), chosen_bytes(even_high, even_low, kSecond),
            chosen_bytes(odd_high, odd_low, kFirst), chosen_bytes(odd_high, odd_low, kSecond)};
  }

 private:
  /// 0, 1/2, 1, 3/2, 2, 3, 4, 6 in bf16 are 0, 3F00, 3F80, 3FC0, 4000, 4040, 4080, 40C0. Another power of two adds to
  /// the exponent, whose lowest bit is in the lower byte.
  __device__ void start_normal(uint32_t exponent) {
    const bool is_odd = exponent & 1;  // 127, which means 1, is odd
    low_[0] = is_odd ? 0xC0800000u : 0x40008000u, low_[1] = is_odd ? 0xC0804000u : 0x4000C080u;
    const uint32_t half = exponent / 2;
    high_[0] = half * 0x01010100u + (is_odd ? 0u : 0xFFFFFF00u);
    high_[1] = half * 0x01010101u + (is_odd ? 0x01010101u : 0x01010000u);
  }
  __device__ void start(uint32_t exponent) {
    // The power 2^-127 has no exponent of its own in fp32.
    const float scale = bits_float(exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7FC00000u : exponent << 23);
    const uint32_t words[4] = {upper_halves(0.f * scale, 0.5f * scale), upper_halves(scale, 1.5f * scale),
                               upper_halves(2.f * scale, 3.f * scale), upper_halves(4.f * scale, 6.f * scale)};
    constexpr uint32_t kLow = 0x06040200, kHigh = 0x07050301;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      low_[half] = chosen_bytes(words[2 * half + 1], words[2 * half], kLow);
      high_[half] = chosen_bytes(words[2 * half + 1], words[2 * half], kHigh);
    }
  }

  uint32_t low_[2], high_[2];
};

/// Four elements from the bytes of a word, which are greater by `offset` than what they mean.
template <class Element>
__device__ inline void widen_bytes(uint32_t (&words)[2], uint32_t x, float offset) {
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = static_cast<float>(x >> 8 * i & 0xFF) - offset;
#pragma unroll
  for (int i = 0; i < 2; ++i) words[i] = pair_of<Element>(values[2 * i], values[2 * i + 1]);
}

/// Eight elements from the bits of int8 weights, four in a word.
template <class Element>
__device__ inline Run widened_bytes(uint32_t first, uint32_t second) {
  uint32_t low[2], high[2];
  widen_bytes<Element>(low, first ^ 0x80808080, 128.f);
  widen_bytes<Element>(high, second ^ 0x80808080, 128.f);
  return {low[0], low[1], high[0], high[1]};
}

/// Eight elements from the bits of e4m3 weights, four in a word: each is exact in 16 bits.
template <class Element>
__device__ inline Run widened_fp8(uint32_t first, uint32_t second) {
  const uint32_t words[2] = {first, second};
  Run run;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(words[i]), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(words[i]), true);
    run[2 * i] = pair_of<Element>(low[0], low[1]), run[2 * i + 1] = pair_of<Element>(high[0], high[1]);
  }
  return run;
}

/// Eight elements from the bits of weights of a format of 8 bits.
template <class Element, Format FORMAT>
__device__ inline Run widened_words(uint32_t first, uint32_t second) {
  if constexpr (FORMAT == Format::fp8) return widened_fp8<Element>(first, second);
  else return widened_bytes<Element>(first, second);
}

/// Eight elements from the bits of int4 weights.
template <class Element>
__device__ inline Run widened_nibbles(uint32_t x) {
  x ^= 0x88888888;
  const uint32_t even = x & 0x0F0F0F0F, odd = x >> 4 & 0x0F0F0F0F;
  const auto value = [](uint32_t bytes, int i) { return static_cast<float>(bytes >> 8 * i & 0xFF) - 8.f; };
  Run run;
#pragma unroll
  for (int i = 0; i < 4; ++i) run[i] = pair_of<Element>(value(even, i), value(odd, i));
  return run;
}

template <class Element, Format FORMAT>
struct PackedUnit : Unit<Element> {
  using Base = Unit<Element>;
  using typename Base::Exchange, typename Base::Operand, typename Base::Sums;
  static constexpr int kBits = FORMAT == Format::int8 || FORMAT == Format::fp8 ? 8 : 4;
  static constexpr int kRun = 8 * kRunBytes / kBits;        // weights
  static constexpr int kDepth = 16 * kRun;
  static constexpr int kParts = kDepth / Base::kDepth;      // parts of the depth, by which rows of a are exchanged
  static constexpr int kPartRuns = Base::kSteps / kParts;   // a lane's runs of the weights for a part

  __device__ static int depth() { return lane_index() % 16 * kRun; }
  /// The place at which a lane reads a row of a for a part: each four lanes read what goes with runs of the weights
  /// that one lane has.
  __device__ static int row_depth(int part) {
    constexpr int kPartDepth = kPartRuns * kRun;
    return lane_index() % 16 / 4 * (Base::kSteps * kRun) + part * kPartDepth + lane_index() % 4 * Base::kRun;
  }
  static_assert(kPartRuns * kRun == 4 * Base::kRun, "four lanes read what goes with a lane's runs of a part");

  __device__ static Operand columns(const Run (&runs)[Base::kColumnRuns], Exchange& lds) {
    Base::put(runs, lds);
    return Base::taken(lds, lane_index() / 16 * 4, 1);
  }
  __device__ static int direct_depth(int run) { return (lane_index() / 16 * 4 + run) * kRun; }
  /// The rows of a for a part, in the order in which the weights are widened.
  template <int kRuns>
  __device__ static Operand rows(const Run (&runs)[kRuns], Exchange& lds) {
    Run ordered[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) ordered[i] = in_order(runs[i]);
    Base::put(ordered, lds);
    return Base::taken(lds, lane_index() / 16 * 4, 1);
  }

  /// Whether no power of two of four, exponents biased by 127 in a byte each, takes a value of e2m1 to where bf16 has
  /// no exponent of its own.
  __device__ static bool are_normal(uint32_t exponents) {
    bool result = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) result &= (exponents >> 8 * i & 0xFF) - 2 <= 250;
    return result;
  }

  /// The weights of a part as elements of a. `exponents`: of mxfp4, a byte for each run of the lane; `are_normal`: of
  /// all lanes alike.
  __device__ static Operand widened(const Operand& packed, int part, uint32_t exponents, bool are_normal) {
    Operand result;
    if constexpr (FORMAT == Format::mxfp4) {
      const ScaledFp4 values(exponents >> 8 * part & 0xFF, are_normal);
#pragma unroll
      for (int word = 0; word < 4; ++word) result.runs[word] = values.widened(packed.runs[part][word]);
    } else {
#pragma unroll
      for (int run = 0; run < 4; ++run) {
        const Run& words = packed.runs[part * kPartRuns + (kBits == 8 ? run / 2 : 0)];
        if constexpr (kBits == 8)
          result.runs[run] = widened_words<Element, FORMAT>(words[run % 2 * 2], words[run % 2 * 2 + 1]);
        else
          result.runs[run] = widened_nibbles<Element>(words[run]);
      }
    }
    return result;
  }

 private:
  __device__ static Run in_order(const Run& run) {
    if constexpr (FORMAT != Format::mxfp4) return run;
    constexpr uint32_t kEven = 0x05040100, kOdd = 0x07060302;  // the lower halves, the upper ones
    return {chosen_bytes(run[1], run[0], kEven), chosen_bytes(run[3], run[2], kEven),
            chosen_bytes(run[1], run[0], kOdd), chosen_bytes(run[3], run[2], kOdd)};
  }
};

/// Like PackedUnit, but each kGroup of the depth have a scale, and sums over them are scaled. The lanes of an
/// instruction then share a group: each has eight weights of 32 that follow one another, and rows of a as they are.
template <class Element, Format FORMAT, int kGroup>
struct GroupedUnit : PackedUnit<Element, FORMAT> {
  using Base = Unit<Element>;
  using Packed = PackedUnit<Element, FORMAT>;
  using typename Base::Exchange, typename Base::Sums;
  static_assert(FORMAT != Format::same && FORMAT != Format::mxfp4, "sums of mxfp4 need no scales");
  static constexpr int kTerms = 32;  // Four lanes share so many of the depth, eight each.
  static constexpr int kWords = Packed::kBits / 4, kRuns = Packed::kDepth / kTerms;
  static constexpr int kStepGroups = Packed::kDepth / kGroup, kPartGroups = kStepGroups / Packed::kParts;
  static constexpr int kLaneGroups = kStepGroups < 4 ? 1 : kStepGroups / 4;  // A lane reads so many scales.
  static_assert(kPartGroups * kGroup == Base::kDepth, "a part of a step has whole groups");

  struct Operand {
    uint32_t words[kRuns][kWords];
  };
  __device__ static int row_depth(int part) { return part * Base::kDepth + Base::depth(); }
  /// The group of a step of which a lane reads a scale, for row lane % 16.
  __device__ static int group(int i) { return (lane_index() / 16 * kLaneGroups + i) % kStepGroups; }

  __device__ static Operand columns(const Run (&runs)[Base::kColumnRuns], Exchange& lds) {
    Base::put(runs, lds);
    return taken(lds);
  }
  __device__ static Operand direct(const Run (&runs)[Base::kColumnRuns], Exchange& lds) {
    const int lane = lane_index();
    wave_barrier();
#pragma unroll
    for (int run = 0; run < Base::kColumnRuns; ++run) lds.at(lane % 16, lane / 16 * 4 + run) = runs[run];
    wave_barrier();
    return taken(lds);
  }
  template <int kRowRuns>
  __device__ static typename Base::Operand rows(const Run (&runs)[kRowRuns], Exchange& lds) {
    return Base::rows(runs, lds);
  }

  /// sums += scale · columns · rowsᵀ for a part of the depth. `scales`: of a step's groups, for the rows of `columns`.
  __device__ static void multiply_scaled(FloatSums& sums, const Operand& columns, const typename Base::Operand& rows,
                                         int part, const Vec<float, 4> (&scales)[kPartGroups]) {
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
      Sums product = {};
#pragma unroll
      for (int i = 0; i < kGroup / kTerms; ++i) {
        const int run = group * (kGroup / kTerms) + i;
        const Run wide = widened(columns.words[part * Base::kSteps + run]);
#pragma unroll
        for (int half = 0; half < 4; half += 2)
          product = Mfma<Element, 16>::multiply(Fragment{wide[half], wide[half + 1]},
                                                Fragment{rows.runs[run][half], rows.runs[run][half + 1]}, product);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = __builtin_fmaf(product[i], scales[group][i], sums[i]);
    }
  }

 private:
  __device__ static Operand taken(Exchange& lds) {
    Operand result;
    constexpr int kTermBytes = kTerms * Packed::kBits / 8;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int byte = run * kTermBytes + lane_index() / 16 * (kWords * 4);
      const Run& at = lds.at(lane_index() % 16, byte / kRunBytes);
      __builtin_memcpy(result.words[run], reinterpret_cast<const char*>(&at) + byte % kRunBytes, kWords * 4);
    }
    return result;
  }
  __device__ static Run widened(const uint32_t (&words)[kWords]) {
    if constexpr (Packed::kBits == 8) return widened_words<Element, FORMAT>(words[0], words[1]);
    else return widened_nibbles<Element>(words[0]);
  }
};

#endif

}  // namespace aiter_like::skinny
