// SPDX-License-Identifier: MIT
// Verification of drafted tokens, one after the other: token i is accepted with probability min(1, target / draft) of
// it; at the first that is not, a token is drawn from what the target has more than the draft; after the last, from the
// target's next row. HIP (gfx9) and CUDA.
//
//   1. work-item 0 of a request's workgroup walks along the chain
//   2. residual.h draws the last token
//
// Uniform numbers are words of draws.h: column i of the request's draw for drafted token i, column n for the last one.
// LDS: 2 KB. Bound: memory, 4 bytes of a row of target and of draft each.
#include "residual.h"
#include "sampling_host.h"

namespace aiter_like {

constexpr int kThreads = 1024;

struct ChainArgs {
  int32_t* tokens;         // [requests, drafted + 1]; -1 after the last
  int32_t *accepted, *emitted;  // [requests], or null
  const int32_t* drafts;   // [requests, drafted]
  const float* target;     // [requests, drafted + 1, columns]
  const float* draft;      // [requests, drafted, columns]; null: the drafted tokens are sure
  const int32_t* lengths;  // [requests]: how many are drafted; null: all
  Seeds seeds;
  int drafted, columns;
};

__device__ inline float uniform_of(uint32_t word) { return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-24f; }

__global__ __launch_bounds__(kThreads) void verify_chain_kernel(ChainArgs args) {
  await_stream();
  __shared__ ResidualScratch<kThreads> scratch;
  __shared__ int stop;
  const int64_t request = workgroup_index().x;
  const Draw draw(args.seeds, request);
  int32_t* tokens = args.tokens + request * (args.drafted + 1);
  const float* target = args.target + request * (args.drafted + 1) * args.columns;
  const float* draft = args.draft ? args.draft + request * args.drafted * args.columns : nullptr;
  const int32_t* drafts = args.drafts + request * args.drafted;
  int length = args.lengths ? args.lengths[request] : args.drafted;
  length = length < 0 ? 0 : length > args.drafted ? args.drafted : length;
  if (thread_index() == 0) {
    int emitted = length, accepted = 0;
    for (int i = 0; i < length; ++i) {
      const int token = drafts[i];
      bool is_accepted = token >= 0 && token < args.columns;
      if (is_accepted) {
        const float q = target[int64_t{i} * args.columns + token];
        const float p = draft ? draft[int64_t{i} * args.columns + token] : 1.f;
        is_accepted = q > 0.f && uniform_of(draw.word(i)) * p < q;  // a NaN is not accepted
      }
      accepted += is_accepted;
      if (!is_accepted && emitted == length) emitted = i;
    }
    for (int i = 0; i <= args.drafted; ++i) tokens[i] = i < emitted ? drafts[i] : -1;
    if (args.accepted) args.accepted[request] = accepted;
    if (args.emitted) args.emitted[request] = emitted;
    stop = emitted;
  }
  workgroup_barrier();
  const int emitted = stop;
  const bool is_rejected = emitted < length;
  Residual row{target + int64_t{emitted} * args.columns, nullptr, args.columns, -1};
  if (is_rejected && draft) row.draft = draft + int64_t{emitted} * args.columns;
  if (is_rejected && !draft) row.drafted = drafts[emitted];
  const uint32_t word = draw.word(args.drafted);
  int token = residual_token<kThreads>(row, word, scratch);
  if (token < 0 && is_rejected) {  // rounding left nothing: the target itself
    workgroup_barrier();
    token = residual_token<kThreads>(Residual{row.target, nullptr, args.columns, -1}, word, scratch);
  }
  if (thread_index() == 0) tokens[emitted] = token < 0 ? 0 : token;
}

void launch_verify_chain(const ChainArgs& args, uint32_t requests, Stream stream) {
  launch_named("verify_chain_kernel", verify_chain_kernel, dim3(requests), kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

void verify_chain(ffi::Tensor tokens, ffi::OptionalTensor accepted, ffi::OptionalTensor emitted, ffi::Tensor drafts,
                  ffi::Tensor target_probs, ffi::OptionalTensor draft_probs, ffi::OptionalTensor lengths, int64_t seed,
                  int64_t offset, ffi::OptionalTensor seeds, ffi::OptionalTensor offsets) {
  ffi::Match match("verify_chain");
  ffi::Size requests{"requests", 1 << 21}, steps{"drafted + 1", (1 << 20) + 1}, columns{"columns"};
  ChainArgs args{};
  args.target = match.take<const float>(target_probs, {requests, steps, columns}, "target_probs", ffi::kDense);
  if (requests == 0) return;
  match.require(steps > 0 && columns > 0, "target_probs must have tokens and columns");
  const int64_t drafted = steps - 1;
  args.tokens = match.elements<int32_t>(tokens, requests * steps, "tokens");
  args.accepted = match.elements<int32_t>(accepted, requests, "accepted");
  args.emitted = match.elements<int32_t>(emitted, requests, "emitted");
  args.drafts = match.elements<const int32_t>(drafts, requests * drafted, "drafts");
  args.draft = match.elements<const float>(draft_probs, requests * drafted * columns, "draft_probs");
  args.lengths = match.elements<const int32_t>(lengths, requests, "lengths");
  args.seeds = ffi::seeds_of(match, seed, offset, seeds, offsets, requests);
  args.drafted = drafted, args.columns = columns;
  launch_verify_chain(args, requests, ffi::stream_of(target_probs));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(verify_chain, aiter_like::verify_chain);
#endif
