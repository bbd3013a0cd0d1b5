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

/// Sets what slices need, and checks that `parts` has room for them.
void set_slices(GroupNormArgs<Config>& args, const ffi::Optional<ffi::Tensor>& parts) {
  using Layout = Config::Layout<true>;
  constexpr int kCapacity = Layout::kCapacity;
  args.slices = Divider(1);
  ffi::check_value(Config::kIsSliced || kCapacity >= args.size,
                   "group_norm: this module was built for other row lengths");
  if (!Config::kIsSliced) return;
  ffi::check_value(parts.has_value() && parts.value().IsContiguous(), "group_norm: parts must be contiguous");
  ffi::check_type(ffi::has_element<float>(parts.value()), "group_norm: parts must have dtype float32");
  args.parts = static_cast<float*>(parts.value().data_ptr());
  int64_t slices = (int64_t{args.size} + kCapacity - 1) / kCapacity, room = 2 * args.rows * slices;
  int64_t workgroups = args.rows * slices;
  if (Config::kIsChannelsLast) {
    const int64_t samples = args.rows / args.groups.divisor, channels = int64_t{args.groups.divisor} * args.channels;
    slices = parts.value().ndim() == 4 ? parts.value().size(1) - 1 : 0;
    ffi::check_value(slices > 0, "group_norm: parts must be [samples, slices + 1, channels, 2]");
    room = 2 * samples * (slices + 1) * channels;
    workgroups = samples * slices;
    ffi::check_value(slices * args.channels < int64_t{1} << 31, "group_norm: more slices than a launch can have");
  }
  ffi::check_value(workgroups < (int64_t{1} << 31) && workgroups * Layout::kLanes < (int64_t{1} << 32),
                   "group_norm: more slices than a launch can have");
  ffi::check_value(parts.value().numel() >= room, "group_norm: parts must have two elements for each slice");
  args.slices = Divider(static_cast<uint32_t>(slices));
}

void group_norm(ffi::Tensor out, ffi::Optional<ffi::Tensor> parts, ffi::Tensor input,
                ffi::Optional<ffi::Tensor> weight, ffi::Optional<ffi::Tensor> bias, int64_t num_groups, double epsilon,
                bool is_silu) {
  ffi::check_type(ffi::has_element<Config::Element>(input) && ffi::has_element<Config::Element>(out),
                  "group_norm: input and out must have the dtype that this module was built for");
  ffi::check_value(weight.has_value() == Config::kHasWeight && bias.has_value() == Config::kHasBias,
                   "group_norm: this module was built for other flags");
  ffi::check_value(input.ndim() >= 2 && input.numel() == out.numel(), "group_norm: out must have the shape of input");
  if (input.numel() == 0) return;
  const int64_t samples = input.size(0), channels = input.size(1);
  ffi::check_value(num_groups > 0 && channels % num_groups == 0, "group_norm: num_groups must divide the channels");
  GroupNormArgs<Config> args{};
  args.rows = samples * num_groups;
  const int64_t size = input.numel() / args.rows;
  ffi::check_value(args.rows < (int64_t{1} << 24) && size < (int64_t{1} << 30),
                   "group_norm: at most 2^24 - 1 groups of 2^30 - 1 elements");
  args.size = static_cast<int>(size);
  args.groups = Divider(static_cast<uint32_t>(num_groups));
  args.channels = static_cast<int>(channels / num_groups);
  const int64_t run = Config::kIsChannelsLast ? args.channels : size / args.channels;
  args.run = Divider(static_cast<uint32_t>(run));
  args.out = static_cast<Config::Element*>(out.data_ptr());
  args.input = static_cast<const Config::Element*>(input.data_ptr());
  bool is_aligned = (Config::kIsChannelsLast && Config::kIsSliced ? channels : run) % Config::Layout<true>::kVec == 0;
  for (const void* data : {input.data_ptr(), out.data_ptr()})
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const auto factors = [&](const ffi::Optional<ffi::Tensor>& tensor) -> const Config::Weight* {
    if (!tensor.has_value()) return nullptr;
    ffi::check_type(ffi::has_element<Config::Weight>(tensor.value()),
                    "group_norm: weight and bias must share their dtype");
    ffi::check_value(tensor.value().numel() == channels && tensor.value().IsContiguous(),
                     "group_norm: weight and bias must have a contiguous element per channel");
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(tensor.value().data_ptr()) % 16 == 0;
    return static_cast<const Config::Weight*>(tensor.value().data_ptr());
  };
  args.weight = factors(weight);
  args.bias = factors(bias);
  args.epsilon = static_cast<float>(epsilon);
  args.is_silu = is_silu;
  set_slices(args, parts);
  launch(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(group_norm, aiter_like::group_norm);
#endif
