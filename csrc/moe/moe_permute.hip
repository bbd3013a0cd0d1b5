// SPDX-License-Identifier: MIT
// moe_permute of PyTorch tensors: moe_sorting_body.h finds where the pairs of token and expert go, moe_permute_body.h
// copies rows there. One build per type of experts' numbers and count of experts, for all types of rows.
#include <optional>

#include "aiter_like/ffi.h"
#include "moe_permute_body.h"
#include "moe_sorting_body.h"
#include "moe_vectors.h"

#if !defined(ID) || !defined(EXPERTS)
#error "moe_permute.hip: -DID=int32_t|int64_t -DEXPERTS=256|1024"
#endif

namespace aiter_like {

struct Config {
  using Id = ID;
  static constexpr PairForm kForm = PairForm::kNumber;
  static constexpr int kExperts = EXPERTS;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
void launch_both(const MoeSortingArgs<Config>& sorting, const MoePermuteArgs& args, int unit_bytes, Stream stream) {
  launch_moe_sorting<Config>(sorting, stream);
  if (args.tokens > 0 && args.units > 0) launch_moe_permute(args, unit_bytes, stream);
}

#if AITER_LIKE_HOST_PASS

using OptionalTensor = ffi::Optional<ffi::Tensor>;

/// Rows to be copied: their bytes, and elements from row to row.
struct Copied {
  char* data;
  int64_t stride;
};

Copied rows_of(const ffi::Tensor& tensor, const char* name) {
  if (tensor.ndim() != 2 || (tensor.size(1) > 1 && tensor.stride(1) != 1))
    TVM_FFI_THROW(ValueError) << name << " must be a matrix with contiguous rows";
  return {static_cast<char*>(tensor.data_ptr()), tensor.size(0) > 1 ? tensor.stride(0) : 0};
}

/// Chooses the units of the copies. Returns their bytes.
int set_rows(MoePermuteArgs& args, const ffi::Tensor& output, const ffi::Tensor& input) {
  const DLDataType dtype = input.dtype();
  ffi::check_type(output.dtype().code == dtype.code && output.dtype().bits == dtype.bits && dtype.lanes == 1 &&
                      (dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32),
                  "moe_permute: permuted_hidden_states must have the dtype of hidden_states, of 1, 2 or 4 bytes");
  ffi::check_value(output.size(1) == input.size(1) && input.size(1) < (int64_t{1} << 31),
                   "moe_permute: permuted_hidden_states must have the columns of hidden_states");
  const Copied to = rows_of(output, "moe_permute: permuted_hidden_states"),
               from = rows_of(input, "moe_permute: hidden_states");
  const int64_t bytes = dtype.bits / 8, columns = input.size(1);
  const uint64_t all = reinterpret_cast<uintptr_t>(to.data) | reinterpret_cast<uintptr_t>(from.data) |
                       static_cast<uint64_t>((to.stride | from.stride | columns) * bytes);
  const int64_t unit = all % 16 == 0 ? 16 : bytes;
  args.output = to.data;
  args.input = from.data;
  args.output_stride = to.stride * bytes / unit;
  args.input_stride = from.stride * bytes / unit;
  args.units = static_cast<uint32_t>(columns * bytes / unit);
  args.tokens = input.size(0);
  return static_cast<int>(unit);
}

void set_scales(MoePermuteArgs& args, const OptionalTensor& output, const OptionalTensor& scales, int64_t rows) {
  ffi::check_value(output.has_value() == scales.has_value(), "moe_permute: a1q_scale must come with its result");
  if (!scales.has_value()) return;
  const ffi::Tensor from = scales.value(), to = output.value();
  const ffi::Rows y = ffi::rows<float>(to, "moe_permute: permuted scales");
  ffi::check_type(ffi::has_element<float>(from), "moe_permute: a1q_scale must have dtype float32");
  ffi::check_value(from.ndim() == 2 && from.size(0) == args.tokens && to.ndim() == 2 && to.size(0) == rows &&
                       to.size(1) == from.size(1) && from.size(1) < (int64_t{1} << 31) - kWaveSize,
                   "moe_permute: a1q_scale must have a row for each token");
  args.output_scales = static_cast<float*>(y.data);
  args.scales = from.size(1) > 0 ? static_cast<const float*>(from.data_ptr()) : nullptr;
  args.output_scales_stride = y.stride;
  args.token_scales_stride = from.stride(0);
  args.group_scales_stride = from.stride(1);
  args.groups = static_cast<int32_t>(from.size(1));
}

void moe_permute(ffi::Tensor output, OptionalTensor output_scales, ffi::Tensor index, ffi::Tensor inverse,
                 ffi::Tensor first, ffi::Tensor input, OptionalTensor scales, ffi::Tensor ids,
                 OptionalTensor expert_map, int64_t experts, int64_t block) {
  const ffi::Rows i = ffi::rows<Config::Id>(ids, "moe_permute: topk_ids");
  const int64_t pairs = ids.numel(), most = pairs < experts ? pairs : experts;
  ffi::check_value(ids.ndim() == 2 && input.ndim() == 2 && output.ndim() == 2 && ids.size(0) == input.size(0) &&
                       pairs < (int64_t{1} << 31) && experts > 0 && experts <= EXPERTS && block > 0 &&
                       block <= (1 << 16),
                   "moe_permute: topk_ids must have the tokens of hidden_states, of at most EXPERTS experts");
  const int64_t rows = output.size(0);
  ffi::check_value(rows >= pairs + most * (block - 1) && rows < (int64_t{1} << 31),
                   "moe_permute: permuted_hidden_states has too few rows, or too many");
  ffi::check_value(ffi::has_element<int32_t>(inverse) && inverse.IsContiguous() && inverse.numel() == pairs,
                   "moe_permute: inv_permuted_idx must have a number for each pair");
  MoeSortingArgs<Config> sorting{};
  sorting.sorted_ids = ffi::vector_of<int32_t>(index, rows, "moe_permute: permuted_idx");
  sorting.first = ffi::vector_of<int64_t>(first, experts + 1, "moe_permute: expert_first_token_offset");
  sorting.inverse = static_cast<int32_t*>(inverse.data_ptr());
  sorting.ids = static_cast<const Config::Id*>(i.data);
  sorting.ids_stride = i.stride;
  sorting.mapped = expert_map.has_value() ? static_cast<int>(expert_map.value().numel()) : 0;
  sorting.map = ffi::vector_of<int32_t>(expert_map, sorting.mapped, "moe_permute: expert_map");
  sorting.pairs = static_cast<uint32_t>(pairs);
  sorting.tokens = static_cast<int>(ids.size(0));
  sorting.slots = static_cast<int>(ids.size(1));
  sorting.experts = static_cast<int>(experts);
  sorting.block = static_cast<int>(block);
  sorting.places = rows;
  MoePermuteArgs args{};
  const int unit_bytes = set_rows(args, output, input);
  set_scales(args, output_scales, scales, rows);
  args.inverse = sorting.inverse;
  args.slots = sorting.slots;
  const int64_t words = share_pairs(sorting);
  std::optional<ffi::Scratch> counts;
  if (words > 0) sorting.counts = static_cast<uint32_t*>(counts.emplace(words * 4, ids.device()).data());
  launch_both(sorting, args, unit_bytes, ffi::stream_of(ids));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(moe_permute, aiter_like::moe_permute);
#endif
