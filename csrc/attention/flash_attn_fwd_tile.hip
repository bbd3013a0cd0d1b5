// SPDX-License-Identifier: MIT
// Attention forward for gfx942, composed from the tile library: what the hand-scheduled kernel does not cover, and a
// second implementation of what it does. One build per element, head dimensions, rounding, and what happens to a score.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) + bias − alibi), masked
//
// A workgroup of 4 or 8 waves takes kBlockM rows of one head, a wave kWaveRows of them. Q stays in registers; blocks of
// kBlockN keys go through LDS, by one of two pipelines (QrKsVs, QrAsync). With a block's K and V there, a wave does
//   S = K qᵀ                 [keys, rows]
//   bias, mask, softmax      running maximum and sum of each row
//   O += Vᵀ P                P is S rounded, in the registers where it is
//
// Tiles: 128 rows, 64 keys. LDS: 64 rows of K and of V, each padded to 64 bytes or whole 128; twice that in QrAsync.
// Every instance has two waves on each SIMD, one computing while the other waits: 4 waves of 32 rows, of which LDS and
// registers hold two workgroups, or 8 of 16 rows.
// Bound: MFMA. (HEAD_DIM + HEAD_DIM_V) · 2 flop per score; K and V are read once per kBlockM rows, from L2.
#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/tile/convert.h"
#include "aiter_like/tile/dma.h"
#include "aiter_like/tile/fence.h"
#include "aiter_like/tile/mma.h"
#include "aiter_like/tile/softmax.h"
#include "aiter_like/tile/staging.h"
#include "attention_sequence.h"
#include "score_policies.h"

#if !defined(ELEMENT) || !defined(OUT_ELEMENT) || !defined(HEAD_DIM) || !defined(HEAD_DIM_V) || !defined(NUM_WAVES) || \
    !defined(PIPELINE) || !defined(IS_MASKED) || !defined(BIAS) || !defined(HAS_ALIBI) || !defined(HAS_SOFTCAP) || \
    !defined(ROUNDING)
#error "flash_attn_fwd_tile.hip: the macros that ops/attention/flash_attn_fwd_ck.py gives are missing"
#endif

namespace aiter_like {

using Element = ELEMENT;         // bf16, f16, fp8
using OutElement = OUT_ELEMENT;  // bf16, f16, float
using BiasElement = BIAS;        // void: none

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

namespace {

using namespace tile;

constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);
constexpr bool kIsFp8 = sizeof(Element) == 1;
constexpr int kBlockM = 128, kBlockN = 64;
constexpr int kWaves = NUM_WAVES, kThreads = kWaves * kWaveSize, kWaveRows = kBlockM / kWaves;
/// Head dimensions that 16 bytes of each lane cover in K and Q, and that dwords of 16 lanes cover in V.
constexpr int kSlice = 64 / sizeof(Element), kRun = 16 / sizeof(Element), kStep = 4 / sizeof(Element);
constexpr int kSlices = HEAD_DIM / kSlice, kOutSlices = HEAD_DIM_V / kSlice;
static_assert(HEAD_DIM % kSlice == 0 && HEAD_DIM_V % kSlice == 0, "head dimensions of whole slices");
/// P is at most 1. In fp8 it is used 2^7 times as large: 240 is the largest value, and smaller ones keep their bits.
constexpr int kPBits = kIsFp8 ? 7 : 0;

using KeyTile = LdsTile<Element, kBlockN, HEAD_DIM, SwizzledByRow>;
using ValueTile = LdsTile<Element, kBlockN, HEAD_DIM_V, SwizzledByColumn>;
using QuerySlice = RegTile<Element, kWaveRows, kSlice, OperandByRow<kRun>>;
using KeySlice = RegTile<Element, kBlockN, kSlice, OperandByRow<kRun>>;
using ValueSlice = RegTile<Element, kBlockN, kSlice, OperandByColumn<4, kStep>>;
using Scores = RegTile<float, kBlockN, kWaveRows, Product<>>;
using OutSlice = RegTile<float, kSlice, kWaveRows, Product<kStep>>;  // transposed: [head dimensions, rows]
using KeyWindow = TileWindow<const Element, kBlockN, HEAD_DIM>;
using ValueWindow = TileWindow<const Element, kBlockN, HEAD_DIM_V>;

/// From q · k to what the softmax takes, for a block of keys of this wave's rows.
struct ScoreMap {
  using Layout = Scores::Layout;
  static constexpr bool kIsScaling = !HAS_SOFTCAP && !HAS_ALIBI && std::is_same_v<BiasElement, void>;
  Softcap<HAS_SOFTCAP> softcap;
  Bias<BiasElement> bias;
  Alibi<HAS_ALIBI> alibi;

  /// What is left to multiply scores with after the map.
  __device__ float scale() const { return kIsScaling ? softcap.inner : 1.f; }

  __device__ void operator()(Scores& scores, int first_key) const {
    if constexpr (kIsScaling) return;
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
      keep_order();  // one row's loads at a time: registers
    }
  }
};

__device__ float value_or_one(const float* value) { return kIsFp8 && value != nullptr ? *value : 1.f; }

/// Rows count from this wave's first one, `first_row` of its sequence.
__device__ ScoreMap score_map(const FlashAttnTileArgs& args, int batch, int head, const RowRange& rows, int first_row,
                              int delta) {
  const float scale = args.softmax_scale * value_or_one(args.q_descale) * value_or_one(args.k_descale);
  const int64_t offset = batch * args.bias_batch_stride + head * args.bias_head_stride +
                         rows.first * args.bias_row_stride;
  const float slope = HAS_ALIBI ? args.alibi_slopes[batch * args.alibi_batch_stride + head] : 0.f;
  return {{scale, args.softcap},
          {args.bias, offset, args.bias_row_stride, first_row, rows.count, args.bias_columns},
          {slope * kLog2E, first_row + delta}};
}

/// use(i, load(i)) for each i; a slice is read while the one before it is used, and no earlier: registers.
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

__device__ void mask(Scores& scores, const Visibility<IS_MASKED>& visible, int first_key, int first_row) {
  using Layout = Scores::Layout;
  const int key = first_key + Layout::first_depth();
#pragma unroll
  for (int s = 0; s < Scores::kStrips; ++s) {
    const int row = first_row + Scores::column(s, 0);
    const int highest = visible.highest(row) - key, lowest = visible.lowest(row) - key, sink = visible.sink - key;
#pragma unroll
    for (int e = 0; e < Scores::kPerStrip; ++e) {
      const int i = Layout::depth_after_first(e);
      if (i > highest || (IS_MASKED && i < lowest && i >= sink)) scores.set(s, e, kMasked);
    }
  }
}

/// What a wave has in registers for its rows, and what it does with a block of keys.
struct WaveRows {
  using P = RegTile<Element, kBlockN, kWaveRows, Scores::Layout>;

  QuerySlice queries[kSlices];
  OutSlice out[kOutSlices];
  OnlineSoftmax<Scores> softmax;
  ScoreMap map;
  Visibility<IS_MASKED> visible;
  int first, last;  // rows of the sequence; none when last < first

  __device__ WaveRows(const MatrixView<const Element>& q, const ScoreMap& map, const Visibility<IS_MASKED>& visible,
                      int first, int last)
      : map(map), visible(visible), first(first), last(last) {
#pragma unroll
    for (int d = 0; d < kSlices; ++d)
      queries[d] = load_global<QuerySlice>(TileWindow<const Element, kWaveRows, HEAD_DIM>(q, first), d * kSlice);
#pragma unroll
    for (int g = 0; g < kOutSlices; ++g) clear(out[g]);
  }

  /// Whether any of them sees a key of the block.
  __device__ bool sees(int first_key) const {
    return first <= last && visible.any(first, last, first_key, first_key + kBlockN);
  }

  __device__ void scale_out(int strip, float factor) {
#pragma unroll
    for (int g = 0; g < kOutSlices; ++g) scale_strip(out[g], strip, factor);
  }

  /// The first product and the softmax.
  __device__ P probabilities(const KeyTile& keys, int first_key) {
    Scores scores;
    clear(scores);
    pipelined<kSlices>([&](int d) { return load<KeySlice>(keys, 0, d * kSlice); },
                       [&](int d, const KeySlice& slice) { mma<Form::ABt>(scores, slice, queries[d]); });
    map(scores, first_key);
    if (!visible.all(first, last, first_key, first_key + kBlockN)) mask(scores, visible, first_key, first);
    softmax.raise(scores, map.scale(), [&](int strip, float factor) { scale_out(strip, factor); });
    softmax.exponentiate(scores, map.scale(), kPBits);
    return convert<Element, kRounding>(scores);
  }

  /// The second product.
  __device__ void accumulate(const ValueTile& values, const P& p) {
    pipelined<kOutSlices>([&](int g) { return load_transposed<ValueSlice>(values, 0, g * kSlice); },
                          [&](int g, const ValueSlice& slice) { mma<Form::AtB>(out[g], slice, p); });
  }
};

/// One LDS tile of K and one of V. The next one travels in registers while the other is used, so that two tiles do.
struct QrKsVs {
  KeyTile keys;
  ValueTile values;

  __device__ void run(WaveRows& rows, const KeyBlocks<kBlockN>& blocks, const MatrixView<const Element>& k,
                      const MatrixView<const Element>& v) {
    Staged<KeyTile, kThreads> next_keys;
    Staged<ValueTile, kThreads> next_values;
    int block = blocks.begin();
    if (block < blocks.end) {
      next_keys.load(KeyWindow(k, block * kBlockN));
      next_keys.store(keys);
    }
    workgroup_barrier();
    while (block < blocks.end) {
      const int first_key = block * kBlockN, next_block = blocks.next(block);
      const bool is_seen = rows.sees(first_key);
      WaveRows::P p;
      next_values.load(ValueWindow(v, first_key));
      if (is_seen) p = rows.probabilities(keys, first_key);
      next_values.store(values);
      workgroup_barrier();  // V is there, and all have read K

      if (next_block < blocks.end) next_keys.load(KeyWindow(k, next_block * kBlockN));
      if (is_seen) rows.accumulate(values, p);
      if (next_block < blocks.end) next_keys.store(keys);
      workgroup_barrier();  // K is there, and all have read V
      block = next_block;
    }
  }
};

/// Two LDS tiles of each. The next block goes from memory to LDS while this one is used: one barrier per block.
struct QrAsync {
  KeyTile keys[2];
  ValueTile values[2];

  __device__ void run(WaveRows& rows, const KeyBlocks<kBlockN>& blocks, const MatrixView<const Element>& k,
                      const MatrixView<const Element>& v) {
    const auto start = [&](int block, int buffer) {
      if (block >= blocks.end) return;
      dma<kWaves>(keys[buffer], KeyWindow(k, block * kBlockN), wave_index());
      dma<kWaves>(values[buffer], ValueWindow(v, block * kBlockN), wave_index());
    };
    int block = blocks.begin();
    start(block, 0);
    for (int buffer = 0; block < blocks.end; buffer ^= 1) {
      wait_vector_memory();
      workgroup_barrier();  // this block is there, and all have read the one before it
      const int first_key = block * kBlockN;
      block = blocks.next(block);
      start(block, buffer ^ 1);
      if (rows.sees(first_key)) rows.accumulate(values[buffer], rows.probabilities(keys[buffer], first_key));
    }
  }
};

/// out = O / l and the log-sum-exp; a learned sink is one more term of l, without a value.
__device__ void finish(const FlashAttnTileArgs& args, WaveRows& rows, const MatrixView<OutElement>& out, float* lse,
                       int head) {
  const float v_descale = value_or_one(args.v_descale);
#pragma unroll
  for (int s = 0; s < Scores::kStrips; ++s) {
    constexpr float kUnit = 1.f / (1 << kPBits);
    float maximum = rows.softmax.maximum[s], total = rows.softmax.total(s) * kUnit, factor = kUnit;
    if (args.sink != nullptr) {
      const float sink = args.sink[head] * kLog2E;
      const float highest = __builtin_fmaxf(maximum, sink), moved = fast_exp2(maximum - highest);
      total = __builtin_fmaf(total, moved, fast_exp2(sink - highest));
      factor *= moved;
      maximum = highest;
    }
    rows.scale_out(s, total == 0.f ? 0.f : factor * v_descale / total);  // 0: no visible key. A NaN total gives NaN
    const int row = rows.first + Scores::column(s, 0);
    if (lse != nullptr && Scores::Layout::group() == 0 && row < out.sizes[0])
      lse[row] = total == 0.f ? -__builtin_inff() : (maximum + fast_log2(total)) * kLn2;
  }
  const TileWindow<OutElement, kWaveRows, HEAD_DIM_V> window(out, rows.first);
#pragma unroll
  for (int g = 0; g < kOutSlices; ++g) store_transposed<kRounding>(window, rows.out[g], g * kSlice);
}

/// Waves that share the 512 registers of a SIMD, at least.
constexpr int kHeadDims = HEAD_DIM + HEAD_DIM_V;
constexpr int kWavesPerSimd = !ScoreMap::kIsScaling || kHeadDims > 128 ? 2 : kHeadDims > 64 ? 3 : 4;

}  // namespace

__global__ __launch_bounds__(kThreads) __attribute__((amdgpu_waves_per_eu(kWavesPerSimd)))
void flash_attn_fwd_tile_kernel(FlashAttnTileArgs args) {
  __shared__ PIPELINE pipeline;
  const WorkgroupIndex workgroup = workgroup_index();
  const int head = static_cast<int>(workgroup.y), kv_head = head / args.group_size;
  const int batch = static_cast<int>(workgroup.z), view_batch = args.cu_seqlens_q == nullptr ? batch : 0;
  const RowRange q_rows = RowRange::of(args.cu_seqlens_q, nullptr, batch, static_cast<int>(args.q.sizes[1]));
  const RowRange k_rows = RowRange::of(args.cu_seqlens_k, args.seqlens_k, batch, static_cast<int>(args.k.sizes[1]));
  const int block_row = (args.num_blocks_m - 1 - static_cast<int>(workgroup.x)) * kBlockM;  // causal: the longest first
  if (block_row >= q_rows.count) return;

  const auto matrix = [&](const auto& view, int h, const RowRange& rows) {
    return view.template select<0>(view_batch).template select<1>(h).slice(rows.first, rows.count);
  };
  const auto last_of = [&](int first, int rows) {
    return (first + rows < q_rows.count ? first + rows : q_rows.count) - 1;
  };
  const int first_row = block_row + wave_index() * kWaveRows, delta = k_rows.count - q_rows.count;
  const Visibility<IS_MASKED> visible{k_rows.count, delta, args.window_left, args.window_right, args.sink_size};
  const KeyBlocks<kBlockN> blocks(visible, block_row, last_of(block_row, kBlockM));
  WaveRows rows(matrix(args.q, head, q_rows), score_map(args, batch, head, q_rows, first_row, delta), visible,
                first_row, last_of(first_row, kWaveRows));
  pipeline.run(rows, blocks, matrix(args.k, kv_head, k_rows), matrix(args.v, kv_head, k_rows));

  float* lse = args.lse;
  if (lse != nullptr) lse += view_batch * args.lse_batch_stride + head * args.lse_head_stride + q_rows.first;
  finish(args, rows, matrix(args.out, head, q_rows), lse, head);
}

void launch_flash_attn_fwd_tile(const FlashAttnTileArgs& args, int batch, Stream stream) {
  const dim3 grid(static_cast<uint32_t>(args.num_blocks_m), static_cast<uint32_t>(args.q.sizes[2]),
                  static_cast<uint32_t>(batch));
  flash_attn_fwd_tile_kernel<<<grid, kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_tile_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

using ffi::check_value;
using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// A tensor [batch, rows, heads, dim] or packed [rows, heads, dim].
template <class T>
GlobalView<T, 4> view_of(const ffi::Tensor& tensor, int ndim, int max_dim) {
  ffi::check_type(ffi::has_element<std::remove_const_t<T>>(tensor),
                  "flash_attn_fwd: q, k, v, out must have the dtypes that this module was built for");
  check_value(tensor.ndim() == ndim && tensor.stride(ndim - 1) == 1 && tensor.size(ndim - 1) <= max_dim,
              "flash_attn_fwd: q, k, v, out must be [batch, rows, heads, dim] or all packed [rows, heads, dim], with "
              "contiguous dimensions of heads that fit this module");
  GlobalView<T, 4> view{static_cast<T*>(tensor.data_ptr()), {1, 0, 0, 0}, {0, 0, 0, 1}};
  for (int d = 0; d < ndim; ++d) {
    view.sizes[4 - ndim + d] = tensor.size(d);
    view.strides[4 - ndim + d] = tensor.size(d) > 1 ? tensor.stride(d) : 0;
  }
  if (view.sizes[1] <= 1) view.strides[1] = view.sizes[3];
  constexpr int64_t kChunk = 16 / sizeof(Element), kMaxRowStride = int64_t{1} << 23;
  check_value(view.sizes[3] % kChunk == 0 && view.sizes[3] <= view.strides[1] && view.strides[1] < kMaxRowStride,
              "flash_attn_fwd: dimensions of heads must be multiples of 16 bytes of q, rows must not overlap, nor be "
              "2^23 elements apart");
  return view;
}

const int* indices(const OptionalTensor& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  ffi::check_type(ffi::has_element<int32_t>(value), "flash_attn_fwd: cu_seqlens and seqlens_k must be int32");
  check_value(value.ndim() == 1 && value.size(0) == count && value.IsContiguous(),
              "flash_attn_fwd: cu_seqlens must have batch + 1 elements, seqlens_k batch");
  return static_cast<const int*>(value.data_ptr());
}

/// fp32 of `count` elements, or [batch, count].
const float* floats(const OptionalTensor& tensor, int64_t count, int64_t batch, int64_t* batch_stride) {
  if (!tensor.has_value()) return nullptr;
  const ffi::Tensor value = tensor.value();
  const int ndim = value.ndim();
  ffi::check_type(ffi::is_f32(value), "flash_attn_fwd: alibi_slopes, sink and descales must be float32");
  check_value((ndim == 1 || (ndim == 2 && batch_stride != nullptr && value.size(0) == batch)) &&
                  value.size(ndim - 1) == count && value.IsContiguous(),
              "flash_attn_fwd: alibi_slopes must be [num_heads] or [batch, num_heads], sink [num_heads], descales [1]");
  if (batch_stride != nullptr) *batch_stride = ndim == 2 ? count : 0;
  return static_cast<const float*>(value.data_ptr());
}

void set_bias(FlashAttnTileArgs& args, const OptionalTensor& tensor, int64_t batch, bool is_packed) {
  check_value(tensor.has_value() == !std::is_same_v<BiasElement, void>,
              "flash_attn_fwd: this module was built with or without bias, the call is the other");
  if (!tensor.has_value()) return;
  const ffi::Tensor bias = tensor.value();
  const int ndim = bias.ndim();
  ffi::check_type(ffi::has_element<BiasElement>(bias), "flash_attn_fwd: bias has another dtype than the module");
  check_value((ndim == 2 || ndim == 4) && (bias.size(ndim - 1) <= 1 || bias.stride(ndim - 1) == 1),
              "flash_attn_fwd: bias must have 2 or 4 dimensions, the last one contiguous");
  const int64_t num_heads = args.q.sizes[2], rows = bias.size(ndim - 2);
  const auto stride = [&](int d) { return bias.size(d) > 1 ? bias.stride(d) : 0; };
  if (ndim == 4) {
    check_value((bias.size(0) == 1 || bias.size(0) == batch) && (bias.size(1) == 1 || bias.size(1) == num_heads),
                "flash_attn_fwd: bias must be [1 | batch, 1 | num_heads, seqlen_q, seqlen_k]");
    args.bias_batch_stride = stride(0);
    args.bias_head_stride = stride(1);
  }
  // A single row serves all; for packed sequences the rows are those of q.
  check_value(rows == 1 || rows == args.q.sizes[1], "flash_attn_fwd: bias must have as many rows as q, or one");
  check_value(!is_packed || ndim == 2, "flash_attn_fwd: bias of packed sequences must be [total_q, max_seqlen_k]");
  args.bias = static_cast<const BiasElement*>(bias.data_ptr());
  args.bias_row_stride = stride(ndim - 2);
  constexpr int64_t kMaxColumns = 1 << 24;
  const int64_t columns = bias.size(ndim - 1);
  check_value(args.bias_row_stride <= kMaxColumns && columns <= kMaxColumns && (columns > 0 || args.k.sizes[1] == 0),
              "flash_attn_fwd: bias must have 1 to 2^24 columns, and rows at most 2^24 elements apart");
  args.bias_columns = static_cast<int>(columns);
}

int window_of(int64_t size) { return static_cast<int>(size < 0 ? -1 : size < (1 << 30) ? size : 1 << 30); }

}  // namespace

void flash_attn_fwd_tile(ffi::Tensor out, OptionalTensor lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                         OptionalTensor cu_seqlens_q, OptionalTensor cu_seqlens_k, OptionalTensor seqlens_k,
                         OptionalTensor bias, OptionalTensor alibi_slopes, OptionalTensor sink,
                         OptionalTensor q_descale, OptionalTensor k_descale, OptionalTensor v_descale,
                         OptionalTensor rng_state, OptionalTensor workspace, int64_t max_seqlen_q,
                         int64_t max_seqlen_k, double softmax_scale, int64_t window_left, int64_t window_right,
                         int64_t sink_size, double softcap, double dropout_p, int64_t num_splits,
                         int64_t how_v3_bf16_cvt) {
  const bool is_packed = cu_seqlens_q.has_value();
  check_value(is_packed == cu_seqlens_k.has_value() && !(is_packed && seqlens_k.has_value()),
              "flash_attn_fwd: cu_seqlens_q and cu_seqlens_k come together, and without seqlens_k");
  const int ndim = is_packed ? 3 : 4;
  FlashAttnTileArgs args{};
  args.q = view_of<const Element>(q, ndim, HEAD_DIM);
  args.k = view_of<const Element>(k, ndim, HEAD_DIM);
  args.v = view_of<const Element>(v, ndim, HEAD_DIM_V);
  args.out = view_of<OutElement>(out, ndim, HEAD_DIM_V);
  const int64_t batch = is_packed ? cu_seqlens_q.value().numel() - 1 : args.q.sizes[0], num_heads = args.q.sizes[2];
  const int64_t num_kv_heads = args.k.sizes[2], rows = args.q.sizes[1], keys = args.k.sizes[1];
  const auto is_like = [](const auto& a, const auto& b) {
    return a.sizes[0] == b.sizes[0] && a.sizes[1] == b.sizes[1] && a.sizes[2] == b.sizes[2];
  };
  check_value(is_like(args.q, args.out) && is_like(args.k, args.v) && args.q.sizes[3] == args.k.sizes[3] &&
                  args.out.sizes[3] == args.v.sizes[3] && args.q.sizes[0] == args.k.sizes[0] && num_kv_heads > 0 &&
                  num_heads % num_kv_heads == 0,
              "flash_attn_fwd: q and k must have one head dimension, v and out another, q and out the same rows and "
              "heads, k and v others, of which the heads divide those of q");
  constexpr int64_t kMaxRows = int64_t{1} << 30, kMaxGrid = 65535;
  check_value(rows < kMaxRows && keys < kMaxRows && 0 <= batch && batch <= kMaxGrid && num_heads <= kMaxGrid &&
                  max_seqlen_q >= 0,
              "flash_attn_fwd: at most 2^30 - 1 rows, 65535 sequences and 65535 heads fit one launch");
  check_value(softmax_scale >= 1e-8 && softmax_scale < 1e30, "flash_attn_fwd: softmax_scale must be in 1e-8 … 1e30");
  check_value(dropout_p == 0 && (softcap > 0) == HAS_SOFTCAP && alibi_slopes.has_value() == HAS_ALIBI &&
                  (IS_MASKED || (window_left < 0 && window_right < 0)) &&
                  (how_v3_bf16_cvt == ROUNDING || !std::is_same_v<OutElement, bf16>),
              "flash_attn_fwd: this module was built for other features");
  if (lse.has_value()) {
    const ffi::Tensor t = lse.value();
    ffi::check_type(ffi::is_f32(t), "flash_attn_fwd: lse must be float32");
    check_value(t.ndim() == ndim - 1 && t.size(ndim - 3) == num_heads && t.size(ndim - 2) == rows &&
                    (is_packed || t.size(0) == batch) && t.IsContiguous(),
                "flash_attn_fwd: lse must be contiguous, [batch, num_heads, seqlen_q] or [num_heads, total_q]");
    args.lse = static_cast<float*>(t.data_ptr());
    args.lse_head_stride = rows;
    args.lse_batch_stride = num_heads * rows;
  }
  args.cu_seqlens_q = indices(cu_seqlens_q, batch + 1);
  args.cu_seqlens_k = indices(cu_seqlens_k, batch + 1);
  args.seqlens_k = indices(seqlens_k, batch);
  set_bias(args, bias, batch, is_packed);
  args.alibi_slopes = floats(alibi_slopes, num_heads, batch, &args.alibi_batch_stride);
  args.sink = floats(sink, num_heads, batch, nullptr);
  args.q_descale = floats(q_descale, 1, batch, nullptr);
  args.k_descale = floats(k_descale, 1, batch, nullptr);
  args.v_descale = floats(v_descale, 1, batch, nullptr);
  const int64_t longest = is_packed ? (max_seqlen_q < rows ? max_seqlen_q : rows) : rows;
  args.num_blocks_m = static_cast<int>((longest + kBlockM - 1) / kBlockM);
  if (args.num_blocks_m * num_heads * batch == 0) return;
  args.group_size = static_cast<int>(num_heads / num_kv_heads);
  args.window_left = window_of(window_left);
  args.window_right = window_of(window_right);
  args.sink_size = sink_size < kMaxRows ? static_cast<int>(sink_size) : static_cast<int>(kMaxRows);
  args.softmax_scale = static_cast<float>(softmax_scale);
  args.softcap = static_cast<float>(softcap);
  launch_flash_attn_fwd_tile(args, static_cast<int>(batch), ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd_tile);
#endif
