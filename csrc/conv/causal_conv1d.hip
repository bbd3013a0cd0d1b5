// SPDX-License-Identifier: MIT
// The causal convolution of prefill over packed sequences, channel by channel:
//   out[t, c] = act(bias[c] + Σ weight[c, j] · (state ‖ x)[c, t + j]), split in q, k and v;
// then the state of a sequence is the end of state ‖ x. HIP (gfx9) and CUDA. One build per ELEMENT, WIDTH, and whether
// the channels of a token lie side by side (IS_CHANNEL_LAST).
//
// A workgroup takes kChannels channels of one chunk, kOut tokens of a sequence. Chunk number s + starts[s] / kOut is
// the first one of sequence s: the numbers of two sequences never meet, whatever their lengths, so that the grid
// follows from the numbers of tokens and sequences alone and the host need not know the lengths.
//   1. The chunk's tokens and the kBefore ones before it, from x or the state, become a tile in LDS, lanes along what
//      lies side by side in memory.
//   2. A lane takes two channels of a quarter of the tokens, its window in registers.
//   3. The first chunk, which alone has read the state, writes the new one.
// LDS: kRows × (kChannels + 2) elements, 17 KB of 16 bits. Bound: memory, 2 · sizeof(ELEMENT) bytes per token and
// channel and kBefore / kOut more: 8192 tokens × 8192 channels of bf16 = 275 MB, 52 us at 5.3 TB/s.
#include "aiter_like/ffi.h"
#include "aiter_like/math.h"

#if !defined(ELEMENT) || !defined(WIDTH) || !defined(IS_CHANNEL_LAST)
#error "causal_conv1d.hip: -DELEMENT=bf16|f16|float -DWIDTH=1…8 -DIS_CHANNEL_LAST=0|1"
#endif

namespace aiter_like {

/// The macros of this build; the code below takes them from here.
struct Config {
  using Element = ELEMENT;
  static constexpr int kWidth = WIDTH;
  static constexpr bool kIsChannelLast = IS_CHANNEL_LAST;
};

constexpr int kThreads = 256, kRows = 64, kChannels = 128, kPairs = kChannels / 2, kParts = kThreads / kPairs;

/// Elements from one to the next.
struct Strides {
  int64_t line, channel, token;
};

template <class Config>
struct CausalConvArgs {
  using Element = typename Config::Element;
  Element *q, *k, *v;                      // [tokens, k_dim], [tokens, k_dim], [tokens, dim - 2 k_dim]
  Element* states;                         // [lines, dim, state_len]; null: there are none
  const Element *x, *weight, *bias;        // [dim, tokens], [dim, width], [dim] or null
  const int32_t *starts, *line_of;         // [sequences + 1]; [sequences], or null: a sequence's number
  const uint8_t* has_state;                // [sequences], or null: no sequence's line holds tokens before it
  int64_t q_stride, k_stride, v_stride;    // elements from token to token
  Strides x_strides, weight_strides, state_strides;
  int tokens, dim, k_dim, sequences, lines, state_len, pad_slot_id;
  bool is_silu, is_paired;                 // is_paired: two results may be stored at once
};

/// A sequence's chunk of this workgroup.
struct Chunk {
  int sequence, number;
};

__device__ inline int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

/// Number `index` among all chunks, whatever the starts are; one before the first sequence has sequence −1.
template <int kOut>
__device__ Chunk find_chunk(const int32_t* starts, int sequences, int tokens, int index) {
  int low = -1, high = sequences, first = 0;  // the answer is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2, begins = clamped(starts[middle], 0, tokens) / kOut + middle;
    if (begins <= index)
      low = middle, first = begins;
    else
      high = middle;
  }
  return {low, index - first};
}

template <class Config>
struct CausalConv {
  using Element = typename Config::Element;
  static constexpr int kBefore = Config::kWidth - 1, kOut = kRows - kBefore, kPad = 2;
  static constexpr int kPerLane = (kOut + kParts - 1) / kParts;
  using Tile = Element[kRows][kChannels + kPad];

  const CausalConvArgs<Config>& args;
  int start, length, first, channel;  // the sequence's in x; the chunk's first token of it; the workgroup's channel
  bool is_there, has_state;
  Element* state;  // the sequence's; null: there is none

  /// Element of token `t` of the sequence, which may be one before it or behind it.
  __device__ Element at(int t, int c) const {
    if (t >= length || c >= args.dim) return Element{};
    if (t >= 0) return args.x[(start + t) * args.x_strides.token + c * args.x_strides.channel];
    if (!has_state) return Element{};
    return state[(args.state_len + t) * args.state_strides.token + c * args.state_strides.channel];
  }

  __device__ void load(Tile& tile) const {
    const int lane = thread_index() % kRows, part = thread_index() / kRows;  // kRows is kPairs, too
    if constexpr (Config::kIsChannelLast) {
      const int c = channel + 2 * lane;
      const Element* x = args.x + start * args.x_strides.token + c;
      const bool is_wide = c + 1 < args.dim && (reinterpret_cast<uintptr_t>(x) |
                           static_cast<uintptr_t>(args.x_strides.token * sizeof(Element))) % (2 * sizeof(Element)) == 0;
#pragma unroll 4
      for (int row = part; row < kRows; row += kParts) {
        const int t = first - kBefore + row;
        if (is_wide && t >= 0 && t < length) {
          store_vec<2>(&tile[row][2 * lane], load_vec<2>(x + t * args.x_strides.token));
        } else {
          tile[row][2 * lane] = at(t, c);
          tile[row][2 * lane + 1] = at(t, c + 1);
        }
      }
    } else {
#pragma unroll 8
      for (int c = part; c < kChannels; c += kParts) tile[lane][c] = at(first - kBefore + lane, channel + c);
    }
  }

  __device__ void store(int64_t token, int c, float low, float high) const {
    if (c >= args.dim) return;
    if (args.is_silu) low *= sigmoid(low), high *= sigmoid(high);
    if (!is_there) low = high = 0.f;
    if (args.is_paired) {
      const float both[2] = {low, high};
      store_vec<2>(place(token, c), vec_from_float<Element>(both));
    } else {
      *place(token, c) = from_float<Element>(low);
      if (c + 1 < args.dim) *place(token, c + 1) = from_float<Element>(high);
    }
  }

  __device__ Element* place(int64_t token, int c) const {
    if (c < args.k_dim) return args.q + token * args.q_stride + c;
    if (c < 2 * args.k_dim) return args.k + token * args.k_stride + (c - args.k_dim);
    return args.v + token * args.v_stride + (c - 2 * args.k_dim);
  }

  __device__ void convolve(const Tile& tile) const {
    const int pair = thread_index() % kPairs, row = thread_index() / kPairs * kPerLane, c = channel + 2 * pair;
    float weight[2][Config::kWidth], bias[2], window[2][Config::kWidth];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool is_channel = c + e < args.dim;
      bias[e] = is_channel && args.bias ? to_float(args.bias[c + e]) : 0.f;
#pragma unroll
      for (int j = 0; j < Config::kWidth; ++j) {
        weight[e][j] = is_channel ? to_float(args.weight[(c + e) * args.weight_strides.channel +
                                                         j * args.weight_strides.token]) : 0.f;
        if (j < kBefore) window[e][j] = row < kOut ? to_float(tile[row + j][2 * pair + e]) : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int t = first + row + i;
      if (row + i >= kOut || t >= length) return;
      float sum[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        window[e][kBefore] = to_float(tile[row + i + kBefore][2 * pair + e]);
        sum[e] = bias[e];
#pragma unroll
        for (int j = 0; j < Config::kWidth; ++j) sum[e] = __builtin_fmaf(weight[e][j], window[e][j], sum[e]);
#pragma unroll
        for (int j = 0; j < kBefore; ++j) window[e][j] = window[e][j + 1];
      }
      store(start + t, c, sum[0], sum[1]);
    }
  }

  /// The last state_len tokens of state ‖ x. A lane has a channel and goes from old to new: what it still has to read
  /// of the state lies ahead.
  __device__ void store_state() const {
    const int c = channel + thread_index();
    if (thread_index() >= kChannels || c >= args.dim || (has_state && length == 0)) return;
    for (int s = 0; s < args.state_len; ++s)
      state[s * args.state_strides.token + c * args.state_strides.channel] = at(length - args.state_len + s, c);
  }
};

__global__ __launch_bounds__(kThreads) void causal_conv1d_kernel(CausalConvArgs<Config> args) {
  await_stream();
  using Conv = CausalConv<Config>;
  __shared__ Conv::Tile tile;
  const Chunk chunk =
      find_chunk<Conv::kOut>(args.starts, args.sequences, args.tokens, static_cast<int>(workgroup_index().x));
  if (chunk.sequence < 0) return;
  const int start = clamped(args.starts[chunk.sequence], 0, args.tokens);
  const int length = clamped(args.starts[chunk.sequence + 1], start, args.tokens) - start;
  const int first = chunk.number * Conv::kOut;
  if (first >= length && chunk.number > 0) return;
  const int line = args.line_of ? args.line_of[chunk.sequence] : chunk.sequence;
  const bool is_there = line != args.pad_slot_id && line >= 0 && (!args.states || line < args.lines);
  Config::Element* state = args.states && is_there ? args.states + line * args.state_strides.line : nullptr;
  const bool has_state = state && args.has_state && args.has_state[chunk.sequence];
  const Conv conv{args, start, length, first, static_cast<int>(workgroup_index().y) * kChannels, is_there, has_state,
                  state};
  conv.load(tile);
  workgroup_barrier();
  conv.convolve(tile);
  if (state && chunk.number == 0) conv.store_state();
}

void launch_causal_conv1d(const CausalConvArgs<Config>& args, Stream stream) {
  const uint32_t chunks = static_cast<uint32_t>(args.tokens / CausalConv<Config>::kOut + args.sequences);
  const uint32_t groups = static_cast<uint32_t>((args.dim + kChannels - 1) / kChannels);
  launch_named("causal_conv1d_kernel", causal_conv1d_kernel, dim3(chunks, groups), kThreads, stream, args);
}

#if AITER_LIKE_HOST_PASS

/// Takes the output for the results of `tokens` tokens and `size` channels.
Config::Element* result(ffi::Match& match, const ffi::Tensor& out, ffi::Size& tokens, const ffi::Dim& size,
                        int64_t* stride, bool* is_paired) {
  const auto rows = match.take<Config::Element>(out, {tokens, size}, "q, k or v");
  *stride = rows.strides[0];
  *is_paired = *is_paired && ffi::takes_vectors(2, out) && *stride % 2 == 0;
  return rows;
}

void causal_conv1d(ffi::Tensor q, ffi::Tensor k, ffi::Tensor v, ffi::Tensor x, ffi::Tensor weight,
                   ffi::OptionalTensor bias, ffi::Tensor query_start_loc, ffi::OptionalTensor conv_states,
                   ffi::OptionalTensor cache_indices, ffi::OptionalTensor has_initial_state, bool is_silu,
                   int64_t pad_slot_id) {
  using Element = Config::Element;
  ffi::Match match("causal_conv1d");
  ffi::Size dim{"dim", int64_t{65535} * kChannels + 1}, tokens{"tokens", 1 << 30}, k_dim{"k_dim"};
  ffi::Size starts{"sequences + 1", 1 << 30}, lines{"lines"}, state_len{"state_len"};
  CausalConvArgs<Config> args{};
  const auto inputs = match.take<const Element>(x, {dim, tokens}, "x", ffi::kStrided);
  const auto weights = match.take<const Element>(weight, {dim, Config::kWidth}, "weight", ffi::kStrided);
  match.built(!Config::kIsChannelLast || inputs.strides[0] == 1, "layouts of x");
  args.is_paired = true;
  args.q = result(match, q, tokens, k_dim, &args.q_stride, &args.is_paired);
  args.k = result(match, k, tokens, k_dim, &args.k_stride, &args.is_paired);
  args.v = result(match, v, tokens, dim - 2 * k_dim, &args.v_stride, &args.is_paired);
  args.x = inputs, args.x_strides = {0, inputs.strides[0], inputs.strides[1]};
  args.weight = weights, args.weight_strides = {0, weights.strides[0], weights.strides[1]};
  args.bias = match.take<const Element>(bias, {dim}, "bias");
  args.starts = match.take<const int32_t>(query_start_loc, {starts}, "query_start_loc");
  match.require(starts > 0, "query_start_loc must have an element more than sequences");
  args.sequences = starts - 1, args.tokens = tokens, args.dim = dim, args.k_dim = k_dim;
  args.line_of = match.take<const int32_t>(cache_indices, {starts - 1}, "cache_indices");
  const auto has_state = match.take<const bool>(has_initial_state, {starts - 1}, "has_initial_state");
  args.has_state = reinterpret_cast<const uint8_t*>(has_state.data);
  args.pad_slot_id = static_cast<int>(pad_slot_id), args.is_silu = is_silu;
  const auto states = match.take<Element>(conv_states, {lines, dim, state_len}, "conv_states", ffi::kStrided);
  if (conv_states.has_value()) {
    match.require(state_len >= Config::kWidth - 1, "conv_states must have at least width - 1 elements of a channel");
    args.states = states, args.state_strides = {states.strides[0], states.strides[1], states.strides[2]};
    args.lines = lines, args.state_len = state_len;
  }
  if (dim > 0 && args.sequences > 0) launch_causal_conv1d(args, ffi::stream_of(x));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(causal_conv1d, aiter_like::causal_conv1d);
#endif
