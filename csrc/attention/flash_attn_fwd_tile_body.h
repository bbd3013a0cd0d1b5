// SPDX-License-Identifier: MIT
// What a workgroup of flash_attn_fwd_tile does, composed from the tile library.
//
// A workgroup of 4 or 8 waves takes kBlockM rows of one head, a wave kWaveRows of them. Q stays in registers; blocks of
// kBlockN keys go through LDS, by one of two pipelines (QrKsVs, QrAsync). With a block's K and V there, a wave does
//   S = K qᵀ                 [keys, rows]
//   bias, mask, softmax      running maximum and sum of each row
//   O += Vᵀ P                P is S rounded, in the registers where it is
#pragma once

#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/gpu.h"
#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/dma.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/ring.h"
#include "aiter_like/tile/softmax.h"
#include "aiter_like/tile/staging.h"
#include "attention_sequence.h"
#include "score_policies.h"

namespace aiter_like {

template <class Element, class OutElement, class BiasElement>
struct FlashAttnTileArgs {
  tile::GlobalView<const Element, 4> q, k, v;  // [batch, rows, heads, dim]; packed sequences: one batch
  tile::GlobalView<OutElement, 4> out;
  float* lse;  // or null
  int64_t lse_batch_stride, lse_head_stride;
  const int *cu_seqlens_q, *cu_seqlens_k, *seqlens_k;  // each may be null
  const BiasElement* bias;
  int64_t bias_batch_stride, bias_head_stride, bias_row_stride;
  int bias_columns;
  const float *alibi_slopes, *sink, *q_descale, *k_descale, *v_descale;  // each may be null
  int64_t alibi_batch_stride;
  int num_blocks_m, group_size;
  int window_left, window_right, sink_size;
  float softmax_scale, softcap;
};

namespace flash_attn_tile {

using namespace tile;

constexpr int kBlockM = 128, kBlockN = 64;

/// A configuration, and the sizes and tiles that follow from it. A Config has
///   Element, OutElement               of q, k and v: bf16, f16 or fp8; of out: bf16, f16 or float
///   BiasElement                       of an added bias; void for none
///   kHeadDim, kHeadDimV               of q and k, of v and out
///   kWaves                            of a workgroup
///   kIsMasked, kHasAlibi, kHasSoftcap
///   kRounding                         of P and out
template <class Config>
struct Shape : Config {
  using Element = typename Config::Element;
  using Args = FlashAttnTileArgs<Element, typename Config::OutElement, typename Config::BiasElement>;
  static constexpr int kHeadDim = Config::kHeadDim, kHeadDimV = Config::kHeadDimV, kWaves = Config::kWaves;
  static constexpr bool kIsFp8 = sizeof(Element) == 1;
  static constexpr int kThreads = kWaves * kWaveSize, kWaveRows = kBlockM / kWaves;

  /// Head dimensions that 16 bytes of each lane cover in K and Q, and that dwords of 16 lanes cover in V.
  static constexpr int kSlice = 64 / sizeof(Element), kRun = 16 / sizeof(Element), kStep = 4 / sizeof(Element);
  static constexpr int kSlices = kHeadDim / kSlice, kOutSlices = kHeadDimV / kSlice;
  static_assert(kHeadDim % kSlice == 0 && kHeadDimV % kSlice == 0, "head dimensions of whole slices");

  /// P is at most 1. In fp8 it is used 2^7 times as large: 240 is the largest value, and smaller ones keep their bits.
  static constexpr int kPBits = kIsFp8 ? 7 : 0;

  /// Whether nothing happens to a score but a multiplication, which the softmax can do.
  static constexpr bool kHasBias = !std::is_same_v<typename Config::BiasElement, void>;
  static constexpr bool kIsScaling = !Config::kHasSoftcap && !Config::kHasAlibi && !kHasBias;

  /// The least number of waves that share the 512 registers of a SIMD.
  static constexpr int kHeadDims = kHeadDim + kHeadDimV;
  static constexpr int kWavesPerSimd = !kIsScaling || kHeadDims > 128 ? 2 : kHeadDims > 64 ? 3 : 4;

  using KeyTile = LdsTile<Element, kBlockN, kHeadDim, SwizzledByRow>;
  using ValueTile = LdsTile<Element, kBlockN, kHeadDimV, SwizzledByColumn>;
  using QuerySlice = RegTile<Element, kWaveRows, kSlice, OperandByRow<kRun>>;
  using KeySlice = RegTile<Element, kBlockN, kSlice, OperandByRow<kRun>>;
  using ValueSlice = RegTile<Element, kBlockN, kSlice, OperandByColumn<4, kStep>>;
  using Scores = RegTile<float, kBlockN, kWaveRows, Product<>>;
  using P = RegTile<Element, kBlockN, kWaveRows, typename Scores::Layout>;
  using OutSlice = RegTile<float, kSlice, kWaveRows, Product<kStep>>;  // transposed: [head dimensions, rows]
  using KeyWindow = TileWindow<const Element, kBlockN, kHeadDim>;
  using ValueWindow = TileWindow<const Element, kBlockN, kHeadDimV>;
};

/// From q · k to what the softmax takes, for a block of keys of this wave's rows.
template <class Shape>
struct ScoreMap {
  using Scores = typename Shape::Scores;
  using Layout = typename Scores::Layout;
  Softcap<Shape::kHasSoftcap> softcap;
  Bias<typename Shape::BiasElement> bias;
  Alibi<Shape::kHasAlibi> alibi;

  /// The factor that is left for scores after the map.
  __device__ float scale() const { return Shape::kIsScaling ? softcap.inner : 1.f; }

  __device__ void operator()(Scores& scores, int first_key) const {
    if constexpr (Shape::kIsScaling) return;
#pragma unroll
    for (int s = 0; s < Scores::kStrips; ++s) {
      const int row = Scores::column(s, 0), key = first_key + Layout::first_depth();
      const auto bias_row = bias.at(row, key);
      const auto alibi_row = alibi.at(row, key);
#pragma unroll
      for (int e = 0; e < Scores::kPerStrip; ++e) {
        const int i = Layout::depth_after_first(e);
        scores.set(s, e, alibi_row(bias_row(softcap(scores.get(s, e)), i), i));
      }
      keep_order();  // The loads of one row at a time: more would need more registers.
    }
  }
};

template <class Shape>
__device__ float value_or_one(const float* value) {
  return Shape::kIsFp8 && value != nullptr ? *value : 1.f;
}

/// The map of the wave whose rows begin with `first_row` of its sequence.
template <class Shape>
__device__ ScoreMap<Shape> score_map(const typename Shape::Args& args, int batch, int head, const RowRange& rows,
                                     int first_row, int delta) {
  const float scale = args.softmax_scale * value_or_one<Shape>(args.q_descale) * value_or_one<Shape>(args.k_descale);
  const int64_t offset = batch * args.bias_batch_stride + head * args.bias_head_stride +
                         rows.first * args.bias_row_stride;
  const float slope = Shape::kHasAlibi ? args.alibi_slopes[batch * args.alibi_batch_stride + head] : 0.f;
  return {{scale, args.softcap},
          {args.bias, offset, args.bias_row_stride, first_row, rows.count, args.bias_columns},
          {alibi_slope(slope), first_row + delta}};
}

/// use(i, load(i)) for each i. A slice is read while the one before it is used, and no earlier: registers are few.
template <int COUNT, class LOAD, class USE>
__device__ void pipelined(LOAD load, USE use) {
  auto next = load(0);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const auto slice = next;
    if (i + 1 < COUNT) next = load(i + 1);
    use(i, slice);
    keep_order();
  }
}

template <class Scores, bool LIMITED>
__device__ void mask(Scores& scores, const Visibility<LIMITED>& visible, int first_key, int first_row) {
  using Layout = typename Scores::Layout;
  const int key = first_key + Layout::first_depth();
#pragma unroll
  for (int s = 0; s < Scores::kStrips; ++s) {
    const int row = first_row + Scores::column(s, 0);
    const int highest = visible.highest(row) - key, lowest = visible.lowest(row) - key, sink = visible.sink - key;
#pragma unroll
    for (int e = 0; e < Scores::kPerStrip; ++e) {
      const int i = Layout::depth_after_first(e);
      if (i > highest || (LIMITED && i < lowest && i >= sink)) scores.set(s, e, kMasked);
    }
  }
}

/// A wave's registers for its rows, and its work on a block of keys.
template <class Shape>
struct WaveRows {
  using Element = typename Shape::Element;
  using KeySlice = typename Shape::KeySlice;
  using ValueSlice = typename Shape::ValueSlice;
  using Visible = Visibility<Shape::kIsMasked>;
  static constexpr int kSlice = Shape::kSlice, kSlices = Shape::kSlices, kOutSlices = Shape::kOutSlices;

  typename Shape::QuerySlice queries[kSlices];
  typename Shape::OutSlice out[kOutSlices];
  OnlineSoftmax<typename Shape::Scores, Shape::kPBits> softmax;
  ScoreMap<Shape> map;
  Visible visible;
  int first, last;  // rows of the sequence; none when last < first

  __device__ WaveRows(const MatrixView<const Element>& q, const ScoreMap<Shape>& map, const Visible& visible, int first,
                      int last)
      : map(map), visible(visible), first(first), last(last) {
    using QueryWindow = TileWindow<const Element, Shape::kWaveRows, Shape::kHeadDim>;
#pragma unroll
    for (int d = 0; d < kSlices; ++d)
      queries[d] = load_global<typename Shape::QuerySlice>(QueryWindow(q, first), d * kSlice);
    if constexpr (Shape::kIsFp8 && Shape::kIsScaling)
      this->map.softcap.inner = positive_scale(map.softcap.inner, queries);
#pragma unroll
    for (int g = 0; g < kOutSlices; ++g) clear(out[g]);
  }

  /// Whether any of the rows sees a key of the block.
  __device__ bool sees(int first_key) const {
    return first <= last && visible.any(first, last, first_key, first_key + kBlockN);
  }

  __device__ void scale_out(int strip, float factor) {
#pragma unroll
    for (int g = 0; g < kOutSlices; ++g) scale_strip(out[g], strip, factor);
  }

  /// The first product and the softmax.
  __device__ typename Shape::P probabilities(const typename Shape::KeyTile& keys, int first_key) {
    typename Shape::Scores scores;
    clear(scores);
    pipelined<kSlices>([&](int d) { return load<KeySlice>(keys, 0, d * kSlice); },
                       [&](int d, const KeySlice& slice) { mma<Form::ABt>(scores, slice, queries[d]); });
    map(scores, first_key);
    if (!visible.all(first, last, first_key, first_key + kBlockN)) mask(scores, visible, first_key, first);
    softmax.raise(scores, map.scale(), [&](int strip, float factor) { scale_out(strip, factor); });
    softmax.exponentiate(scores, map.scale());
    return convert<Element, Shape::kRounding>(scores);
  }

  /// The second product.
  __device__ void accumulate(const typename Shape::ValueTile& values, const typename Shape::P& p) {
    pipelined<kOutSlices>([&](int g) { return load_transposed<ValueSlice>(values, 0, g * kSlice); },
                          [&](int g, const ValueSlice& slice) { mma<Form::AtB>(out[g], slice, p); });
  }
};

/// Clears the rows of V that no row of the workgroup sees, since a weight of zero does not hide a NaN. `clear(i)` makes
/// a zero of the work-item's chunk i of a Staged tile.
template <class Shape, class F>
__device__ void clear_hidden(int first_key, int lowest, int sink, F clear) {
  using Chunks = Staged<typename Shape::ValueTile, Shape::kThreads>;
#pragma unroll
  for (int i = 0; i < Chunks::kCount; ++i) {
    const int key = first_key + Chunks::row(i);
    if (Chunks::is_inside(i) && key < lowest && key >= sink) clear(i);
  }
}

/// One LDS tile of K and one of V. While one is used, the next one travels in registers, so that two tiles are enough.
/// A ring (tile/ring.h) has twice as many: at head dimension 128 one workgroup would fill LDS.
template <class Shape>
struct QrKsVs {
  using Matrix = MatrixView<const typename Shape::Element>;
  using KeyWindow = typename Shape::KeyWindow;
  using ValueWindow = typename Shape::ValueWindow;

  typename Shape::KeyTile keys;
  typename Shape::ValueTile values;

  /// A barrier ends each slot.
  ///
  ///   slot   reads   has in registers, and writes at its end
  ///   2n     K[n]    V[n]
  ///   2n+1   V[n]    K[n+1]
  __device__ void run(WaveRows<Shape>& rows, const KeyBlocks<kBlockN>& blocks, const Matrix& k, const Matrix& v,
                      int lowest) {
    Staged<typename Shape::KeyTile, Shape::kThreads> next_keys;
    Staged<typename Shape::ValueTile, Shape::kThreads> next_values;
    int block = blocks.begin();
    if (block < blocks.end) {
      next_keys.load(KeyWindow(k, block * kBlockN));
      next_keys.store(keys);
    }
    workgroup_barrier();
    while (block < blocks.end) {
      const int first_key = block * kBlockN, next_block = blocks.next(block);
      const bool is_seen = rows.sees(first_key);
      typename Shape::P p;
      next_values.load(ValueWindow(v, first_key));
      if (is_seen) p = rows.probabilities(keys, first_key);
      if (first_key < lowest)
        clear_hidden<Shape>(first_key, lowest, rows.visible.sink, [&](int i) { next_values.chunks[i] = Chunk{}; });
      next_values.store(values);
      workgroup_barrier();  // V is there, and all waves have read K.

      if (next_block < blocks.end) next_keys.load(KeyWindow(k, next_block * kBlockN));
      if (is_seen) rows.accumulate(values, p);
      if (next_block < blocks.end) next_keys.store(keys);
      workgroup_barrier();  // K is there, and all waves have read V.
      block = next_block;
    }
  }
};

/// Two LDS tiles of each. The next block goes from memory to LDS while this one is used: one barrier per block.
template <class Shape>
struct QrAsync {
  using Matrix = MatrixView<const typename Shape::Element>;
  using KeyTile = typename Shape::KeyTile;
  using ValueTile = typename Shape::ValueTile;
  static constexpr int kWaves = Shape::kWaves, kStages = 2;
  using BlockRing = Ring<kStages, kDmaAccesses<KeyTile, kWaves> + kDmaAccesses<ValueTile, kWaves>, KeyBlocks<kBlockN>>;

  KeyTile keys[kStages];
  ValueTile values[kStages];

  __device__ void run(WaveRows<Shape>& rows, const KeyBlocks<kBlockN>& blocks, const Matrix& k, const Matrix& v,
                      int lowest) {
    const auto start = [&](int block, int stage) {
      dma<kWaves>(keys[stage], typename Shape::KeyWindow(k, block * kBlockN), wave_index());
      dma<kWaves>(values[stage], typename Shape::ValueWindow(v, block * kBlockN), wave_index());
    };
    for (BlockRing ring(blocks, start); ring.has_next();) {
      const RingSlot slot = ring.next(start);
      const int first_key = slot.item * kBlockN;
      if (first_key < lowest) {
        using Chunks = Staged<ValueTile, Shape::kThreads>;
        clear_hidden<Shape>(first_key, lowest, rows.visible.sink, [&](int i) {
          const int column = static_cast<int>(Chunks::column(i) * sizeof(typename Shape::Element));
          values[slot.stage].template at<Chunk>(Chunks::row(i), column) = Chunk{};
        });
        workgroup_barrier();
      }
      if (rows.sees(first_key)) rows.accumulate(values[slot.stage], rows.probabilities(keys[slot.stage], first_key));
    }
  }
};

/// out = O / l and the log-sum-exp; a learned sink is one more term of l, without a value.
template <class Shape>
__device__ void finish(const typename Shape::Args& args, WaveRows<Shape>& rows,
                       const MatrixView<typename Shape::OutElement>& out, float* lse, int head) {
  using Scores = typename Shape::Scores;
  const float v_descale = value_or_one<Shape>(args.v_descale);
#pragma unroll
  for (int s = 0; s < Scores::kStrips; ++s) {
    constexpr float kUnit = 1.f / (1 << Shape::kPBits);
    float maximum = rows.softmax.maximum[s], total = rows.softmax.total(s) * kUnit, factor = kUnit;
    if (args.sink != nullptr) {
      const float sink = Shape::kHasBias ? plus_bias(0.f, args.sink[head]) : args.sink[head] * kLog2E;
      const float highest = __builtin_fmaxf(maximum, sink), moved = fast_exp2(maximum - highest);
      total = __builtin_fmaf(total, moved, fast_exp2(sink - highest));
      factor *= moved;
      maximum = highest;
    }
    // A row without a visible key has the total 0 and becomes zeros; a NaN total makes it NaN.
    rows.scale_out(s, total == 0.f ? 0.f : factor * v_descale / total);
    const int row = rows.first + Scores::column(s, 0);
    if (lse != nullptr && Scores::Layout::group() == 0 && row < out.sizes[0])
      lse[row] = total == 0.f ? -__builtin_inff() : log_sum_exp<Shape::kHasBias>(maximum, total);
  }
  const TileWindow<typename Shape::OutElement, Shape::kWaveRows, Shape::kHeadDimV> window(out, rows.first);
#pragma unroll
  for (int g = 0; g < Shape::kOutSlices; ++g)
    store_transposed<Shape::kRounding>(window, rows.out[g], g * Shape::kSlice);
}

/// Runs workgroup `workgroup` (block of rows, head, sequence) of a launch with its kThreads work-items. `pipeline`
/// lies in LDS and is a QrKsVs or a QrAsync of Shape<Config>; all waves must meet before it is used again. Inlined
/// before all else, the body is compiled like a kernel.
template <class Config, class Pipeline>
__device__ __attribute__((always_inline)) void forward_body(const typename Shape<Config>::Args& args,
                                                            WorkgroupIndex workgroup, Pipeline& pipeline) {
  using Shape = flash_attn_tile::Shape<Config>;
  const int head = static_cast<int>(workgroup.y), kv_head = head / args.group_size;
  const int batch = static_cast<int>(workgroup.z), view_batch = args.cu_seqlens_q == nullptr ? batch : 0;
  const RowRange q_rows = RowRange::of(args.cu_seqlens_q, nullptr, batch, static_cast<int>(args.q.sizes[1]));
  const RowRange k_rows = RowRange::of(args.cu_seqlens_k, args.seqlens_k, batch, static_cast<int>(args.k.sizes[1]));
  // Under a causal mask the longest blocks come first.
  const int block_row = (args.num_blocks_m - 1 - static_cast<int>(workgroup.x)) * kBlockM;
  if (block_row >= q_rows.count) return;

  const auto matrix = [&](const auto& view, int h, const RowRange& rows) {
    return view.template select<0>(view_batch).template select<1>(h).slice(rows.first, rows.count);
  };
  const auto last_of = [&](int first, int rows) {
    return (first + rows < q_rows.count ? first + rows : q_rows.count) - 1;
  };
  const int first_row = block_row + wave_index() * Shape::kWaveRows, delta = k_rows.count - q_rows.count;
  const Visibility<Shape::kIsMasked> visible{k_rows.count, delta, args.window_left, args.window_right, args.sink_size};
  const KeyBlocks<kBlockN> blocks(visible, block_row, last_of(block_row, kBlockM));
  WaveRows<Shape> rows(matrix(args.q, head, q_rows), score_map<Shape>(args, batch, head, q_rows, first_row, delta),
                       visible, first_row, last_of(first_row, Shape::kWaveRows));
  pipeline.run(rows, blocks, matrix(args.k, kv_head, k_rows), matrix(args.v, kv_head, k_rows),
               visible.lowest(block_row));

  float* lse = args.lse;
  if (lse != nullptr) lse += view_batch * args.lse_batch_stride + head * args.lse_head_stride + q_rows.first;
  finish(args, rows, matrix(args.out, head, q_rows), lse, head);
}

}  // namespace flash_attn_tile
}  // namespace aiter_like
