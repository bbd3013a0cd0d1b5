// SPDX-License-Identifier: MIT
// group_norm of PyTorch tensors; group_norm_body.h and group_norm_positions_body.h have the kernels. One build per
// combination of the macros.
#include "aiter_like/ffi.h"
#include "group_norm_body.h"
#include "group_norm_positions_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(HAS_WEIGHT) || !defined(HAS_BIAS) || \
    !defined(IS_CHANNELS_LAST) || !defined(IS_SLICED) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "group_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float, sizes and flags"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kHasWeight = HAS_WEIGHT, kHasBias = HAS_BIAS;
  static constexpr bool kIsChannelsLast = IS_CHANNELS_LAST;
  static constexpr bool kIsSliced = IS_SLICED;  // several workgroups share a row
};

template <bool kIsAligned>
void launch_aligned(const GroupNormArgs<Config>& args, Stream stream) {
  if constexpr (Config::kIsSliced && Config::kIsChannelsLast)
    launch_group_norm_positions<Config, kIsAligned>(args, stream);
  else
    launch_group_norm<Config, kIsAligned>(args, stream);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
void launch(const GroupNormArgs<Config>& args, bool is_aligned, Stream stream) {
  if (is_aligned)
    launch_aligned<true>(args, stream);
  else
    launch_aligned<false>(args, stream);
}

#if AITER_LIKE_HOST_PASS

/// Sets what slices need.
void set_slices(ffi::Match& match, GroupNormArgs<Config>& args, const ffi::OptionalTensor& parts) {
  using Layout = Config::Layout<true>;
  args.slices = Divider(1);
  match.built(Config::kIsSliced || args.size <= Layout::kCapacity, "row lengths");
  if (!Config::kIsSliced) return;
  const int64_t groups = args.groups.divisor, samples = args.rows / groups;
  int64_t slices = (int64_t{args.size} + Layout::kCapacity - 1) / Layout::kCapacity, workgroups = args.rows * slices;
  if (Config::kIsChannelsLast) {
    ffi::Size more{"slices + 1"};
    args.parts = match.take<float>(parts, {samples, more, groups * args.channels, 2}, "parts", ffi::kDense);
    slices = more - 1, workgroups = samples * slices;
  } else {
    args.parts = match.elements<float>(parts, ffi::at_least(2 * args.rows * slices), "parts");
  }
  match.require(args.parts != nullptr && slices > 0, "parts must have two elements for each slice");
  match.require(slices * (Config::kIsChannelsLast ? args.channels : 1) < int64_t{1} << 31 &&
                    workgroups < int64_t{1} << 31 && workgroups * Layout::kLanes < int64_t{1} << 32,
                "more slices than a launch can have");
  args.slices = Divider(slices);
}

void group_norm(ffi::Tensor out, ffi::OptionalTensor parts, ffi::Tensor input, ffi::OptionalTensor weight,
                ffi::OptionalTensor bias, int64_t num_groups, double epsilon, bool is_silu) {
  constexpr int64_t kVec = Config::Layout<true>::kVec;
  ffi::Match match("group_norm");
  match.built(weight.has_value() == Config::kHasWeight && bias.has_value() == Config::kHasBias);
  match.require(input.ndim() >= 2, "input must have at least 2 dimensions");
  ffi::Size total{"elements of input", ffi::kNoLimit};
  constexpr auto kLayout = Config::kIsChannelsLast ? ffi::kStrided : ffi::kDense;
  GroupNormArgs<Config> args{};
  args.input = match.elements<const Config::Element>(input, total, "input", kLayout);
  args.out = match.elements<Config::Element>(out, total, "out", kLayout);
  if (total == 0) return;
  const int64_t samples = input.size(0), channels = input.size(1);
  match.require(num_groups > 0 && channels % num_groups == 0, "num_groups must divide the channels");
  args.rows = samples * num_groups;
  const int64_t size = total / args.rows;
  match.require(args.rows < (1 << 24) && size < (1 << 30), "at most 2^24 - 1 groups of 2^30 - 1 elements");
  args.size = static_cast<int>(size), args.channels = static_cast<int>(channels / num_groups);
  const int64_t run = Config::kIsChannelsLast ? args.channels : size / args.channels;
  args.groups = Divider(num_groups), args.run = Divider(run);
  args.weight = match.elements<const Config::Weight>(weight, channels, "weight");
  args.bias = match.elements<const Config::Weight>(bias, channels, "bias");
  args.epsilon = epsilon, args.is_silu = is_silu;
  set_slices(match, args, parts);
  bool is_aligned = (Config::kIsChannelsLast && Config::kIsSliced ? channels : run) % kVec == 0;
  for (const void* data : std::initializer_list<const void*>{args.input, args.out, args.weight, args.bias})
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  launch(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(group_norm, aiter_like::group_norm);
#endif
