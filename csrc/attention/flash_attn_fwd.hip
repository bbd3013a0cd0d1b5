// SPDX-License-Identifier: MIT
// Attention forward for gfx942: out = softmax(softmax_scale · q kᵀ + mask) v, online softmax, bf16 or f16, head
// dimension 32, 64 or 128, causal (bottom-right), grouped KV heads, log-sum-exp. One build per ELEMENT × HEAD_DIM ×
// ROUNDING.
//
// One workgroup: kBlockM query rows of one head; its 4 waves take kRowTiles tiles of 16 rows each. KV blocks of kBlockN
// keys go through LDS, one buffer; the next block travels in registers meanwhile. Per block and wave:
//   1. S^T = K qᵀ    lane (quad, col) gets the scores of query row col against keys 4 quad + i of each 16-key tile
//   2. mask          only blocks that touch the diagonal or the end
//   3. softmax       running maximum m (base 2, per row), p = exp2(s · scale − m), sum l per lane until the end
//   4. O^T += Vᵀ P   the lane that computed a score holds it where the MFMA wants it: P is only rounded and packed
//   then out = O / l, LSE = ln 2 · (m + log2 l); 16 bytes per store.
//
// LDS: 2 · 64 · HEAD_DIM · 2 bytes (32 KB at 128). Swizzles: see KeyTile and ValueTile.
// Bound: MFMA. 4 · HEAD_DIM flop per score; a K and V block is read once per kBlockM rows: 128 flop/byte, and from L2.
// Rounding of P and out: ROUNDING 0 to nearest even, 1 to nearest away, 2 towards zero (f16: 0 only).
#include <type_traits>

#include "aiter_like/dtype.h"
#include "aiter_like/ffi.h"
#include "aiter_like/gpu.h"
#include "aiter_like/math.h"
#include "aiter_like/mfma.h"

#if !defined(ELEMENT) || !defined(HEAD_DIM) || !defined(ROUNDING)
#error "flash_attn_fwd.hip: -DELEMENT=bf16|f16 -DHEAD_DIM=32|64|128 -DROUNDING=0|1|2"
#endif

namespace aiter_like {

struct FlashAttnArgs {
  struct Strides {  // elements
    int64_t batch, row, head;
  };
  const void* q;  // [batch, seqlen_q, num_heads, HEAD_DIM]
  const void* k;  // [batch, seqlen_k, num_kv_heads, HEAD_DIM]
  const void* v;  // [batch, seqlen_k, num_kv_heads, HEAD_DIM]
  void* out;      // [batch, seqlen_q, num_heads, HEAD_DIM]
  float* lse;     // [batch, num_heads, seqlen_q] contiguous, or null
  Strides q_strides, k_strides, v_strides, out_strides;
  int batch, num_heads, group_size;  // group_size: query heads per KV head
  int seqlen_q, seqlen_k;
  float scale_log2;  // softmax_scale · log2 e
  bool is_causal;
};

namespace {

using Element = ELEMENT;
constexpr int kHeadDim = HEAD_DIM;
constexpr Rounding kRounding = static_cast<Rounding>(ROUNDING);

constexpr int kThreads = 256;
constexpr int kWaves = kThreads / kWaveSize;
constexpr int kRowTiles = 2;                         // 16-row tiles per wave
constexpr int kWaveRows = 16 * kRowTiles;
constexpr int kBlockM = kWaves * kWaveRows;          // 128 query rows
constexpr int kBlockN = 64;                          // keys
constexpr int kKeyTiles = kBlockN / 16;
constexpr int kDimGroups = kHeadDim / 32;            // a 16-byte access per lane covers 32 head dimensions over 4 quads
constexpr int kRowBytes = 2 * kHeadDim;
constexpr int kTileBytes = kBlockN * kRowBytes;
constexpr int kChunksPerRow = kRowBytes / 16;
constexpr int kLoads = kTileBytes / (16 * kThreads);  // 16-byte loads per work-item and tile: 1, 2, 4
static_assert(kHeadDim == 32 || kHeadDim == 64 || kHeadDim == 128);

// Start value of m, and the raw score of a masked key. With a scale of at least 1e-8 a masked score stays below
// kMinimum after scaling, so it never raises m, and exp2 makes it 0 exactly: a fully masked row needs no special case.
constexpr float kMinimum = -1e30f;
constexpr float kMaskedScore = -3e38f;

using Chunk = __attribute__((ext_vector_type(4))) uint32_t;  // 16 bytes: 8 elements

// In memory a chunk may start at any element: strides are arbitrary. gfx9 runs in unaligned access mode: this is the
// same global_load_dwordx4 as for an aligned address; only the cache lines touched differ.
using UnalignedChunk = __attribute__((ext_vector_type(4), aligned(2))) uint32_t;

// K in LDS: row r holds its 16-byte chunks at position chunk ^ (r mod 8), so that the 8 lanes served at once by
// ds_read_b128 (4 rows of quad 0 and 4 rows of quad 1) touch all 32 banks. At HEAD_DIM 32 two rows share 128 bytes:
// chunk ^ (r / 2 mod 4).
struct KeyTile {
  static __device__ int offset(int row, int byte) {
    const int swizzle = kHeadDim == 32 ? (row >> 1) & 3 : row & 7;
    return row * kRowBytes + (byte ^ (swizzle << 4));
  }
};

// V in LDS: bit 6 of the address is flipped for odd groups of four rows: the two quads served at once by ds_read_b32
// read rows r and r + 4, which would otherwise share their 16 banks.
struct ValueTile {
  static __device__ int offset(int row, int byte) {
    return (row * kRowBytes + byte) ^ (((row >> 2) & 1) << 6);
  }
};

// A work-item's share of a K or V block on its way from memory to LDS.
struct StagedTile {
  Chunk chunks[kLoads];

  static __device__ int row(int i) { return (thread_index() + i * kThreads) / kChunksPerRow; }
  static __device__ int byte() { return thread_index() % kChunksPerRow * 16; }

  // Rows past the end read the last row instead; stores_to replaces them where that matters.
  __device__ void load(const char* block, int row_stride_bytes, int rows) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = row(i) < rows ? row(i) : rows - 1;
      chunks[i] = *reinterpret_cast<const UnalignedChunk*>(block + r * row_stride_bytes + byte());
    }
  }

  template <class Tile>
  __device__ void store(char* lds) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) *reinterpret_cast<Chunk*>(lds + Tile::offset(row(i), byte())) = chunks[i];
  }

  __device__ void clear_past(int rows) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (row(i) >= rows) chunks[i] = Chunk{};
  }
};

// Query rows of one wave: q once, then the running softmax state and the output, all in registers.
struct RowState {
  Fragment q[kRowTiles][kDimGroups][2];           // q[row col][32 j + 8 quad + 4 h + i]
  Accumulator out[kRowTiles][kDimGroups][2];      // O[row col][32 g + 8 quad + 2 i + e]
  float maximum[kRowTiles];                       // of the scaled scores in base 2; equal in the four lanes of a row
  float sum[kRowTiles];                           // this lane's part
};

using Scores = Accumulator[kRowTiles][kKeyTiles];  // score of row col, key 16 kk + 4 quad + i

__device__ int quad() { return lane_index() / 16; }
__device__ int column() { return lane_index() % 16; }

__device__ void compute_scores(const RowState& state, const char* keys, Scores& scores) {
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) scores[t][kk] = Accumulator{};
#pragma unroll
    for (int j = 0; j < kDimGroups; ++j) {
      const int offset = KeyTile::offset(16 * kk + column(), 64 * j + 16 * quad());
      const Chunk chunk = *reinterpret_cast<const Chunk*>(keys + offset);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        scores[t][kk] = mfma_16x16x16<Element>(chunk.lo, state.q[t][j][0], scores[t][kk]);
        scores[t][kk] = mfma_16x16x16<Element>(chunk.hi, state.q[t][j][1], scores[t][kk]);
      }
    }
  }
}

// Hides key i of the block from row tile t where i > last_visible (of the lane's row).
__device__ void mask_scores(Accumulator (&scores)[kKeyTiles], int last_visible) {
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (16 * kk + 4 * quad() + i > last_visible) scores[kk][i] = kMaskedScore;
  }
}

// Raises the running maximum of row tile t if a score exceeds it, and rescales what was accumulated under the old one.
__device__ void update_maximum(RowState& state, int t, const Accumulator (&scores)[kKeyTiles], float scale) {
  float highest = scores[0][0];
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) highest = __builtin_fmaxf(highest, scores[kk][i]);
  }
  highest *= scale;
  if (!wave_any(highest > state.maximum[t])) return;
  highest = __builtin_fmaxf(highest, lane_xor<16>(highest));
  highest = __builtin_fmaxf(highest, lane_xor<32>(highest));
  const float maximum = __builtin_fmaxf(state.maximum[t], highest);
  const float rescale = fast_exp2(state.maximum[t] - maximum);
  state.maximum[t] = maximum;
  state.sum[t] *= rescale;
#pragma unroll
  for (int g = 0; g < kDimGroups; ++g) {
    state.out[t][g][0] *= rescale;
    state.out[t][g][1] *= rescale;
  }
}

// p = exp2(score · scale − maximum): added to the sum unrounded, then rounded and packed for the second product.
__device__ void exponentiate(RowState& state, int t, const Accumulator (&scores)[kKeyTiles], float scale,
                             Fragment (&p)[kKeyTiles]) {
#pragma unroll
  for (int kk = 0; kk < kKeyTiles; ++kk) {
    Accumulator e;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      e[i] = fast_exp2(__builtin_fmaf(scores[kk][i], scale, -state.maximum[t]));
      state.sum[t] += e[i];
    }
    p[kk] = Fragment{Pack<Element, kRounding>::pack(e[0], e[1]), Pack<Element, kRounding>::pack(e[2], e[3])};
  }
}

__device__ void accumulate_output(RowState& state, const char* values, const Fragment (&p)[kRowTiles][kKeyTiles]) {
#pragma unroll
  for (int g = 0; g < kDimGroups; ++g) {
#pragma unroll
    for (int kk = 0; kk < kKeyTiles; ++kk) {
      uint32_t w[4];  // V[16 kk + 4 quad + i][32 g + 2 col, + 1]
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int offset = ValueTile::offset(16 * kk + 4 * quad() + i, 64 * g + 4 * column());
        w[i] = *reinterpret_cast<const uint32_t*>(values + offset);
      }
      const Fragment even{pack_lower(w[0], w[1]), pack_lower(w[2], w[3])};
      const Fragment odd{pack_upper(w[0], w[1]), pack_upper(w[2], w[3])};
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        state.out[t][g][0] = mfma_16x16x16<Element>(even, p[t][kk], state.out[t][g][0]);
        state.out[t][g][1] = mfma_16x16x16<Element>(odd, p[t][kk], state.out[t][g][1]);
      }
    }
  }
}

// Rows past the end read the last row; write_rows drops them.
__device__ void read_rows(RowState& state, const Element* q, int64_t row_stride, int first_row, int seqlen_q) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int row = first_row + 16 * t + column();
    const Element* source = q + (row < seqlen_q ? row : seqlen_q - 1) * row_stride + 8 * quad();
    state.maximum[t] = kMinimum;
    state.sum[t] = 0.f;
#pragma unroll
    for (int j = 0; j < kDimGroups; ++j) {
      const Chunk chunk = *reinterpret_cast<const UnalignedChunk*>(source + 32 * j);
      state.q[t][j][0] = chunk.lo;
      state.q[t][j][1] = chunk.hi;
      state.out[t][j][0] = state.out[t][j][1] = Accumulator{};
    }
  }
}

__device__ void write_rows(const RowState& state, Element* out, int64_t row_stride, float* lse, int first_row,
                           int seqlen_q) {
  float sums[kRowTiles];  // over the four lanes of a row; all lanes take part, so before any of them leaves
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    sums[t] = state.sum[t] + lane_xor<16>(state.sum[t]);
    sums[t] += lane_xor<32>(sums[t]);
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int row = first_row + 16 * t + column();
    if (row >= seqlen_q) return;
    const float inverse = sums[t] == 0.f ? 0.f : 1.f / sums[t];  // 0: no visible key. A NaN sum gives NaN
    Element* destination = out + row * row_stride + 8 * quad();
#pragma unroll
    for (int g = 0; g < kDimGroups; ++g) {
      Vec<Element, 8> values;
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = from_float<Element, kRounding>(state.out[t][g][i % 2][i / 2] * inverse);
      *reinterpret_cast<UnalignedChunk*>(destination + 32 * g) = __builtin_bit_cast(Chunk, values);
    }
    if (lse != nullptr && quad() == 0) {
      constexpr float kLn2 = 0.693147180559945f;
      lse[row] = sums[t] == 0.f ? -__builtin_inff() : (state.maximum[t] + fast_log2(sums[t])) * kLn2;
    }
  }
}

}  // namespace

__global__ __launch_bounds__(kThreads) void flash_attn_fwd_kernel(FlashAttnArgs args) {
  __shared__ __attribute__((aligned(128))) char keys[kTileBytes];
  __shared__ __attribute__((aligned(128))) char values[kTileBytes];
  const WorkgroupIndex workgroup = workgroup_index();
  const int num_blocks_m = (args.seqlen_q + kBlockM - 1) / kBlockM;
  const int block_row = (num_blocks_m - 1 - static_cast<int>(workgroup.x)) * kBlockM;  // causal: the longest first
  const int64_t head = workgroup.y, batch = workgroup.z, kv_head = static_cast<int>(workgroup.y) / args.group_size;

  const auto* q = static_cast<const Element*>(args.q) + batch * args.q_strides.batch + head * args.q_strides.head;
  const auto* k = static_cast<const Element*>(args.k) + batch * args.k_strides.batch + kv_head * args.k_strides.head;
  const auto* v = static_cast<const Element*>(args.v) + batch * args.v_strides.batch + kv_head * args.v_strides.head;
  auto* out = static_cast<Element*>(args.out) + batch * args.out_strides.batch + head * args.out_strides.head;
  float* lse = args.lse == nullptr ? nullptr : args.lse + (batch * args.num_heads + head) * args.seqlen_q;

  // Row r sees keys 0 … r + diagonal.
  const int diagonal = args.is_causal ? args.seqlen_k - args.seqlen_q : args.seqlen_k;
  const int first_row = block_row + wave_index() * kWaveRows;
  const auto visible_keys = [&](int rows_end) {
    const int end = rows_end < args.seqlen_q ? rows_end : args.seqlen_q;
    const int keys_end = end + diagonal;
    return keys_end < args.seqlen_k ? keys_end : args.seqlen_k;
  };
  const int block_keys = visible_keys(block_row + kBlockM);
  const int wave_keys = first_row < args.seqlen_q ? visible_keys(first_row + kWaveRows) : 0;

  const int64_t k_block_stride = kBlockN * args.k_strides.row, v_block_stride = kBlockN * args.v_strides.row;
  const int k_row_bytes = static_cast<int>(2 * args.k_strides.row);
  const int v_row_bytes = static_cast<int>(2 * args.v_strides.row);

  RowState state;
  read_rows(state, q, args.q_strides.row, first_row, args.seqlen_q);
  StagedTile next_k, next_v;
  if (block_keys > 0) {
    next_k.load(reinterpret_cast<const char*>(k), k_row_bytes, args.seqlen_k);
    next_v.load(reinterpret_cast<const char*>(v), v_row_bytes, args.seqlen_k);
  }

  for (int key = 0; key < block_keys; key += kBlockN) {
    const int remaining = args.seqlen_k - key;
    if (remaining < kBlockN) next_v.clear_past(remaining);  // 0 · v must be 0
    workgroup_barrier();  // the previous block has been read
    next_k.store<KeyTile>(keys);
    next_v.store<ValueTile>(values);
    workgroup_barrier();
    if (key + kBlockN < block_keys) {
      k += k_block_stride;
      v += v_block_stride;
      next_k.load(reinterpret_cast<const char*>(k), k_row_bytes, remaining - kBlockN);
      next_v.load(reinterpret_cast<const char*>(v), v_row_bytes, remaining - kBlockN);
    }
    if (key >= wave_keys) continue;  // a whole wave: no row of it sees this block

    Scores scores;
    compute_scores(state, keys, scores);
    if (remaining < kBlockN || (args.is_causal && key + kBlockN > first_row + 1 + diagonal)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const int row_limit = first_row + 16 * t + column() + diagonal;
        mask_scores(scores[t], (row_limit < args.seqlen_k - 1 ? row_limit : args.seqlen_k - 1) - key);
      }
    }
    Fragment p[kRowTiles][kKeyTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      update_maximum(state, t, scores[t], args.scale_log2);
      exponentiate(state, t, scores[t], args.scale_log2, p[t]);
    }
    accumulate_output(state, values, p);
  }
  write_rows(state, out, args.out_strides.row, lse, first_row, args.seqlen_q);
}

void launch_flash_attn_fwd(const FlashAttnArgs& args, Stream stream) {
  const dim3 grid(static_cast<uint32_t>((args.seqlen_q + kBlockM - 1) / kBlockM), static_cast<uint32_t>(args.num_heads),
                  static_cast<uint32_t>(args.batch));
  flash_attn_fwd_kernel<<<grid, kThreads, 0, stream>>>(args);
  check_launch("flash_attn_fwd_kernel");
}

#if AITER_LIKE_HOST_PASS

namespace {

FlashAttnArgs::Strides strides_of(const ffi::Tensor& tensor) {
  ffi::check_value(tensor.stride(3) == 1, "flash_attn_fwd: q, k, v, out must be contiguous in their last dimension");
  const auto stride = [&](int d) { return tensor.size(d) > 1 ? tensor.stride(d) : 0; };
  return {stride(0), stride(1), stride(2)};
}

void check_tensor(const ffi::Tensor& tensor, int64_t batch, int64_t rows, int64_t heads) {
  constexpr bool kIsBf16 = std::is_same_v<Element, bf16>;
  ffi::check_type(kIsBf16 ? ffi::is_bf16(tensor) : ffi::is_f16(tensor),
                  "flash_attn_fwd: q, k, v, out must have the dtype that this module was built for");
  ffi::check_value(tensor.ndim() == 4 && tensor.size(0) == batch && tensor.size(1) == rows && tensor.size(2) == heads &&
                       tensor.size(3) == kHeadDim,
                   "flash_attn_fwd: q and out must be [batch, seqlen_q, num_heads, head_dim], k and v [batch, "
                   "seqlen_k, num_kv_heads, head_dim], with the head_dim that this module was built for");
}

}  // namespace

void flash_attn_fwd(ffi::Tensor out, ffi::Optional<ffi::Tensor> lse, ffi::Tensor q, ffi::Tensor k, ffi::Tensor v,
                    ffi::Optional<ffi::Tensor> cu_seqlens_q, ffi::Optional<ffi::Tensor> cu_seqlens_k,
                    ffi::Optional<ffi::Tensor> seqlens_k, ffi::Optional<ffi::Tensor> bias,
                    ffi::Optional<ffi::Tensor> alibi_slopes, ffi::Optional<ffi::Tensor> sink,
                    ffi::Optional<ffi::Tensor> q_descale, ffi::Optional<ffi::Tensor> k_descale,
                    ffi::Optional<ffi::Tensor> v_descale, ffi::Optional<ffi::Tensor> /*rng_state*/,
                    ffi::Optional<ffi::Tensor> /*workspace*/, int64_t /*max_seqlen_q*/, int64_t /*max_seqlen_k*/,
                    double softmax_scale, int64_t window_left, int64_t window_right, int64_t /*sink_size*/,
                    double softcap, double dropout_p, int64_t /*num_splits*/, int64_t how_v3_bf16_cvt) {
  for (const auto* absent : {&cu_seqlens_q, &cu_seqlens_k, &seqlens_k, &bias, &alibi_slopes, &sink, &q_descale,
                             &k_descale, &v_descale})
    ffi::check_value(!absent->has_value(), "flash_attn_fwd: this kernel takes no lengths, bias, slopes, sink, scales");
  ffi::check_value(window_left == -1 && (window_right == -1 || window_right == 0) && softcap == 0 && dropout_p == 0,
                   "flash_attn_fwd: this kernel takes no window other than the causal one, no softcap, no dropout");
  ffi::check_value(q.ndim() == 4 && k.ndim() == 4, "flash_attn_fwd: q and k must have 4 dimensions");
  const int64_t batch = q.size(0), seqlen_q = q.size(1), num_heads = q.size(2);
  const int64_t seqlen_k = k.size(1), num_kv_heads = k.size(2);
  check_tensor(q, batch, seqlen_q, num_heads);
  check_tensor(out, batch, seqlen_q, num_heads);
  check_tensor(k, batch, seqlen_k, num_kv_heads);
  check_tensor(v, batch, seqlen_k, num_kv_heads);
  ffi::check_value(num_kv_heads > 0 && num_heads % num_kv_heads == 0,
                   "flash_attn_fwd: num_heads must be a multiple of num_kv_heads");
  ffi::check_value(softmax_scale >= 1e-8 && softmax_scale < 1e30,
                   "flash_attn_fwd: softmax_scale must be finite and at least 1e-8");
  ffi::check_value(std::is_same_v<Element, f16> || how_v3_bf16_cvt == ROUNDING,
                   "flash_attn_fwd: this module was built for another how_v3_bf16_cvt");
  if (batch * seqlen_q * num_heads == 0) return;
  constexpr int64_t kMaxRows = int64_t{1} << 30, kMaxGrid = 65535, kMaxRowStride = int64_t{1} << 24;
  ffi::check_value(seqlen_q < kMaxRows && seqlen_k < kMaxRows && batch <= kMaxGrid && num_heads <= kMaxGrid,
                   "flash_attn_fwd: at most 2^30 - 1 rows, 65535 sequences and 65535 heads fit one launch");

  FlashAttnArgs args{};
  args.q = q.data_ptr();
  args.k = k.data_ptr();
  args.v = v.data_ptr();
  args.out = out.data_ptr();
  if (lse.has_value()) {
    const ffi::Tensor& t = lse.value();
    ffi::check_type(ffi::is_f32(t), "flash_attn_fwd: lse must be float32");
    ffi::check_value(t.ndim() == 3 && t.size(0) == batch && t.size(1) == num_heads && t.size(2) == seqlen_q &&
                         t.IsContiguous(),
                     "flash_attn_fwd: lse must be contiguous, [batch, num_heads, seqlen_q]");
    args.lse = static_cast<float*>(t.data_ptr());
  }
  args.q_strides = strides_of(q);
  args.k_strides = strides_of(k);
  args.v_strides = strides_of(v);
  args.out_strides = strides_of(out);
  const auto is_in_range = [](int64_t stride) { return 0 <= stride && stride < kMaxRowStride; };
  ffi::check_value(is_in_range(args.k_strides.row) && is_in_range(args.v_strides.row),
                   "flash_attn_fwd: the row strides of k and v must be below 2^24 elements");
  args.batch = static_cast<int>(batch);
  args.num_heads = static_cast<int>(num_heads);
  args.group_size = static_cast<int>(num_heads / num_kv_heads);
  args.seqlen_q = static_cast<int>(seqlen_q);
  args.seqlen_k = static_cast<int>(seqlen_k);
  args.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);
  args.is_causal = window_right == 0;
  launch_flash_attn_fwd(args, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(flash_attn_fwd, aiter_like::flash_attn_fwd);
#endif
