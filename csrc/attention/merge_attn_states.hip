// SPDX-License-Identifier: MIT
// Attention over two sets of keys becomes attention over both, by their log-sum-exps. HIP (gfx9) and CUDA. One build
// per ELEMENT.
//
//   out = (e^(a_lse − m) a + e^(b_lse − m) b) / (e^(a_lse − m) + e^(b_lse − m)),  m = max(a_lse, b_lse)
//
// A lane takes one vector of a row of a head; neighbours have neighbours.
// Bound: memory. Per element 2 · sizeof(ELEMENT) bytes are read and sizeof(ELEMENT) written.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(ELEMENT)
#error "merge_attn_states.hip: -DELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

/// The macros of this build; the code below takes them from here.
struct Config {
  using Element = ELEMENT;
};

/// [tokens, heads, columns] with strides of tokens and heads in elements; log-sum-exps [tokens, heads] likewise.
template <class T>
struct State {
  T* values;
  int64_t token, head;
};

template <class Config>
struct MergeArgs {
  using Element = typename Config::Element;
  State<Element> out;
  State<float> out_lse;  // values may be null
  State<const Element> a, b;
  State<const float> a_lse, b_lse;
  uint32_t vectors;  // in all
  Divider row_vectors, heads;
};

constexpr int kThreads = 256;

// kVec elements per access: 16 bytes, or 1 element where an address is not aligned to that.
template <class Config, int kVec>
__device__ void merge_body(const MergeArgs<Config>& args) {
  using Element = typename Config::Element;
  const uint32_t index = workgroup_index().x * kThreads + thread_index();
  if (index >= args.vectors) return;
  const uint32_t row = args.row_vectors.divide(index), vector = index - row * args.row_vectors.divisor;
  const uint32_t token = args.heads.divide(row), head = row - token * args.heads.divisor;
  const auto at = [&](const auto& state) { return state.values + token * state.token + head * state.head; };
  Packed<Element, kVec> a, b;
  a.load(at(args.a) + vector * kVec);
  b.load(at(args.b) + vector * kVec);
  const float infinity = __builtin_inff();
  // Rows without keys have -inf, or +inf from some kernels.
  const float a_lse = *at(args.a_lse) == infinity ? -infinity : *at(args.a_lse);
  const float b_lse = *at(args.b_lse) == infinity ? -infinity : *at(args.b_lse);
  const float maximum = __builtin_fmaxf(a_lse, b_lse);
  const bool is_empty = maximum == -infinity;
  const float a_weight = is_empty ? 0.f : fast_exp(a_lse - maximum);
  const float b_weight = is_empty ? 0.f : fast_exp(b_lse - maximum);
  const float sum = a_weight + b_weight, factor = is_empty ? 0.f : 1.f / sum;
  float merged[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    // A weight of 0 hides whatever stands there.
    const float from_a = a_weight == 0.f ? 0.f : a.at(e) * a_weight;
    const float from_b = b_weight == 0.f ? 0.f : b.at(e) * b_weight;
    merged[e] = (from_a + from_b) * factor;
  }
  store_vec<kVec>(at(args.out) + vector * kVec, vec_from_float<Element>(merged));
  if (vector == 0 && args.out_lse.values != nullptr)
    *at(args.out_lse) = is_empty ? -infinity : maximum + fast_log2(sum) * 0.693147181f;
}

template <int kVec>
__global__ __launch_bounds__(kThreads, 8) void merge_attn_states_kernel(MergeArgs<Config> args) {
  await_stream();
  merge_body<Config, kVec>(args);
}

// Both passes compile this function: the device pass emits a kernel only where a launch of it is instantiated.
void launch_merge_attn_states(const MergeArgs<Config>& args, bool is_aligned, Stream stream) {
  constexpr int kVec = 16 / sizeof(Config::Element);
  const dim3 grid((args.vectors + kThreads - 1) / kThreads);
  if (is_aligned)
    launch_overlapped(merge_attn_states_kernel<kVec>, grid, kThreads, stream, args);
  else
    launch_overlapped(merge_attn_states_kernel<1>, grid, kThreads, stream, args);
  check_launch("merge_attn_states_kernel");
}

#if AITER_LIKE_HOST_PASS

template <class T>
static State<T> state_of(const ffi::View<T>& view) {
  return {view, view.stride(0), view.stride(1)};
}

void merge_attn_states(ffi::Tensor out, ffi::OptionalTensor out_lse, ffi::Tensor a, ffi::Tensor a_lse, ffi::Tensor b,
                       ffi::Tensor b_lse) {
  using Element = Config::Element;
  ffi::Match match("merge_attn_states");
  ffi::Size tokens{"tokens"}, heads{"heads"}, columns{"columns"};
  MergeArgs<Config> args{};
  args.out = state_of(match.take<Element>(out, {tokens, heads, columns}, "out"));
  if (tokens * heads * columns == 0) return;
  args.out_lse = state_of(match.take<float>(out_lse, {tokens, heads}, "out_lse", ffi::kStrided));
  args.a = state_of(match.take<const Element>(a, {tokens, heads, columns}, "a"));
  args.b = state_of(match.take<const Element>(b, {tokens, heads, columns}, "b"));
  args.a_lse = state_of(match.take<const float>(a_lse, {tokens, heads}, "a_lse", ffi::kStrided));
  args.b_lse = state_of(match.take<const float>(b_lse, {tokens, heads}, "b_lse", ffi::kStrided));
  match.require(tokens * heads * columns < (int64_t{1} << 31) - kThreads, "less than 2^31 elements fit one launch");
  constexpr int64_t kVec = 16 / sizeof(Element);
  const bool is_aligned = ffi::takes_vectors(kVec, out, a, b);
  const int64_t row_vectors = is_aligned ? columns / kVec : int64_t{columns};
  args.vectors = tokens * heads * row_vectors;
  args.row_vectors = Divider(row_vectors), args.heads = Divider(heads);
  launch_merge_attn_states(args, is_aligned, ffi::stream_of(out));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(merge_attn_states, aiter_like::merge_attn_states);
#endif
