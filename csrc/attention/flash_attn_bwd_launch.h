// SPDX-License-Identifier: MIT
// The host's part of flash_attn_bwd: which tiles serve which head dimensions, how tasks are divided, and scratch.
#pragma once

#include "attention_host.h"
#include "flash_attn_bwd_scores.h"

namespace aiter_like::attn_bwd {

/// What a Config has of tiles. The sums of dK and dV, K and V and a share of K transposed must fit 512 registers,
/// beside what a block of rows needs: more of it where scores are mapped.
template <int DIM, int DIM_V, class SCORES>
struct Tiles {
  using Scores = SCORES;
  static constexpr int kDim = DIM, kDimV = DIM_V, kWidest = DIM > DIM_V ? DIM : DIM_V;
  static constexpr bool kHasRoom = kIsPlain<Scores>;
  static constexpr int kKeyTiles = kWidest <= 64    ? (kHasRoom ? 4 : 2)
                                   : kWidest <= 128 ? (kHasRoom ? 3 : 2)
                                   : kWidest <= 192 ? (kHasRoom ? 2 : 1)
                                                    : 1;
  static constexpr int kRowTiles = kWidest <= 192 ? 2 : 1;
  static constexpr int kRowSplit = DIM % 64 == 0 && DIM > 64 ? 1 : 2;
  static constexpr int kAhead = kWidest <= 64 ? 2 : kWidest <= 192 && kKeyTiles > 1 ? 3 : 1;
};

/// Planning assumes these numbers of configs/gfx942/attention.toml, flash_attn_bwd_plan. A step is a block of rows in a
/// task.
struct PlanCosts {
  int64_t least_steps, turn_steps, step_bytes;
};

/// Divides tasks so that the launch ends on all CUs at about the same time. Without a mask all tasks take equally long:
/// whole rounds of them stay whole, and those of the last, partly filled round are divided. Under a mask the longest
/// tasks come first, and those are divided that would take more than half of what a CU has to do.
template <class STEPS>
Plan plan_tasks(const PlanCosts& costs, int columns, int key_blocks, bool is_masked, int num_cus, const STEPS& steps) {
  constexpr int kAll = 1 << 30;
  Plan plan{columns, key_blocks, 1, kAll, key_blocks, kAll};
  int64_t total = 0, longest = 0;
  for (int j = 0; j < key_blocks; ++j) {
    total += steps(j);
    longest = steps(j) > longest ? steps(j) : longest;
  }
  total *= columns;
  if (total == 0) return plan;
  if (is_masked) {
    const int64_t share = total / num_cus / 2 + 1;
    plan.most_steps = static_cast<int>(share > costs.least_steps ? share : costs.least_steps);
    return plan;
  }
  const int64_t rounds = int64_t{columns} * key_blocks / num_cus;  // whole ones
  plan.tail_from = static_cast<int>(rounds * num_cus / columns);
  const int64_t left = int64_t{columns} * (key_blocks - plan.tail_from);
  if (left == 0) return plan;
  // So many parts of each that they fill the CUs once, or a few times where that leaves fewer of them idle.
  int64_t best_parts = 1, least = INT64_MAX;
  for (int64_t parts = 1; parts <= kMostParts && (parts == 1 || longest / parts >= costs.least_steps); ++parts) {
    const int64_t time = (left * parts + num_cus - 1) / num_cus * ((longest + parts - 1) / parts + costs.least_steps);
    if (time < least) best_parts = parts, least = time;
  }
  plan.tail_steps = static_cast<int>((longest + best_parts - 1) / best_parts);
  return plan;
}

/// How many chains the key blocks are dealt to: those that are at work at once wait for one another at the beginning,
/// and each chain's dQ is read once more at the end. dq_bytes: of one.
inline int plan_chains(const PlanCosts& costs, const Plan& plan, int parts, int64_t dq_bytes, int num_cus) {
  const int64_t at_once = num_cus / (int64_t{plan.columns} * parts) + 1;
  const int64_t members = at_once < plan.key_blocks ? at_once : plan.key_blocks;
  int64_t best = 1, least = INT64_MAX;
  for (int64_t chains = 1; chains <= members; ++chains) {
    const int64_t waits = costs.turn_steps * ((members + chains - 1) / chains - 1);
    const int64_t time = waits + chains * dq_bytes / costs.step_bytes;
    if (time < least) best = chains, least = time;
  }
  return static_cast<int>(best);
}

#if AITER_LIKE_HOST_PASS
/// What may happen to a score. A bias of packed rows is [rows, keys], else [1 | batch, 1 | heads, rows, keys].
inline void set_features(ffi::Match& match, Args& args, const ffi::OptionalTensor& bias,
                         const ffi::OptionalTensor& alibi_slopes, const ffi::OptionalTensor& rng_state,
                         ffi::Size& batch, ffi::Size& heads, double softcap, double dropout_p) {
  const ffi::Slopes slopes = ffi::slopes_of(match, alibi_slopes, batch, heads);
  args.alibi_slopes = slopes.data, args.slopes_batch = slopes.batch;
  args.softcap = softcap;
  args.rng_state = match.elements<const int64_t>(rng_state, 2, "rng_state");
  match.require(dropout_p >= 0 && dropout_p < 1 && (dropout_p == 0 || args.rng_state != nullptr),
                "dropout_p must be at least 0 and below 1, and comes with rng_state");
  args.dropout_scale = static_cast<float>(1 / (1 - dropout_p));
  args.dropout_threshold = static_cast<int>(dropout_p * (1 << 24));
  if (!bias.has_value()) return;
  const ffi::Tensor& tensor = *bias;
  const bool is_packed = args.cu_seqlens_q != nullptr;
  const int last = tensor.ndim() - 1;
  match.require(last == (is_packed ? 1 : 3) && tensor.size(last) == args.max_keys &&
                    tensor.size(last - 1) == args.rows &&
                    (is_packed || ((tensor.size(0) == 1 || tensor.size(0) == args.batch) &&
                                   (tensor.size(1) == 1 || tensor.size(1) == args.heads))),
                "bias must have shape [1 | batch, 1 | num_heads, seqlen_q, seqlen_k], packed [rows, max_seqlen_k]");
  args.bias = tensor.data_ptr();
  args.bias_row = tensor.stride(last - 1), args.bias_key = tensor.stride(last);
  if (!is_packed) {
    args.bias_batch = tensor.size(0) == 1 ? 0 : tensor.stride(0);
    args.bias_head = tensor.size(1) == 1 ? 0 : tensor.stride(1);
  }
}

/// A workgroup asks so often for its turn before it gives up. A launch whose steps all ran one after another would
/// take less: a step has about 5000 clk (modelled), a poll at least 300, of s_sleep and a read from L2. The least
/// number takes 10 ms.
inline int most_polls(int64_t steps) {
  constexpr int64_t kStepPolls = 17, kLeast = 1 << 16, kMost = 1 << 30;
  return static_cast<int>(steps < kMost / kStepPolls ? kLeast + kStepPolls * steps : kMost);
}

/// Plans the launch, takes its scratch and launches it.
template <class Shape, class LAUNCH>
void run(Args& args, const ffi::Match& match, DLDevice device, Stream stream, const LAUNCH& launch) {
  constexpr int kM = Shape::kBlockM, kN = Shape::kBlockN;
  const Blocks<kM, kN> blocks{{args.max_rows, args.max_keys, args.left, args.right, args.sink_size}};
  const auto steps = [&](int j) { return (blocks.end_block(j) - blocks.first_block(j)) * args.group; };
  const int columns = args.batch * args.kv_heads, num_cus = num_compute_units(device.device_id);
  args.plan = plan_tasks(Shape::kPlanCosts, columns, blocks.key_blocks(), args.left >= 0 || args.right >= 0, num_cus,
                         steps);
  const bool is_packed = args.cu_seqlens_q != nullptr;
  args.row_blocks = is_packed ? args.rows / kM + args.batch : args.batch * blocks.row_blocks();
  const int64_t row_blocks = int64_t{args.row_blocks} * args.heads;
  if (args.plan.key_blocks > 0 && columns > 0 && !Shape::kIsAtomic)
    args.plan.chains = plan_chains(Shape::kPlanCosts, args.plan, args.plan.parts(0, steps(0)),
                                   row_blocks * Shape::kDqFloats * 4, num_cus);
  int64_t workgroups = 0, slots = 0, all_steps = 0;
  for (int j = 0; j < args.plan.key_blocks; ++j) {
    const int parts = args.plan.parts(j, steps(j));
    workgroups += int64_t{parts} * columns;
    all_steps += int64_t{steps(j)} * columns;
    if (parts > 1) slots += int64_t{parts} * columns;
  }
  match.require(workgroups < (int64_t{1} << 31) && row_blocks < (int64_t{1} << 31), "more blocks than a launch holds");

  args.most_polls = most_polls(all_steps);

  // Each part of scratch begins at a multiple of 256 bytes.
  int64_t bytes = 0;
  const auto place = [&](int64_t count) {
    const int64_t at = bytes;
    bytes += (count * 4 + 255) / 256 * 256;
    return at;
  };
  const int64_t values = place(row_blocks * kM * kRowValueCount<Shape>), turns = place(row_blocks * args.plan.chains);
  const int64_t sinks = place(args.dsink != nullptr ? row_blocks : 0);
  const int64_t sums = place(row_blocks * args.plan.chains * Shape::kDqFloats);
  const int64_t partials = place(slots * Shape::kPartFloats);
  const ffi::Scratch scratch(bytes, device);
  char* const base = scratch.template data<char>();
  const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(base + at); };
  args.row_values = floats(values);
  args.turns = reinterpret_cast<int*>(base + turns);
  args.sink_partials = floats(sinks), args.dq_sums = floats(sums), args.partials = floats(partials);
  launch(args, static_cast<int>(workgroups), slots > 0, stream);
}

#endif

}  // namespace aiter_like::attn_bwd
