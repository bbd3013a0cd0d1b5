// SPDX-License-Identifier: MIT
// Verification of a tree of drafted tokens along one path of it. From an accepted node its children are tried in their
// order: greedily, the one that is the target's token; or by chance, the one at which the sum of the target's
// probabilities of the children tried passes the node's uniform number. After the last accepted node comes the target's
// token, or one drawn from what the target has more than the draft, in which rejected children count with the target's
// probability. HIP (gfx9) and CUDA.
//
// Work-item 0 of a request's workgroup walks; residual.h draws. LDS: 2 KB. Bound: memory, a row of target and of draft.
#include "residual.h"
#include "sampling_host.h"

namespace aiter_like {

constexpr int kThreads = 1024;

struct TreeArgs {
  int32_t* predicts;           // [any]: the token that follows node retrive_index
  int32_t *accept_index, *accept_count;  // [requests, steps]: retrive_index of accepted nodes, -1 after; [requests]
  const int64_t *candidates, *index, *next_token, *next_sibling;  // [requests, nodes]
  const int64_t* target_tokens;  // [requests, nodes], greedy; null: by chance
  const float *coins, *final_coins;  // [requests, nodes], [requests]
  const float* target;           // [requests, nodes, columns]
  float* draft;                  // the same
  int64_t predicts_size;
  int nodes, steps, columns;
  float threshold_single, threshold_acc;
};

/// A node that is one of the tree; else -1.
__device__ inline int node_of(int64_t node, int nodes) {
  return node >= 0 && node < nodes ? static_cast<int>(node) : -1;
}

__device__ inline void predict(const TreeArgs& args, int64_t place, int64_t token) {
  if (place >= 0 && place < args.predicts_size) args.predicts[place] = static_cast<int32_t>(token);
}

/// Walks along a request's tree; returns the last accepted node. `count` becomes how many are accepted after the root.
__device__ int walk(const TreeArgs& args, int64_t request, int& count) {
  const int64_t first = request * args.nodes;
  int32_t* accepted = args.accept_index + request * args.steps;
  const bool is_greedy = args.target_tokens != nullptr;
  int node = 0, tries = 0;
  count = 0;
  accepted[0] = static_cast<int32_t>(args.index[first]);
  for (int i = 1; i < args.steps; ++i) accepted[i] = -1;
  while (count + 1 < args.steps) {
    const int64_t row = (first + node) * args.columns;
    const float coin = is_greedy ? 0.f : args.coins[first + node];
    float sum = 0.f;
    int child = node_of(args.next_token[first + node], args.nodes);
    for (; child >= 0 && tries < args.nodes; ++tries) {  // a damaged tree with a circle ends too
      const int64_t token = args.candidates[first + child];
      const bool is_token = is_greedy || (token >= 0 && token < args.columns);
      bool is_accepted = is_greedy && token == args.target_tokens[first + node];
      if (!is_greedy && is_token) {
        const float q = args.target[row + token];
        sum += q;
        is_accepted = (q > 0.f && coin <= sum / args.threshold_acc) || q >= args.threshold_single;
        if (!is_accepted) args.draft[row + token] = q;
      }
      if (is_accepted) break;
      child = node_of(args.next_sibling[first + child], args.nodes);
    }
    if (child < 0 || tries >= args.nodes) break;
    ++tries;
    predict(args, args.index[first + node], args.candidates[first + child]);
    node = child;
    accepted[++count] = static_cast<int32_t>(args.index[first + node]);
  }
  args.accept_count[request] = count;
  return node;
}

__global__ __launch_bounds__(kWaveSize) void verify_tree_greedy_kernel(TreeArgs args, int requests) {
  await_stream();
  const int request = static_cast<int>(workgroup_index().x) * kWaveSize + thread_index();
  if (request >= requests) return;
  int count;
  const int64_t place = int64_t{request} * args.nodes + walk(args, request, count);
  predict(args, args.index[place], args.target_tokens[place]);
}

__global__ __launch_bounds__(kThreads) void verify_tree_kernel(TreeArgs args) {
  await_stream();
  __shared__ ResidualScratch<kThreads> scratch;
  __shared__ int last, accepted;
  const int64_t request = workgroup_index().x;
  if (thread_index() == 0) {
    int count;
    last = walk(args, request, count);
    accepted = count;
  }
  workgroup_barrier();
  const int64_t place = request * args.nodes + last;
  const bool is_whole = accepted == args.steps - 1;  // nothing was tried after the last node
  const float* target = args.target + place * args.columns;
  const float coin = args.final_coins[request];
  const float scaled = (coin > 0.f ? coin : 0.f) * 0x1p32f;
  const uint32_t word = scaled < 0x1.fffffep31f ? static_cast<uint32_t>(scaled) : 0xFFFFFFFFu;
  const float* draft = is_whole ? nullptr : args.draft + place * args.columns;
  int token = residual_token<kThreads>(Residual{target, draft, args.columns, -1}, word, scratch);
  if (token < 0 && draft) {  // rounding left nothing: the target itself
    workgroup_barrier();
    token = residual_token<kThreads>(Residual{target, nullptr, args.columns, -1}, word, scratch);
  }
  if (thread_index() == 0) predict(args, args.index[place], token < 0 ? 0 : token);
}

void launch_verify_tree(const TreeArgs& args, int requests, Stream stream) {
  if (args.target_tokens) {
    const dim3 groups(static_cast<uint32_t>((requests + kWaveSize - 1) / kWaveSize));
    launch_named("verify_tree_greedy_kernel", verify_tree_greedy_kernel, groups, kWaveSize, stream, args, requests);
  } else {
    launch_named("verify_tree_kernel", verify_tree_kernel, dim3(static_cast<uint32_t>(requests)), kThreads, stream,
                 args);
  }
}

#if AITER_LIKE_HOST_PASS

void verify_tree(ffi::Tensor predicts, ffi::Tensor accept_index, ffi::Tensor accept_count, ffi::Tensor candidates,
                 ffi::Tensor index, ffi::Tensor next_token, ffi::Tensor next_sibling,
                 ffi::OptionalTensor target_tokens, ffi::OptionalTensor coins, ffi::OptionalTensor final_coins,
                 ffi::OptionalTensor target_probs, ffi::OptionalTensor draft_probs, double threshold_single,
                 double threshold_acc) {
  ffi::Match match("verify_tree");
  ffi::Size requests{"requests", 1 << 21}, nodes{"nodes", 1 << 20}, steps{"steps", 1 << 20}, columns{"columns"};
  TreeArgs args{};
  args.candidates = match.take<const int64_t>(candidates, {requests, nodes}, "candidates", ffi::kDense);
  args.accept_index = match.take<int32_t>(accept_index, {requests, steps}, "accept_index", ffi::kDense);
  if (requests == 0) return;
  match.require(nodes > 0 && steps > 0, "candidates must have nodes, and accept_index steps");
  args.predicts_size = predicts.numel();
  args.predicts = match.elements<int32_t>(predicts, args.predicts_size, "predicts");
  args.accept_count = match.elements<int32_t>(accept_count, requests, "accept_count");
  args.index = match.elements<const int64_t>(index, requests * nodes, "index");
  args.next_token = match.elements<const int64_t>(next_token, requests * nodes, "next_token");
  args.next_sibling = match.elements<const int64_t>(next_sibling, requests * nodes, "next_sibling");
  args.target_tokens = match.elements<const int64_t>(target_tokens, requests * nodes, "target_tokens");
  if (!args.target_tokens) {
    match.require(target_probs.has_value() && draft_probs.has_value() && coins.has_value() && final_coins.has_value(),
                  "probabilities and uniform samples must be given");
    args.target = match.take<const float>(target_probs, {requests, nodes, columns}, "target_probs", ffi::kDense);
    args.draft = match.elements<float>(draft_probs, requests * nodes * columns, "draft_probs");
    args.coins = match.elements<const float>(coins, requests * nodes, "uniform_samples");
    args.final_coins = match.elements<const float>(final_coins, requests, "uniform_samples_for_final_sampling");
    match.require(columns > 0, "target_probs must have columns");
    args.columns = columns;
  }
  args.nodes = nodes, args.steps = steps;
  args.threshold_single = threshold_single, args.threshold_acc = threshold_acc;
  launch_verify_tree(args, requests, ffi::stream_of(candidates));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(verify_tree, aiter_like::verify_tree);
#endif
