// SPDX-License-Identifier: MIT
// Quantises each head of each token's K and V to fp8 or int8 (quant.h), a scale each, into a paged cache with packed
// keys (kv_cache.h). HIP (gfx9) and CUDA. One build per pair of element types and number of lanes.
//
//   1. LANES lanes hold a head's elements: one load of 16 bytes each
//   2. the largest magnitude over the lanes gives the scale
//   3. quantise; K is stored in vectors, V, which keeps tokens together, in single bytes: neighbouring rows of a
//      workgroup are neighbouring tokens, whose bytes meet in cache
//
// The first workgroups write K, the others V. Slots outside the cache are skipped. LDS: 4 bytes per wave.
// Bound: memory. A token moves heads · 2 · head_dim · (sizeof(SOURCE) + 1) bytes and the scales.
#include "aiter_like/kv_quant.h"

#if !defined(SOURCE) || !defined(CACHE) || !defined(LANES)
#error "reshape_and_cache_with_pertoken_quant.hip: -DSOURCE=bf16|f16|float -DCACHE=fp8|int8_t -DLANES=8…1024"
#endif

namespace aiter_like {

constexpr int kVector = 16 / sizeof(SOURCE);

struct QuantArgs {
  QuantPlane planes[2];  // K, V
  SlotMapping slots;
  uint32_t tokens, heads, groups;  // groups: workgroups of a plane
};

template <int kVec, KvLayout kLayout>
__global__ __launch_bounds__((RowLayout<LANES, 1, 1>::kThreads)) void
reshape_and_cache_with_pertoken_quant_kernel(QuantArgs args) {
  using Layout = RowLayout<LANES, kVector / kVec, kVec>;
  __shared__ RowScratch<Layout> scratch;
  const uint32_t group = workgroup_index().x;
  if (group < args.groups)
    write_quantised<Layout, SOURCE, CACHE, kKeyPack<kLayout>, true>(args.planes[0], args.slots, args.tokens,
                                                                    args.heads, group, false, scratch);
  else
    write_quantised<Layout, SOURCE, CACHE, kValuePack<kLayout>, false>(
        args.planes[1], args.slots, args.tokens, args.heads, group - args.groups, false, scratch);
}

template <int kVec>
void launch_reshape_and_cache_with_pertoken_quant(const QuantArgs& args, KvLayout layout, Stream stream) {
  constexpr int kThreads = RowLayout<LANES, 1, 1>::kThreads;
  const dim3 grid(2 * args.groups);
  if (layout == KvLayout::kColumns)
    reshape_and_cache_with_pertoken_quant_kernel<kVec, KvLayout::kColumns><<<grid, kThreads, 0, stream>>>(args);
  else
    reshape_and_cache_with_pertoken_quant_kernel<kVec, KvLayout::kShuffled><<<grid, kThreads, 0, stream>>>(args);
  check_launch("reshape_and_cache_with_pertoken_quant_kernel");
}

void launch_reshape_and_cache_with_pertoken_quant(const QuantArgs& args, KvLayout layout, bool is_wide,
                                                  Stream stream) {
  if (is_wide)
    launch_reshape_and_cache_with_pertoken_quant<kVector>(args, layout, stream);
  else
    launch_reshape_and_cache_with_pertoken_quant<1>(args, layout, stream);
}

#if AITER_LIKE_HOST_PASS

QuantPlane plane_args(const CachePlane& cache, const ffi::Tensor& source, const ffi::Tensor& scales,
                      const ffi::CacheShape& shape, KvLayout layout, int64_t tokens) {
  ffi::check_type(ffi::has_element<SOURCE>(source) && ffi::has_element<float>(scales),
                  "reshape_and_cache_with_pertoken_quant: this module was built for other dtypes");
  ffi::check_value(source.ndim() == 3 && source.size(0) >= tokens && source.size(1) == shape.heads &&
                       (source.size(2) < 2 || source.stride(2) == 1) && source.size(2) <= LANES * kVector,
                   "reshape_and_cache_with_pertoken_quant: key and value must be [num_tokens, num_heads, head_dim]");
  QuantPlane args{cache, {}, source.data_ptr(), source.stride(0), source.stride(1),
                  static_cast<uint32_t>(source.size(2))};
  args.scales.data = scales.data_ptr();
  if (layout == KvLayout::kShuffled) {  // [num_blocks, num_heads, page_size]
    ffi::check_value(scales.ndim() == 3 && scales.size(0) == shape.blocks && scales.size(1) == shape.heads &&
                         scales.size(2) == shape.page_size,
                     "reshape_and_cache_with_pertoken_quant: scales must be [num_blocks, num_heads, page_size]");
    args.scales.block = scales.stride(0), args.scales.head = scales.stride(1), args.scales.token = scales.stride(2);
  } else {  // [num_heads, slots]
    ffi::check_value(scales.ndim() == 2 && scales.size(0) == shape.heads &&
                         scales.size(1) >= shape.blocks * shape.page_size,
                     "reshape_and_cache_with_pertoken_quant: scales must be [num_heads, slots]");
    args.scales.head = scales.stride(0), args.scales.token = scales.stride(1);
    args.scales.block = shape.page_size * scales.stride(1);
  }
  return args;
}

void reshape_and_cache_with_pertoken_quant(ffi::Tensor key_cache, ffi::Tensor value_cache,
                                           ffi::Tensor k_dequant_scales, ffi::Tensor v_dequant_scales, ffi::Tensor key,
                                           ffi::Tensor value, ffi::Tensor slot_mapping, ffi::String layout_name) {
  const KvLayout layout = ffi::layout_of(layout_name);
  const ffi::CacheShape shape = ffi::cache_shape(key_cache, value_cache, layout);
  ffi::check_value(layout != KvLayout::kRows && ffi::has_element<CACHE>(key_cache) &&
                       ffi::has_element<CACHE>(value_cache) && key.ndim() == 3 && value.ndim() == 3 &&
                       key.size(2) == shape.key_dim && value.size(2) == shape.value_dim,
                   "reshape_and_cache_with_pertoken_quant: this module was built for other dtypes or head_dims");
  const int64_t tokens = slot_mapping.size(0), rows = tokens * shape.heads;
  if (rows == 0) return;
  constexpr int kRows = RowLayout<LANES, 1, 1>::kRows;
  ffi::check_value(rows * LANES < (int64_t{1} << 30),
                   "reshape_and_cache_with_pertoken_quant: too many rows for one launch");
  const bool is_wide = ffi::takes_vectors(key, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(value, kVector, sizeof(SOURCE)) &&
                       ffi::takes_vectors(key_cache, kVector, sizeof(CACHE));
  QuantArgs args{};
  args.planes[0] = plane_args(ffi::key_plane(key_cache), key, k_dequant_scales, shape, layout, tokens);
  args.planes[1] = plane_args(ffi::value_plane(value_cache, layout), value, v_dequant_scales, shape, layout, tokens);
  args.slots = ffi::slot_mapping(slot_mapping, shape);
  args.tokens = static_cast<uint32_t>(tokens);
  args.heads = static_cast<uint32_t>(shape.heads);
  args.groups = static_cast<uint32_t>((rows + kRows - 1) / kRows);
  launch_reshape_and_cache_with_pertoken_quant(args, layout, is_wide, ffi::stream_of(key));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(reshape_and_cache_with_pertoken_quant, aiter_like::reshape_and_cache_with_pertoken_quant);
#endif
