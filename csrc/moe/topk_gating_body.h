// SPDX-License-Identifier: MIT
// Routing of tokens to experts: scores of all experts, the k best, their weights. HIP (gfx9) and CUDA. topk_gating.hip
// says what a Config holds.
//
// A wave takes a token; lane l has the experts l, l + 64, … (on CUDA l, l + 32, …) in registers. The best one is found
// k times by two reductions over the wave, for its key and for the lowest expert that has it, its weight by a third.
// Bound: for few tokens the launch; else instructions, about 36 k + 40 groups per token beside those of the scores.
#pragma once

#include "aiter_like/math.h"
#include "aiter_like/ordered.h"
#include "aiter_like/preload.h"
#include "aiter_like/reduce.h"

namespace aiter_like {

enum class Score : int { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };
enum class Bias : int { kNone = 0, kFloat = 1, kBf16 = 2, kF16 = 3 };
enum class Shared : int { kConstant = 0, kSigmoid = 1 };

template <class Config>
struct TopkGatingArgs {
  using Element = typename Config::Element;

  float* weights;         // [tokens, k + shared]
  int32_t* ids;           // [tokens, k + shared], or [tokens, k]
  const Element* gating;  // [tokens, experts], and the shared ones behind them for Shared::kSigmoid
  const void* bias;       // [experts]
  int64_t weights_stride, ids_stride, gating_stride;
  int tokens, experts, k, shared, id_columns, groups, best_groups;
  Score score;
  Bias bias_kind;
  Shared shared_kind;
  bool has_sum_of_two;    // a group counts as the sum of its two best; else as its best
  bool is_renormalized;
  float scale, shared_weight;
  static constexpr Preload preload() {
    using A = TopkGatingArgs;
    return {offsetof(A, gating), offsetof(A, gating_stride), offsetof(A, tokens), offsetof(A, k),
            offsetof(A, bias), offsetof(A, id_columns), offsetof(A, best_groups)};
  }
};

template <class Config>
struct TopkGatingBody {
  using Element = typename Config::Element;
  using Args = TopkGatingArgs<Config>;
  static constexpr int kEach = Config::kEach;  // experts of a lane
  static constexpr int kThreads = 256, kWaves = kThreads / kWaveSize;
  // Keys: 0 for what cannot be chosen (any more), 1 for a NaN, which comes after all numbers.
  static constexpr uint32_t kNanKey = 1, kNone = 0xFFFFFFFFu;

  struct Best {
    uint32_t key, expert;
  };

  __device__ static float bias_of(const Args& args, int expert) {
    switch (args.bias_kind) {
      case Bias::kFloat: return static_cast<const float*>(args.bias)[expert];
      case Bias::kBf16: return to_float(static_cast<const bf16*>(args.bias)[expert]);
      case Bias::kF16: return to_float(static_cast<const f16*>(args.bias)[expert]);
      default: return 0.f;
    }
  }

  __device__ static float square_root(float x) {
#if defined(__HIP__)
    return __builtin_amdgcn_sqrtf(x);
#else
    float result;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
  }

  /// log(1 + e^x): 20 ε relative. The series where 1 + t has lost most of t.
  __device__ static float softplus(float x) {
    const float t = fast_exp(-__builtin_fabsf(x));
    const float small = t * (1.f - t * (0.5f - t * (1.f / 3.f)));
    return (x > 0.f ? x : 0.f) + (t < 0x1p-7f ? small : fast_log2(1.f + t) * 0.693147181f);
  }

  /// Scores from logits, in place; that of a NaN is 0. `largest` and the sum are of the numbers among a token's logits.
  __device__ static void to_scores(const Args& args, float (&x)[kEach]) {
    if (args.score == Score::kSoftmax) {
      uint32_t best = 0;
      for (int i = 0; i < kEach; ++i) {
        const uint32_t key = ordered_key(x[i]);
        best = key > best ? key : best;
      }
      const float largest = key_float(wave_largest(best));
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {  // several infinities share the weight: inf - inf counts as 0
        x[i] = x[i] != x[i] ? 0.f : x[i] == largest ? 1.f : fast_exp(x[i] - largest);
        sum += x[i];
      }
      sum = wave_sum(sum);
      const float inverse = sum > 0.f ? 1.f / sum : 0.f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] *= inverse;
      return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float score = args.score == Score::kSigmoid ? sigmoid(x[i]) : square_root(softplus(at_most(x[i], 1e30f)));
      x[i] = x[i] != x[i] ? 0.f : score;
    }
  }

  /// The best of the wave's keys among the experts from `begin` to `end`, of equal ones the lowest expert.
  __device__ static Best best_of(const uint32_t (&keys)[kEach], int begin, int end, uint32_t without = kNone) {
    Best mine{0, kNone};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWaveSize + lane_index();
      const bool counts = expert >= begin && expert < end && static_cast<uint32_t>(expert) != without;
      if (counts && keys[i] > mine.key) mine = {keys[i], static_cast<uint32_t>(expert)};
    }
    const uint32_t key = wave_largest(mine.key);
    const uint32_t expert = ~wave_largest(mine.key == key ? ~mine.expert : 0u);
    return {key, expert};
  }

  /// Takes the experts of all but the best groups out of the choice.
  __device__ static void keep_best_groups(const Args& args, uint32_t (&keys)[kEach]) {
    const int size = args.experts / args.groups, lane = lane_index();
    uint32_t mine = 0;  // the key of group `lane`
    for (int group = 0; group < args.groups; ++group) {
      const int begin = group * size, end = begin + size;
      const Best first = best_of(keys, begin, end);
      uint32_t key = first.key;
      if (args.has_sum_of_two && size > 1) {
        const Best second = best_of(keys, begin, end, first.expert);
        const bool has_nan = first.key <= kNanKey || second.key <= kNanKey;
        key = has_nan ? kNanKey : ordered_key(key_float(first.key) + key_float(second.key));
        key = key > kNanKey ? key : kNanKey;
      }
      if (lane == group) mine = key;
    }
    uint32_t kept = 0;
    for (int i = 0; i < args.best_groups; ++i) {
      // Told by `kept`, not by a change of `mine` at the loop's end: LLVM 22 leaves one wait state between such a
      // change and the DPP at the loop's start, which needs two.
      const bool is_left = lane < args.groups && (kept >> lane % 32 & 1) == 0;
      const uint32_t key = wave_largest(is_left ? mine : 0u);
      kept |= 1u << ~wave_largest(is_left && mine == key ? ~static_cast<uint32_t>(lane) : 0u);
    }
    for (int group = 0; group < args.groups; ++group) {
      if (kept >> group & 1) continue;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int expert = i * kWaveSize + lane;
        if (expert >= group * size && expert < (group + 1) * size) keys[i] = 0;
      }
    }
  }

  /// Reads a token's logits; NaN beyond the last expert, whose key is 0. Scores rise with logits, so that keys of
  /// logits tell which is the best.
  __device__ __forceinline__ static void load(const Args& args, const Element* row, float (&x)[kEach],
                                              uint32_t (&keys)[kEach]) {
    const int lane = lane_index();
#if defined(__HIP__)
    Element logits[kEach];  // loaded without a branch, at whose end each would be waited for
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWaveSize + lane;
      logits[i] = row[expert < args.experts ? expert : 0];
    }
#endif
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWaveSize + lane;
#if defined(__HIP__)
      x[i] = expert < args.experts ? to_float(logits[i]) : bits_float(0x7FC00000u);
#else
      x[i] = expert < args.experts ? to_float(row[expert]) : bits_float(0x7FC00000u);
#endif
      const uint32_t key = ordered_key(x[i]);
      keys[i] = expert >= args.experts ? 0 : key > kNanKey ? key : kNanKey;
    }
  }

  /// Makes keys of scores and biases, where there are biases.
  __device__ __forceinline__ static void add_bias(const Args& args, const float (&x)[kEach], uint32_t (&keys)[kEach]) {
    if (args.bias_kind == Bias::kNone) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWaveSize + lane_index();
      if (keys[i] <= kNanKey) continue;
      const uint32_t key = ordered_key(x[i] + bias_of(args, expert));
      keys[i] = key > kNanKey ? key : kNanKey;
    }
  }

  /// Takes the best experts one after the other: the score and the number of the one in place `lane` become that
  /// lane's. Returns the sum of the scores.
  __device__ __forceinline__ static float take_best(const Args& args, const float (&x)[kEach], uint32_t (&keys)[kEach],
                                                    float& weight, int32_t& id) {
    const int lane = lane_index();
    float sum = 0.f;
    for (int place = 0; place < args.k; ++place) {
      const Best best = best_of(keys, 0, args.experts);
      float score = 0.f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (static_cast<uint32_t>(i * kWaveSize + lane) != best.expert) continue;
        keys[i] = 0;
        score = x[i];
      }
      score = wave_max(score);  // scores are at least 0, and 0 in all other lanes
      sum += score;
      if (lane == place) {
        weight = score;
        id = static_cast<int32_t>(best.expert);
      }
    }
    return sum;
  }

  __device__ __forceinline__ static void run(const Args& args) {
    const int64_t token = int64_t{workgroup_index().x} * kWaves + wave_index();
    if (token >= args.tokens) return;
    const int lane = lane_index();
    const Element* row = args.gating + token * args.gating_stride;
    float x[kEach];
    uint32_t keys[kEach];
    load(args, row, x, keys);
    await_arguments(args.weights, args.weights_stride, args.ids, args.ids_stride, args.bias_kind, args.scale,
                    int{args.has_sum_of_two}, args.shared_weight);
    to_scores(args, x);
    add_bias(args, x, keys);
    if (args.groups > 1) keep_best_groups(args, keys);
    float weight = 0.f;
    int32_t id = 0;
    const float sum = take_best(args, x, keys, weight, id);
    if (args.is_renormalized) weight = sum > 0.f ? weight / sum : 0.f;
    weight *= args.scale;
    if (lane >= args.k && lane < args.k + args.shared) {
      const int shared = args.experts + lane - args.k;
      id = shared;
      weight = args.shared_kind == Shared::kSigmoid ? sigmoid(to_float(row[shared])) : args.shared_weight;
    }
    if (lane >= args.k + args.shared) return;
    args.weights[token * args.weights_stride + lane] = weight;
    if (lane < args.id_columns) args.ids[token * args.ids_stride + lane] = id;
  }
};

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void topk_gating_kernel(AITER_LIKE_PRELOADED(typename Body::Args)) {
  await_stream();
  take_preloaded(args, AITER_LIKE_PRELOADED_NAMES);
  Body::run(args);
}

template <class Config>
void launch_topk_gating(const TopkGatingArgs<Config>& args, Stream stream) {
  using Body = TopkGatingBody<Config>;
  const auto groups = static_cast<uint32_t>((args.tokens + int64_t{Body::kWaves} - 1) / Body::kWaves);
  launch_overlapped(topk_gating_kernel<Body>, dim3(groups), Body::kThreads, stream, args);
  check_launch("topk_gating_kernel");
}

}  // namespace aiter_like
