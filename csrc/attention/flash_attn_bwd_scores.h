// SPDX-License-Identifier: MIT
// From q · k to P in flash_attn_bwd, and on to dS: what a call adds to its scores, and what dropout takes away.
#pragma once

#include "aiter_like/philox.h"
#include "flash_attn_bwd_task.h"
#include "score_policies.h"

namespace aiter_like::attn_bwd {

/// A score changes so before the softmax. BIAS_ELEMENT is the element of what is added, or void.
template <bool IS_CAPPED, bool HAS_ALIBI_SLOPES, bool DROPS, bool HAS_SINKS, class BIAS_ELEMENT>
struct Scores {
  static constexpr bool kIsCapped = IS_CAPPED, kHasAlibi = HAS_ALIBI_SLOPES, kDrops = DROPS, kHasSinkTokens = HAS_SINKS;
  using Bias = BIAS_ELEMENT;
};

/// Whether nothing happens to a score: p = exp2(q · k · scale - LSE).
template <class Scores>
constexpr bool kIsPlain = !Scores::kIsCapped && !Scores::kHasAlibi && !Scores::kDrops &&
                          !Scores::kHasSinkTokens && std::is_void_v<typename Scores::Bias>;

/// What a row of scratch has, block by block: -LSE to base 2, -inf where it sees nothing; -(Σ dout · out - dLSE); and
/// of scores that are no plain ones -log2 Σ p where the LSE is far from 0.
enum class RowValue { minus_lse, minus_delta, minus_rest };
template <class Shape>
constexpr int kRowValueCount = kIsPlain<typename Shape::Scores> ? 2 : 3;

/// The scores of one head of one sequence.
template <class Scores>
struct ScoreMap {
  using Bias = std::conditional_t<std::is_void_v<typename Scores::Bias>, float, typename Scores::Bias>;
  static constexpr bool kHasBias = !std::is_void_v<typename Scores::Bias>;

  float inner, outer;      // of a softcap; else inner is the scale
  float slope;             // ALiBi's
  int delta, rows, keys;
  const Bias* bias;        // the head's first row
  int64_t bias_row, bias_key;
  uint64_t seed;           // of dropout
  uint32_t offset, number;
  int threshold;

  __device__ static ScoreMap of(const Args& args, int batch, int head, int first_row, const Window& window) {
    ScoreMap map{};
    map.inner = Scores::kIsCapped ? args.softmax_scale / args.softcap : args.scale_log2;
    map.outer = args.softcap * kLog2E;
    map.delta = window.delta(), map.rows = window.rows, map.keys = window.keys;
    if constexpr (Scores::kHasAlibi) map.slope = alibi_slope(args.alibi_slopes[batch * args.slopes_batch + head]);
    if constexpr (kHasBias) {
      map.bias = static_cast<const Bias*>(args.bias) + batch * args.bias_batch + head * args.bias_head +
                 (args.cu_seqlens_q == nullptr ? 0 : first_row * args.bias_row);
      map.bias_row = args.bias_row, map.bias_key = args.bias_key;
    }
    if constexpr (Scores::kDrops) {
      map.seed = static_cast<uint64_t>(args.rng_state[0]), map.offset = static_cast<uint32_t>(args.rng_state[1]);
      map.number = static_cast<uint32_t>(batch * args.heads + head);
      map.threshold = args.dropout_threshold;
    }
    return map;
  }

  /// A score to base 2, and its derivative by softmax_scale · q · k.
  struct Score {
    float value, slope;
  };
  __device__ Score score(float product, int row, int key) const {
    Score score{product * inner, 1.f};
    if constexpr (Scores::kIsCapped) {
      const float capped = fast_tanh(score.value);
      score = {capped * outer, 1.f - capped * capped};
    }
    if constexpr (kHasBias)
      if (row < rows && key < keys)
        score.value = plus_bias(score.value, to_float(bias[row * bias_row + key * bias_key]));
    if constexpr (Scores::kHasAlibi)
      score.value = __builtin_fmaf(-slope, __builtin_fabsf(static_cast<float>(row + delta - key)), score.value);
    return score;
  }

  /// Whether dropout leaves a probability.
  __device__ bool keeps(int row, int key) const {
    if constexpr (!Scores::kDrops) return true;
    const Vec<uint32_t, 4> words =
        philox(seed, static_cast<uint32_t>(key / 4), static_cast<uint32_t>(row), number, offset);
    const int place = key % 4;
    const uint32_t word = place < 2 ? (place == 0 ? words.data[0] : words.data[1])
                                    : (place == 2 ? words.data[2] : words.data[3]);
    return static_cast<int>(word >> 8) >= threshold;
  }
};

}  // namespace aiter_like::attn_bwd
